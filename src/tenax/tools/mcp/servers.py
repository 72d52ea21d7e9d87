"""MCP servers: the tools of other programs, each behind the gate like our own.

A server is connected to in the background, once for the process; nobody waits for it but who calls it. What it offered last
is kept on disk, so that the same tools stand in the prompt after a restart, before it is up. It may be anybody's: what it says
of itself is bounded and cleaned, and counts only where the person trusts it. Whatever it does, a call of it ends with a
sentence, and the connection is made again, ever more slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import shlex
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tenax.config import McpSettings, secrets, shown
from tenax.config.rules import UNSEEN
from tenax.errors import TenaxError, ToolFailed
from tenax.tools.base import Call, Effect, Tool, aside
from tenax.tools.redact import Redact

if TYPE_CHECKING:
    from tenax.tools.mcp.wire import Line

__all__ = ["Lost", "McpServers", "McpTool", "Standing"]

log = logging.getLogger(__name__)

CALL_SECONDS: Final = 120.0
CONNECT_SECONDS = 30.0
"""How long a server may take to start and to tell its tools."""
FRESH_SECONDS = 10.0
"""A call looks at the tools again when they were told longer ago than this."""
LIST_SECONDS = 15.0
LOOK_SECONDS, _LOOK_PAUSE = 300.0, 0.5
"""How long nobody asks at most what it offers, and at least, however often it says that this is another."""
TOOLS_MAX: Final = 100
_WAIT_SECONDS = 5.0
_CLOSE_SECONDS = 1.5
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.5, 60.0
_STEADY_SECONDS = 30.0
"""A connection that lasted so long was a good one: the next pause is a short one again."""
_DESCRIPTION_CHARS = 2000
_TOOL_CHARS, _ALL_CHARS = 20_000, 100_000
_HINTS: Final = ("read_only_hint", "idempotent_hint")
_NAME_CHARS, _TOLD_CHARS = 64, 200
_ARGUMENTS_CHARS_MAX: Final = 500_000
_SAID_BYTES = 500
_CACHE_BYTES_MAX: Final = 4 * 1024 * 1024

State = Literal["starting", "ready", "waiting"]


class Told(msgspec.Struct, frozen=True):
    """A tool as its server told it, cleaned."""

    name: str
    description: str
    schema: dict[str, Any]
    reads: bool = False
    """It says that it changes nothing."""
    repeats: bool = False
    """It says that doing it twice is doing it once."""


class Offered(msgspec.Struct, frozen=True):
    """A tool of a server as a person sees it."""

    name: str
    effect: Effect
    asks: bool
    description: str


class Standing(msgspec.Struct, frozen=True):
    """How it stands with a server. `error` is what is wrong, if anything is."""

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
    """The connection to a server is of no use any more."""


class McpTool(Tool[Any]):
    """One tool of a server, as it was when the agent was made."""

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

    def touches(self, args: Any, call: Call) -> str:  # noqa: ANN401, ARG002  (the contract's signature)
        # all of it: a rule may forbid any part
        said = msgspec.json.encode(args, order="sorted").decode()
        if len(said) > _ARGUMENTS_CHARS_MAX:
            raise ToolFailed(
                f"The arguments may have {_ARGUMENTS_CHARS_MAX:,} characters."
            )
        return f"{self._server.settings.name}: {self._told.name} {said}"

    async def run(self, args: Any, call: Call) -> str:  # noqa: ANN401, ARG002
        return await self._server.call(self._told, args)


class McpServer:
    """One server. Its task keeps it connected."""

    def __init__(
        self,
        settings: McpSettings,
        folder: Path,
        kept: Path,
        changed: Callable[[], None],
    ) -> None:
        self.settings = settings
        self._folder, self._file, self._changed = (
            folder,
            kept / f"{settings.name}.json",
            changed,
        )
        self._of = hashlib.sha256(
            msgspec.json.encode([settings.command, settings.url])
        ).hexdigest()
        self._told, self._told_at = self._read(), 0.0
        self._redact = Redact(lambda: secrets(settings))
        self._line: Line | None = None
        self._legacy = False
        """Greet it as old servers are greeted: some end when they are asked what they are."""
        self.state: State = "starting"
        self._error, self._said, self._left_out = "", b"", 0
        self._up, self._look, self.tried = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self.task = asyncio.create_task(self._keep(), name=f"mcp {settings.name}")

    def tools(self, taken: Collection[str] = ()) -> list[Tool[Any]]:
        """Its tools as they were told last. The name of one is the same whatever else there is: rules name it."""
        names = {_named(self.settings.name, each.name): each for each in self._told}
        return [
            McpTool(self, told, name)
            for name, told in names.items()
            if name not in taken
        ]

    def standing(self) -> Standing:
        """What a person sees of it."""
        settings = self.settings
        where = shown(settings.url) if settings.url else shlex.join(settings.command)
        tools = [
            Offered(each.name, each.effect, each.asks, each.description)
            for each in self.tools()
        ]
        left_out = (
            f"Left out, too many or too long: {self._left_out} of its tools."
            * bool(self._left_out)
        )
        return Standing(
            settings.name,
            where,
            settings.trusted,
            self.state,
            self._error or left_out,
            tools,
        )

    async def call(self, told: Told, args: dict[str, Any]) -> str:
        """Have a tool do this, if it is still the one that was told."""
        name = self.settings.name
        line = await self._reached()
        try:
            if asyncio.get_running_loop().time() - self._told_at > FRESH_SECONDS:
                await self._listen(line)
        except (TimeoutError, Lost) as error:
            self._drop(line, f"It did not answer within {LIST_SECONDS:g} seconds.")
            raise ToolFailed(
                f"The server {name} does not answer, so it was not called."
            ) from error
        if told not in self._told:
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
        """The connection; one that is being made is waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(
                CONNECT_SECONDS if self.state == "starting" else _WAIT_SECONDS
            ):
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
        # who comes back late from this one leaves the next one alone
        if self._line is line:
            self._line = None
            self._up.clear()

    async def _listen(self, line: Line) -> None:
        """Hear what it offers now. Raises TimeoutError, and Lost."""
        async with asyncio.timeout(LIST_SECONDS):
            told, self._left_out = _cleaned(await line.tools())
        self._told_at = asyncio.get_running_loop().time()
        if told != self._told:
            self._told = told
            self._changed()
            await aside(lambda _deserted: self._write(told))

    def _heard(self) -> None:
        """It says that its tools are others."""
        self._told_at = -FRESH_SECONDS
        self._look.set()

    async def _keep(self) -> None:
        """Be connected, again and again; after a failure with a pause that grows."""
        clock, pause = asyncio.get_running_loop().time, _PAUSE_SECONDS
        while True:
            began, self._said, before = clock(), b"", self._error
            try:
                error = await self._connected() or "It ended the connection."
            except Exception as raised:  # noqa: BLE001  (whatever it makes the SDK raise is told, and it is tried again)
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
            pause = _PAUSE_SECONDS if clock() - began > _STEADY_SECONDS else pause
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    async def _connected(self) -> str:
        """Connect, and stay so as long as it lasts. Why it did not last."""
        wire = await aside(lambda _deserted: _wire())

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

    # -- what is kept ----------------------------------------------------------------------------------------

    def _read(self) -> list[Told]:
        """What it offered last, if it is still the same server."""
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            if self._file.stat().st_size <= _CACHE_BYTES_MAX:
                kept = msgspec.json.decode(self._file.read_bytes(), type=_Kept)
                return kept.tools if kept.of == self._of else []
        return []

    def _write(self, told: list[Told]) -> None:
        new = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):  # then it is asked again at the next start
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(msgspec.json.encode(_Kept(self._of, told)))
            new.replace(self._file)


