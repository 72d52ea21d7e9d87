"""A bot on Discord.

Four parts: `DiscordChannel` is the channel. `Gateway` is the socket, and `Rest` makes the requests. `_Reader` turns
messages and events of Discord into the values of `tenax.channels.base`.

The socket has no acknowledgement. So the chats are the truth: whenever the socket may have missed something, the channel
reads the messages after the cursor from every chat, and only then goes on with the events of the socket. `_Place` is the
cursor.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec

from tenax.channels.base import (
    Batch,
    Button,
    Chat,
    Deleted,
    Edited,
    OutgoingFile,
    Person,
    Piece,
    Received,
    RemoteFile,
    Tapped,
    Traits,
    Update,
)
from tenax.channels.commands import COMMANDS
from tenax.channels.discord.format import Text, plain_text, render_texts
from tenax.channels.discord.gateway import Gateway, Happening, check_intent
from tenax.channels.discord.rest import Gone, Rest, Route, TapExpired
from tenax.config.schema import ChannelSettings
from tenax.errors import (
    ChannelAway,
    ChannelRefused,
    FloodWait,
    InvalidInput,
    SendUncertain,
)
from tenax.text import clean_name, make_storable, to_one_line

__all__ = ["DiscordChannel", "connect"]

log = logging.getLogger(__name__)

_TOKEN: Final = re.compile(
    r"([A-Za-z0-9_-]{20,40})\.[A-Za-z0-9_-]{4,16}\.[A-Za-z0-9_-]{20,100}"
)
_MEGABYTE: Final = 1024 * 1024
_REPEATED: Final = "↻ "
_TAP_ANSWER_CHARS_MAX: Final = 1000
_QUOTED_CHARS_MAX: Final = 500
_LABEL_CHARS_MAX: Final = 80
_BUTTONS_IN_ROW_MAX: Final = 5
_PAGE: Final = 100
"""The messages in an answer to a question for old messages."""
_CHATS_MAX: Final = 200
"""The chats that are always read after an outage: those with the latest messages."""
_OVERLAP_MS: Final = 5_000
"""The clocks of Discord's servers differ, so an id may be lower than one that came before."""
_SNOWFLAKE_TIME: Final = 22
"""The bits of an id below its time in milliseconds."""
_WAIT_IN_CATCH_UP_SECONDS_MAX: Final = 30.0
_TRAITS: Final = Traits(
    platform="Discord",
    send_seconds=1.0,
    group_seconds=1.0,
    account_seconds=0.025,
    preview_seconds=1.5,
    file_bytes_max=10 * _MEGABYTE,
    fetch_bytes_max=20 * _MEGABYTE,
    typing_seconds=10.0,
    # Discord's documentation speaks of "the past few minutes".
    key_seconds=120.0,
)

# Constants of Discord's API.
_DEFAULT_MESSAGE: Final = 0
_REPLY_MESSAGE: Final = 19
_FORWARD: Final = 1
_SUPPRESS_EMBEDS: Final = 1 << 2
_EPHEMERAL: Final = 1 << 6
_VOICE_MESSAGE: Final = 1 << 13
_COMPONENT_TAPPED: Final = 3
_SHOW_MESSAGE: Final = 4
_ACTION_ROW: Final = 1
_BUTTON: Final = 2
_GREY: Final = 2

# Nothing checks the types of what Discord sends, so a value of a wrong type fails anywhere.
_WRONG_SHAPE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def connect(settings: ChannelSettings) -> DiscordChannel:
    """Return the channel of a bot. No request is made."""
    assert settings.token is not None
    return DiscordChannel(settings.token.reveal(), base_url=settings.url or "")


class _Place(msgspec.Struct):
    """The cursor: everything up to an id is stored, and these are the chats to read after an outage.

    A single id is enough for all chats, because ids grow with time and the cursor moves only after all chats were read.
    Discord lists the channels of servers with their last messages, but not the private chats of a bot. So the chats in which
    somebody talks to the bot are kept here, those with the latest messages.
    """

    since: int = 0
    chats: dict[str, str] = {}
    """By id, the server of the chat, or "" for a private chat. The latest chat is the last one."""

    @classmethod
    def read(cls, cursor: str) -> _Place:
        if not cursor:
            return cls()
        try:
            return msgspec.json.decode(cursor, type=cls)
        except msgspec.MsgspecError:
            reason = "the stored cursor is damaged. Start again with an empty cursor."
        raise InvalidInput(f"Discord: cannot receive messages: {reason}")

    def write(self) -> str:
        return msgspec.json.encode(self).decode()

    def note_chat(self, chat: str, guild: str) -> None:
        """Put a chat at the end of the list, and forget the first one of a long list."""
        self.chats.pop(chat, None)
        self.chats[chat] = guild
        if len(self.chats) > _CHATS_MAX:
            del self.chats[next(iter(self.chats))]

    def read_after(self) -> int:
        """Return the id after which the chats are read."""
        return max(0, self.since - (_OVERLAP_MS << _SNOWFLAKE_TIME))


