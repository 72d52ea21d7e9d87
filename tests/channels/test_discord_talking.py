"""A conversation with a bot on Discord: the whole way from a message to its answer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tenax.channels.people import user_name
from tenax.events import (
    ApprovalAnswered,
    ConversationRouted,
    MessageAssistant,
    MessageUser,
    RunFinished,
)
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply, ScriptedCall
from tests.support.discord import ADA, BOB, Attachment, FakeDiscord, Message, Person
from tests.support.discord_chats import DiscordWorld
from tests.support.targets import ENGINES

PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\rIDATx\x9cc\xf8\xff\xff?\x00\x05\xfe\x02\xfe\xdc\xccY\xe7\x00\x00\x00\x00IEND\xaeB`\x82"
)
LONG = "\n\n".join(f"Paragraph {number} " + "word " * 60 for number in range(30))
WRITES = [
    Reply(calls=[ScriptedCall("write_file", {"path": "a.txt", "content": "Hello\n"})]),
    Reply("It is written."),
]
ROBOT = Person(7004, "Robot", "robot", is_bot=True)
EVE = Person(7005, "Ada", "ada_lovelace")
"""Somebody else with the name of the owner."""


async def test_a_message_is_stored_and_answered(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """A message of a chat becomes a conversation, and its answer a message of the chat."""
    replies = [Reply("Good morning.")]
    async with DiscordWorld(discord, "sqlite", tmp_path, replies) as world:
        world.say("Hello")
        await world.said("Good morning.")
        (name,) = world.conversations()
        (message,) = world.events(name, MessageUser)
        assert message.extra["chat"]["account"] == world.account
        assert len(world.events(name, MessageAssistant)) == 1


async def test_a_message_that_comes_five_times_is_stored_once(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """Repeated events, and the same message read from its chat, have no second effect."""
    replies = [Reply("One."), Reply("Two.")]
    async with DiscordWorld(discord, "sqlite", tmp_path, replies) as world:
        message = world.say("Hello")
        for _ in range(4):
            discord.repeat(message)
        await world.said("One.")
        discord.cut_socket()
        await discord.wait(lambda: discord.calls("getMessages") > 0)
        discord.repeat(message)
        world.say("Again")
        await world.said("One.", "Two.")
        assert world.words() == ["Hello", "Again"]


async def test_garbage_keeps_nothing_away(discord: FakeDiscord, tmp_path: Path) -> None:
    """An event that cannot be read ends the connection at most, and every message arrives."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        world.say("A")
        await world.said("Yes.")
        discord.push("MESSAGE_CREATE", {"id": "x", "channel_id": 3})
        world.say("B")
        discord.push("INTERACTION_CREATE", {"type": 3})
        world.say("C")
        await world.until(lambda: world.words() == ["A", "B", "C"])


