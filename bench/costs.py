"""What a turn asks of the store, and how often it leaves the event loop. The figures are counts, not times."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.lab import Lab
from bench.measure import Row, at_most
from tests.support.counting import Costs, question_costs, turn_costs

__all__ = ["costs"]

_READS_MAX = {1: 10, 100: 12}
"""By how many conversations the page watches."""
_WRITES_MAX = 6
_HOPS_MAX = 12
_QUESTION_READS_MAX = 21
_QUESTION_HOPS_MAX = 22


def costs(_lab: Lab) -> Iterator[Row]:
    """A turn in the browser, with few and with many watched conversations, and a question of the command line."""
    # Outside the repository, whose AGENTS.md would become a part of every prompt.
    with tempfile.TemporaryDirectory(prefix="tenax-bench-") as folder:
        yield from _count(Path(folder))


def _count(folder: Path) -> Iterator[Row]:
    for watched, reads_max in _READS_MAX.items():
        found = asyncio.run(turn_costs(_home(folder, f"costs-{watched}"), watched))
        what = f"SQLite: a plain turn in the browser, {watched} watched"
        yield from _rows(f"cost-turn-{watched}", what, found, reads_max, _HOPS_MAX)
        writes = f"{what}: write transactions"
        yield at_most(
            f"cost-turn-{watched}-writes", writes, found.writes, _WRITES_MAX, "", ""
        )
    home = _home(folder, "costs-question")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        found = question_costs(home)
    what = "SQLite: `tenax -p`, with its start and its end"
    yield from _rows(
        "cost-question", what, found, _QUESTION_READS_MAX, _QUESTION_HOPS_MAX
    )


def _rows(
    key: str, what: str, found: Costs, reads_max: int, hops_max: int
) -> Iterator[Row]:
    reads, hops = f"{what}: store reads", f"{what}: hops to a thread"
    yield at_most(f"{key}-reads", reads, found.reads, reads_max, "", "")
    yield at_most(f"{key}-hops", hops, found.hops, hops_max, "", "")


def _home(folder: Path, name: str) -> Path:
    home = folder / name
    home.mkdir()
    return home
