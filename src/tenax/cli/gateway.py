"""`tenax gateway`: serve the accounts of chat apps without the page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import replace
from functools import partial
from typing import Final

import click

from tenax.channels.platforms import PLATFORMS
from tenax.channels.rows import ChannelRows
from tenax.channels.states import AccountState, read_states
from tenax.cli.channel import account_name, describe_state
from tenax.cli.frame import pass_config
from tenax.cli.loop import in_loop
from tenax.cli.serve import links_of, log_file
from tenax.config import Config, load
from tenax.errors import ConfigError, StoreError
from tenax.text import to_one_line
from tenax.web.logs import log_to
from tenax.web.server_state import ServerState

__all__ = ["gateway"]

_LOOK_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 3.5
"""With the second of `in_loop`, the command ends within five seconds."""


@click.command("gateway")
@pass_config
def gateway(config: Config) -> None:
    """Serve the chat apps without the page. Ctrl-C ends the gateway.

    Prints a line whenever the state of an account changes. `tenax serve` serves the chat apps too, so only a machine
    without the page needs this command.
    """
    if not config.channels:
        raise ConfigError(
            "No chat app is connected.",
            hint="To connect one: tenax channel add telegram",
        )
    # A separate file, because two processes cannot rotate one.
    log_to(config, log_file(config).with_name("gateway.log"))
    in_loop(_serve(config))
    click.echo("Stopped. Unfinished answers continue at the next start.", err=True)


async def _serve(config: Config) -> None:
    """Serve until SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    state = ServerState(config, links_of(config), partial(_reload, config))
    work = asyncio.create_task(_start_and_watch(state))
    waiting = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
    finally:
        work.cancel()
        waiting.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await state.close()


def _reload(config: Config) -> Config:
    loaded = load(os.environ, profile=config.profile or None)
    return replace(loaded, timing=config.timing)


async def _start_and_watch(state: ServerState) -> None:
    await state.start()
    click.echo("Serving the chat apps. Ctrl-C stops the gateway.", err=True)
    for label, settings in state.config.channels.items():
        if PLATFORMS[settings.platform].takes_requests:
            # The gateway has no HTTP server.
            _print(f"{label}  messages come in only through `tenax serve`")
    rows = ChannelRows(state.journal)
    shown: dict[str, str] = {}
    while True:
        # While the store is away, no state can be read. The gateway goes on when the store is back.
        with contextlib.suppress(StoreError):
            read = partial(read_states, state.config, rows)
            _print_changes(await state.signins.threads.run(read), shown)
        await asyncio.sleep(_LOOK_SECONDS)


def _print_changes(accounts: list[AccountState], shown: dict[str, str]) -> None:
    """Print a line for every account with another state than before."""
    lines = {account.label: _line(account) for account in accounts}
    for label in shown.keys() - lines.keys():
        del shown[label]
        _print(f"{label}  removed")
    for account in accounts:
        line = lines[account.label]
        # Before the first connection, the store has no state or an old one.
        is_new = account.state != "off" or account.label in shown
        if is_new and shown.get(account.label) != line:
            shown[account.label] = line
            _print(line)


def _line(account: AccountState) -> str:
    words = f"{account.label}  {account_name(account)}  {describe_state(account)}"
    return f"{words}: {to_one_line(account.error)}" if account.error else words


def _print(line: str) -> None:
    # A closed terminal or a full disk must not end the gateway.
    with contextlib.suppress(OSError):
        click.echo(line)
