"""The parts of a message: small frozen values without identity.

Bytes (an image, a file) are blobs of the store, and a part names a blob by hash.
`text_of` returns the text for people, `searchable` the text for search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
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


class _Part(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
):
    pass


class Text(_Part, frozen=True, tag="text"):
    text: str


class Reasoning(_Part, frozen=True, tag="reasoning"):
    """The reasoning of a model before the answer. `signature` belongs to the provider
    and is sent back unchanged. `seconds` is the duration of the reasoning.
    """

    text: str
    signature: str | None = None
    seconds: float = 0.0


class Image(_Part, frozen=True, tag="image"):
    """An image, named by the hash of its blob."""

    blob: str
    media_type: str
    name: str = ""
    width: int = 0
    height: int = 0


class Extracted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text extracted from a file, as a separate blob."""

    blob: str
    bytes: int


class File(_Part, frozen=True, tag="file"):
    """A file, named by the hash of its blob."""

    blob: str
    media_type: str
    name: str = ""
    bytes: int = 0
    text: Extracted | None = None


class ToolCall(_Part, frozen=True, tag="tool_call"):
    """A request of the model to call a tool. `arguments` is the JSON text exactly as
    the model wrote it.
    """

    id: str
    name: str
    arguments: str


class ToolResult(_Part, frozen=True, tag="tool_result"):
    """The result of the tool call with the id `call`."""

    call: str
    text: str
    name: str = ""


Part = Text | Reasoning | Image | File | ToolCall | ToolResult


def text_of(parts: Iterable[Part]) -> str:
    """Return the text of the parts as a person reads the message."""
    return "\n".join(part.text for part in parts if isinstance(part, Text | ToolResult))


def searchable(parts: Iterable[Part]) -> str:
    """Return the text for search: message text, tool arguments and results, file names.

    Reasoning is not searchable.
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
    return "\n".join(text for text in found if text)


def leaves(value: Any) -> Iterator[str]:  # noqa: ANN401  (decoded JSON of any shape)
    """Yield the strings and numbers in decoded JSON, without keys."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def blobs_of(value: Any) -> Iterator[str]:  # noqa: ANN401  (walks decoded JSON of any kind, known or not)
    """Yield the blobs named in a decoded body, at every depth."""
    if isinstance(value, dict):
        blob = value.get("blob")
        if isinstance(blob, str):
            yield blob
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        yield from blobs_of(item)
