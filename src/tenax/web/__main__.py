"""The server process: `python -m tenax.web FD`. The parent `tenax serve` passes the socket and restarts the server.

The server prints one line on stdout: ready, or the reason of the failed start. The server ends on SIGTERM, and when its
parent is gone (stdin ends): first the streams of pages, then running turns, then the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
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
    Limits,
    Listener,
)
from tenax.web.logs import log_to
from tenax.web.server_state import ServerState


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _say(Ready(ok=True))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `_serve`, because `_serve` ends the streams of pages first."""
        yield


def main(descriptor: int, profile: str | None) -> int:
    """Serve until SIGTERM, or until the parent process ends."""
    try:
        config = load(os.environ, profile=profile)
        log_to(config, log_file(config))
        return asyncio.run(_serve(config, descriptor, profile))
    except TenaxError as error:
        _say(Ready(ok=False, error=str(error), hint=error.hint))
        return 1


async def _serve(config: Config, descriptor: int, profile: str | None) -> int:
    state = ServerState(
        config, links_of(config), lambda: load(os.environ, profile=profile)
    )
    connections = Connections(Limits.of_process(), config.serve.proxies)
    server = _Server(
        uvicorn.Config(
            application(state),
            http=cast("Any", connections.protocol),
            backlog=ACCEPTS_AT_ONCE,
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
            server_header=False,
            # By default, uvicorn believes every proxy of this machine.
            proxy_headers=bool(config.serve.proxies),
            forwarded_allow_ips=list(config.serve.proxies),
            lifespan="off",
        )
    )
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    loop.add_reader(sys.stdin.fileno(), _watch_parent, loop, told)
    ending = asyncio.create_task(_end_server(server, state, told))
    listening = Listener(connections, descriptor)
    listening.setblocking(False)
    try:
        await state.start()
        await server.serve(sockets=[listening])
    finally:
        ending.cancel()
        await state.close()
    return 0


async def _end_server(
    server: uvicorn.Server, state: ServerState, told: asyncio.Event
) -> None:
    await told.wait()
    await state.end_streams()
    server.should_exit = True


def _watch_parent(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        told.set()


def _say(ready: Ready) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    leave(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))  # noqa: PLR2004
