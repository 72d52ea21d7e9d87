"""A Matrix program of a person: matrix-nio on a real homeserver, with the keys of encrypted rooms."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from nio import (  # type: ignore[import-untyped]
    AsyncClient,
    AsyncClientConfig,
    MegolmEvent,
    ReactionEvent,
    RoomMessage,
    RoomSendResponse,
    UnknownEvent,
)
from nio.crypto import decrypt_attachment  # type: ignore[import-untyped]

from tests.support.synapse import Account

__all__ = ["Program", "Seen"]

SECONDS: Final = 60.0


class Seen(NamedTuple):
    """A message as the program shows it now."""

    id: str
    sender: str
    text: str
    was_encrypted: bool
    content: dict[str, Any]


class Program:
    """The program of a person. `async with` starts and stops it."""

    def __init__(self, account: Account, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.account = account
        self.unreadable: list[str] = []
        self._events: dict[str, dict[str, dict[str, Any]]] = {}
        self._encrypted: set[str] = set()
        self._client = AsyncClient(
            account.synapse.url,
            account.user,
            device_id=account.device,
            store_path=str(folder),
            config=AsyncClientConfig(encryption_enabled=True, store_sync_tokens=False),
        )
        self._client.restore_login(account.user, account.device, account.token)
        kinds = (RoomMessage, MegolmEvent, ReactionEvent, UnknownEvent)
        self._client.add_event_callback(self._note, kinds)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._client.sync(timeout=0, full_state=True)
        await self._client.keys_upload()
        self._task = asyncio.create_task(self._client.sync_forever(timeout=1000))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._client.close()

    async def _note(self, room: Any, event: Any) -> None:
        if isinstance(event, MegolmEvent):
            self.unreadable.append(event.event_id)
            return
        if event.decrypted:
            self._encrypted.add(event.event_id)
        self._events.setdefault(room.room_id, {})[event.event_id] = event.source

    async def create_room(
        self, *others: str, encrypted: bool = False, is_direct: bool = True
    ) -> str:
        """Create a room and invite others. Return the id of the room."""
        state = []
        if encrypted:
            content = {"algorithm": "m.megolm.v1.aes-sha2"}
            state.append(
                {"type": "m.room.encryption", "state_key": "", "content": content}
            )
        answer = await self._client.room_create(
            is_direct=is_direct, invite=list(others), initial_state=state
        )
        return str(answer.room_id)

    async def say(
        self,
        room: str,
        text: str = "",
        *,
        content: dict[str, Any] | None = None,
        kind: str = "m.room.message",
    ) -> str:
        """Write to a room, encrypted if the room is. Return the id of the event."""
        body = content or {"msgtype": "m.text", "body": text}
        await self.until(lambda: room in self._client.rooms)
        answer = await self._client.room_send(
            room, kind, body, ignore_unverified_devices=True
        )
        assert isinstance(answer, RoomSendResponse), answer
        return str(answer.event_id)

    async def send_file(
        self, room: str, name: str, data: bytes, *, encrypted: bool
    ) -> str:
        """Send a file, encrypted if the room is."""
        answer, secrets = await self._client.upload(
            lambda *_: io.BytesIO(data),
            "text/plain",
            name,
            encrypt=encrypted,
            filesize=len(data),
        )
        content: dict[str, Any] = {"msgtype": "m.file", "body": name, "filename": name}
        if encrypted:
            content["file"] = {**secrets, "url": answer.content_uri}
        else:
            content["url"] = answer.content_uri
        return await self.say(room, content=content)

    async def fetch(self, content: dict[str, Any]) -> bytes:
        """Return the content of a file."""
        source = content.get("file", content)
        found = await self._client.download(source["url"])
        data: bytes = found.body
        if "key" in source:
            hashes = source["hashes"]["sha256"]
            data = decrypt_attachment(data, source["key"]["k"], hashes, source["iv"])
        return data

    async def joined(self, room: str, user: str) -> None:
        """Wait until somebody is in the room, as this program knows it."""
        await self.until(
            lambda: (
                room in self._client.rooms
                and user in self._client.rooms[room].users
                and user not in self._client.rooms[room].invited_users
            )
        )

    async def until(
        self, predicate: Callable[[], Any], seconds: float = SECONDS
    ) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := predicate()):  # noqa: ASYNC110
                # The library tells nobody that it has changed its rooms.
                await asyncio.sleep(0.02)
        return found

    def messages(self, room: str) -> list[Seen]:
        """Return the messages of a room, with their edits."""
        events = self._events.get(room, {}).values()
        edits = {}
        shown = []
        for event in events:
            content = event["content"]
            relation = content.get("m.relates_to", {})
            if event["type"] != "m.room.message":
                continue
            if relation.get("rel_type") == "m.replace":
                edits[relation["event_id"]] = content["m.new_content"]
            else:
                shown.append(event)
        return [
            Seen(
                event["event_id"],
                event["sender"],
                edits.get(event["event_id"], event["content"])["body"],
                event["event_id"] in self._encrypted,
                edits.get(event["event_id"], event["content"]),
            )
            for event in shown
        ]

    def texts(self, room: str, sender: str) -> list[str]:
        return [found.text for found in self.messages(room) if found.sender == sender]

    def reactions(self, room: str, message: str) -> list[str]:
        """Return the reactions to a message."""
        return [
            event["content"]["m.relates_to"]["key"]
            for event in self._events.get(room, {}).values()
            if event["type"] == "m.reaction"
            and event["content"]["m.relates_to"]["event_id"] == message
        ]
