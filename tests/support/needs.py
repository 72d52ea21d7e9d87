"""What a test needs from the machine, and the only way to skip a test that does not get it: `raise Missing(need, why)`.

The end of a run names each missing need, why it is missing, and how many tests it costs. With CI=true a test is skipped
only for a need that tests/may-skip.txt lists; anything else that is missing fails the test.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

__all__ = ["Missing", "judge_skip", "summarise"]

MAY_SKIP: Final = Path(__file__).parents[1] / "may-skip.txt"
_REASON: Final = re.compile(
    r"(?:[\w.]+: )?needs (?P<need>[^:]+): (?P<why>.+)", re.DOTALL
)


class Missing(pytest.skip.Exception):  # type: ignore[name-defined]  # pytest adds it at run time
    """The machine lacks something, and it could not be fetched. A test or fixture that raises this error is skipped."""

    def __init__(self, need: str, why: str) -> None:
        super().__init__(f"needs {need}: {why}")


def judge_skip(reason: str) -> str:
    """Return why a test with this reason must fail instead of being skipped, or an empty string."""
    match = _REASON.fullmatch(reason)
    if match is None:
        return f"A test may be skipped only by tests.support.needs. The reason was: {reason}"
    if os.environ.get("CI") == "true" and match["need"] not in _listed():
        return f"Missing, and not listed in tests/may-skip.txt: {match['need']}. {match['why']}"
    return ""


def summarise(reasons: Iterable[str]) -> list[str]:
    """Return one line for each missing need, from the reasons of all skipped tests."""
    matches = [match for match in map(_REASON.fullmatch, reasons) if match]
    tests = Counter(match["need"] for match in matches)
    why = {match["need"]: match["why"] for match in matches}
    return [
        f"Missing: {need}. Skipped tests: {count}. Reason: {why[need]}"
        for need, count in sorted(tests.items())
    ]


def _listed() -> set[str]:
    lines = MAY_SKIP.read_text("utf-8").splitlines()
    return {line.strip() for line in lines if line and not line.startswith("#")}
