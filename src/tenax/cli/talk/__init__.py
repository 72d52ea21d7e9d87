"""`tenax`: the talk in a terminal.

What stands above the input line is printed once and stays in the terminal's scrollback; what may still change (the end of
an answer that is being written, messages that wait, a question) is drawn above the input line and drawn anew. All of it
comes from the journal, so what the page or another process writes in the same conversation is shown like one's own.

`screen` turns rows into text, `prompt` is the input line, `face` does what is typed, `commands` are the words with a slash.
"""

from __future__ import annotations

import sys

import click
from prompt_toolkit.utils import is_dumb_terminal

from tenax.cli.frame import in_loop
from tenax.cli.talk.face import Face
from tenax.config import Config
from tenax.errors import ConfigError

__all__ = ["talk"]


def talk(
    config: Config, *, conversation: str | None, new: bool, context_files: bool
) -> int:
    """Talk until the person leaves: in this conversation, in a new one, or in the last one."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or is_dumb_terminal():
        raise click.UsageError(
            'A talk needs a terminal. Without one, ask with: tenax -p "..."'
        )
    if config.model is None:
        raise ConfigError(
            "No model is set up, so nobody can answer.",
            hint="Run `tenax setup` to set one up, or `tenax demo` to try Tenax without one.",
        )
    return in_loop(
        Face.talk(config, conversation, new=new, context_files=context_files)
    )
