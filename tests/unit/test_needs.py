"""A test is skipped in one way only, the run says what that costs, and CI accepts only what a file lists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import Missing, judge_skip, summarise

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.conftest import pytest_runtest_makereport, pytest_terminal_summary  # noqa\n"
TESTS = """
import pytest
from tests.support.needs import Missing

@pytest.fixture
def chromium():
    raise Missing("Chromium", "install it.")

def test_one(chromium): pass
def test_two(chromium): pass
def test_three(): raise Missing("user namespaces", "the kernel forbids them.")
def test_four(): pass
"""


@pytest.mark.parametrize(
    ("ci", "status", "outcomes"),
    [("", 0, "1 passed, 3 skipped"), ("true", 1, "1 passed, 1 skipped, 2 errors")],
)
def test_a_run_names_what_is_missing_and_ci_fails_for_it(
    tmp_path: Path, ci: str, status: int, outcomes: str
) -> None:
    """One line a need, with the number of tests that it costs."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert outcomes in done.stdout
    namespaces = (
        "Missing: user namespaces. Skipped tests: 1. Reason: the kernel forbids them."
    )
    chromium = "Missing: Chromium. Skipped tests: 2. Reason: install it."
    assert namespaces in done.stdout
    assert (chromium in done.stdout) == (ci == "")
    assert ("not listed in tests/may-skip.txt: Chromium" in done.stdout) == (ci != "")


def test_another_way_to_skip_fails() -> None:
    """Such as `pytest.mark.skip`: nobody would count it."""
    assert "only by tests.support.needs" in judge_skip("Skipped: not today")


def test_the_lines_count_tests_by_need() -> None:
    """In the order of their names."""
    reasons = [str(Missing(need, "gone.")) for need in ("b", "a", "b")]
    assert summarise(reasons) == [
        "Missing: a. Skipped tests: 1. Reason: gone.",
        "Missing: b. Skipped tests: 2. Reason: gone.",
    ]
