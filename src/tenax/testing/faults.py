"""A journal that fails where a test wants it to.

A *failure point* is a name that the code reaches: `append:before` and `append:after`, and so for every verb of the
journal, and the points of a commit inside the store: `store:begin`, `store:load`, `store:write`, `store:commit`,
`store:committed`. At the n-th arrival something happens: an error, a wait until the test lets go, or the end of the
process. Arrivals are counted whether or not something happens there.

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

VERBS = frozenset(
    name
    for name, each in vars(Journal).items()
    if callable(each) and not name.startswith("_")
)
"""What a journal can be asked to do."""

_STORE = ("begin", "load", "write", "commit", "committed")
POINTS = frozenset(
    {f"{verb}:{side}" for verb in VERBS for side in ("before", "after")}
    | {f"store:{at}" for at in _STORE}
)
"""Every failure point there is."""

_HOLD_SECONDS_MAX = 60.0


class Hold:
    """A thread that was stopped at a failure point. `release` lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait_until_reached(self, seconds: float = _HOLD_SECONDS_MAX) -> None:
        """Wait until somebody stands at the point."""
        if not self._reached.wait(seconds):
            raise TimeoutError("Nobody reached the failure point.")

    def release(self) -> None:
        self._released.set()

    def stop_here(self) -> None:
        """What the thread does that reaches the point."""
        self._reached.set()
        if not self._released.wait(_HOLD_SECONDS_MAX):
            raise TimeoutError("Nobody released the failure point.")


class _Plan(NamedTuple):
    """What happens at one point, from which arrival to which."""

    first: int
    last: float
    act: Callable[[], None]


class Faults:
    """Named failure points: what has arrived there, and what is to happen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrivals: Counter[str] = Counter()
        self._plans: dict[str, list[_Plan]] = {}

    def fail(
        self, point: str, error: BaseException, *, nth: int = 1, times: int | None = 1
    ) -> None:
        """The n-th arrival from now on raises this, and so do the ones after it: `times` in all, None for ever."""

        def act() -> None:
            raise error

        self._add(point, nth, times, act)

    def hold(self, point: str, *, nth: int = 1) -> Hold:
        """The n-th arrival from now on stops there until it is released, for a minute at most."""
        hold = Hold()
        self._add(point, nth, 1, hold.stop_here)
        return hold

    def kill(self, point: str, *, nth: int = 1) -> None:
        """The n-th arrival from now on is the end of this process: SIGKILL, no goodbye."""
        self._add(point, nth, 1, lambda: os.kill(os.getpid(), signal.SIGKILL))

    def clear(self) -> None:
        """Nothing is to happen any more."""
        with self._lock:
            self._plans.clear()

    def arrivals(self, point: str) -> int:
        """How often this point was reached."""
        with self._lock:
            return self._arrivals[_known(point)]

    def reach(self, point: str) -> None:
        """Somebody is here."""
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
            first = self._arrivals[_known(point)] + nth
            last = math.inf if times is None else first + times - 1
            self._plans.setdefault(point, []).append(_Plan(first, last, act))


def _known(point: str) -> str:
    if point not in POINTS:
        raise ValueError(f"There is no failure point {point!r}.")
    return point


class FaultyJournal(Journal):
    """A journal with failure points, on the store of another one.

    A verb that calls others counts once. `of(user)` shares the points.
    """

    def __init__(self, journal: Journal, faults: Faults | None = None) -> None:
        super().__init__(journal.store, journal.user, journal._search)  # noqa: SLF001  (the same journal, once more)
        self.faults = faults or Faults()
        self._inside = threading.local()
        journal.store.reach = lambda point: self.faults.reach(f"store:{point}")

    def of(self, user: str | None) -> FaultyJournal:
        return FaultyJournal(super().of(user), self.faults)

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401  (whatever the journal has)
        value = super().__getattribute__(name)
        return self._with_points(name, value) if name in VERBS else value

    def _with_points(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (a verb takes what it takes)
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
