"""What one transaction will write, worked out in plain Python before the first write.

An engine loads what its group of appends needs to know, calls `plan` for each in turn, and then stores the batch.
Every refusal is found here, by reading, so a refused append has written nothing and harms no other of its group.
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
    StoreDamaged,
    StretchMoved,
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
from tenax.journal.base import Dedup, Entry, Expect, Lease, Recorded
from tenax.journal.place import ALL_SEQS, SEQ_BITS
from tenax.journal.row_index import (
    MAYBE_ALONE,
    Change,
    HeadState,
    Lookup,
    PutRow,
    alone,
    apply,
    check_unedited,
)
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
"""`first`, `role`, `waiting` and `dead` of what is no row of the transcript."""


class _Item(msgspec.Struct, frozen=True):
    """One event on its way in."""

    kind: str
    code: int
    at: int | None
    run: str | None
    body: bytes
    event: Event | Unknown


class Append(msgspec.Struct, eq=False):
    """One append that waits for its outcome."""

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
    """It holds nothing but partials."""
    solo: bool
    """It has its transaction to itself."""
    names: list[str]
    """Stretches that it opens."""
    opens: bool
    guarded: bool
    """Something has to be true for it to be stored."""
    asks: bool
    """More than the head has to be known for it."""
    repeated: bool
    """Look the id up first: it may be stored already."""
    maybe_stored: bool = False
    """A commit of it failed, and nobody knows how."""

    @classmethod
    def of_items(cls, user: str, conversation: str, items: list[_Item], ids: Ids, *, expect: Expect | None = None,
                 lease: Lease | None = None, dedup: Dedup | None = None, append_id: bytes | None = None,
                 imported: bool = False) -> Append:  # fmt: skip
        """What follows from the events is worked out once, here."""
        nbytes, partial, names = 0, True, []
        solo = imported or (expect is not None and expect.unedited is not None)
        for item in items:
            nbytes += len(item.body)
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
        """Check and encode. Raises InvalidInput; then nothing was sent to the store."""
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
                "That is no append id.",
                hint="use the one that OutcomeUnknown carries, or journal.ids.append()",
            )
        if not events:
            raise InvalidInput("An append needs at least one event.")
        # what is no event is refused before anything of it is looked at
        bodies = map(encode, events)
        items = [
            _Item(each.kind, each.code, None, run, body, each)
            for body, each in zip(bodies, events, strict=True)
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
        opened: Event,
        entries: Sequence[Entry],
        *,
        ids: Ids,
    ) -> Append:
        """A whole conversation from elsewhere: kinds of a later version are carried, known ones are checked."""
        check_id("conversation", conversation)
        if len(entries) >= EVENTS_PER_APPEND_MAX:
            raise TooLarge(
                f"An import takes at most {EVENTS_PER_APPEND_MAX:,} events at a time."
            )
        items = [_Item(opened.kind, 0, None, None, encode(opened), opened)]
        for entry in entries:
            if len(entry.body) > BODY_BYTES_MAX:
                raise TooLarge(
                    f"A {entry.kind} of {len(entry.body):,} bytes is larger than an event may be."
                )
            known = KINDS.get(entry.kind)
            items.append(_Item(check_id("kind", entry.kind), known.code if known else 0, _time(entry.at),
                               entry.run and check_id("run", entry.run), entry.body, _carried(entry)))  # fmt: skip
        return cls.of_items(user, conversation, items, ids, imported=True)


def _check_conditions(
    expect: Expect | None, lease: Lease | None, dedup: Dedup | None
) -> None:
    """Check the fields too: a group shares one transaction, and the database would refuse all of it for one of them."""
    if lease is not None:
        check_struct("append", "lease", Lease, lease)
        check_id("lease", lease.name)
    if expect is not None:
        check_struct("append", "expect", Expect, expect)
        if expect.unedited is not None and not all(
            0 <= seq <= ALL_SEQS for seq in expect.unedited
        ):
            raise InvalidInput(
                f"`expect.unedited` holds two numbers of events, not {expect.unedited}."
            )
    if dedup is not None:
        check_struct("append", "dedup", Dedup, dedup)
        check_id("dedup source", dedup.source)
        check_id("dedup id", dedup.id)


def _carried(entry: Entry) -> Event | Unknown:
    """The event of an import. One of a later version is carried as it is, if it is JSON."""
    try:
        if entry.kind not in KINDS:
            msgspec.json.decode(entry.body)
        event = decode(entry.kind, entry.body)
    except (msgspec.DecodeError, StoreDamaged) as error:
        raise InvalidInput(
            f"This {entry.kind} is not what it says: {str(error).rstrip('.')}."
        ) from error
    check_text(event)
    return event


def _time(at: int) -> int:
    if not isinstance(at, int) or not 0 <= at < 1 << 62:
        raise InvalidInput(f"A time is in microseconds since 1970, not {at!r}.")
    return at


def _opens(event: Event | Unknown) -> str | None:
    match event:
        case ConversationOpened(stretch=name) | ContextCompacted(child=name):
            return check_id("stretch", name)
        case _:
            return None


def is_id(value: object) -> TypeGuard[str]:
    """An id is a short string without control characters. It stands in the digest and in file names."""
    # A subclass of str may be anything else too: what encodes it for a file or a database takes only the class itself.
    return type(value) is str and 0 < len(value) <= ID_CHARS_MAX and value.isprintable()


def check_id(what: str, value: object) -> str:
    """The id, if it is one. Raises InvalidInput."""
    if not is_id(value):
        found = repr(value[:40]) if type(value) is str else type(value).__name__
        raise InvalidInput(
            f"A {what} is named by 1 to {ID_CHARS_MAX} printable characters, not by {found}."
        )
    return value


class Stored(NamedTuple):
    """Events that are already in the store: an append that was repeated."""

    recorded: list[Recorded]


class Loaded:
    """What was read for a group, kept current while the group is planned."""

    __slots__ = ("appended", "fences", "gone", "heads", "received", "taken")

    def __init__(self) -> None:
        self.heads: dict[Key, HeadState] = {}
        self.gone: set[Key] = set()
        self.taken: set[tuple[str, str]] = set()
        """Names of stretches, by user, that the group wants to open and that are there."""
        self.fences: dict[tuple[str, str], tuple[int, bytes | None]] = {}
        self.received: dict[tuple[str, str, str], Stored] = {}
        self.appended: dict[bytes, Stored] = {}


class Batch:
    """All that one transaction writes. Rows stand as the statements take them."""

    __slots__ = ("changes", "moved", "opened", "rows", "states", "woken")

    def __init__(self) -> None:
        self.states: dict[Key, HeadState] = {}
        """The heads as they will be."""
        self.moved: dict[Key, None] = {}
        """Those of them that more than partials moved."""
        self.opened: dict[Key, bool] = {}
        """Conversations that are new; true for those that come from elsewhere."""
        self.rows: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        """New rows, by the statement that takes them."""
        self.changes: list[tuple[Key, Change]] = []
        """What else changes; an append with such changes has the transaction to itself, or opens its conversation."""
        self.woken: defaultdict[str, list[int]] = defaultdict(list)
        """Conversations whose readers have to be told that they are behind, by what they follow."""


Opener = Callable[[Key, int, ConversationOpened], int]
"""Makes the row of a new conversation and gives its number. Called when nothing can refuse the append any more."""


def plan(
    append: Append, head: HeadState | None, loaded: Loaded, batch: Batch, look: Lookup, opener: Opener | None,
    clock: Clock, ids: Ids,
) -> list[Recorded]:  # fmt: skip
    """Add this append to the batch and say what it will have stored. Raises what refuses it, and then adds nothing.

    `head` is where the conversation stands, `opener` is there if the append opens it.
    """
    if append.repeated or append.dedup is not None:
        stored = _repeat(append, loaded)
        if stored is not None:
            return stored
    key = append.key
    # A copy to work on, so that a refusal half-way leaves no trace.
    state = (
        _new(append, loaded)
        if head is None or append.opens
        else msgspec.structs.replace(head)
    )
    if append.guarded:
        _check(append, state, loaded, look)
    turns, due = state.turns, state.due
    recorded, facts, partials, changes = _number(append, state, look, clock, ids)
    # From here on nothing refuses: the append joins the batch as a whole.
    if opener is not None:
        _open(append, key, state, recorded[0].at, opener, batch)
        base = state.num << SEQ_BITS
        facts = [(base | fact[0], *fact[1:]) for fact in facts]
        partials = [(base | partial[0], *partial[1:]) for partial in partials]
    if partials:
        batch.rows["put_partial"] += partials
    if facts:
        _join(batch, key, state, facts, changes)
        if state.turns != turns or state.due != due:
            _wake(batch, state, turns, due)
    loaded.heads[key] = batch.states[key] = state
    if append.repeated or append.dedup is not None:
        _remember(append, state, recorded, loaded, batch)
    if append.names:
        loaded.taken.update((append.user, each) for each in append.names)
    return recorded


def _number(
    append: Append, state: HeadState, look: Lookup, clock: Clock, ids: Ids
) -> tuple[list[Recorded], list[tuple[Any, ...]], list[tuple[Any, ...]], list[Change]]:
    """Give the events their numbers, times and digests: as values, as rows, and with what else they change."""
    now = clock.now_us()
    name, base, digest = state.id, state.num << SEQ_BITS, state.digest
    recorded: list[Recorded] = []
    facts: list[tuple[Any, ...]] = []
    partials: list[tuple[Any, ...]] = []
    changes: list[Change] = []
    append_id: bytes | None = append.append_id
    for item in append.items:
        kind, run, body = item.kind, item.run, item.body
        seq = state.head + 1
        at = now if item.at is None else item.at
        if item.code:
            state.head = seq
            # Partials are pruned one day, so an append that has a fact too keeps its id there.
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
            salt = ids.salt()
            digest = chain(
                digest, name, seq, kind, at, run, sha256(salt + body).digest()
            )
            facts.append(
                (base | seq, kind, at, run, *row, append_id, salt, digest, body)
            )
            recorded.append(Recorded(name, seq, kind, at, run, body, digest))
            append_id = None
    state.digest = digest
    return recorded, facts, partials, changes


def _open(
    append: Append, key: Key, state: HeadState, at: int, opener: Opener, batch: Batch
) -> None:
    opened = append.items[0].event
    assert isinstance(opened, ConversationOpened)
    state.num = opener(key, at, opened)
    state.listed_at = at
    batch.opened[key] = append.imported


def _join(
    batch: Batch,
    key: Key,
    state: HeadState,
    facts: list[tuple[Any, ...]],
    changes: list[Change],
) -> None:
    """Add the facts of an append, and what they change."""
    rows = batch.rows
    rows["put_event"] += facts
    batch.moved[key] = None
    if changes:
        batch.changes += [(key, change) for change in changes]
    at = facts[-1][2]
    if abs(at - state.listed_at) >= LISTED_EVERY_US:
        state.listed_at = at
        rows["touch"].append((at, state.num))
    if not state.woken:
        state.woken = True
        batch.woken["facts"].append(state.num)
    for fact in facts:
        if b'"blob"' in fact[-1] or fact[1] in _OF_FACTS:
            rows["put_mention"] += [
                (key[0], each, fact[0]) for each in named_in(fact[1], fact[-1])
            ]


def named_in(kind: str, body: bytes) -> Iterable[str]:
    """What an event counts as naming: blobs by their hash, and what is remembered by its id."""
    match decode(kind, body) if kind in _OF_FACTS else None:
        case MemoryNoted(fact=fact):
            return [fact]
        case MemoryRecalled(facts=facts):
            return set(facts)
    return blobs_of(msgspec.json.decode(body)) if b'"blob"' in body else ()


def _wake(batch: Batch, state: HeadState, turns: int, due: int) -> None:
    """Those who follow turns or what is due have more to read."""
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
    """So that the same append later in this group is known for a repetition."""
    if append.dedup is not None:
        source, dedup_id = append.dedup.source, append.dedup.id
        loaded.received[append.user, source, dedup_id] = Stored(recorded)
        place = state.num << SEQ_BITS | recorded[0].seq
        batch.rows["put_received"].append(
            (append.user, source, dedup_id, place, len(recorded))
        )
    if append.repeated:
        loaded.appended[append.append_id] = Stored(recorded)


def inner_hash(salt: bytes, body: bytes) -> bytes:
    """What stays of a body when it is erased. Without the salt the text cannot be guessed back from it."""
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
    """The digest of a fact: over the one before it, its body's hash and its header."""
    header = f"{conversation}\n{seq}\n{kind}\n{at}\n{run or ''}".encode()
    return sha256(previous + inner + header).digest()


