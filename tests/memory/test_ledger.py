"""With a store, what a session owes outlives the process: the ledger is the finished runs and `memory.due`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tenax.events import (
    Event,
    MemoryDue,
    MessageAssistant,
    MessageUser,
    RunFinished,
    RunStarted,
)
from tenax.lifecycle import SessionLifecycle
from tenax.parts import Text
from tenax.sessions import AsyncSessionDB, SessionDB
from tests.support.children import Child, Teller

SESSION = "s-ledger"


class Agent:
    """Commits, or not. Its store handle can be closed."""

    memory_owner = "work"

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.commits = 0
        self.closed = 0
        self.session_db = self

    def commit_memory_session(self) -> None:
        if self.fails:
            raise RuntimeError("no memory today")
        self.commits += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def db(store_url: str) -> Iterator[SessionDB]:
    with SessionDB(url=store_url) as db:
        db.create_session(SESSION, "test")
        yield db


def turn(db: SessionDB, outcome: str = "completed") -> int:
    """A turn in the store; the seq of its end."""
    conversation, run = talk(db), db.journal.ids.run()
    (asked,) = db.journal.append(conversation, [MessageUser([Text("hello")], ask=True)])
    events: list[Event] = [RunStarted([asked.seq]), MessageAssistant([Text("yes")])]
    db.journal.append(conversation, events, run=run)
    return db.journal.append(conversation, [RunFinished(outcome)], run=run)[0].seq  # type: ignore[arg-type]


def talk(db: SessionDB) -> str:
    segment = db.journal.segment(SESSION)
    assert segment is not None
    return segment.conversation


def dues(db: SessionDB) -> list[MemoryDue]:
    events = [event.event for event in db.journal.read(talk(db))]
    return [event for event in events if isinstance(event, MemoryDue)]


def turn_and_die(teller: Teller, url: str, marked: bool) -> None:
    """Store a turn, or only mark that there was one. Die without a commit, and without closing anything."""
    db = SessionDB(url=url)
    if marked:
        ledger = SessionLifecycle(db)
        ledger.register_agent(SESSION, Agent())
        ledger.mark_turn_completed(SESSION)
    else:
        teller.tell(turn(db))
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_dead_process_owed_is_committed_by_the_next(
    db: SessionDB, store_url: str
) -> None:
    """Nothing but the store is left; whoever brings an agent commits, once, and the store says up to where."""
    child = Child(turn_and_die, store_url, False)
    assert child.finish() == -signal.SIGKILL
    ((end,),) = child.lines
    ledger, agent = SessionLifecycle(db), Agent()
    assert ledger.has_uncommitted_work(SESSION)
    assert ledger.commit_session_memory(SESSION, agent)
    assert not ledger.commit_session_memory(SESSION, agent)
    assert not ledger.has_uncommitted_work(SESSION)
    assert [(due.session, due.upto, due.owner) for due in dues(db)] == [
        (SESSION, int(end), "work")
    ]
    assert agent.commits == 1


def test_a_turn_that_a_dead_process_only_marked_is_committed_by_the_next(
    db: SessionDB, store_url: str
) -> None:
    """The mark is in the store before `mark_turn_completed` comes back."""
    assert Child(turn_and_die, store_url, True).finish() == -signal.SIGKILL
    ledger, agent = SessionLifecycle(db), Agent()
    assert ledger.has_uncommitted_work(SESSION)
    assert ledger.commit_session_memory(SESSION, agent)
    assert not ledger.has_uncommitted_work(SESSION)
    assert agent.commits == 1


def test_a_commit_that_fails_is_owed_by_the_store(db: SessionDB) -> None:
    """Nothing is due that was not committed; another process can, later."""
    turn(db)
    assert not SessionLifecycle(db).commit_session_memory(SESSION, Agent(fails=True))
    assert dues(db) == []
    assert SessionLifecycle(db).commit_session_memory(SESSION, Agent())


def test_an_evicted_agent_that_owes_keeps_its_handle_and_the_store_its_obligation(
    db: SessionDB,
) -> None:
    """The handle is closed once, by the commit that clears what it owed."""
    ledger, agent = SessionLifecycle(db), Agent(fails=True)
    ledger.register_agent(SESSION, agent)
    turn(db)
    ledger.mark_turn_completed(SESSION, agent)
    assert not ledger.evict(agent)
    assert agent.closed == 0
    assert SessionLifecycle(db).has_uncommitted_work(SESSION)
    agent.fails = False
    assert ledger.commit_session_memory(SESSION)
    assert agent.closed == 1
    assert len(dues(db)) == 1


def test_a_turn_that_was_only_marked_is_owed_by_the_store(
    db: SessionDB, store_url: str
) -> None:
    """Whoever keeps the words elsewhere marks, over either facade; a commit clears its own segment, and the transcript is as it was."""
    before = db.get_session(SESSION, rows=True)
    old, new, late = Agent(), Agent(), Agent()
    ledger = SessionLifecycle(AsyncSessionDB(db))
    for agent in (old, new):
        ledger.register_agent(SESSION, agent)
        ledger.mark_turn_completed(SESSION)
    assert ledger.commit_session_memory(SESSION, new)
    with SessionDB(url=store_url) as other:
        ended, next_one = SessionLifecycle(other), SessionLifecycle(other)
        assert ended.has_uncommitted_work(SESSION)
        ended.register_agent(SESSION, late)
        ended.drain_all_on_shutdown()
        assert not next_one.has_uncommitted_work(SESSION)
        assert not next_one.commit_session_memory(SESSION, Agent())
    assert (old.commits, new.commits, late.commits) == (1, 0, 1)
    assert db.get_session(SESSION, rows=True) == before


def test_what_was_committed_while_somebody_looked_is_owed_no_more(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the store that is older than a commit and the leave of its agent brings nothing back."""
    ledger, agent, owed = SessionLifecycle(db), Agent(), db.journal.owed
    ledger.register_agent(SESSION, agent)
    ledger.mark_turn_completed(SESSION)

    def evicted_meanwhile(conversation: str) -> int:
        found = owed(conversation)
        monkeypatch.undo()
        assert ledger.evict(agent)
        return found

    monkeypatch.setattr(db.journal, "owed", evicted_meanwhile)
    assert not ledger.commit_session_memory(SESSION, Agent())
    assert not ledger.has_uncommitted_work(SESSION)
    assert agent.commits == 1


@pytest.mark.parametrize("outcome", ["cancelled", "failed", "interrupted"])
def test_a_turn_that_did_not_end_well_is_not_owed(db: SessionDB, outcome: str) -> None:
    """Only a completed one is."""
    turn(db, outcome)
    ledger = SessionLifecycle(db)
    assert not ledger.has_uncommitted_work(SESSION)
    assert not ledger.commit_session_memory(SESSION, Agent())


def test_the_end_of_the_process_makes_due_what_was_marked(db: SessionDB) -> None:
    """With the reason, and with the owner of the turn, whoever is registered now."""
    ledger, agent = SessionLifecycle(db), Agent()
    turn(db)
    ledger.mark_turn_completed(SESSION, agent)
    ledger.register_agent(SESSION, Agent())
    ledger.drain_all_on_shutdown(30.0)
    assert [(due.reason, due.owner) for due in dues(db)] == [("shutdown", "work")]
    assert agent.commits == 1
