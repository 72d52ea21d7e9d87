"""`tenax -p "..."`: one question, one answer.

The answer goes to stdout as it grows, everything else to stderr. With `--json`, stdout gets a line of JSON per change
of the transcript.
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
from typing import Any, NamedTuple

import click
import msgspec

from tenax.agent.attachments import read_file
from tenax.assembly import Runtime
from tenax.cli.frame import FAILED, STOPPED, tell_failure
from tenax.cli.lines import AT_ITS_LONGEST, noted
from tenax.cli.loop import in_loop
from tenax.cli.output import in_json, print_exactly
from tenax.config import Config
from tenax.errors import ConfigError, InvalidInput, StoreError, StoreUnavailable
from tenax.events import BODY_BYTES_MAX, Mode
from tenax.journal.journal import TailPosition
from tenax.parts import Part, Text
from tenax.runtime.runtime import How
from tenax.text import to_one_line
from tenax.tools.shell.sandbox import Sandbox
from tenax.views.transcript import Change, Drop, Grow, Put, Row

__all__ = ["ask"]

_WAITING = (
    "Waiting for input on stdin; press Ctrl-D or use `</dev/null` if there is none."
)
_CANCELLED = "The message was cancelled before its answer began."
_STOP_SECONDS = 3.0
_AWAY_SECONDS = 0.5


def ask(
    config: Config,
    words: str,
    *,
    conversation: str | None,
    how: How,
    as_json: bool,
    files: Sequence[Path] = (),
    mode: Mode | None = None,
    folder: str = "",
) -> int:
    """Send the prompt, print the answer, and return the exit code.

    `mode` is another mode for the conversation. With `folder`, the conversation is a new one in the project with the
    folder.
    """
    if words == "-":
        words = _read_stdin(config)
    elif _is_piped():
        words = "\n\n".join(
            text for text in (words, _read_stdin(config)) if text.strip()
        )
    attached = [(file.name, read_file(file, config.tools_folder)) for file in files]
    if not words.strip() and not attached:
        raise InvalidInput("The message is empty.", hint='tenax -p "your question"')
    printer = _Lines() if as_json else _Words()
    # The first check of the sandbox starts a program, so check before the event loop runs. The result is kept for the
    # process.
    with contextlib.suppress(ConfigError):
        Sandbox().why_not()
    message = _Message(words, attached, how, mode, folder)
    return in_loop(_ask(config, printer, conversation, message))


class _Message(NamedTuple):
    """The message, and the choices for its conversation."""

    words: str
    attached: Sequence[tuple[str, bytes]]
    how: How
    mode: Mode | None
    folder: str


def _is_piped() -> bool:
    """Return whether stdin is a file, a pipe or a socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        # Stdin is missing or is not a file.
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _read_stdin(config: Config) -> str:
    """Read stdin to its end. After some seconds without input, print a note."""
    seconds = config.timing.stdin_seconds
    try:
        descriptor = sys.stdin.fileno()
        # A program sharing stdin may have made stdin non-blocking.
        os.set_blocking(descriptor, True)
        if (
            not sys.stdin.isatty()
            and not select.select([descriptor], [], [], seconds)[0]
        ):
            click.echo(_WAITING, err=True)
    except (AttributeError, OSError, ValueError):
        # Stdin is missing or is not a file.
        pass
    try:
        data = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    except (AttributeError, OSError):
        # Stdin may be open only for writing.
        return ""
    if len(data) > BODY_BYTES_MAX:
        raise InvalidInput(
            f"The input on stdin is too large. The limit is {BODY_BYTES_MAX:,} bytes."
        )
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InvalidInput("The input on stdin is not UTF-8 text.") from error


async def _ask(
    config: Config,
    printer: _Words | _Lines,
    conversation: str | None,
    message: _Message,
) -> int:
    runtime = Runtime(config, asks=False, serves=False, on_held=printer.held)
    try:
        runtime.agent  # noqa: B018  (what is not set up is said before anything is stored)
    except ConfigError:
        await runtime.close()
        raise
    async with runtime:
        words = message.words
        parts: list[Part] = [Text(words)] if words.strip() else []
        parts += [await runtime.attachments.put(*file) for file in message.attached]
        name = conversation or await _new(runtime, message)
        if conversation is not None:
            if message.mode is not None:
                await runtime.choices.configure(conversation, mode=message.mode)
            setting = await runtime.agents.setting(conversation)
            if note := runtime.agents.explain_model(setting):
                click.echo(note, err=True)
        try:
            stored = await runtime.submit(name, parts, how=message.how)
        except InvalidInput:
            # The conversation was created only for this message.
            if conversation is None:
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


async def _new(runtime: Runtime, message: _Message) -> str:
    project = ""
    if message.folder:
        project = (await runtime.projects.of_folder(message.folder)).id
    return await runtime.new(source="cli", mode=message.mode or "ask", project=project)


