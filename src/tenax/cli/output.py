"""Results on stdout: JSON for programs, exact text for pipes and files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final

import click
import msgspec

from tenax.cli.lines import clean
from tenax.errors import InvalidInput
from tenax.text import has_hidden

__all__ = [
    "TELL_SECONDS",
    "in_json",
    "json_option",
    "print_exactly",
    "print_json",
    "show_progress",
    "write_new_file",
]

TELL_SECONDS: Final = 0.2
"""How often a terminal shows the progress."""

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


def write_new_file(file: str, pieces: Iterable[bytes]) -> None:
    """Write pieces to a new file, and remove the file after a failure.

    Raises `InvalidInput` if the file exists or cannot be written.
    """
    try:
        with open(file, "xb") as target:  # noqa: PTH123  (a name as the person typed it)
            try:
                target.writelines(pieces)
            except BaseException:
                Path(file).unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise InvalidInput(
            f"{file} already exists.", hint="Choose another name."
        ) from None
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}.") from error


@contextmanager
def show_progress() -> Iterator[Callable[[str], None] | None]:
    """Show a line of progress in a terminal, from the second moment on. Without a terminal, yield `None`."""
    if not sys.stderr.isatty():
        yield None
        return
    due = monotonic() + TELL_SECONDS
    shown = False

    def show(line: str) -> None:
        nonlocal due, shown
        if monotonic() < due:
            return
        due, shown = monotonic() + TELL_SECONDS, True
        click.echo(f"\r{line}\x1b[K", nl=False, err=True)

    try:
        yield show
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
