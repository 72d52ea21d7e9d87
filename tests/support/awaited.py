"""The async facade, called without `await`, so that one test class runs on both."""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="loop", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if os.getpid() != self._pid:  # a forked child has no thread that runs the loop
            return asyncio.run(work)
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Awaited:
    """Looks like a `Journal`; every verb goes through the facade and the loop."""

    def __init__(self, facade: AsyncJournal, loop: Loop) -> None:
        self._facade = facade
        self._loop = loop

    def of(self, user: str | None) -> Awaited:
        return Awaited(self._facade.of(user), self._loop)

    def tail(
        self, conversation: str, after: int = 0, *, stop: threading.Event | None = None
    ) -> Iterator[Recorded]:
        """The async iterator, one by one. It has no `stop`: its task is cancelled."""
        found: queue.SimpleQueue[Recorded | BaseException] = queue.SimpleQueue()

        async def follow() -> None:
            try:
                async for each in self._facade.tail(conversation, after):
                    found.put(each)
            except Exception as error:  # noqa: BLE001  (it is raised on the other side)
                found.put(error)

        task = asyncio.run_coroutine_threadsafe(follow(), self._loop.loop)
        try:
            while stop is None or not stop.is_set():
                try:
                    each = found.get(timeout=0.05)
                except queue.Empty:
                    continue
                if isinstance(each, BaseException):
                    raise each
                yield each
        finally:
            task.cancel()

    def number(self, conversation: str) -> int:
        """What `Facts` asks, which has no facade."""
        return self._facade.journal.number(conversation)

    @property
    def instance(self) -> str:
        return str(self._loop.run(self._facade.instance()))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._facade, name)
        if not inspect.iscoroutinefunction(value):
            return value
        verb: Callable[..., Coroutine[Any, Any, Any]] = value

        def call(*args: Any, **kwargs: Any) -> Any:
            async def work() -> Any:
                return await verb(*args, **kwargs)

            return self._loop.run(work())

        return call


def awaited(journal: Journal, loop: Loop) -> Journal:
    """This journal through its async facade."""
    return cast("Journal", Awaited(AsyncJournal(journal), loop))
