"""Runs pytest, and each test that failed once more, alone: python -m tools.rerun ARGUMENTS...

A test that passes alone is named in a line `FLAKY: name`, and does not fail the run. Such a test is a defect that has to
be repaired. A test that fails twice fails the run, and so does anything else that pytest reports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

TESTS_FAILED: Final = 1  # pytest's exit status
RERUNS_MAX: Final = 10
"""Where more tests fail, chance is not the reason."""


def main(arguments: list[str]) -> int:
    """Return the exit status of the run."""
    with tempfile.TemporaryDirectory(prefix="tenax-rerun-") as cache:
        status = _pytest(["-o", f"cache_dir={cache}", *arguments])
        if status != TESTS_FAILED:
            return status
        failed = _failed_tests(Path(cache))
    if not 0 < len(failed) <= RERUNS_MAX:
        return status
    target = [argument for argument in arguments if argument.startswith("--target=")]
    flaky = [test for test in failed if _passes_alone(test, target)]
    for test in flaky:
        _say(f"FLAKY: {test}")
    return 0 if flaky == failed else status


def _passes_alone(test: str, target: list[str]) -> bool:
    _say(f"Run again, alone: {test}")
    return _pytest(["-p", "no:cacheprovider", *target, test]) == 0


def _pytest(arguments: list[str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], check=False
    ).returncode


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _failed_tests(cache: Path) -> list[str]:
    """Return what pytest's cache names: tests, or a file that could not be collected."""
    return list(json.loads((cache / "v" / "cache" / "lastfailed").read_text("utf-8")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
