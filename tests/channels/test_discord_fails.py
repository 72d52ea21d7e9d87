"""Discord is away, answers errors, loses events, or asks to wait: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tenax.channels.states import read_states
from tenax.models.scripted import Reply
from tests.support.discord import ADA, BOB, FakeDiscord
from tests.support.discord_chats import DiscordWorld

LONG = " ".join(f"word{number}" for number in range(80))
MARK = "↻"


def _state(world: DiscordWorld) -> str:
    (state,) = read_states(world.config, world.rows)
    return state.state


async def test_discord_is_away(discord: FakeDiscord, tmp_path: Path) -> None:
    """What is written on either side while Discord is away arrives later, once and in order."""
    replies = [Reply("One."), Reply("Two."), Reply("Three.")]
    async with DiscordWorld(discord, "sqlite", tmp_path, replies) as world:
        world.say("Hello")
        await world.said("One.")
        discord.away()
        (name,) = world.conversations()
        asked = await world.runtime.submit(name, "Meanwhile")
        await world.runtime.finished(name, asked.seq)
        world.say("And me", silent=True)
        discord.end_sessions()
        discord.back()
        await discord.wait(lambda: world.chat()[-1:] == ["Three."])
        assert len(world.chat()) == 4
        assert world.words() == ["Hello", "Meanwhile", "And me"]


async def test_messages_of_an_outage_are_caught_up(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """Messages that came while no process was there are stored in order at the next start, in more than one page."""
    general = discord.add_channel("general")
    quiet = discord.add_channel("quiet")
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        world.say("Before")
        await world.said("Yes.")
        world.say("Before", chat=general, mention=True)
        await world.said("Yes.", chat=general)
    for number in range(120):
        discord.say(f"Chatter {number}", chat=general, sender=BOB)
    for number in range(3):
        discord.say(f"Meanwhile {number}")
    discord.say("In the group", chat=general, mention=True)
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        await discord.wait(lambda: len(world.chat()) == 4)
        await discord.wait(lambda: len(world.chat(general)) == 2)
        assert "In the group" in world.words()
        private = [word for word in world.words() if word.startswith("Meanwhile")]
        assert private == [f"Meanwhile {number}" for number in range(3)]
        read = [call.chat for call in discord.log if call.method == "getMessages"]
        assert read.count(general) == 2
        assert quiet not in read


async def test_a_cut_socket_resumes(discord: FakeDiscord, tmp_path: Path) -> None:
    """After a cut the session is resumed, and the chats are read as well: an event may be missing."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        world.say("One")
        await world.said("Yes.")
        world.say("Lost by the socket", silent=True)
        discord.cut_socket()
        world.say("Two")
        await discord.wait(lambda: len(world.chat()) == 3)
        assert world.words() == ["One", "Lost by the socket", "Two"]
        assert discord.signs == ["IDENTIFY", "RESUME"]
        discord.reconnect()
        await discord.wait(lambda: discord.signs == ["IDENTIFY", "RESUME", "RESUME"])
        world.say("Three")
        await discord.wait(lambda: len(world.chat()) == 4)


