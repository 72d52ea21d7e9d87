"""`tenax`: the chat in a terminal.

Finished text is printed once and stays in the scrollback of the terminal. Unfinished text (the end of a growing answer,
queued messages, a question) is drawn above the input line and redrawn. Everything comes from the journal, so the
terminal also shows events written by the page or another process in the same conversation.

`screen` turns rows into text, `prompt` is the input line, `chat` executes the input, `commands` has the slash commands.
"""

from __future__ import annotations

import sys

import click
from prompt_toolkit.utils import is_dumb_terminal

from tenax.cli.loop import in_loop
from tenax.cli.talk.chat import TerminalChat
from tenax.config.watch import SettingsFile
from tenax.errors import ConfigError

__all__ = ["talk"]


def talk(
    settings: SettingsFile, *, conversation: str | None, new: bool, folder: str = ""
) -> int:
    """Chat until the person leaves: in the given conversation, in a new conversation, or in the last conversation.

    With `folder`, the chat is a new conversation in the project with the folder.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or is_dumb_terminal():
        raise click.UsageError(
            'The chat needs a terminal. Without one, use: tenax -p "..."'
        )
    if settings.config.model is None:
        raise ConfigError(
            "No model is set up.",
            hint="Run `tenax setup` to set one up, or `tenax demo` to try Tenax without one.",
        )
    return in_loop(TerminalChat.talk(settings, conversation, new=new, folder=folder))
