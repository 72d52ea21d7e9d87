"""A gateway with the runtimes of its users, beside a fake or a real Matrix homeserver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec

from tenax.channels.base import Channel
from tenax.channels.gateway import Gateway
from tenax.channels.matrix.channel import MatrixChannel
from tenax.channels.matrix.requests import Times
from tenax.channels.rows import ChannelRows
from tenax.config import Config
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply
from tenax.runtime.runtime import open_store
from tests.support.chats import FAST, ChatWorld
from tests.support.matrix import ADA, FakeMatrix
from tests.support.runs import SECONDS, config_of, with_timing

__all__ = ["MatrixWorld", "connect_fast", "settings_of"]


def settings_of(matrix: FakeMatrix, **more: Any) -> ChannelSettings:
    """Return the settings of the account on a fake homeserver."""
    return ChannelSettings(
        label="matrix",
        platform="matrix",
        token=Secret(matrix.token, "a test"),
        url=matrix.url,
        user=matrix.bot,
        device=matrix.device,
        **more,
    )


def connect_fast(settings: ChannelSettings, **pauses: float) -> Channel:
    """Return a channel to a fake homeserver without pauses between messages."""
    assert settings.token is not None
    channel = MatrixChannel(
        settings.token.reveal(),
        url=settings.url or "",
        user=settings.user or "",
        device=settings.device or "",
        folder=Path(settings.folder) if settings.folder else None,
        times=Times(poll=5.0, connect=5.0, request=5.0),
    )
    channel.traits = msgspec.structs.replace(channel.traits, **{**FAST, **pauses})
    return channel


class MatrixWorld(ChatWorld):
    """A gateway that serves an account on a fake homeserver. Ada is the owner of Tenax, unless `pair` is false."""

    def __init__(
        self,
        matrix: FakeMatrix,
        url: str,
        home: Path,
        replies: Sequence[Reply] = (),
        *,
        pair: bool = True,
        allow: Sequence[str] = (),
        config: Config | None = None,
        **pauses: float,
    ) -> None:
        self.matrix = matrix
        self.account = f"matrix:{matrix.bot}"
        settings = settings_of(matrix, allow=tuple(allow))
        self.config = with_timing(
            config or config_of(url, home), channel_retry_seconds=0.02
        )
        self.config = self.with_channel(settings)
        self._prepare(replies, pair=pair, **pauses)

    def with_channel(self, settings: ChannelSettings) -> Config:
        return replace(self.config, channels={"matrix": settings})

    async def before_start(self) -> None:
        """Do what the gateway has to find."""
        if self._pair:
            self.rows.add_person(self.account, ADA, LOCAL_USER, "Ada")
            self.matrix.room_of(ADA)

    async def __aenter__(self) -> Self:
        self.journal = open_store(self.config)
        self.rows = ChannelRows(self.journal)
        await self.before_start()
        self.gateway = Gateway(
            self.journal,
            self.runtime_of,
            connect=lambda settings: connect_fast(settings, **self._pauses),
        )
        await self.runtime_of(LOCAL_USER)
        await self.gateway.configure(self.config)
        # What was written before the first connection is no news.
        await self.until(lambda: self.rows.value(self.account, "cursor"))
        return self

    def texts(self, person: str = ADA, *, room: str = "") -> list[str]:
        """Return what the bot has written, as a room shows it now."""
        return [
            message.text
            for message in self.matrix.messages(person, room=room)
            if message.from_bot
        ]

    async def shows(self, *texts: str, person: str = ADA, room: str = "") -> None:
        """Wait until the bot has written exactly these messages."""
        await self.matrix.wait(
            lambda: self.texts(person, room=room) == list(texts), seconds=SECONDS
        )
