"""The adapter for Anthropic messages.

Thinking has a signature and is sent back unchanged. Thinking of other providers has no signature and is left out. The
prompt and the preceding tools are marked for the provider's cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tenax.models.base import Answer, Beat, Piece, Thought, ToolSpec, Words
from tenax.models.http import Fold, HttpModel
from tenax.models.render import (
    NOTHING_READ,
    Contents,
    arguments_of,
    body_of,
    content_of,
)
from tenax.parts import Part, Reasoning, Text, ToolCall, ToolResult
from tenax.views.context import Message

__all__ = ["Anthropic"]

VERSION: Final = "2023-06-01"
# The API requires a number. The default applies unless `max_tokens` is set.
MAX_TOKENS: Final = 8192

# Encrypted thinking is stored as an empty text with this prefix and the data as its signature.
_REDACTED: Final = "redacted:"
# The API refuses empty messages.
_NOTHING: Final = "(nothing)"
_encode: Final = msgspec.json.Encoder().encode


class Anthropic(HttpModel):
    """A model behind `/v1/messages`."""

    path = "/messages"
    models_path = "/models?limit=1000"

    def request_parameters(self) -> dict[str, Any]:
        effort = self.settings.effort
        return {
            "max_tokens": self.settings.max_tokens,
            "temperature": self.settings.temperature,
            "output_config": {"effort": effort} if effort else None,
        }

    @staticmethod
    def root(url: str) -> str:
        return f"{url.rstrip('/').removesuffix('/v1')}/v1"

    @staticmethod
    def headers(key: str | None) -> dict[str, str]:
        version = {"anthropic-version": VERSION}
        return {**version, "x-api-key": key} if key else version

    def message(self, message: Message, contents: Contents = NOTHING_READ) -> bytes:
        match message.role:
            case "results":
                blocks = [
                    {
                        "type": "tool_result",
                        "tool_use_id": _id(part.call),
                        "content": part.text,
                    }
                    for part in message.parts
                    if isinstance(part, ToolResult)
                ]
                return _encode({"role": "user", "content": blocks}) if blocks else b""
            case "assistant":
                blocks = [block for part in message.parts for block in _render(part)]
                return _encode({"role": "assistant", "content": blocks or _NOTHING})
            case _:
                content = content_of(message.parts, contents, _picture)
                empty = isinstance(content, str) and not content.strip()
                return _encode(
                    {"role": "user", "content": _NOTHING if empty else content}
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
            "max_tokens": MAX_TOKENS,
            "stream": True,
            **settings,
        }
        if tools:
            head["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": tool.parameters,
                }
                for tool in tools
            ]
        if prompt:
            head["system"] = [
                {"type": "text", "text": prompt, "cache_control": {"type": "ephemeral"}}
            ]
        return body_of(head, messages)

    def fold(self) -> Fold:
        return _Stream(self)


def _picture(media_type: str, data: str) -> dict[str, Any]:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": media_type, "data": data},
    }


def _id(call: str) -> str:
    """Replace the characters refused in ids by the API. Other providers use such characters."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call)


def _render(part: Part) -> Iterator[dict[str, Any]]:
    match part:
        case Text(text=text) if text.strip():
            yield {"type": "text", "text": text}
        case Reasoning(signature=str(signature)) if signature.startswith(_REDACTED):
            yield {
                "type": "redacted_thinking",
                "data": signature.removeprefix(_REDACTED),
            }
        case Reasoning(text=text, signature=str(signature)):
            yield {"type": "thinking", "thinking": text, "signature": signature}
        case ToolCall():
            yield {
                "type": "tool_use",
                "id": _id(part.id),
                "name": part.name,
                "input": arguments_of(part),
            }
        case _:
            pass


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Start(msgspec.Struct):
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    input: msgspec.Raw = msgspec.Raw(b"")


class _Delta(msgspec.Struct):
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Start | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class _Growing:
    kind: str
    text: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)

    def parts(self) -> Iterator[Part]:
        text, signature = "".join(self.text), "".join(self.signature)
        match self.kind:
            case "text" if text:
                yield Text(text)
            case "thinking" | "redacted_thinking" if text or signature:
                yield Reasoning(text, signature or None)
            case _:
                pass


class _Stream(Fold):
    """Collects the events of a stream. Blocks keep the order of the stream; calls come last, as in the API."""

    def __init__(self, model: HttpModel) -> None:
        super().__init__(model)
        self._blocks: dict[int, _Growing] = {}
        self._usage: dict[str, int] = {}

    def feed(self, data: bytes) -> Iterator[Piece]:
        event = _decode(data)
        if event.error is not None:
            yield self._model.failures.from_event(event.error)
            return
        self._count(event.usage)
        match event.type:
            case "message_start" if event.message:
                self._count(event.message.usage)
            case "content_block_start" if event.content_block:
                yield from self._begin_block(event.index, event.content_block)
                return
            case "content_block_delta" if event.delta:
                yield from self._grow(event.index, event.delta)
                return
            case "message_delta" if event.delta:
                self._finish = event.delta.stop_reason or self._finish
            case "message_stop":
                yield self._build_answer()
                return
            case _:
                pass
        yield Beat()

    def _begin_block(self, index: int, block: _Block) -> Iterator[Piece]:
        signature = (
            _REDACTED + block.data
            if block.type == "redacted_thinking"
            else block.signature
        )
        self._blocks[index] = _Growing(block.type)
        if block.type == "tool_use":
            arguments = bytes(block.input).decode()
            # `{}` is a placeholder: the arguments follow in deltas.
            if arguments == "{}":
                arguments = ""
            self._calls.add(index, block.id, block.name, arguments)
        yield from self._grow(
            index, _Delta(text=block.text, thinking=block.thinking, signature=signature)
        )

    def _grow(self, index: int, delta: _Delta) -> Iterator[Piece]:
        block = self._blocks.setdefault(index, _Growing("text"))
        block.text.append(delta.text or delta.thinking)
        block.signature.append(delta.signature)
        if block.kind == "tool_use":
            self._calls.add(index, None, None, delta.partial_json)
        if delta.text:
            yield Words(delta.text)
        elif delta.thinking:
            yield Thought(delta.thinking)
        else:
            yield Beat()

    def _count(self, usage: _Usage | None) -> None:
        """Store token counts. Later counts replace earlier counts, because counts are totals."""
        if usage is not None:
            self._usage |= {
                name: count
                for name, count in msgspec.structs.asdict(usage).items()
                if count
            }

    def _build_answer(self) -> Answer:
        parts = [
            part for _, block in sorted(self._blocks.items()) for part in block.parts()
        ]
        parts += self._calls.gathered()
        counts = self._usage
        cached = counts.get("cache_read_input_tokens", 0)
        written = counts.get("cache_creation_input_tokens", 0)
        usage = self._model.usage(
            counts.get("input_tokens", 0) + cached + written,
            counts.get("output_tokens", 0),
            cached=cached,
        )
        return Answer(parts, usage if counts else None, self._finish)
