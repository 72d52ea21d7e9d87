"""One durable append, and many at once, beside the bare engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from statistics import median

from bench.engines import Engine
from bench.floor import floor
from bench.lab import Lab, Words, message, talk
from bench.measure import (
    Compared,
    Row,
    at_least,
    at_most,
    compare,
    per_second,
    progress,
    rate,
    seconds,
    stated,
    timed,
)
from tenax import AsyncJournal
from tenax.events import Event, ReplyDelta, encode
from tenax.journal import Journal

__all__ = ["alone", "concurrent", "together"]

FLUSH_MS = 2.0
_TEXT_BYTES = 300
_CONVERSATIONS = 20
_RESTED = 4000
"""So many that a conversation's turn comes seconds after its last: the list is true to the second."""
_ALONE = "one durable append of a message of 300 bytes, nobody waiting, beside a bare insert and commit of its body"


def alone(lab: Lab) -> Iterator[Row]:
    """One caller."""
    event = message(Words().text(_TEXT_BYTES))
    for engine in lab.engines:
        progress(f"append, one caller, {engine.name}")
        found = _one_caller(lab, engine, event)
        measured = found.said(seconds)
        if engine.name == "sqlite":
            yield at_most(
                "append-sqlite", f"SQLite: {_ALONE}", found.ratio, 1.6, measured
            )
            yield from floor(lab, event)
            yield _slow_flush(lab, event)
        else:
            yield stated(
                "append-postgresql",
                f"PostgreSQL: {_ALONE}",
                f"{found.ratio:.2f} x",
                measured,
            )
        rested = _one_caller(
            lab, engine, event, conversations=lab.size(_RESTED, quick=30)
        )
        what = f"{engine.title}: the same to conversations that had rested, so that the list moves too"
        yield stated(
            f"append-{engine.name}-rested",
            what,
            f"{rested.ratio:.2f} x",
            rested.said(seconds),
        )
    for engine in lab.engines:
        progress(f"partials, {engine.name}")
        yield from _partials(lab, engine)


def _one_caller(
    lab: Lab,
    engine: Engine,
    event: Event,
    *,
    durable: bool = True,
    conversations: int = _CONVERSATIONS,
) -> Compared:
    label, body = f"append-{event.kind}-{conversations}", encode(event)
    with engine.open(label) as journal, engine.bare(label, durable=durable) as bare:
        names = cycle(talk(journal, conversations))
        warm = lab.size(2000, quick=20)
        engine.warm(label, lambda: journal.append(next(names), [event]), warm)
        engine.warm(f"{label}-bare", lambda: bare.insert(body), warm)
        count = lab.size(100, quick=5)
        return compare(
            lab.size(50, quick=2),
            lambda: median(timed(count, lambda: journal.append(next(names), [event]))),
            lambda: median(timed(count, lambda: bare.insert(body))),
        )


def _slow_flush(lab: Lab, event: Event) -> Row:
    label, body, disk = "append-flush", encode(event), lab.sqlite.disk
    with (
        lab.sqlite.open(label, metered=True) as journal,
        lab.sqlite.bare(label, metered=True) as bare,
    ):
        names = cycle(talk(journal, _CONVERSATIONS))
        warm = lab.size(2000, quick=20)
        lab.sqlite.warm(label, lambda: journal.append(next(names), [event]), warm)
        lab.sqlite.warm(f"{label}-bare", lambda: bare.insert(body), warm)
        count = lab.size(30, quick=3)
        disk.sync_ms = FLUSH_MS
        try:
            found = compare(
                lab.size(20, quick=2),
                lambda: median(
                    timed(count, lambda: journal.append(next(names), [event]))
                ),
                lambda: median(timed(count, lambda: bare.insert(body))),
            )
        finally:
            disk.sync_ms = 0
    what = "SQLite: the same, every flush 2 ms longer"
    return at_most("append-sqlite-flush", what, found.ratio, 1.2, found.said(seconds))


def _partials(lab: Lab, engine: Engine) -> Iterator[Row]:
    """Text of an answer while it streams: it survives the process, not a power loss, so it waits for no flush."""
    delta = ReplyDelta(2, 0, Words().text(36))
    found = _one_caller(lab, engine, delta, durable=False)
    yield stated(
        f"append-{engine.name}-partial",
        f"{engine.title}: one append of a partial, beside a bare insert and commit that waits for no flush either",
        f"{found.ratio:.2f} x",
        found.said(seconds),
    )
    label = "append-partials"
    with engine.open(label) as journal:
        names = talk(journal, 64)
        per_caller = lab.size(100, quick=2)
        speeds = [
            together(journal, names, delta, per_caller)
            for _ in range(lab.size(5, quick=1))
        ]
    yield stated(
        f"append-{engine.name}-partials",
        f"{engine.title}: partials of 64 conversations at once",
        per_second(median(speed for speed, _ in speeds)),
        f"groups of {median(group for _, group in speeds):.0f}",
    )


