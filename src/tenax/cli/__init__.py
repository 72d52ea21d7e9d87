"""The command line. Each command is a file here, added to the group below."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tenax.cli.doctor import examine
from tenax.cli.frame import Commands, run
from tenax.cli.list import list_conversations


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--profile", metavar="NAME", help="Use the store and settings of this profile.")
@click.version_option(package_name="tenax", message="%(prog)s %(version)s")
def tenax(profile: str | None) -> None:
    """A self-hosted AI agent that never loses the thread."""


tenax.add_command(examine)
tenax.add_command(list_conversations)


def main(args: Sequence[str] | None = None) -> None:
    """The `tenax` command."""
    sys.exit(run(tenax, args))
