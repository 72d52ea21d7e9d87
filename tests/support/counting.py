"""What a turn costs: store reads, write transactions, and hops from the event loop to a thread and back.

A read is one use of `Store.reading`, a write transaction one use of `Store.transaction`. A hop is a call that the event
loop gives to a thread and waits for: an append, a call of a thread pool or executor, or a call of a thread of its own. The index of
the search, which reads in a thread of its own after every append, is left out: no turn waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tenax.cli.ask import ask
from tenax.cli.serve import links_of
from tenax.concurrency import ThreadPool
from tenax.config import Config, load
from tenax.journal import LOCAL_USER
from tenax.journal.group import GroupCommit
from tenax.journal.sqlite import SqliteStore
from tenax.models import Reply
from tenax.web.app import application
from tenax.web.server_state import ServerState
from tests.support.runs import with_timing
from tests.support.turns import set_up

__all__ = [
    "Browser",
    "Costs",
    "counting",
    "question_costs",
    "served_browser",
    "turn_costs",
]

ANSWER = "Forty-two."
_SECONDS = 60.0
_STREAMED_AT_ONCE = 25
"""How many conversations one stream watches here; the server allows 32."""
_BESIDE = ("tenax-search", "tenax-witness")
"""Threads that follow every append, whoever watches."""


class Costs(msgspec.Struct):
    """What was counted."""

    reads: int = 0
    writes: int = 0
    hops: int = 0


class Counting:
    """Counts while it is on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._costs = Costs()

    def add(self, name: str) -> None:
        if threading.current_thread().name.startswith(_BESIDE):
            return
        with self._lock:
            setattr(self._costs, name, getattr(self._costs, name) + 1)

    def take(self) -> Costs:
        """Return what was counted so far, and begin anew."""
        with self._lock:
            costs, self._costs = self._costs, Costs()
        return costs


@contextlib.contextmanager
def counting() -> Iterator[Counting]:
    """Count what every SQLite store of this process is asked, while the block lasts."""
    found = Counting()
    with contextlib.ExitStack() as stack:
        for owner, name, cost in (
            (SqliteStore, "reading", "reads"),
            (SqliteStore, "transaction", "writes"),
            (ThreadPool, "run", "hops"),
            (GroupCommit, "submit", "hops"),
            (asyncio.BaseEventLoop, "run_in_executor", "hops"),
            (asyncio, "wrap_future", "hops"),
        ):
            stack.enter_context(_counted(found, owner, name, cost))
        yield found


@contextlib.contextmanager
def _counted(found: Counting, owner: Any, name: str, cost: str) -> Iterator[None]:
    function: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **how: Any) -> Any:
        found.add(cost)
        return function(*args, **how)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, function)


class Browser:
    """A browser that is signed in, without a network between it and the server."""

    def __init__(self, state: ServerState, app: Any) -> None:
        self._state = state
        self._app = app
        self._headers = [
            (b"host", b"127.0.0.1:8787"),
            (b"sec-fetch-site", b"same-origin"),
            (b"content-type", b"application/json"),
        ]
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._list: dict[str, dict[str, Any]] = {}
        self._streams: list[asyncio.Task[None]] = []

    async def sign_in(self) -> None:
        code = self._state.links.make_code(LOCAL_USER)
        headers, answer = await self._ask("/api/sign-in", {"code": code})
        cookies = [value for name, value in headers if name == b"set-cookie"]
        self._headers.append((b"cookie", cookies[0].split(b";")[0]))
        self._headers.append((b"tenax-key", answer["key"].encode()))

    async def new(self) -> str:
        _, answer = await self._ask("/api/conversations", {})
        name: str = answer["id"]
        return name

    async def say(self, conversation: str, text: str) -> None:
        key = (b"idempotency-key", str(uuid4()).encode())
        path = f"/api/conversations/{conversation}/messages"
        await self._ask(path, {"text": text}, key)

    async def until_answered(self, conversation: str, messages: int) -> None:
        """Wait until the page has the whole answer, and the list shows so many messages and no run any more."""
        answered = False
        async with asyncio.timeout(_SECONDS):
            while not answered or not self._is_listed(conversation, messages):
                kind, data = _parsed(await self._frames.get())
                if kind == "list":
                    self._list |= {row["id"]: row for row in data["conversations"]}
                elif kind == "changes" and data["conversation"] == conversation:
                    answered = answered or _is_whole_answer(data)
            runtime = await self._state.runtime(LOCAL_USER)
            await runtime.workers.idle(conversation)

    def _is_listed(self, conversation: str, messages: int) -> bool:
        row = self._list.get(conversation, {})
        return row.get("messages") == messages and not row.get("running")

    async def watch(self, conversations: list[str]) -> None:
        """Watch these conversations, in as many streams as that takes, and wait for all their rows."""
        for start in range(0, len(conversations), _STREAMED_AT_ONCE):
            names = conversations[start : start + _STREAMED_AT_ONCE]
            cursor = "-" + "".join(f"~{name}:" for name in names)
            self._streams.append(asyncio.create_task(self._stream(cursor)))
        left = set(conversations)
        async with asyncio.timeout(_SECONDS):
            while left:
                kind, data = _parsed(await self._frames.get())
                if kind == "rows":
                    left.discard(data["conversation"])

    async def close(self) -> None:
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    async def _ask(
        self, path: str, body: object, *headers: tuple[bytes, bytes]
    ) -> tuple[list[tuple[bytes, bytes]], Any]:
        data = msgspec.json.encode(body)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        length = (b"content-length", str(len(data)).encode())
        scope = self._scope("POST", path, b"", length, *headers)
        await self._app(scope, _receiver(data), send)
        answer = b"".join(message.get("body", b"") for message in sent)
        assert sent[0]["status"] < 300, answer
        return sent[0]["headers"], json.loads(answer)

    async def _stream(self, cursor: str) -> None:
        async def send(message: Any) -> None:
            self._frames.put_nowait(message.get("body", b""))

        scope = self._scope("GET", "/api/events", f"at={quote(cursor)}".encode())
        await self._app(scope, _receiver(b""), send)

    def _scope(
        self, method: str, path: str, query: bytes, *headers: tuple[bytes, bytes]
    ) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query,
            "headers": [*self._headers, *headers],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8787),
        }


