"""The receiver of a webhook is away, answers errors, drops connections, hangs or asks to wait: nothing is lost.

What comes twice has the same id, and the receiver of these tests folds it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tenax.channels.states import read_states
from tenax.errors import StoreError
from tenax.events import ConversationRouted
from tenax.models.scripted import Reply
from tests.support.webhooks import HookWorld, Inbox, Post, ShiftedClock

HOUR = 3600.0
DAY = 24 * HOUR
YES = Reply("Yes.")


async def test_a_receiver_that_is_away_for_an_hour_gets_everything_once(
    inbox: Inbox, tmp_path: Path
) -> None:
    """Requests are taken meanwhile, the state says what is wrong, and afterwards the answers come in order."""
    clock = ShiftedClock()
    replies = [Reply("One."), Reply("Two."), Reply("Three.")]
    async with HookWorld(inbox.url, "sqlite", tmp_path, replies, clock=clock) as world:
        await world.soon()
        await world.request("Hello")
        await world.until(inbox.taken)
        inbox.away()
        await world.request("During the outage")
        await world.until(lambda: world.rows.oldest_unsent(world.account))
        await world.until(
            lambda: (
                "cannot be reached" in read_states(world.config, world.rows)[0].error
            )
        )
        clock.advance(HOUR)
        await world.until(lambda: world.rows.is_served(world.account))
        await accepted(world, "After an hour")
        inbox.back()
        await world.until(lambda: len(inbox.taken()) == 3)
        await world.until(lambda: not world.rows.unfinished(world.account))
        assert inbox.texts() == ["One.", "Two.", "Three."]
        assert count_ids(inbox.posts) == len(inbox.posts) == 3


async def test_errors_of_the_receiver_are_tried_again_with_the_same_id(
    inbox: Inbox, tmp_path: Path
) -> None:
    """Status 500, 404 and 408, a dropped connection and no answer in time: every try has the same id and body."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES]) as world:
        await world.soon()
        for status in (500, 404, 408, 429, 503):
            inbox.answer(status)
        inbox.drop("before")
        hanging = inbox.hang()
        await world.request("Hello")
        await world.until(inbox.taken)
        hanging.release.set()
        assert len(inbox.posts) == 8
        assert count_ids(inbox.posts) == 1
        assert len({post.body for post in inbox.posts}) == 1
        await world.until(lambda: not world.rows.unfinished(world.account))
        assert inbox.texts() == ["Yes."]
        assert world.rows.counts(world.account)["repeated"] == 0


async def test_a_lost_answer_repeats_the_event_with_the_same_id(
    inbox: Inbox, tmp_path: Path
) -> None:
    """The receiver has the event, and Tenax cannot know that."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES]) as world:
        await world.soon()
        inbox.drop("after", times=2)
        await world.request("Hello")
        await world.until(lambda: len(inbox.posts) == 3)
        await world.until(lambda: not world.rows.unfinished(world.account))
        assert [post.accepted for post in inbox.posts] == [True] * 3
        assert inbox.texts() == ["Yes."]


async def test_a_slow_receiver_delays_only_its_events(
    inbox: Inbox, tmp_path: Path
) -> None:
    """While a request hangs, requests are taken, and a conversation goes on in the page."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES] * 9) as world:
        await world.soon()
        inbox.slow(0.5)
        hanging = inbox.hang()
        await world.request("One")
        await world.until(lambda: len(inbox.posts) == 1)
        await world.request("Two", chat="other")
        await world.until(lambda: len(inbox.posts) >= 2)
        name = await world.runtime.new()
        async with asyncio.timeout(30):
            asked = await world.runtime.submit(name, "Page")
            await world.runtime.finished(name, asked.seq)
            await world.request("Three", chat="third")
        hanging.release.set()
        await world.until(lambda: len(inbox.taken()) == 3)
        assert {post.data["chat"] for post in inbox.taken()} == {
            "hook",
            "other",
            "third",
        }


async def test_a_receiver_that_asks_to_wait_gets_nothing_meanwhile(
    inbox: Inbox, tmp_path: Path
) -> None:
    """Status 429 and 503 with Retry-After in seconds: the wait is kept, and nothing is lost."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES]) as world:
        await world.soon()
        inbox.answer(429, retry_after="1")
        inbox.answer(503, retry_after="2")
        await world.request("Hello")
        await world.until(inbox.taken)
        first, second, third = inbox.posts
        assert second.at - first.at >= 1.0
        assert third.at - second.at >= 2.0
        assert count_ids(inbox.posts) == 1


async def test_a_wait_survives_a_restart(inbox: Inbox, tmp_path: Path) -> None:
    """After a restart the receiver still has its rest."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES]) as world:
        await world.soon()
        inbox.answer(429, retry_after="3")
        await world.request("Hello")
        await world.until(lambda: waits(world))
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES]) as world:
        await world.until(inbox.taken)
        first, second = inbox.posts
        assert second.at - first.at >= 3.0


