"""A turn of the agent against a model that answers at once: what it costs, beside a peer and beside a bare client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.lab import ROOT, Lab
from bench.measure import Row, at_least, at_most, compare, progress, seconds, stated
from bench.peer import environment, worker

__all__ = ["turns"]

_SIZES = (10, 1000, 4000)
_GATES = {10: 5.0, 4000: 20.0}
_OURS_MS = 40.0
_STUCK = 1.1
_SEEN_STUCK = 6
"""Turns after which nobody asks a provider that never answers."""
_WORK = Path(__file__).with_name("turn_work.py")


def turns(lab: Lab) -> Iterator[Row]:
    """The same turn in both: so many messages of history, one more, an answer of one word."""
    name, module, python = "hermes-agent 0.19.0", "run_agent", environment(lab)
    if lab.scale == "quick":
        name, module, python = "itself", "tenax", sys.executable
    sizes = (10,) if lab.scale == "quick" else _SIZES
    with (
        _provider(lab) as url,
        worker(sys.executable, _WORK, ["tenax", url], lab, "turns-ours") as ours,
    ):
        progress("turns")
        for size in sizes:
            for _ in range(lab.size(2, quick=1)):
                ours("turn", size)
            pair = compare(
                lab.size(15, quick=1),
                partial(ours, "turn", size),
                partial(ours, "bare", size),
            )
            own = pair.ours - pair.theirs
            said = f"a turn {seconds(pair.ours)}, the same bytes by a bare client {seconds(pair.theirs)}"
            what = f"SQLite: what is ours of a turn at {size:,} messages of history"
            if size == 4000:
                yield at_most(
                    f"turn-own-{size}", what, own * 1000, _OURS_MS, said, " ms"
                )
            else:
                yield stated(f"turn-own-{size}", what, seconds(own), said)
        with worker(sys.executable, _WORK, ["stuck", url], lab, "turns-stuck") as stuck:
            for _ in range(lab.size(_SEEN_STUCK, quick=1)):
                stuck("turn", 10)
            pair = compare(
                lab.size(31, quick=1),
                partial(stuck, "turn", 10),
                partial(ours, "turn", 10),
            )
            what = "SQLite: a turn with a memory provider that blocks for ever, beside one without"
            said = f"{seconds(pair.ours)} beside {seconds(pair.theirs)}"
            yield at_most("turn-stuck", what, pair.ratio, _STUCK, said, " x")
        if python is None:
            yield stated(
                "turn-peer",
                f"a turn beside {name}",
                "peer not available",
                "it could not be fetched",
            )
            return
        with worker(python, _WORK, [module, url], lab, "turns-peer") as theirs:
            for size in sizes:
                theirs("turn", size)
                pair = compare(
                    lab.size(7, quick=1),
                    partial(theirs, "turn", size),
                    partial(ours, "turn", size),
                    within=60.0,
                )
                what = f"a turn at {size:,} messages of history, beside {name}"
                said = f"{seconds(pair.theirs)} beside {seconds(pair.ours)}"
                if size in _GATES and lab.scale != "quick":
                    yield at_least(
                        f"turn-peer-{size}",
                        what,
                        pair.ratio,
                        _GATES[size],
                        said,
                        " x faster",
                    )
                else:
                    yield stated(
                        f"turn-peer-{size}", what, f"{pair.ratio:.1f} x faster", said
                    )


@contextmanager
def _provider(lab: Lab) -> Iterator[str]:
    """A server that answers at once, in a process of its own."""
    script = lab.folder / "turns.json"
    script.write_text('{"replies": [{"words": "Done."}], "repeat": true}')
    command = [
        sys.executable,
        "-m",
        "tenax.testing.provider",
        "--port",
        "0",
        "--script",
        str(script),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
