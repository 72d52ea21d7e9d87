"""MCP servers: tools of foreign programs, behind the gate like the tools of Tenax.

The process connects to a server once, in the background; only a call waits for the connection. The last list of tools
is cached on disk. So a prompt has the same tools after a restart, before the server is up. A server is not trusted:
Tenax bounds and cleans the descriptions, and uses the hints of a server only if the person trusts the server. After
every failure of a server, a call ends with an error message, and the connection is retried with backoff.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tenax.clock import Timing
from tenax.concurrency import Backoff, run_in_own_thread, write_atomically
from tenax.config import McpSettings, find_secrets, hide_password
from tenax.errors import TenaxError, ToolFailed
from tenax.text import replace_hidden
from tenax.tools.base import Call, Effect, Tool
from tenax.tools.redact import Redact

if TYPE_CHECKING:
    from tenax.tools.mcp.wire import Line

__all__ = ["Lost", "McpServers", "McpTool", "ServerStatus"]

log = logging.getLogger(__name__)

CALL_SECONDS: Final = 120.0
# The time in which a server must start and list its tools.
CONNECT_SECONDS = 30.0
LIST_SECONDS = 15.0
# The longest and the shortest time between two lists of tools.
LOOK_SECONDS, _LOOK_PAUSE = 300.0, 0.5
TOOLS_MAX: Final = 100
_CLOSE_SECONDS = 1.5
_RETRY_SECONDS_MAX = 60.0
# After a connection of this length the backoff starts again.
_STEADY_SECONDS = 30.0
_DESCRIPTION_CHARS = 2000
_TOOL_CHARS, _ALL_CHARS = 20_000, 100_000
_HINTS: Final = ("read_only_hint", "idempotent_hint")
_NAME_CHARS, _TOLD_CHARS = 64, 200
_ARGUMENTS_CHARS_MAX: Final = 500_000
_SAID_BYTES = 500
_CACHE_BYTES_MAX: Final = 4 * 1024 * 1024

State = Literal["starting", "ready", "waiting"]


class Told(msgspec.Struct, frozen=True):
    """The description of a tool by a server, cleaned."""

    name: str
    description: str
    schema: dict[str, Any]
    reads: bool = False
    """Whether the server declares the tool read-only."""
    repeats: bool = False
    """Whether the server declares the tool idempotent."""


class Offered(msgspec.Struct, frozen=True):
    """A tool of a server, for display to a person."""

    name: str
    effect: Effect
    asks: bool
    description: str


class ServerStatus(msgspec.Struct, frozen=True):
    """The state of a server. `error` describes the current problem, or is empty."""

    name: str
    where: str
    trusted: bool
    state: State
    error: str
    tools: list[Offered]


class _Kept(msgspec.Struct, frozen=True):
    of: str
    tools: list[Told]


class Lost(ToolFailed):
    """The connection to a server has ended or is unusable."""


class McpTool(Tool[Any]):
    """A tool of a server, as described at the creation of the agent."""

    args = msgspec.Struct
    seconds = CALL_SECONDS

    def __init__(self, server: McpServer, told: Told, name: str) -> None:
        self._server, self._told = server, told
        self.name, self.description, self.schema = name, told.description, told.schema
        trusted = server.settings.trusted
        self.asks = not (trusted and told.reads)
        self.effect = (
            "pure"
            if not self.asks
            else "idempotent"
            if trusted and told.repeats
            else "once"
        )

    def badge(self, args: Any) -> str:  # noqa: ANN401, ARG002  (the contract's signature)
        return "MCP server, outside the sandbox"

    def touches(self, args: Any, call: Call) -> str:  # noqa: ANN401, ARG002  (the contract's signature)
        # Return the complete arguments, because a rule may forbid any part of them.
        said = msgspec.json.encode(args, order="sorted").decode()
        if len(said) > _ARGUMENTS_CHARS_MAX:
            raise ToolFailed(
                f"The arguments may have {_ARGUMENTS_CHARS_MAX:,} characters."
            )
        return f"{self._server.settings.name}: {self._told.name} {said}"

    async def run(self, args: Any, call: Call) -> str:  # noqa: ANN401, ARG002
        return await self._server.call(self._told, args)


class McpServer:
    """A server, with a background task for the connection."""

    def __init__(
        self,
        settings: McpSettings,
        folder: Path,
        kept: Path,
        timing: Timing,
    ) -> None:
        self.settings = settings
        self._timing = timing
        self._folder = folder
        self._file = kept / f"{settings.name}.json"
        self._of = hashlib.sha256(
            msgspec.json.encode([settings.command, settings.url])
        ).hexdigest()
        self.told = self._read()
        self._told_at = 0.0
        self._redact = Redact(lambda: find_secrets(settings))
        self._line: Line | None = None
        # Whether to use the handshake of old servers. Some old servers exit on the new handshake.
        self._legacy = False
        self.state: State = "starting"
        self._error, self._said, self._left_out = "", b"", 0
        self._up = asyncio.Event()
        self._look = asyncio.Event()
        self.tried = asyncio.Event()
        self.task = asyncio.create_task(self._keep(), name=f"mcp {settings.name}")

    def tools(self, taken: Collection[str] = ()) -> list[Tool[Any]]:
        """Return the tools of the last list, except the names in `taken`.

        The name of a tool does not depend on the rest of the list, because rules contain the name.
        """
        names = {_named(self.settings.name, told.name): told for told in self.told}
        return [
            McpTool(self, told, name)
            for name, told in names.items()
            if name not in taken
        ]

    def standing(self) -> ServerStatus:
        """Return the state of the server for a person."""
        settings = self.settings
        where = (
            hide_password(settings.url)
            if settings.url
            else shlex.join(settings.command)
        )
        tools = [
            Offered(tool.name, tool.effect, tool.asks, tool.description)
            for tool in self.tools()
        ]
        left_out = (
            f"Left out, too many or too long: {self._left_out} of its tools."
            * bool(self._left_out)
        )
        return ServerStatus(
            settings.name,
            where,
            settings.trusted,
            self.state,
            self._error or left_out,
            tools,
        )

    async def call(self, told: Told, args: dict[str, Any]) -> str:
        """Call a tool. Raises `ToolFailed` if the description has changed since the creation of the agent."""
        name = self.settings.name
        line = await self._reached()
        try:
            age = asyncio.get_running_loop().time() - self._told_at
            if age > self._timing.mcp_fresh_seconds:
                await self._listen(line)
        except (TimeoutError, Lost) as error:
            self._drop(line, f"It did not answer within {LIST_SECONDS:g} seconds.")
            raise ToolFailed(
                f"The server {name} does not answer, so it was not called."
            ) from error
        if told not in self.told:
            raise ToolFailed(
                f"{name} was not called: its tools changed.",
                hint="the next turn has the new ones",
            )
        try:
            return await line.call(told.name, args)
        except Lost as error:
            self._drop(line, str(error))
            raise ToolFailed(
                f"The connection to {name} was lost. It may have done it, or a part of it."
            ) from error

    async def _reached(self) -> Line:
        """Wait for the connection and return it. Raises `ToolFailed` after a timeout."""
        if self.state == "starting":
            seconds = CONNECT_SECONDS
        else:
            seconds = self._timing.mcp_wait_seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._up.wait()
        if self._line is None:
            raise ToolFailed(
                f"The server {self.settings.name} cannot be reached.",
                hint="the person sees why in the settings, or with `tenax mcp`",
            )
        return self._line

    def _drop(self, line: Line, why: str) -> None:
        if not line.ended.done():
            line.ended.set_result(why)
        # A late caller of an old connection must not drop the new connection.
        if self._line is line:
            self._line = None
            self._up.clear()

    async def _listen(self, line: Line) -> None:
        """Request the list of tools. Raises `TimeoutError` or `Lost`."""
        async with asyncio.timeout(LIST_SECONDS):
            told, self._left_out = _cleaned(await line.tools())
        self._told_at = asyncio.get_running_loop().time()
        if told != self.told:
            self.told = told
            await run_in_own_thread(lambda: self._write(told))

    def _heard(self) -> None:
        """Handle the notification that the tools have changed."""
        self._told_at = -self._timing.mcp_fresh_seconds
        self._look.set()

    async def _keep(self) -> None:
        """Stay connected. After a failure, retry with backoff."""
        clock = asyncio.get_running_loop().time
        backoff = Backoff(self._timing.mcp_retry_seconds, _RETRY_SECONDS_MAX)
        while True:
            began, self._said, before = clock(), b"", self._error
            try:
                error = await self._connected() or "It ended the connection."
            except Exception as raised:  # noqa: BLE001  (the SDK may raise anything; the error is shown and the connection retried)
                error, self._legacy = _why(raised), not self._legacy
            finally:
                self._line, self.state = None, "waiting"
                self._up.clear()
                self.tried.set()
            said = " ".join(_seen(self._said.decode(errors="replace")).split())
            self._error = self._redact(
                f"{error} It said last: {said}" if said else error
            )
            if self._error != before:
                log.info(
                    "MCP %s: %s",
                    self.settings.name,
                    self._error,
                    extra={"action": "mcp_lost"},
                )
            if clock() - began > _STEADY_SECONDS:
                backoff.reset()
            await backoff.sleep()

    async def _connected(self) -> str:
        """Connect, and return why the connection ended."""
        wire = await run_in_own_thread(_wire)

        def said(chunk: bytes) -> None:
            self._said = (self._said + chunk)[-_SAID_BYTES:]

        async with (
            asyncio.timeout(CONNECT_SECONDS) as limit,
            wire.opened(
                self.settings, self._folder, self._heard, said, legacy=self._legacy
            ) as line,
        ):
            await self._listen(line)
            limit.reschedule(None)
            self._line, self.state, self._error = line, "ready", ""
            self._up.set()
            self.tried.set()
            while not line.ended.done():
                await asyncio.wait({line.ended}, timeout=_LOOK_PAUSE)
                look = asyncio.ensure_future(self._look.wait())
                try:
                    await asyncio.wait(
                        {look, line.ended},
                        timeout=LOOK_SECONDS,
                        return_when="FIRST_COMPLETED",
                    )
                finally:
                    look.cancel()
                if not line.ended.done():
                    self._look.clear()
                    await self._listen(line)
            self._drop(line, "")
            return str(line.ended.result())

    # -- the cache -------------------------------------------------------------------------------------------

    def _read(self) -> list[Told]:
        """Return the cached tools, if they belong to the same command or URL."""
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            if self._file.stat().st_size <= _CACHE_BYTES_MAX:
                kept = msgspec.json.decode(self._file.read_bytes(), type=_Kept)
                return kept.tools if kept.of == self._of else []
        return []

    def _write(self, told: list[Told]) -> None:
        # After an error the server is asked again at the next start.
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._file, msgspec.json.encode(_Kept(self._of, told)))


class McpServers:
    """The servers of a configuration."""

    def __init__(
        self,
        folder: Path,
        kept: Path,
        timing: Timing = Timing(),
    ) -> None:
        self._made = folder, kept, timing
        self._all: dict[str, McpServer] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def use(self, wanted: Mapping[str, McpSettings]) -> None:
        """Connect to the wanted servers, and end the rest. A server with unchanged settings stays connected."""
        before, self._all = self._all, {}
        for name, settings in wanted.items():
            same = name in before and before[name].settings == settings
            self._all[name] = (
                before.pop(name) if same else McpServer(settings, *self._made)
            )
        for gone in before.values():
            gone.task.cancel()
            self._ending.add(gone.task)
            gone.task.add_done_callback(self._ending.discard)

    def offered(self) -> Sequence[object]:
        """Return the descriptions of the servers' tools, for a comparison."""
        return [server.told for server in self._all.values()]

    def tools(self, taken: Collection[str]) -> list[Tool[Any]]:
        """Return the tools of every server, except the names in `taken`."""
        return [tool for server in self._all.values() for tool in server.tools(taken)]

    def standing(self) -> list[ServerStatus]:
        """Return the state of every server."""
        return [server.standing() for server in self._all.values()]

    async def settled(self, seconds: float) -> None:
        """Wait until every server has connected or failed once, or until the timeout."""
        waits = {
            asyncio.ensure_future(server.tried.wait()) for server in self._all.values()
        }
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for wait in late:
                wait.cancel()

    async def close(self) -> None:
        """End the servers and their processes."""
        self.use({})
        if self._ending:
            await asyncio.wait(self._ending, timeout=_CLOSE_SECONDS)


