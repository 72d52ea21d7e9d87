"""The benchmark runs: a quick run measures every part, and its figures mean nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_a_quick_run_prints_the_page_with_every_part() -> None:
    """No part fails, the table of figures can be read by a machine, and no key stands in it twice."""
    command = [sys.executable, "-W", "error", "-m", "bench", "--quick"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=590
    )
    assert done.returncode == 0, done.stderr[-4000:]
    table = done.stdout.split("## Figures\n")[1].split("\n## ")[0]
    keys = re.findall(
        r"^\| `([a-z0-9-]+)` \| [^|]+ \| [^|]* \| [^|]* \|$", table, re.MULTILINE
    )
    assert len(keys) == len(set(keys)) == table.count("| `")
    parts = {
        "append",
        "callers",
        "chat",
        "streams",
        "flat",
        "search",
        "peer",
        "turn",
        "cost",
        "first",
        "restart",
        "bytes",
        "import",
        "memory",
        "tool",
    }
    assert parts <= {key.split("-")[0] for key in keys}
