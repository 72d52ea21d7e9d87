"""The values of the journal's contract.

The verbs are in `journal.py`; these are what they take and give.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tenax.events import Event, Unknown, decode

__all__ = [
    "Behind",
    "Dedup",
    "Entry",
    "Erased",
    "Expect",
    "Head",
    "Hit",
    "Hits",
    "Instance",
    "Lease",
    "Letter",
    "Reader",
    "Recorded",
    "Row",
    "RunState",
    "Spent",
    "Stretch",
    "Summary",
    "Unfinished",
]


class _Value(msgspec.Struct, frozen=True):
    pass


class Recorded(_Value, frozen=True, eq=False):
    """One stored event. `body` is the exact bytes; `event` what they mean; `digest` is empty for a partial."""

    conversation: str
    seq: int
    kind: str
    at: int
    run: str | None
    body: bytes | None
    digest: bytes

    @property
    def event(self) -> Event | Unknown:
        return decode(self.kind, self.body)

    @property
    def erased(self) -> bool:
        return self.body is None


class Entry(_Value, frozen=True):
    """An event as bytes, for import, fork and spool: it may be of a kind that this version does not know."""

    kind: str
    at: int
    run: str | None
    body: bytes


class Head(_Value, frozen=True):
    """What is known of a conversation without reading its events."""

    conversation: str
    head: int
    facts: int
    turns: int
    due: int
    revision: int
    epoch: int
    digest: bytes
    run: str | None
    stretch: str | None
    context_from: int
    unanswered: int
    messages: int


class Expect(_Value, frozen=True):
    """What must still be true when the append is stored.

    `unedited=(upto, since)`: no rewind, clear, restore or erasure after seq `since` touched a seq <= `upto`.
    """

    head: int | None = None
    revision: int | None = None
    stretch: str | None = None
    unedited: tuple[int, int] | None = None


class Dedup(_Value, frozen=True):
    """A source's own id for what it sends: the same id with the same body is stored once, wherever it was stored."""

    source: str
    id: str


class Lease(_Value, frozen=True):
    """The right to act under `name`. `fence` only grows; every append under the lease compares it."""

    name: str
    holder: str
    fence: int
    seconds: float
    token: bytes


class Reader(_Value, frozen=True):
    """A durable reader: what it follows, and where it starts in conversations that were there before it."""

    name: str
    follows: Literal["facts", "turns", "due"] = "facts"
    start: Literal["beginning", "now"] = "beginning"


class Behind(_Value, frozen=True):
    """A conversation in which a reader has work: events after `at`, up to `to`."""

    user: str
    conversation: str
    at: int
    to: int
    tries: int
    error: str | None


class Letter(_Value, frozen=True):
    """Something a reader gave up on, and why. The line behind it went on."""

    conversation: str
    seq: int
    error: str
    at: int


class Instance(_Value, frozen=True):
    """One running Tenax process, or one that was. `alive` is its lock, never its pid."""

    id: str
    host: str
    started_at: int
    ended_at: int | None
    swept_at: int | None
    alive: bool = False


class Summary(_Value, frozen=True):
    """A conversation in the list."""

    conversation: str
    stretch: str | None
    title: str | None
    source: str
    messages: int
    opened_at: int
    updated_at: int
    pinned: bool
    archived: bool
    running: bool
    place: tuple[int, int, int]
    """Where the next page goes on."""
    parent: str | None = None
    """The conversation whose sub-agent works here."""


class Unfinished(_Value, frozen=True):
    """A conversation with a run that is open or was interrupted, or (run is None) with inputs that wait for one."""

    user: str
    conversation: str
    run: str | None


class RunState(_Value, frozen=True):
    """What is known of a run without reading its events."""

    started: int | None
    finished: int | None
    outcome: str | None
    late: int
    sealed: int | None
    attempts: int


class Spent(_Value, frozen=True):
    """What calls of models took. `cost` in US dollars; `unpriced` calls had no price that anybody knows."""

    input: int
    output: int
    cost: float
    unpriced: int


class Stretch(_Value, frozen=True):
    """A conversation between two compactions."""

    name: str
    conversation: str
    parent: str | None
    opened_at: int
    opened_seq: int
    ended_at: int | None
    ended_seq: int | None
    reason: str | None
    covers_to: int
    messages: int


class Row(_Value, frozen=True):
    """Where a standing row of the transcript begins and ends."""

    first: int
    last: int
    role: str


class Hit(_Value, frozen=True):
    """A message that was found."""

    conversation: str
    seq: int
    at: int
    role: str
    snippet: str
    standing: bool = True
    """False when it was undone or cleared."""


class Hits(_Value, frozen=True):
    """One page of a search, newest first.

    `unindexed` is how many conversations were read instead of looked up. `complete` is false when there was more to
    read than a search reads, so that an older message may be missing for now.
    """

    hits: list[Hit]
    before: tuple[int, int] | None
    """Where the next page goes on; None on the last one."""
    unindexed: int = 0
    complete: bool = True


class Erased(_Value, frozen=True):
    """What an erasure reached. `scrubbed` is false while a copy may still stand in a file of the store."""

    conversations: dict[str, list[int]]
    scrubbed: bool
