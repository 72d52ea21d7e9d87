"""A `tenax` command in a pseudo-terminal, with a person who reads and types."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import Final, Self

__all__ = ["Terminal"]

SECONDS: Final = 60.0


class Terminal:
    """A running command. The environment is that of the test."""

    def __init__(self, *args: str) -> None:
        self._master, terminal = os.openpty()
        self.shown = ""
        """Everything that the terminal has shown."""
        self._read = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenax", *args],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)

    def wait_for(self, words: str) -> str:
        """Wait until the terminal shows some words, and return what it has shown since the last call."""
        deadline = time.monotonic() + SECONDS
        while words not in self.shown[self._read :]:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._master], [], [], 0.2)[0]:
                self.shown += os.read(self._master, 4096).decode()
        end = self.shown.index(words, self._read) + len(words)
        shown, self._read = self.shown[self._read : end], end
        return shown

    def type(self, words: str) -> None:
        os.write(self._master, f"{words}\n".encode())

    def end(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        return self.process.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
