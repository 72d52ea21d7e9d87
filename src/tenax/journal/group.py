"""Group commit: waiting appends share a transaction.

A caller commits in its own thread if the queue is empty. When callers queue, one caller is the leader: the leader
commits all waiting appends, and then the first waiting caller becomes the leader. An asynchronous caller has no thread,
so a writer thread leads in its place; the writer thread starts on first use. A caller gets the result only after the
commit of the group has returned.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tenax.concurrency import (
    call_in_loop,
    count_forks,
    refuse_after_fork,
    start_thread,
)
from tenax.errors import StoreBusy, StoreMisused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tenax.journal.base import Recorded
    from tenax.journal.plan import Append

__all__ = ["APPENDS_PER_GROUP_MAX", "BYTES_PER_GROUP_MAX", "GroupCommit", "Waiter"]

APPENDS_PER_GROUP_MAX = 256
BYTES_PER_GROUP_MAX = 1024 * 1024
WAITING_MAX = 20_000


class Waiter(msgspec.Struct, eq=False):
    """A caller and its append. When `done` is true, exactly one of `recorded` and `error` is set."""

    append: Append
    deadline: float
    future: asyncio.Future[list[Recorded]] | None = None
    recorded: list[Recorded] = []
    error: BaseException | None = None
    done: bool = False
    leads: bool = False
    abandoned: bool = False
    """The caller was interrupted and no longer waits."""
    signal: threading.Lock | None = None

    def settle(self, outcome: list[Recorded] | BaseException) -> None:
        """Set the outcome. The group wakes the caller later."""
        if isinstance(outcome, BaseException):
            self.error = outcome
        else:
            self.recorded = outcome
        self.done = True

    def block(self) -> None:
        """Prepare to wait. The caller holds the lock of the queue."""
        self.signal = threading.Lock()
        self.signal.acquire()

    def wait(self) -> None:
        """Wait until the append is done or the caller becomes the leader."""
        if self.signal is not None:
            self.signal.acquire()

    def wake(self) -> None:
        if self.signal is not None:
            self.signal.release()


class GroupCommit:
    """The queue in front of the store. The function `commit` settles every waiter of a group."""

    def __init__(self, commit: Callable[[list[Waiter]], None], name: str) -> None:
        self._commit = commit
        self._name = name
        self._forks = count_forks()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._stopped = False
        self._waiting: deque[Waiter] = deque()
        self._led = False
        self.closed = False
        self._writer: threading.Thread | None = None
        self._call_writer = threading.Semaphore(0)
        self._writer_leads = False
        self.groups = 0
        self.appends = 0

    @property
    def waiting(self) -> int:
        """The number of queued appends."""
        return len(self._waiting)

    def run(self, waiter: Waiter) -> list[Recorded]:
        """Append and wait for the outcome."""
        try:
            if self._join(waiter):
                self._lead([waiter], until=waiter)
            else:
                waiter.wait()
                if not waiter.done:
                    self._lead(self._take_group(), until=waiter)
        except BaseException:
            self._abandon(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter.recorded

    def submit(self, waiter: Waiter) -> None:
        """Append without waiting. `waiter.future` gets the outcome."""
        if self._join(waiter):
            try:
                self._wake_writer()
            except BaseException:
                # Ctrl-C may arrive while the writer thread starts.
                self._abandon(waiter)
                raise

    def close(self) -> None:
        """Commit the waiting appends and accept no more."""
        with self._lock:
            self.closed = True
            if threading.current_thread() is self._writer:
                return
            # The leader commits all waiting appends.
            while self._led:
                self._idle.wait()
            self._stopped = True
            writer = self._writer
        if writer is not None:
            self._call_writer.release()
            writer.join()

    def _join(self, waiter: Waiter) -> bool:
        """Add the waiter to the queue. Return `True` if the caller becomes the leader.

        A thread is not queued if the thread becomes the leader: its own append is the first group.
        """
        refuse_after_fork(self._forks)
        with self._lock:
            if self.closed:
                raise StoreMisused("The store was closed.")
            if self.waiting >= WAITING_MAX:
                raise StoreBusy(
                    f"The append was not accepted: {WAITING_MAX:,} appends already wait for the store."
                )
            alone = not self._led
            if alone:
                self._led = waiter.leads = True
            if alone and waiter.future is None:
                self.groups += 1
                self.appends += 1
                return True
            self._waiting.append(waiter)
            if not alone and waiter.future is None:
                waiter.block()
            return alone

    def _abandon(self, waiter: Waiter) -> None:
        """Let the writer thread finish the append of an interrupted caller (Ctrl-C).

        The caller may have been the leader, or may have been appointing the next leader. Two leaders do no harm,
        because a commit takes a lock.
        """
        with self._lock:
            waiter.abandoned = True
            work_left = waiter.leads or self._waiting
            waiter.leads = False
        if work_left:
            self._wake_writer()

    def _wake_writer(self) -> None:
        # An interrupted caller and a leader handing on may get here at the same time.
        with self._lock:
            if self._writer is None:
                self._writer = start_thread(self._run_writer, f"{self._name}-writer")
        # Without room for one more thread the calling thread leads.
        if self._writer is None:
            self._lead(self._take_group(), until=None)
            return
        self._writer_leads = True
        self._call_writer.release()

    def _run_writer(self) -> None:
        while True:
            self._call_writer.acquire()
            if self._writer_leads:
                self._writer_leads = False
                self._lead(self._take_group(), until=None)
            if self._stopped:
                # Ctrl-C during thread start may have left a second writer thread: let it end too.
                self._call_writer.release()
                return

    def _lead(self, group: list[Waiter], until: Waiter | None) -> None:
        """Commit groups until the waiter `until` is done. The writer thread commits until the queue is empty."""
        while True:
            if group:
                self._settle(group)
            with self._lock:
                go_on = self._waiting and (until is None or not until.done)
                if until is not None and not go_on:
                    until.leads = False
                if not self._waiting:
                    self._led = False
                    if self.closed:
                        self._idle.notify_all()
                    return
            if not go_on:
                self.hand_on()
                return
            group = self._take_group()

    def hand_on(self) -> None:
        """Make the first waiting caller the leader. `_led` stays true, so that no new caller becomes a leader."""
        with self._lock:
            first = self._waiting[0]
            has_thread = first.future is None and not first.abandoned
            first.leads = has_thread
        if has_thread:
            first.wake()
        else:
            self._wake_writer()

    def _take_group(self) -> list[Waiter]:
        """Take the next group from the queue, bounded by count and bytes. A solo append is a separate group."""
        group: list[Waiter] = []
        nbytes = 0
        with self._lock:
            while self._waiting and len(group) < APPENDS_PER_GROUP_MAX:
                append = self._waiting[0].append
                nbytes += append.nbytes
                if group and (append.solo or nbytes > BYTES_PER_GROUP_MAX):
                    break
                group.append(self._waiting.popleft())
                if append.solo:
                    break
            self.groups += 1
            self.appends += len(group)
        return group

    def _settle(self, group: list[Waiter]) -> None:
        try:
            self._commit(group)
        except Exception as error:  # noqa: BLE001  (an unexpected error goes to every caller of the group)
            for waiter in group:
                if not waiter.done:
                    waiter.settle(error)
        except BaseException:
            # The leader is interrupted, the other callers are not. Their appends go back to the front of the queue, and
            # are looked up before the next attempt.
            again = [waiter for waiter in group if not waiter.done]
            for waiter in again:
                waiter.append.repeated = True
            with self._lock:
                self._waiting.extendleft(reversed(again))
            raise
        finally:
            _wake_callers(group)


def _wake_callers(group: list[Waiter]) -> None:
    """Wake every caller with a finished append: threads one by one, every event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
    for waiter in group:
        if not waiter.done:
            continue
        if waiter.future is None:
            waiter.wake()
        else:
            by_loop.setdefault(waiter.future.get_loop(), []).append(waiter)
    for loop, waiters in by_loop.items():
        call_in_loop(loop, _resolve, waiters)


def _resolve(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        future = waiter.future
        if future is None or future.done():
            continue
        if waiter.error is not None:
            future.set_exception(waiter.error)
        else:
            future.set_result(waiter.recorded)
