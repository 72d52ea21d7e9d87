"""Calls of models over HTTP with httpx.

An adapter renders messages and interprets events (`Fold`). `HttpModel` sends the body, reads the events and ends the
stream with exactly one Answer or Failure. Closing the iterator closes the connection, and the server then stops
generating.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from contextlib import aclosing, suppress
from functools import cache
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from tenax.clock import Timing
from tenax.config import ModelSettings
from tenax.events import Usage
from tenax.models.base import Answer, Failure, Model, Piece
from tenax.models.errors import CHECK_SERVER, Failures
from tenax.models.sse import Reader, ServerEvent, TooLong
from tenax.models.toolcalls import Calls

__all__ = ["Fold", "HttpModel", "is_loopback", "trusted"]

T = TypeVar("T")

CONNECT_SECONDS_MAX: Final = 15.0
ERROR_BYTES_MAX: Final = 64 * 1024
# No real call uses more: larger numbers of a provider are errors.
TOKENS_MAX: Final = 1_000_000_000
DOLLARS_MAX: Final = 1_000_000
# Open calls of one model at a time.
CALLS_MAX: Final = 256


# Model families that accept pictures. For other models a person sets `sees = true`.
_SEES: Final = re.compile(
    r"claude-(?:3|sonnet|opus|haiku)|gpt-(?:4o|4\.\d|[5-9])|\bo[34](?:-|$)(?!mini-20)|gemini|gemma-?[3-9]|llava|pixtral"
    r"|mistral-(?:small|medium)-3|llama-?4|[-.\d]vl\b|vision|openrouter/auto",
    re.IGNORECASE,
)


class Fold(ABC):
    """Collects the events of a stream. Raises the errors of msgspec and of the UTF-8 decoder for invalid data."""

    def __init__(self, model: HttpModel) -> None:
        self._model = model
        self._calls = Calls()
        self._finish = ""
        """The provider's word for why the answer ended."""

    @abstractmethod
    def feed(self, data: bytes) -> Iterable[Piece]:
        """Return the pieces of an event. An `Answer` or a `Failure` ends the stream."""

    def end(self) -> Answer | None:
        """Return the answer at the end of the stream, or `None` if the answer is incomplete.

        Some servers omit the last event; then a finish reason shows that the answer is complete.
        """
        return self._build_answer() if self._finish else None

    @abstractmethod
    def _build_answer(self) -> Answer: ...


