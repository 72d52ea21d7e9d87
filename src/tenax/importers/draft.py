"""The common shape of a conversation of another program.

The module of a format reads files and yields drafts; `events.py` turns a draft into events, and `storing.py` stores the
events. A draft is a tree of nodes, because most programs keep every version of a message. The path to `current` is the
conversation on the screen of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from tenax.parts import Reasoning, Text, ToolCall

__all__ = [
    "Attached",
    "Draft",
    "MemoryDraft",
    "Node",
    "Piece",
    "Role",
    "SkillDraft",
    "Skipped",
    "Source",
    "read_time",
]

Role = Literal["user", "assistant", "system", "tool", "summary", ""]
Outcome = Literal["done", "failed", "denied", "cancelled", "unknown"]
_SECOND_US = 1_000_000
_MILLISECONDS_FROM = 100_000_000_000
"""A greater number of seconds would be after the year 5000, so the number counts milliseconds."""
_TIME_US_MAX = 253_402_300_800 * _SECOND_US


class Attached(NamedTuple):
    """A file of a message. `read` returns the content, or `None` if the source lacks the file."""

    name: str
    read: Callable[[], bytes | None]


Piece = Text | Reasoning | ToolCall | Attached


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A message, the result of a tool call, or a summary.

    `tool` is the result of the call `call`: the text is in the parts, `name` is the name of the tool. `summary` replaces
    the earlier messages of the path for the model (a compaction). A node without a role is only a link to the parent.
    """

    id: str
    """The id in the source, unique within the conversation."""
    parent: str | None
    role: Role
    parts: tuple[Piece, ...] = ()
    at: int | None = None
    """Microseconds since 1970, if the source knows the time."""
    author: str = ""
    """The name of the person, in a conversation of several people."""
    model: str = ""
    finish: str = ""
    call: str = ""
    name: str = ""
    outcome: Outcome = "done"
    extra: dict[str, Any] = {}
    """Fields without an equivalent in Tenax, stored with the message. The fields must be the same in later exports."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of another program."""

    id: str
    """The id in the source. A second import finds the conversation by the id."""
    nodes: tuple[Node, ...]
    """The messages. A version of a message comes after the earlier versions."""
    current: str | None = None
    """The id of the last message of the shown path. `None`: the last node."""
    title: str = ""
    at: int | None = None
    """The time of the beginning, in microseconds since 1970."""
    archived: bool = False
    pinned: bool = False
    parent: str | None = None
    """The id of the parent conversation."""
    relation: Literal["", "branch", "delegate"] = ""
    """`branch`: begins with messages of the parent. `delegate`: a sub-agent of the parent."""
    extra: dict[str, Any] = {}
    """Fields without an equivalent in Tenax, stored with the conversation."""


class Skipped(NamedTuple):
    """An unreadable conversation, with the reason."""

    id: str
    title: str
    why: str


class MemoryDraft(NamedTuple):
    """A memory: a line or a short paragraph. A second import finds the memory by the stable `id`."""

    id: str
    text: str
    about: Literal["profile", "note"] = "note"
    """`profile`: about the person."""


class SkillDraft(NamedTuple):
    """A folder with a SKILL.md."""

    name: str
    folder: Path


class Source(Protocol):
    """Files of a program for an import. The iterators read conversation by conversation, so memory stays flat."""

    kind: str
    """The name of the format, such as `chatgpt`. The name is part of ids and never changes."""
    label: str
    """The name of the program for people, such as `ChatGPT`."""
    left_out: Counter[str]
    """The number of skipped contents by description, such as `unknown content (video)`. `drafts()` counts."""

    def drafts(self) -> Iterator[Draft | Skipped]:
        """Yield the conversations, the oldest first if the source knows the order, parents before their branches."""

    def memories(self) -> Iterator[MemoryDraft]:
        """Yield the memories."""

    def skills(self) -> Iterator[SkillDraft]:
        """Yield the skills."""

    def close(self) -> None:
        """Delete temporary files."""


def read_time(value: object) -> int | None:
    """Return a time in microseconds: from seconds or milliseconds since 1970, or from an ISO text. `None` if invalid."""
    if isinstance(value, str):
        return _read_iso(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    if value >= _TIME_US_MAX:
        return None
    seconds = value / 1000 if value >= _MILLISECONDS_FROM else value
    if seconds * _SECOND_US >= _TIME_US_MAX:
        return None
    return round(seconds * _SECOND_US)


def _read_iso(text: str) -> int | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    try:
        seconds = time.timestamp()
    except (OverflowError, ValueError):
        return None
    return round(seconds * _SECOND_US) if seconds > 0 else None
