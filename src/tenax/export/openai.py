"""Export in the format of OpenAI's chat messages: a line with `{"messages": [...]}` for a conversation.

The format has no place for reasoning, times, summaries, memories and changed files, so the export omits these rows. An
attachment becomes the text or the name of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from tenax.export.rows import Exported, describe_part
from tenax.parts import File
from tenax.text import make_storable
from tenax.views.context import ERASED, NO_RESULT
from tenax.views.transcript import Row

__all__ = ["write"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNFINISHED: Final = frozenset({"waiting", "asks", "approved", "running", "skipped"})
_MESSAGES: Final = frozenset({"user", "assistant", "system"})

GetBlob = Callable[[str], bytes | None]
Message = dict[str, Any]


def write(_exported: Exported, rows: Iterable[Row], get_blob: GetBlob) -> Iterator[str]:
    """Yield the pieces of the line. A conversation without messages has no line."""
    before = '{"messages":['
    for step in _steps(rows):
        for message in _messages(step, get_blob):
            yield before + msgspec.json.encode(message).decode()
            before = ","
    if before == ",":
        yield "]}\n"


def _steps(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the messages with the following tool calls."""
    step: list[Row] = []
    for row in rows:
        # A later attempt repeats the words of an earlier one.
        if row.kind in _MESSAGES and row.state != "earlier":
            if step:
                yield step
            step = [row]
        elif row.kind == "tool":
            step.append(row)
    if step:
        yield step


def _messages(step: list[Row], get_blob: GetBlob) -> Iterator[Message]:
    tools = [row for row in step if row.kind == "tool"]
    first = step[0] if step[0].kind in _MESSAGES else None
    calls, results = _pair(tools)
    if first is not None and first.kind != "assistant":
        yield _message(first, first.kind, get_blob)
        first = None
    if first is None and not calls:
        return
    answer: Message = {"role": "assistant", "content": ""}
    if first is not None:
        answer = _message(first, "assistant", get_blob)
    if calls:
        answer["content"] = answer["content"] or None
        answer["tool_calls"] = [_call(call_id, row) for call_id, row in calls.items()]
    elif not answer["content"]:
        return
    yield answer
    for call_id, text in results.items():
        yield {"role": "tool", "tool_call_id": call_id, "content": text}


def _pair(tools: list[Row]) -> tuple[dict[str, Row], dict[str, str]]:
    """Return the calls and their results by the id of the call.

    The row of a call has the id SEQ:CALL, and the result of the call. In an imported conversation, a result may be a
    separate event. Such a result belongs to the first call of the tool without a result.
    """
    calls: dict[str, Row] = {}
    results: dict[str, str] = {}
    for row in tools:
        _, colon, name = row.id.partition(":")
        if colon:
            is_new = bool(name) and name not in calls
            call_id = name if is_new else row.id
            calls[call_id] = row
            if row.text or row.state not in _UNFINISHED:
                results[call_id] = ERASED if row.erased else row.text
            continue
        open_calls = [name for name in calls if name not in results]
        same_tool = [name for name in open_calls if calls[name].name == row.name]
        candidates = same_tool or open_calls or [f"call_{row.id}"]
        call_id = candidates[0]
        calls.setdefault(call_id, row)
        results[call_id] = ERASED if row.erased else row.text
    return calls, {name: results.get(name, NO_RESULT) for name in calls}


def _call(call_id: str, row: Row) -> Message:
    function = {"name": row.name or "tool", "arguments": row.arguments or "{}"}
    return {"id": call_id, "type": "function", "function": function}


def _message(row: Row, role: str, get_blob: GetBlob) -> Message:
    texts = [ERASED if row.erased else row.text]
    texts += [_attachment(part, get_blob) for part in row.parts]
    message: Message = {"role": role, "content": "\n\n".join(filter(None, texts))}
    if _NAME.fullmatch(row.author):
        message["name"] = row.author
    return message


def _attachment(part: object, get_blob: GetBlob) -> str:
    label = f"[Attachment: {describe_part(part)}]"
    if not isinstance(part, File):
        return label
    if part.text is not None:
        data = get_blob(part.text.blob)
    elif part.media_type.startswith("text/"):
        data = get_blob(part.blob)
    else:
        return label
    if data is None:
        return label
    text = make_storable(data.decode(errors="replace"))
    return f"{label}\n{text}"
