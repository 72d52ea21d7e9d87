"""The entry of a conversation in the list, as shown by every user interface.

`tenax list` imports the module, so the module imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tenax.clock import rfc3339
from tenax.errors import Gone, NoSuchConversation, StoreDamaged
from tenax.events import TEMPORARY, MessageAssistant, MessageUser, Mode
from tenax.journal import Journal
from tenax.journal.base import Recorded, State, Summary
from tenax.parts import text_of
from tenax.text import replace_hidden

__all__ = ["Listed", "find_first_words", "make_entry"]

_FIRST_EVENTS: Final = 64
"""The number of events searched for the first words."""
_WORDS_CHARS: Final = 200


class Listed(msgspec.Struct, frozen=True):
    """A conversation in the list."""

    id: str
    title: str | None
    words: str | None
    """The first words of a conversation without a title."""
    messages: int
    source: str
    opened_at: str
    updated_at: str
    pinned: bool
    archived: bool
    running: bool
    temporary: bool
    """Whether memory ignores the conversation."""
    parent: str | None
    """The conversation of the parent, if the conversation belongs to a sub-agent."""
    state: State
    """`asks`: a call waits for a person. `failed`: the last run failed."""
    model: str
    """The label of the chosen model. Empty: the default."""
    mode: Mode
    project: str
    """The id of the project, or empty."""
    read: int
    """The seq up to which the person has read, or 0."""
    unread: bool
    """Whether a run ended after the read mark."""


def make_entry(summary: Summary, words: str | None) -> Listed:
    """Return the entry of a conversation. `words` are the first words of a conversation without a title."""
    return Listed(
        id=summary.conversation,
        title=summary.title,
        words=words,
        messages=summary.messages,
        source=summary.source,
        opened_at=rfc3339(summary.opened_at),
        updated_at=rfc3339(summary.updated_at),
        pinned=summary.pinned,
        archived=summary.archived,
        running=summary.running,
        temporary=summary.source == TEMPORARY,
        parent=summary.parent,
        state=summary.state,
        model=summary.model,
        mode=summary.mode,
        project=summary.project,
        read=summary.read,
        unread=summary.unread,
    )


def find_first_words(journal: Journal, conversation: str) -> str | None:
    """Return the first words of a conversation, or the last words if the beginning was cleared."""
    try:
        messages = _first_messages(journal, conversation)
    except (Gone, NoSuchConversation, StoreDamaged):
        # `tenax doctor` reports the damage. The list still shows the other conversations.
        return None
    for message in messages:
        words = _words_of(message)
        if words:
            return replace_hidden(words)[:_WORDS_CHARS]
    return None


def _first_messages(journal: Journal, conversation: str) -> Sequence[Recorded]:
    messages = journal.messages(conversation, upto=_FIRST_EVENTS)
    if messages:
        return messages
    rows = journal.rows(conversation, limit=1)
    facts = [journal.fact(conversation, row.last) for row in rows]
    return [fact for fact in facts if fact is not None]


def _words_of(message: Recorded) -> str:
    """Return the text of a message as a single line; "" for an unreadable message."""
    try:
        event = message.event
    except StoreDamaged:
        return ""
    if not isinstance(event, MessageUser | MessageAssistant):
        return ""
    # Take enough characters for the shown words, even if many characters are spaces.
    return " ".join(text_of(event.parts)[: 4 * _WORDS_CHARS].split())
