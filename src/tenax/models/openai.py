"""The adapter for OpenAI chat completions and compatible servers.

Reasoning is shown and stored, but not sent back, because most providers refuse or ignore reasoning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tenax.models.base import Answer, Beat, Piece, Thought, ToolSpec, Words
from tenax.models.http import Fold, HttpModel
from tenax.models.render import (
    NOTHING_READ,
    Contents,
    arguments_of,
    body_of,
    content_of,
    text_in,
)
from tenax.parts import Part, Reasoning, Text, ToolCall, ToolResult
from tenax.views.context import Message

__all__ = ["OpenAI"]

_encode: Final = msgspec.json.Encoder().encode


class OpenAI(HttpModel):
    """A model behind `/chat/completions`."""

    path = "/chat/completions"
    models_path = "/models"

    def request_parameters(self) -> dict[str, Any]:
        # OpenAI renamed this parameter and refuses the old name; other servers know only the old name.
        own = urlsplit(self.settings.url).hostname == "api.openai.com"
        return {
            "max_completion_tokens" if own else "max_tokens": self.settings.max_tokens,
            "temperature": self.settings.temperature,
            "reasoning_effort": self.settings.effort,
        }

    @staticmethod
    def headers(key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def message(self, message: Message, contents: Contents = NOTHING_READ) -> bytes:
        match message.role:
            case "results":
                return b",".join(
                    _encode(
                        {
                            "role": "tool",
                            "tool_call_id": part.call,
                            "content": part.text,
                        }
                    )
                    for part in message.parts
                    if isinstance(part, ToolResult)
                )
            case "assistant":
                calls = [
                    _encode_call(part)
                    for part in message.parts
                    if isinstance(part, ToolCall)
                ]
                rendered: dict[str, Any] = {
                    "role": "assistant",
                    "content": text_in(message.parts, contents),
                }
                if calls:
                    rendered["tool_calls"] = calls
                return _encode(rendered)
            case role:
                return _encode(
                    {
                        "role": role,
                        "content": content_of(message.parts, contents, _picture),
                    }
                )

    def body(
        self,
        prompt: str,
        tools: Sequence[ToolSpec],
        messages: Sequence[bytes],
        settings: Mapping[str, Any],
    ) -> bytes:
        head: dict[str, Any] = {
            "model": self.name,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        head |= settings
        if tools:
            head["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in tools
            ]
        first = [_encode({"role": "system", "content": prompt})] if prompt else []
        return body_of(head, [*first, *messages])

    def fold(self) -> Fold:
        return _Chat(self)


def _picture(media_type: str, data: str) -> dict[str, Any]:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{media_type};base64,{data}"},
    }


def _encode_call(part: ToolCall) -> dict[str, Any]:
    arguments = bytes(arguments_of(part)).decode()
    return {
        "id": part.id,
        "type": "function",
        "function": {"name": part.name, "arguments": arguments},
    }


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    # In US dollars if it is a number. Some providers send an object.
    cost: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


class _Chat(Fold):
    """Collects the chunks of a stream."""

    def __init__(self, model: HttpModel) -> None:
        super().__init__(model)
        self._words: list[str] = []
        self._thoughts: list[str] = []
        self._usage: _Usage | None = None

    def feed(self, data: bytes) -> Iterator[Piece]:
        if data == b"[DONE]":
            yield self._build_answer()
            return
        chunk = _decode(data)
        if chunk.error is not None:
            yield self._model.failures.from_event(chunk.error)
            return
        self._usage = chunk.usage or self._usage
        choice = chunk.choices[0] if chunk.choices else _Choice()
        self._finish = choice.finish_reason or self._finish
        yield from self._collect(choice.delta or _Delta())

    def _collect(self, delta: _Delta) -> Iterator[Piece]:
        thought = delta.reasoning_content or delta.reasoning
        words = delta.content or delta.refusal
        if thought:
            self._thoughts.append(thought)
            yield Thought(thought)
        if words:
            self._words.append(words)
            yield Words(words)
        for call in delta.tool_calls or ():
            function = call.function or _Function()
            self._calls.add(call.index, call.id, function.name, function.arguments)
        if not thought and not words:
            yield Beat()

    def _build_answer(self) -> Answer:
        parts: list[Part] = []
        if self._thoughts:
            parts.append(Reasoning("".join(self._thoughts)))
        if self._words:
            parts.append(Text("".join(self._words)))
        parts += self._calls.gathered()
        usage = None
        if self._usage is not None:
            details = self._usage.prompt_tokens_details or _Details()
            usage = self._model.usage(
                self._usage.prompt_tokens or 0,
                self._usage.completion_tokens or 0,
                cached=details.cached_tokens or 0,
                cost=self._usage.cost,
            )
        return Answer(parts, usage, self._finish)
