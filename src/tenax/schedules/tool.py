"""The tool `schedule`: a model schedules a message to itself in its conversation. A person approves every schedule."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from msgspec import Meta

from tenax.clock import zone_of
from tenax.errors import InvalidInput, ToolFailed
from tenax.schedules.parse import EXAMPLES, check_words, to_local
from tenax.schedules.rows import Plan, Schedule
from tenax.tools.base import Args, Call, Tool

__all__ = ["UseSchedules"]

_SHOWN_CHARS = 200


class Plans(Protocol):
    """The methods of `tenax.schedules.scheduler.Scheduler` used by the tool."""

    async def add(
        self,
        words: str,
        when: str,
        *,
        conversation: str,
        zone: str,
        message: int,
        key: str,
    ) -> Schedule: ...
    async def all(self, conversation: str) -> list[Plan]: ...
    async def remove(self, id: str, *, conversation: str) -> None: ...  # noqa: A002  (the field's name)


class UseSchedulesArgs(Args):
    action: Literal["create", "list", "remove"]
    when: Annotated[
        str,
        Meta(description=f"create: when, in words. Such as: {'; '.join(EXAMPLES)}."),
    ] = ""
    words: Annotated[
        str,
        Meta(
            description="create: what you will be asked to do then, complete in itself."
        ),
    ] = ""
    zone: Annotated[
        str,
        Meta(
            description="create: an IANA time zone, if the person named another than theirs."
        ),
    ] = ""
    schedule: Annotated[
        str, Meta(description="remove: the id of the schedule, as list gives it.")
    ] = ""


class UseSchedules(Tool[UseSchedulesArgs]):
    name = "schedule"
    description = (
        "Do something later or again and again: when it is due, you are asked in this conversation, also if nobody is there. "
        "Create, list or remove the schedules of this conversation. Creating one asks the person."
    )
    effect = "idempotent"
    args = UseSchedulesArgs
    seconds = 10.0
    delegated = False
    asks = False

    def __init__(self, plans: Plans) -> None:
        self._plans = plans

    def always_asks(self, args: UseSchedulesArgs) -> bool:
        return args.action == "create"

    def touches(self, args: UseSchedulesArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        if args.action == "list":
            return "list"
        if args.action == "remove":
            return f"remove {args.schedule}"
        if not args.words.strip():
            raise ToolFailed("create needs words: what is to be done then.")
        check_words(args.when)
        if args.zone:
            zone_of(args.zone)
        zone = f" ({args.zone})" if args.zone else ""
        return f"{args.when}{zone}: {args.words[:_SHOWN_CHARS]}"

    async def run(self, args: UseSchedulesArgs, call: Call) -> str:
        here = call.conversation
        if args.action == "list":
            lines = [_describe_plan(plan) for plan in await self._plans.all(here)]
            return "\n".join(lines) or "There are none in this conversation."
        if args.action == "remove":
            await self._plans.remove(args.schedule, conversation=here)
            return f"Removed: {args.schedule}"
        made = await self._plans.add(
            args.words,
            args.when,
            conversation=here,
            zone=args.zone,
            message=call.message,
            key=call.key,
        )
        if made.due is None:
            return f"Made, and over already: {made.id}"
        return f"Made: {_describe(made)}"


def _describe(schedule: Schedule) -> str:
    due = to_local(schedule.due or 0, zone_of(schedule.zone))
    return f"{schedule.id}, {schedule.when} ({schedule.zone}), next on {due:%A %Y-%m-%d %H:%M}: {schedule.words}"


def _describe_plan(plan: Plan) -> str:
    schedule = plan.schedule
    try:
        text = _describe(schedule)
    except InvalidInput:
        # The time zone is not known on this machine.
        text = f"{schedule.id}, {schedule.when}: {schedule.words}"
    return f"{text} It waits: {plan.waits}" if plan.waits else text
