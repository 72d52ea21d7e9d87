"""`tenax show`: print the transcript of a conversation, or the file changes of the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tenax.cli.frame import complete_conversation, pass_config
from tenax.cli.output import json_option

if TYPE_CHECKING:
    from tenax.config import Config

__all__ = ["show"]


@click.command("show")
@click.argument("conversation", shell_complete=complete_conversation)
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
    from tenax.cli.paragraphs import print_conversation  # noqa: PLC0415  (a Tab does not need it)

    print_conversation(
        config, conversation, limit=limit, changes=changes, as_json=as_json
    )
