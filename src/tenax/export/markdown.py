"""Export as Markdown. The texts of people and models are Markdown already and stay unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

from tenax.clock import rfc3339
from tenax.export.rows import NAMES, STATES, Exported, Indexed, describe_part, say_row
from tenax.text import replace_controls, to_one_line
from tenax.views.transcript import Row

__all__ = ["write", "write_index"]

_FENCE = "```"


def write(
    exported: Exported,
    rows: Iterator[Row],
    _get_blob: Callable[[str], bytes | None],
) -> Iterator[str]:
    """Yield the pieces of the text."""
    yield f"# {escape(exported.title) or 'Conversation'}\n\n"
    yield f"{minute(exported.opened_at)} to {minute(exported.updated_at)} (UTC), conversation `{exported.id}`\n"
    for row in rows:
        yield f"\n{_row(row)}\n"


def write_index(index: Iterable[Indexed]) -> Iterator[str]:
    """Yield the list of conversations."""
    yield "# Conversations\n\n"
    for entry in index:
        exported = entry.conversation
        title = escape(exported.title) or "Conversation"
        yield f"- [{title}]({quote(entry.file)}), {minute(exported.updated_at)}, {exported.messages:,} messages\n"


def minute(time: str) -> str:
    """Return an RFC 3339 time as 2026-11-14 09:35."""
    return time[:16].replace("T", " ")


def escape(text: str) -> str:
    """Return text without a meaning in Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~])", r"\\\1", text)


def _row(row: Row) -> str:
    text = "(erased)" if row.erased else replace_controls(row.text)
    if row.kind == "tool":
        return _tool(row, text)
    if row.kind not in NAMES:
        return f"*{escape(say_row(row))}*"
    name = escape(to_one_line(row.author)) or NAMES[row.kind]
    details = [minute(rfc3339(row.at))]
    if row.model:
        details.append(escape(to_one_line(row.model)))
    if row.state in STATES:
        details.append(STATES[row.state])
    lines = [f"## {name}", "", f"*{', '.join(details)}*"]
    if row.thought:
        quoted = replace_controls(row.thought).split("\n")
        lines.append("")
        lines += [f"> {line}".rstrip() for line in quoted]
    if text:
        lines += ["", text]
    if row.parts:
        lines += [
            "",
            *(f"- Attachment: {escape(describe_part(part))}" for part in row.parts),
        ]
    return "\n".join(lines)


def _tool(row: Row, text: str) -> str:
    late = ", late" if row.late else ""
    lines = [f"**{escape(to_one_line(row.name))}** ({row.state}{late})"]
    if row.arguments:
        lines += ["", _fenced(replace_controls(row.arguments), "json")]
    if text:
        lines += ["", _fenced(text)]
    return "\n".join(lines)


def _fenced(text: str, language: str = "") -> str:
    """Return a code block. The fence is longer than every run of backticks in the text."""
    runs = re.findall(r"`{3,}", text)
    fence = max([*(run + "`" for run in runs), _FENCE], key=len)
    return f"{fence}{language}\n{text}\n{fence}"
