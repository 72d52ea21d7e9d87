"""Functions for several formats: read JSON of any shape, attach files, and arrange messages as a tree."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from tenax.importers.draft import (
    Attached,
    Draft,
    MemoryDraft,
    Node,
    Outcome,
    Piece,
    Role,
    SkillDraft,
    Skipped,
    read_time,
)
from tenax.importers.place import Place, read_items
from tenax.parts import Reasoning, Text, ToolCall

__all__ = [
    "ATTACHED_BYTES_MAX",
    "Inserted",
    "JsonObject",
    "JsonSource",
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
    "find_conversations_files",
    "find_keys",
    "get_dict",
    "get_dicts",
    "get_list",
    "get_text",
    "has_file",
    "is_conversations_file",
    "keep",
    "oldest_first",
    "read_object",
    "text_parts",
    "to_json",
    "to_text",
    "unfold",
]

ATTACHED_BYTES_MAX: Final = 64 * 1024**2
"""The store keeps no larger files."""
_KEPT_BYTES_MAX: Final = 16 * 1024
_KIND_CHARS_MAX: Final = 60
_KEY_LEVELS: Final = 2
_LOOKED_AT_MAX: Final = 200
_DATA_URL_HEAD_CHARS: Final = 1000
_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]|[^\s\[\]{},:"]++', re.DOTALL
)
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[^;,]*)*),", re.ASCII)


JsonObject = dict[str, Any]


class Result(NamedTuple):
    """The result of a tool call, in the content of a message."""

    call: str
    name: str
    pieces: tuple[Piece, ...]
    outcome: Outcome = "done"


class Inserted(NamedTuple):
    """A message of another role in the content of a message, such as a summary."""

    role: Role
    pieces: tuple[Piece, ...]


_Group = list[Piece] | Result | Inserted


# -- JSON of any shape -------------------------------------------------------------------


def decode(data: bytes | msgspec.Raw) -> Any:  # noqa: ANN401  (decoded JSON of any shape)
    """Return the value of a JSON text, also with lone surrogates and NaN. Raises `ValueError` with a short reason."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        # The decoder of the standard library also takes lone surrogates, NaN and large numbers.
        return json.loads(bytes(data))
    except RecursionError:
        pass
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    return _decode_deep(bytes(data).decode("utf-8", "replace"))


def _decode_deep(text: str) -> Any:  # noqa: ANN401  (decoded JSON of any shape)
    """Return the value of a JSON text of any depth. Some exports nest every reply in the previous message."""
    values: list[Any] = []
    # The open containers from the outermost to the innermost, and the pending key of every container.
    stack: list[Any] = [values]
    keys: list[str | None] = [None]
    for mark in _TOKEN.findall(text):
        container = stack[-1]
        if mark in (",", ":"):
            continue
        if mark in ("]", "}"):
            stack.pop()
            keys.pop()
            if not stack:
                break
        elif isinstance(container, dict) and keys[-1] is None:
            key = json.loads(mark)
            if not isinstance(key, str):
                break
            keys[-1] = key
        else:
            value = _begin_value(mark)
            if isinstance(container, dict):
                container[keys[-1]] = value
                keys[-1] = None
            else:
                container.append(value)
            if mark in ("{", "["):
                stack.append(value)
                keys.append(None)
    if len(stack) != 1 or len(values) != 1:
        raise ValueError("it is not JSON")
    return values[0]


def _begin_value(mark: str) -> Any:  # noqa: ANN401  (decoded JSON of any shape)
    """Return an empty container for an opening bracket, and otherwise the value."""
    if mark == "{":
        return {}
    if mark == "[":
        return []
    return json.loads(mark)


_CONVERSATIONS: Final = re.compile(r"(?:.*/)?conversations(?:-\d+)?\.json")


def is_conversations_file(name: str) -> bool:
    """Return whether a file is `conversations.json`, or a numbered part such as `conversations-001.json`."""
    return _CONVERSATIONS.fullmatch(name) is not None


def find_conversations_files(
    place: Place, key: str, companions: frozenset[str]
) -> list[str]:
    """Return the files whose conversations have a key, or else the empty list of an account without conversations.

    Programs cannot be told apart by an empty list, so a file of `companions` must be there too.
    """
    names = place.names()
    if place.path.is_dir() or len(names) != 1:
        names = [name for name in names if is_conversations_file(name)]
    heads = {name: place.head(name) for name in names}
    files = [name for name in names if key in find_keys(heads[name])]
    if files:
        return files
    base_names = {name.rpartition("/")[2] for name in place.names()}
    if not companions & base_names:
        return []
    return [name for name in names if heads[name].strip() == b"[]"]


