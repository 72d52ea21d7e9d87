"""What one transaction will write, worked out in plain Python before the first write.

An engine loads what its group of appends needs to know, calls `plan` for each in turn, and then stores the batch.
Every refusal is found here, by reading, so a refused append has written nothing and harms no other of its group.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from tenax.clock import is_append_id
from tenax.errors import (
    ConversationExists,
    DedupReused,
    Gone,
    HeadMoved,
    InvalidInput,
    LeaseLost,
    NoSuchConversation,
    StretchMoved,
    TooLarge,
)
from tenax.events import BODY_BYTES_MAX, KINDS, ContextCompacted, ConversationOpened, Event, Unknown, decode, encode
from tenax.journal.base import Dedup, Entry, Expect, Lease, Recorded
from tenax.journal.index import SOLO, Change, HeadState, Lookup, apply, check_unedited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenax.clock import Clock, Ids

__all__ = ["Append", "Batch", "Fact", "Key", "Loaded", "Partial", "Stored", "chain", "check_id", "inner_hash", "plan"]

Key = tuple[str, str]
"""User and conversation."""

EVENTS_PER_APPEND_MAX = 100_000
_OPENERS = frozenset({"conversation.opened", "context.compacted"})
ID_CHARS_MAX = 200


class _Item(NamedTuple):
    """One event on its way in."""

    kind: str
    code: int
    at: int | None
    run: str | None
    body: bytes
    event: Event | Unknown


class Fact(NamedTuple):
    """A row of `events`, less its place."""

    seq: int
    kind: str
    at: int
    run: str | None
    append_id: bytes | None
    salt: bytes
    body: bytes
    digest: bytes


class Partial(NamedTuple):
    """A row of `partials`, less its place."""

    seq: int
    code: int
    at: int
    append_id: bytes | None
    body: bytes


class Append:
    """One append that waits for its outcome."""

    __slots__ = (
        "append_id", "conversation", "dedup", "expect", "imported", "items", "lease", "maybe_stored",
        "names", "nbytes", "partial", "repeated", "solo", "user",
    )  # fmt: skip

    def __init__(
        self,
        user: str,
        conversation: str,
        items: list[_Item],
        *,
        expect: Expect | None,
        lease: Lease | None,
        dedup: Dedup | None,
        append_id: bytes | None,
        ids: Ids,
        imported: bool,
    ) -> None:
        self.user = user
        self.conversation = conversation
        self.items = items
        self.expect = expect
        self.lease = lease
        self.dedup = dedup
        self.append_id = append_id or ids.append()
        self.imported = imported
        self.nbytes = 0
        self.partial = True
        self.solo = imported or (expect is not None and expect.unedited is not None)
        self.names: list[str] = []
        """Stretches that it opens."""
        for item in items:
            self.nbytes += len(item.body)
            self.partial = self.partial and item.code > 0
            self.solo = self.solo or item.kind in SOLO
            if item.kind in _OPENERS and (name := _opens(item.event)) is not None:
                self.names.append(name)
        self.repeated = append_id is not None
        """Look the id up first: it may be stored already."""
        self.maybe_stored = False
        """A commit of it failed, and nobody knows how."""

    @classmethod
    def of_events(cls, user: str, conversation: str, events: Sequence[Event], *, run: str | None, ids: Ids,
                  expect: Expect | None, lease: Lease | None, dedup: Dedup | None, append_id: bytes | None) -> Append:  # fmt: skip
        """Check and encode. Raises InvalidInput; then nothing was sent to the store."""
        check_id("conversation", conversation)
        if run is not None:
            check_id("run", run)
        if dedup is not None:
            check_id("dedup source", dedup.source)
            check_id("dedup id", dedup.id)
        if append_id is not None and not is_append_id(append_id):
            raise InvalidInput(
                "That is no append id.", hint="use the one that OutcomeUnknown carries, or journal.ids.append()"
            )
        if not events:
            raise InvalidInput("An append needs at least one event.")
        items = [_Item(each.kind, each.code, None, run, encode(each), each) for each in events]
        return cls(user, conversation, items, expect=expect, lease=lease, dedup=dedup, append_id=append_id,
                   ids=ids, imported=False)  # fmt: skip

    @classmethod
    def of_entries(cls, user: str, conversation: str, opened: Event, entries: Sequence[Entry], *, ids: Ids) -> Append:
        """A whole conversation from elsewhere: kinds of a later version are carried, known ones are checked."""
        check_id("conversation", conversation)
        if len(entries) >= EVENTS_PER_APPEND_MAX:
            raise TooLarge(f"An import takes at most {EVENTS_PER_APPEND_MAX:,} events at a time.")
        items = [_Item(opened.kind, 0, None, None, encode(opened), opened)]
        for entry in entries:
            if len(entry.body) > BODY_BYTES_MAX:
                raise TooLarge(f"A {entry.kind} of {len(entry.body):,} bytes is larger than an event may be.")
            known = KINDS.get(entry.kind)
            items.append(_Item(entry.kind, known.code if known else 0, entry.at, entry.run, entry.body,
                               decode(entry.kind, entry.body)))  # fmt: skip
        return cls(user, conversation, items, expect=None, lease=None, dedup=None, append_id=None, ids=ids, imported=True)


def _opens(event: Event | Unknown) -> str | None:
    match event:
        case ConversationOpened(stretch=name) | ContextCompacted(child=name):
            return check_id("stretch", name)
        case _:
            return None


def check_id(what: str, value: object) -> str:
    """An id is a short string without control characters. It stands in the digest and in file names."""
    if not isinstance(value, str) or not value or len(value) > ID_CHARS_MAX or not value.isprintable():
        raise InvalidInput(f"A {what} is named by 1 to {ID_CHARS_MAX} printable characters, not by {str(value)[:40]!r}.")
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
    """All that one transaction writes."""

    __slots__ = ("changes", "facts", "imported", "opened", "partials", "received", "states", "turned")

    def __init__(self) -> None:
        self.states: dict[Key, HeadState] = {}
        self.opened: list[tuple[Key, int, ConversationOpened]] = []
        self.facts: list[tuple[Key, Fact]] = []
        self.partials: list[tuple[Key, Partial]] = []
        self.changes: list[tuple[Key, Change]] = []
        self.received: list[tuple[Key, Dedup, int, int]] = []
        self.imported: list[Key] = []
        self.turned: set[Key] = set()
        """Conversations in which a run finished."""


def plan(append: Append, loaded: Loaded, batch: Batch, look: Lookup, clock: Clock, ids: Ids) -> list[Recorded]:
    """Add this append to the batch and say what it will have stored. Raises what refuses it, and then adds nothing."""
    key = (append.user, append.conversation)
    before = _repeat(append, loaded)
    if before is not None:
        return before
    state = _state(append, loaded, key)
    turns = state.turns
    _check(append, state, loaded, look)
    at_now = clock.now_us()
    facts: list[tuple[Key, Fact]] = []
    partials: list[tuple[Key, Partial]] = []
    changes: list[tuple[Key, Change]] = []
    recorded: list[Recorded] = []
    append_id: bytes | None = append.append_id
    for item in append.items:
        seq = state.head + 1
        at = at_now if item.at is None else item.at
        if item.code:
            state.head = seq
            digest = b""
            partials.append((key, Partial(seq, item.code, at, append_id, item.body)))
        else:
            moves = apply(state, seq, at, item.run, item.kind, item.event, look)
            if append.imported:
                look.note(seq, item.kind, item.event, moves)
            changes += [(key, change) for change in moves]
            salt = ids.salt()
            digest = chain(state.digest, state.id, seq, item.kind, at, item.run, inner_hash(salt, item.body))
            state.digest = digest
            facts.append((key, Fact(seq, item.kind, at, item.run, append_id, salt, item.body, digest)))
        append_id = None
        recorded.append(Recorded(state.id, seq, item.kind, at, item.run, item.body, digest))
    # From here on nothing refuses: the append joins the batch as a whole.
    batch.facts += facts
    batch.partials += partials
    batch.changes += changes
    if state.turns != turns:
        batch.turned.add(key)
    loaded.heads[key] = batch.states[key] = state
    _remember(append, key, recorded, loaded, batch)
    return recorded


def inner_hash(salt: bytes, body: bytes) -> bytes:
    """What stays of a body when it is erased. Without the salt the text cannot be guessed back from it."""
    return hashlib.sha256(salt + body).digest()


def chain(previous: bytes, conversation: str, seq: int, kind: str, at: int, run: str | None, inner: bytes) -> bytes:
    """The digest of a fact: over the one before it, its body's hash and its header."""
    header = f"{conversation}\n{seq}\n{kind}\n{at}\n{run or ''}".encode()
    return hashlib.sha256(previous + inner + header).digest()


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
    if not _same(append, stored):
        raise DedupReused(
            f"{append.dedup.source} sent {append.dedup.id} before, with other content.",
            hint="a new message needs a new id",
        )
    return stored.recorded


