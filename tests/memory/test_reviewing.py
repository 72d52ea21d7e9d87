"""The review beside the talk: what it finds is remembered once, told in the conversation, and never costs a word of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenax.assembly import Runtime
from tenax.importers.draft import Draft, Node
from tenax.importers.storing import Importer
from tenax.memory import service as readers
from tenax.memory.review import review as real
from tenax.models import Reply, Script
from tenax.parts import Text
from tenax.testing import Provider
from tests.support.runs import asked, config_of, until, with_timing

TOLD = "I live in Graz and have two cats."
FOUND = [
    {"text": "The person lives in Graz.", "about": "profile"},
    {"text": "They have two cats."},
]

SAID = json.dumps(FOUND)
"""What the model answers, to a talk and to a review alike: it goes by how much was said before."""


@asynccontextmanager
async def talking(
    url: str, home: Path, script: list[Reply | str], **env: str
) -> AsyncIterator[tuple[Runtime, str, Provider]]:
    """A runtime with a connected model, and a conversation that has a title already."""
    async with Provider(
        Script([Reply(each) if isinstance(each, str) else each for each in script])
    ) as model:
        config = config_of(
            url, home, OPENAI_BASE_URL=f"{model.url}/v1", TENAX_MODEL="m", **env
        )
        config = with_timing(config, quiet_seconds=0.05, review_seconds=0.2)
        async with Runtime(config) as runtime:
            name = await runtime.new()
            await runtime.rename(name, "A talk")
            yield runtime, name, model


async def remembered(runtime: Runtime, name: str, count: int) -> list[str]:
    """Wait until so many facts were told of there; what stands."""
    await until(runtime, name, "memory.noted", count)
    return sorted(entry.text for entry in await runtime.memory.entries())


async def test_what_the_person_told_is_remembered_and_shown_with_an_undo(
    store_url: str, tmp_path: Path
) -> None:
    """Each fact is a line with its source; the transcript has no other new word; the tokens are counted."""
    async with talking(store_url, tmp_path, [SAID]) as (runtime, name, _):
        await asked(runtime, name, TOLD)
        texts = await remembered(runtime, name, 2)
        assert texts == ["The person lives in Graz.", "They have two cats."]
        await until(runtime, name, "model.used")
        rows = await runtime.transcript(name)
        assert [row.text for row in rows if row.kind != "memory"] == [TOLD, SAID]
        lines = [row for row in rows if row.kind == "memory"]
        assert sorted(row.text for row in lines) == texts
        assert {row.by for row in lines} == {"review"}
        await runtime.memory.undo(lines[0].fact, was=lines[0].version)
        assert len(await runtime.memory.entries()) == 1


async def test_a_review_comes_once_and_adds_nothing_that_is_known(
    store_url: str, tmp_path: Path
) -> None:
    """The second turn is looked over by itself, with what is known; the same again is not kept twice."""
    async with talking(store_url, tmp_path, [SAID, "Still nice."]) as (
        runtime,
        name,
        model,
    ):
        await asked(runtime, name, TOLD)
        await remembered(runtime, name, 2)
        await until(runtime, name, "model.used")
        await asked(runtime, name, "As I said: Graz.")
        await until(runtime, name, "model.used", 2)
        assert b"Known already" in model.received[-1].body
        assert TOLD.encode() not in model.received[-1].body
        assert len(await runtime.memory.entries()) == 2


async def test_a_review_that_ends_in_a_surprise_ends_no_other(
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged and tried again later; what is said elsewhere is looked over as ever."""
    surprised = asyncio.Event()

    async def review(*given: Any, **named: Any) -> Any:
        if not surprised.is_set():
            surprised.set()
            raise RuntimeError("nobody thought of this")
        return await real(*given, **named)

    monkeypatch.setattr(readers, "review", review)
    async with talking(store_url, tmp_path, [SAID]) as (runtime, name, _):
        await asked(runtime, name, TOLD)
        async with asyncio.timeout(30):
            await surprised.wait()
        other = await runtime.new()
        await runtime.rename(other, "Another talk")
        await asked(runtime, other, TOLD)
        assert len(await remembered(runtime, other, 2)) == 2
        assert "nobody thought of this" in caplog.text


async def test_one_setting_turns_it_off(store_url: str, tmp_path: Path) -> None:
    """Nothing is asked beside the talk then."""
    off = {"TENAX_MEMORY_REVIEW": "false"}
    async with talking(store_url, tmp_path, ["Nice.", "And again."], **off) as (
        runtime,
        name,
        model,
    ):
        await asked(runtime, name, TOLD)
        await asked(runtime, name, TOLD)
        assert len(model.received) == 2
        assert await runtime.memory.entries() == []


async def test_an_import_is_reviewed_only_if_a_person_asked(
    store_url: str, tmp_path: Path
) -> None:
    """Its messages are years old, and it is looked over all the same; without the wish, no model sees it."""
    async with talking(store_url, tmp_path, [SAID]) as (runtime, _, model):
        for name, remember in (("quiet", False), ("remembered", True)):
            question = Node(id="1", parent=None, role="user", parts=(Text(TOLD),), at=1)
            said = Node(
                id="2", parent="1", role="assistant", parts=(Text("I see."),), at=2
            )
            draft = Draft(id=name, nodes=(question, said), title="Old", at=1)
            importer = Importer(runtime.journal.journal, "chatgpt", remember=remember)
            [found] = await asyncio.to_thread(importer.store, draft)
        assert len(await remembered(runtime, found.conversation, 2)) == 2
        await until(runtime, found.conversation, "model.used")
        assert len(model.received) == 1
