"""Wake-ups between processes on PostgreSQL, and the lock that says a process is alive.

Both sides have a connection and a thread of their own. NOTIFY never stands in an append's transaction: it takes a lock
of the whole database and holds it through the flush, so all commits would queue for it (387 a second against 8,360).
What gets lost while a connection is away is made good by waking everybody when it is back.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING, Final

import psycopg

from tenax.concurrency import started
from tenax.journal.postgres.connection import shut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenax.journal.hub import Hub
    from tenax.journal.postgres.connection import Connection

__all__ = ["Listener", "Notifier"]

NOTICES_PER_SECOND_MAX: Final = 100
NOTICES_AT_ONCE: Final = 10
PAYLOAD_BYTES_MAX: Final = 7000
MANY: Final = "*"
"""Stands for more conversations than a payload can name."""
BEAT_SECONDS: Final = 15.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


class Notifier:
    """Tells other processes which conversations have moved: a few at once, then at most a hundred a second."""

    def __init__(self, connect: Callable[[], Connection], channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._lock = threading.Lock()
        self._moved: set[int] = set()
        self._due = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.pid = 0
        """The server's process behind this connection: what comes from it is our own voice."""

    def tell(self, nums: Iterable[int]) -> None:
        """Never waits for the server."""
        with self._lock:
            self._moved.update(nums)
            if self._thread is None:
                # or the next one tries again
                self._thread = started(self._work, "tenax-notify")
        self._due.set()

    def close(self, seconds: float) -> None:
        self._closed.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        connection: Connection | None = None
        missed = False
        pause, pace = _FIRST_PAUSE, _Pace()
        while not self._closed.is_set() or self._moved:
            self._due.wait()
            self._due.clear()
            with self._lock:
                moved, self._moved = self._moved, set()
            if not moved and not missed:
                continue
            try:
                if connection is None:
                    connection = self._connect()
                    self.pid = connection.info.backend_pid
                connection.execute(
                    b"select pg_notify(%s, %s)",
                    (self._channel, MANY if missed else _payload(moved)),
                )
            except psycopg.Error:
                shut(connection)
                connection = None
                missed = True
                if self._closed.wait(pause):
                    return
                pause = min(pause * 2, _LONGEST_PAUSE)
                self._due.set()
            else:
                missed = False
                pause = _FIRST_PAUSE
                self._closed.wait(pace.rest())
        shut(connection)


class _Pace:
    """So many notices a second, and a few at once after a rest: who waits for the first word is not kept waiting."""

    def __init__(self) -> None:
        self._spare = float(NOTICES_AT_ONCE)
        self._last = time.monotonic()

    def rest(self) -> float:
        """How long to wait after this one."""
        now = time.monotonic()
        gained = (now - self._last) * NOTICES_PER_SECOND_MAX
        self._spare, self._last = min(NOTICES_AT_ONCE, self._spare + gained) - 1, now
        return max(0.0, -self._spare / NOTICES_PER_SECOND_MAX)


class Listener:
    """Hears other processes, and holds this one's lock."""

    def __init__(
        self, connect: Callable[[], Connection], channel: str, hub: Hub, own: Notifier
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._hub = hub
        self._own = own
        self._lock = threading.Lock()
        self._hold: Callable[[Connection], None] | None = None
        self._held = threading.Event()
        self._closed = threading.Event()
        self._called, self._call = os.pipe()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = started(self._work, "tenax-listen")

    def hold(self, take: Callable[[Connection], None], seconds: float) -> bool:
        """Have this lock taken now, and again after every loss of the connection. False if it could not be in time."""
        if self._hold is None:
            self._hold = take
            os.write(self._call, b"!")
        self.start()
        return self._held.wait(seconds)

    def close(self, seconds: float) -> None:
        self._closed.set()
        os.write(self._call, b"!")
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return  # it is a daemon, and its pipe stays its own
        os.close(self._called)
        os.close(self._call)

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            connection: Connection | None = None
            try:
                connection = self._connect()
                connection.execute(f'listen "{self._channel}"'.encode())
                self._hub.notify(None)  # whatever was said before we listened
                pause = _FIRST_PAUSE
                self._listen(connection)
            except (psycopg.Error, OSError):
                self._held.clear()
                self._closed.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            finally:
                shut(connection)

    def _listen(self, connection: Connection) -> None:
        beat = time.monotonic()
        # `select` itself takes no file whose number is beyond 1023
        waits = select.poll()
        for each in (connection.fileno(), self._called):
            waits.register(each, select.POLLIN)
        while not self._closed.is_set():
            if self._hold is not None and not self._held.is_set():
                self._hold(connection)
                self._held.set()
            if self._called in dict(waits.poll(BEAT_SECONDS * 1000)):
                os.read(self._called, 1024)
            for notice in connection.notifies(timeout=0):
                if notice.pid != self._own.pid:
                    self._hub.notify(_nums(notice.payload))
            if time.monotonic() - beat >= BEAT_SECONDS:
                # Nobody may have spoken for long; a connection that is dead without having said so shows itself.
                connection.execute(b"select 1")
                beat = time.monotonic()


def _payload(nums: set[int]) -> str:
    text = ",".join(map(str, sorted(nums)))
    return text if len(text) <= PAYLOAD_BYTES_MAX else MANY


def _nums(payload: str) -> list[int] | None:
    try:
        return [int(each) for each in payload.split(",")]
    except ValueError:
        return None
