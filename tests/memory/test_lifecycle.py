"""What is owed to memory is cleared by the generation that a commit took, and by nothing else."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenax.agent import AgentCache
from tenax.lifecycle import SessionLifecycle
from tenax.sessions import SessionDB

SID = "s1"


class Handle:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Committer:
    """An agent that can be made to wait in its commit, and to fail."""

    def __init__(
        self, *, fails: int = 0, waits: bool = False, session_db: Handle | None = None
    ) -> None:
        self.calls = 0
        self.fails = fails
        self.entered = threading.Event()
        self.release = threading.Event()
        self.session_db = session_db
        if not waits:
            self.release.set()

    def commit_memory_session(self) -> None:
        self.calls += 1
        self.entered.set()
        assert self.release.wait(60)
        if self.fails:
            self.fails -= 1
            raise RuntimeError("not now")


class Started:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        self.result = call()

    def goes_on(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()

    def ended(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.result


@pytest.fixture
def lifecycle() -> SessionLifecycle:
    return SessionLifecycle()


@pytest.fixture
def waiting() -> Iterator[Committer]:
    agent = Committer(waits=True, session_db=Handle())
    yield agent
    agent.release.set()


@pytest.fixture
def db() -> Iterator[SessionDB]:
    db = SessionDB(url="memory:")
    yield db
    db.close()


def marked(lifecycle: SessionLifecycle, agent: Committer) -> None:
    lifecycle.register_agent(SID, agent)
    lifecycle.mark_turn_completed(SID, agent=agent)


def in_flight(lifecycle: SessionLifecycle, agent: Committer) -> Started:
    """A commit that is inside the agent, with a newer turn finished meanwhile."""
    marked(lifecycle, agent)
    commit = Started(lambda: lifecycle.commit_session_memory(SID))
    assert agent.entered.wait(60)
    lifecycle.mark_turn_completed(SID, agent=agent)
    return commit


def test_a_turn_that_finishes_during_a_commit_stays_owed(
    lifecycle: SessionLifecycle, waiting: Committer
) -> None:
    """The commit in flight clears what it took; the next one takes the rest."""
    commit = in_flight(lifecycle, waiting)
    assert lifecycle.commit_session_memory(SID) is False
    waiting.release.set()
    assert commit.ended() is True
    assert (waiting.calls, lifecycle.has_uncommitted_work(SID)) == (1, True)
    assert lifecycle.commit_session_memory(SID) is True
    assert (waiting.calls, lifecycle.has_uncommitted_work(SID)) == (2, False)


def test_a_commit_that_fails_keeps_the_work_and_the_agent(
    lifecycle: SessionLifecycle,
) -> None:
    """The next try is made with the same agent."""
    agent = Committer(fails=1)
    marked(lifecycle, agent)
    assert lifecycle.commit_session_memory(SID) is False
    assert lifecycle.has_uncommitted_work(SID) is True
    assert lifecycle.commit_session_memory(SID) is True
    assert (agent.calls, lifecycle.has_uncommitted_work(SID)) == (2, False)


def test_an_agent_that_was_only_brought_to_a_failing_commit_is_kept(
    lifecycle: SessionLifecycle,
) -> None:
    """The next try needs no agent."""
    agent = Committer(fails=1)
    lifecycle.mark_turn_completed(SID)
    assert lifecycle.commit_session_memory(SID) is False
    assert lifecycle.commit_session_memory(SID, agent=agent) is False
    assert lifecycle.commit_session_memory(SID) is True
    assert (agent.calls, lifecycle.has_uncommitted_work(SID)) == (2, False)


def test_what_is_owed_keeps_its_owner_when_another_agent_registers(
    lifecycle: SessionLifecycle,
) -> None:
    """Once it is clean, the new agent owns what follows."""
    old, new = Committer(fails=1), Committer()
    marked(lifecycle, old)
    assert lifecycle.commit_session_memory(SID) is False
    lifecycle.register_agent(SID, new)
    assert lifecycle.commit_session_memory(SID) is True
    assert (old.calls, new.calls, lifecycle.has_uncommitted_work(SID)) == (2, 0, False)
    lifecycle.mark_turn_completed(SID)
    assert lifecycle.commit_session_memory(SID) is True
    assert (old.calls, new.calls) == (2, 1)


def test_a_commit_with_the_new_agent_takes_the_old_ones_work_first(
    lifecycle: SessionLifecycle,
) -> None:
    """And leaves its own for the next commit."""
    old, new = Committer(fails=1), Committer()
    marked(lifecycle, old)
    assert lifecycle.commit_session_memory(SID) is False
    marked(lifecycle, new)
    assert lifecycle.commit_session_memory(SID, agent=new) is True
    assert (old.calls, new.calls, lifecycle.has_uncommitted_work(SID)) == (2, 0, True)
    assert lifecycle.commit_session_memory(SID) is True
    assert (old.calls, new.calls, lifecycle.has_uncommitted_work(SID)) == (2, 1, False)


def test_without_a_finished_turn_there_is_nothing_to_commit(
    lifecycle: SessionLifecycle,
) -> None:
    """Being registered is not work."""
    agent = Committer()
    lifecycle.register_agent(SID, agent)
    assert lifecycle.commit_session_memory(SID) is False
    assert (agent.calls, lifecycle.has_uncommitted_work(SID)) == (0, False)


def test_what_is_owed_outlives_the_registration(lifecycle: SessionLifecycle) -> None:
    """A commit that brings the agent works, and so does one that does not."""
    agent = Committer()
    for brought in (agent, None):
        marked(lifecycle, agent)
        lifecycle.unregister_agent(SID)
        assert lifecycle.has_uncommitted_work(SID) is True
        assert lifecycle.commit_session_memory(SID, agent=brought) is True
        assert lifecycle.has_uncommitted_work(SID) is False
    assert agent.calls == 2


def test_shutdown_waits_for_a_commit_in_flight_and_takes_the_newer_turn(
    lifecycle: SessionLifecycle, waiting: Committer
) -> None:
    """Nothing is owed afterwards."""
    commit = in_flight(lifecycle, waiting)
    drain = Started(lifecycle.drain_all_on_shutdown)
    assert drain.goes_on()
    assert waiting.calls == 1
    waiting.release.set()
    commit.ended()
    drain.ended()
    assert (waiting.calls, lifecycle.has_uncommitted_work(SID)) == (2, False)


def test_shutdown_keeps_its_deadline_and_drains_the_others(
    lifecycle: SessionLifecycle, waiting: Committer, caplog: Any
) -> None:
    """A commit that never ends, and one that fails, hold up neither the others nor the process; it is said who is left."""
    marked(lifecycle, waiting)
    others = [Committer() for _ in range(20)]
    for number, agent in enumerate(others):
        lifecycle.mark_turn_completed(f"other {number}", agent=agent)
    lifecycle.mark_turn_completed("failing", agent=Committer(fails=99))
    began = time.monotonic()
    lifecycle.drain_all_on_shutdown(deadline=2.0)
    # The commit that never ends goes on for a minute.
    assert time.monotonic() - began < 30
    assert [agent.calls for agent in others] == [1] * 20
    assert "2 sessions still owe memory work at shutdown" in caplog.text
    waiting.release.set()
    assert lifecycle.commit_session_memory(SID, wait=True, timeout=60) is False
    assert lifecycle.has_uncommitted_work(SID) is False


def test_a_commit_with_a_timeout_comes_back_and_still_counts_when_it_ends(
    lifecycle: SessionLifecycle, waiting: Committer
) -> None:
    """It is in flight, not failed: nobody calls the agent a second time meanwhile."""
    marked(lifecycle, waiting)
    assert lifecycle.commit_session_memory(SID, timeout=0.05) is False
    assert lifecycle.commit_session_memory(SID, wait=True, timeout=0.05) is False
    waiting.release.set()
    assert lifecycle.commit_session_memory(SID, wait=True, timeout=60) is False
    assert (waiting.calls, lifecycle.has_uncommitted_work(SID)) == (1, False)


def test_eviction_commits_before_it_forgets_the_agent(
    lifecycle: SessionLifecycle, db: SessionDB
) -> None:
    """Out of the cache, the work done, the handle closed; a later turn finds no agent."""
    agent = Committer(session_db=Handle())
    cache = AgentCache(db, on_evict=lifecycle.on_evict)
    cache.put("route", agent, SID)
    marked(lifecycle, agent)
    assert cache.evict("route") is True
    assert (agent.calls, lifecycle.has_uncommitted_work(SID), len(cache)) == (
        1,
        False,
        0,
    )
    assert agent.session_db is not None
    assert agent.session_db.closed == 1
    lifecycle.mark_turn_completed(SID)
    assert lifecycle.commit_session_memory(SID) is False
    assert agent.calls == 1


def test_eviction_waits_for_a_commit_in_flight_and_closes_the_store_once(
    lifecycle: SessionLifecycle, waiting: Committer
) -> None:
    """The newer turn is committed too before the handle is closed; two evictions close it once."""
    handle = waiting.session_db
    assert handle is not None
    commit = in_flight(lifecycle, waiting)
    evictions = [Started(lambda: lifecycle.evict(waiting)) for _ in range(2)]
    assert all(eviction.goes_on() for eviction in evictions)
    assert handle.closed == 0
    waiting.release.set()
    commit.ended()
    assert [eviction.ended() for eviction in evictions] == [True, True]
    assert (waiting.calls, handle.closed, lifecycle.has_uncommitted_work(SID)) == (
        2,
        1,
        False,
    )
    assert lifecycle.evict(waiting) is True
    assert handle.closed == 1


def test_the_handle_of_an_agent_that_owes_work_stays_open_until_it_is_done(
    lifecycle: SessionLifecycle,
) -> None:
    """An eviction that could not commit leaves the work with its owner; the commit that succeeds closes the handle."""
    agent = Committer(fails=1, session_db=Handle())
    marked(lifecycle, agent)
    assert lifecycle.evict(agent) is False
    assert agent.session_db is not None
    assert (agent.session_db.closed, lifecycle.has_uncommitted_work(SID)) == (0, True)
    lifecycle.drain_all_on_shutdown(deadline=60)
    assert (
        agent.calls,
        agent.session_db.closed,
        lifecycle.has_uncommitted_work(SID),
    ) == (2, 1, False)


def test_an_eviction_that_takes_too_long_comes_back(
    lifecycle: SessionLifecycle, waiting: Committer
) -> None:
    """The handle is closed by the commit when that ends, not under it."""
    marked(lifecycle, waiting)
    assert lifecycle.evict(waiting, timeout=0.05) is False
    assert waiting.session_db is not None
    assert waiting.session_db.closed == 0
    waiting.release.set()
    assert lifecycle.commit_session_memory(SID, wait=True, timeout=60) is False
    until = time.monotonic() + 60
    while not waiting.session_db.closed and time.monotonic() < until:
        time.sleep(0.001)
    assert waiting.session_db.closed == 1


def test_an_agent_is_evicted_from_all_its_sessions(lifecycle: SessionLifecycle) -> None:
    """One agent may serve several sessions under one key; each of them is committed."""
    agent, neighbour = Committer(session_db=Handle()), Committer()
    for sid in ("s1", "s2", "s3"):
        lifecycle.register_agent(sid, agent)
        lifecycle.mark_turn_completed(sid)
    lifecycle.register_agent("s4", neighbour)
    lifecycle.mark_turn_completed("s4")
    assert lifecycle.evict(agent) is True
    assert (agent.calls, neighbour.calls) == (3, 0)
    assert lifecycle.has_uncommitted_work("s4") is True


def test_several_turns_are_one_commit(lifecycle: SessionLifecycle) -> None:
    """A generation for each turn; a further commit has nothing to do."""
    agent = Committer()
    lifecycle.register_agent(SID, agent)
    assert [lifecycle.mark_turn_completed(SID, agent=agent) for _ in range(3)] == [
        1,
        2,
        3,
    ]
    assert lifecycle.commit_session_memory(SID) is True
    assert lifecycle.commit_session_memory(SID) is False
    assert (agent.calls, lifecycle.has_uncommitted_work(SID)) == (1, False)
    assert lifecycle.mark_turn_completed(SID) == 4


def test_a_session_that_was_left_is_forgotten_once_it_is_clean(
    lifecycle: SessionLifecycle,
) -> None:
    """The ledger does not grow with every session there ever was: a later turn is the first again."""
    agent = Committer()
    marked(lifecycle, agent)
    lifecycle.unregister_agent(SID)
    assert lifecycle.mark_turn_completed(SID, agent=agent) == 2
    assert lifecycle.commit_session_memory(SID) is True
    assert lifecycle.mark_turn_completed(SID, agent=agent) == 1


@pytest.mark.parametrize("sid", ["", None])
def test_without_a_session_every_call_is_harmless(
    lifecycle: SessionLifecycle, sid: str | None
) -> None:
    """None, None, 0, False, False."""
    agent = Committer()
    assert lifecycle.register_agent(sid, agent) is None
    assert lifecycle.unregister_agent(sid) is None
    assert lifecycle.mark_turn_completed(sid, agent=agent) == 0
    assert lifecycle.has_uncommitted_work(sid) is False
    assert lifecycle.commit_session_memory(sid) is False
    assert (
        lifecycle.commit_session_memory(sid, agent=agent, wait=True, timeout=1) is False
    )
    assert agent.calls == 0


def test_the_oldest_agent_leaves_a_full_cache_and_is_committed_outside_its_lock(
    lifecycle: SessionLifecycle, db: SessionDB, waiting: Committer
) -> None:
    """While the commit goes on, the cache answers everybody else."""
    cache = AgentCache(db, size=1, on_evict=lifecycle.on_evict)
    cache.put("old", waiting, SID)
    marked(lifecycle, waiting)
    put = Started(lambda: cache.put("new", Committer(), "s2"))
    assert waiting.entered.wait(60)
    looked = Started(lambda: cache.look("new", "s2").agent is not None)
    assert looked.ended() is True
    assert put.goes_on()
    waiting.release.set()
    put.ended()
    assert lifecycle.has_uncommitted_work(SID) is False


def test_a_finished_turn_is_only_noted(lifecycle: SessionLifecycle) -> None:
    """It calls nobody: extraction is a matter of boundaries."""
    agent = Committer()
    marked(lifecycle, agent)
    assert (agent.calls, lifecycle.has_uncommitted_work(SID)) == (0, True)


def test_an_agent_may_use_the_ledger_from_inside_its_commit(
    lifecycle: SessionLifecycle,
) -> None:
    """No lock is held; and a commit inside a commit of the same session is refused, not waited for."""
    seen: list[object] = []

    class Curious(Committer):
        def commit_memory_session(self) -> None:
            seen.append(lifecycle.commit_session_memory(SID, wait=True))
            seen.append(lifecycle.mark_turn_completed(SID, agent=self))

    marked(lifecycle, Curious())
    for timeout in (None, 60.0):
        assert lifecycle.commit_session_memory(SID, timeout=timeout) is True
    assert seen == [False, 2, False, 3]
    assert lifecycle.has_uncommitted_work(SID) is True


def test_many_threads_leave_no_turn_uncommitted(lifecycle: SessionLifecycle) -> None:
    """Turns and commits from everywhere at once: in the end nothing is owed, and no two commits overlapped."""

    class Alone(Committer):
        inside = 0
        overlapped = False

        def commit_memory_session(self) -> None:
            self.inside += 1
            self.overlapped |= self.inside > 1
            time.sleep(0.0002)
            self.inside -= 1

    agent = Alone()
    lifecycle.register_agent(SID, agent)

    def work() -> None:
        for _ in range(50):
            lifecycle.mark_turn_completed(SID)
            lifecycle.commit_session_memory(SID, wait=True)

    for each in [Started(work) for _ in range(4)]:
        each.ended()
    assert lifecycle.has_uncommitted_work(SID) is False
    assert lifecycle.mark_turn_completed(SID) == 201
    assert not agent.overlapped


class AnswersAnything:
    """A store of somebody's tests: it has every attribute, and all of them are itself."""

    def __getattr__(self, name: str) -> AnswersAnything:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> AnswersAnything:
        return self


@pytest.mark.parametrize("sid", [SID, "a\0b", "\ud800", ("no", "text")])
def test_with_a_store_that_is_none_or_has_no_such_session_the_ledger_is_in_memory(
    db: SessionDB, sid: Any
) -> None:
    """Nothing is raised, and any number of seconds is taken, also more than a lock can wait."""
    for store in (db, AnswersAnything()):
        lifecycle, agent = SessionLifecycle(store), Committer()  # type: ignore[arg-type]
        lifecycle.register_agent(sid, agent)
        assert lifecycle.mark_turn_completed(sid) == 1
        assert lifecycle.has_uncommitted_work(sid) is True
        assert lifecycle.commit_session_memory(sid, wait=True, timeout=math.inf) is True
        lifecycle.mark_turn_completed(sid)
        lifecycle.drain_all_on_shutdown(math.inf)
        assert (agent.calls, lifecycle.has_uncommitted_work(sid)) == (2, False)