def _same(append: Append, stored: Stored) -> bool:
    """Whether these are the same events. What was erased cannot be compared, and counts as the same."""
    return len(append.items) == len(stored.recorded) and all(
        item.kind == old.kind and (old.body is None or item.body == old.body)
        for item, old in zip(append.items, stored.recorded, strict=True)
    )


def _state(append: Append, loaded: Loaded, key: Key) -> HeadState:
    """A copy of the head to work on, so that a refusal half-way leaves no trace."""
    if key in loaded.gone:
        raise Gone(f"Conversation {append.conversation} was deleted.")
    state = loaded.heads.get(key)
    opens = append.items[0].kind == "conversation.opened"
    if state is None:
        if not opens:
            raise NoSuchConversation(
                f"There is no conversation {append.conversation}.", hint="run: tenax list"
            )
        return HeadState(0, append.conversation, append.user)
    if opens:
        raise ConversationExists(f"The id {append.conversation} is taken.", hint="let the store make the id")
    return state.__copy__()


def _check(append: Append, state: HeadState, loaded: Loaded, look: Lookup) -> None:
    lease, expect = append.lease, append.expect
    if append.names:
        for name in append.names:
            if (append.user, name) in loaded.taken:
                raise ConversationExists(f"The name {name} is taken.", hint="use another one")
    if lease is not None:
        fence, token = loaded.fences.get((append.user, lease.name), (0, None))
        if fence != lease.fence or token != lease.token:
            raise LeaseLost(f"{lease.name} is no longer held by {lease.holder}.", hint="stop, and read what happened")
    if expect is None:
        return
    if expect.head is not None and expect.head != state.head:
        raise HeadMoved(f"The conversation stands at {state.head}, not at {expect.head}.")
    if expect.revision is not None and expect.revision != state.revision:
        raise HeadMoved(f"The transcript stands at {state.revision}, not at {expect.revision}.")
    if expect.stretch is not None and expect.stretch != state.stretch_name:
        raise StretchMoved(f"{expect.stretch} is no longer the open stretch.", by=state.stretch_name)
    if expect.unedited is not None:
        check_unedited(look, *expect.unedited)


def _remember(append: Append, key: Key, recorded: list[Recorded], loaded: Loaded, batch: Batch) -> None:
    if append.names:
        opened = append.items[0].event
        if isinstance(opened, ConversationOpened):
            batch.opened.append((key, recorded[0].at, opened))
        loaded.taken.update((append.user, name) for name in append.names)
        if append.imported:
            batch.imported.append(key)
    if append.dedup is not None:
        dedup = append.dedup
        loaded.received[append.user, dedup.source, dedup.id] = Stored(recorded)
        batch.received.append((key, dedup, recorded[0].seq, len(recorded)))
    if append.repeated:
        loaded.appended[append.append_id] = Stored(recorded)
