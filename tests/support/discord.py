"""A fake of Discord that keeps the rules of the real server.

    with FakeDiscord() as discord:
        discord.say("hello")
        # A bot: DiscordChannel(discord.token, base_url=discord.url)
        discord.wait_for(lambda: discord.messages()[-1].from_bot)

The server runs in a daemon thread with its own event loop, so asyncio tests and tests that kill processes use the same
class. Every public method can be called from any thread.

The rules come from the documentation of Discord's API (version 10) and from the source of discord.py 2.7.1. No live
Discord was asked. The rules:

- The socket: HELLO, IDENTIFY, READY, GUILD_CREATE, heartbeats. RESUME repeats the events after a sequence number while the
  session lives, and is else answered with INVALID_SESSION. A session ends with a close code of 1000 or 1001. A bot gets only
  the events of its intents. The number of IDENTIFYs is limited.
- A `nonce` with `enforce_nonce` gives the earlier message of the bot while the window lasts. Old messages show no nonce.
- `?after=` gives the messages that follow an id, the newest first, at most 100 at a time.
- Buckets of 5 requests in 5 seconds, for each chat: one for new messages, one for edits. And 50 requests in a second for
  the bot. The headers say what is left.
- An interaction is answered within 3 seconds, and once.
- A bot edits only its own messages, and cannot list its private chats.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import itertools
import json
import threading
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import aiohttp
from aiohttp import web

from tests.support.served import kept_port

__all__ = [
    "ADA",
    "BOB",
    "Attachment",
    "Call",
    "FakeDiscord",
    "Fault",
    "Message",
    "Person",
]

T = TypeVar("T")
Json = dict[str, Any]
When = Literal["before", "after"]

SECONDS: Final = 30.0
"""The default time limit of a wait."""
EPOCH_MS: Final = 1_420_070_400_000
BOT_ID: Final = 1_000_000_000_000_000_001
TEXT_CHARS: Final = 2000
NONCE_CHARS: Final = 25
UPLOAD_BYTES: Final = 10 << 20
PAGE_MAX: Final = 100
TAP_SECONDS: Final = 3.0
EVENTS_KEPT: Final = 2000
INTENT_GUILDS: Final = 1 << 0
INTENT_GUILD_MESSAGES: Final = 1 << 9
INTENT_DIRECT_MESSAGES: Final = 1 << 12
INTENT_CONTENT: Final = 1 << 15
CONTENT_FLAG: Final = 1 << 19
_RECHECK_SECONDS: Final = 0.1
_CALLS_SHOWN: Final = 20
_PERMISSIONS: Final = str((1 << 10) | (1 << 11) | (1 << 16))
"""To see channels, to write, and to read old messages."""


# -- values ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Person:
    """A user of Discord."""

    id: int
    name: str
    username: str = ""
    is_bot: bool = False

    def json(self) -> Json:
        return {
            "id": str(self.id),
            "username": self.username or self.name.lower(),
            "global_name": self.name,
            "discriminator": "0",
            "avatar": None,
            "bot": self.is_bot,
        }


ADA: Final = Person(7001, "Ada", "ada_lovelace")
"""The sender and the private chat wherever a test names none."""
BOB: Final = Person(7002, "Bob", "bob_noyce")


@dataclass(frozen=True)
class Attachment:
    """A file that a person sends."""

    name: str
    data: bytes
    content_type: str = "application/octet-stream"
    size: int | None = None
    """The size that Discord claims. By default, the true one."""
    is_voice: bool = False


@dataclass
class Message:
    """A message as the chat shows it."""

    id: int
    chat: int
    sender: Person
    from_bot: bool
    text: str
    guild: int = 0
    nonce: str = ""
    created_at: float = 0.0
    buttons: list[tuple[str, str]] = field(default_factory=list)
    """Label and `custom_id` of the buttons."""
    texts: list[str] = field(default_factory=list)
    """Every text that the message has had, the present text last."""
    deleted: bool = False
    reply_to: int = 0
    mentions: tuple[Person, ...] = ()
    files: list[tuple[int, Attachment]] = field(default_factory=list)
    flags: int = 0
    type: int = 0
    webhook: int = 0
    more: Json = field(default_factory=dict)

    @property
    def edits(self) -> int:
        return len(self.texts) - 1


@dataclass
class Call:
    """A request of the bot."""

    number: int
    method: str
    parameters: Json
    at: float
    """The arrival, by the clock of the fake."""
    chat: int = 0
    outcome: str = "under way"

    @property
    def text(self) -> str:
        return str(self.parameters.get("content", ""))

    def describe(self) -> str:
        chat = f" chat={self.chat}" if self.chat else ""
        text = f" {self.text[:60]!r}" if self.text else ""
        return f"{self.number} {self.method}{chat}{text}: {self.outcome}"


class _Refused(Exception):
    """A request that Discord refuses."""

    def __init__(self, status: int, code: int, message: str, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"code": code, "message": message, **more}
        self.headers: dict[str, str] = {}


def _bad(message: str) -> _Refused:
    return _Refused(400, 50035, f"Invalid Form Body: {message}")


def _flooded(seconds: float, *, everywhere: bool = False) -> _Refused:
    refused = _Refused(
        429,
        0,
        "You are being rate limited.",
        retry_after=seconds,
        **{"global": everywhere},
    )
    refused.headers = {"retry-after": str(max(1, round(seconds)))}
    return refused


# -- chats -------------------------------------------------------------------------------


@dataclass
class _Chat:
    id: int
    name: str = ""
    guild: int = 0
    parent: int = 0
    """The channel of a thread."""
    person: Person | None = None
    is_blocked: bool = False
    messages: dict[int, Message] = field(default_factory=dict)

    def json(self) -> Json:
        last = max(self.messages, default=0)
        found: Json = {
            "id": str(self.id),
            "last_message_id": str(last) if last else None,
        }
        if self.person is not None:
            return {**found, "type": 1, "recipients": [self.person.json()]}
        found |= {"guild_id": str(self.guild), "name": self.name}
        if self.parent:
            metadata = {
                "archived": False,
                "auto_archive_duration": 60,
                "archive_timestamp": "2026-01-01T00:00:00+00:00",
                "locked": False,
            }
            return found | {
                "type": 11,
                "parent_id": str(self.parent),
                "owner_id": str(ADA.id),
                "message_count": len(self.messages),
                "member_count": 1,
                "thread_metadata": metadata,
            }
        return found | {
            "type": 0,
            "position": 0,
            "permission_overwrites": [],
            "nsfw": False,
        }


@dataclass
class _Guild:
    id: int
    name: str
    role: int
    """The role of the bot."""
    channels: list[int] = field(default_factory=list)


@dataclass
class _Session:
    """A session of the socket. It lives on for a while without a connection."""

    id: str
    intents: int
    number: int = 0
    events: deque[tuple[int, Json]] = field(
        default_factory=lambda: deque(maxlen=EVENTS_KEPT)
    )
    connection: _Connection | None = None
    cut_at: float = 0.0


class _Connection:
    """A socket that is open."""

    def __init__(self, socket: web.WebSocketResponse, *, compressed: bool) -> None:
        self.socket = socket
        self.queue: asyncio.Queue[Json] = asyncio.Queue()
        self.transport: Any = None
        self._compressor = zlib.compressobj() if compressed else None

    async def write(self) -> None:
        """Send what is queued, one after the other."""
        while True:
            text = json.dumps(await self.queue.get())
            if self._compressor is None:
                await self.socket.send_str(text)
                continue
            data = self._compressor.compress(text.encode())
            await self.socket.send_bytes(
                data + self._compressor.flush(zlib.Z_SYNC_FLUSH)
            )


class Fault:
    """What goes wrong with requests of a method."""

    def __init__(
        self,
        kind: Literal["answer", "cut", "hold", "wait", "call"],
        method: str,
        when: When,
        times: int | None,
        *,
        chat: int = 0,
        refused: _Refused | None = None,
        text: str = "",
        seconds: float = 0.0,
        callback: Callable[[Call], object] | None = None,
    ) -> None:
        self.kind = kind
        self.when = when
        self.refused = refused
        self.text = text
        self.seconds = seconds
        self.callback = callback
        self.count = 0
        self._method = method
        self._times = times
        self._chat = chat
        self.is_over = False

    def release(self) -> None:
        """End the fault. Requests that it holds go on."""
        self.is_over = True

    def matches(self, call: Call, when: When) -> bool:
        if self.is_over or when != self.when:
            return False
        if self._times is not None and self.count >= self._times:
            return False
        if self._chat and self._chat != call.chat:
            return False
        return self._method in {"", call.method}


class _Cut(Exception):
    """A connection that is cut."""


# -- the server --------------------------------------------------------------------------


class FakeDiscord:
    """A Discord on 127.0.0.1 for one bot. See the description of the module.

    `clock` gives the time for rate limits, sessions and the times in `Call`.
    """

    bot_id: Final = BOT_ID
    username: Final = "tenax_test_bot"
    token: Final = ".".join(
        (
            base64.b64encode(str(BOT_ID).encode()).decode().rstrip("="),
            "Gtest_",
            "x" * 38,
        )
    )

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.log: list[Call] = []
        """Every request, in the order of arrival. `socket` is a connection of the socket."""
        self.nonce_seconds = 300.0
        self.session_seconds = 45.0
        self.heartbeat_seconds = 41.25
        self.may_read_content = True
        self.identifies_left = 1000
        self.answers_heartbeats = True
        self.signs: list[str] = []
        """IDENTIFY, RESUME and INVALID_SESSION, in their order."""
        self.sockets_max = 0
        """The largest number of sessions that had a connection at the same time."""
        self.typing: list[int] = []
        self.tap_answers: dict[int, str] = {}
        """By interaction, the text that the person sees."""
        self._clock = clock
        self._bot = Person(BOT_ID, "Tenax", self.username, is_bot=True)
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._version = 0
        self._last_id = 0
        self._chats: dict[int, _Chat] = {}
        self._guilds: dict[int, _Guild] = {}
        self._sessions: dict[str, _Session] = {}
        self._taps: dict[int, tuple[str, float]] = {}
        self._faults: list[Fault] = []
        self._limits: dict[str, tuple[int, float]] = {
            "create": (5, 5.0),
            "edit": (5, 5.0),
            "all": (50, 1.0),
        }
        self._spent: dict[tuple[str, int], deque[float]] = defaultdict(deque)
        self._numbers = itertools.count(1)
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._thread = threading.Thread(
            target=self._run, name="fake-discord", daemon=True
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
        self.clear_faults()
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(SECONDS)
        self._place.close()

    # -- what people do ----------------------------------------------------------------

    def add_person(self, person: Person = ADA) -> int:
        """Open the private chat of a person. Return the id of the chat."""
        with self._changing():
            return self._direct(person).id

    def chat_of(self, person: Person = ADA) -> int:
        """Return the id of the private chat of a person."""
        return self.add_person(person)

    def add_channel(self, name: str = "general", *, parent: int = 0) -> int:
        """Add a server with a channel, or a thread to a channel. Return the id of the channel."""
        with self._changing():
            if parent:
                guild = self._guilds[self._chats[parent].guild]
            else:
                guild = _Guild(self._next_id(), f"Server of {name}", self._next_id())
                self._guilds[guild.id] = guild
            chat = _Chat(self._next_id(), name, guild.id, parent)
            self._chats[chat.id] = chat
            guild.channels.append(chat.id)
            if parent:
                self._dispatch("THREAD_CREATE", chat.json(), INTENT_GUILDS)
            else:
                self._dispatch("GUILD_CREATE", self._guild_json(guild), INTENT_GUILDS)
            return chat.id

    def role_of(self, chat: int) -> int:
        """Return the bot's own role in the server of a channel."""
        with self._lock:
            return self._guilds[self._chats[chat].guild].role

    def say(
        self,
        text: str = "",
        *,
        sender: Person = ADA,
        chat: int = 0,
        reply_to: int = 0,
        mention: bool = False,
        files: Sequence[Attachment] = (),
        webhook: int = 0,
        type: int | None = None,  # noqa: A002  (the name of the API)
        silent: bool = False,
        **more: Any,
    ) -> int:
        """Write a message as a person. Return its id.

        Without a chat, the message goes to the private chat of the sender. `mention` begins the text with the bot. `silent`
        sends no event, as if the socket had lost it.
        """
        with self._changing():
            found = self._chats[chat] if chat else self._direct(sender)
            own = f"<@{BOT_ID}>"
            if mention:
                text = f"{own} {text}"
            message = Message(
                self._next_id(),
                found.id,
                sender,
                False,
                text,
                guild=found.guild,
                reply_to=reply_to,
                mentions=(self._bot,) if own in text else (),
                files=[(self._next_id(), file) for file in files],
                flags=(1 << 13) if any(file.is_voice for file in files) else 0,
                type=(19 if reply_to else 0) if type is None else type,
                webhook=webhook,
                more=more,
            )
            message.texts.append(text)
            found.messages[message.id] = message
            if not silent:
                self._dispatch_message("MESSAGE_CREATE", message)
            return message.id

    def edit(self, message: int, text: str) -> None:
        """Edit a message as its author."""
        with self._changing():
            found = self._find(message)
            found.text = text
            found.texts.append(text)
            self._dispatch_message("MESSAGE_UPDATE", found)

    def unfurl(self, message: int) -> None:
        """Report the preview of a link in a message, which is no edit."""
        with self._changing():
            self._dispatch_message("MESSAGE_UPDATE", self._find(message))

    def delete(self, *messages: int) -> None:
        """Delete messages as a person."""
        with self._changing():
            found = [self._find(message) for message in messages]
            for message in found:
                message.deleted = True
            place: Json = {"channel_id": str(found[0].chat)}
            if found[0].guild:
                place["guild_id"] = str(found[0].guild)
            intent = _intent_of(found[0].guild)
            if len(found) == 1:
                self._dispatch(
                    "MESSAGE_DELETE", {"id": str(messages[0]), **place}, intent
                )
            else:
                ids = [str(message) for message in messages]
                self._dispatch("MESSAGE_DELETE_BULK", {"ids": ids, **place}, intent)

    def tap(
        self,
        message: int,
        label: str = "",
        *,
        custom_id: str = "",
        sender: Person = ADA,
    ) -> int:
        """Use a button of the bot's message. Return the id of the interaction."""
        with self._changing():
            found = self._find(message)
            if not custom_id:
                custom_id = dict(found.buttons)[label]
            number = self._next_id()
            token = f"tap-token-{number}"
            self._taps[number] = (token, self._clock())
            data: Json = {
                "id": str(number),
                "application_id": str(BOT_ID),
                "type": 3,
                "token": token,
                "version": 1,
                "channel_id": str(found.chat),
                "channel": self._chats[found.chat].json(),
                "message": self._message_json(found),
                "data": {"component_type": 2, "custom_id": custom_id},
                "entitlements": [],
            }
            if found.guild:
                member: Json = {
                    "user": sender.json(),
                    "roles": [],
                    "joined_at": None,
                    "deaf": False,
                    "mute": False,
                    "flags": 0,
                }
                data |= {
                    "guild_id": str(found.guild),
                    "member": {**member, "permissions": "0"},
                }
            else:
                data["user"] = sender.json()
            self._dispatch("INTERACTION_CREATE", data, 0)
            return number

    def expire_taps(self) -> None:
        """Make every interaction too old to be answered."""
        with self._changing():
            self._taps.clear()

    def block(self, chat: int) -> None:
        """Take the bot out of a chat."""
        with self._changing():
            self._chats[chat].is_blocked = True

    def unblock(self, chat: int) -> None:
        with self._changing():
            self._chats[chat].is_blocked = False

    def push(self, name: str, data: object) -> None:
        """Send an event as it is."""
        with self._changing():
            self._dispatch(name, data, 0)

    def repeat(self, message: int) -> None:
        """Send the event of a message once more."""
        with self._changing():
            self._dispatch_message("MESSAGE_CREATE", self._find(message))

    # -- what goes wrong -----------------------------------------------------------------

    def cut_socket(self, code: int = 0) -> None:
        """Cut the connections of the socket, or close them with a code. The sessions live on."""
        self._in_loop(self._cut_socket, code)

    def reconnect(self) -> None:
        """Ask the bot to connect again."""
        with self._changing():
            for session in self._sessions.values():
                self._send(session, {"op": 7, "d": None})

    def end_sessions(self) -> None:
        """Cut the connections of the socket, and forget the sessions, so none of them can be resumed."""
        self._in_loop(self._end_sessions)

    def away(self) -> None:
        """Cut every connection, and refuse new ones."""
        self._in_loop(self._go_away)

    def back(self) -> None:
        """Accept connections again, on the same port."""
        self._in_loop(self._listen)

    def fail(
        self,
        method: str = "",
        status: int = 500,
        times: int | None = 1,
        *,
        code: int = 0,
    ) -> Fault:
        """Answer with an error, and do not act."""
        refused = _Refused(status, code, f"status {status}")
        return self._add_fault(
            Fault("answer", method, "before", times, refused=refused)
        )

    def flood(
        self,
        method: str,
        seconds: float,
        times: int | None = 1,
        *,
        chat: int = 0,
        everywhere: bool = False,
    ) -> Fault:
        """Answer with 429."""
        refused = _flooded(seconds, everywhere=everywhere)
        return self._add_fault(
            Fault("answer", method, "before", times, chat=chat, refused=refused)
        )

    def garbage_reply(self, method: str = "", times: int | None = 1) -> Fault:
        """Act, and answer with invalid JSON."""
        return self._add_fault(Fault("answer", method, "after", times, text='{"id": ['))

    def drop_before(self, method: str = "", times: int | None = 1) -> Fault:
        """Cut the connection when a request has arrived. The server does not act."""
        return self._add_fault(Fault("cut", method, "before", times))

    def drop_after(self, method: str = "", times: int | None = 1) -> Fault:
        """Cut the connection when the server has acted, before the answer."""
        return self._add_fault(Fault("cut", method, "after", times))

    def hang(self, method: str = "") -> Fault:
        """Hold every request until `release`, then act."""
        return self._add_fault(Fault("hold", method, "before", None))

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
        `drop_before` after `on`.
        """
        return self._add_fault(Fault("call", method, when, times, callback=callback))

    def clear_faults(self) -> None:
        """Remove every fault. Requests that a fault holds go on."""
        with self._changing():
            for fault in self._faults:
                fault.release()
            self._faults.clear()

    def unlimit_rates(self) -> None:
        with self._changing():
            self._limits.clear()

    # -- what tests look at ------------------------------------------------------------

    def messages(self, chat: int = 0, *, deleted: bool = False) -> list[Message]:
        """Return what a chat shows, Ada's private chat by default, oldest first."""
        with self._lock:
            found = self._chats[chat] if chat else self._direct(ADA)
            return [
                message
                for message in found.messages.values()
                if deleted or not message.deleted
            ]

    def texts(self, chat: int = 0) -> list[str]:
        """Return the texts of the bot's messages that a chat shows."""
        return [message.text for message in self.messages(chat) if message.from_bot]

    def calls(self, method: str = "") -> int:
        """Return how many requests of a method arrived, whatever became of them."""
        with self._lock:
            return sum(method in {"", call.method} for call in self.log)

    def last_of_people(self) -> int:
        """Return the id of the last message of a person in any chat, or 0."""
        with self._lock:
            return max(
                (
                    message.id
                    for chat in self._chats.values()
                    for message in chat.messages.values()
                    if not message.from_bot
                ),
                default=0,
            )

    @property
    def sockets(self) -> int:
        """The number of sessions with a connection."""
        with self._lock:
            return sum(
                session.connection is not None for session in self._sessions.values()
            )

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
        return await asyncio.to_thread(self.wait_for, predicate, seconds)

    def _describe(self, seconds: float) -> str:
        with self._lock:
            calls = [call.describe() for call in self.log[-_CALLS_SHOWN:]]
        shown = "\n".join(f"  {call}" for call in calls) or "  (none)"
        return f"Timed out after {seconds:g} seconds. The last calls:\n{shown}"

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, and tell everybody who waits about the change."""
        with self._condition:
            try:
                yield
            finally:
                self._version += 1
                self._condition.notify_all()

    # -- the world -----------------------------------------------------------------------

    def _next_id(self) -> int:
        """Return a new id. Ids grow with the time of the real Discord."""
        wanted = (int(time.time() * 1000) - EPOCH_MS) << 22
        self._last_id = max(wanted, self._last_id + 1)
        return self._last_id

    def _direct(self, person: Person) -> _Chat:
        for chat in self._chats.values():
            if chat.person is not None and chat.person.id == person.id:
                return chat
        chat = _Chat(self._next_id(), person=person)
        self._chats[chat.id] = chat
        return chat

    def _find(self, message: int) -> Message:
        for chat in self._chats.values():
            if message in chat.messages:
                return chat.messages[message]
        raise LookupError(f"There is no message {message}.")

    def _guild_json(self, guild: _Guild) -> Json:
        chats = [self._chats[chat] for chat in guild.channels]
        role = {
            "color": 0,
            "hoist": False,
            "managed": False,
            "mentionable": False,
            "position": 0,
            "flags": 0,
        }
        bot_role = {
            **role,
            "managed": True,
            "position": 1,
            "tags": {"bot_id": str(BOT_ID)},
        }
        member = {
            "user": self._bot.json(),
            "roles": [str(guild.role)],
            "joined_at": "2026-01-01T00:00:00+00:00",
            "deaf": False,
            "mute": False,
            "flags": 0,
        }
        return {
            "id": str(guild.id),
            "name": guild.name,
            "owner_id": str(ADA.id),
            "unavailable": False,
            "member_count": 2,
            "members": [member],
            "channels": [chat.json() for chat in chats if not chat.parent],
            "threads": [chat.json() for chat in chats if chat.parent],
            "roles": [
                {
                    **role,
                    "id": str(guild.id),
                    "name": "@everyone",
                    "permissions": _PERMISSIONS,
                },
                {
                    **bot_role,
                    "id": str(guild.role),
                    "name": "Tenax",
                    "permissions": "0",
                },
            ],
            "emojis": [],
            "features": [],
            "stickers": [],
            "voice_states": [],
            "presences": [],
            "stage_instances": [],
            "guild_scheduled_events": [],
            "verification_level": 0,
            "default_message_notifications": 0,
            "explicit_content_filter": 0,
            "mfa_level": 0,
            "nsfw_level": 0,
            "premium_tier": 0,
            "preferred_locale": "en-US",
        }

    def _message_json(self, message: Message, *, depth: int = 0) -> Json:
        """Return a message as REST shows it: without a nonce and without the server."""
        edited = f"2026-01-01T00:00:{message.edits % 60:02d}+00:00"
        found: Json = {
            "id": str(message.id),
            "channel_id": str(message.chat),
            "author": message.sender.json(),
            "content": message.text,
            "timestamp": "2026-01-01T00:00:00+00:00",
            "edited_timestamp": edited if message.edits else None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [person.json() for person in message.mentions],
            "mention_roles": [],
            "attachments": [self._file_json(message, *file) for file in message.files],
            "embeds": [],
            "components": [],
            "pinned": False,
            "flags": message.flags,
            "type": message.type,
        }
        if message.webhook:
            found["webhook_id"] = str(message.webhook)
        if message.reply_to and not depth:
            replied = self._chats[message.chat].messages.get(message.reply_to)
            found["message_reference"] = {
                "type": 0,
                "message_id": str(message.reply_to),
                "channel_id": str(message.chat),
            }
            gone = replied is None or replied.deleted
            found["referenced_message"] = (
                None
                if gone or replied is None
                else self._message_json(replied, depth=1)
            )
        return found | message.more

    def _file_json(self, message: Message, number: int, file: Attachment) -> Json:
        return {
            "id": str(number),
            "filename": file.name,
            "size": len(file.data) if file.size is None else file.size,
            "url": f"{self.url}/attachments/{message.chat}/{number}/{file.name}?ex=1&is=1&hm=1",
            "proxy_url": f"{self.url}/attachments/{message.chat}/{number}/{file.name}",
            "content_type": file.content_type,
        }

    def _dispatch_message(self, name: str, message: Message) -> None:
        data = self._message_json(message)
        if message.guild:
            data["guild_id"] = str(message.guild)
        if name == "MESSAGE_CREATE" and message.nonce:
            data["nonce"] = message.nonce
        self._dispatch(name, data, _intent_of(message.guild))

    def _dispatch(self, name: str, data: object, intent: int) -> None:
        """Send an event to every session with an intent."""
        now = self._clock()
        for session in list(self._sessions.values()):
            if (
                session.connection is None
                and now - session.cut_at > self.session_seconds
            ):
                del self._sessions[session.id]
            elif not intent or session.intents & intent:
                self._push(session, name, data)

    def _push(self, session: _Session, name: str, data: object) -> None:
        session.number += 1
        event = {"op": 0, "t": name, "s": session.number, "d": data}
        session.events.append((session.number, event))
        self._send(session, event)

    def _send(self, session: _Session, payload: Json) -> None:
        if session.connection is not None:
            self._later(session.connection.queue.put_nowait, payload)

    def _later(self, work: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work, *args)

    # -- the socket ----------------------------------------------------------------------

    async def _serve_socket(self, request: web.Request) -> web.StreamResponse:
        call = self._note(request, "socket", {})
        try:
            await self._go_wrong(call, "before", request)
        except _Refused as refused:
            return self._answer(call, refused.status, refused.body)
        except _Cut:
            return web.Response()
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        connection = _Connection(
            socket, compressed=request.query.get("compress") == "zlib-stream"
        )
        connection.transport = request.transport
        interval = int(self.heartbeat_seconds * 1000)
        connection.queue.put_nowait({"op": 10, "d": {"heartbeat_interval": interval}})
        writer = asyncio.create_task(connection.write())
        try:
            async for frame in socket:
                if frame.type is aiohttp.WSMsgType.TEXT:
                    await self._take_payload(connection, json.loads(frame.data))
        finally:
            writer.cancel()
            self._leave(connection, socket.close_code)
            call.outcome = f"closed {socket.close_code}"
        return socket

    async def _take_payload(self, connection: _Connection, payload: Json) -> None:
        if payload["op"] == 1 and self.answers_heartbeats:
            connection.queue.put_nowait({"op": 11, "d": None})
        if payload["op"] not in {2, 6}:
            return
        begin = self._identify if payload["op"] == 2 else self._resume
        with self._changing():
            code = begin(connection, payload["d"])
            self.sockets_max = max(self.sockets_max, self.sockets)
        if code:
            await connection.socket.close(code=code)

    def _leave(self, connection: _Connection, code: int | None) -> None:
        """End a connection. Its session lives on, unless the bot has said goodbye."""
        with self._changing():
            for session in list(self._sessions.values()):
                if session.connection is not connection:
                    continue
                session.connection = None
                session.cut_at = self._clock()
                if code in {1000, 1001}:
                    del self._sessions[session.id]

    def _identify(self, connection: _Connection, data: Json) -> int:
        """Begin a session. Return the code with which the connection is closed, or 0."""
        self.signs.append("IDENTIFY")
        self.identifies_left -= 1
        if data["token"] != self.token:
            return 4004
        if data["intents"] & INTENT_CONTENT and not self.may_read_content:
            return 4014
        session = _Session(f"session-{self._next_id()}", data["intents"])
        session.connection = connection
        self._sessions[session.id] = session
        guilds = [{"id": str(guild), "unavailable": True} for guild in self._guilds]
        ready = {
            "v": 10,
            "user": self._bot.json(),
            "guilds": guilds,
            "session_id": session.id,
            "resume_gateway_url": f"ws://127.0.0.1:{self._port}/gateway/",
            "application": {"id": str(BOT_ID), "flags": self._flags()},
        }
        self._push(session, "READY", ready)
        if session.intents & INTENT_GUILDS:
            for guild in self._guilds.values():
                self._push(session, "GUILD_CREATE", self._guild_json(guild))
        return 0

    def _resume(self, connection: _Connection, data: Json) -> int:
        self.signs.append("RESUME")
        session = self._sessions.get(data["session_id"])
        if session is None or (
            session.connection is None
            and self._clock() - session.cut_at > self.session_seconds
        ):
            self.signs.append("INVALID_SESSION")
            self._later(connection.queue.put_nowait, {"op": 9, "d": False})
            return 0
        session.connection = connection
        for number, event in session.events:
            if number > data["seq"]:
                self._send(session, event)
        self._push(session, "RESUMED", {})
        return 0

    async def _cut_socket(self, code: int) -> None:
        for session in list(self._sessions.values()):
            connection = session.connection
            if connection is None:
                continue
            if code:
                await connection.socket.close(code=code)
            else:
                connection.transport.abort()
            with self._changing():
                session.connection = None
                session.cut_at = self._clock()

    async def _end_sessions(self) -> None:
        await self._cut_socket(0)
        with self._changing():
            self._sessions.clear()

    # -- REST ----------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method, act = self._route(request)
        call = self._note(request, method, await _read_body(request))
        try:
            await self._go_wrong(call, "before", request)
            with self._changing():
                headers = self._spend(call)
                body = act(request, call)
                call.outcome = "ok"
            await self._go_wrong(call, "after", request)
        except _Refused as refused:
            return self._answer(call, refused.status, refused.body, refused.headers)
        except _Cut:
            return web.Response()
        if isinstance(body, bytes):
            return web.Response(body=body)
        return self._answer(call, 200 if body is not None else 204, body, headers)

    def _answer(
        self,
        call: Call,
        status: int,
        body: object,
        headers: dict[str, str] | None = None,
    ) -> web.Response:
        with self._changing():
            if status >= 400:
                call.outcome = f"{status} {body}"
        if body is None:
            return web.Response(status=status, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    def _note(self, request: web.Request, method: str, parameters: Json) -> Call:
        with self._changing():
            call = Call(
                next(self._numbers),
                method,
                {**request.query, **parameters},
                self._clock(),
                int(request.match_info.get("chat", 0)),
            )
            self.log.append(call)
            return call

    async def _go_wrong(self, call: Call, when: When, request: web.Request) -> None:
        """Apply the faults of a request."""
        for fault in list(self._faults):
            if not fault.matches(call, when):
                continue
            fault.count += 1
            with self._changing():
                call.outcome = f"{fault.kind} {when}"
            match fault.kind:
                case "call":
                    assert fault.callback is not None
                    fault.callback(call)
                case "cut":
                    assert request.transport is not None
                    request.transport.abort()
                    raise _Cut
                case "wait":
                    await asyncio.sleep(fault.seconds)
                case "hold":
                    while not fault.is_over:  # noqa: ASYNC110  (it is ended by another thread)
                        await asyncio.sleep(0.01)
                case "answer":
                    if fault.refused is not None:
                        raise fault.refused
                    raise web.HTTPOk(text=fault.text, content_type="application/json")

    def _add_fault(self, fault: Fault) -> Fault:
        with self._changing():
            self._faults.append(fault)
        return fault

    def _route(
        self, request: web.Request
    ) -> tuple[str, Callable[[web.Request, Call], Any]]:
        resource = request.match_info.route.resource
        assert resource is not None
        path = resource.canonical.removeprefix("/api/v10")
        return self._routes()[request.method, path]

    def _routes(
        self,
    ) -> dict[tuple[str, str], tuple[str, Callable[[web.Request, Call], Any]]]:
        messages = "/channels/{chat}/messages"
        message = messages + "/{message}"
        return {
            ("GET", "/users/@me"): ("getMe", self._get_me),
            ("GET", "/applications/@me"): ("getApplication", self._get_application),
            ("GET", "/oauth2/applications/@me"): (
                "getApplication",
                self._get_application,
            ),
            ("GET", "/gateway/bot"): ("getGateway", self._get_gateway),
            ("GET", messages): ("getMessages", self._get_messages),
            ("GET", message): ("getMessage", self._get_message),
            ("POST", messages): ("createMessage", self._create_message),
            ("PATCH", message): ("editMessage", self._edit_message),
            ("POST", "/channels/{chat}/typing"): ("typing", self._show_typing),
            ("POST", "/interactions/{tap}/{token}/callback"): (
                "answerTap",
                self._answer_tap,
            ),
            ("GET", "/attachments/{chat}/{file}/{name}"): ("download", self._download),
        }

    def _spend(self, call: Call) -> dict[str, str]:
        """Count a request, and return the headers about its bucket."""
        if call.method == "download":
            return {}
        if call.method != "answerTap":
            self._spend_from("all", 0, everywhere=True)
        bucket = {"createMessage": "create", "editMessage": "edit"}.get(call.method)
        if bucket is None or bucket not in self._limits:
            return {}
        left, seconds = self._spend_from(bucket, call.chat)
        return {
            "x-ratelimit-bucket": f"hash-{bucket}",
            "x-ratelimit-limit": str(self._limits[bucket][0]),
            "x-ratelimit-remaining": str(left),
            "x-ratelimit-reset-after": f"{seconds:.3f}",
        }

    def _spend_from(
        self, bucket: str, chat: int, *, everywhere: bool = False
    ) -> tuple[int, float]:
        if bucket not in self._limits:
            return 1, 0.0
        count, seconds = self._limits[bucket]
        spent, now = self._spent[bucket, chat], self._clock()
        while spent and now - spent[0] >= seconds:
            spent.popleft()
        if len(spent) >= count:
            raise _flooded(spent[0] + seconds - now, everywhere=everywhere)
        spent.append(now)
        return count - len(spent), spent[0] + seconds - now

    def _authorize(self, request: web.Request) -> None:
        if request.headers.get("authorization") != f"Bot {self.token}":
            raise _Refused(401, 0, "401: Unauthorized")

    def _flags(self) -> int:
        return CONTENT_FLAG if self.may_read_content else 0

    def _get_me(self, request: web.Request, _: Call) -> Json:
        self._authorize(request)
        return self._bot.json()

    def _get_application(self, request: web.Request, _: Call) -> Json:
        self._authorize(request)
        return {
            "id": str(BOT_ID),
            "name": "Tenax",
            "icon": None,
            "description": "",
            "bot_public": True,
            "bot_require_code_grant": False,
            "verify_key": "0" * 64,
            "owner": ADA.json(),
            "team": None,
            "flags": self._flags(),
        }

    def _get_gateway(self, request: web.Request, _: Call) -> Json:
        self._authorize(request)
        limit = {
            "total": 1000,
            "remaining": self.identifies_left,
            "reset_after": 3_600_000,
            "max_concurrency": 1,
        }
        url = f"ws://127.0.0.1:{self._port}/gateway/"
        return {"url": url, "shards": 1, "session_start_limit": limit}

    def _chat(self, request: web.Request) -> _Chat:
        self._authorize(request)
        chat = self._chats.get(int(request.match_info["chat"]))
        if chat is None:
            raise _Refused(404, 10003, "Unknown Channel")
        return chat

    def _get_messages(self, request: web.Request, _: Call) -> list[Json]:
        chat = self._chat(request)
        if chat.is_blocked and chat.guild:
            raise _Refused(403, 50001, "Missing Access")
        after = int(request.query.get("after", 0))
        limit = int(request.query.get("limit", 50))
        if not 1 <= limit <= PAGE_MAX:
            raise _bad("limit")
        found = [
            self._message_json(message)
            for message in chat.messages.values()
            if message.id > after and not message.deleted
        ]
        return found[:limit][::-1]

    def _get_message(self, request: web.Request, _: Call) -> Json:
        return self._message_json(self._message(request))

    def _message(self, request: web.Request) -> Message:
        chat = self._chat(request)
        message = chat.messages.get(int(request.match_info["message"]))
        if message is None or message.deleted:
            raise _Refused(404, 10008, "Unknown Message")
        return message

    def _create_message(self, request: web.Request, call: Call) -> Json:
        chat, data = self._chat(request), call.parameters
        if chat.is_blocked:
            if chat.guild:
                raise _Refused(403, 50013, "Missing Permissions")
            raise _Refused(403, 50007, "Cannot send messages to this user")
        files: list[Attachment] = data.get("files") or []
        text = str(data.get("content") or "").strip()
        if not text and not files:
            raise _Refused(400, 50006, "Cannot send an empty message")
        if sum(len(file.data) for file in files) > UPLOAD_BYTES:
            raise _Refused(413, 40005, "Request entity too large")
        buttons = _check_message(text, data)
        nonce = str(data.get("nonce", ""))
        if len(nonce) > NONCE_CHARS:
            raise _bad("nonce: Must be 25 or fewer in length.")
        if nonce and data.get("enforce_nonce"):
            earlier = self._sent_with(chat, nonce)
            if earlier is not None:
                return {**self._message_json(earlier), "nonce": nonce}
        reply = data.get("message_reference") or {}
        message = Message(
            self._next_id(),
            chat.id,
            self._bot,
            True,
            text,
            guild=chat.guild,
            nonce=nonce,
            created_at=self._clock(),
            buttons=buttons,
            texts=[text],
            reply_to=int(reply.get("message_id", 0)),
            files=[(self._next_id(), file) for file in files],
            flags=int(data.get("flags", 0)),
            more={"mentions": []},
        )
        chat.messages[message.id] = message
        self._dispatch_message("MESSAGE_CREATE", message)
        return {**self._message_json(message), "nonce": nonce}

    def _sent_with(self, chat: _Chat, nonce: str) -> Message | None:
        """Return the message that the bot has sent with a nonce, while the window lasts."""
        for message in chat.messages.values():
            is_recent = self._clock() - message.created_at < self.nonce_seconds
            if message.from_bot and message.nonce == nonce and is_recent:
                return message
        return None

    def _edit_message(self, request: web.Request, call: Call) -> Json:
        message = self._message(request)
        if not message.from_bot:
            raise _Refused(403, 50005, "Cannot edit a message authored by another user")
        text = str(call.parameters.get("content") or "").strip()
        if not text and not message.files:
            raise _Refused(400, 50006, "Cannot send an empty message")
        message.buttons = _check_message(text, call.parameters)
        message.text = text
        message.texts.append(text)
        self._dispatch_message("MESSAGE_UPDATE", message)
        return self._message_json(message)

    def _show_typing(self, request: web.Request, _: Call) -> None:
        self.typing.append(self._chat(request).id)

    def _answer_tap(self, request: web.Request, call: Call) -> None:
        number = int(request.match_info["tap"])
        if number in self.tap_answers:
            raise _Refused(400, 40060, "Interaction has already been acknowledged.")
        token, at = self._taps.get(number, ("", 0.0))
        is_late = self._clock() - at > TAP_SECONDS
        if not token or token != request.match_info["token"] or is_late:
            raise _Refused(404, 10062, "Unknown interaction")
        data = call.parameters.get("data") or {}
        self.tap_answers[number] = str(data.get("content", ""))

    def _download(self, request: web.Request, _: Call) -> bytes:
        if "authorization" in request.headers:
            raise AssertionError("A download has the token of the bot.")
        chat = self._chats[int(request.match_info["chat"])]
        wanted = int(request.match_info["file"])
        for message in chat.messages.values():
            for number, file in message.files:
                if number == wanted and not message.deleted:
                    return file.data
        raise _Refused(404, 0, "This content is no longer available.")

    # -- the server's thread -------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        app = web.Application(client_max_size=64 << 20)
        for method, path in self._routes():
            place = path if path.startswith("/attachments") else f"/api/v10{path}"
            app.router.add_route(method, place, self._serve)
        app.router.add_get("/gateway/", self._serve_socket)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await self._listen()
        self._ready.set_result(None)
        await self._stopped.wait()
        await self._go_away()
        await self._runner.cleanup()

    async def _listen(self) -> None:
        if self._site is None:
            assert self._runner is not None
            self._site = web.TCPSite(
                self._runner, "127.0.0.1", self._port, reuse_address=True
            )
            await self._site.start()

    async def _go_away(self) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        if self._site is not None:
            await self._site.stop()
            self._site = None
        for handler in list(self._runner.server.connections):
            if handler.transport is not None:
                handler.transport.abort()

    def _in_loop(self, work: Callable[..., Any], *args: object) -> None:
        """Run a coroutine in the server's thread, and wait for it."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work(*args), self._loop)
        if threading.current_thread() is not self._thread:
            future.result(SECONDS)


