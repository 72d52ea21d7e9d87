"""The journal for asyncio: the same verbs, awaited.

An append is a future that the committing side resolves, one wake-up per group; it never holds a thread, so a hundred
tasks still share one commit. Everything else runs on a few threads of its own, never on the loop's default pool. They
are daemons: a store that hangs cannot keep the process from ending.

A cancelled `append` is still stored or refused. It waits for that (within the store's patience), and the
`CancelledError` it then raises carries a `CancelledAppend` that says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import msgspec

from tenax.concurrency import started
from tenax.errors import StoreUnavailable, TenaxError
from tenax.journal import guard
from tenax.journal.base import Recorded
from tenax.journal.hub import call_in
from tenax.journal.journal import TAIL_PAGE, Journal, Place
from tenax.journal.plan import Append

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import TracebackType

    from tenax.clock import Clock, Ids
    from tenax.events import ConversationOpened, Event
    from tenax.journal.base import Dedup, Entry, Expect, Lease
    from tenax.journal.store import Store

__all__ = ["THREADS", "AsyncJournal", "CancelledAppend", "Threads", "Twin", "awaited"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
THREADS = 4


class CancelledAppend(msgspec.Struct, frozen=True):
    """What became of an append whose caller was cancelled: `cancelled_error.args[0]`."""

    append_id: bytes
    recorded: list[Recorded]
    error: TenaxError | None


class Twin(Generic[S]):
    """Something synchronous, whose methods are awaited here."""

    def __init__(self, behind: S, threads: Threads) -> None:
        self._behind = behind
        self._threads = threads


def awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Twin[S], P], Awaitable[T]]:
    """The same method, for a twin: it runs on one of the twin's threads."""

    async def call(self: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run(
            functools.partial(method, self._behind, *args, **kwargs)
        )

    return functools.update_wrapper(call, method)


class AsyncJournal(Twin[Journal]):
    """A `Journal` whose verbs are awaited."""

    def __init__(self, journal: Journal, threads: Threads | None = None) -> None:
        super().__init__(journal, threads or Threads(THREADS))

    @property
    def journal(self) -> Journal:
        """The one behind it."""
        return self._behind

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def user(self) -> str | None:
        return self.journal.user

    @property
    def clock(self) -> Clock:
        return self.journal.clock

    @property
    def ids(self) -> Ids:
        return self.journal.ids

    @property
    def store(self) -> Store:
        return self.journal.store

    @property
    def incarnation(self) -> str:
        return self.journal.incarnation

    def of(self, user: str | None) -> AsyncJournal:
        """The same store, for another user; None: for the process itself."""
        return AsyncJournal(self.journal.of(user), self._threads)

    async def append(
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
        """As `Journal.append`; no thread waits for it."""
        return await self._submit(self.journal.prepare(conversation, events, run=run, expect=expect, lease=lease,
                                                       dedup=dedup, append_id=append_id))  # fmt: skip

    async def load(
        self, conversation: str, opened: ConversationOpened, entries: Sequence[Entry]
    ) -> list[Recorded]:
        """As `Journal.load`."""
        return await self._submit(
            self.journal.prepare_load(conversation, opened, entries)
        )

    async def _submit(self, append: Append) -> list[Recorded]:
        store = self.journal.store
        outcome = _Outcome(loop=asyncio.get_running_loop())
        store.queue.submit(store.waiter(append, outcome))
        try:
            return await outcome
        except asyncio.CancelledError:
            error = outcome.exception()
            if error is not None and not isinstance(error, TenaxError):
                raise
            said = CancelledAppend(
                append.append_id, [] if error else outcome.result(), error
            )
            raise asyncio.CancelledError(said) from None

    async def tail(
        self, conversation: str, after: int | Place = 0, *, one_life: bool = False
    ) -> AsyncIterator[Recorded]:
        """As `Journal.tail`, until its task is cancelled; with `one_life`, until the store has another incarnation."""
        loop, hint = asyncio.get_running_loop(), asyncio.Event()
        num = await self._threads.run(lambda: self.journal.number(conversation))
        place = (
            after if isinstance(after, Place) else await self.place(conversation, after)
        )
        with self.journal.store.hub.listening(
            num, functools.partial(call_in, loop, hint.set)
        ):
            while True:
                hint.clear()
                page = await self.read(conversation, after=place.after, limit=TAIL_PAGE)
                if not place.holds(self.incarnation):
                    if one_life:
                        return
                    place.limit((await self.head(conversation)).facts)
                    continue
                for recorded in page:
                    yield recorded
                    place.take(recorded)
                if len(page) < TAIL_PAGE:
                    with contextlib.suppress(TimeoutError):
                        # wait_for of Python 3.11 may swallow a cancel
                        async with asyncio.timeout(1.0):
                            await hint.wait()

    async def wait(self, conversation: str, after: int, *, seconds: float) -> bool:
        """Wait until there is an event after this number. False when there was none in that time."""
        loop, hint = asyncio.get_running_loop(), asyncio.Event()
        deadline = loop.time() + seconds
        num = await self._threads.run(lambda: self.journal.number(conversation))
        with self.journal.store.hub.listening(
            num, functools.partial(call_in, loop, hint.set)
        ):
            while True:
                hint.clear()
                if (await self.head(conversation)).head > after:
                    return True
                left = deadline - loop.time()
                if left <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, 1.0)):
                        await hint.wait()

    async def apart(self, work: Callable[[], T]) -> T:
        """Run this on one of the facade's threads: for a caller that does several things with the journal at once."""
        return await self._threads.run(work)

    async def instance(self) -> str:
        """This process, as the store knows it."""
        return await self._threads.run(lambda: self.journal.instance)

    def let_go(self) -> None:
        """Let the threads of this facade end; the journal stays open."""
        self._threads.stop()

    async def close(self) -> None:
        """Commit what waits and let go of the store, for all its users."""
        await self._threads.run(self.journal.close)
        self._threads.stop()

    place = awaited(Journal.place)
    read = awaited(Journal.read)
    head = awaited(Journal.head)
    rows = awaited(Journal.rows)
    open = awaited(Journal.open)
    messages = awaited(Journal.messages)
    waiting = awaited(Journal.waiting)
    row_changes = awaited(Journal.row_changes)
    next_run = awaited(Journal.next_run)
    has_late_output = awaited(Journal.has_late_output)
    fact = awaited(Journal.fact)
    conversations = awaited(Journal.conversations)
    summary = awaited(Journal.summary)
    stretch = awaited(Journal.stretch)
    children = awaited(Journal.children)
    delegated = awaited(Journal.delegated)
    run = awaited(Journal.run)
    use_attempt = awaited(Journal.use_attempt)
    interrupted = awaited(Journal.interrupted)
    unfinished = awaited(Journal.unfinished)
    spent = awaited(Journal.spent)
    search = awaited(Journal.search)
    claim = awaited(Journal.claim)
    renew = awaited(Journal.renew)
    release = awaited(Journal.release)
    release_held = awaited(Journal.release_held)
    holder = awaited(Journal.holder)
    instances = awaited(Journal.instances)
    swept = awaited(Journal.swept)
    cursor = awaited(Journal.cursor)
    advance = awaited(Journal.advance)
    defer = awaited(Journal.defer)
    behind = awaited(Journal.behind)
    bury = awaited(Journal.bury)
    letters = awaited(Journal.letters)
    unbury = awaited(Journal.unbury)
    owed = awaited(Journal.owed)
    shared = awaited(Journal.shared)
    put_blob = awaited(Journal.put_blob)
    get_blob = awaited(Journal.get_blob)
    naming = awaited(Journal.naming)
    collect_blobs = awaited(Journal.collect_blobs)
    fork = awaited(Journal.fork)
    erase = awaited(Journal.erase)
    delete = awaited(Journal.delete)
    prune = awaited(Journal.prune)


