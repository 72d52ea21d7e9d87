"""Runs the mutations in tests/mutants.toml: each breaks one contract, and the tests of that contract must fail.

python -m tools.mutants [--only ROW ...] [--no-baseline]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).parents[1]
FILE: Final = ROOT / "tests" / "mutants.toml"
SECONDS_MAX: Final = 600
TESTS_FAILED: Final = 1  # pytest's exit status
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".*", "node_modules", "__pycache__", "dist", "build"
)


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One mutation of the source, and the tests that notice it."""

    row: str
    """The row of docs/CONTRACTS.md."""
    file: str
    old: str
    new: str
    tests: list[str]


def read() -> list[Mutant]:
    """All mutants, in the order of the file."""
    found = tomllib.loads(FILE.read_text("utf-8"))
    return msgspec.convert(found["mutant"], list[Mutant])


class Copy:
    """A copy of the tree with an environment of its own, in which a mutation harms nobody."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tenax"
        shutil.copytree(ROOT, self._folder, ignore=_LEFT_OUT, symlinks=True)
        environment = self._folder / ".venv"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(environment)],
            check=True,
        )
        self._python = environment / "bin" / "python"
        (packages,) = environment.glob("lib/python*/site-packages")
        installed = next(path for path in sys.path if path.endswith("site-packages"))
        # A .pth file there is not read, so the source of the copy is the only one.
        (packages / "copy.pth").write_text(f"{self._folder / 'src'}\n{installed}\n")

    def test(self, tests: list[str]) -> tuple[int, str]:
        """Run these tests; the exit status of pytest and what it said."""
        command = [
            str(self._python),
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--target=all",
            *tests,
        ]
        env: dict[str, Any] = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        env.pop("PYTHONPATH", None)
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return TESTS_FAILED, f"it took more than {SECONDS_MAX} seconds"
        return done.returncode, done.stdout[-2000:]

    def test_mutated(self, mutant: Mutant) -> tuple[int, str]:
        """The same with this mutation."""
        file = self._folder / mutant.file
        text = file.read_text("utf-8")
        if text.count(mutant.old) != 1:
            raise SystemExit(
                f"{mutant.row}: {mutant.file} does not have the old text exactly once."
            )
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            return self.test(mutant.tests)
        finally:
            file.write_text(text, encoding="utf-8")


def main() -> int:
    """Run what was asked for; 0 if every mutation was noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="ROW", help="the mutants of these rows"
    )
    parser.add_argument(
        "--no-baseline",
        action="store_true",
        help="do not run the tests without a mutation first",
    )
    given = parser.parse_args()
    mutants = [
        mutant for mutant in read() if not given.only or mutant.row in given.only
    ]
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        if not given.no_baseline:
            tests = sorted({test for mutant in mutants for test in mutant.tests})
            status, said = copy.test(tests)
            if status:
                _say(
                    f"Without a mutation the tests must pass, and they do not:\n{said}"
                )
                return 1
        survived = [mutant for mutant in mutants if not _is_caught(copy, mutant)]
    _say(f"{len(mutants) - len(survived)} of {len(mutants)} mutants were caught.")
    return 1 if survived else 0


def _is_caught(copy: Copy, mutant: Mutant) -> bool:
    began = time.monotonic()
    status, said = copy.test_mutated(mutant)
    caught = status == TESTS_FAILED
    _say(
        f"{'caught' if caught else 'SURVIVED'}  {mutant.row:5} {mutant.file}  {time.monotonic() - began:.0f} s"
    )
    if status > TESTS_FAILED:
        _say(f"The tests could not be run:\n{said}")
    return caught


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
