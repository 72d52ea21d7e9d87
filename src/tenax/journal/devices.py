"""Devices: rows of the store beside the journal. A device is a browser, signed in with a link.

A device has two secrets: a cookie and a key. The browser sends the cookie to every port of the host. Only the page of
the same port can read the key. The store keeps the SHA-256 of the cookie, and the SHA-256 of the key together with the
port of the server. On a new port the device has to sign in again, because another program may now use the old port and
read the key. Revoking a device deletes the row.

Only a list reads the rows of several devices: a damaged row must not keep other devices from signing in or out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from tenax.errors import NoSuchConversation

if TYPE_CHECKING:
    from tenax.journal.journal import Journal
    from tenax.journal.store import Tx

__all__ = ["DEVICES_MAX", "NAME_CHARS_MAX", "Device", "Devices", "SignedIn"]

DEVICES_MAX: Final = 100
"""The largest number of devices of a user. A new device replaces the device with the oldest `seen_at`."""
NAME_CHARS_MAX: Final = 100
_DAY_US: Final = 24 * 3600 * 1_000_000


class Device(msgspec.Struct, frozen=True):
    """A signed-in browser."""

    id: str
    user: str
    name: str
    made_at: int
    """Microseconds since 1970, like `seen_at`. `seen_at` is exact to the hour."""
    seen_at: int
    key_hash: str = ""

    def has_key(self, key: str, port: int) -> bool:
        """Return whether `key` is the key of the device at the port. Return `False` for a device from a list."""
        return bool(self.key_hash) and hmac.compare_digest(
            _hashed(f"{port}.{key}"), self.key_hash
        )


class SignedIn(msgspec.Struct, frozen=True):
    """A new device with its secrets. The secrets cannot be read again."""

    device: Device
    cookie: str
    key: str


class Devices:
    """The devices of a store, at most `days` old. Safe to use from any thread."""

    def __init__(self, journal: Journal, *, days: float) -> None:
        self._store = journal.store
        self._clock = journal.clock
        self.days = days

    def add(self, user: str, name: str, port: int) -> SignedIn:
        """Sign a browser in with a server on the given port. Expired and surplus devices lose their rows."""
        id, secret, key = (  # noqa: A001
            secrets.token_hex(6),
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
        )
        now = self._clock.now_us()
        name = name[:NAME_CHARS_MAX]
        device = Device(id, user, name, now, now, _hashed(f"{port}.{key}"))
        row = {"id": id, "owner": user, "name": name, "at": now,
               "cookie_hash": _hashed(secret), "key_hash": device.key_hash}  # fmt: skip

        def store_device(tx: Tx) -> None:
            tx.run("drop_old_devices", {"since": self._since()})
            tx.run("drop_more_devices", {"owner": user, "kept": DEVICES_MAX - 1})
            tx.run("put_device", row)

        self._store.change(store_device, even_incomplete=True)
        return SignedIn(device, f"{id}.{secret}", key)

    def find(self, cookie: str) -> Device | None:
        """Return the device with the given cookie, unless revoked or expired."""
        id, _, secret = cookie.partition(".")  # noqa: A001
        if not id or not cookie.isascii() or not cookie.isprintable():
            return None
        rows = self._store.query("device", id=id)
        if not rows:
            return None
        id, owner, name, made_at, seen_at, cookie_hash, key_hash = rows[0]  # noqa: A001
        device = Device(id, owner, name, made_at, seen_at, key_hash)
        if device.made_at <= self._since() or not hmac.compare_digest(
            _hashed(secret), cookie_hash
        ):
            return None
        return device

    def all(self, user: str | None = None) -> list[Device]:
        """Return the devices of a user, or of all users, the last seen first."""
        rows = self._store.query("devices", owner=user, since=self._since())
        return [Device(*row) for row in rows]

    def signed_in(self, ids: Iterable[str]) -> set[str]:
        """Return the ids of the devices neither revoked nor expired."""
        since = self._since()
        return self._store.read(
            lambda tx: {
                id
                for id in ids  # noqa: A001
                if tx.run("is_device", {"id": id, "since": since})
            }
        )

    def note_seen(self, id: str) -> None:  # noqa: A002  (the field's name)
        """Record that the device has just sent a request."""
        where = {"id": id, "at": self._clock.now_us()}
        self._store.change(
            lambda tx: tx.run("device_seen", where), even_incomplete=True
        )

    def revoke(self, id: str, user: str | None = None) -> None:  # noqa: A002
        """Sign out a device of the user, or of any user (`None`), even an expired one. Raises `NoSuchConversation`."""
        where = {"id": id, "owner": user}
        if not self._store.change(
            lambda tx: tx.run("revoke_device", where), even_incomplete=True
        ):
            raise NoSuchConversation(
                f"There is no device {id:.60}.",
                hint="look at the list: tenax link --list",
            )

    def revoke_all(self, user: str | None) -> int:
        """Sign out the devices of the user, or of all users (`None`), even expired devices. Return their number."""
        return len(
            self._store.change(
                lambda tx: tx.run("revoke_devices", {"owner": user}),
                even_incomplete=True,
            )
        )

    def now_us(self) -> int:
        """Return the time of the clock for devices, in microseconds since 1970."""
        return self._clock.now_us()

    def expires_at(self, device: Device) -> int:
        """Return the time when the device needs a new link, in microseconds since 1970."""
        return device.made_at + int(self.days * _DAY_US)

    def _since(self) -> int:
        return self._clock.now_us() - int(self.days * _DAY_US)


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