async def test_a_long_answer_is_several_messages(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """An answer beyond the limit of Discord is split, and every word arrives once."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply(LONG)]) as world:
        world.say("Tell me much")
        words = LONG.split()
        await discord.wait(
            lambda: " ".join(world.chat()).split() == words, seconds=60.0
        )
        assert len(world.chat()) > 1
        assert all(len(text) <= 2000 for text in world.chat())


async def test_an_answer_grows_in_its_message(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """A slow answer is placed with its first words, edited while it grows, and is one message at the end."""
    reply = Reply(" ".join(f"word{number}" for number in range(60)), pause=0.02)
    async with DiscordWorld(
        discord, "sqlite", tmp_path, [reply], preview_seconds=0.05
    ) as world:
        world.say("Slowly")
        await world.said(reply.words)
        (message,) = [found for found in discord.messages() if found.from_bot]
        assert message.edits >= 2
        for text in message.texts:
            assert reply.words.startswith(text.removesuffix("…").rstrip())


async def test_commands_open_and_stop(discord: FakeDiscord, tmp_path: Path) -> None:
    """/new opens another conversation, and /stop stops an answer."""
    words = " ".join(f"word{number}" for number in range(50))
    async with DiscordWorld(
        discord, "sqlite", tmp_path, [Reply(words, hang=True)]
    ) as world:
        world.say("Go on for ever")
        await discord.wait(lambda: world.chat() != [])
        world.say("/stop")
        await discord.wait(lambda: len(world.chat()) == 2)
        assert world.chat()[1].startswith("⏹ Stopped.")
        world.say("/new")
        await discord.wait(lambda: world.chat()[-1] == "New conversation.")
        assert len(world.conversations()) == 2


async def test_a_message_of_the_page_is_shown_in_the_chat(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """The chat shows what is written in the page, and the answer. A conversation of the page continues in the chat."""
    replies = [Reply("One."), Reply("Two.")]
    async with DiscordWorld(discord, "sqlite", tmp_path, replies) as world:
        world.say("From my phone")
        await world.said("One.")
        (name,) = world.conversations()
        await world.runtime.submit(name, "From my desk")
        await discord.wait(lambda: len(world.chat()) == 3)
        assert "From my desk" in world.chat()[1]
        assert world.chat()[2] == "Two."
        other = await world.runtime.new(source="page")
        chat = str(discord.chat_of(ADA))
        await world.runtime.journal.append(
            other, [ConversationRouted(world.account, chat)]
        )
        world.say("Continued on my phone")
        await world.until(lambda: world.events(other, MessageUser))
        await discord.wait(lambda: world.chat()[3:] == ["One."])


# -- files -------------------------------------------------------------------------------


async def test_files_come_in_and_go_out(discord: FakeDiscord, tmp_path: Path) -> None:
    """The files of a message are stored with it, and the files of an answer are sent."""
    replies = [Reply("Seen."), Reply("Here: ![chart](chart.png) and nothing else.")]
    async with DiscordWorld(discord, "sqlite", tmp_path, replies) as world:
        note = Attachment("note.txt", b"Buy milk", "text/plain")
        picture = Attachment("a.png", PNG, "image/png")
        world.say("Look", files=[note, picture])
        await world.said("Seen.")
        (message,) = world.events(world.conversations()[0], MessageUser)
        kinds = [type(part).__name__ for part in message.parts]
        assert kinds == ["Text", "File", "Image"]
        world.config.tools_folder.mkdir(exist_ok=True)
        (world.config.tools_folder / "chart.png").write_bytes(PNG)
        world.say("A chart, please")
        await discord.wait(lambda: discord.messages()[-1].files)
        _, sent = discord.messages()[-1].files[0]
        assert (sent.name, sent.data) == ("chart.png", PNG)


async def test_a_file_that_cannot_be_fetched_blocks_nothing(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """A message with a file that is too large or gone is stored, and says what is missing."""
    async with DiscordWorld(
        discord, "sqlite", tmp_path, [Reply("I see.")] * 3
    ) as world:
        world.say("Watch this", files=[Attachment("film.mkv", b"x", size=50 << 20)])
        await world.said("I see.")
        discord.fail("download", 404)
        world.say("And this", files=[Attachment("gone.txt", b"x")])
        await world.said("I see.", "I see.")
        texts = [
            part.text
            for message in world.events(world.conversations()[0], MessageUser)
            for part in message.parts
        ]
        assert "film.mkv could not be fetched" in texts[1]
        assert "gone.txt could not be fetched" in texts[3]


async def test_a_voice_note_is_kept(discord: FakeDiscord, tmp_path: Path) -> None:
    """A voice message is stored as a file, and the message says that nobody heard it."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Hm.")]) as world:
        note = Attachment("voice-message.ogg", b"OggS", "audio/ogg", is_voice=True)
        world.say(files=[note])
        await world.said("Hm.")
        (message,) = world.events(world.conversations()[0], MessageUser)
        assert type(message.parts[0]).__name__ == "File"
        assert "voice note" in message.parts[1].text


# -- edits, buttons, people ----------------------------------------------------------------


