"""What is known without folding: one pure function from (head state, event) to changes of index rows.

Every engine applies the same changes in the transaction of the append; `check.verify` applies them to plain
dictionaries and compares. `apply` also asserts what must always hold: one open run, one head stretch, no second child.

What it needs to know beyond the head row it asks of a `Lookup`. Only the rare kinds in `SOLO` ask; such an append has
its transaction to itself, so that a lookup never misses rows that its own group has yet to write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from tenax.errors import (
    HeadMoved,
    InvalidInput,
    RunConflict,
    SessionEnded,
    StretchMoved,
)
from tenax.events import (
    ApprovalAsked,
    ContentErased,
    ContextCompacted,
    ContextOpened,
    ConversationArchived,
    ConversationCleared,
    ConversationOpened,
    ConversationPinned,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    Event,
    MemoryDue,
    MemoryRecalled,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    ModelRequested,
    ModelUsed,
    RunFinished,
    RunLate,
    RunSealed,
    RunStarted,
    StretchEnded,
    ToolHanded,
    ToolStarted,
    Unknown,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "INDEX_VERSION",
    "MAYBE_ALONE",
    "MESSAGE_ROLES",
    "ROLES",
    "SOLO",
    "STRUCTURE",
    "AddAuthor",
    "Change",
    "CloseRun",
    "EndStretch",
    "EraseBodies",
    "HeadState",
    "KillRows",
    "LateOutput",
    "Lookup",
    "OpenRun",
    "OpenStretch",
    "PutRow",
    "Recount",
    "ReviveRows",
    "SealRun",
    "SetList",
    "Spend",
    "TakeInputs",
    "alone",
    "apply",
]

INDEX_VERSION = 2
"""Moves when `apply` derives something else; a conversation is then rebuilt when it is next written."""

ROLES = {
    1: "user", 2: "assistant", 3: "system", 4: "tool", 5: "partial", 6: "summary", 7: "late", 8: "result",
}  # fmt: skip
_ROLE_OF = {
    "message.user": 1,
    "message.assistant": 2,
    "message.system": 3,
    "message.tool": 4,
    "message.partial": 5,
    "context.summarised": 6,
    "run.late": 7,
    "tool.finished": 8,
    "tool.late": 8,
}
MESSAGE_ROLES = 4
"""Rows with a role up to this number are messages, and are counted."""

_AUTHOR_CHARS_MAX = 200

SOLO = frozenset(
    {
        "content.erased",
        "context.compacted",
        "conversation.cleared",
        "conversation.restored",
        "conversation.rewound",
        "run.started",
    }
)


MAYBE_ALONE = SOLO | {"model.requested"}
"""The kinds for which `alone` has to be asked."""


def alone(kind: str, event: Event | Unknown) -> bool:
    """Whether an append with this event has its transaction to itself."""
    return kind in SOLO or (isinstance(event, ModelRequested) and bool(event.inputs))


_ANSWERS = (MessageAssistant, MessagePartial)
_EDITS = frozenset({"conversation.rewound", "conversation.cleared"})
STRUCTURE = SOLO | {
    "conversation.archived", "conversation.opened", "conversation.pinned", "memory.due", "run.finished", "run.sealed",
    "stretch.ended",
}  # fmt: skip
"""Kinds without text of anybody's. They are never erased: the index is derived from them."""


class HeadState(msgspec.Struct):
    """The head row, and what of the head stretch an append needs."""

    num: int
    id: str
    user: str
    head: int = 0
    facts: int = 0
    turns: int = 0
    due: int = 0
    revision: int = 0
    epoch: int = 0
    digest: bytes = bytes(32)
    run: str | None = None
    stretch: int = 0
    context_from: int = 1
    unanswered: int = 0
    messages: int = 0
    stretch_messages: int = 0
    stretch_from: int = 0
    stretch_covers: int = 0
    listed_at: int = 0
    """`updated_at` in the list. It follows the facts to the second, so that a burst does not churn the list's index."""
    version: int = INDEX_VERSION
    stretch_name: str | None = None
    woken: bool = False
    """The readers that follow its facts are marked as behind already."""


class PutRow(msgspec.Struct, frozen=True):
    seq: int
    first: int
    role: int
    waiting: int


class KillRows(NamedTuple):
    after: int
    by: int


class ReviveRows(NamedTuple):
    after: int
    by: int


class TakeInputs(NamedTuple):
    seqs: tuple[int, ...]


