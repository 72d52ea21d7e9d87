"""An append that depends on what was read: it is planned again if another writer was faster."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from tenax.errors import HeadMoved, Refused
from tenax.events import Event
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup, Expect

__all__ = ["Planned", "append_at_head"]

Planned: TypeAlias = tuple[Sequence[Event], str | None]
"""The events to store, and their run."""
_TRIES = 100


async def append_at_head(
    journal: AsyncJournal,
    conversation: str,
    plan: Callable[[int], Awaitable[Planned]],
    *,
    dedup: Dedup | None = None,
) -> int:
    """Store the planned events if nothing was appended since `plan` was called with the head; otherwise plan again.

    Return the number of stored events. The head is read before `plan` reads, so an event that `plan` missed moves the
    head. A plan without events stores nothing. Raises `Refused` if other writers were always faster.
    """
    for _ in range(_TRIES):
        head = (await journal.head(conversation)).head
        events, run = await plan(head)
        if not events:
            return 0
        with contextlib.suppress(HeadMoved):
            await journal.append(
                conversation, events, run=run, expect=Expect(head=head), dedup=dedup
            )
            return len(events)
    raise Refused(
        "Nothing was stored, because the conversation changes too fast.",
        hint="Try again.",
    )
