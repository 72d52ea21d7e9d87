"""Switching between the versions of a message."""

from __future__ import annotations

from collections.abc import Iterable

from tenax.errors import InvalidInput
from tenax.events import ConversationRestored, ConversationRewound, Event
from tenax.journal.base import Recorded
from tenax.journal.standing import Standing, Versions

__all__ = ["switch_version"]


def switch_version(edits: Iterable[Recorded], seq: int) -> list[Event]:
    """Return the events for showing another version of a message.

    `edits` are all edits of the conversation. The list is empty if the version is shown already. Raises `InvalidInput`
    if the message has no other version.
    """
    standing = Standing()
    versions = Versions()
    for edit in edits:
        standing.apply(edit.seq, edit.event)
        versions.apply(edit.seq, edit.event)
    group = versions.of(seq)
    if not group:
        raise InvalidInput(f"The message at seq {seq} has no other version.")
    if standing.stands(seq):
        return []
    if not standing.is_undone(seq):
        raise InvalidInput(
            "The conversation was cleared since.", hint="Undo the clear first."
        )
    events: list[Event] = [ConversationRestored(standing.removed_by(seq))]
    shown = next((version for version in group if standing.stands(version)), None)
    if shown is not None:
        events.insert(0, ConversationRewound(shown - 1))
    return events
