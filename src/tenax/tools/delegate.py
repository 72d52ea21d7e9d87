"""Sub-agents: a task that the model hands on is done in a conversation of its own.

The id of that conversation follows from the call, and the call goes on there (`Elsewhere`): the run that asked is parked,
holds nothing, and is woken when the other one moves. So several work side by side, either side may be killed, stopped or
gone on with by another process, and a call that is made again finds the same conversation and the answer in it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tenax.errors import ConversationExists, Gone, ToolFailed
from tenax.events import (
    DELEGATE,
    ConversationOpened,
    ConversationTitled,
    MessageAssistant,
    MessageUser,
    RunFinished,
    ToolFinished,
    ToolLate,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.parts import Text, ToolCall, text_of
from tenax.tools.base import Call, Elsewhere, Tool
from tenax.views.open_work import Turns

__all__ = [
    "BRIEF",
    "CHILDREN_MAX",
    "STEPS_MAX",
    "TASK",
    "Delegate",
    "Made",
    "made_by",
    "made_in",
]

CHILDREN_MAX: Final = 8
"""Sub-agents of one run."""
STEPS_MAX: Final = 25
TASK: Final = 2
"""Where the task stands in the conversation of a sub-agent."""
BRIEF: Final = (
    "Here you work for another agent, which handed you the task that the conversation begins with. It reads your last message "
    "and nothing else: say in it what you found or did, and what you could not do."
)
_TITLE_CHARS: Final = 80
_NAMES: Final = uuid.UUID("5a0f7c1e-6c1b-4b0e-9d1c-0d6f5f1f2a77")


class Made(msgspec.Struct, frozen=True):
    """The call whose task a conversation is for."""

    conversation: str
    message: int
    call: str


def child_of(conversation: str, message: int, call: str) -> str:
    """The conversation in which this call goes on, whether it is there yet or not."""
    return f"c_{uuid.uuid5(_NAMES, f'{conversation}:{message}:{call}')}"


async def made_by(journal: AsyncJournal, conversation: str) -> Made | None:
    """The call that made this conversation; None where a person did."""
    opened = await journal.fact(conversation, 1)
    event = opened.event if opened is not None else None
    if isinstance(event, ConversationOpened) and event.source == DELEGATE:
        # or a program, under the same name
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(event.extra, Made)
    return None


def made_in(recorded: Recorded) -> list[str]:
    """The conversations that an event hands words to, or has them from: where there is a sub-agent for a call of it."""
    match recorded.event:
        case MessageAssistant(parts=parts):
            calls = [
                (recorded.seq, part.id) for part in parts if isinstance(part, ToolCall)
            ]
        case (
            ToolFinished(message=message, call=call)
            | ToolLate(message=message, call=call)
        ):
            calls = [(message, call)]
        case _:
            calls = []
    return [child_of(recorded.conversation, *each) for each in calls]


class DelegateArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    task: Annotated[
        str,
        Meta(
            max_length=20_000,
            description="The whole task: the sub-agent knows nothing of this conversation.",
        ),
    ]


class Delegate(Tool[DelegateArgs]):
    name = DELEGATE
    description = (
        "Hand a task to a sub-agent, which works on it in a conversation of its own, in the same folder and with the same "
        "tools, and get its answer. Several in one answer work side by side."
    )
    effect = "idempotent"
    args = DelegateArgs
    seconds = 3600.0
    delegated = False
    asks = False

    def __init__(
        self,
        journal: AsyncJournal,
        turns: Callable[[str], Awaitable[Turns]],
        wake: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._turns = turns
        self._wake = wake

    def touches(self, args: DelegateArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        if not args.task.strip():
            raise ToolFailed("delegate needs a task.")
        return _line(args.task)

    async def run(self, args: DelegateArgs, call: Call) -> str:
        child = child_of(call.conversation, call.message, call.id)
        try:
            await self._open(child, args.task, call)
            turns = await self._turns(child)
            run = next(
                (
                    each
                    for each in (turns.run, turns.resumable)
                    if each and TASK in each.inputs
                ),
                None,
            )
            if run is not None or TASK in turns.waiting:
                self._wake(child)
                raise Elsewhere(child, asks=run is not None and bool(run.waits))
            return await self._result(child, turns)
        except Gone as error:
            raise ToolFailed(
                "The sub-agent's conversation was deleted, and its answer with it."
            ) from error

    async def _open(self, child: str, task: str, call: Call) -> None:
        """Make the conversation, unless it is there: also where nobody came to say so."""
        run = (await self._turns(call.conversation)).run
        if run is not None and any(each.call.id == call.id for each in run.handed):
            return
        if run is not None and run.delegated >= CHILDREN_MAX:
            raise ToolFailed(
                f"{CHILDREN_MAX} tasks were handed on in this turn, and no more are.",
                hint="do it yourself",
            )
        clean = task.replace("\x00", "\ufffd")
        opened = ConversationOpened(
            self._journal.user or "",
            f"s_{child.removeprefix('c_')}",
            source=DELEGATE,
            parent=(await self._journal.head(call.conversation)).stretch,
            extra=msgspec.structs.asdict(
                Made(call.conversation, call.message, call.id)
            ),
        )
        asked = MessageUser([Text(clean)], ask=True, system=True)
        with contextlib.suppress(ConversationExists):
            await self._journal.append(
                child, [opened, asked, ConversationTitled(_line(clean), derived=True)]
            )

    async def _result(self, child: str, turns: Turns) -> str:
        runs = [each for each in turns.runs.values() if TASK in each.inputs]
        ended = next((each for each in runs if each.finished != "interrupted"), None)
        if ended is None:
            raise ToolFailed(
                "The sub-agent was interrupted, and nobody went on with its task."
            )
        if ended.finished == "cancelled":
            raise ToolFailed("The sub-agent was stopped before it was done.")
        if ended.finished == "failed":
            last = await self._journal.fact(child, ended.ended)
            why = (
                last.event.why
                if last is not None and isinstance(last.event, RunFinished)
                else ""
            )
            raise ToolFailed(f"The sub-agent failed. {why}".strip())
        said = [
            each.event for each in await self._journal.messages(child, upto=ended.ended)
        ]
        words = [
            text_of(each.parts) for each in said if isinstance(each, MessageAssistant)
        ]
        return next(
            (each for each in reversed(words) if each), "The sub-agent said nothing."
        )


def _line(task: str) -> str:
    return " ".join(task[: 4 * _TITLE_CHARS].split())[:_TITLE_CHARS]
