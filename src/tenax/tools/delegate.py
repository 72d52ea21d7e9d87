"""Sub-agents: a sub-agent performs a delegated task in a separate conversation, the child.

The id of the child is derived from the tool call, and the call continues in the child (`Elsewhere`). The parent run is
parked, holds no resources, and wakes up after every change of the child. So several sub-agents work in parallel. Parent
and child can be killed, stopped, or continued by a different process. A repeated call finds the same child and the
answer of the child.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tenax.clock import Timing
from tenax.errors import ConversationExists, Gone, ToolFailed
from tenax.events import (
    DELEGATE,
    ConversationConfigured,
    ConversationOpened,
    ConversationTitled,
    Event,
    MessageAssistant,
    MessageUser,
    RunFinished,
    ToolFinished,
    ToolLate,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.parts import Text, ToolCall, text_of
from tenax.text import make_storable
from tenax.tools.base import Args, Call, Elsewhere, Tool
from tenax.views.open_work import Turns

__all__ = [
    "BRIEF",
    "CHILDREN_MAX",
    "STEPS_MAX",
    "TASK",
    "Delegate",
    "Origin",
    "find_children",
    "find_origin",
]

CHILDREN_MAX: Final = 8
"""The maximum number of sub-agents of a run."""
STEPS_MAX: Final = 25
TASK: Final = 2
"""The seq of the task in the conversation of a sub-agent."""
BRIEF: Final = (
    "Here you work for another agent, which handed you the task that the conversation begins with. It reads your last message "
    "and nothing else: say in it what you found or did, and what you could not do."
)
_TITLE_CHARS: Final = 80
_NAMES: Final = uuid.UUID("5a0f7c1e-6c1b-4b0e-9d1c-0d6f5f1f2a77")


class Origin(msgspec.Struct, frozen=True):
    """The tool call that created a child conversation."""

    conversation: str
    message: int
    call: str


def make_child_id(conversation: str, message: int, call: str) -> str:
    """Return the id of the child conversation of a call. The child may not exist yet."""
    return f"c_{uuid.uuid5(_NAMES, f'{conversation}:{message}:{call}')}"


async def find_origin(journal: AsyncJournal, conversation: str) -> Origin | None:
    """Return the call that created the conversation, or `None` for a conversation of a person."""
    opened = await journal.fact(conversation, 1)
    event = opened.event if opened is not None else None
    if isinstance(event, ConversationOpened) and event.source == DELEGATE:
        # A program may open a conversation with the same source.
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(event.extra, Origin)
    return None


def find_children(recorded: Recorded) -> list[str]:
    """Return the ids of the child conversations for the tool calls of an event. A child may not exist."""
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
    return [make_child_id(recorded.conversation, *call) for call in calls]


class DelegateArgs(Args):
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
    delegated = False
    asks = False

    def __init__(
        self,
        journal: AsyncJournal,
        turns: Callable[[str], Awaitable[Turns]],
        wake: Callable[[str], None],
        timing: Timing,
    ) -> None:
        self.seconds = timing.delegate_seconds
        self._journal = journal
        self._turns = turns
        self._wake = wake

    def touches(self, args: DelegateArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        if not args.task.strip():
            raise ToolFailed("delegate needs a task.")
        return _line(args.task)

    async def run(self, args: DelegateArgs, call: Call) -> str:
        child = make_child_id(call.conversation, call.message, call.id)
        try:
            await self._open_child(child, args.task, call)
            turns = await self._turns(child)
            run = next(
                (
                    run
                    for run in (turns.run, turns.resumable)
                    if run and TASK in run.inputs
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

    async def _open_child(self, child: str, task: str, call: Call) -> None:
        """Create the child conversation unless it exists, also after a crash before the parent recorded the child."""
        run = (await self._turns(call.conversation)).run
        if run is not None and any(handed.call.id == call.id for handed in run.handed):
            return
        if run is not None and run.delegated >= CHILDREN_MAX:
            raise ToolFailed(
                f"{CHILDREN_MAX} tasks were handed on in this turn, and no more are.",
                hint="do it yourself",
            )
        clean = make_storable(task)
        opened = ConversationOpened(
            self._journal.user or "",
            f"s_{child.removeprefix('c_')}",
            source=DELEGATE,
            parent=(await self._journal.head(call.conversation)).segment,
            extra=msgspec.structs.asdict(
                Origin(call.conversation, call.message, call.id)
            ),
        )
        asked = MessageUser([Text(clean)], ask=True, system=True)
        titled = ConversationTitled(_line(clean), derived=True)
        events: list[Event] = [opened, asked, titled]
        parent = await self._journal.choice(call.conversation)
        chosen = ConversationConfigured(parent.model, parent.mode, parent.project)
        if chosen != ConversationConfigured("", "ask", ""):
            events.append(chosen)
        with contextlib.suppress(ConversationExists):
            await self._journal.append(child, events)

    async def _result(self, child: str, turns: Turns) -> str:
        runs = [run for run in turns.runs.values() if TASK in run.inputs]
        ended = next((run for run in runs if run.finished != "interrupted"), None)
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
            recorded.event
            for recorded in await self._journal.messages(child, upto=ended.ended)
        ]
        words = [
            text_of(message.parts)
            for message in said
            if isinstance(message, MessageAssistant)
        ]
        return next(
            (text for text in reversed(words) if text), "The sub-agent said nothing."
        )


def _line(task: str) -> str:
    return " ".join(task[: 4 * _TITLE_CHARS].split())[:_TITLE_CHARS]