async def test_edits_and_deletions_are_events_of_their_own(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """An edited and a deleted message are noted in the conversation, and start no run."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        message = world.say("Meet at 5")
        await world.said("Yes.")
        discord.unfurl(message)
        discord.edit(message, "Meet at 6")
        await world.until(lambda: len(world.words()) == 2)
        assert "Meet at 6" in world.words()[1]
        discord.delete(message)
        await world.until(lambda: len(world.words()) == 3)
        assert "deleted" in world.words()[2]
        (name,) = world.conversations()
        assert len(world.events(name, RunFinished)) == 1


async def _question(discord: FakeDiscord) -> Message:
    """Wait for a message with buttons."""
    return await discord.wait(
        lambda: next((found for found in discord.messages() if found.buttons), None)
    )


async def test_a_tap_allows_the_call_and_shows_the_result(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """After "Allow once" the tool runs, the buttons are gone, and the person sees what was decided."""
    async with DiscordWorld(discord, "sqlite", tmp_path, WRITES) as world:
        world.say("Write it")
        question = await _question(discord)
        assert next(label for label, _ in question.buttons) == "Allow once"
        stranger = discord.tap(question.id, "Allow once", sender=BOB)
        await discord.wait(lambda: stranger in discord.tap_answers)
        assert not (world.config.tools_folder / "a.txt").exists()
        tap = discord.tap(question.id, "Allow once")
        await discord.wait(lambda: world.chat()[-1] == "It is written.")
        await discord.wait(lambda: not question.buttons)
        assert "Allowed once" in question.text
        assert discord.tap_answers[tap]
        (name,) = world.conversations()
        assert len(world.events(name, ApprovalAnswered)) == 1


async def test_strangers_bots_and_false_names_get_no_answer(
    discord: FakeDiscord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger gets a code once, also with the owner's name. Bots, webhooks and system messages get nothing."""
    caplog.set_level(logging.INFO)
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        world.say("Hello?", sender=EVE)
        world.say("Hello again", sender=EVE)
        world.say("I am a bot", sender=ROBOT)
        world.say("I am a webhook", sender=BOB, webhook=77)
        world.say("", sender=BOB, type=7)
        world.say("Hello")
        await world.said("Yes.")
        (pairing,) = world.rows.pairings()
        await discord.wait(lambda: len(world.chat(discord.chat_of(EVE))) == 1)
        assert pairing.code in world.chat(discord.chat_of(EVE))[0]
        assert world.chat(discord.chat_of(ROBOT)) == []
        assert world.chat(discord.chat_of(BOB)) == []
        assert len(world.conversations()) == 1
        assert world.conversations(user_name(world.account, str(EVE.id))) == []


async def test_a_group_is_answered_when_addressed(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """In a server the bot answers mentions, replies and commands. What was said before is given as a quote."""
    general = discord.add_channel("general")
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        world.say("Good morning", chat=general, mention=True)
        await world.said("Yes.", chat=general)
        answer = next(found for found in discord.messages(general) if found.from_bot)
        world.say("It rains", sender=BOB, chat=general)
        world.say("And now?", chat=general, reply_to=answer.id)
        await world.said("Yes.", "Yes.", chat=general)
        role = f"<@&{discord.role_of(general)}>"
        world.say(f"{role} and the role?", chat=general, mention_roles=[role[3:-1]])
        await world.said("Yes.", "Yes.", "Yes.", chat=general)
        world.say("/new", chat=general)
        await discord.wait(lambda: world.chat(general)[-1] == "New conversation.")
        quoted = [text for text in world.words() if "It rains" in text]
        assert len(quoted) == 1
        assert "and the role?" in world.words()
        assert "Good morning" in world.words()
        thread = discord.add_channel("ideas", parent=general)
        world.say("In the thread", chat=thread, mention=True)
        await world.said("Yes.", chat=thread)
        assert len(world.conversations()) == 3


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_engine_can_serve_a_chat(
    engine: str, discord: FakeDiscord, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Receiving, delivering and the state of an account work on SQLite and PostgreSQL, and the store verifies."""
    url = "sqlite"
    if engine == "postgresql":
        url = request.getfixturevalue("postgres_url")
    async with DiscordWorld(discord, url, tmp_path, [Reply("Yes.")] * 2) as world:
        world.say("Hello")
        await world.said("Yes.")
        world.say("/new")
        world.say("Again")
        await discord.wait(lambda: len(world.chat()) == 3)
        await world.until(
            lambda: world.rows.counts(world.account).get("delivered") == 3
        )
        assert world.rows.person(world.account, str(ADA.id)) == LOCAL_USER
