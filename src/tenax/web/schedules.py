"""`/api/schedules`: what is asked by itself, when, and why it waits."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tenax.clock import rfc3339
from tenax.runtime.runtime import Runtime
from tenax.schedules.rows import WORDS_CHARS_MAX
from tenax.web.api import Id, endpoint
from tenax.web.search import titles_of


class Scheduled(msgspec.Struct, frozen=True):
    """A schedule. `waits` is why it is not run, if it is not."""

    id: str
    conversation: str
    title: str | None
    words: str
    when: str
    zone: str
    next: str
    made_at: str
    waits: str


class Schedules(msgspec.Struct, frozen=True):
    """Schedules, by the time that they are due next."""

    schedules: list[Scheduled]


class NewSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to ask, and when, in words; without a conversation in a new one, without a zone in the machine's."""

    when: Annotated[str, Meta(max_length=200)]
    words: Annotated[str, Meta(max_length=WORDS_CHARS_MAX)]
    conversation: Id | None = None
    zone: Annotated[str, Meta(max_length=100)] = ""


@endpoint("GET", "/api/schedules")
async def list_schedules(runtime: Runtime) -> Schedules:
    """Those that are not over."""
    return await _shown(runtime)


@endpoint("POST", "/api/schedules", 201)
async def add_schedule(runtime: Runtime, body: NewSchedule, key: str) -> Schedules:
    """Make one, once for each key."""
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
    """Take one away."""
    await runtime.schedules.remove(id)
    return await _shown(runtime)


async def _shown(runtime: Runtime) -> Schedules:
    plans = await runtime.schedules.all()
    titles = await titles_of(runtime, {each.schedule.conversation for each in plans})
    return Schedules(
        [
            Scheduled(each.id, each.conversation, titles.get(each.conversation), each.words, each.when, each.zone,
                      rfc3339(each.due or 0), rfc3339(each.made_at), plan.waits)
            for plan in plans
            for each in (plan.schedule,)
        ]
    )  # fmt: skip
