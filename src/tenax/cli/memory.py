"""`tenax memory`: what is remembered, where it comes from, and what the memories beside the built-in one are owed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import click

from tenax.cli.frame import (
    FAILED,
    json_option,
    pass_config,
    print_exactly,
    print_json,
    with_runtime,
)
from tenax.cli.lines import fit, minute, one_line, pad, room_across, short_time, width
from tenax.clock import SystemClock
from tenax.config import Config
from tenax.errors import InvalidInput
from tenax.journal import exists
from tenax.memory.facts import Fact
from tenax.memory.memory import Memory, Status

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


def _do(
    config: Config, work: Callable[[Memory], Awaitable[T]], *, providers: bool = False
) -> T:
    """Do this with the person's memory. What concerns `providers` needs them, and waits until they are loaded."""
    return with_runtime(config, lambda runtime: work(runtime.memory), starts=providers)


async def _find(memory: Memory, name: str) -> Fact:
    """A fact by its id, or by a beginning that no other has. One that was forgotten needs its whole id."""
    found = [each for each in await memory.facts() if name and each.id.startswith(name)]
    if len(found) > 1 and name not in [each.id for each in found]:
        raise InvalidInput(
            f"{len(found)} facts have an id that begins with {name}.",
            hint="Type more of it: tenax memory",
        )
    return (
        next((each for each in found if each.id == name or len(found) == 1), None)
        or (await memory.versions(name))[-1]
    )


@click.group("memory", invoke_without_command=True)
@json_option
@pass_config
def memory(config: Config, *, as_json: bool) -> None:
    """Show what is remembered of you, and change it."""
    _print_facts(config, "", as_json=as_json)


@memory.command("search")
@click.argument("words", nargs=-1, required=True)
@json_option
@pass_config
def search(config: Config, words: tuple[str, ...], *, as_json: bool) -> None:
    """Show what is remembered about these words."""
    _print_facts(config, " ".join(words), as_json=as_json)


def _print_facts(config: Config, words: str, *, as_json: bool) -> None:
    """Those that fit these words, or all. Looking makes no store."""

    async def work(memory: Memory) -> tuple[list[Fact], list[Fact]]:
        everything = await memory.facts()
        return everything, await memory.search(words) if words else everything

    everything, facts = _do(config, work) if exists(config.store_url) else ([], [])
    if as_json:
        print_json(facts)
        return
    if not facts:
        click.echo(
            f"Nothing is remembered {'about this' if words else 'yet'}.", err=True
        )
    for line in _lines(
        facts, _telling([each.id for each in everything]), room_across()
    ):
        click.echo(line)


def _telling(ids: list[str]) -> int:
    """How many characters tell these ids apart. They begin with their time."""
    return next(
        n
        for n in range(ID_CHARS_MIN, 100)
        if len({each[:n] for each in ids}) == len(ids)
    )


def _lines(facts: list[Fact], id_chars: int, columns: int | None) -> Iterator[str]:
    """A line a fact, in two groups. `columns` is None where nobody measures them: then nothing is cut."""
    now_us = SystemClock().now_us()
    for about, title in _GROUPS.items():
        members = [each for each in facts if each.about == about]
        if members:
            yield title
        for each in members:
            name, text = each.id[:id_chars], one_line(each.text)
            end = f"{_BY[each.by]}, {short_time(each.at, now_us)}"
            room = (
                width(text) if columns is None else columns - len(name) - width(end) - 6
            )
            if room < min(TEXT_COLUMNS_MIN, width(text)):
                yield f"  {fit(text, (columns or 0) - 2)}"
                yield f"    {name}, {end}"
            else:
                yield f"  {name}  {pad(fit(text, room), room)}  {end}"


@memory.command("add")
@click.argument("text", nargs=-1, required=True)
@click.option("--profile", "profile", is_flag=True, help="It says who you are.")
@pass_config
def add(config: Config, text: tuple[str, ...], *, profile: bool) -> None:
    """Remember this."""
    about = "profile" if profile else "note"
    fact, is_new = _do(config, lambda memory: memory.add(" ".join(text), about=about))  # type: ignore[arg-type]
    click.echo(
        f"{'Remembered' if is_new else 'This is known already'}: {one_line(fact.text)} ({fact.id})"
    )


@memory.command("edit")
@click.argument("fact")
@click.argument("text", nargs=-1, required=True)
@pass_config
def edit(config: Config, fact: str, text: tuple[str, ...]) -> None:
    """Say a fact otherwise."""

    async def work(memory: Memory) -> Fact:
        have = await _find(memory, fact)
        return await memory.change(have.id, was=have.version, text=" ".join(text))

    changed = _do(config, work)
    click.echo(f"Changed: {one_line(changed.text)} ({changed.id})")


