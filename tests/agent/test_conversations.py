"""What a person does with a conversation, through the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenax.assembly import Runtime
from tenax.config import Config
from tenax.errors import Gone, InvalidInput
from tenax.events import MessageUser
from tenax.models import Reply, ScriptedModel
from tenax.parts import Text
from tests.support.damage import break_events
from tests.support.runs import asked, config_of

HELLO = "Hello, you."


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


async def texts(runtime: Runtime, name: str) -> list[str]:
    return [row.text for row in await runtime.transcript(name)]


async def test_the_list_shows_titles_pins_and_what_is_archived(config: Config) -> None:
    """Pinned first, archived only when asked for."""
    async with Runtime(config, models=[ScriptedModel([Reply(words=HELLO)])]) as runtime:
        first, second, third = [await runtime.new() for _ in range(3)]
        await runtime.rename(first, "The first")
        await runtime.pin(second)
        await runtime.archive(third)
        listed = await runtime.conversations()
        assert [(each.conversation, each.title) for each in listed] == [
            (second, None),
            (first, "The first"),
        ]
        assert [
            summary.conversation
            for summary in await runtime.conversations(archived=True)
        ] == [third]


async def test_one_message_that_cannot_be_read_hides_no_conversation(
    config: Config,
) -> None:
    """It has no words in the list; the others have theirs, and a search finds them."""
    async with Runtime(config) as runtime:
        broken, whole = [await runtime.new() for _ in range(2)]
        for each in (broken, whole):
            await runtime.journal.append(each, [MessageUser([Text("hello")])])
        break_events(config.store_url, broken, MessageUser.kind)
        found = await runtime.list.page(await runtime.conversations())
        assert {each.id: each.words for each in found} == {broken: None, whole: "hello"}
        assert [
            hit.conversation for hit in (await runtime.journal.search("hello")).hits
        ] == [whole]


async def test_an_undo_and_a_clear_can_be_taken_back(config: Config) -> None:
    """What was taken back is in neither the transcript nor the next request."""
    model = ScriptedModel([Reply(words=HELLO), Reply(words="Again.")])
    async with Runtime(config, models=[model]) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "hello")
        at = await runtime.undo(name)
        assert await texts(runtime, name) == []
        await runtime.restore(name, at)
        assert await texts(runtime, name) == ["hello", HELLO]
        at = await runtime.clear(name)
        assert await texts(runtime, name) == []
        await asked(runtime, name, "anew")
        assert b"hello" not in model.bodies[-1]
        await runtime.restore(name, at)
        assert await texts(runtime, name) == ["hello", HELLO, "anew", HELLO]
        with pytest.raises(InvalidInput):
            await runtime.restore(name, at)


async def test_a_fork_is_another_conversation_and_what_is_erased_or_deleted_is_gone(
    config: Config,
) -> None:
    """A fork goes on by itself; erased words are found nowhere; a deleted conversation takes no more."""
    async with Runtime(
        config, models=[ScriptedModel([Reply(words=HELLO), Reply(words="Again.")])]
    ) as runtime:
        name = await runtime.new()
        seq = await asked(runtime, name, "a needle here")
        fork = await runtime.fork(name)
        await asked(runtime, fork, "and now?")
        assert await texts(runtime, fork) == [
            "a needle here",
            HELLO,
            "and now?",
            "Again.",
        ]
        assert len((await runtime.search("needle")).hits) == 2
        await runtime.erase(name, [seq], why="a mistake")
        assert (await runtime.search("needle")).hits == []
        await runtime.delete(fork)
        with pytest.raises(Gone):
            await runtime.submit(fork, "still there?")
