"""A backup of a large store, while fifty conversations stream."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench.engines import Engine
from bench.lab import ROOT, Lab, Words, message, talk
from bench.measure import (
    Row,
    at_most,
    compare,
    percentile,
    progress,
    seconds,
    stated,
)
from bench.streaming import stream
from tenax import AsyncJournal
from tenax.concurrency import python_file, python_module
from tenax.journal import Journal

__all__ = ["backups"]

_STREAMS: Final = 50
_MESSAGE_BYTES: Final = 2000
_OF_A_CONVERSATION: Final = 100
_AT_ONCE: Final = 200
_ROUNDS: Final = 3
_SLOWER_MAX: Final = 1.1
_INCREMENT_MAX: Final = 0.03
_MEMORY_MAX: Final = 1.3

# Runs a command, and prints its exit code and the largest memory in MiB.
_MEASURED: Final = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


class _Made(NamedTuple):
    """A backup: the seconds, the bytes of the folder, and the largest memory of the process in MiB."""

    seconds: float
    size: int
    mib: float


def backups(lab: Lab) -> Iterator[Row]:
    """Full and incremental backups of a store, with the test of every backup."""
    small = lab.size(5_000, quick=100, large=50_000)
    for engine in lab.engines:
        progress(f"backups, {engine.name}")
        with engine.open("backups") as journal:
            names = talk(journal, small // _OF_A_CONVERSATION)
            _fill(journal, names, small)
            early = _back_up(lab, engine, "small")
            more = talk(journal, 9 * small // _OF_A_CONVERSATION)
            _fill(journal, more, 9 * small)
            yield from _full(lab, engine, early)
            yield _increment(lab, engine, journal, [*names, *more], 10 * small)
            yield _beside_streams(lab, engine, journal)


def _fill(journal: Journal, names: list[str], count: int) -> None:
    words = Words()
    facade = AsyncJournal(journal)

    async def fill() -> None:
        for begun in range(0, count, _AT_ONCE):
            async with asyncio.TaskGroup() as appends:
                for number in range(begun, min(begun + _AT_ONCE, count)):
                    event = message(words.text(_MESSAGE_BYTES))
                    appends.create_task(
                        facade.append(names[number % len(names)], [event])
                    )

    asyncio.run(fill())


def _full(lab: Lab, engine: Engine, early: _Made) -> Iterator[Row]:
    made = _back_up(lab, engine, "full")
    yield stated(
        f"backup-{engine.name}",
        f"{engine.title}: a full backup, with its test in a scratch place",
        seconds(made.seconds),
        f"{made.size / 1e6:,.0f} MB",
    )
    yield at_most(
        f"backup-{engine.name}-memory",
        f"{engine.title}: memory of the process, beside a store of a tenth of the size",
        made.mib / early.mib,
        _MEMORY_MAX,
        f"{made.mib:.0f} MiB, then {early.mib:.0f} MiB",
    )


def _increment(
    lab: Lab, engine: Engine, journal: Journal, names: list[str], count: int
) -> Row:
    """A hundredth of the conversations gets a hundredth of the messages."""
    before = _size(lab.folder / f"full-{engine.name}")
    changed = names[:: len(names) // max(len(names) // 100, 1)]
    _fill(journal, changed, max(count // 100, 1))
    after = _back_up(lab, engine, "full")
    written = after.size - before
    return at_most(
        f"backup-{engine.name}-increment",
        f"{engine.title}: bytes of a further backup after a hundredth of change, beside all",
        written / before,
        _INCREMENT_MAX,
        f"{written / 1e6:,.2f} MB of {before / 1e6:,.0f} MB, {seconds(after.seconds)}",
    )


def _beside_streams(lab: Lab, engine: Engine, journal: Journal) -> Row:
    """Median time from the moment that a partial is due until it is stored, with and without a running backup."""
    names = talk(journal, _STREAMS)
    count = lab.size(200, quick=10)

    def alone() -> float:
        return percentile(asyncio.run(stream(journal, names, count))[0], 0.5)

    def beside() -> float:
        command = _command(lab, engine, f"beside-{time.monotonic_ns()}")
        with subprocess.Popen(
            command, env=_env(lab, engine), stdout=subprocess.DEVNULL, cwd=ROOT
        ) as process:
            try:
                return alone()
            finally:
                process.kill()

    found = compare(_ROUNDS, beside, alone, within=120)
    return at_most(
        f"backup-{engine.name}-beside",
        f"{engine.title}: median append of 50 streams while a backup runs, beside no backup",
        found.ratio,
        _SLOWER_MAX,
        found.said(seconds),
    )


def _back_up(lab: Lab, engine: Engine, label: str) -> _Made:
    folder = lab.folder / f"{label}-{engine.name}"
    begun = time.perf_counter()
    runner = lab.folder / "measured.py"
    runner.write_text(_MEASURED)
    done = subprocess.run(
        [*python_file(str(runner)), *_command(lab, engine, label)],
        env=_env(lab, engine),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    code, mib = done.stdout.split()
    assert code == "0", done.stderr
    return _Made(time.perf_counter() - begun, _size(folder), float(mib))


def _command(lab: Lab, engine: Engine, label: str) -> list[str]:
    return python_module("tenax", "backup", str(lab.folder / f"{label}-{engine.name}"))


def _env(lab: Lab, engine: Engine) -> dict[str, str]:
    home = str(lab.folder / "home")
    return {**os.environ, "TENAX_HOME": home, "TENAX_STORE": engine.url("backups")}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
