"""Sub-agents in one process and in two: side by side, within a budget, asking, stopped, too slow, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenax
from tenax.agent import Limits
from tenax.assembly import Runtime
from tenax.cli.talk.screen import Screen
from tenax.config import Config
from tenax.errors import Gone
from tenax.events import DELEGATE, TEMPORARY, ContextOpened, ToolFinished, ToolHanded
from tenax.journal import LOCAL_USER
from tenax.journal.verify.store import verify
from tenax.models import Piece, Reply, ScriptedCall, Words
from tenax.testing import SimClock
from tenax.tools.delegate import CHILDREN_MAX
from tenax.views.transcript import Put, Row
from tests.support.cast import Cast, hand_on
from tests.support.runs import (
    config_of,
    events_of,
    outcomes,
    prose,
    settled,
    told,
    until,
    with_timing,
)
from tests.support.turns import all_answered

QUICK = Limits(pause=0.01, retries=2)
HANG = Reply(words="wait", hang=True)
WRITE = Reply(
    calls=[ScriptedCall("write_file", {"path": "plan.txt", "content": "tea"})]
)
SECONDS = 60.0


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


def runtime_of(
    config: Config, cast: Cast, *, limits: Limits = QUICK, **more: Any
) -> Runtime:
    return Runtime(config, models=[cast], limits=limits, **more)


async def begin(runtime: Runtime, words: str = "go") -> tuple[str, int]:
    """A conversation in which something was asked, and where."""
    name = await runtime.new()
    return name, (await runtime.submit(name, words)).seq


async def cards(runtime: Runtime, name: str) -> list[Row]:
    """What the calls look like to the person."""
    return [row for row in await runtime.transcript(name) if row.name == DELEGATE]


async def card(runtime: Runtime, name: str, *, asks: bool) -> Row:
    """Wait until the one call says that it goes on elsewhere, and whether a person is asked there."""
    async with asyncio.timeout(SECONDS):
        while True:
            head = (await runtime.journal.head(name)).head
            for row in await cards(runtime, name):
                if row.child and row.child_asks == asks:
                    return row
            await runtime.journal.wait(name, head, seconds=1.0)


async def ended(runtime: Runtime, name: str) -> None:
    """Wait until no run is open there."""
    async with asyncio.timeout(SECONDS):
        while (
            head := await runtime.journal.head(name)
        ).run is not None or head.unanswered:
            await runtime.journal.wait(name, head.head, seconds=1.0)
        await runtime.workers.idle(name)


async def results(runtime: Runtime, name: str) -> list[tuple[str, str]]:
    return [
        (each.outcome, each.text) for each in await told(runtime, name, ToolFinished)
    ]


async def test_tasks_are_done_side_by_side_in_conversations_of_their_own(
    config: Config,
) -> None:
    """Two sub-agents are asked at the same moment; the answers are results; neither floods the list, search finds both."""
    cast = Cast([hand_on("find apples", "find pears"), "both found"],
                {"apples": ["three apples"], "pears": ["two pears"]}, together=2)  # fmt: skip
    async with runtime_of(config, cast) as runtime:
        name, seq = await begin(runtime)
        await settled(runtime, name, seq)
        assert sorted(await results(runtime, name)) == [
            ("done", "three apples"),
            ("done", "two pears"),
        ]
        assert prose(await runtime.transcript(name))[-1] == "both found"
        rows = await cards(runtime, name)
        children = await runtime.journal.delegated(name)
        assert sorted(row.child for row in rows) == sorted(children)
        assert [(row.state, row.child_asks) for row in rows] == [("done", False)] * 2
        shown = await runtime.journal.summary(rows[0].child)
        assert (shown.parent, shown.source, shown.title) == (
            name,
            DELEGATE,
            "find apples",
        )
        assert [summary.conversation for summary in await runtime.conversations()] == [
            name
        ]
        assert rows[1].child in {
            hit.conversation for hit in (await runtime.search("pears")).hits
        }
        assert [
            row.author
            for row in await runtime.transcript(rows[0].child)
            if row.kind == "user"
        ] == ["system"]
        tools = {
            tool.name for tool in (await runtime.agents.of(rows[0].child)).gate.tools()
        }
        assert {tool.name for tool in runtime.agent.gate.tools()} - tools >= {
            "delegate",
            "memory",
        }
        assert {"read_file", "write_file", "edit_file"} <= tools
        secret = await runtime.agents.of(await runtime.new(source=TEMPORARY))
        assert "delegate" not in {tool.name for tool in secret.gate.tools()}
        assert (await asyncio.to_thread(verify, runtime.journal.journal)).problems == []


async def test_a_run_hands_on_a_few_tasks_at_most(config: Config) -> None:
    """The ninth is refused with a sentence, also in a later answer of the run; a new turn may hand on again."""
    many = [f"n {each}" for each in range(CHILDREN_MAX - 1)]
    cast = Cast(
        [hand_on(*many), hand_on("n x", "n y"), "enough", hand_on("n z"), "more"],
        {"n ": ["ok"]},
    )
    async with runtime_of(config, cast) as runtime:
        name, seq = await begin(runtime)
        await settled(runtime, name, seq)
        found = await results(runtime, name)
        assert [outcome for outcome, _ in found].count("done") == CHILDREN_MAX
        (refused,) = [text for outcome, text in found if outcome == "failed"]
        assert f"{CHILDREN_MAX} tasks" in refused
        await settled(runtime, name, (await runtime.submit(name, "again")).seq)
        assert len(await runtime.journal.delegated(name)) == CHILDREN_MAX + 1


async def test_a_sub_agent_has_no_tool_that_outlasts_its_task_or_looks_beyond_it(
    config: Config,
) -> None:
    """It hands nothing on, schedules nothing, leaves nothing running, and reads no memory and no other conversation."""
    cast = Cast([hand_on("plan"), "fine"], {"plan": ["done"]})
    async with runtime_of(config, cast) as runtime:
        name, seq = await begin(runtime)
        await settled(runtime, name, seq)
        offered = []
        for each in (name, (await card(runtime, name, asks=False)).child):
            (opened,) = await told(runtime, each, ContextOpened)
            specs = msgspec.json.decode(
                await runtime.journal.get_blob(opened.tools.blob) or b""
            )
            offered.append({spec["name"] for spec in specs})
        kept = {"delegate", "schedule", "search_conversations", "memory"}
        assert offered[0] - offered[1] == kept | {
            "shell_start",
            "shell_read",
            "shell_stop",
        }
        assert "shell" in offered[1]


async def test_what_sub_agents_spend_is_the_parents_and_their_steps_are_few(
    config: Config,
) -> None:
    """The family stops at the parent's budget, whoever of it spends; a sub-agent that comes to no end is ended."""
    look = Reply(calls=[ScriptedCall("no_such_tool")], cost=0.3)
    cast = Cast(
        [Reply(calls=hand_on("spend").calls, cost=0.2), Reply(words="never said")],
        {"spend": [look] * 40},
    )
    async with runtime_of(
        config, cast, limits=Limits(dollars_conversation=1.0)
    ) as runtime:
        name, seq = await begin(runtime)
        await settled(runtime, name, seq)
        ((outcome, text),) = await results(runtime, name)
        assert (outcome, "1.10 of 1.00 US dollars" in text) == ("failed", True)
        assert (cast.asked("spend"), cast.asked(), await outcomes(runtime, name)) == (
            3,
            1,
            ["failed"],
        )
        assert (await runtime.usage(name)).cost == pytest.approx(1.1)
    cast = Cast([hand_on("spend"), "gave up"], {"spend": [look] * 40})
    async with runtime_of(config, cast) as runtime:
        name, seq = await begin(runtime)
        await settled(runtime, name, seq)
        ((outcome, text),) = await results(runtime, name)
        assert (outcome, "25 steps" in text, cast.asked("spend")) == (
            "failed",
            True,
            25,
        )


