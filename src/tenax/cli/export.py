"""`tenax export`: a conversation as Markdown, JSON or HTML, or all conversations as a zip file."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from tenax.cli.frame import complete_conversation, pass_config
from tenax.cli.output import print_exactly, write_new_file
from tenax.config import Config
from tenax.errors import NoSuchConversation
from tenax.export import (
    FORMATS,
    export_all,
    export_conversation,
    parse_format,
    read_exported,
)
from tenax.journal import LOCAL_USER, exists
from tenax.journal import open as open_journal

__all__ = ["export"]


@click.command("export")
@click.argument("conversation", required=False, shell_complete=complete_conversation)
@click.option(
    "--all", "everything", is_flag=True, help="Export all conversations to a zip file."
)
@click.option(
    "--format",
    "name",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="The format of the export.",
)
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(),
    default="-",
    help="The new file to write. Default: stdout.",
)
@pass_config
def export(
    config: Config, conversation: str | None, *, everything: bool, name: str, file: str
) -> None:
    """Export conversations to files. CONVERSATION is the id of a conversation, as `tenax list` shows it."""
    if everything == (conversation is not None):
        raise click.UsageError("Name a conversation, or use --all.")
    if everything and file == "-" and sys.stdout.isatty():
        raise click.UsageError("A zip file needs -o FILE.")
    kind = parse_format(name)
    if not exists(config.store_url):
        raise NoSuchConversation(
            "There are no conversations yet.", hint="run: tenax list"
        )
    with open_journal(
        config.store_url,
        user=LOCAL_USER,
        witness=config.directories.witness,
        timing=config.timing,
    ) as journal:
        if conversation is None:
            pieces = export_all(journal, kind)
        else:
            pieces = export_conversation(
                journal, read_exported(journal, conversation), kind
            )
        _write(pieces, file)


def _write(pieces: Iterator[bytes], file: str) -> None:
    if file == "-":
        if sys.stdout.isatty():
            for piece in pieces:
                print_exactly(piece.decode())
            return
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        return
    write_new_file(file, pieces)