class McpServers:
    """All servers of a configuration."""

    def __init__(self, folder: Path, kept: Path, changed: Callable[[], None]) -> None:
        self._made = folder, kept, changed
        self._all: dict[str, McpServer] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def use(self, wanted: Mapping[str, McpSettings]) -> None:
        """Be connected to these from now on, and to no others. One whose settings are the same is left alone."""
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

    def tools(self, taken: Collection[str]) -> list[Tool[Any]]:
        """What all of them offer, but for these names."""
        return [tool for each in self._all.values() for tool in each.tools(taken)]

    def standing(self) -> list[Standing]:
        """How it stands with each."""
        return [each.standing() for each in self._all.values()]

    async def settled(self, seconds: float) -> None:
        """Wait until each was tried."""
        waits = {
            asyncio.ensure_future(each.tried.wait()) for each in self._all.values()
        }
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for each in late:
                each.cancel()

    async def close(self) -> None:
        """End them all, with what was started for them."""
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
    """What the model calls it. Where that is not its own name, a digest keeps it apart from its like."""
    name = f"{server}__{tool}"
    if re.fullmatch(rf"[A-Za-z0-9_-]{{1,{_NAME_CHARS}}}", name):
        return name
    digest = hashlib.sha256(tool.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[: _NAME_CHARS - 9]}_{digest}"


def _cleaned(listed: Iterable[Any]) -> tuple[list[Told], int]:
    """What a server told of its tools, in an order of our own, and how many are left out: a prompt has an end."""
    found: dict[str, Told] = {}
    for each in listed:
        reads, repeats = (
            getattr(each.annotations, name, None) is True for name in _HINTS
        )
        description = _seen((each.description or "")[:_DESCRIPTION_CHARS])
        schema = _seen({"properties": {}, **each.input_schema})
        found.setdefault(
            each.name, Told(each.name, description, schema, reads, repeats)
        )
    kept: list[Told] = []
    left = _ALL_CHARS
    for _, told in sorted(found.items()):
        if (size := _size(told)) <= min(left, _TOOL_CHARS) and len(kept) < TOOLS_MAX:
            kept, left = [*kept, told], left - size
    return kept, len(found) - len(kept)


def _size(told: Told) -> int:
    """How long it is; more than any may be where no model can be told of it."""
    fits = told.schema.get("type") == "object" and isinstance(
        told.schema["properties"], dict
    )
    return (
        len(msgspec.json.encode(told))
        if fits and 0 < len(told.name) <= _TOLD_CHARS
        else _ALL_CHARS
    )


def _seen(value: Any) -> Any:  # noqa: ANN401  (any JSON)
    """The same without characters that hide, or change how others look."""
    match value:
        case str():
            return "".join(
                each
                for each in value
                if each in "\n\t" or unicodedata.category(each) not in UNSEEN
            )
        case list():
            return [_seen(each) for each in value]
        case dict():
            return {_seen(name): _seen(each) for name, each in value.items()}
        case _:
            return value


def _why(error: BaseException) -> str:
    """What went wrong, as a sentence. Foreign words may hold anything: they are not repeated."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TenaxError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"It did not answer within {CONNECT_SECONDS:g} seconds."
    if type(error).__name__ == "MCPError":  # of the SDK, which may not be there
        return f"It could not be greeted: {_seen(str(error))[:200]}."
    return f"It cannot be reached ({getattr(error, 'strerror', None) or type(error).__name__})."
