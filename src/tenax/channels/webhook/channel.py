"""Webhooks in the form of Standard Webhooks, in both directions.

In: a program sends a signed request to the HTTP server of Tenax, which hands the request to `read_request`. The header
`webhook-id` is the id for deduplication. So a sender that got no answer sends the request again, with the same id.

Out: the channel sends a signed request to the address in the settings. The key of `send` is the `webhook-id`, the same
at every try. So a message may come several times, and the receiver recognises a repetition by the id.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

import httpx
import msgspec
from msgspec import Meta
from standardwebhooks import Webhook, WebhookVerificationError

from tenax.channels.base import (
    About,
    Batch,
    Button,
    Chat,
    OutgoingFile,
    Person,
    Piece,
    Received,
    RemoteFile,
    Tapped,
    Traits,
)
from tenax.channels.units import WORDS
from tenax.channels.webhook.secret import is_secret
from tenax.clock import rfc3339
from tenax.config.schema import ChannelSettings
from tenax.errors import (
    ChannelAway,
    ChannelRefused,
    FloodWait,
    InvalidInput,
    NotAuthorized,
    SendUncertain,
)
from tenax.models.errors import read_retry_after
from tenax.models.http import is_loopback, trusted

__all__ = ["WebhookChannel", "connect"]

log = logging.getLogger(__name__)

MESSAGE: Final = "message.created"
"""The type of a request to Tenax."""
_TYPES: Final = {
    "answer": "answer.finished",
    "question": "question.asked",
    "end": "answer.ended",
    "file": "file.created",
    "notice": "notice.created",
}
_ID_CHARS_MAX: Final = 200
_TEXT_CHARS_MAX: Final = 100_000
_IDLE_SECONDS: Final = 30.0
_REQUEST_SECONDS: Final = 20.0
_WAIT_SECONDS_MAX: Final = 3600.0
_CONNECTIONS_MAX: Final = 10
_REFUSED: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.GONE,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
"""The answers that are about the message, so another try would get the same answer."""
_TRAITS: Final = Traits(
    platform="Webhook",
    send_seconds=0.0,
    group_seconds=0.0,
    account_seconds=0.0,
    preview_seconds=1.0,
    file_bytes_max=5 * 1024 * 1024,
    fetch_bytes_max=0,
    edits=False,
    buttons=False,
    # A receiver folds by id for ever. After three days, a message without an answer is given up as uncertain.
    key_seconds=3 * 86_400.0,
    mirrors=False,
)


# -- what comes in -----------------------------------------------------------------------


class _Sender(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=100)]
    name: Annotated[str, Meta(max_length=100)] = ""


class _Message(msgspec.Struct, frozen=True):
    text: Annotated[str, Meta(min_length=1, max_length=_TEXT_CHARS_MAX)]
    chat: Annotated[str, Meta(max_length=100)] = ""
    sender: _Sender | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    data: msgspec.Raw


def connect(settings: ChannelSettings) -> WebhookChannel:
    """Return the channel of a webhook. No request is made."""
    assert settings.token is not None
    return WebhookChannel(settings.label, settings.token.reveal(), settings.url or "")


class WebhookChannel:
    """A webhook. See `tenax.channels.base.Channel` and `RequestChannel`. Without an address nothing goes out."""

    traits = _TRAITS

    def __init__(
        self,
        label: str,
        secret: str,
        url: str = "",
        *,
        request_seconds: float = _REQUEST_SECONDS,
    ) -> None:
        if not is_secret(secret):
            raise InvalidInput(
                f"The secret of {label} cannot be used: a secret is whsec_ and 24 to 64 bytes in base64.",
                hint=f"Let Tenax make one: tenax channel add webhook --label {label}",
            )
        self.account = f"webhook:{label}"
        self.name = label
        self.idle_seconds = _IDLE_SECONDS
        self._label = label
        self._webhook = Webhook(secret)
        self._url = url
        self._request_seconds = request_seconds
        self._client = httpx.AsyncClient(
            verify=trusted(),
            trust_env=not is_loopback(url),
            timeout=request_seconds,
            limits=httpx.Limits(max_connections=_CONNECTIONS_MAX),
            headers={"user-agent": "tenax", "content-type": "application/json"},
        )

    async def open(self) -> None:
        """Do nothing: an address shows only with a message whether it takes messages."""

    async def close(self) -> None:
        await self._client.aclose()

    # -- receiving -----------------------------------------------------------------------

    async def receive(self, cursor: str) -> AsyncGenerator[Batch]:
        """Yield only empty batches. Messages come with `read_request`."""
        while True:
            yield Batch((), cursor)
            await asyncio.sleep(_IDLE_SECONDS)

    def read_request(self, headers: Mapping[str, str], body: bytes) -> Received:
        try:
            self._webhook.verify(body, dict(headers), json_parse=False)
        except WebhookVerificationError as error:
            raise NotAuthorized(f"{error}.") from error
        except ValueError as error:
            # Signatures that are not base64, and a body that is not UTF-8.
            raise NotAuthorized("The signature or the body is malformed.") from error
        return self._read_message(headers["webhook-id"], body)

    def _read_message(self, id: str, body: bytes) -> Received:  # noqa: A002  (the field's name)
        if len(id) > _ID_CHARS_MAX or not id.isprintable():
            raise InvalidInput(
                f"The header webhook-id has more than {_ID_CHARS_MAX} characters, or characters that cannot be printed."
            )
        try:
            event = msgspec.json.decode(body, type=_Event)
            if event.type != MESSAGE:
                raise InvalidInput(
                    f"Tenax takes the type {MESSAGE} only.",
                    hint=f'Send {{"type": "{MESSAGE}", "data": {{"text": "..."}}}}.',
                )
            message = msgspec.json.decode(event.data, type=_Message)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidInput(f"The body is invalid: {error}.") from error
        chat = message.chat or self._label
        if not chat.isprintable() or not message.text.strip():
            raise InvalidInput(
                "The text is empty, or the chat has characters that cannot be printed."
            )
        return Received(id, Chat(chat), _person(message.sender), id, message.text)

    async def fetch(self, file: RemoteFile) -> bytes:
        raise ChannelRefused(f"Webhook: there is no file {file.id:.60}.")

    # -- rendering -----------------------------------------------------------------------

    def render(self, markdown: str) -> list[Piece]:
        """Return the Markdown as it is, as one message."""
        if not self._url or not markdown.strip():
            return []
        return [Piece(markdown, markdown)]

    def mark_repeated(self, piece: Piece) -> Piece:
        """Return the piece without a mark: the receiver recognises a repetition by the id."""
        return piece

    def shorten(self, piece: Piece, chars: int) -> Piece:
        text = f"{piece.text[:chars]}…"
        return msgspec.structs.replace(piece, text=text, body=text)

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
        del reply_to
        data: dict[str, Any] = {"text": piece.body}
        # The answers to an approval are left out: it is given on the page or in the terminal.
        choices = [button.label for button in buttons if WORDS in button.choice]
        if choices:
            data["choices"] = choices
        await self._post(key, chat, piece.about, data)
        return key

    async def send_file(self, chat: Chat, file: OutgoingFile, *, key: str) -> str:
        data = {
            "name": file.name,
            "media_type": file.media_type,
            "content": base64.b64encode(file.data).decode(),
        }
        await self._post(key, chat, file.about, data)
        return key

    async def edit(
        self, chat: Chat, message: str, piece: Piece, *, buttons: Sequence[Button] = ()
    ) -> None:
        """Do nothing: what was sent cannot be changed (`Traits.edits`)."""

    async def find(self, chat: Chat, key: str, since: float) -> str | None:
        del chat, key, since
        return None

    async def answer_tap(self, tap: Tapped, text: str) -> None:
        """Do nothing: there are no buttons."""

    async def show_typing(self, chat: Chat) -> None:
        """Do nothing: there is no such sign."""

    async def _post(
        self, key: str, chat: Chat, about: About | None, data: dict[str, Any]
    ) -> None:
        """Send an event. Every try has the same id and body, and a new timestamp and signature."""
        if not self._url:
            raise ChannelRefused(
                f"Webhook: {self._label} has no address. Set channels.{self._label}.url."
            )
        assert about is not None
        places: dict[str, Any] = {"chat": chat.id}
        if about.conversation:
            places |= {"conversation": about.conversation, "seq": about.seq}
        event = {
            "type": _TYPES[about.kind],
            "timestamp": rfc3339(about.at),
            "data": {**places, **data},
        }
        body = msgspec.json.encode(event)
        now = datetime.now(UTC)
        headers = {
            "webhook-id": key,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._webhook.sign(key, now, body.decode()),
        }
        await self._request(headers, body)

    async def _request(self, headers: dict[str, str], body: bytes) -> None:
        try:
            async with (
                asyncio.timeout(self._request_seconds),
                # The body of the answer is not read.
                self._client.stream(
                    "POST",
                    self._url,
                    content=body,
                    headers=headers,
                    follow_redirects=False,
                ) as response,
            ):
                status, answered = response.status_code, response.headers
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ChannelRefused("Webhook: the address is not valid.") from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ChannelAway(
                f"Webhook: the receiver cannot be reached ({type(error).__name__}). Check the address and the network."
            ) from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise SendUncertain(
                f"Webhook: the receiver has not answered ({type(error).__name__})."
            ) from error
        _check_answer(status, answered)


def _person(sender: _Sender | None) -> Person:
    """Return the sender. Who has the secret and names nobody speaks as the owner of Tenax."""
    if sender is None:
        return Person("", "", is_owner=True)
    return Person(sender.id, sender.name)


def _check_answer(status: int, headers: Mapping[str, str]) -> None:
    """Raise the error for an answer that does not accept the message."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return
    answer = f"Webhook: the receiver has answered with status {status}"
    seconds = read_retry_after(headers)
    asks_to_wait = status in {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }
    if asks_to_wait and seconds is not None:
        seconds = min(seconds, _WAIT_SECONDS_MAX)
        raise FloodWait(f"{answer}, and asks to wait {seconds:.0f} s.", seconds)
    if status == HTTPStatus.GONE:
        raise ChannelRefused(f"{answer}: it takes no messages any more.")
    if status in _REFUSED:
        raise ChannelRefused(f"{answer}: it refuses this message.")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise SendUncertain(f"{answer}.")
    if status < HTTPStatus.BAD_REQUEST:
        raise ChannelAway(
            f"{answer}, a redirect. Tenax follows none. Set the new address in the settings."
        )
    raise ChannelAway(f"{answer}. Check the address and the receiver.")
