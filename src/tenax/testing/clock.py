"""A clock moved by the test."""

from __future__ import annotations

import threading

__all__ = ["SimClock"]

_FIRST_US = 1_700_000_000_000_000


class SimClock:
    """A thread-safe `Clock` that stands still until `sleep` or `advance` is called.

    Two journals with the same `SimClock` run on the same simulated machine; `reboot` restarts this machine.
    """

    def __init__(self, now_us: int = _FIRST_US) -> None:
        self._lock = threading.Lock()
        self._now_us = now_us
        self._monotonic_us = 1_000_000_000
        self._boots = 1

    def now_us(self) -> int:
        with self._lock:
            return self._now_us

    def monotonic(self) -> float:
        with self._lock:
            return self._monotonic_us / 1e6

    def boot_id(self) -> str:
        with self._lock:
            return f"boot-{self._boots}"

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the wall clock and the monotonic clock."""
        if seconds < 0:
            raise ValueError(
                "Time does not go back; set the wall clock with `set_wall`."
            )
        with self._lock:
            self._now_us += round(seconds * 1e6)
            self._monotonic_us += round(seconds * 1e6)

    def set_wall(self, now_us: int) -> None:
        """Set the wall clock, forward or back. The monotonic clock does not change."""
        with self._lock:
            self._now_us = now_us

    def reboot(self) -> None:
        """Restart the machine: a new boot id, and a monotonic clock that starts again."""
        with self._lock:
            self._boots += 1
            self._monotonic_us = 1_000_000
