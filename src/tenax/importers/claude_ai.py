"""The data export of Claude.ai: conversations.json in a zip or a folder, or alone.

A message has `text`, and in newer exports `content`: text, reasoning, tool calls and their results, in order. Only the
text of an attached file is in the export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    Result,
    arrange,
    as_dict,
    as_list,
    as_text,
    attach_base64,
    attach_file,
    attach_text,
    find_conversations_files,
    get_dict,
    get_dicts,
    get_list,
    get_text,
    keep,
    text_parts,
    to_json,
    unfold,
)
from tenax.parts import Reasoning, Text, ToolCall

__all__ = ["open_source"]

_COMPANIONS: Final = frozenset({"users.json"})
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NO_PARENT: Final = "00000000-0000-4000-8000-000000000000"
_DOCUMENTS: Final = (".pdf", ".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".odt", ".rtf", ".epub")  # fmt: skip
"""The endings of files whose extracted text gets the ending `.txt`."""
_OTHER_FILES: Final = {
    "projects.json": "projects (projects.json)",
    "users.json": "account (users.json)",
    "memories.json": "memories (memories.json)",
}
_MICROSECONDS: Final = 1_000_000


def open_source(place: Place) -> Source | None:
    names = find_conversations_files(place, "chat_messages", _COMPANIONS)
    return _ClaudeAI(place, names) if names else None


class _ClaudeAI(JsonSource):
    kind = "claude-ai"
    label = "Claude.ai"
    times = ("created_at",)

    def __init__(self, place: Place, names: list[str]) -> None:
        super().__init__(place, names)
        self._files: dict[str, str] = {}
        for name in place.names():
            base_name = name.rpartition("/")[2]
            if base_name in _OTHER_FILES:
                self.left_out[_OTHER_FILES[base_name]] += 1
            for file_id in _UUID.findall(name):
                self._files.setdefault(file_id, name)

    def read_draft(self, conversation: JsonObject) -> Draft | Skipped | None:
        title = get_text(conversation, "name")
        name = get_text(conversation, "uuid")
        messages = conversation.get("chat_messages")
        if not name:
            return Skipped("", title, "it has no id")
        if not isinstance(messages, list):
            return Skipped(name, title, "its messages are not a JSON array")
        chains = self._read_messages([as_dict(message) for message in messages])
        last = chains[-1][0].id if chains else None
        leaf = get_text(conversation, "current_leaf_message_uuid") or last
        nodes, current = arrange(chains, leaf)
        if not any(node.parts for node in nodes):
            self.left_out["conversation without messages"] += 1
            return None
        extra = keep(conversation, "project_uuid", left_out=self.left_out)
        extra |= keep(get_dict(conversation, "project"), "uuid")
        return Draft(
            id=name,
            nodes=nodes,
            current=current,
            title=title,
            at=read_time(conversation.get("created_at")),
            pinned=conversation.get("is_starred") is True,
            extra=extra,
        )

    def _read_messages(self, messages: list[JsonObject]) -> list[list[Node]]:
        """Return the messages as chains. Older exports name no parents: every message follows the previous message."""
        chains: list[list[Node]] = []
        is_tree = any("parent_message_uuid" in message for message in messages)
        previous: str | None = None
        for number, message in enumerate(messages):
            if message.get("sender") not in ("human", "assistant"):
                self.left_out["message of an unknown sender"] += 1
                continue
            name = get_text(message, "uuid") or f"message-{number}"
            parent: str | None = previous
            if is_tree:
                parent = get_text(message, "parent_message_uuid")
                parent = None if parent == _NO_PARENT else parent
            chains.append(self._read_message(message, name, parent))
            previous = name
        return chains

    def _read_message(
        self, message: JsonObject, name: str, parent: str | None
    ) -> list[Node]:
        is_user = message.get("sender") == "human"
        content = [*self._read_content(get_list(message, "content"), name)]
        if all(isinstance(piece, Reasoning) for piece in content):
            # An older export, or a message whose content is unknown.
            content += text_parts(message.get("text"))
        content += self._read_files(message)
        node = Node(
            id=name,
            parent=parent,
            role=("user" if is_user else "assistant") if content else "",
            at=read_time(message.get("created_at")),
            model="" if is_user else get_text(message, "model"),
            finish=get_text(message, "stop_reason"),
        )
        return unfold(node, content)

    def _read_content(
        self, blocks: list[Any], message: str
    ) -> Iterator[Piece | Result]:
        unanswered: list[ToolCall] = []
        for number, value in enumerate(blocks):
            block = as_dict(value)
            kind = block.get("type")
            if kind == "text":
                yield from text_parts(block.get("text"))
            elif kind == "thinking":
                yield from _read_thinking(block)
            elif kind == "tool_use":
                call = _read_call(block, f"{message}:call-{number}")
                unanswered.append(call)
                yield call
            elif kind == "tool_result":
                yield self._read_result(block, unanswered)
            elif kind == "image":
                source = get_dict(block, "source")
                media_type = get_text(source, "media_type")
                yield attach_base64("image", media_type, get_text(source, "data"))
            else:
                self.count_unknown(as_text(kind))

    def _read_result(self, block: JsonObject, unanswered: list[ToolCall]) -> Result:
        call_id = get_text(block, "tool_use_id")
        name = get_text(block, "name")
        candidates = [call for call in unanswered if call_id in ("", call.id)]
        same_name = [call for call in candidates if call.name == name]
        candidates = same_name or candidates
        if candidates:
            unanswered.remove(candidates[0])
            call_id = candidates[0].id
        pieces: list[Piece] = []
        content = block.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for part in map(as_dict, as_list(content)):
            texts = text_parts(part.get("text"))
            source = get_dict(part, "source")
            if texts:
                pieces += texts
            elif isinstance(source.get("data"), str):
                media_type = get_text(source, "media_type")
                pieces.append(attach_base64("image", media_type, source["data"]))
            elif part:
                pieces.append(Text(to_json(part)))
        outcome: Outcome = "failed" if block.get("is_error") is True else "done"
        return Result(call_id, name, tuple(pieces), outcome)

    def _read_files(self, message: JsonObject) -> Iterator[Attached]:
        seen: set[str] = set()
        for attachment in get_dicts(message, "attachments"):
            text = get_text(attachment, "extracted_content")
            name = get_text(attachment, "file_name") or "pasted.txt"
            seen.add(name)
            if not text:
                yield attach_file(self.place, name, None)
            elif name.lower().endswith(_DOCUMENTS):
                yield attach_text(f"{name}.txt", text)
            else:
                yield attach_text(name, text)
        for file in get_dicts(message, "files"):
            name = get_text(file, "file_name")
            file_id = get_text(file, "file_uuid", "uuid")
            if name not in seen and (name or file_id):
                seen.add(name)
                yield attach_file(self.place, name or file_id, self._files.get(file_id))


def _read_call(block: JsonObject, substitute_id: str) -> ToolCall:
    # Older exports have calls without ids.
    call_id = get_text(block, "id") or substitute_id
    name = get_text(block, "name") or "unknown"
    arguments = block.get("input")
    if arguments is None:
        arguments = {}
    return ToolCall(call_id, name, to_json(arguments))


def _read_thinking(block: JsonObject) -> Iterator[Reasoning]:
    text = get_text(block, "thinking")
    start = read_time(block.get("start_timestamp"))
    stop = read_time(block.get("stop_timestamp"))
    seconds = 0.0
    if start is not None and stop is not None:
        seconds = max(0, stop - start) / _MICROSECONDS
    if text:
        yield Reasoning(text, get_text(block, "signature") or None, seconds)
