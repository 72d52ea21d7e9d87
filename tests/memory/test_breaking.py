"""What was tried to break the memory as a person would meet it, and how it holds."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenax.agent.compaction import Compacted
from tenax.assembly import Runtime
from tenax.clock import Timing
from tenax.config import Config, ModelSettings
from tenax.config.schema import Memory
from tenax.errors import StoreDamaged, StoreUnavailable
from tenax.events import (
    TEMPORARY,
    ContextOpened,
    MemoryDue,
    MemoryNoted,
    MemoryRecalled,
    MessageUser,
    SegmentEnded,
)
from tenax.journal import open as open_journal
from tenax.memory.entries import MemoryEntries
from tenax.memory.tool import UseMemory, UseMemoryArgs
from tenax.models import Piece, Reply, Script, ScriptedCall, ScriptedModel
from tenax.parts import Text
from tenax.tools import base as tools
from tests.models.talk import clock_ahead
from tests.support.diary import Diary
from tests.support.runs import asked, config_of, outcomes, settled, told, with_timing

SECONDS = 30.0
TEA = "The person drinks green tea in the morning."
ODD = """
import threading, time
from pathlib import Path
from agent.memory_provider import MemoryProvider

HERE = Path(__file__).parent

class Odd(MemoryProvider):
    name = "odd"

    def is_available(self):
        return True

    def initialize(self, session_id, **kwargs):
        pass

    def get_tool_schemas(self):
        return []
"""


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


@pytest.fixture
def reviewed(config: Config) -> Config:
    """A configuration in which a conversation is reviewed as soon as it rests."""
    return with_timing(config, quiet_seconds=0.0, review_seconds=0.1)


def plugged(config: Config, source: str, *, folder: str = "odd") -> Config:
    """With a provider of this source, beside those that are named already."""
    place = config.directories.data / "plugins" / folder
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(ODD + source)
    return replace(config, memory=Memory(providers=(*config.memory.providers, folder)))


def talks(config: Config, *replies: Reply) -> Runtime:
    return Runtime(
        config,
        models=[ScriptedModel(Script(list(replies) or [Reply("Yes.")], repeat=True))],
    )


def connected(config: Config) -> Config:
    """With a model that counts as one that the person connected."""
    model = ModelSettings(
        label="mine", api="openai", url="http://127.0.0.1:1", name="scripted"
    )
    return replace(config, models={"mine": model}, model="mine")


async def ready(runtime: Runtime) -> None:
    async with asyncio.timeout(SECONDS):
        await runtime.memory.ready.wait()


async def until(done: Callable[[], Any]) -> None:
    """Wait until this is so."""
    async with asyncio.timeout(SECONDS):
        while not (await found if asyncio.iscoroutine(found := done()) else found):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def prefix(body: bytes) -> tuple[Any, Any]:
    """What a request begins with: the prompt, and the tools."""
    sent = json.loads(body)
    return sent["prompt"], sent["tools"]


# -- a provider that is not as it should be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["prefetch", "system_prompt_block", "on_pre_compress"]
)
@pytest.mark.parametrize("words", ["'a\\ud800b'", "'a\\0b'", "'word ' * 2_000_000"])
async def test_whatever_words_a_provider_gives_the_turn_is_answered(
    config: Config, method: str, words: str
) -> None:
    """Half of a surrogate pair, a NUL, ten megabytes: none of it ends a run or a compaction."""
    config = plugged(
        config, f"    def {method}(self, *args, **kwargs):\n        return {words}\n"
    )
    replies = [Reply("One. " * 50), Reply("Two. " * 50), Reply("A summary.")]
    async with talks(config, *replies) as runtime:
        await ready(runtime)
        name = await runtime.new()
        await asked(runtime, name, "hello " * 50)
        await asked(runtime, name, "hello " * 50)
        assert isinstance(await runtime.compact(name), Compacted)
        await asked(runtime, name, "hello")
        assert await outcomes(runtime, name) == ["completed"] * 3


async def test_a_strange_tool_is_left_out_and_the_others_are_offered(
    config: Config,
) -> None:
    """What is no JSON, no object, or has no name that a model could say."""
    config = plugged(
        config,
        """
    def get_tool_schemas(self):
        loop = {}
        loop["loop"] = loop
        bad = [{"type": "object", "default": object()}, {"type": "string"}, loop, {"type": "object", "properties": ["a"]},
               {"type": "object", "description": "a\\ud800"}]
        tools = [{"name": f"bad_{n}", "parameters": each} for n, each in enumerate(bad)]
        tools += [{"name": "bad name", "parameters": {"type": "object"}}, {"name": 5}, "tool", None]
        tools += [{"name": "bad_words", "description": "\\ud800", "parameters": {"type": "object"}}]
        tools += [{"name": "memory", "parameters": {"type": "object"}}]
        return [*tools, {"name": "good", "description": "It is good."}]

    def handle_tool_call(self, tool_name, args, **kwargs):
        return "fine"
