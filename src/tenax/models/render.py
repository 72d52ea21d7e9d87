"""What the wire formats share when they render a message."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tenax.parts import File, Image, Part, Text, ToolCall

__all__ = ["arguments_of", "text_in"]


def text_in(parts: Iterable[Part]) -> str:
    """The words of a message as one text. Pictures and files are named: the model knows that they are there."""
    found: list[str] = []
    for part in parts:
        match part:
            case Text(text=text):
                found.append(text)
            case Image(media_type=kind):
                found.append(f"[A picture ({kind}) is attached. You cannot see it.]")
            case File(media_type=kind, name=name):
                found.append(
                    f"[A file is attached, {name or 'without a name'} ({kind}). You cannot read it here.]"
                )
            case _:
                pass
    return "\n".join(text for text in found if text)


def arguments_of(call: ToolCall) -> msgspec.Raw:
    """The arguments as a JSON object, byte for byte as the model wrote them.

    What is no object is wrapped in one: servers parse the arguments of earlier calls, and refuse the whole conversation
    over one that they cannot parse.
    """
    try:
        written = call.arguments.encode()
        if isinstance(msgspec.json.decode(written), dict):
            return msgspec.Raw(written)
    except (msgspec.DecodeError, RecursionError):
        pass
    return msgspec.Raw(msgspec.json.encode({"invalid_json": call.arguments}))
