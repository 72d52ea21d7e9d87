"""Every path to a tool leads through the gate: each is walked with tools that record who called them, and then forbidden.

import-linter (pyproject.toml) limits which modules can use a gate.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import tenax
from tenax.assembly import Runtime
from tenax.config import Config
from tenax.config.rules import Rule
from tenax.config.write import add_rule
from tenax.events import ToolFinished
from tenax.journal import LOCAL_USER
from tenax.models import Reply, ScriptedCall
from tenax.testing import SimClock
from tenax.tools.base import Call as Made
from tenax.tools.base import Tool
from tenax.tools.gate import Gate
from tests.contract import mcp_server
from tests.support.bubblewrap import need_bwrap
from tests.support.cast import Cast, hand_on
from tests.support.children import Child
from tests.support.runs import asked, config_of, told, until
from tests.support.turns import all_answered, ask, new_conversation, set_up

SECONDS = 60.0
WRITE = Reply(calls=[ScriptedCall("write_file", {"path": "a.txt", "content": "x"})])
ALLOW = '[[rules]]\nverdict = "allow"\ntool = "*"\n'


class Witness:
    """What gates let through, and which calls reached a tool, from where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.permitted: list[tuple[str, str]] = []
        self.ran: list[tuple[str, str]] = []
        self.callers: set[str] = set()
        make, perform = Gate.__init__, Gate.perform

        def made(gate: Gate, tools: Any, *more: Any, **named: Any) -> None:
            tools = list(tools)
            for tool in tools:
                if "run" not in vars(tool):
                    tool.run = self._recorded(tool, tool.run)
            make(gate, tools, *more, **named)

        async def performed(gate: Gate, permit: Any, **named: Any) -> Any:
            done = await perform(gate, permit, **named)
            if done.outcome != "denied":
                self.permitted.append((permit.tool.name, permit.call.key))
            return done

        monkeypatch.setattr(Gate, "__init__", made)
        monkeypatch.setattr(Gate, "perform", performed)

    def _recorded(
        self, tool: Tool[Any], run: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def recorded(args: Any, call: Made) -> Any:
            self.ran.append((tool.name, call.key))
            task = asyncio.current_task()
            coroutine: Any = task.get_coro() if task is not None else None
            self.callers.add(
                f"{Path(coroutine.cr_code.co_filename).name} {coroutine.__name__}"
            )
            return await run(args, call)

        return recorded


class Walk:
    """One path to one tool."""

    tool = "write_file"
    script: tuple[Reply | str, ...] = (WRITE, "done")
    tasks: Mapping[str, Sequence[Reply | str]] = MappingProxyType({})
    more = ""

    def __init__(self, home: Path) -> None:
        self.home, self.url, self.clock = home, f"sqlite:///{home}/t.db", SimClock()
        set_up(home, [WRITE, Reply(words="done")])
        file = home / "config.toml"
        file.write_text(file.read_text() + ALLOW + self.more)
        self.config: Config = config_of(self.url, home)

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[Runtime]:
        cast = Cast(self.script, self.tasks)
        with tenax.open(self.url, user=LOCAL_USER, clock=self.clock) as journal:
            async with Runtime(self.config, journal=journal, models=[cast]) as runtime:
                yield runtime

    async def before(self) -> str:
        """What happens before the runtime is there; the conversation."""
        return ""

    async def go(self, runtime: Runtime, name: str) -> str:
        """Have the tool asked for; where its outcome stands."""
        await asked(runtime, name, "go")
        return name


class Foreground(Walk):
    """A person asks."""


class Resumed(Walk):
    """A process was killed when it had begun the call, and another goes on."""

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[Runtime]:
        async with Runtime(self.config) as runtime:
            yield runtime

    async def before(self) -> str:
        name = new_conversation(self.url)
        victim = Child(
            ask, self.url, str(self.home), ["-p", "go", "-c", name], "tool.started", 1
        )
        assert await asyncio.to_thread(victim.finish) == -9
        return name

    async def go(self, runtime: Runtime, name: str) -> str:
        await all_answered(runtime, name)
        return name


class InBackground(Walk):
    """A background process ends, and that starts a turn."""

    script = (
        Reply(calls=[ScriptedCall("shell_start", {"command": "true"})]),
        "begun",
        WRITE,
        "done",
    )

    async def before(self) -> str:
        """A command outside of a sandbox would ask somebody first."""
        need_bwrap()
        return await super().before()

    async def go(self, runtime: Runtime, name: str) -> str:
        await runtime.submit(name, "go")
        await until(runtime, name, "run.finished", 2)
        return name


class SubAgent(Walk):
    """An agent hands a task on."""

    script = (hand_on("the task"), "done")
    tasks = MappingProxyType({"the task": [WRITE, "written"]})

    async def go(self, runtime: Runtime, name: str) -> str:
        await asked(runtime, name, "go")
        await until(runtime, name, "run.finished")
        (child,) = await runtime.journal.delegated(name)
        return child


class Scheduled(Walk):
    """It is due."""

    async def go(self, runtime: Runtime, name: str) -> str:
        await runtime.schedules.add("go", "in 20 minutes", conversation=name)
        self.clock.set_wall(self.clock.now_us() + 21 * 60 * 1_000_000)
        await runtime.schedules.fire()
        await until(runtime, name, "run.finished")
        await runtime.workers.idle(name)
        return name


class OfServer(Walk):
    """A tool of an MCP server."""

    tool = "own__note"
    script = (Reply(calls=[ScriptedCall("own__note", {"text": os.devnull})]), "done")
    more = f'[mcp.own]\ncommand = ["{sys.executable}", "{mcp_server.__file__}"]\n'

    async def go(self, runtime: Runtime, name: str) -> str:
        await runtime.mcp.settled(SECONDS)
        return await super().go(runtime, name)


@pytest.mark.parametrize(
    "path", [Foreground, Resumed, InBackground, SubAgent, Scheduled, OfServer]
)
async def test_no_path_reaches_a_tool_but_through_the_gate(
    path: type[Walk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that a tool saw was made by the gate, which had let through exactly these; forbidden, it never comes."""
    seen = Witness(monkeypatch)
    walk = path(tmp_path)
    async with AsyncExitStack() as stack:
        for forbidden in (False, True):
            # whoever serves would go on with it before all is prepared
            if path is Resumed:
                await stack.aclose()
            name = await walk.before()
            if forbidden:
                await asyncio.to_thread(add_rule, walk.config, Rule("deny", walk.tool))
            seen.ran.clear()
            seen.permitted.clear()
            if not forbidden or path is Resumed:
                runtime = await stack.enter_async_context(walk.runtime())
            where = await walk.go(runtime, name or await runtime.new())
            outcomes = [
                each.outcome for each in await told(runtime, where, ToolFinished)
            ]
            assert sorted(seen.ran) == sorted(seen.permitted)
            assert seen.callers <= {"gate.py _run"}
            reached = [key for tool, key in seen.ran if tool == walk.tool]
            assert len(reached) == (0 if forbidden else 1), (
                "it was to be called once, or never"
            )
            assert ("denied" in outcomes) == forbidden, outcomes
