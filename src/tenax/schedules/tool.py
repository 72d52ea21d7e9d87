"""The tool of schedules: a model asks to be asked something later, in its own conversation. A person allows each."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from tenax.clock import zone_of
from tenax.errors import InvalidInput, ToolFailed
from tenax.schedules.parse import EXAMPLES, is_understood, local
from tenax.schedules.rows import Plan, Schedule
from tenax.tools.base import Call, Tool

__all__ = ["UseSchedules"]

_SHOWN_CHARS = 200


class Plans(Protocol):
    """What keeps schedules (`tenax.schedules.scheduler.Scheduler`)."""

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


class UseSchedulesArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        is_understood(args.when)
        if args.zone:
            zone_of(args.zone)
        return f"{args.when}{f' ({args.zone})' if args.zone else ''}: {args.words[:_SHOWN_CHARS]}"

    async def run(self, args: UseSchedulesArgs, call: Call) -> str:
        here = call.conversation
        if args.action == "list":
            lines = map(_line, await self._plans.all(here))
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
        return (
            f"Made: {_told(made)}"
            if made.due is not None
            else f"Made, and over already: {made.id}"
        )


def _told(each: Schedule) -> str:
    next_time = f"{local(each.due or 0, zone_of(each.zone)):%A %Y-%m-%d %H:%M}"
    return f"{each.id}, {each.when} ({each.zone}), next on {next_time}: {each.words}"


def _line(each: Plan) -> str:
    try:
        return (
            f"{_told(each.schedule)}{f' It waits: {each.waits}' if each.waits else ''}"
        )
    except InvalidInput:  # its zone is not known here
        return f"{each.schedule.id}, {each.schedule.when}: {each.schedule.words} It waits: {each.waits}"
