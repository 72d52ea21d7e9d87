"""`tenax schedule`: what is asked by itself, and when. `tenax serve` asks it; a change holds there within seconds."""

from __future__ import annotations

import click
import msgspec

from tenax.cli.frame import json_option, pass_config, print_json, with_runtime
from tenax.cli.lines import one_line
from tenax.clock import rfc3339, zone_of
from tenax.config import Config
from tenax.errors import InvalidInput
from tenax.journal import exists
from tenax.runtime.runtime import Runtime
from tenax.schedules.parse import local
from tenax.schedules.rows import Schedule

__all__ = ["schedule"]


@click.group("schedule", invoke_without_command=True)
@json_option
@pass_config
def schedule(config: Config, *, as_json: bool) -> None:
    """Show what is asked by itself and when, and change it."""
    _list(config, as_json=as_json)


def _list(config: Config, *, as_json: bool) -> None:
    plans = (
        with_runtime(config, lambda runtime: runtime.schedules.all())
        if exists(config.store_url)
        else []
    )
    if as_json:
        shown = [msgspec.to_builtins(each.schedule) | {"due": rfc3339(each.schedule.due or 0),
                 "made_at": rfc3339(each.schedule.made_at), "waits": each.waits} for each in plans]  # fmt: skip
        print_json(shown)
        return
    if not plans:
        click.echo(
            'There are no schedules. tenax schedule add "every weekday at 8" WORDS makes one.',
            err=True,
        )
    for each in plans:
        click.echo(f"{_told(each.schedule)}{f' ({each.waits})' if each.waits else ''}")


def _told(each: Schedule) -> str:
    try:
        due = f"{local(each.due or 0, zone_of(each.zone)):%Y-%m-%d %H:%M}"
    except InvalidInput:  # its zone is not known here
        due = rfc3339(each.due or 0)
    words, zone = one_line(each.words), one_line(each.zone)
    return f"{each.id}  {due}  {each.when} ({zone})  {each.conversation}  {words}"


@schedule.command("list")
@json_option
@pass_config
def list_all(config: Config, *, as_json: bool) -> None:
    """Show them."""
    _list(config, as_json=as_json)


@schedule.command("add")
@click.argument("when")
@click.argument("words", nargs=-1, required=True)
@click.option(
    "-c",
    "--conversation",
    metavar="ID",
    help="Ask it there, not in a new conversation.",
)
@click.option(
    "--zone",
    default="",
    metavar="NAME",
    help="A time zone such as Europe/Berlin, if not this machine's.",
)
@pass_config
def add(
    config: Config,
    when: str,
    words: tuple[str, ...],
    conversation: str | None,
    zone: str,
) -> None:
    """Ask WORDS at WHEN, such as "every weekday at 8", "in 20 minutes", "on 2026-12-24 at 9:00"."""
    made = with_runtime(
        config,
        lambda runtime: runtime.schedules.add(
            " ".join(words), when, conversation=conversation, zone=zone
        ),
    )
    click.echo(_told(made))
    click.echo("It is asked while `tenax serve` runs, or as soon as it does.", err=True)


@schedule.command("remove")
@click.argument("name")
@pass_config
def remove(config: Config, name: str) -> None:
    """Take away the schedule with the id NAME, or with the only id that begins so."""

    async def work(runtime: Runtime) -> str:
        known = [each.schedule.id for each in await runtime.schedules.all()]
        found = [each for each in known if name and each.startswith(name)]
        gone = found[0] if len(found) == 1 else name
        await runtime.schedules.remove(gone)
        return gone

    click.echo(f"Removed: {with_runtime(config, work)}")
