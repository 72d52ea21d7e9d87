"""The journal: an append-only sequence of events per conversation.

`append` is the only way to write events. A reader keeps a seq and asks for the events after the seq. A `Journal` is a
handle for one user and reaches no data of other users. `of(user)` returns a handle on the same store for another user.
`of(None)` returns the handle of the process itself. The handle of the process sees the pending work of all readers, but
no content.

The engines are below this module (`store.py`). `aio.py` has the same methods for asyncio.
"""

from __future__ import annotations

import hashlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import msgspec

from tenax.errors import (
    CursorMoved,
    Gone,
    InvalidInput,
    LeaseLost,
    NoSuchConversation,
    StoreDamaged,
    TooLarge,
)
from tenax.events import (
    ConversationOpened,
    Event,
    MemoryDue,
    decode,
)
from tenax.journal.arguments import checked
from tenax.journal.base import (
    Behind,
    Choice,
    DeadLetter,
    Dedup,
    Erased,
    Expect,
    Head,
    Hits,
    Instance,
    Lease,
    RawEvent,
    Reader,
    Recorded,
    RowSpan,
    RunState,
    Segment,
    Spent,
    State,
    StoredEvent,
    Summary,
    Unfinished,
    UsageRow,
)
from tenax.journal.erasing import delete, erase, prune
from tenax.journal.forking import fork
from tenax.journal.plan import Append, check_id, is_id
from tenax.journal.row_index import INDEX_VERSION, MESSAGE_ROLES, ROLES
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS, bounds
from tenax.journal.standing import Standing
from tenax.journal.store import DAY_US, NUMS_MAX, check_lease, lease_key, recorded
from tenax.journal.verify.conversation import prove_range, prove_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from tenax.journal.search.search import Search
    from tenax.journal.store import Store, Tx
    from tenax.journal.witness import Missing

__all__ = ["BLOB_BYTES_MAX", "TAIL_PAGE", "Journal", "TailPosition", "events_after"]

T = TypeVar("T")
BLOB_BYTES_MAX = 64 * 1024 * 1024
_KEPT_US = 86_400_000_000
_COLLECTED_MAX = 200
_CHUNK = 1024 * 1024
_LEASE_SECONDS_MAX = 7 * 86400
_LETTERS_MAX = 1000
_PAGE_MAX = 10_000
_STOP_SECONDS = 0.25
"""The interval between two checks of `stop` in an idle tail."""
TAIL_PAGE = 500
_TAIL_PROVED = 100
_RANGES_PROVED_MAX = 32


class _LeaseRow(NamedTuple):
    """A row of the statement `lease`."""

    holder: str | None
    term: int
    until: float
    seconds: float
    instance: str
    life: str
    token: bytes


class TailPosition:
    """The position of a reader: a seq and the incarnation of the store in which the seq is valid.

    A crash of the store can lose partials and give the lost seqs to new events. A reader with a position then continues
    after the last fact read and skips nothing. `Journal.position` returns a position.
    """

    def __init__(self, after: int, incarnation: str, facts: int | None = None) -> None:
        """Create a position. `facts` is the number of the last fact; greater numbers belong to partials."""
        self.after = after
        self.incarnation = incarnation
        self._fact = after if facts is None else min(after, facts)

    def holds(self, incarnation: str) -> bool:
        """Return whether the seq is still valid. If not, move back to the last fact read."""
        if incarnation == self.incarnation:
            return True
        self.after, self.incarnation = self._fact, incarnation
        return False

    def limit(self, facts: int) -> None:
        """Move back to the last fact of the conversation if facts were lost, as after a restored backup."""
        self.after = min(self.after, facts)
        self._fact = min(self._fact, facts)

    def take(self, recorded: Recorded) -> None:
        """Move behind the event."""
        self.after = recorded.seq
        if recorded.digest:
            self._fact = recorded.seq

    def passed(self, page: list[Recorded], incarnation: str) -> bool:
        """Move behind the page. Return `False` if the page comes from a new incarnation and must be read again."""
        if not self.holds(incarnation):
            return False
        for event in page:
            self.take(event)
        return True


