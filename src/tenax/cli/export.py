"""`tenax export`: conversations as files."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from tenax.cli.frame import complete_conversation, pass_config
from tenax.cli.output import print_exactly, write_new_file
from tenax.config import Config
from tenax.errors import InvalidInput, NoSuchConversation
from tenax.export import (
    FORMATS,
    Format,
    export_conversation,
    export_several,
    is_one_file,
    parse_format,
    read_exported,
)
from tenax.export.selection import Selection, parse_time, select
from tenax.journal import LOCAL_USER, Journal, exists
from tenax.journal import open as open_journal

__all__ = ["export"]


@click.command("export")
@click.argument(
    "conversations",
    metavar="[CONVERSATION]...",
    nargs=-1,
    shell_complete=complete_conversation,
)
@click.option("--all", "everything", is_flag=True, help="Export all conversations.")
@click.option(
    "--since",
    metavar="DATE",
    help="Export conversations with their last message on this day or later.",
)
@click.option(
    "--until",
    metavar="DATE",
    help="Export conversations with their last message on this day or earlier.",
)
@click.option(
    "--search",
    "words",
    metavar="WORDS",
    help="Export conversations with these words in a message.",
)
@click.option(
    "--format",
    "name",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="The format of the export. Another Tenax can import the format tenax.",
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
    config: Config,
    conversations: tuple[str, ...],
    *,
    everything: bool,
    since: str | None,
    until: str | None,
    words: str | None,
    name: str,
    file: str,
) -> None:
    """Export conversations to files.

    CONVERSATION is the id of a conversation, as `tenax list` shows it. Name conversations, or select them with --since,
    --until and --search, or use --all. A date is a day in local time, such as 2026-11-19, or a time, such as
    2026-11-19T08:30. Markdown, JSON and HTML are a zip file for several conversations; openai and tenax are a file with
    JSON lines.
    """
    selection = _selection(since, until, words)
    selects = selection != Selection()
    if bool(conversations) + everything + selects != 1:
        raise click.UsageError(
            "Name conversations, or use --all, or select with --since, --until and --search."
        )
    kind = parse_format(name)
    several = everything or selects or len(set(conversations)) > 1
    if several and not is_one_file(kind) and file == "-" and sys.stdout.isatty():
        raise click.UsageError("A zip file needs -o FILE.")
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
        for conversation in conversations:
            # A wrong id is an error before the file is created.
            journal.number(conversation)
        chosen = list(conversations) or select(journal, selection)
        if selects and not chosen:
            raise InvalidInput(
                "No conversation matches.", hint="List conversations with: tenax list"
            )
        _write(_pieces(config, journal, chosen, kind, several=several), file)


def _selection(since: str | None, until: str | None, words: str | None) -> Selection:
    start = None if since is None else parse_time(since)
    end = None if until is None else parse_time(until, end=True)
    if start is not None and end is not None and start >= end:
        raise click.UsageError("--since is later than --until.")
    if words is not None and not words.strip():
        raise click.UsageError("--search needs words.")
    return Selection(start, end, words or "")


def _pieces(
    config: Config, journal: Journal, chosen: list[str], kind: Format, *, several: bool
) -> Iterator[bytes]:
    if not several:
        exported = read_exported(journal, chosen[0])
        return export_conversation(journal, config.store_url, exported, kind)
    return export_several(journal, config.store_url, chosen, kind)


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