class DiscordChannel:
    """A bot on Discord. See `tenax.channels.base.Channel`."""

    traits = _TRAITS
    idle_seconds = 75.0
    """Discord asks for a heartbeat every 41 seconds, and answers it."""

    def __init__(
        self,
        token: str,
        *,
        base_url: str = "",
        connect_seconds: float = 10.0,
        request_seconds: float = 20.0,
        file_seconds: float = 120.0,
    ) -> None:
        self._token = token.strip().removeprefix("Bot ")
        self._bot = _bot_of(self._token)
        self.account = f"discord:{self._bot}"
        self.name = ""
        self._rest = Rest(
            self._token,
            base_url,
            connect_seconds=connect_seconds,
            request_seconds=request_seconds,
            file_seconds=file_seconds,
        )

    async def open(self) -> None:
        user = await self._rest.call(Route("GET", "/users/@me", "me"), "sign in")
        application = await self._rest.call(
            Route("GET", "/applications/@me", "application"), "sign in"
        )
        try:
            self.name = f"@{to_one_line(user['username'])}"
            flags = application["flags"]
        except _WRONG_SHAPE:
            reason = "Discord: cannot sign in: the answer has an unknown form. Check the address of the account."
        else:
            check_intent(flags)
            return
        raise ChannelAway(reason)

    async def close(self) -> None:
        await self._rest.close()

    # -- receiving -----------------------------------------------------------------------

    async def receive(self, cursor: str) -> AsyncGenerator[Batch]:
        place = _Place.read(cursor)
        # Events that come while the chats may have more.
        held: list[Happening] = []
        is_whole = False
        async with Gateway(self._token, self._bot, self._rest) as gateway:
            reader = _Reader(self._bot, gateway.title_of, gateway.role_of)
            while True:
                events: list[Happening] = []
                for happening in await gateway.next():
                    if happening.kind == "cut":
                        is_whole = False
                    elif happening.kind in {"begun", "resumed"}:
                        async for batch in self._catch_up(place, gateway, reader):
                            yield batch
                        is_whole = True
                        events += held
                        held.clear()
                    elif happening.kind == "event":
                        (events if is_whole else held).append(happening)
                updates = reader.read_all(events, place)
                yield Batch(updates, place.write() if place.since else "")

    async def _catch_up(
        self, place: _Place, gateway: Gateway, reader: _Reader
    ) -> AsyncIterator[Batch]:
        """Yield the messages that came after the cursor, and move the cursor at the end."""
        cursor = place.write() if place.since else ""
        channels = list(gateway.readable_channels())
        newest = max((channel.last for channel in channels), default=0)
        if not place.since:
            # At the first start, what was written before is not for Tenax.
            place.since = max(newest, int(self._bot))
            yield Batch((), place.write())
            return
        after = place.read_after()
        found = place.since
        chats = dict(place.chats)
        for channel in channels:
            if channel.last > after:
                chats[channel.id] = channel.guild
        for chat, guild in chats.items():
            async for page in self._read_chat(chat, after):
                updates = reader.read_old(page, guild)
                found = max([found, *(_to_number(item["id"]) for item in page)])
                yield Batch(updates, cursor)
        place.since = found
        yield Batch((), place.write())

    async def _read_chat(self, chat: str, after: int) -> AsyncIterator[list[Any]]:
        """Yield the messages of a chat after an id, oldest first, in pages."""
        while True:
            try:
                page = await self._read_page(chat, after)
            except ChannelRefused as error:
                # The bot may have lost the chat. Other chats go on.
                log.info("%s", error)
                return
            if page:
                yield page
                after = _to_number(page[-1]["id"])
            if len(page) < _PAGE:
                return

    async def _read_page(self, chat: str, after: int) -> list[Any]:
        route = Route("GET", f"/channels/{chat}/messages", "read", chat)
        query = {"after": str(after), "limit": str(_PAGE)}
        doing = f"read the messages of chat {chat}"
        try:
            answer = await self._rest.call(route, doing, query=query)
        except FloodWait as error:
            if error.seconds > _WAIT_IN_CATCH_UP_SECONDS_MAX:
                raise
            await asyncio.sleep(error.seconds)
            answer = await self._rest.call(route, doing, query=query)
        items = answer if isinstance(answer, list) else [answer]
        numbered = [item for item in items if _is_numbered(item)]
        if len(numbered) < len(items):
            raise ChannelAway(
                f"Discord: cannot {doing}: the answer has an unknown form. Wait, and check the address of the account."
            )
        return sorted(numbered, key=lambda item: _to_number(item["id"]))

    # -- rendering -----------------------------------------------------------------------

    def render(self, markdown: str) -> list[Piece]:
        return [_to_piece(text) for text in render_texts(markdown)]

    def mark_repeated(self, piece: Piece) -> Piece:
        return Piece(_REPEATED + piece.text, _REPEATED + piece.body)

    def shorten(self, piece: Piece, chars: int) -> Piece:
        return _to_piece(plain_text(piece.text, chars))

    # -- sending -------------------------------------------------------------------------

    async def send(
        self,
        chat: Chat,
        piece: Piece,
        *,
        key: str,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
    ) -> str:
        message, text = await self._create(chat, piece, key, buttons, reply_to)
        if text == piece.body:
            return message
        # Discord has recognised the key, and the message has an earlier text.
        try:
            await self.edit(chat, message, piece, buttons=buttons)
        except Gone:
            # Somebody has deleted the message.
            key = f"{key}-new"
            message, _ = await self._create(chat, piece, key, buttons, reply_to)
        return message

    async def _create(
        self,
        chat: Chat,
        piece: Piece,
        key: str,
        buttons: Sequence[Button],
        reply_to: str,
    ) -> tuple[str, str]:
        """Create a message. Return its id and its text."""
        body = {**_to_message(piece, buttons), **_to_key(key)}
        if reply_to:
            body["message_reference"] = {
                "message_id": reply_to,
                "fail_if_not_exists": False,
            }
        doing = f"send a message to chat {chat.id}"
        route = Route("POST", f"/channels/{chat.id}/messages", "send", chat.id)
        sent = await self._rest.call(route, doing, body, sends=True)
        return _sent_id(sent, doing), str(sent.get("content"))

    async def edit(
        self, chat: Chat, message: str, piece: Piece, *, buttons: Sequence[Button] = ()
    ) -> None:
        path = f"/channels/{chat.id}/messages/{message}"
        doing = f"edit message {message} in chat {chat.id}"
        route = Route("PATCH", path, "edit", chat.id)
        await self._rest.call(route, doing, _to_message(piece, buttons), sends=True)

    async def send_file(self, chat: Chat, file: OutgoingFile, *, key: str) -> str:
        name = clean_name(file.name)
        doing = f"send the file {name} to chat {chat.id}"
        if len(file.data) > _TRAITS.file_bytes_max:
            raise ChannelRefused(
                f"Discord: cannot {doing}: bots can send at most {_in_megabytes(_TRAITS.file_bytes_max)}, and the file has "
                f"{_in_megabytes(len(file.data))}. Send a smaller file."
            )
        body = {"attachments": [{"id": 0, "filename": name}], **_to_key(key)}
        media_type = file.media_type or "application/octet-stream"
        route = Route("POST", f"/channels/{chat.id}/messages", "send", chat.id)
        sent = await self._rest.call(
            route, doing, body, file=(name, file.data, media_type), sends=True
        )
        return _sent_id(sent, doing)

    async def find(self, chat: Chat, key: str, since: float) -> str | None:
        del chat, key, since  # Discord shows the key of no old message.
        return None

    async def answer_tap(self, tap: Tapped, text: str) -> None:
        """Show the result to the person alone. Discord waits 3 seconds for this answer."""
        interaction, _, secret = tap.token.partition(":")
        path = f"/interactions/{interaction}/{secret}/callback"
        shown = plain_text(text, _TAP_ANSWER_CHARS_MAX).markdown
        data = {
            "content": shown,
            "flags": _EPHEMERAL,
            "allowed_mentions": {"parse": []},
        }
        body = {"type": _SHOW_MESSAGE, "data": data}
        route = Route("POST", path, "answer", interaction)
        try:
            await self._rest.call(route, "answer the tap on a button", body)
        except TapExpired as error:
            log.info("%s", error)

    async def show_typing(self, chat: Chat) -> None:
        route = Route("POST", f"/channels/{chat.id}/typing", "typing", chat.id)
        await self._rest.call(route, f"show the typing sign in chat {chat.id}")

    # -- files ---------------------------------------------------------------------------

    async def fetch(self, file: RemoteFile) -> bytes:
        doing = f"fetch the file {to_one_line(file.name)}"
        if file.size > _TRAITS.fetch_bytes_max:
            raise ChannelRefused(
                f"Discord: cannot {doing}: at most {_in_megabytes(_TRAITS.fetch_bytes_max)} are fetched, and the file has "
                f"{_in_megabytes(file.size)}. Send a smaller file."
            )
        # The address of a file is valid for a day, so a late download needs a new one.
        chat, message, attachment = file.id.split("/")
        route = Route("GET", f"/channels/{chat}/messages/{message}", "one", chat)
        found = await self._rest.call(route, doing)
        try:
            attachments = [*found["attachments"], *_forwarded_files(found)]
            urls = [item["url"] for item in attachments if item["id"] == attachment]
        except _WRONG_SHAPE:
            urls = []
        if not urls:
            raise ChannelRefused(
                f"Discord: cannot {doing}: it is gone. Send the file again."
            )
        return await self._rest.download(str(urls[0]), doing, _TRAITS.fetch_bytes_max)


