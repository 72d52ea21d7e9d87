"""Turns speech into text with a service that has OpenAI's `/audio/transcriptions`.

Nothing is sent anywhere without `speech.url` in the settings.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec

from tenax.config.schema import Speech
from tenax.errors import SpeechFailed
from tenax.models.errors import CHECK_SERVER, Failures
from tenax.models.http import is_loopback, trusted

__all__ = ["Transcriber"]

_CONNECT_SECONDS_MAX: Final = 15.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024


class _Words(msgspec.Struct):
    text: str


class Transcriber:
    """A service that hears the words of a voice note. Each call has a connection of its own."""

    def __init__(self, settings: Speech) -> None:
        url = settings.url or ""
        key = settings.key.reveal() if settings.key else None
        self._settings = settings
        self._url = f"{url.rstrip('/')}/audio/transcriptions"
        self._headers = {"user-agent": "tenax"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        # The host without a user name and password.
        self._where = urlsplit(url).netloc.rpartition("@")[2]
        self._failures = Failures(self._where, settings.model, key)

    async def transcribe(self, name: str, media_type: str, data: bytes) -> str:
        """Return the words of a sound. Raises `SpeechFailed` with a sentence for the person."""
        seconds = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                body = await self._post(name, media_type, data)
            words = msgspec.json.decode(body, type=_Words).text.strip()
        except TimeoutError as error:
            raise SpeechFailed(
                f"{self._where} has not answered within {seconds:g} seconds.",
                hint="Try again later, or raise speech.timeout_seconds.",
            ) from error
        except httpx.ConnectTimeout as error:
            raise SpeechFailed(
                f"{self._where} cannot be reached: the server does not respond.",
                hint=CHECK_SERVER,
            ) from error
        except httpx.ConnectError as error:
            failure = self._failures.from_connection_error(error)
            raise SpeechFailed(failure.message, hint=failure.hint) from error
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise SpeechFailed(
                f"{self._where} closed the connection without an answer.",
                hint="Try again.",
            ) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SpeechFailed(
                f"{self._where} sent a response that Tenax cannot read.",
                hint="Check speech.url. Does it have to end with /v1?",
            ) from error
        if not words:
            raise SpeechFailed(f"{self._where} heard no words.")
        return words

    async def _post(self, name: str, media_type: str, data: bytes) -> bytes:
        """Send a sound, and return the body of a successful response."""
        async with (
            self._connect() as client,
            client.stream(
                "POST",
                self._url,
                data={"model": self._settings.model, "response_format": "json"},
                files={"file": (name, data, media_type)},
            ) as response,
        ):
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _ANSWER_BYTES_MAX:
                    raise SpeechFailed(f"{self._where} sent more than an answer has.")
        if not response.is_success:
            failure = self._failures.from_response(
                response.status_code, response.headers, body
            )
            raise SpeechFailed(failure.message, hint=failure.hint)
        return body

    def _connect(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=self._headers,
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS_MAX),
            verify=trusted(),
            # A proxy cannot reach a loopback address of this machine.
            trust_env=not is_loopback(self._url),
        )
