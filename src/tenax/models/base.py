"""The protocol of a model: a model takes a request body and streams pieces. The last piece is an answer or a failure.

A model only renders and streams. It keeps no history, does not retry, and raises no error for failures of the provider.
The loop handles retries, fallbacks, budgets and timeouts, because they are events.

Every message is rendered separately, and a body is the rendered messages between a head and a tail. A request with one
more message therefore keeps all earlier bytes, and the provider's prompt cache stays valid.
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
# Failures after which a retry may succeed.
RETRIED: frozenset[Why] = frozenset(
    {"away", "dropped", "malformed", "rate", "server", "silent"}
)


class ToolSpec(msgspec.Struct, frozen=True):
    """The description of a tool for a model. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Words(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class Beat(msgspec.Struct, frozen=True):
    """A sign that the model is working, such as a piece of a tool call."""


class Answer(msgspec.Struct, frozen=True):
    """The complete answer, at the end of a stream."""

    parts: list[Part]
    usage: Usage | None
    finish: str
    """The provider's word for why the answer ended."""


class Failure(msgspec.Struct, frozen=True):
    """The failure of a call, at the end of a stream. `message` is a sentence for a person, and contains no secret."""

    why: Why
    message: str
    hint: str = ""
    status: int = 0
    retry_after: float | None = None
    limit: int | None = None
    """With `overflow`: the context window in tokens, if the provider names the size."""


Piece = Words | Thought | Beat | Answer | Failure


class Model(Protocol):
    """A model of a provider."""

    name: str
    """The provider's name for the model."""
    context: int | None
    """The context window in tokens, if known."""
    sees: bool
    """Whether the model accepts pictures."""
    parameters: Mapping[str, Any]
    """The parameters of a request that the settings of the model ask for, such as a temperature."""

    def message(self, message: Message, contents: Contents = ...) -> bytes:
        """Render a message as JSON. The same message with the same contents always gives the same bytes."""

    def body(
        self,
        prompt: str,
        tools: Sequence[ToolSpec],
        messages: Sequence[bytes],
        settings: Mapping[str, Any],
    ) -> bytes:
        """Return the whole request, from messages rendered by `message`.

        `settings` go into the request unchanged. For a new request they contain `parameters`. A conversation stores them,
        so that an earlier request can be rendered again after a change of the settings.
        """

    def stream(self, body: bytes, *, silence: float) -> AsyncGenerator[Piece, None]:
        """Send a body and yield pieces. The last piece is the only Answer or Failure.

        The call fails after `silence` seconds without a piece. Closing the generator ends the call.
        """

    async def close(self) -> None:
        """Close all connections."""
