"""Approvals and questions of the model in a chat."""

from __future__ import annotations

from pathlib import Path

from tenax.events import ApprovalAnswered, ApprovalAsked
from tenax.models.scripted import Reply, ScriptedCall
from tests.support.chats import ChatWorld
from tests.support.telegram import ADA, BOB, FakeTelegram, Message

WRITES = [
    Reply(calls=[ScriptedCall("write_file", {"path": "a.txt", "content": "Hello\n"})]),
    Reply("It is written."),
]
ASKS = [
    Reply(
        calls=[
            ScriptedCall(
                "ask", {"question": "Which colour?", "choices": ["Red", "Blue"]}
            )
        ]
    ),
    Reply("Good."),
]


async def _question(telegram: FakeTelegram, chat: int | None = None) -> Message:
    """Wait for a message with buttons."""
    chat = ADA.id if chat is None else chat
    return await telegram.wait(
        lambda: next(
            (message for message in telegram.messages(chat) if message.buttons), None
        )
    )


def _labels(message: Message) -> list[str]:
    return [button.text for row in message.buttons for button in row]


async def test_an_approval_is_a_message_with_buttons(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """The question names the tool and shows the diff, and "always" is not offered."""
    async with ChatWorld(telegram, "sqlite", tmp_path, WRITES) as world:
        world.say("Write it")
        question = await _question(telegram)
        assert "write_file" in question.text
        assert "+Hello" in question.text
        assert not any("lways" in label for label in _labels(question))
        assert not (world.config.tools_folder / "a.txt").exists()


async def test_a_tap_allows_the_call_and_shows_the_result(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """After "Allow once" the tool runs, the buttons are gone, and the message says what was decided."""
    async with ChatWorld(telegram, "sqlite", tmp_path, WRITES) as world:
        world.say("Write it")
        question = await _question(telegram)
        telegram.tap(question.id, _labels(question)[0])
        await telegram.wait(lambda: world.chat()[-1] == "It is written.")
        await telegram.wait(lambda: not telegram.messages()[1].buttons)
        assert "Allowed once" in telegram.messages()[1].text
        assert (world.config.tools_folder / "a.txt").read_text() == "Hello\n"


async def test_a_tap_before_the_receipt_of_the_question_counts(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A person may use a button before Tenax knows the id of the message with the button."""
    async with ChatWorld(telegram, "sqlite", tmp_path, WRITES) as world:
        receipt = telegram.hold("sendMessage", "after")
        world.say("Write it")
        question = await _question(telegram)
        telegram.tap(question.id, _labels(question)[0])
        await telegram.wait(lambda: telegram.calls("answerCallbackQuery") == 1)
        receipt.release()
        await telegram.wait(lambda: world.chat()[-1] == "It is written.")
        await telegram.wait(lambda: "Allowed once" in telegram.messages()[1].text)
        assert (world.config.tools_folder / "a.txt").read_text() == "Hello\n"


async def test_a_tap_denies_the_call(telegram: FakeTelegram, tmp_path: Path) -> None:
    """After "Deny" the tool does not run."""
    async with ChatWorld(telegram, "sqlite", tmp_path, WRITES) as world:
        world.say("Write it")
        question = await _question(telegram)
        telegram.tap(
            question.id,
            "Deny" if "Deny" in _labels(question) else _labels(question)[-1],
        )
        await telegram.wait(lambda: world.chat()[-1] == "It is written.")
        await telegram.wait(lambda: "Denied" in telegram.messages()[1].text)
        assert not (world.config.tools_folder / "a.txt").exists()


async def test_an_approval_can_be_answered_elsewhere(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """An answer in the page removes the buttons of the chat, and a late tap says so."""
    async with ChatWorld(telegram, "sqlite", tmp_path, WRITES) as world:
        world.say("Write it")
        question = await _question(telegram)
        (name,) = world.conversations()
        (asked,) = world.events(name, ApprovalAsked)
        await world.runtime.answer(name, asked.message, asked.call, "once")
        await telegram.wait(lambda: not telegram.messages()[1].buttons)
        data = question.buttons[-1][0].data
        telegram.tap(question.id, data=data)
        await telegram.wait(lambda: telegram.calls("answerCallbackQuery") == 1)
        (call,) = [
            call for call in telegram.log if call.method == "answerCallbackQuery"
        ]
        assert "already" in call.text
        assert len(world.events(name, ApprovalAnswered)) == 1


async def test_a_foreign_tap_changes_nothing(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """In a group another person, paired or not, cannot answer for the owner of the conversation."""
    async with ChatWorld(telegram, "sqlite", tmp_path, WRITES) as world:
        group = telegram.add_group()
        world.say(f"@{telegram.username} write it", chat=group)
        question = await _question(telegram, group)
        label = _labels(question)[0]
        telegram.tap(question.id, label, chat=group, sender=BOB)
        await telegram.wait(lambda: telegram.calls("answerCallbackQuery") == 1)
        world.rows.add_person(world.account, str(BOB.id), "bob", "Bob")
        telegram.tap(question.id, label, chat=group, sender=BOB)
        await telegram.wait(lambda: telegram.calls("answerCallbackQuery") == 2)
        texts = [
            call.text for call in telegram.log if call.method == "answerCallbackQuery"
        ]
        assert all("Only the person" in text for text in texts)
        assert world.events(world.conversations()[0], ApprovalAnswered) == []
        telegram.tap(question.id, label, chat=group)
        await telegram.wait(lambda: world.chat(group)[-1] == "It is written.")


async def test_a_tap_that_comes_again_has_one_effect(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A repeated tap answers the approval once."""
    async with ChatWorld(telegram, "sqlite", tmp_path, WRITES) as world:
        world.say("Write it")
        question = await _question(telegram)
        telegram.repeat_updates(3)
        telegram.tap(question.id, _labels(question)[0])
        await telegram.wait(lambda: world.chat()[-1] == "It is written.")
        assert len(world.events(world.conversations()[0], ApprovalAnswered)) == 1


async def test_a_forged_tap_allows_nothing(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """Data that no button has, such as "always", is refused."""
    async with ChatWorld(telegram, "sqlite", tmp_path, WRITES) as world:
        world.say("Write it")
        question = await _question(telegram)
        real = question.buttons[0][0].data
        for number, data in enumerate(
            ("always", "", real.replace("once", "always"), "x" * 64), 1
        ):
            telegram.tap(question.id, data=data)
            await telegram.wait(
                lambda n=number: telegram.calls("answerCallbackQuery") >= n
            )
        assert world.events(world.conversations()[0], ApprovalAnswered) == []


async def test_a_question_is_answered_by_a_button_or_by_words(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """The choices of a question are buttons, and a message is an answer too."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [*ASKS, *ASKS]) as world:
        world.say("Ask me")
        question = await _question(telegram)
        assert _labels(question) == ["Red", "Blue"]
        telegram.tap(question.id, "Blue")
        await telegram.wait(lambda: world.chat()[-1] == "Good.")
        world.say("Ask me again")
        await telegram.wait(lambda: len(world.chat()) == 3)
        await _question(telegram)
        world.say("Green")
        await telegram.wait(lambda: len(world.chat()) == 4)
        answers = world.events(world.conversations()[0], ApprovalAnswered)
        assert [answer.words for answer in answers] == ["Blue", "Green"]
