"""The socket of a bot on Discord, by discord.py.

`Gateway` gives the raw events in their order. discord.py keeps the session: it signs in, sends heartbeats, and resumes a
session that was cut. Its requests go through `Rest`, so nothing is repeated or slept out secretly.
"""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from tenax.channels.discord.rest import Rest, Route
from tenax.errors import ChannelAway, ChannelError, FloodWait, NotAuthorized
from tenax.models.http import is_loopback, trusted
from tenax.text import describe_error

with warnings.catch_warnings():
    # The part for voice, which Tenax does not use, imports a module that Python will remove.
    warnings.simplefilter("ignore", DeprecationWarning)
    import discord
    from discord.gateway import DiscordWebSocket
    from discord.http import Route as LibraryRoute

__all__ = ["Gateway", "Happening", "ServerChannel", "check_intent"]

# At lower levels these loggers log the messages of people.
logging.getLogger("discord").setLevel(logging.ERROR)

_EVENTS: Final = frozenset(
    {
        "MESSAGE_CREATE",
        "MESSAGE_UPDATE",
        "MESSAGE_DELETE",
        "MESSAGE_DELETE_BULK",
        "INTERACTION_CREATE",
    }
)
_EVENTS_MAX: Final = 10_000
"""With more events waiting, the connection ends: the messages are read from the chats afterwards."""
_CUTS_MAX: Final = 5
"""The library connects again at once. After so many failures in a row, the caller pauses."""
_HEARTBEAT_ACK: Final = 11
_READY_SECONDS: Final = 0.5
"""After such a pause, the library takes the list of servers for complete."""
_CLOSE_SECONDS: Final = 5.0
_TOKEN_REFUSED: Final = 4004
_INTENTS_REFUSED: Final = frozenset({4013, 4014})
_CONTENT_FLAGS: Final = (1 << 18) | (1 << 19)
"""The flags of an application that may read the content of messages."""
_NO_INTENT: Final = (
    "Discord: the bot may not read messages. Open the page Bot of the application on discord.com/developers, switch on "
    "Message Content Intent, and save."
)
_REFUSED: Final = "Discord: the token is not valid. Reset the token on the page Bot of the application, and set the new one."

Kind = Literal["event", "cut", "begun", "resumed", "alive", "ended"]


class Happening(NamedTuple):
    """What the socket reports.

    An `event` has a name and data. After `cut`, events may be missing. With `begun` and `resumed` events come again.
    `alive` is the answer to a heartbeat. `ended` has the reason as its data.
    """

    kind: Kind
    name: str = ""
    data: Any = None


class ServerChannel(NamedTuple):
    """A channel of a server."""

    id: str
    guild: str
    last: int
    """The id of the last message."""


def check_intent(flags: object) -> None:
    """Raise `NotAuthorized` if the flags of an application say that it may not read messages."""
    if isinstance(flags, int) and not flags & _CONTENT_FLAGS:
        raise NotAuthorized(_NO_INTENT)


class Gateway:
    """A connection to Discord. `async with` opens and closes it."""

    def __init__(self, token: str, bot: str, rest: Rest) -> None:
        self._token = token
        self._bot = int(bot)
        self._rest = rest
        self._waiting: asyncio.Queue[Happening] = asyncio.Queue()
        self._client = _Client(rest, self._put)
        self._task: asyncio.Task[None] | None = None
        self._is_full = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)

    async def next(self) -> list[Happening]:
        """Wait for something to happen, and return all of it. Raises the reason for the end of the connection."""
        happenings = [await self._waiting.get()]
        while not self._waiting.empty() and happenings[-1].kind != "ended":
            happenings.append(self._waiting.get_nowait())
        last = happenings[-1]
        if last.kind != "ended":
            return happenings
        if len(happenings) == 1:
            error: ChannelError = last.data
            raise error
        self._waiting.put_nowait(happenings.pop())
        return happenings

    def readable_channels(self) -> Iterator[ServerChannel]:
        """Yield the channels of servers in which the bot may read old messages."""
        for guild in self._client.guilds:
            channels: list[Any] = [
                *guild.text_channels,
                *guild.voice_channels,
                *guild.stage_channels,
                *guild.threads,
            ]
            for channel in channels:
                if _may_read(channel, guild.get_member(self._bot)):
                    last = channel.last_message_id or 0
                    yield ServerChannel(str(channel.id), str(guild.id), last)

    def title_of(self, channel: str) -> str:
        """Return the name of a channel of a server, or ""."""
        found = self._client.get_channel(int(channel))
        name = getattr(found, "name", "")
        return f"#{name}" if name else ""

    def role_of(self, guild: str) -> str:
        """Return the id of the bot's own role in a server, or "". People mention the role instead of the bot."""
        found = self._client.get_guild(int(guild))
        role = found.self_role if found else None
        return str(role.id) if role else ""

    async def _run(self) -> None:
        self._waiting.put_nowait(Happening("ended", data=await self._serve()))

    async def _serve(self) -> ChannelError:
        """Serve the connection to its end, and return the reason for the end."""
        try:
            async with self._client:
                await self._client.login(self._token)
                check_intent(self._client.application_flags.value)
                self._client.address = await _find_address(self._rest)
                await self._client.connect(reconnect=False)
        except ChannelError as error:
            return error
        except discord.ConnectionClosed as error:
            if error.code == _TOKEN_REFUSED:
                return NotAuthorized(_REFUSED)
            if error.code in _INTENTS_REFUSED:
                return NotAuthorized(_NO_INTENT)
            reason = f"closed with code {error.code}"
        except (
            discord.DiscordException,
            aiohttp.ClientError,
            OSError,
            TimeoutError,
        ) as error:
            reason = describe_error(error)
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ):
            # The library does not check what it reads, and the text of the error may quote a message.
            reason = "an event has an unknown form"
        else:
            reason = "closed"
        return ChannelAway(
            f"Discord: the connection for messages has ended: {reason}. Wait, and check the network of this machine."
        )

    def _put(self, happening: Happening) -> None:
        if self._is_full:
            return
        if self._waiting.qsize() >= _EVENTS_MAX:
            self._is_full = True
            reason = (
                "Discord: too many messages wait to be stored. They are read again."
            )
            happening = Happening("ended", data=ChannelAway(reason))
        self._waiting.put_nowait(happening)


