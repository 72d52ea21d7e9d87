"""The command line. Each command is a file here, added to the group below."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from tenax.cli.ask import ask
from tenax.cli.doctor import examine
from tenax.cli.frame import Commands, leave, open_streams, run
from tenax.cli.list import list_conversations
from tenax.cli.mcp import mcp
from tenax.cli.memory import memory
from tenax.cli.rules import rules
from tenax.cli.schedule import schedule
from tenax.cli.serve import code, demo, link, serve
from tenax.cli.setup import setup
from tenax.cli.show import show
from tenax.cli.skills import list_skills
from tenax.config import load


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--profile", metavar="NAME", help="Use the store and settings of this profile."
)
@click.option(
    "-p",
    "--print",
    "words",
    metavar="WORDS",
    help="Ask this and what is piped in, print the answer, and end. - asks what is piped in. "
    "In a loop that reads stdin, add </dev/null.",
)
@click.option(
    "-c",
    "--conversation",
    metavar="ID",
    help="Talk, or with -p ask, in this conversation.",
)
@click.option(
    "--new", is_flag=True, help="Talk in a new conversation, not in the last one."
)
@click.option(
    "--how",
    type=click.Choice(["queue", "steer", "interrupt", "take over"]),
    default="queue",
    help="With -p -c: what the message does to an answer that is being written.",
)
@click.option("--attach", "files", metavar="FILE", multiple=True, type=click.Path(path_type=Path),
              help="With -p: a text, a picture or a PDF that goes with it. Several times for several.")  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, help="With -p: every change as a line of JSON."
)
@click.option(
    "--no-context-files",
    is_flag=True,
    help="Read no AGENTS.md, no CLAUDE.md and no skills of the folder.",
)
@click.version_option(package_name="tenax", message="%(prog)s %(version)s")
@click.pass_context
def tenax(
    context: click.Context,
    profile: str | None,
    words: str | None,
    conversation: str | None,
    how: str,
    files: tuple[Path, ...],
    *,
    new: bool,
    as_json: bool,
    no_context_files: bool,
) -> int | None:
    """A self-hosted AI agent that never loses the thread. Without a command it talks."""
    _heed_all(context)
    if context.invoked_subcommand is not None:
        return None
    config = load(os.environ, profile=profile)
    if words is None:
        from tenax.cli.talk import talk  # noqa: PLC0415  (brings the terminal's libraries along)

        return talk(
            config,
            conversation=conversation,
            new=new,
            context_files=not no_context_files,
        )
    return ask(
        config,
        words,
        conversation=conversation,
        how=how,  # type: ignore[arg-type]  # click's choices
        as_json=as_json,
        files=files,
        context_files=not no_context_files,
    )


def _heed_all(context: click.Context) -> None:
    """Refuse an option that would do nothing here: who asks for JSON, a file or a conversation gets it, or is told."""
    params = [each for each in context.command.params if each.name != "profile"]
    typed = {
        each.name: each.opts[0]
        for each in params
        if context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE
    }
    if typed and context.invoked_subcommand is not None:
        raise click.UsageError(f"{next(iter(typed.values()))} takes no command.")
    for name in ("how", "files", "as_json"):
        if name in typed and "words" not in typed:
            raise click.UsageError(f"{typed[name]} goes with -p.")
    if {"new", "conversation"} <= typed.keys():
        raise click.UsageError("--new and -c do not go together.")


tenax.add_command(code)
tenax.add_command(examine)
tenax.add_command(list_conversations)
tenax.add_command(mcp)
tenax.add_command(memory)
tenax.add_command(rules)
tenax.add_command(schedule)
tenax.add_command(serve)
tenax.add_command(link)
tenax.add_command(demo)
tenax.add_command(setup)
tenax.add_command(show)
tenax.add_command(list_skills)


def main(args: Sequence[str] | None = None) -> None:
    """The `tenax` command."""
    open_streams()
    leave(run(tenax, args))
