"""`tenax list`: the conversations, pinned first, then newest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

import click
from rich.cells import cell_len

from tenax.cli.frame import pass_config
from tenax.cli.lines import UNTITLED, fit, pad, room_across, short_time
from tenax.cli.output import json_option, print_json
from tenax.config import Config
from tenax.errors import InvalidInput
from tenax.journal import Journal, exists
from tenax.journal import open as open_journal
from tenax.journal.base import Summary
from tenax.runtime.list_entry import find_first_words, make_entry
from tenax.text import to_one_line

__all__ = ["list_conversations"]

PAGE: Final = 200
TITLE_COLUMNS_MIN: Final = 18


@click.command("list")
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Include archived conversations."
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1, max=1_000_000),
    default=50,
    show_default=True,
    help="Maximum number of conversations.",
)
@click.option(
    "--project", metavar="NAME", help="Only the conversations of this project."
)
@json_option
@pass_config
def list_conversations(
    config: Config,
    project: str | None,
    *,
    everything: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List the conversations. Pinned conversations come first, then the newest."""
    found, words, now_us, hidden = _read_conversations(
        config, everything=everything, limit=limit, project=project
    )
    if as_json:
        pairs = zip(found[:limit], words[:limit], strict=True)
        print_json([make_entry(summary, first) for summary, first in pairs])
        return
    if not found:
        sentence = "No conversations yet."
        if project is not None:
            sentence = "The project has no conversations."
        elif hidden:
            sentence = "All conversations are archived. --all lists them."
        click.echo(sentence, err=True)
        return
    for line in _conversation_lines(
        found[:limit], words[:limit], now_us, room_across()
    ):
        click.echo(line)
    if len(found) > limit:
        click.echo(f"These are the first {limit}. --limit shows more.", err=True)


def _read_conversations(
    config: Config, *, everything: bool, limit: int, project: str | None
) -> tuple[list[Summary], list[str | None], int, bool]:
    """Return up to `limit + 1` conversations, their first words, the time, and whether only archived ones exist."""
    if not exists(config.store_url):
        return [], [], 0, False
    with open_journal(
        config.store_url, witness=config.directories.witness, timing=config.timing
    ) as journal:
        every: Iterable[Summary] = _conversations(journal, everything=everything)
        if project is not None:
            ids = _find_projects(journal, project)
            every = (summary for summary in every if summary.project in ids)
        found = list(islice(every, limit + 1))
        words = [
            None if summary.title else find_first_words(journal, summary.conversation)
            for summary in found
        ]
        hidden = not found and bool(journal.conversations(archived=True, limit=1))
        return found, words, journal.clock.now_us(), hidden


def _find_projects(journal: Journal, name: str) -> set[str]:
    """Return the ids of the projects with a name, in any case. Raises `InvalidInput` if there is none."""
    from tenax.journal.projects import Projects  # noqa: PLC0415  (loaded when it is needed)

    projects = Projects(journal).all()
    wanted = name.strip().casefold()
    ids = {
        project.id
        for project in projects
        if wanted in {project.name.casefold(), project.id}
    }
    if not ids:
        names = ", ".join(to_one_line(project.name) for project in projects) or "none"
        raise InvalidInput(
            f"There is no project {to_one_line(name):.60}.", hint=f"Projects: {names}."
        )
    return ids


def _conversations(journal: Journal, *, everything: bool) -> Iterator[Summary]:
    """Yield every conversation in the order of the list, read in pages."""
    kinds = (False, True) if everything else (False,)
    pages = [_pages(journal, archived=archived) for archived in kinds]
    return merge(*pages, key=lambda summary: summary.place, reverse=True)


def _pages(journal: Journal, *, archived: bool) -> Iterator[Summary]:
    after = None
    while page := journal.conversations(archived=archived, after=after, limit=PAGE):
        yield from page
        after = page[-1].place


def _conversation_lines(
    found: list[Summary], words: list[str | None], now_us: int, columns: int | None
) -> Iterator[str]:
    """Yield a line per conversation; three on a narrow terminal. `columns` is `None` if stdout is no terminal."""
    rows = [
        (
            to_one_line(summary.conversation),
            to_one_line(summary.title or "") or first or UNTITLED,
            str(summary.messages),
            short_time(summary.updated_at, now_us),
            _marks(summary),
        )
        for summary, first in zip(found, words, strict=True)
    ]
    names, titles, counts, times, marks = (
        max(map(cell_len, cells)) for cells in zip(*rows, strict=True)
    )
    taken = names + counts + times + marks + 2 * (4 if marks else 3)
    room = titles if columns is None else min(columns - taken, titles)
    for name, title, count, time, mark in rows:
        if room < min(TITLE_COLUMNS_MIN, titles):
            yield from _tall(title, name, count, time, mark, columns or 0)
        else:
            cells = [pad(name, names), pad(fit(title, room), room), count.rjust(counts)]
            yield "  ".join([*cells, time.rjust(times), mark]).rstrip()


def _tall(
    title: str, name: str, count: str, time: str, mark: str, columns: int
) -> Iterator[str]:
    yield fit(title, columns)
    messages = f"{count} message{'' if count == '1' else 's'}"
    yield "  " + ", ".join(filter(None, [messages, time, mark]))
    yield f"  {name}"


def _marks(summary: Summary) -> str:
    marks = {
        "running": summary.running,
        "pinned": summary.pinned,
        "archived": summary.archived,
    }
    return " ".join(name for name, on in marks.items() if on)