def _may_read(channel: Any, bot: discord.Member | None) -> bool:  # noqa: ANN401  (four classes of the library)
    """Return whether the bot may read old messages. Where the library does not know, Discord refuses the request."""
    if bot is None:
        return True
    try:
        allowed = channel.permissions_for(bot)
    except discord.ClientException:
        return True
    return bool(allowed.read_messages and allowed.read_message_history)


async def _find_address(rest: Rest) -> URL:
    """Return the address of the socket. Raises `FloodWait` if the bot has signed in too often today.

    Discord takes the token away from a bot that signs in more often.
    """
    route = Route("GET", "/gateway/bot", "gateway")
    found = await rest.call(route, "connect")
    limit = found["session_start_limit"]
    if limit["remaining"] < 1:
        seconds = limit["reset_after"] / 1000
        raise FloodWait(
            f"Discord: the bot has connected too often today. Try again in {seconds:.0f} seconds.",
            seconds,
        )
    return URL(found["url"])


class _Client(discord.Client):
    """A client that stores almost nothing, and passes everything on."""

    def __init__(self, rest: Rest, put: Callable[[Happening], None]) -> None:
        super().__init__(
            intents=discord.Intents(
                guilds=True,
                guild_messages=True,
                dm_messages=True,
                message_content=True,
            ),
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=_READY_SECONDS,
            enable_debug_events=True,
            connector=aiohttp.TCPConnector(ssl=trusted()),
            proxy=_find_proxy(rest.base_url),
        )
        for name in _EVENTS:
            # The events are read by the channel. In the library, an event of an unknown form would end the connection.
            del self._connection.parsers[name]
        self.address = DiscordWebSocket.DEFAULT_GATEWAY
        self._rest = rest
        self._put = put
        self._cuts = 0
        self._connect_socket = self.http.ws_connect
        # Requests of the library become requests of Tenax.
        self.http.request = self._request  # type: ignore[method-assign]
        self.http.ws_connect = self._open_socket  # type: ignore[method-assign]

    async def on_socket_raw_receive(self, message: str) -> None:
        try:
            payload = json.loads(message)
        except ValueError:
            return
        name = payload.get("t")
        if payload.get("op") == _HEARTBEAT_ACK:
            self._put(Happening("alive"))
        elif name in _EVENTS:
            self._put(Happening("event", name, payload.get("d")))
        elif name == "RESUMED":
            self._cuts = 0
            self._put(Happening("resumed"))

    async def on_ready(self) -> None:
        self._cuts = 0
        self._put(Happening("begun"))

    async def on_disconnect(self) -> None:
        self._put(Happening("cut"))
        self._cuts += 1
        if self._cuts > _CUTS_MAX:
            reason = "Discord: the connection for messages ends again and again. Wait, and check the network."
            self._put(Happening("ended", data=ChannelAway(reason)))

    async def _request(self, route: LibraryRoute, **_: object) -> Any:  # noqa: ANN401  (decoded JSON)
        return await self._rest.call(
            Route(route.method, route.path, route.path), "sign in"
        )

    async def _open_socket(
        self, url: str, *, compress: int = 0
    ) -> aiohttp.ClientWebSocketResponse:
        address = URL(url)
        if address.host == DiscordWebSocket.DEFAULT_GATEWAY.host:
            address = self.address.with_query(address.query)
        return await self._connect_socket(str(address), compress=compress)


def _find_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for Discord."""
    parts = URL(url)
    if is_loopback(url) or proxy_bypass(parts.host or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
