"""Wake-ups inside the process: hints that a conversation may have moved. The read is the truth.

Who waits puts a callback in; whatever learns of a commit (this process's own, another's through the engine) calls
`notify`. A hint may come for nothing and may stand for several commits; it is never missing for long.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["ANY", "Hub", "call_in"]

ANY = 0
"""Listen to every conversation."""


class Hub:
    """Who listens to which conversation (by its number in the store)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[int, set[Callable[[], None]]] = {}
        self.on_first: Callable[[], None] = lambda: None
        """Called when somebody listens, so that the engine can start to watch for other processes."""
        self.also: Callable[[], None] = lambda: None
        """Called on every hint that comes anyhow. Unlike listening, it does not make the engine watch for others."""

    @property
    def wanted(self) -> bool:
        return bool(self._listeners)

    @contextmanager
    def listening(self, num: int, callback: Callable[[], None]) -> Iterator[None]:
        """Call back on every hint for this conversation, while the block lasts. From any thread, quickly."""
        with self._lock:
            self._listeners.setdefault(num, set()).add(callback)
        try:
            self.on_first()
            yield
        finally:
            with self._lock:
                left = self._listeners[num]
                left.discard(callback)
                if not left:
                    del self._listeners[num]

    def notify(self, nums: Iterable[int] | None) -> None:
        """Wake those who listen to these conversations; None wakes everybody."""
        self.also()
        if not self._listeners:
            return
        with self._lock:
            wanted = self._listeners if nums is None else {ANY, *nums}
            callbacks = [
                each for num in wanted for each in self._listeners.get(num, ())
            ]
        for callback in callbacks:
            callback()


def call_in(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object
) -> None:
    """Have this called in a loop, from any thread. One that has ended waits for nothing any more."""
    # to ask first whether it is closed would be a moment too early
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)
