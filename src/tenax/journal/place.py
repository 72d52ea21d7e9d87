"""An event's place: its conversation's number in the store, shifted left, and its seq.

One number names an event in the whole store and keeps a conversation together on disk.
"""

from __future__ import annotations

__all__ = ["ALL_SEQS", "SEQ_BITS", "bounds"]

SEQ_BITS = 32
ALL_SEQS = (1 << SEQ_BITS) - 1


def bounds(num: int) -> tuple[int, int]:
    """The places of a conversation: from its number shifted, which no event has, to the last one possible."""
    return num << SEQ_BITS, num << SEQ_BITS | ALL_SEQS