class Recount(NamedTuple):
    """Count messages and find the first waiting input again, after the rows that follow this seq were changed."""

    after: int


class OpenStretch(NamedTuple):
    name: str
    parent: str | None
    seq: int
    at: int
    covers_to: int


class EndStretch(NamedTuple):
    name: str
    seq: int
    at: int
    reason: str
    messages: int


class OpenRun(NamedTuple):
    run: str
    seq: int


class CloseRun(NamedTuple):
    run: str
    seq: int
    outcome: str


class LateOutput(NamedTuple):
    run: str


class SealRun(NamedTuple):
    run: str
    seq: int


class SetList(NamedTuple):
    column: str
    value: str | int | None


class Spend(NamedTuple):
    """A call of a model took this. A ledger, not an index: what was spent stays so, whatever is erased or deleted."""

    at: int
    usage: Usage


class AddAuthor(NamedTuple):
    """Somebody else than the user has written."""

    author: str


class EraseBodies(NamedTuple):
    seqs: tuple[int, ...]


Change = (
    PutRow
    | KillRows
    | ReviveRows
    | TakeInputs
    | Recount
    | OpenStretch
    | EndStretch
    | OpenRun
    | CloseRun
    | LateOutput
    | SealRun
    | SetList
    | Spend
    | AddAuthor
    | EraseBodies
)


class Lookup(Protocol):
    """What a solo event may ask of the store, inside the transaction."""

    def kind_at(self, seq: int) -> str | None:
        """The kind of the fact with this seq; None if there is none, or its body was erased."""

    def standing_after(self, seq: int) -> int:
        """How many standing rows there are after this seq."""

    def killed_by(self, seq: int) -> int:
        """Whether the event at this seq took rows out of the transcript that are still out of it."""

    def title_at(self) -> int:
        """The seq of the last title, or 0."""

    def first_waiting(self, taken: Sequence[int]) -> int:
        """The first standing input that waits for a run and is none of these, or 0."""

    def edits_since(self, since: int) -> list[Event | Unknown]:
        """Rewinds, clears, restores and erasures after this seq, in order."""

    def note(
        self, seq: int, kind: str, event: Event | Unknown, changes: Sequence[Change], /
    ) -> None:
        """Take in what was just applied, where the store does not have it yet."""


def apply(
    state: HeadState,
    seq: int,
    at: int,
    run: str | None,
    kind: str,
    event: Event | Unknown,
    look: Lookup,
) -> Sequence[Change]:
    """Move `state` over one fact and say what else changes. Raises what refuses the append; then nothing is stored.

    An event whose body is unknown or erased moves the numbers and whatever its kind alone tells.
    """
    state.head = state.facts = seq
    role = _ROLE_OF.get(kind)
    if role is not None:
        return _message(state, seq, at, run, role, event)
    step = _STEPS.get(type(event))
    return () if step is None else step(state, _At(seq, at, run), event, look)


class _At(NamedTuple):
    seq: int
    at: int
    run: str | None


def _message(
    state: HeadState,
    seq: int,
    at: int,
    run: str | None,
    role: int,
    event: Event | Unknown,
) -> Sequence[Change]:
    state.revision = seq
    first = seq
    waiting = 0
    if role <= MESSAGE_ROLES:
        if state.stretch_name is None:
            raise SessionEnded(
                "This conversation was ended; it takes no more messages."
            )
        state.messages += 1
        state.stretch_messages += 1
        if isinstance(event, MessageUser) and event.ask:
            waiting = 1
            state.unanswered = state.unanswered or seq
    if isinstance(event, _ANSWERS) and event.request:
        if not 0 < event.request < seq:
            raise InvalidInput(
                f"An answer at {seq} cannot belong to request {event.request}."
            )
        first = event.request
    row = PutRow(seq, first, role, waiting)
    if isinstance(event, MessageUser) and event.author and event.author != state.user:
        return row, AddAuthor(event.author[:_AUTHOR_CHARS_MAX])
    if isinstance(event, RunLate):
        return row, LateOutput(_named(run, "run.late"))
    if isinstance(event, MessageAssistant) and event.usage is not None:
        return row, Spend(at, event.usage)
    return (row,)


def _named(run: str | None, kind: str) -> str:
    if not run:
        raise InvalidInput(f"A {kind} has to name its run.")
    return run


