"""The index of a conversation in plain dictionaries, derived from all events.

`verify` compares the derived index with the tables of the engine. `rebuild` writes the tables from the derived index.
An import plans against the derived index, because the rows of an import are not in the store yet.

The time of a fold is proportional to the number of events: the search for standing rows starts at the end, and the fold
counts messages only on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenax.events import (
    Blob,
    ContentErased,
    ContextOpened,
    Event,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    MessageWithdrawn,
    RunLate,
    Unknown,
)
from tenax.journal.row_index import (
    MESSAGE_ROLES,
    AddAuthor,
    Change,
    CloseRun,
    EndSegment,
    EraseBodies,
    HeadState,
    LateOutput,
    OpenRun,
    OpenSegment,
    PutRoute,
    PutRow,
    Recount,
    SealRun,
    SetList,
    TakeInputs,
    apply,
)
from tenax.journal.standing import EDITS, Standing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Derived",
    "DerivedRow",
    "DerivedRun",
    "DerivedSegment",
    "FactRow",
    "stand_in",
]

_COUNTED = frozenset({"context.compacted", "stretch.ended"})
"""Kinds of events with a stored count of messages."""


class FactRow(NamedTuple):
    """A row of the statement `prove_facts`."""

    row_key: int
    kind: str
    at: int
    run: str | None
    first: int | None
    waiting: int | None
    append_id: bytes | None
    salt: bytes | None
    body_hash: bytes | None
    digest: bytes
    body: bytes | None


class DerivedRow(msgspec.Struct, gc=False):
    """The index columns of an event."""

    first: int
    role: int
    waiting: int
    dead: int = 0


class DerivedSegment(msgspec.Struct):
    """A row of the table `stretches`."""

    parent: str | None
    opened_at: int
    opened_seq: int
    covers_to: int
    ended_at: int | None = None
    ended_seq: int | None = None
    reason: str | None = None
    messages: int = 0


class DerivedRun(msgspec.Struct):
    """A row of the table `runs`."""

    started_seq: int | None = None
    finished_seq: int | None = None
    outcome: str | None = None
    late: int = 0
    sealed_seq: int | None = None


class Derived:
    """The index according to the events so far."""

    def __init__(self, user: str, conversation: str) -> None:
        self.state = HeadState(0, conversation, user)
        self.rows: dict[int, DerivedRow] = {}
        self.segments: dict[str, DerivedSegment] = {}
        self.runs: dict[str, DerivedRun] = {}
        self.authors: set[str] = set()
        self.routes: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        """By account, chat and thread: whether the route is closed, the time and the seq."""
        self.list: dict[str, str | int | None] = {
            "title": None,
            "pinned": 0,
            "archived": 0,
            "model": "",
            "mode": "ask",
            "project": "",
        }
        self._kinds: dict[int, str] = {}
        self._standing = Standing()
        self._waiting: set[int] = set()
        self._uncounted = False
        self._edits: list[tuple[int, Event | Unknown]] = []
        self._title_at = 0

    def fold(
        self, seq: int, at: int, run: str | None, kind: str, event: Event | Unknown
    ) -> None:
        """Fold a fact. Raises the errors of `apply`, which mean that no append would have stored the fact."""
        if kind in _COUNTED:
            self.settle()
        changes = apply(self.state, seq, at, run, kind, event, self)
        self.note(seq, kind, event, changes)

    def note(
        self, seq: int, kind: str, event: Event | Unknown, changes: Sequence[Change]
    ) -> None:
        """Apply the changes of an event."""
        self._kinds[seq] = kind
        if kind == "conversation.titled":
            self._title_at = seq
        if kind in EDITS:
            self._standing.apply(seq, event)
        if kind in EDITS or isinstance(event, ContentErased):
            self._edits.append((seq, event))
        for change in changes:
            self._apply_change(change)

    def _apply_change(self, change: Change) -> None:  # noqa: C901, PLR0912  (one case a change)
        match change:
            case PutRow(seq, first, role, waiting):
                self.rows[seq] = DerivedRow(first, role, waiting)
                if waiting:
                    self._waiting.add(seq)
            case TakeInputs(seqs):
                self._waiting.difference_update(seqs)
                for seq in seqs:
                    if seq in self.rows:
                        self.rows[seq].waiting = 0
            case Recount():
                self._uncounted = True
            case OpenSegment(name, parent, seq, at, covers_to):
                self.segments[name] = DerivedSegment(parent, at, seq, covers_to)
            case EndSegment(name, seq, at, reason, messages):
                segment = self.segments[name]
                segment.ended_at = at
                segment.ended_seq = seq
                segment.reason = reason
                segment.messages = messages
            case OpenRun(run, seq):
                self._run(run).started_seq = seq
            case CloseRun(run, seq, outcome):
                self._run(run).finished_seq = seq
                self._run(run).outcome = outcome
            case LateOutput(run):
                self._run(run).late += 1
            case SealRun(run, seq):
                self._run(run).sealed_seq = seq
            case AddAuthor(author):
                self.authors.add(author)
            case PutRoute(account, chat, thread, closed, at, seq):
                self.routes[account, chat, thread] = (closed, at, seq)
            case SetList(column, value):
                self.list[column] = value
            case EraseBodies(seqs):
                for seq in seqs:
                    self._kinds.pop(seq, None)

    def _run(self, run: str) -> DerivedRun:
        return self.runs.setdefault(run, DerivedRun())

    def _rows_after(self, after: int) -> Iterator[int]:
        """Yield the seqs of the rows after a seq, last row first: `rows` is in the order of the seqs."""
        for seq in reversed(self.rows):
            if seq <= after:
                return
            yield seq

    def settle(self) -> HeadState:
        """Return the state. If an edit made it necessary, first mark the removed rows and count the other rows."""
        if self._uncounted:
            self._uncounted = False
            self._recount()
        return self.state

    def _recount(self) -> None:
        standing: list[int] = []
        for seq, row in self.rows.items():
            row.dead = self._standing.removed_by(seq)
            if not row.dead and row.role <= MESSAGE_ROLES:
                standing.append(seq)
        state = self.state
        state.messages = len(standing)
        state.stretch_messages = sum(seq >= state.stretch_from for seq in standing)
        state.unanswered = self.first_waiting(())
        for segment in self.segments.values():
            if segment.ended_seq is not None:
                segment.messages = sum(
                    segment.opened_seq <= seq <= segment.ended_seq for seq in standing
                )

    # -- the Lookup that `apply` asks ------------------------------------------------------------------------

    def kind_at(self, seq: int) -> str | None:
        return self._kinds.get(seq)

    def standing_after(self, seq: int) -> int:
        return sum(map(self._standing.stands, self._rows_after(seq)))

    def killed_by(self, seq: int) -> bool:
        rows = reversed(self.rows)
        return any(self._standing.removed_by(row) == seq for row in rows)

    def title_at(self) -> int:
        return self._title_at if self._title_at in self._kinds else 0

    def first_waiting(self, taken: Sequence[int]) -> int:
        waiting = filter(self._standing.stands, self._waiting.difference(taken))
        return min(waiting, default=0)

    def is_waiting(self, seq: int) -> bool:
        return seq in self._waiting and self._standing.stands(seq)

    def is_withdrawn(self, seq: int) -> bool:
        remover = self._standing.removed_by(seq)
        return self.kind_at(remover) == MessageWithdrawn.kind

    def edits_since(self, since: int) -> list[Event | Unknown]:
        return [event for seq, event in self._edits if seq > since]


def stand_in(
    kind: str, seq: int, first: int | None, waiting: int | None
) -> Event | Unknown:
    """Return a substitute for an erased event.

    The erased body said whether the message asked for an answer, and which request an answer belongs to. The columns
    `waiting` and `first` still say so.
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
