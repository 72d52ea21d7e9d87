"""What search needs of an engine: an index of words that proposes, and remembers how far it has come.

The words of a message are folded (`query.fold`) before they reach an index. An index may propose what is stale; it is
the journal that decides, when a hit is shown. It may not miss what it says it has.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, NamedTuple

from tenax.errors import StoreDamaged
from tenax.events import (
    ContextSummarised,
    ConversationTitled,
    MessageAssistant,
    MessagePartial,
    MessageSystem,
    MessageTool,
    MessageUser,
    RunLate,
    ToolFinished,
    ToolLate,
    decode,
)
from tenax.journal.base import Reader
from tenax.parts import leaves, searchable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenax.events import Event, Unknown
    from tenax.journal.search.query import Query
    from tenax.journal.store import Row, Tx

__all__ = [
    "LOOK_SECONDS",
    "READER",
    "ROLE_OF",
    "Doc",
    "Key",
    "Move",
    "Position",
    "Proposed",
    "SearchIndex",
    "Unusable",
    "words_in",
]

LOOK_SECONDS = 1.0
"""How long a search looks at what the index proposes: words that are all common but rarely side by side. On SQLite
longer by as many messages as came in one instant: it has to get below them."""
READER = Reader("search", follows="facts", start="beginning")
ROLE_OF = {
    "message.user": "user",
    "message.assistant": "assistant",
    "message.system": "system",
    "message.tool": "tool",
    "message.partial": "partial",
    "context.summarised": "summary",
    "run.late": "late",
    "tool.finished": "result",
    "tool.late": "result",
    "conversation.titled": "title",
}
"""The kinds that are searched, and the role that a hit in them has."""

Key = tuple[int, int]
"""Where a message stands among all of a user's: when it was written, and its place."""


def words_in(kind: str, body: bytes) -> str:
    """The text of an event that a search finds. What cannot be read holds no words; `doctor` says why."""
    try:
        return _words(decode(kind, body))
    except (
        StoreDamaged,
        RecursionError,
    ):  # the second: nested deeper than this stack has room for
        return ""


def _words(event: Event | Unknown) -> str:
    match event:
        case (
            MessageUser(parts=parts)
            | MessageAssistant(parts=parts)
            | MessageSystem(parts=parts)
            | MessageTool(parts=parts)
            | MessagePartial(parts=parts)
            | ContextSummarised(parts=parts)
        ):
            return searchable(parts)
        case ToolFinished(text=text) | ToolLate(text=text):
            return text
        case RunLate(payload=payload):
            return "\n".join(leaves(payload))
        case ConversationTitled(title=title):
            return title or ""
        case _:
            return ""


class Unusable(Exception):
    """The index cannot be asked now: it is not there, not of this version, damaged or busy.

    It never leaves this package: a search then reads the journal instead.
    """


class Position(NamedTuple):
    """How far an index is in a conversation. `digest` is that of the fact there; None where it need not be compared."""

    seq: int
    digest: bytes | None = None
    forgets: int = 0


class Doc(NamedTuple):
    """A message on its way into an index."""

    place: int
    at: int
    folded: str


class Move(NamedTuple):
    """A step of the reader in one conversation: from `start` to seq `to`, with what it found between."""

    num: int
    user: str
    was: int
    """Where the journal's cursor stands."""
    start: Position
    anew: bool
    """The conversation is not the one that was indexed: what is there goes first."""
    to: int
    digest: bytes
    docs: list[Doc]
    erased: list[int]
    """Places whose text was taken away."""


class Proposed(NamedTuple):
    """The newest messages that the index proposes, in order. `upto`: it was looked no further back than this."""

    keys: list[Key]
    upto: Key | None = None


class SearchIndex(abc.ABC):
    """The words of every user's messages."""

    @property
    def notes(self) -> list[str]:
        """What `doctor` should say about it: sentences."""
        return []

    @abc.abstractmethod
    def ready(self) -> str | None:
        """Names this life of the index, if the journal's cursors tell what it lacks; else None. Raises Unusable."""

    @abc.abstractmethod
    def propose(
        self,
        user: str,
        query: Query,
        *,
        num: int | None,
        before: Key | None,
        limit: int,
    ) -> Proposed:
        """The newest messages of this user that may be meant, older than `before`. Raises Unusable."""

    @abc.abstractmethod
    def found(self, user: str, places: Sequence[int]) -> list[Row]:
        """What the journal holds at these places, if it is this user's: place, conversation, kind, at, body, dead."""

    @abc.abstractmethod
    def prepare(self, hold: Callable[[Tx], None]) -> None:
        """Make it ready to take in more. `hold` raises LeaseLost if another process indexes now. Raises Unusable."""

    @abc.abstractmethod
    def position(self, num: int, was: int) -> Position:
        """How far it is in a conversation, in which the journal's cursor stands at `was`."""

    @abc.abstractmethod
    def apply(self, moves: Sequence[Move], hold: Callable[[Tx], None]) -> None:
        """Take these in and move the journal's cursors on, each exactly once. Raises Unusable."""

    @abc.abstractmethod
    def tidy(self, *, idle: bool = False) -> bool:
        """A little of what indexing and forgetting leave to be done. True if there is more. Raises Unusable."""

    @abc.abstractmethod
    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:
        """Take these messages out, or the whole conversation. False if their text may still stand in a file."""

    @abc.abstractmethod
    def interrupt(self) -> None:
        """End what is being taken in now; it is taken in again later."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go."""
