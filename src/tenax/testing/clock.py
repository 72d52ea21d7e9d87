"""Time that passes when a test says so."""

from __future__ import annotations

import threading

__all__ = ["SimClock"]

_FIRST_US = 1_700_000_000_000_000


class SimClock:
    """A `Clock` that stands still until somebody sleeps or `advance` is called. For any number of threads.

    Two journals with the same `SimClock` live on one machine; `reboot` gives it a new boot.
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
        """Time passes; nobody waits."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError(
                "Time does not go back; set the wall clock with `set_wall`."
            )
        with self._lock:
            self._now_us += round(seconds * 1e6)
            self._monotonic_us += round(seconds * 1e6)

    def set_wall(self, now_us: int) -> None:
        """Somebody sets the wall clock, forward or back. The monotonic clock does not move."""
        with self._lock:
            self._now_us = now_us

    def reboot(self) -> None:
        """The machine starts again: another boot, and a monotonic clock that counts from there."""
        with self._lock:
            self._boots += 1
            self._monotonic_us = 1_000_000
