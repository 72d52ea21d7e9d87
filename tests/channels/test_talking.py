"""A conversation with a bot on Telegram."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenax.channels.rows import AsyncChannelRows, RouteNews
from tenax.events import (
    ConversationRouted,
    MessageAssistant,
    MessageUser,
    RunFinished,
)
from tenax.journal import LOCAL_USER
from tenax.journal.base import Recorded
from tenax.models.scripted import Reply, Trouble
from tests.support.chats import ChatWorld
from tests.support.targets import ENGINES
from tests.support.telegram import ADA, BOB, Attachment, FakeTelegram

PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\rIDATx\x9cc\xf8\xff\xff?\x00\x05\xfe\x02\xfe\xdc\xccY\xe7\x00\x00\x00\x00IEND\xaeB`\x82"
)
LONG = "\n\n".join(f"Paragraph {number} " + "word " * 60 for number in range(30))


async def test_a_message_is_stored_answered_and_confirmed(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A message of a chat becomes a conversation, and its answer a message of the chat."""
    replies = [Reply("Good morning.")]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        world.say("Hello")
        await world.said("Good morning.")
        (name,) = world.conversations()
        (message,) = world.events(name, MessageUser)
        assert message.extra["chat"]["account"] == world.account
        assert len(world.events(name, MessageAssistant)) == 1
        await telegram.wait(lambda: telegram.pending == [])


