"""Group commit: appends that wait share one transaction.

A caller that finds nobody before it commits in its own thread. When callers queue, the one that leads takes all that
wait, and the next leader is the first caller still waiting. An asynchronous caller has no thread to lead with, so a
writer thread leads for it; that thread is made when it is first needed. Nobody is told anything before the commit of
its group has returned.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tenax.concurrency import started
from tenax.errors import StoreBusy, StoreMisused
from tenax.journal import guard
from tenax.journal.hub import call_in

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
    """One caller and its append. Exactly one of `recorded` and `error` is set when it is done."""

    append: Append
    deadline: float
    future: asyncio.Future[list[Recorded]] | None = None
    recorded: list[Recorded] = []
    error: BaseException | None = None
    done: bool = False
    leads: bool = False
    deserted: bool = False
    """Its caller was interrupted and no longer waits."""
    signal: threading.Lock | None = None

    def settle(self, outcome: list[Recorded] | BaseException) -> None:
        """Set the outcome. Waking the caller is the group's business."""
        if isinstance(outcome, BaseException):
            self.error = outcome
        else:
            self.recorded = outcome
        self.done = True

    def block(self) -> None:
        """Make ready to wait; called under the queue's lock."""
        self.signal = threading.Lock()
        self.signal.acquire()

    def wait(self) -> None:
        """Wait to be done, or to lead."""
        if self.signal is not None:
            self.signal.acquire()

    def wake(self) -> None:
        if self.signal is not None:
            self.signal.release()


class GroupCommit:
    """The queue before the store. `commit` settles every waiter of the group that it is given."""

    def __init__(self, commit: Callable[[list[Waiter]], None], name: str) -> None:
        self._commit = commit
        self._name = name
        self._forks = guard.forks()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._stopped = False
        self._waiting: deque[Waiter] = deque()
        self._led = False
        self._closed = False
        self._writer: threading.Thread | None = None
        self._call_writer = threading.Semaphore(0)
        self._writer_leads = False
        self.groups = 0
        self.appends = 0

    def run(self, waiter: Waiter) -> list[Recorded]:
        """Append and wait for the outcome."""
        try:
            if self._join(waiter):
                self._lead([waiter], until=waiter)
            else:
                waiter.wait()
                if not waiter.done:
                    self._lead(self._take(), until=waiter)
        except BaseException:
            self._desert(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter.recorded

    def submit(self, waiter: Waiter) -> None:
        """Append without waiting; `waiter.future` learns the outcome."""
        if self._join(waiter):
            self._wake_writer()

    def close(self) -> None:
        """Take no more. What waits is still committed."""
        with self._lock:
            self._closed = True
            if threading.current_thread() is self._writer:
                return
            while self._led:  # the leader, whoever that is, sees to all that wait
                self._idle.wait()
            self._stopped = True
            writer = self._writer
        if writer is not None:
            self._call_writer.release()
            writer.join()

    def _join(self, waiter: Waiter) -> bool:
        """Queue up. True if there is nobody: then the caller leads, and a thread is its own first group."""
        guard.refuse_after_fork(self._forks)
        with self._lock:
            if self._closed:
                raise StoreMisused("The store was closed.")
            if len(self._waiting) >= WAITING_MAX:
                raise StoreBusy(
                    f"{WAITING_MAX:,} appends wait for the store already; this one was not taken."
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

    def _desert(self, waiter: Waiter) -> None:
        """The caller was interrupted (Ctrl-C). Its append goes on without it, and the writer thread leads.

        It may have led, or have been handing that on. Should another lead already, two are no harm: a commit takes a lock.
        """
        with self._lock:
            waiter.deserted = True
            leads, waiter.leads = waiter.leads, False
            left = leads or bool(self._waiting)
        if left:
            self._wake_writer()

    def _wake_writer(self) -> None:
        with self._lock:  # who deserts and who hands on may both want one
            if self._writer is None:
                self._writer = started(self._write, f"{self._name}-writer")
        if self._writer is None:  # who calls leads instead
            self._lead(self._take(), until=None)
            return
        self._writer_leads = True
        self._call_writer.release()

    def _write(self) -> None:
        while True:
            self._call_writer.acquire()
            if self._writer_leads:
                self._writer_leads = False
                self._lead(self._take(), until=None)
            if self._stopped:
                self._call_writer.release()  # for one that Ctrl-C left without a name
                return

    def _lead(self, group: list[Waiter], until: Waiter | None) -> None:
        """Commit group after group: until this waiter is done, or (the writer thread) until nobody waits."""
        while True:
            if group:
                self._settle(group)
            with self._lock:
                go_on = self._waiting and (until is None or not until.done)
                if until is not None and not go_on:
                    until.leads = False
                if not self._waiting:
                    self._led = False
                    if self._closed:
                        self._idle.notify_all()
                    return
            if not go_on:
                self._hand_on()
                return
            group = self._take()

    def _hand_on(self) -> None:
        """Leadership goes on to the first who waits; `_led` stays true, so nobody else takes it."""
        with self._lock:
            heir = self._waiting[0]
            has_thread = heir.future is None and not heir.deserted
            heir.leads = has_thread
        if has_thread:
            heir.wake()
        else:
            self._wake_writer()

    def _take(self) -> list[Waiter]:
        """The next group: bounded by count and bytes; what has to be alone is alone."""
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
        except Exception as error:  # noqa: BLE001  (a surprise ends the group, and each of its callers is told)
            for waiter in group:
                if not waiter.done:
                    waiter.settle(error)
        except BaseException:
            # The leader is interrupted, the others are not: their appends go back to the front of the queue, and
            # are looked up before they are tried again.
            again = [waiter for waiter in group if not waiter.done]
            for waiter in again:
                waiter.append.repeated = True
            with self._lock:
                self._waiting.extendleft(reversed(again))
            raise
        finally:
            _tell(group)


def _tell(group: list[Waiter]) -> None:
    """Wake everybody in the group who is done: threads one by one, each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
    for waiter in group:
        if not waiter.done:
            continue
        if waiter.future is None:
            waiter.wake()
        else:
            by_loop.setdefault(waiter.future.get_loop(), []).append(waiter)
    for loop, waiters in by_loop.items():
        call_in(loop, _resolve, waiters)


def _resolve(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        future = waiter.future
        if future is None or future.done():
            continue
        if waiter.error is not None:
            future.set_exception(waiter.error)
        else:
            future.set_result(waiter.recorded)
