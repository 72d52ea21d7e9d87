"""What a change did to a text: a unified diff of bounded length, made in bounded time."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from itertools import chain, takewhile

__all__ = ["LINES_MAX", "diff"]

LINES_MAX = 200
"""Lines of a diff. How many are missing is said."""
_CHARS_MAX = 500
_AROUND = 3
_MATCHED_MAX = 1000
"""Lines between the first and the last change. To match more of them could take minutes."""

_Change = tuple[int, int, int, int]
"""Lines `a` to `b` of the old text became lines `c` to `d` of the new one; counted from 0, the ends left out."""


def diff(shown: str, before: str, after: str) -> str:
    """The diff of the file that is shown under this name, without a line break at its end; empty if nothing changed."""
    old, new = _lines(before), _lines(after)
    hunks = chain.from_iterable(
        _hunk(old, new, each) for each in _grouped(_changes(old, new))
    )
    lines = [
        line if len(line) <= _CHARS_MAX else f"{line[:_CHARS_MAX]}[...]"
        for line in hunks
    ]
    if not lines:
        return ""
    if len(lines) > LINES_MAX:
        lines[LINES_MAX:] = [
            f"[... {len(lines) - LINES_MAX:,} more lines of the diff are not shown ...]"
        ]
    return "\n".join([f"--- {shown}", f"+++ {shown}", *lines])


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
    else:
        del lines[-1]
    return lines


def _changes(old: list[str], new: list[str]) -> list[_Change]:
    """What differs, in order. Between the first change and the last one, only so many lines are matched with care."""
    head = _alike(old, new)
    tail = _alike(reversed(old[head:]), reversed(new[head:]))
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    found: list[_Change] = [(0, len(a), 0, len(b))] if a or b else []
    if max(len(a), len(b)) <= _MATCHED_MAX:
        codes = difflib.SequenceMatcher(None, a, b).get_opcodes()
        found = [places for kind, *places in codes if kind != "equal"]  # type: ignore[misc]
    elif len(a) == len(b):
        found = [
            (n, n + 1, n, n + 1)
            for n, (was, now) in enumerate(zip(a, b, strict=True))
            if was != now
        ]
    return [(i + head, j + head, k + head, m + head) for i, j, k, m in found]


def _alike(a: Iterable[str], b: Iterable[str]) -> int:
    """How many lines are the same from the first on."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    )


def _grouped(changes: list[_Change]) -> list[list[_Change]]:
    """Changes so near to each other that they are shown together."""
    groups: list[list[_Change]] = []
    for each in changes:
        if groups and each[0] - groups[-1][-1][1] <= 2 * _AROUND:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _hunk(old: list[str], new: list[str], group: list[_Change]) -> Iterator[str]:
    at = max(0, group[0][0] - _AROUND)
    end = min(len(old), group[-1][1] + _AROUND)
    first, last = group[0][2] - (group[0][0] - at), group[-1][3] + end - group[-1][1]
    yield f"@@ -{at + (end > at)},{end - at} +{first + (last > first)},{last - first} @@"
    for a, b, c, d in group:
        yield from (f" {line}" for line in old[at:a])
        yield from (f"-{line}" for line in old[a:b])
        yield from (f"+{line}" for line in new[c:d])
        at = b
    yield from (f" {line}" for line in old[at:end])
