"""Writes docs/formats/events.md from the structs in events.py and parts.py.  python -m tools.formats"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from tenax.events import (
    BODY_BYTES_MAX,
    KINDS,
    Blob,
    Copied,
    Event,
    FileChange,
    FileState,
    Origin,
    Usage,
    encode,
)
from tenax.parts import Extracted, Part, Text

TARGET = Path(__file__).parents[1] / "docs" / "formats" / "events.md"
PARTS = get_args(Part)
VALUES = (Blob, Copied, Extracted, FileChange, FileState, Origin, Usage)

HEAD = f"""# Events

Generated from `src/tenax/events.py` and `src/tenax/parts.py` by `python -m tools.formats`; a test keeps it so.

A conversation is a journal of events, numbered 1, 2, 3 ... An event has a header (its number `seq`, its `kind`, the time
`at` in microseconds since 1970 UTC, and the `run` it belongs to, if any) and a body. How they are stored and chained is
told in [store.md](store.md).

The body is JSON in UTF-8, exactly the bytes that were hashed. The kind is not repeated in it. A field that has its
default value is left out. A field that is not listed here is refused. At most {BODY_BYTES_MAX:,} bytes; larger things are
blobs, and a part names them by their SHA-256.

A **fact** is chained and stays. A **partial** is replaced by a later fact and may be pruned; its body is a JSON array in
the order of its fields. Text that comes from a **person** is refused if it holds a NUL or half of a surrogate pair; any
other text is then repaired with U+FFFD, and `repaired` says so.

A reader that meets a kind it does not know keeps the event and goes on: later versions add kinds, and imports carry them.
An erased event has its header and no body.
"""

_NAMES: dict[object, str] = {
    str: "text",
    int: "number",
    bool: "true or false",
    float: "number",
    Any: "any JSON",
    NoneType: "null",
}
_SAMPLES: dict[object, object] = {
    str: "...",
    int: 7,
    float: 60.0,
    bool: True,
    dict: {"key": "value"},
    Blob: Blob("9f86d081"),
    Usage: Usage(input=1200, output=80),
    FileChange: FileChange(
        "notes.md", None, FileState(0o644, 12, "9f86d081", "9f86d081")
    ),
}


def page() -> str:
    """The page as text."""
    groups: dict[str, list[type[Event]]] = {}
    for kind, event in KINDS.items():
        groups.setdefault(kind.split(".", 1)[0], []).append(event)
    sections = [HEAD, _contents(groups)]
    for group, events in groups.items():
        sections.append(f"## {group}\n")
        sections += [_kind(event) for event in events]
    sections.append(
        "## Parts\n\nWhat `parts` is a list of. The field `type` says which.\n"
    )
    sections += [_section(f"`{_tag(each)}`", each, "") for each in PARTS]
    sections.append("## Values\n")
    sections += [_section(value.__name__, value, "") for value in VALUES]
    return "\n".join(sections).rstrip("\n") + "\n"


def _contents(groups: dict[str, list[type[Event]]]) -> str:
    lines = ["| kind | |", "|---|---|"]
    for events in groups.values():
        lines += [
            f"| [`{each.kind}`](#{each.kind.replace('.', '')}) | {_doc(each)[0]} |"
            for each in events
        ]
    return "\n".join(lines) + "\n"


def _kind(event: type[Event]) -> str:
    traits = [f"partial, code {event.code}" if event.code else "fact"]
    if event.person:
        traits.append("from a person")
    body = encode(_sample(event)).decode()
    return _section(f"{event.kind}", event, f"*{', '.join(traits)}*\n\n    {body}\n")


def _section(title: str, struct: type[msgspec.Struct], note: str) -> str:
    text = "\n".join([f"### {title}\n", "\n\n".join(_doc(struct)), ""])
    if note:
        text += f"\n{note}"
    fields = msgspec.structs.fields(struct)
    if not fields:
        return text + "\nNo fields.\n"
    array = (
        "\nAs a JSON array, in this order.\n"
        if struct.__struct_config__.array_like and not note
        else ""
    )
    hints = get_type_hints(struct)
    rows = [
        f"| `{each.name}` | {_name(hints[each.name])} | {_default(each)} |"
        for each in fields
    ]
    return (
        f"{text}{array}\n"
        + "\n".join(["| field | what | default |", "|---|---|---|", *rows])
        + "\n"
    )


def _doc(struct: type) -> list[str]:
    paragraphs = (inspect.getdoc(struct) or "").split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    default = (
        field.default
        if field.default_factory is msgspec.NODEFAULT
        else field.default_factory()
    )
    return f"`{msgspec.json.encode(default).decode()}`"


def _tag(part: type[msgspec.Struct]) -> str:
    return str(part.__struct_config__.tag)


def _name(hint: Any) -> str:  # noqa: ANN401  (an annotation of any shape)
    origin, inside = get_origin(hint), get_args(hint)
    if hint == Part:
        return "part"
    if origin is Literal:
        return ", ".join(f'`"{each}"`' for each in inside)
    if origin in (UnionType, Union):
        return " or ".join(map(_name, inside))
    if origin is list:
        return f"list of {_name(inside[0])}"
    if origin is dict:
        return "object"
    return _NAMES.get(hint) or f"[{hint.__name__}](#{hint.__name__.lower()})"


def _sample(struct: type[Event]) -> Event:
    """An example: every field that has no default."""
    hints = get_type_hints(struct)
    needed = [field.name for field in msgspec.structs.fields(struct) if field.required]
    return struct(**{name: _value(hints[name]) for name in needed})


def _value(hint: Any) -> object:  # noqa: ANN401  (an annotation of any shape)
    origin, inside = get_origin(hint), get_args(hint)
    if hint == Part:
        return Text("...")
    if origin is Literal:
        return inside[0]
    if origin is list:
        return [_value(inside[0])]
    if origin in (UnionType, Union):
        return _value(inside[0])
    return _SAMPLES[origin or hint]


if __name__ == "__main__":
    TARGET.write_text(page(), "utf-8")
