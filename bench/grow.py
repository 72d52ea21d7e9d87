"""A process that appends and proves, and says how much memory it has: `python -m bench.grow URL EARLY LATE`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import tenax
from bench.appending import together
from bench.lab import Words, message, talk
from tenax.journal.verify.store import verify

__all__ = ["resident"]

_PER_CONVERSATION = 1000
_CALLERS = 50
_STEP = 20


def resident() -> float:
    """MiB of this process in memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main(url: str, early: int, late: int) -> None:
    event = message(Words().text(200))
    at_early = 0.0
    with tenax.open(url) as journal:
        stored, names = 0, [""]
        while stored < late:
            if stored % (_CALLERS * _PER_CONVERSATION) == 0:
                names = talk(journal, _CALLERS)
            together(journal, names, event, _STEP)
            stored += _CALLERS * _STEP
            if not at_early and stored >= early:
                at_early = resident()
        at_late, begun = resident(), time.perf_counter()
        report = verify(journal)
        took = time.perf_counter() - begun
        assert report.ok, report.problems
        print(at_early, at_late, resident(), took)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