def _bot_of(token: str) -> str:
    """Return the id of the bot, which is the first part of its token."""
    matched = _TOKEN.fullmatch(token)
    if matched is not None:
        part = matched[1]
        try:
            number = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        except (ValueError, binascii.Error):
            number = b""
        if number.isdigit():
            return number.decode()
    raise InvalidInput(
        "Discord: cannot use the token: a token has three parts with points between them. Copy the whole token from the "
        "page Bot of the application."
    )


def _to_number(snowflake: object) -> int:
    """Return an id of Discord as a number. Ids grow with time."""
    return int(str(snowflake))


def _is_numbered(item: object) -> bool:
    found = item.get("id") if isinstance(item, dict) else None
    return isinstance(found, str) and found.isascii() and found.isdigit()


def _to_piece(text: Text) -> Piece:
    return Piece(text.visible, text.markdown)


def _to_message(piece: Piece, buttons: Sequence[Button]) -> dict[str, Any]:
    return {
        "content": piece.body,
        "flags": _SUPPRESS_EMBEDS,
        "allowed_mentions": {"parse": [], "replied_user": False},
        "components": _to_rows(buttons),
    }


def _to_key(key: str) -> dict[str, Any]:
    """Return the fields by which Discord recognises a repeated request."""
    return {"nonce": key, "enforce_nonce": True}


