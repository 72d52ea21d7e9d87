"""`/api/mcp`: MCP servers and their tools. Only the owner sees and changes the servers."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Annotated

from msgspec import Meta
from starlette.requests import Request

from tenax.assembly import Runtime
from tenax.concurrency import run_in_own_thread
from tenax.config.write import set_server, trust_server
from tenax.errors import Refused
from tenax.tools.mcp.servers import ServerStatus
from tenax.web.api import RequestBody, ResponseBody, endpoint
from tenax.web.server_state import state_of

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$", max_length=32)]
Word = Annotated[str, Meta(min_length=1, max_length=2000)]


class Servers(ResponseBody):
    """The MCP servers, in the order of the settings file."""

    servers: list[ServerStatus]


class NewServer(RequestBody):
    """An MCP server: a command to start, or a URL with an optional key."""

    name: Name
    command: Annotated[list[Word], Meta(max_length=100)] = []  # noqa: RUF012  (msgspec copies it)
    url: Annotated[str, Meta(max_length=2000)] = ""
    key: Annotated[str, Meta(max_length=2000)] = ""
    code: Annotated[str, Meta(max_length=100)] = ""
    """The output of `tenax code`. Required for a command."""


class Trust(RequestBody):
    """Whether to trust a server's own declarations about its tools."""

    name: Name
    trusted: bool


@endpoint("GET", "/api/mcp", owner=True)
async def list_servers(runtime: Runtime) -> Servers:
    """List the servers with their state and tools."""
    return Servers(runtime.mcp.standing())


@endpoint("POST", "/api/mcp", 201, owner=True)
async def add_server(call: Request, runtime: Runtime, body: NewServer) -> Servers:
    """Add a server. Tenax connects in the background; the tools are available from the next turn on.

    A command runs with the permissions of the owner, so a command needs a confirmation code from the owner's terminal.
    """
    state = state_of(call)
    if body.name in state.config.mcp:
        raise Refused(
            f"A server {body.name} already exists.",
            hint="Remove it first, or choose another name.",
        )
    values = {
        name: value
        for name, value in (("command", body.command), ("url", body.url))
        if value
    }
    key = body.key.strip() or None
    with (
        state.links.confirming(body.code)
        if body.command
        else contextlib.nullcontext(True) as is_confirmed
    ):
        if not is_confirmed:
            raise Refused(
                "A server with a command needs a code from the terminal, and this code is not valid.",
                hint=f"Run `{state.terminal} code` in a terminal and enter the code.",
            )
        await run_in_own_thread(
            partial(set_server, state.config, body.name, values, key=key)
        )
    # The code is used up now, even if the new settings cannot be read.
    await state.reload()
    return Servers(runtime.mcp.standing())


@endpoint("POST", "/api/mcp/trust", owner=True)
async def trust(call: Request, runtime: Runtime, body: Trust) -> Servers:
    """Trust or untrust a server."""
    await state_of(call).change(trust_server, body.name, trusted=body.trusted)
    return Servers(runtime.mcp.standing())


@endpoint("DELETE", "/api/mcp", owner=True)
async def remove_server(call: Request, runtime: Runtime, name: Name) -> Servers:
    """Remove a server. Its process ends."""
    await state_of(call).change(set_server, name, None)
    return Servers(runtime.mcp.standing())
