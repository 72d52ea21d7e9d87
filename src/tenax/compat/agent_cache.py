"""The cache of agents: keyed by where a message comes from, it tells sessions apart.

Building an agent is dear, so it is kept (128 of them, an hour each). Beside it stands a snapshot: which session the agent
last saw, and that session's revision, which moves with every append, undo, clear, erasure and compaction. A snapshot of
one session says nothing about another. The lock is held for looking and noting only: the store is asked before it is
taken, and what was evicted is handed to `on_evict` after it is let go.

Over an `AsyncSessionDB` the methods that ask the store are awaited.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from tenax.compat.sessions import AsyncSessionDB, SessionDB

__all__ = [
    "AgentCache",
    "Building",
    "Found",
    "Fresh",
    "Missing",
    "OtherSession",
    "Stale",
    "Unknown",
]

log = logging.getLogger(__name__)

AGENTS_MAX = 128
IDLE_SECONDS = 3600.0
_LIVE: Any = object()


class Found(msgspec.Struct, frozen=True):
    """What the cache has. All but Missing and Building have an agent, and it is reused."""

    agent: Any = None


class Missing(Found, frozen=True):
    """Nothing: build one."""


class Building(Found, frozen=True):
    """Somebody is building one; leave it alone."""


class Fresh(Found, frozen=True):
    """Its session is as the agent last saw it."""


class OtherSession(Found, frozen=True):
    """It last saw another session; that says nothing about this one."""


class Stale(Found, frozen=True):
    """Somebody else wrote to its session: catch the context up before the next turn."""


class Unknown(Found, frozen=True):
    """There is nothing to compare."""


class _Entry:
    __slots__ = ("agent", "built", "session_id", "snapshot", "used_at")

    def __init__(
        self,
        agent: Any,  # noqa: ANN401
        session_id: str | None,
        snapshot: int | None,
        used_at: float,
    ) -> None:
        self.agent = agent
        self.session_id = session_id
        self.snapshot = snapshot
        self.used_at = used_at
        self.built: threading.Event | None = None


class AgentCache:
    """Agents by route key."""

    def __init__(
        self,
        db: SessionDB | AsyncSessionDB,
        *,
        size: int = AGENTS_MAX,
        idle_seconds: float = IDLE_SECONDS,
        on_evict: Callable[[str, Any], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._size = size
        self._idle = idle_seconds
        self._on_evict = on_evict
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def look(self, route_key: str, session_id: str | None) -> Any:  # noqa: ANN401  (Found, or awaited)
        """What there is for this key, for a turn in this session."""
        return self._with_store(
            lambda db: self._look(route_key, session_id, _live(db, session_id))
        )

    def put(
        self,
        route_key: str,
        agent: Any,  # noqa: ANN401
        session_id: str | None = None,
        *,
        snapshot: Any = _LIVE,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Keep an agent that has just seen this session as it is now."""

        def work(db: SessionDB) -> None:
            seen = _live(db, session_id) if snapshot is _LIVE else snapshot
            self._put(route_key, _Entry(agent, session_id, seen, self._monotonic()))

        return self._with_store(work)

    def rebaseline(self, route_key: str, session_id: str | None) -> Any:  # noqa: ANN401  (None, or awaited)
        """After a turn of our own: what the session holds now is what the agent has seen. Only if it is its session."""
        return self._with_store(
            lambda db: self._rebaseline(route_key, session_id, _live(db, session_id))
        )

    def reserve(self, route_key: str) -> bool:
        """Say that an agent is being built. False if one is there, or on its way."""
        with self._lock:
            if route_key in self._entries:
                return False
            entry = _Entry(None, None, None, self._monotonic())
            entry.built = threading.Event()
            self._entries[route_key] = entry
            return True

    def get(
        self, route_key: str, session_id: str | None, build: Callable[[], Any]
    ) -> Any:  # noqa: ANN401
        """The agent for this key, built once however many ask at the same time. Nothing is locked while it is built."""
        while True:
            with self._lock:
                entry = self._entries.get(route_key)
                if entry is not None and entry.built is None:
                    entry.used_at = self._monotonic()
                    self._entries.move_to_end(route_key)
                    return entry.agent
            if entry is None and self.reserve(route_key):
                break
            if entry is not None and entry.built is not None:
                entry.built.wait()
        try:
            agent = build()
        except BaseException:
            self._put(route_key, None)
            raise
        db = self._db._db if isinstance(self._db, AsyncSessionDB) else self._db  # noqa: SLF001  (its twin)
        self._put(
            route_key,
            _Entry(agent, session_id, _live(db, session_id), self._monotonic()),
        )
        return agent

    def evict(self, route_key: str) -> Any:  # noqa: ANN401  (bool, or awaited)
        """Drop an agent, now. False if there is none, or it is still being built."""
        dropped = self._drop(route_key)
        return _Done(dropped) if isinstance(self._db, AsyncSessionDB) else dropped

    def _drop(self, route_key: str) -> bool:
        with self._lock:
            entry = self._entries.get(route_key)
            if entry is None or entry.built is not None:
                return False
            del self._entries[route_key]
        self._evicted([(route_key, entry)])
        return True

    def __len__(self) -> int:
        return len(self._entries)

    # -- under the lock, without the store ---------------------------------------------------------------------

    def _look(self, route_key: str, session_id: str | None, live: int | None) -> Found:
        self._drop_idle()
        with self._lock:
            entry = self._entries.get(route_key)
            if entry is None:
                return Missing()
            if entry.built is not None:
                return Building()
            entry.used_at = self._monotonic()
            self._entries.move_to_end(route_key)
            kind: type[Found] = Fresh
            if (
                session_id is not None
                and entry.session_id is not None
                and entry.session_id != session_id
            ):
                kind = OtherSession
            elif entry.snapshot is None or live is None:
                kind = Unknown
            elif entry.snapshot != live:
                kind = Stale
            return kind(entry.agent)

    def _put(self, route_key: str, entry: _Entry | None) -> None:
        with self._lock:
            before = self._entries.pop(route_key, None)
            if entry is not None:
                self._entries[route_key] = entry
            full = [key for key, each in self._entries.items() if each.built is None]
            over = max(0, len(self._entries) - self._size)
            gone = [(key, self._entries.pop(key)) for key in full[:over]]
        if before is not None and before.built is not None:
            before.built.set()
        elif (
            before is not None and entry is not None and before.agent is not entry.agent
        ):
            gone.append((route_key, before))
        self._evicted(gone)

    def _rebaseline(
        self, route_key: str, session_id: str | None, live: int | None
    ) -> None:
        with self._lock:
            entry = self._entries.get(route_key)
            if (
                entry is None
                or entry.built is not None
                or entry.snapshot is None
                or live is None
            ):
                return
            if entry.session_id in {None, session_id}:
                entry.snapshot = live

    def _drop_idle(self) -> None:
        since = self._monotonic() - self._idle
        with self._lock:
            idle = [
                key
                for key, each in self._entries.items()
                if each.built is None and each.used_at < since
            ]
            gone = [(key, self._entries.pop(key)) for key in idle]
        self._evicted(gone)

    def _evicted(self, gone: list[tuple[str, _Entry]]) -> None:
        for key, entry in gone:
            if self._on_evict is not None:
                self._on_evict(key, entry.agent)

    def _with_store(self, work: Callable[[SessionDB], Any]) -> Any:  # noqa: ANN401
        if isinstance(self._db, AsyncSessionDB):
            return _apart(self._db, work)
        return work(self._db)


class _Done:
    """An answer that is there already, whether or not it is awaited."""

    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def __bool__(self) -> bool:
        return self._answer

    def __await__(self) -> Generator[None, None, bool]:
        yield from ()
        return self._answer


def _live(db: SessionDB, session_id: str | None) -> int | None:
    """What the session holds now, or None where that cannot be known."""
    if session_id is None:
        return None
    try:
        found = db.get_session(session_id)
        if found is None:
            return None
        # Without a revision (not a store of ours) the count says as much as there is to know.
        return int(found["revision"] if "revision" in found else found["message_count"])
    except Exception as error:  # noqa: BLE001  (whatever keeps it from being known, the agent is reused)
        log.warning(
            "A session cannot be looked up: %s",
            error,
            extra={"action": "session_unknown"},
        )
        return None


async def _apart(db: AsyncSessionDB, work: Callable[[SessionDB], Any]) -> Any:  # noqa: ANN401
    return await db._threads.run(lambda: work(db._db))  # noqa: SLF001  (its twin)
