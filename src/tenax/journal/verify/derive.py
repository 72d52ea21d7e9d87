"""The index rows of one conversation in plain dictionaries: the full fold.

`check.verify` folds a conversation into this and compares it with what the engine keeps; `rebuild` writes the index anew
from it; an import plans against it, because its rows are not in the store yet.

A fold takes time in proportion to the events: what an undo reaches is looked for from the end, and counting again is
put off until a count is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenax.events import (
    Blob,
    ContentErased,
    ContextOpened,
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    Event,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    RunLate,
    Unknown,
)
from tenax.journal.row_index import (
    MESSAGE_ROLES,
    AddAuthor,
    Change,
    CloseRun,
    EndStretch,
    EraseBodies,
    HeadState,
    KillRows,
    LateOutput,
    OpenRun,
    OpenStretch,
    PutRow,
    Recount,
    ReviveRows,
    SealRun,
    SetList,
    TakeInputs,
    apply,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Derived", "DerivedRow", "DerivedRun", "DerivedStretch", "stand_in"]

_COUNTED = frozenset({"context.compacted", "stretch.ended"})
"""Kinds that write a count down."""


class DerivedRow(msgspec.Struct, gc=False):
    first: int
    role: int
    waiting: int
    dead: int = 0


class DerivedStretch(msgspec.Struct):
    parent: str | None
    opened_at: int
    opened_seq: int
    covers_to: int
    ended_at: int | None = None
    ended_seq: int | None = None
    reason: str | None = None
    messages: int = 0


class DerivedRun(msgspec.Struct):
    started_seq: int | None = None
    finished_seq: int | None = None
    outcome: str | None = None
    late: int = 0
    sealed_seq: int | None = None


class Derived:
    """What the events so far say that the index must hold."""

    def __init__(self, user: str, conversation: str) -> None:
        self.state = HeadState(0, conversation, user)
        self.rows: dict[int, DerivedRow] = {}
        self.stretches: dict[str, DerivedStretch] = {}
        self.runs: dict[str, DerivedRun] = {}
        self.authors: set[str] = set()
        self.list: dict[str, str | int | None] = {
            "title": None,
            "pinned": 0,
            "archived": 0,
        }
        self._kinds: dict[int, str] = {}
        self._killed: dict[int, list[int]] = {}
        self._waiting: set[int] = set()
        self._uncounted = False
        self._edits: list[tuple[int, Event | Unknown]] = []
        self._title_at = 0

    def fold(
        self, seq: int, at: int, run: str | None, kind: str, event: Event | Unknown
    ) -> None:
        """Take one fact in. Raises what `apply` raises: then the journal holds what no append would have stored."""
        if kind in _COUNTED:
            self.settle()
        self.note(seq, kind, event, apply(self.state, seq, at, run, kind, event, self))

    def note(
        self, seq: int, kind: str, event: Event | Unknown, changes: Sequence[Change]
    ) -> None:
        self._kinds[seq] = kind
        if kind == "conversation.titled":
            self._title_at = seq
        if isinstance(
            event,
            ConversationRewound
            | ConversationCleared
            | ConversationRestored
            | ContentErased,
        ):
            self._edits.append((seq, event))
        for change in changes:
            self._take(change)

    def _take(self, change: Change) -> None:  # noqa: C901, PLR0912  (one case a change)
        match change:
            case PutRow(seq, first, role, waiting):
                self.rows[seq] = DerivedRow(first, role, waiting)
                if waiting:
                    self._waiting.add(seq)
            case KillRows(after, by):
                self._killed[by] = [
                    seq for seq, row in self._rows_after(after) if not row.dead
                ]
                for seq in self._killed[by]:
                    self.rows[seq].dead = by
            case ReviveRows(_, by):
                for seq in self._killed.pop(by, ()):
                    self.rows[seq].dead = 0
            case TakeInputs(seqs):
                self._waiting.difference_update(seqs)
                for seq in seqs:
                    if seq in self.rows:
                        self.rows[seq].waiting = 0
            case Recount():
                self._uncounted = True
            case OpenStretch(name, parent, seq, at, covers_to):
                self.stretches[name] = DerivedStretch(parent, at, seq, covers_to)
            case EndStretch(name, seq, at, reason, messages):
                ended = self.stretches[name]
                ended.ended_at, ended.ended_seq, ended.reason, ended.messages = (
                    at,
                    seq,
                    reason,
                    messages,
                )
            case OpenRun(run, seq):
                self._run(run).started_seq = seq
            case CloseRun(run, seq, outcome):
                self._run(run).finished_seq, self._run(run).outcome = seq, outcome
            case LateOutput(run):
                self._run(run).late += 1
            case SealRun(run, seq):
                self._run(run).sealed_seq = seq
            case AddAuthor(author):
                self.authors.add(author)
            case SetList(column, value):
                self.list[column] = value
            case EraseBodies(seqs):
                for seq in seqs:
                    self._kinds.pop(seq, None)

    def _run(self, run: str) -> DerivedRun:
        return self.runs.setdefault(run, DerivedRun())

    def _rows_after(self, seq: int) -> Iterator[tuple[int, DerivedRow]]:
        """Rows stand in the order of their seq, so those after one are at the end."""
        for each in reversed(self.rows):
            if each <= seq:
                return
            yield each, self.rows[each]

    def settle(self) -> HeadState:
        """The state, with everything counted that a change has put off."""
        if self._uncounted:
            self._uncounted = False
            self._recount()
        return self.state

    def _recount(self) -> None:
        standing = [
            seq
            for seq, row in self.rows.items()
            if not row.dead and row.role <= MESSAGE_ROLES
        ]
        state = self.state
        state.messages = len(standing)
        state.stretch_messages = sum(seq >= state.stretch_from for seq in standing)
        state.unanswered = self.first_waiting(())
        for stretch in self.stretches.values():
            if stretch.ended_seq is not None:
                stretch.messages = sum(
                    stretch.opened_seq <= seq <= stretch.ended_seq for seq in standing
                )

    # -- the Lookup that `apply` asks ------------------------------------------------------------------------

    def kind_at(self, seq: int) -> str | None:
        return self._kinds.get(seq)

    def standing_after(self, seq: int) -> int:
        return sum(not row.dead for _, row in self._rows_after(seq))

    def killed_by(self, seq: int) -> int:
        return len(self._killed.get(seq, ()))

    def title_at(self) -> int:
        return self._title_at if self._title_at in self._kinds else 0

    def first_waiting(self, taken: Sequence[int]) -> int:
        return min(
            (
                seq
                for seq in self._waiting
                if not self.rows[seq].dead and seq not in taken
            ),
            default=0,
        )

    def edits_since(self, since: int) -> list[Event | Unknown]:
        return [event for seq, event in self._edits if seq > since]


def stand_in(
    kind: str, seq: int, first: int | None, waiting: int | None
) -> Event | Unknown:
    """What to fold in the place of an erased event.

    Whether it asked, and which request it answered, were in its body; `first` and `waiting` still say it.
    """
    request = 0 if first is None or first == seq else first
    match kind:
        case "message.user":
            return MessageUser([], ask=bool(waiting))
        case "message.assistant":
            return MessageAssistant([], request)
        case "message.partial":
            return MessagePartial([], request)
        case "run.late":
            return RunLate(0, "token", {})
        case "context.opened":
            return ContextOpened("start", "", Blob(""), Blob(""))
        case _:
            return Unknown(kind, None)
