"""The standing events of a conversation: the single meaning of undo, clear and restore.

An event stands until an edit removes the event.

- `conversation.rewound` (undo) removes the standing events after seq `to`.
- `conversation.cleared` removes all standing events before the clear.
- `conversation.restored` brings back exactly the events removed by the undo or clear at seq `of`.
- `message.withdrawn` removes the message at seq `of`, for good.

An edit removes standing events only. A removed event keeps the first edit as its remover, so restoring a later edit
does not bring the event back.

An undo with `replaced` is followed by a further version of the first removed message (`Versions`).

The store keeps the same rule in a column: `dead` holds the seq of the remover of a row, and 0 while the row stands
(`kill_rows` and `revive_rows` in `schema/queries.sql`). `verify` compares the column with `Standing`.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Final, NamedTuple

from tenax.events import (
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    Event,
    MessageWithdrawn,
    Unknown,
)

__all__ = ["EDITS", "Standing", "Versions", "reach"]

EDITS: Final = frozenset(
    {
        ConversationCleared.kind,
        ConversationRestored.kind,
        ConversationRewound.kind,
        MessageWithdrawn.kind,
    }
)
"""The kinds of edits. An edit removes other events, or brings removed events back."""


def reach(edit: Event | Unknown) -> int:
    """Return the last seq not affected by an undo or a clear."""
    return edit.to if isinstance(edit, ConversationRewound) else 0


class _Removal(NamedTuple):
    """The events from seq `first` to seq `last`, removed by the edit at seq `by`."""

    first: int
    last: int
    by: int


_last_of = attrgetter("last")


class Standing:
    """The removed events of a conversation. Apply the edits in the order of their seqs."""

    def __init__(self) -> None:
        self._removals: list[_Removal] = []
        """Without overlap, in ascending order."""
        self._undos: set[int] = set()
        self.restored: set[int] = set()
        """The seqs of the restored edits."""

    def apply(self, seq: int, event: Event | Unknown) -> None:
        """Apply an edit. Events of other kinds change nothing."""
        match event:
            case ConversationRewound():
                self._undos.add(seq)
                self._remove(reach(event), seq)
            case ConversationCleared():
                self._remove(reach(event), seq)
            case MessageWithdrawn():
                self._remove_message(event.of, seq)
            case ConversationRestored(of=of):
                self.restored.add(of)
                self._removals = [
                    removal for removal in self._removals if removal.by != of
                ]

    @property
    def all(self) -> bool:
        """Whether all events stand."""
        return not self._removals

    def removed_by(self, seq: int) -> int:
        """Return the seq of the edit behind the removal of an event, or 0 for a standing event."""
        at = bisect_left(self._removals, seq, key=_last_of)
        if at < len(self._removals) and self._removals[at].first <= seq:
            return self._removals[at].by
        return 0

    def stands(self, seq: int) -> bool:
        """Return whether an event is not removed."""
        return self.all or not self.removed_by(seq)

    def is_undone(self, seq: int) -> bool:
        """Return whether an undo removed an event. A clear does not count."""
        return self.removed_by(seq) in self._undos

    def _remove(self, after: int, by: int) -> None:
        at = bisect_left(self._removals, after, key=_last_of)
        earlier = self._removals[at:]
        del self._removals[at:]
        # Fill the gaps between the earlier removals.
        for removal in earlier:
            self._add(after + 1, removal.first - 1, by)
            self._removals.append(removal)
            after = max(after, removal.last)
        self._add(after + 1, by - 1, by)

    def _remove_message(self, seq: int, by: int) -> None:
        if not self.removed_by(seq):
            at = bisect_left(self._removals, seq, key=_last_of)
            self._removals.insert(at, _Removal(seq, seq, by))

    def _add(self, first: int, last: int, by: int) -> None:
        if first <= last:
            self._removals.append(_Removal(first, last, by))


class Versions:
    """The versions of messages. Apply the edits in the order of their seqs."""

    def __init__(self) -> None:
        self._groups: dict[int, list[int]] = {}
        """The seqs of all versions of a message, oldest first, for the seq of every version."""

    def apply(self, seq: int, event: Event | Unknown) -> None:
        """Note a further version of a message. Events of other kinds change nothing."""
        if isinstance(event, ConversationRewound) and event.replaced:
            group = self._groups.setdefault(event.to + 1, [event.to + 1])
            if seq + 1 not in group:
                group.append(seq + 1)
            self._groups[seq + 1] = group

    def of(self, seq: int) -> tuple[int, ...]:
        """Return the versions of a message, oldest first; an empty tuple for a message with one version."""
        return tuple(self._groups.get(seq, ()))

    def all(self) -> list[tuple[int, ...]]:
        """Return the versions of every message with several versions, oldest message first."""
        return sorted({tuple(group) for group in self._groups.values()})
