"""`tenax -p "..."`: one question, one answer.

The answer goes to stdout as it comes, everything else to stderr. With `--json` each change of the transcript is a line,
for a program at the other end of a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator

import click
import msgspec

from tenax.cli.frame import FAILED, STOPPED
from tenax.cli.lines import one_line
from tenax.config import Config
from tenax.errors import InvalidInput
from tenax.runtime import How, Runtime
from tenax.views.transcript import Change, Grow, Put, Row

__all__ = ["ask"]

_encode = msgspec.json.Encoder().encode


def ask(config: Config, words: str, *, conversation: str | None, how: How, as_json: bool) -> int:
    """Ask, print the answer, and say how it went."""
    if words == "-":
        words = sys.stdin.read()
    if not words.strip():
        raise InvalidInput("The message is empty.", hint='tenax -p "your question"')
    return asyncio.run(_ask(config, words, conversation, how, as_json=as_json))


async def _ask(config: Config, words: str, conversation: str | None, how: How, *, as_json: bool) -> int:
    printer = _Lines() if as_json else _Words()
    runtime = Runtime(config, asks=False, on_held=printer.held)
    runtime.agent  # noqa: B018  (what is not set up is said before anything is stored)
    async with runtime:
        name = conversation or await runtime.new(source="cli")
        stored = await runtime.submit(name, words, how=how)
        printer.began(name, stored.seq)
        with _stopping(asyncio.current_task()):
            try:
                code = await _follow(runtime, name, stored.seq, printer)
                await runtime.lanes.idle(name)
            except asyncio.CancelledError:
                await runtime.stop(name)
                await runtime.lanes.idle(name)
                return STOPPED
        return code


async def _follow(runtime: Runtime, conversation: str, seq: int, printer: _Words | _Lines) -> int:
    """Print what the run writes, until it is over."""
    shown = asyncio.Condition()
    last = seq - 1

    async def show() -> None:
        nonlocal last
        async for at, changes in runtime.follow(conversation, seq - 1):
            printer.changed(at, changes)
            async with shown:
                last = at
                shown.notify_all()

    showing = asyncio.create_task(show())
    try:
        await runtime.finished(conversation, seq)
        head = (await runtime.journal.head(conversation)).head
        async with shown:
            await shown.wait_for(lambda: last >= head or showing.done())
    finally:
        showing.cancel()
    return printer.ended()


class _Words:
    """The answer as text."""

    def __init__(self) -> None:
        self._printed: dict[str, int] = {}
        self._failed = ""
        self._conversation = ""
        self._middle = False

    def began(self, conversation: str, _seq: int) -> None:
        self._conversation = conversation
        click.echo(f"conversation {conversation}", err=True)

    def held(self, _conversation: str, count: int) -> None:
        if count:
            click.echo(f"tenax: the store does not answer; {count:,} bytes are held on this host.", err=True)

    def changed(self, _seq: int, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case Put(Row(kind="assistant") as row):
                    self._print(row.id, row.text)
                case Grow(name, offset, text) if self._printed.get(name) == offset:
                    self._print(name, text, offset)
                case Put(Row(kind="tool") as row) if row.state != "waiting":
                    self._aside(f"[{row.name} {row.state}]")
                case Put(Row(kind="notice", text=text)):
                    self._aside(one_line(text))
                case Put(Row(kind="marker", state=state, text=text)) if state != "resumed":
                    self._failed = one_line(text) or state

    def _print(self, name: str, text: str, offset: int = 0) -> None:
        new = text[max(0, self._printed.get(name, 0) - offset) :]
        if new and self._middle and name not in self._printed:
            click.echo()
        self._printed[name] = max(self._printed.get(name, 0), offset + len(text))
        if new:
            self._middle = True
            click.echo(new, nl=False)
            sys.stdout.flush()

    def _aside(self, line: str) -> None:
        click.echo(line, err=True)

    def ended(self) -> int:
        if self._middle:
            click.echo()
        if self._failed:
            click.echo(f"tenax: {self._failed}", err=True)
            click.echo(f"go on: tenax -p -c {self._conversation} ...", err=True)
            return FAILED
        return 0


class _Lines:
    """Every change as a line of JSON."""

    def __init__(self) -> None:
        self._failed = False

    def began(self, conversation: str, seq: int) -> None:
        click.echo(_encode({"type": "began", "conversation": conversation, "seq": seq}))

    def held(self, conversation: str, count: int) -> None:
        click.echo(_encode({"type": "held", "conversation": conversation, "bytes": count}))

    def changed(self, seq: int, changes: list[Change]) -> None:
        for change in changes:
            click.echo(_encode({"seq": seq, **msgspec.to_builtins(change)}))
            match change:
                case Put(Row(kind="marker", state=state)) if state != "resumed":
                    self._failed = True
        sys.stdout.flush()

    def ended(self) -> int:
        return FAILED if self._failed else 0


@contextlib.contextmanager
def _stopping(task: asyncio.Task[int] | None) -> Iterator[None]:
    """Ctrl-C and a polite kill stop the run, and what there is of it is kept."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, lambda: task.cancel() if task is not None else None)
    try:
        yield
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
