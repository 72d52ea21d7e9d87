"""A lane: one daemon thread that does what it is given, in order.

Code of others runs here and nowhere else. The interpreter never joins a daemon thread, so a lane that is stuck for ever
keeps nobody from leaving; and a thread that is started from a lane is a daemon too, unless it says otherwise. The thread
is made when there is something to do and ends when there was nothing for a minute. What is printed on a lane goes to
stderr: stdout belongs to whoever asked Tenax for something. The lock is held for looking and noting only.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tenax.concurrency import started

__all__ = ["LONGEST_SECONDS", "Lane", "said"]

log = logging.getLogger(__name__)

# nobody waits longer, whatever was asked for: a lock takes no number of any size
LONGEST_SECONDS = 86_400.0
_IDLE_SECONDS = 60.0
_SAID_CHARS = 200
_here = threading.local()


class Lane:
    """Calls, one after the other. A call that cannot be taken is refused, never waited for."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._running = self._closed = False
        self._given = self._done = 0
        self._began: float | None = None

    def give(
        self, call: Callable[[], Any], *, last: bool = False
    ) -> Future[Any] | None:
        """Take a call in, or None where the lane is full or closed, or there is no thread to be had. After the last one nothing more is taken."""
        with self._changed:
            if self._closed or (len(self._calls) >= self._size and not last):
                return None
            if not self._running and started(self._run, self._name) is None:
                return None
            self._running, self._closed = True, last
            answer: Future[Any] = Future()
            self._calls.append((call, answer))
            self._given += 1
            self._changed.notify_all()
            return answer

    def flush(self, seconds: float) -> bool:
        """Wait for what was given until now. False if that took too long."""
        with self._changed:
            upto = self._given
            return self._changed.wait_for(
                lambda: self._done >= upto,
                timeout=min(max(0.0, seconds), LONGEST_SECONDS),
            )

    def drop(self, keep: int = 0) -> int:
        """Forget what was not begun, but for the last `keep` calls; say how many there were."""
        with self._changed:
            gone = max(0, len(self._calls) - keep)
            for _ in range(gone):
                self._calls.popleft()[1].cancel()
            self._done += gone
            self._changed.notify_all()
            return gone

    @property
    def waiting(self) -> int:
        """How many calls are not done."""
        with self._changed:
            return self._given - self._done

    @property
    def busy_seconds(self) -> float:
        """For how long the call in hand has been going on; 0 where there is none."""
        with self._changed:
            return 0.0 if self._began is None else time.monotonic() - self._began

    def _run(self) -> None:
        _here.lane = True
        _quieten()
        while (taken := self._next()) is not None:
            call, answer = taken
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(call())
                except BaseException as error:  # noqa: BLE001  (also an exit: this thread is not theirs to end)
                    answer.set_exception(error)
            del call, answer, taken
            with self._changed:
                self._done += 1
                self._began = None
                self._changed.notify_all()

    def _next(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        with self._changed:
            if not self._calls and not self._closed:
                self._changed.wait_for(
                    lambda: self._calls or self._closed, timeout=_IDLE_SECONDS
                )
            if not self._calls:
                self._running = False
                return None
            self._began = time.monotonic()
            return self._calls.popleft()


class _Stdout:
    """sys.stdout as it was, except on a lane, where it is sys.stderr."""

    def __init__(self, real: Any) -> None:  # noqa: ANN401
        self._real = real

    def write(self, text: str) -> int:
        return int(
            (sys.stderr if getattr(_here, "lane", False) else self._real).write(text)
        )

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._real, name)


def _quieten() -> None:
    """Done when a lane begins to run, and only where nobody did it before."""
    if sys.stdout is not None and not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)


def said(error: BaseException) -> str:
    """An error of somebody else's code in one short line."""
    try:
        text = " ".join(str(error).split())[:_SAID_CHARS]
    except Exception:  # noqa: BLE001  (an error that cannot say what it is)
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
