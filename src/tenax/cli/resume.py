"""`tenax resume`: choose a recent conversation, and continue it in the terminal."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final, NamedTuple

import click

from tenax.cli.frame import load_config
from tenax.cli.lines import UNTITLED, fit, pad, short_time
from tenax.config import Config
from tenax.journal import exists
from tenax.journal import open as open_journal
from tenax.journal.projects import Projects
from tenax.runtime.list_entry import find_first_words
from tenax.text import to_one_line

__all__ = ["Entry", "resume"]

SHOWN_MAX: Final = 50
_TITLE_COLUMNS: Final = 50
_PROJECT_COLUMNS: Final = 20


class Entry(NamedTuple):
    """A conversation to choose."""

    id: str
    title: str
    time: str
    project: str

    def matches(self, words: str) -> bool:
        """Return whether the title or the project has all of the words, in any case."""
        text = f"{self.title} {self.project}".casefold()
        return all(word in text for word in words.casefold().split())

    def line(self, columns: int) -> str:
        """Return a line for a terminal with a number of columns."""
        title = pad(fit(self.title, _TITLE_COLUMNS), _TITLE_COLUMNS)
        project = fit(self.project, _PROJECT_COLUMNS)
        return fit(f"{title}  {self.time:>10}  {project}".rstrip(), columns)


@click.command("resume")
@click.pass_context
def resume(context: click.Context) -> int:
    """Choose a recent conversation and continue it.

    Type words to filter the list, move with the arrow keys, and press Enter.
    """
    from tenax.config.watch import SettingsFile  # noqa: PLC0415  (loaded when it is called)

    read = partial(load_config, context)
    settings = SettingsFile(read(), read)
    entries = _read_entries(settings.config)
    if not entries:
        click.echo("No conversations yet.", err=True)
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        for number, entry in enumerate(entries, 1):
            cells = [f"{number:>2}", entry.id, entry.time, entry.title, entry.project]
            click.echo("  ".join(cells).rstrip())
        click.echo("To continue one of them: tenax -c ID", err=True)
        return 0
    from tenax.cli.picker import pick  # noqa: PLC0415  (brings prompt_toolkit along)
    from tenax.cli.talk import talk  # noqa: PLC0415  (the same)

    chosen = pick(entries)
    if chosen is None:
        return 0
    return talk(settings, conversation=chosen.id, new=False)


def _read_entries(config: Config) -> list[Entry]:
    """Return the last changed conversations, the newest first."""
    if not exists(config.store_url):
        return []
    with open_journal(
        config.store_url, witness=config.directories.witness, timing=config.timing
    ) as journal:
        found = journal.conversations(limit=SHOWN_MAX)
        found.sort(key=lambda summary: summary.updated_at, reverse=True)
        names = {project.id: project.name for project in Projects(journal).all()}
        now = journal.clock.now_us()
        return [
            Entry(
                summary.conversation,
                to_one_line(summary.title or "")
                or find_first_words(journal, summary.conversation)
                or UNTITLED,
                short_time(summary.updated_at, now),
                to_one_line(names.get(summary.project, "")),
            )
            for summary in found
        ]
