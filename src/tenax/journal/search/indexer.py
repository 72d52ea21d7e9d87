"""The reader that keeps the index of words: a thread that is there while there is something to index.

It is woken by what this process stores, lets it gather for a moment, and takes it in by small batches with pauses, so
that appends hardly feel it. It needs no wake-ups from other processes: each wakes its own, and the lease sees to it
that one at a time works, for all. Nothing waits for it: a query reads what it has not reached, and a process that ends
leaves the rest to the next.

The store may be away for as long as it likes; it is tried again, more and more rarely.
"""

from __future__ import annotations

import enum
import logging
import threading
from typing import TYPE_CHECKING

from tenax.concurrency import started
from tenax.errors import LeaseLost, StoreDamaged, TenaxError
from tenax.events import ContentErased, decode
from tenax.journal.journal import Journal
from tenax.journal.place import ALL_SEQS, bounds
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
from tenax.journal.search.search import NoSearch
from tenax.journal.store import Trouble

if TYPE_CHECKING:
    from tenax.journal.base import Behind, Lease
    from tenax.journal.store import Row, Store, Tx

__all__ = ["Indexer"]

log = logging.getLogger(__name__)

LEASE = f"reader:{READER.name}"
LEASE_SECONDS = 30.0
GATHER_SECONDS = 0.5
"""How long new messages gather before they are taken in: long enough for a command that ends at once to end first."""
IDLE_SECONDS = 5.0
"""Then the thread ends, and the lease is free."""
OTHERS_SECONDS = 2.0
BUSY_TRIES = 5
"""Who finds that another process indexes looks again this often, and then leaves it to that one."""
BACK_OFF_SECONDS = (1.0, 60.0)
CLOSE_SECONDS = 2.0
FACTS_PER_READ = 200
DOCS_PER_BATCH = 200
BYTES_PER_BATCH = 1024 * 1024
CONVERSATIONS_PER_BATCH = 100
PAUSE_PER_WORK = 3.0
"""While messages are being stored, it rests three times as long as it works."""


class Round(enum.Enum):
    """How a round went."""

    DONE = "nothing is left"
    MORE = "there is more"
    BUSY = "another process has the lease"


class Indexer:
    """One per open store."""

    def __init__(self, store: Store, index: SearchIndex) -> None:
        self._store = store
        self._index = index
        self._all = Journal(store, None, NoSearch())
        self._own = Journal(store, None, NoSearch())
        # whose lease it is: the process's, and no user can be called that
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
        store.hub.also = self.wake

    # -- the thread ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to index. From any thread, quickly."""
        if self._hint.is_set():
            return
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = started(self._run, "tenax-search")
            if self._thread is not None:  # otherwise the next wake tries again
                self._hint.set()

    def catch_up(self, seconds: float) -> bool:
        """Index in this thread until nothing is left. False if that takes longer."""
        deadline = self._store.clock.monotonic() + seconds
        while not self._stop.is_set():
            if not self._rounds.acquire(
                timeout=max(0.0, deadline - self._store.clock.monotonic())
            ):
                return False
            try:
                outcome = self._round()
            except Unusable:  # a damaged index is made anew by the next round
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
        """Stop, within bounds. The lease needs no release: it is free as soon as this instance is gone."""
        with self._lock:
            self._stop.set()
            self._hint.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._index.interrupt()
            thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        failures = idle = 0
        while not self._stop.wait(GATHER_SECONDS):
            self._hint.clear()
            try:
                outcome = self._work()
            except Exception as error:  # noqa: BLE001  (a surprise must not end indexing for good; it is logged)
                failures = self._failed(error, failures)
                continue
            failures = 0
            if self._hint.wait(IDLE_SECONDS):
                idle = 0
            elif (outcome is Round.DONE or idle >= BUSY_TRIES) and self._leave():
                return
            else:
                idle += 1
            if outcome is Round.BUSY:
                self._stop.wait(OTHERS_SECONDS)

    def _work(self) -> Round:
        """Batch after batch, with pauses, until nothing is left."""
        while True:
            began = self._store.clock.monotonic()
            with self._rounds:
                outcome = self._round()
            if outcome is not Round.MORE or self._stop.is_set():
                return outcome
            self._rest(self._store.clock.monotonic() - began)

    def _rest(self, worked: float) -> None:
        """Leave the disk, the processor and the interpreter to others for a while."""
        share = PAUSE_PER_WORK if self._hint.is_set() else 0.25
        self._hint.clear()
        self._stop.wait(min(max(worked * share, 0.002), 1.0))

    def _leave(self) -> bool:
        """End the thread, unless it was woken just now."""
        self._let_go()
        with self._lock:
            if self._hint.is_set() and not self._stop.is_set():
                return False
            self._thread = None
            return True

    def _failed(self, error: Exception, failures: int) -> int:
        if self._stop.is_set():
            return failures
        if failures == 0:
            said = f"Search cannot go on indexing for now, and will try again: {error}"
            surprise = not isinstance(error, TenaxError | Trouble | Unusable)
            log.warning(
                said,
                exc_info=error if surprise else None,
                extra={"action": "search_index_failed"},
            )
        first, longest = BACK_OFF_SECONDS
        self._stop.wait(min(first * 2**failures, longest))
        return min(failures + 1, 10)

    # -- the lease -------------------------------------------------------------------------------------------

    def _holds(self, tx: Tx) -> None:
        """Raise LeaseLost unless this process still has the lease, inside the transaction that relies on it."""
        lease = self._lease
        rows = tx.run("fence", {"owner": "", "name": LEASE})
        if lease is None or not rows or tuple(rows[0]) != (lease.fence, lease.token):
            raise LeaseLost("Another process indexes now.")

    def _claim(self) -> bool:
        now = self._store.clock.monotonic()
        if self._lease is not None and now < self._renew_at:
            return True
        try:
            if self._lease is not None:
                self._lease = self._own.renew(self._lease)
            else:
                # a read; who finds it taken writes nothing
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

    def _let_go(self) -> None:
        with self._rounds:
            lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._own.release(lease)
            except TenaxError:
                log.debug(
                    "The lease of search was not given back; it runs out by itself."
                )

    # -- a round ---------------------------------------------------------------------------------------------

    def _round(self) -> Round:
        """One batch."""
        if not self._claim():
            return Round.BUSY
        if not self._known:
            self._all.behind(
                READER, 1
            )  # from here on the journal keeps its cursors, which an index relies on
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
        """The next facts of those conversations that are behind."""
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
        for place, kind, at, body, stamp in rows:
            to, digest = place & ALL_SEQS, stamp
            if (
                body is not None
                and kind in ROLE_OF
                and (folded := fold(words_in(kind, body)))
            ):
                docs.append(Doc(place, at, folded))
                size += len(folded)
            elif kind == ContentErased.kind and body is not None:
                erased += [bounds(num)[0] + seq for seq in _seqs(body)]
            if size >= BYTES_PER_BATCH:
                break
        return Move(num, behind.user, behind.at, start, anew, to, digest, docs, erased)

    def _facts(self, num: int, start: Position) -> list[Row]:
        low, high = bounds(num)
        where = {
            "low": low + start.seq,
            "high": high,
            "limit": FACTS_PER_READ,
            "bytes": BYTES_PER_BATCH,
        }
        return self._store.query("facts_from", **where)


def _seqs(body: bytes) -> list[int]:
    """What an erasure names. One that cannot be read is `doctor`'s business."""
    try:
        event = decode(ContentErased.kind, body)
    except StoreDamaged:
        return []
    return event.seqs if isinstance(event, ContentErased) else []