def find_keys(head: bytes) -> set[str]:
    """Return the keys of the objects at the beginning of a file, such as `chat`, and of the next level: `chat.history`.

    The objects of an array count, not the array.
    """
    text = head.decode("utf-8", "ignore").removeprefix("\ufeff")
    is_array = text.lstrip()[:1] == "["
    keys: set[str] = set()
    path: list[str] = []
    last = ""
    for match in _TOKEN.finditer(text):
        mark = match[0]
        if mark in ("[", "{"):
            path.append(last if mark == "{" else "[]")
            last = ""
        elif mark in ("]", "}"):
            path = path[:-1]
        elif mark == ":":
            above = path[1:] if is_array else path
            if 1 <= len(above) <= _KEY_LEVELS and "[]" not in above:
                names = [*above[1:], last]
                keys.add(".".join(names))
        elif mark[0] == '"':
            last = mark[1:-1]
    return keys


def has_file(
    place: Place, names: Sequence[str], is_ours: Callable[[set[str]], bool]
) -> bool:
    """Return whether a file has the keys of a format. The first 200 files decide, because a folder may have many."""
    for name in names[:_LOOKED_AT_MAX]:
        keys = find_keys(place.head(name))
        if is_ours(keys):
            return True
    return False


def oldest_first(
    items: Iterable[msgspec.Raw], *fields: str
) -> list[tuple[int, msgspec.Raw]]:
    """Sort conversations by the first field with a time, and number the conversations by their order in the file.

    Items without a time come first.
    """
    columns = [(name, Any, None) for name in fields]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Times", columns))

    def read_start(numbered: tuple[int, msgspec.Raw]) -> int:
        try:
            item = decoder.decode(numbered[1])
        except (ValueError, RecursionError):
            return 0
        for name in fields:
            time = read_time(getattr(item, name))
            if time:
                return time
        return 0

    return sorted(enumerate(items, 1), key=read_start)


