"""The frame of every command: the group, the configuration, and how a command ends.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong use, 3 not set up, 130 stopped.

`tenax --version` and `tenax --help` import the module, so the module imports nothing slow to load.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    NamedTuple,
    NoReturn,
    ParamSpec,
    TypeVar,
)

import click

from tenax.errors import ConfigError, TenaxError
from tenax.text import replace_hidden

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tenax.clock import Timing
    from tenax.config import Config

P = ParamSpec("P")
R = TypeVar("R")

FAILED: Final = 1
NOT_SET_UP: Final = 3
STOPPED: Final = 130

_CHECKED: Final = "tenax.store_checked"
"""The key in the context of click: whether the version of the store was checked."""

unfinished_tasks: Final[set[object]] = set()
"""Tasks that did not end in time, added by `cli/loop.py`. The process ends without waiting for these tasks."""

_CANNOT_WRITE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of a write to a full disk or to a closed terminal."""

# Command names of other agents: accepted, not shown in --help.
HABITS: Final = {"sessions": "list"}


class LazyCommand(NamedTuple):
    """A command with a module imported when the command is called."""

    module: str
    attribute: str
    help: str
    slow_module: str = ""
    """A module that the command needs to run, but not to complete its arguments."""


class Commands(click.Group):
    """A group of commands imported when called. Also accepts the names in `HABITS`."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  (the arguments of click.Group)
        lazy_commands: Mapping[str, LazyCommand] | None = None,
        **kwargs: Any,  # noqa: ANN401  (the same)
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy_commands = lazy_commands or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy_commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = HABITS.get(cmd_name, cmd_name)
        if name not in self.commands and name in self._lazy_commands:
            lazy = self._lazy_commands[name]
            # Before `restore_interrupts`, so that Ctrl-C during the imports prints nothing.
            if lazy.slow_module and not ctx.resilient_parsing:
                import_module(lazy.slow_module)
            command = getattr(import_module(lazy.module), lazy.attribute)
            self.add_command(command, name)
        return super().get_command(ctx, name)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        """Return the commands that start with the typed text, without importing the modules, and the options."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  (not needed for --help)

        found = [
            CompletionItem(name, help=self._about(name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        # The method of `click.Group` would import every command.
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def _about(self, name: str) -> str:
        if name in self._lazy_commands:
            return self._lazy_commands[name].help
        return self.commands[name].get_short_help_str()

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """List the commands without importing the modules."""
        rows = [(name, self._about(name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def pass_config(command: Callable[Concatenate[Config, P], R]) -> Callable[P, R | None]:
    """Load the configuration when the command runs, and pass the configuration as the first argument.

    `--help` loads no configuration. Neither does a group called with a subcommand.
    """

    def with_config(*args: P.args, **kwargs: P.kwargs) -> R | None:
        context = click.get_current_context()
        if context.invoked_subcommand is not None:
            return None
        return command(load_config(context), *args, **kwargs)

    return update_wrapper(with_config, command)


def load_config(context: click.Context, *, context_files: bool = True) -> Config:
    """Load the configuration of the profile, with the `Timing` passed to `run`.

    The first call backs up a store of an earlier version.
    """
    from dataclasses import replace  # noqa: PLC0415  (not needed for --help)

    from tenax.config import load  # noqa: PLC0415  (the same)

    profile = context.find_root().params.get("profile")
    config = load(os.environ, profile=profile, context_files=context_files)
    config = replace(config, timing=context.obj) if context.obj else config
    root = context.find_root()
    if not root.meta.get(_CHECKED):
        from tenax.cli.upgrade import back_up_before_migration  # noqa: PLC0415  (loaded when it is called)

        root.meta[_CHECKED] = True
        back_up_before_migration(config)
    return config


def complete_conversation(
    context: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the id of a conversation, for `shell_complete`."""
    from tenax.cli.completion import find_conversations  # noqa: PLC0415  (loaded when it is called)

    return find_conversations(context, incomplete)


def restore_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, after `tenax.__main__` has loaded the command."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def tell_failure(message: str, hint: str = "") -> None:
    click.echo(replace_hidden(f"tenax: {message}", keep="\n"), err=True)
    if hint:
        click.echo(replace_hidden(hint, keep="\n"), err=True)


def open_streams() -> None:
    """Open /dev/null for every closed standard stream, so that no later file gets the descriptor of the stream.

    Characters missing in the encoding of stdout are replaced.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The stream stays open until the process ends.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def leave(code: int) -> NoReturn:
    """End the process, even if an unfinished task or a thread of a plugin is still running."""
    others = set(threading.enumerate()) - {threading.main_thread()}
    blocked = any(not thread.daemon for thread in others)
    if unfinished_tasks or blocked:
        # `os._exit` does not flush, so flush the logs and the streams here.
        import logging  # noqa: PLC0415  (--version does not need it)

        logging.shutdown()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(
    group: click.Group, args: Sequence[str] | None, timing: Timing | None = None
) -> int:
    """Run a command and return its exit code. A test may pass a `timing`.

    An expected failure becomes a sentence on stderr; a bug keeps its traceback.
    """
    try:
        code = group.main(args, prog_name="tenax", standalone_mode=False, obj=timing)
        sys.stdout.flush()
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        click.echo(replace_hidden(message.getvalue(), keep="\n"), nl=False, err=True)
        return error.exit_code
    except click.Abort:
        return STOPPED
    except TenaxError as error:
        tell_failure(str(error), error.hint)
        return NOT_SET_UP if isinstance(error, ConfigError) else FAILED
    except OSError as error:
        if error.errno not in {errno.EPIPE, *_CANNOT_WRITE}:
            raise
        # Python flushes stdout again at exit. Send the remaining bytes to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that closed the pipe needs no message.
        if error.errno != errno.EPIPE:
            tell_failure(f"Cannot write the output: {error.strerror}.")
        return FAILED
    return code if isinstance(code, int) else 0
