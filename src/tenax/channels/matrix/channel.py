"""An account on a Matrix homeserver, by its client API.

The token of `/sync` is the cursor: the homeserver gives the same events again until the caller asks with the next token.
A transaction id that was used before gives the event of the first request, for a day and for the same device. So the
device of the account stays the same for ever.

`Requests` makes the requests, `events` reads events, and `Crypto` (in `encryption`) has the keys of encrypted rooms.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from tenax.channels.base import (
    Batch,
    Button,
    Chat,
    Invited,
    OutgoingFile,
    Person,
    Piece,
    RemoteFile,
    Tapped,
    Traits,
    Update,
)
from tenax.channels.matrix.events import (
    Event,
    RoomView,
    describe_reply,
    is_addressed,
    read_deletion,
    read_edit,
    read_message,
    strip_mention,
    words_of,
)
from tenax.channels.matrix.format import Body, cut_text, render_bodies
from tenax.channels.matrix.keyring import KeyRing, decrypt_file, encrypt_file
from tenax.channels.matrix.requests import Refused, Requests, Times, path_of
from tenax.config.schema import ChannelSettings
from tenax.errors import (
    ChannelAway,
    ChannelError,
    ChannelRefused,
    ConfigError,
    FloodWait,
    InvalidInput,
    NotAuthorized,
)
from tenax.text import clean_name, make_storable, to_one_line

__all__ = ["MatrixChannel", "connect"]

log = logging.getLogger(__name__)

_MEGABYTE: Final = 1024 * 1024
_REPEATED: Final = "↻ "
_PAGE: Final = 100
_GAP_PAGES_MAX: Final = 200
"""After so many pages, the older messages of a gap are left out, and the log says so."""
_PLAIN_SECONDS: Final = 30.0
"""How long the answer counts that a room is not encrypted. A room becomes encrypted once, and stays so."""
_TYPING_MS: Final = 30_000
_ANSWERED_MAX: Final = 1000
_NO_KEY: Final = (
    "I cannot read a message: its key has not come. If the key comes later, I read the message then. Otherwise, write "
    "the message again."
)
_CHOICE: Final = "tenax.choice"
"""The field of a reaction of the bot: the choice for which the reaction stands."""
_RELATIONS: Final = (
    "/_matrix/client/v1/rooms/{room}/relations/{event}/m.annotation/m.reaction"
)
_FILTER: Final[dict[str, Any]] = {
    "presence": {"not_types": ["*"]},
    "account_data": {"not_types": ["*"]},
    "room": {
        "account_data": {"not_types": ["*"]},
        "ephemeral": {"not_types": ["*"]},
        "timeline": {"limit": _PAGE},
        "state": {
            "types": ["m.room.encryption", "m.room.member", "m.room.name"],
            "lazy_load_members": True,
        },
    },
}
_TIMES: Final = Times()
_TRAITS: Final = Traits(
    platform="Matrix",
    send_seconds=1.0,
    group_seconds=1.0,
    account_seconds=0.1,
    preview_seconds=3.0,
    file_bytes_max=50 * _MEGABYTE,
    fetch_bytes_max=50 * _MEGABYTE,
    typing_seconds=20.0,
    # Synapse forgets transaction ids after 24 hours.
    key_seconds=23 * 3600.0,
)


# -- the answer of /sync ---------------------------------------------------------------


class _Events(msgspec.Struct):
    events: list[Any] = []


class _Timeline(msgspec.Struct):
    events: list[Any] = []
    limited: bool = False
    prev_batch: str = ""


class _Joined(msgspec.Struct):
    timeline: _Timeline = msgspec.field(default_factory=_Timeline)
    state: _Events = msgspec.field(default_factory=_Events)


class _Invitation(msgspec.Struct):
    invite_state: _Events = msgspec.field(default_factory=_Events)


class _Rooms(msgspec.Struct):
    join: dict[str, _Joined] = {}
    invite: dict[str, _Invitation] = {}
    leave: dict[str, Any] = {}


class _Sync(msgspec.Struct):
    next_batch: str
    rooms: _Rooms = msgspec.field(default_factory=_Rooms)
    # The keys take these from the answer as it came. Here, their form is checked.
    to_device: _Events = msgspec.field(default_factory=_Events)
    device_lists: dict[str, list[str]] = {}
    device_one_time_keys_count: dict[str, int] = {}


class _Taken(NamedTuple):
    """The events of a room in the order in which they were sent, decoded and as they came."""

    events: list[tuple[Event, dict[str, Any]]]


def connect(settings: ChannelSettings) -> MatrixChannel:
    """Return the channel of an account. No request is made."""
    assert settings.token is not None
    label = settings.label
    if not settings.url or not settings.user or not settings.device:
        raise ConfigError(
            f"channels.{label} names no homeserver, no user or no device.",
            hint=f"Connect the account again with: tenax channel add matrix --label {label}",
        )
    return MatrixChannel(
        settings.token.reveal(),
        url=settings.url,
        user=settings.user,
        device=settings.device,
        folder=Path(settings.folder) if settings.folder else None,
    )


class MatrixChannel:
    """An account on Matrix. See `tenax.channels.base.Channel`.

    `folder` is where the keys of encrypted rooms are; without a folder encrypted rooms stay closed.
    """

    traits = _TRAITS

    def __init__(
        self,
        token: str,
        *,
        url: str,
        user: str,
        device: str,
        folder: Path | None = None,
        times: Times = _TIMES,
    ) -> None:
        token = token.strip()
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise InvalidInput(
                "Matrix: cannot use the access token: it has spaces or special characters. Connect the account again."
            )
        self.account = f"matrix:{user}"
        self.name = ""
        self.idle_seconds = times.poll + times.connect + times.request
        self._me = user
        self._device = device
        self._display_name = ""
        self._times = times
        self._requests = Requests(url, token, times)
        self._rooms: dict[str, RoomView] = {}
        self._keys = KeyRing(folder, user, device, self._requests, times.notice)
        self._answered_taps: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    async def open(self) -> None:
        found = await self._ask(
            self._requests.get(path_of("account", "whoami"), "sign in")
        )
        user, device = found.get("user_id"), found.get("device_id")
        if (user, device) != (self._me, self._device):
            raise NotAuthorized(
                f"Matrix: the access token belongs to {to_one_line(str(user)):.100} on the device "
                f"{to_one_line(str(device)):.40}, and the settings name {self._me} on {self._device}. Connect the "
                "account again."
            )
        self.name = self._me
        self._display_name = await self._fetch_display_name()

    async def _fetch_display_name(self) -> str:
        path = path_of("profile", self._me, "displayname")
        # A homeserver may show no profiles. Then only the id is a mention.
        try:
            found = await self._requests.get(path, "read the own name")
        except (ChannelRefused, FloodWait):
            return ""
        name = found.get("displayname")
        return to_one_line(name) if isinstance(name, str) else ""

    async def close(self) -> None:
        self._keys.close()
        await self._requests.close()

    # -- receiving -----------------------------------------------------------------------

    async def receive(self, cursor: str) -> AsyncGenerator[Batch]:
        await self._keys.open()
        while True:
            raw, answer = await self._sync(cursor)
            await self._keys.take(raw, cursor)
            updates = await self._read_waiting()
            for room_id in [*answer.rooms.leave, *answer.rooms.invite]:
                self._rooms.pop(room_id, None)
            for room_id, invitation in answer.rooms.invite.items():
                updates += self._read_invitation(room_id, invitation)
            for room_id, joined in answer.rooms.join.items():
                events = _decode_all(joined.timeline.events)
                self._note_changes(room_id, _decode_all(joined.state.events))
                if not cursor:
                    # The first start: the history of the rooms is no news.
                    self._note_changes(room_id, events)
                    continue
                if joined.timeline.limited:
                    pages = self._fill_gap(room_id, joined.timeline.prev_batch, cursor)
                    async for page in pages:
                        events = page + events
                        # The line is alive.
                        yield Batch((), cursor)
                self._note_changes(room_id, events)
                updates += await self._read_all(room_id, self._since_invited(events))
            await self._tell_of_waiting()
            yield Batch(tuple(updates), answer.next_batch)
            # The caller has stored the batch.
            self._keys.forget()
            cursor = answer.next_batch

    async def _read_waiting(self) -> list[Update]:
        """Return the messages whose key has come now."""
        found: list[Update] = []
        for waiting, event in self._keys.readable():
            found += await self._read_all(waiting.room, [event])
        return found

    async def _tell_of_waiting(self) -> None:
        """Tell people once that a message cannot be read."""
        for room_id, event_id in self._keys.rooms_to_notice().items():
            content = {"msgtype": "m.notice", "body": _NO_KEY}
            key = _digest("no key", event_id)
            try:
                await self._send(
                    room_id, "m.room.message", content, key, "send a notice"
                )
            except ChannelError as error:
                log.info("%s", error)
            else:
                self._keys.note_noticed(room_id)

    async def _sync(self, cursor: str) -> tuple[dict[str, Any], _Sync]:
        parameters: dict[str, Any] = {
            "filter": msgspec.json.encode(_FILTER).decode(),
            "timeout": int(self._times.poll * 1000) if cursor else 0,
        }
        if cursor:
            parameters["since"] = cursor
        request = self._requests.get(
            path_of("sync"), "receive messages", parameters, seconds=self._times.poll
        )
        answer = await self._ask(request)
        try:
            return answer, msgspec.convert(answer, _Sync)
        except msgspec.ValidationError:
            pass
        raise ChannelAway(
            "Matrix: cannot receive messages: the answer has an unknown form. Wait, and check the address of the "
            "homeserver."
        )

    async def _fill_gap(
        self, room_id: str, begin: str, until: str
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        """Yield the pages of events that `/sync` has left out, the newest page first, each in order."""
        path = path_of("rooms", room_id, "messages")
        for _ in range(_GAP_PAGES_MAX):
            parameters = {"dir": "b", "from": begin, "to": until, "limit": _PAGE}
            request = self._requests.get(path, "read missed messages", parameters)
            try:
                answer = await request
            except ChannelRefused as error:
                log.warning("%s", error)
                return
            found = answer.get("chunk")
            chunk = _decode_all(found if isinstance(found, list) else [])
            yield chunk[::-1]
            following = answer.get("end")
            if not isinstance(following, str) or not chunk or following == begin:
                return
            begin = following
        log.warning(
            "Matrix: a gap in the room %s is too long: messages older than %d were left out.",
            room_id,
            _GAP_PAGES_MAX * _PAGE,
        )

    def _note_changes(self, room_id: str, events: Iterable[dict[str, Any]]) -> None:
        """Forget what events of a room have changed."""
        kinds = {event.get("type") for event in events if "state_key" in event}
        view = self._rooms.get(room_id)
        if view is None:
            return
        if "m.room.encryption" in kinds:
            view.is_encrypted = True
        if kinds & {"m.room.member", "m.room.name"}:
            view.names = {}

    def _since_invited(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the events after the last invitation, if the account has joined in between."""
        for number in range(len(events) - 1, -1, -1):
            if _membership(events[number], self._me) == "invite":
                return events[number + 1 :]
        return events

    async def _read_all(
        self, room_id: str, events: Iterable[dict[str, Any]]
    ) -> list[Update]:
        found: list[Update] = []
        for raw in events:
            try:
                readable = self._keys.decrypt(room_id, raw)
                if readable is None:
                    continue
                event = msgspec.convert(readable, Event)
                update = await self._read(room_id, event)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # The text of the error may quote the message.
                log.warning(
                    "Matrix: cannot read an event of %s: %s.",
                    room_id,
                    type(error).__name__,
                )
                continue
            if update is not None:
                found.append(update)
        return found

    async def _read(self, room_id: str, event: Event) -> Update | None:
        """Return what an event means, or `None` if there is nothing to do."""
        if event.sender == self._me or event.state_key is not None:
            return None
        if event.type == "m.room.redaction":
            view = await self._view(room_id)
            return read_deletion(event, view.chat(self._me)) if event.redacted else None
        if event.type == "m.reaction":
            return await self._read_reaction(room_id, event)
        is_notice = event.text("msgtype") == "m.notice"
        if event.type != "m.room.message" or is_notice:
            return None
        view = await self._view(room_id)
        chat, sender = view.chat(self._me), view.person(event.sender)
        if event.replaces:
            return await self._read_edit(event, chat, sender)
        return await self._read_message(event, chat, sender)

    async def _read_message(
        self, event: Event, chat: Chat, sender: Person
    ) -> Update | None:
        text = words_of(event.content)
        addressed = is_addressed(event.content, text, self._me, self._display_name)
        text = strip_mention(text, self._me, self._display_name)
        if event.replies_to:
            replied = await self._event(chat.id, event.replies_to)
            if replied is not None and replied.sender == self._me:
                addressed = True
            elif replied is not None:
                text = describe_reply(text, words_of(replied.content))
        return read_message(event, chat, sender, text, addressed=addressed)

    async def _read_edit(
        self, event: Event, chat: Chat, sender: Person
    ) -> Update | None:
        content = event.content.get("m.new_content")
        changed = await self._event(chat.id, event.replaces)
        # Anybody can send an edit of a foreign message. Matrix leaves the check to the readers.
        is_own = changed is not None and changed.sender == event.sender
        if not is_own or not isinstance(content, dict):
            return None
        text = strip_mention(words_of(content), self._me, self._display_name)
        return read_edit(event, chat, sender, text)

    async def _read_reaction(self, room_id: str, event: Event) -> Update | None:
        """Return the choice for which a reaction stands: the bot has reacted with the same emoji."""
        message, emoji = event.annotates, event.relation.get("key")
        if not message or not isinstance(emoji, str):
            return None
        path = _RELATIONS.format(
            room=quote(room_id, safe=""), event=quote(message, safe="")
        )
        try:
            answer = await self._requests.get(
                path, "read the reactions", {"limit": _PAGE}
            )
        except ChannelRefused:
            return None
        for raw in _decode_all(answer.get("chunk")):
            own = msgspec.convert(raw, Event)
            choice = own.text(_CHOICE)
            is_same = _same_emoji(own.relation.get("key"), emoji)
            if own.sender == self._me and choice and is_same:
                view = await self._view(room_id)
                return Tapped(
                    id=f"c:{event.event_id}",
                    chat=view.chat(self._me),
                    sender=view.person(event.sender),
                    message=message,
                    choice=choice,
                )
        return None

    def _read_invitation(self, room_id: str, invitation: _Invitation) -> list[Update]:
        """Return the invitation to a room. Only a private room with two people counts as a private chat."""
        states = _decode_all(invitation.invite_state.events)
        own = [event for event in states if _membership(event, self._me) == "invite"]
        sender = own[-1].get("sender") if own else None
        if not isinstance(sender, str):
            return []
        is_direct = own[-1]["content"].get("is_direct") is True
        is_public = any(
            _content_of(event, "m.room.join_rules").get("join_rule") == "public"
            for event in states
        )
        chat = Chat(room_id, is_group=is_public or not is_direct)
        return [Invited(f"i:{room_id}", chat, Person(sender, sender))]

    async def join(self, invitation: Invited, *, is_known: bool) -> None:
        """Accept an invitation. A private chat with a stranger must have no third person."""
        room_id = invitation.chat.id
        try:
            await self._requests.post(
                path_of("rooms", room_id, "join"), {}, "join a room"
            )
            view = await self._view(room_id)
            if not is_known and view.chat(self._me).is_group:
                log.warning("Left %s: a stranger has invited to a group.", room_id)
                self._rooms.pop(room_id, None)
                path = path_of("rooms", room_id, "leave")
                await self._requests.post(path, {}, "leave a room")
        except ChannelRefused as error:
            log.warning("%s", error)

    # -- rooms ---------------------------------------------------------------------------

    async def _view(self, room_id: str) -> RoomView:
        """Return what is known of a room. Asks the homeserver after a change."""
        view = self._rooms.get(room_id)
        if view is not None and view.names:
            return view
        view = view or RoomView(room_id)
        try:
            path = path_of("rooms", room_id, "joined_members")
            found = await self._requests.get(path, "read the people of a room")
            view.names = _read_names(found.get("joined"))
            view.title = await self._fetch_title(room_id)
        except ChannelRefused as error:
            # The account is not in the room any more. Nobody knows who reads the room.
            log.info("%s", error)
            return RoomView(room_id)
        self._rooms[room_id] = view
        return view

    async def _fetch_title(self, room_id: str) -> str:
        path = path_of("rooms", room_id, "state", "m.room.name")
        try:
            found = await self._requests.get(path, "read the name of a room")
        except ChannelRefused:
            return ""
        name = found.get("name")
        return to_one_line(make_storable(name)) if isinstance(name, str) else ""

    async def _is_encrypted(self, room_id: str) -> bool:
        """Return whether a room is encrypted. Raises an error if nobody can know."""
        view = self._rooms.setdefault(room_id, RoomView(room_id))
        now = time.monotonic()
        if view.is_encrypted or 0 < now - view.checked_at < _PLAIN_SECONDS:
            return view.is_encrypted
        path = path_of("rooms", room_id, "state", "m.room.encryption")
        try:
            await self._requests.get(path, "read whether a room is encrypted")
        except Refused as error:
            if error.code != "M_NOT_FOUND":
                raise
            view.checked_at = now
            return False
        view.is_encrypted = True
        return True

    async def _event(self, room_id: str, event_id: str) -> Event | None:
        """Return an event of a room, or `None` if the account cannot see the event."""
        path = path_of("rooms", room_id, "event", event_id)
        try:
            found = await self._requests.get(path, "read a message")
            # The sender counts, also if the words cannot be read.
            readable = self._keys.decrypt(room_id, found, keep=False) or found
            return msgspec.convert(readable, Event)
        except (ChannelRefused, msgspec.ValidationError, ValueError):
            return None

    # -- rendering -----------------------------------------------------------------------

    def render(self, markdown: str) -> list[Piece]:
        return [Piece(body.text, body) for body in render_bodies(markdown)]

    def mark_repeated(self, piece: Piece) -> Piece:
        body: Body = piece.body
        html = f"{_REPEATED}{body.html}" if body.html else ""
        marked = Body(_REPEATED + body.text, html)
        return Piece(marked.text, marked)

    def shorten(self, piece: Piece, chars: int) -> Piece:
        text = piece.text
        if len(text) > chars:
            cut = next(cut_text(text, chars - 1)) if chars > 1 else ""
            text = f"{cut.rstrip()}…"
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
        content = _to_content(_with_legend(piece.body, buttons))
        if reply_to:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
        doing = f"send a message to {chat.id}"
        message = await self._send(chat.id, "m.room.message", content, key, doing)
        await self._add_buttons(chat, message, buttons)
        return message

    async def edit(
        self, chat: Chat, message: str, piece: Piece, *, buttons: Sequence[Button] = ()
    ) -> None:
        changed = _to_content(_with_legend(piece.body, buttons))
        content = {
            "msgtype": "m.text",
            # Only programs that know no edits show this.
            "body": f"* {piece.text[:_PAGE]}",
            "m.new_content": changed,
            "m.relates_to": {"rel_type": "m.replace", "event_id": message},
        }
        doing = f"edit a message in {chat.id}"
        # An edit to an earlier text must not be taken for a repetition of the earlier edit.
        key = uuid.uuid4().hex
        await self._send(chat.id, "m.room.message", content, key, doing)
        await self._add_buttons(chat, message, buttons)

    async def _add_buttons(
        self, chat: Chat, message: str, buttons: Sequence[Button]
    ) -> None:
        """React with the emojis of the buttons. A person answers with a tap on one of them."""
        for button in buttons:
            relation = {
                "rel_type": "m.annotation",
                "event_id": message,
                "key": button.emoji,
            }
            content = {"m.relates_to": relation, _CHOICE: button.choice}
            key = _digest(message, button.choice)
            path = path_of("rooms", chat.id, "send", "m.reaction", key)
            await self._requests.put(path, content, f"add a reaction in {chat.id}")

    async def _send(
        self, room_id: str, kind: str, content: dict[str, Any], key: str, doing: str
    ) -> str:
        """Send an event and return its id. An encrypted room gets no readable event."""
        if await self._is_encrypted(room_id):
            view = await self._view(room_id)
            content = await self._keys.encrypt(room_id, view.names, kind, content)
            kind = "m.room.encrypted"
        path = path_of("rooms", room_id, "send", kind, key)
        answer = await self._requests.put(path, content, doing)
        event_id = answer.get("event_id")
        if not isinstance(event_id, str):
            raise ChannelAway(
                f"Matrix: cannot {doing}: the answer has an unknown form. Wait."
            )
        return event_id

    async def send_file(self, chat: Chat, file: OutgoingFile, *, key: str) -> str:
        name = clean_name(file.name)
        doing = f"send the file {name} to {chat.id}"
        if len(file.data) > _TRAITS.file_bytes_max:
            raise ChannelRefused(
                f"Matrix: cannot {doing}: it has more than {_TRAITS.file_bytes_max:,} bytes. Send a smaller file."
            )
        content: dict[str, Any] = {
            "msgtype": "m.image" if file.is_picture else "m.file",
            "body": name,
            "filename": name,
            "info": {"mimetype": file.media_type, "size": len(file.data)},
        }
        path = "/_matrix/media/v3/upload"
        if await self._is_encrypted(chat.id):
            data, secrets = encrypt_file(file.data)
            kind = "application/octet-stream"
            answer = await self._requests.upload(path, data, kind, "", doing)
            content["file"] = {**secrets, "url": answer.get("content_uri")}
        else:
            answer = await self._requests.upload(
                path, file.data, file.media_type, name, doing
            )
            content["url"] = answer.get("content_uri")
        return await self._send(chat.id, "m.room.message", content, key, doing)

    async def find(self, chat: Chat, key: str, since: float) -> str | None:
        del chat, key, since  # The homeserver recognises the key.
        return None

    async def answer_tap(self, tap: Tapped, text: str) -> None:
        """Answer under the message with the reactions, every person once with the same words."""
        known = (tap.message, tap.sender.id, text)
        if known in self._answered_taps:
            return
        self._answered_taps[known] = None
        if len(self._answered_taps) > _ANSWERED_MAX:
            self._answered_taps.popitem(last=False)
        relation = {"m.in_reply_to": {"event_id": tap.message}}
        content = {"msgtype": "m.notice", "body": text, "m.relates_to": relation}
        key = _digest(tap.id)
        await self._send(
            tap.chat.id, "m.room.message", content, key, "answer a reaction"
        )

    async def show_typing(self, chat: Chat) -> None:
        path = path_of("rooms", chat.id, "typing", self._me)
        content = {"typing": True, "timeout": _TYPING_MS}
        await self._requests.put(path, content, "show the typing sign", sends=False)

    # -- files ---------------------------------------------------------------------------

    async def fetch(self, file: RemoteFile) -> bytes:
        doing = f"fetch the file {to_one_line(file.name)}"
        try:
            source = msgspec.json.decode(file.id)
            server, _, media = source["url"].removeprefix("mxc://").partition("/")
        except (msgspec.MsgspecError, LookupError, TypeError, AttributeError):
            server = media = ""
        if not server or not media or "/" in media:
            raise ChannelRefused(
                f"Matrix: cannot {doing}: it has no address. Send the file again."
            )
        where = f"{quote(server, safe=':')}/{quote(media, safe='')}"
        path = f"/_matrix/client/v1/media/download/{where}"
        data = await self._requests.download(path, doing, _TRAITS.fetch_bytes_max)
        if "key" not in source:
            return data
        try:
            return decrypt_file(data, source)
        except ValueError:
            pass
        raise ChannelRefused(
            f"Matrix: cannot {doing}: it was changed on the way, or its key is wrong. Send the file again."
        )

    # -- failures ------------------------------------------------------------------------

    async def _ask(self, request: Any) -> Any:  # noqa: ANN401  (JSON)
        """Make a request that has nothing to refuse: a refusal is a failure of the homeserver."""
        try:
            return await request
        except ChannelRefused as refused:
            reason = str(refused)
        raise ChannelAway(reason)


