"""`tenax list`: the conversations, pinned first, then newest first."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final

import click

from tenax.cli.frame import json_option, pass_config, print_json
from tenax.cli.lines import UNTITLED, fit, one_line, pad, room_across, short_time, width
from tenax.config import Config
from tenax.journal import Journal, exists
from tenax.journal import open as open_journal
from tenax.journal.base import Summary
from tenax.runtime.conversation_list import first_words, listed

__all__ = ["list_conversations"]

PAGE: Final = 200
TITLE_COLUMNS_MIN: Final = 18


@click.command("list")
@click.option("-a", "--all", "everything", is_flag=True, help="Also the archived ones.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1, max=1_000_000),
    default=50,
    show_default=True,
    help="How many at most.",
)
@json_option
@pass_config
def list_conversations(
    config: Config, *, everything: bool, limit: int, as_json: bool
) -> None:
    """Show the conversations, pinned first, then newest first."""
    found, words, now_us, hidden = _read(config, everything=everything, limit=limit)
    if as_json:
        shown = [listed(each, said) for each, said in zip(found, words, strict=True)][
            :limit
        ]
        print_json(shown)
        return
    if not found:
        said = (
            "Every conversation is archived; --all shows them."
            if hidden
            else "There are no conversations yet."
        )
        click.echo(said, err=True)
        return
    for line in _lines(found[:limit], words[:limit], now_us, room_across()):
        click.echo(line)
    if len(found) > limit:
        click.echo(f"There are more; these are the first {limit} (--limit).", err=True)


def _read(
    config: Config, *, everything: bool, limit: int
) -> tuple[list[Summary], list[str | None], int, bool]:
    """One conversation more than asked for, their first words, the time, and whether others are archived."""
    if not exists(config.store_url):
        return [], [], 0, False
    with open_journal(config.store_url, witness=config.places.witness) as journal:
        found = list(islice(_conversations(journal, everything=everything), limit + 1))
        words = [
            None if each.title else first_words(journal, each.conversation)
            for each in found
        ]
        hidden = not found and bool(journal.conversations(archived=True, limit=1))
        return found, words, journal.clock.now_us(), hidden


def _conversations(journal: Journal, *, everything: bool) -> Iterator[Summary]:
    """Every conversation in the order of the list, read in pages."""
    kinds = (False, True) if everything else (False,)
    pages = [_pages(journal, archived=archived) for archived in kinds]
    return merge(*pages, key=lambda each: each.place, reverse=True)


def _pages(journal: Journal, *, archived: bool) -> Iterator[Summary]:
    after = None
    while page := journal.conversations(archived=archived, after=after, limit=PAGE):
        yield from page
        after = page[-1].place


def _lines(
    found: list[Summary], words: list[str | None], now_us: int, columns: int | None
) -> Iterator[str]:
    """A line a conversation; on a narrow terminal three. `columns` is None where nobody measures them."""
    rows = [
        (one_line(each.conversation), one_line(each.title or "") or said or UNTITLED, str(each.messages),
         short_time(each.updated_at, now_us), _marks(each))
        for each, said in zip(found, words, strict=True)
    ]  # fmt: skip
    names, titles, counts, times, marks = (
        max(map(width, cells)) for cells in zip(*rows, strict=True)
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


def _marks(each: Summary) -> str:
    marks = {"running": each.running, "pinned": each.pinned, "archived": each.archived}
    return " ".join(name for name, on in marks.items() if on)
