"""The chats of Open WebUI: the export of the page, JSON lines of `/chats/all`, or the bare `chat` of early versions.

A chat is a tree of messages. Newer versions have the reasoning and the tool calls of a message as `output`. Older
versions have HTML in the text: `<details type="reasoning">`, `<details type="tool_calls">` and
`<details type="code_interpreter">`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

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
from tenax.importers.place import Place, read_items, read_rows
from tenax.importers.reading import (
    JsonObject,
    JsonSource,
    Result,
    arrange,
    as_dict,
    as_list,
    as_text,
    attach_data_url,
    attach_file,
    attach_text,
    decode,
    find_keys,
    get_dict,
    get_dicts,
    get_list,
    get_text,
    has_file,
    keep,
    text_parts,
    to_json,
    to_text,
    unfold,
)
from tenax.parts import Reasoning, Text, ToolCall

__all__ = ["open_source"]

_ENDINGS: Final = (".json", ".jsonl", ".ndjson")
_MARKS: Final = frozenset(
    {"chat.history", "chat.messages", "history.messages", "history.currentId"}
)
_DETAILS: Final = re.compile(
    r'<details type="(reasoning|tool_calls|code_interpreter)"([^<>]*)>\s*(?:<summary>[^<]*</summary>)?'
)
_DETAILS_END: Final = "</details>"
_ATTRIBUTE: Final = re.compile(r'([\w-]+)="([^"]*)"')
_CODE: Final = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)


def open_source(place: Place) -> Source | None:
    names = place.names()
    if place.path.is_dir() or len(names) != 1:
        names = [name for name in names if name.lower().endswith(_ENDINGS)]
    return _OpenWebUI(place, names) if has_file(place, names, _is_chats) else None


def _is_chats(keys: set[str]) -> bool:
    if not keys.isdisjoint(_MARKS):
        return True
    return "chat" in keys and "user_id" in keys


class _OpenWebUI(JsonSource):
    kind = "open-webui"
    label = "Open WebUI"
    times = ("created_at", "timestamp")

    def read_items(self) -> Iterator[msgspec.Raw]:
        for name in self.names:
            if not _is_chats(find_keys(self.place.head(name))):
                self.left_out["file of another format"] += 1
                continue
            path = self.place.file(name)
            with path.open("rb") as file:
                first = file.readline(1024).strip()
            # JSON lines begin with a whole object. An indented object begins with a brace alone in its line.
            is_rows = first[:1] == b"{" and first != b"{"
            yield from read_rows(path) if is_rows else read_items(path)

    def read_draft(self, conversation: JsonObject) -> Draft | Skipped | None:
        chat = conversation.get("chat", conversation)
        title = get_text(conversation, "title")
        name = get_text(conversation, "id")
        if not isinstance(chat, dict):
            return Skipped(name, title, "its chat is not a JSON object")
        title = title or get_text(chat, "title")
        history = get_dict(chat, "history")
        messages = _list_messages(chat)
        if messages is None:
            return Skipped(name, title, "its messages are neither an object nor a list")
        # The bare chats of early versions have no id. The id of the first message is as unique.
        name = name or get_text(chat, "id") or next(iter(messages), "")
        if not name:
            self.left_out["conversation without messages"] += 1
            return None
        chains = [self._read_message(key, message) for key, message in messages.items()]
        last = next(reversed(messages), None)
        nodes, current = arrange(chains, get_text(history, "currentId") or last)
        if not any(node.parts for node in nodes):
            self.left_out["conversation without messages"] += 1
            return None
        at = read_time(conversation.get("created_at"))
        if at is None:
            at = read_time(chat.get("timestamp"))
        return Draft(
            id=name,
            nodes=nodes,
            current=current,
            title=title,
            at=at,
            archived=conversation.get("archived") is True,
            pinned=conversation.get("pinned") is True,
            extra=self._keep_chat(conversation, chat),
        )

    def _keep_chat(self, conversation: JsonObject, chat: JsonObject) -> JsonObject:
        tags = get_list(get_dict(conversation, "meta"), "tags") or get_list(
            chat, "tags"
        )
        # Early versions have tags as objects.
        names = [get_text(as_dict(tag), "name") or tag for tag in tags]
        kept = keep({"tags": names}, "tags", left_out=self.left_out)
        kept |= keep(chat, "params", "system", left_out=self.left_out)
        return kept

    def _read_message(self, key: str, message: JsonObject) -> list[Node]:
        role = message.get("role")
        parent = get_text(message, "parentId") or None
        link = Node(id=key, parent=parent, role="")
        if role not in ("user", "assistant", "system"):
            self.left_out["message of an unknown role"] += 1
            return [link]
        content: list[Piece | Result] = []
        if role == "assistant":
            content += self._read_answer(message)
        else:
            content += self._read_text(message.get("content"))
        content += self._read_files(message)
        if message.get("annotation"):
            self.left_out["rating"] += 1
        error = message.get("error")
        if not content and not error:
            return [link]
        if not content:
            reason = as_dict(error).get("content")
            if not isinstance(reason, str):
                reason = to_json(error)
            content += text_parts(reason)
        extra = keep(
            message,
            "modelName",
            "modelIdx",
            "sources",
            "statusHistory",
            "embeds",
            "error",
            left_out=self.left_out,
        )
        node = Node(
            id=key,
            parent=parent,
            role=role,
            at=read_time(message.get("timestamp")),
            model=get_text(message, "model") if role == "assistant" else "",
            finish="error" if error else "",
            extra=extra,
        )
        return unfold(node, content)

    def _read_answer(self, message: JsonObject) -> list[Piece | Result]:
        key = get_text(message, "id")
        output = [*self._read_output(get_list(message, "output"), key)]
        if any(not isinstance(piece, Reasoning) for piece in output):
            return output
        content = message.get("content")
        if isinstance(content, str):
            return [*_read_details(content, key)]
        return [*output, *self._read_text(content)]

    def _read_text(self, content: object) -> Iterator[Piece]:
        yield from text_parts(content)
        for part in map(as_dict, as_list(content)):
            url = get_text(get_dict(part, "image_url"), "url")
            if isinstance(part.get("text"), str):
                yield from text_parts(part["text"])
            elif url:
                yield self._attach(url, "image", {})
            else:
                self.count_unknown(get_text(part, "type"))

    def _read_files(self, message: JsonObject) -> Iterator[Attached]:
        for file in get_dicts(message, "files"):
            inner = get_dict(file, "file")
            name = get_text(file, "name") or get_text(inner, "filename")
            kind = get_text(file, "type") or "file"
            yield self._attach(get_text(file, "url"), name or kind, inner)

    def _attach(self, url: str, name: str, file: JsonObject) -> Attached:
        attached = attach_data_url(name, url)
        if attached is not None:
            return attached
        text = get_text(get_dict(file, "data"), "content")
        if not text:
            return attach_file(self.place, name, None)
        # The extracted text of a document is not a document of the same type.
        media_type = get_text(get_dict(file, "meta"), "content_type")
        is_text = media_type.startswith("text/") or "." not in name
        return attach_text(name if is_text else f"{name}.txt", text)

    def _read_output(self, output: list[Any], key: str) -> Iterator[Piece | Result]:
        for number, item in enumerate(map(as_dict, output)):
            kind = get_text(item, "type")
            call = get_text(item, "call_id") or f"{key}:call-{number}"
            if kind == "message":
                yield from self._read_text(item.get("content"))
            elif kind == "reasoning":
                text = _join_texts(item.get("summary")) or _join_texts(
                    item.get("content")
                )
                if text:
                    yield Reasoning(text, seconds=_read_seconds(item.get("duration")))
            elif kind == "function_call":
                name = get_text(item, "name") or "unknown"
                yield ToolCall(call, name, _to_arguments(item.get("arguments")))
            elif kind == "function_call_output":
                has_failed = item.get("status") in ("failed", "error")
                outcome: Outcome = "failed" if has_failed else "done"
                pieces: list[Piece] = []
                pieces += text_parts(_join_texts(item.get("output")))
                pieces += self._read_files(item)
                yield Result(get_text(item, "call_id"), "", tuple(pieces), outcome)
            elif kind == "open_webui:code_interpreter":
                code = {"code": get_text(item, "code")}
                yield ToolCall(call, "code_interpreter", to_json(code))
                yield _read_code_output(call, item.get("output"))
            else:
                self.count_unknown(kind)


def _list_messages(chat: JsonObject) -> dict[str, JsonObject] | None:
    """Return the messages by id, from the tree or from the list of older versions, or `None` without either."""
    tree = get_dict(chat, "history").get("messages")
    if isinstance(tree, dict):
        return _list_tree(tree)
    if not isinstance(chat.get("messages"), list):
        return None
    messages: dict[str, JsonObject] = {}
    previous: str | None = None
    for number, message in enumerate(get_dicts(chat, "messages")):
        key = get_text(message, "id") or f"message-{number}"
        messages[key] = {"parentId": previous} | message
        previous = key
    return messages


def _list_tree(tree: JsonObject) -> dict[str, JsonObject]:
    """Return the messages. The versions of a message are in the order of `childrenIds`."""
    children: dict[str, None] = {}
    for message in tree.values():
        for child in get_list(as_dict(message), "childrenIds"):
            if isinstance(child, str) and child in tree:
                children[child] = None
    beginnings = [key for key in tree if key not in children]
    return {key: as_dict(tree[key]) for key in (*beginnings, *children)}


# -- the HTML of older versions ----------------------------------------------------------


def _read_details(content: str, key: str) -> Iterator[Piece | Result]:
    """Yield the text, and the reasoning and the calls of the HTML blocks in the text."""
    at = 0
    number = 0
    while head := _DETAILS.search(content, at):
        end = content.find(_DETAILS_END, head.end())
        if end < 0:
            break
        yield from text_parts(content[at : head.start()].strip())
        pairs = _ATTRIBUTE.findall(head[2])
        attributes = {name: html.unescape(value) for name, value in pairs}
        body = content[head.end() : end]
        call = attributes.get("id") or f"{key}:call-{number}"
        if head[1] == "reasoning":
            text = _unquote(body)
            if text:
                seconds = _read_seconds(attributes.get("duration"))
                yield Reasoning(text, seconds=seconds)
        elif head[1] == "tool_calls":
            yield from _read_call(call, attributes, body)
        else:
            yield from _read_code(call, attributes, body)
        at = end + len(_DETAILS_END)
        number += 1
    # Text without blocks is kept exactly.
    text = content[at:].strip() if at else content
    yield from text_parts(text)


def _read_call(
    call: str, attributes: dict[str, str], body: str
) -> Iterator[Piece | Result]:
    name = attributes.get("name") or "unknown"
    arguments = _read_attribute(attributes, "arguments")
    yield ToolCall(call, name, _to_arguments(arguments))
    if attributes.get("done") == "false":
        return
    result = _read_attribute(attributes, "result") or html.unescape(body.strip())
    pieces: list[Piece] = []
    pieces += text_parts(to_text(result))
    for file in as_list(_read_attribute(attributes, "files")):
        url = as_text(file) or get_text(as_dict(file), "url")
        attached = attach_data_url(get_text(as_dict(file), "name") or "image", url)
        if attached is not None:
            pieces.append(attached)
    yield Result(call, name, tuple(pieces))


def _read_code(
    call: str, attributes: dict[str, str], body: str
) -> Iterator[Piece | Result]:
    code = _CODE.fullmatch(body)
    text = code[1] if code else html.unescape(body.strip())
    yield ToolCall(call, "code_interpreter", to_json({"code": text}))
    if attributes.get("done") != "false":
        yield _read_code_output(call, _read_attribute(attributes, "output"))


def _read_code_output(call: str, output: object) -> Result:
    fields = as_dict(output)
    texts = [as_text(fields.get(name)) for name in ("stdout", "stderr", "result")]
    if isinstance(output, str):
        texts = [output]
    has_failed = bool(fields.get("stderr")) and not fields.get("result")
    outcome: Outcome = "failed" if has_failed else "done"
    pieces = tuple(Text(text) for text in texts if text)
    return Result(call, "code_interpreter", pieces, outcome)


def _read_attribute(attributes: dict[str, str], name: str) -> Any:  # noqa: ANN401  (decoded JSON of any shape)
    text = attributes.get(name, "")
    try:
        return decode(text.encode())
    except ValueError:
        return text


def _unquote(body: str) -> str:
    """Return reasoning without the `>` before every line. Newer versions write `&gt;`."""
    text = body.strip("\n")
    if text.startswith("&gt;"):
        text = html.unescape(text)
    quoted = text.split("\n")
    lines = ["" if line == ">" else line.removeprefix("> ") for line in quoted]
    return "\n".join(lines).strip("\n")


def _to_arguments(value: object) -> str:
    """Return the arguments of a call as JSON. An empty value is an empty object."""
    return to_text(value or {})


def _join_texts(value: object) -> str:
    if isinstance(value, str):
        return value
    texts = [get_text(as_dict(part), "text") for part in as_list(value)]
    return "\n".join(text for text in texts if text)


def _read_seconds(value: object) -> float:
    if not isinstance(value, int | float | str):
        return 0.0
    try:
        return max(0.0, float(value))
    except (ValueError, OverflowError):
        return 0.0
