"""The feed of a conversation: what this process stores is given to it, what others store is read once for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import tenax
from tenax.errors import Gone
from tenax.events import ConversationRewound, MessageUser, MessageWithdrawn
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.parts import Text
from tenax.runtime.feed import SHOWN_ROWS, ConversationFeed, FeedRegistry
from tenax.views.transcript import Drop
from tests.contract.engine.base import begin, say
from tests.models.talk import clock_ahead
from tests.support.counting import counting
from tests.support.remembering import until as until_true

SECONDS = 60.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tenax.db"


@pytest.fixture
async def journal(url: str) -> AsyncIterator[AsyncJournal]:
    async with AsyncJournal(tenax.open(url)) as journal:
        yield journal


def talk(journal: Journal) -> str:
    return begin(journal, say("first"))


async def until(
    feed: ConversationFeed, hint: asyncio.Event, done: Callable[[], bool]
) -> None:
    """Wait until this holds of the feed."""
    async with asyncio.timeout(SECONDS):
        while not done():
            await hint.wait()
            hint.clear()
    assert not feed.is_deleted


def texts(feed: ConversationFeed) -> list[str]:
    return [row.text for row in feed.snapshot().rows]


async def test_what_this_process_stores_is_shown_without_a_read(
    journal: AsyncJournal,
) -> None:
    """Whether it is appended in the event loop or in a thread."""
    name = talk(journal.journal)
    feeds = FeedRegistry(journal)
    with feeds.following(name, rows=True) as (feed, hint):
        await until(feed, hint, feed.is_ready)
        with counting() as counted:
            await journal.append(name, [say("second")])
            await journal.threads.run(
                lambda: journal.journal.append(name, [say("third")])
            )
            await until(feed, hint, lambda: feed.at == 4)
            assert counted.take().reads == 0
        assert texts(feed) == ["first", "second", "third"]
    await feeds.close()


async def test_what_another_process_stores_is_read_once_for_all(
    journal: AsyncJournal, url: str
) -> None:
    """Two watchers, one feed. The hint may come for several events."""
    name = talk(journal.journal)
    feeds = FeedRegistry(journal)
    with (
        tenax.open(url) as other,
        feeds.following(name, rows=True) as (feed, hint),
        feeds.following(name, rows=True) as (same, _),
    ):
        assert same is feed
        await until(feed, hint, feed.is_ready)
        other.append(name, [say("from elsewhere")])
        await until(feed, hint, lambda: feed.at == 3)
        await journal.append(name, [say("from here")])
        other.append(name, [say("and again")])
        await until(feed, hint, lambda: feed.at == 5)
        assert texts(feed) == ["first", "from elsewhere", "from here", "and again"]
    await feeds.close()


async def test_a_commit_of_another_process_wakes_nobody_who_watches_something_else(
    journal: AsyncJournal, url: str
) -> None:
    """Nor does a lease, which moves no conversation."""
    names = [talk(journal.journal) for _ in range(20)]
    feeds = FeedRegistry(journal)
    hints = [asyncio.Event() for _ in names]
    entered = [
        feeds.enter(name, hint, rows=True)
        for name, hint in zip(names, hints, strict=True)
    ]
    for feed, hint in zip(entered, hints, strict=True):
        await until(feed, hint, feed.is_ready)
    with tenax.open(url) as other:
        # The first look of the watcher may find that it knows no head yet.
        other.append(names[0], [say("settle")])
        await until(entered[0], hints[0], lambda: entered[0].at == 3)
        with counting() as counted:
            lease = other.claim("run:anything", "me", 30)
            assert lease is not None
            other.append(names[0], [say("more")])
            await until(entered[0], hints[0], lambda: entered[0].at == 4)
            counts = counted.take()
    # One page for the one feed. The other process's own reads are counted too: its append needs none.
    assert counts.reads <= 3, counts
    await feeds.close()


async def test_an_undo_from_elsewhere_is_seen_by_rows_and_history(
    journal: AsyncJournal, url: str
) -> None:
    """The rows are folded anew, and a watcher with an older number gets a snapshot."""
    name = talk(journal.journal)
    feeds = FeedRegistry(journal)
    with tenax.open(url) as other, feeds.following(name, rows=True) as (feed, hint):
        await until(feed, hint, feed.is_ready)
        await feed.history.catch_up()
        await journal.append(name, [say("second")])
        other.append(name, [ConversationRewound(2)])
        await until(feed, hint, lambda: feed.at == 4)
        assert texts(feed) == ["first"]
        assert feed.since(2, journal.incarnation) is None
        await feed.history.catch_up()
        assert len(feed.history.context.items) == 1
    await feeds.close()


async def test_a_withdrawal_from_elsewhere_is_a_change_and_no_new_snapshot(
    journal: AsyncJournal, url: str
) -> None:
    """The waiting message is stored far above the held rows. Its row leaves, and the history no longer has it."""
    name = talk(journal.journal)
    waiting = MessageUser([Text("later")], ask=True)
    await journal.append(name, [waiting, *[say("more")] * SHOWN_ROWS])
    feeds = FeedRegistry(journal)
    with tenax.open(url) as other, feeds.following(name, rows=True) as (feed, hint):
        await until(feed, hint, feed.is_ready)
        await feed.history.catch_up()
        assert [row.text for row in feed.snapshot().waiting] == ["later"]
        before = feed.at
        other.append(name, [MessageWithdrawn(3)])
        await until(feed, hint, lambda: feed.at > before)
        assert feed.since(before, journal.incarnation) == [Drop("3")]
        assert feed.snapshot().waiting == []
        await feed.history.catch_up()
        assert feed.history.turns.waiting == feed.history.context.waiting == {}
        assert await feed.is_settled(3)
    await feeds.close()


async def test_a_waiting_input_is_settled_when_another_process_deletes_the_conversation(
    journal: AsyncJournal, url: str
) -> None:
    """Whoever waits for the answer is told that the conversation is gone."""
    name = talk(journal.journal)
    feeds = FeedRegistry(journal)
    with tenax.open(url) as other, feeds.following(name) as (feed, hint):
        asked = await journal.append(name, [MessageUser([Text("Well?")], ask=True)])
        assert not await feed.is_settled(asked[0].seq)
        other.delete(name)
        async with asyncio.timeout(SECONDS):
            while not feed.is_deleted:
                await hint.wait()
                hint.clear()
        with pytest.raises(Gone):
            await feed.is_settled(asked[0].seq)
    await feeds.close()


async def test_an_idle_tail_reads_nothing(
    journal: AsyncJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the tail of a journal nor a feed, as long as other processes can be heard."""
    name = talk(journal.journal)
    feeds = FeedRegistry(journal)
    leap = clock_ahead(monkeypatch)
    with feeds.following(name, rows=True) as (feed, hint):
        await until(feed, hint, feed.is_ready)
        tail = journal.tail(name)
        for _ in range(2):
            await anext(tail)
        waiting = asyncio.ensure_future(anext(tail))
        # The thread that hears other processes has begun. Without it, both read once a second.
        await until_true(lambda: journal.store.wakeups.look_seconds > 1.0)
        with counting() as counted:
            for _ in range(50):
                leap(1.0)
                # A read of the test. Reads that are due now come before it or beside it.
                await journal.head(name)
            assert not waiting.done()
            # A few hints from the beginning may still come, and one look of each in a minute.
            assert counted.take().reads - 50 < 10
        await journal.append(name, [say("second")])
        assert (await waiting).seq == 3
    await feeds.close()
