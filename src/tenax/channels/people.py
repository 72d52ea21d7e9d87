"""Who may talk: nobody by default. The platform's stable id is the identity, never a name."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from typing import Final

from tenax.channels.base import Chat, Person
from tenax.channels.rows import AsyncChannelRows
from tenax.journal import LOCAL_USER

__all__ = ["People", "user_name"]

log = logging.getLogger(__name__)

_LOGGED_MAX: Final = 10_000


class People:
    """The people who may talk to an account."""

    def __init__(
        self,
        account: str,
        rows: AsyncChannelRows,
        allowed: Collection[str] = (),
    ) -> None:
        self._account = account
        self._rows = rows
        self._allowed = frozenset(allowed)
        self._logged: set[str] = set()

    async def user_of(self, person: Person) -> str | None:
        """Return the user of a person, or `None` for a stranger.

        A person of the allow list becomes a user with the first message.
        """
        if person.is_owner and not self._allowed:
            return LOCAL_USER
        user = await self._rows.person(self._account, person.id)
        if user is None and person.id in self._allowed:
            user = user_name(self._account, person.id)
            await self._rows.add_person(self._account, person.id, user, person.name)
        return user

    async def offer_pairing(self, person: Person, chat: Chat) -> str | None:
        """Return a code for a stranger in a private chat, once a day. With an allow list strangers get no code."""
        self.log_once(person)
        if self._allowed or chat.is_group:
            return None
        return await self._rows.offer_pairing(
            self._account, person.id, person.name, chat.id
        )

    def log_once(self, person: Person) -> None:
        """Log a stranger, once for every start."""
        if person.id in self._logged or len(self._logged) >= _LOGGED_MAX:
            return
        self._logged.add(person.id)
        log.warning(
            "%s: a message of %.60s, who may not talk here, was left out.",
            self._account,
            person.id,
            extra={"action": "stranger"},
        )


def user_name(account: str, person: str) -> str:
    """Return the name of the user for a person other than the owner."""
    platform = account.partition(":")[0]
    if person.isascii() and person.isalnum():
        return f"{platform}-{person}"
    return f"{platform}-{hashlib.sha256(person.encode()).hexdigest()[:16]}"
