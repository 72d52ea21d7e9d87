"""Wake-ups between processes on PostgreSQL, and the lock that marks a process as alive.

Notifier and listener have a connection and a thread each. NOTIFY is never part of an append's transaction: NOTIFY takes
a lock on the whole database and holds the lock during the flush, so all commits would queue for it (387 a second
against 8,360). After a lost connection all readers are woken, because notices may have been lost.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING, Final

import psycopg

from tenax.concurrency import Backoff, start_thread
from tenax.journal.postgres.connection import shut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenax.journal.postgres.connection import Connection
    from tenax.journal.wakeups import Wakeups

__all__ = ["Listener", "Notifier"]

NOTICES_PER_SECOND_MAX: Final = 100
NOTICES_AT_ONCE: Final = 10
PAYLOAD_BYTES_MAX: Final = 7000
MANY: Final = "*"
"""The payload for more conversations than fit into a payload."""
BEAT_SECONDS: Final = 15.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_SURE_SECONDS: Final = 60.0
"""The time between two looks of a reader while the listener is connected."""
_UNSURE_SECONDS: Final = 1.0


class Notifier:
    """Tells other processes about conversations with new events.

    A few notices go out at once, then at most a hundred a second.
    """

    def __init__(self, connect: Callable[[], Connection], channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._lock = threading.Lock()
        self._moved: set[int] = set()
        self._due = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.pid = 0
        """The server's process id of the connection. The listener ignores notices of the connection."""

    def tell(self, nums: Iterable[int]) -> None:
        """Queue a notice for the conversations. Never wait for the server."""
        with self._lock:
            self._moved.update(nums)
            if self._thread is None:
                # Without room for a thread the next call tries again.
                self._thread = start_thread(self._work, "tenax-notify")
        self._due.set()

    def close(self, seconds: float) -> None:
        self._closed.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        connection: Connection | None = None
        missed = False
        backoff, pace = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), _Pace()
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
                if self._closed.wait(backoff.next_pause()):
                    return
                self._due.set()
            else:
                missed = False
                backoff.reset()
                self._closed.wait(pace.rest())
        shut(connection)


class _Pace:
    """A rate limit with a burst: after a rest a few notices go out at once, so that a first word is not delayed."""

    def __init__(self) -> None:
        self._spare = float(NOTICES_AT_ONCE)
        self._last = time.monotonic()

    def rest(self) -> float:
        """Return how long to wait after a notice, in seconds."""
        now = time.monotonic()
        gained = (now - self._last) * NOTICES_PER_SECOND_MAX
        self._spare, self._last = min(NOTICES_AT_ONCE, self._spare + gained) - 1, now
        return max(0.0, -self._spare / NOTICES_PER_SECOND_MAX)


class Listener:
    """Receives the notices of other processes, and holds the lock of this process."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        channel: str,
        wakeups: Wakeups,
        own: Notifier,
    ) -> None:
        self._connect = connect
        self.channel = channel
        self._wakeups = wakeups
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
                self._thread = start_thread(self._work, "tenax-listen")

    def hold(self, take: Callable[[Connection], None], seconds: float) -> bool:
        """Take a lock now, and again after every lost connection. Return `False` if `seconds` were not enough."""
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
                # The thread is a daemon and still uses the pipe.
                return
        os.close(self._called)
        os.close(self._call)

    def _work(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not self._closed.is_set():
            connection: Connection | None = None
            try:
                connection = self._connect()
                connection.execute(f'listen "{self.channel}"'.encode())
                # Notices from before this LISTEN are lost, so wake all readers.
                self._wakeups.notify(None)
                self._wakeups.look_seconds = _SURE_SECONDS
                backoff.reset()
                self._listen(connection)
            except (psycopg.Error, OSError):
                self._held.clear()
                if self._wakeups.look_seconds != _UNSURE_SECONDS:
                    # Readers look for themselves until the server can be heard again.
                    self._wakeups.look_seconds = _UNSURE_SECONDS
                    self._wakeups.notify(None)
                self._closed.wait(backoff.next_pause())
            finally:
                shut(connection)

    def _listen(self, connection: Connection) -> None:
        beat = time.monotonic()
        # `select.select` accepts no descriptor above 1023.
        waits = select.poll()
        for descriptor in (connection.fileno(), self._called):
            waits.register(descriptor, select.POLLIN)
        while not self._closed.is_set():
            if self._hold is not None and not self._held.is_set():
                self._hold(connection)
                self._held.set()
            if self._called in dict(waits.poll(BEAT_SECONDS * 1000)):
                os.read(self._called, 1024)
            for notice in connection.notifies(timeout=0):
                if notice.pid != self._own.pid:
                    self._wakeups.notify(_nums(notice.payload))
            if time.monotonic() - beat >= BEAT_SECONDS:
                # Detect a dead connection, because a dead connection reports no error.
                connection.execute(b"select 1")
                beat = time.monotonic()


def _payload(nums: set[int]) -> str:
    text = ",".join(map(str, sorted(nums)))
    return text if len(text) <= PAYLOAD_BYTES_MAX else MANY


def _nums(payload: str) -> list[int] | None:
    try:
        return [int(num) for num in payload.split(",")]
    except ValueError:
        return None