@partial(
    checked,
    but=(
        "append",
        "segment",
        "children",
        "run",
        "get_blob",
        "holder",
        "number",
        "known_number",
    ),
)
class Journal:
    """A user's conversations in a store. Safe to use from any thread."""

    def __init__(self, store: Store, user: str | None, search: Search) -> None:
        self.store = store
        """The engine behind the handle."""
        self.words = search
        """The search index of the store."""
        self._last_behind: dict[str, int] = {}
        self._readers: set[Reader] = set()
        self.user = check_id("user", user) if user is not None else None
        self.clock = store.clock
        self.ids = store.ids

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def of(self, user: str | None) -> Journal:
        """Return a handle on the same store for the given user, or for the process (`None`)."""
        return Journal(self.store, user, self.words)

    def close(self) -> None:
        """Commit pending appends and close the store, for all users."""
        self.words.close()
        self.store.close()

    @property
    def incarnation(self) -> str:
        """The incarnation of the store. Seqs of two incarnations are not comparable."""
        return self.store.incarnation

    @property
    def missing(self) -> list[Missing]:
        """Events lost by the store: of the user, or of all users for the process's own handle.

        Every write raises `StoreIncomplete` until the loss is accepted.
        """
        return [loss for loss in self.store.missing if self.user in {None, loss.user}]

    # -- writing ---------------------------------------------------------------------------------------------

    def append(
        self,
        conversation: str,
        events: Sequence[Event],
        *,
        expect: Expect | None = None,
        lease: Lease | None = None,
        dedup: Dedup | None = None,
        append_id: bytes | None = None,
        run: str | None = None,
        release: bool = False,
    ) -> list[Recorded]:
        """Store all of the events or none of them. Return the stored events.

        When the call returns, facts survive `kill -9` and power loss. If the call raises `Refused`, nothing was stored.
        After `OutcomeUnknown`, append again with the `append_id` of the error. With `release`, the same transaction
        releases the lease and drops the partials replaced by facts. Use `release` for the last append of a run.
        """
        append = Append.of_events(
            self.owner,
            conversation,
            events,
            ids=self.ids,
            run=run,
            expect=expect,
            lease=lease,
            dedup=dedup,
            append_id=append_id,
        )
        append.release = release
        return self.store.queue.run(self.store.waiter(append))

    def load(
        self,
        conversation: str,
        opened: ConversationOpened,
        entries: Sequence[RawEvent],
        *,
        opened_at: int | None = None,
        is_owed: bool = False,
    ) -> list[Recorded]:
        """Store an imported conversation as a new one, opened at `opened_at` (microseconds since 1970, default: now).

        Readers with the start policy `now` do not receive the history, except with `is_owed`.
        """
        append = Append.of_entries(
            self.owner,
            conversation,
            opened,
            entries,
            ids=self.ids,
            opened_at=opened_at,
            is_owed=is_owed,
        )
        return self.store.queue.run(self.store.waiter(append))

    def extend(
        self, conversation: str, entries: Sequence[RawEvent], *, expect: Expect
    ) -> list[Recorded]:
        """Append imported events with their own times to an existing conversation."""
        append = Append.of_entries(
            self.owner, conversation, None, entries, ids=self.ids, expect=expect
        )
        return self.store.queue.run(self.store.waiter(append))

    def carry(
        self,
        conversation: str,
        stored: Sequence[StoredEvent],
        *,
        expect: Expect | None = None,
        authors: Sequence[str] = (),
        closing: Sequence[tuple[str | None, Event]] = (),
    ) -> list[Recorded]:
        """Store events of another store with their seqs, salts and digests, so that the digest chain is the same.

        The first event opens the conversation, or the events continue the conversation there. Raises `InvalidInput` for
        an event that does not fit its digest. Readers with the start policy `now` do not receive the history. `authors`
        are the authors of erased messages. `closing` are the runs and new events after those of the other store.
        """
        append = Append.of_stored(
            self.owner,
            conversation,
            stored,
            ids=self.ids,
            expect=expect,
            authors=authors,
            closing=closing,
        )
        return self.store.queue.run(self.store.waiter(append))

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self,
        conversation: str,
        *,
        after: int = 0,
        limit: int = 1000,
        upto: int = ALL_SEQS,
    ) -> list[Recorded]:
        """Return the events after a seq, facts and partials together in seq order."""
        _whole("after", after)
        _page(limit)
        self._proved(conversation)
        rows = self._between(
            conversation, "read_own", after=after, upto=upto, limit=limit
        )
        return self._as_written(conversation, rows, after)

    def head(self, conversation: str) -> Head:
        """Return the head of a conversation from the index, without reading events."""
        key = (self.owner, check_id("conversation", conversation))
        rows = self.store.query("head_own", owner=key[0], id=key[1])
        if not rows:
            self.store.unknow(key)
            raise self._missing(conversation)
        num, *columns = rows[0]
        self.store.know(key, num)
        return Head(conversation, *columns)

    def rows(
        self, conversation: str, *, before: int | None = None, limit: int = 50
    ) -> list[RowSpan]:
        """Return the positions of the last rows of the transcript, or of the last rows before a seq, oldest first."""
        _page(limit)
        upto = ALL_SEQS if before is None else _whole("before", before)
        found = self._between(conversation, "last_rows", upto=upto, limit=limit)
        return [
            RowSpan(first, row_key & ALL_SEQS, ROLES[role])
            for row_key, first, role in reversed(found)
        ]

    def open(
        self, conversation: str, *, before: int | None = None, limit: int = 50
    ) -> list[Recorded]:
        """Return the events of the last rows of the transcript, including the events between and after the rows."""
        rows = self.rows(conversation, before=before, limit=limit)
        after = rows[0].first - 1 if rows else self.head(conversation).context_from - 1
        upto = ALL_SEQS if before is None else before - 1
        if before is None:
            self._proved(conversation, after)
        return list(events_after(self, conversation, after, upto))

    def messages(
        self, conversation: str, *, after: int = 0, upto: int = ALL_SEQS
    ) -> list[Recorded]:
        """Return the messages between two seqs, without undone and cleared messages."""
        # The list reads the first few messages of a conversation. The digests at the end are checked only when a
        # conversation is opened.
        if upto == ALL_SEQS:
            self._proved(conversation)
        rows = self._between(
            conversation, "messages", after=after, upto=upto, roles=MESSAGE_ROLES
        )
        first = rows[0][0] & ALL_SEQS if rows else 1
        return self._as_written(conversation, rows, first - 1)

    def fact(self, conversation: str, seq: int) -> Recorded | None:
        """Return the fact with the given seq, or `None`."""
        low, _ = bounds(self.known_number(conversation))
        rows = self._query(conversation, "fact", place=low + _whole("seq", seq))
        return next(iter(self._as_written(conversation, rows)), None)

    def waiting(self, conversation: str) -> list[Recorded]:
        """Return the inputs waiting for a run, oldest first."""
        rows = self._between(conversation, "waiting_facts")
        return self._as_written(conversation, rows)

    def row_changes(
        self, conversation: str, *, after: int = 0, upto: int = ALL_SEQS
    ) -> list[Recorded]:
        """Return the events of a range that can change earlier rows.

        Such events are edits, late output, restored files and undone memories.
        """
        rows = self._between(conversation, "row_changes", after=after, upto=upto)
        return self._as_written(conversation, rows)

    def next_run(self, conversation: str, *, after: int) -> Recorded | None:
        """Return the start of the first run after a seq."""
        rows = self._between(conversation, "next_run", after=after)
        return next(iter(self._as_written(conversation, rows)), None)

    def conversations(
        self,
        *,
        archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        """Return a page of the list, pinned first, then newest first. `after` is the `place` of the last summary."""
        _page(limit)
        pinned, updated_at, num = after or (2, 1 << 62, 1 << 62)
        where = {"owner": self.owner, "archived": int(archived), "limit": limit}
        return self._summaries(
            "list", {**where, "pinned": pinned, "updated_at": updated_at, "num": num}
        )

    def summary(self, conversation: str) -> Summary:
        """Return the list entry of a conversation."""
        found = self._summaries("summary", {"num": self.number(conversation)})
        if not found:
            raise self._missing(conversation)
        return found[0]

    def choice(self, conversation: str) -> Choice:
        """Return the source, model, mode and project of a conversation, with less work than `summary`."""
        name = check_id("conversation", conversation)
        rows = self.store.query("choice", owner=self.owner, id=name)
        if not rows:
            raise self._missing(conversation)
        return Choice(*rows[0])

    def _summaries(self, name: str, where: dict[str, Any]) -> list[Summary]:
        def read_summaries(tx: Tx) -> list[Summary]:
            rows = tx.run(name, where)
            names = self.store.segment_names(tx, {row[1] for row in rows})
            return [_summary(row, names.get(row[1])) for row in rows]

        return self.store.read(read_summaries)

    def segment(self, name: str) -> Segment | None:
        """Return the segment with the given name. An invalid name finds nothing."""
        if not is_id(name):
            return None
        rows = self.store.query("stretch", owner=self.owner, name=name)
        return Segment(*rows[0]) if rows else None

    def children(self, segment: str) -> list[str]:
        """Return the names of the child segments of a segment, oldest first."""
        if not is_id(segment):
            return []
        rows = self.store.query("children", owner=self.owner, name=segment)
        return [name for (name,) in rows]

    def delegated(self, conversation: str) -> list[str]:
        """Return the conversations of the sub-agents, oldest first. The list does not show them."""
        rows = self.store.query("delegated", num=self.number(conversation))
        return [child for (child,) in rows]

    def run(self, conversation: str, run: str) -> RunState | None:
        """Return the run with the given id, or `None`."""
        num = self.number(conversation)
        rows = self.store.query("run", num=num, run=run) if is_id(run) else []
        return RunState(*rows[0]) if rows else None

    def has_late_output(self, conversation: str, first: int, last: int) -> bool:
        """Return whether a run that ended between the two seqs has late output."""
        return bool(
            self.store.query(
                "late_runs", num=self.number(conversation), first=first, last=last
            )
        )

    def use_attempt(self, conversation: str, run: str, *, was: int) -> bool:
        """Count an attempt to find the output of a run. Return `False` if another process counted first."""
        where = {"num": self.number(conversation), "run": run, "was": was}
        return bool(self.store.change(lambda tx: tx.run("use_attempt", where)))

    def spent(self, conversation: str | None = None) -> Spent:
        """Return the model usage of a conversation and its sub-agents, or of all the user's conversations today.

        A day starts at midnight UTC.
        """
        if conversation is not None:
            rows = self.store.query("spent_in", num=self.number(conversation))
        else:
            today = self.clock.now_us() // DAY_US
            rows = self.store.query("spent_since", owner=self.owner, day=today)
        input_tokens, output_tokens, micro_dollars, unpriced = map(int, rows[0])
        return Spent(input_tokens, output_tokens, micro_dollars / 1e6, unpriced)

    def usage(self, since_day: int, until_day: int) -> list[UsageRow]:
        """Return the user's model usage between two days (both included), by day, model and conversation.

        Days are counted from 1970 and start at midnight UTC.
        """
        rows = self.store.query(
            "usage",
            owner=self.owner,
            since=_whole("since_day", since_day),
            until=_whole("until_day", until_day),
        )
        return [
            UsageRow(day, model, name, tokens_in, tokens_out, cost / 1e6, unpriced)
            for day, model, name, tokens_in, tokens_out, cost, unpriced in rows
        ]

    def interrupted(self, since: int, limit: int = 1000) -> list[Unfinished]:
        """Return conversations with an interrupted last run that changed since a time in microseconds."""
        _page(limit)
        where = {"since": since, "owner": self.user, "limit": limit}
        name = "interrupted" if self.user is not None else "interrupted_of_all"
        return [Unfinished(*row) for row in self.store.query(name, **where)]

    def unfinished(self, limit: int = 1000) -> list[Unfinished]:
        """Return conversations with an open run, then conversations with inputs waiting for a run."""
        _page(limit)
        return [
            Unfinished(*row)
            for name in ("open_runs", "asking")
            for row in self.store.query(name, owner=self.user, limit=limit)
        ]

    def search(
        self,
        words: str,
        *,
        conversation: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 20,
    ) -> Hits:
        """Return messages with the given words, newest first. `before` is the end of the previous page.

        A message can be found as soon as it is stored. Compacted, cleared, undone and archived messages are found too.
        `search/query.py` describes the syntax of `words`.
        """
        _page(limit)
        num = None if conversation is None else self.number(conversation)
        return self.words.find(self.owner, words, num=num, before=before, limit=limit)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, conversation: str, after: int, *, seconds: float) -> bool:
        """Wait for an event after a seq. Return `False` if no event arrives within `seconds`."""
        num = self.number(conversation)
        deadline = self.clock.monotonic() + seconds
        hint = threading.Event()
        with self.store.wakeups.listening(num, hint.set):
            while True:
                hint.clear()
                if self.head(conversation).head > after:
                    return True
                remaining = deadline - self.clock.monotonic()
                if remaining <= 0:
                    return False
                hint.wait(min(remaining, self.store.wakeups.look_seconds))

    def position(self, conversation: str, after: int | None = None) -> TailPosition:
        """Return the position after a seq, or at the end. A reader with a position survives a crash of the store."""
        while True:
            incarnation = self.incarnation
            head = self.head(conversation)
            # The incarnation can change while the head is read.
            if incarnation == self.incarnation:
                return TailPosition(
                    head.head if after is None else after, incarnation, head.facts
                )

    def tail(
        self,
        conversation: str,
        after: int | TailPosition = 0,
        *,
        stop: threading.Event | None = None,
    ) -> Iterator[Recorded]:
        """Yield every event after a seq: the stored events, then new events as they arrive, until `stop` is set.

        In a new incarnation of the store the tail continues after the last fact, because a crash of the store can lose
        partials and reuse the lost seqs. A `TailPosition` moves with every event: a caller can start a failed tail again
        with the same `TailPosition` and skips nothing.
        """
        position = (
            after
            if isinstance(after, TailPosition)
            else self.position(conversation, after)
        )
        hint = threading.Event()
        with self.store.wakeups.listening(self.number(conversation), hint.set):
            while stop is None or not stop.is_set():
                hint.clear()
                page = self.read(conversation, after=position.after, limit=TAIL_PAGE)
                if not position.holds(self.incarnation):
                    position.limit(self.head(conversation).facts)
                    continue
                for recorded in page:
                    yield recorded
                    position.take(recorded)
                if len(page) < TAIL_PAGE:
                    self._wait_for_hint(hint, stop)

    def _wait_for_hint(
        self, hint: threading.Event, stop: threading.Event | None
    ) -> None:
        """Wait until there may be something to read, or until `stop` is set. An idle tail reads nothing."""
        began = self.clock.monotonic()
        while not hint.wait(_STOP_SECONDS) and not (stop is not None and stop.is_set()):
            waited = self.clock.monotonic() - began
            if waited >= self.store.wakeups.look_seconds:
                return

    # -- leases ----------------------------------------------------------------------------------------------

    def claim(
        self,
        name: str,
        holder: str,
        seconds: float,
        *,
        take_over: bool = False,
        patient: bool = True,
    ) -> Lease | None:
        """Return a lease, or `None` while another holder has the lease.

        A lease is free in three cases: the holder released the lease; the instance of the holder is dead; the lease has
        expired, and the calling process has been connected for the whole length of the lease. The connection time
        protects a live holder after the machine slept or restarted. `patient=False` drops the condition on the
        connection time. `take_over` takes the lease in every case.
        """
        check_id("lease", name)
        check_id("holder", holder)
        _length(seconds)
        user, instance, token = self.owner, self.store.live(), self.ids.append()

        def take_lease(tx: Tx) -> Lease | None:
            now = self.store.now(tx)
            term = 0
            for columns in tx.run("lease", {"owner": user, "name": name}):
                row = _LeaseRow(*columns)
                term = row.term
                # An earlier attempt of this call was committed.
                if row.token == token:
                    return Lease(name, holder, term, seconds, token)
                if not take_over and not self._is_free(tx, row, now, patient=patient):
                    return None
            taken = {
                "fence": term + 1,
                "until": now + seconds,
                "seconds": seconds,
                "token": token,
            }
            where = {"owner": user, "name": name, "holder": holder}
            tx.run(
                "put_lease",
                {**where, **taken, "instance": instance, "life": self.store.life},
            )
            return Lease(name, holder, term + 1, seconds, token)

        return self._lease(take_lease)

    def _is_free(self, tx: Tx, row: _LeaseRow, now: float, *, patient: bool) -> bool:
        if row.holder is None or row.life != self.store.life:
            return True
        if not self.store.alive(tx, row.instance):
            return True
        if now <= row.until:
            return False
        return not patient or now - self.store.connected_since >= row.seconds

    def renew(self, lease: Lease, *, seconds: float | None = None) -> Lease:
        """Extend the lease by its length, counted from now. Raises `LeaseLost`."""
        length = _length(lease.seconds if seconds is None else seconds)
        where = lease_key(self.owner, lease)

        def renew_lease(tx: Tx) -> list[Any]:
            until = self.store.now(tx) + length
            return tx.run("renew_lease", {**where, "until": until, "seconds": length})

        if not self._lease(renew_lease):
            raise LeaseLost(f"{lease.name} is no longer held by {lease.holder}.")
        return Lease(lease.name, lease.holder, lease.term, length, lease.token)

    def release(self, lease: Lease) -> bool:
        """Release the lease. The store keeps the term, so that no later lease repeats it."""
        where = lease_key(self.owner, lease)
        return bool(self._lease(lambda tx: tx.run("release_lease", where)))

    def _lease(self, work: Callable[[Tx], T]) -> T:
        return self.store.change(work, durable=not self.store.one_host)

    def release_held(self, name: str, holder: str) -> bool:
        """Release the lease of the holder, whichever process claimed it."""
        where = {"owner": self.owner, "name": name, "holder": holder}
        return bool(self.store.change(lambda tx: tx.run("release_held", where)))

    def holder(self, name: str) -> str | None:
        """Return the present holder, or `None` if the lease was released, has expired, or the instance is dead."""

        def find_holder(tx: Tx) -> str | None:
            for columns in tx.run("lease", {"owner": self.owner, "name": name}):
                row = _LeaseRow(*columns)
                if not self._is_free(tx, row, self.store.now(tx), patient=False):
                    return row.holder
            return None

        return self.store.read(find_holder) if is_id(name) else None

    # -- instances -------------------------------------------------------------------------------------------

    @property
    def instance(self) -> str:
        """The id of the process in the store. The process counts as alive while it holds its lock."""
        return self.store.live()

    def instances(self) -> list[Instance]:
        """Return every process that has used the store, with its state: alive or dead."""

        def read_instances(tx: Tx) -> list[Instance]:
            rows = tx.run("instances")
            instances = [Instance(*row) for row in rows]
            return [
                msgspec.structs.replace(instance, alive=True)
                if instance.ended_at is None and self.store.alive(tx, instance.id)
                else instance
                for instance in instances
            ]

        return self.store.read(read_instances)

    def swept(self, instance: str) -> bool:
        """Record that all output of a dead instance is stored. Return `True` the first time.

        Records of instances are dropped after a week.
        """
        now = self.clock.now_us()

        def end_instance(tx: Tx) -> bool:
            tx.run("drop_instances", {"before": now - 7 * DAY_US})
            return bool(tx.run("sweep_instance", {"id": instance, "at": now}))

        return self.store.change(end_instance)

    # -- durable readers -------------------------------------------------------------------------------------

    def cursor(self, reader: Reader, conversation: str) -> int:
        """Return the seq up to which the reader has read."""
        self._register(reader)
        rows = self.store.query(
            "cursor", num=self.number(conversation), reader=reader.name
        )
        if not rows:
            raise self._missing(conversation)
        return int(rows[0][0])

    def advance(
        self, reader: Reader, conversation: str, to: int, *, was: int, lease: Lease
    ) -> None:
        """Move the cursor from `was` to `to`. Raises CursorMoved or LeaseLost if the caller is out of date."""
        self._advance(reader, conversation, to, was, lease)

    def bury(
        self,
        reader: Reader,
        conversation: str,
        seq: int,
        *,
        was: int,
        error: str,
        lease: Lease,
    ) -> None:
        """Give up on the work up to `seq`: store a dead letter with the error and move the cursor to `seq`."""
        self._advance(reader, conversation, seq, was, lease, error)

    def _advance(
        self,
        reader: Reader,
        conversation: str,
        to: int,
        was: int,
        lease: Lease,
        error: str | None = None,
    ) -> None:
        self._register(reader)
        where = {"num": self.number(conversation), "reader": reader.name}
        if _whole("to", to) < _whole("was", was):
            raise InvalidInput(f"A cursor cannot move back from {was} to {to}.")

        def move_cursor(tx: Tx) -> bool:
            check_lease(tx, self.owner, lease)
            for head, *_ in tx.run("head", where):
                if to > head:
                    raise InvalidInput(
                        f"Cannot move {reader.name} to {to}: {conversation} ends at {head}."
                    )
            if not tx.run("advance", {**where, "to": to, "was": was}):
                rows = tx.run("cursor", where)
                if not rows:
                    return False
                [(seq,)] = rows
                # If the cursor is at `to`, an earlier attempt of this call was committed.
                if seq != to:
                    raise CursorMoved(
                        f"{reader.name} is at {seq} in {conversation}, not at {was}."
                    )
            if error is not None:
                tx.run(
                    "put_letter",
                    {
                        **where,
                        "seq": to,
                        "error": error[:500],
                        "at": self.clock.now_us(),
                    },
                )
            return True

        if not self.store.change(move_cursor):
            raise self._missing(conversation)

    def letters(self, reader_name: str) -> list[DeadLetter]:
        """Return the dead letters of the reader, oldest first, at most 1,000."""
        rows = self.store.query(
            "letters", reader=reader_name, owner=self.user, limit=_LETTERS_MAX
        )
        return [DeadLetter(*row) for row in rows]

    def unbury(
        self, reader: Reader, conversation: str, seq: int, *, lease: Lease
    ) -> bool:
        """Remove a dead letter. Return `False` if no dead letter exists."""
        where = {
            "num": self.number(conversation),
            "reader": reader.name,
            "seq": _whole("seq", seq),
        }
        # A retried transaction finds nothing if the first attempt was committed, so the attempts share this list.
        dropped: list[tuple[Any, ...]] = []

        def drop_letter(tx: Tx) -> None:
            check_lease(tx, self.owner, lease)
            dropped.extend(tx.run("drop_letter", where))

        self.store.change(drop_letter)
        return bool(dropped)

    # -- memory ----------------------------------------------------------------------------------------------

    def owed(self, conversation: str) -> int:
        """Return the seq up to which memory providers have not been told about the end of the conversation, or 0.

        The seq is the end of the last completed turn after the turns covered by the last `memory.due`. A cleared turn
        counts, an undone turn does not.
        """
        num = self.number(conversation)
        low, high = bounds(num)
        due = self.head(conversation).due
        found = self.fact(conversation, due) if due else None
        last = found.event if found else None
        after = last.upto if isinstance(last, MemoryDue) else 0
        standing = Standing()
        for row_key, kind, body in self.store.query(
            "undone_since", low=low + after, high=high
        ):
            standing.apply(row_key & ALL_SEQS, decode(kind, body))
        completed = self.store.query("completed_since", num=num, after=after)
        owed = [seq for (seq,) in completed if not standing.is_undone(seq)]
        return max(owed, default=0)

    def shared(self, conversation: str) -> bool:
        """Return whether somebody other than the user has written in the conversation."""
        num = self.known_number(conversation)
        where = {"owner": self.owner, "id": conversation, "version": INDEX_VERSION}
        rows = self.store.query("shared_own", num=num, **where)
        if not rows or rows[0][0]:
            # The cached number is out of date, or an older version of Tenax wrote the index.
            num = self.number(conversation)
            self.store.index((self.owner, conversation), num)
            rows = self.store.query("shared_own", num=num, **where)
        for stale, has_other_authors in rows:
            return bool(stale or has_other_authors)
        raise self._missing(conversation)

    def defer(
        self,
        reader: Reader,
        conversation: str,
        *,
        seconds: float,
        error: str,
        lease: Lease,
    ) -> int:
        """Postpone the reader's work in the conversation after an error. Return the number of failures in a row."""
        self._register(reader)
        where = {
            "num": self.number(conversation),
            "reader": reader.name,
            "error": error[:500],
        }

        def defer_reader(tx: Tx) -> int:
            check_lease(tx, self.owner, lease)
            rows = tx.run(
                "defer", {**where, "retry_at": self.clock.now_us() + int(seconds * 1e6)}
            )
            return int(rows[0][0]) if rows else 0

        return self.store.change(defer_reader)

    def behind(self, reader: Reader, limit: int = 100) -> list[Behind]:
        """Return conversations with work for the reader, without postponed conversations.

        Every call continues where the previous call stopped, so a failing conversation never hides the others.
        """
        _page(limit)
        self._register(reader)
        where = {
            "reader": reader.name,
            "now": self.clock.now_us(),
            "owner": self.user,
            "limit": limit,
        }
        past = self._last_behind.get(reader.name, 0)
        rows = self.store.query("behind", **where, past=past)
        if past and len(rows) < limit:
            where["limit"] = limit - len(rows)
            wrapped = self.store.query("behind", **where, past=0)
            rows += [(*columns, num) for *columns, num in wrapped if num <= past]
        self._last_behind[reader.name] = 0
        found: list[Behind] = []
        for *columns, num in rows:
            found.append(Behind(*columns))
            if len(found) == limit:
                self._last_behind[reader.name] = num
        return found

    def _register(self, reader: Reader) -> None:
        """Register a reader on first use: place a cursor in every conversation, according to the start policy."""
        if reader in self._readers:
            return
        check_id("reader", reader.name)
        known = self.store.query("reader", name=reader.name)
        if not known:
            row = {
                "name": reader.name,
                "follows": reader.follows,
                "start": reader.start,
            }

            def register_reader(tx: Tx) -> None:
                # Another process may have registered the reader before this process got the lock.
                self.store.lock_all(tx)
                if not tx.run("reader", {"name": reader.name}):
                    tx.run("put_reader", row)
                    tx.run("place_reader", row)

            self.store.change(register_reader)
            known = self.store.query("reader", name=reader.name)
        [(follows, start)] = known
        if (follows, start) != (reader.follows, reader.start):
            raise InvalidInput(
                f"The reader {reader.name} is registered to follow {follows} from {start}; this cannot change."
            )
        self._readers.add(reader)

    # -- blobs -----------------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> str:
        """Store bytes and return the hash. Store a blob before appending the event with the blob's hash."""
        if len(data) > BLOB_BYTES_MAX:
            raise TooLarge(
                f"A blob of {len(data):,} bytes is larger than the limit of {BLOB_BYTES_MAX:,} bytes."
            )
        name = hashlib.sha256(data).hexdigest()
        where = {"owner": self.owner, "hash": name}
        chunks = [
            (start // _CHUNK, data[start : start + _CHUNK])
            for start in range(0, len(data), _CHUNK)
        ]

        def store_blob(tx: Tx) -> None:
            now = self.clock.now_us()
            if tx.run("put_blob", {**where, "size": len(data), "at": now}):
                for n, chunk in chunks:
                    tx.run("put_chunk", {**where, "n": n, "bytes": chunk})
            else:
                # Keep an old blob until the caller has appended the event with the hash of the blob.
                tx.run("keep_blob", {**where, "at": now, "before": now - _KEPT_US // 2})

        self.store.change(store_blob)
        return name

    def get_blob(self, name: str) -> bytes | None:
        """Return the bytes with the given hash, or `None` if the user has not stored them."""
        where = {"owner": self.owner, "hash": name}

        def read_blob(tx: Tx) -> bytes | None:
            if not tx.run("blob", where):
                return None
            return b"".join(bytes(chunk) for (chunk,) in tx.run("blob_bytes", where))

        return self.store.read(read_blob) if is_id(name) else None

    def naming(self, conversation: str, blob: str) -> list[int]:
        """Return the seqs of the events naming a blob in a conversation."""
        low, high = bounds(self.number(conversation))
        rows = self.store.query(
            "named_here", owner=self.owner, hash=blob, low=low, high=high
        )
        return [row_key & ALL_SEQS for (row_key,) in rows]

    def collect_blobs(self) -> int:
        """Drop blobs of all users that are older than a day and named by no event. Return the number of dropped blobs.

        A call drops at most 200 blobs.
        """
        before = self.clock.now_us() - _KEPT_US
        unnamed = self.store.query("unnamed_blobs", before=before, limit=_COLLECTED_MAX)

        def drop_blobs(tx: Tx) -> int:
            dropped = 0
            for owner, name in unnamed:
                where = {"owner": owner, "hash": name}
                if tx.run("collect_blob", {**where, "before": before}):
                    tx.run("drop_chunks", where)
                    dropped += 1
            return dropped

        return self.store.change(drop_blobs) if unnamed else 0

    # -- fork, erase, delete, prune --------------------------------------------------------------------------

    def fork(
        self, conversation: str, *, upto: int | None = None, segment: str | None = None
    ) -> str:
        """Copy the standing events up to a seq into a new conversation. Return the new id.

        Leases, approvals, receipts and open runs are not copied.
        """
        head = self.head(conversation)
        end = head.head if upto is None else min(_whole("upto", upto), head.head)
        # A fork gets its own digest chain, and the new chain would vouch for damaged events. So check the originals
        # first.
        self._prove(conversation, 0, end)
        return fork(self, head, end, segment)

    def erase(
        self, conversation: str, seqs: Sequence[int], *, by: str, why: str = ""
    ) -> Erased:
        """Erase the text of the events and all text derived from it. The digest chain stays valid.

        The erasure reaches summaries that cover the events, titles made from them, the questions, answers and rules
        about a tool call, memories, forks, blobs, partials and the search index. The erasure does not reach backups,
        exports, or text that a model or a person has already read.
        """
        wanted = {_whole("seq", seq) for seq in seqs}
        return erase(self, conversation, wanted, by=by, why=why)

    def delete(self, conversation: str) -> None:
        """Remove a conversation and the memories from it.

        A tombstone stays: a later write to the conversation raises `Gone`.
        """
        delete(self, conversation)

    def prune(self, conversation: str) -> int:
        """Drop the partials replaced by a later fact. Return the number of dropped partials."""
        return prune(self, conversation)

    # -- helpers ---------------------------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """The user whose conversations the handle reaches. Raises `InvalidInput` for the process's own handle."""
        if self.user is None:
            raise InvalidInput(
                "This handle belongs to no user.", hint="use journal.of(user)"
            )
        return self.user

    def number(self, conversation: str) -> int:
        """Return the number of a conversation in the store. Raises `NoSuchConversation` or `Gone`."""
        num = self.store.num(self.owner, check_id("conversation", conversation))
        if not num:
            raise self._missing(conversation)
        return num

    def known_number(self, conversation: str) -> int:
        """Return the cached number of a conversation, or look it up. The lookup raises `NoSuchConversation` or `Gone`.

        Only for a reader that listens to wake-ups, and for `_query`, because `_query` checks the owner again.
        """
        num = self.store.num_before(self.owner, check_id("conversation", conversation))
        if not num:
            raise self._missing(conversation)
        return num

    def _proved(self, conversation: str, after: int | None = None) -> int:
        """Return the conversation's number after checking the digests of its events after a seq. Raises `StoreDamaged`.

        A process checks the events that it reads once. Without a seq, check as many of the last events as a page shows.
        """
        num = self.known_number(conversation)
        ranges = self.store.proved.get(num, [])
        known = ranges[-1][0] if ranges and ranges[-1][1] == ALL_SEQS else None
        if known is not None and (after is None or known <= after):
            return num
        if after is None:
            after = max(0, self.head(conversation).facts - _TAIL_PROVED)
        self.store.read(
            partial(
                _prove_twice,
                partial(prove_tail, num=num, conversation=conversation, after=after),
            )
        )
        self._remember_proof(num, after, ALL_SEQS)
        return num

    def _as_written(
        self, conversation: str, rows: list[tuple[Any, ...]], after: int | None = None
    ) -> list[Recorded]:
        """Return rows of `read` as events, after checking the digests. Raises `StoreDamaged`.

        With `after`, check every fact from `after` to the last row. Without `after`, check every row separately.
        """
        seqs = [row[0] & ALL_SEQS for row in rows]
        if after is not None and seqs:
            self._prove(conversation, after, seqs[-1])
        elif after is None:
            for seq in seqs:
                self._prove(conversation, seq - 1, seq)
        return [recorded(conversation, row) for row in rows]

    def _prove(self, conversation: str, after: int, upto: int) -> None:
        """Check the digests of the facts between two seqs, except facts already checked. Raises `StoreDamaged`."""
        num = self.known_number(conversation)
        start, end = after, upto
        for first, last in self.store.proved.get(num, ()):
            if first <= start < last:
                start = last
            if first < end <= last:
                end = first
        if start < end:
            part = partial(
                prove_range, num=num, conversation=conversation, after=start, upto=end
            )
            self.store.read(partial(_prove_twice, part))
            self._remember_proof(num, after, upto)

    def _remember_proof(self, num: int, after: int, upto: int) -> None:
        proved = self.store.proved
        disjoint: list[tuple[int, int]] = []
        for first, last in proved.get(num, ()):
            if last < after or upto < first:
                disjoint.append((first, last))
            else:
                after, upto = min(first, after), max(last, upto)
        if len(proved) >= NUMS_MAX:
            proved.clear()
        proved[num] = sorted([*disjoint[-_RANGES_PROVED_MAX:], (after, upto)])

    def _between(
        self,
        conversation: str,
        name: str,
        /,
        *,
        after: int = 0,
        upto: int = ALL_SEQS,
        **params: int,
    ) -> list[tuple[Any, ...]]:
        """Run a statement on the events after a seq, up to a seq."""
        low, _ = bounds(self.known_number(conversation))
        where = {
            "low": low + _whole("after", after),
            "high": low + _whole("upto", upto),
        }
        return self._query(conversation, name, **where, **params)

    def _query(
        self, conversation: str, name: str, /, **params: int
    ) -> list[tuple[Any, ...]]:
        """Read from a conversation by the cached number.

        If nothing is found, the conversation may have been deleted, or another conversation may have the number now:
        look the number up again.
        """
        num = params["low" if "low" in params else "place"] >> SEQ_BITS
        rows = self.store.query(
            name, **params, num=num, owner=self.owner, id=conversation
        )
        if not rows:
            self.head(conversation)
        return rows

    def _missing(self, conversation: str) -> Gone | NoSuchConversation:
        if self.store.query("tombstone", owner=self.owner, id=conversation):
            return Gone(f"Conversation {conversation} was deleted.")
        return NoSuchConversation(
            f"There is no conversation {conversation}.", hint="run: tenax list"
        )


def events_after(
    journal: Journal, conversation: str, after: int, upto: int = ALL_SEQS
) -> Iterator[Recorded]:
    """Yield the events after a seq, up to a seq. Read page by page."""
    while after < upto:
        page = journal.read(conversation, after=after, upto=upto, limit=_PAGE_MAX)
        yield from page
        if len(page) < _PAGE_MAX:
            return
        after = page[-1].seq


def _prove_twice(prove: Callable[[Tx], object], tx: Tx) -> None:
    """Check events, and check again after a failure: an erasure may have happened between two reads."""
    try:
        prove(tx)
    except (StoreDamaged, TypeError, ValueError):
        try:
            prove(tx)
        except (TypeError, ValueError) as error:
            # A damaged column may have the wrong type.
            raise StoreDamaged(
                f"The store cannot be read: {error}.", hint="run: tenax doctor"
            ) from error


def _whole(what: str, value: object) -> int:
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 <= value <= ALL_SEQS
    ):
        raise InvalidInput(f"`{what}` must be a whole number from 0, not {value!r}.")
    return value


def _length(seconds: float) -> float:
    if not 0 < seconds <= _LEASE_SECONDS_MAX:
        raise InvalidInput("A lease must last more than 0 seconds and at most a week.")
    return seconds


def _page(limit: object) -> None:
    if not isinstance(limit, int) or not 1 <= limit <= _PAGE_MAX:
        raise InvalidInput(f"`limit` must be 1 to {_PAGE_MAX:,}, not {limit!r}.")


def _summary(row: tuple[Any, ...], segment: str | None) -> Summary:
    (
        conversation,
        _,
        title,
        source,
        messages,
        opened_at,
        updated_at,
        pinned,
        archived,
        run,
        num,
        parent,
        revision,
        asks,
        failed,
        answered,
        model,
        mode,
        project,
        read,
        reads_since,
    ) = row
    # A conversation without a read mark counts as read until the user starts to read with marks.
    new = reads_since is not None and updated_at > reads_since
    state: State = "failed" if failed else ""
    if run is not None:
        state = "asks" if asks else "running"
    return Summary(
        conversation=conversation,
        segment=segment,
        title=title,
        source=source,
        messages=messages,
        opened_at=opened_at,
        updated_at=updated_at,
        pinned=bool(pinned),
        archived=bool(archived),
        running=run is not None,
        place=(pinned, updated_at, num),
        parent=parent,
        revision=revision,
        state=state,
        model=model,
        mode=mode,
        project=project,
        read=read or 0,
        unread=answered > read if read else bool(answered and new),
    )
