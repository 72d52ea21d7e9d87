"""The data export of ChatGPT: conversations.json, or since 2026 conversations-000.json and so on, in a zip or a folder.

A conversation is a tree of messages. A tool call is a message to another recipient than `all`. The call has no id of its
own, so the id of the message is used. The result is the next message with the role `tool`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tenax.importers.draft import (
    Attached,
    Draft,
    Node,
    Outcome,
    Piece,
    Skipped,
    Source,
    read_time,
)
from tenax.importers.place import Place
from tenax.importers.reading import (
    JsonObject,
    JsonSource,
    arrange,
    as_dict,
    attach_file,
    decode,
    find_conversations_files,
    get_dict,
    get_dicts,
    get_list,
    get_text,
    is_conversations_file,
    keep,
    text_parts,
    to_json,
)
from tenax.parts import Reasoning, Text, ToolCall

__all__ = ["open_source"]

_FILE_ID: Final = re.compile(r"file[-_][0-9A-Za-z]+")
_COMPANIONS: Final = frozenset({"chat.html", "export_manifest.json"})
_SCAFFOLDING: Final = frozenset({"user_editable_context", "model_editable_context"})
"""Custom instructions and memories. ChatGPT repeats them in every conversation and does not show them."""


def open_source(place: Place) -> Source | None:
    names = find_conversations_files(place, "mapping", _COMPANIONS)
    return _ChatGPT(place, names) if names else None


class _ChatGPT(JsonSource):
    kind = "chatgpt"
    label = "ChatGPT"
    times = ("create_time",)

    def __init__(self, place: Place, names: list[str]) -> None:
        # A damaged or empty part beside good parts is read as well, so that the report names the damage.
        folder = names[0].rpartition("/")[0]
        parts = [
            name
            for name in place.names(".json")
            if is_conversations_file(name) and name.rpartition("/")[0] == folder
        ]
        super().__init__(place, sorted({*names, *parts}))
        self._files: dict[str, str] = {}
        for name in place.names():
            file_id = _FILE_ID.match(name.rpartition("/")[2])
            if file_id:
                self._files.setdefault(file_id[0], name)

    def read_draft(self, conversation: JsonObject) -> Draft | Skipped | None:
        title = get_text(conversation, "title")
        name = get_text(conversation, "conversation_id", "id")
        if "mapping" not in conversation:
            self.left_out["entry without messages"] += 1
            return None
        mapping = conversation["mapping"]
        if not name:
            return Skipped("", title, "it has no id")
        if not isinstance(mapping, dict):
            return Skipped(name, title, "its messages are not a JSON object")
        messages = [[self._read_node(key, entry)] for key, entry in _in_order(mapping)]
        nodes, current = arrange(messages, get_text(conversation, "current_node"))
        if not any(node.role for node in nodes):
            self.left_out["conversation without messages"] += 1
            return None
        is_starred = conversation.get("is_starred") is True
        is_pinned = read_time(conversation.get("pinned_time")) is not None
        extra = keep(
            conversation,
            "gizmo_id",
            "conversation_template_id",
            "conversation_origin",
            left_out=self.left_out,
        )
        return Draft(
            id=name,
            nodes=nodes,
            current=current,
            title=title,
            at=read_time(conversation.get("create_time")),
            archived=conversation.get("is_archived") is True,
            pinned=is_starred or is_pinned,
            extra=extra,
        )

    def _read_node(self, key: str, entry: object) -> Node:
        parent = get_text(as_dict(entry), "parent") or None
        message = get_dict(as_dict(entry), "message")
        author = get_dict(message, "author")
        content = get_dict(message, "content")
        metadata = get_dict(message, "metadata")
        role = author.get("role")
        link = Node(id=key, parent=parent, role="")
        if not message:
            return link
        if _is_hidden(message, metadata, content):
            if any(isinstance(piece, Text) for piece in _read_content(content)):
                self.left_out["hidden message"] += 1
            return link
        if role not in ("user", "assistant", "system", "tool"):
            self.left_out["message of an unknown role"] += 1
            return link
        pieces = [*self._read_pieces(content, metadata)]
        tool = get_text(author, "name")
        recipient = get_text(message, "recipient") or "all"
        outcome: Outcome = "done"
        if role == "assistant" and recipient != "all":
            call = ToolCall(key, recipient, _read_arguments(content, pieces))
            pieces = [piece for piece in pieces if not isinstance(piece, Text)]
            pieces.append(call)
        if role == "tool" and content.get("content_type") == "system_error":
            outcome = "failed"
        if not pieces and role != "tool":
            return link
        model = get_text(metadata, "resolved_model_slug", "model_slug")
        finish = get_text(get_dict(metadata, "finish_details"), "type")
        return Node(
            id=key,
            parent=parent,
            role=role,
            parts=tuple(pieces),
            at=read_time(message.get("create_time")),
            model=model if role == "assistant" else "",
            finish=finish if role == "assistant" else "",
            name=tool if role == "tool" else "",
            outcome=outcome,
            extra=keep(
                metadata,
                "citations",
                "content_references",
                "image_gen_title",
                left_out=self.left_out,
            ),
        )

    def _read_pieces(
        self, content: JsonObject, metadata: JsonObject
    ) -> Iterator[Piece]:
        names: dict[str, str] = {}
        for attachment in get_dicts(metadata, "attachments"):
            file_id = get_text(attachment, "id", "name")
            names[file_id] = get_text(attachment, "name")
        attached: set[str] = set()
        for piece in _read_content(content):
            if not isinstance(piece, dict):
                yield piece
                continue
            pointer = _find_pointer(piece)
            if not pointer:
                kind = get_text(piece, "content_type") or "no type"
                self.count_unknown(kind)
                continue
            file_id = _file_id(pointer)
            attached.add(file_id)
            yield self._attach(file_id, names.get(file_id, ""))
        for file_id, name in names.items():
            if file_id and file_id not in attached:
                yield self._attach(file_id, name)

    def _attach(self, file_id: str, name: str) -> Attached:
        member = self._files.get(file_id)
        if not name:
            name = member.rpartition("/")[2] if member else file_id
        return attach_file(self.place, name, member)


def _in_order(mapping: JsonObject) -> Iterable[tuple[str, Any]]:
    """Return the messages. The versions of a message are in the order of `children`."""
    ordered: JsonObject = {}
    for entry in mapping.values():
        for child in get_list(as_dict(entry), "children"):
            if isinstance(child, str) and child in mapping:
                ordered.setdefault(child, mapping[child])
    beginnings = {key: entry for key, entry in mapping.items() if key not in ordered}
    return [*beginnings.items(), *ordered.items()]


def _is_hidden(message: JsonObject, metadata: JsonObject, content: JsonObject) -> bool:
    if metadata.get("is_visually_hidden_from_conversation") is True:
        return True
    # The results of tools have no weight, but belong to their calls.
    is_result = get_dict(message, "author").get("role") == "tool"
    if message.get("weight") == 0 and not is_result:
        return True
    return content.get("content_type") in ("reasoning_recap", *_SCAFFOLDING)


def _read_content(
    content: JsonObject,
) -> Iterator[Text | Reasoning | JsonObject]:
    """Yield the text and the reasoning of a message, and other parts unchanged."""
    kind = content.get("content_type")
    if kind == "thoughts":
        yield from _read_thoughts(content)
        return
    if kind == "tether_quote":
        source = (get_text(content, "title"), get_text(content, "url"))
        yield from text_parts(" ".join(filter(None, source)))
    for part in get_list(content, "parts"):
        yield from text_parts(part)
        if as_dict(part).get("content_type") == "audio_transcription":
            yield from text_parts(part.get("text"))
        elif isinstance(part, dict):
            yield part
    for field in ("text", "result", "content", "user_profile", "user_instructions"):
        yield from text_parts(content.get(field))
    if not content.keys() & {"parts", "text", "result", "content"}:
        yield content


def _read_thoughts(content: JsonObject) -> Iterator[Reasoning]:
    for thought in get_dicts(content, "thoughts"):
        texts = (get_text(thought, "summary"), get_text(thought, "content"))
        text = "\n\n".join(filter(None, texts))
        if text:
            yield Reasoning(text)


def _find_pointer(part: JsonObject) -> str:
    """Return the pointer to the file of an image, an audio or a video, or an empty text."""
    for field in (
        "asset_pointer",
        "audio_asset_pointer",
        "video_container_asset_pointer",
    ):
        value = part.get(field)
        if isinstance(value, dict):
            value = value.get("asset_pointer")
        if isinstance(value, str) and value:
            return value
    return ""


def _file_id(pointer: str) -> str:
    name = pointer.rpartition("/")[2]
    file_id = _FILE_ID.search(name)
    return file_id[0] if file_id else name


def _read_arguments(content: JsonObject, pieces: list[Piece]) -> str:
    """Return the arguments of a call: a JSON object unchanged, and other text, such as code, as a single argument."""
    text = "\n".join(piece.text for piece in pieces if isinstance(piece, Text))
    try:
        if isinstance(decode(text.encode()), dict):
            return text
    except ValueError:
        pass
    argument = "code" if content.get("content_type") == "code" else "text"
    return to_json({argument: text})