""",
    )
    model = ScriptedModel(
        [Reply(calls=[ScriptedCall("good", {"any": 1})]), Reply("Yes.")]
    )
    async with Runtime(config, models=[model]) as runtime:
        await ready(runtime)
        name = await runtime.new()
        await asked(runtime, name, "hello")
        assert await outcomes(runtime, name) == ["completed"]
        assert b"fine" in model.bodies[-1]
        assert b"bad" not in model.bodies[-1]


async def test_tools_are_asked_for_once_and_stay(config: Config) -> None:
    """A provider that answers slowly the second time neither holds the loop nor moves the prompt."""
    config = plugged(
        config,
        """
    asked = 0

    def get_tool_schemas(self):
        Odd.asked += 1
        if Odd.asked > 1:
            threading.Event().wait()
        return [{"name": "good", "description": "It is good."}]
""",
    )
    model = ScriptedModel(Script([Reply("Yes.")], repeat=True))
    async with Runtime(config, models=[model]) as runtime:
        await ready(runtime)
        name = await runtime.new()
        await asked(runtime, name, "hello")
        await runtime.configure(config)
        await asked(runtime, name, "hello")
        assert b"good" in model.bodies[0]
        assert prefix(model.bodies[0]) == prefix(model.bodies[1])


@pytest.mark.parametrize("called", ["builtin", "", "two\\nlines", "n" * 300])
async def test_a_provider_of_an_impossible_name_is_not_used(
    config: Config, called: str
) -> None:
    """Least of all one that passes for the built-in memory, which is called in place. The status says so."""
    source = f"""
    name = "{called}"

    def on_turn_start(self, *args, **kwargs):
        threading.Event().wait()
"""
    async with talks(plugged(config, source)) as runtime:
        await ready(runtime)
        name = await runtime.new()
        await asked(runtime, name, "hello")
        (status,) = await runtime.memory.status()
        assert (status.provider, bool(status.problem)) == ("odd", True)


async def test_of_two_providers_with_one_name_the_first_is_used(config: Config) -> None:
    """Two would share a line, and each turn would reach one of them."""
    config = plugged(plugged(config, ""), "", folder="other")
    async with talks(config) as runtime:
        await ready(runtime)
        assert [(each.provider, bool(each.problem)) for each in await runtime.memory.status()] == [
            ("odd", False), ("other", True)]  # fmt: skip


async def test_a_tool_of_a_provider_is_told_the_session_that_its_turns_have(
    config: Config,
) -> None:
    """What it keeps by session it finds again."""
    source = """
    def get_tool_schemas(self):
        return [{"name": "look", "description": "Looks."}]

    def handle_tool_call(self, tool_name, args, *, session_id="", **kwargs):
        return f"in {session_id}."
