"""Providers inside a runtime: every turn reaches them, the end of a conversation at its boundaries, and none holds a turn."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tenax.assembly import Runtime
from tenax.config import Config
from tenax.events import TEMPORARY, MemoryDue
from tenax.models import Reply, Script, ScriptedModel
from tenax.recovery import repair
from tenax.sessions import SessionDB
from tests.support.children import Child, Teller
from tests.support.diary import SECONDS, Diary
from tests.support.runs import asked, config_of, with_timing


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path, TENAX_MEMORY_PROVIDERS="diary")


def talks(config: Config) -> Runtime:
    return Runtime(config, models=[ScriptedModel(Script([Reply("Yes.")], repeat=True))])


async def told(diary: Diary, kind: str, count: int) -> list[list[Any]]:
    return await asyncio.to_thread(diary.told, kind, count)


async def dues(runtime: Runtime, name: str) -> list[MemoryDue]:
    events = [event.event for event in await runtime.journal.read(name)]
    return [event for event in events if isinstance(event, MemoryDue)]


async def test_every_turn_reaches_a_plugin_in_order_and_its_words_reach_the_model(
    config: Config,
) -> None:
    """Prompt block, recall and tool of the provider are the model's; turns come with their key."""
    config = with_timing(config, close_seconds=SECONDS)
    diary = Diary(config)
    model = ScriptedModel([Reply("One."), Reply("Two.")])
    async with Runtime(config, models=[model]) as runtime:
        await runtime.memory.ready.wait()
        name = await runtime.new()
        first = await asked(runtime, name, "Tell me about tea.")
        second = await asked(runtime, name, "And coffee?")
        synced = await told(diary, "sync", 2)
        assert [each[2:4] for each in synced] == [
            ["Tell me about tea.", "One."],
            ["And coffee?", "Two."],
        ]
        keys = [each[4] for each in synced]
        assert all(key.startswith(f"{name}:") for key in keys)
        assert first < int(keys[0].split(":")[1]) < second < int(keys[1].split(":")[1])
        assert b"A diary is kept." in model.bodies[0]
        assert b"the diary knows about tea" in model.bodies[0]
        assert b"diary_look" in model.bodies[0]
        async with asyncio.timeout(SECONDS):
            while (status := (await runtime.memory.status())[0]).behind:
                assert status.behind == 1, "the last one is noted after it was taken"
        assert (status.provider, status.letters) == ("diary", [])
    assert diary.calls("shutdown")
    assert diary.calls("end") == [["end", ["Tell me about tea.", "And coffee?"]]]


async def test_leaving_a_conversation_is_a_boundary_and_nothing_new_is_none(
    config: Config,
) -> None:
    """A new one, a switch and a clear each end what came before, once; without a finished turn nothing is due."""
    diary = Diary(config)
    async with talks(config) as runtime:
        await runtime.memory.ready.wait()
        name = await runtime.new()
        empty = await runtime.new(leaving=name)
        assert await dues(runtime, name) == []
        await asked(runtime, name, "one")
        await runtime.new(leaving=name)
        await runtime.left(name)
        await asked(runtime, name, "two")
        await runtime.left(name)
        await asked(runtime, name, "three")
        await runtime.clear(name)
        await runtime.left(empty)
        assert [due.reason for due in await dues(runtime, name)] == [
            "new",
            "switch",
            "cleared",
        ]
        assert await dues(runtime, empty) == []
        ends = await told(diary, "end", 3)
        assert [end[1][-1] for end in ends] == ["one", "two", "three"]


def talk_and_die(teller: Teller, url: str, home: str, name: str) -> None:
    """Answer a message, and die: the provider has not taken the turn, and no boundary was stored."""

    async def work() -> None:
        config = config_of(url, Path(home), TENAX_MEMORY_PROVIDERS="diary")
        async with talks(config) as runtime:
            await runtime.memory.ready.wait()
            await asked(runtime, name, "nobody was there")
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(work())


async def test_what_a_dead_process_left_behind_is_met_by_the_next(
    config: Config, store_url: str, tmp_path: Path
) -> None:
    """`kill -9` between the turn and its end; the next start finds the turn in the store, and gives it and its end."""
    diary = Diary(config)
    async with talks(config) as runtime:
        await runtime.memory.ready.wait()
        name = await runtime.new()
    diary.act(sync="block")
    child = Child(talk_and_die, store_url, str(tmp_path), name)
    assert await asyncio.to_thread(child.finish) == -signal.SIGKILL
    assert diary.calls("sync", "end") == []
    diary.act(sync="")
    async with talks(config):
        assert (await told(diary, "sync", 1))[0][2] == "nobody was there"
        assert await told(diary, "end", 1) == [["end", ["nobody was there"]]]