async def test_a_session_that_cannot_be_resumed(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """After INVALID_SESSION a new session begins, and the missing messages are read from the chats."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        world.say("One")
        await world.said("Yes.")
        discord.end_sessions()
        world.say("Two")
        await world.said("Yes.", "Yes.")
        assert discord.signs == ["IDENTIFY", "RESUME", "INVALID_SESSION", "IDENTIFY"]


async def test_a_quiet_socket_stays_connected(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """While heartbeats are answered the account is connected, although nobody writes."""
    discord.heartbeat_seconds = 0.1
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        await world.until(lambda: _state(world) == "connected")
        world.say("One")
        await world.said("Yes.")


async def test_a_send_without_an_answer_is_repeated_with_its_key(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """Whether the server has acted or not: within the time of the key the message is there once, without a mark."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply(LONG)] * 3) as world:
        discord.drop_after("createMessage")
        world.say("Hello")
        await world.said(LONG)
        discord.drop_before("createMessage")
        world.say("Hello")
        await world.said(LONG, LONG)
        discord.drop_after("editMessage")
        world.say("Hello")
        await world.said(LONG, LONG, LONG)
        assert world.rows.counts(world.account)["repeated"] == 0


async def test_a_send_without_an_answer_is_marked_after_the_time_of_the_key(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """Later the first words come twice, with a mark."""
    discord.nonce_seconds = 0.0
    async with DiscordWorld(
        discord, "sqlite", tmp_path, [Reply(LONG)], key_seconds=0.0
    ) as world:
        discord.drop_after("createMessage")
        world.say("Hello")
        await discord.wait(lambda: world.chat()[-1:] == [f"{MARK} {LONG}"])
        first, _ = world.chat()
        assert LONG.startswith(first.removesuffix("…").strip())
        assert len(first) < len(LONG) / 2
        assert world.rows.counts(world.account)["repeated"] == 1


async def test_errors_of_the_server_are_tried_again(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """Status 500 and invalid answers to any request lose nothing and double nothing."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 5) as world:
        discord.fail("createMessage", 502, times=2)
        world.say("One")
        await world.said("Yes.")
        discord.garbage_reply("createMessage")
        world.say("Two")
        await world.said("Yes.", "Yes.")
        discord.fail("getMessages", 500, times=2)
        discord.end_sessions()
        world.say("Three")
        await world.said("Yes.", "Yes.", "Yes.")
        assert world.words() == ["One", "Two", "Three"]


async def test_a_flood_wait_is_slept_out(discord: FakeDiscord, tmp_path: Path) -> None:
    """A message that has to wait is sent once the wait is over, also after a restart, and only this chat waits."""
    replies = [Reply("Yes.")] * 3
    bobs = discord.chat_of(BOB)
    async with DiscordWorld(discord, "sqlite", tmp_path, replies) as world:
        world.rows.add_person(world.account, str(BOB.id), "bob", "Bob")
        discord.flood("createMessage", 3, chat=discord.chat_of(ADA))
        world.say("Hello")
        await discord.wait(lambda: discord.calls("createMessage") == 1)
        world.say("Hello", sender=BOB)
        await world.said("Yes.", chat=bobs)
        assert world.chat() == []
        await world.until(
            lambda: any(
                name.startswith("wait:") for name in world.rows.values(world.account)
            )
        )
    async with DiscordWorld(discord, "sqlite", tmp_path, replies) as world:
        await world.said("Yes.")
        sends = [
            call
            for call in discord.log
            if call.method == "createMessage" and call.chat != bobs
        ]
        assert sends[1].at - sends[0].at >= 3.0


async def test_a_global_limit_stops_every_chat(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """A limit of the whole bot is kept for all chats, without further requests."""
    bobs = discord.chat_of(BOB)
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 3) as world:
        world.rows.add_person(world.account, str(BOB.id), "bob", "Bob")
        discord.flood("createMessage", 6, everywhere=True)
        world.say("Hello")
        await discord.wait(lambda: discord.calls("createMessage") == 1)
        world.say("Hello", sender=BOB)
        await world.said("Yes.", chat=bobs)
        await world.said("Yes.")
        first, second, *_ = [
            call for call in discord.log if call.method == "createMessage"
        ]
        assert second.at - first.at >= 6.0


async def test_the_buckets_are_kept(tmp_path: Path) -> None:
    """With Discord's limits and no pauses of our own, the headers are enough: no request is refused."""
    with FakeDiscord() as discord:
        reply = Reply(" ".join(f"word{number}" for number in range(120)), pause=0.02)
        async with DiscordWorld(
            discord, "sqlite", tmp_path, [reply], preview_seconds=0.05
        ) as world:
            world.say("Slowly")
            await world.said(reply.words)
        assert discord.calls("editMessage") >= 5
        assert [call for call in discord.log if call.outcome.startswith("429")] == []


async def test_a_blocked_chat_delays_nobody(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """A chat that takes no messages loses only its own messages, and the account says so."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 5) as world:
        world.rows.add_person(world.account, str(BOB.id), "bob", "Bob")
        discord.block(discord.chat_of(BOB))
        world.say("Hello", sender=BOB)
        (row,) = await world.until(world.rows.failed)
        assert row.state == "dead"
        world.say("Hello")
        await world.said("Yes.")


async def test_a_refused_token_and_a_missing_intent_are_told(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """A bot that may not read messages is shown as refused with the remedy, and messages come afterwards."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 5) as world:
        world.say("Before")
        await world.said("Yes.")
        fault = discord.fail("getMe", 401, times=None)
        discord.cut_socket(4004)
        await world.until(lambda: _state(world) == "refused")
        discord.may_read_content = False
        fault.release()

        def is_told() -> bool:
            (state,) = read_states(world.config, world.rows)
            return "Message Content Intent" in state.error

        await world.until(is_told)
        world.say("Meanwhile", silent=True)
        discord.may_read_content = True
        await world.said("Yes.", "Yes.")


async def test_a_slow_platform_does_not_slow_the_page(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """While every send hangs, a conversation goes on in the page, and its messages arrive later, once."""
    async with DiscordWorld(discord, "sqlite", tmp_path, [Reply("Yes.")] * 9) as world:
        world.say("Hello")
        await world.said("Yes.")
        fault = discord.hang("createMessage")
        (name,) = world.conversations()
        async with asyncio.timeout(30):
            for number in range(3):
                asked = await world.runtime.submit(name, f"Page {number}")
                await world.runtime.finished(name, asked.seq)
        fault.release()
        await discord.wait(lambda: len(world.chat()) == 7)


async def test_a_flood_wait_that_outlasts_the_key_marks_the_message(
    discord: FakeDiscord, tmp_path: Path
) -> None:
    """Whether a repetition is recognised counts at the time of the send, not before the wait."""
    discord.nonce_seconds = 3.0
    async with DiscordWorld(
        discord, "sqlite", tmp_path, [Reply("Yes.")], key_seconds=3.0
    ) as world:
        discord.on(
            "createMessage", lambda _: discord.flood("createMessage", 6.0), "after"
        )
        discord.drop_after("createMessage")
        world.say("Hello")
        await world.said("Yes.", f"{MARK} Yes.")
        assert world.rows.counts(world.account)["repeated"] == 1
