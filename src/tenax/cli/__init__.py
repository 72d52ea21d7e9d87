"""The command line. Every command has a file here, listed in the table below and imported when called."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from tenax.cli.frame import (
    Commands,
    LazyCommand,
    complete_conversation,
    leave,
    load_config,
    open_streams,
    restore_interrupts,
    run,
)

if TYPE_CHECKING:
    from tenax.events import Mode

COMMANDS: Final = {
    "backup": LazyCommand(
        "tenax.cli.backup", "backup", "Back up the store, and test the backup."
    ),
    "channel": LazyCommand(
        "tenax.cli.channel", "channel", "Connect chat apps, and show their state."
    ),
    "code": LazyCommand(
        "tenax.cli.serve",
        "code",
        "Print a code that confirms a new MCP server on the page.",
    ),
    "completion": LazyCommand(
        "tenax.cli.completion",
        "completion",
        "Print the completion script for a shell.",
    ),
    "demo": LazyCommand(
        "tenax.cli.serve", "demo", "Take the tour; needs no model and no key."
    ),
    "doctor": LazyCommand(
        "tenax.cli.doctor",
        "examine",
        "Verify the store, and show what is wrong and what solves it.",
    ),
    "export": LazyCommand(
        "tenax.cli.export", "export", "Export conversations to files."
    ),
    "gateway": LazyCommand(
        "tenax.cli.gateway", "gateway", "Serve the chat apps without the page."
    ),
    "import": LazyCommand(
        "tenax.cli.importing",
        "import_conversations",
        "Import conversations of other programs, or an export of Tenax.",
    ),
    "link": LazyCommand(
        "tenax.cli.serve", "link", "Print a link that signs another browser in."
    ),
    "list": LazyCommand(
        "tenax.cli.list", "list_conversations", "List the conversations."
    ),
    "mcp": LazyCommand(
        "tenax.cli.mcp", "mcp", "Test the MCP servers and list their tools."
    ),
    "memory": LazyCommand("tenax.cli.memory", "memory", "Show and change memories."),
    "move": LazyCommand(
        "tenax.cli.backup", "move", "Move the store to another engine or place."
    ),
    "pair": LazyCommand(
        "tenax.cli.pair",
        "pair",
        "Let the person with a CODE talk to Tenax in a chat app.",
    ),
    "restore": LazyCommand("tenax.cli.backup", "restore", "Restore a backup."),
    "resume": LazyCommand(
        "tenax.cli.resume", "resume", "Choose a recent conversation and continue it."
    ),
    "rules": LazyCommand(
        "tenax.cli.rules", "rules", "Show and change the rules for tools."
    ),
    "schedule": LazyCommand(
        "tenax.cli.schedule", "schedule", "Manage scheduled messages."
    ),
    "serve": LazyCommand(
        "tenax.cli.serve", "serve", "Serve the page, and print a link that opens it."
    ),
    "service": LazyCommand(
        "tenax.cli.service",
        "service",
        "Start Tenax by itself, as a service of systemd.",
    ),
    "setup": LazyCommand("tenax.cli.setup", "setup", "Choose the model that answers."),
    "show": LazyCommand(
        "tenax.cli.show",
        "show",
        "Show a conversation.",
        slow_module="tenax.cli.paragraphs",
    ),
    "skills": LazyCommand("tenax.cli.skills", "list_skills", "List the skills."),
}
"""By name of a command: its module, and its line in `tenax --help`, equal to the first sentence of the command's help.
"""


class HowChoice(click.Choice[str]):
    """The choices of `--how`. "take over" is accepted too: earlier versions spelled the choice with a space."""

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        return super().convert(value.replace(" ", "-"), param, ctx)


@click.group(
    cls=Commands,
    lazy_commands=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--profile", metavar="NAME", help="Use the data and settings of this profile."
)
@click.option(
    "-p",
    "--print",
    "words",
    metavar="WORDS",
    help="Print one answer and exit. Input on stdin is added to the prompt; - uses only stdin. "
    "In a loop that reads stdin, add </dev/null.",
)
@click.option(
    "-c",
    "--conversation",
    metavar="ID",
    shell_complete=complete_conversation,
    help="Continue this conversation.",
)
@click.option(
    "--new",
    is_flag=True,
    help="Start a new conversation instead of continuing the last one.",
)
@click.option(
    "--here",
    is_flag=True,
    help="Start a new conversation that works in the current folder.",
)
@click.option(
    "--mode",
    type=click.Choice(["ask", "edits", "plan"]),
    help="With -p: what the tools may do. ask: what the rules allow; edits: also change files in the folder; "
    "plan: change nothing.",
)
@click.option(
    "--how",
    type=HowChoice(["queue", "steer", "interrupt", "take-over"]),
    default="queue",
    help="With -p -c: how the message affects an answer that is being written.",
)
@click.option("--attach", "files", metavar="FILE", multiple=True, type=click.Path(path_type=Path),
              help="With -p: attach a text file, a picture or a PDF. Repeatable.")  # fmt: skip
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="With -p: output every change as a line of JSON.",
)
@click.option(
    "--no-context-files",
    is_flag=True,
    help="Do not read AGENTS.md, CLAUDE.md and skills from the folder.",
)
@click.version_option(package_name="tenax", message="%(prog)s %(version)s")
@click.pass_context
def tenax(
    context: click.Context,
    profile: str | None,  # noqa: ARG001  (read by load_config)
    words: str | None,
    conversation: str | None,
    how: str,
    files: tuple[Path, ...],
    mode: Mode | None,
    *,
    new: bool,
    here: bool,
    as_json: bool,
    no_context_files: bool,
) -> int | None:
    """A self-hosted AI agent that never loses the thread.

    Without a command, start a conversation in the terminal.
    """
    _refuse_unused_options(context)
    if context.invoked_subcommand is not None:
        restore_interrupts()
        return None
    if words is None:
        from tenax.cli.talk import talk  # noqa: PLC0415  (loaded when it is called)
        from tenax.config.watch import SettingsFile  # noqa: PLC0415  (the same)

        restore_interrupts()
        read = partial(load_config, context, context_files=not no_context_files)
        settings = SettingsFile(read(), read)
        folder = str(Path.cwd()) if here else ""
        return talk(settings, conversation=conversation, new=new, folder=folder)
    from tenax.cli.ask import ask  # noqa: PLC0415  (loaded when it is called)

    restore_interrupts()
    return ask(
        load_config(context, context_files=not no_context_files),
        words,
        conversation=conversation,
        how=how.replace("-", " "),  # type: ignore[arg-type]  # click's choices
        as_json=as_json,
        files=files,
        mode=mode,
        folder=str(Path.cwd()) if here else "",
    )


def _refuse_unused_options(context: click.Context) -> None:
    """Raise `UsageError` for an option without effect together with the other arguments."""
    typed = {}
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source is ParameterSource.COMMANDLINE and param.name != "profile":
            typed[param.name] = param.opts[0]
    if typed and context.invoked_subcommand is not None:
        raise click.UsageError(
            f"{next(iter(typed.values()))} cannot be used with a command."
        )
    for name in ("how", "files", "as_json", "mode"):
        if name in typed and "words" not in typed:
            raise click.UsageError(f"{typed[name]} needs -p.")
    if {"new", "conversation"} <= typed.keys():
        raise click.UsageError("--new and -c cannot be used together.")
    if {"here", "conversation"} <= typed.keys():
        raise click.UsageError("--here and -c cannot be used together.")


def main(args: Sequence[str] | None = None) -> None:
    """Run the `tenax` command and end the process."""
    open_streams()
    leave(run(tenax, args))