async def test_late_output_reaches_no_provider_and_starts_no_run(
    config: Config,
) -> None:
    """A run that was cut off is no turn that a memory is told of, whatever comes of it afterwards."""
    diary, model = Diary(config), ScriptedModel(Script([Reply("Yes.")], repeat=True))
    async with Runtime(config, models=[model]) as runtime:
        await runtime.memory.ready.wait()
        name = await runtime.new()
        await asked(runtime, name, "one")
        with SessionDB(url=config.store_url) as db:
            session = (await runtime.journal.head(name)).segment or ""
            await asyncio.to_thread(repair, db, session, "r-dead")
            for kind, payload in (
                ("token", {"text": "late words"}),
                ("stream_end", {}),
            ):
                await asyncio.to_thread(
                    db.append_run_event, session, "r-dead", kind, payload
                )
        assert [row.text for row in await runtime.transcript(name)][2] == "late words"
        await runtime.left(name)
        await asked(runtime, name, "two")
        synced = await told(diary, "sync", 2)
        assert [each[2:4] for each in synced] == [["one", "Yes."], ["two", "Yes."]]
        assert len(model.bodies) == 2


async def test_an_undone_turn_reaches_the_provider_as_a_rewind(config: Config) -> None:
    """It was told of the turn; it is told that the conversation went back."""
    diary = Diary(config)
    async with talks(config) as runtime:
        await runtime.memory.ready.wait()
        name = await runtime.new()
        await asked(runtime, name, "kept")
        await asked(runtime, name, "taken back")
        await told(diary, "sync", 2)
        await runtime.undo(name)
        until = time.monotonic() + 30
        while not any(call[4] for call in diary.calls("switch")):
            assert time.monotonic() < until
            await asyncio.sleep(0.05)


async def test_a_temporary_conversation_reaches_no_provider(
    config: Config,
) -> None:
    """Neither its turns nor its end."""
    config = with_timing(config, close_seconds=SECONDS)
    diary = Diary(config)
    async with talks(config) as runtime:
        await runtime.memory.ready.wait()
        hidden, shown = await runtime.new(source=TEMPORARY), await runtime.new()
        await asked(runtime, hidden, "between us")
        await runtime.left(hidden)
        await asked(runtime, shown, "for all")
        await told(diary, "sync", 1)
    assert [call[2] for call in diary.calls("sync")] == ["for all"]
    assert diary.calls("end") == [["end", ["for all"]]]


@pytest.mark.parametrize("act", ["block", "raise", "leak", "print"])
async def test_a_bad_provider_holds_no_turn_no_neighbour_and_no_end(
    store_url: str, tmp_path: Path, act: str
) -> None:
    """Turns are finished before it is called, its neighbour is told everything, a clear goes through, and the runtime
    closes in time.
    """
    config = config_of(store_url, tmp_path, TENAX_MEMORY_PROVIDERS="diary,good")
    config = with_timing(config, provider_recall_seconds=0.25)
    bad, good = (
        Diary(config, sync=act, prefetch=act, end=act, shutdown=act),
        Diary(config, "good"),
    )
    runtime = talks(config)
    await runtime.start()
    await runtime.memory.ready.wait()
    name = await runtime.new()
    for n in range(5):
        await asked(runtime, name, f"turn {n}")
    await told(good, "sync", 5)
    before = time.monotonic()
    await runtime.clear(name)
    await asked(runtime, name, "turn 5")
    await told(good, "sync", 6)
    await runtime.close()
    # A call that blocks never ends.
    assert time.monotonic() - before < 60
    assert [call[2] for call in good.calls("sync")] == [f"turn {n}" for n in range(6)]
    if act == "block":
        assert bad.blocked
        assert bad.calls("sync") == []


async def test_a_compaction_asks_the_providers_and_ends_the_segment(
    config: Config,
) -> None:
    """What a provider wants kept stands in the request for the summary; the end of the segment is told, then the next one."""
    diary = Diary(config)
    model = ScriptedModel(
        [
            Reply("One. " * 50),
            Reply("Two. " * 50),
            Reply("Three. " * 50),
            Reply("A summary."),
            Reply("Four."),
        ]
    )
    async with Runtime(config, models=[model]) as runtime:
        await runtime.memory.ready.wait()
        name = await runtime.new()
        for words in ("one " * 50, "two " * 50, "three " * 50):
            await asked(runtime, name, words)
        before = (await runtime.journal.head(name)).segment
        outcome = await runtime.compact(name)
        assert type(outcome).__name__ == "Compacted"
        assert b"the diary wants the boat kept" in model.bodies[-1]
        (due,) = await dues(runtime, name)
        assert (due.session, due.reason) == (before, "compacted")
        await asked(runtime, name, "four")
        synced = await told(diary, "sync", 4)
        assert [each[1] for each in synced] == [before] * 3 + [
            (await runtime.journal.head(name)).segment
        ]
        assert (await told(diary, "end", 1))[0][1][-1].startswith("three")


async def test_a_run_is_finished_in_the_store_before_a_provider_hears_of_it(
    config: Config,
) -> None:
    """The blocked call of the provider writes down when it began."""
    diary = Diary(config, sync="block")
    async with talks(config) as runtime:
        await runtime.memory.ready.wait()
        name = await runtime.new()
        await asked(runtime, name, "hello")
        async with asyncio.timeout(SECONDS):
            while not diary.blocked:
                await runtime.memory.status()
        (finished,) = [
            event
            for event in await runtime.journal.read(name)
            if event.kind == "run.finished"
        ]
        assert finished.at <= diary.blocked_at
        before = await runtime.submit(name, "and this?")
        await runtime.finished(name, before.seq)
