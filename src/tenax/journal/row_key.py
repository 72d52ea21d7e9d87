"""The row key of an event: the number of the conversation in the store, shifted left, plus the seq.

A row key identifies an event in the whole store and keeps a conversation together on disk.
The column of the tables is `place`.
"""

from __future__ import annotations

__all__ = ["ALL_SEQS", "SEQ_BITS", "bounds"]

SEQ_BITS = 32
ALL_SEQS = (1 << SEQ_BITS) - 1


def bounds(num: int) -> tuple[int, int]:
    """Return the first and the last row key of a conversation. No event has the first one, because seqs start at 1."""
    return num << SEQ_BITS, num << SEQ_BITS | ALL_SEQS
