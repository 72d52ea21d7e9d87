"""Run command lines in the conversation's folder, in the foreground or background, inside the sandbox (`sandbox.py`).

A command gets no input and no environment of Tenax. The stored output is bounded while the command runs. The model gets
only text, without control characters, binary data and secrets. On a machine without a sandbox the commands still run,
but every command needs approval.

A background process ends together with Tenax, even after a crash. A trace file holds the message about the end of the
process until the message is in the conversation. The owner of the process locks the trace file. A Tenax process that
finds an unlocked trace file sends the message.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import os
import re
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tenax.clock import Timing
from tenax.concurrency import LockFile, run_in_own_thread
from tenax.errors import TenaxError, ToolFailed
from tenax.journal import LOCAL_USER
from tenax.text import replace_controls
from tenax.tools.base import Args, Call, Effect, Tool
from tenax.tools.redact import Redact
from tenax.tools.shell.sandbox import (
    FILE_BYTES_MAX,
    Ending,
    Running,
    Sandbox,
    start_bare,
)

__all__ = ["Background", "Finished", "Output", "Shell"]

log = logging.getLogger(__name__)

SECONDS_MAX = 600
RUNNING_MAX = 8
"""The maximum number of running background processes of a conversation."""
KEPT_BYTES = 1024 * 1024
"""The maximum size of the unread output kept for a background process."""
_ENDED_MAX = 64
"""The maximum number of ended background processes with readable output, over every conversation of the user."""
_LAST_SECONDS = 0.5
"""The wait for unsent messages when Tenax stops. It is short, because the next start sends the remaining messages."""
_COMMAND_BYTES_MAX = 100_000
_HEAD_CHARS, _TAIL_CHARS = 18_000, 9_000
_LIVE_HEAD_CHARS, _LIVE_TAIL_CHARS = 8_000, 2_000
"""The length of the output that a person sees while a command runs."""
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


class StartArgs(Args):
    command: Annotated[
        str, Meta(description="A command line, run in the conversation's folder.")
    ]
    network: Annotated[
        bool, Meta(description="It needs the network. A person is asked each time.")
    ] = False


class ShellArgs(StartArgs):
    seconds: Annotated[
        int, Meta(ge=1, le=SECONDS_MAX, description="It is ended after this long.")
    ] = 120


class ProcessArgs(Args):
    id: Annotated[str, Meta(description="The id that shell_start gave.")]


class Finished(msgspec.Struct, frozen=True):
    """The message `text` about the end of a background process. `lost`: the process ended together with Tenax."""

    user: str
    conversation: str
    id: str
    text: str
    lost: bool = False


class Output:
    """The beginning and the end of a program's output. The middle is read and dropped."""

    def __init__(
        self,
        redact: Redact,
        head_bytes: int = _EDGE_BYTES,
        tail_bytes: int = _EDGE_BYTES,
    ) -> None:
        self._redact, self._head_bytes, self._tail_bytes = (
            redact,
            head_bytes,
            tail_bytes,
        )
        self._head, self._tail, self._total, self._read = bytearray(), bytearray(), 0, 0

    async def take(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(1 << 18):
            self.add(data)
            if self._total > _FLOOD_BYTES:
                # An endless stream must not block the event loop.
                await asyncio.sleep(0.002)

    def add(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room else data
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]

    def text(self) -> str:
        """Return the beginning and the end of the output, for the model."""
        kept = bytes(self._head + self._tail)
        if _is_binary(kept):
            return _not_shown(self._total)
        if len(kept) == self._total:
            text = self.clean(kept)
            if len(text) <= _HEAD_CHARS + _TAIL_CHARS:
                return text
            head, tail = text[:_HEAD_CHARS], text[-_TAIL_CHARS:]
        else:
            head = self.clean(bytes(self._head))[: -self._margin][:_HEAD_CHARS]
            tail = self.clean(bytes(self._tail))[self._margin :][-_TAIL_CHARS:]
        missing = self._total - len(head.encode()) - len(tail.encode())
        return f"{head}\n[... about {missing:,} bytes are not shown ...]\n{tail}"

    def so_far(self) -> str:
        """Return the beginning and the end of the output so far, for a person who watches the command.

        The end is held back if it may be half of a character, an escape sequence or a secret.
        """
        kept = bytes(self._head + self._tail)
        kept = kept[: self.whole(kept)]
        if len(self._head) + len(self._tail) == self._total:
            text = self.clean(kept)
            if len(text) <= _LIVE_HEAD_CHARS + _LIVE_TAIL_CHARS or _is_binary(kept):
                return text
            head, tail = text[:_LIVE_HEAD_CHARS], text[-_LIVE_TAIL_CHARS:]
        else:
            head = self.clean(bytes(self._head))[: -self._margin][:_LIVE_HEAD_CHARS]
            end = self.clean(kept[len(self._head) :])
            tail = end[self._margin :][-_LIVE_TAIL_CHARS:]
        return f"{head}\n[... the end of the output so far: ...]\n{tail}"

    def new(self, *, ended: bool) -> str:
        """Return the next page of the output written since the last call."""
        first = self._total - len(self._tail)
        lost = max(first - self._read, 0)
        lost += self._margin if lost else 0
        rest = bytes(self._tail[self._read + lost - first :])
        data = rest[:_READ_BYTES]
        if not ended or len(rest) > len(data):
            data = data[: self.whole(data)]
        self._read += lost + len(data)
        text = self.clean(data).rstrip() or "(no new output)"
        if lost:
            text = f"[{lost:,} bytes before this were not kept]\n{text}"
        if len(rest) > _READ_BYTES:
            text += f"\n[{len(rest) - len(data):,} more bytes are there: read again]"
        return text

    @property
    def _margin(self) -> int:
        """The longest part of a secret or an escape sequence left by a cut."""
        return max(64, self._redact.longest)

    def whole(self, data: bytes) -> int:
        """Return how many bytes can be shown now, without half a character, escape sequence or secret at the end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(data)
        escape = _UNFINISHED.search(data[-self._margin :])
        held = (
            len(decoder.getstate()[0]),
            len(escape[0]) if escape else 0,
            self._redact.half(data),
        )
        return len(data) - max(held)

    def clean(self, data: bytes) -> str:
        """Return output as text, without control characters and secrets."""
        if _is_binary(data):
            return _not_shown(len(data))
        lines = _ESCAPES.sub("", data.decode(errors="replace")).split("\n")
        # Keep only the last state of a progress bar.
        last = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
        return self._redact(replace_controls("\n".join(last), ""))


class _Runs(Tool[Any]):
    """The common base of `Shell` and `ShellStart`."""

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
        """Return whether the call needs approval despite every rule: without a sandbox, or with network."""
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
        # Another user would approve their own call.
        if call.user != LOCAL_USER and self.always_asks(args):
            raise ToolFailed(f"It was not run: {_OUTSIDE}.")
        if self._bare:
            return f"WITHOUT A SANDBOX: {args.command}"
        return f"{'with network' if args.network else 'in the sandbox'}: {args.command}"

    def badge(self, args: StartArgs) -> str:
        if self._bare:
            return "no sandbox: all files and the network"
        return f"sandbox, {'network' if args.network else 'no network'}"

    async def _start_command(self, args: StartArgs, call: Call) -> Running:
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
        running = await self._start_command(args, call)
        output = Output(self._redact)
        call.live.read = output.so_far
        try:
            ending = await _followed(running, output, args.seconds)
        except asyncio.CancelledError:
            # The output so far belongs to the person, who has watched the command run.
            raise ToolFailed(output.text().rstrip() or "(no output)") from None
        text = output.text()
        told = f"{text.rstrip() or '(no output)'}\n{_describe_ending(ending, text)}"
        if ending.why:
            raise ToolFailed(told)
        return told


@dataclass(slots=True, eq=False)
class _Process:
    """A background process. After a crash of Tenax, the file `trace` reports the end of the process."""

    told: Finished
    shown: str
    running: Running
    trace: LockFile
    output: Output
    ending: Ending | None = None
    stopped: bool = False
    task: asyncio.Task[None] | None = None

    def runs_for(self, conversation: str) -> bool:
        return self.ending is None and self.told.conversation == conversation


class Background:
    """The background processes of a user. They end together with the Tenax process.

    `tell` sends the message about an ended process to a conversation. Unsent messages stay in the folder `traces` until
    a later `sweep`.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        tell: Callable[[Finished], Awaitable[None]],
        traces: Path,
        user: str,
        redact: Redact,
        timing: Timing = Timing(),
    ) -> None:
        self.sandbox = sandbox
        self.redact = redact
        self._tell = tell
        self._traces = traces
        self._user = user
        self._timing = timing
        self._processes: dict[str, _Process] = {}

    def tools(self) -> list[Tool[Any]]:
        return [ShellStart(self), ShellRead(self), ShellStop(self)]

    async def start(
        self, command: str, call: Call, begin: Callable[[], Awaitable[Running]]
    ) -> str:
        """Start a background process and return its id. Raises `ToolFailed`."""
        mine = [
            name
            for name, process in self._processes.items()
            if process.runs_for(call.conversation)
        ]
        if len(mine) >= RUNNING_MAX:
            raise ToolFailed(
                f"{RUNNING_MAX} background processes of this conversation are running: {', '.join(mine)}.",
                hint="stop one with shell_stop",
            )
        shown = replace_controls(self.redact(" ".join(command.split())), "")[:200]
        name = f"p_{secrets.token_hex(4)}"
        lost = f"{_NOTE} {name} ended because Tenax was stopped; what it wrote is gone: {shown}"
        told = Finished(call.user, call.conversation, name, lost, lost=True)
        try:
            trace = await run_in_own_thread(lambda: self._leave(told), self._forget)
        except OSError as error:
            raise ToolFailed(
                f"It was not begun: the disk takes no note of it: {error.strerror}."
            ) from error
        try:
            running = await begin()
        except BaseException:
            self._forget(trace)
            raise
        output = Output(self.redact, 0, KEPT_BYTES)
        process = _Process(told, shown, running, trace, output)
        self._processes[name] = process
        process.task = asyncio.create_task(
            self._follow(process), name=f"background {name}"
        )
        ended = [
            known
            for known, process in self._processes.items()
            if process.ending is not None
        ]
        for name in ended[: max(len(ended) - _ENDED_MAX, 0)]:
            del self._processes[name]
        return name

    def read(self, name: str, call: Call) -> str:
        """Return the output since the last call, and whether the process runs."""
        process = self._of(name, call)
        text = process.output.new(ended=process.ending is not None)
        state = (
            "[it is running]"
            if process.ending is None
            else _describe_ending(process.ending, text)
        )
        return f"{text}\n{'[it was stopped]' if process.stopped else state}"

    async def stop(self, name: str, call: Call) -> str:
        """End a background process. Its output stays readable."""
        process = self._of(name, call)
        if process.ending is not None:
            return f"{name} has ended before. {_describe_ending(process.ending, '')}"
        await self._end_processes([process], self._timing.process_end_seconds)
        self._forget(process.trace)
        return f"{name} was stopped."

    async def close(self, conversation: str | None = None) -> None:
        """End every process, or the processes of a deleted conversation.

        When Tenax stops, the next start sends the messages about ended processes. A deleted conversation gets none.
        """
        gone = [
            process
            for process in self._processes.values()
            if conversation in {None, process.told.conversation}
        ]
        tenax_stops = conversation is None
        seconds = _LAST_SECONDS if tenax_stops else self._timing.process_end_seconds
        await self._end_processes(gone, seconds)
        for process in gone:
            self._processes.pop(process.told.id, None)
            if conversation is not None:
                self._forget(process.trace)
            process.trace.release()

    async def sweep(self) -> None:
        """Send the messages about ended processes left by owners that are gone or could not send them."""
        for trace in await run_in_own_thread(lambda: list(self._ownerless())):
            # The file may be incomplete after a power loss.
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

    async def _end_processes(self, processes: list[_Process], seconds: float) -> None:
        for process in processes:
            process.stopped = process.stopped or process.ending is None
        await asyncio.gather(*(process.running.end() for process in processes))
        if tasks := {process.task for process in processes if process.task is not None}:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()

    async def _follow(self, process: _Process) -> None:
        process.ending = await _followed(process.running, process.output)
        if process.stopped:
            return
        ended = f"{_NOTE} {process.told.id} ended: {process.shown}\n{_describe_ending(process.ending, '')}"
        told = msgspec.structs.replace(
            process.told, text=f"{ended} shell_read reads what it wrote.", lost=False
        )
        with process.trace:
            # A single write replaces the old text: after a crash the file holds either the old or the new text.
            size = os.fstat(process.trace.descriptor).st_size
            text = msgspec.json.encode(told).ljust(size)
            os.pwrite(process.trace.descriptor, text, 0)
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

    def _leave(self, told: Finished) -> LockFile:
        """Create the file that reports the end of a process if this process dies first."""
        self._traces.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LockFile.create(self._traces / told.id, msgspec.json.encode(told))

    def _ownerless(self) -> Iterator[LockFile]:
        """Lock and return the trace files without a living owner."""
        for file in self._traces.glob("p_????????"):
            with contextlib.suppress(FileNotFoundError):
                trace = LockFile.acquire(file, create=False)
                if trace is not None:
                    yield trace

    def _forget(self, trace: LockFile) -> None:
        trace.release(remove=True)


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
            args.command, call, partial(self._start_command, args, call)
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
    only_reads = True

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
    only_reads = False

    async def run(self, args: ProcessArgs, call: Call) -> str:
        return await self._background.stop(args.id, call)


async def _followed(
    running: Running, output: Output, seconds: float | None = None
) -> Ending:
    """Read the output of a command until the command ends, and return the ending."""
    taking = asyncio.create_task(output.take(running.output))
    try:
        return await running.finish(seconds)
    finally:
        # The command has ended, also if the person has stopped it. Its last output may still be in the pipe.
        await asyncio.wait({taking}, timeout=_DRAIN_SECONDS)
        taking.cancel()
        running.close()


def _is_binary(data: bytes) -> bool:
    return (
        b"\0" in data or data.decode(errors="replace").count("\ufffd") > len(data) // 10
    )


def _not_shown(size: int) -> str:
    return f"[{size:,} bytes that are not text are not shown]"


def _describe_ending(ending: Ending, text: str) -> str:
    """Describe the end of a command, in brackets. `text` is the output, searched for a request for input."""
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
