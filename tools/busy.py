"""Run the suite several times on a busy machine: python -m tools.busy [--rounds N] [ARGUMENTS OF PYTEST...]

Two processes that only count keep two processors busy meanwhile. A test that fails here depends on luck or on a quiet
machine, and has to be repaired.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ROUNDS: Final = 3
LOOPS: Final = 2
LOOP: Final = "while True: pass"


def main() -> int:
    """Return 1 if a round failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options, arguments = parser.parse_known_args()
    failed = 0
    with _busy_loops():
        for number in range(1, options.rounds + 1):
            sys.stdout.write(f"Round {number} of {options.rounds}\n")
            sys.stdout.flush()
            command = [sys.executable, "-m", "pytest", "-n", "2", *arguments]
            failed += subprocess.run(command, check=False).returncode != 0
    sys.stdout.write(f"{failed} of {options.rounds} rounds failed.\n")
    return min(failed, 1)


@contextmanager
def _busy_loops() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