def _decode_all(events: object) -> list[dict[str, Any]]:
    """Return the events that are objects."""
    if not isinstance(events, list):
        return []
    return [event for event in events if isinstance(event, dict)]


def _content_of(event: dict[str, Any], kind: str) -> dict[str, Any]:
    content = event.get("content")
    return content if event.get("type") == kind and isinstance(content, dict) else {}


def _membership(event: dict[str, Any], user: str) -> str:
    """Return the new membership of a user, if the event is about the user."""
    if event.get("state_key") != user:
        return ""
    return str(_content_of(event, "m.room.member").get("membership", ""))


def _read_names(members: object) -> dict[str, str]:
    if not isinstance(members, dict):
        return {}
    found = {}
    for user, profile in members.items():
        name = profile.get("display_name") if isinstance(profile, dict) else None
        shown = to_one_line(make_storable(name)) if isinstance(name, str) else ""
        found[str(user)] = shown or str(user)
    return found


def _same_emoji(one: object, other: str) -> bool:
    """Compare emojis. Programs disagree about the mark for a coloured emoji."""
    return isinstance(one, str) and one.replace("\ufe0f", "") == other.replace(
        "\ufe0f", ""
    )


def _to_content(body: Body) -> dict[str, Any]:
    content: dict[str, Any] = {"msgtype": "m.text", "body": body.text}
    if body.html:
        content["format"] = "org.matrix.custom.html"
        content["formatted_body"] = body.html
    return content


def _with_legend(body: Body, buttons: Sequence[Button]) -> Body:
    """Return a message that says what the reactions below it stand for."""
    if not buttons:
        return body
    lines = [f"{button.emoji} {button.label}" for button in buttons]
    text = "\n".join([body.text, "", *lines])
    if not body.html:
        return Body(text)
    items = "<br>".join(escape(line) for line in lines)
    return Body(text, f"{body.html}\n<p>{items}</p>")


def _digest(*parts: str) -> str:
    """Return a transaction id: the same for the same parts."""
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
