"""Turns the events of a room into the values of `tenax.channels.base`."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tenax.channels.base import (
    Chat,
    Deleted,
    Edited,
    Person,
    Received,
    RemoteFile,
    Update,
)
from tenax.text import clean_name, make_storable, to_one_line

__all__ = [
    "Event",
    "RoomView",
    "describe_reply",
    "is_addressed",
    "read_file",
    "read_message",
    "words_of",
]

_QUOTED_CHARS_MAX: Final = 500
_FILE_KINDS: Final = {
    "m.image": "image",
    "m.file": "file",
    "m.audio": "audio",
    "m.video": "video",
}
_VOICE: Final = ("org.matrix.msc3245.voice", "m.voice")
_FALLBACK: Final = re.compile(r"(?:> [^\n]*\n)+\n?")
_ID_CHARS_MAX: Final = 255


class Event(msgspec.Struct, frozen=True):
    """An event of a room, as far as Tenax reads it."""

    type: str
    event_id: str
    sender: str
    content: dict[str, Any] = {}
    state_key: str | None = None
    redacts: str | None = None
    unsigned: dict[str, Any] = {}
    origin_server_ts: int = 0

    def text(self, name: str) -> str:
        """Return a text of the content, or "" if it is missing or no text."""
        value = self.content.get(name)
        return value if isinstance(value, str) else ""

    @property
    def relation(self) -> dict[str, Any]:
        value = self.content.get("m.relates_to")
        return value if isinstance(value, dict) else {}

    @property
    def replaces(self) -> str:
        """The id of the event that this event changes, or ""."""
        return self._related("m.replace")

    @property
    def annotates(self) -> str:
        """The id of the event to which this event is a reaction, or ""."""
        return self._related("m.annotation")

    def _related(self, kind: str) -> str:
        if self.relation.get("rel_type") != kind:
            return ""
        found = self.relation.get("event_id")
        return found if isinstance(found, str) else ""

    @property
    def replies_to(self) -> str:
        replied = self.relation.get("m.in_reply_to")
        # In a thread, every event names the last one for old clients.
        if not isinstance(replied, dict) or self.relation.get("is_falling_back"):
            return ""
        found = replied.get("event_id")
        return found if isinstance(found, str) else ""

    @property
    def redacted(self) -> str:
        """The id of the event that this event deletes, or ""."""
        return self.redacts or self.text("redacts")


class RoomView(msgspec.Struct):
    """What is known of a room."""

    id: str
    title: str = ""
    names: dict[str, str] = {}
    """The people in the room: id to name."""
    is_encrypted: bool = False
    checked_at: float = 0.0
    """When the homeserver said that the room is not encrypted."""

    def chat(self, me: str) -> Chat:
        others = [name for person, name in self.names.items() if person != me]
        is_group = len(others) != 1
        title = self.title or ("" if is_group else others[0])
        return Chat(self.id, "", title, is_group=is_group)

    def person(self, user_id: str) -> Person:
        return Person(user_id, self.names.get(user_id) or user_id)


def read_message(
    event: Event, chat: Chat, sender: Person, text: str, *, addressed: bool
) -> Update | None:
    """Return a message of a person. `text` is what the person wrote."""
    file = read_file(event)
    if not text.strip() and file is None:
        return None
    return Received(
        id=f"m:{chat.id}:{event.event_id}",
        chat=chat,
        sender=sender,
        message=event.event_id,
        text=text,
        files=(file,) if file is not None else (),
        is_addressed=addressed or not chat.is_group,
        reply_to=event.replies_to,
    )


def read_edit(event: Event, chat: Chat, sender: Person, text: str) -> Edited:
    return Edited(
        id=f"e:{event.event_id}",
        chat=chat,
        sender=sender,
        message=event.replaces,
        text=text,
    )


def read_deletion(event: Event, chat: Chat) -> Deleted:
    return Deleted(id=f"d:{event.event_id}", chat=chat, message=event.redacted)


def words_of(content: dict[str, Any]) -> str:
    """Return what a person wrote. The body of a file is its name, unless the event has a name of its own."""
    kind, body = content.get("msgtype"), content.get("body")
    if not isinstance(body, str):
        return ""
    if kind in _FILE_KINDS:
        name = content.get("filename")
        return make_storable(body) if isinstance(name, str) and name != body else ""
    if kind == "m.location":
        place = content.get("geo_uri")
        return make_storable(f"[Location: {body} {place or ''}]".strip())
    relation = content.get("m.relates_to")
    if isinstance(relation, dict) and "m.in_reply_to" in relation:
        # Older clients repeat the message to which they reply.
        body = _FALLBACK.sub("", body, count=1) if body.startswith("> <") else body
    if kind == "m.emote":
        body = f"* {body}"
    return make_storable(body).strip()


def read_file(event: Event) -> RemoteFile | None:
    """Return the file of a message. The id is JSON: the address and, of an encrypted file, the key."""
    content = event.content
    kind = _FILE_KINDS.get(event.text("msgtype"))
    if kind is None:
        return None
    source = content.get("file")
    if not isinstance(source, dict):
        source = {"url": content.get("url")}
    if not isinstance(source.get("url"), str):
        return None
    info = content.get("info")
    info = info if isinstance(info, dict) else {}
    size = info.get("size")
    media_type = info.get("mimetype")
    name = event.text("filename") or event.text("body") or kind
    known = {
        key: source[key] for key in ("url", "key", "iv", "hashes") if key in source
    }
    return RemoteFile(
        id=msgspec.json.encode(known).decode(),
        name=clean_name(name),
        size=size if type(size) is int and size > 0 else 0,
        media_type=to_one_line(media_type) if isinstance(media_type, str) else "",
        is_voice=kind == "audio" and any(name in content for name in _VOICE),
    )


def is_addressed(content: dict[str, Any], text: str, me: str, name: str) -> bool:
    """Return whether a message in a group names the bot or begins with a command."""
    if re.match(r"[/!][a-z]+\b", text):
        return True
    mentions = content.get("m.mentions")
    named = mentions.get("user_ids") if isinstance(mentions, dict) else None
    if isinstance(named, list) and me in named:
        return True
    lower = text.casefold()
    if me.casefold() in lower:
        return True
    return (
        bool(name) and re.match(rf"@?{re.escape(name.casefold())}\b", lower) is not None
    )


def strip_mention(text: str, me: str, name: str) -> str:
    """Remove the name of the bot from the start of a message."""
    for called in filter(None, (me, name)):
        found = re.match(rf"@?{re.escape(called)}(?:[:,]\s*|\s+)", text, re.IGNORECASE)
        if found:
            return text[found.end() :]
    return text


def describe_reply(text: str, quoted: str) -> str:
    """Return a text with what it replies to as a quote. A command must stay at the start."""
    if not quoted or text.startswith(("/", "!")):
        return text
    lines = [f"> {line}".rstrip() for line in quoted[:_QUOTED_CHARS_MAX].splitlines()]
    return "\n".join(lines) + "\n\n" + text
