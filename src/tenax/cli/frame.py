"""What every command stands in: the group, the configuration, and how a failure is told.

Results go to stdout, the rest to stderr. Exit codes: 0 done, 1 failed, 2 wrong use, 3 not set up, 130 stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import update_wrapper
from typing import Concatenate, Final, NoReturn, ParamSpec, TypeVar

import click
import msgspec

from tenax.config import Config, load
from tenax.errors import ConfigError, TenaxError
from tenax.runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")

FAILED: Final = 1
NOT_SET_UP: Final = 3
STOPPED: Final = 130

json_option: Final = click.option("--json", "as_json", is_flag=True, help="As JSON, for a program.")

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


def with_runtime(config: Config, work: Callable[[Runtime], Awaitable[R]], *, starts: bool = False) -> R:
    """Do this with a runtime. One that `starts` has the memory providers."""

    async def done() -> R:
        runtime = Runtime(config, serves=False)
        try:
            if starts:
                await runtime.start()
            return await work(runtime)
        finally:
            await runtime.close()

    return asyncio.run(done())


def print_json(what: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(what)))


def tell_failure(message: str, hint: str = "") -> None:
    click.echo(f"tenax: {message}", err=True)
    if hint:
        click.echo(hint, err=True)


def leave(code: int) -> NoReturn:
    """End the process, also where a thread of somebody else's code (a memory provider) would keep it."""
    if any(not each.daemon for each in threading.enumerate() if each is not threading.main_thread()):
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
        error.show()
        return error.exit_code
    except click.Abort:
        return STOPPED
    except TenaxError as error:
        tell_failure(str(error), error.hint)
        return NOT_SET_UP if isinstance(error, ConfigError) else FAILED
    except BrokenPipeError:
        # The reader has gone. Python flushes stdout once more at exit: let it go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code if isinstance(code, int) else 0
