"""The conversations that LibreChat exports as JSON: one file a conversation, or a folder or zip of such files.

The messages are a flat list with the ids of their parents, or nested as `messagesTree`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tenax.importers.draft import Draft, Node, Piece, Skipped, Source, read_time
from tenax.importers.place import Place
from tenax.importers.reading import (
    ATTACHED_BYTES_MAX,
    Inserted,
    JsonObject,
    JsonSource,
    Result,
    arrange,
    as_dict,
    as_text,
    attach_data_url,
    attach_file,
    get_dict,
    get_dicts,
    get_list,
    get_text,
    has_file,
    keep,
    read_object,
    text_parts,
    to_text,
    unfold,
)
from tenax.parts import Reasoning, Text, ToolCall

__all__ = ["open_source"]

_BOM: Final = b"\xef\xbb\xbf"
_FILE_BYTES_MAX: Final = 4 * ATTACHED_BYTES_MAX
_THINKING: Final = re.compile(r":::thinking\n(.*?)\n:::\n*", re.DOTALL)
"""The reasoning at the beginning of the text, in older versions."""
_MARKS: Final = frozenset({"messages", "messagesTree", "exportAt"})


def open_source(place: Place) -> Source | None:
    names = place.names()
    if place.path.is_dir() or len(names) != 1:
        names = place.names(".json")
    if has_file(place, names, _is_conversation):
        return _LibreChat(place, names)
    return None


def _is_conversation(keys: set[str]) -> bool:
    return "conversationId" in keys and bool(keys & _MARKS)


class _LibreChat(JsonSource):
    kind = "librechat"
    label = "LibreChat"

    def drafts(self) -> Iterator[Draft | Skipped]:
        """Yield the conversations in the order of their files."""
        for name in self.names:
            data = self.place.read(name, _FILE_BYTES_MAX)
            if not data:
                yield Skipped(name, name, "the file is empty, too large or unreadable")
                continue
            yield from read_object(data.removeprefix(_BOM), name, self.read_draft)

    def read_draft(self, conversation: JsonObject) -> Draft | Skipped | None:
        title = get_text(conversation, "title")
        name = get_text(conversation, "conversationId")
        options = get_dict(conversation, "options")
        if not name:
            return Skipped("", title, "it has no conversationId")
        messages = conversation.get("messagesTree", conversation.get("messages"))
        if isinstance(messages, dict):
            messages = [messages]
        if not isinstance(messages, list):
            return Skipped(name, title, "its messages are not a JSON array")
        chains = [
            self._read_message(message, message_id, parent)
            for message, message_id, parent in _flatten(messages)
        ]
        nodes, _ = arrange(chains)
        if not any(node.parts for node in nodes):
            self.left_out["conversation without messages"] += 1
            return None
        at = read_time(options.get("createdAt"))
        if at is None:
            times = [node.at for node in nodes if node.at]
            at = times[0] if times else None
        return Draft(
            id=name,
            nodes=nodes,
            title=title,
            at=at,
            archived=options.get("isArchived") is True,
            extra=keep(conversation, "endpoint", "options", left_out=self.left_out),
        )

    def _read_message(
        self, message: JsonObject, name: str, above: str | None
    ) -> list[Node]:
        is_user = message.get("isCreatedByUser") is True
        parent = get_text(message, "parentMessageId") if above is None else above
        content = [*self._read_content(get_list(message, "content"), name)]
        if all(isinstance(piece, Reasoning) for piece in content):
            content += _read_text(get_text(message, "text"))
        for field in ("files", "attachments"):
            content += self._read_files(get_list(message, field))
        if message.get("feedback"):
            self.left_out["rating"] += 1
        finish = get_text(message, "finish_reason")
        if message.get("error") is True:
            finish = "error"
        elif message.get("unfinished") is True:
            finish = "unfinished"
        node = Node(
            id=name,
            parent=parent,
            role=("user" if is_user else "assistant") if content else "",
            at=read_time(message.get("createdAt")),
            model="" if is_user else get_text(message, "model"),
            finish=finish,
            extra=keep(message, "endpoint", left_out=self.left_out),
        )
        return unfold(node, content)

    def _read_content(
        self, parts: list[Any], name: str
    ) -> Iterator[Piece | Result | Inserted]:
        for number, value in enumerate(parts):
            part = as_dict(value)
            kind = get_text(part, "type")
            if kind in ("text", "error"):
                yield from text_parts(_read_value(part.get(kind) or part.get("text")))
            elif kind == "think":
                text = _read_value(part.get("think"))
                if text:
                    yield Reasoning(text)
            elif kind == "tool_call":
                call = get_dict(part, "tool_call")
                yield from _read_call(call, f"{name}:call-{number}")
            elif kind in ("summary", "steer"):
                yield from self._read_inserted(kind, part)
            elif kind == "image_url":
                url = get_text(get_dict(part, "image_url"), "url")
                attached = attach_data_url("image", url)
                yield attached or attach_file(self.place, "image", None)
            elif kind in ("image_file", "video_file", "audio_file"):
                yield from self._read_files([part.get(kind)])
            elif part:
                self.count_unknown(kind)

    def _read_inserted(self, kind: str, part: JsonObject) -> Iterator[Inserted]:
        """Yield a summary, or a message that the person wrote during the answer."""
        if kind == "summary":
            pieces: list[Text] = []
            for block in get_dicts(part, "content"):
                pieces += text_parts(block.get("text"))
            if pieces:
                yield Inserted("summary", tuple(pieces))
            return
        files = self._read_files(get_list(part, "files"))
        message = (*text_parts(part.get("steer")), *files)
        if message:
            yield Inserted("user", message)

    def _read_files(self, files: list[Any]) -> Iterator[Piece]:
        """Yield the names of files: the export has no contents."""
        for file in map(as_dict, files):
            name = get_text(file, "filename", "file_id")
            if name:
                yield attach_file(self.place, name, None)
            elif file:
                kind = get_text(file, "type") or "no type"
                self.left_out[f"attachment without a file ({kind[:60]})"] += 1


def _flatten(
    messages: list[Any],
) -> Iterator[tuple[JsonObject, str, str | None]]:
    """Yield every message with the id, and with the id of the enclosing message."""
    stack: list[tuple[object, str | None]] = []
    stack += [(message, None) for message in reversed(messages)]
    number = 0
    while stack:
        value, above = stack.pop()
        message = as_dict(value)
        name = get_text(message, "messageId") or f"message-{number}"
        number += 1
        yield message, name, above
        children = get_list(message, "children")
        stack += [(child, name) for child in reversed(children)]


def _read_text(text: str) -> Iterator[Piece]:
    thinking = _THINKING.match(text)
    if thinking is None:
        yield from text_parts(text)
        return
    if thinking[1]:
        yield Reasoning(thinking[1])
    yield from text_parts(text[thinking.end() :])


def _read_value(value: object) -> str:
    """Return a text, or the text in the object of some versions."""
    return as_text(value) or get_text(as_dict(value), "value")


def _read_call(call: JsonObject, substitute_id: str) -> Iterator[Piece | Result]:
    kind = get_text(call, "type")
    # Assistants have the call inside `function` or `code_interpreter`.
    inner = as_dict(call.get(kind)) or call
    call_id = get_text(call, "id") or substitute_id
    name = get_text(inner, "name") or kind or "unknown"
    arguments: object = (
        inner.get("args") or inner.get("arguments") or inner.get("input") or {}
    )
    if kind == "code_interpreter":
        arguments = {"code": arguments}
    yield ToolCall(call_id, name, to_text(arguments))
    output = inner.get("output", inner.get("outputs"))
    if output is not None:
        yield Result(call_id, name, text_parts(to_text(output)))