def together(
    journal: Journal, names: Sequence[str], event: Event, per_caller: int
) -> tuple[float, float]:
    """One asynchronous caller for each conversation: appends a second, and how many shared a commit."""
    queue = journal.store.queue
    groups, appends = queue.groups, queue.appends

    async def caller(facade: AsyncJournal, name: str) -> None:
        for _ in range(per_caller):
            await facade.append(name, [event])

    async def run() -> float:
        facade = AsyncJournal(journal)
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as callers:
            for name in names:
                callers.create_task(caller(facade, name))
        return time.perf_counter() - begun

    took = asyncio.run(run())
    return len(names) * per_caller / took, (queue.appends - appends) / (
        queue.groups - groups
    )


def concurrent(lab: Lab) -> Iterator[Row]:
    """Many callers."""
    event = message(Words().text(_TEXT_BYTES))
    for engine in lab.engines:
        progress(f"append, 64 and 8 callers, {engine.name}")
        yield from _many_callers(lab, engine, event)
    progress("append, 64 callers, slow flush, sqlite")
    yield _many_slow(lab, event)


def _many_callers(lab: Lab, engine: Engine, event: Event) -> Iterator[Row]:
    label, body = "callers", encode(event)
    with engine.open(label) as journal, engine.bare(label) as bare:
        names = talk(journal, 64)
        warm = lab.size(2000, quick=20)
        engine.warm(label, lambda: journal.append(names[0], [event]), warm)
        engine.warm(f"{label}-bare", lambda: bare.insert(body), warm)
        per_caller, count = lab.size(40, quick=2), lab.size(600, quick=20)
        together(journal, names, event, per_caller)
        groups: list[float] = []

        def tasks() -> float:
            speed, group = together(journal, names, event, per_caller)
            groups.append(group)
            return speed

        rounds = lab.size(15, quick=2)
        found = compare(rounds, tasks, lambda: rate(count, lambda: bare.insert(body)))
        threads = compare(
            rounds,
            lambda: _threads(journal, names[:8], event, count // 8),
            lambda: rate(count, lambda: bare.insert(body)),
        )
    title = f"{engine.title}: 64 concurrent appenders through the async facade"
    measured = found.said(per_second)
    if engine.name == "sqlite":
        yield at_least(
            "callers-sqlite",
            f"{title}, beside bare inserts and commits",
            found.ratio,
            2,
            measured,
        )
        yield at_least(
            "callers-sqlite-group",
            f"{title}: how many share a commit",
            median(groups),
            16,
            "",
            "",
        )
    else:
        yield stated(
            "callers-postgresql",
            f"{title}, beside bare inserts and commits",
            f"{found.ratio:.1f} x",
            measured,
        )
        yield stated(
            "callers-postgresql-group",
            f"{title}: how many share a commit",
            f"{median(groups):.0f}",
        )
    yield stated(
        f"callers-{engine.name}-threads",
        f"{engine.title}: 8 threads through the plain journal, beside bare inserts and commits of one",
        f"{threads.ratio:.1f} x",
        threads.said(per_second),
    )


def _threads(
    journal: Journal, names: Sequence[str], event: Event, per_caller: int
) -> float:
    def caller(name: str) -> None:
        for _ in range(per_caller):
            journal.append(name, [event])

    threads = [threading.Thread(target=caller, args=(name,)) for name in names]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(names) * per_caller / (time.perf_counter() - begun)


def _many_slow(lab: Lab, event: Event) -> Row:
    label, disk = "callers-flush", lab.sqlite.disk
    with lab.sqlite.open(label, metered=True) as journal:
        names = talk(journal, 64)
        lab.sqlite.warm(
            label, lambda: journal.append(names[0], [event]), lab.size(2000, quick=20)
        )
        disk.sync_ms = FLUSH_MS
        try:
            found = compare(
                lab.size(9, quick=2),
                lambda: together(journal, names, event, lab.size(15, quick=2))[0],
                lambda: rate(
                    lab.size(100, quick=5), lambda: journal.append(names[0], [event])
                ),
            )
        finally:
            disk.sync_ms = 0
    return at_least(
        "callers-sqlite-flush",
        "SQLite: the same with every flush 2 ms longer, beside the single caller",
        found.ratio,
        8,
        found.said(per_second),
    )
