"""A title comes from the model that answered, once, and never over what a person did meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenax.agent.compaction import redacted
from tenax.agent.titles import clean, give_title
from tenax.assembly import Runtime
from tenax.events import (
    ConversationOpened,
    ConversationTitled,
    MessageAssistant,
    MessageUser,
    ModelUsed,
)
from tenax.journal.aio import AsyncJournal
from tenax.models import Model, Reply, ScriptedModel, Trouble
from tenax.parts import Text
from tenax.sessions import SessionDB
from tenax.testing import Provider, memory
from tests.support.runs import config_of

SECONDS = 60.0


@pytest.fixture
async def journal() -> AsyncIterator[AsyncJournal]:
    async with AsyncJournal(memory()) as opened:
        yield opened


async def talk(
    journal: AsyncJournal,
    asked: str = "How do I grow tomatoes?",
    answered: str = "With sun.",
) -> str:
    """A conversation with one answered question."""
    name = journal.ids.conversation()
    opened = ConversationOpened(journal.user or "", journal.ids.segment())
    said = [MessageUser([Text(asked)], ask=True), MessageAssistant([Text(answered)])]
    await journal.append(name, [opened, *said])
    return name


def titles(model: str | Reply = "Growing tomatoes") -> ScriptedModel:
    return ScriptedModel([model], name="m")


async def title_of(journal: AsyncJournal, conversation: str) -> str | None:
    return (await journal.summary(conversation)).title


class Meanwhile(ScriptedModel):
    """A model during whose answer something happens."""

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        super().__init__(["Growing tomatoes"], name="m")
        self._work = work

    async def stream(self, body: bytes, *, silence: float) -> Any:
        await self._work()
        async for piece in super().stream(body, silence=silence):
            yield piece


async def test_the_first_answer_gives_a_title(journal: AsyncJournal) -> None:
    """Made of the first message and the start of the answer; its tokens stand in the ledger."""
    name = await talk(
        journal,
        "How do I grow " + "very " * 5000 + "red tomatoes?",
        "With sun. " * 5000,
    )
    model = titles('"Growing tomatoes."\n')
    assert await give_title(journal, model, name, silence=SECONDS) == "Growing tomatoes"
    assert await title_of(journal, name) == "Growing tomatoes"
    (body,) = model.bodies
    assert b"How do I grow" in body
    assert b"With sun." in body
    assert len(body) < 5000
    events = [event.event for event in await journal.read(name)]
    assert isinstance(events[-2], ModelUsed)
    assert (events[-2].purpose, events[-2].model) == ("title", "m")
    assert events[-1] == ConversationTitled("Growing tomatoes", derived=True)
    assert (await journal.spent(name)).output > 0
    assert (await journal.summary(name)).messages == 2


async def test_a_conversation_with_a_title_is_left_alone(journal: AsyncJournal) -> None:
    """Nobody is asked; nor where there is no answer yet."""
    name = await talk(journal)
    await journal.append(name, [ConversationTitled("Mine")])
    model = titles()
    assert await give_title(journal, model, name, silence=SECONDS) is None
    unanswered = await talk(journal, answered=" ")
    assert await give_title(journal, model, unanswered, silence=SECONDS) is None
    assert model.bodies == []
    assert await title_of(journal, name) == "Mine"


async def test_a_title_that_a_person_gave_meanwhile_stays(
    journal: AsyncJournal,
) -> None:
    """The model comes too late; its tokens count all the same."""
    name = await talk(journal)
    model = Meanwhile(lambda: journal.append(name, [ConversationTitled("Mine")]))
    assert await give_title(journal, model, name, silence=SECONDS) is None
    assert await title_of(journal, name) == "Mine"
    assert (await journal.spent(name)).output > 0


async def test_a_conversation_that_went_on_meanwhile_gets_its_title(
    journal: AsyncJournal,
) -> None:
    """More messages change nothing in what it is about."""
    name = await talk(journal)
    model = Meanwhile(
        lambda: journal.append(name, [MessageUser([Text("And basil?")], ask=True)])
    )
    assert await give_title(journal, model, name, silence=SECONDS) == "Growing tomatoes"


async def test_words_that_were_taken_back_give_no_title(journal: AsyncJournal) -> None:
    """What was erased, undone or cleared while the model wrote does not live on in the list."""

    async def erase(name: str) -> None:
        await journal.erase(name, [2], by="", why="")

    async def undo(name: str) -> None:
        segment = (await journal.head(name)).segment or ""
        await journal.threads.run(
            lambda: SessionDB(journal=journal.journal).undo(segment, None)
        )

    for work in (erase, undo):
        name = await talk(journal)
        assert (
            await give_title(
                journal, Meanwhile(partial(work, name)), name, silence=SECONDS
            )
            is None
        )
        assert await title_of(journal, name) is None


@pytest.mark.parametrize(
    "reply",
    [
        Reply(trouble=Trouble("key")),
        Reply(words="Growing", trouble=Trouble("dropped")),
        Reply(words=" \n"),
        Reply(words="word " * 5000),
        Reply(hang=True),
        Reply(words="late late late", pause=0.2),
    ],
)
async def test_whatever_goes_wrong_nothing_changes(
    journal: AsyncJournal, reply: Reply
) -> None:
    """A failure, an endless answer, none, or one that comes too late."""
    name = await talk(journal)
    model: Model = titles(reply)
    assert await give_title(journal, model, name, silence=0.3) is None
    assert await title_of(journal, name) is None


def test_key_blocks_are_redacted_in_time_that_grows_with_the_text() -> None:
    """Of two begins the first counts. One without an end stays, and thousands of them hold nobody up."""
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    assert redacted(f"a {begin}\nx {begin}\ny {end} b {end}") == f"a [redacted] b {end}"
    assert redacted(f"{begin} x {end}{begin * 30_000}") == f"[redacted]{begin * 30_000}"


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("  Growing tomatoes \n\nSome more.", "Growing tomatoes"),
        ("**Title: “Growing tomatoes”**", "Growing tomatoes"),
        ("# Growing\ttomatoes\x00\x1b[31m", "Growing tomatoes [31m"),
        ("<think>\nHm.\n</think>\nGrowing tomatoes.", "Growing tomatoes"),
        ("Key sk-abcdefghijklmnopqrstuvwx", "Key [redacted]"),
        ("a\u202eb\u2028c", "a b"),
        ("word " * 30, "word " * 14 + "word…"),
        ("x" * 200, "x" * 79 + "…"),
        ('""', ""),
    ],
)
def test_a_title_is_clean(said: str, title: str) -> None:
    """One line, without quotes, signs that do not print, or keys, and not too long."""
    assert clean(said) == title
    assert len(clean(said)) <= 80


async def test_a_conversation_with_a_connected_model_gets_a_title_by_itself(
    tmp_path: Path,
) -> None:
    """After its first answer, while nobody waits; a script and the practice model are not asked for one."""
    async with Provider(["Growing tomatoes"]) as provider:
        (tmp_path / "config.toml").write_text(
            f'[models.main]\napi = "openai"\nurl = "{provider.url}/v1"\nname = "m"\n'
        )
        async with Runtime(
            config_of(f"sqlite:///{tmp_path / 'tenax.db'}", tmp_path)
        ) as runtime:
            name = await runtime.new()
            await runtime.submit(name, "How do I grow tomatoes?")
            async with asyncio.timeout(SECONDS):
                async for each in runtime.journal.tail(name):
                    if isinstance(each.event, ConversationTitled):
                        break
            assert await title_of(runtime.journal, name) == "Growing tomatoes"