class _Outcome(asyncio.Future[list[Recorded]]):
    """The outcome of an append. It cannot be cancelled: a task that is cancelled meanwhile is so once it is known."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  (asyncio's signature)
        return False


class Threads:
    """A few daemon threads for calls that may block. A cancelled caller leaves its call to finish by itself."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._forks = guard.forks()

    async def run(self, work: Callable[[], T]) -> T:
        """Run this on one of the threads and wait for it."""
        guard.refuse_after_fork(self._forks)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                settle = functools.partial(_resolve, future, work(), None)
            except BaseException as error:  # noqa: BLE001  (it is raised where it is awaited)
                settle = functools.partial(_resolve, future, None, error)
            call_in(loop, settle)

        if len(self._threads) < self._count:
            self._begin()
        self._calls.put(call)
        return await future

    def _begin(self) -> None:
        """One more thread. Where there is no room for it now, those that are there do the work."""
        thread = started(self._work, f"tenax-aio-{len(self._threads)}")
        if thread is not None:
            self._threads.append(thread)
        elif not self._threads:
            raise StoreUnavailable(
                "There is no room for one more thread on this machine."
            )

    def stop(self) -> None:
        """Let the threads end when they have nothing left to do."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads.clear()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _resolve(
    future: asyncio.Future[Any],
    result: Any,  # noqa: ANN401
    error: BaseException | None,
) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
