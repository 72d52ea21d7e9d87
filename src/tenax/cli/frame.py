"""What every command stands in: the group, the configuration, and how a failure is told.

Results go to stdout, the rest to stderr. Exit codes: 0 done, 1 failed, 2 wrong use, 3 not set up, 130 stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import update_wrapper
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

import click
import msgspec

from tenax.cli.lines import clean, visible
from tenax.config import Config, load
from tenax.errors import ConfigError, TenaxError
from tenax.runtime.runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")

FAILED: Final = 1
NOT_SET_UP: Final = 3
STOPPED: Final = 130

_END_SECONDS: Final = 1.0
_left: Final[set[asyncio.Task[Any]]] = set()
"""Tasks that did not end in time. They are held, because asyncio complains of one that is forgotten."""

_CANNOT_WRITE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What a write says where there is no room, or no terminal any more."""

_OBEYED: Final = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What JSON leaves as it is, and a terminal may obey."""

json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="As JSON, for a program."
)

# Names that people bring along from elsewhere: accepted, not advertised.
HABITS: Final = {"sessions": "list"}


class Commands(click.Group):
    """A group that knows old habits."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, HABITS.get(cmd_name, cmd_name))


def pass_config(command: Callable[Concatenate[Config, P], R]) -> Callable[P, R | None]:
    """Load the configuration and pass it first. Only when the command runs: help needs none, and a group leaves it to its commands."""

    def with_config(*args: P.args, **kwargs: P.kwargs) -> R | None:
        context = click.get_current_context()
        if context.invoked_subcommand is not None:
            return None
        profile = context.find_root().params.get("profile")
        return command(load(os.environ, profile=profile), *args, **kwargs)

    return update_wrapper(with_config, command)


def with_runtime(
    config: Config, work: Callable[[Runtime], Awaitable[R]], *, starts: bool = False
) -> R:
    """Do this with a runtime. One that `starts` has the memory providers."""

    async def done() -> R:
        runtime = Runtime(config, serves=False)
        try:
            if starts:
                await runtime.start()
            return await work(runtime)
        finally:
            await runtime.close()

    return in_loop(done())


def in_loop(work: Coroutine[Any, Any, R]) -> R:
    """As `asyncio.run`, but what cannot be ended (an append to a store that is away) is waited for only for a moment."""

    async def bounded() -> R:
        try:
            return await work
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                _, left = await asyncio.wait(left, timeout=_END_SECONDS)
            for task in left:
                _left.add(task)
                asyncio.tasks._unregister_task(task)  # noqa: SLF001  (so that `asyncio.run` does not wait for it)

    return asyncio.run(bounded())


def in_json(what: object) -> bytes:
    """JSON in a line, in UTF-8 wherever it goes, with nothing in it that a terminal would obey."""
    text = msgspec.json.encode(what).decode()
    return _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], text).encode()


def print_json(what: object) -> None:
    click.echo(msgspec.json.format(in_json(what)))


def print_exactly(text: str) -> None:
    """Print the very characters to a pipe or a file, and to a terminal none that it would obey."""
    click.echo(clean(text) if sys.stdout.isatty() else text, nl=False, color=True)


def tell_failure(message: str, hint: str = "") -> None:
    click.echo(visible(f"tenax: {message}", but="\n"), err=True)
    if hint:
        click.echo(visible(hint, but="\n"), err=True)


def open_streams() -> None:
    """Let a stream that is closed be nowhere: otherwise the next file that is opened would take its number.

    A character that stdout's encoding does not have is replaced.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115  (it stays open)
            os.set_inheritable(getattr(sys, name).fileno(), True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def leave(code: int) -> NoReturn:
    """End the process, also where a thread of somebody else's code (a memory provider) or a task would keep it."""
    if _left or any(
        not each.daemon
        for each in threading.enumerate()
        if each is not threading.main_thread()
    ):
        logging.shutdown()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(group: click.Group, args: Sequence[str] | None) -> int:
    """Run a command and tell its failure in a sentence. A surprise is not caught: it is a bug."""
    try:
        code = group.main(args, prog_name="tenax", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        click.echo(visible(said.getvalue(), but="\n"), nl=False, err=True)
        return error.exit_code
    except click.Abort:
        return STOPPED
    except TenaxError as error:
        tell_failure(str(error), error.hint)
        return NOT_SET_UP if isinstance(error, ConfigError) else FAILED
    except OSError as error:
        if error.errno not in {errno.EPIPE, *_CANNOT_WRITE}:
            raise
        # Python flushes stdout once more at exit: let it go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:  # a reader that has gone needs no word
            tell_failure(f"What is printed cannot be written: {error.strerror}.")
        return FAILED
    return code if isinstance(code, int) else 0
