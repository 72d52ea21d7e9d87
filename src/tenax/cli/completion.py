"""`tenax completion`: the script with which a shell completes commands, options and conversations.

The shell starts `tenax` at every Tab, so this module imports nothing slow to load.
"""

from __future__ import annotations

import contextlib
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from tenax.cli.frame import load_config
from tenax.errors import TenaxError

__all__ = ["completion", "find_conversations"]

_VARIABLE: Final = "_TENAX_COMPLETE"
_READ_MAX: Final = 200
"""The number of conversations that are searched, from the newest."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    bash, in ~/.bashrc: eval "$(tenax completion bash)"

    zsh, in ~/.zshrc: eval "$(tenax completion zsh)"

    fish: tenax completion fish > ~/.config/fish/completions/tenax.fish
    """
    complete = get_completion_class(shell)
    if complete is None:
        raise click.UsageError(f"Completion for {shell} is not available.")
    group = context.find_root().command
    click.echo(complete(group, {}, "tenax", _VARIABLE).source())


def find_conversations(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the newest conversations with an id that starts with the typed text.

    If there is none, return the conversation with the typed text in its title, if exactly one has it. An error gives
    no completions, because the shell would print the message into the input line.
    """
    with contextlib.suppress(TenaxError, OSError):
        titles = _read_titles(context)
        ids = [name for name in titles if name.startswith(incomplete)]
        if not ids:
            typed = incomplete.casefold()
            found = [
                name for name, title in titles.items() if typed in title.casefold()
            ]
            # A shell replaces the typed text by the common beginning of several ids.
            ids = found if len(found) == 1 else []
        return [CompletionItem(name, help=titles[name]) for name in ids]
    return []


def _read_titles(context: click.Context) -> dict[str, str]:
    """Return the titles, or first words, of the newest conversations, by id."""
    from tenax.journal import exists  # noqa: PLC0415  (not needed for the script)
    from tenax.journal import open as open_journal  # noqa: PLC0415  (the same)
    from tenax.runtime.list_entry import find_first_words  # noqa: PLC0415  (the same)
    from tenax.text import to_one_line  # noqa: PLC0415  (the same)

    config = load_config(context)
    if not exists(config.store_url):
        return {}
    with open_journal(
        config.store_url, witness=config.directories.witness, timing=config.timing
    ) as journal:
        return {
            summary.conversation: to_one_line(summary.title or "")
            or find_first_words(journal, summary.conversation)
            or ""
            for summary in journal.conversations(limit=_READ_MAX)
        }
