"""`tenax import`: conversations of other programs, or an export of Tenax."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tenax.cli.frame import FAILED, pass_config
from tenax.cli.output import json_option, print_json, show_progress
from tenax.config import Config
from tenax.importers.service import FORMATS, Imported, import_from
from tenax.journal import LOCAL_USER
from tenax.journal import open as open_journal
from tenax.text import count_noun, to_one_line

__all__ = ["describe", "import_conversations"]

_REASONS_SHOWN = 20


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "kind",
    type=click.Choice(list(FORMATS)),
    help="The program of the files. Default: the content tells.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be imported, and store nothing."
)
@click.option(
    "--remember",
    is_flag=True,
    help="Let the memory follow the conversations: memory providers get them, and the model reviews each one.",
)
@json_option
@pass_config
def import_conversations(
    config: Config,
    path: Path,
    *,
    kind: str | None,
    dry_run: bool,
    remember: bool,
    as_json: bool,
) -> int:
    """Import conversations of other programs, or an export of Tenax.

    PATH is a file, a folder or a zip file: an export of ChatGPT, Claude.ai, Open WebUI or LibreChat, the folder of
    Claude Code (~/.claude) or Hermes Agent (~/.hermes), or a file of `tenax export --format tenax`. Works while Tenax
    runs. A second import takes only what is new. The exit code is 1 if something was skipped.
    """
    with (
        open_journal(
            config.store_url,
            user=LOCAL_USER,
            witness=config.directories.witness,
            timing=config.timing,
        ) as journal,
        show_progress() as show,
    ):
        done = import_from(
            config,
            journal,
            path.expanduser().absolute(),
            kind=kind,
            dry_run=dry_run,
            remember=remember,
            progress=None
            if show is None
            else lambda count: show(f"importing: {count:,} conversations"),
        )
    if as_json:
        print_json(done)
    else:
        for line in describe(done):
            click.echo(to_one_line(line))
        for line in _problems(done):
            click.echo(to_one_line(line), err=True)
    return FAILED if done.skipped else 0


def describe(done: Imported) -> Iterator[str]:
    """Yield the lines of the result."""
    verb = "Would import" if done.dry_run else "Imported"
    contents = (
        (done.messages, "message"),
        (done.tool_calls, "tool call"),
        (done.files, "file"),
    )
    details = [count_noun(number, noun) for number, noun in contents if number]
    more = f" ({', '.join(details)})" if details else ""
    outcomes = (
        (done.new, "new"),
        (done.grown, "continued"),
        (done.beside, "stored beside, because they went on differently here"),
        (done.unchanged, "unchanged"),
        (done.deleted, "deleted here, and not imported again"),
    )
    counts = [f"{number:,} {label}" for number, label in outcomes if number]
    summary = ", ".join(counts) or "none"
    yield f"{verb} from {done.program}. Conversations: {summary}{more}."
    if done.memories or done.known_memories:
        yield f"Memories: {done.memories:,} new, {done.known_memories:,} known."
    if done.skills or done.known_skills:
        yield f"Skills: {done.skills:,} new, {done.known_skills:,} known."
    if done.missing_files:
        yield f"{count_noun(done.missing_files, 'file')} not in the import: a note is in the place of each."
    for what, count in done.left_out.items():
        yield f"Not taken: {what} ({count:,})"


def _problems(done: Imported) -> Iterator[str]:
    for reason in done.reasons[:_REASONS_SHOWN]:
        yield f"Skipped: {reason}"
    if done.skipped > _REASONS_SHOWN:
        yield f"Skipped: {done.skipped - _REASONS_SHOWN:,} more. All of them: --json"
