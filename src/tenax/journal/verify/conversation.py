"""One conversation, proved from its events.

The chain is derived again, every body is read as its kind, and the full fold is compared with what the engine keeps.
It is read in pages, each a read of its own, while others may write: the events up to a head never change (but for
erasure, which leaves its own fact), so what is compared is the fold up to the head that was seen. Index rows are read
after that head; when the conversation has moved meanwhile, the fold goes on to the new head and they are read again,
and only what is wrong each time is reported.
"""

from __future__ import annotations

import contextlib
import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tenax.clock import is_append_id
from tenax.errors import StoreDamaged, TenaxError
from tenax.events import (
    PARTIALS,
    ContentErased,
    ConversationOpened,
    Event,
    Unknown,
    decode,
)
from tenax.journal.place import ALL_SEQS, bounds
from tenax.journal.plan import chain, inner_hash, named_in
from tenax.journal.row_index import INDEX_VERSION, HeadState
from tenax.journal.verify.derive import Derived, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenax.journal.store import Row, Store, Tx

__all__ = ["PER_CONVERSATION_MAX", "Proof", "prove_range", "prove_tail"]

PER_CONVERSATION_MAX = 50
"""Findings of one sort that are kept for one conversation. More would say no more."""
PASSES_MAX = 4
_PAGE = 1000
_PAGE_BYTES = 4 * 1024 * 1024
_LISTED_WITHIN_US = 1_000_000
_HASH_CHARS = 64

Finding = tuple[int | None, str]
"""A seq, where there is one, and a sentence."""


_LIST = ("source", "origin", "title", "pinned", "archived", "opened_at", "updated_at")
_FOLDED = ("facts", "turns", "due", "revision", "epoch", "digest", "run", "context_from", "unanswered", "messages",
           "stretch_messages", "stretch_from", "stretch_covers")  # fmt: skip


class _Fact(NamedTuple):
    """A row of `events`."""

    place: int
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


class _Findings(list[Finding]):
    """A bounded list of what is wrong."""

    def say(self, seq: int | None, what: str) -> None:
        if len(self) < PER_CONVERSATION_MAX:
            self.append((seq, what))


