"""`tenax pair`: let a person in who has written to a bot and got a code."""

from __future__ import annotations

import sys

import click

from tenax.channels.people import user_name
from tenax.channels.rows import Pairing
from tenax.cli.channel import join_columns, labels_of, open_rows
from tenax.cli.frame import pass_config
from tenax.cli.lines import short_time
from tenax.config import Config
from tenax.journal import LOCAL_USER
from tenax.text import to_one_line

__all__ = ["pair"]


@click.command("pair")
@click.argument("code", required=False)
@click.option("--me", is_flag=True, help="The code is yours: talk as the owner.")
@click.option(
    "--other",
    is_flag=True,
    help="The code is somebody else's: they become a user of their own.",
)
@pass_config
def pair(config: Config, code: str | None, *, me: bool, other: bool) -> None:
    """Let the person with a CODE talk to Tenax in a chat app.

    The bot sends a code to everybody who writes to it for the first time. Without a CODE, list the open codes.
    """
    if me and other:
        raise click.UsageError("--me and --other cannot be used together.")
    if code is None:
        if me or other:
            raise click.UsageError("--me and --other need a CODE.")
        _list_codes(config)
        return
    with open_rows(config) as rows:
        pairing = rows.find_pairing(code)
        label = labels_of(config, rows).get(pairing.account, pairing.account)
    if not me and not other:
        me = _ask_whether_owner(pairing, label)
    user = LOCAL_USER if me else user_name(pairing.account, pairing.person)
    with open_rows(config) as rows:
        rows.pair(pairing.code, user)
    name = to_one_line(pairing.name or pairing.person)
    who = "as you, the owner" if me else f"as the user {user}"
    click.echo(f"{name} can now talk to {label}, {who}.")


def _list_codes(config: Config) -> None:
    with open_rows(config) as rows:
        pairings = rows.pairings()
        labels = labels_of(config, rows)
        now = rows.now_us()
    for pairing in pairings:
        account = labels.get(pairing.account, pairing.account)
        since = short_time(pairing.at, now)
        line = join_columns(pairing.code, account, pairing.person, pairing.name, since)
        click.echo(line)
    if pairings:
        click.echo("To let somebody in: tenax pair CODE", err=True)
    else:
        click.echo(
            "There are no open codes. Write to the bot: it answers with a code.",
            err=True,
        )


def _ask_whether_owner(pairing: Pairing, label: str) -> bool:
    """Show who has the code, and ask whether it is the owner."""
    name = to_one_line(pairing.name) or "(no name)"
    person = to_one_line(pairing.person)
    click.echo(f"The code was sent to {name}, id {person}, by {label}.", err=True)
    if not sys.stdin.isatty():
        raise click.UsageError("Say whose code it is, with --me or --other.")
    click.echo(
        """
Anybody can choose any name. Go on only if you know who got this code.

  1  It is me. Everybody in this chat account gets your conversations, your memory and your rights.
  2  It is somebody else. They get conversations, a memory and a folder of their own, and approve only their own calls.
"""
    )
    number: int = click.prompt("Number", type=click.IntRange(1, 2))
    return number == 1
