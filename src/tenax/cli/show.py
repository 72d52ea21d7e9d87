"""`tenax show`: a conversation, as it stands."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tenax.agent.recovery import WORDING
from tenax.cli.frame import json_option, pass_config, print_json, with_runtime
from tenax.cli.lines import changed, clean, minute, noted, one_line, with_files
from tenax.config import Config
from tenax.errors import NoSuchConversation
from tenax.journal import exists
from tenax.runtime.runtime import Runtime
from tenax.views.transcript import Row
from tenax.workspace.changes import TurnChanges

__all__ = ["show"]

_NAMES = {"user": "You", "assistant": "Tenax", "system": "System", "summary": "Summary"}
_STATES = {
    "queued": " (waits)",
    "steering": " (steers)",
    "streaming": " (writing)",
    "cut": " (cut off)",
    "full": " (stopped at its longest)",
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
    help="How many rows.",
)
@click.option(
    "--changes",
    is_flag=True,
    help="What its last turns changed in the folder, as diffs.",
)
@json_option
@pass_config
def show(
    config: Config, conversation: str, *, limit: int, changes: bool, as_json: bool
) -> None:
    """Show what was said in a conversation."""
    if not exists(config.store_url):
        raise NoSuchConversation(
            f"There is no conversation {conversation}.", hint="run: tenax list"
        )

    async def work(runtime: Runtime) -> Sequence[Row | TurnChanges]:
        if changes:
            return await runtime.changes(conversation)
        return await runtime.transcript(conversation, limit=limit)

    rows = with_runtime(config, work)
    if as_json:
        print_json(rows)
        return
    told = [
        "\n".join(changed(row)) if isinstance(row, TurnChanges) else _paragraph(row)
        for row in rows
    ]
    click.echo("\n\n".join(told))


def _paragraph(row: Row) -> str:
    """A row as a person reads it: who, when, what. Nothing in it that a terminal would obey."""
    text = "(erased)" if row.erased else clean(row.text)
    if row.kind == "tool":
        head = f"[{one_line(row.name)}: {row.state}{', late' if row.late else ''}]"
        return f"{head}\n{text}" if text else head
    if row.kind == "marker":
        return f"-- {WORDING[row.state]} {text}".rstrip()
    if row.kind in {"notice", "files"}:
        return f"-- {text}{' Put back.' if row.state == 'undone' else ''}"
    if row.kind == "memory":
        return f"-- {noted(row)}"
    name = one_line(row.author) or _NAMES[row.kind]
    return (
        f"{name}, {minute(row.at)}{_STATES.get(row.state, '')}\n{with_files(text, row)}"
    )
