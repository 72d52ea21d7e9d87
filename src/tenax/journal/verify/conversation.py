"""Checks one conversation against its events.

`Proof` computes the chain of digests again, decodes every body, and compares the derived index with the tables of the
engine. `Proof` reads pages, each in a transaction of its own, and other processes may write meanwhile. Events up to the head
never change (except by an erasure, which appends a fact), so the fold goes up to the head of the first read. The
index rows come later. If the conversation has grown meanwhile, the fold continues to the new head, `Proof` reads the index
rows again, and reports only the differences of every pass.
"""

from __future__ import annotations

import contextlib
import heapq
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from tenax.clock import is_append_id
from tenax.errors import StoreDamaged, TenaxError
from tenax.events import (
    PARTIALS,
    ContentErased,
    ConversationOpened,
    Event,
    MessageAssistant,
    ToolFinished,
    ToolLate,
    Unknown,
    decode,
)
from tenax.journal.plan import chain, inner_hash, named_in
from tenax.journal.row_index import INDEX_VERSION, QUIET, HeadState
from tenax.journal.row_key import ALL_SEQS, bounds
from tenax.journal.verify.derive import Derived, FactRow, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tenax.journal.base import StoredEvent
    from tenax.journal.store import SqlRow, Store, Tx

__all__ = [
    "PER_CONVERSATION_MAX",
    "Proof",
    "prove_copy",
    "prove_range",
    "prove_tail",
]

PER_CONVERSATION_MAX = 50
"""Largest number of findings in a list for a conversation."""
PASSES_MAX = 4
_PAGE = 1000
_PAGE_BYTES = 4 * 1024 * 1024
_LISTED_WITHIN_US = 1_000_000
_HASH_CHARS = 64

Finding = tuple[int | None, str]
"""A seq or `None`, and a sentence for a person."""


_LIST = (
    "source",
    "origin",
    "title",
    "pinned",
    "archived",
    "model",
    "mode",
    "project",
    "opened_at",
    "updated_at",
)
_FOLDED = ("facts", "turns", "due", "revision", "epoch", "digest", "run", "context_from", "unanswered", "messages",
           "stretch_messages", "stretch_from", "stretch_covers", "asks", "failed", "answered")  # fmt: skip


class _Findings(list[Finding]):
    """A bounded list of problems."""

    def say(self, seq: int | None, what: str) -> None:
        if len(self) < PER_CONVERSATION_MAX:
            self.append((seq, what))


