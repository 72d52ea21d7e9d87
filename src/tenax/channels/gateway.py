"""The chat apps of a server: a task for every account of the settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tenax.assembly import Runtime
from tenax.channels.account import Account
from tenax.channels.base import Channel
from tenax.channels.platforms import connect
from tenax.channels.rows import AsyncChannelRows
from tenax.config import Config
from tenax.config.schema import ChannelSettings, Speech
from tenax.errors import NotAuthorized
from tenax.journal.aio import AsyncJournal
from tenax.journal.journal import Journal
from tenax.models.speech import Transcriber

__all__ = ["Gateway"]

log = logging.getLogger(__name__)

_LOGGED_MAX: Final = 10_000


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
        self._logged: set[tuple[str, str, str]] = set()
        """The refused requests that are in the log already."""
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

    async def take_request(
        self, label: str, headers: Mapping[str, str], body: bytes, client: str
    ) -> bool:
        """Store the message of a request to an account. Return `False` if the sender may not talk.

        `client` is the address of the client, for the log. Raises `NotAuthorized`, `InvalidInput` or `StoreError`. An
        unknown label and a bad signature raise the same error, so the answer does not tell which labels exist.
        """
        account, _ = self._accounts.get(label, (None, None))
        if account is None:
            self._log_refusal("an unknown account", client, "")
            raise _not_authorized()
        try:
            return await account.take_request(headers, body)
        except NotAuthorized as error:
            self._log_refusal(label, client, str(error))
            raise _not_authorized() from error

    def _log_refusal(self, account: str, client: str, reason: str) -> None:
        """Log a refused request, once for every start. `account` is never a text of the client."""
        refusal = (account, client, reason)
        if refusal in self._logged or len(self._logged) >= _LOGGED_MAX:
            return
        self._logged.add(refusal)
        log.warning(
            "A request from %s to %s was refused. %s",
            client,
            account,
            reason,
            extra={"action": "request_refused"},
        )

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


def _not_authorized() -> NotAuthorized:
    return NotAuthorized("The request is not authorized.")
