"""Beside a peer: `hermes-agent` from PyPI, whose SessionDB does the same work with the same names.

It gets an environment of its own, made when it is first needed. Where it cannot be fetched, the page says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lab import Lab
from bench.measure import Compared, Row, compare, per_second, progress, seconds, stated

__all__ = ["environment", "peer", "worker"]

_PACKAGE, _VERSION = "hermes-agent", "0.19.0"
_WORK = Path(__file__).with_name("peer_work.py")
_MESSAGES = 5000
Ask = Callable[[str, int], float]


def peer(lab: Lab) -> Iterator[Row]:
    """The same appends and reads in both. A quick run stands beside itself: it fetches nothing."""
    name, module, python = f"{_PACKAGE} {_VERSION}", "hermes_state", environment(lab)
    if lab.scale == "quick":
        name, module, python = "itself", "tenax.sessions", sys.executable
    if python is None:
        yield stated(
            "peer-append",
            f"{name} on the same work",
            "peer not available",
            "it could not be fetched",
        )
        return
    progress(f"beside {name}")
    with (
        worker(
            sys.executable,
            _WORK,
            ["tenax.sessions", str(lab.folder / "ours.db")],
            lab,
            "ours",
        ) as ours,
        worker(
            python, _WORK, [module, str(lab.folder / "peer.db")], lab, "peer"
        ) as theirs,
    ):
        messages = lab.size(_MESSAGES, quick=20)
        for ask in (ours, theirs):
            ask("append", lab.size(3000, quick=5))
            ask("load", messages)

        def both(what: str, rounds: int, count: int) -> Compared:
            return compare(
                rounds, lambda: ours(what, count), lambda: theirs(what, count)
            )

        one = both("append", lab.size(30, quick=1), lab.size(100, quick=5))
        many = both("callers", lab.size(15, quick=1), lab.size(60, quick=5))
        load = both("load", lab.size(15, quick=1), messages)
    what = f"`SessionDB.append_message`, one caller, beside {name}"
    yield stated("peer-append", what, f"{one.ratio:.2f} x the time", one.said(seconds))
    what = f"the same, 8 threads, each in its own session, beside {name}"
    yield stated(
        "peer-callers", what, f"{many.ratio:.2f} x the rate", many.said(per_second)
    )
    what = f"`SessionDB.get_messages` of {messages:,} messages, beside {name}"
    yield stated("peer-load", what, f"{load.ratio:.2f} x the time", load.said(seconds))


def environment(lab: Lab) -> str | None:
    """The Python of the peer's own environment, or None where it cannot be had."""
    folder = lab.cache / f"{_PACKAGE}-{_VERSION}"
    python, done = folder / "bin" / "python", folder / "installed"
    if lab.scale != "quick" and not done.exists():
        progress(f"fetching {_PACKAGE} {_VERSION} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            f"{_PACKAGE}=={_VERSION}",
        ]
        if subprocess.run(pip, check=False, capture_output=True).returncode == 0:
            done.touch()
    return str(python) if done.exists() else None


@contextmanager
def worker(
    python: str, work: Path, args: list[str], lab: Lab, name: str
) -> Iterator[Ask]:
    """A process that does the work, and how to ask it. Its home is empty, so that nobody's settings reach it."""
    home = lab.folder / f"{name}-home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "HERMES_HOME": str(home)}
    command = [python, str(work), *args]
    with subprocess.Popen(
        command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(what: str, count: int) -> float:
            print(what, count, file=stdin, flush=True)
            return float(stdout.readline())

        yield ask
        stdin.close()
