"""Switching between the versions of a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tenax.errors import InvalidInput
from tenax.events import ConversationRestored, ConversationRewound, Event
from tenax.journal.base import Recorded
from tenax.journal.standing import Standing, Versions

__all__ = ["ShownVersions", "list_versions", "switch_version"]


class ShownVersions(NamedTuple):
    """The versions of a message as seqs, oldest first, and the version that is shown."""

    seqs: tuple[int, ...]
    shown: int


def list_versions(edits: Iterable[Recorded]) -> list[ShownVersions]:
    """Return the versions of every message that is shown and has several versions, newest message first.

    `edits` are all edits of the conversation.
    """
    standing, versions = _apply(edits)
    found = []
    for group in versions.all():
        shown = [seq for seq in group if standing.stands(seq)]
        if shown:
            found.append(ShownVersions(group, shown[-1]))
    return sorted(found, key=lambda versions: versions.shown, reverse=True)


def switch_version(edits: Iterable[Recorded], seq: int) -> list[Event]:
    """Return the events for showing another version of a message.

    `edits` are all edits of the conversation. The list is empty if the version is shown already. Raises `InvalidInput`
    if the message has no other version.
    """
    standing, versions = _apply(edits)
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


def _apply(edits: Iterable[Recorded]) -> tuple[Standing, Versions]:
    standing = Standing()
    versions = Versions()
    for edit in edits:
        standing.apply(edit.seq, edit.event)
        versions.apply(edit.seq, edit.event)
    return standing, versions