class Patient(Cast):
    """The sub-agent says that it wrote it when the test says so."""

    def __init__(self) -> None:
        super().__init__([hand_on("plan"), "planned"], {"plan": [WRITE, "wrote it"]})
        self.go = asyncio.Event()

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        async for piece in super().stream(body, silence=silence):
            if isinstance(piece, Words) and piece.text.startswith("wrote"):
                await self.go.wait()
            yield piece


async def test_an_approval_in_a_sub_agent_is_answered_there_and_both_go_on(
    config: Config, tmp_path: Path
) -> None:
    """The parent's card says that it waits and where; nothing is held meanwhile; another process may take over, and answer."""
    cast = Cast([hand_on("plan"), "planned"], {"plan": [WRITE, "wrote it"]})
    async with runtime_of(config, cast) as runtime:
        name, _ = await begin(runtime)
        row = await card(runtime, name, asks=True)
        async with asyncio.timeout(30):
            for each in (name, row.child, name):  # one may wake the other once more
                while await runtime.journal.holder(f"run:{each}") is not None:
                    await runtime.workers.idle(each)
        (asked,) = await runtime.questions(row.child)
        assert await runtime.questions(name) == []
        assert f"/open {row.child}" in Screen(lambda: 200).changed([Put(row)])
    other = Patient()
    async with runtime_of(config, other, serves=False) as runtime:
        await runtime.take_over(name)
        await until(runtime, name, "run.started", 2)
        await runtime.workers.idle(name)
        await runtime.answer(row.child, asked.message, asked.call, "once")
        # nobody is asked any more, and it goes on
        await until(runtime, name, "tool.handed", 3)
        other.go.set()
        await all_answered(runtime, name)
        assert await results(runtime, name) == [("done", "wrote it")]
        assert [each.asks for each in await told(runtime, name, ToolHanded)] == [
            False,
            True,
            False,
        ]
        assert (await card(runtime, name, asks=False)).state == "done"
        assert (cast.asked(), other.asked()) == (1, 1)
    assert (config.tools_folder / "plan.txt").read_text() == "tea"


