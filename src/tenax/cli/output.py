"""Results on stdout: JSON for programs, exact text for pipes and files."""

from __future__ import annotations

import json
import sys
from typing import Final

import click
import msgspec

from tenax.cli.lines import clean
from tenax.text import has_hidden

__all__ = ["in_json", "json_option", "print_exactly", "print_json"]

json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Output JSON."
)


def in_json(value: object) -> bytes:
    """Encode `value` as a single line of UTF-8 JSON without terminal control characters."""
    text = msgspec.json.encode(value).decode()
    if has_hidden(text):
        text = "".join(_escape(char) if has_hidden(char) else char for char in text)
    return text.encode()


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1]


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    click.echo(msgspec.json.format(in_json(value)))


def print_exactly(text: str) -> None:
    """Print `text` unchanged to a pipe or a file, and without control characters to a terminal."""
    click.echo(clean(text) if sys.stdout.isatty() else text, nl=False, color=True)
