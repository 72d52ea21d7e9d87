"""SessionLifecycle: which finished turns no memory was extracted from yet, and who owes that.

Every finished turn is a generation of its session. Turns of one agent in a row are a segment, and the segment is owed by
that agent, its owner, whoever is registered later. A commit takes the oldest segment as far as it goes at that moment, with
its own owner, and clears just that: a turn that finishes meanwhile stays owed, and a commit that fails clears nothing.
A turn that finishes is only noted; commits are made at boundaries (a new conversation, eviction, shutdown).

An agent is anything with `commit_memory_session()`; if that raises, it has failed. No agent, and no store handle of one,
is called while the lock is held. By itself the ledger is in memory, and gone with the process. With a `SessionDB` it is
the store: what is owed is the finished runs after the last `memory.due`, and a commit appends the next one. A turn that ran
elsewhere is stored as a run when it is marked. A process that is killed leaves the same ledger behind, and whoever brings an
agent along can commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tenax.errors import TenaxError
from tenax.events import MemoryDue, Reason, RunFinished, RunStarted
from tenax.journal import Journal
from tenax.memory.serial_thread import LONGEST_SECONDS, Lane, said

if TYPE_CHECKING:
    from tenax.compat.sessions import AsyncSessionDB, SessionDB

__all__ = ["SessionLifecycle"]

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 30.0
WAIT_SECONDS_MAX = 300.0
_DRAINED_AT_ONCE = 8


class _Segment:
    """Turns in a row that one agent owes, up to a generation. No owner: whoever is brought along first."""

    __slots__ = ("owner", "seq", "upto")

    def __init__(self, owner: Any, upto: int, seq: int) -> None:  # noqa: ANN401
        self.owner = owner
        self.upto = upto
        # where the last of them stands in the store; 0 where that is not known
        self.seq = seq


class _Session:
    """What one session owes."""

    __slots__ = ("agent", "busy", "generation", "left", "segments", "thread")

    def __init__(self) -> None:
        self.agent: Any = None
        self.segments: deque[_Segment] = deque()
        self.generation = 0
        self.busy = False  # a commit is in flight
        self.thread = 0  # on this thread
        self.left = False  # forgotten once nothing is owed

    def mark(self, agent: Any, seq: int) -> int:  # noqa: ANN401
        self.generation += 1
        owner = self.agent if agent is None else agent
        last = self.segments[-1] if self.segments else None
        if last is not None and (last.owner is None or last.owner is owner):
            last.owner, last.upto, last.seq = (
                owner,
                self.generation,
                seq and max(last.seq, seq),
            )
        else:
            self.segments.append(_Segment(owner, self.generation, seq))
        return self.generation

    def clear(self, upto: int) -> None:
        while self.segments and self.segments[0].upto <= upto:
            self.segments.popleft()

    def owed_by(self, agent: Any) -> bool:  # noqa: ANN401
        owners = [
            each.owner if each.owner is not None else self.agent
            for each in self.segments
        ]
        return any(each is agent for each in owners)


class SessionLifecycle:
    """Which session owes memory work, and to whom. Safe to use from any thread."""

    def __init__(self, db: SessionDB | AsyncSessionDB | None = None) -> None:
        journal = getattr(getattr(db, "_db", db), "journal", None)
        self._journal = journal if isinstance(journal, Journal) else None
        self._changed = threading.Condition()
        self._sessions: dict[str, _Session] = {}
        # up to where our commits went; a look at the store may be older
        self._met: dict[str, int] = {}
        # evicted agents whose store handle is still to be closed
        self._leaving: list[Any] = []
        self._closed: WeakSet[Any] = WeakSet()

    def register_agent(self, sid: str | None, agent: Any) -> None:  # noqa: ANN401
        """From now on this agent owns what finishes without a name. What is owed already keeps its owner."""
        if not sid:
            return
        owed = self._owed(sid)[1]
        with self._changed:
            session = self._sessions.setdefault(sid, _Session())
            session.agent, session.left = agent, False
            self._find(sid, owed)
            self._leaving = [each for each in self._leaving if each is not agent]

    def unregister_agent(self, sid: str | None) -> None:
        """No agent is registered any more. What is owed stays owed, by its owner."""
        with self._changed:
            self._leave(sid or "")

    def mark_turn_completed(
        self,
        sid: str | None,
        agent: Any = None,  # noqa: ANN401
        *,
        stored: bool = False,
    ) -> int:
        """A turn is finished. Calls nobody. The generation, or 0 without a session. `stored`: its run is in the journal."""
        if not sid:
            return 0
        seq = 0 if stored else self._note(sid)
        with self._changed:
            return self._sessions.setdefault(sid, _Session()).mark(agent, seq)

    def has_uncommitted_work(self, sid: str | None) -> bool:
        if not sid:
            return False
        with self._changed:
            session = self._sessions.get(sid)
            if session is not None and session.segments:
                return True
        return self._owed(sid)[1] > 0

    def commit_session_memory(
        self,
        sid: str | None,
        agent: Any = None,  # noqa: ANN401
        *,
        wait: bool = False,
        timeout: float | None = None,
        reason: Reason = "switch",
    ) -> bool:
        """Commit the oldest segment with its owner. True only if this call did.

        The agent is for a segment that has no owner. `wait` waits for a commit in flight first. With a `timeout` the
        commit is made on a thread of its own, and one that takes longer goes on there: False, and it is still in flight.
        """
        if not sid:
            return False
        until = time.monotonic() + min(
            WAIT_SECONDS_MAX if timeout is None else timeout, LONGEST_SECONDS
        )
        begun = self._begin(sid, agent, until if wait else None)
        if begun is None:
            return False
        if timeout is None:
            return self._commit(sid, *begun, reason)
        answer = Lane("memory commit", 1).give(
            lambda: self._commit(sid, *begun, reason), last=True
        )
        if answer is None:
            return self._commit(sid, *begun, reason)
        wait_for([answer], timeout=max(0.0, until - time.monotonic()))
        return answer.done() and answer.exception() is None and bool(answer.result())

    def evict(self, agent: Any, *, timeout: float = DEADLINE_SECONDS) -> bool:  # noqa: ANN401
        """Commit what an agent owes in every session, forget it, and close its store handle. True if that was done.

        While it owes anything the handle stays open, and is closed by the commit that clears the last of it.
        """
        until = time.monotonic() + timeout
        with self._changed:
            held = [
                sid
                for sid, each in self._sessions.items()
                if each.agent is agent or each.owed_by(agent)
            ]
            self._leaving += (
                [] if any(each is agent for each in self._leaving) else [agent]
            )
        for sid in held:
            while self._owes(sid, agent) and self.commit_session_memory(
                sid,
                agent,
                wait=True,
                timeout=max(0.0, until - time.monotonic()),
                reason="evicted",
            ):
                pass
        with self._changed:
            for sid in held:
                if sid in self._sessions and self._sessions[sid].agent is agent:
                    self._leave(sid)
        self._close_those_that_left()
        with self._changed:
            return not any(each.owed_by(agent) for each in self._sessions.values())

    def on_evict(self, route_key: str, agent: Any) -> None:  # noqa: ANN401, ARG002
        """The same, as an `AgentCache` calls it: after it has let go of its lock."""
        self.evict(agent)

    def drain_all_on_shutdown(self, deadline: float = DEADLINE_SECONDS) -> None:
        """Commit everything that is owed, several sessions at a time, and be back when the deadline is over."""
        deadline = min(deadline, LONGEST_SECONDS)
        until = time.monotonic() + deadline
        with self._changed:
            owing = deque(sid for sid, each in self._sessions.items() if each.segments)
        lanes = [
            Lane("memory drain", 1) for _ in range(min(_DRAINED_AT_ONCE, len(owing)))
        ]
        wait_for(
            [
                answer
                for each in lanes
                if (answer := each.give(lambda: self._drain(owing, until), last=True))
            ],
            timeout=deadline,
        )
        with self._changed:
            left = sum(1 for each in self._sessions.values() if each.segments)
        if left:
            log.warning(
                "%d sessions still owe memory work at shutdown. What is kept in memory only is lost.",
                left,
                extra={"action": "memory_owed"},
            )

    # -- the ledger ----------------------------------------------------------------------------------------------

    def _begin(
        self,
        sid: str,
        agent: Any,  # noqa: ANN401
        until: float | None,
    ) -> tuple[_Session, Any, int, int] | None:
        """Claim the oldest segment as far as it goes now."""
        owed = self._owed(sid)[1]
        with self._changed:
            self._find(sid, owed)
            session = self._sessions.get(sid)
            if session is not None and session.busy:
                if until is None or session.thread == threading.get_ident():
                    # also for an agent that asks from inside its own commit
                    return None
                self._changed.wait_for(
                    lambda: not self._busy(sid),
                    timeout=max(0.0, until - time.monotonic()),
                )
                session = self._sessions.get(sid)
            if session is None or session.busy or not session.segments:
                return None
            oldest = session.segments[0]
            owner = next(
                (
                    each
                    for each in (oldest.owner, agent, session.agent)
                    if each is not None
                ),
                None,
            )
            if owner is None:
                return None
            oldest.owner, session.busy = owner, True
            return session, owner, oldest.upto, oldest.seq

    def _find(self, sid: str, owed: int) -> None:
        """Under the lock: take in what the store says is owed, where nothing else is: turns of a process that is gone."""
        session = self._sessions.get(sid) or _Session()
        if owed > self._met.get(sid, 0) and not session.segments and not session.busy:
            self._sessions[sid] = session
            session.mark(None, owed)

    def _note(self, sid: str) -> int:
        """Say in the store that a turn finished which ran elsewhere, if it has the session; where that stands, or 0."""
        try:
            if (journal := self._journal) is not None and (
                stretch := journal.stretch(sid)
            ) is not None:
                events = [
                    RunStarted(instance=journal.instance),
                    RunFinished("completed"),
                ]
                return journal.append(
                    stretch.conversation, events, run=journal.ids.run()
                )[-1].seq
        except TenaxError as error:
            log.warning(
                "What %s owes is kept in memory only. %s",
                sid,
                error,
                extra={"action": "memory_unstored"},
            )
        return 0

    def _commit(
        self,
        sid: str,
        session: _Session,
        owner: Any,  # noqa: ANN401
        upto: int,
        seq: int,
        reason: Reason,
    ) -> bool:
        session.thread = threading.get_ident()
        done = False
        try:
            conversation, owed = self._owed(sid)
            owner.commit_memory_session()
            if owed and self._journal is not None:
                whose, met = getattr(owner, "memory_owner", ""), min(seq or owed, owed)
                due = MemoryDue(
                    sid, met, reason, whose if isinstance(whose, str) else ""
                )
                self._journal.append(conversation, [due])
                self._met[sid] = met
            done = True
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the border to code of others)
            log.warning(
                "The memory of session %s was not committed and stays owed. %s.",
                sid,
                said(error),
                extra={"action": "memory_commit_failed"},
            )
        finally:
            with self._changed:
                session.busy, session.thread = False, 0
                if done:
                    session.clear(upto)
                if session.left:
                    self._leave(sid)
                self._changed.notify_all()
            self._close_those_that_left()
        return done

    def _drain(self, owing: deque[str], until: float) -> None:
        while owing and time.monotonic() < until:
            try:
                sid = owing.popleft()
            except IndexError:
                return
            while self.commit_session_memory(
                sid,
                wait=True,
                timeout=max(0.0, until - time.monotonic()),
                reason="shutdown",
            ):
                pass

    def _owed(self, sid: str) -> tuple[str, int]:
        """The conversation of a session in the store, and up to where its turns are owed; "" and 0 where nothing is."""
        try:
            if (
                self._journal is not None
                and (stretch := self._journal.stretch(sid)) is not None
            ):
                return stretch.conversation, self._journal.owed(stretch.conversation)
        except TenaxError as error:
            log.info("What %s owes is not known now: %s", sid, error)
        return "", 0

    def _busy(self, sid: str) -> bool:
        return sid in self._sessions and self._sessions[sid].busy

    def _owes(self, sid: str, agent: Any) -> bool:  # noqa: ANN401
        with self._changed:
            return sid in self._sessions and self._sessions[sid].owed_by(agent)

    def _leave(self, sid: str) -> None:
        """Under the lock: no agent is registered; nothing owed, nothing kept."""
        session = self._sessions.get(sid)
        if session is not None:
            session.agent, session.left = None, True
            if not session.segments and not session.busy:
                del self._sessions[sid]

    def _close_those_that_left(self) -> None:
        with self._changed:
            held = [each.agent for each in self._sessions.values()]
            held += [
                part.owner for each in self._sessions.values() for part in each.segments
            ]
            gone = [
                agent
                for agent in self._leaving
                if not any(each is agent for each in held)
            ]
            self._leaving = [
                agent
                for agent in self._leaving
                if not any(each is agent for each in gone)
            ]
        for agent in gone:
            try:
                self._close(agent)
            except Exception as error:  # noqa: BLE001  (the border to code of others)
                log.warning(
                    "The store of an agent was not closed. %s.",
                    said(error),
                    extra={"action": "close_failed"},
                )

    def _close(self, agent: Any) -> None:  # noqa: ANN401
        """Close the store handle of an agent, if it has one: once, also if two agents share it."""
        handle = getattr(agent, "session_db", None)
        handle = getattr(agent, "_session_db", None) if handle is None else handle
        if handle is None:
            return
        # what cannot be noted is closed by every agent that has it
        with self._changed, suppress(TypeError):
            if handle in self._closed:
                return
            self._closed.add(handle)
        handle.close()
