"""What the formats share: JSON of any shape, files inside text, and messages in the order of a tree."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from tenax.importers.draft import Attached, Draft, Node, Outcome, Piece, Skipped
from tenax.importers.place import Place
from tenax.parts import Text, ToolCall

__all__ = [
    "ATTACHED_BYTES_MAX",
    "Result",
    "arrange",
    "as_dict",
    "as_list",
    "as_text",
    "attach_base64",
    "attach_data_url",
    "attach_file",
    "attach_text",
    "decode",
    "keep",
    "read_each",
    "text_parts",
    "to_json",
    "unfold",
]

ATTACHED_BYTES_MAX: Final = 64 * 1024**2
"""The store keeps no larger files."""
_KEPT_BYTES_MAX: Final = 4096
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[^;,]*)*),", re.ASCII)


class Result(NamedTuple):
    """The result of a tool call, in the content of a message."""

    call: str
    name: str
    pieces: tuple[Piece, ...]
    outcome: Outcome = "done"


# -- JSON of any shape -------------------------------------------------------------------


def decode(data: bytes | msgspec.Raw) -> Any:  # noqa: ANN401  (decoded JSON of any shape)
    """Return the value of a JSON text. Lone surrogates and NaN are read. Raises `ValueError` with a short reason."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        # The decoder of the standard library also takes lone surrogates, NaN and large numbers.
        return json.loads(bytes(data))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from None


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def to_json(value: object) -> str:
    """Return decoded JSON as text, such as the arguments of a tool call."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "{}"


def keep(source: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the named fields that have a value, without large values."""
    kept = {}
    for name in names:
        value = source.get(name)
        if value not in (None, "", [], {}, False) and _is_small(value):
            kept[name] = value
    return kept


def _is_small(value: object) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= _KEPT_BYTES_MAX
    except (ValueError, RecursionError):
        return False


def read_each(
    items: Iterable[bytes | msgspec.Raw],
    to_draft: Callable[[dict[str, Any]], Draft | Skipped | None],
) -> Iterator[Draft | Skipped]:
    """Yield the conversation of each item. An item that is not a JSON object is skipped with the reason."""
    for number, item in enumerate(items, 1):
        try:
            value = decode(item)
        except ValueError as error:
            yield Skipped(f"#{number}", "", f"{error}")
            continue
        if not isinstance(value, dict):
            yield Skipped(f"#{number}", "", "it is not a JSON object")
            continue
        draft = to_draft(value)
        if draft is not None:
            yield draft


# -- parts -------------------------------------------------------------------------------


def text_parts(text: object) -> tuple[Text, ...]:
    """Return a text as the parts of a message: none for an empty text or another value."""
    return (Text(text),) if isinstance(text, str) and text else ()


def attach_text(name: str, text: str) -> Attached:
    """Return a file with this text."""
    return Attached(name, partial(text.encode, "utf-8", "replace"))


def attach_base64(name: str, media_type: str, data: str) -> Attached:
    """Return a file from base64. Its content is `None` if the base64 is damaged or too large."""
    return Attached(_with_ending(name, media_type), partial(_from_base64, data))


def attach_data_url(name: str, url: str) -> Attached | None:
    """Return the file of a `data:` URL, or `None` if the text is another URL."""
    head = _DATA_URL.match(url[:1000])
    if head is None:
        return None
    data = url[head.end() :]
    if ";base64" in head[2].lower():
        return attach_base64(name, head[1] or "", data)
    return Attached(
        _with_ending(name, head[1] or "text/plain"), partial(_from_percent, data)
    )


def attach_file(place: Place, name: str, member: str | None) -> Attached:
    """Return a file of the place. Without a member, only the name is known."""
    if member is None:
        return Attached(name, _read_nothing)
    return Attached(name, partial(place.read, member, ATTACHED_BYTES_MAX))


def _from_base64(data: str) -> bytes | None:
    if len(data) > ATTACHED_BYTES_MAX * 3 // 2:
        return None
    try:
        return base64.b64decode(unquote_to_bytes(data))
    except (binascii.Error, ValueError):
        return None


def _from_percent(data: str) -> bytes | None:
    try:
        return unquote_to_bytes(data)
    except ValueError:
        return None


def _read_nothing() -> None:
    return None


def _with_ending(name: str, media_type: str) -> str:
    if "." in name:
        return name
    return f"{name}{mimetypes.guess_extension(media_type) or ''}"


