"""The journal: one append-only record of events per conversation, and everything that reads it by number.

Writing has one verb, `append`. Everything else is a reader that holds a number. A `Journal` is a handle for one user:
nothing of another user's is reachable through it. `of(user)` is the handle of another user on the same store, and
`of(None)` that of the process itself, which sees what every user's readers owe and the contents of nobody.

The engines differ below this (`store.py`); `aio.py` has the same verbs for asyncio.
"""

from __future__ import annotations

import hashlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from tenax.errors import (
    CursorMoved,
    Gone,
    InvalidInput,
    LeaseLost,
    NoSuchConversation,
    RunConflict,
    StoreDamaged,
    TooLarge,
)
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ContentErased,
    ContextCompacted,
    ContextSummarised,
    ConversationOpened,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    Copied,
    Event,
    FilesChanged,
    MemoryDue,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    ModelRequested,
    Origin,
    ToolFinished,
    ToolLate,
    Unknown,
    decode,
    encode,
)
from tenax.journal.arguments import checked
from tenax.journal.base import (
    Behind,
    Dedup,
    Entry,
    Erased,
    Expect,
    Head,
    Hits,
    Instance,
    Lease,
    Letter,
    Reader,
    Recorded,
    Row,
    RunState,
    Spent,
    Stretch,
    Summary,
    Unfinished,
)
from tenax.journal.learned import told_in
from tenax.journal.place import ALL_SEQS, SEQ_BITS, bounds
from tenax.journal.plan import Append, check_id, is_id
from tenax.journal.row_index import INDEX_VERSION, MESSAGE_ROLES, ROLES, STRUCTURE
from tenax.journal.store import (
    DAY_US,
    NUMS_MAX,
    drop_mentions,
    forget_learned,
    recorded,
)
from tenax.journal.verify.conversation import prove_range, prove_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from tenax.journal.search.search import Search
    from tenax.journal.store import Store, Tx
    from tenax.journal.witness import Missing

__all__ = ["BLOB_BYTES_MAX", "TAIL_PAGE", "Journal", "Place"]

T = TypeVar("T")
BLOB_BYTES_MAX = 64 * 1024 * 1024
_KEPT_US = 86_400_000_000
_COLLECTED_MAX = 200
_CHUNK = 1024 * 1024
_LEASE_SECONDS_MAX = 7 * 86400
_LETTERS_MAX = 1000
_PAGE_MAX = 10_000
_SCRUB_SECONDS = 2.0
TAIL_PAGE = 500
_TAIL_PROVED = 100
_RANGES_PROVED_MAX = 32
_SUMMARY_ROLE = 6
_LATE_ROLE = 7


class Place:
    """How far a reader is: a number, and the incarnation of the store that it belongs to.

    A crash of the store may take partials, and give their numbers to other events. A reader that keeps its place, also while
    the store is away, then goes on after the last fact before it, and skips nothing. `Journal.place` makes one.
    """

    def __init__(self, after: int, incarnation: str, facts: int | None = None) -> None:
        """`facts`: the last fact of the conversation. A number beyond it is the number of a partial."""
        self.after = after
        self.incarnation = incarnation
        self._fact = after if facts is None else min(after, facts)

    def holds(self, incarnation: str) -> bool:
        """Whether the number still means the same. If not, go back to the last fact: read again from there."""
        if incarnation == self.incarnation:
            return True
        self.after, self.incarnation = self._fact, incarnation
        return False

    def limit(self, facts: int) -> None:
        """Go back to the last fact of the conversation, if even facts were lost: the store was put back."""
        self.after = min(self.after, facts)
        self._fact = min(self._fact, facts)

    def take(self, recorded: Recorded) -> None:
        """Go on behind this event."""
        self.after = recorded.seq
        if recorded.digest:
            self._fact = recorded.seq

    def passed(self, page: list[Recorded], incarnation: str) -> bool:
        """Go on behind this page. False where it is of another life of the store: read again, from the last fact on."""
        if not self.holds(incarnation):
            return False
        for each in page:
            self.take(each)
        return True


