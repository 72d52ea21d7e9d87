"""`/api/schedules`: prompts that run at set times."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tenax.assembly import Runtime
from tenax.clock import rfc3339
from tenax.schedules.rows import WORDS_CHARS_MAX
from tenax.web.api import Id, RequestBody, ResponseBody, endpoint
from tenax.web.search import titles_of


class Scheduled(ResponseBody):
    """A schedule. `waits` says why a due run has not happened yet."""

    id: str
    conversation: str
    title: str | None
    words: str
    when: str
    zone: str
    next: str
    made_at: str
    waits: str


class Schedules(ResponseBody):
    """Schedules, ordered by the time of the next run."""

    schedules: list[Scheduled]


class NewSchedule(RequestBody):
    """A prompt and its time, in words. Defaults: a new conversation, and the time zone of the server."""

    when: Annotated[str, Meta(max_length=200)]
    words: Annotated[str, Meta(max_length=WORDS_CHARS_MAX)]
    conversation: Id | None = None
    zone: Annotated[str, Meta(max_length=100)] = ""


@endpoint("GET", "/api/schedules")
async def list_schedules(runtime: Runtime) -> Schedules:
    """List the schedules with a next run."""
    return await _shown(runtime)


@endpoint("POST", "/api/schedules", 201)
async def add_schedule(runtime: Runtime, body: NewSchedule, key: str) -> Schedules:
    """Add a schedule, once per idempotency key."""
    await runtime.schedules.add(
        body.words,
        body.when,
        conversation=body.conversation,
        zone=body.zone,
        key=f"page:{key}",
    )
    return await _shown(runtime)


@endpoint("DELETE", "/api/schedules/{id}")
async def remove_schedule(runtime: Runtime, id: Id) -> Schedules:  # noqa: A002  (its name in the path)
    """Remove a schedule."""
    await runtime.schedules.remove(id)
    return await _shown(runtime)


async def _shown(runtime: Runtime) -> Schedules:
    plans = await runtime.schedules.all()
    titles = await titles_of(runtime, {plan.schedule.conversation for plan in plans})
    shown = []
    for plan in plans:
        schedule = plan.schedule
        shown.append(
            Scheduled(
                id=schedule.id,
                conversation=schedule.conversation,
                title=titles.get(schedule.conversation),
                words=schedule.words,
                when=schedule.when,
                zone=schedule.zone,
                next=rfc3339(schedule.due or 0),
                made_at=rfc3339(schedule.made_at),
                waits=plan.waits,
            )
        )
    return Schedules(shown)
