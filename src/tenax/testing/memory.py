"""A journal in memory."""

from __future__ import annotations

from tenax.clock import Clock
from tenax.journal import LOCAL_USER, Journal
from tenax.journal import open as open_journal

__all__ = ["memory"]


def memory(*, user: str | None = LOCAL_USER, clock: Clock | None = None) -> Journal:
    """Open an empty journal in memory, with every guarantee that needs no file."""
    return open_journal("memory:", user=user, clock=clock)
