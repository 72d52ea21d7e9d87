"""Answers that stream into many conversations at once, and how soon another process sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from bench.engines import Engine
from bench.follow import follower, latencies, stamp
from bench.lab import Lab, talk
from bench.measure import Row, per_second, percentile, progress, seconds, spread, stated
from tenax import AsyncJournal
from tenax.journal import Journal

__all__ = ["streams"]

_STREAMS = 50
_EVERY = 0.05
_REQUEST = 2


def streams(lab: Lab) -> Iterator[Row]:
    """50 conversations that each get 20 partials a second."""
    for engine in lab.engines:
        progress(f"streams, {engine.name}")
        with engine.open("streams") as journal:
            names = talk(journal, _STREAMS)
            yield from _hold(lab, engine, journal, names)
            yield _wake_up(lab, engine, journal, names[0])


def _hold(
    lab: Lab, engine: Engine, journal: Journal, names: Sequence[str]
) -> Iterator[Row]:
    count = lab.size(200, quick=5)
    asyncio.run(stream(journal, names, lab.size(20, quick=1)))
    with follower(engine.url("streams"), names[0], count) as other:
        late, took = asyncio.run(stream(journal, names, count))
        seen = latencies(other)
    rate, p99 = len(late) / took, percentile(late, 0.99)
    held = p99 < _EVERY and rate > 0.98 * _STREAMS / _EVERY
    yield Row(
        f"streams-{engine.name}",
        f"{engine.title}: 50 streaming conversations at 20 appends a second. Held: each is stored before the stream's next is due, "
        "in 99 of 100 cases. Counted from when it was due",
        f"p99 {seconds(p99)}",
        f"{per_second(rate)}, {spread(late)}",
        "1,000 a second, p99 below 50 ms" if engine.name == "postgresql" else "",
        held if engine.name == "postgresql" else None,
    )
    yield stated(
        f"streams-{engine.name}-wake-up",
        f"{engine.title}: from the append of one of these to the tail in another process that shows it, the append included",
        f"p50 {seconds(percentile(seen, 0.5))}",
        spread(seen),
    )


async def stream(
    journal: Journal, names: Sequence[str], count: int
) -> tuple[list[float], float]:
    """How late each append was stored, and how long all took."""
    facade = AsyncJournal(journal)
    late: list[float] = []

    async def stream(name: str, first: float) -> None:
        for number in range(count):
            due = first + number * _EVERY
            await asyncio.sleep(due - time.monotonic())
            await facade.append(name, [stamp(_REQUEST)])
            late.append(time.monotonic() - due)

    begun = time.monotonic() + 0.05
    async with asyncio.TaskGroup() as callers:
        for number, name in enumerate(names):
            callers.create_task(stream(name, begun + _EVERY * number / len(names)))
    return late, time.monotonic() - begun


def _wake_up(lab: Lab, engine: Engine, journal: Journal, name: str) -> Row:
    """The same with nothing else going on."""
    count = lab.size(100, quick=5)
    with follower(engine.url("streams"), name, count) as other:
        for number in range(count):
            time.sleep(0.02 + 0.001 * (number * 7 % 11))
            journal.append(name, [stamp(_REQUEST)])
        seen = latencies(other)
    return stated(
        f"wake-up-{engine.name}",
        f"{engine.title}: the same when nothing else goes on",
        f"p50 {seconds(percentile(seen, 0.5))}",
        spread(seen),
    )
