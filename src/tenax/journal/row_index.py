"""The index of a conversation: a pure function from a head state and an event to changes of index rows.

All engines apply the same changes in the transaction of the append; `verify` applies the changes to plain dictionaries
and compares. `apply` also refuses events against the invariants: a single open run, a single head segment, a single child
per segment.

`apply` asks a `Lookup` for facts beyond the head row. Only the rare kinds in `SOLO` ask. An append with such an event has
a transaction of its own, because a lookup does not see the unwritten rows of a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from tenax.errors import (
    HeadMoved,
    InvalidInput,
    Refused,
    RunConflict,
    SegmentMoved,
    SessionEnded,
)
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ContentErased,
    ContextCompacted,
    ContextOpened,
    ConversationArchived,
    ConversationCleared,
    ConversationConfigured,
    ConversationOpened,
    ConversationPinned,
    ConversationRestored,
    ConversationRewound,
    ConversationRouted,
    ConversationTitled,
    Event,
    MemoryDue,
    MemoryRecalled,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    MessageWithdrawn,
    ModelRequested,
    ModelUsed,
    RunFinished,
    RunLate,
    RunSealed,
    RunStarted,
    SegmentEnded,
    ToolFinished,
    ToolHanded,
    ToolStarted,
    Unknown,
    Usage,
)
from tenax.journal.standing import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "INDEX_VERSION",
    "MAYBE_ALONE",
    "MESSAGE_ROLES",
    "QUIET",
    "ROLES",
    "SOLO",
    "STRUCTURE",
    "AddAuthor",
    "Change",
    "CloseRun",
    "EndSegment",
    "EraseBodies",
    "HeadState",
    "KillRows",
    "LateOutput",
    "Lookup",
    "OpenRun",
    "OpenSegment",
    "PutRoute",
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
"""Increased with every change of the derived rows. The next append to a conversation then rebuilds its index."""

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
"""Rows with a role up to this number are messages. The index counts messages."""

_AUTHOR_CHARS_MAX = 200
_CHOICE_CHARS_MAX = 200
_ROUTE_CHARS_MAX = 300

SOLO = frozenset(
    {
        "content.erased",
        "context.compacted",
        "conversation.cleared",
        "conversation.restored",
        "conversation.rewound",
        "message.withdrawn",
        "run.started",
    }
)


QUIET = frozenset(
    {
        "conversation.archived",
        "conversation.configured",
        "conversation.pinned",
        "conversation.routed",
        "conversation.titled",
        "memory.due",
        "memory.noted",
        "model.used",
    }
)
"""Kinds of events that do not move a conversation in the list: its place is that of the last message."""

MAYBE_ALONE = SOLO | {"model.requested"}
"""The kinds of events which may need a transaction of their own; see `alone`."""


def alone(kind: str, event: Event | Unknown) -> bool:
    """Return whether an append with this event needs a transaction of its own."""
    return kind in SOLO or (isinstance(event, ModelRequested) and bool(event.inputs))


_ANSWERS = (MessageAssistant, MessagePartial)
STRUCTURE = SOLO | {
    "conversation.archived", "conversation.configured", "conversation.opened", "conversation.pinned", "conversation.routed",
    "memory.due", "run.finished", "run.sealed", "stretch.ended",
}  # fmt: skip
"""Kinds of events without personal text. Erasing refuses these events, because the index depends on them."""


class HeadState(msgspec.Struct):
    """The head row, and the columns of the head segment for an append."""

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
    """`updated_at` in the list, exact to the second, so that a burst of events does not rewrite the index of the list."""
    version: int = INDEX_VERSION
    asks: str = ""
    """The calls of the last answer waiting for a person, as a JSON array of (seq of the answer, id of the call). Empty
    without such a call."""
    failed: int = 0
    """1 if the last run failed, and nothing was undone since."""
    answered: int = 0
    """The seq of the end of the last run that completed or failed."""
    segment_name: str | None = None
    woken: bool = False
    """Whether the readers of this conversation are already marked as behind."""


class PutRow(msgspec.Struct, frozen=True):
    """Add the row of a message."""

    seq: int
    first: int
    role: int
    waiting: int


class KillRows(NamedTuple):
    """Mark the standing rows after seq `after` and up to seq `upto` as removed by the edit at seq `by`."""

    after: int
    upto: int
    by: int


class ReviveRows(NamedTuple):
    """Bring back the rows removed by the edit at seq `by`. All these rows are after seq `after`."""

    after: int
    by: int


class TakeInputs(NamedTuple):
    """Mark inputs as no longer waiting."""

    seqs: tuple[int, ...]


class Recount(NamedTuple):
    """Count messages and find the first waiting input again, after an edit of the rows after seq `after`."""

    after: int


class OpenSegment(NamedTuple):
    name: str
    parent: str | None
    seq: int
    at: int
    covers_to: int


class EndSegment(NamedTuple):
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
    """Add the cost of a model call to the ledger. The ledger keeps the cost of erased and deleted events."""

    at: int
    model: str
    usage: Usage


class AddAuthor(NamedTuple):
    """Add an author other than the user."""

    author: str


class PutRoute(NamedTuple):
    """Connect the conversation with a chat, or end the connection."""

    account: str
    chat: str
    thread: str
    closed: int
    at: int
    seq: int


class EraseBodies(NamedTuple):
    seqs: tuple[int, ...]


Change = (
    PutRow
    | KillRows
    | ReviveRows
    | TakeInputs
    | Recount
    | OpenSegment
    | EndSegment
    | OpenRun
    | CloseRun
    | LateOutput
    | SealRun
    | SetList
    | Spend
    | AddAuthor
    | PutRoute
    | EraseBodies
)


class Lookup(Protocol):
    """The questions of an event in `SOLO` to the store, inside the transaction."""

    def kind_at(self, seq: int) -> str | None:
        """Return the kind of a fact, or None for an unknown or erased fact."""

    def standing_after(self, seq: int) -> int:
        """Return the number of standing rows after a seq."""

    def killed_by(self, seq: int) -> bool:
        """Return whether rows removed by the edit at this seq are still removed."""

    def title_at(self) -> int:
        """Return the seq of the last title, or 0."""

    def first_waiting(self, taken: Sequence[int]) -> int:
        """Return the first standing input waiting for a run, without the inputs in `taken`, or 0."""

    def is_waiting(self, seq: int) -> bool:
        """Return whether a standing input at this seq waits for a run."""

    def is_withdrawn(self, seq: int) -> bool:
        """Return whether the message at this seq was withdrawn."""

    def edits_since(self, since: int) -> list[Event | Unknown]:
        """Return the edits and erasures after a seq, in order."""

    def note(
        self, seq: int, kind: str, event: Event | Unknown, changes: Sequence[Change], /
    ) -> None:
        """Remember an applied event of the same append. The store does not have this event yet."""


def apply(  # noqa: C901, PLR0911, PLR0912  (one case per kind of event)
    state: HeadState,
    seq: int,
    at: int,
    run: str | None,
    kind: str,
    event: Event | Unknown,
    look: Lookup,
) -> Sequence[Change]:
    """Update `state` for a fact and return the other changes of the index. Raises an error to refuse the append.

    For an event with an unknown or erased body, only the seq and the kind count.
    """
    state.head = state.facts = seq
    role = _ROLE_OF.get(kind)
    if role is not None:
        return _message(state, seq, at, run, role, event)
    here = _At(seq, at, run)
    match event:
        case ConversationOpened():
            return (_opened(state, here, event),)
        case ConversationTitled(title=title):
            return (SetList("title", title),)
        case ConversationPinned(pinned=pinned):
            return (SetList("pinned", int(pinned)),)
        case ConversationArchived(archived=archived):
            return (SetList("archived", int(archived)),)
        case ConversationConfigured():
            return _configured(event)
        case ConversationRouted():
            return _routed(event, here)
        case ConversationRewound():
            return _rewound(state, here, event, look)
        case ConversationCleared():
            return _cleared(state, here, event)
        case ConversationRestored():
            return _restored(state, here, event, look)
        case MessageWithdrawn(of=of):
            return _withdrawn(state, here, of, look)
        case SegmentEnded(stretch=name, reason=reason):
            _check_head_segment(state, name)
            return (_end_segment(state, here, reason),)
        case ContextOpened():
            state.epoch = seq
        case ContextCompacted():
            return _compacted(state, here, event, look)
        case ContentErased():
            return _erased(state, here, event, look)
        case RunStarted(inputs=inputs, resumes=resumes):
            _check_no_run(state, "another one")
            state.failed = 0
            if not resumes:
                state.asks = ""
            state.run = _required_run(run, kind)
            return OpenRun(state.run, seq), *_take_inputs(state, here, inputs, look)
        case ModelRequested(inputs=inputs):
            _check_run(state, here, event)
            return _take_inputs(state, here, inputs, look)
        case ModelUsed(model=model, usage=usage):
            return (Spend(at, model, usage),)
        case ApprovalAsked(message, call):
            _check_run(state, here, event)
            _set_asks(state, message, call, asks=True)
        case ApprovalAnswered(message, call):
            _set_asks(state, message, call, asks=False)
        case ToolHanded(message, call, asks=asks):
            # A sub-agent that waits for a person makes the parent wait.
            _check_run(state, here, event)
            _set_asks(state, message, call, asks=asks)
        case MemoryRecalled() | ToolStarted():
            _check_run(state, here, event)
        case RunFinished():
            return (_run_finished(state, here, event),)
        case RunSealed():
            return (SealRun(_required_run(run, kind), seq),)
        case MemoryDue(upto=upto):
            if not 0 <= upto < seq:
                raise InvalidInput(
                    f"Memories cannot be owed what stands up to {upto} by seq {seq}."
                )
            state.due = seq
    return ()


class _At(NamedTuple):
    """The seq, the time and the run of an event."""

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
        if state.segment_name is None:
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
    if state.asks:
        _settle_asks(state, event)
    if isinstance(event, RunLate):
        return row, LateOutput(_required_run(run, "run.late"))
    if isinstance(event, MessageAssistant) and event.usage is not None:
        return row, Spend(at, event.model, event.usage)
    return (row,)


def _configured(event: ConversationConfigured) -> Sequence[Change]:
    """Return the changes of the list for the choices that the event names."""
    choices = {"model": event.model, "mode": event.mode, "project": event.project}
    for name, value in choices.items():
        if value is not None and len(value) > _CHOICE_CHARS_MAX:
            raise InvalidInput(
                f"The {name} of a conversation has at most {_CHOICE_CHARS_MAX} characters."
            )
    return [
        SetList(name, value) for name, value in choices.items() if value is not None
    ]


def _routed(event: ConversationRouted, here: _At) -> Sequence[Change]:
    """Return the route. A chat with several readers counts as an author, so private memories stay out."""
    names = (event.account, event.chat, event.thread)
    if not event.account or not event.chat or max(map(len, names)) > _ROUTE_CHARS_MAX:
        raise InvalidInput(
            f"A route needs an account and a chat of at most {_ROUTE_CHARS_MAX} characters."
        )
    route = PutRoute(*names, int(event.closed), here.at, here.seq)
    if not event.shared:
        return (route,)
    return route, AddAuthor(f"{event.account} {event.chat}"[:_AUTHOR_CHARS_MAX])


def _set_asks(state: HeadState, message: int, call: str, *, asks: bool) -> None:
    """Note whether a call waits for a person."""
    waiting = _waiting_calls(state)
    if ((message, call) in waiting) != asks:
        waiting ^= {(message, call)}
        _put_waiting_calls(state, waiting)


def _settle_asks(state: HeadState, event: Event | Unknown) -> None:
    """Drop the waiting calls that a row of the transcript settles."""
    if isinstance(event, MessageAssistant):
        # The calls of the earlier answer have their results.
        state.asks = ""
    elif isinstance(event, ToolFinished):
        _set_asks(state, event.message, event.call, asks=False)


def _waiting_calls(state: HeadState) -> set[tuple[int, str]]:
    if not state.asks:
        return set()
    return set(msgspec.json.decode(state.asks, type=list[tuple[int, str]]))


def _put_waiting_calls(state: HeadState, waiting: set[tuple[int, str]]) -> None:
    state.asks = msgspec.json.encode(sorted(waiting)).decode() if waiting else ""


def _required_run(run: str | None, kind: str) -> str:
    if not run:
        raise InvalidInput(f"A {kind} has to name its run.")
    return run


def _opened(state: HeadState, here: _At, event: ConversationOpened) -> OpenSegment:
    if here.seq != 1:
        raise InvalidInput("A conversation is opened once, by its first event.")
    if event.user != state.user:
        raise InvalidInput(
            "A conversation is opened for the user whose handle opens it."
        )
    return _open_segment(state, here, event.stretch, event.parent, 0)


def _open_segment(
    state: HeadState, here: _At, name: str, parent: str | None, covers_to: int
) -> OpenSegment:
    state.segment_name = name
    state.stretch_from = here.seq
    state.stretch_covers = covers_to
    state.stretch_messages = 0
    return OpenSegment(name, parent, here.seq, here.at, covers_to)


def _check_no_run(state: HeadState, action: str) -> None:
    if state.run is not None:
        raise RunConflict(f"A run is open; {action} has to wait until it ends.")


def _rewound(
    state: HeadState, here: _At, event: ConversationRewound, look: Lookup
) -> Sequence[Change]:
    _check_no_run(state, "undo")
    if not state.stretch_from <= event.to < here.seq:
        raise InvalidInput(
            f"Undo reaches back to seq {state.stretch_from}, where the last compaction stands, not to {event.to}.",
            hint="fork the conversation from that message instead",
        )
    standing = look.standing_after(event.to)
    if not standing:
        raise InvalidInput(
            f"Nothing stands after seq {event.to}; there is nothing to undo."
        )
    if event.replaced:
        message = event.to + 1
        is_message = look.kind_at(message) == MessageUser.kind
        if not is_message or look.standing_after(message) == standing:
            raise InvalidInput(f"Seq {message} is no message that can be replaced.")
    state.revision = state.epoch = state.turns = here.seq
    state.failed = 0
    return KillRows(reach(event), here.seq, here.seq), Recount(reach(event))


def _cleared(
    state: HeadState, here: _At, event: ConversationCleared
) -> Sequence[Change]:
    _check_no_run(state, "clearing")
    state.revision = state.epoch = state.turns = here.seq
    state.failed = 0
    state.context_from = here.seq + 1
    return KillRows(reach(event), here.seq, here.seq), Recount(reach(event))


def _restored(
    state: HeadState, here: _At, event: ConversationRestored, look: Lookup
) -> Sequence[Change]:
    _check_no_run(state, "bringing back")
    kind = look.kind_at(event.of) if 0 < event.of < here.seq else None
    if kind in {None, MessageWithdrawn.kind} or not look.killed_by(event.of):
        raise InvalidInput(
            f"Seq {event.of} is no undo or clear that could be taken back."
        )
    if kind == "conversation.rewound" and look.standing_after(event.of):
        raise InvalidInput(
            "The conversation has gone on since that undo; it can no longer be taken back."
        )
    state.revision = state.epoch = state.turns = here.seq
    state.failed = 0
    state.context_from = state.stretch_covers + 1
    after = reach(look.edits_since(event.of - 1)[0])
    return ReviveRows(after, event.of), Recount(after)


def _withdrawn(state: HeadState, here: _At, of: int, look: Lookup) -> Sequence[Change]:
    if not 0 < of < here.seq or not look.is_waiting(of):
        raise Refused(
            "This message no longer waits: its answer has begun, or it was removed.",
            hint="Stop the answer, or edit the message after the answer.",
        )
    state.revision = here.seq
    return KillRows(of - 1, of, here.seq), Recount(of - 1)


def _check_head_segment(state: HeadState, name: str) -> None:
    if state.segment_name != name:
        raise SegmentMoved(
            f"{name} is not the open segment of this conversation.",
            by=state.segment_name,
        )


def _end_segment(state: HeadState, here: _At, reason: str) -> EndSegment:
    name = state.segment_name or ""
    ended = EndSegment(name, here.seq, here.at, reason, state.stretch_messages)
    state.stretch = 0
    state.segment_name = None
    state.stretch_messages = 0
    return ended


def _compacted(
    state: HeadState, here: _At, event: ContextCompacted, look: Lookup
) -> Sequence[Change]:
    _check_head_segment(state, event.parent)
    if not state.stretch_covers <= event.covers_to < here.seq:
        raise InvalidInput(f"A summary cannot cover up to {event.covers_to} here.")
    check_unedited(look, event.covers_to, event.folded_to)
    ended = _end_segment(state, here, "compression")
    opened = _open_segment(state, here, event.child, event.parent, event.covers_to)
    state.revision = state.epoch = here.seq
    state.context_from = max(state.context_from, event.covers_to + 1)
    return ended, opened


def check_unedited(look: Lookup, upto: int, since: int) -> None:
    """Raise HeadMoved if an undo, clear, restore or erasure after `since` changed an event up to `upto`."""
    for edit in look.edits_since(since):
        match edit:
            case ConversationRewound(to=to):
                touched = to < upto
            case ContentErased(seqs=seqs):
                touched = min(seqs) <= upto
            case MessageWithdrawn(of=of):
                touched = of <= upto
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
    # The erased events may have named a waiting call, and no longer do when the index is derived again.
    waiting = _waiting_calls(state)
    last = max(event.seqs)
    _put_waiting_calls(state, {call for call in waiting if call[0] > last})
    erased = EraseBodies(tuple(event.seqs))
    if look.title_at() in event.seqs:
        return erased, SetList("title", None)
    return (erased,)


def _take_inputs(
    state: HeadState, here: _At, inputs: list[int], look: Lookup
) -> Sequence[Change]:
    for seq in inputs:
        if not 0 < seq < here.seq:
            raise InvalidInput(
                f"What stands at {here.seq} cannot take an input at {seq}."
            )
        if look.is_withdrawn(seq):
            # The taker decided before the withdrawal. It has to read the conversation again.
            raise HeadMoved(f"The message at seq {seq} was withdrawn; no run takes it.")
    if state.unanswered in inputs:
        state.unanswered = look.first_waiting(inputs)
    return (TakeInputs(tuple(inputs)),) if inputs else ()


def _check_run(state: HeadState, here: _At, event: Event) -> None:
    if state.run is None or here.run != state.run:
        raise RunConflict(
            f"Run {here.run} is not open; a {event.kind} cannot be part of it."
        )


def _run_finished(state: HeadState, here: _At, event: RunFinished) -> CloseRun:
    if state.run is None or here.run != state.run:
        raise RunConflict(f"Run {here.run} is not open; it cannot finish.")
    state.run = None
    state.turns = here.seq
    state.failed = int(event.outcome == "failed")
    if event.outcome in {"completed", "failed"}:
        state.answered = here.seq
    if event.outcome != "interrupted":
        # A run that resumes an interrupted run still waits for the same answers.
        state.asks = ""
    if event.outcome != "completed":
        state.revision = here.seq
    return CloseRun(_required_run(here.run, "run.finished"), here.seq, event.outcome)
