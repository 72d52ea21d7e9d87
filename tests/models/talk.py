"""What the tests of models share: settings, a request, and a whole stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from tenax.config import ModelSettings, Secret
from tenax.models import (
    Answer,
    Failure,
    Model,
    Piece,
    Thought,
    ToolSpec,
    Words,
    connect,
)
from tenax.parts import Text
from tenax.views.context import Message

APIS = ("openai", "anthropic")
KEY = "sk-hunter2-hunter2"
READ = ToolSpec(
    "read",
    "Reads a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}},
)


def settings(api: Any, url: str, **more: Any) -> ModelSettings:
    """A model at the address of a Provider or of llama.cpp."""
    key = Secret(KEY, "the test")
    return ModelSettings(
        **{
            "label": "main",
            "api": api,
            "url": address(api, url),
            "name": "m",
            "key": key,
        }
        | more
    )


def address(api: str, url: str) -> str:
    return f"{url}/v1" if api == "openai" else url


def said(role: Any, *parts: Any) -> Message:
    return Message(
        role, tuple(Text(part) if isinstance(part, str) else part for part in parts)
    )


def ask(model: Model, *messages: Message, prompt: str = "", **more: Any) -> bytes:
    """A request of these messages, or of one that says hello."""
    rows = [model.message(message) for message in messages or [said("user", "Hello")]]
    return model.body(prompt, more.pop("tools", ()), rows, {**model.parameters, **more})


@dataclass
class Heard:
    """Everything that one stream brought."""

    pieces: list[Piece]

    @property
    def words(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Words))

    @property
    def thoughts(self) -> str:
        return "".join(
            piece.text for piece in self.pieces if isinstance(piece, Thought)
        )

    @property
    def answer(self) -> Answer:
        assert isinstance(self.pieces[-1], Answer), self.pieces[-1]
        return self.pieces[-1]

    @property
    def failure(self) -> Failure:
        assert isinstance(self.pieces[-1], Failure), self.pieces[-1]
        return self.pieces[-1]


async def hear(
    model: Model, body: bytes, *, silence: float = 10.0, into: list[Piece] | None = None
) -> Heard:
    """Play a stream to its end, which is exactly one Answer or Failure. `into` has the pieces as they come."""
    pieces = [] if into is None else into
    async for piece in model.stream(body, silence=silence):
        pieces.append(piece)
    assert [isinstance(each, Answer | Failure) for each in pieces].count(True) == 1
    return Heard(pieces)


async def hear_from(
    api: str, url: str, body: bytes | None = None, **more: Any
) -> Heard:
    """Connect, send one request, and close."""
    model = connect(settings(api, url, **more))
    try:
        return await hear(model, body or ask(model))
    finally:
        await model.close()


async def until(happened: Callable[[], object]) -> None:
    """Wait for what another task does; half a minute is too long."""
    async with asyncio.timeout(30):
        while not happened():  # noqa: ASYNC110  (the other side is a network away: there is no event to wait for)
            await asyncio.sleep(0.01)


def clock_ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Puts the clock of the running loop forward: what ends after a while ends then, and a slow machine ends it no sooner."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + ahead)

    def leap(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    return leap


async def first_words(stream: AsyncIterator[Piece]) -> str:
    """Read up to the first words, then close the stream."""
    async with aclosing(stream) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            if isinstance(piece, Words):
                return piece.text
    raise AssertionError("The stream ended without a word.")
