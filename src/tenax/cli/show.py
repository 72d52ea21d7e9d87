"""`tenax show`: a conversation, as it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
import msgspec

from tenax.changes import TurnChanges
from tenax.cli.frame import pass_config
from tenax.cli.lines import changed, noted
from tenax.clock import rfc3339
from tenax.config import Config
from tenax.errors import NoSuchConversation
from tenax.journal import exists
from tenax.recovery import WORDING
from tenax.runtime import Runtime
from tenax.views.transcript import Row

__all__ = ["show"]

_NAMES = {"user": "You", "assistant": "Tenax", "system": "System", "summary": "Summary"}
_STATES = {
    "queued": " (waits)",
    "steering": " (steers)",
    "streaming": " (writing)",
    "cut": " (cut off)",
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
@click.option("--changes", is_flag=True, help="What its last turns changed in the folder, as diffs.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for a program.")
@pass_config
def show(config: Config, conversation: str, *, limit: int, changes: bool, as_json: bool) -> None:
    """Show what was said in a conversation."""
    if not exists(config.store_url):
        raise NoSuchConversation(f"There is no conversation {conversation}.", hint="run: tenax list")
    rows = asyncio.run(_rows(config, conversation, limit, changes=changes))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
        return
    told = ["\n".join(changed(row)) if isinstance(row, TurnChanges) else _paragraph(row) for row in rows]
    click.echo("\n\n".join(told))


async def _rows(
    config: Config, conversation: str, limit: int, *, changes: bool
) -> Sequence[Row | TurnChanges]:
    runtime = Runtime(config)
    try:
        if changes:
            return await runtime.changes(conversation)
        return await runtime.transcript(conversation, limit=limit)
    finally:
        await runtime.close()


def _paragraph(row: Row) -> str:
    """A row as a person reads it: who, when, what. Nothing in it that a terminal would obey."""
    text = "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in row.text)
    if row.erased:
        text = "(erased)"
    if row.kind == "tool":
        head = f"[{row.name}: {row.state}{', late' if row.late else ''}]"
        return f"{head}\n{text}" if text else head
    if row.kind == "marker":
        return f"-- {WORDING[row.state]} {text}".rstrip()
    if row.kind in {"notice", "files"}:
        return f"-- {text}{' Put back.' if row.state == 'undone' else ''}"
    if row.kind == "memory":
        return f"-- {noted(row)}"
    name = row.author or _NAMES[row.kind]
    return f"{name}, {rfc3339(row.at)[:16].replace('T', ' ')}{_STATES.get(row.state, '')}\n{text}"
