"""Format text for a terminal: widths in columns, short times, changed files."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from tenax.text import replace_hidden, to_one_line

if TYPE_CHECKING:
    from tenax.views.transcript import Row
    from tenax.workspace.changes import TurnChanges

UNTITLED = "(no messages yet)"
AT_ITS_LONGEST = "Reached the maximum length."

EFFECTS = {
    "pure": "read-only",
    "idempotent": "safe to repeat",
    "once": "not repeated",
}
"""The effect of repeating a tool call, in the words of the page."""
DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
"""The colour of a line of a diff, by its first character."""
_US = 1_000_000


def clean(text: str) -> str:
    """Return a text of several lines without terminal control characters. The length stays the same."""
    return replace_hidden(text.replace("\r", " "), keep="\n\t")


def fit(text: str, columns: int) -> str:
    """Cut a line to a number of columns. A cut line ends with …."""
    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, max(columns - 1, 0)).rstrip() + "…"


def pad(text: str, columns: int) -> str:
    """Fill a line up with spaces."""
    return text + " " * (columns - cell_len(text))


def room_across() -> int | None:
    """Return the number of columns of the terminal, or `None` if stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def minute(at_us: int) -> str:
    """Format a time as 2026-11-14 09:35, in UTC."""
    return f"{datetime.fromtimestamp(at_us // _US, UTC):%Y-%m-%d %H:%M}"


def short_time(at_us: int, now_us: int) -> str:
    """Format a time in the local zone: 09:35 for today, 14 Nov for the current year, else 2024-11-14."""
    at = datetime.fromtimestamp(at_us / _US, UTC).astimezone()
    now = datetime.fromtimestamp(now_us / _US, UTC).astimezone()
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at.day} {at:%b}" if at.year == now.year else f"{at:%Y-%m-%d}"


def changed(turn: TurnChanges) -> list[str]:
    """Return the changes of a turn in the folder as lines of a diff."""
    head = "Reverted" if turn.undoes else "Changed"
    if turn.undone:
        head += ", reverted later"
    lines = [f"{head}: {minute(turn.at)}"]
    if turn.missed:
        lines.append(turn.missed)
    for file in turn.files:
        lines.append(f"{file.what} {file.path} {file.note}".rstrip())
        # The first two lines of a diff repeat the path.
        lines += file.diff.split("\n")[2:]
    return [replace_hidden(line, keep="\t") for line in lines]


def with_files(text: str, row: Row) -> str:
    """Return the text of a message and the names of its attachments."""
    names = [
        f"[{to_one_line(part.name) or type(part).__name__.lower()}]"
        for part in row.parts
    ]
    return " ".join([*([text] if text else []), *names])


def noted(row: Row) -> str:
    """Return the line for a change of the memory."""
    from tenax.export.rows import say_row  # noqa: PLC0415  (most commands do not need it)

    return say_row(row)
