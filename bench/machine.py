"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from bench.lab import ROOT, Lab

__all__ = ["describe"]


def describe(lab: Lab) -> dict[str, str]:
    """The machine, the versions, the moment and the commit."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "file system": _file_system(lab.folder),
        "system": platform.platform(),
        "Python": platform.python_version(),
        **{engine.title: engine.version() for engine in lab.engines},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _file_system(folder: Path) -> str:
    try:
        mounts = [
            line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()
        ]
    except OSError:
        return "unknown"
    below = [(where, kind) for where, kind in mounts if folder.is_relative_to(where)]
    return max(below, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "bench")
    return f"{git('rev-parse', '--short', 'HEAD') or 'none'}{', with changes that are not committed' if changed else ''}"
