"""The keys of an account, if it has any: without them, encrypted rooms stay closed, and everything else works.

matrix-nio is imported only here and when the account is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenax.channels.matrix.requests import Requests
from tenax.errors import ChannelAway, ChannelRefused

if TYPE_CHECKING:
    from tenax.channels.matrix.encryption import Crypto, Waiting

__all__ = ["KeyRing", "decrypt_file", "encrypt_file"]

log = logging.getLogger(__name__)


class KeyRing:
    """The keys of an account."""

    def __init__(
        self,
        folder: Path | None,
        user: str,
        device: str,
        requests: Requests,
        notice_seconds: float,
    ) -> None:
        self._notice_seconds = notice_seconds
        self._folder = folder
        self._user = user
        self._device = device
        self._requests = requests
        self._crypto: Crypto | None = None
        self._reason = "the account is not served yet"
        """Why there are no keys."""
        self._is_final = False
        self._has_new_keys = True
        """Whether waiting events may be readable now."""
        self._read: list[str] = []
        """The waiting events that are in the present batch."""
        self._closed_rooms: set[str] = set()

    async def open(self) -> None:
        """Load the keys. Without keys, the reason is logged once."""
        if self._crypto is not None or self._is_final or self._folder is None:
            return
        module = await asyncio.to_thread(_import_encryption)
        if module is None:
            self._give_up(
                "Matrix: encrypted rooms stay closed: a package is missing. Install it with: pip install 'tenax[matrix]'"
            )
            return
        try:
            crypto = module.Crypto(
                self._folder, self._user, self._device, self._requests
            )
        except module.STORE_ERRORS as error:
            raise _broken(self._folder, error) from error
        try:
            await crypto.open()
        except ChannelRefused as error:
            # Another host has the keys, or the homeserver knows no keys.
            crypto.close()
            self._give_up(str(error))
        except module.STORE_ERRORS as error:
            crypto.close()
            raise _broken(self._folder, error) from error
        except BaseException:
            crypto.close()
            raise
        else:
            self._crypto = crypto

    def _give_up(self, reason: str) -> None:
        log.warning("%s", reason)
        self._reason, self._is_final = reason, True

    def close(self) -> None:
        if self._crypto is not None:
            self._crypto.close()
            self._crypto = None

    async def take(self, answer: dict[str, Any], since: str) -> None:
        """Take the keys of an answer of `/sync`. The same answer may come again."""
        if self._crypto is None:
            return
        module = import_module("tenax.channels.matrix.encryption")
        try:
            if self._crypto.take_keys(answer, since):
                self._has_new_keys = True
            await self._crypto.take_counts(answer)
        except ChannelRefused as error:
            # The messages of open rooms must not wait for that.
            log.warning("%s", error)
        except module.STORE_ERRORS as error:
            # The keys in memory may be newer than the file now.
            self.close()
            assert self._folder is not None
            raise _broken(self._folder, error) from error

    def decrypt(
        self, room: str, event: dict[str, Any], *, keep: bool = True
    ) -> dict[str, Any] | None:
        """Return a readable event. Without its key the event waits, and the result is `None`."""
        if event.get("type") != "m.room.encrypted" or not event.get("content"):
            return event
        if self._crypto is None:
            if room not in self._closed_rooms:
                self._closed_rooms.add(room)
                log.warning(
                    "Matrix: messages in %s are encrypted, and are not read.", room
                )
            return None
        found = self._crypto.decrypt(room, event)
        if found is None and keep and event.get("sender") != self._user:
            self._crypto.keep(room, event)
        return found

    def readable(self) -> Iterator[tuple[Waiting, dict[str, Any]]]:
        """Yield the waiting events whose key has come."""
        self._read = []
        if self._crypto is None or not self._has_new_keys:
            return
        for waiting in self._crypto.waiting():
            try:
                found = self._crypto.decrypt(waiting.room, waiting.event)
            except ValueError:
                found = {}
            if found is not None:
                self._read.append(waiting.event_id)
            if found:
                yield waiting, found

    def forget(self) -> None:
        """Drop the waiting events of the last batch: they are stored."""
        if self._crypto is not None and self._read:
            self._crypto.forget(self._read)
        self._read = []
        self._has_new_keys = False

    def rooms_to_notice(self) -> dict[str, str]:
        if self._crypto is None:
            return {}
        return self._crypto.rooms_to_notice(self._notice_seconds)

    def note_noticed(self, room: str) -> None:
        if self._crypto is not None:
            self._crypto.note_noticed(room)

    async def encrypt(
        self, room: str, people: Iterable[str], kind: str, content: dict[str, Any]
    ) -> dict[str, Any]:
        """Return an encrypted event. Raises `ChannelRefused` without keys, and `ChannelAway` before they are loaded."""
        if self._crypto is not None:
            return await self._crypto.encrypt(room, people, kind, content)
        if self._is_final or self._folder is None:
            raise ChannelRefused(
                f"Matrix: cannot write into the encrypted room {room}. {self._reason}"
            )
        raise ChannelAway(
            f"Matrix: cannot write into the encrypted room {room}: {self._reason}. Wait."
        )


def _import_encryption() -> Any:  # noqa: ANN401  (a module)
    try:
        return import_module("tenax.channels.matrix.encryption")
    except ImportError:
        return None


def _broken(folder: Path, error: Exception) -> ChannelAway:
    return ChannelAway(
        f"Matrix: the keys in {folder} cannot be used: {error}. Check the disk and the rights of the folder."
    )


def encrypt_file(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return an encrypted file, and what a reader needs."""
    attachments = import_module("nio.crypto.attachments")
    encrypted, secrets = attachments.encrypt_attachment(data)
    return encrypted, secrets


def decrypt_file(data: bytes, source: dict[str, Any]) -> bytes:
    """Return the content of an encrypted file. Raises `ValueError` for a wrong key or a changed file."""
    attachments = import_module("nio.crypto.attachments")
    exceptions = import_module("nio.exceptions")
    try:
        found: bytes = attachments.decrypt_attachment(
            data, source["key"]["k"], source["hashes"]["sha256"], source["iv"]
        )
    except (exceptions.EncryptionError, LookupError, TypeError) as error:
        raise ValueError("The file cannot be decrypted.") from error
    return found
