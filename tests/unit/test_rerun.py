"""`tools.rerun`: CI names a test that fails only once, and fails for one that fails twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = {
    "good": "def test_good(): pass\n",
    "flaky": (
        "import pathlib, pytest\n"
        "@pytest.mark.parametrize('words', ['one two'])\n"
        "def test_flaky(words):\n"
        "    mark = pathlib.Path(__file__).with_suffix('.seen')\n"
        "    seen = mark.exists()\n"
        "    mark.touch()\n"
        "    assert seen\n"
    ),
    "broken": "def test_broken(): assert False\n",
    "unreadable": "import a_module_that_is_not_there\n",
}


def run(folder: Path, *names: str) -> tuple[int, list[str]]:
    """Run such tests. Return the exit status and the lines that name flaky tests."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name in names:
        (folder / f"test_{name}.py").write_text(TESTS[name])
    command = [sys.executable, "-m", "tools.rerun", "-q", "."]
    # These tests need no plugin, and pytest starts several times.
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, [
        line for line in done.stdout.splitlines() if line.startswith("FLAKY")
    ]


@pytest.mark.parametrize(
    ("names", "status", "flaky"),
    [
        (["good"], 0, 0),
        (["good", "flaky"], 0, 1),
        (["good", "broken"], 1, 0),
        (["flaky", "broken"], 1, 1),
        (["good", "unreadable"], 2, 0),
        ([], 5, 0),
    ],
)
def test_only_what_fails_twice_fails_the_run(
    tmp_path: Path, names: list[str], status: int, flaky: int
) -> None:
    """A test that cannot be collected fails it too, and so does a run without tests."""
    code, lines = run(tmp_path, *names)
    assert (code, len(lines)) == (status, flaky)
    assert all(line.endswith("test_flaky.py::test_flaky[one two]") for line in lines)
