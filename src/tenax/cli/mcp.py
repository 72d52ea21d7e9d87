"""`tenax mcp`: connect to the MCP servers of the configuration, and list their tools."""

from __future__ import annotations

import asyncio

import click

from tenax.cli.frame import pass_config
from tenax.cli.lines import EFFECTS
from tenax.config import Config
from tenax.text import to_one_line
from tenax.tools.mcp.servers import McpServers, ServerStatus

__all__ = ["mcp"]

_CONNECT_SECONDS = 30.0


@click.command("mcp")
@pass_config
def mcp(config: Config) -> None:
    """Test the MCP servers and list their tools. Shows the state of every server and the effects of its tools."""
    if not config.mcp:
        click.echo(
            "No MCP servers. Add one on the Settings page, or as a section [mcp.NAME] of the settings file.",
            err=True,
        )
        return

    async def connect() -> list[ServerStatus]:
        servers = McpServers(
            config.directories.servers,
            config.directories.state / "mcp",
            config.timing,
        )
        servers.use(config.mcp)
        try:
            await servers.settled(_CONNECT_SECONDS)
            return servers.standing()
        finally:
            await servers.close()

    for server in asyncio.run(connect()):
        trust = "trusted" if server.trusted else "not trusted"
        click.echo(
            f"{server.name}  {server.state}, {trust}  {to_one_line(server.where)}"
        )
        if server.error:
            click.echo(f"    {to_one_line(server.error)}")
        for tool in server.tools:
            asks = "asks first" if tool.asks else "does not ask"
            click.echo(f"    {tool.name}  {EFFECTS[tool.effect]}, {asks}")
