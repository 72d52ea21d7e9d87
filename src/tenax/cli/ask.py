"""`tenax -p "..."`: one question, one answer.

The answer goes to stdout as it comes, everything else to stderr. With `--json` each change of the transcript is a line,
for a program at the other end of a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from tenax.agent.attachments import read_file
from tenax.cli.frame import (
    FAILED,
    STOPPED,
    in_json,
    in_loop,
    print_exactly,
    tell_failure,
)
from tenax.cli.lines import AT_ITS_LONGEST, noted, one_line
from tenax.config import Config
from tenax.errors import ConfigError, InvalidInput, StoreError, StoreUnavailable
from tenax.events import BODY_BYTES_MAX
from tenax.journal.journal import Place
from tenax.parts import Part, Text
from tenax.runtime.runtime import How, Runtime
from tenax.views.transcript import Change, Grow, Put, Row

__all__ = ["ask"]

_STDIN_SECONDS = 3.0
"""How long a pipe may be silent until the person is told that it is waited for."""
_WAITING = (
    "Waiting for input on stdin; press Ctrl-D or use `</dev/null` if there is none."
)
_STOP_SECONDS = 3.0
_AWAY_SECONDS = 0.5
_LOOK_SECONDS = 0.5


def ask(
    config: Config,
    words: str,
    *,
    conversation: str | None,
    how: How,
    as_json: bool,
    context_files: bool,
    files: Sequence[Path] = (),
) -> int:
    """Ask, print the answer, and say how it went."""
    if words == "-":
        words = _read_stdin()
    elif _is_piped():
        words = "\n\n".join(text for text in (words, _read_stdin()) if text.strip())
    attached = [(each.name, read_file(each, config.tools_folder)) for each in files]
    if not words.strip() and not attached:
        raise InvalidInput("The message is empty.", hint='tenax -p "your question"')
    printer = _Lines() if as_json else _Words()
    return in_loop(
        _ask(
            config,
            printer,
            words,
            conversation,
            how,
            attached,
            context_files=context_files,
        )
    )


def _is_piped() -> bool:
    """Whether text comes through stdin: from a file, a pipe or a socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is no stdin, or it is no file
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _read_stdin() -> str:
    """Read stdin to its end. Where nothing comes for a while, say what is waited for."""
    try:
        descriptor = sys.stdin.fileno()
        # a program that shares it may have changed that
        os.set_blocking(descriptor, True)
        if (
            not sys.stdin.isatty()
            and not select.select([descriptor], [], [], _STDIN_SECONDS)[0]
        ):
            click.echo(_WAITING, err=True)
    except (AttributeError, OSError, ValueError):  # there is no stdin, or it is no file
        pass
    try:
        data = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    except (AttributeError, OSError):  # it was opened for writing, for one
        return ""
    if len(data) > BODY_BYTES_MAX:
        raise InvalidInput(
            f"What came through stdin is too large: at most {BODY_BYTES_MAX:,} bytes are taken."
        )
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InvalidInput("What came through stdin is not UTF-8 text.") from error


async def _ask(
    config: Config,
    printer: _Words | _Lines,
    words: str,
    conversation: str | None,
    how: How,
    attached: Sequence[tuple[str, bytes]],
    *,
    context_files: bool,
) -> int:
    runtime = Runtime(
        config,
        asks=False,
        serves=False,
        on_held=printer.held,
        context_files=context_files,
    )
    try:
        runtime.agent  # noqa: B018  (what is not set up is said before anything is stored)
    except ConfigError:
        await runtime.close()
        raise
    async with runtime:
        parts: list[Part] = [Text(words)] if words.strip() else []
        parts += [await runtime.attachments.put(*each) for each in attached]
        name = conversation or await runtime.new(source="cli")
        try:
            stored = await runtime.submit(name, parts, how=how)
        except InvalidInput:
            if conversation is None:  # it was made for these words
                await runtime.delete(name)
            raise
        printer.began(name, stored.seq)
        with _stopping() as stop:
            following = asyncio.create_task(_follow(runtime, name, stored.seq, printer))
            both: set[asyncio.Future[Any]] = {following, stop}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return following.result()
            stopping = asyncio.create_task(
                _stopped(runtime, name, stored.seq, following)
            )
            await asyncio.wait({stopping}, timeout=_STOP_SECONDS)
            following.cancel()
            return STOPPED


async def _follow(
    runtime: Runtime, conversation: str, seq: int, printer: _Words | _Lines
) -> int:
    """Print what the run writes, until it is over."""
    journal, printed = runtime.journal, asyncio.Event()
    place = Place(seq - 1, journal.incarnation)  # before a fact, which no crash takes

    async def show() -> None:
        async for at, changes in runtime.follow(conversation, place):
            printer.changed(at, changes)
            for row in printer.denied(changes):
                rule = runtime.rule_for(conversation, row.name, row.arguments)
                if rule is not None:
                    click.echo(
                        f"No rule allows this. To allow it: {rule.command}", err=True
                    )
            printed.set()

    async def wait() -> None:
        await runtime.finished(conversation, seq)
        head = await journal.head(conversation)
        while place.after < head.head or place.incarnation != journal.incarnation:
            printed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await printed.wait()
            # after a crash of the store it is another
            head = await journal.head(conversation)

    both = [asyncio.create_task(_while_away(each)) for each in (wait, show)]
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()  # that there is nobody to show it to, for one
    finally:
        for each in both:
            each.cancel()
    await runtime.lanes.idle(conversation)
    return printer.ended()


