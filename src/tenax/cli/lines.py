"""Text for a terminal: words on one line, a width in columns, a time as people say it."""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from datetime import UTC, datetime

from tenax.clock import rfc3339
from tenax.views.transcript import Row
from tenax.workspace.changes import TurnChanges

UNTITLED = "(nothing said yet)"
AT_ITS_LONGEST = "Stopped at the longest answer that the model may give."

_NOTED = {
    "added": "Remembered",
    "replaced": "Changed what it remembers",
    "removed": "Forgot",
}
_US = 1_000_000
_SPACE = re.compile(r"\s+")


def visible(text: str, but: str = "") -> str:
    """The same text, character by character, without anything that a terminal would obey, `but` for these."""
    return "".join(
        each if each.isprintable() or each in but else "\ufffd" for each in text
    )


def clean(text: str) -> str:
    """A text of several lines, character by character, without anything that a terminal would obey."""
    return visible(text.replace("\r", " "), but="\n\t")


def one_line(text: str) -> str:
    """The same words without line breaks, and without anything that a terminal would obey."""
    return visible(_SPACE.sub(" ", text).strip())


def width(text: str) -> int:
    """How many columns a line takes."""
    return sum(_columns(each) for each in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """As much of a line as fits, with a sign where it was cut."""
    if width(text) <= columns:
        return text
    taken, left = "", columns - 1
    for char in text:
        left -= _columns(char)
        if left < 0:
            break
        taken += char
    return taken.rstrip() + "…"


def pad(text: str, columns: int) -> str:
    """A line filled up with spaces."""
    return text + " " * (columns - width(text))


def room_across() -> int | None:
    """How many columns the terminal has; None where nobody measures them."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def minute(at_us: int) -> str:
    """2026-11-14 09:35, in UTC."""
    return rfc3339(at_us)[:16].replace("T", " ")


def short_time(at_us: int, now_us: int) -> str:
    """Local time: 09:35 today, 14 Nov this year, 2024-11-14 before."""
    at, now = (
        datetime.fromtimestamp(each / _US, UTC).astimezone() for each in (at_us, now_us)
    )
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at.day} {at:%b}" if at.year == now.year else f"{at:%Y-%m-%d}"


def changed(turn: TurnChanges) -> list[str]:
    """What a turn changed in the folder, as lines of a diff."""
    head = f"{'Put back' if turn.undoes else 'Changed'}{', and put back since' if turn.undone else ''}"
    lines = [f"{head}: {minute(turn.at)}", *([turn.missed] if turn.missed else [])]
    for each in turn.files:
        lines += [
            f"{each.what} {each.path} {each.note}".rstrip(),
            *each.diff.split("\n")[2:],
        ]
    return [visible(line, but="\t") for line in lines]


def with_files(text: str, row: Row) -> str:
    """The words of a message, and the names of what went with them."""
    names = [
        f"[{one_line(part.name) or type(part).__name__.lower()}]" for part in row.parts
    ]
    return " ".join([*([text] if text else []), *names])


def noted(row: Row) -> str:
    """What a row about the memory says."""
    text = "(erased)" if row.erased else one_line(row.text)
    return f"{_NOTED[row.action]}: {text}{' Undone.' if row.state else ''}"