def _to_rows(buttons: Sequence[Button]) -> list[dict[str, Any]]:
    items = [
        {
            "type": _BUTTON,
            "style": _GREY,
            "label": _to_label(button.label),
            "custom_id": button.choice,
        }
        for button in buttons
    ]
    starts = range(0, len(items), _BUTTONS_IN_ROW_MAX)
    rows = [items[start : start + _BUTTONS_IN_ROW_MAX] for start in starts]
    return [{"type": _ACTION_ROW, "components": row} for row in rows]


def _to_label(text: str) -> str:
    """Return the text of a button, cut to its size."""
    shown = to_one_line(text)
    if len(shown) > _LABEL_CHARS_MAX:
        shown = f"{shown[: _LABEL_CHARS_MAX - 1]}…"
    return shown or "…"


def _sent_id(sent: object, doing: str) -> str:
    if isinstance(sent, dict) and _is_numbered(sent):
        return str(sent["id"])
    raise SendUncertain(
        f"Discord: the answer to the request to {doing} has an unknown form. Look into the chat before it is repeated."
    )


def _in_megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:.3g} MB"


# -- messages and events -----------------------------------------------------------------

_MENTION: Final = re.compile(r"<@!?([0-9]{1,20})>")
_ROLE_MENTION: Final = re.compile(r"<@&([0-9]{1,20})>")
_EMOJI: Final = re.compile(r"<a?(:\w{1,40}:)[0-9]{1,20}>")
_AFTER_MENTION: Final = re.compile(r"^[,:]?\s+")
_COMMAND: Final = re.compile(r"/([a-z]+)(?:\s|$)", re.IGNORECASE)
_COMMAND_NAMES: Final = frozenset(name for name, _ in COMMANDS)