"""
    model = ScriptedModel([Reply(calls=[ScriptedCall("look")]), Reply("Yes.")])
    async with Runtime(plugged(config, source), models=[model]) as runtime:
        await ready(runtime)
        name = await runtime.new()
        await asked(runtime, name, "hello")
        assert (
            f"in {(await runtime.journal.head(name)).segment}.".encode()
            in model.bodies[-1]
        )


async def test_a_provider_hears_of_changes_in_the_words_of_its_ecosystem(
    config: Config,
) -> None:
    """add, replace and remove; an undo is the one of these that it comes to."""
    config = replace(config, memory=Memory(providers=("diary",)))
    diary = Diary(config)
    async with talks(config) as runtime:
        await ready(runtime)
        fact, _ = await runtime.memory.add("one")
        fact = await runtime.memory.change(fact.id, was=1, text="two")
        fact = await runtime.memory.undo(fact.id, was=2)
        fact = await runtime.memory.remove(fact.id, was=3)
        fact = await runtime.memory.undo(fact.id, was=4)
        other, _ = await runtime.memory.add("another thing")
        await runtime.memory.undo(other.id, was=1)
        heard = await asyncio.to_thread(diary.told, "write", 7)
    assert [(each[1], each[3]) for each in heard] == [
        ("add", "one"), ("replace", "two"), ("replace", "one"), ("remove", "one"), ("add", "one"),
        ("add", "another thing"), ("remove", "another thing")]  # fmt: skip


# -- temporary conversations ---------------------------------------------------------------------------------------


async def test_a_temporary_conversation_is_not_looked_over(
    reviewed: Config,
) -> None:
    """Nobody reads it for things worth remembering."""
    model = ScriptedModel(Script([Reply("Yes.")], repeat=True), name="scripted")
    async with Runtime(connected(reviewed), models=[model]) as runtime:
        hidden, shown = await runtime.new(source=TEMPORARY), await runtime.new()
        await asked(runtime, hidden, "I live in Lisbon, and that is between us.")
        await asked(runtime, shown, "I live in Porto.")
        await until(
            lambda: any(
                b"Porto" in body and b"JSON array" in body for body in model.bodies
            )
        )
        assert not any(
            b"Lisbon" in body and b"JSON array" in body for body in model.bodies
        )


async def test_a_temporary_conversation_that_is_compacted_reaches_no_provider(
    config: Config,
) -> None:
    """Nothing becomes due."""
    replies = [Reply("One. " * 50), Reply("Two. " * 50), Reply("A summary.")]
    model = ScriptedModel(Script(replies, repeat=True))
    async with Runtime(plugged(config, ""), models=[model]) as runtime:
        await ready(runtime)
        name = await runtime.new(source=TEMPORARY)
        await asked(runtime, name, "hello " * 50)
        await asked(runtime, name, "hello " * 50)
        assert isinstance(await runtime.compact(name), Compacted)
        assert await told(runtime, name, MemoryDue) == []


# -- the memory tool, again after a crash --------------------------------------------------------------------------


async def test_a_fact_that_a_killed_process_stored_is_told_in_its_conversation(
    config: Config, tmp_path: Path
) -> None:
    """The call is made again: the fact is there once, and the line that can be undone too."""
    async with talks(config) as runtime:
        name = await runtime.new()
        seq = await asked(runtime, name, "I drink green tea in the morning.")
        made = tools.Call("local", name, seq + 3, "call_1", tmp_path)
        facts = MemoryEntries(runtime.journal.journal)
        stored = facts.add(TEA, by="model", conversation=name, seq=seq, key=made.key)
        tool = UseMemory(runtime.memory)
        said = await tool.run(UseMemoryArgs("add", TEA), made)
        assert said == f"Remembered: {stored.id}: {TEA}"
        assert [entry.text for entry in await runtime.memory.entries()] == [TEA]
        assert [
            (each.fact, each.action) for each in await told(runtime, name, MemoryNoted)
        ] == [(stored.id, "added")]
        made = msgspec.structs.replace(made, id="call_2")
        facts.change(
            stored.id,
            was=1,
            text="Tea.",
            by="model",
            conversation=name,
            seq=seq,
            key=made.key,
        )
        said = await tool.run(UseMemoryArgs("replace", "Tea.", stored.id), made)
        assert said == f"Changed: {stored.id}: Tea."
        made = msgspec.structs.replace(made, id="call_3")
        facts.remove(
            stored.id, was=2, by="model", conversation=name, seq=seq, key=made.key
        )
        said = await tool.run(UseMemoryArgs("remove", "", stored.id), made)
        assert said == "Forgotten: Tea."
        assert [each.action for each in await told(runtime, name, MemoryNoted)] == [
            "added", "replaced", "removed"]  # fmt: skip


# -- undo ----------------------------------------------------------------------------------------------------------


async def test_an_undo_works_where_the_conversation_takes_nothing_any_more(
    config: Config,
) -> None:
    """The fact of a conversation that was ended is undone, and no error is told."""
    model = ScriptedModel(
        [
            Reply(calls=[ScriptedCall("memory", {"action": "add", "text": TEA})]),
            Reply("Noted."),
        ]
    )
    async with Runtime(config, models=[model]) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "I drink green tea in the morning.")
        (fact,) = await runtime.memory.entries()
        segment = (await runtime.journal.head(name)).segment or ""
        await runtime.journal.append(name, [SegmentEnded(segment, "done")])
        await runtime.memory.undo(fact.id, was=1)
        assert await runtime.memory.entries() == []


async def test_a_fact_of_a_deleted_conversation_can_be_changed_and_undone(
    config: Config,
) -> None:
    """What the person said otherwise stays theirs, wherever it was learned."""
    model = ScriptedModel(
        [
            Reply(calls=[ScriptedCall("memory", {"action": "add", "text": TEA})]),
            Reply("Noted."),
        ]
    )
    async with Runtime(config, models=[model]) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "I drink green tea in the morning.")
        await runtime.delete(name)
        for entry in await runtime.memory.entries():
            await runtime.memory.undo(entry.id, was=entry.version)
        assert await runtime.memory.entries() == []


# -- several authors -----------------------------------------------------------------------------------------------


async def shared_fact(runtime: Runtime) -> tuple[str, int]:
    """A conversation with two authors, and what was learned in it; where the other one wrote."""
    name = await runtime.new()
    (other,) = await runtime.journal.append(
        name, [MessageUser([Text("Hi, I am Grace.")], author="grace")]
    )
    seq = await asked(runtime, name, "The team meets at nine.")
    await runtime.memory.add(
        "The team meets at nine.", by="model", conversation=name, seq=seq
    )
    return name, other.seq


async def test_a_file_that_is_taken_in_unchanged_changes_nothing(
    config: Config,
) -> None:
    """Also what is for one conversation alone: it is known, is not added for all, and is found by its words."""
    async with talks(config) as runtime:
        await shared_fact(runtime)
        await runtime.memory.add(TEA)
        loaded = await runtime.memory.load(await runtime.memory.export())
        assert (loaded.added, loaded.changed, loaded.known) == (0, 0, 2)
        assert [hit.text for hit in await runtime.memory.search("team")] == [
            "The team meets at nine."
        ]


async def test_what_is_for_one_conversation_stays_there_when_the_other_author_is_gone(
    config: Config,
) -> None:
    """Their message is erased: it is a conversation like any other, and its facts still come into no other."""
    model = ScriptedModel(Script([Reply("Yes.")], repeat=True))
    async with Runtime(config, models=[model]) as runtime:
        name, seq = await shared_fact(runtime)
        await runtime.erase(name, [seq])
        await runtime.memory.add("Something else.")
        await asked(runtime, name, "When does the team meet?")
        await asked(runtime, await runtime.new(), "When does the team meet?")
        assert b"meets at nine" not in model.bodies[-1]


async def test_somebody_who_comes_in_later_is_told_nothing_private(
    config: Config,
) -> None:
    """From their first message on, the prompt says nothing that was learned elsewhere, and no provider is asked."""
    source = "    def prefetch(self, query, *, session_id=''):\n        return 'the odd one knows about the boat'\n"
    model = ScriptedModel(Script([Reply("Yes.")], repeat=True))
    async with Runtime(plugged(config, source), models=[model]) as runtime:
        await ready(runtime)
        await runtime.memory.add("The person's secret wish is a boat.", about="profile")
        name = await runtime.new()
        await asked(runtime, name, "Hello.")
        assert b"secret wish" in model.bodies[-1]
        assert b"the odd one knows" in model.bodies[-1]
        await runtime.journal.append(
            name, [MessageUser([Text("Hi, I am Grace.")], author="grace")]
        )
        await asked(runtime, name, "This is Grace.")
        assert b"secret wish" not in model.bodies[-1]
        assert model.bodies[-1].count(b"the odd one knows") == 1, (
            "only what stood there before"
        )
        await asked(runtime, name, "Hello.")
        assert prefix(model.bodies[-1]) == prefix(model.bodies[-2])


async def test_an_erased_message_is_gone_from_every_prompt_and_recall(
    config: Config,
) -> None:
    """What was learned from it is in no request after that, also where it was part of a running segment."""
    model = ScriptedModel(Script([Reply("Yes.")], repeat=True))
    async with Runtime(config, models=[model]) as runtime:
        there, here = await runtime.new(), await runtime.new()
        seq = await asked(runtime, there, "I drink green tea in the morning.")
        await runtime.memory.add(TEA, by="model", conversation=there, seq=seq)
        await asked(runtime, here, "Which tea do I drink?")
        assert TEA.encode() in model.bodies[-1]
        await runtime.erase(there, [seq])
        await asked(runtime, here, "And coffee?")
        assert b"green tea" not in model.bodies[-1]
        assert await outcomes(runtime, here) == ["completed"] * 2


# -- recall --------------------------------------------------------------------------------------------------------


async def test_a_memory_that_takes_long_to_look_through_is_ready_for_the_next_turn(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking goes on when the deadline is over: what was missed once is not missed for ever."""
    usable, standing = MemoryEntries.usable, MemoryEntries.standing
    go, begun, ended = threading.Event(), 0, 0
    go.set()

    def slowly(self: MemoryEntries, *args: str) -> Any:
        nonlocal begun, ended
        begun += 1
        assert go.wait(SECONDS)
        found = usable(self, *args) if args else standing(self)
        ended += 1
        return found

    monkeypatch.setattr(MemoryEntries, "usable", slowly)
    monkeypatch.setattr(MemoryEntries, "standing", slowly)
    async with talks(config) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "hello")
        await runtime.memory.add(TEA)
        go.clear()
        assert Timing().provider_recall_seconds <= 0.25
        looks, leap = begun, clock_ahead(monkeypatch)
        seq = (await runtime.submit(name, "Which tea do I drink?")).seq
        await until(lambda: begun > looks)
        leap(60)  # more than it may take here
        await settled(runtime, name, seq)
        (missed,) = await told(runtime, name, MemoryRecalled)
        assert missed.missed == ["builtin"]
        looks = begun
        go.set()
        await until(lambda: ended == looks)
        await asked(runtime, name, "Which tea do I drink?")
        assert TEA in (await told(runtime, name, MemoryRecalled))[-1].texts["builtin"]
        assert begun == looks


