"""The keys of encrypted rooms, and the events that wait for a key.

matrix-nio has the keys (`nio.crypto.Olm`), in a SQLite file that only the user of Tenax can read. All keys of an answer of
`/sync` are stored in one transaction, and the file remembers which messages between devices it has taken. So the same
answer may come again after a crash.

Messages are encrypted for all devices of the people in a room. Nobody has verified these devices, and matrix-nio has no
cross-signing: a homeserver that lies about the devices of a person can read along.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import peewee  # type: ignore[import-untyped]
from nio.crypto import Olm  # type: ignore[import-untyped]
from nio.events import MegolmEvent  # type: ignore[import-untyped]
from nio.events.to_device import ToDeviceEvent  # type: ignore[import-untyped]
from nio.exceptions import EncryptionError, LocalProtocolError  # type: ignore[import-untyped]
from nio.responses import (  # type: ignore[import-untyped]
    KeysClaimResponse,
    KeysQueryResponse,
    KeysUploadResponse,
    ToDeviceResponse,
)
from nio.store import SqliteStore  # type: ignore[import-untyped]

from tenax.channels.matrix.requests import Requests, path_of
from tenax.errors import ChannelAway, ChannelRefused

__all__ = ["Crypto", "Waiting"]

log = logging.getLogger(__name__)

# At lower levels the library logs every device without a session.
logging.getLogger("nio").setLevel(logging.ERROR)

_PICKLE_KEY: Final = "tenax"
"""Keeps nothing secret: the file is private to the user of Tenax."""
_ALGORITHM: Final = "m.megolm.v1.aes-sha2"
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_WAITING_SECONDS_MAX: Final = 30 * 86_400.0
_WAITING_MAX: Final = 10_000
_NOTICE_AGAIN_SECONDS: Final = 86_400.0
STORE_ERRORS: Final = (peewee.PeeweeException, OSError)
"""The errors of the file with the keys."""
_TAKEN_TABLE: Final = "CREATE TABLE IF NOT EXISTS tenax_taken (digest TEXT PRIMARY KEY, since TEXT NOT NULL)"
_WAITING_TABLE: Final = """
CREATE TABLE IF NOT EXISTS tenax_waiting (
    event_id TEXT PRIMARY KEY, room TEXT NOT NULL, event TEXT NOT NULL, at REAL NOT NULL,
    noticed INTEGER NOT NULL DEFAULT 0
)"""


class Waiting(NamedTuple):
    """An encrypted event whose key has not come."""

    event_id: str
    room: str
    event: dict[str, Any]


class KeysElsewhereError(ChannelRefused):
    """Another host has the keys of the device."""


class Crypto:
    """The keys of a device. `open` loads or creates them."""

    def __init__(
        self, folder: Path, user: str, device: str, requests: Requests
    ) -> None:
        self._user = user
        self._device = device
        self._requests = requests
        self._known_users: set[str] = set()
        """The people whose devices are known since the start of the process."""
        self._room_locks: dict[str, asyncio.Lock] = {}
        folder.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
        folder.chmod(_DIRECTORY_MODE)
        name = f"keys-{sha256(f'{user} {device}'.encode()).hexdigest()[:16]}.db"
        # SQLite gives its other files the mode of this one.
        os.close(os.open(folder / name, os.O_CREAT | os.O_RDWR, _FILE_MODE))
        self._store = SqliteStore(user, device, str(folder), _PICKLE_KEY, name)
        for table in (_TAKEN_TABLE, _WAITING_TABLE):
            self._store.database.execute_sql(table)

    async def open(self) -> None:
        """Load the keys. Raises `KeysElsewhereError` if another host has them."""
        is_new = self._store.load_account() is None
        if is_new and await self._has_keys_on_server():
            raise KeysElsewhereError(
                "Matrix: encrypted rooms stay closed here: another host has the keys of the device "
                f"{self._device}. Serve the account there, or remove the account and connect it again."
            )
        self._machine = Olm(self._user, self._device, self._store)
        if not self._machine.account.shared:
            await self._upload_keys()

    def close(self) -> None:
        self._store.database.close()

    async def _has_keys_on_server(self) -> bool:
        content = {"device_keys": {self._user: [self._device]}}
        found = await self._requests.post(
            path_of("keys", "query"), content, "read the own keys"
        )
        devices = found.get("device_keys", {}).get(self._user, {})
        return self._device in devices

    async def _upload_keys(self) -> None:
        content = self._machine.share_keys()
        # The keys are stored before anybody can use them.
        self._machine.save_account()
        path = path_of("keys", "upload")
        answer = await self._requests.post(path, content, "upload keys")
        response = KeysUploadResponse.from_dict(answer)
        if not isinstance(response, KeysUploadResponse):
            raise ChannelAway("Matrix: cannot upload keys: the answer is unknown.")
        self._machine.handle_response(response)

    # -- keys that come in -------------------------------------------------------------

    def take_keys(self, answer: dict[str, Any], since: str) -> int:
        """Take the keys of an answer of `/sync`. Return how many messages of other devices were new."""
        found = answer.get("to_device", {}).get("events", [])
        count = 0
        with self._transaction() as database:
            for event in found:
                text = msgspec.json.encode(event).decode()
                digest = sha256(text.encode()).hexdigest()
                taken = database.execute_sql(
                    "INSERT OR IGNORE INTO tenax_taken VALUES (?, ?)", (digest, since)
                )
                if taken.rowcount:
                    count += 1
                    self._take_event(event)
            database.execute_sql("DELETE FROM tenax_taken WHERE since != ?", (since,))
        return count

    async def take_counts(self, answer: dict[str, Any]) -> None:
        """Take what an answer of `/sync` says about devices and keys, and do what other devices wait for."""
        changed = answer.get("device_lists", {})
        for name in ("changed", "left"):
            self._known_users.difference_update(changed.get(name, ()))
        counts = answer.get("device_one_time_keys_count")
        if isinstance(counts, dict):
            count = counts.get("signed_curve25519", 0)
            self._machine.uploaded_key_count = count
            if count < self._machine.account.max_one_time_keys // 2:
                await self._upload_keys()
        await self._repair_sessions()

    def _take_event(self, event: dict[str, Any]) -> None:
        try:
            if event["type"] == "m.room.encrypted":
                parsed = ToDeviceEvent.parse_event(event)
                self._machine.handle_to_device_event(parsed)
        except Exception as error:
            # Anybody can send such a message, and the library checks little of it. It must not stop the other ones.
            if isinstance(error, STORE_ERRORS):
                raise
            log.warning("Matrix: a key cannot be read: %s.", type(error).__name__)

    async def _repair_sessions(self) -> None:
        """Begin again with devices whose messages cannot be read any more."""
        machine = self._machine
        try:
            wanted = machine.get_users_for_key_claiming()
        except LocalProtocolError:
            wanted = {}
        if wanted:
            await self._claim(wanted)
            # A device that did not answer well is not asked again and again.
            machine.wedged_devices.clear()
        for message in list(machine.outgoing_to_device_messages):
            content: dict[str, Any] = {"messages": message.as_dict()["messages"]}
            await self._send_to_devices(message.type, content)
            machine.handle_response(ToDeviceResponse(message))

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        database = self._store.database
        with database.atomic():
            yield database

    # -- reading -----------------------------------------------------------------------

    def decrypt(self, room: str, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return a readable event, or `None` without its key. Raises `ValueError` for an event that nobody can read."""
        parsed = MegolmEvent.from_dict({**event, "room_id": room})
        if not isinstance(parsed, MegolmEvent):
            raise ValueError("unknown encryption")  # noqa: TRY004  (of the value, not of a type)
        try:
            found = self._machine.decrypt_megolm_event(parsed, room)
        except EncryptionError:
            return None
        except (AssertionError, AttributeError, LookupError, TypeError) as error:
            raise ValueError("an event with wrong fields") from error
        source = found.source
        if source.get("room_id", room) != room or "type" not in source:
            raise ValueError("an event of another room")
        return {**event, "type": source["type"], "content": source["content"]}

    def keep(self, room: str, event: dict[str, Any]) -> None:
        """Keep an event until its key comes."""
        row = (event["event_id"], room, msgspec.json.encode(event).decode())
        with self._transaction() as database:
            database.execute_sql(
                "INSERT OR IGNORE INTO tenax_waiting VALUES (?, ?, ?, ?, 0)",
                (*row, time.time()),
            )
            database.execute_sql(
                "DELETE FROM tenax_waiting WHERE at < ? OR event_id IN "
                "(SELECT event_id FROM tenax_waiting ORDER BY at DESC LIMIT -1 OFFSET ?)",
                (time.time() - _WAITING_SECONDS_MAX, _WAITING_MAX),
            )

    def waiting(self) -> list[Waiting]:
        """Return the events that wait, the oldest first."""
        rows = self._store.database.execute_sql(
            "SELECT event_id, room, event FROM tenax_waiting ORDER BY at, rowid"
        ).fetchall()
        return [
            Waiting(event_id, room, msgspec.json.decode(event))
            for event_id, room, event in rows
        ]

    def forget(self, event_ids: Iterable[str]) -> None:
        """Drop events that are stored now."""
        with self._transaction() as database:
            for event_id in event_ids:
                database.execute_sql(
                    "DELETE FROM tenax_waiting WHERE event_id = ?", (event_id,)
                )

    def rooms_to_notice(self, seconds: float) -> dict[str, str]:
        """Return the rooms where events have waited for some time: room to the first such event.

        A room is left out for a day after its last notice, as long as events of that time wait.
        """
        now = time.time()
        rows = self._store.database.execute_sql(
            "SELECT room, event_id FROM tenax_waiting WHERE noticed = 0 AND at < ? AND room NOT IN "
            "(SELECT room FROM tenax_waiting WHERE noticed = 1 AND at > ?) ORDER BY at DESC",
            (now - seconds, now - _NOTICE_AGAIN_SECONDS),
        ).fetchall()
        return dict(rows)

    def note_noticed(self, room: str) -> None:
        self._store.database.execute_sql(
            "UPDATE tenax_waiting SET noticed = 1 WHERE room = ?", (room,)
        )

    # -- writing -----------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(self, room: str) -> AsyncGenerator[None]:
        async with self._room_locks.setdefault(room, asyncio.Lock()):
            yield

    async def encrypt(
        self, room: str, people: Iterable[str], kind: str, content: dict[str, Any]
    ) -> dict[str, Any]:
        """Return an event for all devices of the people in a room. They have the key when this returns."""
        users = sorted(people)
        async with self._locked(room):
            await self._learn_devices(users)
            await self._share_key(room, users)
            payload = {"type": kind, "content": content}
            encrypted: dict[str, Any] = self._machine.group_encrypt(room, payload)
        if "m.relates_to" in content:
            # The homeserver has to know which event an edit belongs to.
            encrypted["m.relates_to"] = content["m.relates_to"]
        return encrypted

    async def _learn_devices(self, users: list[str]) -> None:
        unknown = [user for user in users if user not in self._known_users]
        if unknown:
            content: dict[str, Any] = {"device_keys": {user: [] for user in unknown}}
            path = path_of("keys", "query")
            answer = await self._requests.post(path, content, "read the devices")
            response = KeysQueryResponse.from_dict(answer)
            if not isinstance(response, KeysQueryResponse):
                raise ChannelAway(
                    "Matrix: cannot read the devices: the answer is unknown."
                )
            with self._transaction():
                self._machine.handle_response(response)
            self._known_users.update(unknown)
        missing = self._machine.get_missing_sessions(users)
        if missing:
            await self._claim(missing)

    async def _claim(self, wanted: dict[str, list[str]]) -> None:
        """Begin to talk with devices."""
        keys = {
            user: dict.fromkeys(devices, "signed_curve25519")
            for user, devices in wanted.items()
        }
        answer = await self._requests.post(
            path_of("keys", "claim"), {"one_time_keys": keys}, "begin with a device"
        )
        response = KeysClaimResponse.from_dict(answer)
        if not isinstance(response, KeysClaimResponse):
            raise ChannelAway(
                "Matrix: cannot begin with a device: the answer is unknown."
            )
        with self._transaction():
            for user, devices in response.one_time_keys.items():
                for device, key in devices.items():
                    self._begin_session(user, device, key)

    def _begin_session(self, user: str, device: str, key: dict[str, Any]) -> None:
        """Begin to talk with a device. A device with broken keys gets no keys of rooms, and stops no other device."""
        try:
            response = KeysClaimResponse({user: {device: key}}, {})
            self._machine.handle_response(response)
        except Exception as error:
            if isinstance(error, STORE_ERRORS):
                raise
            log.warning(
                "Matrix: the keys of the device %.40s of %.100s are broken: %s.",
                device,
                user,
                type(error).__name__,
            )

    async def _share_key(self, room: str, users: list[str]) -> None:
        """Give the key of the room to all devices. Another set of devices gets another key."""
        machine = self._machine
        own = (self._user, self._device)
        wanted = {
            (user, device.id)
            for user in users
            for device in machine.device_store.active_user_devices(user)
        }
        session = machine.outbound_group_sessions.get(room)
        if session is not None:
            reached = session.users_shared_with | session.users_ignored
            if session.expired or reached - {own} != wanted - {own}:
                session = None
        if session is not None and session.shared:
            return
        machine.outbound_group_sessions.pop(room, None)
        while True:
            with self._transaction():
                sharing_with, content = machine.share_group_session(
                    room,
                    users,
                    ignore_missing_sessions=True,
                    ignore_unverified_devices=True,
                )
            session = machine.outbound_group_sessions[room]
            if not content["messages"]:
                break
            await self._send_to_devices("m.room.encrypted", content)
            session.users_shared_with.update(sharing_with)
        session.mark_as_shared()

    async def _send_to_devices(self, kind: str, content: dict[str, Any]) -> None:
        path = path_of("sendToDevice", kind, uuid.uuid4().hex)
        await self._requests.put(path, content, "send keys", sends=False)
