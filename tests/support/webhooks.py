"""Both sides of a webhook: a program that sends signed requests, and a real HTTP server that receives them."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar
from uuid import uuid4

import httpx
from standardwebhooks import Webhook, WebhookVerificationError

import tenax
from tenax.channels.base import Channel
from tenax.channels.webhook.channel import WebhookChannel
from tenax.clock import SystemClock
from tenax.config import Config
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.journal import LOCAL_USER, Journal
from tenax.models.scripted import Reply
from tests.support.chats import GatewayWorld
from tests.support.runs import SECONDS

__all__ = [
    "OTHER_SECRET",
    "SECRET",
    "HookWorld",
    "Inbox",
    "Post",
    "Sender",
    "ShiftedClock",
    "event",
    "sign",
]

T = TypeVar("T")
When = Literal["before", "after"]

SECRET: Final = "whsec_" + "dGVzdCBzZWNyZXQgb2YgYSB3ZWJob29rIQ=="
OTHER_SECRET: Final = "whsec_" + "YW5vdGhlciBzZWNyZXQsIG5vdCB0aGlzIQ=="
REQUEST_SECONDS: Final = 1.0


def event(text: str, **data: Any) -> bytes:
    """Return the body of a request to Tenax."""
    message = {"type": "message.created", "data": {"text": text, **data}}
    return json.dumps(message).encode()


def sign(
    body: bytes,
    id: str = "",  # noqa: A002
    *,
    secret: str = SECRET,
    seconds: float = 0.0,
) -> dict[str, str]:
    """Return the headers of a request. `seconds` moves its timestamp."""
    name = id or f"msg_{uuid4().hex}"
    at = datetime.fromtimestamp(time.time() + seconds, UTC)
    return {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(name, at, body.decode()),
    }


@dataclass
class Post:
    """A request that Tenax has sent."""

    id: str
    type: str
    data: dict[str, Any]
    body: bytes
    headers: dict[str, str]
    at: float
    answer: str = ""
    """The status, or what became of the request."""
    accepted: bool = False
    """Whether the receiver took the event."""


@dataclass
class _Fault:
    act: Callable[[_Handler, Post], bool]
    """Returns whether the receiver goes on to take the event."""
    times: int | None
    release: threading.Event = field(default_factory=threading.Event)


class Inbox:
    """A receiver of webhooks. `with` starts and stops the HTTP server.

    It checks every signature, and keeps every request. Faults apply in the order in which they were set.
    """

    def __init__(self, secret: str = SECRET) -> None:
        self.posts: list[Post] = []
        """All requests whose body has arrived, in order."""
        self.bad: list[str] = []
        """Requests with a bad signature."""
        self._webhook = Webhook(secret)
        self._changed = threading.Condition()
        self._faults: list[_Fault] = []
        self._watches: list[tuple[When, Callable[[Post], None]]] = []
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.back()
        return self

    def __exit__(self, *_: object) -> None:
        for fault in self._faults:
            fault.release.set()
        self.away()

    def use(self, secret: str) -> None:
        """Check signatures with another secret from now on."""
        self._webhook = Webhook(secret)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    def back(self) -> None:
        """Listen, on the same port as before."""
        self._server = _Server(("127.0.0.1", self._port), _Handler)
        self._server.inbox = self  # type: ignore[attr-defined]
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,)).start()

    def away(self) -> None:
        """Refuse all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    # -- faults --------------------------------------------------------------------------

    def answer(self, status: int, times: int | None = 1, **headers: str) -> _Fault:
        """Answer with a status instead of taking the event."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}

        def act(handler: _Handler, post: Post) -> bool:
            handler.answer(post, status, names)
            return False

        return self._add(act, times)

    def drop(self, when: When, times: int | None = 1) -> _Fault:
        """Drop the connection before or after taking the event."""

        def act(handler: _Handler, post: Post) -> bool:
            post.accepted = when == "after"
            handler.drop(post)
            return False

        return self._add(act, times)

    def hang(self, times: int | None = 1) -> _Fault:
        """Answer nothing until the fault is released, and then drop the connection."""

        def act(handler: _Handler, post: Post) -> bool:
            fault.release.wait(SECONDS)
            handler.drop(post)
            return False

        fault = self._add(act, times)
        return fault

    def slow(self, seconds: float, times: int | None = 1) -> _Fault:
        """Take the event after some seconds."""

        def act(_handler: _Handler, _post: Post) -> bool:
            time.sleep(seconds)
            return True

        return self._add(act, times)

    def heal(self) -> None:
        """End all faults."""
        faults, self._faults = self._faults, []
        for fault in faults:
            fault.release.set()

    def on_next(self, act: Callable[[Post], None], when: When) -> None:
        """Do something at the next request: before the event is taken, or after it and before the answer.

        With `before`, the receiver does not take the event.
        """
        self._watches.append((when, act))

    def _add(self, act: Callable[[_Handler, Post], bool], times: int | None) -> _Fault:
        fault = _Fault(act, times)
        self._faults.append(fault)
        return fault

    # -- what has come -------------------------------------------------------------------

    def taken(self, *types: str) -> list[Post]:
        """Return the events without their repetitions, as a receiver folds them by id."""
        found: dict[str, Post] = {}
        for post in list(self.posts):
            if post.accepted and (not types or post.type in types):
                found.setdefault(post.id, post)
        return list(found.values())

    def texts(self, *types: str) -> list[str]:
        """Return the texts of the events without their repetitions."""
        return [str(post.data.get("text")) for post in self.taken(*types)]

    def wait_for(self, predicate: Callable[[], T], seconds: float = SECONDS) -> T:
        """Wait until something holds."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (found := predicate()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"Bad: {self.bad}. Posts: {self.posts}")
                self._changed.wait(0.02)
        return found

    # -- for the handler -----------------------------------------------------------------

    def take(self, handler: _Handler, headers: dict[str, str], body: bytes) -> None:
        try:
            self._webhook.verify(body, headers)
        except WebhookVerificationError as error:
            self.bad.append(str(error))
            handler.answer(None, 401, {})
            return
        content = json.loads(body)
        post = Post(
            headers["webhook-id"],
            content["type"],
            content["data"],
            body,
            headers,
            time.monotonic(),
        )
        with self._changed:
            self.posts.append(post)
            self._changed.notify_all()
        if self._watch(handler, post) and self._obey(handler, post):
            post.accepted = True
            handler.answer(post, 204, {})
        with self._changed:
            self._changed.notify_all()

    def _watch(self, handler: _Handler, post: Post) -> bool:
        if not self._watches:
            return True
        when, act = self._watches.pop(0)
        post.accepted = when == "after"
        act(post)
        handler.drop(post)
        return False

    def _obey(self, handler: _Handler, post: Post) -> bool:
        with self._changed:
            if not self._faults:
                return True
            fault = self._faults[0]
            if fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.pop(0)
        return fault.act(handler, post)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            return
        names = {name.lower(): value for name, value in self.headers.items()}
        inbox: Inbox = self.server.inbox  # type: ignore[attr-defined]
        inbox.take(self, names, body)

    def answer(
        self, post: Post | None, status: int, headers: Mapping[str, str]
    ) -> None:
        if post is not None:
            post.answer = str(status)
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

    def drop(self, post: Post) -> None:
        post.answer = "dropped"
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        pass


