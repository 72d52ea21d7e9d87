"""`tenax memory`: list, search and change memories, and show the state of the memory providers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Literal, TypeVar

import click
from rich.cells import cell_len

from tenax.cli.frame import FAILED, pass_config
from tenax.cli.lines import fit, minute, pad, room_across, short_time
from tenax.cli.loop import with_runtime
from tenax.cli.output import json_option, print_exactly, print_json, write_new_file
from tenax.clock import SystemClock
from tenax.config import Config
from tenax.errors import InvalidInput
from tenax.journal import exists
from tenax.memory.entries import MemoryEntry
from tenax.memory.memory import Memory, Status
from tenax.text import to_one_line

__all__ = ["memory"]

T = TypeVar("T")
IMPORT_BYTES_MAX: Final = 8 * 1024 * 1024
TEXT_COLUMNS_MIN: Final = 18
ID_CHARS_MIN: Final = 8
_BY: Final = {
    "person": "you",
    "model": "the model",
    "review": "a review",
    "import": "an import",
}
_GROUPS: Final = {"profile": "Profile", "note": "Notes"}


def _with_memory(
    config: Config, work: Callable[[Memory], Awaitable[T]], *, providers: bool = False
) -> T:
    """Run `work` with the memory of the local user. With `providers`, load the memory providers first."""
    return with_runtime(config, lambda runtime: work(runtime.memory), starts=providers)


async def _find(memory: Memory, name: str) -> MemoryEntry:
    """Return the memory with the given id or unique beginning of an id. A forgotten memory needs its whole id."""
    entries = {entry.id: entry for entry in await memory.entries()}
    if name in entries:
        return entries[name]
    matches = [entry for entry in entries.values() if entry.id.startswith(name)]
    if name and len(matches) > 1:
        raise InvalidInput(
            f"{len(matches)} memories have an id that begins with {name}.",
            hint="Type more of it: tenax memory",
        )
    if name and matches:
        return matches[0]
    return (await memory.versions(name))[-1]


@click.group("memory", invoke_without_command=True)
@json_option
@pass_config
def memory(config: Config, *, as_json: bool) -> None:
    """Show and change memories."""
    _print_entries(config, "", as_json=as_json)


@memory.command("search")
@click.argument("words", nargs=-1, required=True)
@json_option
@pass_config
def search(config: Config, words: tuple[str, ...], *, as_json: bool) -> None:
    """Search the memory."""
    _print_entries(config, " ".join(words), as_json=as_json)


def _print_entries(config: Config, words: str, *, as_json: bool) -> None:
    """Print the memories matching the words, or every memory. Creates no store."""

    async def find_entries(
        memory: Memory,
    ) -> tuple[list[MemoryEntry], list[MemoryEntry]]:
        everything = await memory.entries()
        return everything, await memory.search(words) if words else everything

    everything, entries = (
        _with_memory(config, find_entries) if exists(config.store_url) else ([], [])
    )
    if as_json:
        print_json(entries)
        return
    if not entries:
        click.echo("No results." if words else "Nothing remembered yet.", err=True)
    id_chars = _distinct_chars([entry.id for entry in everything])
    for line in _entry_lines(entries, id_chars, room_across()):
        click.echo(line)


def _distinct_chars(ids: list[str]) -> int:
    """Return the number of characters needed to distinguish the ids. Ids begin with their time."""
    chars = ID_CHARS_MIN
    while len({full_id[:chars] for full_id in ids}) < len(ids):
        chars += 1
    return chars


def _entry_lines(
    entries: list[MemoryEntry], id_chars: int, columns: int | None
) -> Iterator[str]:
    """Yield a line per memory, in two groups. If `columns` is `None`, nothing is cut."""
    now_us = SystemClock().now_us()
    for about, title in _GROUPS.items():
        members = [entry for entry in entries if entry.about == about]
        if members:
            yield title
        for entry in members:
            name, text = entry.id[:id_chars], to_one_line(entry.text)
            end = f"{_BY[entry.by]}, {short_time(entry.at, now_us)}"
            room = (
                cell_len(text)
                if columns is None
                else columns - len(name) - cell_len(end) - 6
            )
            if room < min(TEXT_COLUMNS_MIN, cell_len(text)):
                yield f"  {fit(text, (columns or 0) - 2)}"
                yield f"    {name}, {end}"
            else:
                yield f"  {name}  {pad(fit(text, room), room)}  {end}"


@memory.command("add")
@click.argument("text", nargs=-1, required=True)
@click.option(
    "--profile",
    "profile",
    is_flag=True,
    help="Store it in the profile: it is about you.",
)
@pass_config
def add(config: Config, text: tuple[str, ...], *, profile: bool) -> None:
    """Add a memory."""

    async def add_entry(memory: Memory) -> tuple[MemoryEntry, bool]:
        about: Literal["profile", "note"] = "profile" if profile else "note"
        return await memory.add(" ".join(text), about=about)

    entry, is_new = _with_memory(config, add_entry)
    head = "Remembered" if is_new else "Already remembered"
    click.echo(f"{head}: {to_one_line(entry.text)} ({entry.id})")


@memory.command("edit")
@click.argument("memory_id")
@click.argument("text", nargs=-1, required=True)
@pass_config
def edit(config: Config, memory_id: str, text: tuple[str, ...]) -> None:
    """Edit a memory."""

    async def edit_entry(memory: Memory) -> MemoryEntry:
        have = await _find(memory, memory_id)
        return await memory.change(have.id, was=have.version, text=" ".join(text))

    changed = _with_memory(config, edit_entry)
    click.echo(f"Changed: {to_one_line(changed.text)} ({changed.id})")


@memory.command("forget")
@click.argument("memory_id")
@pass_config
def forget(config: Config, memory_id: str) -> None:
    """Forget a memory."""

    async def forget_entry(memory: Memory) -> MemoryEntry:
        have = await _find(memory, memory_id)
        await memory.remove(have.id, was=have.version)
        return have

    gone = _with_memory(config, forget_entry)
    click.echo(f"Forgotten: {to_one_line(gone.text)}")
    click.echo(f"To undo: tenax memory undo {gone.id}", err=True)


@memory.command("undo")
@click.argument("memory_id")
@pass_config
def undo(config: Config, memory_id: str) -> None:
    """Undo the last change to a memory."""

    async def undo_change(memory: Memory) -> tuple[MemoryEntry, MemoryEntry]:
        have = await _find(memory, memory_id)
        return have, await memory.undo(have.id, was=have.version)

    before, after = _with_memory(config, undo_change)
    if after.state == "removed":
        click.echo(f"No longer remembered: {to_one_line(before.text)}")
    else:
        click.echo(f"Restored: {to_one_line(after.text)} ({after.id})")


@memory.command("show")
@click.argument("memory_id")
@json_option
@pass_config
def show_memory(config: Config, memory_id: str, *, as_json: bool) -> None:
    """Show the source and the history of a memory."""

    async def read_versions(memory: Memory) -> list[MemoryEntry]:
        return await memory.versions((await _find(memory, memory_id)).id)

    versions = _with_memory(config, read_versions)
    if as_json:
        print_json(versions)
        return
    last = versions[-1]
    click.echo(
        f"{last.id}, {_GROUPS[last.about].lower()}: {to_one_line(last.text) or '(forgotten)'}"
    )
    for entry in versions:
        head = f"version {entry.version}, {minute(entry.at)}"
        by = f"{_action(entry)} by {_BY[entry.by]}"
        click.echo(f"  {head}, {by}: {to_one_line(entry.text)}")
        if entry.conversation is not None:
            source = f"message {entry.seq} of {entry.conversation}"
            click.echo(f"    from {source}: tenax show {entry.conversation}")
    if last.scope is not None:
        click.echo(
            f"  Used only in {last.scope}, because other people write there too."
        )


def _action(entry: MemoryEntry) -> str:
    if entry.state == "removed":
        return "forgotten"
    return "added" if entry.version == 1 else "changed"


@memory.command("export")
@click.argument("file", type=click.Path(), default="-")
@pass_config
def export(config: Config, file: str) -> None:
    """Export the memory as Markdown, to a new FILE or to stdout."""
    text = _with_memory(config, lambda memory: memory.export())
    if file == "-":
        print_exactly(text)
        return
    write_new_file(file, [text.encode()])


@memory.command("import")
@click.argument("file", type=click.Path())
@pass_config
def import_file(config: Config, file: str) -> int:
    """Import an exported FILE; - reads stdin."""
    loaded = _with_memory(config, lambda memory: memory.load(_read_import(file)))
    click.echo(
        f"{loaded.added} added, {loaded.changed} changed, {loaded.known} already known."
    )
    for reason in loaded.refused:
        click.echo(f"Not imported: {to_one_line(reason)}", err=True)
    return FAILED if loaded.refused else 0


def _read_import(file: str) -> str:
    try:
        with click.open_file(file, "rb") as source:
            data: bytes = source.read(IMPORT_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from error
    if len(data) > IMPORT_BYTES_MAX:
        raise InvalidInput(
            f"{file} is too large. The limit is {IMPORT_BYTES_MAX:,} bytes."
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8 text.") from error


@memory.command("status")
@json_option
@pass_config
def status(config: Config, *, as_json: bool) -> None:
    """Show the state of the memory providers, and failed deliveries."""
    found = _with_memory(config, lambda memory: memory.status(), providers=True)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("No memory providers besides the built-in memory.", err=True)
    for state in found:
        first, *rest = _state_lines(state)
        click.echo(to_one_line(first))
        for line in rest:
            click.echo(f"  {to_one_line(line)}")


def _state_lines(state: Status) -> Iterator[str]:
    """Yield the line of a provider, followed by its details."""
    if state.problem:
        yield f"{state.provider}: not used. {state.problem}"
        return
    owed = [
        _count(state.behind, "turn"),
        _count(state.owed, "ended conversation"),
    ]
    behind = " and ".join(filter(None, owed))
    yield f"{state.provider}: {f'behind by {behind}' if behind else 'up to date'}"
    if state.busy_seconds:
        yield f"busy for {state.busy_seconds:.0f} s"
    if state.error:
        yield f"last error: {state.error}"
    if state.rests_seconds:
        yield f"next try in {state.rests_seconds:.0f} s"
    for letter in state.letters:
        yield f"not delivered: {letter.conversation} at {letter.seq}: {letter.error}"
    if state.letters:
        yield f"To retry: tenax memory retry {state.provider}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


@memory.command("retry")
@click.argument("provider")
@pass_config
def retry(config: Config, provider: str) -> None:
    """Retry the failed deliveries to a provider."""
    number = _with_memory(config, lambda memory: memory.retry(provider), providers=True)
    click.echo(f"Delivered: {number}")