async def test_a_receiver_that_is_gone_is_told_and_can_be_tried_again(
    inbox: Inbox, tmp_path: Path
) -> None:
    """Status 410: the message is dead, with a sentence. A retry by a person sends the same id."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES]) as world:
        await world.soon()
        inbox.answer(410)
        await world.request("Hello")
        (row,) = await world.until(world.rows.failed)
        assert row.state == "dead"
        assert "takes no messages any more" in row.error
        assert world.rows.retry(row)
        world.gateway.wake()
        await world.until(inbox.taken)
        assert count_ids(inbox.posts) == 1


async def test_a_refused_message_delays_no_other(inbox: Inbox, tmp_path: Path) -> None:
    """Status 400, 413, 415 and 422 are about a single message: the next one goes out."""
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES] * 5) as world:
        await world.soon()
        for number, status in enumerate((400, 413, 415, 422)):
            inbox.answer(status)
            await world.request(f"Hello {number}", chat=str(number))
            await world.until(lambda: len(world.rows.failed()) == number + 1)  # noqa: B023
        await world.request("Hello", chat="0")
        await world.until(inbox.taken)
        assert {row.state for row in world.rows.failed()} == {"dead"}


async def test_a_redirect_is_not_followed(inbox: Inbox, tmp_path: Path) -> None:
    """Only the address in the settings gets messages. The state says what to do, and the message waits."""
    with Inbox() as other:
        async with HookWorld(inbox.url, "sqlite", tmp_path, [YES]) as world:
            await world.soon()
            inbox.answer(307, times=None, location=other.url)
            await world.request("Hello")
            await world.until(
                lambda: "redirect" in read_states(world.config, world.rows)[0].error
            )
            assert other.posts == []
            inbox.heal()
            await world.until(inbox.taken)
            assert count_ids(inbox.posts) == 1


async def test_after_three_days_without_an_answer_a_message_is_uncertain(
    inbox: Inbox, tmp_path: Path
) -> None:
    """Nobody knows whether it arrived. A retry by a person sends the same id and the same text."""
    clock = ShiftedClock()
    async with HookWorld(inbox.url, "sqlite", tmp_path, [YES], clock=clock) as world:
        await world.soon()
        inbox.answer(500, times=None)
        await world.request("Hello")
        await world.until(lambda: len(inbox.posts) >= 4)
        assert world.rows.failed() == []
        clock.advance(3 * DAY)
        (row,) = await world.until(world.rows.failed)
        assert row.state == "uncertain"
        inbox.heal()
        assert world.rows.retry(row)
        world.gateway.wake()
        await world.until(inbox.taken)
        assert inbox.texts() == ["Yes."]
        assert count_ids(inbox.posts) == 1


async def test_a_restart_sends_what_is_left(inbox: Inbox, tmp_path: Path) -> None:
    """An answer that was not taken before the end of the process is sent by the next one."""
    replies = [Reply("One."), Reply("Two.")]
    async with HookWorld(inbox.url, "sqlite", tmp_path, replies) as world:
        name = await world.runtime.new()
        route = ConversationRouted(world.account, name, "")
        await world.runtime.journal.append(name, [route])
        inbox.away()
        asked = await world.runtime.submit(name, "Meanwhile")
        await world.runtime.finished(name, asked.seq)
    inbox.back()
    async with HookWorld(inbox.url, "sqlite", tmp_path, replies):
        await asyncio.to_thread(inbox.wait_for, inbox.taken)
        assert inbox.texts() == ["One."]


async def accepted(world: HookWorld, text: str) -> None:
    """Send a message until it is accepted, as a sender does."""
    async with asyncio.timeout(60):
        while True:
            try:
                assert await world.request(text, "msg_again")
            except StoreError:
                await asyncio.sleep(0.02)
            else:
                return


def count_ids(posts: list[Post]) -> int:
    return len({post.id for post in posts})


def waits(world: HookWorld) -> list[str]:
    """Return the stored waits of the account."""
    values = world.rows.values(world.account)
    return [name for name in values if name.startswith("wait:")]
