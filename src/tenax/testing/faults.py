"""A journal that fails at chosen points.

A *failure point* is a named place in the code: `append:before` and `append:after`, the same for every method of the
journal, and the steps of a commit inside the store: `store:begin`, `store:load`, `store:write`, `store:commit`,
`store:committed`. At the n-th arrival a test can raise an error, hold the thread, or kill the process. Arrivals are
counted even if nothing is planned.

    journal = FaultyJournal(memory())
    journal.faults.fail("append:after", RuntimeError("the answer was lost"), nth=2)
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tenax.journal.journal import Journal

__all__ = ["POINTS", "VERBS", "Faults", "FaultyJournal", "Hold"]

# The public methods of a journal.
VERBS = frozenset(
    name
    for name, attribute in vars(Journal).items()
    if callable(attribute) and not name.startswith("_")
)

_STORE = ("begin", "load", "write", "commit", "committed")
# All failure points.
POINTS = frozenset(
    {f"{verb}:{side}" for verb in VERBS for side in ("before", "after")}
    | {f"store:{step}" for step in _STORE}
)

_HOLD_SECONDS_MAX = 60.0


class Hold:
    """A thread that waits at a failure point until `release`."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait_until_reached(self, seconds: float = _HOLD_SECONDS_MAX) -> None:
        """Wait until a thread reaches the point."""
        if not self._reached.wait(seconds):
            raise TimeoutError("No thread reached the failure point.")

    def release(self) -> None:
        self._released.set()

    def stop_here(self) -> None:
        """Hold the thread that reaches the point."""
        self._reached.set()
        if not self._released.wait(_HOLD_SECONDS_MAX):
            raise TimeoutError("Nobody released the failure point.")


class _Plan(NamedTuple):
    """An action at a failure point, from the first to the last arrival."""

    first: int
    last: float
    act: Callable[[], None]


class Faults:
    """Counts arrivals at failure points, and performs the planned actions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrivals: Counter[str] = Counter()
        self._plans: dict[str, list[_Plan]] = {}

    def fail(
        self, point: str, error: BaseException, *, nth: int = 1, times: int | None = 1
    ) -> None:
        """Raise `error` at the n-th arrival from now on and at the following arrivals.

        The error is raised `times` times in total, or without limit if `times` is `None`.
        """

        def act() -> None:
            raise error

        self._add(point, nth, times, act)

    def hold(self, point: str, *, nth: int = 1) -> Hold:
        """Hold the n-th arrival from now on until its release, at most for a minute."""
        hold = Hold()
        self._add(point, nth, 1, hold.stop_here)
        return hold

    def kill(self, point: str, *, nth: int = 1) -> None:
        """Kill this process with SIGKILL at the n-th arrival from now on."""
        self._add(point, nth, 1, lambda: os.kill(os.getpid(), signal.SIGKILL))

    def clear(self) -> None:
        """Remove all planned actions."""
        with self._lock:
            self._plans.clear()

    def arrivals(self, point: str) -> int:
        """Return the number of arrivals at the point."""
        with self._lock:
            return self._arrivals[_check(point)]

    def reach(self, point: str) -> None:
        """Count an arrival, and perform the planned actions."""
        with self._lock:
            self._arrivals[point] += 1
            arrival = self._arrivals[point]
            due = [
                plan
                for plan in self._plans.get(point, ())
                if plan.first <= arrival <= plan.last
            ]
        for plan in due:
            plan.act()

    def _add(
        self, point: str, nth: int, times: int | None, act: Callable[[], None]
    ) -> None:
        if nth < 1:
            raise ValueError("Arrivals are counted from 1.")
        with self._lock:
            first = self._arrivals[_check(point)] + nth
            last = math.inf if times is None else first + times - 1
            self._plans.setdefault(point, []).append(_Plan(first, last, act))


def _check(point: str) -> str:
    if point not in POINTS:
        raise ValueError(f"There is no failure point {point!r}.")
    return point


class FaultyJournal(Journal):
    """A journal with failure points, on the store of another journal.

    A method that calls other methods counts once. `of(user)` shares the failure points.
    """

    def __init__(self, journal: Journal, faults: Faults | None = None) -> None:
        super().__init__(journal.store, journal.user, journal.words)
        self.faults = faults or Faults()
        self._inside = threading.local()
        journal.store.reach = lambda point: self.faults.reach(f"store:{point}")

    def of(self, user: str | None) -> FaultyJournal:
        return FaultyJournal(super().of(user), self.faults)

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401  (any attribute)
        value = super().__getattribute__(name)
        return self._with_points(name, value) if name in VERBS else value

    def _with_points(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (any method)
            if getattr(self._inside, "verb", None):
                return verb(*args, **kwargs)
            self._inside.verb = name
            try:
                self.faults.reach(f"{name}:before")
                result = verb(*args, **kwargs)
                self.faults.reach(f"{name}:after")
            finally:
                self._inside.verb = None
            return result

        return call
