"""The wire: the one place that knows httpx.

An adapter says how a message looks and what an event means (a `Fold`); this sends the body, reads the events and ends the
stream with exactly one Answer or Failure, whatever happens on the way. Closing the iterator closes the connection, and a
server that sees it closed stops generating.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import cache
from typing import ClassVar, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from tenax.config import ModelSettings
from tenax.events import Usage
from tenax.models.base import Answer, Failure, Model, Piece
from tenax.models.errors import IS_IT, Failures
from tenax.models.sse import Reader, ServerEvent, TooLong

__all__ = ["Fold", "HttpModel", "is_loopback", "trusted"]

T = TypeVar("T")

CONNECT_SECONDS_MAX: Final = 15.0
DRAIN_SECONDS_MAX: Final = 0.1
ERROR_BYTES_MAX: Final = 64 * 1024
TOKENS_MAX: Final = 1_000_000_000
DOLLARS_MAX: Final = 1_000_000
"""No call takes more: a provider that says so is not believed."""
CALLS_MAX: Final = 256
"""How many calls one model may have open at once."""


# Families of models that are known to see. Whatever else does is told so by the person: `sees = true`.
_SEES: Final = re.compile(
    r"claude-(?:3|sonnet|opus|haiku)|gpt-(?:4o|4\.\d|[5-9])|\bo[34](?:-|$)(?!mini-20)|gemini|gemma-?[3-9]|llava|pixtral"
    r"|mistral-(?:small|medium)-3|llama-?4|[-.\d]vl\b|vision|openrouter/auto",
    re.IGNORECASE,
)


class Fold(Protocol):
    """What the events of one stream say, gathered. What it cannot read it raises: msgspec's errors and the decoder's."""

    def feed(self, data: bytes) -> Iterable[Piece]:
        """The pieces of one event. An Answer or a Failure ends the stream."""

    def end(self) -> Answer | None:
        """The stream is at its end: the answer, if it is whole."""


class HttpModel(Model):
    """A model at an address."""

    path: ClassVar[str]

    def __init__(self, settings: ModelSettings, headers: Mapping[str, str]) -> None:
        self.name = settings.name
        self.context = settings.context
        self.sees = (
            bool(_SEES.search(self.name)) if settings.sees is None else settings.sees
        )
        self.settings = settings
        place = urlsplit(settings.url)
        self._where = place.netloc.rpartition("@")[2]
        self.failures = Failures(
            self._where, self.name, settings.key.reveal() if settings.key else None
        )
        self._url = settings.url.rstrip("/") + self.path
        self._client = httpx.AsyncClient(
            headers={
                "accept": "text/event-stream",
                "accept-encoding": "identity",
                "content-type": "application/json",
                "user-agent": "tenax",
                **headers,
            },
            timeout=httpx.Timeout(
                None, connect=CONNECT_SECONDS_MAX, pool=CONNECT_SECONDS_MAX
            ),
            verify=trusted(),
            # no proxy knows this machine as it knows itself
            trust_env=not is_loopback(settings.url),
            limits=httpx.Limits(
                max_connections=CALLS_MAX, max_keepalive_connections=16
            ),
        )

    @abstractmethod
    def fold(self) -> Fold:
        """What gathers the events of a new stream."""

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        """Send the body, and play what comes."""
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
                        await _drain(events)
                    yield self._learn(piece)
                    if isinstance(piece, Answer | Failure):
                        return
        yield fold.end() or self._dropped("ended its answer in the middle")

    async def close(self) -> None:
        await self._client.aclose()

    def usage(
        self, tokens_in: int, tokens_out: int, *, cached: int = 0, cost: object = None
    ) -> Usage:
        """What a call took. Without a word of the provider on money, the person's prices count, if there are any."""
        took, gave, known = (
            min(max(each, 0), TOKENS_MAX) for each in (tokens_in, tokens_out, cached)
        )
        if isinstance(cost, int | float) and 0 <= cost <= DOLLARS_MAX:
            return Usage(input=took, output=gave, cached=known, cost=float(cost))
        return Usage(
            input=took, output=gave, cached=known, cost=self.settings.cost(took, gave)
        )

    async def _events(
        self, body: bytes, silence: float
    ) -> AsyncGenerator[ServerEvent | Failure, None]:
        """Events as they come; whatever goes wrong is the last one. Comments and pings do not break the silence."""
        response: httpx.Response | None = None
        loop = asyncio.get_running_loop()
        until = loop.time() + silence
        request = self._client.build_request("POST", self._url, content=body)
        try:
            response = await _by(until, self._client.send(request, stream=True))
            chunks = response.aiter_bytes()
            if not _streams(response):
                yield await _by(until, self._refusal(response, chunks))
                return
            reader = Reader()
            while chunk := await _by(until, anext(chunks, b"")):
                for event in reader.feed(chunk):
                    if event.name != b"ping":
                        yield event
                        until = loop.time() + silence
        except TimeoutError:
            yield Failure(
                "silent",
                f"{self._where} has said nothing for {silence:g} seconds.",
                hint="It may be overloaded, or loading the model. Try again later.",
            )
        except TooLong:
            yield Failure(
                "refused",
                f"{self._where} sends more than any answer holds; the call was ended.",
            )
        except (
            httpx.HTTPError,
            ssl.SSLError,
        ) as error:  # the latter in the middle: httpx lets it through
            yield self._translated(error, begun=response is not None)
        finally:
            if response is not None:
                await response.aclose()

    async def _refusal(
        self, response: httpx.Response, chunks: AsyncIterator[bytes]
    ) -> Failure:
        """The failure that a response is when it is no stream of events."""
        body = b""
        async for chunk in chunks:
            body += chunk
            if len(body) > ERROR_BYTES_MAX:
                break
        if response.is_success and b'"error"' not in body:
            kind = response.headers.get("content-type", "").partition(";")[0]
            return Failure(
                "refused",
                f"{self._where} answers with {kind or 'something'} where a stream of events should come.",
                hint="Check `url` and `api` in the section of this model: does /v1 have to be added to `url`?",
                status=response.status_code,
            )
        return self.failures.answered(
            response.status_code, response.headers, body[:ERROR_BYTES_MAX]
        )

    def _translated(
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
                    f"{self._where} cannot be reached: it does not answer.",
                    hint=IS_IT,
                )
            case (
                httpx.ConnectError() | httpx.ProxyError() | httpx.UnsupportedProtocol()
            ):
                return self.failures.away(error)
            case httpx.DecodingError():
                return self._malformed()
            case _ if begun:
                return self._dropped("broke off in the middle of its answer")
            case _:
                return self._dropped("closed the connection without an answer")

    def _dropped(self, what: str) -> Failure:
        return Failure("dropped", f"{self._where} {what}.", hint="Try again.")

    def _malformed(self) -> Failure:
        return Failure(
            "malformed",
            f"{self._where} sent something that cannot be read.",
            hint="Try again; if it stays so, check `api` in the section of this model.",
        )

    def _learn(self, piece: Piece) -> Piece:
        """An overflow tells how much the context holds; a person may have set less."""
        if isinstance(piece, Failure) and piece.limit:
            self.context = min(piece.limit, self.context or piece.limit)
        return piece


def is_loopback(url: str) -> bool:
    """Whether it is an address of this machine."""
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")


async def _drain(events: AsyncIterator[object]) -> None:
    """Read what follows the end marker, so that the connection is good for the next call; it comes at once or never."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            async for _ in events:
                pass


@cache
def trusted() -> ssl.SSLContext:
    """Whom to trust, read once: it takes longer than most calls of a local model."""
    return httpx.create_ssl_context()


async def _by(until: float, work: Awaitable[T]) -> T:
    async with asyncio.timeout_at(until):
        return await work


def _streams(response: httpx.Response) -> bool:
    """Whether events come. Some servers name no type, or a wrong one; a page or a JSON object is no stream."""
    kind = response.headers.get("content-type", "").lower()
    return response.status_code == httpx.codes.OK and not kind.startswith(
        ("application/json", "text/html")
    )