def _opened(
    state: HeadState,
    here: _At,
    event: ConversationOpened,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    if here.seq != 1:
        raise InvalidInput("A conversation is opened once, by its first event.")
    if event.user != state.user:
        raise InvalidInput(
            "A conversation is opened for the user whose handle opens it."
        )
    return (_open_stretch(state, here, event.stretch, event.parent, 0),)


def _open_stretch(
    state: HeadState, here: _At, name: str, parent: str | None, covers_to: int
) -> OpenStretch:
    state.stretch_name, state.stretch_from, state.stretch_covers = (
        name,
        here.seq,
        covers_to,
    )
    state.stretch_messages = 0
    return OpenStretch(name, parent, here.seq, here.at, covers_to)


def _titled(
    state: HeadState,  # noqa: ARG001
    here: _At,  # noqa: ARG001
    event: ConversationTitled,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    return (SetList("title", event.title),)


def _pinned(
    state: HeadState,  # noqa: ARG001
    here: _At,  # noqa: ARG001
    event: ConversationPinned,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    return (SetList("pinned", int(event.pinned)),)


def _archived(
    state: HeadState,  # noqa: ARG001
    here: _At,  # noqa: ARG001
    event: ConversationArchived,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    return (SetList("archived", int(event.archived)),)


def _no_run(state: HeadState, what: str) -> None:
    if state.run is not None:
        raise RunConflict(f"A run is open; {what} has to wait until it ends.")


def _rewound(
    state: HeadState, here: _At, event: ConversationRewound, look: Lookup
) -> Sequence[Change]:
    _no_run(state, "undo")
    if not state.stretch_from <= event.to < here.seq:
        raise InvalidInput(
            f"Undo reaches back to seq {state.stretch_from}, where the last compaction stands, not to {event.to}.",
            hint="fork the conversation from that message instead",
        )
    if not look.standing_after(event.to):
        raise InvalidInput(
            f"Nothing stands after seq {event.to}; there is nothing to undo."
        )
    state.revision = state.epoch = state.turns = here.seq
    return KillRows(event.to, here.seq), Recount(event.to)


def _cleared(
    state: HeadState,
    here: _At,
    event: ConversationCleared,  # noqa: ARG001
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    _no_run(state, "clearing")
    state.revision = state.epoch = state.turns = here.seq
    state.context_from = here.seq + 1
    return KillRows(0, here.seq), Recount(0)


def _restored(
    state: HeadState, here: _At, event: ConversationRestored, look: Lookup
) -> Sequence[Change]:
    _no_run(state, "bringing back")
    kind = look.kind_at(event.of) if 0 < event.of < here.seq else None
    if kind not in _EDITS or not look.killed_by(event.of):
        raise InvalidInput(
            f"Seq {event.of} is no undo or clear that could be taken back."
        )
    if kind == "conversation.rewound" and look.standing_after(event.of):
        raise InvalidInput(
            "The conversation has gone on since that undo; it can no longer be taken back."
        )
    state.revision = state.epoch = state.turns = here.seq
    state.context_from = state.stretch_covers + 1
    edit = next(iter(look.edits_since(event.of - 1)), None)
    after = edit.to if isinstance(edit, ConversationRewound) else 0
    return ReviveRows(after, event.of), Recount(after)


def _ended(
    state: HeadState,
    here: _At,
    event: StretchEnded,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    _head_stretch(state, event.stretch)
    return (_end_stretch(state, here, event.reason),)


def _head_stretch(state: HeadState, name: str) -> None:
    if state.stretch_name != name:
        raise StretchMoved(
            f"{name} is not the open stretch of this conversation.",
            by=state.stretch_name,
        )


def _end_stretch(state: HeadState, here: _At, reason: str) -> EndStretch:
    ended = EndStretch(
        state.stretch_name or "", here.seq, here.at, reason, state.stretch_messages
    )
    state.stretch, state.stretch_name, state.stretch_messages = 0, None, 0
    return ended


def _compacted(
    state: HeadState, here: _At, event: ContextCompacted, look: Lookup
) -> Sequence[Change]:
    _head_stretch(state, event.parent)
    if not state.stretch_covers <= event.covers_to < here.seq:
        raise InvalidInput(f"A summary cannot cover up to {event.covers_to} here.")
    check_unedited(look, event.covers_to, event.folded_to)
    ended = _end_stretch(state, here, "compression")
    opened = _open_stretch(state, here, event.child, event.parent, event.covers_to)
    state.revision = state.epoch = here.seq
    state.context_from = max(state.context_from, event.covers_to + 1)
    return ended, opened


def check_unedited(look: Lookup, upto: int, since: int) -> None:
    """Raise HeadMoved if a rewind, clear, restore or erasure after `since` touched a seq <= `upto`."""
    for edit in look.edits_since(since):
        match edit:
            case ConversationRewound(to=to):
                touched = to < upto
            case ContentErased(seqs=seqs):
                touched = min(seqs) <= upto
            case _:
                touched = True
        if touched:
            raise HeadMoved(
                f"What stands up to seq {upto} was changed by an undo, clear or erasure meanwhile."
            )


def _erased(
    state: HeadState, here: _At, event: ContentErased, look: Lookup
) -> Sequence[Change]:
    if not event.seqs:
        raise InvalidInput("An erasure has to name what it erases.")
    for seq in event.seqs:
        kind = look.kind_at(seq) if 0 < seq < here.seq else None
        if kind is None or kind in STRUCTURE:
            raise InvalidInput(f"Seq {seq} holds no text that could be erased.")
    state.revision = state.epoch = here.seq
    erased = EraseBodies(tuple(event.seqs))
    return (
        (erased, SetList("title", None)) if look.title_at() in event.seqs else (erased,)
    )


def _run_started(
    state: HeadState, here: _At, event: RunStarted, look: Lookup
) -> Sequence[Change]:
    _no_run(state, "another one")
    state.run = _named(here.run, "run.started")
    return OpenRun(state.run, here.seq), *_taken(state, here, event.inputs, look)


def _taken(
    state: HeadState, here: _At, inputs: list[int], look: Lookup
) -> Sequence[Change]:
    for seq in inputs:
        if not 0 < seq < here.seq:
            raise InvalidInput(
                f"What stands at {here.seq} cannot take an input at {seq}."
            )
    if state.unanswered in inputs:
        state.unanswered = look.first_waiting(inputs)
    return (TakeInputs(tuple(inputs)),) if inputs else ()


def _requested(
    state: HeadState, here: _At, event: ModelRequested, look: Lookup
) -> Sequence[Change]:
    _of_run(state, here, event, look)
    return _taken(state, here, event.inputs, look)


def _of_run(
    state: HeadState,
    here: _At,
    event: Event,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    if state.run is None or here.run != state.run:
        raise RunConflict(
            f"Run {here.run} is not open; a {event.kind} cannot be part of it."
        )
    return ()


def _context_opened(
    state: HeadState,
    here: _At,
    event: ContextOpened,  # noqa: ARG001
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    state.epoch = here.seq
    return ()


def _run_finished(
    state: HeadState,
    here: _At,
    event: RunFinished,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    if state.run is None or here.run != state.run:
        raise RunConflict(f"Run {here.run} is not open; it cannot finish.")
    state.run, state.turns = None, here.seq
    if event.outcome != "completed":
        state.revision = here.seq
    return (CloseRun(_named(here.run, "run.finished"), here.seq, event.outcome),)


def _used(
    state: HeadState,  # noqa: ARG001
    here: _At,
    event: ModelUsed,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    return (Spend(here.at, event.usage),)


def _run_sealed(
    state: HeadState,  # noqa: ARG001
    here: _At,
    event: RunSealed,  # noqa: ARG001
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    return (SealRun(_named(here.run, "run.sealed"), here.seq),)


def _due(
    state: HeadState,
    here: _At,
    event: MemoryDue,
    look: Lookup,  # noqa: ARG001
) -> Sequence[Change]:
    if not 0 <= event.upto < here.seq:
        raise InvalidInput(
            f"Memories cannot be owed what stands up to {event.upto} by seq {here.seq}."
        )
    state.due = here.seq
    return ()


_STEPS: dict[type, Callable[..., Sequence[Change]]] = {
    ConversationOpened: _opened,
    ConversationTitled: _titled,
    ConversationPinned: _pinned,
    ConversationArchived: _archived,
    ConversationRewound: _rewound,
    ConversationCleared: _cleared,
    ConversationRestored: _restored,
    StretchEnded: _ended,
    ContextCompacted: _compacted,
    ContentErased: _erased,
    ContextOpened: _context_opened,
    RunStarted: _run_started,
    ModelRequested: _requested,
    ModelUsed: _used,
    ApprovalAsked: _of_run,
    MemoryRecalled: _of_run,
    ToolStarted: _of_run,
    ToolHanded: _of_run,
    RunFinished: _run_finished,
    RunSealed: _run_sealed,
    MemoryDue: _due,
}