def _wire() -> ModuleType:
    try:
        return import_module("tenax.tools.mcp.wire")
    except ModuleNotFoundError as error:
        raise ToolFailed(
            "Its package is not installed: pip install 'tenax[mcp]'"
        ) from error


def _named(server: str, tool: str) -> str:
    """Return the name of a tool for the model. A changed name gets a digest, to stay unique."""
    name = f"{server}__{tool}"
    if re.fullmatch(rf"[A-Za-z0-9_-]{{1,{_NAME_CHARS}}}", name):
        return name
    digest = hashlib.sha256(tool.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[: _NAME_CHARS - 9]}_{digest}"


def _cleaned(listed: Iterable[Any]) -> tuple[list[Told], int]:
    """Return the cleaned tools, sorted by name, and the number of tools omitted to bound the prompt."""
    found: dict[str, Told] = {}
    for tool in listed:
        reads, repeats = (
            getattr(tool.annotations, name, None) is True for name in _HINTS
        )
        description = _seen((tool.description or "")[:_DESCRIPTION_CHARS])
        schema = _seen({"properties": {}, **tool.input_schema})
        found.setdefault(
            tool.name, Told(tool.name, description, schema, reads, repeats)
        )
    kept: list[Told] = []
    left = _ALL_CHARS
    for _, told in sorted(found.items()):
        if (size := _size(told)) <= min(left, _TOOL_CHARS) and len(kept) < TOOLS_MAX:
            kept, left = [*kept, told], left - size
    return kept, len(found) - len(kept)


def _size(told: Told) -> int:
    """Return the size of a tool in the prompt, or more than the limit if the name or schema is unusable."""
    fits = told.schema.get("type") == "object" and isinstance(
        told.schema["properties"], dict
    )
    return (
        len(msgspec.json.encode(told))
        if fits and 0 < len(told.name) <= _TOLD_CHARS
        else _ALL_CHARS
    )


def _seen(value: Any) -> Any:  # noqa: ANN401  (any JSON)
    """Return the JSON value without invisible characters and characters that change how text looks."""
    match value:
        case str():
            return replace_hidden(value, "", keep="\n\t")
        case list():
            return [_seen(item) for item in value]
        case dict():
            return {_seen(name): _seen(item) for name, item in value.items()}
        case _:
            return value


def _why(error: BaseException) -> str:
    """Describe an error in a sentence, without the text of unknown errors, which may contain anything."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TenaxError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"It did not answer within {CONNECT_SECONDS:g} seconds."
    # Compare the name, because the SDK may not be installed.
    if type(error).__name__ == "MCPError":
        return f"It could not be greeted: {_seen(str(error))[:200]}."
    return f"It cannot be reached ({getattr(error, 'strerror', None) or type(error).__name__})."
