"""SessionLifecycle: the agents owing the memory work of sessions, with the names fixed by the contracts.

A finished turn is a generation of its session. Consecutive turns of the same agent are a segment. The agent owns the
segment, even if another agent registers later. A commit takes the oldest segment up to its current end, calls the
owner, and clears exactly the taken part: a turn finished during the commit stays owed, and a failed commit clears
nothing. A finished turn is only noted. Commits happen at boundaries: a new conversation, an eviction, the shutdown.

An agent is any object with `commit_memory_session()`; an exception means a failed commit. The lock is never held during
a call of an agent or of its store handle.

Owners are objects, so segments are in memory. With a `SessionDB`, the `MemoryLedger` of the store also holds the owed
work. So the work of a killed process stays in the store, and any process with an agent can commit the work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tenax.concurrency import LONGEST_WAIT_SECONDS, SerialThread
from tenax.errors import TenaxError
from tenax.events import Reason
from tenax.journal import Journal
from tenax.memory.ledger import MemoryLedger, Owed
from tenax.text import describe_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenax.compat.sessions import AsyncSessionDB, SessionDB

__all__ = ["SessionLifecycle"]

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 30.0
WAIT_SECONDS_MAX = 300.0
_DRAIN_THREADS = 8


@dataclass(slots=True)
class _Segment:
    """Consecutive turns owed by an agent. Without an owner, the first agent named later becomes the owner."""

    owner: Any
    upto: int
    """The last generation of the segment."""
    seq: int
    """The seq of the last turn in the store, or 0 if the seq is unknown."""


@dataclass(slots=True)
class _Session:
    """The memory work owed by a session."""

    agent: Any = None
    segments: deque[_Segment] = field(default_factory=deque)
    generation: int = 0
    busy: bool = False
    """Whether a commit is in flight."""
    thread: int = 0
    """The thread of the commit in flight."""
    unregistered: bool = False
    """The session is forgotten as soon as it owes nothing."""

    def mark(self, agent: Any, seq: int) -> int:  # noqa: ANN401
        self.generation += 1
        owner = self.agent if agent is None else agent
        last = self.segments[-1] if self.segments else None
        if last is not None and (last.owner is None or last.owner is owner):
            last.owner = owner
            last.upto = self.generation
            last.seq = max(last.seq, seq) if seq else 0
        else:
            self.segments.append(_Segment(owner, self.generation, seq))
        return self.generation

    def clear(self, upto: int) -> None:
        while self.segments and self.segments[0].upto <= upto:
            self.segments.popleft()

    def is_owed_by(self, agent: Any) -> bool:  # noqa: ANN401
        for segment in self.segments:
            owner = self.agent if segment.owner is None else segment.owner
            if owner is agent:
                return True
        return False


@dataclass(slots=True)
class _Commit:
    """A commit in flight: the oldest segment of a session, up to its end at the start of the commit."""

    sid: str
    session: _Session
    owner: Any
    upto: int
    seq: int
    reason: Reason


class SessionLifecycle:
    """The sessions with owed memory work, and the owners of the work. Safe to use from any thread."""

    def __init__(self, db: SessionDB | AsyncSessionDB | None = None) -> None:
        journal = getattr(getattr(db, "_db", db), "journal", None)
        self._ledger = MemoryLedger(journal) if isinstance(journal, Journal) else None
        self._changed = threading.Condition()
        self._sessions: dict[str, _Session] = {}
        self._committed: dict[str, int] = {}
        """By session, the last seq committed here. A read of the store may be older."""
        self._leaving: list[Any] = []
        """Evicted agents with open store handles."""
        self._closed: WeakSet[Any] = WeakSet()

    def register_agent(self, sid: str | None, agent: Any) -> None:  # noqa: ANN401
        """Make the agent the owner of turns finished without a named agent. Already owed work keeps its owner."""
        if not sid:
            return
        owed = self._find_owed(sid)
        with self._changed:
            session = self._sessions.setdefault(sid, _Session())
            session.agent = agent
            session.unregistered = False
            self._take_over(sid, owed)
            self._leaving = _without(self._leaving, [agent])

    def unregister_agent(self, sid: str | None) -> None:
        """Unregister the agent of a session. Owed work stays owed by its owner."""
        with self._changed:
            self._unregister(sid or "")

    def mark_turn_completed(self, sid: str | None, agent: Any = None) -> int:  # noqa: ANN401
        """Note a finished turn. Return the generation, or 0 without a session. No agent is called."""
        if not sid:
            return 0
        seq = self._record_turn(sid)
        with self._changed:
            return self._sessions.setdefault(sid, _Session()).mark(agent, seq)

    def has_uncommitted_work(self, sid: str | None) -> bool:
        if not sid:
            return False
        with self._changed:
            session = self._sessions.get(sid)
            if session is not None and session.segments:
                return True
        return self._find_owed(sid) is not None

    def commit_session_memory(
        self,
        sid: str | None,
        agent: Any = None,  # noqa: ANN401
        *,
        wait: bool = False,
        timeout: float | None = None,
    ) -> bool:
        """Commit the oldest segment with its owner. Return True only if the call committed the segment.

        `agent` becomes the owner of a segment without an owner. `wait` first waits for a commit in flight. With a
        `timeout` the commit runs on a separate thread. On timeout the method returns False, and the commit stays in
        flight.
        """
        return self._commit_oldest(sid, agent, "switch", wait=wait, timeout=timeout)

    def evict(self, agent: Any, *, timeout: float = DEADLINE_SECONDS) -> bool:  # noqa: ANN401
        """Commit the work owed by an agent in every session, forget the agent, and close its store handle.

        Return True if the agent owes nothing any more. As long as the agent owes work, its handle stays open; the last
        commit closes the handle.
        """
        until = time.monotonic() + timeout
        with self._changed:
            sids = [
                sid
                for sid, session in self._sessions.items()
                if session.agent is agent or session.is_owed_by(agent)
            ]
            self._leaving = [*_without(self._leaving, [agent]), agent]
        for sid in sids:
            while self._owes(sid, agent) and self._commit_oldest(
                sid, agent, "evicted", wait=True, timeout=_seconds_left(until)
            ):
                pass
        with self._changed:
            for sid in sids:
                if sid in self._sessions and self._sessions[sid].agent is agent:
                    self._unregister(sid)
        self._close_handles()
        with self._changed:
            sessions = self._sessions.values()
            return not any(session.is_owed_by(agent) for session in sessions)

    def on_evict(self, route_key: str, agent: Any) -> None:  # noqa: ANN401, ARG002
        """Evict an agent dropped by an `AgentCache`. The cache calls the method without holding the lock."""
        self.evict(agent)

    def drain_all_on_shutdown(self, deadline: float = DEADLINE_SECONDS) -> None:
        """Commit the owed work of every session, several sessions at a time. Return at the deadline at the latest."""
        deadline = min(deadline, LONGEST_WAIT_SECONDS)
        until = time.monotonic() + deadline
        sids = deque(self._owing_sids())
        drains = []
        for _ in range(min(_DRAIN_THREADS, len(sids))):
            thread = SerialThread("memory drain", 1)
            drains.append(thread.submit(lambda: self._drain(sids, until), last=True))
        wait_for([drain for drain in drains if drain is not None], timeout=deadline)
        owing = len(self._owing_sids())
        if owing:
            log.warning(
                "%d sessions still owe memory work at shutdown. What is kept in memory only is lost.",
                owing,
                extra={"action": "memory_owed"},
            )

    # -- commits -------------------------------------------------------------------------------------------------

    def _commit_oldest(
        self,
        sid: str | None,
        agent: Any,  # noqa: ANN401
        reason: Reason,
        *,
        wait: bool,
        timeout: float | None,
    ) -> bool:
        if not sid:
            return False
        seconds = WAIT_SECONDS_MAX if timeout is None else timeout
        until = time.monotonic() + min(seconds, LONGEST_WAIT_SECONDS)
        commit = self._begin_commit(sid, agent, reason, until if wait else None)
        if commit is None:
            return False
        if timeout is None:
            return self._finish(commit)
        thread = SerialThread("memory commit", 1)
        answer = thread.submit(lambda: self._finish(commit), last=True)
        if answer is None:
            return self._finish(commit)
        wait_for([answer], timeout=_seconds_left(until))
        return answer.done() and answer.exception() is None and bool(answer.result())

    def _begin_commit(
        self,
        sid: str,
        agent: Any,  # noqa: ANN401
        reason: Reason,
        until: float | None,
    ) -> _Commit | None:
        """Claim the oldest segment up to its current end.

        Return `None` if the session has no segment, no owner, or a commit in flight.
        """
        owed = self._find_owed(sid)
        with self._changed:
            self._take_over(sid, owed)
            session = self._sessions.get(sid)
            if session is not None and session.busy:
                # An agent that commits from inside its own commit must not wait for itself.
                if until is None or session.thread == threading.get_ident():
                    return None
                self._changed.wait_for(
                    lambda: not self._is_busy(sid), timeout=_seconds_left(until)
                )
                session = self._sessions.get(sid)
            if session is None or session.busy or not session.segments:
                return None
            oldest = session.segments[0]
            candidates = (oldest.owner, agent, session.agent)
            owner = next((one for one in candidates if one is not None), None)
            if owner is None:
                return None
            oldest.owner = owner
            session.busy = True
            return _Commit(sid, session, owner, oldest.upto, oldest.seq, reason)

    def _finish(self, commit: _Commit) -> bool:
        """Call the owner, record the boundary in the store, and clear the segment."""
        sid, session = commit.sid, commit.session
        session.thread = threading.get_ident()
        done = False
        try:
            owed = self._find_owed(sid)
            commit.owner.commit_memory_session()
            if owed is not None and self._ledger is not None:
                owner = getattr(commit.owner, "memory_owner", "")
                owner = owner if isinstance(owner, str) else ""
                owed = owed._replace(upto=min(commit.seq or owed.upto, owed.upto))
                self._ledger.record_due(sid, owed, commit.reason, owner)
                self._committed[sid] = owed.upto
            done = True
        except (Exception, SystemExit) as error:  # noqa: BLE001  (foreign code)
            log.warning(
                "The memory of session %s was not committed and stays owed. %s.",
                sid,
                describe_error(error),
                extra={"action": "memory_commit_failed"},
            )
        finally:
            with self._changed:
                session.busy = False
                session.thread = 0
                if done:
                    session.clear(commit.upto)
                if session.unregistered:
                    self._unregister(sid)
                self._changed.notify_all()
            self._close_handles()
        return done

    def _drain(self, sids: deque[str], until: float) -> None:
        while sids and time.monotonic() < until:
            try:
                sid = sids.popleft()
            except IndexError:
                return
            while self._commit_oldest(
                sid, None, "shutdown", wait=True, timeout=_seconds_left(until)
            ):
                pass

    # -- the store -----------------------------------------------------------------------------------------------

    def _find_owed(self, sid: str) -> Owed | None:
        try:
            return None if self._ledger is None else self._ledger.find_owed(sid)
        except TenaxError as error:
            log.info("What %s owes is unknown now: %s", sid, error)
            return None

    def _record_turn(self, sid: str) -> int:
        try:
            return 0 if self._ledger is None else self._ledger.record_turn(sid)
        except TenaxError as error:
            log.warning(
                "What %s owes is kept in memory only. %s",
                sid,
                error,
                extra={"action": "memory_unstored"},
            )
            return 0

    # -- under the lock ------------------------------------------------------------------------------------------

    def _take_over(self, sid: str, owed: Owed | None) -> None:
        """Take over the work left in the store by a dead process, unless the session already owes or commits work."""
        if owed is None or owed.upto <= self._committed.get(sid, 0):
            return
        session = self._sessions.get(sid) or _Session()
        if not session.segments and not session.busy:
            self._sessions[sid] = session
            session.mark(None, owed.upto)

    def _unregister(self, sid: str) -> None:
        session = self._sessions.get(sid)
        if session is not None:
            session.agent = None
            session.unregistered = True
            if not session.segments and not session.busy:
                del self._sessions[sid]

    def _is_busy(self, sid: str) -> bool:
        return sid in self._sessions and self._sessions[sid].busy

    # -- agents --------------------------------------------------------------------------------------------------

    def _owing_sids(self) -> list[str]:
        with self._changed:
            return [sid for sid, session in self._sessions.items() if session.segments]

    def _owes(self, sid: str, agent: Any) -> bool:  # noqa: ANN401
        with self._changed:
            return sid in self._sessions and self._sessions[sid].is_owed_by(agent)

    def _close_handles(self) -> None:
        """Close the store handles of evicted agents without owed work."""
        with self._changed:
            used: list[Any] = []
            for session in self._sessions.values():
                used.append(session.agent)
                used += [segment.owner for segment in session.segments]
            free = _without(self._leaving, used)
            self._leaving = _without(self._leaving, free)
        for agent in free:
            try:
                self._close_handle(agent)
            except Exception as error:  # noqa: BLE001  (foreign code)
                log.warning(
                    "The store of an agent was not closed. %s.",
                    describe_error(error),
                    extra={"action": "close_failed"},
                )

    def _close_handle(self, agent: Any) -> None:  # noqa: ANN401
        """Close the store handle of an agent, if the agent has a handle: once, even if two agents share the handle."""
        handle = getattr(agent, "session_db", None)
        if handle is None:
            handle = getattr(agent, "_session_db", None)
        if handle is None:
            return
        # Without support for weak references, every agent with the handle closes the handle.
        with self._changed, suppress(TypeError):
            if handle in self._closed:
                return
            self._closed.add(handle)
        handle.close()


def _without(agents: Iterable[Any], removed: Iterable[Any]) -> list[Any]:
    """Return the agents not in `removed`, compared by identity."""
    ids = {id(agent) for agent in removed}
    return [agent for agent in agents if id(agent) not in ids]


def _seconds_left(until: float) -> float:
    return max(0.0, until - time.monotonic())
