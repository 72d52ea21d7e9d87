"""`python -m bench`: measure, and write the page."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator

from bench.lab import ROOT, Lab
from bench.machine import describe
from bench.measure import Row, progress
from bench.page import render
from bench.parts import PARTS

PAGE = ROOT / "docs" / "BENCHMARKS.md"


def main() -> int:
    asked = _arguments()
    # as Ctrl-C: what it made is put away
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    names = asked.part or list(PARTS)
    with Lab("quick" if asked.quick else "large" if asked.large else "normal") as lab:
        machine = describe(lab)
        found = {
            name: (PARTS[name][0], _rows(name, PARTS[name][1], lab)) for name in names
        }
    page = render(machine, found, lab.scale, time.monotonic() - begun)
    if asked.stdout or asked.part or asked.quick:
        sys.stdout.write(page)
    else:
        PAGE.write_text(page)
        progress(f"wrote {PAGE.relative_to(ROOT)}")
    return any(
        row.key == f"{name}-failed" for name, (_, rows) in found.items() for row in rows
    )


def _rows(name: str, part: Callable[[Lab], Iterator[Row]], lab: Lab) -> list[Row]:
    """What a part found. One that fails says so on the page, and the others go on."""
    progress(f"-- {name}")
    rows: list[Row] = []
    try:
        for row in part(lab):
            progress(
                f"   {row.key}: {row.result} ({row.measured}) {row.gate} {'' if row.held is not False else 'NOT HELD'}"
            )
            rows.append(row)
    except Exception as error:  # noqa: BLE001  (the page names it, and the command fails)
        traceback.print_exc()
        said = str(error).split("\n")[0].replace("|", "/")
        rows.append(
            Row(
                f"{name}-failed",
                f"{type(error).__name__}: {said}",
                "failed",
                gate="finishes",
                held=False,
            )
        )
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure, and write docs/BENCHMARKS.md."
    )
    parser.add_argument(
        "part",
        nargs="*",
        help=f"only these, printed and not written: {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--large", action="store_true", help="a million messages and events; takes long"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="sizes that mean nothing, printed and not written",
    )
    parser.add_argument(
        "--stdout", action="store_true", help="print the page and do not write it"
    )
    asked = parser.parse_args()
    if unknown := set(asked.part) - set(PARTS):
        parser.error(
            f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}"
        )
    return asked


if __name__ == "__main__":
    sys.exit(main())