@partial(
    checked,
    but=("append", "prepare", "stretch", "children", "run", "get_blob", "holder"),
)
class Journal:
    """One user's conversations in one store. Safe to use from any thread."""

    def __init__(self, store: Store, user: str | None, search: Search) -> None:
        self._store = store
        self._search = search
        self._seen: dict[str, int] = {}
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
        """The same store, for another user; None: for the process itself."""
        return Journal(self._store, user, self._search)

    def close(self) -> None:
        """Commit what waits and let go of the store, for all its users."""
        self._search.close()
        self._store.close()

    @property
    def store(self) -> Store:
        """The engine behind this handle."""
        return self._store

    @property
    def words(self) -> Search:
        """The search behind this handle: what `doctor` should know of it, and a way to wait for it."""
        return self._search

    @property
    def incarnation(self) -> str:
        """Which life of the store its numbers belong to. Other lives' numbers mean something else."""
        return self._store.incarnation

    @property
    def missing(self) -> list[Missing]:
        """What the store lacks of what it had stored, of this user's; for the process itself, of everybody's.

        While anything is missing that nobody has accepted, everything that writes raises `StoreIncomplete`.
        """
        found = self._store.missing
        return [each for each in found if self.user in {None, each.user}]

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
    ) -> list[Recorded]:
        """Store these events, all or nothing, and say where they stand.

        When this returns, facts survive `kill -9` and power loss. Refused: nothing was stored, and the error says
        why. `OutcomeUnknown`: append again with its `append_id`.
        """
        append = self.prepare(
            conversation,
            events,
            run=run,
            expect=expect,
            lease=lease,
            dedup=dedup,
            append_id=append_id,
        )
        return self._store.queue.run(self._store.waiter(append))

    def prepare(
        self,
        conversation: str,
        events: Sequence[Event],
        *,
        run: str | None,
        expect: Expect | None,
        lease: Lease | None,
        dedup: Dedup | None,
        append_id: bytes | None,
    ) -> Append:
        """Check and encode an append, without storing it. Raises InvalidInput."""
        return Append.of_events(self.user or self._user(), conversation, events, run=run, ids=self.ids, expect=expect, lease=lease,
                                dedup=dedup, append_id=append_id)  # fmt: skip

    def load(
        self, conversation: str, opened: ConversationOpened, entries: Sequence[Entry]
    ) -> list[Recorded]:
        """Store a conversation from elsewhere as a new one. No reader that starts `now` is sent its history."""
        return self._store.queue.run(
            self._store.waiter(self.prepare_load(conversation, opened, entries))
        )

    def prepare_load(
        self, conversation: str, opened: ConversationOpened, entries: Sequence[Entry]
    ) -> Append:
        """Check a whole conversation, without storing it. Raises InvalidInput."""
        return Append.of_entries(
            self._user(), conversation, opened, entries, ids=self.ids
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self,
        conversation: str,
        *,
        after: int = 0,
        limit: int = 1000,
        upto: int = ALL_SEQS,
    ) -> list[Recorded]:
        """Events after a number, facts and partials in one order."""
        _whole("after", after)
        _page(limit)
        low, _ = bounds(self._proved(conversation))
        where = {"low": low + after, "high": low + _whole("upto", upto), "limit": limit}
        return self._as_written(
            conversation, self._query(conversation, "read_own", **where), after
        )

    def head(self, conversation: str) -> Head:
        """What is known of a conversation without reading its events."""
        key = (self._user(), check_id("conversation", conversation))
        rows = self._store.query("head_own", owner=key[0], id=key[1])
        if not rows:
            self._store.unknow(key)
            raise self._missing(conversation)
        num, *columns = rows[0]
        self._store.know(key, num)
        return Head(conversation, *columns)

    def rows(
        self, conversation: str, *, before: int | None = None, limit: int = 50
    ) -> list[Row]:
        """The last rows of the transcript, or the last before a seq, oldest first: where they stand, not their text."""
        _page(limit)
        low, high = bounds(self._num_before(conversation))
        end = high if before is None else low + _whole("before", before)
        found = self._query(conversation, "last_rows", low=low, high=end, limit=limit)
        return [
            Row(first, place & ALL_SEQS, ROLES[role])
            for place, first, role in reversed(found)
        ]

    def open(
        self, conversation: str, *, before: int | None = None, limit: int = 50
    ) -> list[Recorded]:
        """The events of the last rows of the transcript, and what stands between and after them."""
        rows = self.rows(conversation, before=before, limit=limit)
        after = rows[0].first - 1 if rows else self.head(conversation).context_from - 1
        upto = ALL_SEQS if before is None else before - 1
        if before is None:
            self._proved(conversation, after)
        found: list[Recorded] = []
        while page := self.read(conversation, after=after, limit=_PAGE_MAX, upto=upto):
            found += page
            after = page[-1].seq
            if len(page) < _PAGE_MAX:
                break
        return found

    def messages(
        self, conversation: str, *, after: int = 0, upto: int = ALL_SEQS
    ) -> list[Recorded]:
        """The messages that stand between two numbers: undone and cleared ones do not."""
        # The list asks for the first few of each conversation; that is not opening it.
        num = (
            self._proved(conversation)
            if upto == ALL_SEQS
            else self._num_before(conversation)
        )
        low, _ = bounds(num)
        where = {
            "low": low + _whole("after", after),
            "high": low + _whole("upto", upto),
        }
        rows = self._query(conversation, "messages", **where, roles=MESSAGE_ROLES)
        return self._as_written(
            conversation, rows, (rows[0][0] & ALL_SEQS) - 1 if rows else 0
        )

    def fact(self, conversation: str, seq: int) -> Recorded | None:
        """One event by its number."""
        low, _ = bounds(self._num_before(conversation))
        rows = self._query(conversation, "fact", place=low + _whole("seq", seq))
        return next(iter(self._as_written(conversation, rows)), None)

    def waiting(self, conversation: str) -> list[Recorded]:
        """The inputs that wait for a run, oldest first."""
        low, high = bounds(self._num_before(conversation))
        rows = self._query(conversation, "waiting_facts", low=low, high=high)
        return self._as_written(conversation, rows)

    def row_changes(
        self, conversation: str, *, after: int = 0, upto: int = ALL_SEQS
    ) -> list[Recorded]:
        """The events of a range that may change rows far above them: edits, late output, what is put back or forgotten."""
        low, _ = bounds(self._num_before(conversation))
        where = {
            "low": low + _whole("after", after),
            "high": low + _whole("upto", upto),
        }
        return self._as_written(
            conversation, self._query(conversation, "row_changes", **where)
        )

    def next_run(self, conversation: str, *, after: int) -> Recorded | None:
        """The start of the first run after a seq."""
        low, high = bounds(self._num_before(conversation))
        rows = self._query(
            conversation, "next_run", low=low + _whole("after", after), high=high
        )
        return next(iter(self._as_written(conversation, rows)), None)

    def conversations(
        self,
        *,
        archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        """A page of the list, pinned first, then newest first. `after` is the `place` of the last one seen."""
        _page(limit)
        pinned, updated_at, num = after or (2, 1 << 62, 1 << 62)
        where = {"owner": self._user(), "archived": int(archived), "limit": limit}
        return self._summaries(
            "list", {**where, "pinned": pinned, "updated_at": updated_at, "num": num}
        )

    def summary(self, conversation: str) -> Summary:
        """A conversation as the list shows it."""
        found = self._summaries("summary", {"num": self._num(conversation)})
        if not found:
            raise self._missing(conversation)
        return found[0]

    def _summaries(self, name: str, where: dict[str, Any]) -> list[Summary]:
        def work(tx: Tx) -> list[Summary]:
            rows = tx.run(name, where)
            names = self._store.stretch_names(tx, {row[1] for row in rows})
            return [_summary(row, names.get(row[1])) for row in rows]

        return self._store.read(work)

    def stretch(self, name: str) -> Stretch | None:
        """A stretch by its name. What can be no name finds nothing, here as elsewhere."""
        rows = (
            self._store.query("stretch", owner=self._user(), name=name)
            if is_id(name)
            else []
        )
        return Stretch(*rows[0]) if rows else None

    def children(self, stretch: str) -> list[str]:
        """The stretches that name this one as their parent, oldest first."""
        rows = (
            self._store.query("children", owner=self._user(), name=stretch)
            if is_id(stretch)
            else []
        )
        return [row[0] for row in rows]

    def delegated(self, conversation: str) -> list[str]:
        """The conversations of its sub-agents, oldest first. The list leaves them out."""
        return [
            row[0]
            for row in self._store.query("delegated", num=self._num(conversation))
        ]

    def run(self, conversation: str, run: str) -> RunState | None:
        """A run by its id."""
        num = self._num(conversation)
        rows = self._store.query("run", num=num, run=run) if is_id(run) else []
        return RunState(*rows[0]) if rows else None

    def has_late_output(self, conversation: str, first: int, last: int) -> bool:
        """Whether output came late of a run that ended between these seqs."""
        return bool(
            self._store.query(
                "late_runs", num=self._num(conversation), first=first, last=last
            )
        )

    def use_attempt(self, conversation: str, run: str, *, was: int) -> bool:
        """Count one more look for this run's output. False if another process counted first."""
        where = {"num": self._num(conversation), "run": run, "was": was}
        return bool(self._store.change(lambda tx: tx.run("use_attempt", where)))

    def spent(self, conversation: str | None = None) -> Spent:
        """What models took in a conversation and its sub-agents; without one, in all of this user's today (UTC)."""
        if conversation is not None:
            rows = self._store.query("spent_in", num=self._num(conversation))
        else:
            today = self.clock.now_us() // DAY_US
            rows = self._store.query("spent_since", owner=self._user(), day=today)
        taken, given, cost, unpriced = (int(each) for each in rows[0])
        return Spent(taken, given, cost / 1e6, unpriced)

    def interrupted(self, since: int, limit: int = 1000) -> list[Unfinished]:
        """Conversations whose last run was interrupted, of those that moved since then (microseconds)."""
        _page(limit)
        where = {"since": since, "owner": self.user, "limit": limit}
        name = "interrupted" if self.user is not None else "interrupted_of_all"
        return [Unfinished(*row) for row in self._store.query(name, **where)]

    def unfinished(self, limit: int = 1000) -> list[Unfinished]:
        """Conversations with an open run, and then those with inputs that wait for one."""
        _page(limit)
        return [
            Unfinished(*row)
            for name in ("open_runs", "asking")
            for row in self._store.query(name, owner=self.user, limit=limit)
        ]

    def search(
        self,
        words: str,
        *,
        conversation: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 20,
    ) -> Hits:
        """Messages with these words, newest first, from the moment they are stored. `before` goes on from a page.

        How words are written is told in `query.py`. Compacted, cleared, undone and archived ones are found as well.
        """
        _page(limit)
        num = None if conversation is None else self._num(conversation)
        return self._search.find(
            self._user(), words, num=num, before=before, limit=limit
        )

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, conversation: str, after: int, *, seconds: float) -> bool:
        """Wait until there is an event after this number. False when there was none in that time."""
        num = self._num(conversation)
        deadline = self.clock.monotonic() + seconds
        hint = threading.Event()
        with self._store.hub.listening(num, hint.set):
            while True:
                hint.clear()
                if self.head(conversation).head > after:
                    return True
                left = deadline - self.clock.monotonic()
                if left <= 0:
                    return False
                hint.wait(min(left, 1.0))

    def place(self, conversation: str, after: int | None = None) -> Place:
        """The place after a number, or at the end: for a reader that goes on from there whatever happens to the store."""
        while True:
            incarnation = self.incarnation
            head = self.head(conversation)
            if incarnation == self.incarnation:  # the read itself may meet another life
                return Place(
                    head.head if after is None else after, incarnation, head.facts
                )

    def tail(
        self,
        conversation: str,
        after: int | Place = 0,
        *,
        one_life: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[Recorded]:
        """Every event after a number, the stored ones and then the new ones as they come, until `stop` is set; with
        `one_life`, until the store has another incarnation.

        A crash of the store may take partials, and give their numbers to others: then it goes on after the last fact. A `Place`
        is moved on as its events are taken: with it, a tail that an error ended is begun again and skips nothing.
        """
        place = after if isinstance(after, Place) else self.place(conversation, after)
        hint = threading.Event()
        with self._store.hub.listening(self._num(conversation), hint.set):
            while stop is None or not stop.is_set():
                hint.clear()
                page = self.read(conversation, after=place.after, limit=TAIL_PAGE)
                if not place.holds(self.incarnation):
                    if one_life:
                        return
                    place.limit(self.head(conversation).facts)
                    continue
                for recorded in page:
                    yield recorded
                    place.take(recorded)
                if len(page) < TAIL_PAGE:
                    hint.wait(0.25)

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
        """The right to act under this name, or None while somebody has it.

        Another's lease is free when it was released, its instance is dead, or it has run out and this process has
        been connected for its whole length (so that a sleep or a restart reaps nobody alive). Without `patient` a lease
        that has run out is free at once, as `holder` says. `take_over` asks nobody.
        """
        check_id("lease", name)
        check_id("holder", holder)
        _length(seconds)
        user, instance, token = self._user(), self._store.live(), self.ids.append()

        def work(tx: Tx) -> Lease | None:
            now = self._store.now(tx)
            fence = 0
            for row in tx.run("lease", {"owner": user, "name": name}):
                fence = row[1]
                if row[6] == token:  # an earlier try of this very call went through
                    return Lease(name, holder, fence, seconds, token)
                if not take_over and not self._free(tx, row, now, patient=patient):
                    return None
            taken = {
                "fence": fence + 1,
                "until": now + seconds,
                "seconds": seconds,
                "token": token,
            }
            where = {"owner": user, "name": name, "holder": holder}
            tx.run(
                "put_lease",
                {**where, **taken, "instance": instance, "life": self._store.life()},
            )
            return Lease(name, holder, fence + 1, seconds, token)

        return self._lease(work)

    def _free(
        self, tx: Tx, row: tuple[object, ...], now: float, *, patient: bool
    ) -> bool:
        holder, _, until, seconds, instance, life, _ = row
        if (
            holder is None
            or life != self._store.life()
            or not self._store.alive(tx, str(instance))
        ):
            return True
        if now <= float(str(until)):
            return False
        return not patient or now - self._store.connected_since() >= float(str(seconds))

    def renew(self, lease: Lease, *, seconds: float | None = None) -> Lease:
        """Keep the lease for its length again, counted from now. Raises LeaseLost."""
        length = _length(lease.seconds if seconds is None else seconds)
        where = {
            "owner": self._user(),
            "name": lease.name,
            "fence": lease.fence,
            "token": lease.token,
        }

        def work(tx: Tx) -> bool:
            return bool(
                tx.run(
                    "renew_lease",
                    {**where, "until": self._store.now(tx) + length, "seconds": length},
                )
            )

        if not self._lease(work):
            raise LeaseLost(f"{lease.name} is no longer held by {lease.holder}.")
        return Lease(lease.name, lease.holder, lease.fence, length, lease.token)

    def release(self, lease: Lease) -> bool:
        """Give the lease back. Its fence stays, so an old holder never passes for a new one."""
        where = {
            "owner": self._user(),
            "name": lease.name,
            "fence": lease.fence,
            "token": lease.token,
        }
        return bool(self._lease(lambda tx: tx.run("release_lease", where)))

    def _lease(self, work: Callable[[Tx], T]) -> T:
        return self._store.change(work, durable=not self._store.one_host)

    def release_held(self, name: str, holder: str) -> bool:
        """Give back what this holder has, wherever it was claimed."""
        where = {"owner": self._user(), "name": name, "holder": holder}
        return bool(self._store.change(lambda tx: tx.run("release_held", where)))

    def holder(self, name: str) -> str | None:
        """Who holds this lease now: nobody when it was released, ran out, or its instance is dead."""

        def work(tx: Tx) -> str | None:
            for row in tx.run("lease", {"owner": self._user(), "name": name}):
                expired = self._store.now(tx) > row[2] or row[5] != self._store.life()
                if row[0] is not None and not expired and self._store.alive(tx, row[4]):
                    return str(row[0])
            return None

        return self._store.read(work) if is_id(name) else None

    # -- instances -------------------------------------------------------------------------------------------

    @property
    def instance(self) -> str:
        """This process, as the store knows it. It is alive while it holds its lock."""
        return self._store.live()

    def instances(self) -> list[Instance]:
        """Every process that has used this store, and whether it lives."""

        def work(tx: Tx) -> list[Instance]:
            rows = tx.run("instances")
            return [
                Instance(
                    name,
                    host,
                    started_at,
                    ended_at,
                    swept_at,
                    ended_at is None and self._store.alive(tx, name),
                )
                for name, host, started_at, ended_at, swept_at in rows
            ]

        return self._store.read(work)

    def swept(self, instance: str) -> bool:
        """Say that everything a dead instance had is in the store. True once. After a week nobody asks for it."""
        now = self.clock.now_us()

        def work(tx: Tx) -> bool:
            tx.run("drop_instances", {"before": now - 7 * DAY_US})
            return bool(tx.run("sweep_instance", {"id": instance, "at": now}))

        return self._store.change(work)

    # -- durable readers -------------------------------------------------------------------------------------

    def cursor(self, reader: Reader, conversation: str) -> int:
        """How far this reader is."""
        self._know(reader)
        rows = self._store.query(
            "cursor", num=self._num(conversation), reader=reader.name
        )
        if not rows:
            raise self._missing(conversation)
        return int(rows[0][0])

    def advance(
        self, reader: Reader, conversation: str, to: int, *, was: int, lease: Lease
    ) -> None:
        """Move the cursor on, if it still stands where the caller thinks and the lease is still the caller's."""
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
        """Give up on what ends at `seq` and go on behind it. It is kept as a letter, with the error."""
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
        self._know(reader)
        where = {"num": self._num(conversation), "reader": reader.name}
        if _whole("to", to) < _whole("was", was):
            raise InvalidInput(f"A cursor moves forward, not from {was} to {to}.")

        def work(tx: Tx) -> bool:
            self._held(tx, lease)
            head = tx.run("head", where)
            if head and to > head[0][0]:
                raise InvalidInput(
                    f"{conversation} stands at {head[0][0]}; nobody can have read up to {to}."
                )
            if not tx.run("advance", {**where, "to": to, "was": was}):
                stands = [row[0] for row in tx.run("cursor", where)]
                if stands != [to]:  # or an earlier try of this very call went through
                    if stands:
                        raise CursorMoved(
                            f"{reader.name} stands at {stands[0]} in {conversation}, not at {was}."
                        )
                    return False
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

        if not self._store.change(work):
            raise self._missing(conversation)

    def letters(self, reader_name: str) -> list[Letter]:
        """What this reader gave up on, oldest first, at most 1,000 of them."""
        rows = self._store.query(
            "letters", reader=reader_name, owner=self.user, limit=_LETTERS_MAX
        )
        return [Letter(*row) for row in rows]

    def unbury(
        self, reader: Reader, conversation: str, seq: int, *, lease: Lease
    ) -> bool:
        """Take a letter away: it was delivered after all, or nobody wants it. False if there is none."""
        where = {
            "num": self._num(conversation),
            "reader": reader.name,
            "seq": _whole("seq", seq),
        }
        found: list[tuple[Any, ...]] = []

        def work(tx: Tx) -> None:
            self._held(tx, lease)
            found.extend(tx.run("drop_letter", where))

        self._store.change(work)
        return bool(found)

    # -- memory ----------------------------------------------------------------------------------------------

    def owed(self, conversation: str) -> int:
        """Up to where memories are owed the end of this conversation: the last completed turn that stands after what
        the last `memory.due` covers, or 0. What was cleared is owed, what was undone is not.
        """
        num = self._num(conversation)
        low, high = bounds(num)
        due = self.head(conversation).due
        found = self.fact(conversation, due) if due else None
        last = found.event if found else None
        after = last.upto if isinstance(last, MemoryDue) else 0
        ends = {
            seq: 0
            for (seq,) in self._store.query("completed_since", num=num, after=after)
        }
        undone: set[int] = set()
        for place, kind, body in self._store.query(
            "undone_since", low=low + after, high=high
        ):
            at, to = place & ALL_SEQS, 0
            match decode(kind, body):
                case ConversationRestored(of=of):
                    ends |= {seq: 0 for seq, by in ends.items() if by == of}
                    continue
                case ConversationRewound(to=to):
                    undone.add(at)
            ends |= {seq: at for seq, by in ends.items() if not by and to < seq < at}
        return max((seq for seq, by in ends.items() if by not in undone), default=0)

    def shared(self, conversation: str) -> bool:
        """Whether somebody else than the user has written in it."""
        num = self._num(conversation)
        self._store.index((self._user(), conversation), num)
        rows = self._store.query("shared", num=num, version=INDEX_VERSION)
        if not rows:
            raise self._missing(conversation)
        return bool(rows[0][0])

    def defer(
        self,
        reader: Reader,
        conversation: str,
        *,
        seconds: float,
        error: str,
        lease: Lease,
    ) -> int:
        """It did not work: leave this conversation alone for a while. How often that has happened in a row."""
        self._know(reader)
        where = {
            "num": self._num(conversation),
            "reader": reader.name,
            "error": error[:500],
        }

        def work(tx: Tx) -> int:
            self._held(tx, lease)
            rows = tx.run(
                "defer", {**where, "retry_at": self.clock.now_us() + int(seconds * 1e6)}
            )
            return int(rows[0][0]) if rows else 0

        return self._store.change(work)

    def behind(self, reader: Reader, limit: int = 100) -> list[Behind]:
        """Conversations in which this reader has work, but for those it was told to leave alone for now.

        Each call goes on where the last one stopped, so that one bad conversation never hides the others.
        """
        _page(limit)
        self._know(reader)
        where = {
            "reader": reader.name,
            "now": self.clock.now_us(),
            "owner": self.user,
            "limit": limit,
        }
        past = self._seen.get(reader.name, 0)
        rows = self._store.query("behind", **where, past=past)
        if past and len(rows) < limit:
            again = self._store.query(
                "behind", **{**where, "limit": limit - len(rows)}, past=0
            )
            rows += [row for row in again if row[6] <= past]
        self._seen[reader.name] = rows[-1][6] if len(rows) == limit else 0
        return [Behind(*row[:6]) for row in rows]

    def _know(self, reader: Reader) -> None:
        """Make a reader known, once: its cursors are placed in every conversation there is, by its start policy."""
        if reader in self._readers:
            return
        check_id("reader", reader.name)
        known = self._store.query("reader", name=reader.name)
        if not known:
            row = {
                "name": reader.name,
                "follows": reader.follows,
                "start": reader.start,
            }

            def work(tx: Tx) -> None:
                # and then look again: another process may have come first
                self._store.lock_all(tx)
                if not tx.run("reader", {"name": reader.name}):
                    tx.run("put_reader", row)
                    tx.run("place_reader", row)

            self._store.change(work)
            known = self._store.query("reader", name=reader.name)
        if tuple(known[0]) != (reader.follows, reader.start):
            raise InvalidInput(
                f"The reader {reader.name} follows {known[0][0]} from {known[0][1]}, and cannot change that."
            )
        self._readers.add(reader)

    def _held(self, tx: Tx, lease: Lease) -> None:
        rows = tx.run("fence", {"owner": self._user(), "name": lease.name})
        if not rows or tuple(rows[0]) != (lease.fence, lease.token):
            raise LeaseLost(f"{lease.name} is no longer held by {lease.holder}.")

    # -- blobs -----------------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> str:
        """Store bytes under their hash, before the event that names them."""
        if len(data) > BLOB_BYTES_MAX:
            raise TooLarge(
                f"{len(data):,} bytes are more than the {BLOB_BYTES_MAX:,} that one blob may have."
            )
        name = hashlib.sha256(data).hexdigest()
        where = {"owner": self._user(), "hash": name}
        chunks = [
            (start // _CHUNK, data[start : start + _CHUNK])
            for start in range(0, len(data), _CHUNK)
        ]

        def work(tx: Tx) -> None:
            now = self.clock.now_us()
            if tx.run("put_blob", {**where, "size": len(data), "at": now}):
                for n, chunk in chunks:
                    tx.run("put_chunk", {**where, "n": n, "bytes": chunk})
            else:  # it is wanted again: it is not collected before an event can name it
                tx.run("keep_blob", {**where, "at": now, "before": now - _KEPT_US // 2})

        self._store.change(work)
        return name

    def get_blob(self, name: str) -> bytes | None:
        """The bytes with this hash, if this user has stored them."""
        where = {"owner": self._user(), "hash": name}

        def work(tx: Tx) -> bytes | None:
            if not tx.run("blob", where):
                return None
            return b"".join(bytes(row[0]) for row in tx.run("blob_bytes", where))

        return self._store.read(work) if is_id(name) else None

    def naming(self, conversation: str, blob: str) -> list[int]:
        """Which events of this user's conversation name a blob: their seqs."""
        low, high = bounds(self._num(conversation))
        rows = self._store.query(
            "named_here", owner=self._user(), hash=blob, low=low, high=high
        )
        return [place & ALL_SEQS for (place,) in rows]

    def collect_blobs(self) -> int:
        """Drop what was put a day ago or longer and is named by no event, whoever's it is. How many; not all at once."""
        before = self.clock.now_us() - _KEPT_US
        gone = self._store.query("unnamed_blobs", before=before, limit=_COLLECTED_MAX)

        def work(tx: Tx) -> int:
            dropped = 0
            for owner, name in gone:
                where = {"owner": owner, "hash": name}
                if tx.run("collect_blob", {**where, "before": before}):
                    tx.run("drop_chunks", where)
                    dropped += 1
            return dropped

        return self._store.change(work) if gone else 0

    # -- fork, erase, delete, prune --------------------------------------------------------------------------

    def fork(
        self, conversation: str, *, upto: int | None = None, stretch: str | None = None
    ) -> str:
        """A new conversation with what stands up to a seq. Leases, approvals, receipts and open runs stay behind."""
        head = self.head(conversation)
        end = head.head if upto is None else _whole("upto", upto)
        low, _ = bounds(self._num(conversation))
        # A copy gets a chain of its own, which would prove whatever was copied.
        self._prove(conversation, 0, min(end, head.head))
        rows = self._store.query(
            "standing_facts", low=low, high=low + min(end, ALL_SEQS)
        )
        last = self.fact(
            conversation, max((row[2] & ALL_SEQS for row in rows), default=1)
        )
        copies = [
            recorded(conversation, row[2:])
            for row in rows
            if row[0] not in {_SUMMARY_ROLE, _LATE_ROLE}
            and row[6] is not None
            and (row[5] is None or row[5] != head.run)
        ]
        summaries = [
            recorded(conversation, row[2:]) for row in rows if row[0] == _SUMMARY_ROLE
        ]
        name = stretch or self.ids.stretch()
        fork = self.ids.conversation()
        origin = Origin(
            conversation, last.seq if last else 1, last.digest.hex() if last else ""
        )
        opened = ConversationOpened(
            self._user(),
            name,
            source="fork",
            origin=origin,
            copied=_ranges([each.seq for each in copies]),
        )
        places = {each.seq: n for n, each in enumerate(copies, 2)}
        entries = [
            Entry(each.kind, each.at, None, _detached(each, places)) for each in copies
        ]
        entries += self._carried_summary(copies, summaries, name)
        self.load(fork, opened, entries)
        return fork

    def _carried_summary(
        self, copies: list[Recorded], summaries: list[Recorded], stretch: str
    ) -> list[Entry]:
        """A fork of a compacted conversation starts from the same summary."""
        if not summaries or not isinstance(
            words := summaries[-1].event, ContextSummarised
        ):
            return []
        covered = sum(each.seq <= words.covers_to for each in copies)
        at = len(copies) + 2
        kept = [n for n, each in enumerate(copies, 2) if each.seq in words.kept]
        summary = msgspec.structs.replace(words, covers_to=covered + 1, kept=kept)
        compacted = ContextCompacted(stretch, self.ids.stretch(), at, covered + 1, at)
        now = self.clock.now_us()
        return [
            Entry(each.kind, now, None, encode(each)) for each in (summary, compacted)
        ]

    def erase(
        self, conversation: str, seqs: Sequence[int], *, by: str, why: str = ""
    ) -> Erased:
        """Take the text of these events away, and all that was derived from it; the chain still proves itself.

        It reaches summaries that covered them, titles made from them, what a person was asked, said and allowed about
        a call, what was remembered from them, forks, blobs, partials and search. It cannot reach backups, exports, or what a model or a person has read.
        """
        reached: dict[str, list[int]] = {}
        self._reach(conversation, {_whole("seq", seq) for seq in seqs}, reached)
        # the source last: who is interrupted can begin again
        for each, found in reversed(reached.items()):
            if found:
                self.append(each, [ContentErased(found, by, why)])
        forgotten = [
            self._search.forget(self._num(each), found)
            for each, found in reached.items()
        ]
        scrubbed = all(
            (*forgotten, self._search.scrub(_SCRUB_SECONDS), self._store.scrub())
        )
        return Erased(
            {each: found for each, found in reached.items() if found}, scrubbed
        )

    def _reach(
        self, conversation: str, seqs: set[int], reached: dict[str, list[int]]
    ) -> None:
        """These events, what was derived from them, and their copies in forks."""
        num = self._num(conversation)
        there = self._erasable(conversation, seqs)
        reached[conversation] = sorted({*reached.get(conversation, ()), *there})
        user, low = self._user(), bounds(num)[0]
        for name, at in {
            place for seq in there for place in told_in(self._store, user, low + seq)
        }:
            if (told := self.fact(name, at)) and not told.erased:
                reached[name] = sorted({*reached.get(name, ()), at})
        for fork, body in self._store.query("forks", num=num):
            opened = decode("conversation.opened", body)
            if isinstance(opened, ConversationOpened):
                copied = {
                    part.at + seq - part.first
                    for part in opened.copied
                    for seq in seqs
                    if part.first <= seq < part.first + part.count
                }
                if copied:
                    self._reach(fork, copied, reached)

    def _erasable(self, conversation: str, seqs: set[int]) -> list[int]:
        """Those of these events that still hold text, and what was made from them here."""
        low, high = bounds(self._num(conversation))
        wanted, open_run = set(seqs), self.head(conversation).run
        named = [
            fact for each in sorted(seqs) if (fact := self.fact(conversation, each))
        ]
        if not named:
            raise InvalidInput(f"{conversation} has no fact at {sorted(seqs)[:5]}.")
        results = {
            (result.message, result.call)
            for each in named
            if isinstance(result := each.event, ToolFinished | ToolLate)
        }
        for place, kind, run, body in self._store.query("derived", low=low, high=high):
            seq, over = place & ALL_SEQS, run is None or run != open_run
            if _made_from(decode(kind, body), seq, seqs, results, over):
                wanted.add(seq)
        facts = [
            fact
            for each in sorted(wanted)
            if (fact := self.fact(conversation, each)) and not fact.erased
        ]
        # what says that an input was taken stays too; older stores may have erased one
        for fact in facts:
            if fact.kind in STRUCTURE or fact.kind == ModelRequested.kind:
                raise InvalidInput(
                    f"Seq {fact.seq} holds no text that could be erased."
                )
        return [fact.seq for fact in facts]

    def delete(self, conversation: str) -> None:
        """Remove a conversation and what was remembered from it. A tombstone stays: late writers are told `Gone`."""
        num = self._num(conversation)
        key = (self._user(), conversation)
        low, high = bounds(num)

        def work(tx: Tx) -> None:
            state = self._store.heads(tx, [key]).get(key)
            if state is None:
                return
            if state.run is not None:
                raise RunConflict(
                    "A run is open in this conversation.",
                    hint="stop it, then delete the conversation",
                )
            tx.run("put_tombstone", {"num": num, "at": self.clock.now_us()})
            drop_mentions(tx, key[0], low, high)
            for name in ("events", "partials"):
                tx.run(f"delete_{name}", {"low": low, "high": high})
            forget_learned(tx, key[0], low, high)
            tx.run("unplace_facts", {"owner": key[0], "low": low, "high": high})
            for name in (
                "runs",
                "stretches",
                "cursors",
                "authors",
                "letters",
                "schedules",
                "head",
            ):
                tx.run(f"delete_{name}", {"num": num})
            tx.run("orphan_forks", {"num": num})
            tx.run("delete_conversation", {"num": num})

        self._store.change(work)
        self._store.forget(key)
        self._store.hub.notify([num])
        self._search.forget(num, None)
        self._search.scrub(
            _SCRUB_SECONDS / 10
        )  # the text is gone as it is; what traces are left go in the background
        self._store.scrub()

    def prune(self, conversation: str) -> int:
        """Drop the partials that stand before the fact that replaced them. How many."""
        low, high = bounds(self._num(conversation))

        def work(tx: Tx) -> int:
            replaced_at: dict[int, int] = {}
            dropped: list[tuple[int]] = []
            for place, _, body in tx.run("partials_of", {"low": low, "high": high}):
                request = msgspec.json.decode(body)[0]
                if request not in replaced_at:
                    found = tx.run(
                        "replaced",
                        {"low": low + request, "high": high, "first": request},
                    )
                    replaced_at[request] = found[0][0] or 0
                if place < replaced_at[request]:
                    dropped.append((place,))
            if dropped:
                tx.many("drop_partial", dropped)
            return len(dropped)

        return self._store.change(work)

    # -- small things ----------------------------------------------------------------------------------------

    def _user(self) -> str:
        if self.user is None:
            raise InvalidInput(
                "This handle belongs to no user.", hint="use journal.of(user)"
            )
        return self.user

    def number(self, conversation: str) -> int:
        """The conversation's number in the store, for who listens to hints."""
        return self._num(conversation)

    def _num(self, conversation: str) -> int:
        num = self._store.num(self._user(), check_id("conversation", conversation))
        if not num:
            raise self._missing(conversation)
        return num

    def _num_before(self, conversation: str) -> int:
        """The number, without a query if it was looked up before: for `_query` only."""
        num = self._store.num_before(
            self._user(), check_id("conversation", conversation)
        )
        if not num:
            raise self._missing(conversation)
        return num

    def _proved(self, conversation: str, after: int | None = None) -> int:
        """The conversation's number, once its events after a seq are known to be what was written. Raises StoreDamaged.

        Each process proves what it reads once: without a seq the last events, as many as a page shows.
        """
        num = self._num_before(conversation)
        ranges = self._store.proved.get(num, [])
        known = ranges[-1][0] if ranges and ranges[-1][1] == ALL_SEQS else None
        if known is not None and (after is None or known <= after):
            return num
        if after is None:
            after = max(0, self.head(conversation).facts - _TAIL_PROVED)
        self._store.read(
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
        """Rows of `read` as values, once they are known to be what was written. Raises StoreDamaged.

        `after`: prove all facts from this seq to the last row; without it, each row by itself.
        """
        seqs = [row[0] & ALL_SEQS for row in rows]
        if after is not None and seqs:
            self._prove(conversation, after, seqs[-1])
        elif after is None:
            for seq in seqs:
                self._prove(conversation, seq - 1, seq)
        return [recorded(conversation, row) for row in rows]

    def _prove(self, conversation: str, after: int, upto: int) -> None:
        """Prove the facts between two seqs, but for those that this process has proved before. Raises StoreDamaged."""
        num = self._num_before(conversation)
        start, end = after, upto
        for first, last in self._store.proved.get(num, ()):
            if first <= start < last:
                start = last
            if first < end <= last:
                end = first
        if start < end:
            part = partial(
                prove_range, num=num, conversation=conversation, after=start, upto=end
            )
            self._store.read(partial(_prove_twice, part))
            self._remember_proof(num, after, upto)

    def _remember_proof(self, num: int, after: int, upto: int) -> None:
        proved = self._store.proved
        apart: list[tuple[int, int]] = []
        for first, last in proved.get(num, ()):
            if last < after or upto < first:
                apart.append((first, last))
            else:
                after, upto = min(first, after), max(last, upto)
        if len(proved) >= NUMS_MAX:
            proved.clear()
        proved[num] = sorted([*apart[-_RANGES_PROVED_MAX:], (after, upto)])

    def _query(
        self, conversation: str, name: str, /, **params: int
    ) -> list[tuple[Any, ...]]:
        """Read from a conversation, by its number from before. Where nothing is found, it may have been deleted since, or the
        number may have become another conversation's.
        """
        num = params["low" if "low" in params else "place"] >> SEQ_BITS
        rows = self._store.query(
            name, **params, num=num, owner=self._user(), id=conversation
        )
        if not rows:
            self.head(conversation)
        return rows

    def _missing(self, conversation: str) -> Gone | NoSuchConversation:
        if self._store.query("tombstone", owner=self._user(), id=conversation):
            return Gone(f"Conversation {conversation} was deleted.")
        return NoSuchConversation(
            f"There is no conversation {conversation}.", hint="run: tenax list"
        )


def _prove_twice(prove: Callable[[Tx], object], tx: Tx) -> None:
    """Prove events. They may be erased or deleted meanwhile, so only what fails again is damage."""
    try:
        prove(tx)
    except (StoreDamaged, TypeError, ValueError):
        try:
            prove(tx)
        except (
            TypeError,
            ValueError,
        ) as error:  # what was read is not even of the right type
            raise StoreDamaged(
                f"The store cannot be read: {error}.", hint="run: tenax doctor"
            ) from error


def _whole(what: str, value: object) -> int:
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 <= value <= ALL_SEQS
    ):
        raise InvalidInput(f"`{what}` is a number from 0 on, not {value!r}.")
    return value


def _length(seconds: float) -> float:
    if not 0 < seconds <= _LEASE_SECONDS_MAX:
        raise InvalidInput("A lease lasts for more than 0 seconds and at most a week.")
    return seconds


def _page(limit: object) -> None:
    if not isinstance(limit, int) or not 1 <= limit <= _PAGE_MAX:
        raise InvalidInput(f"A page has 1 to {_PAGE_MAX:,} rows, not {limit!r}.")


def _summary(row: tuple[Any, ...], stretch: str | None) -> Summary:
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
    ) = row
    marks = bool(pinned), bool(archived), run is not None
    times, place = (opened_at, updated_at), (pinned, updated_at, num)
    return Summary(
        conversation, stretch, title, source, messages, *times, *marks, place, parent
    )


def _made_from(
    event: Event | Unknown,
    seq: int,
    seqs: set[int],
    results: set[tuple[int, str]],
    over: bool,
) -> bool:
    """Whether the event at `seq` repeats text of these. What its run still needs stays until the run is `over`."""
    match event:
        case ApprovalAsked(message=message):
            return over and message in seqs
        case ApprovalAnswered(message, call, pattern=pattern, words=words):
            allowed = pattern != "" and over and message in seqs
            return allowed or (words != "" and (message, call) in results)
        case ContextSummarised(covers_to=covers_to):
            return any(each <= covers_to for each in seqs)
        case ConversationTitled(derived=True):
            return any(each < seq for each in seqs)
        case FilesChanged(message=message):
            return message in seqs
        case _:
            return False


def _ranges(seqs: list[int]) -> list[Copied]:
    """Which events of the origin stand where in a fork, whose first event is its own."""
    found: list[Copied] = []
    for at, seq in enumerate(seqs, start=2):
        if found and found[-1].first + found[-1].count == seq:
            found[-1] = Copied(found[-1].first, found[-1].count + 1, found[-1].at)
        else:
            found.append(Copied(seq, 1, at))
    return found


def _detached(each: Recorded, places: dict[int, int]) -> bytes:
    """The body of a copy: it asks nothing and belongs to no request, both of which stayed behind. A result goes with
    the copy of the answer that asked for it.
    """
    event: Event | Unknown = each.event
    if isinstance(event, MessageUser) and event.ask:
        return encode(msgspec.structs.replace(event, ask=False))
    if isinstance(event, MessageAssistant | MessagePartial) and event.request:
        return encode(msgspec.structs.replace(event, request=0))
    if isinstance(event, ToolFinished | ToolLate):
        return encode(
            msgspec.structs.replace(event, message=places.get(event.message, 0))
        )
    return each.body or b""
