"""Limits for connections: their number, and the time for a request to arrive.

A client that opens connections and sends nothing must not keep other clients out, take the descriptors needed by the
store, or fill the log. The listening socket counts accepted and closed connections. At the limit of connections without
a sign-in, the socket closes the oldest connection without a sign-in. If the address with the most connections has more
than a few, its oldest connection is closed instead. A signed-in connection is closed only if every connection is signed
in: the oldest connection of the user with the most connections, if the user has more than a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import http
import logging
import resource
import select
import socket
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final
from weakref import WeakValueDictionary

from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

__all__ = [
    "ACCEPTS_AT_ONCE",
    "Accepted",
    "Connections",
    "FewLines",
    "Limits",
    "Listener",
    "note_signed_in",
]

log = logging.getLogger(__name__)

ACCEPTS_AT_ONCE: Final = 16
"""The most connections accepted by the event loop at once, before other work."""
_FIRST_REQUEST_SECONDS: Final = 1.0
"""While the server ends, the time for the first request of a connection that was already accepted."""
_QUEUE: Final = 512
"""The most connections kept by the kernel until Tenax accepts them."""
_PIPELINE: Final = 8
"""The most requests waiting behind an unanswered request of the same connection. Browsers send none."""
_FRAMING: Final = 10
"""The most bytes of chunk sizes per byte of a body. One-byte chunks have 5."""
_INT_BYTES: Final = 4
"""The length of an `int` of C."""
_KEY: Final = "tenax.connection"
_LONG_HEAD: Final = (
    "The headers of this request are too long. Other programs at this host may have set many cookies: "
    "clear the cookies of this host, and open a new link (tenax link).\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for clients. `total` counts every connection; the store uses the remaining descriptors."""

    total: int = 512
    strangers: int = 128
    fair: int = 8
    """Up to this number of connections, a client never has too many. A browser opens 6 at once."""
    head_seconds: float = 10.0
    head_bytes: int = 65_536
    body_seconds: float = 30.0
    body_bytes: int = 16_384
    """The least part of an unfinished body to arrive in `body_seconds`."""
    write_seconds: float = 60.0
    """The time for a client to read the whole answer, or `body_bytes` of a longer answer."""

    @classmethod
    def of_process(cls) -> Limits:
        """Return limits for connections. Half of the descriptors of the process stay free for everything else."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        total = 4096 if files == resource.RLIM_INFINITY else min(4096, files // 2)
        return cls(total=total, strangers=min(128, total // 2))


class _TooMany(Exception):
    """Stops the parser, because the client sends requests faster than the server answers."""


class Connections:
    """The connections of a server. Closes connections without a sign-in if too many are open."""

    def __init__(self, limits: Limits, proxies: Iterable[str] = ()) -> None:
        self.limits = limits
        self._proxies = frozenset(_plain(proxy) for proxy in proxies)
        # By descriptor, oldest first. The references are weak, so a connection dropped by asyncio no longer counts.
        self._open: WeakValueDictionary[int, Accepted] = WeakValueDictionary()
        self._strangers: WeakValueDictionary[int, Accepted] = WeakValueDictionary()

    def protocol(self, **given: Any) -> Connection:  # noqa: ANN401  (what uvicorn hands to a protocol)
        """Create the protocol of a connection. uvicorn calls the method instead of a class."""
        return Connection(self, **given)

    def is_full(self) -> bool:
        return (
            len(self._open) >= self.limits.total
            or len(self._strangers) >= self.limits.strangers
        )

    def make_room(self) -> bool:
        """Close a connection to make room. Return False if every client is signed in and has at most its fair share."""
        # Close connections of a proxy only if no other connection without a sign-in is left, because a proxy serves
        # many people.
        strangers = list(self._strangers.values())
        found = strangers or [
            connection for connection in self._open.values() if connection.user is None
        ]
        signed_in = not found
        if signed_in:
            found = list(self._open.values())
        counts = Counter(connection.owner for connection in found)
        most = max(counts.values(), default=0)
        few = most <= self.limits.fair
        if signed_in and few:
            return False
        # If no address has more than a few connections, the address with the most may be an honest browser.
        oldest = next(
            (
                connection
                for connection in found
                if (few or counts[connection.owner] == most)
                and connection.protocol is not None
            ),
            None,
        )
        if (
            oldest is not None
            and oldest.protocol is not None
            and not any(connection.ending for connection in found)
        ):
            oldest.ending = True
            oldest.protocol.transport.abort()
            log.warning(
                "There are too many connections; the oldest was closed of the user who has the most."
                if signed_in
                else "There are too many connections that have not signed in; the oldest was closed."
            )
        return True

    def add(self, accepted: Accepted) -> None:
        descriptor = accepted.fileno()
        self._open[descriptor] = accepted
        if accepted.host not in self._proxies:
            self._strangers[descriptor] = accepted

    def discard(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self._strangers.pop(descriptor, None)

    def attach(self, descriptor: int, protocol: Connection) -> None:
        """Store the protocol of the connection with the descriptor."""
        accepted = self._open.get(descriptor)
        if accepted is not None:
            accepted.protocol = protocol

    def sign_in(self, descriptor: int, user: str) -> None:
        self._strangers.pop(descriptor, None)
        accepted = self._open.get(descriptor)
        if accepted is not None:
            accepted.user = user


class Accepted(socket.socket):
    """An accepted connection. The connection counts until its descriptor is closed."""

    def __init__(self, connections: Connections, descriptor: int, host: str) -> None:
        super().__init__(fileno=descriptor)
        self._connections = connections
        self.host = host
        self.network = _network(host)
        self.protocol: Connection | None = None
        self.user: str | None = None
        self.ending = False
        connections.add(self)

    @property
    def owner(self) -> str:
        """The client charged for the connection: the user, or the network before the sign-in."""
        return self.network if self.user is None else self.user

    def close(self) -> None:
        self._connections.discard(self.fileno())
        self.protocol = None
        super().close()


class Listener(socket.socket):
    """The listening socket, with a limit in `accept`. The event loop has no limit for accepted connections.

    asyncio calls `accept` of the given socket object; uvloop would not.
    """

    def __init__(self, connections: Connections, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self._connections = connections
        self._waiting = select.poll()
        self._waiting.register(self, select.POLLIN)

    def listen(self, _backlog: int = 0, /) -> None:
        """Keep the queue long. asyncio passes the number of connections accepted at once as the backlog."""
        super().listen(_QUEUE)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection if the limits allow. Otherwise raise `BlockingIOError`: the loop asks again at once."""
        full = self._connections.is_full()
        # Close no connection unless a client waits: asyncio calls `accept` until no client waits.
        if full and (not self._waiting.poll(0) or self._connections.make_room()):
            raise BlockingIOError
        connection, address = super().accept()
        if full:
            connection.close()
            log.warning(
                "There are too many connections that have signed in; a new one was closed."
            )
            raise BlockingIOError
        host = _plain(address[0])
        return Accepted(self._connections, connection.detach(), host), address