def _intent_of(guild: int) -> int:
    return INTENT_GUILD_MESSAGES if guild else INTENT_DIRECT_MESSAGES


def _check_message(text: str, data: Json) -> list[tuple[str, str]]:
    """Check the text and the buttons of a message. Return the buttons."""
    if len(text) > TEXT_CHARS:
        raise _bad("content: Must be 2000 or fewer in length.")
    if (data.get("allowed_mentions") or {}).get("parse") != [] and text:
        raise AssertionError("A message may mention everybody.")
    rows = data.get("components") or []
    if len(rows) > 5 or any(len(row["components"]) not in range(1, 6) for row in rows):
        raise _bad("components")
    buttons = [item for row in rows for item in row["components"]]
    names = [item["custom_id"] for item in buttons]
    if len(set(names)) < len(names) or any(not 1 <= len(name) <= 100 for name in names):
        raise _bad("custom_id")
    if any(not 1 <= len(item["label"]) <= 80 for item in buttons):
        raise _bad("label")
    return [(item["label"], item["custom_id"]) for item in buttons]


async def _read_body(request: web.Request) -> Json:
    """Return the fields of a request, with its files as `files`."""
    if request.content_type == "application/json":
        found = await request.json()
        return found if isinstance(found, dict) else {}
    if request.content_type != "multipart/form-data":
        return {}
    body: Json = {}
    files: list[Attachment] = []
    async for part in await request.multipart():
        assert isinstance(part, aiohttp.BodyPartReader)
        data = bytes(await part.read())
        if part.name == "payload_json":
            body = json.loads(data)
        else:
            kind = part.headers.get("content-type", "")
            files.append(Attachment(part.filename or "", data, kind))
    return {**body, "files": files}