class HttpModel(Model):
    """A model behind an HTTP API."""

    path: ClassVar[str]
    """The path of requests, below `root`."""
    models_path: ClassVar[str]
    """The path of the list of models, below `root`."""

    def __init__(self, settings: ModelSettings, timing: Timing = Timing()) -> None:
        self._timing = timing
        self.name = settings.name
        self.context = settings.context
        self.sees = (
            bool(_SEES.search(self.name)) if settings.sees is None else settings.sees
        )
        self.settings = settings
        self.parameters = {
            name: value
            for name, value in self.request_parameters().items()
            if value is not None
        }
        # The host without a user name and password.
        self._where = urlsplit(settings.url).netloc.rpartition("@")[2]
        key = settings.key.reveal() if settings.key else None
        self.failures = Failures(self._where, self.name, key)
        self._url = self.root(settings.url) + self.path
        self._client = httpx.AsyncClient(
            headers={
                "accept": "text/event-stream",
                "accept-encoding": "identity",
                "content-type": "application/json",
                "user-agent": "tenax",
                **self.headers(key),
            },
            timeout=httpx.Timeout(
                None, connect=CONNECT_SECONDS_MAX, pool=CONNECT_SECONDS_MAX
            ),
            verify=trusted(),
            # A proxy cannot reach a loopback address of this machine.
            trust_env=not is_loopback(settings.url),
            limits=httpx.Limits(
                max_connections=CALLS_MAX, max_keepalive_connections=16
            ),
        )

    def request_parameters(self) -> dict[str, Any]:
        """Return the parameters of a request from the settings. `None` leaves a parameter out."""
        raise NotImplementedError

    @staticmethod
    def root(url: str) -> str:
        """Return the URL of the API from the URL in the settings."""
        return url.rstrip("/")

    @staticmethod
    @abstractmethod
    def headers(key: str | None) -> dict[str, str]:
        """Return the headers of the provider, with the key if there is a key."""

    @abstractmethod
    def fold(self) -> Fold:
        """Return the fold for a new stream."""

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        """Send the body and yield pieces as they arrive."""
        fold = self.fold()
        async with aclosing(self._events(body, silence)) as events:
            async for event in events:
                if isinstance(event, Failure):
                    yield self._learn(event)
                    return
                try:
                    pieces = list(fold.feed(event.data))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    yield self._malformed()
                    return
                for piece in pieces:
                    if isinstance(piece, Answer):
                        await _drain(events, self._timing.drain_seconds)
                    yield self._learn(piece)
                    if isinstance(piece, Answer | Failure):
                        return
        yield fold.end() or self._dropped("ended its answer in the middle")

    async def close(self) -> None:
        await self._client.aclose()

    def usage(
        self, tokens_in: int, tokens_out: int, *, cached: int = 0, cost: object = None
    ) -> Usage:
        """Return the usage of a call. If the provider reports no cost, the prices in the settings apply."""
        tokens_in, tokens_out, cached = (
            min(max(count, 0), TOKENS_MAX) for count in (tokens_in, tokens_out, cached)
        )
        if isinstance(cost, int | float) and 0 <= cost <= DOLLARS_MAX:
            dollars: float | None = float(cost)
        else:
            dollars = self.settings.cost(tokens_in, tokens_out)
        return Usage(input=tokens_in, output=tokens_out, cached=cached, cost=dollars)

    async def _events(
        self, body: bytes, silence: float
    ) -> AsyncGenerator[ServerEvent | Failure, None]:
        """Yield events. A failure is the last item. Comments and pings do not count as a sign of life."""
        response: httpx.Response | None = None
        loop = asyncio.get_running_loop()
        until = loop.time() + silence
        request = self._client.build_request("POST", self._url, content=body)
        try:
            response = await _await_until(
                until, self._client.send(request, stream=True)
            )
            chunks = response.aiter_bytes()
            if not _is_stream(response):
                yield await _await_until(until, self._refusal(response, chunks))
                return
            reader = Reader()
            while chunk := await _await_until(until, anext(chunks, b"")):
                for event in reader.feed(chunk):
                    if event.name != b"ping":
                        yield event
                        until = loop.time() + silence
        except TimeoutError:
            yield Failure(
                "silent",
                f"{self._where} has sent nothing for {silence:g} seconds.",
                hint="The server may be overloaded or loading the model. Try again later.",
            )
        except TooLong:
            yield Failure(
                "refused",
                f"{self._where} sent more than an answer may have. Tenax ended the call.",
            )
        except (
            httpx.HTTPError,
            ssl.SSLError,
        ) as error:
            # In the middle of a stream httpx does not wrap ssl.SSLError.
            yield self._translate(error, begun=response is not None)
        finally:
            if response is not None:
                await response.aclose()

    async def _refusal(
        self, response: httpx.Response, chunks: AsyncIterator[bytes]
    ) -> Failure:
        """Explain a response that is not a stream of events."""
        body = b""
        async for chunk in chunks:
            body += chunk
            if len(body) > ERROR_BYTES_MAX:
                break
        if response.is_success and b'"error"' not in body:
            kind = response.headers.get("content-type", "").partition(";")[0]
            return Failure(
                "refused",
                f"{self._where} sent {kind or 'something else'} instead of an event stream.",
                hint="Check the URL and the type of server. Does the URL have to end with /v1?",
                status=response.status_code,
            )
        return self.failures.from_response(
            response.status_code, response.headers, body[:ERROR_BYTES_MAX]
        )

    def _translate(
        self, error: httpx.HTTPError | ssl.SSLError, *, begun: bool
    ) -> Failure:
        match error:
            case httpx.PoolTimeout():
                return Failure(
                    "away", f"{CALLS_MAX} calls to {self._where} are open already."
                )
            case httpx.ConnectTimeout():
                return Failure(
                    "away",
                    f"{self._where} cannot be reached: the server does not respond.",
                    hint=CHECK_SERVER,
                )
            case (
                httpx.ConnectError() | httpx.ProxyError() | httpx.UnsupportedProtocol()
            ):
                return self.failures.from_connection_error(error)
            case httpx.DecodingError():
                return self._malformed()
            case _ if begun:
                return self._dropped(
                    "dropped the connection in the middle of the answer"
                )
            case _:
                return self._dropped("closed the connection without an answer")

    def _dropped(self, what: str) -> Failure:
        return Failure("dropped", f"{self._where} {what}.", hint="Try again.")

    def _malformed(self) -> Failure:
        return Failure(
            "malformed",
            f"{self._where} sent a response that Tenax cannot read.",
            hint="Try again. If it happens again, check the type of server.",
        )

    def _learn(self, piece: Piece) -> Piece:
        """Learn the context window from an overflow. A smaller window in the settings stays."""
        if isinstance(piece, Failure) and piece.limit:
            self.context = min(piece.limit, self.context or piece.limit)
        return piece


def is_loopback(url: str) -> bool:
    """Return whether the URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")


async def _drain(events: AsyncIterator[object], seconds: float) -> None:
    """Read the bytes after the end marker, so that the connection can be reused. The bytes come at once or never."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for _ in events:
                pass


@cache
def trusted() -> ssl.SSLContext:
    """Return the trusted certificates, cached, because reading takes longer than most calls of a local model."""
    return httpx.create_ssl_context()


async def _await_until(until: float, work: Awaitable[T]) -> T:
    async with asyncio.timeout_at(until):
        return await work


def _is_stream(response: httpx.Response) -> bool:
    """Return whether the response is a stream of events. Some servers send no content type or a wrong content type."""
    kind = response.headers.get("content-type", "").lower()
    return response.status_code == httpx.codes.OK and not kind.startswith(
        ("application/json", "text/html")
    )
