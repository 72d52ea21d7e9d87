"""One budget for everything that goes out: a pause between two messages of a chat, and of the account."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from tenax.channels.base import Traits
from tenax.clock import Clock

__all__ = ["Budget"]

_CHATS_MAX: Final = 10_000


class Budget:
    """The times at which the next message may go out. A wait that the platform asked for survives a restart."""

    def __init__(
        self,
        traits: Traits,
        clock: Clock,
        store_wait: Callable[[str, int], Awaitable[None]],
    ) -> None:
        self._traits = traits
        self._clock = clock
        self._store_wait = store_wait
        self._next: OrderedDict[str, float] = OrderedDict()
        """By chat, the monotonic time of the next message."""
        self._account_next = 0.0

    def restore(self, chat: str, until_us: int) -> None:
        """Continue a wait that was stored before a restart."""
        seconds = (until_us - self._clock.now_us()) / 1e6
        if seconds > 0:
            self._set(chat, self._clock.monotonic() + seconds)

    def is_free(self, chat: str) -> bool:
        """Return whether a message may go out to the chat now."""
        return self._seconds(chat) <= 0

    async def wait(self, chat: str, *, is_group: bool) -> None:
        """Wait for the turn of a message to a chat."""
        await self.wait_until_free(chat)
        self._take(chat, is_group=is_group)

    async def wait_until_free(self, chat: str) -> None:
        """Wait until a message may go out to the chat, without taking the turn."""
        seconds = self._seconds(chat)
        # Another message may take the turn during the wait.
        while seconds > 0:
            await asyncio.sleep(seconds)
            seconds = self._seconds(chat)

    def take_if_free(self, chat: str, *, is_group: bool) -> bool:
        """Take the turn of a message if it need not wait."""
        if not self.is_free(chat):
            return False
        self._take(chat, is_group=is_group)
        return True

    async def postpone(self, chat: str, seconds: float) -> None:
        """Wait in this chat because the platform asks for it."""
        self._set(chat, self._clock.monotonic() + seconds)
        until_us = self._clock.now_us() + int(seconds * 1e6)
        await self._store_wait(chat, until_us)

    def _take(self, chat: str, *, is_group: bool) -> None:
        now = self._clock.monotonic()
        traits = self._traits
        pause = traits.group_seconds if is_group else traits.send_seconds
        self._set(chat, now + pause)
        self._account_next = now + traits.account_seconds

    def _set(self, chat: str, at: float) -> None:
        self._next[chat] = at
        self._next.move_to_end(chat)
        if len(self._next) > _CHATS_MAX:
            self._next.popitem(last=False)

    def _seconds(self, chat: str) -> float:
        at = max(self._next.get(chat, 0.0), self._account_next)
        return at - self._clock.monotonic()
