"""What the tests of runs share: a configuration, a runtime with tools of its own, and waiting for what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tenax.agent.loop import Agent
from tenax.agent.prompt import PROMPT
from tenax.assembly import Runtime
from tenax.clock import Timing
from tenax.config import Config, load
from tenax.errors import ToolFailed
from tenax.events import Event, RunFinished, Unknown
from tenax.journal.base import Recorded
from tenax.tools.base import Call, Effect, Tool
from tenax.tools.gate import Gate
from tenax.views.transcript import Row

SECONDS = 60.0


def config_of(url: str, home: Path, **more: str) -> Config:
    """Return the settings of a person with this store. `more` are environment variables.

    Memories have all the time that they need: on a busy machine a quarter of a second may
    be too short.
    """
    config = load({"TENAX_HOME": str(home), "TENAX_STORE": url, **more})
    timing = Timing(recall_seconds=60.0, provider_recall_seconds=60.0)
    return replace(config, timing=timing)


def with_timing(config: Config, **seconds: float) -> Config:
    """Return the settings with other periods and waits."""
    return replace(config, timing=replace(config.timing, **seconds))


async def asked(runtime: Runtime, name: str, words: str) -> int:
    """Say this, and wait until it is answered; where the words stand."""
    stored = await runtime.submit(name, words)
    await runtime.finished(name, stored.seq)
    await runtime.workers.idle(name)
    return stored.seq


class NoteArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to write down."""

    text: str = ""


class Note(Tool[NoteArgs]):
    """Appends a line to a file: an effect that can be counted. Then it takes its time."""

    description = "Writes a line down."
    args = NoteArgs
    seconds = 30.0

    def __init__(
        self,
        file: Path,
        *,
        name: str = "note",
        effect: Effect = "once",
        asks: bool = False,
        pause: float = 0.0,
        wait: Callable[[], Any] | None = None,
    ) -> None:
        self.file = file
        self.name = name
        self.effect = effect
        self.asks = asks
        self._pause = pause
        self._wait = wait

    def touches(self, args: NoteArgs, call: Call) -> str:
        return args.text

    async def run(self, args: NoteArgs, call: Call) -> str:
        with self.file.open("a") as file:
            file.write(f"{self.name} {call.key} {args.text}\n")
        if args.text == "fail":
            raise ToolFailed("The pencil broke.")
        await asyncio.sleep(self._pause)
        if self._wait is not None:
            await self._wait()
        return f"noted {args.text}"


def lines(file: Path) -> list[str]:
    """What was noted."""
    return file.read_text().splitlines() if file.exists() else []


class Hands(Runtime):
    """A runtime with these tools instead of the product's."""

    def __init__(self, config: Config, **named: Any) -> None:
        super().__init__(config, **named)
        self.with_tools()

    def with_tools(self, *tools: Tool[Any]) -> Hands:
        agents = self.agents
        agents.current = Agent(
            agents.connect_models(),
            PROMPT,
            Gate(tools, agents.rules),
            limits=agents.limits,
        )
        return self


async def until(
    runtime: Runtime, conversation: str, kind: str, nth: int = 1, *, after: int = 0
) -> Recorded:
    """Wait for the nth event of a kind after a seq."""
    async with asyncio.timeout(SECONDS):
        async for each in runtime.journal.tail(conversation, after):
            nth -= each.kind == kind
            if nth == 0:
                return each
    raise AssertionError


async def settled(runtime: Runtime, conversation: str, seq: int) -> None:
    """Wait until an input was answered and the lane has nothing to do."""
    async with asyncio.timeout(SECONDS):
        await runtime.finished(conversation, seq)
        await runtime.workers.idle(conversation)


async def events_of(runtime: Runtime, conversation: str, *kinds: str) -> list[Recorded]:
    """All events, or those of these kinds."""
    found = await runtime.journal.read(conversation, limit=10_000)
    return [each for each in found if not kinds or each.kind in kinds]


async def told(runtime: Runtime, conversation: str, *kinds: type[Event]) -> list[Any]:
    """The bodies of the events of these kinds."""
    found = await events_of(runtime, conversation, *(kind.kind for kind in kinds))
    return [each.event for each in found if not isinstance(each.event, Unknown)]


async def outcomes(runtime: Runtime, conversation: str) -> list[str]:
    """How the runs ended, in order."""
    return [each.outcome for each in await told(runtime, conversation, RunFinished)]


def brief(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Rows as (kind, state, text)."""
    return [(row.kind, row.state, row.text) for row in rows]


def prose(rows: Sequence[Row], kind: str = "assistant") -> list[str]:
    """The texts of the rows of a kind."""
    return [row.text for row in rows if row.kind == kind]