def _repeat(append: Append, loaded: Loaded) -> list[Recorded] | None:
    if append.repeated and (stored := loaded.appended.get(append.append_id)):
        if not _same(append, stored):
            raise DedupReused("This append id was used before, for something else.")
        return stored.recorded
    if append.dedup is None:
        return None
    stored = loaded.received.get((append.user, append.dedup.source, append.dedup.id))
    if stored is None:
        return None
    if not stored.recorded:
        raise Gone(
            f"What {append.dedup.source} sent as {append.dedup.id} was deleted with its conversation."
        )
    if not _same(append, stored):
        raise DedupReused(
            f"{append.dedup.source} sent {append.dedup.id} before, with other content.",
            hint="a new message needs a new id",
        )
    return stored.recorded


def _same(append: Append, stored: Stored) -> bool:
    """Whether these are the same events. What was erased or pruned cannot be compared, and counts as the same."""
    items = [item for item in append.items if append.partial or not item.code]
    olds = [old for old in stored.recorded if append.partial or old.digest]
    return len(items) == len(olds) and all(
        item.kind == old.kind and (old.body is None or item.body == old.body)
        for item, old in zip(items, olds, strict=True)
    )


def _new(append: Append, loaded: Loaded) -> HeadState:
    """The head of a conversation that this append opens."""
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


def _check(append: Append, state: HeadState, loaded: Loaded, look: Lookup) -> None:
    lease, expect = append.lease, append.expect
    for name in append.names:
        if (append.user, name) in loaded.taken:
            raise ConversationExists(
                f"The name {name} is taken.", hint="use another one"
            )
    if lease is not None:
        fence, token = loaded.fences.get((append.user, lease.name), (0, None))
        if fence != lease.fence or token != lease.token:
            raise LeaseLost(
                f"{lease.name} is no longer held by {lease.holder}.",
                hint="stop, and read what happened",
            )
    if expect is None:
        return
    if expect.head is not None and expect.head != state.head:
        raise HeadMoved(
            f"The conversation stands at {state.head}, not at {expect.head}."
        )
    if expect.revision is not None and expect.revision != state.revision:
        raise HeadMoved(
            f"The transcript stands at {state.revision}, not at {expect.revision}."
        )
    if expect.stretch is not None and expect.stretch != state.stretch_name:
        raise StretchMoved(
            f"{expect.stretch} is no longer the open stretch.", by=state.stretch_name
        )
    if expect.unedited is not None:
        check_unedited(look, *expect.unedited)
