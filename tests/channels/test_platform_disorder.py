"""Every disorder of a platform, beside a second account and the page: nothing is lost, nothing is doubled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tenax.clock import SystemClock
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.events import MessageUser
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply
from tenax.parts import text_of
from tests.support.chats import ChatWorld
from tests.support.telegram import ADA, Attachment, FakeTelegram

HOUR_SECONDS: Final = 3600.0
MARK: Final = "↻ "
BIG: Final = bytes(20 << 20)
ANSWERS: Final = [
    f"Answer {number}. {'and so on, ' * 30}End {number}." for number in range(4)
]
"""Longer than the first words with which an answer is placed."""


class OtherTelegram(FakeTelegram):
    """Telegram for a second bot."""

    bot_id = 654321
    token = f"{bot_id}:test-token-{'B' * 24}"


class MovableClock:
    """Moves the clock of Tenax."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_seconds = 0.0
        monkeypatch.setattr(
            SystemClock, "monotonic", lambda _: time.monotonic() + self.ahead_seconds
        )
        monkeypatch.setattr(
            SystemClock,
            "now_us",
            lambda _: time.time_ns() // 1000 + int(self.ahead_seconds * 1e6),
        )


class Disorder:
    """A disorder from `begin` to `end`. `file` is what the person sends meanwhile."""

    def __init__(
        self,
        begin: Callable[[FakeTelegram], object],
        end: Callable[[FakeTelegram], object] = FakeTelegram.clear_faults,
        *,
        seconds: float = 0.0,
        file: bytes = b"a small file",
    ) -> None:
        self.begin = begin
        self.end = end
        self.seconds = seconds
        self.file = file


def _send_garbage(telegram: FakeTelegram) -> None:
    telegram.garbage()
    telegram.garbage_reply("getUpdates", times=2)
    telegram.garbage_reply("sendMessage", times=1)


def _reverse_while_away(telegram: FakeTelegram) -> None:
    """Collect several updates for one answer, which has them in reverse order."""
    telegram.away()
    telegram.reverse_updates()


DISORDERS: Final = {
    "away for an hour": Disorder(
        FakeTelegram.away, FakeTelegram.back, seconds=HOUR_SECONDS
    ),
    "answers 500": Disorder(partial(FakeTelegram.fail, status=500, times=3)),
    "drops connections before it acts": Disorder(
        partial(FakeTelegram.drop_before, times=3)
    ),
    "drops connections after it acted": Disorder(
        partial(FakeTelegram.drop_after, times=3)
    ),
    "hangs": Disorder(FakeTelegram.hang),
    "is slow": Disorder(partial(FakeTelegram.slow, method="", seconds=0.3)),
    "sends updates five times": Disorder(FakeTelegram.repeat_updates),
    "sends updates out of order": Disorder(_reverse_while_away, FakeTelegram.back),
    "sends garbage": Disorder(_send_garbage),
    "sends a 20 MB file": Disorder(lambda _: None, file=BIG),
}


@pytest.fixture
def other() -> Iterator[OtherTelegram]:
    with OtherTelegram() as telegram:
        telegram.unlimit_rates()
        yield telegram


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovableClock:
    return MovableClock(monkeypatch)


@pytest.mark.parametrize("disorder", DISORDERS.values(), ids=DISORDERS)
async def test_a_disorder_loses_and_doubles_nothing_and_disturbs_nobody_else(
    telegram: FakeTelegram,
    other: OtherTelegram,
    clock: MovableClock,
    tmp_path: Path,
    disorder: Disorder,
) -> None:
    """Every message is stored once and in order, every answer is in the chat whole and once, and the rest goes on."""
    world = ChatWorld(telegram, "sqlite", tmp_path, [Reply(words) for words in ANSWERS])
    beside = ChannelSettings(
        label="other",
        platform="telegram",
        token=Secret(other.token, "a test"),
        url=other.url,
    )
    world.config = replace(
        world.config, channels={**world.config.channels, "other": beside}
    )
    async with world:
        account = f"telegram:{other.bot_id}"
        world.rows.add_person(account, str(ADA.id), LOCAL_USER, "Ada")
        world.say("Before")
        await world.said(ANSWERS[0])
        (name,) = world.conversations()
        disorder.begin(telegram)
        world.say("During it")
        file = Attachment.document("plan.txt", disorder.file)
        world.say("With a file", files=[file])
        # The other account and the page, at the same time.
        page = await world.runtime.new()
        asked = await world.runtime.submit(page, "On the page")
        await world.runtime.finished(page, asked.seq)
        other.say("Elsewhere")
        await other.wait(lambda: other.texts() == [ANSWERS[0]])
        clock.ahead_seconds += disorder.seconds
        other.say("Elsewhere again")
        await other.wait(lambda: other.texts() == ANSWERS[:2])
        disorder.end(telegram)
        world.say("After")
        await telegram.wait(
            lambda: all(_count(world.chat(), words) for words in ANSWERS)
        )
        await world.until(lambda: not world.rows.unfinished(world.account))
        texts = [text.splitlines()[0] for text in _said(world, name)]
        assert texts == ["Before", "During it", "With a file", "After"]
        for number, words in enumerate(ANSWERS):
            assert _count(world.chat(), words) == 1
            started = [text for text in world.chat() if f"Answer {number}." in text]
            is_marked = any(text.startswith(MARK) for text in started)
            assert len(started) == 1 or is_marked, started
        assert world.rows.failed() == []


def _count(chat: list[str], words: str) -> int:
    """Return how often an answer is in a chat, whole."""
    return sum(text.removeprefix(MARK) == words for text in chat)


def _said(world: ChatWorld, conversation: str) -> list[str]:
    """Return the texts of the messages of a conversation."""
    return [text_of(event.parts) for event in world.events(conversation, MessageUser)]
