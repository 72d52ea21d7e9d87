"""Command lines in the conversation's folder, in the foreground and in the background, inside the sandbox (`sandbox.py`).

A command gets nothing but its text: no input, no environment of ours. What it says is bounded while it runs, and what
reaches the model is text: no control characters, nothing binary, no secrets. Where there is no sandbox the commands run
all the same, and a person is asked before each of them.

A background process ends with us, whatever ends us. Until its end is told in its conversation, a file says what is to be
told there; who finds the file without its owner tells it. The lock on the file is the owner's life.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import logging
import os
import re
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from tenax.errors import TenaxError, ToolFailed
from tenax.journal import LOCAL_USER
from tenax.tools.base import Call, Effect, Tool, aside
from tenax.tools.gate import NO_TEXT
from tenax.tools.redact import Redact
from tenax.tools.shell.sandbox import (
    FILE_BYTES_MAX,
    Ending,
    Running,
    Sandbox,
    start_bare,
)

__all__ = ["Background", "Finished", "Shell"]

log = logging.getLogger(__name__)

SECONDS_MAX = 600
RUNNING_MAX = 8
"""Background processes of a conversation."""
KEPT_BYTES = 1024 * 1024
"""Output kept of each of them until it is read."""
_ENDED_MAX = 64
"""Ended ones that can still be read, of all conversations."""
_CLOSE_SECONDS = 5.0
_LAST_SECONDS = 0.5
"""How long an end that is being told is waited for when Tenax stops: the next start tells it."""
_COMMAND_BYTES_MAX = 100_000
_HEAD_CHARS, _TAIL_CHARS = 18_000, 9_000
_EDGE_BYTES = 65_536
_READ_BYTES = 24_000
_FLOOD_BYTES = 16 * 1024 * 1024
_DRAIN_SECONDS = 1.0
_SIGNALLED = 128
_OUTSIDE = "only the person who runs this Tenax may have a command without the sandbox, or with network"
_NOTE = "[From Tenax, not from the person] The background process"

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
_UNFINISHED = re.compile(rb"\x1b[^a-zA-Z\x07\n]{0,64}\Z")
_PROMPT = re.compile(r"(?:[?:] ?|> |[\[(][a-z]+/[a-z/]+[\])] ?)\Z", re.IGNORECASE)
_NO_INPUT = re.compile(
    r"EOF when reading|could not read (?:Username|Password)|not a (?:tty|terminal)|terminal is required|/dev/tty|"
    r"unexpected end of input",
    re.IGNORECASE,
)


class StartArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: Annotated[
        str, Meta(description="A command line, run in the conversation's folder.")
    ]
    network: Annotated[
        bool, Meta(description="It needs the network. A person is asked each time.")
    ] = False


class ShellArgs(StartArgs, frozen=True, forbid_unknown_fields=True):
    seconds: Annotated[
        int, Meta(ge=1, le=SECONDS_MAX, description="It is ended after this long.")
    ] = 120


class ProcessArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(description="The id that shell_start gave.")]


class Finished(msgspec.Struct, frozen=True):
    """A background process ended, and its conversation is to be told `text`. `lost`: with the Tenax that started it."""

    user: str
    conversation: str
    id: str
    text: str
    lost: bool = False


class _Output:
    """The beginning and the end of what a program writes. The rest is read and dropped."""

    def __init__(self, redact: Redact, head_bytes: int, tail_bytes: int) -> None:
        self._redact, self._head_bytes, self._tail_bytes = (
            redact,
            head_bytes,
            tail_bytes,
        )
        self._head, self._tail, self._total, self._read = bytearray(), bytearray(), 0, 0

    async def take(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(1 << 18):
            self._total += len(data)
            room = self._head_bytes - len(self._head)
            self._head += data[:room]
            self._tail += data[room:] if room else data
            if len(self._tail) > 2 * self._tail_bytes:
                del self._tail[: -self._tail_bytes]
            if self._total > _FLOOD_BYTES:
                # an endless stream may not keep the loop from others
                await asyncio.sleep(0.002)

    def text(self) -> str:
        """What is shown of it, both ends."""
        kept = bytes(self._head + self._tail)
        if _is_binary(kept):
            return _not_shown(self._total)
        if len(kept) == self._total:
            text = self._clean(kept)
            if len(text) <= _HEAD_CHARS + _TAIL_CHARS:
                return text
            head, tail = text[:_HEAD_CHARS], text[-_TAIL_CHARS:]
        else:
            head = self._clean(bytes(self._head))[: -self._margin][:_HEAD_CHARS]
            tail = self._clean(bytes(self._tail))[self._margin :][-_TAIL_CHARS:]
        missing = self._total - len(head.encode()) - len(tail.encode())
        return f"{head}\n[... about {missing:,} bytes are not shown ...]\n{tail}"

    def new(self, *, ended: bool) -> str:
        """What came since this was asked last, in pages."""
        first = self._total - len(self._tail)
        lost = max(first - self._read, 0)
        lost += self._margin if lost else 0
        rest = bytes(self._tail[self._read + lost - first :])
        data = rest[:_READ_BYTES]
        if not ended or len(rest) > len(data):
            data = data[: self._whole(data)]
        self._read += lost + len(data)
        text = self._clean(data).rstrip() or "(no new output)"
        if lost:
            text = f"[{lost:,} bytes before this were not kept]\n{text}"
        if len(rest) > _READ_BYTES:
            text += f"\n[{len(rest) - len(data):,} more bytes are there: read again]"
        return text

    @property
    def _margin(self) -> int:
        """What a cut may have left of a secret or an escape."""
        return max(64, self._redact.longest)

    def _whole(self, data: bytes) -> int:
        """How much of this can be shown before more has come: no half of a character, an escape or a secret."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(data)
        escape = _UNFINISHED.search(data[-self._margin :])
        held = (
            len(decoder.getstate()[0]),
            len(escape[0]) if escape else 0,
            self._redact.half(data),
        )
        return len(data) - max(held)

    def _clean(self, data: bytes) -> str:
        if _is_binary(data):
            return _not_shown(len(data))
        lines = _ESCAPES.sub("", data.decode(errors="replace")).split("\n")
        # the last state of a progress bar
        last = (each.rstrip("\r").rpartition("\r")[2] for each in lines)
        return self._redact(NO_TEXT.sub("", "\n".join(last)))