@pytest.mark.parametrize("task", [[HANG], [WRITE]])
async def test_stopping_a_run_stops_its_sub_agents(
    config: Config, task: list[Reply]
) -> None:
    """At work in this process or waiting for a person, and told by another runtime: both end as stopped."""
    cast = Cast([hand_on("plan"), "never"], {"plan": task})
    async with (
        runtime_of(config, cast) as runtime,
        runtime_of(config, cast, serves=False) as other,
    ):
        name, _ = await begin(runtime)
        row = await card(runtime, name, asks=task == [WRITE])
        await until(runtime, row.child, "model.requested")
        await other.stop(name)
        await ended(runtime, name)
        await ended(runtime, row.child)
        assert (await outcomes(runtime, name), await outcomes(runtime, row.child)) == (
            ["cancelled"],
            ["cancelled"],
        )
        assert (await results(runtime, name))[0][0] == "cancelled"
        assert (cast.asked(), cast.asked("plan")) == (1, 1)


async def test_a_sub_agent_that_nobody_waits_for_is_not_gone_on_with(
    config: Config,
) -> None:
    """It was cut off with its process, and the parent was stopped meanwhile: the next start asks no model for it."""
    cast = Cast([hand_on("plan"), "never"], {"plan": [HANG]})
    async with runtime_of(config, cast) as runtime:
        name, _ = await begin(runtime)
        child = (await card(runtime, name, asks=False)).child
        await until(runtime, child, "model.requested")
        # it waits for the sub-agent; otherwise it would be cut off, and go on
        await runtime.workers.idle(name)
    async with runtime_of(config, cast, serves=False) as runtime:
        await runtime.stop(name)
        await ended(runtime, name)
        assert await outcomes(runtime, child) == ["interrupted"]
    async with runtime_of(config, cast) as runtime:
        await until(runtime, child, "run.finished", 2)
        assert await outcomes(runtime, child) == ["interrupted", "cancelled"]
        assert len(await events_of(runtime, child, "model.requested")) == 1


async def test_a_stopped_sub_agent_says_so_and_an_interruption_reaches_it(
    config: Config,
) -> None:
    """The parent goes on with that as a result; a message that interrupts the parent stops the next sub-agent."""
    cast = Cast([hand_on("plan"), hand_on("plan again"), "answered"], {"plan": [HANG]})
    async with runtime_of(config, cast) as runtime:
        name, _ = await begin(runtime)
        first = (await card(runtime, name, asks=False)).child
        await until(runtime, first, "model.requested")
        await runtime.stop(first)
        await until(runtime, name, "tool.handed", 2)
        assert await results(runtime, name) == [
            ("failed", "The sub-agent was stopped before it was done.")
        ]
        (second,) = {row.child for row in await cards(runtime, name)} - {first}
        now = (await runtime.submit(name, "no, answer me", how="interrupt")).seq
        await settled(runtime, name, now)
        await ended(runtime, second)
        assert (await outcomes(runtime, name))[0] == "cancelled"
        assert await outcomes(runtime, second) == ["cancelled"]
        assert prose(await runtime.transcript(name))[-1] == "answered"


async def test_a_sub_agent_that_takes_too_long_is_stopped(config: Config) -> None:
    """The tool's bound holds though nothing waits inside of it; the time in which a person is asked does not count."""
    config = with_timing(config, delegate_seconds=2.0)
    cast, clock = (
        Cast([hand_on("plan"), "went on without"], {"plan": [WRITE, HANG]}),
        SimClock(),
    )
    with tenax.open(config.store_url, user=LOCAL_USER, clock=clock) as journal:
        async with runtime_of(config, cast, journal=journal) as runtime:
            name, seq = await begin(runtime)
            child = (await card(runtime, name, asks=True)).child
            (asked,) = await runtime.questions(child)
            clock.advance(3.0)  # longer than the bound
            await runtime.answer(child, asked.message, asked.call, "once")
            await until(runtime, child, "model.requested", 2)
            await until(runtime, name, "tool.handed", 3)  # from here on its time counts
            assert await results(runtime, name) == []
            clock.advance(3.0)
            await settled(runtime, name, seq)
            await ended(runtime, child)
            assert await results(runtime, name) == [
                ("failed", "delegate was stopped because it took more than 2 seconds.")
            ]
            assert (await outcomes(runtime, child), await outcomes(runtime, name)) == (
                ["cancelled"],
                ["completed"],
            )


