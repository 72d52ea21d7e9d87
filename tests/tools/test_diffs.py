"""A diff says what changed: whoever has it and the old text has the new one."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as some

from tenax.tools.files.diff import LINES_MAX, diff

HUNK = re.compile(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@")
LINES = some.lists(some.sampled_from(["", "a", "b", "c", "-", "+x"]), max_size=30)


def text(lines: list[str]) -> str:
    return "".join(f"{each}\n" for each in lines)


def applied(old: list[str], changes: str) -> list[str]:
    """The old lines with a diff applied to them; each of its lines has to fit."""
    new: list[str] = []
    at = 0
    for line in changes.split("\n")[2:]:
        if hunk := HUNK.fullmatch(line):
            start = int(hunk[1]) - (hunk[2] != "0")
            new += old[at:start]
            assert len(new) == int(hunk[3]) - (hunk[4] != "0")
            at = start
        elif line[0] == "+":
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [line[1:]] * (line[0] == " ")
            at += 1
    return new + old[at:]


@given(LINES, LINES)
def test_the_new_text_follows_from_the_old_one_and_the_diff(
    old: list[str], new: list[str]
) -> None:
    """And the diff is empty if nothing changed."""
    changes = diff("f", text(old), text(new))
    assert (changes == "") == (old == new)
    assert applied(old, changes) == new


def test_a_line_end_that_comes_or_goes_is_a_change() -> None:
    """It is said as other tools say it."""
    assert (
        diff("f", "a\n", "a")
        == "--- f\n+++ f\n@@ -1,1 +1,1 @@\n-a\n+a\n\\ No newline at end of file"
    )
    assert diff("f", "", "a\n") == "--- f\n+++ f\n@@ -0,0 +1,1 @@\n+a"
    assert diff("f", "a\n", "") == "--- f\n+++ f\n@@ -1,1 +0,0 @@\n-a"


def test_changes_far_apart_in_a_long_text_are_shown_each() -> None:
    """A word that was replaced everywhere is not lost in what stayed between."""
    old = [f"line {n}" for n in range(100_000)]
    new = [line + "!" * (n % 30_000 == 10) for n, line in enumerate(old)]
    changes = diff("f", text(old), text(new))
    assert changes.count("@@ -") == 4
    assert applied(old, changes) == new


def test_neighbouring_changes_in_a_long_text_are_shown_as_one_block() -> None:
    """The removed lines come first, then the added lines, as in a short text."""
    old = [f"line {n}" for n in range(3000)]
    new = [f"{line}!" if n in {10, 11, 2500} else line for n, line in enumerate(old)]
    changes = diff("f", text(old), text(new))
    assert "\n-line 10\n-line 11\n+line 10!\n+line 11!\n" in changes
    assert applied(old, changes) == new


def test_a_diff_has_an_end_however_much_changed() -> None:
    """In lines, in the length of one, and in the time that it takes: texts without a line in its place are not matched."""
    one, other = (
        [f"{n % 977}" for n in range(300_000)],
        [f"{n % 983}" for n in range(299_999)],
    )
    changes = diff("f", text(one), text(other)).split("\n")
    assert len(changes) == LINES_MAX + 3
    assert changes[-1] == "[... 597,849 more lines of the diff are not shown ...]"
    assert (
        max(len(line) for line in diff("f", "a" * 100_000, "b" * 100_000).split("\n"))
        < 600
    )