# -- the tree of messages ----------------------------------------------------------------


def unfold(node: Node, content: Iterable[Piece | Result]) -> list[Node]:
    """Return a message as a chain of nodes: text and calls, then the results of the calls, then more text.

    The first node has the id of the message; the others have a number behind it.
    """
    groups: list[list[Piece] | Result] = [[]]
    for piece in content:
        if isinstance(piece, Result):
            groups.append(piece)
            continue
        if isinstance(groups[-1], Result):
            groups.append([])
        group = groups[-1]
        assert isinstance(group, list)
        group.append(piece)
    if len(groups) > 1 and groups[0] == []:
        groups = groups[1:]
    chain: list[Node] = []
    for number, group in enumerate(groups):
        first = not chain
        values: dict[str, Any] = {
            "id": node.id if first else f"{node.id}:{number}",
            "parent": node.parent if first else chain[-1].id,
            "extra": node.extra if first else {},
        }
        if isinstance(group, Result):
            values |= {"role": "tool", "parts": group.pieces, "outcome": group.outcome}
            values |= {"call": group.call, "name": group.name, "finish": ""}
        else:
            values["parts"] = tuple(group)
        chain.append(msgspec.structs.replace(node, **values))
    return chain


def arrange(
    messages: Iterable[Sequence[Node]], current: str | None = None
) -> tuple[tuple[Node, ...], str | None]:
    """Return the nodes of messages as a tree, parents first, and the last node of the shown path.

    A message is a chain of nodes, and the parent of a message is the id of another message. Versions keep their order.
    A repeated id gets a number. An unknown parent, and a message that is its own ancestor, become a beginning. A tool
    result without its call gets a call without arguments, because a model accepts no result without a call.
    """
    chains: dict[str, list[Node]] = {}
    used: set[str] = set()
    for message in messages:
        if message:
            chain = _make_unique(message, used)
            chains[chain[0].id] = chain
    children: dict[str, list[str]] = {}
    roots: list[str] = []
    for name, chain in chains.items():
        parent = chain[0].parent
        if parent is None or parent not in chains:
            roots.append(name)
        else:
            children.setdefault(parent, []).append(name)
    nodes: list[Node] = []
    reached: dict[str, str] = {}
    waiting: dict[str, dict[str, None]] = {}
    # Messages that no root reaches are in a cycle. The first of them becomes a beginning.
    for start in (*roots, *chains):
        stack = [start]
        while stack:
            name = stack.pop()
            if name in reached:
                continue
            chain = chains[name]
            parent = chain[0].parent
            above = reached.get(parent) if parent is not None else None
            chain[0] = msgspec.structs.replace(chain[0], parent=above)
            for node in chain:
                _add(node, nodes, waiting, used)
            reached[name] = nodes[-1].id
            stack += reversed(children.get(name, ()))
    return tuple(nodes), reached.get(current) if current is not None else None


def _make_unique(message: Sequence[Node], used: set[str]) -> list[Node]:
    chain: list[Node] = []
    for node in message:
        name, number = node.id, 1
        while name in used:
            number += 1
            name = f"{node.id}#{number}"
        used.add(name)
        parent = chain[-1].id if chain else node.parent
        chain.append(msgspec.structs.replace(node, id=name, parent=parent))
    return chain


def _add(
    node: Node,
    nodes: list[Node],
    waiting: dict[str, dict[str, None]],
    used: set[str],
) -> None:
    """Append a node. `waiting` has the calls without a result at each node."""
    calls = waiting.get(node.parent, {}) if node.parent is not None else {}
    if node.role == "tool":
        if node.call not in calls:
            call = ToolCall(node.call or node.id, node.name or "unknown", "{}")
            [asking] = _make_unique(
                [Node(id=f"{node.id}:call", parent=node.parent, role="assistant", parts=(call,), at=node.at)],
                used,
            )  # fmt: skip
            nodes.append(asking)
            node = msgspec.structs.replace(node, parent=asking.id, call=call.id)
        waiting[node.id] = {call: None for call in calls if call != node.call}
    elif node.role == "assistant":
        waiting[node.id] = {
            part.id: None for part in node.parts if isinstance(part, ToolCall)
        }
    elif node.role == "":
        waiting[node.id] = calls
    nodes.append(node)
