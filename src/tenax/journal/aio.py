"""The journal for asyncio: the same methods as coroutines.

An append is a future, resolved by the committing thread with a single wake-up per group. An append never holds a
thread, so a hundred tasks still share a commit. Every other method runs on a small thread pool, never on the loop's
default pool. The threads are daemons: a hanging store cannot keep the process from ending.

A cancelled `append` is still stored or refused. The append waits for the outcome (within the store's patience), and
then raises a `CancelledError` with the outcome as a `CancelledAppend`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar

import msgspec

from tenax.concurrency import ThreadPool, call_in_loop
from tenax.errors import TenaxError
from tenax.journal.base import Recorded
from tenax.journal.journal import TAIL_PAGE, Journal, TailPosition
from tenax.journal.plan import Append

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import TracebackType

    from tenax.events import ConversationOpened, Event
    from tenax.journal.base import Dedup, Expect, Lease, RawEvent, StoredEvent

__all__ = ["THREADS", "AsyncFacade", "AsyncJournal", "CancelledAppend", "awaited"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
THREADS = 4


class CancelledAppend(msgspec.Struct, frozen=True):
    """The outcome of an append with a cancelled caller: `cancelled_error.args[0]`."""

    append_id: bytes
    recorded: list[Recorded]
    error: TenaxError | None


class AsyncFacade(Generic[S]):
    """The asyncio counterpart of a synchronous object."""

    def __init__(self, behind: S, threads: ThreadPool) -> None:
        self._behind = behind
        self.threads = threads


def awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[AsyncFacade[S], P], Awaitable[T]]:
    """Return the method as a coroutine of an `AsyncFacade`. The method runs on a thread of the facade."""

    async def call(self: AsyncFacade[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.threads.run(
            functools.partial(method, self._behind, *args, **kwargs)
        )

    return functools.update_wrapper(call, method)


class AsyncJournal(AsyncFacade[Journal]):
    """The asyncio counterpart of a `Journal`."""

    def __init__(self, journal: Journal, threads: ThreadPool | None = None) -> None:
        super().__init__(journal, threads or ThreadPool(THREADS, "tenax-aio"))
        self.user = journal.user
        self.clock = journal.clock
        self.ids = journal.ids
        self.store = journal.store

    @property
    def journal(self) -> Journal:
        """The synchronous journal."""
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
    def incarnation(self) -> str:
        return self.journal.incarnation

    def of(self, user: str | None) -> AsyncJournal:
        """Return a handle on the same store for the given user, or for the process (`None`)."""
        return AsyncJournal(self.journal.of(user), self.threads)

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
        release: bool = False,
    ) -> list[Recorded]:
        """Append like `Journal.append`, without a waiting thread."""
        append = Append.of_events(
            self.journal.owner,
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
        return await self._submit(append)

    async def load(
        self,
        conversation: str,
        opened: ConversationOpened,
        entries: Sequence[RawEvent],
        *,
        opened_at: int | None = None,
        is_owed: bool = False,
    ) -> list[Recorded]:
        """Import a conversation like `Journal.load`."""
        append = Append.of_entries(
            self.journal.owner,
            conversation,
            opened,
            entries,
            ids=self.ids,
            opened_at=opened_at,
            is_owed=is_owed,
        )
        return await self._submit(append)

    async def extend(
        self, conversation: str, entries: Sequence[RawEvent], *, expect: Expect
    ) -> list[Recorded]:
        """Append imported events like `Journal.extend`."""
        append = Append.of_entries(
            self.journal.owner, conversation, None, entries, ids=self.ids, expect=expect
        )
        return await self._submit(append)

    async def carry(
        self,
        conversation: str,
        stored: Sequence[StoredEvent],
        *,
        expect: Expect | None = None,
        authors: Sequence[str] = (),
        closing: Sequence[tuple[str | None, Event]] = (),
    ) -> list[Recorded]:
        """Store events of another store like `Journal.carry`."""
        append = Append.of_stored(
            self.journal.owner,
            conversation,
            stored,
            ids=self.ids,
            expect=expect,
            authors=authors,
            closing=closing,
        )
        return await self._submit(append)

    async def _submit(self, append: Append) -> list[Recorded]:
        store = self.store
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
        self, conversation: str, after: int | TailPosition = 0
    ) -> AsyncIterator[Recorded]:
        """Yield events like `Journal.tail`, until the task is cancelled."""
        loop, hint = asyncio.get_running_loop(), asyncio.Event()
        num = await self.known_number(conversation)
        position = (
            after
            if isinstance(after, TailPosition)
            else await self.position(conversation, after)
        )
        with self.store.wakeups.listening(
            num, functools.partial(call_in_loop, loop, hint.set)
        ):
            while True:
                hint.clear()
                page = await self.read(
                    conversation, after=position.after, limit=TAIL_PAGE
                )
                if not position.holds(self.incarnation):
                    position.limit((await self.head(conversation)).facts)
                    continue
                for recorded in page:
                    yield recorded
                    position.take(recorded)
                if len(page) < TAIL_PAGE:
                    with contextlib.suppress(TimeoutError):
                        # `wait_for` of Python 3.11 may swallow a cancellation.
                        async with asyncio.timeout(self.store.wakeups.look_seconds):
                            await hint.wait()

    async def wait(self, conversation: str, after: int, *, seconds: float) -> bool:
        """Wait for an event after a seq. Return `False` if no event arrives within `seconds`."""
        loop, hint = asyncio.get_running_loop(), asyncio.Event()
        deadline = loop.time() + seconds
        num = await self.known_number(conversation)
        with self.store.wakeups.listening(
            num, functools.partial(call_in_loop, loop, hint.set)
        ):
            while True:
                hint.clear()
                if (await self.head(conversation)).head > after:
                    return True
                left = deadline - loop.time()
                if left <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(
                        min(left, self.store.wakeups.look_seconds)
                    ):
                        await hint.wait()

    async def instance(self) -> str:
        """Return the id of the process in the store."""
        return await self.threads.run(lambda: self.journal.instance)

    def let_go(self) -> None:
        """End the threads of the facade. The journal stays open."""
        self.threads.stop()

    async def close(self) -> None:
        """Commit pending appends and close the store, for all users."""
        await self.threads.run(self.journal.close)
        self.threads.stop()

    known_number = awaited(Journal.known_number)
    position = awaited(Journal.position)
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
    choice = awaited(Journal.choice)
    segment = awaited(Journal.segment)
    children = awaited(Journal.children)
    delegated = awaited(Journal.delegated)
    run = awaited(Journal.run)
    use_attempt = awaited(Journal.use_attempt)
    interrupted = awaited(Journal.interrupted)
    unfinished = awaited(Journal.unfinished)
    spent = awaited(Journal.spent)
    usage = awaited(Journal.usage)
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
    """The outcome of an append. Not cancellable: a cancelled task waits for the outcome first."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  (asyncio's signature)
        return False