class JsonSource:
    """The base class for JSON files with conversations. A format implements `read_draft`.

    `left_out` counts the skipped content by description.
    """

    kind: str
    label: str
    times: tuple[str, ...] = ()
    """The fields with the start of a conversation, in order of preference."""

    def __init__(self, place: Place, names: Sequence[str]) -> None:
        self.place = place
        self.names = names
        self.left_out: Counter[str] = Counter()

    def drafts(self) -> Iterator[Draft | Skipped]:
        """Yield the conversations, the oldest first."""
        for number, item in oldest_first(self.read_items(), *self.times):
            yield from read_object(item, f"entry {number}", self.read_draft)

    def read_items(self) -> Iterator[msgspec.Raw]:
        """Yield the JSON of every conversation. Raises `InvalidInput`."""
        for name in self.names:
            yield from read_items(self.place.file(name))

    def read_draft(self, conversation: JsonObject) -> Draft | Skipped | None:
        """Return a conversation, or `None` for a conversation without messages."""
        raise NotImplementedError

    def count_unknown(self, kind: str) -> None:
        """Count content of an unknown type."""
        self.left_out[f"unknown content ({kind[:_KIND_CHARS_MAX]})"] += 1

    def memories(self) -> Iterator[MemoryDraft]:
        """Yield nothing. Memories of these formats are not imported."""
        return iter(())

    def skills(self) -> Iterator[SkillDraft]:
        """Yield nothing: the files have no skills."""
        return iter(())

    def close(self) -> None:
        """Delete temporary files."""
        self.place.close()


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_dict(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def get_text(source: JsonObject, *names: str) -> str:
    """Return the first of the named fields with text, or an empty text."""
    for name in names:
        text = as_text(source.get(name))
        if text:
            return text
    return ""


def get_dict(source: JsonObject, name: str) -> JsonObject:
    return as_dict(source.get(name))


def get_list(source: JsonObject, name: str) -> list[Any]:
    return as_list(source.get(name))


def get_dicts(source: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects of a list. Other items become empty objects."""
    return [as_dict(item) for item in get_list(source, name)]


def to_text(value: object) -> str:
    """Return text unchanged, and another value as JSON."""
    return value if isinstance(value, str) else to_json(value)


def to_json(value: object) -> str:
    """Encode a value as JSON, such as the arguments of a tool call."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "{}"


def keep(
    source: JsonObject, *names: str, left_out: Counter[str] | None = None
) -> JsonObject:
    """Return the named fields with their values. Large values are counted in `left_out` instead."""
    kept = {}
    for name in names:
        value = source.get(name)
        if not value:
            continue
        if _is_small(value):
            kept[name] = value
        elif left_out is not None:
            left_out[f"large field ({name})"] += 1
    return kept


def _is_small(value: object) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= _KEPT_BYTES_MAX
    except (ValueError, RecursionError):
        return False


def read_object(
    data: bytes | msgspec.Raw,
    name: str,
    to_draft: Callable[[JsonObject], Draft | Skipped | None],
) -> Iterator[Draft | Skipped]:
    """Yield the conversation of a JSON object. `name` is the title of a skipped conversation without a title."""
    try:
        value = decode(data)
    except ValueError as error:
        yield Skipped("", name, f"{error}")
        return
    if isinstance(value, dict):
        draft = to_draft(value)
    else:
        draft = Skipped("", "", "it is not a JSON object")
    if isinstance(draft, Skipped):
        yield Skipped(draft.id, draft.title or name, draft.why)
    elif draft is not None:
        yield draft


# -- parts -------------------------------------------------------------------------------


def text_parts(text: object) -> tuple[Text, ...]:
    """Return a text as the parts of a message: no part for an empty text or another value."""
    if not isinstance(text, str) or not text:
        return ()
    return (Text(text),)


def attach_text(name: str, text: str) -> Attached:
    """Return a text as a file."""
    return Attached(name, partial(text.encode, "utf-8", "replace"))


def attach_base64(name: str, media_type: str, data: str) -> Attached:
    """Return a file from base64. The content is `None` for damaged or too long base64."""
    file_name = _with_ending(name, media_type)
    return Attached(file_name, partial(_from_base64, data))


def attach_data_url(name: str, url: str) -> Attached | None:
    """Return the file of a `data:` URL, or `None` for another URL."""
    head = _DATA_URL.match(url[:_DATA_URL_HEAD_CHARS])
    if head is None:
        return None
    media_type, parameters = head.groups()
    data = url[head.end() :]
    if ";base64" in parameters.lower():
        return attach_base64(name, media_type or "", data)
    file_name = _with_ending(name, media_type or "text/plain")
    return Attached(file_name, partial(_from_percent, data))


def attach_file(place: Place, name: str, member: str | None) -> Attached:
    """Return the file `member` of the place under a name. Without a member, the content is unknown."""
    if member is None:
        return Attached(name, _read_nothing)
    return Attached(name, partial(place.read, member, ATTACHED_BYTES_MAX))


def _from_base64(data: str) -> bytes | None:
    if len(data) > ATTACHED_BYTES_MAX * 3 // 2:
        return None
    try:
        digits = b"".join(unquote_to_bytes(data).split()).rstrip(b"=")
        # Some programs omit the padding, which the decoder requires.
        padding = b"=" * (-len(digits) % 4)
        return base64.b64decode(digits + padding, validate=True)
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
    ending = mimetypes.guess_extension(media_type) or ""
    return f"{name}{ending}"


# -- the tree of messages ----------------------------------------------------------------


def unfold(node: Node, content: Iterable[Piece | Result | Inserted]) -> list[Node]:
    """Return a message as a chain of nodes: text and calls, then the results of the calls, then more text.

    The first node has the id of the message. The ids of the following nodes are the same id with a number.
    """
    groups = _group(content)
    chain: list[Node] = []
    for number, group in enumerate(groups):
        values = _fields_of(group)
        if chain:
            values["id"] = f"{node.id}:{number}"
            values["parent"] = chain[-1].id
            values["extra"] = {}
        if number < len(groups) - 1:
            # The reason for the end belongs to the last node.
            values["finish"] = ""
        chain.append(msgspec.structs.replace(node, **values))
    return chain


def _group(content: Iterable[Piece | Result | Inserted]) -> list[_Group]:
    """Return the content with consecutive pieces as a list. Without content, the only group is empty."""
    groups: list[_Group] = []
    for piece in content:
        if isinstance(piece, Result | Inserted):
            groups.append(piece)
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups or [[]]


def _fields_of(group: _Group) -> JsonObject:
    """Return the fields of the node of a group."""
    if isinstance(group, Result):
        return {
            "role": "tool",
            "parts": group.pieces,
            "outcome": group.outcome,
            "call": group.call,
            "name": group.name,
            "model": "",
        }
    if isinstance(group, Inserted):
        return {"role": group.role, "parts": group.pieces, "model": ""}
    return {"parts": tuple(group)}


def arrange(
    messages: Iterable[Sequence[Node]], current: str | None = None
) -> tuple[tuple[Node, ...], str | None]:
    """Return the nodes of messages as a tree, parents first, and the last node of the shown path.

    A message is a chain of nodes, and the parent of a message is the id of a message. Versions keep their order.

    - A repeated id gets a number.
    - A message with an unknown parent, and the first message of a cycle, become a beginning.
    - A tool result without the id of a call belongs to the call before the result.
    - A tool result without a call gets a call without arguments, because models reject a result without a call.
    - A message with reasoning only becomes a part of the following answer.
    """
    used: set[str] = set()
    chains: dict[str, list[Node]] = {}
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
    tree = _Tree(used)
    last: dict[str, str] = {}
    # Messages out of reach of every root are in a cycle. The first message of a cycle becomes a beginning.
    for start in (*roots, *chains):
        stack = [start]
        while stack:
            name = stack.pop()
            if name in last:
                continue
            chain = chains[name]
            parent = chain[0].parent
            above = None if parent is None else last.get(parent)
            for node in chain:
                above = tree.add(msgspec.structs.replace(node, parent=above))
            last[name] = above or name
            stack += reversed(children.get(name, ()))
    shown = None if current is None else last.get(current)
    return tuple(tree.nodes), shown


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


class _Tree:
    """Collects nodes, parents first. Every tool result follows a call."""

    def __init__(self, used: set[str]) -> None:
        self.nodes: list[Node] = []
        self._used = used
        self._waiting: dict[str, list[ToolCall]] = {}
        """The calls without a result, by node."""
        self._answered: dict[str, int] = {}
        """The position of the last tool result, by node. The next node may continue the result."""
        self._thoughts: dict[str, tuple[int, tuple[Piece, ...]]] = {}
        """The position and the parts of a message with reasoning only, by node."""

    def add(self, node: Node) -> str:
        """Add a node whose parent was added before. Return the id."""
        above = node.parent or ""
        if node.role == "assistant":
            node = self._add_thoughts(node)
            calls = [part for part in node.parts if isinstance(part, ToolCall)]
            self._waiting[node.id] = calls
        elif node.role == "tool":
            node = self._find_call(node, self._waiting.get(above, []))
        elif node.role == "":
            self._waiting[node.id] = self._waiting.get(above, [])
            if above in self._answered:
                self._answered[node.id] = self._answered[above]
            if above in self._thoughts:
                self._thoughts[node.id] = self._thoughts[above]
        self.nodes.append(node)
        return node.id

    def _add_thoughts(self, node: Node) -> Node:
        """Return an answer with the reasoning of the previous message. The previous message becomes a link."""
        before = self._thoughts.get(node.parent or "")
        if before is not None:
            place, thoughts = before
            first = self.nodes[place]
            self.nodes[place] = Node(id=first.id, parent=first.parent, role="")
            node = msgspec.structs.replace(node, parts=thoughts + node.parts)
        # Signed reasoning belongs to the message that the provider signed.
        is_unsigned = all(
            isinstance(part, Reasoning) and part.signature is None
            for part in node.parts
        )
        if node.parts and is_unsigned:
            self._thoughts[node.id] = len(self.nodes), node.parts
        return node

    def _find_call(self, node: Node, calls: list[ToolCall]) -> Node:
        above = node.parent or ""
        place = self._answered.get(above)
        if not node.call and not calls and place is not None:
            first = self.nodes[place]
            if node.name in ("", first.name):
                # A second part of the same result. A further version of this part cannot be added as well.
                del self._answered[above]
                self._answered[node.id] = place
                parts = first.parts + node.parts
                self.nodes[place] = msgspec.structs.replace(first, parts=parts)
                return Node(id=node.id, parent=node.parent, role="", at=node.at)
        candidates = [call for call in calls if node.call in ("", call.id)]
        if candidates:
            answered = candidates[0]
        else:
            node, answered = self._add_call(node)
            calls = []
        self._waiting[node.id] = [call for call in calls if call is not answered]
        self._answered[node.id] = len(self.nodes)
        name = node.name or answered.name
        return msgspec.structs.replace(node, call=answered.id, name=name)

    def _add_call(self, node: Node) -> tuple[Node, ToolCall]:
        call = ToolCall(node.call or node.id, node.name or "unknown", "{}")
        asking = Node(
            id=f"{node.id}:call",
            parent=node.parent,
            role="assistant",
            parts=(call,),
            at=node.at,
        )
        [asking] = _make_unique([asking], self._used)
        self.nodes.append(asking)
        return msgspec.structs.replace(node, parent=asking.id), call
