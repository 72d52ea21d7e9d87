r"""The memory as a Markdown file. People can read and edit the file in any editor, and import the file again.

    # What Tenax remembers

    ## Profile

    - Is married to Joris. <!-- f_1a2b v2, c_3c4d:14, 2026-11-15T18:40:00.000000Z -->

    ## Notes

A bullet is an entry. The comment at the end of a bullet names the entry, its version, its source and its time; a bullet
without a comment is new. Bullets may be moved, wrapped and written with `*` or `+`. Everything else is ignored. In a
text, a backslash and the beginning of a comment have a backslash before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tenax.clock import rfc3339
from tenax.errors import InvalidInput, TooLarge
from tenax.memory.entries import About, MemoryEntry
from tenax.text import is_storable

__all__ = ["CHARS_MAX", "Bullet", "read", "write"]

CHARS_MAX = 10_000_000
"""The longest file. Larger than a file with every entry of a user and every comment."""

_TITLE = "# What Tenax remembers"
_NOTE = "Change the words, move lines, add some. The comment at the end of a line says which memory it is. What is not in this file stays."
_HEADINGS: dict[About, str] = {"profile": "Profile", "note": "Notes"}
_BULLET = re.compile(r"\s*[-*+](?:\s+|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s+|$)")
_COMMENT = re.compile(r"(?<!\\)<!--((?:(?!-->|<!--).)*)-->$")
_NAMED_VERSION = re.compile(r"\s*(f_[0-9A-Za-z_-]{1,100}) v([1-9][0-9]{0,8})(?![^,\s])")
_ESCAPED = re.compile(r"\\([\\<])")


class Bullet(NamedTuple):
    """A bullet of the file, with the id and the version of its entry. `None`: the bullet is new."""

    text: str
    about: About
    id: str | None = None
    version: int | None = None


def write(entries: Sequence[MemoryEntry]) -> str:
    """Return the file of the entries, in the given order."""
    lines = [_TITLE, "", _NOTE]
    for about, heading in _HEADINGS.items():
        lines += ["", f"## {heading}"]
        bullets = [_write_bullet(entry) for entry in entries if entry.about == about]
        if bullets:
            lines += ["", *bullets]
    return "\n".join(lines) + "\n"


def read(text: str) -> list[Bullet]:
    """Return the bullets of a file, in the order of the file.

    Raises `InvalidInput` without any bullet and without the title.
    """
    if len(text) > CHARS_MAX:
        raise TooLarge(
            f"A memory has at most {CHARS_MAX:,} characters, not {len(text):,}."
        )
    if not is_storable(text):
        raise InvalidInput(
            "This is no text: it holds a NUL or half of a surrogate pair."
        )
    ids: set[str] = set()
    bullets: list[Bullet] = []
    for about, line in _bullets(text):
        bullet = _read_bullet(about, line)
        # A copy of a bullet is a new entry.
        if bullet.id in ids:
            bullet = Bullet(bullet.text, about)
        if bullet.text:
            bullets.append(bullet)
            ids.add(bullet.id or "")
    if not bullets and _TITLE not in text:
        raise InvalidInput(
            "There is nothing in this that could be remembered.",
            hint='begin every memory with "- " on a line of its own',
        )
    return bullets


def _write_bullet(entry: MemoryEntry) -> str:
    source = f", {entry.conversation}:{entry.seq}" if entry.conversation else ""
    text = entry.text.replace("\\", "\\\\").replace("<!--", "\\<!--")
    return f"- {text} <!-- {entry.id} v{entry.version}{source}, {rfc3339(entry.at)} -->"


def _bullets(text: str) -> Iterator[tuple[About, str]]:
    """Yield every bullet as a single line.

    A line below a bullet belongs to the bullet, up to an empty line, a heading or the next bullet.
    """
    about: About = "note"
    parts: list[str] = []
    for line in [*text.removeprefix("\ufeff").splitlines(), ""]:
        bullet, heading = _BULLET.match(line), _HEADING.match(line)
        if parts and line.strip() and not bullet and not heading:
            parts.append(line.strip())
            continue
        if parts:
            yield about, " ".join(parts).strip()
        parts = [line[bullet.end() :]] if bullet else []
        if heading:
            title = line[heading.end() :].strip().casefold()
            about = "profile" if title == "profile" else "note"


def _read_bullet(about: About, line: str) -> Bullet:
    """Split a line into the text and the comment at the end."""
    comment = _COMMENT.search(line)
    if comment is not None:
        line = line[: comment.start()]
    text = _ESCAPED.sub(r"\1", line).strip()
    named = _NAMED_VERSION.match(comment[1]) if comment else None
    return (
        Bullet(text, about, named[1], int(named[2])) if named else Bullet(text, about)
    )
