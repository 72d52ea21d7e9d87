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
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import msgspec

from tenax.errors import TenaxError
from tenax.journal.base import Recorded
from tenax.journal.journal import Journal
from tenax.journal.plan import Append

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import TracebackType

    from tenax.events import ConversationOpened, Event
    from tenax.journal.base import Dedup, Entry, Expect, Lease

__all__ = ["AsyncJournal", "CancelledAppend", "Threads"]

P = ParamSpec("P")
T = TypeVar("T")
THREADS = 4
_TAIL_PAGE = 500


class CancelledAppend(msgspec.Struct, frozen=True):
    """What became of an append whose caller was cancelled: `cancelled_error.args[0]`."""

    append_id: bytes
    recorded: list[Recorded]
    error: TenaxError | None


def _awaited(verb: Callable[Concatenate[Journal, P], T]) -> Callable[Concatenate[AsyncJournal, P], Awaitable[T]]:
    @functools.wraps(verb)
    async def call(self: AsyncJournal, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run(functools.partial(verb, self.journal, *args, **kwargs))

    return call


class AsyncJournal:
    """A `Journal` whose verbs are awaited."""

    def __init__(self, journal: Journal, threads: Threads | None = None) -> None:
        self.journal = journal
        self._threads = threads or Threads(THREADS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # noqa: E501
        await self.close()

    user = property(lambda self: self.journal.user)
    clock = property(lambda self: self.journal.clock)
    ids = property(lambda self: self.journal.ids)
    store = property(lambda self: self.journal.store)
    incarnation = property(lambda self: self.journal.incarnation)

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

    async def load(self, conversation: str, opened: ConversationOpened, entries: Sequence[Entry]) -> list[Recorded]:
        """As `Journal.load`."""
        return await self._submit(self.journal.prepare_load(conversation, opened, entries))

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
            said = CancelledAppend(append.append_id, [] if error else outcome.result(), error)
            raise asyncio.CancelledError(said) from None

    async def tail(self, conversation: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Every event after a number, the stored ones and then the new ones as they come."""
        loop, hint = asyncio.get_running_loop(), asyncio.Event()
        num = await self._threads.run(lambda: self.journal.number(conversation))
        with self.journal.store.hub.listening(num, lambda: loop.call_soon_threadsafe(hint.set)):
            while True:
                hint.clear()
                page = await self.read(conversation, after=after, limit=_TAIL_PAGE)
                for each in page:
                    yield each
                if page:
                    after = page[-1].seq
                else:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(hint.wait(), 1.0)

    async def wait(self, conversation: str, after: int, *, seconds: float) -> bool:
        """Wait until there is an event after this number. False when there was none in that time."""
        loop, hint = asyncio.get_running_loop(), asyncio.Event()
        deadline = loop.time() + seconds
        num = await self._threads.run(lambda: self.journal.number(conversation))
        with self.journal.store.hub.listening(num, lambda: loop.call_soon_threadsafe(hint.set)):
            while True:
                hint.clear()
                if (await self.head(conversation)).head > after:
                    return True
                left = deadline - loop.time()
                if left <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(hint.wait(), min(left, 1.0))

    async def instance(self) -> str:
        """This process, as the store knows it."""
        return await self._threads.run(lambda: self.journal.instance)

    async def close(self) -> None:
        """Commit what waits and let go of the store, for all its users."""
        await self._threads.run(self.journal.close)
        self._threads.stop()

    read = _awaited(Journal.read)
    head = _awaited(Journal.head)
    rows = _awaited(Journal.rows)
    open = _awaited(Journal.open)
    messages = _awaited(Journal.messages)
    fact = _awaited(Journal.fact)
    conversations = _awaited(Journal.conversations)
    summary = _awaited(Journal.summary)
    stretch = _awaited(Journal.stretch)
    children = _awaited(Journal.children)
    late = _awaited(Journal.late)
    search = _awaited(Journal.search)
    claim = _awaited(Journal.claim)
    renew = _awaited(Journal.renew)
    release = _awaited(Journal.release)
    holder = _awaited(Journal.holder)
    instances = _awaited(Journal.instances)
    swept = _awaited(Journal.swept)
    cursor = _awaited(Journal.cursor)
    advance = _awaited(Journal.advance)
    defer = _awaited(Journal.defer)
    behind = _awaited(Journal.behind)
    put_blob = _awaited(Journal.put_blob)
    get_blob = _awaited(Journal.get_blob)
    fork = _awaited(Journal.fork)
    erase = _awaited(Journal.erase)
    delete = _awaited(Journal.delete)
    prune = _awaited(Journal.prune)


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

    async def run(self, work: Callable[[], T]) -> T:
        """Run this on one of the threads and wait for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                settle = functools.partial(_resolve, future, work(), None)
            except BaseException as error:  # noqa: BLE001  (it is raised where it is awaited)
                settle = functools.partial(_resolve, future, None, error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle)

        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name=f"tenax-aio-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._calls.put(call)
        return await future

    def stop(self) -> None:
        """Let the threads end when they have nothing left to do."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads.clear()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:  # noqa: ANN401
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