class Proof:
    """The check of a conversation. `step` receives the number of newly checked seqs from time to time."""

    def __init__(
        self,
        store: Store | _Copy,
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
        """Problems of the events themselves. Later writes do not change these problems."""
        self._foldable = True
        self._links: tuple[bytes, ...] = (bytes(32),)
        self._last = 0
        self._last_fact: FactRow | None = None
        self._moved_at = 0
        """The time of the last fact able to move the conversation in the list."""
        self._opened: tuple[int, ConversationOpened] | None = None
        self._holes: list[tuple[int, int]] = []
        self._last_answer = 0
        self._append_ids: set[bytes] = set()
        self._mentions: set[tuple[int, str]] = set()
        self._erased: set[int] = set()
        self._erased_inputs = 0
        self._to_erase: set[int] = set()
        self.facts = 0
        self.partials = 0
        self.stale = False
        """Whether another version wrote the index. The next append rebuilds the index."""

    def run(self) -> list[Finding]:
        """Return all problems, or none if the conversation was deleted meanwhile."""
        unsure: list[Finding] | None = None
        exact = _Findings()
        for _ in range(PASSES_MAX):
            stored = self._last_stored()
            found = self._head()
            if found is None:
                return []
            head, listed = found
            if head is None:
                return [(None, "It has no head row, so nothing can be appended to it.")]
            self._check_events(max(head.head, stored))
            exact = self._compare_head(head, listed, stored)
            now = self._compare_index(head)
            if unsure is None:
                unsure = now
            else:
                unsure = [finding for finding in unsure if finding in now]
            after = self._head()
            if after is None:
                return []
            unmoved = after[0] is not None and after[0].facts == head.facts
            if unmoved or not (unsure or exact):
                break
        return [*self._events, *exact, *(unsure or ())]

    def run_copy(self, authors: Sequence[str]) -> tuple[list[Finding], Derived]:
        """Return the problems of events that are not stored yet, and their index."""
        self._check_events(ALL_SEQS)
        found = [*self._events, *self._list_holes()]
        if self._opened is None:
            found.append((1, "It has no first event."))
        what = "An erased body and a content.erased do not fit together."
        found += [(seq, what) for seq in sorted(self._erased ^ self._to_erase)]
        unknown = set(authors) - self._derived.authors
        if len(unknown) > self._erased_inputs:
            found.append((None, "It has more authors than messages."))
        return found, self._derived

    def _list_holes(self) -> _Findings:
        found = _Findings()
        for start, end in self._holes if self._foldable else ():
            upto = "" if start == end else f" to {end}"
            what = f"Nothing stands at seq {start}{upto}, where no partial can have been."  # fmt: skip
            found.say(start, what)
        return found

    def _head(self) -> tuple[HeadState | None, dict[str, Any]] | None:
        """Return the head row, or `None` without a head row, and the list columns, from a single read.

        Return `None` if the conversation is deleted.
        """
        rows = self._query("prove_head", num=self._num)
        if not rows:
            return None
        columns = rows[0][: -len(_LIST)]
        listed = dict(zip(_LIST, rows[0][-len(_LIST) :], strict=True))
        if columns[0] is None:
            return None, listed
        return HeadState(self._num, self._id, self._user, *columns), listed

    def _last_stored(self) -> int:
        """Return the last stored seq. Read before the head, this seq is never larger than the head."""
        last = 0
        for name in ("last_fact", "last_partial"):
            row_key = self._query(name, low=self._low, high=self._high)[0][0]
            if row_key:
                last = max(last, row_key & ALL_SEQS)
        return last

    # -- events ----------------------------------------------------------------------------------------------

    def _check_events(self, upto: int) -> None:
        """Check the events after the last checked event, up to a seq."""
        start, end = self._low + self._last, self._low + upto
        fact_rows = self._pages("prove_facts", start, end)
        partial_rows = self._pages("prove_partials", start, end)
        facts = ((row[0], 0, FactRow(*row)) for row in fact_rows)
        partials = ((row[0], 1, row) for row in partial_rows)
        records: Iterator[tuple[int, int, Any]] = heapq.merge(
            facts, partials, key=itemgetter(0, 1)
        )
        reported = self._last
        for row_key, is_partial, record in records:
            seq = row_key & ALL_SEQS
            if seq >= reported + _PAGE:
                self._step(seq - reported)
                reported = seq
            if seq == self._last:
                self._events.say(seq, "An event and a partial have the same number.")
            elif seq > self._last + 1:
                self._holes.append((self._last + 1, seq - 1))
            self._last = seq
            if is_partial:
                self._check_partial(seq, *record[1:])
            else:
                self._check_fact(seq, record)
        self._step(max(0, upto - reported))

    def _pages(
        self, name: str, low: int, high: int, limit: int = 16
    ) -> Iterator[SqlRow]:
        """Yield rows by row key, in pages with a bounded number of bytes."""
        while page := self._query(name, low=low, high=high, limit=limit):
            yield from page
            low = page[-1][0]
            nbytes = 1
            for row in page:
                nbytes += sum(len(value) for value in row if isinstance(value, bytes))
            limit = max(1, min(_PAGE, 2 * limit, limit * _PAGE_BYTES // nbytes))

    def _check_partial(
        self, seq: int, code: int, append_id: bytes | None, body: bytes
    ) -> None:
        self.partials += 1
        self._check_append_id(seq, append_id)
        kind = PARTIALS.get(code)
        if kind is None:
            self._events.say(
                seq, f"A partial has the code {code}, which stands for nothing."
            )
            return
        self._decode(seq, kind.kind, body)

    def _check_append_id(self, seq: int, append_id: bytes | None) -> None:
        if append_id is None:
            return
        if not is_append_id(append_id):
            self._events.say(seq, "Its append id is none.")
        if append_id in self._append_ids:
            self._events.say(seq, "Its append id was used before in this conversation.")
        self._append_ids.add(append_id)

    def _check_fact(self, seq: int, fact: FactRow) -> None:
        self.facts += 1
        self._check_append_id(seq, fact.append_id)
        self._check_chain(seq, fact)
        event = self._event(seq, fact)
        self._last_fact = fact
        if fact.kind not in QUIET:
            self._moved_at = fact.at
        if isinstance(event, ConversationOpened) and seq == 1:
            self._opened = fact.at, event
        if isinstance(event, ContentErased):
            self._to_erase.update(event.seqs)
            self._mentions = {
                (named_at, name)
                for named_at, name in self._mentions
                if named_at not in self._to_erase
            }
        self._fold(seq, fact, event)
        row = self._derived.rows.get(seq)
        if row is not None and row.first < seq:
            self._explain(row.first)
        if fact.kind == MessageAssistant.kind:
            self._last_answer = seq
        elif fact.kind in {ToolFinished.kind, ToolLate.kind}:
            # An erased result does not name its message.
            of = getattr(event, "message", self._last_answer)
            self._explain(of)

    def _check_chain(self, seq: int, fact: FactRow) -> None:
        """Check the digest against the previous fact.

        After a wrong digest, the next fact may also follow the expected digest.
        """
        links = [_digest_after(link, self._id, seq, fact) for link in self._links]
        expected = links[0]
        if expected is None:
            self._events.say(
                seq,
                "It is neither whole nor erased: body, salt and hash do not go together.",
            )
            self._links = (fact.digest,)
            return
        if fact.digest in links:
            self._links = (fact.digest,)
            return
        self._events.say(
            seq,
            "Its digest does not follow from the event before it, its header and its body.",
        )
        self._links = (fact.digest, expected)

    def _event(self, seq: int, fact: FactRow) -> Event | Unknown:
        """Decode a fact, or return a substitute for an erased fact."""
        if fact.body is None:
            self._erased.add(seq)
            self._erased_inputs += fact.kind == "message.user"
            return stand_in(fact.kind, seq, fact.first, fact.waiting)
        # `_decode` reports a damaged body.
        with contextlib.suppress(msgspec.DecodeError, StoreDamaged):
            names = named_in(fact.kind, fact.body)
            self._mentions.update((seq, name) for name in names)
        return self._decode(seq, fact.kind, fact.body)

    def _decode(self, seq: int, kind: str, body: bytes) -> Event | Unknown:
        try:
            return decode(kind, body)
        except StoreDamaged as error:
            self._events.say(seq, str(error))
            self._foldable = False
            return Unknown(kind, body)

    def _fold(self, seq: int, fact: FactRow, event: Event | Unknown) -> None:
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
        """Accept the missing seqs after `first`: an answer, or the result of a call, replaced its partials there."""
        while self._holes and self._holes[-1][1] > first:
            start, _ = self._holes.pop()
            if start <= first:
                self._holes.append((start, first))

    # -- the head --------------------------------------------------------------------------------------------

    def _compare_head(
        self, head: HeadState, listed: dict[str, Any], stored: int
    ) -> _Findings:
        """Compare the head row and the list columns with the fold.

        The comparison is exact, because a single read returns both.
        """
        found = _Findings()
        if head.head != self._last:
            kept = f"the last event there is has seq {max(self._last, stored)}"
            found.say(
                None, f"The head row says that the head is {head.head}, and {kept}."
            )
        found += self._list_holes()
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
        # In earlier versions of Tenax every fact moved a conversation, also a quiet fact.
        first, last = sorted([self._moved_at, self._last_fact.at])
        if not first - _LISTED_WITHIN_US < head.listed_at < last + _LISTED_WITHIN_US:
            _same(found, "list", "updated_at", head.listed_at, self._moved_at)
        self._compare_origin(listed["origin"], opened, found)
        self._compare_cursors(found)
        return found

    def _compare_origin(
        self, kept: int | None, opened: ConversationOpened, found: _Findings
    ) -> None:
        """Check the number of the origin of a fork. An erasure in the origin reaches the fork by this number."""
        if opened.origin is None:
            _same(found, "list", "origin", kept, None, 1)
            return
        # The origin may be deleted between the two reads, so try again.
        for _ in range(2):
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

    # -- the index -------------------------------------------------------------------------------------------

    def _compare_index(self, head: HeadState) -> _Findings:
        """Compare the index rows with the fold. The rows may be newer than the head."""
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
        self._compare_segments(head, found)
        self._compare_runs(found)
        self._compare_mentions(found)
        self._compare_authors(found)
        self._compare_routes(found)
        self._compare_letters(found)
        return found

    def _compare_rows(self, found: _Findings) -> None:
        wanted = self._derived.rows
        rows = self._pages("prove_rows", self._low, self._high, _PAGE)
        kept = {row_key & ALL_SEQS: columns for row_key, *columns in rows}
        for seq in sorted(wanted.keys() | kept.keys()):
            if seq not in kept:
                found.say(seq, "This message has no index row.")
            elif seq not in wanted:
                found.say(seq, "There is an index row, and no message.")
            else:
                _same_fields(found, "index row", wanted[seq], kept[seq], seq)

    def _compare_segments(self, head: HeadState, found: _Findings) -> None:
        wanted = dict(self._derived.segments)
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
                    f"Segment {parent} has two children, {children[parent]} and {name}.",
                )
            if owner != self._user:
                found.say(opened_seq, f"Segment {name} belongs to another user.")
            want = wanted.pop(name, None)
            if want is None:
                found.say(
                    opened_seq,
                    f"Segment {name} is in the index, and no event opened it.",
                )
                continue
            where = f"index of segment {name}"
            _same_fields(found, where, want, columns, want.opened_seq)
        for name, want in wanted.items():
            found.say(want.opened_seq, f"Segment {name} is missing from the index.")
        if len(open_now) > 1:
            found.say(None, f"Two segments are open, {open_now[0]} and {open_now[1]}.")
        _same(
            found,
            "head row",
            "stretch",
            nums.get(head.stretch),
            self._derived.state.segment_name,
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
                where = f"index of run {run}"
                _same_fields(found, where, want, columns, want.started_seq)
            after = page[-1][0]
        for run, want in wanted.items():
            found.say(want.started_seq, f"Run {run} is missing from the index.")

    def _compare_mentions(self, found: _Findings) -> None:
        wanted = set(self._mentions)
        for row_key, blob, owner, size in self._query(
            "prove_mentions", low=self._low, high=self._high
        ):
            seq = row_key & ALL_SEQS
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
        """Compare the authors. After the erasure of an input, extra authors are no problem."""
        kept = {author for (author,) in self._query("prove_authors", num=self._num)}
        for author in sorted(self._derived.authors - kept):
            problem = "has written here, and does not count as an author"
            found.say(None, f"{author!r:.60} {problem}.")
        if self._erased_inputs:
            return
        for author in sorted(kept - self._derived.authors):
            problem = "counts as an author, and has written nothing"
            found.say(None, f"{author!r:.60} {problem}.")

    def _compare_routes(self, found: _Findings) -> None:
        rows = self._query("prove_routes", num=self._num)
        kept = {
            (account, chat, thread): columns for account, chat, thread, *columns in rows
        }
        wanted = self._derived.routes
        for name in sorted(wanted.keys() | kept.keys()):
            if list(wanted.get(name, ())) != list(kept.get(name, ())):
                where = " ".join(filter(None, name))
                problem = "is not the one that the events name"
                found.say(None, f"Its route to {where!r:.120} {problem}.")

    def _compare_letters(self, found: _Findings) -> None:
        """Check for dead letters beyond the cursor of their reader."""
        for reader, seq, at in self._query("prove_letters", num=self._num):
            if at is None or not 0 <= seq <= at:
                found.say(
                    seq,
                    f"The reader {reader} gave up on this, and stands at {at or 0}.",
                )


class _Copy:
    """Answers the reads of events for events that are not stored yet."""

    def __init__(self, events: Sequence[StoredEvent]) -> None:
        self._rows: dict[str, list[SqlRow]] = {
            "prove_facts": [
                FactRow(one.seq, one.kind, one.at, one.run, one.first, one.waiting,
                        one.append_id, one.salt, one.inner, one.digest, one.body)
                for one in events if not one.code
            ],
            "prove_partials": [
                (one.seq, one.code, one.append_id, one.body) for one in events if one.code
            ],
        }  # fmt: skip

    def query(self, name: str, /, **params: Any) -> list[SqlRow]:  # noqa: ANN401  (like `Store.query`)
        """Return the rows after `low`, up to `high`."""
        rows = self._rows[name]
        start = bisect_right(rows, params["low"], key=itemgetter(0))
        page = rows[start : start + params["limit"]]
        return [row for row in page if row[0] <= params["high"]]


def prove_copy(
    user: str, conversation: str, events: Sequence[StoredEvent], authors: Sequence[str]
) -> tuple[list[Finding], Derived]:
    """Check a whole conversation of another store before it is stored. Return the problems and the index.

    The seqs ascend, and partials have bodies.
    """
    proof = Proof(_Copy(events), 0, user, conversation, lambda _: None)
    return proof.run_copy(authors)


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


def _same_fields(
    found: _Findings,
    where: str,
    wanted: msgspec.Struct,
    kept: Sequence[object],
    seq: int | None,
) -> None:
    """Compare the stored columns with the fields of a derived row, in the same order."""
    for name, column in zip(wanted.__struct_fields__, kept, strict=True):
        _same(found, where, name, column, getattr(wanted, name), seq)


def _named(name: str) -> str:
    return f"Fact {name}" if name.startswith("f_") else f"Blob {name}"


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()[:16]
    return "none" if value is None else f"{value!r:.60}"


def prove_tail(tx: Tx, num: int, conversation: str, after: int) -> None:
    """Check the digests of the facts after a seq, up to the head. Raises `StoreDamaged`.

    Call the function before reading the facts. The time is proportional to the number of facts; earlier facts are not
    checked.
    """
    rows = tx.run("head", {"num": num})
    if not rows:
        # The conversation was deleted meanwhile.
        return
    low, _ = bounds(num)
    upto, digest = rows[0][1], rows[0][6]
    if prove_range(tx, num, conversation, after, upto) != (low + upto, digest):
        raise _not_as_written(conversation, upto)


def prove_range(
    tx: Tx, num: int, conversation: str, after: int, upto: int
) -> tuple[int, bytes]:
    """Check the digests of the facts between two seqs. Return the row key and the digest of the last fact.

    Raises `StoreDamaged`.
    """
    low, _ = bounds(num)
    before = tx.run("last_fact", {"low": low, "high": low + min(after, upto)})[0][0]
    at, previous = low, bytes(32)
    if before is not None:
        rows = tx.run("prove_facts", {"low": before - 1, "high": before, "limit": 1})
        if rows:
            at, previous = before, FactRow(*rows[0]).digest
    where = {"high": low + upto, "limit": _PAGE}
    while page := tx.run("prove_facts", {"low": at, **where}):
        for row in page:
            fact = FactRow(*row)
            seq = fact.row_key - low
            if fact.digest != _digest_after(previous, conversation, seq, fact):
                raise _not_as_written(conversation, seq)
            at, previous = fact.row_key, fact.digest
    return at, previous


def _digest_after(
    previous: bytes, conversation: str, seq: int, fact: FactRow
) -> bytes | None:
    """Return the digest of a fact after the digest of the previous fact, or `None` if the columns are contradictory."""
    if fact.body is not None and fact.salt is not None and fact.body_hash is None:
        inner = inner_hash(fact.salt, fact.body)
    elif fact.body is None and fact.salt is None and fact.body_hash is not None:
        inner = fact.body_hash
    else:
        return None
    return chain(previous, conversation, seq, fact.kind, fact.at, fact.run, inner)


def _not_as_written(conversation: str, seq: int) -> StoreDamaged:
    return StoreDamaged(
        f"Event {seq} of conversation {conversation} is not what was written.",
        hint="run: tenax doctor; then restore a copy of the store",
    )
