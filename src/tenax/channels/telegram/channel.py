"""A bot on Telegram, by long polling of the Bot API.

Three parts: `TelegramChannel` is the channel. `_Reader` turns the updates of Telegram into the values of
`tenax.channels.base`. `_Requests` makes the requests for python-telegram-bot and says what became of a failed request.

Telegram confirms every update below the offset of `getUpdates`. So the offset is the cursor, and the channel requests a
batch only when the caller asks for the batch.

The addresses of the Bot API contain the token. Logs and errors of the libraries contain addresses. So the libraries get a
false token, and only `_TokenTransport` below them knows the true one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec
import telegram
import telegram.error
from telegram.constants import ChatAction, ChatType, MessageEntityType
from telegram.request import BaseRequest, RequestData

from tenax.channels.base import (
    Batch,
    Button,
    Chat,
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
from tenax.channels.telegram.format import Body, plain_pieces, render_pieces
from tenax.config.schema import ChannelSettings
from tenax.errors import (
    ChannelAway,
    ChannelError,
    ChannelRefused,
    ConfigError,
    FloodWait,
    InvalidInput,
    NotAuthorized,
    ReceivedElsewhere,
    SendUncertain,
)
from tenax.models.http import is_loopback, trusted
from tenax.text import clean_name, describe_error, make_storable, to_one_line

__all__ = ["TelegramChannel", "connect"]

T = TypeVar("T")

log = logging.getLogger(__name__)

# At lower levels this logger logs the messages of people.
logging.getLogger("telegram.Bot").setLevel(logging.WARNING)

_TOKEN: Final = re.compile(r"([0-9]{1,20}):[A-Za-z0-9_-]{20,}")
_LOGGED_TOKEN: Final = re.compile(
    r"([0-9]{1,20})(?::|%3A)[A-Za-z0-9_-]{20,}", re.IGNORECASE
)
_BASE_URL: Final = "https://api.telegram.org/bot"
_BASE_FILE_URL: Final = "https://api.telegram.org/file/bot"
_KINDS: Final = ("message", "edited_message", "callback_query")
_MEGABYTE: Final = 1024 * 1024
_PICTURE_BYTES_MAX: Final = 10 * _MEGABYTE
_BODY_UNITS_MAX: Final = 4090
"""Telegram takes 4096. The rest is for the mark of a repeated piece."""
_REPEATED: Final = "↻ "
_TAP_ANSWER_CHARS_MAX: Final = 200
_QUOTED_CHARS_MAX: Final = 500
_EMOJI_UNITS: Final = 2
_FLOOD_SECONDS: Final = 10.0
"""The wait after a 429 without a time."""
_FLOOD_SECONDS_MAX: Final = 86_400.0
_CONNECTIONS_MAX: Final = 20
_UPDATE_IDS_END: Final = 2**53
"""Update ids are 32-bit numbers today. JSON has exact numbers up to this one."""
_KEEPS_TYPE: Final = frozenset({"image/gif"})
"""Pictures that Telegram does not show as photos: a photo does not move."""
_TRAITS: Final = Traits(
    platform="Telegram",
    send_seconds=1.0,
    group_seconds=3.0,
    account_seconds=0.05,
    preview_seconds=1.0,
    file_bytes_max=50 * _MEGABYTE,
    fetch_bytes_max=20 * _MEGABYTE,
    typing_seconds=5.0,
)
# The parser of the library checks no types, so a value of a wrong type fails anywhere.
_WRONG_SHAPE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


def connect(settings: ChannelSettings) -> TelegramChannel:
    """Return the channel of a bot. No request is made."""
    assert settings.token is not None
    url = (settings.url or "").rstrip("/")
    return TelegramChannel(
        settings.token.reveal(),
        base_url=f"{url}/bot" if url else "",
        base_file_url=f"{url}/file/bot" if url else "",
        commands=COMMANDS,
    )


class TelegramChannel:
    """A bot on Telegram. See `tenax.channels.base.Channel`.

    `commands` are the names and descriptions for the menu of the bot. The times are for a single step of a request: to
    connect, to wait for an answer, to wait for an answer about a file. A poll may also wait `poll_seconds` for an update.
    """

    traits = _TRAITS

    def __init__(
        self,
        token: str,
        *,
        base_url: str = "",
        base_file_url: str = "",
        commands: Sequence[tuple[str, str]] = (),
        poll_seconds: int = 25,
        connect_seconds: float = 10.0,
        request_seconds: float = 20.0,
        file_seconds: float = 120.0,
    ) -> None:
        token = token.strip()
        matched = _TOKEN.fullmatch(token)
        if matched is None:
            raise InvalidInput(
                "Telegram: cannot use the token: a token has the form NUMBER:LETTERS. Copy the whole token from "
                "@BotFather."
            )
        bot_id = matched[1]
        self.account = f"telegram:{bot_id}"
        self.name = ""
        self.idle_seconds = poll_seconds + connect_seconds + request_seconds
        self._poll_seconds = poll_seconds
        self._poll_read_seconds = poll_seconds + request_seconds
        self._commands = tuple(commands)
        self._reader = _Reader(int(bot_id))
        false_token = f"{bot_id}:hidden"
        transport = _TokenTransport(
            _make_transport(base_url or _BASE_URL), token, false_token
        )
        self._requests = _Requests(
            transport, token, connect_seconds, request_seconds, file_seconds
        )
        self._bot = telegram.Bot(
            false_token,
            base_url=base_url or _BASE_URL,
            base_file_url=base_file_url or _BASE_FILE_URL,
            request=self._requests,
            get_updates_request=self._requests,
        )

    async def open(self) -> None:
        user = await self._ask(self._bot.get_me(), "sign in")
        self._reader.username = user.username or ""
        self.name = f"@{user.username}" if user.username else user.full_name
        await self._set_commands()

    async def _set_commands(self) -> None:
        if not self._commands:
            return
        commands = [telegram.BotCommand(name, text) for name, text in self._commands]
        request = self._bot.set_my_commands(commands)
        # Without the menu the bot works all the same.
        try:
            await self._call(request, "set the menu of commands")
        except (ChannelRefused, FloodWait) as error:
            log.warning("%s", error)

    async def close(self) -> None:
        with contextlib.suppress(httpx.HTTPError, OSError):
            await self._requests.shutdown()

    # -- receiving -----------------------------------------------------------------------

    async def receive(self, cursor: str) -> AsyncGenerator[Batch]:
        if cursor and not (cursor.isascii() and cursor.isdecimal()):
            raise InvalidInput(
                "Telegram: cannot receive updates: the stored cursor is not a number. Start again with an empty cursor."
            )
        while True:
            batch = await self._poll(cursor)
            yield batch
            # The next poll confirms the batch. The caller has stored the batch by now.
            cursor = batch.cursor

    async def _poll(self, cursor: str) -> Batch:
        parameters = {"timeout": self._poll_seconds, "allowed_updates": _KINDS}
        if cursor:
            parameters["offset"] = int(cursor)
        # `Bot.get_updates` fails for a whole batch if it cannot read a single update. The Bot API ignores the case of
        # the names of methods, and the library warns of a name that it has a method for.
        request = self._bot.do_api_request(
            "getupdates", parameters, read_timeout=self._poll_read_seconds
        )
        answer = await self._ask(request, "receive updates")
        items = answer if isinstance(answer, list) else [answer]
        numbered = [item for item in items if _is_numbered(item)]
        if items and not numbered:
            raise ChannelAway(
                "Telegram: cannot receive updates: the answer has an unknown form. Wait, and check the network of "
                "this machine and the address of the Bot API."
            )
        numbered.sort(key=_update_id)
        if numbered:
            # The ids start again at any number after a week without updates, so the cursor may go back.
            cursor = str(_update_id(numbered[-1]) + 1)
        updates = [self._read(item) for item in numbered]
        found = tuple(update for update in updates if update is not None)
        return Batch(found, cursor)

    def _read(self, item: dict[str, Any]) -> Update | None:
        """Return an update of Telegram, or `None` if there is nothing to do or it cannot be read."""
        try:
            update = telegram.Update.de_json(item, self._bot)
            if not any(kind in item for kind in _KINDS):
                log.info("Left out update %s of an unknown kind.", _update_id(item))
                return None
            return self._reader.read(update)
        except _WRONG_SHAPE as error:
            # The text of the error may quote the message.
            reason = type(error).__name__
            log.warning("Cannot read update %s: %s.", _update_id(item), reason)
            return None

    # -- rendering -----------------------------------------------------------------------

    def render(self, markdown: str) -> list[Piece]:
        bodies = render_pieces(markdown, _BODY_UNITS_MAX)
        return [Piece(body.text, body) for body in bodies]

    def mark_repeated(self, piece: Piece) -> Piece:
        body: Body = piece.body
        moved = [
            msgspec.structs.replace(entity, offset=entity.offset + len(_REPEATED))
            for entity in body.entities
        ]
        marked = Body(_REPEATED + body.text, tuple(moved))
        return Piece(marked.text, marked)

    def shorten(self, piece: Piece, chars: int) -> Piece:
        text = _shorten(piece.text, chars)
        return Piece(text, Body(text))

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
        del key  # Telegram recognises no repetition.
        body: Body = piece.body
        try:
            return await self._send(chat, body, buttons, reply_to)
        except _EntitiesRefused as refused:
            _log_refused_entities(refused)
        return await self._send(chat, Body(body.text), buttons, reply_to)

    async def _send(
        self, chat: Chat, body: Body, buttons: Sequence[Button], reply_to: str
    ) -> str:
        replied = None
        if reply_to:
            replied = telegram.ReplyParameters(
                int(reply_to), allow_sending_without_reply=True
            )
        request = self._bot.send_message(
            chat_id=int(chat.id),
            text=body.text,
            entities=_to_entities(body),
            message_thread_id=_thread_of(chat),
            link_preview_options=telegram.LinkPreviewOptions(is_disabled=True),
            reply_parameters=replied,
            reply_markup=_to_keyboard(buttons),
        )
        doing = f"send a message to chat {chat.id}"
        sent = await self._call(request, doing, sends=True)
        return str(sent.message_id)

    async def edit(
        self, chat: Chat, message: str, piece: Piece, *, buttons: Sequence[Button] = ()
    ) -> None:
        body: Body = piece.body
        with contextlib.suppress(_NotModified):
            try:
                await self._edit(chat, message, body, buttons)
            except _EntitiesRefused as refused:
                _log_refused_entities(refused)
            else:
                return
            await self._edit(chat, message, Body(body.text), buttons)

    async def _edit(
        self, chat: Chat, message: str, body: Body, buttons: Sequence[Button]
    ) -> None:
        request = self._bot.edit_message_text(
            chat_id=int(chat.id),
            message_id=int(message),
            text=body.text,
            entities=_to_entities(body),
            link_preview_options=telegram.LinkPreviewOptions(is_disabled=True),
            reply_markup=_to_keyboard(buttons),
        )
        doing = f"edit message {message} in chat {chat.id}"
        await self._call(request, doing, sends=True)

    async def send_file(self, chat: Chat, file: OutgoingFile, *, key: str) -> str:
        del key
        name = clean_name(file.name)
        size = len(file.data)
        doing = f"send the file {name} to chat {chat.id}"
        if size > _TRAITS.file_bytes_max:
            raise ChannelRefused(
                f"Telegram: cannot {doing}: bots can send at most {_in_megabytes(_TRAITS.file_bytes_max)}, and the file has "
                f"{_in_megabytes(size)}. Send a smaller file."
            )
        is_photo = file.is_picture and file.media_type not in _KEEPS_TYPE
        if is_photo and size <= _PICTURE_BYTES_MAX:
            try:
                photo = self._bot.send_photo(
                    int(chat.id),
                    file.data,
                    filename=name,
                    message_thread_id=_thread_of(chat),
                )
                sent = await self._call(photo, doing, sends=True)
                return str(sent.message_id)
            except _PictureRefused as refused:
                # Telegram shows no pictures of some formats and sizes.
                log.info("%s It is sent as a document.", refused)
        document = self._bot.send_document(
            int(chat.id),
            file.data,
            filename=name,
            message_thread_id=_thread_of(chat),
            # With the detection, a moving picture moves in the chat.
            disable_content_type_detection=not file.is_picture,
        )
        sent = await self._call(document, doing, sends=True)
        return str(sent.message_id)

    async def find(self, chat: Chat, key: str, since: float) -> str | None:
        del chat, key, since  # The Bot API shows no messages.
        return None

    async def answer_tap(self, tap: Tapped, text: str) -> None:
        shown = _shorten(text, _TAP_ANSWER_CHARS_MAX)
        request = self._bot.answer_callback_query(tap.token, text=shown)
        with contextlib.suppress(_TapExpired):
            await self._call(request, "answer the tap on a button")

    async def show_typing(self, chat: Chat) -> None:
        request = self._bot.send_chat_action(
            int(chat.id), ChatAction.TYPING, message_thread_id=_thread_of(chat)
        )
        await self._call(request, f"show the typing sign in chat {chat.id}")

    # -- files ---------------------------------------------------------------------------

    async def fetch(self, file: RemoteFile) -> bytes:
        doing = f"fetch the file {to_one_line(file.name)}"
        if file.size > _TRAITS.fetch_bytes_max:
            raise ChannelRefused(
                f"Telegram: cannot {doing}: bots can fetch at most {_in_megabytes(_TRAITS.fetch_bytes_max)}, and "
                f"the file has {_in_megabytes(file.size)}. Send a smaller file."
            )
        found = await self._call(self._bot.get_file(file.id), doing)
        base = f"{self._bot.base_file_url}/"
        address = found.file_path or ""
        # The library leaves the path of a file on this machine as it is, and would read that file.
        if not address.startswith(base):
            raise ChannelRefused(
                f"Telegram: cannot {doing}: there is no address. Send the file again."
            )
        path = quote(address.removeprefix(base))
        return await self._call(self._requests.retrieve(base + path), doing)

    # -- failures ------------------------------------------------------------------------

    async def _ask(self, request: Awaitable[T], doing: str) -> T:
        """Make a request that has nothing to refuse: a refusal is a failure of Telegram."""
        try:
            return await self._call(request, doing)
        except ChannelRefused as refused:
            reason = str(refused)
        raise ChannelAway(reason)

    async def _call(
        self, request: Awaitable[T], doing: str, *, sends: bool = False
    ) -> T:
        """Make a request. `sends` says that a repetition of the request is visible to people."""
        try:
            return await request
        except _Failed as failed:
            error = _translate(failed, doing, sends=sends)
        except telegram.error.TelegramError as failed:
            lost = _Failed(describe_error(failed))
            error = _translate(lost, doing, sends=sends)
        except _WRONG_SHAPE as failed:
            reason = f"the answer has an unknown form ({type(failed).__name__})"
            error = _translate(_Failed(reason), doing, sends=sends)
        # Outside of the `except`: a log of the error shows no other error.
        raise error


def _is_numbered(item: object) -> bool:
    number = item.get("update_id") if isinstance(item, dict) else None
    # A negative offset would make Telegram forget updates.
    return type(number) is int and 0 <= number < _UPDATE_IDS_END


def _update_id(item: dict[str, Any]) -> int:
    number: int = item["update_id"]
    return number


def _shorten(text: str, chars: int) -> str:
    """Return a text of at most `chars` characters, cut after a word. A cut text ends with an ellipsis."""
    if len(text) <= chars:
        return text
    # An emoji has two UTF-16 code units.
    cut = plain_pieces(text, chars - 1) if chars > _EMOJI_UNITS else []
    return f"{cut[0].text}…" if cut else "…"


def _thread_of(chat: Chat) -> int | None:
    return int(chat.thread) if chat.thread else None


def _to_entities(body: Body) -> list[telegram.MessageEntity]:
    return [
        telegram.MessageEntity(
            entity.type,
            entity.offset,
            entity.length,
            url=entity.url or None,
            language=entity.language or None,
        )
        for entity in body.entities
    ]


def _to_keyboard(buttons: Sequence[Button]) -> telegram.InlineKeyboardMarkup | None:
    if not buttons:
        return None
    row = [
        telegram.InlineKeyboardButton(button.label, callback_data=button.choice)
        for button in buttons
    ]
    return telegram.InlineKeyboardMarkup([row])


def _in_megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:.3g} MB"


def _log_refused_entities(refused: ChannelError) -> None:
    log.warning("%s It is sent without formatting.", refused)


# -- updates ---------------------------------------------------------------------------


class _Reader:
    """Turns the updates of Telegram into those of Tenax."""

    def __init__(self, bot_id: int) -> None:
        self.username = ""
        self._bot_id = bot_id

    def read(self, update: telegram.Update) -> Update | None:
        if update.message is not None:
            return self._read_message(update.message)
        if update.edited_message is not None:
            return self._read_edit(update.edited_message)
        if update.callback_query is not None:
            return self._read_tap(update.callback_query)
        return None

    def _read_message(self, message: telegram.Message) -> Received | None:
        sender = _read_sender(message)
        if sender is None or not _has_content(message):
            return None
        replied = _replied_of(message)
        return Received(
            id=f"m:{message.chat.id}:{message.message_id}",
            chat=_read_chat(message.chat, message),
            sender=sender,
            message=_to_id(message.message_id),
            text=self._read_text(message),
            files=_read_files(message),
            is_addressed=self._is_addressed(message),
            reply_to=_to_id(replied.message_id) if replied else "",
        )

    def _read_edit(self, message: telegram.Message) -> Edited | None:
        sender = _read_sender(message)
        # Telegram reports the movement of a shared location as edits.
        if sender is None or message.location or not _has_content(message):
            return None
        text = self._read_text(message)
        seconds = int(message.edit_date.timestamp()) if message.edit_date else 0
        digest = blake2b(text.encode(), digest_size=4).hexdigest()
        return Edited(
            id=f"e:{message.chat.id}:{message.message_id}:{seconds}:{digest}",
            chat=_read_chat(message.chat, message),
            sender=sender,
            message=_to_id(message.message_id),
            text=text,
        )

    def _read_tap(self, query: telegram.CallbackQuery) -> Tapped | None:
        # The button of a game has no data, and a button in a foreign chat has no message.
        if query.message is None or query.data is None:
            return None
        # A deleted message, and one that is too old, is only a number.
        message = query.message if isinstance(query.message, telegram.Message) else None
        return Tapped(
            id=f"c:{to_one_line(query.id)}",
            chat=_read_chat(query.message.chat, message),
            sender=_read_person(query.from_user),
            message=_to_id(query.message.message_id),
            choice=make_storable(query.data),
            token=to_one_line(query.id),
        )

    def _read_text(self, message: telegram.Message) -> str:
        """Return the origin, the quoted text, the text and the other content of a message."""
        entities = message.entities or message.caption_entities
        written = message.text or message.caption or ""
        text = _write_markdown(_Words(written, entities), self._bot_id, self.username)
        lines = [_read_origin(message), text, _describe_content(message)]
        shown = "\n".join(line for line in lines if line)
        quoted = self._read_quote(message)
        # A command must stay at the start of the text.
        if quoted and not text.startswith("/"):
            lines = [f"> {line}".rstrip() for line in quoted.splitlines()]
            shown = "\n".join(lines) + "\n\n" + shown
        return make_storable(shown.strip())

    def _read_quote(self, message: telegram.Message) -> str:
        """Return what the person quotes. The conversation has the whole messages of the bot already."""
        if message.quote is not None:
            return _shorten(message.quote.text, _QUOTED_CHARS_MAX)
        replied = _replied_of(message)
        if replied is None or self._is_mine(replied):
            return ""
        names = [f"[File {file.name}]" for file in _read_files(replied)]
        text = replied.text or replied.caption or _describe_content(replied)
        return _shorten(text or " ".join(names), _QUOTED_CHARS_MAX)

    def _is_mine(self, message: telegram.Message) -> bool:
        return message.from_user is not None and message.from_user.id == self._bot_id

    def _is_addressed(self, message: telegram.Message) -> bool:
        """Return whether the message is for the bot."""
        if message.chat.type == ChatType.PRIVATE:
            return True
        entities = message.entities or message.caption_entities
        words = _Words(message.text or message.caption or "", entities)
        for entity in words.entities:
            is_command = entity.type == MessageEntityType.BOT_COMMAND
            if is_command and entity.offset == 0 and message.forward_origin is None:
                return _is_command_for(words.part(entity), self.username)
        replied = _replied_of(message)
        if replied is not None and self._is_mine(replied):
            return True
        return any(
            _is_mention(words, entity, self._bot_id, self.username)
            for entity in words.entities
        )


def _to_id(number: int) -> str:
    """Return an id as a text. The parser of the library lets a value of any type pass."""
    if type(number) is not int:
        raise TypeError
    return str(number)


def _has_content(message: telegram.Message) -> bool:
    """Return whether a person has written or sent something. Other messages report changes of the chat."""
    has_text = message.text or message.caption
    return bool(has_text or _read_files(message) or _describe_content(message))


def _read_chat(chat: telegram.Chat, message: telegram.Message | None) -> Chat:
    is_private = chat.type == ChatType.PRIVATE
    thread = ""
    # Outside of a forum the number of the thread only says that the message is a reply.
    may_have_topics = chat.is_forum or is_private
    if may_have_topics and message is not None and message.is_topic_message:
        number = message.message_thread_id
        thread = "" if number is None else _to_id(number)
    title = to_one_line(chat.effective_name or "")
    return Chat(_to_id(chat.id), thread, title, is_group=not is_private)


def _read_person(user: telegram.User) -> Person:
    name = to_one_line(user.full_name or "")
    number = _to_id(user.id)
    return Person(number, name or number, is_bot=bool(user.is_bot))


def _read_sender(message: telegram.Message) -> Person | None:
    chat = message.sender_chat
    if chat is not None:
        # A channel or an anonymous administrator. Nobody knows the person, so nobody may be allowed.
        name = to_one_line(chat.effective_name or "")
        number = _to_id(chat.id)
        return Person(number, name or number, is_bot=True)
    return _read_person(message.from_user) if message.from_user else None


def _replied_of(message: telegram.Message) -> telegram.Message | None:
    """Return the message to which the person replies."""
    replied = message.reply_to_message
    if replied is None or replied.forum_topic_created is not None:
        # In a topic of a forum, every message replies to the start of the topic.
        return None
    if message.is_topic_message and replied.message_id == message.message_thread_id:
        return None
    return replied


def _read_origin(message: telegram.Message) -> str:
    """Return a line about the origin of a forwarded message."""
    match message.forward_origin:
        case None:
            return ""
        case telegram.MessageOriginUser(sender_user=user):
            # A deleted account has no name.
            name = user.full_name or ""
        case telegram.MessageOriginHiddenUser(sender_user_name=hidden):
            name = hidden
        case telegram.MessageOriginChat(sender_chat=chat):
            name = chat.effective_name or ""
        case telegram.MessageOriginChannel(chat=chat):
            name = chat.effective_name or ""
        case _:
            name = ""
    shown = _write_name(name) or "an unknown sender"
    return f"[Forwarded from {shown}]"


def _write_name(name: str) -> str:
    """Return a text of a person for a line in brackets."""
    return to_one_line(name).replace("[", "(").replace("]", ")")


class _FileKind(NamedTuple):
    """A field of a message with a file, and the name and the type of a file for which Telegram names none."""

    field: str
    suffix: str
    media_type: str


_FILE_KINDS: Final = (
    _FileKind("voice", "oga", "audio/ogg"),
    _FileKind("video_note", "mp4", "video/mp4"),
    _FileKind("audio", "mp3", "audio/mpeg"),
    _FileKind("video", "mp4", "video/mp4"),
    # An animation is a document, too.
    _FileKind("document", "bin", ""),
)


def _read_files(message: telegram.Message) -> tuple[RemoteFile, ...]:
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        return (_make_file(message, largest, _FileKind("photo", "jpg", "image/jpeg")),)
    for kind in _FILE_KINDS:
        found = getattr(message, kind.field)
        if found:
            return (_make_file(message, found, kind),)
    return ()


def _make_file(message: telegram.Message, found: Any, kind: _FileKind) -> RemoteFile:  # noqa: ANN401  (six classes of the library)
    name = getattr(found, "file_name", None)
    media_type = getattr(found, "mime_type", None)
    return RemoteFile(
        id=to_one_line(found.file_id),
        name=clean_name(name or f"{kind.field}-{message.message_id}.{kind.suffix}"),
        size=int(found.file_size or 0),
        media_type=to_one_line(media_type or kind.media_type),
        is_voice=kind.field == "voice",
    )


_OTHER_CONTENTS: Final = (
    "story",
    "game",
    "checklist",
    "paid_media",
    "giveaway",
    "invoice",
)


def _describe_content(message: telegram.Message) -> str:
    """Return a line about the content that is neither a text nor a file."""
    line = ""
    if message.sticker:
        line = f"Sticker {message.sticker.emoji or ''}"
    elif message.venue:
        venue = message.venue
        place = _describe_place(venue.location)
        line = f"Location: {venue.title}, {venue.address}, {place}"
    elif message.location:
        line = f"Location: {_describe_place(message.location)}"
    elif message.contact:
        contact = message.contact
        name = f"{contact.first_name} {contact.last_name or ''}".strip()
        line = f"Contact: {name}, {contact.phone_number}"
    elif message.poll:
        options = " / ".join(option.text for option in message.poll.options)
        line = f"Poll: {message.poll.question} {options}"
    elif message.dice:
        line = f"Dice: {message.dice.emoji} {message.dice.value}"
    else:
        for name in _OTHER_CONTENTS:
            if getattr(message, name):
                line = name.replace("_", " ").capitalize()
    return f"[{_write_name(line)}]" if line else ""


def _describe_place(location: telegram.Location) -> str:
    return f"{location.latitude:.6f}, {location.longitude:.6f}"


# -- the text of a person ----------------------------------------------------------------


class _Words:
    """A text with entities. Offsets of Telegram count UTF-16 code units."""

    def __init__(self, text: str, entities: Iterable[telegram.MessageEntity]) -> None:
        self._units = text.encode("utf-16-le", "surrogatepass")
        inside = [entity for entity in entities if self._has(entity)]
        self.entities = sorted(inside, key=lambda entity: entity.offset)

    def _has(self, entity: telegram.MessageEntity) -> bool:
        end = entity.offset + entity.length
        return 0 <= entity.offset < end <= len(self._units) // 2

    def part(self, entity: telegram.MessageEntity) -> str:
        return self.between(entity.offset, entity.offset + entity.length)

    def between(self, start: int, end: int | None = None) -> str:
        units = self._units[2 * start : None if end is None else 2 * end]
        return units.decode("utf-16-le", "surrogatepass")


def _is_command_for(command: str, username: str) -> bool:
    """Return whether a command such as `/new` or `/new@my_bot` is for the bot."""
    bot = command.partition("@")[2]
    return not bot or bot.casefold() == username.casefold()


def _is_mention(
    words: _Words, entity: telegram.MessageEntity, bot_id: int, username: str
) -> bool:
    if entity.type == MessageEntityType.TEXT_MENTION:
        return entity.user is not None and entity.user.id == bot_id
    if entity.type != MessageEntityType.MENTION:
        return False
    return words.part(entity).casefold() == f"@{username}".casefold()


_AFTER_MENTION: Final = re.compile(r"[,:]?\s*")
_LANGUAGE: Final = re.compile(r"[\w+#.-]{1,32}")


def _write_markdown(words: _Words, bot_id: int, username: str) -> str:
    """Write code and hidden links as Markdown, and leave out the mentions of the bot."""
    text = ""
    position = 0
    for entity in words.entities:
        # An entity inside a written one is left out.
        if entity.offset < position:
            continue
        before = text + words.between(position, entity.offset)
        end = entity.offset + entity.length
        part = words.part(entity)
        match entity.type:
            case MessageEntityType.CODE:
                text = before + _write_code(part)
            case MessageEntityType.PRE:
                text = _write_fence(before, part, entity.language or "")
                if not words.between(end, end + 1).startswith("\n"):
                    text += "\n"
            case MessageEntityType.TEXT_LINK:
                text = before + _write_link(part, entity.url or "")
            case MessageEntityType.BOT_COMMAND if _is_command_for(part, username):
                text = before + part.partition("@")[0]
            case _ if _is_mention(words, entity, bot_id, username):
                text = before.rstrip(" ")
                if not text or text.endswith("\n"):
                    following = _AFTER_MENTION.match(words.between(end))
                    end += following.end() if following else 0
            case _:
                continue
        position = end
    return (text + words.between(position)).strip()


def _write_code(code: str) -> str:
    ticks = _fence_for(code, 1)
    space = " " if code.startswith("`") or code.endswith("`") else ""
    return f"{ticks}{space}{code}{space}{ticks}"


def _write_fence(before: str, code: str, language: str) -> str:
    start = "" if not before or before.endswith("\n") else "\n"
    ticks = _fence_for(code, 3)
    known = _LANGUAGE.fullmatch(language)
    shown = known[0] if known else ""
    return f"{before}{start}{ticks}{shown}\n{code.rstrip(chr(10))}\n{ticks}"


def _fence_for(code: str, ticks_min: int) -> str:
    """Return backticks that the code does not contain."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    return "`" * max(ticks_min, longest + 1)


def _write_link(label: str, url: str) -> str:
    shown = re.sub(r"([\\\[\]])", r"\\\1", label)
    target = quote(url, safe="%/:?#[]@!$&'*+,;=~-._")
    return f"[{shown}]({target})"


# -- requests ----------------------------------------------------------------------------


class _Failed(telegram.error.TelegramError):
    """A request without a result. `reason` has no token."""

    def __init__(
        self,
        reason: str,
        *,
        status: int = 0,
        may_have_acted: bool = True,
        parameters: _Parameters | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        """The status of an answer of the Bot API, else 0."""
        self.may_have_acted = may_have_acted
        self.parameters = parameters or _Parameters()


class _NotModified(ChannelRefused):
    """An edit changes nothing."""


class _EntitiesRefused(ChannelRefused):
    """The formatting of a text is refused."""


class _PictureRefused(ChannelRefused):
    """A file is refused as a picture."""


class _TapExpired(ChannelRefused):
    """A tap is too old to be answered."""


class _Case(NamedTuple):
    """A refusal that is recognised by words of the description, and what to do."""

    words: tuple[str, ...]
    error: type[ChannelRefused]
    advice: str


_CASES: Final = (
    _Case(("message is not modified",), _NotModified, "The message is as wanted."),
    # "Request Entity Too Large" is not about the entities of a text.
    _Case(("file is too big", "too large"), ChannelRefused, "Use a smaller file."),
    _Case(("file is gone", "file_id"), ChannelRefused, "Send the file again."),
    _Case(
        ("query is too old", "query_id_invalid"),
        _TapExpired,
        "Use the button again.",
    ),
    _Case(
        ("bot was blocked", "user is deactivated"),
        ChannelRefused,
        "Start the bot again in the chat.",
    ),
    _Case(
        ("kicked", "not a member", "chat not found", "initiate conversation"),
        ChannelRefused,
        "Add the bot to the chat again, or write to the bot first.",
    ),
    _Case(
        ("not enough rights", "need administrator", "chat_write_forbidden", "restrict"),
        ChannelRefused,
        "Allow the bot to write in the chat.",
    ),
    _Case(("to edit not found", "can't be edited"), ChannelRefused, "Send it again."),
    _Case(("thread not found", "topic_"), ChannelRefused, "Use an open topic."),
    _Case(("entit",), _EntitiesRefused, "Send it without formatting."),
    _Case(("photo", "image"), _PictureRefused, "Send it as a document."),
)
_OTHER_CASE: Final = _Case(
    (), ChannelRefused, "Check the message and the rights of the bot."
)


def _translate(failed: _Failed, doing: str, *, sends: bool) -> ChannelError:
    """Return what the caller learns about a failed request."""
    reason = failed.reason.rstrip(".")
    what = f"Telegram: cannot {doing}: {reason}."
    if failed.status == HTTPStatus.TOO_MANY_REQUESTS:
        seconds = failed.parameters.seconds_to_wait
        return FloodWait(f"{what} Try again in {seconds:g} seconds.", seconds)
    if 0 < failed.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return _translate_refusal(failed, what)
    if sends and failed.may_have_acted:
        return SendUncertain(
            f"Telegram: no answer to the request to {doing}: {reason}. Look into the chat before it is repeated."
        )
    return ChannelAway(f"{what} Wait, and check the network of this machine.")


def _translate_refusal(failed: _Failed, what: str) -> ChannelError:
    if failed.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND}:
        advice = "The token is not valid. Set the token that @BotFather shows."
        return NotAuthorized(f"{what} {advice}")
    if failed.status == HTTPStatus.CONFLICT:
        advice = "Stop the other program with this token, or use another bot."
        if "webhook" in failed.reason:
            advice = "Call the method deleteWebhook of the Bot API."
        return ReceivedElsewhere(f"{what} {advice}")
    new_chat = failed.parameters.migrate_to_chat_id
    if new_chat:
        advice = f"The new id of the chat is {new_chat}. Write to the bot there."
        return ChannelRefused(f"{what} {advice}")
    if "temporarily unavailable" in failed.reason:
        return ChannelAway(f"{what} Wait.")
    case = _find_case(failed.reason)
    return case.error(f"{what} {case.advice}")


def _find_case(reason: str) -> _Case:
    lower = reason.lower()
    for case in _CASES:
        if any(words in lower for words in case.words):
            return case
    return _OTHER_CASE


class _Parameters(msgspec.Struct, frozen=True):
    """The `ResponseParameters` of the Bot API."""

    retry_after: float = 0.0
    migrate_to_chat_id: int = 0

    @property
    def seconds_to_wait(self) -> float:
        if self.retry_after > 0:
            return min(self.retry_after, _FLOOD_SECONDS_MAX)
        return _FLOOD_SECONDS


class _Answer(msgspec.Struct, frozen=True):
    """An answer of the Bot API."""

    ok: bool
    result: Any = msgspec.UNSET
    description: str = ""
    parameters: _Parameters = _Parameters()


# With these errors the request was not sent.
_NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.InvalidURL,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class _Requests(BaseRequest):
    """Makes the requests of a bot. Raises `_Failed` for everything but a result."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        token: str,
        connect_seconds: float,
        request_seconds: float,
        file_seconds: float,
    ) -> None:
        self._token = token
        self._connect_seconds = connect_seconds
        self._request_seconds = request_seconds
        self._file_seconds = file_seconds
        self._client = httpx.AsyncClient(
            transport=transport, trust_env=False, headers={"user-agent": "tenax"}
        )

    @property
    def read_timeout(self) -> float:
        return self._request_seconds

    async def initialize(self) -> None:
        """Do nothing: the client is ready."""

    async def shutdown(self) -> None:
        await self._client.aclose()

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: object = BaseRequest.DEFAULT_NONE,
        write_timeout: object = BaseRequest.DEFAULT_NONE,
        connect_timeout: object = BaseRequest.DEFAULT_NONE,
        pool_timeout: object = BaseRequest.DEFAULT_NONE,
    ) -> tuple[int, bytes]:
        del write_timeout, connect_timeout, pool_timeout  # Nobody sets these.
        if self._client.is_closed:
            raise _Failed("the connections are closed", may_have_acted=False)
        is_download = method == "GET"
        has_file = request_data is not None and request_data.contains_files
        seconds = self._request_seconds
        if isinstance(read_timeout, int | float):
            seconds = read_timeout
        elif is_download or has_file:
            seconds = self._file_seconds
        timeout = httpx.Timeout(self._connect_seconds, read=seconds, write=seconds)
        try:
            request = self._client.build_request(
                method,
                url,
                data=request_data.json_parameters if request_data else None,
                files=request_data.multipart_data if request_data else None,
                timeout=timeout,
            )
            status, payload = await self._exchange(request)
        except _NOT_SENT as error:
            failed = _Failed(self._hide(describe_error(error)), may_have_acted=False)
        except (httpx.HTTPError, ssl.SSLError) as error:
            failed = _Failed(self._hide(describe_error(error)))
        else:
            judge = _judge_download if is_download else self._judge_answer
            outcome = judge(status, payload)
            if outcome is None:
                return status, payload
            failed = outcome
        # Outside of the `except`: the error of the library is not in the context of this one.
        raise failed

    async def _exchange(self, request: httpx.Request) -> tuple[int, bytes]:
        response = await self._client.send(request, stream=True)
        payload = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                payload += chunk
                if len(payload) > _TRAITS.fetch_bytes_max:
                    too_large = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                    raise _Failed("the file is too big", status=too_large)
        finally:
            await response.aclose()
        return response.status_code, bytes(payload)

    def _judge_answer(self, status: int, payload: bytes) -> _Failed | None:
        """Return the failure that an answer reports, or `None` for a result."""
        answer = _decode_answer(payload)
        if answer is None and status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            # The proxy in front of the Bot API answers with a page.
            return _Failed("the request is too large", status=status)
        if answer is None and status == HTTPStatus.TOO_MANY_REQUESTS:
            return _Failed("too many requests", status=status)
        if answer is None:
            # Nothing in between refuses a request that Telegram has already carried out.
            is_refused = (
                HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.INTERNAL_SERVER_ERROR
            )
            reason = f"the answer (status {status}) is not from the Bot API"
            return _Failed(reason, may_have_acted=not is_refused)
        if answer.ok and status == HTTPStatus.OK and answer.result is not msgspec.UNSET:
            return None
        reason = to_one_line(self._hide(answer.description)) or f"status {status}"
        if status < HTTPStatus.BAD_REQUEST:
            return _Failed(reason)
        return _Failed(reason, status=status, parameters=answer.parameters)

    def _hide(self, text: str) -> str:
        """Remove the token from a text of the server or the network."""
        # The part after the colon is the secret. In an address, the colon may be encoded.
        secret = self._token.partition(":")[2]
        return text.replace(self._token, "TOKEN").replace(secret, "TOKEN")


def _decode_answer(payload: bytes) -> _Answer | None:
    # Like the library: msgspec would refuse a whole batch for half a surrogate pair in a text.
    try:
        found = json.loads(payload.decode("utf-8", "replace"))
        return msgspec.convert(found, _Answer)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


def _judge_download(status: int, payload: bytes) -> _Failed | None:
    if status == HTTPStatus.OK:
        return None
    if status == HTTPStatus.NOT_FOUND:
        # For a method, this status means a wrong token.
        return _Failed("the file is gone", status=HTTPStatus.GONE)
    reason = f"the download has the status {status}"
    answer = _decode_answer(payload)
    if answer is None:
        # A page of a proxy says nothing about the file.
        return _Failed(reason)
    return _Failed(reason, status=status, parameters=answer.parameters)


class _TokenTransport(httpx.AsyncBaseTransport):
    """Replaces the false token in the address of a request."""

    def __init__(
        self, transport: httpx.AsyncBaseTransport, token: str, false_token: str
    ) -> None:
        self._transport = transport
        self._token = token.encode()
        self._false_token = false_token.encode()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.replace(self._false_token, self._token, 1)
        sent = httpx.Request(
            request.method,
            request.url.copy_with(raw_path=path),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await self._transport.handle_async_request(sent)

    async def aclose(self) -> None:
        await self._transport.aclose()


def _hide_tokens(record: logging.LogRecord) -> bool:
    """Remove tokens from a line of the log."""
    text = record.getMessage()
    hidden = _LOGGED_TOKEN.sub(r"\1:hidden", text)
    if hidden != text:
        record.msg, record.args = hidden, ()
    return True


def _make_transport(url: str) -> httpx.AsyncBaseTransport:
    # This logger logs the headers of an answer, and a redirect repeats the address. A filter is added only once.
    logging.getLogger("httpcore.http11").addFilter(_hide_tokens)
    limits = httpx.Limits(max_connections=_CONNECTIONS_MAX)
    try:
        return httpx.AsyncHTTPTransport(
            verify=trusted(), limits=limits, trust_env=False, proxy=_find_proxy(url)
        )
    except (ImportError, ValueError, httpx.InvalidURL):
        # The text of the error may contain the password of the proxy.
        reason = "Telegram: cannot use the proxy that HTTPS_PROXY or ALL_PROXY names. Set an address that begins with http://."
    raise ConfigError(reason)


def _find_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for an address. httpx does this only for its own transport."""
    parts = urlsplit(url)
    # A proxy cannot reach a loopback address of this machine.
    if is_loopback(url) or proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
