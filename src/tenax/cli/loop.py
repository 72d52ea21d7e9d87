"""Commands with an event loop, with or without a `Runtime`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from tenax.assembly import Runtime
from tenax.cli.frame import unfinished_tasks
from tenax.config import Config

__all__ = ["in_loop", "with_runtime"]

R = TypeVar("R")

_END_SECONDS: Final = 1.0


def with_runtime(
    config: Config, work: Callable[[Runtime], Awaitable[R]], *, starts: bool = False
) -> R:
    """Run `work` with a runtime. With `starts`, the runtime also starts the memory providers."""

    async def call_work() -> R:
        runtime = Runtime(config, serves=False)
        try:
            if starts:
                await runtime.start()
            return await work(runtime)
        finally:
            await runtime.close()

    return in_loop(call_work())


def in_loop(work: Coroutine[Any, Any, R]) -> R:
    """Run `work` like `asyncio.run`, but wait at most a second for tasks ignoring a cancellation.

    An example is an append to an unreachable store.
    """

    async def bounded() -> R:
        try:
            return await work
        finally:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=_END_SECONDS)
            for task in tasks:
                # Keep a reference, because asyncio complains about unreferenced tasks. Unregister, because
                # `asyncio.run` waits for registered tasks.
                unfinished_tasks.add(task)
                asyncio.tasks._unregister_task(task)  # noqa: SLF001

    return asyncio.run(bounded())
