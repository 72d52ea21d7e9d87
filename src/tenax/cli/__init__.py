"""The command line. Each command is a file here, added to the group below."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from tenax.cli.doctor import examine
from tenax.cli.frame import Commands, run
from tenax.cli.list import list_conversations
from tenax.cli.show import show
from tenax.config import load


@click.group(
    cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--profile", metavar="NAME", help="Use the store and settings of this profile.")
@click.option(
    "-p", "--print", "words", metavar="WORDS", help="Ask this, print the answer, and end. - reads stdin."
)
@click.option("-c", "--conversation", metavar="ID", help="With -p: ask in this conversation.")
@click.option(
    "--how",
    type=click.Choice(["queue", "steer", "interrupt", "take over"]),
    default="queue",
    help="With -p -c: what the message does to an answer that is being written.",
)
@click.option("--json", "as_json", is_flag=True, help="With -p: every change as a line of JSON.")
@click.version_option(package_name="tenax", message="%(prog)s %(version)s")
@click.pass_context
def tenax(
    context: click.Context,
    profile: str | None,
    words: str | None,
    conversation: str | None,
    how: str,
    *,
    as_json: bool,
) -> int | None:
    """A self-hosted AI agent that never loses the thread."""
    if words is not None and context.invoked_subcommand is not None:
        raise click.UsageError("-p stands alone; it takes no command.")
    if words is None:
        if context.invoked_subcommand is None:
            click.echo(context.get_help())
        return None
    from tenax.cli.ask import ask  # noqa: PLC0415  (brings the models along)

    config = load(os.environ, profile=profile)
    return ask(config, words, conversation=conversation, how=how, as_json=as_json)  # type: ignore[arg-type]  # click's choices


tenax.add_command(examine)
tenax.add_command(list_conversations)
tenax.add_command(show)


def main(args: Sequence[str] | None = None) -> None:
    """The `tenax` command."""
    sys.exit(run(tenax, args))
