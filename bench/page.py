"""The page that a run writes: the headline table first, then each part with all that it measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.lab import Scale
from bench.measure import Row

__all__ = ["render"]

_TOP = """# Benchmarks

Written by `{command}`, whole; it is not edited by hand. Run it again to have the figures of your machine.

{machine}

{verdict}

"""
_METHOD = """
## Method

- A figure is compared only with one of the same run on the same disk. Both sides take turns in rounds, and who begins
  takes turns too. A round's figure is its median; what is shown is the median over the rounds of each side, and the
  median of the rounds' ratios.
- Before a round counts, both sides are called until their write-ahead logs have the size that is reused from then on:
  a log that still grows makes every commit slower.
- *Bare* is the engine alone on the same disk: one table with an id and a body, one `insert` of the same bytes that we
  store, committed by itself (APSW in WAL mode with `synchronous=FULL`; psycopg, prepared, with `synchronous_commit=on`).
- *Every flush 2 ms longer* is a SQLite VFS that sleeps 2 ms in every `xSync`, under both sides: an ordinary SSD. The
  flush of the disk below is what it is.
- PostgreSQL is a server of the run's own with its default settings on the same machine, so it shares the cores.
- *p99* is the worst of a hundred, and moves from run to run far more than a median does.
"""


def render(
    machine: Mapping[str, str],
    parts: Mapping[str, tuple[str, Sequence[Row]]],
    scale: Scale,
    seconds: float,
) -> str:
    """The whole page."""
    rows = [row for _, found in parts.values() for row in found]
    command = {
        "quick": "python -m bench --quick",
        "normal": "make bench",
        "large": "make bench-large",
    }[scale]
    facts = {**machine, "took": f"{seconds / 60:.1f} minutes"}
    if scale == "quick":
        facts["careful"] = "these sizes are so small that the figures mean nothing"
    top = _TOP.format(
        command=command,
        machine=_table(("", ""), list(facts.items())),
        verdict=_verdict(rows),
    )
    page = [
        top,
        "## Figures\n\n",
        _table(("figure", "result", "gate", "held"), [_short(row) for row in rows]),
    ]
    page.append(_METHOD)
    for name, (title, found) in parts.items():
        columns = ("figure", "what", "result", "measured", "gate", "held")
        page.append(f"\n## {title}\n\n`python -m bench {name}`\n\n")
        page.append(
            _table(
                columns,
                [
                    (row.key, row.what, row.result, row.measured, row.gate, _held(row))
                    for row in found
                ],
            )
        )
    return "".join(page)


def _verdict(rows: Sequence[Row]) -> str:
    gated = [row for row in rows if row.held is not None]
    missed = [row for row in gated if not row.held]
    if not missed:
        return f"All {len(gated)} gates were held."
    names = ", ".join(f"`{row.key}` ({row.result}, {row.gate})" for row in missed)
    return f"{len(gated) - len(missed)} of {len(gated)} gates were held. **Not held: {names}.**"


def _short(row: Row) -> tuple[str, ...]:
    return f"`{row.key}`", row.result, row.gate, _held(row)


def _held(row: Row) -> str:
    return {None: "", True: "yes", False: "**no**"}[row.held]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
