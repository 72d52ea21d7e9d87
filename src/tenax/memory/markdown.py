r"""The memory as a Markdown file that people read and edit in any editor, and that is read back.

    # What Tenax remembers

    ## Profile

    - Is married to Joris. <!-- f_1a2b v2, c_3c4d:14, 2026-11-15T18:40:00.000000Z -->

    ## Notes

A bullet is a fact. The comment at its end says which one, at which version, where it was learned and when; a bullet without
one is new. Bullets may be moved, wrapped and written with `*` or `+`; what is no bullet is not read. In a text a backslash and the
beginning of a comment have a backslash before them, and everything else stands as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tenax.clock import rfc3339
from tenax.errors import InvalidInput, TooLarge
from tenax.memory.facts import About, Fact
from tenax.parts import NO_TEXT

__all__ = ["CHARS_MAX", "Entry", "read", "write"]

CHARS_MAX = 10_000_000
"""More than every fact that can stand, with its comment."""

_TITLE = "# What Tenax remembers"
_NOTE = "Change the words, move lines, add some. The comment at the end of a line says which fact it is. What is not in this file stays."
_HEADS: dict[About, str] = {"profile": "Profile", "note": "Notes"}
_BULLET = re.compile(r"\s*[-*+](?:\s+|$)")
_HEAD = re.compile(r" {0,3}#{1,6}(?:\s+|$)")
_COMMENT = re.compile(r"(?<!\\)<!--((?:(?!-->|<!--).)*)-->$")
_WHICH = re.compile(r"\s*(f_[0-9A-Za-z_-]{1,100}) v([1-9][0-9]{0,8})(?![^,\s])")
_ESCAPED = re.compile(r"\\([\\<])")


class Entry(NamedTuple):
    """A bullet. `id` and `version` are those of the fact that it was written from; None: it is new."""

    text: str
    about: About
    id: str | None = None
    version: int | None = None


def write(facts: Sequence[Fact]) -> str:
    """The file of these facts, in their order."""
    lines = [_TITLE, "", _NOTE]
    for about, head in _HEADS.items():
        bullets = [_bullet(each) for each in facts if each.about == about]
        lines += ["", f"## {head}", *([""] if bullets else []), *bullets]
    return "\n".join(lines) + "\n"


def read(text: str) -> list[Entry]:
    """What such a file says, in its order. Raises InvalidInput if it is none."""
    if len(text) > CHARS_MAX:
        raise TooLarge(
            f"A memory has at most {CHARS_MAX:,} characters, not {len(text):,}."
        )
    if NO_TEXT.search(text):
        raise InvalidInput(
            "This is no text: it holds a NUL or half of a surrogate pair."
        )
    seen: set[str] = set()
    entries: list[Entry] = []
    for about, item in _items(text):
        entry = _entry(about, item)
        if entry.id in seen:  # a copy of a bullet is a new fact
            entry = Entry(entry.text, about)
        if entry.text:
            entries.append(entry)
            seen.add(entry.id or "")
    if not entries and _TITLE not in text:
        raise InvalidInput(
            "There is nothing in this that could be remembered.",
            hint='begin every fact with "- " on a line of its own',
        )
    return entries


def _bullet(fact: Fact) -> str:
    where = f", {fact.conversation}:{fact.seq}" if fact.conversation else ""
    text = fact.text.replace("\\", "\\\\").replace("<!--", "\\<!--")
    return f"- {text} <!-- {fact.id} v{fact.version}{where}, {rfc3339(fact.at)} -->"


def _items(text: str) -> Iterator[tuple[About, str]]:
    """The bullets, each on one line: a line below one belongs to it, up to an empty one, a heading or the next bullet."""
    about: About = "note"
    item: list[str] = []
    for line in [*text.removeprefix("\ufeff").splitlines(), ""]:
        bullet, head = _BULLET.match(line), _HEAD.match(line)
        if item and line.strip() and not bullet and not head:
            item.append(line.strip())
            continue
        if item:
            yield about, " ".join(item).strip()
        item = [line[bullet.end() :]] if bullet else []
        if head:
            about = (
                "profile"
                if line[head.end() :].strip().casefold() == "profile"
                else "note"
            )


def _entry(about: About, item: str) -> Entry:
    """A bullet's text, without the comment at its end."""
    comment = _COMMENT.search(item)
    text = _ESCAPED.sub(r"\1", item[: comment.start()] if comment else item).strip()
    which = _WHICH.match(comment[1]) if comment else None
    return Entry(text, about, which[1], int(which[2])) if which else Entry(text, about)
