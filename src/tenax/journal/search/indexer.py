"""The durable reader for the search index. A background thread runs while there are messages to index.

An append of the process wakes the thread. The thread waits a moment for more messages, and indexes in small batches
with pauses, so that appends are hardly slowed. Every process wakes its own thread, and a lease lets only one thread
work at a time. Nothing waits for the index: a query reads the unindexed events, and an ending process leaves the rest
to the next process.

While the store is unavailable, the thread retries with growing pauses.
"""

from __future__ import annotations

import enum
import logging
import threading
from typing import TYPE_CHECKING

from tenax.concurrency import Backoff, start_thread
from tenax.errors import LeaseLost, StoreDamaged, TenaxError
from tenax.events import ContentErased, decode
from tenax.journal.journal import Journal
from tenax.journal.row_key import ALL_SEQS, bounds
from tenax.journal.search.index import (
    READER,
    ROLE_OF,
    Doc,
    Move,
    Position,
    SearchIndex,
    Unusable,
    words_in,
)
from tenax.journal.search.query import fold
from tenax.journal.store import Trouble

if TYPE_CHECKING:
    from tenax.journal.base import Behind, Lease
    from tenax.journal.search.search import Search
    from tenax.journal.store import SqlRow, Store, Tx

__all__ = ["Indexer"]

log = logging.getLogger(__name__)

LEASE = f"reader:{READER.name}"
LEASE_SECONDS = 30.0
OTHERS_SECONDS = 2.0
BUSY_TRIES = 5
"""How often a thread checks again before ending, while another process indexes."""
BACK_OFF_SECONDS = (1.0, 60.0)
FACTS_PER_READ = 200
DOCS_PER_BATCH = 200
BYTES_PER_BATCH = 1024 * 1024
CONVERSATIONS_PER_BATCH = 100
PAUSE_PER_WORK = 3.0
"""The ratio of pause to work while messages arrive."""


class Round(enum.Enum):
    """The outcome of a round."""

    DONE = "nothing is left"
    MORE = "there is more"
    BUSY = "another process has the lease"


