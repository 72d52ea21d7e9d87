"""Half-open requests end, strangers keep nobody out, and neither files nor log run full."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tenax.concurrency import ThreadPool
from tenax.models import Reply
from tenax.web import app as web
from tenax.web.connections import (
    ACCEPTS_AT_ONCE,
    Accepted,
    Connection,
    Connections,
    FewLines,
    Limits,
    Listener,
    note_signed_in,
)
from tests.models.talk import clock_ahead
from tests.support.served import SECONDS, Served, is_done
from tests.support.turns import set_up

WAIT = 60.0
LONG = 3600.0
EVER = 1e9
"""A time that no test reaches, even if the test puts the clock of the loop forward."""
HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "
SIGNED_IN = b"GET / HTTP/1.1\r\nHost: x\r\nCookie: in\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body and tell its length. A cookie is a sign-in."""
    request = Request(scope, receive)
    if "cookie" in request.headers:
        note_signed_in(scope, request.headers["cookie"])
    body = await request.body()
    await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


class ReportingConnections(Connections):
    """Connections that report the arrival of data."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.arrived = asyncio.Event()

    def protocol(self, **given: Any) -> Connection:
        return ReportingConnection(self, **given)


class ReportingConnection(Connection):
    def __init__(self, connections: ReportingConnections, **given: Any) -> None:
        super().__init__(connections, **given)
        self._arrived = connections.arrived

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._arrived.set()


@contextlib.asynccontextmanager
async def serving(
    limits: Limits | Connections, proxies: tuple[str, ...] = (), app: ASGIApp = app
) -> AsyncIterator[int]:
    """Serve `app` with these limits; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        connections = (
            limits if isinstance(limits, Connections) else Connections(limits, proxies)
        )
        listener = Listener(connections, bound.detach())
    listener.setblocking(False)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=cast("Any", connections.protocol),
            backlog=ACCEPTS_AT_ONCE,
            log_config=None,
            lifespan="off",
            timeout_keep_alive=int(EVER),
            timeout_graceful_shutdown=0,
        )
    )
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield port
    finally:
        server.should_exit = True
        await task


class Client:
    """A plain connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> bytes:
        """Return the status line and body of the next answer."""
        async with asyncio.timeout(WAIT):
            head = await self.head()
            length = int(
                head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            )
            return (
                head.partition(b"\r\n")[0]
                + b" "
                + await self._reader.readexactly(length)
            )

    async def send_all(self, data: bytes) -> None:
        self.send(data)
        await self._writer.drain()

    async def head(self) -> bytes:
        async with asyncio.timeout(WAIT):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def read(self, count: int) -> None:
        async with asyncio.timeout(WAIT):
            await self._reader.readexactly(count)

    async def rest(self) -> bytes:
        """Return everything until the server closes the connection."""
        async with asyncio.timeout(WAIT):
            return await self._read_to_end()

    async def rest_after(self, seconds: float, leap: Callable[[float], None]) -> bytes:
        """Put the clock forward until the server closes the connection. Return everything until then."""
        rest = asyncio.create_task(self._read_to_end())
        while not rest.done():
            leap(seconds)
            await asyncio.sleep(0)
        return await rest

    async def _read_to_end(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            return await self._reader.read()
        return b""


@contextlib.asynccontextmanager
async def clients(
    port: int, count: int = 1, host: str = "127.0.0.1"
) -> AsyncIterator[list[Client]]:
    writers = []
    found = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(host, 0)
        )
        writers.append(writer)
        found.append(Client(reader, writer))
    try:
        yield found
    finally:
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("sent", [b"", HALF])
async def test_a_head_that_does_not_arrive_ends(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing came at all, nothing is answered."""
    leap = clock_ahead(monkeypatch)
    connections = ReportingConnections(Limits(head_seconds=LONG))
    async with serving(connections) as port, clients(port) as (client,):
        client.send(sent)
        if sent:
            await connections.arrived.wait()
        assert (b"408" in await client.rest_after(LONG, leap)) == bool(sent)


