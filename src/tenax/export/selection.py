"""Select conversations for an export by the day of the last message, and by words."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenax.errors import Gone, InvalidInput, NoSuchConversation
from tenax.export.rows import list_summaries
from tenax.journal import Journal

__all__ = ["Selection", "parse_time", "select"]

_US: Final = 1_000_000
_PAGE_HITS: Final = 100
_INDEX_SECONDS: Final = 60.0


class Selection(msgspec.Struct, frozen=True):
    """The conditions for conversations in an export. An empty selection has every conversation."""

    since: int | None = None
    """Microseconds since 1970: the earliest time of the last message."""
    until: int | None = None
    """The first time that is too late."""
    words: str = ""
    """Words of a message."""


def parse_time(text: str, *, end: bool = False) -> int:
    """Return a time in microseconds since 1970.

    A day, such as 2026-11-19, begins in the local zone; with `end`, the result is the end of the day. A time, such as
    2026-11-19T08:30 or 2026-11-19T08:30:00Z, is exact. Raises `InvalidInput`.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text[:40]!r} is not a date.",
            hint="Write a day as 2026-11-19, or a time as 2026-11-19T08:30.",
        ) from error
    is_day = len(text) <= len("2026-11-19")
    try:
        if is_day and end:
            time += timedelta(days=1)
        return int(time.timestamp() * _US)
    except (OverflowError, OSError, ValueError) as error:
        raise InvalidInput(f"{text[:40]!r} is too far away.") from error


def select(journal: Journal, selection: Selection) -> list[str]:
    """Return the ids of the selected conversations of the user, without the conversations of sub-agents.

    The list is read at once, because a conversation moves in the list while it is used.
    """
    found = _find(journal, selection.words) if selection.words else None
    return [
        summary.conversation
        for summary in list_summaries(journal)
        if (selection.since is None or summary.updated_at >= selection.since)
        and (selection.until is None or summary.updated_at < selection.until)
        and (found is None or summary.conversation in found)
    ]


def _find(journal: Journal, words: str) -> set[str]:
    """Return the conversations with the words in a message. A message of a sub-agent counts for the caller."""
    if not journal.words.catch_up(_INDEX_SECONDS):
        raise InvalidInput(
            "The search index is not complete yet, so conversations would be missing.",
            hint="Try again in a few minutes.",
        )
    found: set[str] = set()
    before = None
    while True:
        page = journal.search(words, before=before, limit=_PAGE_HITS)
        found.update(hit.conversation for hit in page.hits)
        before = page.before
        if before is None:
            break
    return found | {caller for name in found for caller in _callers(journal, name)}


def _callers(journal: Journal, name: str) -> list[str]:
    """Return the conversations with the calls that started a sub-agent."""
    callers: list[str] = []
    try:
        while (parent := journal.summary(name).parent) is not None:
            callers.append(parent)
            name = parent
    except (Gone, NoSuchConversation):
        # The conversation was deleted in the meantime.
        pass
    return callers
