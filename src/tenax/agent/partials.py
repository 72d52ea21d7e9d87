"""Partials in their rhythm: what a model streams is stored while it streams, in few appends.

The first words at once; then at most one append at a time, and what arrives meanwhile joins the next: 50 ms apart in the
first second, 100 ms after. What is shown to people is read from the store, so nobody sees a word that a crash takes back.

The store flushes partials to the disk every 0.75 seconds. When a model falls silent, an empty piece follows its last words, so that
these are flushed too: a power loss takes less than the last second of what was shown.

A store that does not answer holds nothing up: after a second the text goes to `hold` (the spool) as well, as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tenax.journal.store import FLUSH_SECONDS

__all__ = ["HOLD_SECONDS", "Partials"]

EARLY_SECONDS = 1.0
EARLY_PAUSE = 0.05
PAUSE = 0.1
HOLD_SECONDS = 1.0
"""How long an append may take before its text is held on this host as well."""

Put = Callable[[int, str], Awaitable[None]]


class Partials:
    """The text of one answer on its way into the store."""

    def __init__(self, store: Put, hold: Put) -> None:
        self._store = store
        self._hold = hold
        self._pieces: list[str] = []
        self._text = ""
        self._more = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._held = 0
        self.stored = 0
        """How many characters of it are stored."""

    def add(self, text: str) -> None:
        """More text. Raises what keeps it from being stored: a lease that was lost."""
        if self._writer is not None and self._writer.done():
            self._writer.result()
        if text:
            self._pieces.append(text)
            self._more.set()
            if self._writer is None:
                self._writer = asyncio.create_task(self._write(), name="partials")

    @property
    def whole(self) -> str:
        """All of it so far."""
        if self._pieces:
            self._text += "".join(self._pieces)
            self._pieces.clear()
        return self._text

    async def end(self) -> None:
        """Store no more: a fact with the whole text follows. An append that is under way gets a moment to finish."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.cancel()
        await asyncio.wait({writer}, timeout=HOLD_SECONDS)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        unflushed = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS if unflushed else None):
                    await self._more.wait()
            self._more.clear()
            text = self.whole[self.stored :]
            if text or unflushed:
                await self._put(text)
                unflushed = bool(text)
                self.stored += len(text)
                await asyncio.sleep(
                    EARLY_PAUSE if loop.time() - began < EARLY_SECONDS else PAUSE
                )

    async def _put(self, text: str) -> None:
        append = asyncio.ensure_future(self._store(self.stored, text))
        try:
            await asyncio.wait({append}, timeout=HOLD_SECONDS)
            while not append.done():
                # From its beginning, whatever is stored: a server that crashes may lose the partials it took last.
                text = self.whole[self._held :]
                if text:
                    await self._hold(self._held, text)
                    self._held += len(text)
                await asyncio.wait({append}, timeout=PAUSE)
            await append
        finally:
            if not append.done():
                append.cancel()
                append.add_done_callback(_forget)


def _forget(append: asyncio.Future[None]) -> None:
    """Nobody waits for it any more; what becomes of it is read from the store."""
    with contextlib.suppress(asyncio.CancelledError):
        append.exception()
