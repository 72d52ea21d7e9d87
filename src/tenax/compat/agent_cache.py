"""AgentCache: agents by the route of a message, with the last session seen by the agent.

Building an agent is expensive, so the cache keeps 128 agents, for an hour. A snapshot beside an agent names the last
session seen by the agent and the revision of the session. The revision changes with every append, undo, clear, erasure
and compaction. A snapshot of a session says nothing about other sessions. The lock is held only to read and change the
entries: the cache asks the store before taking the lock, and calls `on_evict` after releasing the lock.

Over an `AsyncSessionDB`, the methods with access to the store are awaited.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
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
    """The result of a look-up. Every result except `Missing` and `Building` has an agent to reuse."""

    agent: Any = None


class Missing(Found, frozen=True):
    """No agent exists: build a new agent."""


class Building(Found, frozen=True):
    """Another caller builds the agent now."""


class Fresh(Found, frozen=True):
    """The session is unchanged since the agent's last turn."""


class OtherSession(Found, frozen=True):
    """The agent saw another session last. The snapshot says nothing about the requested session."""


class Stale(Found, frozen=True):
    """Another writer changed the session: update the context before the next turn."""


class Unknown(Found, frozen=True):
    """The session or the snapshot is unknown, so no comparison is possible."""


@dataclass(slots=True)
class _Entry:
    agent: Any
    session_id: str | None
    snapshot: int | None
    used_at: float
    built: threading.Event | None = None
    """Set when the agent is built. `None` after the agent is in the cache."""


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
        """Return the cached agent of a key, for a turn in the session."""
        return self._with_store(
            lambda db: self._find_agent(route_key, session_id, _live(db, session_id))
        )

    def put(
        self,
        route_key: str,
        agent: Any,  # noqa: ANN401
        session_id: str | None = None,
        *,
        snapshot: Any = _LIVE,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Store an agent with a snapshot of the session as of now."""

        def store_agent(db: SessionDB) -> None:
            seen = _live(db, session_id) if snapshot is _LIVE else snapshot
            self._put_entry(
                route_key, _Entry(agent, session_id, seen, self._monotonic())
            )

        return self._with_store(store_agent)

    def rebaseline(self, route_key: str, session_id: str | None) -> Any:  # noqa: ANN401  (None, or awaited)
        """Update the snapshot after a turn of the agent, if `session_id` is the session of the agent."""
        return self._with_store(
            lambda db: self._rebaseline(route_key, session_id, _live(db, session_id))
        )

    def reserve(self, route_key: str) -> bool:
        """Announce the building of an agent. Return False if the agent exists or another caller builds the agent."""
        with self._lock:
            if route_key in self._entries:
                return False
            built = threading.Event()
            self._entries[route_key] = _Entry(None, None, None, self._monotonic(), built)  # fmt: skip
            return True

    def get(
        self, route_key: str, session_id: str | None, build: Callable[[], Any]
    ) -> Any:  # noqa: ANN401
        """Return the agent of a key, and build a missing agent.

        The agent is built once, even with several callers at the same time, and without holding the lock.
        """
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
            self._put_entry(route_key, None)
            raise
        db = self._db._db if isinstance(self._db, AsyncSessionDB) else self._db  # noqa: SLF001  (the facade)
        self._put_entry(
            route_key,
            _Entry(agent, session_id, _live(db, session_id), self._monotonic()),
        )
        return agent

    def evict(self, route_key: str) -> Any:  # noqa: ANN401  (bool, or awaited)
        """Drop an agent now. Return False if the agent does not exist or is still being built."""
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

    def _find_agent(
        self, route_key: str, session_id: str | None, live: int | None
    ) -> Found:
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

    def _put_entry(self, route_key: str, entry: _Entry | None) -> None:
        with self._lock:
            before = self._entries.pop(route_key, None)
            if entry is not None:
                self._entries[route_key] = entry
            over = max(0, len(self._entries) - self._size)
            gone = self._pop(self._finished()[:over])
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
            keys = self._finished()
            gone = self._pop(key for key in keys if self._entries[key].used_at < since)
        self._evicted(gone)

    def _finished(self) -> list[str]:
        """Return the keys of finished agents, least recently used first."""
        return [key for key, entry in self._entries.items() if entry.built is None]

    def _pop(self, keys: Iterable[str]) -> list[tuple[str, _Entry]]:
        return [(key, self._entries.pop(key)) for key in keys]

    def _evicted(self, gone: list[tuple[str, _Entry]]) -> None:
        for key, entry in gone:
            if self._on_evict is not None:
                self._on_evict(key, entry.agent)

    def _with_store(self, work: Callable[[SessionDB], Any]) -> Any:  # noqa: ANN401
        if isinstance(self._db, AsyncSessionDB):
            db = self._db
            return db.threads.run(lambda: work(db._db))  # noqa: SLF001  (the facade)
        return work(self._db)


class _Done:
    """An answer usable with and without `await`."""

    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def __bool__(self) -> bool:
        return self._answer

    def __await__(self) -> Generator[None, None, bool]:
        yield from ()
        return self._answer


def _live(db: SessionDB, session_id: str | None) -> int | None:
    """Return the current revision of a session, or `None` if the revision is unknown."""
    if session_id is None:
        return None
    try:
        found = db.get_session(session_id)
        if found is None:
            return None
        # A foreign store has no revision. The message count is the best substitute.
        return int(found["revision"] if "revision" in found else found["message_count"])
    except Exception as error:  # noqa: BLE001  (the agent is reused whatever fails)
        log.warning(
            "A session cannot be looked up: %s",
            error,
            extra={"action": "session_unknown"},
        )
        return None
