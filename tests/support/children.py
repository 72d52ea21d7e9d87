"""Child processes that start fast and can be killed at any instant.

They are forked from a server that has imported Tenax and has nothing open, so a hundred of them take a second. A child
says what it has done in lines through a pipe; a line is written whole or not at all.
"""

from __future__ import annotations

import multiprocessing
import os
import selectors
import time
from collections.abc import Callable, Iterable
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "tenax",
        "tests.contract.engine.base",
        "tenax.cli.ask",
        "tests.support.raw",
        "tests.support.turns",
    ]
)
SECONDS_MAX = 60.0
_PIPE_BUF = 4096


class Teller:
    """The child's end: `tell` writes a line."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def tell(self, *words: object) -> None:
        line = " ".join(map(str, words)).encode() + b"\n"
        assert len(line) <= _PIPE_BUF
        os.write(self._connection.fileno(), line)


class Child:
    """One process, running `work(teller, *args)`."""

    def __init__(self, work: Callable[..., None], *args: object) -> None:
        self.reader, writer = _context.Pipe(duplex=False)
        self.process = _context.Process(target=_run, args=(work, Teller(writer), *args))
        self.process.start()
        writer.close()
        self._left = b""
        self._ended = False
        self.lines: list[list[str]] = []
        """What it has told so far."""

    def read(self, seconds: float = SECONDS_MAX) -> bool:
        """Take in what comes next. False once there will be nothing more."""
        if self._ended:
            return False
        if not self.reader.poll(seconds):
            raise TimeoutError(
                f"the child said nothing for {seconds} seconds; last: {self.lines[-3:]}"
            )
        data = os.read(self.reader.fileno(), 1 << 16)
        self._ended = not data
        *lines, self._left = (self._left + data).split(b"\n")
        self.lines += [line.decode().split(" ") for line in lines]
        return not self._ended

    def read_until(self, count: int) -> None:
        """Wait until it has told this many lines, or ended."""
        while len(self.lines) < count and self.read():
            pass

    def kill(self) -> None:
        self.process.kill()

    def finish(self) -> int:
        """Read to the end and wait for it; the exit code. Minus 9 is `kill -9`."""
        while self.read():
            pass
        self.reader.close()
        self.process.join(SECONDS_MAX)
        code = self.process.exitcode
        assert code is not None, "the child did not end"
        self.process.close()
        return int(code)


def finish_all(children: Iterable[Child]) -> list[int]:
    """Read all of them to the end at the same time, so that none waits for its pipe; their exit codes."""
    children = list(children)
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.reader.fileno(), selectors.EVENT_READ, child)
        deadline = time.monotonic() + SECONDS_MAX
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(1.0):
                if not key.data.read():
                    selector.unregister(key.fd)
    return [child.finish() for child in children]


def _run(work: Callable[..., None], teller: Teller, *args: object) -> None:
    work(teller, *args)