@pytest.mark.parametrize("sent", [b"\r\n", HALF])
async def test_a_second_head_that_does_not_arrive_ends(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a request that was answered; a blank line is no request."""
    leap = clock_ahead(monkeypatch)
    async with serving(Limits(head_seconds=LONG)) as port, clients(port) as (client,):
        client.send(SIGNED_IN)
        assert b"200" in await client.answer()
        client.send(sent)
        assert b"408" in await client.rest_after(LONG, leap)


async def test_a_head_that_never_ends_is_refused() -> None:
    """At its limit, in one piece or in many."""
    async with (
        serving(Limits(head_seconds=LONG, head_bytes=1000)) as port,
        clients(port, 2) as (one, other),
    ):
        one.send(HALF + b"x" * 2000)
        other.send(HALF)
        for _ in range(10):  # the last of them is too much
            other.send(b"x" * 100)
            await asyncio.sleep(0)
        refused = await one.rest()
        assert b"431" in refused
        assert b"clear the cookies of this host" in refused.partition(b"\r\n\r\n")[2]
        assert b"431" in await other.rest()


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("body", [b"", b"10000\r\n" + b"x" * 0x10000 + b"\r\n"])
@pytest.mark.parametrize("trailer", [b"a:b\r\n", b"c" * 1000])
async def test_trailers_that_never_end_are_refused(body: bytes, trailer: bytes) -> None:
    """Whatever body came before them. Few of them are no part of the request."""
    async with (
        serving(Limits(head_seconds=LONG, body_seconds=LONG)) as port,
        clients(port, 2) as (one, other),
    ):
        one.send(CHUNKED + body + b"0\r\ncookie: in\r\n\r\n")
        assert b"200" in await one.answer()
        other.send(CHUNKED + body + b"0\r\nx: ")
        rest = asyncio.create_task(other.rest())
        while not rest.done():
            with contextlib.suppress(ConnectionError):
                await other.send_all(trailer * 20)
        assert b"200" not in await rest


async def test_small_chunks_are_taken() -> None:
    """What frames a body is not counted as trailers."""
    async with (
        serving(Limits(head_seconds=LONG, body_seconds=LONG)) as port,
        clients(port) as (client,),
    ):
        client.send(CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
        assert await client.answer() == b"HTTP/1.1 200 OK 100000 bytes"


async def test_a_connection_that_is_lost_tells_all_its_requests_and_is_freed() -> None:
    """The one that is being answered, too, where another one waits behind it; and without the garbage collector."""
    ended = asyncio.Event()
    freed = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        weakref.finalize(scope["state"]["tenax.connection"], freed.set)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    gc.disable()
    try:
        async with serving(Limits(head_seconds=LONG), app=waits) as port:
            async with clients(port) as (client,):
                client.send(SIGNED_IN * 2)
                assert b"200" in await client.head()
            async with asyncio.timeout(WAIT):
                await ended.wait()
                await freed.wait()
    finally:
        gc.enable()


async def test_requests_that_wait_for_an_answer_are_few() -> None:
    """Browsers send one at a time. One too many ends the connection, and what follows it is not parsed."""
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with (
        serving(Limits(head_seconds=LONG)) as port,
        clients(port, 2) as (one, other),
    ):
        one.send(request * 9)
        for _ in range(9):
            assert b"200" in await one.answer()
        other.send(request * 1000)
        assert (await other.rest()).count(b"200 OK") < 1000
        one.send(request)
        assert b"200" in await one.answer()


POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"


async def test_a_body_that_stops_ends() -> None:
    """The handler is told, and the client is answered."""
    limits = Limits(head_seconds=LONG, body_seconds=0.2)
    async with serving(limits) as port, clients(port) as (client,):
        client.send(POST + b"x" * 10)
        assert b"408" in await client.rest()


async def test_a_body_that_drips_ends() -> None:
    """A byte now and then is no progress."""
    limits = Limits(head_seconds=LONG, body_seconds=0.2, body_bytes=10_000)
    async with serving(limits) as port, clients(port) as (client,):
        client.send(POST)
        rest = asyncio.create_task(client.rest())
        while not rest.done():
            client.send(b"x")
            await asyncio.sleep(0.01)
        assert b"200" not in await rest


async def test_a_body_with_progress_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Enough bytes are progress. Here no byte at all is enough."""
    leap = clock_ahead(monkeypatch)
    limits = Limits(head_seconds=EVER, body_seconds=LONG, body_bytes=0)
    connections = ReportingConnections(limits)
    async with serving(connections) as port, clients(port) as (client,):
        client.send(POST)
        await connections.arrived.wait()
        for _ in range(10):
            leap(LONG)
            await asyncio.sleep(0)
        client.send(b"x" * 100_000)
        assert await client.answer() == b"HTTP/1.1 200 OK 100000 bytes"


async def test_an_answer_that_is_not_read_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that reads its answer gets all of it."""
    size = 10_000_000
    lost = asyncio.Event()

    async def answers(scope: Scope, receive: Receive, send: Send) -> None:
        weakref.finalize(scope["state"]["tenax.connection"], lost.set)
        await PlainTextResponse(b"x" * size)(scope, receive, send)

    leap = clock_ahead(monkeypatch)
    limits = Limits(head_seconds=EVER, write_seconds=LONG, body_bytes=1)
    async with serving(limits, app=answers) as port, clients(port, 2) as (one, other):
        one.send(SIGNED_IN)
        await one.read(size)
        other.send(SIGNED_IN)
        assert b"200" in await other.head()
        while not lost.is_set():
            leap(LONG)
            await asyncio.sleep(0)
        assert 0 < len(await other.rest()) < size
        one.send(SIGNED_IN)
        await one.read(size)


async def test_an_answer_that_is_read_slowly_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while the kernel takes nothing of what is left, because much of its own buffer is still full."""
    size, piece = 8_000_000, 4096

    async def answers(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(b"x" * size)(scope, receive, send)

    leap = clock_ahead(monkeypatch)
    loop, read = asyncio.get_running_loop(), 0
    limits = Limits(head_seconds=EVER, write_seconds=1000.0, body_bytes=1)
    async with serving(limits, app=answers) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, SIGNED_IN)
            # This takes twice the limit. A stall of the machine adds little to it.
            for _ in range(100):
                read += len(await loop.sock_recv(client, piece))
                leap(20.0)
                await asyncio.sleep(0.01)
            async with asyncio.timeout(WAIT):
                while read < size:
                    data = await loop.sock_recv(client, 1_000_000)
                    assert data, f"cut after {read} bytes"
                    read += len(data)


async def test_strangers_at_the_limit_stop_nobody_who_has_signed_in() -> None:
    """The oldest stranger makes room for the next connection, which may be a person's."""
    limits = Limits(strangers=4, head_seconds=LONG)
    async with serving(limits) as port, clients(port) as (person,):
        person.send(SIGNED_IN)
        assert b"200" in await person.answer()
        async with clients(port, 20) as strangers:
            for stranger in strangers[:16]:
                assert await stranger.rest() == b""
            for stranger in strangers[16:]:
                stranger.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200" in await stranger.answer()
            person.send(SIGNED_IN)
            assert b"200" in await person.answer()
            async with clients(port, 3) as others:
                for other in others:
                    other.send(SIGNED_IN)
                    assert b"200" in await other.answer()


async def test_who_opens_the_most_connections_loses_them_first() -> None:
    """A person at another address who is about to sign in is not the one who is closed."""
    limits = Limits(strangers=12, head_seconds=LONG)
    async with (
        serving(limits) as port,
        clients(port, 3, "127.0.0.2") as people,
        clients(port, 30) as strangers,
    ):
        for stranger in strangers[:21]:
            assert await stranger.rest() == b""
        for person in people:
            person.send(SIGNED_IN)
            assert b"200" in await person.answer()


async def test_a_few_connections_of_one_address_are_not_the_most() -> None:
    """Where each stranger has an address of its own, a browser with three connections is not closed for them."""
    limits = Limits(strangers=4, head_seconds=LONG)
    async with serving(limits) as port, contextlib.AsyncExitStack() as stack:
        old = [
            (await stack.enter_async_context(clients(port, 1, f"127.0.1.{n}")))[0]
            for n in range(1, 5)
        ]
        people = await stack.enter_async_context(clients(port, 3))
        for stranger in old[:3]:
            assert await stranger.rest() == b""
        await stack.enter_async_context(clients(port, 1, "127.0.1.9"))
        assert await old[3].rest() == b""
        for person in people:
            person.send(SIGNED_IN)
            assert b"200" in await person.answer()


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    connections = Connections(Limits())
    hosts = [
        "2001:db8::1",
        "2001:db8::ffff:2",
        "2001:db8:0:1::1",
        "10.0.0.1",
        "10.0.0.2",
        "fe80::1%eth0",
    ]
    with contextlib.ExitStack() as stack:
        networks = {
            stack.enter_context(
                Accepted(connections, socket.socket().detach(), host)
            ).network
            for host in hosts
        }
    assert networks == {
        "2001:db8::/64",
        "2001:db8:0:1::/64",
        "10.0.0.1",
        "10.0.0.2",
        "fe80::1%eth0",
    }


async def test_a_named_proxy_is_no_stranger() -> None:
    """It speaks for many people."""
    limits = Limits(strangers=2, head_seconds=LONG)
    async with (
        serving(limits, ("127.0.0.1",)) as port,
        clients(port, 10) as through_proxy,
    ):
        for client in through_proxy:
            client.send(HALF)
        for client in through_proxy:
            client.send(b"\r\n\r\n")
            assert b"200" in await client.answer()


async def test_all_connections_together_have_a_limit() -> None:
    """One too many is closed; those who have signed in stay."""
    limits = Limits(total=3, head_seconds=LONG)
    async with serving(limits) as port, clients(port, 3) as people:
        for person in people:
            person.send(SIGNED_IN)
            assert b"200" in await person.answer()
        async with clients(port) as (stranger,):
            assert await stranger.rest() == b""
        for person in people:
            person.send(SIGNED_IN)
            assert b"200" in await person.answer()


async def test_one_user_does_not_keep_others_out() -> None:
    """Where everybody has signed in, the oldest connection is closed of the user who has the most."""
    limits = Limits(total=12, head_seconds=LONG)
    async with (
        serving(limits) as port,
        clients(port) as (person,),
        clients(port, 11) as many,
    ):
        for client in (person, *many):
            client.send(
                SIGNED_IN.replace(b"in", b"me") if client is person else SIGNED_IN
            )
            assert b"200" in await client.answer()
        async with clients(port) as (newcomer,):
            newcomer.send(SIGNED_IN)
            assert b"200" in await newcomer.answer()
            assert await many[0].rest() == b""
            person.send(SIGNED_IN)
            assert b"200" in await person.answer()


def open_files() -> set[str]:
    return {os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()}


async def test_a_client_that_does_not_read_holds_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the page are read before they are sent."""
    file = tmp_path / "assets" / "large.js"
    file.parent.mkdir()
    file.write_bytes(b"x" * 30_000_000)
    monkeypatch.setattr(web, "PAGE", tmp_path)
    page = Starlette(routes=web.PAGE_ROUTES)
    threads = ThreadPool(2, "tenax-page")
    page.state.server_state = SimpleNamespace(page_threads=threads)
    async with (
        serving(Limits(head_seconds=LONG), app=page) as port,
        clients(port, 2) as (one, other),
    ):
        one.send(b"GET /assets/large.js HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"content-type: text/javascript; charset=utf-8" in await one.head()
        await one.read(1_000_000)
        assert str(file) not in open_files()
        for path in (b"none.js", b"..", b"%2e%2e/third-party.txt", b"%00", b"x" * 1000):
            other.send(b"GET /assets/" + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"404" in await other.answer()
    threads.stop()


def test_half_of_the_files_are_left_to_the_store() -> None:
    """Whatever the limit is, and 4,096 connections at most."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        assert (Limits.of_process().total, Limits.of_process().strangers) == (128, 64)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
        assert (Limits.of_process().total, Limits.of_process().strangers) == (512, 128)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


def test_lines_of_one_kind_are_few() -> None:
    """The last one says so; another kind, and the next minute, have their own."""
    now = 0.0
    few = FewLines(3, 60.0, lambda: now)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(few)
    log = logging.getLogger("tests.few")
    log.propagate = False
    log.addHandler(handler)
    try:
        for n in range(10):
            log.error("no %d\nat %d", n, n)
        log.error("other")
        now = 60.0
        log.error("no %d\nat %d", 10, 10)
    finally:
        log.removeHandler(handler)
    left_out = " (Lines like this one are left out for up to 60 s.)"
    assert lines == [
        "no 0\nat 0",
        "no 1\nat 1",
        f"no 2\nat 2{left_out}",
        "other",
        "no 10\nat 10",
    ]


@pytest.mark.crash
@pytest.mark.parametrize("files", [64, 256])
def test_a_flood_at_a_low_limit_of_files_stops_nothing(
    tmp_path: Path, files: int
) -> None:
    """Three times as many strangers as the server may open files: a person is answered, and the log stays short."""
    set_up(tmp_path, [Reply("Forty-two.")])
    with Served(tmp_path) as served, contextlib.ExitStack() as stack:
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (files, files))
        served.kill_server()  # the next one has the limit
        page = served.browser()
        host, _, port = served.url.removeprefix("http://").partition(":")
        for n in range(3 * files):
            stranger = stack.enter_context(
                socket.create_connection((host, int(port)), timeout=SECONDS)
            )
            with contextlib.suppress(OSError):
                stranger.send(HALF if n % 2 else b"\0")
            if n % files == files - 1:
                name = page.new()
                page.say(name, "And?")
                with page.stream(f"-~{name}:") as stream:
                    stream.read_until(name, is_done)
        assert httpx.get(
            f"{served.url}/api/health", timeout=SECONDS, trust_env=False
        ).json()["ok"]
        assert served.stop()[0] == 0
    log = (tmp_path / "log" / "tenax.log").read_text()
    assert "Too many open files" not in log
    assert log.count("\n") < 200
