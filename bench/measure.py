"""Rounds, medians and rows of figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import NamedTuple

__all__ = [
    "Compared",
    "Row",
    "at_least",
    "at_most",
    "compare",
    "per_second",
    "percentile",
    "progress",
    "rate",
    "seconds",
    "spread",
    "stated",
    "timed",
]

_begun = time.monotonic()


class Row(NamedTuple):
    """One figure. `key` never changes; `held` is None where there is no gate."""

    key: str
    what: str
    result: str
    measured: str = ""
    gate: str = ""
    held: bool | None = None


class Compared(NamedTuple):
    """Two sides over all rounds: the median of each, the median of the rounds' ratios, and the middle half of them."""

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float

    def said(self, unit: Callable[[float], str]) -> str:
        """Both sides, and how much the rounds differ."""
        return f"{unit(self.ours)} beside {unit(self.theirs)}; half of the rounds {self.low:.2f} to {self.high:.2f} x"


def compare(
    rounds: int,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    *,
    within: float = 40.0,
) -> Compared:
    """Take turns, so that what the machine does meanwhile hits both sides. Who begins alternates too.

    On a slow disk there are fewer rounds: no more are begun after so many seconds.
    """
    pairs: list[tuple[float, float]] = []
    end = time.monotonic() + within
    for number in range(rounds):
        if pairs and time.monotonic() > end:
            break
        if number % 2:
            second = theirs()
            pairs.append((ours(), second))
        else:
            first = ours()
            pairs.append((first, theirs()))
    ratios = [a / b for a, b in pairs]
    low, middle, high = (
        quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    return Compared(
        median(a for a, _ in pairs), median(b for _, b in pairs), middle, low, high
    )


def timed(
    count: int, work: Callable[[], object], *, within: float = 60.0
) -> list[float]:
    """Seconds of each of so many calls; of fewer where they would take longer than this in all."""
    found: list[float] = []
    end = time.perf_counter() + within
    for _ in range(count):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
        if begun > end:
            break
    return found


def rate(count: int, work: Callable[[], object]) -> float:
    """Calls a second."""
    begun = time.perf_counter()
    for _ in range(count):
        work()
    return count / (time.perf_counter() - begun)


def percentile(values: Sequence[float], part: float) -> float:
    """The value that this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def spread(values: Sequence[float]) -> str:
    """The middle and the end of durations."""
    return f"p50 {seconds(percentile(values, 0.5))}, p99 {seconds(percentile(values, 0.99))}"


def at_most(
    key: str, what: str, value: float, gate: float, measured: str, unit: str = " x"
) -> Row:
    """A figure that must not be larger."""
    return Row(
        key,
        what,
        f"{_short(value)}{unit}",
        measured,
        f"at most {_short(gate)}{unit}",
        value <= gate,
    )


def at_least(
    key: str, what: str, value: float, gate: float, measured: str, unit: str = " x"
) -> Row:
    """A figure that must not be smaller."""
    return Row(
        key,
        what,
        f"{_short(value)}{unit}",
        measured,
        f"at least {_short(gate)}{unit}",
        value >= gate,
    )


def stated(key: str, what: str, result: str, measured: str = "") -> Row:
    """A figure without a gate."""
    return Row(key, what, result, measured)


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 0.001:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"


def per_second(value: float) -> str:
    """A rate for people."""
    return f"{value:,.0f} a second"


def progress(what: str) -> None:
    """Say on stderr what happens now."""
    print(f"{time.monotonic() - _begun:6.0f} s  {what}", file=sys.stderr, flush=True)


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:,.0f}"
