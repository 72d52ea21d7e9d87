"""TurnHistory: the events of a conversation for a memory provider: finished turns, undone turns, ends of sessions.

A turn is a completed run, from its first input to its last answer, including every resumed run. Cancelled, failed,
interrupted, late and erased events are not part of a turn. An undo takes turns back, and a restoration brings turns
back. A clear does neither: the provider keeps cleared turns.

`owed(after)` compares the standing turns at a seq with the standing turns now. So a turn undone before its delivery is
never delivered. An undo taken back before its delivery is never delivered either. The history holds only the seqs of
turns. The text of a turn is read from the journal for the delivery.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from tenax.events import (
    TEMPORARY,
    ContextCompacted,
    ConversationOpened,
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
from tenax.journal.journal import TailPosition
from tenax.journal.standing import EDITS, Standing
from tenax.parts import ToolCall, text_of

__all__ = ["Due", "Step", "Turn", "TurnHistory"]

ENDED_MESSAGES_MAX = 500
ENDED_BYTES_MAX = 1024 * 1024
_PAGE = 1000
_WORDS = frozenset({MessageAssistant.kind, ModelRequested.kind, ToolFinished.kind})
_FOLDED = EDITS | {
    ContextCompacted.kind,
    ConversationOpened.kind,
    MemoryDue.kind,
    MessageAssistant.kind,
    RunFinished.kind,
    RunStarted.kind,
}


class Turn(msgspec.Struct, frozen=True):
    """A finished turn with its text. `messages` holds every message of the turn, in the format of model requests."""

    session: str
    user: str
    assistant: str
    messages: list[dict[str, Any]]
    key: str


class Due(msgspec.Struct, frozen=True):
    """A boundary and its seq."""

    seq: int
    event: MemoryDue


class Finished(msgspec.Struct):
    """The seqs of a turn, from the first run to the end."""

    first: int
    runs: tuple[str, ...]
    answer: int = 0
    seq: int = 0
    session: str = ""
    edits: dict[int, bool] = {}
    """By seq of an edit: the edit undid the turn (False) or restored the turn (True), in order."""

    def stands(self, at: int | None = None) -> bool:
        """Return whether the turn is not undone, now or when the journal ended at seq `at`."""
        stands = True
        for seq, stood in self.edits.items():
            if at is None or seq <= at:
                stands = stood
        return stands


class Step(msgspec.Struct):
    """A single delivery: a turn, or the turns undone (`undone`) or restored by an edit."""

    at: int
    turns: list[Finished]
    undone: bool


class TurnHistory:
    """The turns and boundaries of a conversation, folded up to `seq`."""

    def __init__(
        self, journal: AsyncJournal, conversation: str, leave_out: Collection[str] = ()
    ) -> None:
        self._journal = journal
        self._leave_out = leave_out
        self.conversation = conversation
        self._position = TailPosition(0, journal.incarnation)
        self.parents: dict[str, str] = {}
        """By session, the preceding session, or ""."""
        self._is_left_out = False
        self._session = ""
        self._runs: dict[str, Finished] = {}
        self._turns: list[Finished] = []
        self._standing = Standing()
        self._dues: list[Due] = []

    @property
    def seq(self) -> int:
        """The last folded seq."""
        return self._position.after

    async def catch_up(self) -> None:
        """Fold the events since the last call.

        Only durable events count. A crash may take partials and their seqs; then the method reads again from the last
        durable event.
        """
        while True:
            page = await self._journal.read(
                self.conversation, after=self.seq, limit=_PAGE
            )
            if self._position.passed(page, self._journal.incarnation):
                for recorded in page:
                    if recorded.kind in _FOLDED:
                        self._apply(recorded)
                if len(page) < _PAGE:
                    return

    def owed(self, after: int) -> list[Step]:
        """Return the steps owed to a provider that knows everything up to seq `after`."""
        if self._is_left_out:
            return []
        steps: dict[int, Step] = {}
        for turn in self._turns:
            was_told = turn.seq <= after and turn.stands(after)
            if was_told != turn.stands():
                at = turn.seq if turn.seq > after else max(turn.edits)
                step = steps.setdefault(at, Step(at, [], was_told))
                step.turns.append(turn)
        return [steps[at] for at in sorted(steps)]

    def step_at(self, seq: int) -> Step | None:
        """Return the step to be delivered at a seq, without turns changed since."""
        if self._is_left_out:
            return None
        turns = [
            turn
            for turn in self._turns
            if seq in {turn.seq, *turn.edits} and turn.stands() == turn.stands(seq)
        ]
        return Step(seq, turns, not turns[0].stands()) if turns else None

    def dues(self, after: int) -> list[Due]:
        """Return the boundaries after a seq."""
        if self._is_left_out:
            return []
        return [due for due in self._dues if due.seq > after]

    def is_covered(self, due: Due, owner: str) -> bool:
        """Return whether earlier boundaries cover every standing turn of the boundary `due`."""
        since = self._covered_to(due, owner)
        return not any(
            since < turn.seq <= due.event.upto and turn.stands() for turn in self._turns
        )

    def _covered_to(self, due: Due, owner: str) -> int:
        """Return the last seq covered by boundaries before `due`."""
        ends = [
            earlier.event.upto
            for earlier in self._dues
            if earlier.seq < due.seq and earlier.event.owner in {"", owner}
        ]
        return max(ends, default=0)

    async def turn(self, finished: Finished) -> Turn | None:
        """Return a turn with its text, or `None` if a part of the turn was erased."""
        messages: list[dict[str, Any]] = []
        answer = ""
        after = finished.first - 1
        while page := await self._journal.read(
            self.conversation, after=after, upto=finished.seq, limit=_PAGE
        ):
            for recorded in page:
                if recorded.run not in finished.runs:
                    continue
                added = await self._messages_of(recorded)
                if added is None:
                    return None
                messages += added
                if recorded.kind == MessageAssistant.kind:
                    answer = added[0]["content"]
            after = page[-1].seq
            if len(page) < _PAGE:
                break
        inputs = [message for message in messages if message["role"] == "user"]
        user = "\n".join(message["content"] for message in inputs)
        key = f"{self.conversation}:{finished.seq}"
        return Turn(finished.session, user, answer, messages, key)

    async def messages_until(self, due: Due, owner: str) -> list[dict[str, Any]]:
        """Return the last messages before a boundary, up to a bound.

        The messages come from the turns of the boundary's session, and from turns not covered by a boundary.
        """
        messages: list[dict[str, Any]] = []
        room = ENDED_BYTES_MAX
        since = self._covered_to(due, owner)
        for finished in reversed(self._turns):
            is_covered = finished.session != due.event.session and finished.seq <= since
            if is_covered or finished.seq > due.event.upto or not finished.stands():
                continue
            turn = await self.turn(finished)
            for message in reversed(turn.messages if turn is not None else ()):
                room -= len(msgspec.json.encode(message))
                if room < 0 or len(messages) == ENDED_MESSAGES_MAX:
                    break
                messages.append(message)
            else:
                continue
            break
        # The result of a tool needs its call, and the bound cut the call off.
        while messages and messages[-1]["role"] == "tool":
            messages.pop()
        return messages[::-1]

    def _apply(self, recorded: Recorded) -> None:
        seq, run = recorded.seq, recorded.run or ""
        match recorded.event:
            case RunStarted(resumes=resumes):
                before = self._runs.get(resumes or "") or Finished(seq, (), seq)
                runs = (*before.runs, run)
                self._runs = {run: Finished(before.first, runs, before.answer)}
            case MessageAssistant() | Unknown(kind=MessageAssistant.kind) if (
                run in self._runs
            ):
                self._runs[run].answer = seq
            case RunFinished(outcome=outcome):
                self._finish(seq, self._runs.get(run), outcome)
            case ConversationOpened(stretch=session, parent=parent, source=source):
                self._is_left_out = source in {TEMPORARY, *self._leave_out}
                self._open_session(session, parent)
            case ContextCompacted(parent=parent, child=session):
                self._open_session(session, parent)
            case MemoryDue() as due:
                self._dues.append(Due(seq, due))
            case edit if recorded.kind in EDITS:
                self._standing.apply(seq, edit)
                for turn in self._turns:
                    stands = not self._standing.is_undone(turn.answer)
                    if stands != turn.stands():
                        turn.edits[seq] = stands

    def _open_session(self, session: str, parent: str | None) -> None:
        self._session = session
        self.parents[session] = parent or ""

    def _finish(self, seq: int, run: Finished | None, outcome: str) -> None:
        # A later run may resume an interrupted run.
        if outcome != "interrupted":
            self._runs = {}
        if run is not None and outcome == "completed":
            run.seq, run.session = seq, self._session
            self._turns.append(run)

    async def _messages_of(self, recorded: Recorded) -> list[dict[str, Any]] | None:
        """Return the messages added by an event to its turn, or `None` if the event was erased."""
        match recorded.event:
            case RunStarted(inputs=inputs) | ModelRequested(inputs=inputs):
                return await self._inputs(inputs)
            case MessageAssistant(parts=parts):
                answer: dict[str, Any] = {"role": "assistant", "content": text_of(parts)}  # fmt: skip
                calls = [
                    _encode_call(part) for part in parts if isinstance(part, ToolCall)
                ]
                if calls:
                    answer["tool_calls"] = calls
                return [answer]
            case ToolFinished(call=call, text=text):
                return [{"role": "tool", "tool_call_id": call, "content": text}]
        return None if recorded.erased and recorded.kind in _WORDS else []

    async def _inputs(self, seqs: Sequence[int]) -> list[dict[str, Any]] | None:
        messages = []
        for seq in seqs:
            recorded = await self._journal.fact(self.conversation, seq)
            if recorded is None or not isinstance(recorded.event, MessageUser):
                return None
            content = text_of(recorded.event.parts)
            messages.append({"role": "user", "content": content})
        return messages


def _encode_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