class _Runs(Tool[Any]):
    """What a shell in the foreground and one in the background have in common."""

    effect = "once"
    asks = True
    line = True

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._bare = bool(sandbox.why_not())
        if self._bare:
            self.description += (
                f" {sandbox.why_not()} So a person is asked before every command."
            )

    def always_asks(self, args: StartArgs) -> bool:
        """Whatever was allowed before: a person is asked for this one."""
        return self._bare or args.network

    def touches(self, args: StartArgs, call: Call) -> str:
        size = len(args.command.encode())
        if (
            not args.command.strip()
            or "\0" in args.command
            or size > _COMMAND_BYTES_MAX
        ):
            raise ToolFailed(
                f"A command is a text of 1 to {_COMMAND_BYTES_MAX:,} bytes, without NUL."
            )
        # others answer their own questions
        if call.user != LOCAL_USER and self.always_asks(args):
            raise ToolFailed(f"It was not run: {_OUTSIDE}.")
        if self._bare:
            return f"WITHOUT A SANDBOX: {args.command}"
        return f"{'with network' if args.network else 'in the sandbox'}: {args.command}"

    async def _start(self, args: StartArgs, call: Call) -> Running:
        if self._bare:
            return await start_bare(args.command, call.folder)
        return await self._sandbox.start(
            args.command, call.folder, network=args.network
        )


class Shell(_Runs):
    name = "shell"
    description = (
        "Run a command line in the conversation's folder, in a sandbox: only that folder can be written and is kept, "
        "/tmp and the home folder are new for each call, and there is no network unless you ask for it. Programs get no "
        "input. What is still running when the command ends is ended; use shell_start for a server."
    )
    args = ShellArgs
    seconds = SECONDS_MAX + 20.0

    def __init__(self, sandbox: Sandbox, redact: Redact) -> None:
        super().__init__(sandbox)
        self._redact = redact

    async def run(self, args: ShellArgs, call: Call) -> str:
        running = await self._start(args, call)
        output = _Output(self._redact, _EDGE_BYTES, _EDGE_BYTES)
        ending = await _followed(running, output, args.seconds)
        text = output.text()
        told = f"{text.rstrip() or '(no output)'}\n{_told(ending, text)}"
        if ending.why:
            raise ToolFailed(told)
        return told


class _Process:
    """One background process. `trace` is the file that tells its end where we cannot."""

    def __init__(
        self,
        told: Finished,
        shown: str,
        running: Running,
        trace: BinaryIO,
        redact: Redact,
    ) -> None:
        self.told, self.shown, self.running, self.trace = told, shown, running, trace
        self.output = _Output(redact, 0, KEPT_BYTES)
        self.ending: Ending | None = None
        self.stopped = False
        self.task: asyncio.Task[None] | None = None

    def runs_for(self, conversation: str) -> bool:
        return self.ending is None and self.told.conversation == conversation


