"""Where else the words of an erased event are stored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tenax.journal.place import ALL_SEQS
from tenax.text import untagged

if TYPE_CHECKING:
    from tenax.journal.store import Store

__all__ = ["told_in"]

_TAG = re.compile("<[^<>]*>")


def told_in(store: Store, user: str, place: int) -> set[tuple[str, int]]:
    """Where else the words stand of what was learned from this event: conversation and seq.

    Lines that tell of it, recalls of it, and prompts that begin with it: there as our fence leaves the words, or without any tag.
    """
    found: set[tuple[str, int]] = set()
    for fact, text in store.query("learned_from", owner=user, place=place):
        rows = store.query("named_in", owner=user, hash=fact)
        for words in {untagged(text), _TAG.sub("", text).strip()} - {""}:
            rows += store.query("prompts_with", owner=user, piece=words.encode())
        found |= {(conversation, each & ALL_SEQS) for conversation, each in rows}
    return found
