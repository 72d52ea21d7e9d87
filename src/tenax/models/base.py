"""The contract with a model: it is handed a body of bytes, and streams pieces; the last piece is its answer or why not.

A model renders and streams, nothing more. It keeps no history, makes no retries and raises nothing for what goes wrong
outside: retries, fallbacks, budgets and time are the loop's, because they are events.

Every message is rendered by itself, and a body is the rendered messages in a row between a head and a tail. So a request
that grows by a message grows by that message's bytes, and the provider's prompt cache holds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from tenax.events import Usage
from tenax.models.render import Contents
from tenax.parts import Part
from tenax.views.context import Message

__all__ = [
    "RETRIED",
    "Answer",
    "Beat",
    "Failure",
    "Model",
    "Piece",
    "Thought",
    "ToolSpec",
    "Why",
    "Words",
]

Why = Literal[
    "away",
    "dropped",
    "key",
    "malformed",
    "overflow",
    "rate",
    "refused",
    "server",
    "silent",
]
RETRIED: frozenset[Why] = frozenset(
    {"away", "dropped", "malformed", "rate", "server", "silent"}
)
"""What may go better the next time."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model is told of it. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Words(msgspec.Struct, frozen=True):
    """More of the answer."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """More of what the model thinks before it answers."""

    text: str


class Beat(msgspec.Struct, frozen=True):
    """Something came that nobody reads (a piece of a tool call): the model is at work."""


class Answer(msgspec.Struct, frozen=True):
    """The end of a stream that went well: all of it."""

    parts: list[Part]
    usage: Usage | None
    finish: str
    """Why it ended, in the provider's word."""


class Failure(msgspec.Struct, frozen=True):
    """The end of a stream that did not go well. `message` is a sentence for the person, without any secret."""

    why: Why
    message: str
    hint: str = ""
    status: int = 0
    retry_after: float | None = None
    limit: int | None = None
    """With `overflow`: how many tokens the context holds, where the provider says it."""


Piece = Words | Thought | Beat | Answer | Failure


class Model(Protocol):
    """One model of one provider."""

    name: str
    """What the provider calls it."""
    context: int | None
    """How many tokens its context holds, if that is known."""
    sees: bool
    """Whether it can be shown pictures."""

    def message(self, message: Message, contents: Contents = ...) -> bytes:
        """One message as this provider's JSON. The same message, with the same contents, always gives the same bytes."""

    def body(
        self,
        prompt: str,
        tools: Sequence[ToolSpec],
        messages: Sequence[bytes],
        settings: Mapping[str, Any],
    ) -> bytes:
        """The whole request, from messages that `message` has rendered."""

    def stream(self, body: bytes, *, silence: float) -> AsyncGenerator[Piece, None]:
        """Send a body. Pieces as they come; the last one is an Answer or a Failure, and there is exactly one.

        `silence` seconds without a piece are a Failure. Closing the generator ends the call.
        """

    async def close(self) -> None:
        """Let go of its connections."""
