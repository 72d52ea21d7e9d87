"""Plan the writes of a transaction in plain Python, before the first write.

An engine loads the state for a group of appends, calls `plan` for every append, and then stores the batch. Every
refusal is found here, before anything is written. A refused append changes nothing for the rest of the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import msgspec

from tenax.clock import is_append_id
from tenax.errors import (
    ConversationExists,
    DedupReused,
    Gone,
    HeadMoved,
    InvalidInput,
    LeaseLost,
    NoSuchConversation,
    SegmentMoved,
    StoreDamaged,
    TooLarge,
)
from tenax.events import (
    BODY_BYTES_MAX,
    KINDS,
    ContextCompacted,
    ConversationOpened,
    Event,
    MemoryNoted,
    MemoryRecalled,
    Unknown,
    check_text,
    decode,
    encode,
)
from tenax.journal.arguments import check_struct
from tenax.journal.base import (
    Dedup,
    Expect,
    Lease,
    RawEvent,
    Recorded,
    StoredEvent,
)
from tenax.journal.row_index import (
    MAYBE_ALONE,
    QUIET,
    AddAuthor,
    Change,
    HeadState,
    Lookup,
    PutRow,
    alone,
    apply,
    check_unedited,
)
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS
from tenax.journal.verify.derive import stand_in
from tenax.parts import blobs_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenax.clock import Clock, Ids

__all__ = [
    "NO_ROW",
    "Append",
    "Batch",
    "Key",
    "Loaded",
    "Opener",
    "Stored",
    "chain",
    "check_id",
    "inner_hash",
    "is_id",
    "named_in",
    "plan",
]

Key = tuple[str, str]
"""User and conversation."""

EVENTS_PER_APPEND_MAX = 100_000
_OF_FACTS = frozenset({"memory.noted", "memory.recalled"})
_OPENERS = frozenset({"conversation.opened", "context.compacted"})
_RARE = MAYBE_ALONE | _OPENERS
ID_CHARS_MAX = 200
LISTED_EVERY_US = 1_000_000
NO_ROW: tuple[int | None, ...] = (None, None, None, None)
"""`first`, `role`, `waiting` and `dead` of an event outside the rows of the transcript."""


class _Item(msgspec.Struct, frozen=True):
    """An event of an append."""

    kind: str
    code: int
    at: int | None
    run: str | None
    body: bytes | None
    event: Event | Unknown
    stored: StoredEvent | None = None
    """The event of another store, with its seq, salt and digest."""


class Append(msgspec.Struct, eq=False):
    """An append waiting for its outcome."""

    user: str
    conversation: str
    key: Key
    items: list[_Item]
    append_id: bytes
    expect: Expect | None
    lease: Lease | None
    dedup: Dedup | None
    imported: bool
    nbytes: int
    partial: bool
    """Whether every event is a partial."""
    solo: bool
    """Whether the append has a transaction of its own."""
    names: list[str]
    """The names of the segments opened by the append."""
    opens: bool
    """Whether the append opens the conversation."""
    guarded: bool
    """Whether the append has a condition: a lease, an expectation or a new segment."""
    asks: bool
    """Whether the plan needs more than the head of the conversation."""
    repeated: bool
    """Whether to look the append id up first, because the append may be stored already."""
    maybe_stored: bool = False
    """Whether a commit of the append failed with an unknown outcome."""
    release: bool = False
    """Whether the transaction of the append also releases the lease and drops the replaced partials."""
    is_owed: bool = False
    """Whether readers with the start policy `now` receive the events of an imported conversation."""
    authors: Sequence[str] = ()
    """Authors of erased events of another store."""

    @classmethod
    def of_items(cls, user: str, conversation: str, items: list[_Item], ids: Ids, *, expect: Expect | None = None,
                 lease: Lease | None = None, dedup: Dedup | None = None, append_id: bytes | None = None,
                 imported: bool = False) -> Append:  # fmt: skip
        """Create an append and derive the flags from the events."""
        nbytes, partial, names = 0, True, []
        solo = imported or (expect is not None and expect.unedited is not None)
        for item in items:
            nbytes += len(item.body or b"")
            if not item.code:
                partial = False
            if item.kind in _RARE:
                solo = solo or alone(item.kind, item.event)
                if item.kind in _OPENERS and (name := _opens(item.event)) is not None:
                    names.append(name)
        guarded = bool(names) or lease is not None or expect is not None
        return cls(user, conversation, (user, conversation), items, append_id or ids.append(), expect, lease, dedup,
                   imported, nbytes, partial, solo, names, items[0].kind == "conversation.opened", guarded,
                   guarded or dedup is not None, append_id is not None)  # fmt: skip

    @classmethod
    def of_events(cls, user: str, conversation: str, events: Sequence[Event], *, run: str | None, ids: Ids,
                  expect: Expect | None, lease: Lease | None, dedup: Dedup | None, append_id: bytes | None) -> Append:  # fmt: skip
        """Check and encode events. Raises `InvalidInput` before anything is sent to the store."""
        check_id("conversation", conversation)
        if run is not None:
            check_id("run", run)
        if not isinstance(events, Sequence):
            raise InvalidInput(
                f"An append takes a list of events, not {type(events).__name__}."
            )
        _check_conditions(expect, lease, dedup)
        if append_id is not None and not is_append_id(append_id):
            raise InvalidInput(
                "The append id is not valid.",
                hint="use the append_id of OutcomeUnknown, or journal.ids.append()",
            )
        if not events:
            raise InvalidInput("An append needs at least one event.")
        # `encode` refuses a value other than an event before the attributes of the value are read.
        bodies = map(encode, events)
        items = [
            _Item(event.kind, event.code, None, run, body, event)
            for body, event in zip(bodies, events, strict=True)
        ]
        return cls.of_items(
            user,
            conversation,
            items,
            ids,
            expect=expect,
            lease=lease,
            dedup=dedup,
            append_id=append_id,
        )

    @classmethod
    def of_entries(
        cls,
        user: str,
        conversation: str,
        opened: ConversationOpened | None,
        entries: Sequence[RawEvent],
        *,
        ids: Ids,
        opened_at: int | None = None,
        expect: Expect | None = None,
        is_owed: bool = False,
    ) -> Append:
        """Check imported events. Events of unknown kinds stay unchanged if the body is JSON.

        Without `opened`, the events continue an existing conversation. With `is_owed`, readers with the start policy
        `now` receive the history.
        """
        check_id("conversation", conversation)
        _check_conditions(expect, None, None)
        if len(entries) >= EVENTS_PER_APPEND_MAX:
            raise TooLarge(
                f"An import takes at most {EVENTS_PER_APPEND_MAX:,} events at a time."
            )
        items: list[_Item] = []
        if opened is not None:
            at = None if opened_at is None else _time(opened_at)
            items.append(_Item(opened.kind, 0, at, None, encode(opened), opened))
        for entry in entries:
            if len(entry.body) > BODY_BYTES_MAX:
                raise TooLarge(
                    f"A {entry.kind} of {len(entry.body):,} bytes is larger than an event may be."
                )
            known = KINDS.get(entry.kind)
            items.append(_Item(check_id("kind", entry.kind), known.code if known else 0, _time(entry.at),
                               entry.run and check_id("run", entry.run), entry.body, _carried(entry)))  # fmt: skip
        if not items:
            raise InvalidInput("An append needs at least one event.")
        append = cls.of_items(
            user, conversation, items, ids, expect=expect, imported=opened is not None
        )
        append.solo = True
        append.is_owed = is_owed
        return append

    @classmethod
    def of_stored(
        cls,
        user: str,
        conversation: str,
        stored: Sequence[StoredEvent],
        *,
        ids: Ids,
        expect: Expect | None = None,
        authors: Sequence[str] = (),
        closing: Sequence[tuple[str | None, Event]] = (),
    ) -> Append:
        """Check events of another store. They keep their seqs, salts and digests. `closing` are new events after them."""
        check_id("conversation", conversation)
        _check_conditions(expect, None, None)
        items = [_stored_item(event) for event in stored]
        for run, event in closing:
            if run is not None:
                check_id("run", run)
            items.append(_Item(event.kind, event.code, None, run, encode(event), event))
        if not items:
            raise InvalidInput("An append needs at least one event.")
        opens = items[0].kind == ConversationOpened.kind
        append = cls.of_items(
            user, conversation, items, ids, expect=expect, imported=opens
        )
        append.solo = True
        append.authors = authors
        return append


def _stored_item(stored: StoredEvent) -> _Item:
    kind, run = (
        check_id("kind", stored.kind),
        stored.run and check_id("run", stored.run),
    )
    if len(stored.body or b"") > BODY_BYTES_MAX:
        raise TooLarge(
            f"A {kind} of {len(stored.body or b''):,} bytes is larger than an event may be."
        )
    known = KINDS.get(kind)
    if stored.code != (known.code if known else 0) or bool(stored.code) == bool(
        stored.digest
    ):
        raise InvalidInput(f"Event {stored.seq} has a wrong code or digest.")
    if stored.body is None:
        if stored.code:
            raise InvalidInput(f"Event {stored.seq} has no body.")
        event = stand_in(kind, stored.seq, stored.first, stored.waiting)
    else:
        entry = RawEvent(kind, stored.at, run, stored.body)
        event = _carried(entry)
    return _Item(kind, stored.code, _time(stored.at), run, stored.body, event, stored)


def _check_conditions(
    expect: Expect | None, lease: Lease | None, dedup: Dedup | None
) -> None:
    """Check the fields of the conditions, because a bad value would fail the whole group in the shared transaction."""
    if lease is not None:
        check_struct("append", "lease", Lease, lease)
        check_id("lease", lease.name)
    if expect is not None:
        check_struct("append", "expect", Expect, expect)
        if expect.unedited is not None and not all(
            0 <= seq <= ALL_SEQS for seq in expect.unedited
        ):
            raise InvalidInput(
                f"`expect.unedited` must hold two sequence numbers, not {expect.unedited}."
            )
    if dedup is not None:
        check_struct("append", "dedup", Dedup, dedup)
        check_id("dedup source", dedup.source)
        check_id("dedup id", dedup.id)


def _carried(entry: RawEvent) -> Event | Unknown:
    """Decode an imported event. An event of an unknown kind stays unchanged if the body is JSON."""
    try:
        if entry.kind not in KINDS:
            msgspec.json.decode(entry.body)
        event = decode(entry.kind, entry.body)
    except (msgspec.DecodeError, StoreDamaged) as error:
        raise InvalidInput(
            f"The body of a {entry.kind} is not valid: {str(error).rstrip('.')}."
        ) from error
    check_text(event)
    return event


def _time(at: int) -> int:
    if not isinstance(at, int) or not 0 <= at < 1 << 62:
        raise InvalidInput(f"A time must be in microseconds since 1970, not {at!r}.")
    return at


def _opens(event: Event | Unknown) -> str | None:
    match event:
        case ConversationOpened(stretch=name) | ContextCompacted(child=name):
            return check_id("segment", name)
        case _:
            return None


def is_id(value: object) -> TypeGuard[str]:
    """Return whether a value is an id: a short printable string. Ids are part of digests and file names."""
    # The encoders for files and databases accept only `str` itself, no subclass.
    return type(value) is str and 0 < len(value) <= ID_CHARS_MAX and value.isprintable()


def check_id(what: str, value: object) -> str:
    """Return the value if it is a valid id. Raises `InvalidInput` otherwise."""
    if not is_id(value):
        found = repr(value[:40]) if type(value) is str else type(value).__name__
        raise InvalidInput(
            f"A {what} id must have 1 to {ID_CHARS_MAX} printable characters, not {found}."
        )
    return value


class Stored(NamedTuple):
    """The stored events of a repeated append."""

    recorded: list[Recorded]


_lists: Any = msgspec.field(default_factory=lambda: defaultdict(list))


class Loaded(msgspec.Struct):
    """The state loaded for a group. `plan` keeps the state current."""

    heads: dict[Key, HeadState] = {}
    gone: set[Key] = set()
    taken: set[tuple[str, str]] = set()
    """Users and names of existing segments, among the segments to open in the group."""
    terms: dict[tuple[str, str], tuple[int, bytes | None]] = {}
    received: dict[tuple[str, str, str], Stored] = {}
    appended: dict[bytes, Stored] = {}


class Batch(msgspec.Struct):
    """Everything written by a transaction. Rows have the columns of the statements."""

    states: dict[Key, HeadState] = {}
    """The heads after the transaction."""
    moved: dict[Key, None] = {}
    """The heads moved by facts, not only by partials."""
    opened: dict[Key, bool] = {}
    """New conversations; true if readers with the start policy `now` skip the events."""
    rows: defaultdict[str, list[tuple[Any, ...]]] = _lists
    """New rows, by statement."""
    changes: list[tuple[Key, Change]] = []
    """The remaining index changes. An append with such changes is solo, or opens its conversation."""
    woken: defaultdict[str, list[int]] = _lists
    """Conversations with readers that are now behind, by what the readers follow."""


Opener = Callable[[Key, int, ConversationOpened], int]
"""Insert the row of a new conversation and return the number. Called when the append can no longer be refused."""


def plan(
    append: Append, head: HeadState | None, loaded: Loaded, batch: Batch, look: Lookup, opener: Opener | None,
    clock: Clock, ids: Ids,
) -> list[Recorded]:  # fmt: skip
    """Add an append to the batch and return the events to be stored. A refused append adds nothing.

    `head` is the present head of the conversation. `opener` is given if the append opens the conversation.
    """
    if append.repeated or append.dedup is not None:
        stored = _repeat(append, loaded)
        if stored is not None:
            return stored
    key = append.key
    # Work on a copy, so that a refusal leaves the loaded head unchanged.
    state = (
        _new(append, loaded)
        if head is None or append.opens
        else msgspec.structs.replace(head)
    )
    if append.guarded:
        _check(append, state, loaded, look)
    turns, due = state.turns, state.due
    recorded, facts, partials, changes = _number(append, state, look, clock, ids)
    # From here on nothing can refuse the append: the whole append joins the batch.
    if opener is not None:
        _open_conversation(append, key, state, recorded[0].at, opener, batch)
        base = state.num << SEQ_BITS
        facts = [(base | fact[0], *fact[1:]) for fact in facts]
        partials = [(base | partial[0], *partial[1:]) for partial in partials]
    if partials:
        batch.rows["put_partial"] += partials
    if facts:
        _join(batch, key, state, facts, changes)
        _put_erased(append, state.num << SEQ_BITS, batch)
        if state.turns != turns or state.due != due:
            _wake(batch, state, turns, due)
    loaded.heads[key] = batch.states[key] = state
    if append.repeated or append.dedup is not None:
        _remember(append, state, recorded, loaded, batch)
    if append.names:
        loaded.taken.update((append.user, name) for name in append.names)
    return recorded


def _number(
    append: Append, state: HeadState, look: Lookup, clock: Clock, ids: Ids
) -> tuple[list[Recorded], list[tuple[Any, ...]], list[tuple[Any, ...]], list[Change]]:
    """Give the events seqs, times and digests. Return the events as values and as rows, with the index changes."""
    now = clock.now_us()
    name, base, digest = state.id, state.num << SEQ_BITS, state.digest
    recorded: list[Recorded] = []
    facts: list[tuple[Any, ...]] = []
    partials: list[tuple[Any, ...]] = []
    changes: list[Change] = []
    append_id: bytes | None = append.append_id
    for item in append.items:
        kind, run, body, stored = item.kind, item.run, item.body, item.stored
        seq = state.head + 1
        if stored is not None:
            if not seq <= stored.seq <= ALL_SEQS:
                raise InvalidInput(f"Event {stored.seq} cannot follow {state.head}.")
            seq, append_id = stored.seq, stored.append_id
        at = now if item.at is None else item.at
        if item.code:
            state.head = seq
            # Partials are pruned later, so an append with at least one fact stores its id with the fact.
            own_id, append_id = (
                (append_id, None) if append.partial else (None, append_id)
            )
            partials.append((base | seq, item.code, at, own_id, body))
            recorded.append(Recorded(name, seq, kind, at, run, body, b""))
        else:
            moves = apply(state, seq, at, run, kind, item.event, look)
            if append.solo:
                look.note(seq, kind, item.event, moves)
            row = NO_ROW
            for move in moves:
                if type(move) is PutRow:
                    row = (move.first, move.role, move.waiting, 0)
                else:
                    changes.append(move)
            salt = ids.salt() if stored is None else stored.salt
            inner = sha256(salt + body).digest() if salt and body else _erased(stored)
            digest = chain(digest, name, seq, kind, at, run, inner)
            if stored is not None and digest != stored.digest:
                raise InvalidInput(
                    f"Event {seq} of conversation {name} does not fit its digest.",
                    hint="Export the conversation again.",
                )
            facts.append(
                (base | seq, kind, at, run, *row, append_id, salt, digest, body)
            )
            recorded.append(Recorded(name, seq, kind, at, run, body, digest))
            append_id = None
    state.digest = digest
    return recorded, facts, partials, changes


def _put_erased(append: Append, base: int, batch: Batch) -> None:
    """Add what the erased events of another store no longer tell: their hashes, and the authors."""
    if append.items[0].stored is None:
        return
    for item in append.items:
        stored = item.stored
        if stored is not None and stored.body is None:
            batch.rows["erase_body"].append((stored.inner, base | stored.seq))
    batch.changes += [(append.key, AddAuthor(author)) for author in append.authors]


def _erased(stored: StoredEvent | None) -> bytes:
    """Return the hash of the salt and the body of an erased event."""
    if stored is None or stored.inner is None:
        raise InvalidInput("An event of another store has no body or no salt.")
    return stored.inner


def _open_conversation(
    append: Append, key: Key, state: HeadState, at: int, opener: Opener, batch: Batch
) -> None:
    opened = append.items[0].event
    assert isinstance(opened, ConversationOpened)
    state.num = opener(key, at, opened)
    state.listed_at = at
    batch.opened[key] = append.imported and not append.is_owed


def _join(
    batch: Batch,
    key: Key,
    state: HeadState,
    facts: list[tuple[Any, ...]],
    changes: list[Change],
) -> None:
    """Add the facts and index changes of an append to the batch."""
    rows = batch.rows
    rows["put_event"] += facts
    batch.moved[key] = None
    if changes:
        batch.changes += [(key, change) for change in changes]
    moving = [fact for fact in facts if fact[1] not in QUIET]
    at = moving[-1][2] if moving else state.listed_at
    if abs(at - state.listed_at) >= LISTED_EVERY_US:
        state.listed_at = at
        rows["touch"].append((at, state.num))
    if not state.woken:
        state.woken = True
        batch.woken["facts"].append(state.num)
    for fact in facts:
        if fact[-1] is not None and (b'"blob"' in fact[-1] or fact[1] in _OF_FACTS):
            rows["put_mention"] += [
                (key[0], name, fact[0]) for name in named_in(fact[1], fact[-1])
            ]


def named_in(kind: str, body: bytes) -> Iterable[str]:
    """Return the hashes of the blobs and the ids of the memories named by an event."""
    match decode(kind, body) if kind in _OF_FACTS else None:
        case MemoryNoted(fact=fact):
            return [fact]
        case MemoryRecalled(facts=facts):
            return set(facts)
    return blobs_of(msgspec.json.decode(body)) if b'"blob"' in body else ()


def _wake(batch: Batch, state: HeadState, turns: int, due: int) -> None:
    """Mark the readers following turns or boundaries as behind."""
    if state.turns != turns:
        batch.woken["turns"].append(state.num)
    if state.due != due:
        batch.woken["due"].append(state.num)


def _remember(
    append: Append,
    state: HeadState,
    recorded: list[Recorded],
    loaded: Loaded,
    batch: Batch,
) -> None:
    """Record the append, so that a repetition in the same group is recognised."""
    if append.dedup is not None:
        source, dedup_id = append.dedup.source, append.dedup.id
        loaded.received[append.user, source, dedup_id] = Stored(recorded)
        row_key = state.num << SEQ_BITS | recorded[0].seq
        batch.rows["put_received"].append(
            (append.user, source, dedup_id, row_key, len(recorded))
        )
    if append.repeated:
        loaded.appended[append.append_id] = Stored(recorded)


def inner_hash(salt: bytes, body: bytes) -> bytes:
    """Return the hash that replaces an erased body. The salt is erased too, so that the text cannot be guessed."""
    return sha256(salt + body).digest()


def chain(
    previous: bytes,
    conversation: str,
    seq: int,
    kind: str,
    at: int,
    run: str | None,
    inner: bytes,
) -> bytes:
    """Return the digest of a fact: the hash of the previous digest, the hash of the body, and the header."""
    header = f"{conversation}\n{seq}\n{kind}\n{at}\n{run or ''}".encode()
    return sha256(previous + inner + header).digest()


def _repeat(append: Append, loaded: Loaded) -> list[Recorded] | None:
    if append.repeated and (stored := loaded.appended.get(append.append_id)):
        if not _same(append, stored):
            raise DedupReused("This append id was used before, for other events.")
        return stored.recorded
    if append.dedup is None:
        return None
    stored = loaded.received.get((append.user, append.dedup.source, append.dedup.id))
    if stored is None:
        return None
    if not stored.recorded:
        raise Gone(
            f"The message {append.dedup.id} from {append.dedup.source} was deleted with its conversation."
        )
    if not _same(append, stored):
        raise DedupReused(
            f"{append.dedup.source} sent {append.dedup.id} before, with other content.",
            hint="a new message needs a new id",
        )
    return stored.recorded


def _same(append: Append, stored: Stored) -> bool:
    """Return whether the events are the same. Erased and pruned bodies cannot be compared and count as the same."""
    items = [item for item in append.items if append.partial or not item.code]
    olds = [old for old in stored.recorded if append.partial or old.digest]
    return len(items) == len(olds) and all(
        item.kind == old.kind and (old.body is None or item.body == old.body)
        for item, old in zip(items, olds, strict=True)
    )


def _new(append: Append, loaded: Loaded) -> HeadState:
    """Return the head of the conversation opened by the append."""
    if append.key in loaded.gone:
        raise Gone(f"Conversation {append.conversation} was deleted.")
    if not append.opens:
        raise NoSuchConversation(
            f"There is no conversation {append.conversation}.", hint="run: tenax list"
        )
    if append.key in loaded.heads:
        raise ConversationExists(
            f"The id {append.conversation} is taken.", hint="let the store make the id"
        )
    return HeadState(0, append.conversation, append.user)


def _check_names(append: Append, loaded: Loaded) -> None:
    if len(set(append.names)) < len(append.names):
        raise InvalidInput("Two segments of a conversation have the same name.")
    for name in append.names:
        if (append.user, name) in loaded.taken:
            raise ConversationExists(
                f"The name {name} is taken.", hint="use another one"
            )


def _check(append: Append, state: HeadState, loaded: Loaded, look: Lookup) -> None:
    lease, expect = append.lease, append.expect
    _check_names(append, loaded)
    if lease is not None:
        term, token = loaded.terms.get((append.user, lease.name), (0, None))
        if term != lease.term or token != lease.token:
            raise LeaseLost(
                f"{lease.name} is no longer held by {lease.holder}.",
                hint="stop, and read what happened",
            )
    if expect is None:
        return
    if expect.head is not None and expect.head != state.head:
        raise HeadMoved(f"The conversation is at {state.head}, not at {expect.head}.")
    if expect.revision is not None and expect.revision != state.revision:
        raise HeadMoved(
            f"The transcript is at {state.revision}, not at {expect.revision}."
        )
    if expect.segment is not None and expect.segment != state.segment_name:
        raise SegmentMoved(
            f"{expect.segment} is no longer the open segment.", by=state.segment_name
        )
    if expect.unedited is not None:
        check_unedited(look, *expect.unedited)
