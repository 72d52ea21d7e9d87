"""`!command`: run a command line of the person in the folder of the conversation, with the person's own shell.

The person typed the command, so it needs no approval and runs outside the sandbox, with the environment of the person.
Its standard input is empty. The output is shown as it comes and added to the conversation, without the secrets of the
configuration, when the command has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tenax.concurrency import run_in_own_thread
from tenax.errors import ToolFailed
from tenax.text import make_storable
from tenax.tools.paths import open_folder, real_folder
from tenax.tools.redact import Redact
from tenax.tools.shell.commands import Output
from tenax.tools.shell.sandbox import spawn

__all__ = ["PersonCommand"]

_CHUNK_BYTES: Final = 65_536
_DRAIN_SECONDS: Final = 1.0
"""The wait for the last output of a command that has ended. A process in the background may keep the pipe open."""


class PersonCommand:
    """A command line that the person typed.

    `show` is called after every change of the output, with new complete lines or "".
    """

    def __init__(
        self, command: str, folder: Path, redact: Redact, show: Callable[[str], None]
    ) -> None:
        self.command = redact(make_storable(command))
        """The command without secrets."""
        self.unfinished = ""
        """The last line of the output, while it grows."""
        self.ending = ""
        """How the command ended, such as "exit code 0, 1.2 s"."""
        self._typed = command
        self._folder = folder
        self._show = show
        self._output = Output(redact)
        self._pending = b""
        self._process: asyncio.subprocess.Process | None = None
        self._stops = 0

    async def run(self) -> str:
        """Run the command to its end, and return the message for the conversation. Raises `ToolFailed`.

        A cancellation ends the command as a closed terminal does.
        """
        started = time.monotonic()
        process, stream, transport = await self._start()
        reading = asyncio.create_task(self._read(stream))
        try:
            code = await process.wait()
            await asyncio.wait({reading}, timeout=_DRAIN_SECONDS)
        except asyncio.CancelledError:
            self._signal(signal.SIGHUP)
            raise
        finally:
            reading.cancel()
            transport.close()
        self._show_pending(ended=True)
        seconds = time.monotonic() - started
        self.ending = f"{_describe_code(code)}, {seconds:.1f} s"
        text = self._output.text().rstrip() or "(no output)"
        return f"$ {self.command}\n{text}\n[I ran this command myself: {self.ending}]"

    @property
    def is_stopping(self) -> bool:
        return self._stops > 0

    def stop(self) -> None:
        """Interrupt the command and everything it started. A second call kills."""
        self._stops += 1
        self._signal(signal.SIGINT if self._stops == 1 else signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _start(
        self,
    ) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.ReadTransport]:
        shell = shutil.which(os.environ.get("SHELL", "")) or "/bin/sh"
        folder = self._folder
        try:
            await run_in_own_thread(lambda: os.close(open_folder(folder, make=True)))
            command = [shell, "-c", self._typed]
            process, stream, transport = await spawn(
                command, dict(os.environ), real_folder(folder), (), own_group=True
            )
        except (OSError, ValueError) as error:
            # A NUL in the command is a ValueError.
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ToolFailed(f"The command cannot be started: {why}.") from error
        if process.stdin is not None:
            process.stdin.close()
        self._process = process
        if self._stops:
            self._signal(signal.SIGINT)
        return process, stream, transport

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(_CHUNK_BYTES):
            self._output.add(data)
            self._pending += data
            self._show_pending(ended=False)

    def _show_pending(self, *, ended: bool) -> None:
        """Show the complete lines of the output, at the end of the command also the last line."""
        cut = len(self._pending) if ended else self._pending.rfind(b"\n") + 1
        if len(self._pending) - cut > _CHUNK_BYTES:
            cut = self._output.whole(self._pending)
        lines, self._pending = self._pending[:cut], self._pending[cut:]
        shown = self._pending[: self._output.whole(self._pending)]
        self.unfinished = self._output.clean(shown)
        text = self._output.clean(lines)
        self._show(text if text.endswith("\n") or not text else f"{text}\n")


def _describe_code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"stopped by {signal.Signals(-code).name}"
    return f"stopped by signal {-code}"
