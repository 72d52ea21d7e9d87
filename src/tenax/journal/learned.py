"""Find copies of memories learned from an event."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tenax.journal.row_key import ALL_SEQS
from tenax.text import remove_tags

if TYPE_CHECKING:
    from tenax.journal.store import Store

__all__ = ["mentions_of"]

_TAG = re.compile("<[^<>]*>")


def mentions_of(store: Store, user: str, row_key: int) -> set[tuple[str, int]]:
    """Return conversation and seq of the events with a memory learned from the event at `row_key`.

    The found events are notes about the memory, recalls, and prompts with the memory. A prompt contains the words in
    quoted form, or without any tag.
    """
    found: set[tuple[str, int]] = set()
    for memory, text in store.query("learned_from", owner=user, place=row_key):
        rows = store.query("named_in", owner=user, hash=memory)
        for words in {remove_tags(text), _TAG.sub("", text).strip()} - {""}:
            rows += store.query("prompts_with", owner=user, piece=words.encode())
        found |= {(name, memory_key & ALL_SEQS) for name, memory_key in rows}
    return found
