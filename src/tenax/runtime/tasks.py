"""The background tasks of a runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tenax.errors import TenaxError

__all__ = ["BackgroundTasks", "try_now"]

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 0.5


class BackgroundTasks:
    """Tasks beside the answers, by name."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Start `work` in the background, unless a task with the name is running."""
        if not any(task.get_name() == name for task in self._tasks):
            task = asyncio.create_task(try_now(work), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the tasks, and wait a moment for their end. The next start repeats the work."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)


async def try_now(work: Callable[[], Awaitable[object]]) -> None:
    """Wait for `work`, and log an error. The caller tries again later."""
    try:
        await work()
    except (TenaxError, OSError) as error:
        # `OSError`: the process has reached the limit of open files.
        log.warning("%s It is tried later.", error, extra={"action": "upkeep_waits"})