@memory.command("forget")
@click.argument("fact")
@pass_config
def forget(config: Config, fact: str) -> None:
    """Forget a fact."""

    async def work(memory: Memory) -> Fact:
        have = await _find(memory, fact)
        await memory.remove(have.id, was=have.version)
        return have

    gone = _do(config, work)
    click.echo(f"Forgotten: {one_line(gone.text)}")
    click.echo(f"tenax memory undo {gone.id} brings it back.", err=True)


@memory.command("undo")
@click.argument("fact")
@pass_config
def undo(config: Config, fact: str) -> None:
    """Take back what was done to a fact last."""

    async def work(memory: Memory) -> tuple[Fact, Fact]:
        have = await _find(memory, fact)
        return have, await memory.undo(have.id, was=have.version)

    before, after = _do(config, work)
    if after.state == "removed":
        click.echo(f"No longer remembered: {one_line(before.text)}")
    else:
        click.echo(f"Remembered as before: {one_line(after.text)} ({after.id})")


@memory.command("show")
@click.argument("fact")
@json_option
@pass_config
def show_fact(config: Config, fact: str, *, as_json: bool) -> None:
    """Show where a fact comes from, and all that it has been."""

    async def work(memory: Memory) -> list[Fact]:
        return await memory.versions((await _find(memory, fact)).id)

    versions = _do(config, work)
    if as_json:
        print_json(versions)
        return
    last = versions[-1]
    click.echo(
        f"{last.id}, {_GROUPS[last.about].lower()}: {one_line(last.text) or '(forgotten)'}"
    )
    for each in versions:
        did = (
            "forgotten"
            if each.state == "removed"
            else "added"
            if each.version == 1
            else "changed"
        )
        click.echo(
            f"  version {each.version}, {minute(each.at)}, {did} by {_BY[each.by]}: {one_line(each.text)}"
        )
        if each.conversation is not None:
            click.echo(
                f"    from message {each.seq} of {each.conversation}: tenax show {each.conversation}"
            )
    if last.scope is not None:
        click.echo(
            f"  It is used in {last.scope} only, because others write there too."
        )


@memory.command("export")
@click.argument("file", type=click.Path(), default="-")
@pass_config
def export(config: Config, file: str) -> None:
    """Write everything that is remembered as Markdown, to a new FILE or to stdout."""
    text = _do(config, lambda memory: memory.export())
    if file == "-":
        print_exactly(text)
        return
    try:
        with open(file, "x", encoding="utf-8") as target:  # noqa: PTH123  (a name as the person typed it)
            target.write(text)
    except FileExistsError:
        raise InvalidInput(
            f"There is a file {file} already.", hint="Choose another name."
        ) from None
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}.") from error


@memory.command("import")
@click.argument("file", type=click.Path())
@pass_config
def import_file(config: Config, file: str) -> int:
    """Remember what a FILE that was exported says; - reads stdin."""
    loaded = _do(config, lambda memory: memory.load(_read(file)))
    click.echo(
        f"{loaded.added} added, {loaded.changed} changed, {loaded.known} known already."
    )
    for each in loaded.refused:
        click.echo(f"Not taken: {one_line(each)}", err=True)
    return FAILED if loaded.refused else 0


def _read(file: str) -> str:
    try:
        with click.open_file(file, "rb") as source:
            data: bytes = source.read(IMPORT_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from error
    if len(data) > IMPORT_BYTES_MAX:
        raise InvalidInput(
            f"{file} is too large: at most {IMPORT_BYTES_MAX:,} bytes are taken."
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8 text.") from error


@memory.command("status")
@json_option
@pass_config
def status(config: Config, *, as_json: bool) -> None:
    """Show how far each provider is behind, and what it could not take."""
    found = _do(config, lambda memory: memory.status(), providers=True)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("There is the built-in memory, and no provider beside it.", err=True)
    for each in found:
        for line in _state(each):
            click.echo(
                one_line(line)
                if line.startswith(each.provider)
                else f"  {one_line(line)}"
            )


def _state(each: Status) -> Iterator[str]:
    if each.problem:
        yield f"{each.provider}: not used. {each.problem}"
        return
    owed = [
        _count(each.behind, "turn"),
        _count(each.owed, "end of a conversation", "ends of conversations"),
    ]
    behind = " and ".join(filter(None, owed))
    yield f"{each.provider}: {f'{behind} behind' if behind else 'up to date'}"
    if each.busy_seconds:
        yield f"busy for {each.busy_seconds:.0f} s"
    if each.error:
        yield f"last error: {each.error}"
    if each.rests_seconds:
        yield f"tried again in {each.rests_seconds:.0f} s"
    for letter in each.letters:
        yield f"not taken: {letter.conversation} at {letter.seq}: {letter.error}"
    if each.letters:
        yield f"tenax memory retry {each.provider} gives it these once more."


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}" if number else ""


@memory.command("retry")
@click.argument("provider")
@pass_config
def retry(config: Config, provider: str) -> None:
    """Give a provider once more what it could not take."""
    number = _do(config, lambda memory: memory.retry(provider), providers=True)
    click.echo(f"{number or 'None'} {'was' if number == 1 else 'were'} taken.")
