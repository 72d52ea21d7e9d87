"""Print a conversation, or its file changes, as text or JSON: the work of `tenax show`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from tenax.agent.recovery import WORDING
from tenax.assembly import Runtime
from tenax.cli.lines import DIFF_COLOURS, changed, clean, minute, noted, with_files
from tenax.cli.loop import with_runtime
from tenax.cli.output import print_json
from tenax.config import Config
from tenax.errors import NoSuchConversation
from tenax.export.rows import NAMES, STATES
from tenax.journal import exists
from tenax.text import to_one_line
from tenax.views.transcript import Row
from tenax.workspace.changes import TurnChanges

__all__ = ["print_conversation"]


def print_conversation(
    config: Config, conversation: str, *, limit: int, changes: bool, as_json: bool
) -> None:
    """Print the last rows of a conversation, or with `changes` the file changes of its last turns."""
    if not exists(config.store_url):
        raise NoSuchConversation(
            f"There is no conversation {conversation}.", hint="run: tenax list"
        )

    async def read(runtime: Runtime) -> Sequence[Row | TurnChanges]:
        if changes:
            return await runtime.changes(conversation)
        return await runtime.transcript(conversation, limit=limit)

    rows = with_runtime(config, read)
    if as_json:
        print_json(rows)
        return
    paragraphs = [
        _diffs(row) if isinstance(row, TurnChanges) else _paragraph(row) for row in rows
    ]
    click.echo("\n\n".join(paragraphs))


def _diffs(turn: TurnChanges) -> str:
    """Return the file changes of a turn as diffs, in colour on a terminal unless `NO_COLOR` is set."""
    lines = changed(turn)
    if os.environ.get("NO_COLOR"):
        return "\n".join(lines)
    # click removes the colours if stdout is no terminal.
    return "\n".join(
        click.style(line, fg=DIFF_COLOURS[line[0]])
        if line[:1] in DIFF_COLOURS
        else line
        for line in lines
    )


def _paragraph(row: Row) -> str:
    """Return a row with author and time, without terminal control characters."""
    text = "(erased)" if row.erased else clean(row.text)
    if row.kind == "tool":
        head = f"[{to_one_line(row.name)}: {row.state}{', late' if row.late else ''}]"
        return f"{head}\n{text}" if text else head
    if row.kind == "marker":
        return f"-- {WORDING[row.state]} {text}".rstrip()
    if row.kind in {"notice", "files"}:
        return f"-- {text}{' Reverted.' if row.state == 'undone' else ''}"
    if row.kind == "memory":
        return f"-- {noted(row)}"
    name = to_one_line(row.author) or NAMES[row.kind]
    state = f" ({STATES[row.state]})" if row.state in STATES else ""
    return f"{name}, {minute(row.at)}{state}\n{with_files(text, row)}"
