"""What a message is made of: small frozen values, without identity.

Bytes (a picture, a file) are blobs of the store; a part names them by hash. `text_of` says which words of a part a
person reads, `searchable` which of them a search finds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "NO_TEXT",
    "Extracted",
    "File",
    "Image",
    "Part",
    "Reasoning",
    "Text",
    "ToolCall",
    "ToolResult",
    "blobs_of",
    "leaves",
    "searchable",
    "text_of",
]

NO_TEXT = re.compile("[\x00\ud800-\udfff]")
"""What no store takes as text: a NUL, and half of a surrogate pair."""


class _Part(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
):
    pass


class Text(_Part, frozen=True, tag="text"):
    """Words."""

    text: str


class Reasoning(_Part, frozen=True, tag="reasoning"):
    """What a model thought before it answered; `signature` is the provider's, handed back as it came."""

    text: str
    signature: str | None = None


class Image(_Part, frozen=True, tag="image"):
    """A picture, by the hash of its blob."""

    blob: str
    media_type: str
    name: str = ""
    width: int = 0
    height: int = 0


class Extracted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The words that were taken out of a file, as a blob of their own."""

    blob: str
    bytes: int


class File(_Part, frozen=True, tag="file"):
    """A file, by the hash of its blob."""

    blob: str
    media_type: str
    name: str = ""
    bytes: int = 0
    text: Extracted | None = None


class ToolCall(_Part, frozen=True, tag="tool_call"):
    """A model asks for a tool. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


class ToolResult(_Part, frozen=True, tag="tool_result"):
    """What a tool answered to the call with this id."""

    call: str
    text: str
    name: str = ""


Part = Text | Reasoning | Image | File | ToolCall | ToolResult


def text_of(parts: Iterable[Part]) -> str:
    """The words of these parts that a person reads as the message."""
    return "\n".join(part.text for part in parts if isinstance(part, Text | ToolResult))


def searchable(parts: Iterable[Part]) -> str:
    """The words of these parts that a search finds: what a person reads, what a tool was asked, names of files.

    Not what a model thought before it answered.
    """
    found: list[str] = []
    for part in parts:
        match part:
            case Text(text=text):
                found.append(text)
            case ToolResult(text=text, name=name):
                found += (name, text)
            case ToolCall(name=name, arguments=arguments):
                found.append(name)
                try:
                    found += leaves(msgspec.json.decode(arguments))
                except (msgspec.DecodeError, RecursionError):  # a model wrote it
                    found.append(arguments)
            case File(name=name) | Image(name=name):
                found.append(name)
    return "\n".join(each for each in found if each)


def leaves(value: Any) -> Iterator[str]:  # noqa: ANN401  (decoded JSON of any shape)
    """The words and numbers in decoded JSON, without its names and brackets."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from leaves(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def blobs_of(value: Any) -> Iterator[str]:  # noqa: ANN401  (walks decoded JSON of any kind, known or not)
    """Every blob that a decoded body names, wherever it stands in it."""
    if isinstance(value, dict):
        blob = value.get("blob")
        if isinstance(blob, str):
            yield blob
        value = value.values()
    elif not isinstance(value, list):
        return
    for each in value:
        yield from blobs_of(each)