async def test_a_provider_that_is_stuck_is_labelled_once_in_each_conversation(
    config: Config,
) -> None:
    """However often it is missed there, and whatever was missed elsewhere before."""
    config = with_timing(config, provider_recall_seconds=0.25)
    config = plugged(
        config,
        "    def prefetch(self, *args, **kwargs):\n        threading.Event().wait()\n",
    )
    async with talks(config) as runtime:
        await ready(runtime)
        names = [await runtime.new(), await runtime.new()]
        for name in names * 2:
            await asked(runtime, name, "hello")
        for name in names:
            assert [
                each.missed for each in await told(runtime, name, MemoryRecalled)
            ] == [["odd"]]


async def test_the_prompt_stays_through_undo_restart_another_model_and_providers_that_come_later(
    config: Config,
) -> None:
    """What it says of the memory is the same in every request of a segment."""
    async with talks(config) as runtime:
        await runtime.memory.add("The person's name is Ada.", about="profile")
        name = await runtime.new()
        await asked(runtime, name, "hello")
        await asked(runtime, name, "hello again")
        await runtime.memory.add("The person lives in Graz.", about="profile")
        await runtime.undo(name)
        await asked(runtime, name, "hello once more")
    later = plugged(
        config, '    def system_prompt_block(self):\n        return "An odd one."\n'
    )
    model = ScriptedModel(Script([Reply("Yes.")], repeat=True), name="another")
    async with Runtime(later, models=[model]) as runtime:
        await ready(runtime)
        await asked(runtime, name, "hello")
        await asked(runtime, await runtime.fork(name), "hello")
        opened = await told(runtime, name, ContextOpened)
        assert len(opened) > 1
        assert len({each.memory.blob for each in opened}) == 1
        assert b"Graz" in model.bodies[-1]


