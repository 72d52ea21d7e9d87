"""Chat apps: from the platform to the store, many streaming chats at once, and memory over many messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec
import telegram as library

from bench.engines import Engine
from bench.lab import ROOT, Lab
from bench.measure import Row, at_most, progress, spread, stated
from tenax.channels.base import Batch, Channel
from tenax.channels.telegram.channel import TelegramChannel
from tenax.concurrency import call_in_loop
from tenax.config.schema import ChannelSettings
from tenax.journal import LOCAL_USER
from tenax.journal.wakeups import ANY
from tenax.models.scripted import Reply
from tests.support.chats import FAST, ChatWorld
from tests.support.telegram import FakeTelegram, Person

__all__ = ["chats"]

_STORED_MS = 5.0
_POLL_SECONDS = 20
_CHATS = 40
_GROUPS = 10
_ACCOUNT_PER_SECOND = 30
_GROUP_PER_MINUTE = 20
_PRIVATE_SECONDS = 0.9
"""Telegram asks for at most one message a second. Requests that leave a second apart arrive a little closer."""
_BURST = 3
_STREAM_SECONDS_MAX = 600.0
_WORD_SECONDS = 0.05
_FIRST_PERSON = 8000
_SPENDING = frozenset({"sendMessage", "editMessageText", "editMessageReplyMarkup"})


def chats(lab: Lab) -> Iterator[Row]:
    """What a chat app costs. Telegram is a fake server in this process that keeps the limits of the real one."""
    for engine in lab.engines:
        progress(f"from Telegram to the store, {engine.name}")
        yield from _inbound(lab, engine)
    progress(f"{_CHATS + _GROUPS} chats that stream")
    yield from _streaming(lab)
    yield from _memory(lab)


# -- inbound -----------------------------------------------------------------------------


class _Watched(TelegramChannel):
    """A channel that notes when a batch may be confirmed."""

    def __init__(self, settings: ChannelSettings) -> None:
        assert settings.token is not None
        super().__init__(
            settings.token.reveal(),
            base_url=f"{settings.url}/bot",
            base_file_url=f"{settings.url}/file/bot",
            poll_seconds=_POLL_SECONDS,
        )
        self.traits = msgspec.structs.replace(self.traits, **FAST)
        self.confirmable = 0.0

    async def receive(self, cursor: str) -> AsyncGenerator[Batch]:
        async for batch in super().receive(cursor):
            yield batch
            # The caller asks for the next batch when this one and its cursor are stored.
            if batch.updates:
                self.confirmable = time.perf_counter()


class _WatchedWorld(ChatWorld):
    """A gateway with a watched channel."""

    watched: _Watched

    def connect(self, settings: ChannelSettings) -> Channel:
        self.watched = _Watched(settings)
        return self.watched


def _inbound(lab: Lab, engine: Engine) -> Iterator[Row]:
    times = asyncio.run(_time_inbound(lab, engine, lab.size(300, quick=3)))
    own_ms = (median(times.stored) - median(times.client)) * 1000
    what = (
        f"{engine.title}: from the moment a person sends a message until it is stored, less the same until "
        "`Bot.get_updates` of python-telegram-bot returns the message"
    )
    measured = f"stored {spread(times.stored)}; client {spread(times.client)}"
    key = f"chat-inbound-{engine.name}"
    yield at_most(key, what, own_ms, _STORED_MS, measured, " ms")
    whole_ms = (median(times.confirmable) - median(times.client)) * 1000
    what = f"{engine.title}: the same until the cursor is stored too, and Telegram may forget the message"
    measured = spread(times.confirmable)
    yield stated(f"{key}-cursor", what, f"{whole_ms:.1f} ms", measured)


class _Times(NamedTuple):
    """Seconds since a message was sent."""

    client: list[float]
    stored: list[float]
    confirmable: list[float]


async def _time_inbound(lab: Lab, engine: Engine, count: int) -> _Times:
    """Time messages to a bare client and to a gateway, in turns."""
    times = _Times([], [], [])
    with FakeTelegram() as alone, FakeTelegram() as telegram:
        telegram.unlimit_rates()
        home = lab.folder / f"home-chat-{engine.name}"
        replies = [Reply("Yes.")] * (count + 1)
        world = _WatchedWorld(telegram, engine.url("chat"), home, replies)
        bot = library.Bot(alone.token, base_url=f"{alone.url}/bot")
        commits: list[float] = []
        note = partial(
            call_in_loop,
            asyncio.get_running_loop(),
            lambda: commits.append(time.perf_counter()),
        )
        async with world, bot:
            wakeups = world.journal.store.wakeups
            offset = 0
            for number in range(count + 1):
                seconds_of_client, offset = await _time_client(alone, bot, offset)
                await telegram.wait(lambda: telegram.waiting_polls)
                commits.clear()
                with wakeups.listening(ANY, note):
                    start = time.perf_counter()
                    world.say(f"Message {number}")
                    await telegram.wait(lambda n=number: len(world.chat()) > n)
                (name,) = world.conversations()
                await world.runtime.workers.idle(name)
                # The first message opens the conversation and the connections.
                if number > 0:
                    times.client.append(seconds_of_client)
                    times.stored.append(commits[0] - start)
                    times.confirmable.append(world.watched.confirmable - start)
    return times


async def _time_client(
    alone: FakeTelegram, bot: library.Bot, offset: int
) -> tuple[float, int]:
    """Return the time from `say` to the client, and the next offset."""
    poll = asyncio.create_task(
        bot.get_updates(offset=offset, timeout=_POLL_SECONDS, read_timeout=60)
    )
    await alone.wait(lambda: alone.waiting_polls)
    start = time.perf_counter()
    alone.say("Hello")
    (update,) = await poll
    return time.perf_counter() - start, update.update_id + 1


# -- streaming ---------------------------------------------------------------------------


def _streaming(lab: Lab) -> Iterator[Row]:
    """Answers stream to many chats at once, for longer than the window of the limits."""
    words = lab.size(400, quick=20, large=1800)
    calls, floods, took = asyncio.run(_stream(lab, words))
    private = [
        times for chat, times in calls.items() if chat > 0 and chat != _FIRST_PERSON
    ]
    groups = [times for chat, times in calls.items() if chat < 0]
    everything = sorted(time for times in calls.values() for time in times)
    too_close = sum(_count_close(times, _PRIVATE_SECONDS) for times in private)
    too_many = sum(_count_over(times, 60.0, _GROUP_PER_MINUTE) for times in groups)
    over = _count_over(everything, 1.0, _ACCOUNT_PER_SECOND)
    violations = floods + too_close + too_many + over
    what = (
        f"answers of {words} words that stream to {_CHATS} private chats and {_GROUPS} groups at once: requests that "
        f"Telegram answered with 429, or that came within {_PRIVATE_SECONDS} s in a private chat, as one of more than "
        f"{_GROUP_PER_MINUTE} a minute in a group, or as one of more than {_ACCOUNT_PER_SECOND} a second"
    )
    measured = (
        f"{len(everything)} messages and edits in {took:.0f} s; in a second at most "
        f"{_most_within(everything, 1.0)} of the account; in a minute at most "
        f"{max(_most_within(times, 60.0) for times in groups)} of a group"
    )
    yield Row(
        "chat-streams", what, str(violations), measured, "0", held=violations == 0
    )


async def _stream(lab: Lab, words: int) -> tuple[dict[int, list[float]], int, float]:
    """Return the times of the accepted messages and edits by chat, the number of refusals, and the seconds of all."""
    traits = TelegramChannel.traits
    answer = " ".join(f"word{number}" for number in range(words))
    people = [Person(_FIRST_PERSON + number, f"P{number}") for number in range(_CHATS)]
    with FakeTelegram() as telegram:
        telegram.limit_rates(burst=_BURST, group_per_minute=_GROUP_PER_MINUTE)
        world = ChatWorld(
            telegram,
            lab.sqlite.url("chat-streams"),
            lab.folder / "home-chat-streams",
            [Reply(answer, pause=_WORD_SECONDS)],
            send_seconds=traits.send_seconds,
            group_seconds=traits.group_seconds,
            account_seconds=traits.account_seconds,
            preview_seconds=traits.preview_seconds,
        )
        async with world:
            for person in people:
                world.rows.add_person(
                    world.account, str(person.id), LOCAL_USER, person.first_name
                )
            begun = time.perf_counter()
            chats = [person.id for person in people]
            for person in people:
                world.say("Go on", sender=person)
            for number in range(_GROUPS):
                group = telegram.add_group(f"Group {number}")
                chats.append(group)
                world.say(f"@{telegram.username} go on", chat=group)
            last = f"word{words - 1}"

            def is_done(chat: int) -> bool:
                return any(text.endswith(last) for text in world.chat(chat))

            await telegram.wait(
                lambda: all(map(is_done, chats)), seconds=_STREAM_SECONDS_MAX
            )
            took = time.perf_counter() - begun
        calls: dict[int, list[float]] = {chat: [] for chat in chats}
        for call in telegram.sent:
            if call.chat is not None and call.method in _SPENDING:
                calls[call.chat].append(call.accepted_at)
        floods = sum(call.outcome.startswith("429") for call in telegram.log)
    return calls, floods, took


def _count_close(times: Sequence[float], seconds: float) -> int:
    """Return how many requests follow another one within so many seconds."""
    return sum(later - earlier < seconds for earlier, later in pairwise(times))


def _count_over(times: Sequence[float], seconds: float, most: int) -> int:
    """Return how many requests are one too many within so many seconds."""
    return sum(
        times[number] - times[number - most] < seconds
        for number in range(most, len(times))
    )


def _most_within(times: Sequence[float], seconds: float) -> int:
    """Return the largest number of requests within so many seconds."""
    return max(sum(start <= at < start + seconds for at in times) for start in times)


# -- memory ------------------------------------------------------------------------------


def _memory(lab: Lab) -> Iterator[Row]:
    """A process of its own with a chat app inside, that keeps nothing."""
    early = lab.size(1_000, quick=100, large=10_000)
    late = lab.size(5_000, quick=200, large=100_000)
    progress(f"memory, {late:,} messages of a chat app")
    home = lab.folder / "home-chatter"
    command = [sys.executable, "-m", "bench.chatter", lab.sqlite.url("chatter")]
    done = subprocess.run(
        [*command, str(home), str(early), str(late)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    at_early, at_late, took = map(float, done.stdout.split())
    what = (
        f"SQLite: memory of a process that has received, answered and delivered {late:,} messages, beside itself at "
        f"{early:,}; the chat app is inside the process"
    )
    measured = f"{at_early:.0f} MiB, then {at_late:.0f} MiB; {took / late * 1000:.1f} ms a message"
    grown = at_late / at_early
    if lab.scale == "large":  # before that, caches are still filling
        yield at_most("chat-memory", what, grown, 1.2, measured)
    else:
        yield stated("chat-memory", what, f"{grown:.2f} x", measured)