async def test_a_chat_stays_in_its_conversation(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """The second message of a chat belongs to the conversation of the first."""
    replies = [Reply("One."), Reply("Two.")]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        world.say("First")
        await world.said("One.")
        world.say("Second")
        await world.said("One.", "Two.")
        assert len(world.conversations()) == 1
        assert world.words() == ["First", "Second"]


async def test_an_update_that_comes_five_times_is_stored_once(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """Repeated updates, in one answer and later, have no second effect."""
    replies = [Reply("One."), Reply("Two.")]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        telegram.repeat_updates(5)
        world.say("Hello")
        await world.said("One.")
        telegram.repeat_updates(1)
        telegram.repeat()
        world.say("Again")
        await world.said("One.", "Two.")
        assert world.words() == ["Hello", "Again"]


async def test_updates_out_of_order_and_garbage_lose_nothing(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """Reversed updates are put in order, and updates that cannot be understood keep no other update away."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        telegram.away()
        telegram.reverse_updates()
        world.say("A")
        telegram.garbage()
        world.say("B")
        telegram.push("message", {"message_id": "x", "chat": 3})
        world.say("C")
        telegram.back()
        await world.until(lambda: world.words() == ["A", "B", "C"])
        await telegram.wait(lambda: telegram.pending == [])


async def test_a_long_answer_is_several_messages(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """An answer beyond the limit of the platform is split, and every word arrives once."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply(LONG)]) as world:
        world.say("Tell me much")
        words = LONG.split()
        await telegram.wait(
            lambda: " ".join(world.chat()).split() == words, seconds=60.0
        )
        assert len(world.chat()) > 1
        assert all(len(text) <= 4096 for text in world.chat())


async def test_an_answer_grows_in_its_message(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A slow answer is placed with its first words, edited while it grows, and is one message at the end."""
    reply = Reply(" ".join(f"word{number}" for number in range(60)), pause=0.02)
    async with ChatWorld(
        telegram, "sqlite", tmp_path, [reply], preview_seconds=0.05
    ) as world:
        world.say("Slowly")
        await world.said(reply.words)
        (message,) = [found for found in telegram.messages() if found.from_bot]
        assert message.edits >= 2
        for text in message.texts:
            assert reply.words.startswith(text.removesuffix("…").rstrip())


async def test_a_message_arrives_without_a_model(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """Without a model a message is stored, and the chat says so."""
    async with ChatWorld(telegram, "sqlite", tmp_path) as world:
        world.say("Is anybody there?")
        await telegram.wait(lambda: len(world.chat()) == 1)
        assert world.chat()[0].startswith("Your message is stored")
        assert world.words() == ["Is anybody there?"]


async def test_a_failed_answer_says_why(telegram: FakeTelegram, tmp_path: Path) -> None:
    """A run that fails ends with a message in the chat, and /retry tries again."""
    broken = Reply(trouble=Trouble("refused", "No credit left."))
    async with ChatWorld(telegram, "sqlite", tmp_path, [broken]) as world:
        world.say("Hello")
        await telegram.wait(lambda: len(world.chat()) == 1)
        assert "The answer failed." in world.chat()[0]
        assert "No credit left." in world.chat()[0]


# -- commands ----------------------------------------------------------------------------


async def test_new_opens_another_conversation(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """After /new the chat belongs to another conversation."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        world.say("First")
        await world.said("Yes.")
        world.say("/new")
        await world.said("Yes.", "New conversation.")
        world.say("Second")
        await world.said("Yes.", "New conversation.", "Yes.")
        new, old = world.conversations()
        assert [len(world.events(name, MessageUser)) for name in (new, old)] == [1, 1]


async def test_a_repeated_command_has_one_effect(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """/new that comes five times opens one conversation."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        telegram.repeat_updates(5)
        world.say("/new")
        await world.said("New conversation.")
        telegram.repeat_updates(1)
        telegram.repeat()
        world.say("/status")
        await telegram.wait(lambda: len(world.chat()) == 2)
        assert len(world.conversations()) == 1


async def test_stop_ends_the_answer(telegram: FakeTelegram, tmp_path: Path) -> None:
    """/stop stops the run, and the chat keeps what was written so far."""
    words = " ".join(f"word{number}" for number in range(50))
    replies = [Reply(words, hang=True)]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        world.say("Go on for ever")
        await telegram.wait(lambda: world.chat() != [])
        world.say("/stop")
        await telegram.wait(lambda: len(world.chat()) == 2)
        assert world.chat()[1].startswith("⏹ Stopped.")
        (name,) = world.conversations()
        (end,) = world.events(name, RunFinished)
        assert end.outcome == "cancelled"
        world.say("/stop")
        await telegram.wait(lambda: world.chat()[-1] == "No answer is being written.")


async def test_undo_and_retry(telegram: FakeTelegram, tmp_path: Path) -> None:
    """/retry answers the last message again, /undo removes it from the conversation."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        world.say("Hello")
        await world.said("Yes.")
        world.say("/retry")
        await world.said("Yes.", "Yes.")
        world.say("/undo")
        await telegram.wait(lambda: len(world.chat()) == 3)
        (name,) = world.conversations()
        assert await world.runtime.transcript(name) == []


async def test_status_model_help_and_an_unknown_command(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """Commands without an effect on the conversation answer with a message, and start no run."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        world.say("/status")
        await telegram.wait(lambda: "no conversation yet" in "".join(world.chat()))
        world.say("Hello")
        await telegram.wait(lambda: world.chat()[-1:] == ["Yes."])
        for command, part in (
            ("/status", "Messages: 2"),
            ("/help", "/compact"),
            ("/start", "/compact"),
            ("/nonsense", "is no command"),
            ("/model", "To choose one"),
            ("/model gpt-unknown", "There is no model gpt-unknown"),
        ):
            world.say(command)
            await telegram.wait(lambda part=part: part in world.chat()[-1])
        assert world.words() == ["Hello"]


async def test_a_path_is_no_command(telegram: FakeTelegram, tmp_path: Path) -> None:
    """A message that begins with a path is a message."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        world.say("/etc/hosts is broken")
        await world.said("Yes.")
        assert world.words() == ["/etc/hosts is broken"]


# -- the same conversation elsewhere ---------------------------------------------------------


async def test_a_message_of_the_page_is_shown_and_answered_in_the_chat(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """The chat shows what is written in the page, and the answer."""
    replies = [Reply("One."), Reply("Two.")]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        world.say("From my phone")
        await world.said("One.")
        (name,) = world.conversations()
        await world.runtime.submit(name, "From my desk")
        await telegram.wait(lambda: len(world.chat()) == 3)
        assert "From my desk" in world.chat()[1]
        assert world.chat()[2] == "Two."


async def test_a_conversation_of_the_page_continues_in_the_chat(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A conversation that is routed to a chat takes the messages of the chat from then on."""
    replies = [Reply("One."), Reply("Two.")]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        world.say("/new")
        await world.said("New conversation.")
        name = await world.runtime.new(source="page")
        asked = await world.runtime.submit(name, "Begun at my desk")
        await world.runtime.finished(name, asked.seq)
        route = ConversationRouted(world.account, str(ADA.id))
        await world.runtime.journal.append(name, [route])
        world.say("Continued on my phone")
        await world.said("New conversation.", "Two.")
        texts = [message.parts[0].text for message in world.events(name, MessageUser)]
        assert texts == ["Begun at my desk", "Continued on my phone"]


async def test_a_closed_route_gets_nothing_more(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """After the connection is closed, the conversation and the chat go on apart from each other."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        world.say("Hello")
        await world.said("Yes.")
        (name,) = world.conversations()
        closed = ConversationRouted(world.account, str(ADA.id), closed=True)
        await world.runtime.journal.append(name, [closed])
        asked = await world.runtime.submit(name, "Only here")
        await world.runtime.finished(name, asked.seq)
        world.say("Anybody?")
        await world.said("Yes.", "Yes.")
        assert len(world.conversations()) == 2


# -- files -------------------------------------------------------------------------------------


async def test_pictures_and_documents_are_stored_with_the_message(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """The files of a message are blobs of the store before the update is confirmed."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Seen.")] * 2) as world:
        note = Attachment.document("note.txt", b"Buy milk", "text/plain")
        world.say("Look", files=[note])
        await world.said("Seen.")
        world.say("And this", files=[Attachment.photo(PNG)])
        await telegram.wait(lambda: len(world.chat()) == 2)
        messages = world.events(world.conversations()[0], MessageUser)
        kinds = [type(part).__name__ for part in messages[0].parts]
        assert kinds == ["Text", "File"]
        assert type(messages[1].parts[1]).__name__ == "Image"


async def test_a_file_that_cannot_be_fetched_blocks_nothing(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A message with a file that is too large or gone is stored, and says what is missing."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("I see.")] * 3) as world:
        large = Attachment.document("film.mkv", b"x", size=50 << 20)
        world.say("Watch this", files=[large])
        await world.said("I see.")
        telegram.fail("getFile", 400, description="Bad Request: file is gone")
        world.say("And this", files=[Attachment.document("gone.txt", b"x")])
        await world.said("I see.", "I see.")
        texts = [
            part.text
            for message in world.events(world.conversations()[0], MessageUser)
            for part in message.parts
        ]
        assert "film.mkv could not be fetched" in texts[1]
        assert "gone.txt could not be fetched" in texts[3]


async def test_a_late_file_comes_as_a_message_of_its_own(
    telegram: FakeTelegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message does not wait for a file while the platform is slow; the file follows."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        telegram.fail("getFile", 502)
        world.say(
            "Look", files=[Attachment.document("late.txt", b"Here", "text/plain")]
        )
        await telegram.wait(lambda: world.chat()[:1] == ["Yes."])
        await telegram.wait(lambda: world.chat() == ["Yes.", "Yes."])
        first, second = world.events(world.conversations()[0], MessageUser)
        assert "late.txt is still being fetched" in first.parts[1].text
        assert type(second.parts[1]).__name__ == "File"


async def test_a_voice_note_is_kept(telegram: FakeTelegram, tmp_path: Path) -> None:
    """Without a service for speech a voice note is stored as a file, and the message says that nobody heard it."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Hm.")]) as world:
        world.say(files=[Attachment.voice(b"OggS")])
        await world.said("Hm.")
        (message,) = world.events(world.conversations()[0], MessageUser)
        assert type(message.parts[0]).__name__ == "File"
        assert "voice note" in message.parts[1].text


async def test_a_file_that_an_answer_links_to_is_sent(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A picture and a file of the folder go out as a picture and a file; a foreign path does not."""
    replies = [
        Reply(
            "Here: ![chart](chart.png) and [the report](out/report.csv), "
            "[not this](../secret.txt) and [not that](https://example.org/x.png)."
        )
    ]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        folder = world.config.tools_folder
        (folder / "out").mkdir(parents=True)
        (folder / "chart.png").write_bytes(PNG)
        (folder / "out/report.csv").write_text("a,b\n1,2\n")
        (folder.parent / "secret.txt").write_text("secret")
        world.say("The report, please")
        await telegram.wait(
            lambda: (
                [found.file_name for found in telegram.messages() if found.file_bytes]
                and len([found for found in telegram.messages() if found.from_bot]) == 3
            )
        )
        files = [found for found in telegram.messages() if found.file_bytes]
        assert files[1].file_name == "report.csv"
        assert files[0].file_bytes == PNG


# -- edits ---------------------------------------------------------------------------------------


async def test_an_edit_is_an_event_of_its_own(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """An edited message is noted in the conversation, and starts no run."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        message = world.say("Meet at 5")
        await world.said("Yes.")
        telegram.edit(message, "Meet at 6")
        await world.until(lambda: len(world.words()) == 2)
        assert "Meet at 6" in world.words()[1]
        world.say("When?")
        await world.said("Yes.", "Yes.")
        (name,) = world.conversations()
        assert len(world.events(name, RunFinished)) == 2


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_engine_can_serve_a_chat(
    engine: str, telegram: FakeTelegram, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Receiving, delivering and the state of an account work on SQLite and PostgreSQL, and the store verifies."""
    url = "sqlite"
    if engine == "postgresql":
        url = request.getfixturevalue("postgres_url")
    async with ChatWorld(telegram, url, tmp_path, [Reply("Yes.")] * 2) as world:
        world.say("Hello")
        await world.said("Yes.")
        world.say("/new")
        world.say("Again")
        await telegram.wait(lambda: len(world.chat()) == 3)
        await world.until(
            lambda: world.rows.counts(world.account).get("delivered") == 3
        )
        assert world.rows.person(world.account, str(ADA.id)) == LOCAL_USER


async def test_a_run_that_ends_while_its_route_is_read_leaves_no_sign_of_typing(
    telegram: FakeTelegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route was read with an open run, and the events already have its end."""
    read_facts = AsyncChannelRows.facts

    async def read_after_the_run(
        rows: AsyncChannelRows, news: RouteNews, after: int
    ) -> list[Recorded]:
        if news.run is not None:
            await world.until(lambda: world.journal.head(news.conversation).run is None)
        return await read_facts(rows, news, after)

    monkeypatch.setattr(AsyncChannelRows, "facts", read_after_the_run)
    async with ChatWorld(
        telegram, "sqlite", tmp_path, [Reply("Yes.", pause=0.3)], typing_seconds=0.001
    ) as world:
        world.say("First")
        await world.said("Yes.")
        await world.until(lambda: not world.rows.unfinished(world.account))
        world.rows.add_person(world.account, str(BOB.id), LOCAL_USER, "Bob")
        before = len(telegram.log)
        world.say("Second", sender=BOB)
        await world.said("Yes.", chat=BOB.id)
        calls = [(call.method, call.chat) for call in telegram.log[before:]]
        assert ("sendChatAction", ADA.id) not in calls
