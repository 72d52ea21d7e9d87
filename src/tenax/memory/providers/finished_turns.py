"""The course of a conversation as a memory is told it: finished turns, turns that were taken back, ends of stretches.

A turn is a run that was completed, from its first input to its last answer, over every resumption. What was cancelled,
failed, cut off, late or erased is none of it. An undo takes turns back and a restoration brings them again; clearing does
neither, because what was said then was not unsaid.

`owed(after)` compares what stood at a number with what stands now. So a turn that was undone before anybody read of it is
never told, nor is an undo that was itself undone. Where turns begin and end is held here; their words are read from the
journal when they are told.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from tenax.events import (
    TEMPORARY,
    ContextCompacted,
    ConversationCleared,
    ConversationOpened,
    ConversationRestored,
    ConversationRewound,
    MemoryDue,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
    ToolFinished,
    Unknown,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.journal.journal import Place
from tenax.parts import ToolCall, text_of

__all__ = ["Course", "Due", "Step", "Turn"]

ENDED_MESSAGES_MAX = 500
ENDED_BYTES_MAX = 1024 * 1024
_PAGE = 1000
_WORDS = frozenset({MessageAssistant.kind, ModelRequested.kind, ToolFinished.kind})
_FOLDED = frozenset(
    each.kind
    for each in (
        ContextCompacted, ConversationCleared, ConversationOpened, ConversationRestored, ConversationRewound, MemoryDue,
        MessageAssistant, RunFinished, RunStarted,
    )
)  # fmt: skip


class Turn(msgspec.Struct, frozen=True):
    """A finished turn with its words. `messages` is all of it, in the shape that models are sent."""

    session: str
    user: str
    assistant: str
    messages: list[dict[str, Any]]
    key: str


class Due(msgspec.Struct, frozen=True):
    """A boundary, and where it stands."""

    seq: int
    event: MemoryDue


class Finished(msgspec.Struct):
    """Where a turn stands: from its first run to its end."""

    first: int
    runs: tuple[str, ...]
    answer: int = 0
    seq: int = 0
    session: str = ""
    marks: list[int] = []
    """Where it was taken back, brought again, taken back."""
    cleared: int = 0

    def edit(
        self,
        seq: int,
        edit: ConversationRewound | ConversationCleared | ConversationRestored,
    ) -> None:
        match edit:
            case ConversationRewound(to=to) if (
                self.answer > to and self.stands() and not self.cleared
            ):
                self.marks.append(seq)
            case ConversationCleared() if self.stands() and not self.cleared:
                self.cleared = seq
            case ConversationRestored(of=of) if of == self.cleared:
                self.cleared = 0
            case ConversationRestored(of=of) if self.marks[-1:] == [of]:
                self.marks.append(seq)

    def stands(self, at: int | None = None) -> bool:
        """Whether it is not taken back, now or at a number."""
        return sum(at is None or each <= at for each in self.marks) % 2 == 0


class Step(msgspec.Struct):
    """What is told at once: one turn, or those that an undo took back (`taken`) or a restoration brought again."""

    at: int
    turns: list[Finished]
    taken: bool


class Course:
    """One conversation, folded up to `seq`."""

    def __init__(
        self, journal: AsyncJournal, conversation: str, leave_out: Collection[str] = ()
    ) -> None:
        self._journal = journal
        self._leave_out = leave_out
        self.conversation = conversation
        self._place = Place(0, journal.incarnation)
        self.parents: dict[str, str] = {}
        """The stretch before each one, or ""."""
        self._left_out = False
        self._session = ""
        self._runs: dict[str, Finished] = {}
        self._turns: list[Finished] = []
        self._dues: list[Due] = []

    @property
    def seq(self) -> int:
        """Up to where it is folded."""
        return self._place.after

    async def catch_up(self) -> None:
        """Fold what came since. Only facts are folded, and no crash takes one: after it, those that follow the last are read."""
        while True:
            page = await self._journal.read(
                self.conversation, after=self.seq, limit=_PAGE
            )
            if self._place.passed(page, self._journal.incarnation):
                for each in page:
                    if each.kind in _FOLDED:
                        self._apply(each)
                if len(page) < _PAGE:
                    return

    def owed(self, after: int) -> list[Step]:
        """What has to be told to somebody who was told everything up to a number."""
        found: dict[int, Step] = {}
        for each in () if self._left_out else self._turns:
            had = each.seq <= after and each.stands(after)
            if had != each.stands():
                at = each.seq if each.seq > after else each.marks[-1]
                found.setdefault(at, Step(at, [], had)).turns.append(each)
        return [found[at] for at in sorted(found)]

    def at(self, seq: int) -> Step | None:
        """What was to be told at this number, as far as it is still so."""
        turns = [each for each in self._turns if seq in {each.seq, *each.marks}]
        still = [each for each in turns if each.stands() == each.stands(seq)]
        return (
            Step(seq, still, not still[0].stands())
            if still and not self._left_out
            else None
        )

    def dues(self, after: int) -> list[Due]:
        """The boundaries after a number."""
        return (
            [] if self._left_out else [each for each in self._dues if each.seq > after]
        )

    def met(self, due: Due, owner: str) -> bool:
        """Whether no turn stands there that was not part of an earlier boundary."""
        since = self._since(due, owner)
        return not any(
            since < each.seq <= due.event.upto and each.stands() for each in self._turns
        )

    def _since(self, due: Due, owner: str) -> int:
        before = [each.event for each in self._dues if each.seq < due.seq]
        return max(
            (each.upto for each in before if each.owner in {"", owner}), default=0
        )

    async def turn(self, finished: Finished) -> Turn | None:
        """The words of a turn. None if something of it was erased."""
        messages: list[dict[str, Any]] = []
        after, answer = finished.first - 1, ""
        while page := await self._journal.read(
            self.conversation, after=after, upto=finished.seq, limit=_PAGE
        ):
            for each in page:
                if each.run not in finished.runs:
                    continue
                found = await self._said(each)
                if found is None:
                    return None
                messages += found
                if each.kind == MessageAssistant.kind:
                    answer = found[0]["content"]
            after = page[-1].seq
            if len(page) < _PAGE:
                break
        said = "\n".join(each["content"] for each in messages if each["role"] == "user")
        key = f"{self.conversation}:{finished.seq}"
        return Turn(finished.session, said, answer, messages, key)

    async def ended(self, due: Due, owner: str) -> list[dict[str, Any]]:
        """The messages of a stretch up to its boundary, and of turns that no boundary covered: the last that there is room for."""
        room, found, since = (
            ENDED_BYTES_MAX,
            list[dict[str, Any]](),
            self._since(due, owner),
        )
        for each in reversed(self._turns):
            covered = each.session != due.event.session and each.seq <= since
            if covered or each.seq > due.event.upto or not each.stands():
                continue
            turn = await self.turn(each)
            for message in reversed(turn.messages if turn is not None else ()):
                room -= len(msgspec.json.encode(message))
                if room < 0 or len(found) == ENDED_MESSAGES_MAX:
                    break
                found.append(message)
            else:
                continue
            break
        # the call that it answers is not there
        while found and found[-1]["role"] == "tool":
            found.pop()
        return found[::-1]

    def _apply(self, recorded: Recorded) -> None:
        seq, run = recorded.seq, recorded.run or ""
        match recorded.event:
            case RunStarted(resumes=resumes):
                before = self._runs.get(resumes or "") or Finished(seq, (), seq)
                self._runs = {
                    run: Finished(before.first, (*before.runs, run), before.answer)
                }
            case MessageAssistant() | Unknown(kind=MessageAssistant.kind) if (
                run in self._runs
            ):
                self._runs[run].answer = seq
            case RunFinished(outcome=outcome):
                self._finish(seq, self._runs.get(run), outcome)
            case ConversationOpened() as opened:
                self._left_out = opened.source in {TEMPORARY, *self._leave_out}
                self._open(opened.stretch, opened.parent)
            case ContextCompacted(parent=parent, child=child):
                self._open(child, parent)
            case MemoryDue() as due:
                self._dues.append(Due(seq, due))
            case (
                ConversationRewound()
                | ConversationCleared()
                | ConversationRestored() as edit
            ):
                for each in self._turns:
                    each.edit(seq, edit)

    def _open(self, stretch: str, parent: str | None) -> None:
        self._session = stretch
        self.parents[stretch] = parent or ""

    def _finish(self, seq: int, run: Finished | None, outcome: str) -> None:
        if outcome != "interrupted":  # an interrupted one may be gone on with
            self._runs = {}
        if run is not None and outcome == "completed":
            run.seq, run.session = seq, self._session
            self._turns.append(run)

    async def _said(self, recorded: Recorded) -> list[dict[str, Any]] | None:
        """What an event adds to the messages of its turn. None: it was erased."""
        match recorded.event:
            case RunStarted(inputs=inputs) | ModelRequested(inputs=inputs):
                found = [
                    await self._journal.fact(self.conversation, each) for each in inputs
                ]
                events = [each.event for each in found if each is not None]
                asked = [each for each in events if isinstance(each, MessageUser)]
                messages = [
                    {"role": "user", "content": text_of(each.parts)} for each in asked
                ]
                return messages if len(asked) == len(inputs) else None
            case MessageAssistant(parts=parts):
                calls = [each for each in parts if isinstance(each, ToolCall)]
                answer: dict[str, Any] = {
                    "role": "assistant",
                    "content": text_of(parts),
                }
                return [
                    {**answer, "tool_calls": [_call(each) for each in calls]}
                    if calls
                    else answer
                ]
            case ToolFinished(call=call, text=text):
                return [{"role": "tool", "tool_call_id": call, "content": text}]
        return None if recorded.erased and recorded.kind in _WORDS else []


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
