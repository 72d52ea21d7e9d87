"""`/api/mcp`: the servers whose tools are offered beside our own. They are the owner's: nobody else sees or adds one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from tenax.config.write import set_server, trust_server
from tenax.errors import Refused
from tenax.runtime.runtime import Runtime
from tenax.tools.mcp.servers import Standing
from tenax.web.api import endpoint
from tenax.web.house import house_of

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$", max_length=32)]
Word = Annotated[str, Meta(min_length=1, max_length=2000)]


class Servers(msgspec.Struct, frozen=True):
    """The servers, in the order of the file."""

    servers: list[Standing]


class NewServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server that is started with a command, or that is at an address, perhaps with a key."""

    name: Name
    command: Annotated[list[Word], Meta(max_length=100)] = []
    url: Annotated[str, Meta(max_length=2000)] = ""
    key: Annotated[str, Meta(max_length=2000)] = ""
    code: Annotated[str, Meta(max_length=100)] = ""
    """From `tenax code`. A command asks for it."""


class Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether what a server says about its own tools counts."""

    name: Name
    trusted: bool


@endpoint("GET", "/api/mcp", owner=True)
async def list_servers(runtime: Runtime) -> Servers:
    """The servers, how it stands with each, and their tools."""
    return Servers(runtime.mcp.standing())


@endpoint("POST", "/api/mcp", 201, owner=True)
async def add_server(call: Request, runtime: Runtime, body: NewServer) -> Servers:
    """Add a server. It is connected to in the background, and its tools are there from the turn after that.

    A command runs with the rights of the person who runs Tenax, so whoever adds one must have the terminal too.
    """
    house = house_of(call)
    if body.name in house.config.mcp:
        raise Refused(
            f"There is a server {body.name} already.",
            hint="Remove it first, or choose another name.",
        )
    values = {
        name: value
        for name, value in (("command", body.command), ("url", body.url))
        if value
    }
    key = body.key.strip() or None
    with (
        house.links.confirming(body.code)
        if body.command
        else contextlib.nullcontext(True) as is_confirmed
    ):
        if not is_confirmed:
            raise Refused(
                "A server with a command needs a code from the terminal, and this code is not good.",
                hint=f"Run `{house.terminal} code`, and type the code that it prints.",
            )
        await asyncio.to_thread(set_server, house.config, body.name, values, key=key)
    # The code is used up now, also if the new settings cannot be read.
    await house.reload()
    return Servers(runtime.mcp.standing())


@endpoint("POST", "/api/mcp/trust", owner=True)
async def trust(call: Request, runtime: Runtime, body: Trust) -> Servers:
    """Let what a server says about its own tools count, or no longer."""
    await house_of(call).change(trust_server, body.name, trusted=body.trusted)
    return Servers(runtime.mcp.standing())


@endpoint("DELETE", "/api/mcp", owner=True)
async def remove_server(call: Request, runtime: Runtime, name: Name) -> Servers:
    """Take a server away. What was started for it ends."""
    await house_of(call).change(set_server, name, None)
    return Servers(runtime.mcp.standing())