class Background:
    """The background processes of one user. They end with the process that holds this.

    `tell` says in a conversation that one ended. What it cannot say now is in the folder of `traces`, for a `sweep`.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        tell: Callable[[Finished], Awaitable[None]],
        traces: Path,
        user: str,
        redact: Redact,
    ) -> None:
        self.sandbox, self.redact = sandbox, redact
        self._tell, self._traces, self._user = tell, traces, user
        self._processes: dict[str, _Process] = {}

    def tools(self) -> list[Tool[Any]]:
        return [ShellStart(self), ShellRead(self), ShellStop(self)]

    async def start(
        self, command: str, call: Call, begin: Callable[[], Awaitable[Running]]
    ) -> str:
        """Begin it, and keep it until it ends; its id. Raises ToolFailed."""
        mine = [
            name
            for name, each in self._processes.items()
            if each.runs_for(call.conversation)
        ]
        if len(mine) >= RUNNING_MAX:
            raise ToolFailed(
                f"{RUNNING_MAX} background processes of this conversation are running: {', '.join(mine)}.",
                hint="stop one with shell_stop",
            )
        shown = NO_TEXT.sub("", self.redact(" ".join(command.split())))[:200]
        name = f"p_{secrets.token_hex(4)}"
        lost = f"{_NOTE} {name} ended because Tenax was stopped; what it wrote is gone: {shown}"
        told = Finished(call.user, call.conversation, name, lost, lost=True)
        try:
            trace = await aside(lambda _deserted: self._leave(told), self._forget)
        except OSError as error:
            raise ToolFailed(
                f"It was not begun: the disk takes no note of it: {error.strerror}."
            ) from error
        try:
            running = await begin()
        except BaseException:
            self._forget(trace)
            raise
        process = self._processes[name] = _Process(
            told, shown, running, trace, self.redact
        )
        process.task = asyncio.create_task(
            self._follow(process), name=f"background {name}"
        )
        ended = [
            known for known, each in self._processes.items() if each.ending is not None
        ]
        for each in ended[: max(len(ended) - _ENDED_MAX, 0)]:
            del self._processes[each]
        return name

    def read(self, name: str, call: Call) -> str:
        """What it wrote since the last time, and whether it runs."""
        process = self._of(name, call)
        text = process.output.new(ended=process.ending is not None)
        state = (
            "[it is running]" if process.ending is None else _told(process.ending, text)
        )
        return f"{text}\n{'[it was stopped]' if process.stopped else state}"

    async def stop(self, name: str, call: Call) -> str:
        """End it. What it wrote stays to be read."""
        process = self._of(name, call)
        if process.ending is not None:
            return f"{name} has ended before. {_told(process.ending, '')}"
        await self._end([process])
        self._forget(process.trace)
        return f"{name} was stopped."

    async def close(self, conversation: str | None = None) -> None:
        """End all of them: the next start tells it. Or those of a conversation that is deleted: nobody is told."""
        gone = [
            each
            for each in self._processes.values()
            if conversation in {None, each.told.conversation}
        ]
        await self._end(
            gone, _CLOSE_SECONDS if conversation is not None else _LAST_SECONDS
        )
        for each in gone:
            self._processes.pop(each.told.id, None)
            if conversation is not None:
                self._forget(each.trace)
            each.trace.close()

    async def sweep(self) -> None:
        """Tell the end of processes whose owner is gone, or could not tell it."""
        for trace in await aside(lambda _deserted: list(self._ownerless())):
            # half of it, after a power loss
            with trace, contextlib.suppress(msgspec.DecodeError):
                told = msgspec.json.decode(trace.read(), type=Finished)
                if told.user == self._user and await self._is_told(told):
                    self._forget(trace)

    def _of(self, name: str, call: Call) -> _Process:
        process = self._processes.get(name)
        if process is None or process.told.conversation != call.conversation:
            raise ToolFailed(
                f"There is no background process {name[:40]!r} in this conversation: if there was one, it ended when Tenax "
                "stopped, or it is long ended."
            )
        return process

    async def _end(
        self, processes: list[_Process], seconds: float = _CLOSE_SECONDS
    ) -> None:
        for each in processes:
            each.stopped = each.stopped or each.ending is None
        await asyncio.gather(*(each.running.end() for each in processes))
        if tasks := {each.task for each in processes if each.task is not None}:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()

    async def _follow(self, process: _Process) -> None:
        process.ending = await _followed(process.running, process.output)
        if process.stopped:
            return
        ended = f"{_NOTE} {process.told.id} ended: {process.shown}\n{_told(process.ending, '')}"
        told = msgspec.structs.replace(
            process.told, text=f"{ended} shell_read reads what it wrote.", lost=False
        )
        with process.trace:
            size = process.trace.seek(0, os.SEEK_END)
            os.pwrite(process.trace.fileno(), msgspec.json.encode(told).ljust(size), 0)
            if await self._is_told(told):
                self._forget(process.trace)

    async def _is_told(self, told: Finished) -> bool:
        try:
            await self._tell(told)
        except TenaxError as error:
            log.warning(
                "%s The end of %s is told later.",
                error,
                told.id,
                extra={"action": "untold"},
            )
            return False
        return True

    def _leave(self, told: Finished) -> BinaryIO:
        """A file that stays if we die, under our lock while we do not. It is there whole, or not at all."""
        self._traces.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._traces / told.id
        trace = file.with_suffix(".new").open("xb", buffering=0)
        fcntl.flock(trace, fcntl.LOCK_EX)
        trace.write(msgspec.json.encode(told))
        os.fsync(trace.fileno())
        Path(trace.name).rename(file)
        return trace

    def _ownerless(self) -> Iterator[BinaryIO]:
        for file in self._traces.glob("p_????????"):
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as undo:
                trace = undo.enter_context(file.open("rb"))
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(trace, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # else its owner has just told it
                    if os.fstat(trace.fileno()).st_nlink:
                        undo.pop_all()
                        yield trace

    def _forget(self, trace: BinaryIO) -> None:
        Path(trace.name).with_suffix("").unlink(missing_ok=True)
        trace.close()


class ShellStart(_Runs):
    name = "shell_start"
    description = (
        "Start a command line in the background, as shell does but without a time limit. Gives an id for shell_read and "
        "shell_stop. You are told when it ends. It ends when Tenax stops."
    )
    args = StartArgs
    seconds = 20.0
    delegated = False

    def __init__(self, background: Background) -> None:
        super().__init__(background.sandbox)
        self._background = background

    async def run(self, args: StartArgs, call: Call) -> str:
        name = await self._background.start(
            args.command, call, partial(self._start, args, call)
        )
        return f"It runs as {name}."


class ShellRead(Tool[ProcessArgs]):
    name = "shell_read"
    description = "Read what a background process wrote since it was last read, and whether it still runs."
    effect: Effect = "pure"
    args = ProcessArgs
    seconds = 15.0
    delegated = False
    asks = False

    def __init__(self, background: Background) -> None:
        self._background = background

    def touches(self, args: ProcessArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return args.id

    async def run(self, args: ProcessArgs, call: Call) -> str:
        return self._background.read(args.id, call)


class ShellStop(ShellRead):
    name = "shell_stop"
    description = "End a background process and all that it started."
    effect = "idempotent"

    async def run(self, args: ProcessArgs, call: Call) -> str:
        return await self._background.stop(args.id, call)


async def _followed(
    running: Running, output: _Output, seconds: float | None = None
) -> Ending:
    """Take in what it writes until it ends."""
    taking = asyncio.create_task(output.take(running.output))
    try:
        ending = await running.finish(seconds)
        await asyncio.wait({taking}, timeout=_DRAIN_SECONDS)
    finally:
        taking.cancel()
        running.close()
    return ending


def _is_binary(data: bytes) -> bool:
    return (
        b"\0" in data or data.decode(errors="replace").count("\ufffd") > len(data) // 10
    )


def _not_shown(size: int) -> str:
    return f"[{size:,} bytes that are not text are not shown]"


def _told(ending: Ending, text: str) -> str:
    """How it ended, in brackets, after what it wrote."""
    if ending.why:
        told = f"It was ended because {ending.why}. All that it started was ended too."
    else:
        told = f"exit code {ending.code}, {ending.seconds:.1f} s"
        with contextlib.suppress(ValueError):
            told += f", ended by {signal.Signals((ending.code or 0) - _SIGNALLED).name}"
        if ending.code == _SIGNALLED + signal.SIGXFSZ:
            told += f": a file grew past {FILE_BYTES_MAX >> 30} GB"
    failed = ending.code != 0 and _NO_INPUT.search(text[-2000:])
    if failed or _PROMPT.search(text.rpartition("\n")[2][-200:]):
        told += ". It seems to have asked for input: there is none, its standard input is at the end"
    return f"[{told}]"
