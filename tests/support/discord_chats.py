"""A gateway with the runtimes of its users, beside a fake Discord."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec

from tenax.channels.base import Channel
from tenax.channels.discord.channel import DiscordChannel
from tenax.channels.gateway import Gateway
from tenax.channels.rows import ChannelRows
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply
from tenax.runtime.runtime import open_store
from tests.support.chats import FAST, ChatWorld
from tests.support.discord import ADA, FakeDiscord, Person
from tests.support.runs import SECONDS

__all__ = ["DiscordWorld"]


class DiscordWorld(ChatWorld):
    """A gateway that serves an account of a fake Discord. `async with` starts and stops it.

    Ada is the owner of Tenax, unless `pair` is false.
    """

    def __init__(
        self,
        discord: FakeDiscord,
        url: str,
        home: Path,
        replies: Sequence[Reply] = (),
        **more: Any,
    ) -> None:
        # A fake of either platform has a token, an address and the id of its bot.
        super().__init__(discord, url, home, replies, **more)  # type: ignore[arg-type]
        self.discord = discord
        self.account = f"discord:{discord.bot_id}"
        settings = ChannelSettings(
            label="discord",
            platform="discord",
            token=Secret(discord.token, "a test"),
            url=discord.url,
            allow=tuple(more.get("allow", ())),
        )
        self.config = replace(self.config, channels={"discord": settings})

    async def __aenter__(self) -> Self:
        self.journal = open_store(self.config)
        self.rows = ChannelRows(self.journal)
        if self._pair:
            self.rows.add_person(self.account, str(ADA.id), LOCAL_USER, "Ada")
        self.gateway = Gateway(self.journal, self.runtime_of, connect=self._connect)
        await self.runtime_of(LOCAL_USER)
        await self.gateway.configure(self.config)
        await self.connected()
        return self

    def _connect(self, settings: ChannelSettings) -> Channel:
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

    def say(self, text: str = "", sender: Person = ADA, **more: Any) -> int:  # type: ignore[override]
        return self.discord.say(text, sender=sender, **more)