class ShiftedClock(SystemClock):
    """A clock that a test can put forward."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def advance(self, seconds: float) -> None:
        self._seconds += seconds

    def now_us(self) -> int:
        return super().now_us() + round(self._seconds * 1e6)

    def monotonic(self) -> float:
        return super().monotonic() + self._seconds


class HookWorld(GatewayWorld):
    """A gateway that serves a webhook. `request` does what the HTTP server does with a request."""

    def __init__(
        self,
        url: str,
        store: str,
        home: Path,
        replies: Sequence[Reply] = (),
        *,
        allow: Sequence[str] = (),
        config: Config | None = None,
        clock: ShiftedClock | None = None,
    ) -> None:
        self._clock = clock
        settings = ChannelSettings(
            label="hook",
            platform="webhook",
            token=Secret(SECRET, "a test"),
            url=url or None,
            allow=tuple(allow),
        )
        super().__init__(settings, "webhook:hook", store, home, replies, config)

    def open_journal(self) -> Journal:
        if self._clock is None:
            return super().open_journal()
        timing, url = self.config.timing, self.config.store_url
        return tenax.open(url, user=LOCAL_USER, timing=timing, clock=self._clock)

    def connect(self, settings: ChannelSettings) -> Channel:
        assert settings.token is not None
        return WebhookChannel(
            settings.label,
            settings.token.reveal(),
            settings.url or "",
            request_seconds=REQUEST_SECONDS,
        )

    async def soon(self) -> None:
        """Wait until the gateway serves the account."""
        await self.until(lambda: self.rows.is_served(self.account))

    async def request(self, text: str, id: str = "", **data: Any) -> bool:  # noqa: A002
        """Hand a signed request to the gateway."""
        body = event(text, **data)
        return await self.gateway.take_request("hook", sign(body, id), body, "a test")


class Sender:
    """A program that sends messages to Tenax, each until it is accepted. The messages of a chat stay in order."""

    def __init__(self, url: Callable[[], str], secret: str = SECRET) -> None:
        self._url = url
        self._secret = secret
        self._queues: dict[str, queue.Queue[tuple[str, bytes] | None]] = {}
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._open = 0
        self._lock = threading.Lock()
        self.statuses: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for chat in self._queues.values():
            chat.put(None)
        for thread in self._threads:
            thread.join()

    def send(self, chat: str, text: str) -> str:
        """Send a message in the background. Return its id."""
        name = f"msg_{uuid4().hex}"
        if chat not in self._queues:
            self._queues[chat] = queue.Queue()
            thread = threading.Thread(target=self._run, args=(self._queues[chat],))
            self._threads.append(thread)
            thread.start()
        with self._lock:
            self._open += 1
        self._queues[chat].put((name, event(text, chat=chat)))
        return name

    def is_done(self) -> bool:
        """Return whether every message was accepted."""
        return self._open == 0

    def _run(self, waiting: queue.Queue[tuple[str, bytes] | None]) -> None:
        with httpx.Client(trust_env=False, verify=False, timeout=SECONDS) as client:
            while (item := waiting.get()) is not None:
                while not self._ended.is_set() and not self._post(client, *item):
                    self._ended.wait(0.02)
                with self._lock:
                    self._open -= 1

    def _post(self, client: httpx.Client, name: str, body: bytes) -> bool:
        headers = sign(body, name, secret=self._secret)
        try:
            answer = client.post(self._url(), content=body, headers=headers)
        except httpx.HTTPError:
            return False
        self.statuses.append(answer.status_code)
        return answer.status_code == httpx.codes.ACCEPTED
