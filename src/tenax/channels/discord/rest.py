"""The REST requests to Discord.

discord.py repeats failed requests and sleeps out rate limits by itself. Then nobody could know whether a message may be
there, and a wait would be lost with the process. So these requests are made here, once each: a failure says what became
of the request, and a rate limit is an error with its time.

Discord counts requests in buckets: one per route and chat, and one for the whole bot. An answer names its bucket, what is
left in the bucket, and when the bucket is full again. A request to an empty bucket waits here for a few seconds at most,
and else fails without a request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import OrderedDict
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from tenax.clock import Clock, SystemClock
from tenax.errors import (
    ChannelAway,
    ChannelError,
    ChannelRefused,
    FloodWait,
    NotAuthorized,
    SendUncertain,
)
from tenax.models.http import is_loopback, trusted
from tenax.text import describe_error, to_one_line

__all__ = ["BASE_URL", "Gone", "Rest", "Route", "TapExpired"]

# At lower levels this logger logs addresses, and the address of an interaction contains its token.
logging.getLogger("httpx").setLevel(logging.WARNING)

BASE_URL: Final = "https://discord.com"
_API: Final = "/api/v10"
_CDN_HOSTS: Final = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_USER_AGENT: Final = "DiscordBot (tenax, 1)"
_MEGABYTE: Final = 1024 * 1024
_ANSWER_BYTES_MAX: Final = 16 * _MEGABYTE
_REASON_CHARS_MAX: Final = 300
_BUCKETS_MAX: Final = 2000
_SLEEP_SECONDS_MAX: Final = 5.0
"""A bucket is refilled within this time in normal use. A longer wait is reported and stored."""
_FLOOD_SECONDS: Final = 10.0
"""The wait after a 429 without a time."""
_FLOOD_SECONDS_MAX: Final = 86_400.0

# Codes of Discord's errors.
_UNKNOWN_CHANNEL: Final = 10003
_UNKNOWN_MESSAGE: Final = 10008
_UNKNOWN_INTERACTION: Final = 10062
_ALREADY_ACKNOWLEDGED: Final = 40060
_TOO_LARGE: Final = 40005
_MISSING_ACCESS: Final = 50001
_CANNOT_WRITE_TO_PERSON: Final = 50007
_MISSING_PERMISSIONS: Final = 50013

_ADVICE: Final = {
    _UNKNOWN_CHANNEL: "The channel is gone.",
    _UNKNOWN_MESSAGE: "The message is gone.",
    _TOO_LARGE: "Use a smaller file.",
    _MISSING_ACCESS: "Allow the bot to see the channel.",
    _CANNOT_WRITE_TO_PERSON: "The person takes no messages of the bot, or shares no server with it.",
    _MISSING_PERMISSIONS: "Allow the bot to write in the channel.",
}
_OTHER_ADVICE: Final = "Check the message and the rights of the bot."

# With these errors the request was not sent.
_NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.InvalidURL,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class Gone(ChannelRefused):
    """A message or a channel does not exist any more."""


class TapExpired(ChannelRefused):
    """An interaction is too old to be answered, or was answered already."""


class Route(NamedTuple):
    """A method of the API. Requests with equal `name` and `chat` share a bucket."""

    method: str
    path: str
    name: str
    chat: str = ""


class _Error(msgspec.Struct, frozen=True):
    """The body of a refusal."""

    code: int = 0
    message: str = ""
    retry_after: float = 0.0
    is_global: bool = msgspec.field(name="global", default=False)


class _Buckets:
    """The times at which an empty bucket is full again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._names: OrderedDict[str, str] = OrderedDict()
        """By route, the name that Discord gives to the bucket."""
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()
        """By bucket and chat, a monotonic time."""
        self._all_until = 0.0

    def seconds(self, route: Route) -> float:
        """Return how long a request of a route has to wait."""
        until = max(self._until.get(self._key(route), 0.0), self._all_until)
        return until - self._clock.monotonic()

    def learn(self, route: Route, headers: Mapping[str, str]) -> None:
        """Read the headers of an answer."""
        name = headers.get("x-ratelimit-bucket")
        if name:
            self._names[route.name] = name
            self._bound(self._names)
        if headers.get("x-ratelimit-remaining") == "0":
            self._postpone(route, _number(headers.get("x-ratelimit-reset-after")))

    def flood(self, route: Route, seconds: float, *, is_global: bool) -> None:
        """Note that Discord has refused a request because of its rate."""
        if is_global:
            self._all_until = self._clock.monotonic() + seconds
        else:
            self._postpone(route, seconds)

    def _postpone(self, route: Route, seconds: float) -> None:
        self._until[self._key(route)] = self._clock.monotonic() + seconds
        self._until.move_to_end(self._key(route))
        self._bound(self._until)

    def _key(self, route: Route) -> tuple[str, str]:
        return self._names.get(route.name, route.name), route.chat

    @staticmethod
    def _bound(rows: OrderedDict[Any, Any]) -> None:
        if len(rows) > _BUCKETS_MAX:
            rows.popitem(last=False)


