"""What is told in one conversation is known in the next, and the person sees, and rules, what is remembered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenax.assembly import Runtime
from tenax.config import Config
from tenax.errors import MemoryChanged
from tenax.events import TEMPORARY, MemoryRecalled, MessageUser
from tenax.models import Reply, ScriptedCall, ScriptedModel
from tenax.parts import Text
from tenax.text import quote
from tests.support.runs import asked, config_of

TEA = "The person drinks green tea in the morning."


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


def remember(text: str, **args: str) -> Reply:
    """A model that uses the memory tool."""
    return Reply(
        calls=[ScriptedCall("memory", {"action": "add", "text": text, **args})]
    )


async def recalled(runtime: Runtime, name: str) -> list[MemoryRecalled]:
    events = [event.event for event in await runtime.journal.read(name)]
    return [event for event in events if isinstance(event, MemoryRecalled)]


async def test_the_model_remembers_and_the_person_sees_it_and_can_undo_it(
    config: Config,
) -> None:
    """A fact of the tool is a line in the conversation; undone, it is gone from memory and the line says so."""
    model = ScriptedModel([remember(TEA), Reply("Noted."), Reply("Fine.")])
    async with Runtime(config, models=[model]) as runtime:
        name = await runtime.new()
        seq = await asked(runtime, name, "I drink green tea in the morning.")
        (fact,) = await runtime.memory.entries()
        assert (fact.text, fact.by, fact.conversation, fact.seq) == (
            TEA,
            "model",
            name,
            seq,
        )
        (row,) = [row for row in await runtime.transcript(name) if row.kind == "memory"]
        assert (row.text, row.action, row.by, row.fact, row.version, row.state) == (
            TEA, "added", "model", fact.id, 1, "")  # fmt: skip
        await runtime.memory.undo(fact.id, was=1)
        assert await runtime.memory.entries() == []
        (row,) = [row for row in await runtime.transcript(name) if row.kind == "memory"]
        assert row.state == "undone"
        with pytest.raises(MemoryChanged):
            await runtime.memory.undo(fact.id, was=1)
        asks, answers = model.bodies
        assert answers.startswith(asks[: asks.index(b"I drink green tea")]), (
            "its own prompt is not moved by it"
        )


async def test_what_was_told_elsewhere_is_recalled_and_fenced(config: Config) -> None:
    """A question in other words brings the fact into the request, as data and as an event, once."""
    model = ScriptedModel([Reply("Green tea.")])
    async with Runtime(config, models=[model]) as runtime:
        there = await runtime.new()
        for n in range(60):  # more than the prompt has room for
            await runtime.memory.add(
                f"Shelf {n} of the cellar holds box number {n * 7919}."
            )
        fact, _ = await runtime.memory.add(TEA)
        for n in range(60, 120):
            await runtime.memory.add(
                f"Shelf {n} of the cellar holds box number {n * 7919}."
            )
        await asked(runtime, there, "Which tea do I drink in the mornings?")
        (event,) = await recalled(runtime, there)
        assert fact.id in event.facts
        assert TEA in event.texts["builtin"]
        sent = json.loads(model.bodies[-1])
        assert quote(event.texts["builtin"]) in json.dumps(
            sent, ensure_ascii=False
        ).encode().decode("unicode_escape")


async def test_the_prompt_is_the_same_bytes_as_long_as_a_segment_lasts(
    config: Config,
) -> None:
    """A fact that is added meanwhile waits for the next segment; a new conversation begins with it."""
    model = ScriptedModel([Reply("One."), Reply("Two."), Reply("Three.")])
    async with Runtime(config, models=[model]) as runtime:
        await runtime.memory.add("The person's name is Ada.", about="profile")
        name = await runtime.new()
        await asked(runtime, name, "hello")
        await runtime.memory.add("The person lives in Graz.", about="profile")
        await asked(runtime, name, "hello again")
        first, second = model.bodies
        end = first.index(b"hello")
        assert b"name is Ada" in first[:end]
        assert second[:end] == first[:end]
        await asked(runtime, await runtime.new(), "hello")
        assert b"lives in Graz" in model.bodies[-1]


async def test_nothing_is_remembered_of_a_temporary_conversation(
    config: Config,
) -> None:
    """It has no memory tool, nothing of the memory in its prompt, and nothing recalled."""
    model = ScriptedModel([Reply("Hello.")])
    async with Runtime(config, models=[model]) as runtime:
        await runtime.memory.add("The person's name is Ada.", about="profile")
        name = await runtime.new(source=TEMPORARY)
        await asked(runtime, name, "What is my name?")
        assert b"Ada" not in model.bodies[-1]
        assert b'"memory"' not in model.bodies[-1]
        assert await recalled(runtime, name) == []


async def test_a_private_memory_never_comes_into_a_conversation_with_several_authors(
    config: Config,
) -> None:
    """Only what was learned there is used there, and it is used nowhere else."""
    model = ScriptedModel(
        [
            Reply("Hello."),
            remember("The team meets at nine."),
            Reply("Noted."),
            Reply("At nine?"),
        ]
    )
    async with Runtime(config, models=[model]) as runtime:
        await runtime.memory.add("The person's secret wish is a boat.", about="profile")
        name = await runtime.new()
        await runtime.journal.append(
            name, [MessageUser([Text("Hi, I am Grace.")], author="grace")]
        )
        await asked(runtime, name, "What is my secret wish, a boat?")
        assert b"secret wish is a boat" not in model.bodies[-1]
        await asked(runtime, name, "Remember: the team meets at nine.")
        alone = await runtime.new()
        await asked(runtime, alone, "When does the team meet?")
        assert b"The team meets at nine." not in model.bodies[-1]
        assert b"secret wish is a boat" in model.bodies[-1]


async def test_what_a_model_repeats_of_the_fence_is_not_shown(config: Config) -> None:
    """Cut anywhere, neither the stream nor the answer shows what was recalled."""
    leaked = quote(f"- {TEA}")
    model = ScriptedModel([Reply(f"Well. {leaked}\nTea, then.")])
    async with Runtime(config, models=[model]) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "Which tea?")
        (row,) = [
            row for row in await runtime.transcript(name) if row.kind == "assistant"
        ]
        assert "tenax-recalled" not in row.text
        assert TEA not in row.text
        assert row.text.startswith("Well. ")
        assert row.text.endswith("Tea, then.")


async def test_the_same_is_not_remembered_twice(config: Config) -> None:
    """Said again in nearly the same words it stays one fact; a changed number makes another."""
    async with Runtime(config, models=[ScriptedModel([Reply("Yes.")])]) as runtime:
        first, new = await runtime.memory.add("The person's flat has 3 rooms.")
        assert new
        assert await runtime.memory.add("the person's flat has 3 rooms") == (
            first,
            False,
        )
        _, new = await runtime.memory.add("The person's flat has 4 rooms.")
        assert new


async def test_a_file_can_be_edited_and_taken_in_again(config: Config) -> None:
    """Export, a change in an editor, import: what changed is changed, what is new is added, nothing is lost."""
    async with Runtime(config, models=[ScriptedModel([Reply("Yes.")])]) as runtime:
        await runtime.memory.add("The person's name is Ada.", about="profile")
        await runtime.memory.add(TEA)
        text = await runtime.memory.export()
        edited = text.replace("green tea", "black tea") + "\n- The person has a cat.\n"
        loaded = await runtime.memory.load(edited)
        assert (loaded.added, loaded.changed, loaded.known, loaded.refused) == (
            1,
            1,
            1,
            [],
        )
        standing = {entry.text for entry in await runtime.memory.entries()}
        assert standing == {
            "The person's name is Ada.",
            TEA.replace("green", "black"),
            "The person has a cat.",
        }
        assert len(await runtime.memory.search("tea")) == 1
