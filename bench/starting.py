"""How long `tenax` takes to start, beside a Python process that imports only click."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import tenax
from bench.lab import ROOT, Lab, talk
from bench.measure import Row, at_most, compare, progress, seconds
from tenax.config import load

__all__ = ["starting"]

_ROUNDS = 15
_FACTOR = 1.5
_ALLOWANCE_SECONDS = 0.060
_CONVERSATIONS = 20


def starting(lab: Lab) -> Iterator[Row]:
    """Commands that people type often, each in a new process. `list` reads a store with conversations."""
    progress("start of the command")
    folder = lab.folder / "home-start"
    folder.mkdir()
    home = str(folder)
    env = {**os.environ, "HOME": home, "TENAX_HOME": home}
    # Installed packages have compiled files; a process that may not write them would compile our code at every start.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with tenax.open(load(env).store_url) as journal:
        talk(journal, _CONVERSATIONS)
    command = str(Path(sys.executable).parent / "tenax")
    for argument in ("--version", "--help", "list"):
        yield _row(lab, argument.strip("-"), [command, argument], env)


def _row(lab: Lab, name: str, command: list[str], env: dict[str, str]) -> Row:
    bare = [sys.executable, "-c", "import click"]

    def start() -> float:
        return _run(command, env)

    def bound() -> float:
        return _FACTOR * _run(bare, env) + _ALLOWANCE_SECONDS

    start()
    pair = compare(lab.size(_ROUNDS, quick=1), start, bound)
    what = f"`tenax {command[1]}`, beside {_FACTOR} x the time of `python -c 'import click'` plus {seconds(_ALLOWANCE_SECONDS)}"
    return at_most(f"start-{name}", what, pair.ratio, 1.0, pair.said(seconds))


def _run(command: list[str], env: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=env)
    return time.perf_counter() - begun