async def _follow(
    runtime: Runtime, conversation: str, seq: int, printer: _Words | _Lines
) -> int:
    """Print the output of the run until the run ends."""
    # Start before a fact: a crash never loses facts, so the position stays valid.
    position = TailPosition(seq - 1, runtime.journal.incarnation)

    async def show() -> None:
        following = runtime.follow(conversation, position, until_settled=seq)
        async with contextlib.aclosing(following):
            async for at, changes in following:
                printer.changed(at, changes)
                for row in printer.denied(changes):
                    if (await runtime.journal.choice(conversation)).mode == "plan":
                        continue
                    rule = runtime.rule_for(conversation, row.name, row.arguments)
                    if rule is not None:
                        said = f"No rule allows this. To allow it: {rule.command}"
                        click.echo(said, err=True)

    await _while_away(show)
    await runtime.workers.idle(conversation)
    return printer.ended()


async def _while_away(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, and run `work` again as long as the store is unavailable."""
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(_AWAY_SECONDS)


async def _stopped(
    runtime: Runtime, conversation: str, seq: int, following: asyncio.Future[int]
) -> None:
    """Stop the run if the run answers the message. A message queued behind another run stays queued."""
    # While the store is away, the run ends together with the process.
    with contextlib.suppress(StoreError):
        run = (await runtime.workers.turns(conversation)).run
        if run is not None and seq in run.inputs:
            await runtime.stop(conversation)
            await following


class _Printer:
    """The common base of both printers: finds the rows of the run answering the message."""

    def __init__(self) -> None:
        self._conversation = ""
        self._seq = 0
        self._from: tuple[int, int, int] | None = None
        self._run: str | None = None
        self._failed = ""

    def began(self, conversation: str, seq: int) -> None:
        self._conversation, self._seq = conversation, seq

    def _fail_if_cancelled(self) -> None:
        """Note that no run has taken the message. A message withdrawn before the first look is never a row."""
        if self._from is None:
            self._failed = self._failed or _CANCELLED

    def denied(self, changes: list[Change]) -> Iterator[Row]:
        """Yield the denied tool calls. In this mode nobody can approve a call."""
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
    """Prints the answer as text."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: dict[str, int] = {}
        self._states: dict[str, str] = {}
        """The printed states of tool calls."""
        self._middle = False
        self._behind_words = False
        self._full = False
        self._away = False

    def began(self, conversation: str, seq: int) -> None:
        super().began(conversation, seq)
        click.echo(f"conversation {conversation}", err=True)

    def held(self, _conversation: str, count: int) -> None:
        """Print a note when the store stops responding, and when the store responds again."""
        if bool(count) != self._away:
            self._away = bool(count)
            away = (
                "is not responding. The answer is saved on this host until it is back"
            )
            self._aside(f"tenax: the store {away if count else 'responds again'}.")

    def changed(self, _seq: int, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case Drop(name) if name == str(self._seq):
                    self._failed = _CANCELLED
                case Put(row) if self._is_mine(row):
                    self._print_row(row)
                case Grow(name, offset, text, "text") if (
                    self._printed.get(name, -1) >= offset
                ):
                    self._print(name, text, offset)

    def _print_row(self, row: Row) -> None:
        match row.kind:
            case "assistant":
                self._print(row.id, row.text, late=row.late)
                self._full = row.state == "full"
            case "tool" if row.state not in {"waiting", self._states.get(row.id)}:
                self._states[row.id] = row.state
                self._aside(to_one_line(f"[{row.name} {row.state}]"))
            case "notice" | "files" if row.state not in {"open", "undone"}:
                self._aside(to_one_line(row.text))
            case "memory":
                self._aside(noted(row))
            case "marker" if row.state != "resumed":
                self._failed = to_one_line(row.text) or row.state

    def _aside(self, words: str) -> None:
        """Print a line on stderr. If the terminal shows the answer too, start on a new line."""
        if self._behind_words and sys.stdout.isatty() and sys.stderr.isatty():
            click.echo(err=True)
        self._behind_words = False
        click.echo(words, err=True)

    def _print(
        self, name: str, text: str, offset: int = 0, *, late: bool = False
    ) -> None:
        """Print the new part of a text. Late output continues the text of its run without a line break."""
        new = text[max(0, self._printed.get(name, 0) - offset) :]
        if new and self._middle and not late and name not in self._printed:
            click.echo()
        self._printed[name] = max(self._printed.get(name, 0), offset + len(text))
        if new:
            self._middle = self._behind_words = True
            print_exactly(new)
            sys.stdout.flush()

    def ended(self) -> int:
        self._fail_if_cancelled()
        if self._middle:
            click.echo()
        if self._full:
            click.echo(AT_ITS_LONGEST, err=True)
        if self._failed:
            tell_failure(
                self._failed, f'To continue: tenax -p "..." -c {self._conversation}'
            )
            return FAILED
        return 0


class _Lines(_Printer):
    """Prints every change as a line of JSON."""

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
                case Drop(name) if name == str(self._seq):
                    self._failed = _CANCELLED
                case Put(row) if (
                    self._is_mine(row)
                    and row.kind == "marker"
                    and row.state != "resumed"
                ):
                    self._failed = row.state
        sys.stdout.flush()

    def ended(self) -> int:
        self._fail_if_cancelled()
        return FAILED if self._failed else 0


@contextlib.contextmanager
def _stopping() -> Iterator[asyncio.Future[None]]:
    """Yield a future resolved by Ctrl-C or SIGTERM. A second signal has no effect."""
    loop = asyncio.get_running_loop()
    asked = loop.create_future()

    def stop() -> None:
        if not asked.done():
            asked.set_result(None)

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop)
    try:
        yield asked
    finally:
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(signal_number)