class Indexer:
    """The indexer of an open store."""

    def __init__(self, store: Store, index: SearchIndex, search: Search) -> None:
        self._store = store
        self._index = index
        self._all = Journal(store, None, search)
        self._own = Journal(store, None, search)
        # The lease belongs to no user, and no user can have an empty name.
        self._own.user = ""
        self._known = False
        self._me: str | None = None
        self._lease: Lease | None = None
        self._renew_at = 0.0
        self._rounds = threading.Lock()
        self._lock = threading.Lock()
        self._hint = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._backoff = Backoff(*BACK_OFF_SECONDS)
        self._has_failed = False
        store.wakeups.also = self.wake

    # -- the thread ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Start or wake the thread. Safe in any thread; returns at once."""
        if self._hint.is_set():
            return
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = start_thread(self._run, "tenax-search")
            # Without room for a thread the next wake tries again.
            if self._thread is not None:
                self._hint.set()

    def catch_up(self, seconds: float) -> bool:
        """Index in the calling thread until nothing is left. Return False if `seconds` were not enough."""
        deadline = self._store.clock.monotonic() + seconds
        while not self._stop.is_set():
            if not self._rounds.acquire(
                timeout=max(0.0, deadline - self._store.clock.monotonic())
            ):
                return False
            try:
                outcome = self._round()
            except Unusable:
                # The next round creates a damaged index again.
                outcome = Round.BUSY
            finally:
                self._rounds.release()
            if outcome is Round.DONE:
                return True
            if self._store.clock.monotonic() > deadline:
                return False
            if outcome is Round.BUSY:
                self._stop.wait(0.02)
        return False

    def close(self) -> None:
        """Stop the thread, with a time limit. The lease becomes free at the end of the instance."""
        with self._lock:
            self._stop.set()
            self._hint.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._index.interrupt()
            thread.join(self._store.timing.index_close_seconds)

    def _run(self) -> None:
        idle = 0
        timing = self._store.timing
        self._backoff.reset()
        while not self._stop.wait(timing.index_gather_seconds):
            self._hint.clear()
            try:
                outcome = self._work()
            except Exception as error:  # noqa: BLE001  (an unexpected error is logged and must not end indexing)
                self._wait_after(error)
                continue
            self._has_failed = False
            self._backoff.reset()
            if self._hint.wait(timing.index_idle_seconds):
                idle = 0
            elif (outcome is Round.DONE or idle >= BUSY_TRIES) and self._leave():
                return
            else:
                idle += 1
            if outcome is Round.BUSY:
                self._stop.wait(OTHERS_SECONDS)

    def _work(self) -> Round:
        """Index in batches with pauses until nothing is left."""
        while True:
            began = self._store.clock.monotonic()
            with self._rounds:
                outcome = self._round()
            if outcome is not Round.MORE or self._stop.is_set():
                return outcome
            self._rest(self._store.clock.monotonic() - began)

    def _rest(self, worked: float) -> None:
        """Pause, so that other threads and processes get the disk and the processor."""
        share = PAUSE_PER_WORK if self._hint.is_set() else 0.25
        self._hint.clear()
        self._stop.wait(min(max(worked * share, 0.002), 1.0))

    def _leave(self) -> bool:
        """End the thread, unless a wake-up has just arrived. Return whether the thread ends."""
        self._release_lease()
        with self._lock:
            if self._hint.is_set() and not self._stop.is_set():
                return False
            self._thread = None
            return True

    def _wait_after(self, error: Exception) -> None:
        """Log the first of several failures, and wait."""
        if self._stop.is_set():
            return
        if not self._has_failed:
            unexpected = not isinstance(error, TenaxError | Trouble | Unusable)
            log.warning(
                "Cannot update the search index, will retry: %s",
                error,
                exc_info=error if unexpected else None,
                extra={"action": "search_index_failed"},
            )
        self._has_failed = True
        self._stop.wait(self._backoff.next_pause())

    # -- the lease -------------------------------------------------------------------------------------------

    def _holds(self, tx: Tx) -> None:
        """Raise `LeaseLost` unless the process still has the lease.

        For use inside the transaction protected by the lease.
        """
        lease = self._lease
        rows = tx.run("fence", {"owner": "", "name": LEASE})
        if lease is None or not rows or tuple(rows[0]) != (lease.term, lease.token):
            raise LeaseLost("Another process indexes now.")

    def _claim(self) -> bool:
        now = self._store.clock.monotonic()
        if self._lease is not None and now < self._renew_at:
            return True
        try:
            if self._lease is not None:
                self._lease = self._own.renew(self._lease)
            else:
                # Read first: a process writes nothing if the lease is taken.
                holder = self._own.holder(LEASE)
                if holder in {None, self._me}:
                    self._me = self._own.instance
                    self._lease = self._own.claim(
                        LEASE, self._me, LEASE_SECONDS, take_over=holder is not None
                    )
        except LeaseLost:
            self._lease = None
        self._renew_at = now + LEASE_SECONDS / 3
        return self._lease is not None

    def _release_lease(self) -> None:
        with self._rounds:
            lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._own.release(lease)
            except TenaxError:
                log.debug(
                    "The lease of the search index was not released. It will expire."
                )

    # -- a round ---------------------------------------------------------------------------------------------

    def _round(self) -> Round:
        """Index a batch."""
        if not self._claim():
            return Round.BUSY
        if not self._known:
            # Register the reader: an index needs the journal's cursors.
            self._all.behind(READER, 1)
            self._known = True
        try:
            self._index.prepare(self._holds)
            moves = self._gather()
            if moves:
                self._index.apply(moves, self._holds)
            more = self._index.tidy(idle=not moves)
        except LeaseLost:
            self._lease = None
            return Round.BUSY
        return Round.MORE if moves or more else Round.DONE

    def _gather(self) -> list[Move]:
        """Return the next facts of the conversations with unread events."""
        moves: list[Move] = []
        docs = size = 0
        for behind in self._all.behind(READER, CONVERSATIONS_PER_BATCH):
            num = self._store.num(behind.user, behind.conversation)
            if not num:
                continue
            move = self._step(num, behind)
            moves.append(move)
            docs += len(move.docs)
            size += sum(len(doc.folded) for doc in move.docs)
            if docs >= DOCS_PER_BATCH or size >= BYTES_PER_BATCH or self._stop.is_set():
                break
        return moves

    def _step(self, num: int, behind: Behind) -> Move:
        start = self._index.position(num, behind.at)
        rows = self._facts(num, start)
        anew = False
        if start.seq and start.digest is not None:
            anew = (
                not rows
                or rows[0][0] & ALL_SEQS != start.seq
                or rows[0][4] != start.digest
            )
            rows = self._facts(num, Position(0)) if anew else rows
        after = 0 if anew else start.seq
        rows = [row for row in rows if row[0] & ALL_SEQS > after]
        docs: list[Doc] = []
        erased: list[int] = []
        to, digest, size = after, start.digest or b"", 0
        for row_key, kind, at, body, stamp in rows:
            to, digest = row_key & ALL_SEQS, stamp
            if (
                body is not None
                and kind in ROLE_OF
                and (folded := fold(words_in(kind, body)))
            ):
                docs.append(Doc(row_key, at, folded))
                size += len(folded)
            elif kind == ContentErased.kind and body is not None:
                erased += [bounds(num)[0] + seq for seq in _seqs(body)]
            if size >= BYTES_PER_BATCH:
                break
        return Move(num, behind.user, behind.at, start, anew, to, digest, docs, erased)

    def _facts(self, num: int, start: Position) -> list[SqlRow]:
        low, high = bounds(num)
        where = {
            "low": low + start.seq,
            "high": high,
            "limit": FACTS_PER_READ,
            "bytes": BYTES_PER_BATCH,
        }
        return self._store.query("facts_from", **where)


def _seqs(body: bytes) -> list[int]:
    """Return the seqs of an erasure. `tenax doctor` reports an unreadable erasure."""
    try:
        event = decode(ContentErased.kind, body)
    except StoreDamaged:
        return []
    return event.seqs if isinstance(event, ContentErased) else []