async def _while_away(work: Callable[[], Awaitable[None]]) -> None:
    """Do this, however long the store is away."""
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(_AWAY_SECONDS)


async def _stopped(
    runtime: Runtime, conversation: str, seq: int, following: asyncio.Future[int]
) -> None:
    """Stop the run, if it is the one that answers this; a message that waits behind another's run goes on waiting."""
    # while the store is away it ends with this process
    with contextlib.suppress(StoreError):
        run = (await runtime.lanes.turns(conversation)).run
        if run is not None and seq in run.inputs:
            await runtime.stop(conversation)
            await following


class _Printer:
    """What both ways of printing know: the rows of the answer, which are those of the run that took the message."""

    def __init__(self) -> None:
        self._conversation = ""
        self._seq = 0
        self._from: tuple[int, int, int] | None = None
        self._run: str | None = None
        self._failed = ""

    def began(self, conversation: str, seq: int) -> None:
        self._conversation, self._seq = conversation, seq

    def denied(self, changes: list[Change]) -> Iterator[Row]:
        """Calls of tools that were denied, because nobody is asked here."""
        for change in changes:
            match change:
                case Put(row) if (
                    row.kind == "tool" and row.state == "denied" and self._is_mine(row)
                ):
                    yield row

    def _is_mine(self, row: Row) -> bool:
        if row.id == str(self._seq) and row.state == "":
            self._from = row.key
        if self._from is None or row.run is None or row.key < self._from:
            return False
        self._run = self._run or row.run
        return row.run == self._run


class _Words(_Printer):
    """The answer as text."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: dict[str, int] = {}
        self._middle = False
        self._behind_words = False
        self._full = False
        self._away = False

    def began(self, conversation: str, seq: int) -> None:
        super().began(conversation, seq)
        click.echo(f"conversation {conversation}", err=True)

    def held(self, _conversation: str, count: int) -> None:
        """Said when it begins and when it is over, not for every word."""
        if bool(count) != self._away:
            self._away = bool(count)
            meanwhile = "does not answer; what comes meanwhile is held on this host"
            self._aside(f"tenax: the store {meanwhile if count else 'answers again'}.")

    def changed(self, _seq: int, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case Put(row) if self._is_mine(row):
                    self._put(row)
                case Grow(name, offset, text) if self._printed.get(name, -1) >= offset:
                    self._print(name, text, offset)

    def _put(self, row: Row) -> None:
        match row.kind:
            case "assistant":
                self._print(row.id, row.text, late=row.late)
                self._full = row.state == "full"
            case "tool" if row.state != "waiting":
                self._aside(one_line(f"[{row.name} {row.state}]"))
            case "notice" | "files" if row.state not in {"open", "undone"}:
                self._aside(one_line(row.text))
            case "memory":
                self._aside(noted(row))
            case "marker" if row.state != "resumed":
                self._failed = one_line(row.text) or row.state

    def _aside(self, words: str) -> None:
        """A line on stderr: where that is the terminal with the answer, not behind the words of it."""
        if self._behind_words and sys.stdout.isatty() and sys.stderr.isatty():
            click.echo(err=True)
        self._behind_words = False
        click.echo(words, err=True)

    def _print(
        self, name: str, text: str, offset: int = 0, *, late: bool = False
    ) -> None:
        """What came late goes on where its run was cut off."""
        new = text[max(0, self._printed.get(name, 0) - offset) :]
        if new and self._middle and not late and name not in self._printed:
            click.echo()
        self._printed[name] = max(self._printed.get(name, 0), offset + len(text))
        if new:
            self._middle = self._behind_words = True
            print_exactly(new)
            sys.stdout.flush()

    def ended(self) -> int:
        if self._middle:
            click.echo()
        if self._full:
            click.echo(AT_ITS_LONGEST, err=True)
        if self._failed:
            tell_failure(self._failed, f'go on: tenax -p "..." -c {self._conversation}')
            return FAILED
        return 0


class _Lines(_Printer):
    """Every change as a line of JSON."""

    def began(self, conversation: str, seq: int) -> None:
        super().began(conversation, seq)
        click.echo(in_json({"type": "began", "conversation": conversation, "seq": seq}))

    def held(self, conversation: str, count: int) -> None:
        click.echo(
            in_json({"type": "held", "conversation": conversation, "bytes": count})
        )

    def changed(self, seq: int, changes: list[Change]) -> None:
        for change in changes:
            click.echo(in_json({"seq": seq, **msgspec.to_builtins(change)}))
            match change:
                case Put(row) if (
                    self._is_mine(row)
                    and row.kind == "marker"
                    and row.state != "resumed"
                ):
                    self._failed = row.state
        sys.stdout.flush()

    def ended(self) -> int:
        return FAILED if self._failed else 0


@contextlib.contextmanager
def _stopping() -> Iterator[asyncio.Future[None]]:
    """Ctrl-C and a polite kill stop the run, and what there is of it is kept. A second one changes nothing."""
    loop = asyncio.get_running_loop()
    asked = loop.create_future()

    def stop() -> None:
        if not asked.done():
            asked.set_result(None)

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop)
    try:
        yield asked
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
