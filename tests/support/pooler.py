"""A small pooler between clients and a PostgreSQL server, as pgbouncer is one: it shares sessions, or hands each out whole."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections import deque
from typing import Literal, Self

from psycopg.conninfo import conninfo_to_dict

_PROTOCOL = 196608
_NOT_HERE = {80877103, 80877104}
"""Requests for TLS and GSSAPI."""


class Pooler:
    """Listens on a port of its own. `mode` is when a client gives its session back: at its end, or after each transaction."""

    def __init__(self, url: str, mode: Literal["session", "transaction"]) -> None:
        parts = conninfo_to_dict(url)
        self._server = (str(parts["host"]), int(str(parts["port"])))
        self._mode = mode
        self._idle: deque[socket.socket] = deque()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._startup = _startup(user=str(parts["user"]), database=str(parts["dbname"]))
        self.url = f"postgresql://{parts['user']}@127.0.0.1:{self._listener.getsockname()[1]}/{parts['dbname']}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._open):
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.add(client)
                threading.Thread(
                    target=self._serve, args=(client,), daemon=True
                ).start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with contextlib.suppress(OSError, EOFError), client:
            if not _greet(client):
                return
            server, greeting = self._connect()
            self._idle.append(server)
            server = None
            client.sendall(greeting)
            waits = 0
            while True:
                found, _, _ = select.select(
                    [client, *([server] if server else [])], [], []
                )
                if client in found:
                    kind, message = _receive(client)
                    if kind == b"X":
                        break
                    server = server or self._take()
                    waits += kind in {b"S", b"Q"}
                    server.sendall(message)
                if server in found and server is not None:
                    kind, message = _receive(server)
                    client.sendall(message)
                    waits -= kind == b"Z"
                    if (
                        kind == b"Z"
                        and message[5:] == b"I"
                        and not waits
                        and self._mode == "transaction"
                    ):
                        self._idle.append(server)
                        server = None
        if server is not None:
            server.close()  # what a session has set goes with it

    def _take(self) -> socket.socket:
        """The session that was given back last, as pgbouncer does."""
        return self._idle.pop() if self._idle else self._connect()[0]

    def _connect(self) -> tuple[socket.socket, bytes]:
        """A session, and what a client is greeted with: all that the server said, but a key of the pooler's own."""
        server = socket.create_connection(self._server)
        self._open.add(server)
        server.sendall(self._startup)
        greeting = b""
        while True:
            kind, message = _receive(server)
            greeting += (
                b"K" + struct.pack("!iii", 12, 1, 1) if kind == b"K" else message
            )
            if kind == b"Z":
                return server, greeting


def _startup(**parameters: str) -> bytes:
    body = struct.pack("!i", _PROTOCOL)
    body += (
        b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items())
        + b"\0"
    )
    return struct.pack("!i", len(body) + 4) + body


def _greet(client: socket.socket) -> bool:
    """Read what a client begins with. Startup options are refused, as pgbouncer refuses them."""
    while True:
        (length,) = struct.unpack("!i", _exactly(client, 4))
        body = _exactly(client, length - 4)
        (code,) = struct.unpack("!i", body[:4])
        if code not in _NOT_HERE:
            break
        client.sendall(b"N")
    if b"\0options\0" in body:
        words = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
        client.sendall(b"E" + struct.pack("!i", len(words) + 4) + words)
        return False
    return bool(code == _PROTOCOL)


def _receive(connection: socket.socket) -> tuple[bytes, bytes]:
    """A message: its kind, and all its bytes."""
    head = _exactly(connection, 5)
    (length,) = struct.unpack("!i", head[1:])
    return head[:1], head + _exactly(connection, length - 4)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found