class _Reader:
    """Turns messages and events of Discord into updates. `title_of` and `role_of` look up channels and servers."""

    def __init__(
        self,
        bot: str,
        title_of: Callable[[str], str],
        role_of: Callable[[str], str],
    ) -> None:
        self._bot = bot
        self._title_of = title_of
        self._role_of = role_of

    def read_all(
        self, events: Sequence[Happening], place: _Place
    ) -> tuple[Update, ...]:
        """Return the updates of events, and move the cursor."""
        updates: list[Update] = []
        for event in events:
            try:
                found = self._read_event(event)
                updates += found
                self._move(event, found, place)
            except _WRONG_SHAPE as error:
                # The text of the error may quote the message.
                reason = type(error).__name__
                log.warning("Cannot read an event %s: %s.", event.name, reason)
        return tuple(updates)

    def _move(self, event: Happening, updates: Sequence[Update], place: _Place) -> None:
        if event.name != "MESSAGE_CREATE":
            return
        place.since = max(place.since, _to_number(event.data["id"]))
        for update in updates:
            if isinstance(update, Received) and update.is_addressed:
                place.note_chat(update.chat.id, str(event.data.get("guild_id") or ""))

    def read_old(
        self, messages: Sequence[dict[str, Any]], guild: str
    ) -> tuple[Update, ...]:
        """Return the updates of messages that were read from a chat, of a server or with ""."""
        updates: list[Update] = []
        for message in messages:
            # Only events name the server.
            place = {"guild_id": guild} if guild else {}
            try:
                found = self._read_message({**message, **place})
            except _WRONG_SHAPE as error:
                reason = type(error).__name__
                log.warning("Cannot read message %s: %s.", message["id"], reason)
                continue
            updates += [found] if found else []
        return tuple(updates)

    def _read_event(self, event: Happening) -> list[Update]:
        data = event.data
        found: Update | None = None
        match event.name:
            case "MESSAGE_CREATE":
                found = self._read_message(data)
            case "MESSAGE_UPDATE":
                found = self._read_edit(data)
            case "INTERACTION_CREATE":
                found = self._read_tap(data)
            case "MESSAGE_DELETE":
                return [self._read_deletion(data, data["id"])]
            case "MESSAGE_DELETE_BULK":
                return [self._read_deletion(data, one) for one in data["ids"]]
        return [found] if found else []

    def _read_message(self, message: dict[str, Any]) -> Received | None:
        if message["type"] not in {_DEFAULT_MESSAGE, _REPLY_MESSAGE}:
            return None
        sender = _read_author(message)
        if sender.is_bot:
            return None
        chat = self._read_chat(message, sender)
        number = str(_to_number(message["id"]))
        replied = _replied_of(message)
        return Received(
            id=f"m:{chat.id}:{number}",
            chat=chat,
            sender=sender,
            message=number,
            text=self._read_text(message),
            files=_read_files(message),
            is_addressed=not _is_group(message) or self._is_addressed(message),
            reply_to=str(_to_number(replied["id"])) if replied else "",
        )

    def _read_edit(self, message: dict[str, Any]) -> Edited | None:
        # Discord reports the preview of a link as a change without a time.
        edited_at = message.get("edited_timestamp")
        if not edited_at or "content" not in message:
            return None
        sender = _read_author(message)
        if sender.is_bot:
            return None
        chat = self._read_chat(message, sender)
        number = str(_to_number(message["id"]))
        return Edited(
            id=f"e:{chat.id}:{number}:{to_one_line(edited_at)}",
            chat=chat,
            sender=sender,
            message=number,
            text=self._read_text(message),
        )

    def _read_deletion(self, data: dict[str, Any], message: object) -> Deleted:
        chat = Chat(str(_to_number(data["channel_id"])), is_group=_is_group(data))
        number = str(_to_number(message))
        return Deleted(id=f"d:{chat.id}:{number}", chat=chat, message=number)

    def _read_tap(self, data: dict[str, Any]) -> Tapped | None:
        if data["type"] != _COMPONENT_TAPPED:
            return None
        user = data["member"]["user"] if "member" in data else data["user"]
        sender = _read_person(user)
        number = str(_to_number(data["id"]))
        return Tapped(
            id=f"c:{number}",
            chat=self._read_chat(data, sender),
            sender=sender,
            message=str(_to_number(data["message"]["id"])),
            choice=make_storable(data["data"]["custom_id"]),
            token=f"{number}:{to_one_line(data['token'])}",
        )

    def _read_chat(self, data: dict[str, Any], sender: Person) -> Chat:
        is_group = _is_group(data)
        chat = str(_to_number(data["channel_id"]))
        title = self._title_of(chat) if is_group else sender.name
        return Chat(chat, title=to_one_line(title), is_group=is_group)

    def _read_text(self, message: dict[str, Any]) -> str:
        """Return the quoted text, the text and the other content of a message."""
        text = self._read_words(message)
        if not text.startswith(("/", "!")):
            quoted = self._read_quote(message)
            lines = [f"> {line}".rstrip() for line in quoted.splitlines()]
            text = "\n".join([*lines, "", text]) if lines else text
        forwarded = [
            f"[Forwarded]\n{found.get('content', '')}".strip()
            for found in _forwarded(message)
        ]
        stickers = [
            f"[Sticker {to_one_line(sticker['name'])}]"
            for sticker in message.get("sticker_items") or ()
        ]
        parts = [part for part in (text, *forwarded, *stickers) if part]
        return make_storable("\n".join(parts).strip())

    def _read_words(self, message: dict[str, Any]) -> str:
        """Return the text as a person reads it, without the mentions of the bot."""
        names = {
            user["id"]: _read_person(user).name
            for user in message.get("mentions") or ()
        }
        names.pop(self._bot, None)
        text = str(message["content"])
        role = self._role(message)
        for own in (f"<@{self._bot}>", f"<@!{self._bot}>", f"<@&{role}>"):
            text = text.replace(own, "")
        text = _AFTER_MENTION.sub("", text)
        text = _MENTION.sub(lambda found: f"@{names.get(found[1], found[1])}", text)
        return _EMOJI.sub(r"\1", text).strip()

    def _read_quote(self, message: dict[str, Any]) -> str:
        """Return the text to which the person replies. The conversation has the messages of the bot already."""
        replied = _replied_of(message)
        if replied is None or replied["author"]["id"] == self._bot:
            return ""
        text = str(replied.get("content") or "")
        names = [f"[File {file.name}]" for file in _read_files(replied)]
        shown = text or " ".join(names)
        return plain_text(shown, _QUOTED_CHARS_MAX).visible

    def _is_addressed(self, message: dict[str, Any]) -> bool:
        """Return whether a message in a server is for the bot."""
        if any(user["id"] == self._bot for user in message.get("mentions") or ()):
            return True
        role = self._role(message)
        if role and role in (message.get("mention_roles") or ()):
            return True
        replied = _replied_of(message)
        if replied is not None and replied["author"]["id"] == self._bot:
            return True
        command = _COMMAND.match(message["content"])
        return command is not None and command[1].lower() in _COMMAND_NAMES

    def _role(self, message: dict[str, Any]) -> str:
        guild = message.get("guild_id")
        return self._role_of(str(guild)) if guild else ""