def _receiver(body: bytes) -> Callable[[], Any]:
    """The client's side of a request: its body, and then silence."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        while not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


def _parsed(frame: bytes) -> tuple[str, Any]:
    lines = dict(
        line.split(b": ", 1) for line in frame.splitlines() if line.count(b": ")
    )
    if b"event" not in lines:
        return "", None
    return lines[b"event"].decode(), json.loads(lines[b"data"])


def _is_whole_answer(data: Any) -> bool:
    rows = [change["row"] for change in data["changes"] if change["type"] == "put"]
    return any(
        row["kind"] == "assistant" and row.get("state", "") == "" and row.get("text")
        for row in rows
    )


@contextlib.asynccontextmanager
async def served_browser(home: Path) -> AsyncIterator[Browser]:
    """A server in this process that answers with a script, and a browser that is signed in."""
    set_up(home, [Reply(ANSWER)])

    def settings() -> Config:
        # Sign-ins are checked twice a second. On a slow machine a check would fall into every turn.
        return with_timing(load({"TENAX_HOME": str(home)}), device_fresh_seconds=60.0)

    config = settings()
    state = ServerState(config, links_of(config), settings)
    await state.start()
    browser = Browser(state, application(state))
    try:
        await browser.sign_in()
        yield browser
    finally:
        await browser.close()
        await state.close()


async def turn_costs(home: Path, watched: int, turns: int = 3) -> Costs:
    """Return what one plain turn costs in a browser that watches so many conversations."""
    async with served_browser(home) as browser:
        names = [await browser.new() for _ in range(watched)]
        await browser.watch(names)
        # The newest one stands at the top of the list.
        name = names[-1]
        found: list[Costs] = []
        with counting() as counted:
            for n in range(turns + 1):
                counted.take()
                await browser.say(name, f"Question {n}")
                await browser.until_answered(name, 2 * (n + 1))
                costs = counted.take()
                # The first turn also stores what requests begin with.
                if n > 0:
                    found.append(costs)
        return _least(found)


def _least(found: list[Costs]) -> Costs:
    """The least reads and hops, because a look at the schedules or the sign-ins is no part of a turn; the most writes."""
    return Costs(
        min(costs.reads for costs in found),
        max(costs.writes for costs in found),
        min(costs.hops for costs in found),
    )


def question_costs(home: Path, questions: int = 3) -> Costs:
    """Return what `tenax -p` costs at this home, once an earlier question has left its traces."""
    set_up(home, [Reply(ANSWER)])
    config = load({"TENAX_HOME": str(home)})
    found: list[Costs] = []
    with counting() as counted:
        for _ in range(questions + 1):
            counted.take()
            status = ask(
                config,
                "How much?",
                conversation=None,
                how="queue",
                as_json=False,
            )
            assert status == 0
            found.append(counted.take())
    return _least(found[1:])
