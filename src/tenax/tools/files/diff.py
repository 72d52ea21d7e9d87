"""Unified diffs of bounded length, computed in bounded time."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from itertools import groupby, takewhile

__all__ = ["LINES_MAX", "diff"]

# The maximum number of lines of a diff. A note gives the number of omitted lines.
LINES_MAX = 200
_CHARS_MAX = 500
# The maximum number of matched lines between the first and the last change. For more, difflib could take minutes.
_MATCHED_MAX = 1000


def diff(shown: str, before: str, after: str, lines_max: int = LINES_MAX) -> str:
    """Return the diff of a file, without a final line break, or an empty text if nothing changed.

    `shown` is the name of the file.
    """
    if before == after:
        return ""
    old, new = _split_lines(before), _split_lines(after)
    lines = [
        line if len(line) <= _CHARS_MAX else f"{line[:_CHARS_MAX]}[...]"
        for group in _BoundedMatcher(old, new).get_grouped_opcodes()
        for line in _hunk(old, new, group)
    ]
    if len(lines) > lines_max:
        lines[lines_max:] = [
            f"[... {len(lines) - lines_max:,} more lines of the diff are not shown ...]"
        ]
    return "\n".join([f"--- {shown}", f"+++ {shown}", *lines])


def _split_lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
    else:
        del lines[-1]
    return lines


class _BoundedMatcher(difflib.SequenceMatcher[str]):
    """A matcher with bounded time. Lines are matched only if few lines lie between the first and the last change."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        # The base class gets no lines, because it would index all of them.
        super().__init__()
        self._old, self._new = old, new

    def get_matching_blocks(self) -> list[difflib.Match]:
        """Return the ranges of equal lines in order, and an empty range at the end."""
        old, new = self._old, self._new
        head = _count_equal(old, new)
        tail = _count_equal(reversed(old[head:]), reversed(new[head:]))
        old_end, new_end = len(old) - tail, len(new) - tail
        a, b = old[head:old_end], new[head:new_end]
        between: Iterable[tuple[int, int, int]] = ()
        if max(len(a), len(b)) <= _MATCHED_MAX:
            between = difflib.SequenceMatcher(None, a, b).get_matching_blocks()
        elif len(a) == len(b):
            between = _match_in_place(a, b)
        return [
            difflib.Match(0, 0, head),
            *(difflib.Match(i + head, j + head, size) for i, j, size in between),
            difflib.Match(old_end, new_end, tail),
            difflib.Match(len(old), len(new), 0),
        ]


def _count_equal(a: Iterable[str], b: Iterable[str]) -> int:
    """Return the number of equal lines at the beginning."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    )


def _match_in_place(a: list[str], b: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of equal lines of two texts with the same number of lines."""
    for is_equal, run in groupby(range(len(a)), lambda n: a[n] == b[n]):
        if is_equal:
            numbers = list(run)
            yield numbers[0], numbers[0], len(numbers)


def _hunk(
    old: list[str], new: list[str], group: list[tuple[str, int, int, int, int]]
) -> Iterator[str]:
    _, a, _, c, _ = group[0]
    _, _, b, _, d = group[-1]
    yield f"@@ -{a + (b > a)},{b - a} +{c + (d > c)},{d - c} @@"
    for tag, a, b, c, d in group:
        if tag == "equal":
            yield from (f" {line}" for line in old[a:b])
        else:
            yield from (f"-{line}" for line in old[a:b])
            yield from (f"+{line}" for line in new[c:d])
