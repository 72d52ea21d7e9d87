"""The requests to a homeserver, and what became of a failed request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx
import msgspec

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

__all__ = ["CLIENT", "Refused", "Requests", "Times", "path_of"]

log = logging.getLogger(__name__)

CLIENT: Final = "/_matrix/client/v3"
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_REASON_CHARS_MAX: Final = 300
_FLOOD_SECONDS: Final = 5.0
"""The wait after a 429 without a time."""
_FLOOD_SECONDS_MAX: Final = 86_400.0
_CONNECTIONS_MAX: Final = 20
_REFUSED_TOKEN: Final = frozenset(
    {"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED"}
)
# With these errors the request was not sent.
_NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.InvalidURL,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class Times(NamedTuple):
    """How long the steps of requests may take, in seconds."""

    poll: float = 25.0
    """How long `/sync` waits for an event."""
    connect: float = 10.0
    request: float = 20.0
    file: float = 120.0
    notice: float = 60.0
    """How long the key of a message may take before people are told."""


class _Refusal(msgspec.Struct, frozen=True):
    """An error of the Matrix API."""

    errcode: str
    error: str = ""
    retry_after_ms: float = 0.0


def path_of(*parts: str) -> str:
    """Return the path below the client API. Room ids and event ids contain special characters."""
    return "/".join([CLIENT, *(quote(part, safe="") for part in parts)])


class Requests:
    """Makes the requests of an account. Raises the errors of `tenax.channels.base.Channel.send`."""

    def __init__(
        self,
        url: str,
        token: str,
        times: Times,
    ) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._times = times
        headers = {"user-agent": "tenax"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        self._client = httpx.AsyncClient(
            headers=headers,
            verify=trusted(),
            # A proxy cannot reach a loopback address of this machine.
            trust_env=not is_loopback(url),
            limits=httpx.Limits(max_connections=_CONNECTIONS_MAX),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(
        self,
        path: str,
        doing: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        seconds: float = 0.0,
    ) -> Any:  # noqa: ANN401  (JSON)
        """Read something. `seconds` is how long the server may wait before it answers."""
        payload = await self._request(
            "GET", path, doing, parameters=parameters, wait_seconds=seconds
        )
        return self._decode(payload, doing, sends=False)

    async def put(
        self, path: str, content: object, doing: str, *, sends: bool = True
    ) -> Any:  # noqa: ANN401  (JSON)
        """Write something. `sends` says that people may see the effect."""
        payload = await self._request("PUT", path, doing, content=content, sends=sends)
        return self._decode(payload, doing, sends=sends)

    async def post(self, path: str, content: object, doing: str) -> Any:  # noqa: ANN401  (JSON)
        payload = await self._request("POST", path, doing, content=content)
        return self._decode(payload, doing, sends=False)

    async def upload(
        self, path: str, data: bytes, media_type: str, name: str, doing: str
    ) -> Any:  # noqa: ANN401  (JSON)
        payload = await self._request(
            "POST",
            path,
            doing,
            parameters={"filename": name} if name else None,
            data=data,
            media_type=media_type,
        )
        return self._decode(payload, doing, sends=False)

    async def download(self, path: str, doing: str, bytes_max: int) -> bytes:
        # A server of media may redirect to another host. The token stays here: httpx removes it then.
        return await self._request(
            "GET", path, doing, bytes_max=bytes_max, is_file=True
        )

    async def _request(
        self,
        method: str,
        path: str,
        doing: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        content: object = None,
        data: bytes | None = None,
        media_type: str = "application/json",
        sends: bool = False,
        wait_seconds: float = 0.0,
        bytes_max: int = _ANSWER_BYTES_MAX,
        is_file: bool = False,
    ) -> bytes:
        if content is not None:
            data = msgspec.json.encode(content)
        seconds = self._times.request + wait_seconds
        if is_file or media_type != "application/json":
            seconds = self._times.file
        try:
            request = self._client.build_request(
                method,
                self._url + path,
                params=dict(parameters) if parameters else None,
                content=data,
                headers={"content-type": media_type} if data is not None else None,
                timeout=httpx.Timeout(self._times.connect, read=seconds, write=seconds),
            )
            status, payload = await self._exchange(request, bytes_max, follow=is_file)
        except _NOT_SENT as error:
            failed: ChannelError = ChannelAway(
                _lost(doing, self._hide(describe_error(error)))
            )
        except (httpx.HTTPError, OSError, RuntimeError) as error:
            failed = self._lose(doing, describe_error(error), sends=sends)
        else:
            if payload is None:
                failed = ChannelRefused(
                    f"Matrix: cannot {doing}: the answer is larger than {bytes_max:,} bytes. Send a smaller file."
                )
            elif status == HTTPStatus.OK:
                return payload
            else:
                failed = self._judge(status, payload, doing, sends=sends)
        # Outside of the `except`: a log of the error shows no error of the library.
        raise failed

    async def _exchange(
        self, request: httpx.Request, bytes_max: int, *, follow: bool
    ) -> tuple[int, bytes | None]:
        """Return the status and the content of an answer, or `None` for a content that is too large."""
        response = await self._client.send(
            request, stream=True, follow_redirects=follow
        )
        payload = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                payload += chunk
                if len(payload) > bytes_max:
                    return response.status_code, None
        finally:
            await response.aclose()
        return response.status_code, bytes(payload)

    def _decode(self, payload: bytes, doing: str, *, sends: bool) -> Any:  # noqa: ANN401  (JSON)
        try:
            found = msgspec.json.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._lose(doing, "the answer has an unknown form", sends=sends)
        return found

    def _lose(self, doing: str, reason: str, *, sends: bool) -> ChannelError:
        """Return the error for a request whose answer is unknown."""
        hidden = self._hide(reason)
        if sends:
            return SendUncertain(
                f"Matrix: no answer to the request to {doing}: {hidden}. The same request follows."
            )
        return ChannelAway(_lost(doing, hidden))

    def _judge(
        self, status: int, payload: bytes, doing: str, *, sends: bool
    ) -> ChannelError:
        """Return the failure that an answer reports."""
        try:
            refusal = msgspec.json.decode(payload, type=_Refusal)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            refusal = None
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            seconds = refusal.retry_after_ms / 1000 if refusal is not None else 0.0
            seconds = min(seconds, _FLOOD_SECONDS_MAX) or _FLOOD_SECONDS
            return FloodWait(
                f"Matrix: cannot {doing}: too many requests. Try again in {seconds:g} seconds.",
                seconds,
            )
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return self._lose(doing, f"the server has the error {status}", sends=sends)
        if refusal is None:
            if status < HTTPStatus.MULTIPLE_CHOICES:
                return self._lose(doing, f"status {status}", sends=sends)
            # Nothing in between refuses a request that the homeserver has carried out.
            reason = f"the answer (status {status}) is not from a homeserver"
            return ChannelAway(_lost(doing, reason))
        reason = to_one_line(self._hide(refusal.error))[:_REASON_CHARS_MAX].rstrip(".")
        what = f"Matrix: cannot {doing}: {reason or refusal.errcode}."
        if refusal.errcode in _REFUSED_TOKEN:
            return NotAuthorized(
                f"{what} The access token is not valid. Connect the account again."
            )
        return Refused(what, refusal.errcode)

    def _hide(self, text: str) -> str:
        """Remove the token from a text of the server or the network."""
        return text.replace(self._token, "TOKEN") if self._token else text


class Refused(ChannelRefused):
    """A refusal with the code of the Matrix API."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"{message} Check the room and the rights of the account.")
        self.code = code


def _lost(doing: str, reason: str) -> str:
    return f"Matrix: cannot {doing}: {reason}. Wait, and check the network and the address of the homeserver."
