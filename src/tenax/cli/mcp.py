"""`tenax mcp`: the servers whose tools are offered, each tried now. They are set up in the file, or on the page."""

from __future__ import annotations

import asyncio

import click

from tenax.cli.frame import pass_config
from tenax.cli.lines import one_line
from tenax.config import Config
from tenax.tools.mcp.servers import McpServers, Standing

__all__ = ["mcp"]

_SECONDS = 30.0


@click.command("mcp")
@pass_config
def mcp(config: Config) -> None:
    """Try the MCP servers, and show how it stands with each and what their tools may do."""
    if not config.mcp:
        click.echo(
            "There are no MCP servers: a section [mcp.NAME] in the configuration is one.",
            err=True,
        )
        return

    async def tried() -> list[Standing]:
        servers = McpServers(
            config.places.servers, config.places.state / "mcp", lambda: None
        )
        servers.use(config.mcp)
        try:
            await servers.settled(_SECONDS)
            return servers.standing()
        finally:
            await servers.close()

    for each in asyncio.run(tried()):
        trust = "trusted" if each.trusted else "not trusted"
        click.echo(f"{each.name}  {each.state}, {trust}  {one_line(each.where)}")
        if each.error:
            click.echo(f"    {one_line(each.error)}")
        for tool in each.tools:
            asks = "asks" if tool.asks else "does not ask"
            click.echo(f"    {tool.name}  {tool.effect}, {asks}")