class Rest:
    """The requests of a bot. Raises the errors of `tenax.channels.base.Channel`.

    The times are for a single step of a request: to connect, to wait for an answer, to wait for an answer about a file.
    """

    def __init__(
        self,
        token: str,
        base_url: str = "",
        *,
        connect_seconds: float = 10.0,
        request_seconds: float = 20.0,
        file_seconds: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        self.base_url = (base_url or BASE_URL).rstrip("/")
        self._token = token
        self._connect_seconds = connect_seconds
        self._request_seconds = request_seconds
        self._file_seconds = file_seconds
        self._buckets = _Buckets(clock or SystemClock())
        self._client = httpx.AsyncClient(
            headers={"user-agent": _USER_AGENT},
            verify=trusted(),
            # A proxy cannot reach a loopback address of this machine.
            trust_env=not is_loopback(self.base_url),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def call(
        self,
        route: Route,
        doing: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        file: tuple[str, bytes, str] | None = None,
        sends: bool = False,
    ) -> Any:  # noqa: ANN401  (decoded JSON)
        """Make a request and return the decoded answer.

        `doing` says in an error what failed. `sends` says that a repetition of the request may be visible to people.
        """
        await self._await_bucket(route, doing)
        headers = {"authorization": f"Bot {self._token}"}
        timeout = self._timeout(self._file_seconds if file else self._request_seconds)
        url = f"{self.base_url}{_API}{route.path}"
        if file is None:
            request = self._client.build_request(
                route.method,
                url,
                params=query,
                json=body,
                headers=headers,
                timeout=timeout,
            )
        else:
            request = self._client.build_request(
                route.method,
                url,
                data={"payload_json": json.dumps(body)},
                files={"files[0]": file},
                headers=headers,
                timeout=timeout,
            )
        response = await self._exchange(
            request, doing, _ANSWER_BYTES_MAX, may_act=sends
        )
        self._buckets.learn(route, response.headers)
        if response.is_success:
            return self._decode(response, doing, sends=sends)
        raise self._refusal(route, response, doing, sends=sends)

    async def download(self, url: str, doing: str, bytes_max: int) -> bytes:
        """Fetch a file from the address that Discord names. The request has no token."""
        if not self._is_file_address(url):
            raise ChannelRefused(
                f"Discord: cannot {doing}: its address is not one of Discord. Send the file again."
            )
        timeout = self._timeout(self._file_seconds)
        request = self._client.build_request("GET", url, timeout=timeout)
        response = await self._exchange(request, doing, bytes_max, may_act=False)
        if response.is_success:
            return response.content
        status = response.status_code
        what = f"Discord: cannot {doing}: the download has the status {status}."
        if status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            raise Gone(f"{what} Send the file again.")
        raise ChannelAway(f"{what} Wait.")

    def _is_file_address(self, url: str) -> bool:
        parts = urlsplit(url)
        if self.base_url == BASE_URL:
            return parts.scheme == "https" and parts.hostname in _CDN_HOSTS
        own = urlsplit(self.base_url)
        return (parts.scheme, parts.netloc) == (own.scheme, own.netloc)

    def _timeout(self, seconds: float) -> httpx.Timeout:
        return httpx.Timeout(self._connect_seconds, read=seconds, write=seconds)

    async def _await_bucket(self, route: Route, doing: str) -> None:
        seconds = self._buckets.seconds(route)
        while 0 < seconds <= _SLEEP_SECONDS_MAX:
            await asyncio.sleep(seconds)
            seconds = self._buckets.seconds(route)
        if seconds > 0:
            raise _flood(doing, seconds)

    async def _exchange(
        self, request: httpx.Request, doing: str, bytes_max: int, *, may_act: bool
    ) -> httpx.Response:
        if self._client.is_closed:
            raise ChannelAway(f"Discord: cannot {doing}: the connections are closed.")
        try:
            response = await self._client.send(request, stream=True)
            content = await _read(response, bytes_max)
        except _NOT_SENT as failed:
            error: ChannelError = _away(doing, describe_error(failed))
        except (httpx.HTTPError, ssl.SSLError) as failed:
            error = _lost(doing, describe_error(failed), sends=may_act)
        else:
            if content is None:
                raise ChannelRefused(
                    f"Discord: cannot {doing}: it has more than {bytes_max // _MEGABYTE} MB. Send a smaller file."
                )
            return httpx.Response(
                response.status_code,
                headers=_without_encoding(response.headers),
                content=content,
            )
        # Outside of the `except`: a log of the error shows no other error.
        raise error

    def _decode(self, response: httpx.Response, doing: str, *, sends: bool) -> Any:  # noqa: ANN401  (decoded JSON)
        if response.status_code == HTTPStatus.NO_CONTENT or not response.content:
            return None
        try:
            return json.loads(response.content.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            reason = "the answer has an unknown form"
        raise _lost(doing, reason, sends=sends)

    def _refusal(
        self, route: Route, response: httpx.Response, doing: str, *, sends: bool
    ) -> ChannelError:
        """Return the error that an answer reports."""
        status = response.status_code
        found = _decode_error(response.content)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            seconds = (found.retry_after if found else 0.0) or _number(
                response.headers.get("retry-after")
            )
            seconds = min(seconds, _FLOOD_SECONDS_MAX) or _FLOOD_SECONDS
            is_global = found is None or found.is_global
            self._buckets.flood(route, seconds, is_global=is_global)
            return _flood(doing, seconds)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _lost(doing, f"status {status}", sends=sends)
        if status == HTTPStatus.UNAUTHORIZED:
            return NotAuthorized(
                f"Discord: cannot {doing}: the token is not valid. Reset the token on the page Bot of the application, "
                "and set the new one."
            )
        if found is None:
            # Nothing in between refuses a request that Discord has already carried out.
            return _away(doing, f"the answer (status {status}) is not from Discord")
        return self._refused(found, status, doing)

    def _refused(self, found: _Error, status: int, doing: str) -> ChannelRefused:
        reason = to_one_line(found.message.replace(self._token, "TOKEN"))
        shown = reason[:_REASON_CHARS_MAX].rstrip(".") or f"status {status}"
        advice = _ADVICE.get(found.code, _OTHER_ADVICE)
        words = f"Discord: cannot {doing}: {shown}. {advice}"
        if found.code in {_UNKNOWN_INTERACTION, _ALREADY_ACKNOWLEDGED}:
            return TapExpired(words)
        if found.code in {_UNKNOWN_CHANNEL, _UNKNOWN_MESSAGE}:
            return Gone(words)
        return ChannelRefused(words)


async def _read(response: httpx.Response, bytes_max: int) -> bytes | None:
    """Return the content of an answer, or `None` if it is too long."""
    content = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > bytes_max:
                return None
    finally:
        await response.aclose()
    return bytes(content)


def _without_encoding(headers: httpx.Headers) -> httpx.Headers:
    """Return the headers of a content that is decoded already."""
    kept = httpx.Headers(headers)
    for name in ("content-encoding", "content-length", "transfer-encoding"):
        kept.pop(name, None)
    return kept


def _decode_error(content: bytes) -> _Error | None:
    try:
        found = json.loads(content.decode("utf-8", "replace"))
        return msgspec.convert(found, _Error)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


def _number(text: str | None) -> float:
    """Return a number of seconds from a header, or 0."""
    try:
        seconds = float(text or 0)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _FLOOD_SECONDS_MAX)


def _flood(doing: str, seconds: float) -> FloodWait:
    return FloodWait(
        f"Discord: cannot {doing}: too many requests. Try again in {seconds:g} seconds.",
        seconds,
    )


def _away(doing: str, reason: str) -> ChannelAway:
    return ChannelAway(
        f"Discord: cannot {doing}: {reason.rstrip('.')}. Wait, and check the network of this machine."
    )


def _lost(doing: str, reason: str, *, sends: bool) -> ChannelError:
    """Return the error of a request that may have had an effect."""
    if sends:
        return SendUncertain(
            f"Discord: no answer to the request to {doing}: {reason.rstrip('.')}. Look into the chat before it is repeated."
        )
    return _away(doing, reason)
