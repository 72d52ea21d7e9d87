"""`tenax show`: print the transcript of a conversation, or the file changes of the conversation."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tenax.agent.recovery import WORDING
from tenax.assembly import Runtime
from tenax.cli.frame import pass_config
from tenax.cli.lines import changed, clean, minute, noted, with_files
from tenax.cli.loop import with_runtime
from tenax.cli.output import json_option, print_json
from tenax.config import Config
from tenax.errors import NoSuchConversation
from tenax.journal import exists
from tenax.text import to_one_line
from tenax.views.transcript import Row
from tenax.workspace.changes import TurnChanges

__all__ = ["show"]

_NAMES = {"user": "You", "assistant": "Tenax", "system": "System", "summary": "Summary"}
_STATES = {
    "queued": " (queued)",
    "steering": " (steering)",
    "streaming": " (writing)",
    "cut": " (cut off)",
    "full": " (reached the maximum length)",
    "earlier": " (earlier attempt)",
}


@click.command("show")
@click.argument("conversation")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1, max=10_000),
    default=200,
    show_default=True,
    help="Number of rows.",
)
@click.option(
    "--changes",
    is_flag=True,
    help="Show the file changes of the last turns as diffs.",
)
@json_option
@pass_config
def show(
    config: Config, conversation: str, *, limit: int, changes: bool, as_json: bool
) -> None:
    """Show a conversation."""
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
        "\n".join(changed(row)) if isinstance(row, TurnChanges) else _paragraph(row)
        for row in rows
    ]
    click.echo("\n\n".join(paragraphs))


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
    name = to_one_line(row.author) or _NAMES[row.kind]
    return (
        f"{name}, {minute(row.at)}{_STATES.get(row.state, '')}\n{with_files(text, row)}"
    )
