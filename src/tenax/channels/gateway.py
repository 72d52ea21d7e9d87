"""The chat apps of a server: a task for every account of the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tenax.assembly import Runtime
from tenax.channels.account import Account
from tenax.channels.base import Channel
from tenax.channels.platforms import connect
from tenax.channels.rows import AsyncChannelRows
from tenax.config import Config
from tenax.config.schema import ChannelSettings, Speech
from tenax.journal.aio import AsyncJournal
from tenax.journal.journal import Journal
from tenax.models.speech import Transcriber

__all__ = ["Gateway"]


class Gateway:
    """Serves the accounts of the settings. `runtime_of` returns the runtime of a user."""

    def __init__(
        self,
        journal: Journal,
        runtime_of: Callable[[str], Awaitable[Runtime]],
        *,
        connect: Callable[[ChannelSettings], Channel] = connect,
    ) -> None:
        self._journal = AsyncJournal(journal)
        self.rows = AsyncChannelRows(self._journal)
        self._runtime_of = runtime_of
        self._connect = connect
        self._accounts: dict[str, tuple[Account, asyncio.Task[None]]] = {}
        """By label."""
        self._speech = Speech()

    async def configure(self, config: Config) -> None:
        """Serve the accounts of these settings. An account with unchanged settings goes on."""
        changed = [
            label
            for label, (account, _) in self._accounts.items()
            if config.channels.get(label) != account.settings
            or config.speech != self._speech
        ]
        self._speech = config.speech
        await self._stop(changed)
        transcribe = (
            Transcriber(config.speech).transcribe if config.speech.url else None
        )
        for label, settings in config.channels.items():
            if label not in self._accounts:
                account = Account(
                    settings,
                    self._connect,
                    self._journal,
                    self.rows,
                    self._runtime_of,
                    transcribe,
                    config.timing,
                )
                task = asyncio.create_task(account.run(), name=f"channel {label}")
                self._accounts[label] = (account, task)

    def wake(self) -> None:
        """Look for something to deliver, because a person wants a message to be tried again."""
        for account, _ in self._accounts.values():
            account.wake()

    async def close(self) -> None:
        """Stop serving. What is under way continues at the next start."""
        await self._stop(list(self._accounts))

    async def _stop(self, labels: list[str]) -> None:
        tasks = [self._accounts.pop(label)[1] for label in labels]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)