async def test_a_fork_owes_nothing_for_what_it_was_made_of(config: Config) -> None:
    """Its turns were given where they were said; only what is said in it is."""
    config = replace(config, memory=Memory(providers=("diary",)))
    diary = Diary(config)
    async with talks(config) as runtime:
        await ready(runtime)
        name = await runtime.new()
        await asked(runtime, name, "one")
        fork = await runtime.fork(name)
        await runtime.left(fork)
        assert await told(runtime, fork, MemoryDue) == []
        await asked(runtime, fork, "two")
        synced = await asyncio.to_thread(diary.told, "sync", 2)
        assert [each[2] for each in synced] == ["one", "two"]


# -- ends ----------------------------------------------------------------------------------------------------------


async def test_a_process_that_ends_right_after_the_answer_makes_its_end_due(
    config: Config,
) -> None:
    """As `tenax -p` does."""
    config = with_timing(config, close_seconds=SECONDS)
    config = replace(config, memory=Memory(providers=("diary",)))
    Diary(config)
    runtime = talks(config)
    await runtime.start()
    await ready(runtime)
    name = await runtime.new()
    stored = await runtime.submit(name, "hello")
    await runtime.workers.idle(name)
    await runtime.close()
    with open_journal(config.store_url) as journal:
        kinds = [event.kind for event in journal.read(name, after=stored.seq)]
    assert kinds.count("memory.due") == 1


