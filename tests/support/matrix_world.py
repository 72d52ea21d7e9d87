"""A gateway with the runtimes of its users, beside a fake or a real Matrix homeserver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from tenax.channels.base import Channel
from tenax.channels.matrix.channel import MatrixChannel
from tenax.channels.matrix.requests import Times
from tenax.config import Config
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.journal import LOCAL_USER
from tenax.models.scripted import Reply
from tests.support.chats import FAST, GatewayWorld
from tests.support.matrix import ADA, FakeMatrix
from tests.support.runs import SECONDS

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


class MatrixWorld(GatewayWorld):
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
        settings = settings_of(matrix, allow=tuple(allow))
        account = f"matrix:{matrix.bot}"
        super().__init__(settings, account, url, home, replies, config)
        self.matrix = matrix
        self._pair = pair
        self._pauses = pauses

    def prepare(self) -> None:
        if self._pair:
            self.rows.add_person(self.account, ADA, LOCAL_USER, "Ada")
            self.matrix.room_of(ADA)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        # What was written before the first connection is no news.
        await self.until(lambda: self.rows.value(self.account, "cursor"))
        return self

    def connect(self, settings: ChannelSettings) -> Channel:
        """Return a channel without pauses between messages."""
        return connect_fast(settings, **self._pauses)

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