class Connection(HttpToolsProtocol):
    """A connection with a deadline for the arrival of a request."""

    def __init__(self, connections: Connections, **given: Any) -> None:  # noqa: ANN401  (what uvicorn hands over)
        super().__init__(**given)
        self._connections = connections
        self._limits = connections.limits
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._framing_bytes = 0
        self._write_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._connections.attach(self._descriptor, self)
        # With the limit 0, `pause_writing` reports every unread byte.
        transport.set_write_buffer_limits(high=0)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        self._end_write_timer()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # uvicorn tells only the last request about the disconnect, not the request being answered.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        # These attributes refer to the connection. Without the references, the connection and its data are freed now.
        self.pipeline.clear()
        self._running = self.cycle = self.scope = None  # type: ignore[assignment]

    def shutdown(self) -> None:
        """End the connection, because the server ends.

        A request on a new connection may be on its way. If the connection were closed now, the client would get an
        error during a restart, although the listening socket stays.
        """
        if self._running is None:
            self.loop.call_later(_FIRST_REQUEST_SECONDS, super().shutdown)
        else:
            super().shutdown()

    def sign_in(self, user: str) -> None:
        """Count the connection as a connection of the user, no longer as a connection without a sign-in."""
        self._connections.sign_in(self._descriptor, user)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._begin_head()
        if self._in_head:
            room = self._limits.head_bytes - self._head_bytes
            self._head_bytes += len(data)
            super().data_received(data[:room])
            data = data[room:]
            if self._in_head and data:
                self._refuse(
                    http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _LONG_HEAD
                )
        if data and not self.transport.is_closing():
            # Earlier bytes of a body give no credit for later framing bytes.
            self._framing_bytes = max(0, self._framing_bytes) + len(data)
            super().data_received(data)
            if self._framing_bytes > self._limits.head_bytes:
                self._refuse(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _PIPELINE:
            self.transport.abort()
            # The exception makes the parser take no more data.
            raise _TooMany
        super().on_message_begin()
        self.scope["state"][_KEY] = self
        # A request may follow another request in the same piece of data.
        if not self._in_head:
            self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are dropped, because nobody reads trailers.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._framing_bytes = 0
        super().on_headers_complete()
        self._begin_body()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._framing_bytes -= len(body) * (1 + _FRAMING)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._set_timer(None)
        self._framing_bytes = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin_write_timer()

    def resume_writing(self) -> None:
        self._end_write_timer()
        super().resume_writing()

    def _begin_write_timer(self) -> None:
        left = self._unread()
        self._write_timer = self.loop.call_later(
            self._limits.write_seconds, self._end_write, left
        )

    def _end_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _end_write(self, left: int) -> None:
        if left - self._unread() >= self._limits.body_bytes:
            self._begin_write_timer()
            return
        log.warning("A client did not read its answer; its connection was closed.")
        self.transport.abort()

    def _unread(self) -> int:
        """Return the number of bytes not yet read by the client: in our buffer, and on Linux also in the kernel.

        The kernel takes more bytes only when a third of its buffer is free, and a third may be a megabyte.
        """
        ours = self.transport.get_write_buffer_size()
        if sys.platform != "linux":
            return ours
        kernels = b""
        with contextlib.suppress(OSError):
            # For a socket, TIOCOUTQ has the same value as SIOCOUTQ.
            kernels = fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, bytes(_INT_BYTES))
        return ours + int.from_bytes(kernels, sys.byteorder)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401  (any application)
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _begin_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._set_timer(self._limits.head_seconds, self._end_head)

    def _end_head(self) -> None:
        # Browsers open spare connections without a request, so an empty connection is not logged.
        if self._head_bytes == 0:
            self.transport.abort()
            return
        log.warning("A request did not arrive in time; its connection was closed.")
        self._refuse(http.HTTPStatus.REQUEST_TIMEOUT)

    def _begin_body(self) -> None:
        self._body_bytes = 0
        self._set_timer(self._limits.body_seconds, self._end_body)

    def _end_body(self) -> None:
        cycle = self.cycle
        # The server stops reading while a handler is behind, and a client may wait for the permission to send (100
        # Continue).
        ours = not cycle.response_complete and (
            self.flow.read_paused or cycle.waiting_for_100_continue
        )
        if ours or self._body_bytes >= self._limits.body_bytes:
            self._begin_body()
            return
        log.warning(
            "The body of a request did not arrive in time; its connection was closed."
        )
        if cycle.response_started:
            self.transport.abort()
        else:
            self._refuse(http.HTTPStatus.REQUEST_TIMEOUT)

    def _refuse(self, status: http.HTTPStatus, sentence: str = "") -> None:
        """Answer with a status and a sentence, and close.

        A client not reading the answer is cut off after `head_seconds`.
        """
        if self.transport.is_closing():
            return
        idle = (
            self.cycle is None
            or self.cycle.response_complete
            or not self.cycle.response_started
        )
        if idle:
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            length = f"content-length: {len(sentence)}\r\nconnection: close\r\n\r\n"
            self.transport.write(f"{head}{length}{sentence}".encode())
        self.transport.close()
        self.loop.call_later(self._limits.head_seconds, self.transport.abort)

    def _set_timer(
        self, seconds: float | None, work: Callable[[], None] | None = None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and work is not None:
            self._timer = self.loop.call_later(seconds, work)


def note_signed_in(scope: MutableMapping[str, Any], user: str) -> None:
    """Tell the limits that the request comes from a signed-in user."""
    connection = scope.get("state", {}).get(_KEY)
    if isinstance(connection, Connection):
        connection.sign_in(user)


class FewLines(logging.Filter):
    """A filter for at most `lines` log lines of a kind in `seconds`, so that no client can fill the disk.

    A kind is a logger, a level and the first line of the message before its arguments are filled in.
    """

    def __init__(
        self,
        lines: int = 20,
        seconds: float = 60.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._lines = lines
        self._seconds = seconds
        self._now = now
        self._began = now()
        self._counts: Counter[tuple[str, int, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._now()
        if now - self._began >= self._seconds:
            self._began = now
            self._counts.clear()
        kind = (record.name, record.levelno, str(record.msg).partition("\n")[0])
        self._counts[kind] += 1
        if self._counts[kind] == self._lines:
            record.msg = f"{record.msg} (Lines like this one are left out for up to {self._seconds:.0f} s.)"
        return self._counts[kind] <= self._lines


def _plain(host: str) -> str:
    """Return the normal form of an address: an IPv4-mapped IPv6 address is the IPv4 address of the same client."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


def _network(host: str) -> str:
    """Return the smallest network of a client: a single IPv4 address, but 2**64 IPv6 addresses."""
    return (
        str(ip_network((host, 64), strict=False))
        if ":" in host and "%" not in host
        else host
    )
