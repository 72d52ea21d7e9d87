"""Partials: a streamed answer is stored in few appends while the model streams.

The first text is stored at once. Then at most one append runs at a time, and text that arrives meanwhile joins the next
append. Appends are 50 ms apart in the first second and 100 ms apart later. Clients show only stored text, so a crash
never takes back a visible word.

The store flushes partials to the disk every 0.75 seconds. When a model pauses, an empty piece follows the last text and
makes the store flush the text. A power loss therefore takes less than the last second of visible text.

A store that does not answer blocks nothing: after a second, arriving text also goes to `hold` (the spool).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tenax.clock import Timing

__all__ = ["HOLD_SECONDS", "Partials"]

EARLY_SECONDS = 1.0
EARLY_PAUSE = 0.05
PAUSE = 0.1
HOLD_SECONDS = 1.0
"""Longest time for an append before the text is also held on this host."""

Put = Callable[[int, str], Awaitable[None]]


class Partials:
    """The text of an answer on its way into the store."""

    def __init__(self, store: Put, hold: Put, timing: Timing = Timing()) -> None:
        self._store = store
        self._hold_text = hold
        self._timing = timing
        self._pieces: list[str] = []
        self._text = ""
        self._more = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._spooled_chars = 0
        self.stored_chars = 0
        """Number of stored characters."""

    def add(self, text: str) -> None:
        """Add text. Raises the error that stopped the writer, for example a lost lease."""
        if self._writer is not None and self._writer.done():
            self._writer.result()
        if text:
            self._pieces.append(text)
            self._more.set()
            if self._writer is None:
                self._writer = asyncio.create_task(
                    self._write_partials(), name="partials"
                )

    @property
    def text(self) -> str:
        """The whole text so far."""
        if self._pieces:
            self._text += "".join(self._pieces)
            self._pieces.clear()
        return self._text

    async def end(self) -> None:
        """Stop storing, because a fact with the whole text follows. A running append gets a moment to finish."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.cancel()
        await asyncio.wait({writer}, timeout=HOLD_SECONDS)

    async def _write_partials(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        unflushed = False
        while True:
            with contextlib.suppress(TimeoutError):
                seconds = self._timing.flush_seconds if unflushed else None
                async with asyncio.timeout(seconds):
                    await self._more.wait()
            self._more.clear()
            text = self.text[self.stored_chars :]
            if text or unflushed:
                await self._store_text(text)
                unflushed = bool(text)
                self.stored_chars += len(text)
                await asyncio.sleep(
                    EARLY_PAUSE if loop.time() - began < EARLY_SECONDS else PAUSE
                )

    async def _store_text(self, text: str) -> None:
        append = asyncio.ensure_future(self._store(self.stored_chars, text))
        try:
            await asyncio.wait({append}, timeout=HOLD_SECONDS)
            while not append.done():
                # Hold the text from its beginning, even the stored part: a crashing server may lose the last partials
                # it accepted.
                text = self.text[self._spooled_chars :]
                if text:
                    await self._hold_text(self._spooled_chars, text)
                    self._spooled_chars += len(text)
                await asyncio.wait({append}, timeout=PAUSE)
            await append
        finally:
            if not append.done():
                append.cancel()
                append.add_done_callback(_forget)


def _forget(append: asyncio.Future[None]) -> None:
    """Retrieve the exception of an abandoned append. The result of the append is read from the store."""
    with contextlib.suppress(asyncio.CancelledError):
        append.exception()
