"""What the tests of chat apps share: a gateway with the runtimes of its users, beside a fake chat app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tenax.assembly import Runtime
from tenax.channels.base import Channel
from tenax.channels.gateway import Gateway
from tenax.channels.rows import ChannelRows
from tenax.channels.telegram.channel import TelegramChannel
from tenax.config import Config
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.events import Event, MessageUser
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.base import Recorded
from tenax.models import ScriptedModel
from tenax.models.scripted import Reply
from tenax.parts import text_of
from tenax.runtime.runtime import open_store
from tests.support.runs import SECONDS, config_of, with_timing
from tests.support.telegram import ADA, FakeTelegram, Person

__all__ = ["FAST", "ChatWorld", "GatewayWorld", "connect_fast"]

FAST = {
    "send_seconds": 0.0,
    "group_seconds": 0.0,
    "account_seconds": 0.0,
    "preview_seconds": 0.0,
}
"""The pauses of a platform without limits."""


def connect_fast(settings: ChannelSettings, **pauses: float) -> Channel:
    """Return a channel to a fake Telegram without pauses between messages."""
    assert settings.token is not None
    channel = TelegramChannel(
        settings.token.reveal(),
        base_url=f"{settings.url}/bot",
        base_file_url=f"{settings.url}/file/bot",
        poll_seconds=5,
        connect_seconds=5.0,
        request_seconds=5.0,
    )
    traits = msgspec.structs.replace(channel.traits, **{**FAST, **pauses})
    channel.traits = traits
    return channel


class GatewayWorld:
    """A gateway that serves an account, with the runtimes of its users. `async with` starts and stops it."""

    def __init__(
        self,
        settings: ChannelSettings,
        account: str,
        url: str,
        home: Path,
        replies: Sequence[Reply] = (),
        config: Config | None = None,
    ) -> None:
        self.account = account
        found = with_timing(config or config_of(url, home), channel_retry_seconds=0.02)
        self.config = replace(found, channels={settings.label: settings})
        self.replies = list(replies)
        self.runtimes: dict[str, Runtime] = {}
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self.journal = self.open_journal()
        self.rows = ChannelRows(self.journal)
        self.prepare()
        self.gateway = Gateway(self.journal, self.runtime_of, connect=self.connect)
        await self.runtime_of(LOCAL_USER)
        await self.gateway.configure(self.config)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.gateway.close()
        for runtime in self.runtimes.values():
            await runtime.close()
        self.journal.close()

    def open_journal(self) -> Journal:
        return open_store(self.config)

    def prepare(self) -> None:
        """Store what has to be there before the gateway starts."""

    def connect(self, settings: ChannelSettings) -> Channel:
        """Return the channel of the account."""
        raise NotImplementedError

    async def runtime_of(self, user: str) -> Runtime:
        async with self._lock:
            if user not in self.runtimes:
                models = [ScriptedModel(self.replies)] if self.replies else None
                runtime = Runtime(
                    self.config, user=user, journal=self.journal.of(user), models=models
                )
                await runtime.start()
                self.runtimes[user] = runtime
            return self.runtimes[user]

    @property
    def runtime(self) -> Runtime:
        """The runtime of the owner."""
        return self.runtimes[LOCAL_USER]

    def conversations(self, user: str = LOCAL_USER) -> list[str]:
        """Return the conversations of a user, the newest first."""
        found = self.journal.of(user).conversations(limit=100)
        return [summary.conversation for summary in found]

    def facts(self, conversation: str, user: str = LOCAL_USER) -> list[Recorded]:
        return self.journal.of(user).read(conversation, limit=10_000)

    def events(self, conversation: str, *kinds: type[Event]) -> list[Any]:
        """Return the events of a conversation of the owner, or those of some kinds."""
        found = [fact.event for fact in self.facts(conversation)]
        return [event for event in found if isinstance(event, kinds or object)]

    def words(self, user: str = LOCAL_USER) -> list[str]:
        """Return the texts of all messages of people in the conversations of a user, the oldest conversation first."""
        return [
            text_of(fact.event.parts)
            for name in reversed(self.conversations(user))
            for fact in self.facts(name, user)
            if isinstance(fact.event, MessageUser)
        ]

    async def until(self, predicate: Any, seconds: float = SECONDS) -> Any:
        """Wait until something holds that is looked up in the store."""
        async with asyncio.timeout(seconds):
            found = await asyncio.to_thread(predicate)
            # The store tells other processes and threads of nothing but events.
            while not found:
                await asyncio.sleep(0.01)
                found = await asyncio.to_thread(predicate)
        return found


class ChatWorld(GatewayWorld):
    """A gateway that serves an account of a fake Telegram.

    Ada is the owner of Tenax, unless `pair` is false.
    """

    def __init__(
        self,
        telegram: FakeTelegram,
        url: str,
        home: Path,
        replies: Sequence[Reply] = (),
        *,
        pair: bool = True,
        allow: Sequence[str] = (),
        config: Config | None = None,
        **pauses: float,
    ) -> None:
        settings = ChannelSettings(
            label="telegram",
            platform="telegram",
            token=Secret(telegram.token, "a test"),
            url=telegram.url,
            allow=tuple(allow),
        )
        account = f"telegram:{telegram.bot_id}"
        super().__init__(settings, account, url, home, replies, config)
        self.telegram = telegram
        self._pair = pair
        self._pauses = pauses

    def prepare(self) -> None:
        if self._pair:
            self.rows.add_person(self.account, str(ADA.id), LOCAL_USER, "Ada")

    def connect(self, settings: ChannelSettings) -> Channel:
        return connect_fast(settings, **self._pauses)

    def chat(self, chat: int | None = None) -> list[str]:
        """Return what the bot has written, as a chat shows it now."""
        chat = ADA.id if chat is None else chat
        return [
            message.text
            for message in self.telegram.messages(chat)
            if message.from_bot and not message.deleted
        ]

    async def said(self, *texts: str, chat: int | None = None) -> None:
        """Wait until the bot has written exactly these messages."""
        await self.telegram.wait(
            lambda: self.chat(chat) == list(texts), seconds=SECONDS
        )

    def say(self, text: str = "", sender: Person = ADA, **more: Any) -> int:
        """Write to the bot."""
        return self.telegram.say(text, sender=sender, **more)
