"""A fake of Telegram's Bot API that keeps the rules of the real server.

    with FakeTelegram() as telegram:
        telegram.say("hello")
        # A bot: Bot(telegram.token, base_url=telegram.url + "/bot", base_file_url=telegram.url + "/file/bot")
        telegram.wait_for(lambda: telegram.messages()[-1].from_bot)

The server runs in a daemon thread with its own event loop, so asyncio tests and tests that kill processes use the same
class. Every public method can be called from any thread.

The rules and the error messages come from the source of tdlib/telegram-bot-api (7 May 2026, Bot API 10.0) and of TDLib.
The fake differs from the real server in these points:

- Text is limited in UTF-16 units. TDLib counts code points, which is never stricter.
- A second poll gets its 409 at once. The real server delays the second 409 within 3 seconds.
- The real server lengthens a short poll that repeats an offset within 3 seconds, and returns only 1 update if the offset
  is repeated within 0.5 seconds. The fake does neither.
- `parse_mode` is refused: send entities. Overlapping entities are stored as they are.
- A group shows every message to the bot, as if privacy mode were off.
- Updates do not expire after 24 hours.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import math
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from tests.support.served import kept_port

__all__ = [
    "ADA",
    "BOB",
    "Attachment",
    "Button",
    "Call",
    "FakeTelegram",
    "Fault",
    "Message",
    "Person",
    "entity",
    "utf16_length",
]

T = TypeVar("T")
Json = dict[str, Any]
When = Literal["before", "after"]

SECONDS: Final = 30.0
"""The default time limit of a wait."""
TEXT_UNITS: Final = 4096
CAPTION_UNITS: Final = 1024
TEXT_BYTES: Final = 1 << 15
CALLBACK_BYTES: Final = 64
DOWNLOAD_BYTES: Final = 20 << 20
UPLOAD_BYTES: Final = 50 << 20
PHOTO_BYTES: Final = 10 << 20
UPDATES_MAX: Final = 100
POLL_SECONDS_MAX: Final = 50
OFFSETS_AHEAD_MAX: Final = 10
"""The server ignores an offset that lies further ahead of the queue."""
FIRST_UPDATE: Final = 500_000_001
FIRST_SUPERGROUP: Final = -1_001_000_000_001

_RECHECK_SECONDS: Final = 0.1
"""A predicate may depend on more than the fake, so a wait evaluates it again after this time."""
_CALLS_SHOWN: Final = 20
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_SPENDING: Final = frozenset(
    {
        "sendMessage",
        "sendDocument",
        "sendPhoto",
        "editMessageText",
        "editMessageReplyMarkup",
    }
)
"""The methods under the rate limits: messages and edits."""
_OPT_IN: Final = frozenset(
    {"chat_member", "message_reaction", "message_reaction_count"}
)
"""The kinds of updates that a bot gets only if it asks for them."""
_ENTITY_TYPES: Final = frozenset(
    {
        "bold", "italic", "underline", "strikethrough", "spoiler", "code", "pre", "text_link", "text_mention",
        "custom_emoji", "blockquote", "expandable_blockquote", "date_time",
    }
)  # fmt: skip
_FOUND_TYPES: Final = frozenset(
    {
        "mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number", "bank_card_number",
        "media_timestamp",
    }
)  # fmt: skip
"""The server finds these entities itself and ignores them in a request."""
_ACTIONS: Final = frozenset(
    {
        "typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice", "upload_document",
        "choose_sticker", "find_location", "record_video_note", "upload_video_note",
    }
)  # fmt: skip
_JSON_FIELDS: Final = frozenset(
    {
        "allowed_updates",
        "caption_entities",
        "commands",
        "entities",
        "link_preview_options",
        "reaction",
        "reply_markup",
        "reply_parameters",
        "scope",
    }
)
_FOUND = re.compile(
    r"(?P<url>https?://\S+)"
    r"|(?P<bot_command>(?<!\S)/[A-Za-z0-9_]{1,32}(?:@[A-Za-z0-9_]{3,32})?)"
    r"|(?P<mention>(?<![\w@/])@[A-Za-z0-9_]{3,32})"
)
_REMOVED: Final = frozenset(
    "\r\u030a\u0333\u033f\u2028\u2029\u202a\u202b\u202c\u202d\u202e"
)
"""TDLib removes these characters from every text."""
_IMAGES: Final = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")
_PHOTO_WIDTHS: Final = (90, 320, 800)
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")


# -- values ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Person:
    """A user of Telegram. A private chat has the id of its person."""

    id: int
    first_name: str
    username: str = ""
    is_bot: bool = False
    language_code: str = "en"

    def json(self) -> Json:
        found: Json = {
            "id": self.id,
            "is_bot": self.is_bot,
            "first_name": self.first_name,
        }
        if self.username:
            found["username"] = self.username
        if not self.is_bot:
            found["language_code"] = self.language_code
        return found


ADA: Final = Person(7001, "Ada", "ada_lovelace")
"""The sender and the private chat wherever a test names none."""
BOB: Final = Person(7002, "Bob", "bob_noyce")


@dataclass(frozen=True)
class Attachment:
    """A file that a person sends."""

    kind: Literal["document", "photo", "voice"]
    name: str
    data: bytes
    mime_type: str
    size: int
    duration_seconds: int = 0

    @classmethod
    def document(
        cls,
        name: str,
        data: bytes,
        mime_type: str = "application/octet-stream",
        *,
        size: int | None = None,
    ) -> Attachment:
        """Create a document. `size` claims another size than that of the data."""
        return cls(
            "document", name, data, mime_type, len(data) if size is None else size
        )

    @classmethod
    def photo(cls, data: bytes) -> Attachment:
        """Create a photo. Only its largest size has the data."""
        return cls("photo", "photo.jpg", data, "image/jpeg", len(data))

    @classmethod
    def voice(cls, data: bytes, *, seconds: int = 3) -> Attachment:
        return cls("voice", "voice.oga", data, "audio/ogg", len(data), seconds)


@dataclass(frozen=True)
class Button:
    text: str
    data: str = ""
    url: str = ""


@dataclass(frozen=True)
class Message:
    """A message as the chat shows it."""

    id: int
    chat: int
    sender: Person
    from_bot: bool
    """Whether the bot of the fake wrote the message."""
    text: str
    """The text or the caption."""
    entities: tuple[Json, ...]
    buttons: tuple[tuple[Button, ...], ...]
    texts: tuple[str, ...]
    """Every text that the message has had, the present text last."""
    edits: int
    deleted: bool
    thread: int | None
    reply_to: int | None
    file_name: str
    file_bytes: bytes
    reactions: tuple[str, ...]


@dataclass
class Upload:
    """A file in a request."""

    name: str
    data: bytes


@dataclass
class Call:
    """A request of the bot."""

    number: int
    """The place among all requests, from 1."""
    method: str
    """The name of a method, or `download` for a file."""
    parameters: Json
    uploads: dict[str, Upload]
    at: float
    """The arrival, by the clock of the fake."""
    outcome: str = "under way"
    """`ok`, or the status and the description of the refusal, or the fault."""
    accepted: int = 0
    """The place among the accepted requests, from 1. 0 if the server has not acted."""
    accepted_at: float = 0.0
    message_id: int | None = None
    """The message that the request created or changed."""

    @property
    def chat(self) -> int | None:
        value = self.parameters.get("chat_id")
        return value if isinstance(value, int) else None

    @property
    def text(self) -> str:
        return str(self.parameters.get("text", self.parameters.get("caption", "")))

    def integer(self, name: str, default: int = 0) -> int:
        try:
            return int(self.parameters.get(name, default))
        except (TypeError, ValueError):
            return default

    def describe(self) -> str:
        chat = f" chat={self.chat}" if self.chat is not None else ""
        text = f" {self.text[:60]!r}" if self.text else ""
        offset = self.parameters.get("offset")
        shown_offset = f" offset={offset}" if offset is not None else ""
        return f"{self.number} {self.method}{chat}{shown_offset}{text}: {self.outcome}"


def utf16_length(text: str) -> int:
    """Return the length of a text as Telegram counts it."""
    return len(text.encode("utf-16-le")) // 2


def entity(kind: str, text: str, part: str, **more: object) -> Json:
    """Return an entity for the first occurrence of `part` in `text`, with UTF-16 offsets."""
    before, found, _ = text.partition(part)
    if not found:
        raise ValueError(f"{text!r} does not contain {part!r}")
    return {
        "type": kind,
        "offset": utf16_length(before),
        "length": utf16_length(part),
        **more,
    }


# -- the rules for texts and buttons ---------------------------------------------------


class _Refused(Exception):
    """A request that the Bot API refuses."""

    def __init__(self, status: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = parameters


def _bad(reason: str) -> _Refused:
    return _Refused(400, f"Bad Request: {reason}")


def _flooded(seconds: int) -> _Refused:
    return _Refused(
        429, f"Too Many Requests: retry after {seconds}", retry_after=seconds
    )


def _find_entities(text: str) -> list[Json]:
    """Return the entities that the server finds in the text of a person."""
    found = []
    for match in _FOUND.finditer(text):
        assert match.lastgroup is not None
        found.append(
            {
                "type": match.lastgroup,
                "offset": utf16_length(text[: match.start()]),
                "length": utf16_length(match.group()),
            }
        )
    return found


def _check_link(url: str) -> None:
    """Refuse a link that TDLib cannot parse. A host without a dot is such a link: `localhost`, a relative path."""
    if url.lower().startswith(("tg:", "ton:", "tonsite:")):
        return
    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() not in {"http", "https"}:
        raise ValueError("Unsupported URL protocol")
    host = re.split(r"[/?#:]", rest if separator else url, maxsplit=1)[0]
    if "." not in host.strip("."):
        raise ValueError("Wrong HTTP URL")


def _check_entity(raw: object) -> Json | None:
    """Return the entity of a request, or nothing if the server ignores its type."""
    if not isinstance(raw, dict):
        raise _bad("can't parse MessageEntity: expected an Object")
    for name in ("offset", "length", "type"):
        if name not in raw:
            raise _bad(f"can't parse MessageEntity: Can't find field \"{name}\"")
    if raw["type"] in _FOUND_TYPES:
        return None
    if raw["type"] not in _ENTITY_TYPES:
        raise _bad("can't parse MessageEntity: Unsupported type specified")
    if raw["offset"] < 0:
        raise _bad(f"receive an entity with incorrect offset {raw['offset']}")
    if raw["length"] < 0:
        raise _bad(f"receive an entity with incorrect length {raw['length']}")
    if raw["type"] == "text_link":
        url = str(raw.get("url", ""))
        try:
            _check_link(url)
        except ValueError as error:
            raise _bad(f"entity URL '{url}' is invalid: {error}") from None
    return dict(raw)


@dataclass
class _Positions:
    """Maps the UTF-16 offsets of a text in a request to those of the stored text."""

    new: dict[int, int]
    byte: dict[int, int]
    end: int

    def start_of(self, raw: Json) -> int:
        offset = raw["offset"]
        if offset > self.end:
            raise _bad(
                f"entity begins after the end of the text at UTF-16 offset {offset}"
            )
        if offset not in self.new:
            raise _bad(
                f"entity begins in a middle of a UTF-16 symbol at byte offset {self.byte[offset + 1]}"
            )
        return self.new[offset]

    def end_of(self, raw: Json) -> int:
        offset = raw["offset"]
        end = offset + raw["length"]
        if end > self.end:
            raise _bad(
                f"entity beginning at UTF-16 offset {offset} ends after the end of the text at UTF-16 offset {end}"
            )
        if end not in self.new:
            raise _bad(
                f"entity beginning at UTF-16 offset {offset} ends in a middle of a UTF-16 symbol at byte offset "
                f"{self.byte[end + 1]}"
            )
        return self.new[end]


def _clean(text: str) -> tuple[str, _Positions]:
    """Remove and replace characters as TDLib does. A tab becomes a space."""
    kept = []
    positions = _Positions({}, {}, 0)
    new = byte = 0
    for character in text:
        positions.new[positions.end] = new
        positions.byte[positions.end] = byte
        width = utf16_length(character)
        positions.end += width
        byte += len(character.encode())
        if character in _REMOVED:
            continue
        is_control = character < " " and character != "\n"
        kept.append(" " if is_control else character)
        new += width
    positions.new[positions.end] = new
    positions.byte[positions.end] = byte
    return "".join(kept), positions


def _stored_text(
    text: str, raw_entities: object, *, may_be_empty: bool = False
) -> tuple[str, list[Json]]:
    """Return the text and the entities as the server stores them: cleaned and trimmed.

    Refuses an entity outside of the text, and an empty text unless `may_be_empty`.
    """
    if len(text.encode()) > TEXT_BYTES:
        raise _bad("text is too long")
    entities = []
    for raw in raw_entities if isinstance(raw_entities, list) else []:
        checked = _check_entity(raw)
        if checked is not None and checked["length"] > 0:
            entities.append(checked)
    entities.sort(key=lambda found: (found["offset"], -found["length"]))
    cleaned, positions = _clean(text)
    trimmed = cleaned.rstrip(" \n")
    if not trimmed and not may_be_empty:
        raise _bad("text must be non-empty")
    units = trimmed.encode("utf-16-le")
    stored = []
    for found in entities:
        start, end = positions.start_of(found), positions.end_of(found)
        end = min(end, len(units) // 2)
        # An entity does not begin with white space.
        while start < end and units[2 * start : 2 * start + 2] in {b" \0", b"\n\0"}:
            start += 1
        if start < end:
            stored.append({**found, "offset": start, "length": end - start})
    # White space before the first entity is trimmed.
    first = min((found["offset"] for found in stored), default=len(units) // 2)
    leading = min(len(trimmed) - len(trimmed.lstrip(" \n")), first)
    for found in stored:
        found["offset"] -= leading
    return trimmed[leading:], stored


def _check_buttons(markup: object) -> list[list[Json]]:
    """Return the inline buttons of a reply markup."""
    if markup is None:
        return []
    if not isinstance(markup, dict):
        raise _bad("object expected as reply markup")
    rows = []
    for raw_row in markup.get("inline_keyboard", []):
        row = []
        for button in raw_row:
            _check_button(button)
            row.append(dict(button))
        if row:
            rows.append(row)
    return rows


def _check_button(button: Json) -> None:
    if "text" not in button:
        raise _bad(
            "can't parse inline keyboard button: Can't find field \"text\"",
        )
    actions = button.keys() - {"text", "style", "icon_custom_emoji_id"}
    if not any(button[name] for name in actions):
        raise _bad(
            "can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"
        )
    if len(str(button.get("callback_data", "")).encode()) > CALLBACK_BYTES:
        raise _bad("BUTTON_DATA_INVALID")
    url = str(button.get("url", ""))
    if url:
        try:
            _check_link(url)
        except ValueError as error:
            raise _bad(
                f"inline keyboard button URL '{url}' is invalid: {error}"
            ) from None


# -- the updates -----------------------------------------------------------------------


class _Updates:
    """The queue of `getUpdates`."""

    def __init__(self) -> None:
        self.pending: list[Json] = []
        self.history: dict[int, Json] = {}
        self.next_id = FIRST_UPDATE
        self.last_id = 0
        self.confirmed = 0
        self.allowed: list[str] = []
        self.copies = 1
        self.is_reversed = False
        self._repeated: list[Json] = []

    def push(
        self,
        kind: str,
        content: object,
        update_id: int | None = None,
        *,
        always: bool = False,
    ) -> int | None:
        """Queue an update, and return its id. Return nothing if the bot does not want updates of the kind."""
        wanted = kind in self.allowed if self.allowed else kind not in _OPT_IN
        if not wanted and not always:
            return None
        chosen = self.next_id if update_id is None else update_id
        # The update keeps the state of the message at this moment.
        update = json.loads(json.dumps({"update_id": chosen, kind: content}))
        self.pending.append(update)
        self.pending.sort(key=_update_id)
        self.history[chosen] = update
        self.next_id = chosen + 1
        self.last_id = chosen
        return chosen

    def repeat(self, update_id: int) -> None:
        """Deliver an update once more with the next answer, even if it was confirmed."""
        self._repeated.append(self.history[update_id])

    def take(self, offset: int, limit: int) -> list[Json]:
        """Confirm every update below the offset, and return the next updates."""
        if offset < 0:
            self.pending = self.pending[offset:]
            head = self.pending[0]["update_id"] if self.pending else self.next_id
            self.confirmed = max(self.confirmed, head)
        elif 0 < offset <= self.next_id + OFFSETS_AHEAD_MAX:
            self.pending = [
                update for update in self.pending if update["update_id"] >= offset
            ]
            self.confirmed = max(self.confirmed, offset)
        answer = self._repeated + self.pending[:limit]
        self._repeated = []
        if self.is_reversed:
            answer.reverse()
        return [update for update in answer for _ in range(self.copies)]

    def is_waiting(self) -> bool:
        return bool(self.pending or self._repeated)


def _update_id(update: Json) -> int:
    number: int = update["update_id"]
    return number


# -- chats and messages ----------------------------------------------------------------


@dataclass
class _File:
    id: str
    path: str
    name: str
    mime_type: str
    data: bytes
    size: int

    def json(self) -> Json:
        return {
            "file_id": self.id,
            "file_unique_id": f"u-{self.id}",
            "file_size": self.size,
        }


@dataclass
class _Chat:
    id: int
    kind: Literal["private", "group", "supergroup"]
    title: str = ""
    person: Person | None = None
    is_forum: bool = False
    bot_is_admin: bool = False
    is_blocked: bool = False
    last_message: int = 0
    topics: set[int] = field(default_factory=set)
    members: dict[int, str] = field(default_factory=dict)
    messages: dict[int, _Post] = field(default_factory=dict)
    spent: list[float] = field(default_factory=list)
    """When messages and edits used up a part of the rate limit."""

    def json(self) -> Json:
        found: Json = {"id": self.id, "type": self.kind}
        if self.person is not None:
            found["first_name"] = self.person.first_name
            if self.person.username:
                found["username"] = self.person.username
            return found
        found["title"] = self.title
        if self.is_forum:
            found["is_forum"] = True
        return found

    def find(self, message_id: int, what: str) -> _Post:
        """Return a message that is not deleted. The error says what the message is for: `message to edit`."""
        post = self.messages.get(message_id)
        if post is None or post.deleted:
            raise _bad(f"{what} not found")
        return post


@dataclass
class _Post:
    """A message with everything that the server knows about it."""

    id: int
    chat: _Chat
    sender: Person
    date: int
    text: str = ""
    entities: list[Json] = field(default_factory=list)
    buttons: list[list[Json]] = field(default_factory=list)
    thread: int | None = None
    reply_to: int | None = None
    more: Json = field(default_factory=dict)
    """Further fields: a document, an album, a service message."""
    file: _File | None = None
    edits: int = 0
    edit_date: int = 0
    deleted: bool = False
    texts: list[str] = field(default_factory=list)
    reactions: list[str] = field(default_factory=list)

    def json(self, *, with_reply: bool = True) -> Json:
        found: Json = {
            "message_id": self.id,
            "from": self.sender.json(),
            "chat": self.chat.json(),
            "date": self.date,
        }
        if self.edit_date:
            found["edit_date"] = self.edit_date
        if self.thread is not None:
            found["message_thread_id"] = self.thread
            if self.thread in self.chat.topics:
                found["is_topic_message"] = True
        replied = self.chat.messages.get(self._replied()) if with_reply else None
        if replied is not None and not replied.deleted:
            found["reply_to_message"] = replied.json(with_reply=False)
        found.update(self.more)
        is_caption = self.file is not None
        if self.text:
            found["caption" if is_caption else "text"] = self.text
        if self.entities:
            found["caption_entities" if is_caption else "entities"] = self.entities
        if self.buttons:
            found["reply_markup"] = {"inline_keyboard": self.buttons}
        return found

    def _replied(self) -> int:
        """Return the message that this one answers, or 0.

        A message in a topic of a forum answers the service message that created the topic, unless it answers another one.
        """
        if self.reply_to is not None:
            return self.reply_to
        is_in_topic = self.thread in self.chat.topics and self.chat.kind != "private"
        if is_in_topic and self.thread is not None and self.thread < self.id:
            return self.thread
        return 0

    def set_text(self, text: str, entities: list[Json]) -> None:
        self.text, self.entities = text, entities
        self.texts.append(text)

    def count_edit(self) -> None:
        self.edits += 1
        self.edit_date = int(time.time())

    def shown(self, bot: Person) -> Message:
        rows = []
        for row in self.buttons:
            buttons = [
                Button(
                    button["text"],
                    button.get("callback_data", ""),
                    button.get("url", ""),
                )
                for button in row
            ]
            rows.append(tuple(buttons))
        return Message(
            id=self.id,
            chat=self.chat.id,
            sender=self.sender,
            from_bot=self.sender == bot,
            text=self.text,
            entities=tuple(dict(found) for found in self.entities),
            buttons=tuple(rows),
            texts=tuple(self.texts),
            edits=self.edits,
            deleted=self.deleted,
            thread=self.thread,
            reply_to=self.reply_to,
            file_name=self.file.name if self.file else "",
            file_bytes=self.file.data if self.file else b"",
            reactions=tuple(self.reactions),
        )


@dataclass(frozen=True)
class _Rates:
    """The rate limits. A burst may be used up at once and fills again at the given rate."""

    private_burst: int
    private_window_seconds: float
    group_burst: int
    group_window_seconds: float


class _World:
    """The chats, the files and the methods of the Bot API. Knows nothing about the network; the caller holds the lock."""

    def __init__(self, bot: Person, clock: Callable[[], float]) -> None:
        self.bot = bot
        self.clock = clock
        self.updates = _Updates()
        self.chats: dict[int, _Chat] = {}
        self.people: dict[int, Person] = {bot.id: bot}
        self.commands: list[Json] = []
        self.rates: _Rates | None = None
        self.taps: set[str] = set()
        """The ids of the taps that the bot can still answer."""
        self._files: dict[str, _File] = {}
        self._paths: dict[str, _File] = {}
        self._last_private_message = 0
        self._last_file = 0
        self._last_tap = 0
        self._last_album = 0
        self.methods: dict[str, Callable[[Call], Any]] = {
            "answerCallbackQuery": self._answer_callback_query,
            "deleteMessage": self._delete_message,
            "deleteWebhook": lambda _: True,
            "download": self._download,
            "editMessageReplyMarkup": self._edit_message_reply_markup,
            "editMessageText": self._edit_message_text,
            "getChat": self._get_chat,
            "getChatMember": self._get_chat_member,
            "getFile": self._get_file,
            "getMe": self._get_me,
            "getMyCommands": lambda _: self.commands,
            "getWebhookInfo": self._get_webhook_info,
            "sendChatAction": self._send_chat_action,
            "sendDocument": self._send_document,
            "sendMessage": self._send_message,
            "sendPhoto": self._send_photo,
            "setMessageReaction": self._set_message_reaction,
            "setMyCommands": self._set_my_commands,
        }

    # -- people ------------------------------------------------------------------------

    def open_private(self, person: Person) -> _Chat:
        self.people[person.id] = person
        if person.id not in self.chats:
            self.chats[person.id] = _Chat(person.id, "private", person=person)
        return self.chats[person.id]

    def post(
        self,
        chat: _Chat,
        sender: Person,
        text: str = "",
        entities: list[Json] | None = None,
        *,
        thread: int | None = None,
        reply_to: int | None = None,
        buttons: list[list[Json]] | None = None,
        file: _File | None = None,
        more: Json | None = None,
    ) -> _Post:
        """Add a message to a chat."""
        if chat.kind == "supergroup":
            chat.last_message += 1
            message_id = chat.last_message
        else:
            # Private chats and basic groups share the message ids of the account.
            self._last_private_message += 1
            message_id = self._last_private_message
        if thread is None and reply_to is not None and chat.kind == "supergroup":
            # An answer belongs to the thread of the message that it answers, also outside of a forum.
            replied = chat.messages[reply_to]
            is_plain = not chat.is_forum
            thread = replied.thread or (replied.id if is_plain else None)
        post = _Post(
            message_id,
            chat,
            sender,
            int(time.time()),
            thread=thread,
            reply_to=reply_to,
            buttons=buttons or [],
            file=file,
            more=more or {},
        )
        post.set_text(text, entities or [])
        chat.messages[message_id] = post
        return post

    def attach(self, attachment: Attachment) -> tuple[_File, Json]:
        """Store the file of a person. Return the file and the fields of the message."""
        file = self._store(
            attachment.kind, attachment.name, attachment.data, attachment.mime_type
        )
        file.size = attachment.size
        if attachment.kind == "photo":
            return file, {"photo": self._photo_sizes(file)}
        details = {**file.json(), "mime_type": file.mime_type}
        if attachment.kind == "document":
            details["file_name"] = file.name
        else:
            details["duration"] = attachment.duration_seconds
        return file, {attachment.kind: details}

    def next_album(self) -> str:
        self._last_album += 1
        return f"album-{self._last_album}"

    def tap(self, chat: _Chat, message_id: int, data: str, sender: Person) -> str:
        """Queue the update for a tap on a button. The message may be deleted."""
        self._last_tap += 1
        tap_id = f"tap-{self._last_tap}"
        post = chat.messages[message_id]
        inaccessible = {"message_id": message_id, "chat": chat.json(), "date": 0}
        self.taps.add(tap_id)
        self.updates.push(
            "callback_query",
            {
                "id": tap_id,
                "from": sender.json(),
                "message": inaccessible if post.deleted else post.json(),
                "chat_instance": f"instance-{chat.id}",
                "data": data,
            },
        )
        return tap_id

    def _store(self, kind: str, name: str, data: bytes, mime_type: str) -> _File:
        self._last_file += 1
        suffix = name.rpartition(".")[2] if "." in name else "bin"
        folder = {"document": "documents", "photo": "photos", "voice": "voice"}[kind]
        file = _File(
            f"file-{self._last_file}",
            f"{folder}/file_{self._last_file}.{suffix}",
            name,
            mime_type,
            data,
            len(data),
        )
        self._files[file.id] = file
        return file

    def _photo_sizes(self, file: _File) -> list[Json]:
        """Return several sizes of a photo, the smallest first. Only the largest size has the data of the file."""
        sizes = []
        for width in _PHOTO_WIDTHS:
            small = self._store(
                "photo", file.name, f"{width} pixels wide".encode(), file.mime_type
            )
            sizes.append({**small.json(), "width": width, "height": width})
        sizes.append({**file.json(), "width": 1280, "height": 1280})
        return sizes

    # -- what a request refers to ------------------------------------------------------

    def chat_of(self, call: Call, *, to_write: bool = True) -> _Chat:
        """Return the chat of a request."""
        chat_id = call.parameters.get("chat_id", "")
        if chat_id == "":
            raise _bad("chat_id is empty")
        chat = self.chats.get(chat_id)
        if chat is None:
            raise _bad("chat not found")
        if chat.is_blocked and chat.kind != "private":
            kind = "supergroup chat" if chat.kind == "supergroup" else "group chat"
            raise _Refused(403, f"Forbidden: bot was kicked from the {kind}")
        if chat.is_blocked and to_write:
            raise _Refused(403, "Forbidden: bot was blocked by the user")
        return chat

    def _place_of(self, call: Call, chat: _Chat) -> tuple[int | None, int | None]:
        """Return the thread of a new message and the message that it answers."""
        thread = call.integer("message_thread_id") or None
        if thread is not None and (chat.is_forum or chat.kind == "private"):
            if thread not in chat.topics:
                raise _bad("message thread not found")
        else:
            # Outside of a forum the server ignores the thread.
            thread = None
        raw = call.parameters.get("reply_parameters") or {}
        reply_to = int(raw.get("message_id", call.integer("reply_to_message_id")))
        if reply_to == 0:
            return thread, None
        post = chat.messages.get(reply_to)
        if post is not None and not post.deleted:
            return thread, reply_to
        if raw.get("allow_sending_without_reply"):
            return thread, None
        raise _bad("message to be replied not found")

    def _spend(self, chat: _Chat) -> None:
        """Use up a part of the rate limit of the chat."""
        if self.rates is None:
            return
        now = self.clock()
        burst, window = (
            (self.rates.private_burst, self.rates.private_window_seconds)
            if chat.kind == "private"
            else (self.rates.group_burst, self.rates.group_window_seconds)
        )
        chat.spent = [at for at in chat.spent if at > now - window]
        if len(chat.spent) >= burst:
            raise _flooded(max(1, math.ceil(chat.spent[0] + window - now)))
        chat.spent.append(now)

    # -- messages ----------------------------------------------------------------------

    def _send_message(self, call: Call) -> Json:
        _refuse_parse_mode(call)
        if not call.text:
            raise _bad("message text is empty")
        buttons = _check_buttons(call.parameters.get("reply_markup"))
        chat = self.chat_of(call)
        thread, reply_to = self._place_of(call, chat)
        text, entities = _stored_text(call.text, call.parameters.get("entities"))
        if utf16_length(text) > TEXT_UNITS:
            raise _bad("message is too long")
        self._spend(chat)
        post = self.post(
            chat,
            self.bot,
            text,
            entities,
            thread=thread,
            reply_to=reply_to,
            buttons=buttons,
        )
        call.message_id = post.id
        return post.json()

    def _send_document(self, call: Call) -> Json:
        return self._send_file(call, "document")

    def _send_photo(self, call: Call) -> Json:
        return self._send_file(call, "photo")

    def _send_file(self, call: Call, kind: Literal["document", "photo"]) -> Json:
        _refuse_parse_mode(call)
        file = self._file_of(call, kind)
        buttons = _check_buttons(call.parameters.get("reply_markup"))
        chat = self.chat_of(call)
        thread, reply_to = self._place_of(call, chat)
        text, entities = _stored_text(
            call.text, call.parameters.get("caption_entities"), may_be_empty=True
        )
        if utf16_length(text) > CAPTION_UNITS:
            raise _bad("message caption is too long")
        self._spend(chat)
        if kind == "photo":
            more: Json = {"photo": self._photo_sizes(file)}
        else:
            details = {"file_name": file.name, "mime_type": file.mime_type}
            more = {"document": {**file.json(), **details}}
        post = self.post(
            chat,
            self.bot,
            text,
            entities,
            thread=thread,
            reply_to=reply_to,
            buttons=buttons,
            file=file,
            more=more,
        )
        call.message_id = post.id
        return post.json()

    def _file_of(self, call: Call, kind: Literal["document", "photo"]) -> _File:
        """Return the file that a request uploads, or names by its id."""
        value = str(call.parameters.get(kind, ""))
        upload = call.uploads.get(value.removeprefix("attach://") or kind)
        if upload is None and value in self._files:
            return self._files[value]
        if upload is None:
            raise _bad(
                "wrong remote file identifier specified: Wrong string length"
                if value
                else f"there is no {kind} in the request"
            )
        if not upload.data:
            raise _bad("file must be non-empty")
        if len(upload.data) > UPLOAD_BYTES:
            raise _Refused(413, "Request Entity Too Large")
        if kind == "photo":
            if len(upload.data) > PHOTO_BYTES:
                raise _bad(
                    f'file "{upload.name}" of size {len(upload.data)} bytes is too big for a photo'
                )
            if not upload.data.startswith(_IMAGES):
                raise _bad("IMAGE_PROCESS_FAILED")
        return self._store(kind, upload.name, upload.data, "application/octet-stream")

    def _edit_message_text(self, call: Call) -> Json:
        _refuse_parse_mode(call)
        if not call.text:
            raise _bad("message text is empty")
        # An edit without buttons removes the buttons.
        buttons = _check_buttons(call.parameters.get("reply_markup"))
        post = self._own_post(call)
        text, entities = _stored_text(call.text, call.parameters.get("entities"))
        if post.file is not None:
            raise _bad("there is no text in the message to edit")
        if utf16_length(text) > TEXT_UNITS:
            raise _bad("MESSAGE_TOO_LONG")
        self._spend(post.chat)
        if (text, entities, buttons) == (post.text, post.entities, post.buttons):
            raise _bad(_NOT_MODIFIED)
        post.set_text(text, entities)
        post.buttons = buttons
        post.count_edit()
        return post.json()

    def _edit_message_reply_markup(self, call: Call) -> Json:
        buttons = _check_buttons(call.parameters.get("reply_markup"))
        post = self._own_post(call)
        self._spend(post.chat)
        if buttons == post.buttons:
            raise _bad(_NOT_MODIFIED)
        post.buttons = buttons
        post.count_edit()
        return post.json()

    def _own_post(self, call: Call) -> _Post:
        """Return the message of the bot that a request edits."""
        chat = self.chat_of(call)
        post = chat.find(call.integer("message_id"), "message to edit")
        if post.sender != self.bot:
            raise _bad("message can't be edited")
        call.message_id = post.id
        return post

    def _delete_message(self, call: Call) -> bool:
        chat = self.chat_of(call)
        post = chat.find(call.integer("message_id"), "message to delete")
        is_allowed = chat.kind == "private" or chat.bot_is_admin
        if post.sender != self.bot and not is_allowed:
            raise _bad("message can't be deleted")
        post.deleted = True
        call.message_id = post.id
        return True

    def _set_message_reaction(self, call: Call) -> bool:
        from telegram.constants import ReactionEmoji

        chat = self.chat_of(call, to_write=False)
        post = chat.find(call.integer("message_id"), "message to react")
        emojis = [
            str(reaction.get("emoji", reaction.get("custom_emoji_id", "")))
            for reaction in call.parameters.get("reaction") or []
        ]
        if not set(emojis) <= {str(emoji.value) for emoji in ReactionEmoji}:
            raise _bad("REACTION_INVALID")
        post.reactions = emojis
        call.message_id = post.id
        return True

    def _send_chat_action(self, call: Call) -> bool:
        if call.parameters.get("action") not in _ACTIONS:
            raise _bad("wrong parameter action in request")
        self.chat_of(call)
        return True

    def _answer_callback_query(self, call: Call) -> bool:
        tap_id = str(call.parameters.get("callback_query_id", ""))
        if tap_id not in self.taps:
            raise _bad(
                "query is too old and response timeout expired or query ID is invalid"
            )
        self.taps.remove(tap_id)
        return True

    # -- the rest ----------------------------------------------------------------------

    def _get_file(self, call: Call) -> Json:
        file_id = str(call.parameters.get("file_id", ""))
        if not file_id:
            raise _bad("file_id not specified")
        file = self._files.get(file_id)
        if file is None:
            raise _bad("invalid file_id")
        if file.size > DOWNLOAD_BYTES:
            raise _bad("file is too big")
        self._paths[file.path] = file
        return {**file.json(), "file_path": file.path}

    def _download(self, call: Call) -> bytes:
        file = self._paths.get(str(call.parameters["path"]))
        if file is None:
            raise _Refused(404, "Not Found")
        return file.data

    def _get_me(self, _: Call) -> Json:
        return {
            **self.bot.json(),
            "can_join_groups": True,
            "can_read_all_group_messages": True,
            "supports_inline_queries": False,
            "can_connect_to_business": False,
            "has_main_web_app": False,
            "has_topics_enabled": False,
        }

    def _get_webhook_info(self, _: Call) -> Json:
        found: Json = {
            "url": "",
            "has_custom_certificate": False,
            "pending_update_count": len(self.updates.pending),
        }
        if self.updates.allowed:
            found["allowed_updates"] = self.updates.allowed
        return found

    def _get_chat(self, call: Call) -> Json:
        chat = self.chat_of(call, to_write=False)
        gifts = {
            "unlimited_gifts": True,
            "limited_gifts": True,
            "unique_gifts": True,
            "premium_subscription": True,
            "gifts_from_channels": True,
        }
        return {
            **chat.json(),
            "accent_color_id": 0,
            "max_reaction_count": 11,
            "accepted_gift_types": gifts,
        }

    def _get_chat_member(self, call: Call) -> Json:
        chat = self.chat_of(call, to_write=False)
        person = self.people.get(call.integer("user_id"))
        if person is None:
            raise _bad("user not found")
        if chat.kind == "private":
            is_member = person.id in {chat.id, self.bot.id}
            status = "member" if is_member else "left"
        else:
            status = chat.members.get(person.id, "left")
        found: Json = {"user": person.json(), "status": status}
        if status == "creator":
            found["is_anonymous"] = False
        if status == "administrator":
            found.update(_ADMINISTRATOR_RIGHTS)
        return found

    def _set_my_commands(self, call: Call) -> bool:
        commands = call.parameters.get("commands") or []
        for command in commands:
            if not _COMMAND.fullmatch(str(command.get("command", ""))):
                raise _bad("BOT_COMMAND_INVALID")
            if not 1 <= len(str(command.get("description", ""))) <= 256:
                raise _bad("BOT_COMMAND_DESCRIPTION_INVALID")
        if len(commands) > 100:
            raise _bad("BOT_COMMANDS_TOO_MUCH")
        self.commands = commands
        return True


_NOT_MODIFIED: Final = (
    "message is not modified: specified new message content and reply markup are exactly the same as a current content "
    "and reply markup of the message"
)
_ADMINISTRATOR_RIGHTS: Final = dict.fromkeys(
    (
        "can_be_edited", "is_anonymous", "can_manage_chat", "can_delete_messages", "can_manage_video_chats",
        "can_restrict_members", "can_promote_members", "can_change_info", "can_invite_users", "can_post_stories",
        "can_edit_stories", "can_delete_stories",
    ),
    False,
)  # fmt: skip


def _refuse_parse_mode(call: Call) -> None:
    if call.parameters.get("parse_mode"):
        raise _bad("the fake does not parse texts: send entities")


# -- HTTP ------------------------------------------------------------------------------


@dataclass
class _Request:
    path: str
    query: str
    content_type: str
    body: bytes


@dataclass
class _Response:
    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: int = 0


class _Cut(Exception):
    """Ends a request by cutting its connection."""


class _Connection(asyncio.Protocol):
    """A connection of the bot. Requests are answered one after the other."""

    def __init__(self, telegram: FakeTelegram) -> None:
        self._telegram = telegram
        self._http = h11.Connection(h11.SERVER)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._telegram.add_connection(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # The request that is under way goes on: the server has received it.
        self.is_closed = True
        self._telegram.discard_connection(self)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._advance()

    def cut(self) -> None:
        """Close the connection without an answer."""
        if self._transport is None or self._transport.is_closing():
            return
        found = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            # A forked child of the test may have a copy of the descriptor.
            found.shutdown(socket.SHUT_RDWR)
        self._transport.abort()

    def _advance(self) -> None:
        while not self.is_closed:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                self.cut()
                return
            if event in (h11.NEED_DATA, h11.PAUSED):
                return
            if isinstance(event, h11.Request):
                self._head = event
                self._body.clear()
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self.task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        assert self._head is not None
        target = urlsplit(self._head.target.decode())
        headers = dict(self._head.headers)
        request = _Request(
            unquote(target.path),
            target.query,
            headers.get(b"content-type", b"").decode(),
            bytes(self._body),
        )
        try:
            response = await self._telegram.serve(request, self)
        except _Cut:
            self.cut()
            return
        if self.is_closed or self._transport is None:
            return
        sent_headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
        ]
        if response.retry_after:
            sent_headers.append(("retry-after", str(response.retry_after)))
        sent = b""
        for event in (
            h11.Response(status_code=response.status, headers=sent_headers),
            h11.Data(data=response.body),
            h11.EndOfMessage(),
        ):
            sent += self._http.send(event) or b""
        # A second write would wait 40 ms for the client to confirm the first one.
        self._transport.write(sent)
        if self._http.our_state is h11.MUST_CLOSE:
            self._transport.close()
        else:
            self._http.start_next_cycle()
            self._advance()


def _read_parameters(request: _Request) -> tuple[Json, dict[str, Upload]]:
    """Return the parameters and the files of a request in any of the four formats that the Bot API takes."""
    found: Json = dict(parse_qsl(request.query, keep_blank_values=True))
    uploads: dict[str, Upload] = {}
    kind = request.content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        found.update(json.loads(request.body or b"{}"))
    elif kind == "application/x-www-form-urlencoded":
        found.update(parse_qsl(request.body.decode(), keep_blank_values=True))
    elif kind == "multipart/form-data":
        for name, file_name, data in _read_multipart(request):
            if file_name is None:
                found[name] = data.decode()
            else:
                uploads[name] = Upload(file_name, data)
    for name, value in found.items():
        if name in _JSON_FIELDS and isinstance(value, str):
            found[name] = json.loads(value) if value else None
    chat = found.get("chat_id")
    if isinstance(chat, str) and re.fullmatch(r"-?\d+", chat):
        found["chat_id"] = int(chat)
    return found, uploads


def _read_multipart(request: _Request) -> Iterator[tuple[str, str | None, bytes]]:
    """Yield the name, the file name and the content of each part."""
    match = re.search(r'boundary="?([^";]+)', request.content_type)
    if match is None:
        raise _bad("the multipart request has no boundary")
    # The first boundary has no line before it.
    body = b"\r\n" + request.body
    for part in body.split(b"\r\n--" + match.group(1).encode())[1:-1]:
        head, _, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        text = head.decode()
        name = re.search(r'[ ;]name="([^"]*)"', text)
        file_name = re.search(r'filename="([^"]*)"', text)
        if name is not None:
            shown = file_name.group(1).replace("%22", '"') if file_name else None
            yield name.group(1), shown, data


# -- faults ----------------------------------------------------------------------------


class Fault:
    """Changes what happens to requests. `count` is the number of requests that met the fault."""

    def __init__(
        self,
        action: Literal["answer", "call", "cut", "hold", "wait"],
        method: str,
        when: When,
        times: int | None,
        *,
        chat: int | None = None,
        response: _Response | None = None,
        callback: Callable[[Call], object] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.action = action
        self.method = method
        self.when = when
        self.times = times
        """The number of requests that will still meet the fault. None: all of them."""
        self.response = response
        self.callback = callback
        self.seconds = seconds
        self.count = 0
        self.reached = threading.Event()
        """Set when a request meets the fault."""
        self.is_released = False
        self.on_release: Callable[[], None] = lambda: None
        self._chat = chat

    def release(self) -> None:
        """Remove the fault. Requests that it holds go on."""
        self.is_released = True
        self.on_release()

    def matches(self, call: Call) -> bool:
        if self.times == 0 or self.is_released:
            return False
        if self._chat is not None:
            return call.chat == self._chat and call.method in _SPENDING
        return self.method in {"", call.method}


_REASONS: Final = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    413: "Request Entity Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


def _refusal(refused: _Refused) -> _Response:
    body: Json = {
        "ok": False,
        "error_code": refused.status,
        "description": refused.description,
    }
    if refused.parameters:
        body["parameters"] = refused.parameters
    return _Response(
        refused.status,
        json.dumps(body).encode(),
        retry_after=refused.parameters.get("retry_after", 0),
    )


def _failure(status: int, description: str, retry_after: int) -> _Response:
    """Return an error response. From 502 on it is the HTML page of the proxy before the server."""
    reason = _REASONS.get(status, "Error")
    if status >= 502 and not description:
        page = f"<html><body><h1>{status} {reason}</h1></body></html>\r\n"
        return _Response(status, page.encode(), "text/html")
    parameters = {"retry_after": retry_after} if retry_after else {}
    return _refusal(_Refused(status, description or reason, **parameters))


# -- the fake --------------------------------------------------------------------------


@dataclass(eq=False)
class _Poll:
    """A `getUpdates` that waits."""

    is_replaced: bool = False


class FakeTelegram:
    """A Bot API server on 127.0.0.1 for one bot. See the description of the module.

    `clock` gives the time for rate limits and for the times in `Call`.
    """

    bot_id = 123456
    username: Final = "tenax_test_bot"
    token = f"{bot_id}:test-token-{'A' * 24}"

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.log: list[Call] = []
        """Every request, in the order of arrival."""
        self.sent: list[Call] = []
        """Every accepted request that is not a question (`get...`, a download), in the order of acceptance."""
        self.conflicts = 0
        """The number of polls that another poll terminated."""
        self._clock = clock
        self._world = _World(
            Person(self.bot_id, "Tenax", self.username, is_bot=True), clock
        )
        self._methods = {name.lower(): name for name in self._world.methods}
        self._methods["getupdates"] = "getUpdates"
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._version = 0
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._accepted = 0
        self._faults: list[Fault] = []
        self._poll: _Poll | None = None
        self._errors: list[BaseException] = []
        self._connections: set[_Connection] = set()
        self._resets = False
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._thread = threading.Thread(
            target=self._run, name="fake-telegram", daemon=True
        )
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A bound socket keeps the port while the server is away.
        self._place = kept_port()
        self._port: int = self._place.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.result(SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        assert self._stopped is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(SECONDS)
        self._place.close()
        # An error of a callback in the server's thread fails the test.
        if self._errors and error is None:
            raise self._errors[0]

    # -- what people do ----------------------------------------------------------------

    def add_person(self, person: Person = ADA) -> int:
        """Let a person start a private chat without a word. Return the id of the chat."""
        with self._changing():
            return self._world.open_private(person).id

    def add_group(
        self,
        title: str = "Group",
        *,
        forum: bool = False,
        kind: Literal["group", "supergroup"] = "supergroup",
        owner: Person = ADA,
        bot_is_admin: bool = False,
    ) -> int:
        """Add a group with the bot in it. Return the id of the chat."""
        with self._changing():
            groups = sum(chat < 0 for chat in self._world.chats)
            first = FIRST_SUPERGROUP if kind == "supergroup" else -1
            chat = _Chat(
                first - groups,
                kind,
                title=title,
                is_forum=forum,
                bot_is_admin=bot_is_admin,
            )
            self._world.people[owner.id] = owner
            chat.members[owner.id] = "creator"
            role = "administrator" if bot_is_admin else "member"
            chat.members[self.bot_id] = role
            self._world.chats[chat.id] = chat
            return chat.id

    def add_topic(
        self, chat: int | None = None, name: str = "Topic", *, creator: Person = ADA
    ) -> int:
        """Create a topic, in a forum or a private chat. Return its thread id. The bot gets a service message."""
        with self._changing():
            found = self._known_chat(chat)
            created = {"name": name, "icon_color": 7322096}
            post = self._world.post(
                found, creator, more={"forum_topic_created": created}
            )
            post.thread = post.id
            found.topics.add(post.id)
            self._world.updates.push("message", post.json())
            return post.id

    def say(
        self,
        text: str = "",
        *,
        chat: int | None = None,
        sender: Person = ADA,
        thread: int | None = None,
        reply_to: int | None = None,
        entities: Sequence[Json] | None = None,
        files: Sequence[Attachment] = (),
        update_id: int | None = None,
    ) -> int:
        """Send a message as a person. Return its id.

        Without a chat, the message goes to the private chat of the sender. Without entities, the server finds commands,
        mentions and links. Several files become an album: one message and one update each, the text on the first.
        """
        with self._changing():
            world = self._world
            private = world.open_private(sender) if chat in {None, sender.id} else None
            found = private or self._known_chat(chat)
            world.people[sender.id] = sender
            found.members.setdefault(sender.id, "member")
            if reply_to is not None:
                found.find(reply_to, "message to be replied")
            marks = _find_entities(text) if entities is None else list(entities)
            album = {"media_group_id": world.next_album()} if len(files) > 1 else {}
            posts = []
            contents: list[tuple[_File | None, Json]] = [(None, {})]
            if files:
                contents = [world.attach(attachment) for attachment in files]
            for place, (file, more) in enumerate(contents):
                post = world.post(
                    found,
                    sender,
                    text if place == 0 else "",
                    marks if place == 0 else [],
                    thread=thread,
                    reply_to=reply_to,
                    file=file,
                    more={**more, **album},
                )
                chosen = None if update_id is None else update_id + place
                world.updates.push("message", post.json(), chosen)
                posts.append(post)
            return posts[0].id

    def edit(
        self,
        message_id: int,
        text: str,
        *,
        chat: int | None = None,
        entities: Sequence[Json] | None = None,
    ) -> None:
        """Edit the text or the caption of a person's message."""
        with self._changing():
            post = self._known_chat(chat).find(message_id, "message to edit")
            marks = _find_entities(text) if entities is None else list(entities)
            post.set_text(text, marks)
            post.count_edit()
            self._world.updates.push("edited_message", post.json())

    def delete(self, message_id: int, *, chat: int | None = None) -> None:
        """Delete any message as a person. Telegram does not tell the bot."""
        with self._changing():
            post = self._known_chat(chat).find(message_id, "message to delete")
            post.deleted = True

    def tap(
        self,
        message_id: int,
        label: str = "",
        *,
        data: str | None = None,
        chat: int | None = None,
        sender: Person = ADA,
    ) -> str:
        """Tap on a button of the bot's message. Return the id of the callback query.

        The label must be on the message. `data` is sent as it is: a late tap on a button that is gone, or a forged one.
        """
        with self._changing():
            found = self._known_chat(chat)
            if data is None:
                post = found.find(message_id, "message to tap on")
                buttons = [button for row in post.buttons for button in row]
                by_label = {button["text"]: button for button in buttons}
                if label not in by_label:
                    raise LookupError(
                        f"Message {message_id} has no button {label!r}, only {list(by_label)}."
                    )
                data = str(by_label[label]["callback_data"])
            self._world.people[sender.id] = sender
            return self._world.tap(found, message_id, data, sender)

    def expire_taps(self) -> None:
        """Make every tap too old to be answered."""
        with self._changing():
            self._world.taps.clear()

    def block(self, chat: int | None = None) -> None:
        """Block the bot in a private chat, or remove it from a group."""
        with self._changing():
            self._known_chat(chat).is_blocked = True

    def unblock(self, chat: int | None = None) -> None:
        with self._changing():
            self._known_chat(chat).is_blocked = False

    def push(self, kind: str, content: object, update_id: int | None = None) -> int:
        """Queue any update, of a known or an unknown kind. Return its id."""
        with self._changing():
            pushed = self._world.updates.push(kind, content, update_id, always=True)
            assert pushed is not None
            return pushed

    def garbage(self) -> int:
        """Queue an update of a kind that no library knows. Return its id."""
        return self.push("moon_phase", {"phase": "full", "of": [1, None, {}]})

    def repeat(self, update_id: int | None = None) -> None:
        """Deliver an update once more, the last one by default, even if the bot has confirmed it."""
        with self._changing():
            updates = self._world.updates
            updates.repeat(updates.last_id if update_id is None else update_id)

    # -- faults ------------------------------------------------------------------------

    def away(self, *, reset: bool = False) -> None:
        """Cut every connection, and refuse new ones. With `reset`, accept new ones and cut them at once."""
        self._in_loop(self._go_away, reset)

    def back(self) -> None:
        """Accept connections again, on the same port."""
        self._in_loop(self._listen)

    def fail(
        self,
        method: str = "",
        status: int = 500,
        times: int | None = 1,
        *,
        description: str = "",
        retry_after: int = 0,
    ) -> Fault:
        """Answer with an error, and do not act."""
        response = _failure(status, description, retry_after)
        return self._add_fault(
            Fault("answer", method, "before", times, response=response)
        )

    def flood(self, chat: int, seconds: int, times: int | None = 1) -> Fault:
        """Answer messages and edits in the chat with 429."""
        return self._add_fault(
            Fault(
                "answer",
                "",
                "before",
                times,
                chat=chat,
                response=_refusal(_flooded(seconds)),
            )
        )

    def garbage_reply(self, method: str = "", times: int | None = 1) -> Fault:
        """Act, and answer with invalid JSON."""
        response = _Response(200, b'{"ok": true, "result": [')
        return self._add_fault(
            Fault("answer", method, "after", times, response=response)
        )

    def drop_before(self, method: str = "", times: int | None = 1) -> Fault:
        """Cut the connection when a request has arrived. The server does not act."""
        return self._add_fault(Fault("cut", method, "before", times))

    def drop_after(self, method: str = "", times: int | None = 1) -> Fault:
        """Cut the connection when the server has acted, before the answer."""
        return self._add_fault(Fault("cut", method, "after", times))

    def hang(self, method: str = "") -> Fault:
        """Hold every request until `release`, then act. The client may have given up by then."""
        return self.hold(method, times=None)

    def hold(
        self, method: str = "", when: When = "before", times: int | None = 1
    ) -> Fault:
        """Hold a request before the server acts, or before it answers, until `release`."""
        return self._add_fault(Fault("hold", method, when, times))

    def slow(self, method: str, seconds: float, times: int | None = None) -> Fault:
        """Wait before acting."""
        return self._add_fault(Fault("wait", method, "before", times, seconds=seconds))

    def on(
        self,
        method: str,
        callback: Callable[[Call], object],
        when: When = "before",
        times: int | None = 1,
    ) -> Fault:
        """Run a callback in the server's thread before the server acts, or before it answers.

        The request has arrived, so the server acts even if the callback kills the client. For the other case, add
        `drop_before` after `on`. A callback that kills a process also waits for its end: only then the process
        certainly gets no answer.
        """
        return self._add_fault(Fault("call", method, when, times, callback=callback))

    def repeat_updates(self, times: int = 5) -> None:
        """Put each update so many times into an answer. 1 ends the fault."""
        with self._changing():
            self._world.updates.copies = times

    def reverse_updates(self, *, enabled: bool = True) -> None:
        """Put the updates of an answer in reverse order."""
        with self._changing():
            self._world.updates.is_reversed = enabled

    def limit_rates(
        self,
        *,
        per_second: float = 1.0,
        burst: int = 3,
        group_per_minute: int = 20,
    ) -> None:
        """Turn on the rate limits for messages and edits: of a private chat, and of a group."""
        with self._changing():
            self._world.rates = _Rates(
                burst, burst / per_second, group_per_minute, 60.0
            )

    def unlimit_rates(self) -> None:
        with self._changing():
            self._world.rates = None

    def clear_faults(self) -> None:
        """Remove every fault, but stay away if away. Requests that a fault holds go on."""
        with self._lock:
            faults = list(self._faults)
        for fault in faults:
            fault.release()
        self.repeat_updates(1)
        self.reverse_updates(enabled=False)

    # -- what tests look at ------------------------------------------------------------

    def messages(
        self, chat: int | None = None, *, deleted: bool = False
    ) -> list[Message]:
        """Return what a chat shows, Ada's private chat by default. Deleted messages are included on request."""
        with self._lock:
            if chat is None and ADA.id not in self._world.chats:
                return []
            posts = self._known_chat(chat).messages.values()
            return [
                post.shown(self._world.bot)
                for post in posts
                if deleted or not post.deleted
            ]

    def texts(self, chat: int | None = None) -> list[str]:
        """Return the texts of the bot's messages that a chat shows."""
        return [message.text for message in self.messages(chat) if message.from_bot]

    def calls(self, method: str = "") -> int:
        """Return how many requests of a method arrived, whatever became of them."""
        with self._lock:
            return sum(method in {"", call.method} for call in self.log)

    def max_rate(self, chat: int, seconds: float = 1.0) -> int:
        """Return the largest number of accepted messages and edits in a chat within so many seconds."""
        with self._lock:
            times = [
                call.accepted_at
                for call in self.sent
                if call.chat == chat and call.method in _SPENDING
            ]
        windows = [
            sum(start <= time < start + seconds for time in times) for start in times
        ]
        return max(windows, default=0)

    @property
    def polls(self) -> int:
        """The number of `getUpdates` requests."""
        return self.calls("getUpdates")

    @property
    def waiting_polls(self) -> int:
        """The number of polls that wait for an update: 0 or 1."""
        with self._lock:
            return int(self._poll is not None)

    @property
    def confirmed(self) -> int:
        """The highest offset that the bot has confirmed: the id of an update plus 1."""
        with self._lock:
            return self._world.updates.confirmed

    @property
    def pending(self) -> list[int]:
        """The ids of the updates that the bot has not confirmed."""
        with self._lock:
            return [_update_id(update) for update in self._world.updates.pending]

    @property
    def last_update(self) -> int:
        """The id of the update that was queued last."""
        with self._lock:
            return self._world.updates.last_id

    @property
    def commands(self) -> list[Json]:
        """The commands in the menu of the bot."""
        with self._lock:
            return list(self._world.commands)

    # -- waiting -----------------------------------------------------------------------

    def wait_for(
        self, predicate: Callable[[], T | None], seconds: float = SECONDS
    ) -> T:
        """Block until the predicate is true, and return its value."""
        deadline = time.monotonic() + seconds
        while True:
            with self._condition:
                version = self._version
            # The lock is free, so a slow predicate does not stop the server.
            value = predicate()
            if value:
                return value
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(self._describe(seconds))
            with self._condition:
                if self._version == version:
                    self._condition.wait(min(left, _RECHECK_SECONDS))

    async def wait(
        self, predicate: Callable[[], T | None], seconds: float = SECONDS
    ) -> T:
        """Wait until the predicate is true, and return its value."""
        latest: list[T] = []

        def is_true() -> bool:
            value = predicate()
            latest[:] = [] if value is None else [value]
            return bool(value)

        if await self._until(is_true, seconds, recheck=_RECHECK_SECONDS):
            return latest[0]
        raise TimeoutError(self._describe(seconds))

    def _describe(self, seconds: float) -> str:
        with self._lock:
            calls = [call.describe() for call in self.log[-_CALLS_SHOWN:]]
        shown = "\n".join(f"  {call}" for call in calls) or "  (none)"
        return f"Timed out after {seconds:g} seconds. The last calls:\n{shown}"

    async def _until(
        self,
        ready: Callable[[], bool],
        seconds: float | None = None,
        *,
        recheck: float | None = None,
    ) -> bool:
        """Wait in the current event loop. Return whether the predicate became true in time."""
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        changed = asyncio.Event()
        with self._lock:
            self._listeners[changed] = loop
        try:
            while not ready():
                left = None if deadline is None else deadline - loop.time()
                if left is not None and left <= 0:
                    return False
                limits = [limit for limit in (left, recheck) if limit is not None]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(limits, default=None)):
                        await changed.wait()
                changed.clear()
            return True
        finally:
            with self._lock:
                del self._listeners[changed]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, and tell everybody who waits about the change."""
        with self._lock:
            try:
                yield
            finally:
                self._notify()

    def _notify(self) -> None:
        with self._condition:
            self._version += 1
            self._condition.notify_all()
            for changed, loop in self._listeners.items():
                # The loop of a test may be closed already.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(changed.set)

    # -- the server's thread -----------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  (it is raised in the thread of the test)
            if self._ready.done():
                self._errors.append(error)
            else:
                self._ready.set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        await self._listen()
        self._ready.set_result(None)
        await self._stopped.wait()
        # A connection that was accepted just now is in the list only after one turn of the loop.
        await asyncio.sleep(0)
        connections = list(self._connections)
        await self._go_away(reset=False)
        tasks = [
            connection.task for connection in connections if connection.task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._until(lambda: not self._connections, SECONDS)

    def _in_loop(self, work: Callable[..., Any], *args: object) -> None:
        """Run a coroutine in the server's thread, and wait for it unless this is the server's thread."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work(*args), self._loop)
        if threading.current_thread() is not self._thread:
            future.result(SECONDS)
        self._notify()

    async def _listen(self) -> None:
        self._resets = False
        if self._server is not None:
            return
        listener = socket.create_server(("127.0.0.1", self._port))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), sock=listener
        )

    async def _go_away(self, reset: bool) -> None:
        self._resets = reset
        if self._server is not None and not reset:
            for listener in self._server.sockets:
                # A forked child of the test may have a copy of the descriptor.
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.cut()

    def add_connection(self, connection: _Connection) -> None:
        """Take a new connection. For `_Connection`."""
        self._connections.add(connection)
        if self._resets:
            connection.cut()

    def discard_connection(self, connection: _Connection) -> None:
        """Forget a closed connection. For `_Connection`."""
        self._connections.discard(connection)
        self._notify()

    # -- requests ----------------------------------------------------------------------

    async def serve(self, request: _Request, connection: _Connection) -> _Response:
        """Answer a request. Raises `_Cut` if the connection is to be cut. For `_Connection`."""
        try:
            call, is_authorised = self._read(request)
        except _Refused as refused:
            return _refusal(refused)
        try:
            return await self._serve(call, connection, is_authorised=is_authorised)
        except (_Cut, asyncio.CancelledError):
            raise
        except BaseException as error:
            # `__exit__` raises the error in the thread of the test.
            self._errors.append(error)
            self._finish(call, f"error in the fake: {error!r}")
            raise _Cut from error

    def _read(self, request: _Request) -> tuple[Call, bool]:
        """Return the request as a call, and whether its token is right."""
        is_file = request.path.startswith("/file/bot")
        path = request.path.removeprefix("/file").removeprefix("/bot")
        token, _, rest = path.partition("/")
        if not request.path.startswith(("/file/bot", "/bot")) or not rest:
            raise _Refused(404, "Not Found")
        parameters, uploads = _read_parameters(request)
        if is_file:
            parameters["path"] = rest
        method = "download" if is_file else self._methods.get(rest.lower(), rest)
        with self._changing():
            call = Call(len(self.log) + 1, method, parameters, uploads, self._clock())
            self.log.append(call)
        return call, token == self.token

    async def _serve(
        self, call: Call, connection: _Connection, *, is_authorised: bool
    ) -> _Response:
        response = await self._meet_faults(call, "before")
        if response is not None:
            return response
        try:
            if not is_authorised:
                raise _Refused(401, "Unauthorized")  # noqa: TRY301  (one place answers)
            result = await self._act(call, connection)
        except _Refused as refused:
            self._finish(call, f"{refused.status} {refused.description}")
            return _refusal(refused)
        response = await self._meet_faults(call, "after")
        if response is not None:
            return response
        if isinstance(result, bytes):
            return _Response(200, result, "application/octet-stream")
        # Like the real server: every other character is escaped, half a surrogate pair as well.
        body = json.dumps({"ok": True, "result": result})
        return _Response(200, body.encode())

    async def _act(self, call: Call, connection: _Connection) -> Any:
        if call.method == "getUpdates":
            result = await self._get_updates(call, connection)
            self._accept(call)
            return result
        with self._lock:
            if call.method not in self._world.methods:
                raise _Refused(404, "Not Found: method not found")
            result = self._world.methods[call.method](call)
            self._accept(call)
            return result

    def _accept(self, call: Call) -> None:
        with self._changing():
            self._accepted += 1
            call.accepted = self._accepted
            call.accepted_at = self._clock()
            call.outcome = "ok"
            if not call.method.startswith(("get", "download")):
                self.sent.append(call)

    def _finish(self, call: Call, outcome: str) -> None:
        with self._changing():
            call.outcome = outcome

    async def _get_updates(self, call: Call, connection: _Connection) -> list[Json]:
        limit = min(max(call.integer("limit", UPDATES_MAX), 1), UPDATES_MAX)
        timeout = min(max(call.integer("timeout"), 0), POLL_SECONDS_MAX)
        offset = call.integer("offset")
        poll = _Poll()
        with self._changing():
            updates = self._world.updates
            allowed = call.parameters.get("allowed_updates")
            if allowed is not None:
                updates.allowed = [str(kind) for kind in allowed]
            found = updates.take(offset, limit)
            if found or timeout == 0:
                return found
            # Only a poll that waits ends another one.
            if self._poll is not None:
                self._poll.is_replaced = True
            self._poll = poll
        # A negative offset has been applied.
        offset = max(offset, 0)

        def has_news() -> bool:
            with self._lock:
                return poll.is_replaced or updates.is_waiting() or connection.is_closed

        try:
            await self._until(has_news, timeout)
        finally:
            with self._changing():
                if self._poll is poll:
                    self._poll = None
        with self._changing():
            if poll.is_replaced:
                self.conflicts += 1
                raise _Refused(
                    409,
                    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
                )
            # Without a connection nobody gets the updates, so a repeated update waits for the next poll.
            if connection.is_closed:
                call.outcome = "the client is gone"
                raise _Cut
            return updates.take(offset, limit)

    async def _meet_faults(self, call: Call, when: When) -> _Response | None:
        """Let the faults happen to a request, in the order in which they were added. Return the response of a fault."""
        for fault in self._matching_faults(call, when):
            match fault.action:
                case "answer":
                    assert fault.response is not None
                    self._finish(call, f"{when} acting: {fault.response.status}")
                    return fault.response
                case "cut":
                    self._finish(call, f"{when} acting: cut")
                    raise _Cut
                case "hold":
                    await self._until(lambda fault=fault: fault.is_released)
                case "wait":
                    await self._until(
                        lambda fault=fault: fault.is_released, fault.seconds
                    )
                case "call":
                    assert fault.callback is not None
                    fault.callback(call)
        return None

    def _matching_faults(self, call: Call, when: When) -> Iterator[Fault]:
        with self._lock:
            faults = list(self._faults)
        for fault in faults:
            with self._changing():
                if fault.when != when or not fault.matches(call):
                    continue
                fault.count += 1
                if fault.times is not None:
                    fault.times -= 1
                    # A fault that holds a request is removed by `release`.
                    if fault.times == 0 and fault.action != "hold":
                        self._faults.remove(fault)
                fault.reached.set()
            yield fault

    def _add_fault(self, fault: Fault) -> Fault:
        def remove() -> None:
            with self._changing():
                if fault in self._faults:
                    self._faults.remove(fault)

        fault.on_release = remove
        with self._changing():
            self._faults.append(fault)
        return fault

    def _known_chat(self, chat: int | None) -> _Chat:
        chosen = ADA.id if chat is None else chat
        if chosen not in self._world.chats:
            raise LookupError(
                f"The bot knows no chat {chosen}: use say, add_person or add_group first."
            )
        return self._world.chats[chosen]
