"""A gateway with the runtimes of its users, beside a fake Discord."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from tenax.channels.base import Channel
from tenax.channels.discord.channel import DiscordChannel
from tenax.config import Config
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply
from tests.support.chats import FAST, GatewayWorld
from tests.support.discord import ADA, FakeDiscord, Person
from tests.support.runs import SECONDS

__all__ = ["DiscordWorld"]


class DiscordWorld(GatewayWorld):
    """A gateway that serves an account of a fake Discord. `async with` starts and stops it.

    Ada is the owner of Tenax, unless `pair` is false.
    """

    def __init__(
        self,
        discord: FakeDiscord,
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
            label="discord",
            platform="discord",
            token=Secret(discord.token, "a test"),
            url=discord.url,
            allow=tuple(allow),
        )
        account = f"discord:{discord.bot_id}"
        super().__init__(settings, account, url, home, replies, config)
        self.discord = discord
        self._pair = pair
        self._pauses = pauses

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.connected()
        return self

    def prepare(self) -> None:
        if self._pair:
            self.rows.add_person(self.account, str(ADA.id), LOCAL_USER, "Ada")

    def connect(self, settings: ChannelSettings) -> Channel:
        """Return a channel without pauses between messages."""
        assert settings.token is not None
        channel = DiscordChannel(
            settings.token.reveal(),
            base_url=settings.url or "",
            connect_seconds=5.0,
            request_seconds=5.0,
        )
        traits = msgspec.structs.replace(channel.traits, **{**FAST, **self._pauses})
        channel.traits = traits
        return channel

    async def connected(self) -> None:
        """Wait until the first place of the cursor is stored: what comes then is caught up after an outage."""
        await self.until(lambda: self.rows.value(self.account, "cursor"))

    def chat(self, chat: int | None = None) -> list[str]:
        return self.discord.texts(chat or 0)

    async def said(self, *texts: str, chat: int | None = None) -> None:
        await self.discord.wait(lambda: self.chat(chat) == list(texts), seconds=SECONDS)

    def say(self, text: str = "", sender: Person = ADA, **more: Any) -> int:
        return self.discord.say(text, sender=sender, **more)
