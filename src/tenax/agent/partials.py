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

from tenax.clock import Clock, Timing
from tenax.errors import TenaxError
from tenax.events import Event, ReplyDelta, ReplyThought
from tenax.parts import Part
from tenax.views.open_work import partial_parts

__all__ = ["HOLD_SECONDS", "OutputPartials", "Partials", "StreamedAnswer"]

EARLY_SECONDS = 1.0
EARLY_PAUSE = 0.05
PAUSE = 0.1
HOLD_SECONDS = 1.0
"""Longest time for an append before the text is also held on this host."""

_OUTPUT_LONG_SECONDS = 30.0
_OUTPUT_SLOWER = 4
"""The output of a call that runs for longer than this is stored less often, by this factor."""

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


class OutputPartials:
    """The output of a running tool on its way into the store.

    `read` returns the output so far: a beginning that stays, and a tail that may be replaced. Only the difference to the
    stored output is stored. A tool that ends quickly stores nothing but its result.
    """

    def __init__(
        self,
        read: Callable[[], str],
        store: Put,
        timing: Timing = Timing(),
    ) -> None:
        self._read = read
        self._store = store
        self._timing = timing
        self._writer = asyncio.create_task(self._write(), name="output")

    async def end(self) -> None:
        """Stop storing, because the result follows. A running append gets a moment to finish."""
        self._writer.cancel()
        await asyncio.wait({self._writer}, timeout=HOLD_SECONDS)

    async def _write(self) -> None:
        stored = ""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(self._timing.output_seconds)
        # The result of the call meets the same error, and the run handles it there.
        with contextlib.suppress(TenaxError):
            while True:
                text = self._read()
                if text != stored:
                    offset = _count_equal(stored, text)
                    await self._store(offset, text[offset:])
                    stored = text
                is_long = loop.time() - began > _OUTPUT_LONG_SECONDS
                pauses = _OUTPUT_SLOWER if is_long else 1
                await asyncio.sleep(self._timing.output_seconds * pauses)


def _count_equal(a: str, b: str) -> int:
    """Return the number of equal characters at the beginning."""
    if b.startswith(a):
        return len(a)
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (one, other) in pairs if one != other), len(b))


class StreamedAnswer:
    """The text and the reasoning of an answer on their way into the store."""

    def __init__(
        self,
        request: int,
        store: Callable[[Event], Awaitable[None]],
        hold: Callable[[Event], Awaitable[None]],
        clock: Clock,
        timing: Timing = Timing(),
    ) -> None:
        def partials(kind: type[ReplyDelta | ReplyThought]) -> Partials:
            return Partials(
                lambda offset, text: store(kind(request, offset, text)),
                lambda offset, text: hold(kind(request, offset, text)),
                timing,
            )

        self._texts = partials(ReplyDelta)
        self._thoughts = partials(ReplyThought)
        self._clock = clock
        self._thought_from: float | None = None
        self._thought_until = 0.0
        self._has_text = False

    def add_text(self, text: str) -> None:
        """Add text of the answer. Raises the error that stopped the writer."""
        if text and not self._has_text:
            self._has_text = True
            self._thought_until = self._clock.monotonic()
        self._texts.add(text)

    def add_thought(self, text: str) -> None:
        """Add reasoning. Raises the error that stopped the writer."""
        self._thought_until = self._clock.monotonic()
        if self._thought_from is None:
            self._thought_from = self._thought_until
        self._texts.add("")
        self._thoughts.add(text)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return self._texts.text

    @property
    def thought(self) -> str:
        """The whole reasoning so far."""
        return self._thoughts.text

    @property
    def thought_seconds(self) -> float:
        """The time from the first reasoning to the first text, or to the last reasoning."""
        if self._thought_from is None:
            return 0.0
        return round(max(0.0, self._thought_until - self._thought_from), 3)

    @property
    def parts(self) -> list[Part]:
        """The answer so far, as the parts of a message."""
        return partial_parts(self.text, self.thought, self.thought_seconds)

    async def end(self) -> None:
        """Stop storing, because a fact with the whole answer follows."""
        await asyncio.gather(self._texts.end(), self._thoughts.end())


def _forget(append: asyncio.Future[None]) -> None:
    """Retrieve the exception of an abandoned append. The result of the append is read from the store."""
    with contextlib.suppress(asyncio.CancelledError):
        append.exception()
