"""The rows of an exported conversation, from the first to the last, and the words for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from tenax.agent.recovery import WORDING
from tenax.clock import rfc3339
from tenax.errors import Gone, NoSuchConversation
from tenax.journal import Journal
from tenax.journal.base import Summary
from tenax.runtime.list_entry import find_first_words
from tenax.text import to_one_line
from tenax.views.pages import fold_page
from tenax.views.transcript import Key, Row

__all__ = [
    "NAMES",
    "STATES",
    "Exported",
    "Indexed",
    "describe_part",
    "list_summaries",
    "read_all_exported",
    "read_exported",
    "read_rows",
    "say_row",
]

NAMES: Final = {
    "user": "You",
    "assistant": "Tenax",
    "system": "System",
    "summary": "Summary",
}
STATES: Final = {
    "queued": "queued",
    "steering": "steering",
    "streaming": "writing",
    "cut": "cut off",
    "full": "reached the maximum length",
    "earlier": "earlier attempt",
}
_NOTED: Final = {
    "added": "Remembered",
    "replaced": "Updated memory",
    "removed": "Forgot",
}
_PAGE_ROWS: Final = 200
_PAGE_CONVERSATIONS: Final = 200


class Exported(msgspec.Struct, frozen=True):
    """The description of a conversation and of the usage in an export."""

    id: str
    title: str
    source: str
    opened_at: str
    updated_at: str
    messages: int
    pinned: bool
    archived: bool
    parent: str | None
    """The conversation of the caller, for a sub-agent."""
    tokens_in: int
    tokens_out: int
    cost: float | None
    """US dollars, or `None` if the price of a call is unknown."""
    head: int
    """The seq of the last exported event."""

    @property
    def updated_seconds(self) -> float:
        """The time of the last change, in seconds since 1970."""
        return datetime.fromisoformat(self.updated_at).timestamp()


class Indexed(msgspec.Struct, frozen=True):
    """A conversation in the index of a zip file."""

    file: str
    conversation: Exported


def read_exported(journal: Journal, conversation: str) -> Exported:
    """Read the description of a conversation. Raises `NoSuchConversation` and `Gone`."""
    return _describe(journal, journal.summary(conversation))


def list_summaries(journal: Journal) -> Iterator[Summary]:
    """Yield the conversations of the user's list, archived ones last."""
    for archived in (False, True):
        after = None
        while page := journal.conversations(
            archived=archived, after=after, limit=_PAGE_CONVERSATIONS
        ):
            yield from page
            after = page[-1].place


def read_all_exported(
    journal: Journal, conversations: Iterable[str]
) -> Iterator[Exported]:
    """Yield the descriptions of conversations, without conversations deleted in the meantime."""
    for name in conversations:
        try:
            yield read_exported(journal, name)
        except (Gone, NoSuchConversation):
            continue


def _describe(journal: Journal, summary: Summary) -> Exported:
    name = summary.conversation
    title = summary.title or find_first_words(journal, name) or ""
    spent = journal.spent(name)
    return Exported(
        id=name,
        title=to_one_line(title),
        source=summary.source,
        opened_at=rfc3339(summary.opened_at),
        updated_at=rfc3339(summary.updated_at),
        messages=summary.messages,
        pinned=summary.pinned,
        archived=summary.archived,
        parent=summary.parent,
        tokens_in=spent.input,
        tokens_out=spent.output,
        cost=spent.cost if spent.unpriced == 0 else None,
        head=journal.head(name).head,
    )


def read_rows(journal: Journal, exported: Exported) -> Iterator[Row]:
    """Yield the rows of the transcript up to the head of the description, the first row first.

    A page is found from the page below it. So the first pass goes up and keeps only the ends of the pages, and the
    second pass goes down and reads each page again.
    """

    def fold(before: Key | None) -> tuple[list[Row], Key | None]:
        folded = fold_page(journal, exported.id, before, _PAGE_ROWS, upto=exported.head)
        page = folded.page(_PAGE_ROWS)
        return [*page.rows, *page.waiting], page.next

    ends: list[Key | None] = [None]
    rows, following = fold(None)
    while following is not None:
        ends.append(following)
        rows, following = fold(following)
    yield from rows
    for end in reversed(ends[:-1]):
        yield from fold(end)[0]


def say_row(row: Row) -> str:
    """Return the sentence for a row that is neither a message nor a tool call."""
    if row.kind == "marker":
        return f"{WORDING[row.state]} {to_one_line(row.text)}".rstrip()
    if row.kind == "memory":
        text = "(erased)" if row.erased else to_one_line(row.text)
        return f"{_NOTED[row.action]}: {text}{' Undone.' if row.state else ''}"
    return f"{to_one_line(row.text)}{' Reverted.' if row.state == 'undone' else ''}"


def describe_part(part: object) -> str:
    """Return the name and the type of an attachment."""
    name = to_one_line(getattr(part, "name", "")) or type(part).__name__
    return f"{name} ({getattr(part, 'media_type', '')})"