async def test_sub_agents_go_with_what_is_deleted_or_erased(config: Config) -> None:
    """Deleting the parent deletes them; erasing a call or its result deletes its own; erasing inside erases the result."""
    cast = Cast(
        [hand_on("t1", "t2", "t3"), "done"],
        {"t1": ["one"], "t2": ["two"], "t3": ["three"]},
    )
    async with runtime_of(config, cast) as runtime:
        name, seq = await begin(runtime)
        await settled(runtime, name, seq)
        one, two, three = (row.child for row in await cards(runtime, name))
        said = [each.seq for each in await events_of(runtime, one, "message.assistant")]
        await runtime.erase(one, said)
        texts = {row.child: row.text for row in await cards(runtime, name)}
        assert texts == {one: "", two: "two", three: "three"}
        (result,) = [
            each.seq
            for each in await events_of(runtime, name, "tool.finished")
            if each.body and b"two" in each.body
        ]
        await runtime.erase(name, [result])
        assert await runtime.journal.delegated(name) == [one, three]
        await runtime.delete(name)
        for each in (name, one, two, three):
            with pytest.raises(Gone):
                await runtime.journal.head(each)
        assert (await runtime.search("three")).hits == []


async def test_a_sub_agent_that_is_deleted_is_a_result_too(config: Config) -> None:
    """It was cut off with its process, and a person deleted it: the parent is told, and goes on."""
    cast = Cast([hand_on("plan"), "without it"], {"plan": [HANG]})
    async with runtime_of(config, cast) as runtime:
        name, seq = await begin(runtime)
        child = (await card(runtime, name, asks=False)).child
        await until(runtime, child, "model.requested")
        await runtime.workers.idle(name)  # it waits for the sub-agent
    async with runtime_of(config, cast, serves=False) as runtime:
        await runtime.delete(child)
        await settled(runtime, name, seq)
        ((outcome, text),) = await results(runtime, name)
        assert (outcome, "was deleted" in text) == ("failed", True)
        assert prose(await runtime.transcript(name))[-1] == "without it"


@pytest.mark.parametrize("says", ["wrote it", HANG])
async def test_what_another_process_left_of_a_sub_agent_is_seen_to(
    config: Config, monkeypatch: pytest.MonkeyPatch, says: Reply | str
) -> None:
    """It answered there and died before it told the parent, or in the middle: who serves looks, and both come to an end."""
    cast = Cast([hand_on("plan"), "planned"], {"plan": [WRITE, "wrote it"]})
    async with runtime_of(config, cast) as runtime:
        name, seq = await begin(runtime)
        child = (await card(runtime, name, asks=True)).child
        await runtime.workers.idle(child)
        await runtime.workers.idle(name)
        dies = Cast([], {"plan": [WRITE, says]})
        async with runtime_of(config, dies, serves=False) as other:

            async def dead(conversation: str) -> None:
                """It tells nobody."""

            monkeypatch.setattr(other.workers, "wake_parent", dead)
            (asked,) = await other.questions(child)
            await other.answer(child, asked.message, asked.call, "once")
            await until(
                other,
                child,
                *(("model.requested", 2) if says == HANG else ("run.finished", 1)),
            )
        await runtime.pick_up_orphans()
        await settled(runtime, name, seq)
        assert await results(runtime, name) == [("done", "wrote it")]
        assert await outcomes(runtime, name) == ["completed"]


async def test_going_on_with_a_run_goes_on_with_its_sub_agents(config: Config) -> None:
    """Where nothing goes on by itself, one yes of the person is enough."""
    config = replace(config, resume="ask")
    async with runtime_of(config, Cast([hand_on("plan")], {"plan": [HANG]})) as runtime:
        name, seq = await begin(runtime)
        child = (await card(runtime, name, asks=False)).child
        await until(runtime, child, "model.requested")
        await runtime.workers.idle(name)  # it waits for the sub-agent
    cast = Cast([hand_on("plan"), "planned"], {"plan": ["wrote it"]})
    async with runtime_of(config, cast) as runtime:
        await runtime.pick_up_orphans()
        await runtime.workers.idle(child)
        assert cast.asked("plan") == 0
        await runtime.go_on(name)
        await settled(runtime, name, seq)
        assert await results(runtime, name) == [("done", "wrote it")]