def _is_group(data: dict[str, Any]) -> bool:
    return bool(data.get("guild_id"))


def _read_person(user: dict[str, Any]) -> Person:
    number = str(_to_number(user["id"]))
    name = to_one_line(user.get("global_name") or user.get("username") or "")
    is_bot = bool(user.get("bot") or user.get("system"))
    return Person(number, name or number, is_bot=is_bot)


def _read_author(message: dict[str, Any]) -> Person:
    person = _read_person(message["author"])
    if message.get("webhook_id"):
        return Person(person.id, person.name, is_bot=True)
    return person


def _replied_of(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the message to which the person replies, unless it is gone."""
    if message["type"] != _REPLY_MESSAGE:
        return None
    found = message.get("referenced_message")
    return found if isinstance(found, dict) else None


def _forwarded(message: dict[str, Any]) -> list[dict[str, Any]]:
    reference = message.get("message_reference") or {}
    if reference.get("type") != _FORWARD:
        return []
    return [found["message"] for found in message.get("message_snapshots") or ()]


def _forwarded_files(message: dict[str, Any]) -> list[Any]:
    return [
        item for found in _forwarded(message) for item in found.get("attachments") or ()
    ]


def _read_files(message: dict[str, Any]) -> tuple[RemoteFile, ...]:
    is_voice = bool(int(message.get("flags") or 0) & _VOICE_MESSAGE)
    place = f"{_to_number(message['channel_id'])}/{_to_number(message['id'])}"
    return tuple(
        RemoteFile(
            id=f"{place}/{_to_number(item['id'])}",
            name=clean_name(str(item["filename"])),
            size=int(item.get("size") or 0),
            media_type=to_one_line(item.get("content_type") or "").partition(";")[0],
            is_voice=is_voice,
        )
        for item in [*(message.get("attachments") or ()), *_forwarded_files(message)]
    )
