"""The server process: `python -m tenax.web FD`. Its parent is `tenax serve`, which gives it the socket and starts it again.

It says on stdout, in one line, that it is ready or why not; after that it says nothing. It ends when it is told to
(SIGTERM), and when its parent is gone (stdin ends): pages first, then runs, then the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from typing import Any, cast

import msgspec
import uvicorn

from tenax.cli.frame import leave
from tenax.cli.serve import Ready, links_of, log_file
from tenax.config import Config, load
from tenax.errors import TenaxError
from tenax.web.app import application
from tenax.web.connections import (
    ACCEPTS_AT_ONCE,
    Connections,
    FewLines,
    Limits,
    Listener,
)
from tenax.web.house import House

_LOG_BYTES = 5_000_000


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _say(Ready(ok=True))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: pages are told first."""
        yield


def main(descriptor: int, profile: str | None) -> int:
    """Serve until told otherwise."""
    try:
        config = load(os.environ, profile=profile)
        _log_to(config)
        return asyncio.run(_serve(config, descriptor, profile))
    except TenaxError as error:
        _say(Ready(ok=False, error=str(error), hint=error.hint))
        return 1


async def _serve(config: Config, descriptor: int, profile: str | None) -> int:
    house = House(config, links_of(config), lambda: load(os.environ, profile=profile))
    connections = Connections(Limits.of_process(), config.serve_proxies)
    server = _Server(
        uvicorn.Config(
            application(house),
            http=cast("Any", connections.protocol),
            backlog=ACCEPTS_AT_ONCE,
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
            server_header=False,
            lifespan="off",
        )
    )
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, told.set)
    loop.add_reader(sys.stdin.fileno(), _watch_parent, loop, told)
    ending = asyncio.create_task(_end(server, house, told))
    listening = Listener(connections, descriptor)
    listening.setblocking(False)
    try:
        await house.start()
        await server.serve(sockets=[listening])
    finally:
        ending.cancel()
        await house.close()
    return 0


async def _end(server: uvicorn.Server, house: House, told: asyncio.Event) -> None:
    await told.wait()
    await house.end_streams()
    server.should_exit = True


def _watch_parent(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        told.set()


def _say(ready: Ready) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
        sys.stdout.flush()


def _log_to(config: Config) -> None:
    """Into a file that only the person can read: nobody reads a server's stderr, and it may be a terminal."""
    file = log_file(config)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        handler: logging.Handler = RotatingFileHandler(
            file, maxBytes=_LOG_BYTES, backupCount=3, encoding="utf-8"
        )
    except OSError:  # a full disk must not keep the page away
        handler = logging.NullHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    handler.addFilter(FewLines())
    logging.basicConfig(level=config.log.upper(), handlers=[handler])
    # nor must it fill the terminal with what could not be logged
    logging.raiseExceptions = False
    for each in ("httpx", "httpcore"):  # they write down whole addresses
        logging.getLogger(each).setLevel(logging.WARNING)


if __name__ == "__main__":
    leave(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))  # noqa: PLR2004