async def test_an_undo_before_a_crash_does_not_put_off_what_is_owed(
    config: Config,
) -> None:
    """The last thing in the conversation is no run; what stands is owed at the next start all the same."""
    named = replace(config, memory=Memory(providers=("diary",)))
    diary = Diary(named)
    async with talks(named) as runtime:
        await ready(runtime)
        name = await runtime.new()
    async with talks(config) as blind:
        await asked(blind, name, "kept")
        await asked(blind, name, "taken back")
        await blind.undo(name)
    async with talks(named):
        assert await asyncio.to_thread(diary.told, "end", 1) == [["end", ["kept"]]]


async def test_providers_are_loaded_though_the_store_is_away_just_then(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back, and they work."""
    config = replace(config, memory=Memory(providers=("diary",)))
    diary = Diary(config)
    runtime = talks(config)

    async def away(**_where: int) -> None:
        raise StoreUnavailable("The store is away.")

    monkeypatch.setattr(runtime.journal, "conversations", away)
    async with runtime:
        await ready(runtime)
        name = await runtime.new()
        await asked(runtime, name, "hello")
        assert (await asyncio.to_thread(diary.told, "sync", 1))[0][2] == "hello"


async def test_a_turn_that_is_over_before_a_new_provider_is_ready_reaches_it(
    config: Config,
) -> None:
    """Also the very first one: it is owed from the moment the provider is there, however long it takes to begin."""
    source = """
    def initialize(self, session_id, **kwargs):
        (HERE / "began").touch()
        while not (HERE / "go").exists():
            time.sleep(0.02)

    def sync_turn(self, user_content, assistant_content, *, session_id="", messages=None):
        (HERE / "synced").write_text(user_content)
"""
    config = plugged(config, source)
    place = config.directories.data / "plugins" / "odd"
    async with talks(config) as runtime:
        name = await runtime.new()
        await until((place / "began").exists)
        await asked(runtime, name, "hello")
        (place / "go").touch()
        await until((place / "synced").exists)


async def test_a_runtime_is_closed_twice_and_closed_before_it_has_begun(
    config: Config,
) -> None:
    """Each time in time, and without an error."""
    config = replace(config, memory=Memory(providers=("diary",)))
    Diary(config)
    first, second = talks(config), talks(config)
    starting = asyncio.create_task(first.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    await first.close()
    await second.start()
    await second.close()
    await second.close()


async def test_a_conversation_that_cannot_be_read_holds_up_no_other(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others owe is met at the next start all the same."""
    named = replace(config, memory=Memory(providers=("diary",)))
    diary = Diary(named)
    async with talks(named) as runtime:
        await ready(runtime)
    async with talks(config) as blind:
        damaged, whole = await blind.new(), await blind.new()
        await asked(blind, damaged, "damaged")
        await asked(blind, whole, "whole")
    runtime = talks(named)
    owed = runtime.journal.journal.owed

    def read(name: str) -> int:
        if name == damaged:
            raise StoreDamaged("It cannot be read.")
        return owed(name)

    monkeypatch.setattr(runtime.journal.journal, "owed", read)
    async with runtime:
        assert await asyncio.to_thread(diary.told, "end", 1) == [["end", ["whole"]]]


# -- the review ----------------------------------------------------------------------------------------------------


async def test_the_review_can_be_turned_on_and_off_while_it_runs(
    reviewed: Config,
) -> None:
    """What is said while it is off is not looked over later."""
    model = ScriptedModel(Script([Reply("[]")], repeat=True), name="scripted")
    reviewed = connected(reviewed)
    off = replace(reviewed, memory=Memory(review=False))

    def looked_at(words: bytes) -> bool:
        return any(words in body and b"JSON array" in body for body in model.bodies)

    async with Runtime(off, models=[model]) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "I live in Porto.")
        await asyncio.sleep(0.5)
        await runtime.configure(reviewed)
        await asked(runtime, name, "I live in Lisbon.")
        await until(lambda: looked_at(b"Lisbon"))
        await runtime.configure(off)
        await asked(runtime, name, "I live in Faro.")
        await asyncio.sleep(0.5)
        assert not looked_at(b"Faro")


