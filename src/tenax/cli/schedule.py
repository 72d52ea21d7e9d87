"""`tenax schedule`: list, add and remove schedules. A running server uses a change within seconds."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from tenax.assembly import Runtime
from tenax.cli.frame import complete_conversation, pass_config
from tenax.cli.loop import with_runtime
from tenax.cli.output import json_option, print_json
from tenax.clock import rfc3339, zone_of
from tenax.config import Config
from tenax.errors import InvalidInput
from tenax.journal import exists
from tenax.schedules.parse import to_local
from tenax.schedules.rows import Plan, Schedule
from tenax.text import to_one_line

__all__ = ["schedule"]


@click.group("schedule", invoke_without_command=True)
@json_option
@pass_config
def schedule(config: Config, *, as_json: bool) -> None:
    """Manage scheduled messages."""
    _list(config, as_json=as_json)


def _list(config: Config, *, as_json: bool) -> None:
    plans = []
    # Listing creates no store.
    if exists(config.store_url):
        plans = with_runtime(config, lambda runtime: runtime.schedules.all())
    if as_json:
        print_json([_to_json(plan) for plan in plans])
        return
    if not plans:
        click.echo(
            'No schedules. To add one: tenax schedule add "every weekday at 8" PROMPT',
            err=True,
        )
    for plan in plans:
        waits = f" ({plan.waits})" if plan.waits else ""
        click.echo(f"{_line(plan.schedule)}{waits}")


def _to_json(plan: Plan) -> dict[str, Any]:
    schedule = plan.schedule
    times = {"due": rfc3339(schedule.due or 0), "made_at": rfc3339(schedule.made_at)}
    fields: dict[str, Any] = msgspec.to_builtins(schedule)
    return fields | times | {"waits": plan.waits}


def _line(schedule: Schedule) -> str:
    """Return the line of a schedule, with the next time in the zone of the schedule."""
    try:
        due = f"{to_local(schedule.due or 0, zone_of(schedule.zone)):%Y-%m-%d %H:%M}"
    except InvalidInput:
        # The time zone is unknown on this machine.
        due = rfc3339(schedule.due or 0)
    when = f"{schedule.when} ({to_one_line(schedule.zone)})"
    words = to_one_line(schedule.words)
    return f"{schedule.id}  {due}  {when}  {schedule.conversation}  {words}"


@schedule.command("list")
@json_option
@pass_config
def list_all(config: Config, *, as_json: bool) -> None:
    """List the schedules."""
    _list(config, as_json=as_json)


@schedule.command("add")
@click.argument("when")
@click.argument("words", nargs=-1, required=True)
@click.option(
    "-c",
    "--conversation",
    metavar="ID",
    shell_complete=complete_conversation,
    help="Run the prompt in this conversation instead of a new one.",
)
@click.option(
    "--zone",
    default="",
    metavar="NAME",
    help="Time zone, for example Europe/Berlin. Default: the zone of this machine.",
)
@pass_config
def add(
    config: Config,
    when: str,
    words: tuple[str, ...],
    conversation: str | None,
    zone: str,
) -> None:
    """Run the prompt WORDS at a time WHEN, for example "every weekday at 8", "in 20 minutes" or "on 2026-12-24 at 9:00"."""
    made = with_runtime(
        config,
        lambda runtime: runtime.schedules.add(
            " ".join(words), when, conversation=conversation, zone=zone
        ),
    )
    click.echo(_line(made))
    click.echo(
        "Schedules run while `tenax serve` runs. A missed run happens once at the next start.",
        err=True,
    )


@schedule.command("remove")
@click.argument("name")
@pass_config
def remove(config: Config, name: str) -> None:
    """Remove a schedule. NAME is its id or the beginning of its id."""

    async def remove_one(runtime: Runtime) -> str:
        ids = [plan.schedule.id for plan in await runtime.schedules.all()]
        matches = [found for found in ids if name and found.startswith(name)]
        chosen = matches[0] if len(matches) == 1 else name
        await runtime.schedules.remove(chosen)
        return chosen

    click.echo(f"Removed: {with_runtime(config, remove_one)}")
