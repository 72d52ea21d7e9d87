"""The arguments and results of the methods of `Journal`."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenax.events import Event, Mode, Unknown, decode

__all__ = [
    "Behind",
    "DeadLetter",
    "Dedup",
    "Erased",
    "Expect",
    "Head",
    "Hit",
    "Hits",
    "Instance",
    "Lease",
    "RawEvent",
    "Reader",
    "Recorded",
    "RowSpan",
    "RunState",
    "Segment",
    "Spent",
    "State",
    "StoredEvent",
    "Summary",
    "Unfinished",
    "UsageRow",
]


State = Literal["", "running", "asks", "failed"]


class _Value(msgspec.Struct, frozen=True):
    pass


class Recorded(_Value, frozen=True, eq=False):
    """A stored event. `body` holds the exact bytes, `event` the decoded value. A partial has an empty `digest`."""

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


class RawEvent(_Value, frozen=True):
    """An event as bytes, for import, fork and spool. The kind may be unknown to the running version."""

    kind: str
    at: int
    run: str | None
    body: bytes


class StoredEvent(_Value, frozen=True):
    """An event of another store with all its columns, so that the copy has the same digest.

    An erased event has no body and no salt, but `inner`, the hash of both. `first` and `waiting` are those of an erased
    event. A partial has a `code` and no digest.
    """

    seq: int
    kind: str
    at: int
    run: str | None
    body: bytes | None
    salt: bytes | None = None
    inner: bytes | None = None
    digest: bytes = b""
    append_id: bytes | None = None
    code: int = 0
    first: int | None = None
    waiting: int | None = None


class Head(_Value, frozen=True):
    """The index of a conversation, available without reading events."""

    conversation: str
    head: int
    facts: int
    turns: int
    due: int
    revision: int
    epoch: int
    digest: bytes
    run: str | None
    segment: str | None
    context_from: int
    unanswered: int
    messages: int


class Expect(_Value, frozen=True):
    """The conditions for storing an append.

    `unedited=(upto, since)`: no rewind, clear, restore or erasure after seq `since` touched a seq <= `upto`.
    """

    head: int | None = None
    revision: int | None = None
    segment: str | None = None
    unedited: tuple[int, int] | None = None


class Dedup(_Value, frozen=True):
    """The id of a message, given by the source. Tenax stores the same id with the same body once."""

    source: str
    id: str


class Lease(_Value, frozen=True):
    """The exclusive right to act under `name`. `term` only grows. Every append under the lease checks `term`."""

    name: str
    holder: str
    term: int
    seconds: float
    token: bytes


class Reader(_Value, frozen=True):
    """A durable reader: the events that it follows, and the starting point in existing conversations."""

    name: str
    follows: Literal["facts", "turns", "due"] = "facts"
    start: Literal["beginning", "now"] = "beginning"


class Behind(_Value, frozen=True):
    """A conversation with work for a reader: the events after `at` up to `to`."""

    user: str
    conversation: str
    at: int
    to: int
    tries: int
    error: str | None


class DeadLetter(_Value, frozen=True):
    """Work abandoned by a reader, with the error. The reader continued behind the work."""

    conversation: str
    seq: int
    error: str
    at: int


class Instance(_Value, frozen=True):
    """A present or past Tenax process. `alive` is true while the process holds its lock; a pid is never used."""

    id: str
    host: str
    started_at: int
    ended_at: int | None
    swept_at: int | None
    alive: bool = False


class Summary(_Value, frozen=True):
    """A conversation in the list."""

    conversation: str
    segment: str | None
    title: str | None
    source: str
    messages: int
    opened_at: int
    updated_at: int
    pinned: bool
    archived: bool
    running: bool
    place: tuple[int, int, int]
    """The start of the next page."""
    parent: str | None = None
    """The parent conversation of a sub-agent."""
    revision: int = 0
    """The seq of the last fact with an effect on the transcript."""
    state: State = ""
    """`asks`: a call, also of a sub-agent, waits for a person. `failed`: the last run failed, and nothing was undone since."""
    model: str = ""
    """The label of the chosen model. Empty: the default."""
    mode: Mode = "ask"
    project: str = ""
    """The id of the project, or empty. The project may have been removed."""
    read: int = 0
    """The seq up to which the user has read the conversation; 0 without a read mark."""
    unread: bool = False
    """Whether a run completed or failed after the read mark. Without a mark: after the first read mark of the user."""


class Choice(_Value, frozen=True):
    """The source of a conversation, and the choices of the person, as in `Summary`."""

    source: str
    model: str
    mode: Mode
    project: str


class Unfinished(_Value, frozen=True):
    """A conversation with an open or interrupted run, or (`run` is `None`) with inputs waiting for a run."""

    user: str
    conversation: str
    run: str | None


class RunState(_Value, frozen=True):
    """The index of a run, available without reading events."""

    started: int | None
    finished: int | None
    outcome: str | None
    late: int
    sealed: int | None
    attempts: int


class UsageRow(_Value, frozen=True):
    """Model usage of a conversation on a day (days since 1970, UTC) by a model.

    `model` is empty for usage older than the split by models. `conversation` is empty for deleted conversations. The
    usage of a sub-agent belongs to the conversation of the parent.
    """

    day: int
    model: str
    conversation: str
    input: int
    output: int
    cost: float
    """US dollars."""
    unpriced: int
    """The number of calls without a known price."""


class Spent(_Value, frozen=True):
    """Model usage. `cost` is in US dollars. `unpriced` counts the calls without a known price."""

    input: int
    output: int
    cost: float
    unpriced: int


class Segment(_Value, frozen=True):
    """A segment: the part of a conversation between two compactions."""

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


class RowSpan(_Value, frozen=True):
    """The first and last seq of a row of the transcript."""

    first: int
    last: int
    role: str


class Hit(_Value, frozen=True):
    """A message found by a search."""

    conversation: str
    seq: int
    at: int
    role: str
    snippet: str
    standing: bool = True
    """False if the message was undone or cleared."""


class Hits(_Value, frozen=True):
    """A page of a search, newest first.

    `unindexed` is the number of conversations read without the index, because the index had not reached them.
    `complete` is false if there were too many such conversations, so older messages may be missing for now.
    """

    hits: list[Hit]
    before: tuple[int, int] | None
    """The start of the next page, or `None` on the last page."""
    unindexed: int = 0
    complete: bool = True


class Erased(_Value, frozen=True):
    """The events reached by an erasure. `scrubbed` is false while a file of the store may still hold a copy."""

    conversations: dict[str, list[int]]
    scrubbed: bool