class Pondering(ScriptedModel):
    """A model that comes to no end when it is to look a conversation over."""

    def __init__(self) -> None:
        super().__init__(Script([Reply("Yes.")], repeat=True), name="scripted")
        self.ponders = asyncio.Event()

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        if b"JSON array" in body:
            self.ponders.set()
            await asyncio.sleep(silence)
        async for piece in super().stream(body, silence=silence):
            yield piece


async def test_closing_in_the_middle_of_a_review_leaves_it_to_the_next_process(
    reviewed: Config,
) -> None:
    """The lease is given back: nobody waits five minutes for it."""
    model = Pondering()
    runtime = Runtime(connected(reviewed), models=[model])
    await runtime.start()
    name = await runtime.new()
    await asked(runtime, name, "I live in Porto.")
    await until(model.ponders.is_set)
    assert await runtime.journal.holder("memory:review")
    await runtime.close()
    with open_journal(reviewed.store_url) as journal:
        assert journal.holder("memory:review") is None


async def test_a_conversation_that_cannot_be_looked_over_holds_up_no_other(
    reviewed: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is looked over all the same."""
    model = ScriptedModel(Script([Reply("[]")], repeat=True), name="scripted")
    runtime = Runtime(connected(reviewed), models=[model])
    messages, names = runtime.journal.messages, list[str]()

    async def read(name: str, **where: int) -> Any:
        if name in names:
            raise StoreDamaged("It cannot be read.")
        return await messages(name, **where)

    monkeypatch.setattr(runtime.journal, "messages", read)
    async with runtime:
        names.append(await runtime.new())
        whole = await runtime.new()
        await asked(runtime, names[0], "I live in Porto.")
        await asked(runtime, whole, "I live in Lisbon.")
        await until(
            lambda: any(
                b"Lisbon" in body and b"JSON array" in body for body in model.bodies
            )
        )