class Proof:
    """A conversation that is proved. `step` is told how many numbers further it is, as it goes."""

    def __init__(
        self,
        store: Store,
        num: int,
        user: str,
        conversation: str,
        step: Callable[[int], None],
    ) -> None:
        self._query = store.query
        self._num = num
        self._low, self._high = bounds(num)
        self._user = user
        self._id = conversation
        self._step = step
        self._derived = Derived(user, conversation)
        self._events = _Findings()
        """What is wrong with the events themselves. It stays so, whatever is written meanwhile."""
        self._foldable = True
        self._links: tuple[bytes, ...] = (bytes(32),)
        self._last = 0
        self._last_fact: _Fact | None = None
        self._opened: tuple[int, ConversationOpened] | None = None
        self._holes: list[tuple[int, int]] = []
        self._append_ids: set[bytes] = set()
        self._mentions: set[tuple[int, str]] = set()
        self._erased: set[int] = set()
        self._erased_input = False
        self._to_erase: set[int] = set()
        self.facts = 0
        self.partials = 0
        self.stale = False
        """Its index was made by another version, and is made anew when it is next written."""

    def run(self) -> list[Finding]:
        """Everything that is wrong. Nothing, if it was deleted meanwhile."""
        shaky: list[Finding] | None = None
        exact = _Findings()
        for _ in range(PASSES_MAX):
            stored = self._last_stored()
            found = self._head()
            if found is None:
                return []
            head, listed = found
            if head is None:
                return [(None, "It has no head row, so nothing can be appended to it.")]
            self._read(max(head.head, stored))
            exact = self._compare_head(head, listed, stored)
            now = self._compare_index(head)
            shaky = now if shaky is None else [each for each in shaky if each in now]
            after = self._head()
            if after is None:
                return []
            if (after[0] and after[0].facts == head.facts) or not (shaky or exact):
                break
        return [*self._events, *exact, *(shaky or ())]

    def _head(self) -> tuple[HeadState | None, dict[str, Any]] | None:
        """The head row, if there is one, and the list columns, as they stand in one moment."""
        rows = self._query("prove_head", num=self._num)
        if not rows:
            return None
        columns, listed = (
            rows[0][: -len(_LIST)],
            dict(zip(_LIST, rows[0][-len(_LIST) :], strict=True)),
        )
        return None if columns[0] is None else HeadState(
            self._num, self._id, self._user, *columns
        ), listed

    def _last_stored(self) -> int:
        """The last seq that there is. Asked for before the head, it can never be larger."""
        found = [
            self._query(name, low=self._low, high=self._high)[0][0]
            for name in ("last_fact", "last_partial")
        ]
        return max(place & ALL_SEQS if place else 0 for place in found)

    # -- events ----------------------------------------------------------------------------------------------

    def _read(self, upto: int) -> None:
        """Take in every event up to this seq that was not taken in yet."""
        start, end = self._low + self._last, self._low + upto
        facts = (
            (row[0], 0, _Fact(*row)) for row in self._pages("prove_facts", start, end)
        )
        partials = (
            (row[0], 1, row) for row in self._pages("prove_partials", start, end)
        )
        records: Iterator[tuple[int, int, Any]] = heapq.merge(
            facts, partials, key=lambda each: each[:2]
        )
        told = self._last
        for place, is_partial, record in records:
            seq = place & ALL_SEQS
            if seq >= told + _PAGE:
                self._step(seq - told)
                told = seq
            if seq == self._last:
                self._events.say(seq, "A fact and a partial have the same number.")
            elif seq > self._last + 1:
                self._holes.append((self._last + 1, seq - 1))
            self._last = seq
            if is_partial:
                self._take_partial(seq, *record[1:])
            else:
                self._take_fact(seq, record)
        self._step(max(0, upto - told))

    def _pages(self, name: str, low: int, high: int, limit: int = 16) -> Iterator[Row]:
        """Rows by place, in pages of a bounded number of bytes."""
        while page := self._query(name, low=low, high=high, limit=limit):
            yield from page
            low = page[-1][0]
            nbytes = (
                sum(
                    len(each) for row in page for each in row if isinstance(each, bytes)
                )
                + 1
            )
            limit = max(1, min(_PAGE, 2 * limit, limit * _PAGE_BYTES // nbytes))

    def _take_partial(
        self, seq: int, code: int, append_id: bytes | None, body: bytes
    ) -> None:
        self.partials += 1
        self._take_append_id(seq, append_id)
        kind = PARTIALS.get(code)
        if kind is None:
            self._events.say(
                seq, f"A partial has the code {code}, which stands for nothing."
            )
            return
        self._decode(seq, kind.kind, body)

    def _take_append_id(self, seq: int, append_id: bytes | None) -> None:
        if append_id is None:
            return
        if not is_append_id(append_id):
            self._events.say(seq, "Its append id is none.")
        if append_id in self._append_ids:
            self._events.say(seq, "Its append id was used before in this conversation.")
        self._append_ids.add(append_id)

    def _take_fact(self, seq: int, fact: _Fact) -> None:
        self.facts += 1
        self._take_append_id(seq, fact.append_id)
        self._check_chain(seq, fact)
        event = self._event(seq, fact)
        self._last_fact = fact
        if isinstance(event, ConversationOpened) and seq == 1:
            self._opened = fact.at, event
        if isinstance(event, ContentErased):
            self._to_erase.update(event.seqs)
            self._mentions = {
                each for each in self._mentions if each[0] not in self._to_erase
            }
        self._fold(seq, fact, event)
        row = self._derived.rows.get(seq)
        if row is not None and row.first < seq:
            self._explain(row.first)

    def _check_chain(self, seq: int, fact: _Fact) -> None:
        """The digest follows from the fact before. After a wrong one, from what it should have been as well."""
        if fact.body is not None and fact.salt is not None and fact.body_hash is None:
            inner = inner_hash(fact.salt, fact.body)
        elif fact.body is None and fact.salt is None and fact.body_hash is not None:
            inner = fact.body_hash
        else:
            self._events.say(
                seq,
                "It is neither whole nor erased: body, salt and hash do not go together.",
            )
            self._links = (fact.digest,)
            return
        links = [
            chain(link, self._id, seq, fact.kind, fact.at, fact.run, inner)
            for link in self._links
        ]
        if fact.digest in links:
            self._links = (fact.digest,)
            return
        self._events.say(
            seq,
            "Its digest does not follow from the fact before it, its header and its body.",
        )
        self._links = (fact.digest, links[0])

    def _event(self, seq: int, fact: _Fact) -> Event | Unknown:
        """What a fact means; of an erased one, what its row still says."""
        if fact.body is None:
            self._erased.add(seq)
            self._erased_input = self._erased_input or fact.kind == "message.user"
            return stand_in(fact.kind, seq, fact.first, fact.waiting)
        # told when it is read as its kind
        with contextlib.suppress(msgspec.DecodeError, StoreDamaged):
            self._mentions.update(
                (seq, each) for each in named_in(fact.kind, fact.body)
            )
        return self._decode(seq, fact.kind, fact.body)

    def _decode(self, seq: int, kind: str, body: bytes) -> Event | Unknown:
        try:
            return decode(kind, body)
        except StoreDamaged as error:
            self._events.say(seq, str(error))
            self._foldable = False
            return Unknown(kind, body)

    def _fold(self, seq: int, fact: _Fact, event: Event | Unknown) -> None:
        if seq == 1 and fact.kind != "conversation.opened":
            self._events.say(
                seq, f"It begins with a {fact.kind}, not with conversation.opened."
            )
            self._foldable = False
        if not self._foldable:
            return
        try:
            self._derived.fold(seq, fact.at, fact.run, fact.kind, event)
        except TenaxError as error:
            self._events.say(
                seq, f"No append would have stored this {fact.kind}: {error}"
            )
            self._foldable = False

    def _explain(self, first: int) -> None:
        """An answer that began at `first` and is finished here explains what is missing between them."""
        while self._holes and self._holes[-1][1] > first:
            start, _ = self._holes.pop()
            if start <= first:
                self._holes.append((start, first))

    # -- what the head says ----------------------------------------------------------------------------------

    def _compare_head(
        self, head: HeadState, listed: dict[str, Any], stored: int
    ) -> _Findings:
        """The head row and the list columns against the fold. Both were read in one moment, so this is exact."""
        found = _Findings()
        if head.head != self._last:
            kept = f"the last event there is has seq {max(self._last, stored)}"
            found.say(
                None, f"The head row says that the head is {head.head}, and {kept}."
            )
        for start, end in self._holes if self._foldable else ():
            upto = "" if start == end else f" to {end}"
            found.say(
                start,
                f"Nothing stands at seq {start}{upto}, where no partial can have been.",
            )
        if self._foldable and (self._opened is None or self._last_fact is None):
            found.say(1, "It has no first event.")
            self._foldable = False
        self.stale = head.version != INDEX_VERSION
        if (
            not self._foldable
            or self.stale
            or self._opened is None
            or self._last_fact is None
        ):
            return found
        state = self._derived.settle()
        state.digest = self._last_fact.digest
        for name in _FOLDED:
            _same(found, "head row", name, getattr(head, name), getattr(state, name))
        opened_at, opened = self._opened
        for name, wanted in {
            **self._derived.list,
            "source": opened.source,
            "opened_at": opened_at,
        }.items():
            _same(found, "list", name, listed[name], wanted)
        _same(found, "list", "updated_at", listed["updated_at"], head.listed_at)
        if abs(head.listed_at - self._last_fact.at) >= _LISTED_WITHIN_US:
            _same(found, "list", "updated_at", head.listed_at, self._last_fact.at)
        self._compare_origin(listed["origin"], opened, found)
        self._compare_cursors(found)
        return found

    def _compare_origin(
        self, kept: int | None, opened: ConversationOpened, found: _Findings
    ) -> None:
        """A fork knows its origin by number, so that an erasure there reaches it."""
        if opened.origin is None:
            _same(found, "list", "origin", kept, None, 1)
            return
        for _ in range(2):  # the origin may be deleted between two looks
            rows = self._query(
                "conversation", owner=self._user, id=opened.origin.conversation
            )
            num = rows[0][0] if rows and rows[0][0] < self._num else None
            if kept == num:
                return
            again = self._head()
            kept = again[1]["origin"] if again else num
        _same(found, "list", "origin", kept, num, 1)

    def _compare_cursors(self, found: _Findings) -> None:
        for reader, follows, kept, seq, behind, head, followed in self._query(
            "prove_cursors", num=self._num
        ):
            if follows is None:
                found.say(None, f"There is a cursor of {reader}, and no such reader.")
            elif seq is None:
                found.say(None, f"The reader {reader} has no cursor here.")
            elif kept != follows:
                found.say(
                    None,
                    f"The cursor of {reader} follows {kept}, and the reader follows {follows}.",
                )
            elif seq > head or seq < 0:
                found.say(
                    None,
                    f"The cursor of {reader} stands at {seq}, past the head at {head}.",
                )
            elif bool(behind) != (followed > seq):
                truth = "is" if followed > seq else "is not"
                where = f"at {seq}, {follows} at {followed}"
                found.say(
                    None,
                    f"The reader {reader} {truth} behind ({where}), and its cursor says otherwise.",
                )

    # -- what the index says ---------------------------------------------------------------------------------

    def _compare_index(self, head: HeadState) -> _Findings:
        """The index rows against the fold. They were read after the head, and may have moved on since."""
        found = _Findings()
        for seq in sorted(self._erased - self._to_erase):
            found.say(seq, "Its body is gone, and no content.erased says so.")
        for seq in sorted(self._to_erase - self._erased):
            rows = self._query("body", place=self._low + seq)
            if rows and rows[0][1] is None:
                self._erased.add(seq)
            elif rows:
                found.say(seq, "It was erased, and its body is still there.")
        if not self._foldable or self.stale:
            return found
        self._compare_rows(found)
        self._compare_stretches(head, found)
        self._compare_runs(found)
        self._compare_mentions(found)
        self._compare_authors(found)
        self._compare_letters(found)
        return found

    def _compare_rows(self, found: _Findings) -> None:
        wanted = self._derived.rows
        rows = self._pages("prove_rows", self._low, self._high, _PAGE)
        kept = {place & ALL_SEQS: columns for place, *columns in rows}
        for seq in sorted(wanted.keys() | kept.keys()):
            if seq not in kept:
                found.say(seq, "This message has no index row.")
            elif seq not in wanted:
                found.say(seq, "There is an index row, and no message.")
            else:
                for name, column in zip(
                    ("first", "role", "waiting", "dead"), kept[seq], strict=True
                ):
                    _same(
                        found,
                        "index row",
                        name,
                        column,
                        getattr(wanted[seq], name),
                        seq,
                    )

    def _compare_stretches(self, head: HeadState, found: _Findings) -> None:
        wanted = dict(self._derived.stretches)
        children: dict[str, str] = {}
        open_now: list[str] = []
        nums: dict[int, str] = {}
        for num, name, owner, *columns in self._query("prove_stretches", num=self._num):
            nums[num] = name
            parent, _, opened_seq, _, _, ended_seq, *_ = columns
            if ended_seq is None:
                open_now.append(name)
            if (
                parent is not None
                and opened_seq > 1
                and children.setdefault(parent, name) != name
            ):
                found.say(
                    opened_seq,
                    f"Stretch {parent} has two children, {children[parent]} and {name}.",
                )
            if owner != self._user:
                found.say(opened_seq, f"Stretch {name} belongs to another user.")
            want = wanted.pop(name, None)
            if want is None:
                found.say(
                    opened_seq,
                    f"Stretch {name} is in the index, and no event opened it.",
                )
                continue
            for field, kept in zip(want.__struct_fields__, columns, strict=True):
                _same(
                    found,
                    f"index of stretch {name}",
                    field,
                    kept,
                    getattr(want, field),
                    want.opened_seq,
                )
        for name, want in wanted.items():
            found.say(want.opened_seq, f"Stretch {name} is missing from the index.")
        if len(open_now) > 1:
            found.say(None, f"Two stretches are open, {open_now[0]} and {open_now[1]}.")
        _same(
            found,
            "head row",
            "stretch",
            nums.get(head.stretch),
            self._derived.state.stretch_name,
        )

    def _compare_runs(self, found: _Findings) -> None:
        wanted = dict(self._derived.runs)
        after = ""
        while page := self._query(
            "prove_runs", num=self._num, after=after, limit=_PAGE
        ):
            for run, *columns, attempts, first_seen in page:
                want = wanted.pop(run, None)
                if want is None:
                    if columns != [None, None, None, 0, None] or (
                        not attempts and first_seen is None
                    ):
                        found.say(
                            columns[0],
                            f"Run {run} is in the index, and no event names it.",
                        )
                    continue
                for field, kept in zip(want.__struct_fields__, columns, strict=True):
                    _same(
                        found,
                        f"index of run {run}",
                        field,
                        kept,
                        getattr(want, field),
                        want.started_seq,
                    )
            after = page[-1][0]
        for run, want in wanted.items():
            found.say(want.started_seq, f"Run {run} is missing from the index.")

    def _compare_mentions(self, found: _Findings) -> None:
        wanted = set(self._mentions)
        for place, blob, owner, size in self._query(
            "prove_mentions", low=self._low, high=self._high
        ):
            seq = place & ALL_SEQS
            if (seq, blob) not in wanted:
                found.say(seq, f"{_named(blob)} counts as named here, and is not.")
            elif owner != self._user:
                found.say(seq, f"{_named(blob)} is named for another user.")
            elif size is None and len(blob) == _HASH_CHARS:
                found.say(seq, f"Blob {blob} is named here, and is not in the store.")
            wanted.discard((seq, blob))
        for seq, blob in sorted(wanted):
            found.say(
                seq, f"{_named(blob)} is named here, and does not count as named."
            )

    def _compare_authors(self, found: _Findings) -> None:
        """Who wrote what was erased is told by nothing else."""
        kept = {author for (author,) in self._query("prove_authors", num=self._num)}
        for author in sorted(self._derived.authors - kept):
            found.say(
                None,
                f"{author!r:.60} has written here, and does not count as an author.",
            )
        for author in (
            sorted(kept - self._derived.authors) if not self._erased_input else ()
        ):
            found.say(
                None, f"{author!r:.60} counts as an author, and has written nothing."
            )

    def _compare_letters(self, found: _Findings) -> None:
        """What a reader gave up on lies behind it."""
        for reader, seq, at in self._query("prove_letters", num=self._num):
            if at is None or not 0 <= seq <= at:
                found.say(
                    seq,
                    f"The reader {reader} gave up on this, and stands at {at or 0}.",
                )


def _same(
    found: _Findings,
    where: str,
    name: str,
    kept: object,
    wanted: object,
    seq: int | None = None,
) -> None:
    if kept != wanted:
        found.say(
            seq,
            f"The {where} has {name} {_shown(kept)}, and the events say {_shown(wanted)}.",
        )


def _named(name: str) -> str:
    return f"Fact {name}" if name.startswith("f_") else f"Blob {name}"


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()[:16]
    return "none" if value is None else f"{value!r:.60}"


def prove_tail(tx: Tx, num: int, conversation: str, after: int) -> None:
    """Check that the facts after a number are what was written, up to the head. Raises StoreDamaged.

    This proves what is about to be read, in time proportional to it. What stands before it is taken as it is.
    """
    rows = tx.run("head", {"num": num})
    if not rows:  # deleted meanwhile
        return
    low, _ = bounds(num)
    upto, digest = rows[0][1], rows[0][6]
    if prove_range(tx, num, conversation, after, upto) != (low + upto, digest):
        raise _not_as_written(conversation, upto)


def prove_range(
    tx: Tx, num: int, conversation: str, after: int, upto: int
) -> tuple[int, bytes]:
    """Check that the facts between two numbers are what was written. Return place and digest of the last of them.

    Raises StoreDamaged.
    """
    low, _ = bounds(num)
    before = tx.run("last_fact", {"low": low, "high": low + min(after, upto)})[0][0]
    at, previous = low, bytes(32)
    if before is not None:
        rows = tx.run("prove_facts", {"low": before - 1, "high": before, "limit": 1})
        at, previous = (before, rows[0][9]) if rows else (low, previous)
    while facts := tx.run(
        "prove_facts", {"low": at, "high": low + upto, "limit": _PAGE}
    ):
        for place, kind, time, run, _, _, _, salt, body_hash, found, body in facts:
            inner = body_hash if body is None else inner_hash(salt, body)
            if (
                chain(previous, conversation, place - low, kind, time, run, inner)
                != found
            ):
                raise _not_as_written(conversation, place - low)
            at, previous = place, found
    return at, previous


def _not_as_written(conversation: str, seq: int) -> StoreDamaged:
    return StoreDamaged(
        f"Event {seq} of conversation {conversation} is not what was written.",
        hint="run: tenax doctor; then restore a copy of the store",
    )
