"""The platform is away, answers errors, is slow, or asks to wait: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tenax.channels.states import read_states
from tenax.models.scripted import Reply
from tests.support.chats import ChatWorld
from tests.support.telegram import ADA, BOB, FakeTelegram

LONG = " ".join(f"word{number}" for number in range(80))
MARK = "↻"


async def test_the_platform_is_away(telegram: FakeTelegram, tmp_path: Path) -> None:
    """What is written in the page while the platform is away arrives later, once and in order."""
    async with ChatWorld(
        telegram, "sqlite", tmp_path, [Reply("One."), Reply("Two.")]
    ) as world:
        world.say("Hello")
        await world.said("One.")
        telegram.away()
        (name,) = world.conversations()
        asked = await world.runtime.submit(name, "Meanwhile")
        await world.runtime.finished(name, asked.seq)
        telegram.back()
        await telegram.wait(lambda: len(world.chat()) == 3)
        assert world.chat()[2] == "Two."
        assert "Meanwhile" in world.chat()[1]


async def test_a_server_error_before_the_send(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """After a connection that was lost before the server acted, the message carries a mark: nobody can know."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        telegram.drop_before("sendMessage")
        world.say("Hello")
        await telegram.wait(lambda: len(world.chat()) == 1)
        assert world.chat() == [f"{MARK} Yes."]


