"""The interface of a search index. An index proposes messages and remembers its position in every conversation.

The words of a message are folded (`query.fold`) before they reach an index. An index may propose stale messages,
because the journal confirms every hit. An index must not miss an indexed message.
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
    from tenax.journal.store import Tx

__all__ = [
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
"""The searched kinds, and the role of a hit in an event of the kind."""

Key = tuple[int, int]
"""The position of a message among the user's messages: the time of writing, and the row key."""


def words_in(kind: str, body: bytes) -> str:
    """Return the searchable text of an event. An unreadable event has no words; `tenax doctor` reports the reason."""
    try:
        return _words(decode(kind, body))
    except (
        StoreDamaged,
        RecursionError,
    ):
        # A `RecursionError` means that the value is nested too deeply for the stack.
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
    """The index cannot be used now: it is missing, of another version, damaged or busy.

    The error never leaves the package: a search then reads the journal instead.
    """


class Position(NamedTuple):
    """The position of an index in a conversation.

    `digest` is the digest of the fact at the position, or `None` if no comparison is needed.
    """

    seq: int
    digest: bytes | None = None
    forgets: int = 0


class Doc(NamedTuple):
    """A message to index."""

    row_key: int
    at: int
    folded: str


class Move(NamedTuple):
    """A step of the reader in a conversation: from `start` to seq `to`, with the messages in between."""

    num: int
    user: str
    was: int
    """The journal's cursor."""
    start: Position
    anew: bool
    """Whether another conversation was indexed under the number, so its rows must be dropped first."""
    to: int
    digest: bytes
    docs: list[Doc]
    erased: list[int]
    """The row keys of erased events."""


class Proposed(NamedTuple):
    """The newest messages proposed by the index, in order.

    `upto` is the position where the search in the index stopped.
    """

    keys: list[Key]
    upto: Key | None = None


class SearchIndex(abc.ABC):
    """An index of the words in the messages of all users."""

    @property
    def notes(self) -> list[str]:
        """Sentences for `tenax doctor`."""
        return []

    @abc.abstractmethod
    def ready(self) -> str | None:
        """Return the name of the present generation of the index, or `None` if the journal's cursors may not match the
        index.

        Raises `Unusable`.
        """

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
        """Return the newest possible matches among the user's messages, older than `before`. Raises `Unusable`."""

    @abc.abstractmethod
    def prepare(self, hold: Callable[[Tx], None]) -> None:
        """Prepare for new messages. `hold` raises `LeaseLost` if another process indexes now. Raises `Unusable`."""

    @abc.abstractmethod
    def position(self, num: int, was: int) -> Position:
        """Return the position of the index in a conversation. `was` is the journal's cursor."""

    @abc.abstractmethod
    def apply(self, moves: Sequence[Move], hold: Callable[[Tx], None]) -> None:
        """Index the messages and move the journal's cursors, exactly once. Raises `Unusable`."""

    @abc.abstractmethod
    def tidy(self, *, idle: bool = False) -> bool:
        """Do a little maintenance after indexing and forgetting.

        Return `True` if more work is left. Raises `Unusable`.
        """

    @abc.abstractmethod
    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:
        """Remove messages, or a whole conversation. Return `False` if a file may still hold the text."""

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Interrupt the current batch. The batch is indexed again later."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the index."""
