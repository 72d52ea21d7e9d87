"""Versions of a message: a message is edited or answered again, and no version is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tenax.config import Config
from tenax.errors import InvalidInput, RunConflict
from tenax.journal.base import Dedup
from tenax.journal.verify.store import verify
from tenax.models import Piece, Reply, Script, ScriptedCall, ScriptedModel
from tenax.views.pages import fold_page
from tenax.views.transcript import Row
from tests.support.runs import Hands, Note, asked, config_of, prose, settled


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


class InOrder(ScriptedModel):
    """A model that answers every request with the next text, whatever was undone."""

    def __init__(self, *texts: str) -> None:
        super().__init__([])
        self._texts = iter(texts)

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        self.script = Script([Reply(next(self._texts))], repeat=True)
        async for piece in super().stream(body, silence=silence):
            yield piece


async def shown(runtime: Hands, name: str) -> list[tuple[str, str]]:
    """Return the messages and answers of a conversation as (kind, text)."""
    rows = await runtime.transcript(name)
    return [(row.kind, row.text) for row in rows if row.kind in {"user", "assistant"}]


async def message(runtime: Hands, name: str, nth: int = -1) -> Row:
    """Return a row of a person."""
    rows = [row for row in await runtime.transcript(name) if row.kind == "user"]
    return rows[nth]


async def check_store(runtime: Hands, name: str) -> None:
    """The store verifies, and a page of any size shows the same rows as all events."""
    report = await asyncio.to_thread(verify, runtime.journal.journal)
    assert report.problems == []
    whole = await runtime.transcript(name, limit=200)
    for limit in (1, 2, 3):
        before, rows = None, list[Row]()
        while True:
            page = fold_page(runtime.journal.journal, name, before, limit).page(limit)
            rows = [*page.rows, *rows, *page.waiting]
            before = page.next
            if before is None:
                break
        assert rows == whole


async def test_an_edited_message_replaces_its_turn_and_keeps_it_as_a_version(
    config: Config,
) -> None:
    """The model does not see the old version. The old version comes back with everything that followed."""
    model = InOrder("To Rome.", "By train.", "To Oslo.", "By ship.")
    async with Hands(config, models=[model]) as runtime:
        name = await runtime.new()
        first = await asked(runtime, name, "Rome?")
        await asked(runtime, name, "How?")
        original = await shown(runtime, name)
        edited = (await runtime.replace(name, first, "Oslo?")).seq
        await settled(runtime, name, edited)
        assert await shown(runtime, name) == [
            ("user", "Oslo?"),
            ("assistant", "To Oslo."),
        ]
        assert (
            "Rome"
            not in (await runtime.seen(name, await answer(runtime, name))).decode()
        )
        assert (await message(runtime, name)).versions == (first, edited)
        await check_store(runtime, name)

        await runtime.choose_version(name, first)
        assert await shown(runtime, name) == original
        assert (await message(runtime, name, 0)).versions == (first, edited)
        assert (await message(runtime, name, 1)).versions == ()
        await check_store(runtime, name)

        await runtime.choose_version(name, edited)
        assert (await shown(runtime, name))[0] == ("user", "Oslo?")
        await asked(runtime, name, "How?")
        assert prose(await runtime.transcript(name)) == ["To Oslo.", "By ship."]
        await check_store(runtime, name)


async def answer(runtime: Hands, name: str) -> int:
    """Return the seq of the last answer."""
    rows = [row for row in await runtime.transcript(name) if row.kind == "assistant"]
    return int(rows[-1].id)


async def test_a_message_is_answered_again_as_often_as_wanted(config: Config) -> None:
    """Three answers are three versions, in order, and each of them can be chosen."""
    model = InOrder("One.", "Two.", "Three.")
    async with Hands(config, models=[model]) as runtime:
        name = await runtime.new()
        seqs = [await asked(runtime, name, "Again")]
        for _ in range(2):
            seqs.append((await runtime.replace(name, seqs[-1])).seq)
            await settled(runtime, name, seqs[-1])
        assert (await message(runtime, name)).versions == tuple(seqs)
        for seq, text in zip(seqs, ["One.", "Two.", "Three."], strict=True):
            await runtime.choose_version(name, seq)
            assert await shown(runtime, name) == [
                ("user", "Again"),
                ("assistant", text),
            ]
            assert (await message(runtime, name)).versions == tuple(seqs)
            await check_store(runtime, name)
        # The version that is shown already stays.
        head = (await runtime.journal.head(name)).head
        await runtime.choose_version(name, seqs[-1])
        assert (await runtime.journal.head(name)).head == head


async def test_the_same_edit_sent_twice_is_stored_once(config: Config) -> None:
    async with Hands(config, models=[ScriptedModel(["One.", "Two."])]) as runtime:
        name = await runtime.new()
        first = await asked(runtime, name, "Hello")
        once = Dedup("web:me", "k-1")
        edited = await runtime.replace(name, first, "Good day", dedup=once)
        again = await runtime.replace(name, first, "Good day", dedup=once)
        assert again.seq == edited.seq
        await settled(runtime, name, edited.seq)
        assert (await message(runtime, name)).versions == (first, edited.seq)


async def test_an_edit_waits_for_the_end_of_the_answer(
    config: Config, tmp_path: Path
) -> None:
    """While a run waits for a person, the edit is refused, and nothing changes."""
    call = Reply(calls=[ScriptedCall("note", {"text": "milk"})])
    runtime = Hands(config, models=[ScriptedModel([call, "Done."])])
    runtime.with_tools(Note(tmp_path / "notes.txt", asks=True))
    async with runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "Write")).seq
        await settled(runtime, name, seq)
        before = await runtime.transcript(name)
        with pytest.raises(RunConflict):
            await runtime.replace(name, seq, "Read")
        assert await runtime.transcript(name) == before


async def test_only_a_message_of_the_person_can_be_replaced(config: Config) -> None:
    async with Hands(config, models=[ScriptedModel(["One.", "Two."])]) as runtime:
        name = await runtime.new()
        seq = await asked(runtime, name, "Hello")
        for wrong in (await answer(runtime, name), 1, 4_000):
            with pytest.raises(InvalidInput):
                await runtime.replace(name, wrong, "x")
            with pytest.raises(InvalidInput):
                await runtime.choose_version(name, wrong)
        await runtime.undo(name)
        with pytest.raises(InvalidInput):
            await runtime.replace(name, seq, "x")