async def test_a_lost_answer_repeats_only_the_first_words(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """If the answer to a send is lost, the first words come twice, marked, and the rest once."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply(LONG)]) as world:
        telegram.drop_after("sendMessage")
        world.say("Hello")
        await telegram.wait(lambda: world.chat()[-1:] == [f"{MARK} {LONG}"])
        first, _ = world.chat()
        assert LONG.startswith(first.removesuffix("…").strip())
        assert len(first) < len(LONG) / 2
        assert world.rows.counts(world.account)["repeated"] == 1


async def test_a_lost_answer_to_an_edit_repeats_nothing(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """An edit is made again, because it has no second effect."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply(LONG)]) as world:
        telegram.drop_after("editMessageText")
        world.say("Hello")
        await world.said(LONG)
        await telegram.wait(lambda: telegram.calls("editMessageText") == 2)
        assert world.rows.counts(world.account)["repeated"] == 0


async def test_errors_of_the_server_are_tried_again(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """Status 500 to requests for updates, to sends and to edits loses nothing."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 5) as world:
        telegram.fail("getUpdates", 500, times=3)
        world.say("One")
        await telegram.wait(lambda: len(world.chat()) == 1)
        telegram.garbage_reply("getUpdates", times=2)
        world.say("Two")
        await telegram.wait(lambda: len(world.chat()) == 2)
        assert world.words() == ["One", "Two"]


async def test_a_flood_wait_is_slept_out(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A message that has to wait is sent once the wait is over, and only this chat waits."""
    replies = [Reply("Yes.")] * 3
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        world.rows.add_person(world.account, str(BOB.id), "bob", "Bob")
        fault = telegram.flood(ADA.id, 2, times=1)
        world.say("Hello")
        await telegram.wait(lambda: telegram.calls("sendMessage") == 1)
        world.say("Hello", sender=BOB)
        await telegram.wait(lambda: world.chat(BOB.id) == ["Yes."])
        assert world.chat() == []
        await world.said("Yes.")
        sends = [
            call
            for call in telegram.log
            if call.method == "sendMessage" and call.chat == ADA.id
        ]
        assert sends[1].at - sends[0].at >= 2.0
        del fault


async def test_a_flood_wait_survives_a_restart(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """After a restart the chat still waits as long as the platform asked."""
    replies = [Reply("Yes.")]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        telegram.flood(ADA.id, 3)
        world.say("Hello")
        await telegram.wait(lambda: telegram.calls("sendMessage") == 1)
        await world.until(
            lambda: any(
                name.startswith("wait:") for name in world.rows.values(world.account)
            )
        )
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        await world.said("Yes.")
        first, second = [call for call in telegram.log if call.method == "sendMessage"]
        assert second.at - first.at >= 3.0


async def test_a_blocked_chat_delays_nobody(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A message to somebody who has blocked the bot is dead at once, and can be tried again later."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        world.rows.add_person(world.account, str(BOB.id), "bob", "Bob")
        world.say("Hello", sender=BOB)
        await telegram.wait(lambda: world.chat(BOB.id) == ["Yes."])
        telegram.block(BOB.id)
        runtime = await world.runtime_of("bob")
        (name,) = world.conversations("bob")
        await runtime.submit(name, "From the page")
        await world.until(lambda: len(world.rows.failed()) == 2)
        world.say("Hello")
        await world.said("Yes.")
        telegram.unblock(BOB.id)
        failed = world.rows.failed()
        for row in failed:
            assert world.rows.retry(row)
        world.gateway.wake()
        await telegram.wait(lambda: len(world.chat(BOB.id)) == 3)
        assert world.rows.failed() == []
        assert not world.rows.retry(failed[0])


async def test_an_uncertain_message_is_given_up_and_told(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A server that acts and never answers gets few tries: each could bring the message once more."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        fault = telegram.drop_after("sendMessage", times=None)
        world.say("Hello")
        await world.until(world.rows.failed)
        fault.release()
        (row,) = world.rows.failed()
        assert row.state == "uncertain"
        assert len(world.chat()) == 4
        assert world.rows.discard(row)
        assert world.rows.failed() == []


async def test_a_second_program_with_the_token_is_told(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """While another program receives the updates, the state says so, and Tenax goes on by itself afterwards."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 2) as world:
        world.say("Hello")
        await world.said("Yes.")
        fault = telegram.fail(
            "getUpdates",
            409,
            times=None,
            description="Conflict: terminated by other getUpdates request",
        )
        world.say("Wake the poll")
        await world.until(lambda: _state(world) == "elsewhere")
        fault.release()
        await telegram.wait(lambda: len(world.chat()) == 2)
        await world.until(lambda: _state(world) == "connected")


async def test_a_refused_token_is_told(telegram: FakeTelegram, tmp_path: Path) -> None:
    """A token that the platform refuses is shown as such, and messages come again with a valid one."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        await world.until(lambda: _state(world) == "connected")
        fault = telegram.fail("getUpdates", 401, times=None, description="Unauthorized")
        again = telegram.fail("getMe", 401, times=None, description="Unauthorized")
        telegram.say("Hello")
        await world.until(lambda: _state(world) == "refused")
        fault.release()
        again.release()
        await world.said("Yes.")


async def test_the_state_of_an_account(telegram: FakeTelegram, tmp_path: Path) -> None:
    """The state names the bot and when something last came in and went out, also to another process."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")]) as world:
        world.say("Hello")
        await world.said("Yes.")
        await world.until(lambda: read_states(world.config, world.rows)[0].sent_at)
        (state,) = read_states(world.config, world.rows)
        assert (state.state, state.name) == ("connected", f"@{telegram.username}")
        assert state.received_at <= state.sent_at
        assert state.counts["delivered"] == 1
        assert state.oldest_unsent_at == 0
    world.journal = world.journal


async def test_a_slow_platform_does_not_slow_the_page(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """While every request of the platform hangs, a conversation goes on in the page."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        world.say("Hello")
        await world.said("Yes.")
        fault = telegram.hang("sendMessage")
        (name,) = world.conversations()
        async with asyncio.timeout(30):
            for number in range(3):
                asked = await world.runtime.submit(name, f"Page {number}")
                await world.runtime.finished(name, asked.seq)
        fault.release()
        await telegram.wait(lambda: len(world.chat()) == 7)


async def test_a_restart_delivers_what_is_left(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """An answer that was not delivered before the end of the process is delivered by the next one, once."""
    replies = [Reply("One."), Reply("Two.")]
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        world.say("Hello")
        await world.said("One.")
        telegram.away()
        (name,) = world.conversations()
        asked = await world.runtime.submit(name, "Meanwhile")
        await world.runtime.finished(name, asked.seq)
    telegram.back()
    async with ChatWorld(telegram, "sqlite", tmp_path, replies) as world:
        await telegram.wait(lambda: world.chat()[-1:] == ["Two."])
        assert len(world.chat()) == 3


async def test_messages_of_an_outage_are_caught_up(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """Messages that came while no process was there are stored in order at the next start."""
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        world.say("Before")
        await world.said("Yes.")
    for number in range(5):
        telegram.say(f"Meanwhile {number}")
    async with ChatWorld(telegram, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        await telegram.wait(lambda: len(world.chat()) == 6)
        assert world.words() == [
            "Before",
            *(f"Meanwhile {number}" for number in range(5)),
        ]


def _state(world: ChatWorld) -> str:
    (state,) = read_states(world.config, world.rows)
    return state.state
