"""The store in a SQLite file keeps the contract."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import tenax
from tenax.clock import Clock, Timing
from tenax.errors import StoreBusy, StoreUnavailable
from tenax.journal import Journal, group, sqlite
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Lease
from tenax.journal.plan import Append
from tenax.journal.sqlite import QueueLock, SqliteStore
from tenax.journal.wakeups import ANY
from tenax.testing import memory
from tests.contract.engine import JournalContract
from tests.contract.engine.appending import AppendContract
from tests.contract.engine.base import Engine, begin, said, say
from tests.support.awaited import Loop, awaited

SOON = 30.0


class SqliteEngine(Engine):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/tenax.db"

    @pytest.fixture
    def journal(self, clock: Clock, url: str) -> Iterator[Journal]:
        with tenax.open(url, user="ada", clock=clock) as journal:
            yield journal

    @pytest.fixture
    def another(self, journal: Journal, clock: Clock, url: str) -> Iterator[Journal]:
        with tenax.open(url, user="ada", clock=clock) as another:
            yield another

    @pytest.fixture
    def leave_behind(
        self, journal: Journal, clock: Clock, url: str
    ) -> Callable[[str], Lease]:
        def claim(name: str) -> Lease:
            other = tenax.open(url, user="ada", clock=clock)
            lease = other.claim(name, "dead", 3600)
            other.store.close_engine()  # the kernel does as much for a killed process
            assert lease is not None
            return lease

        return claim


class TestSqlite(SqliteEngine, JournalContract):
    """The whole contract."""


class TestSqliteAwaited(SqliteEngine, AppendContract):
    """The append path of the async facade. Its other verbs: test_awaited.py."""

    @pytest.fixture
    def journal(self, clock: Clock, url: str, loop: Loop) -> Iterator[Journal]:
        journal = awaited(tenax.open(url, user="ada", clock=clock), loop)
        yield journal
        journal.close()


@pytest.fixture
def leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[str], tuple[threading.Event, threading.Event]]]:
    """A thread of the store that is about to end: when it is, and what lets it go on."""
    shut, poll = sqlite.shut, SqliteStore.poll
    goes_on: list[threading.Event] = []

    def of(name: str) -> tuple[threading.Event, threading.Event]:
        there, on = threading.Event(), threading.Event()
        goes_on.append(on)

        def shut_late(connection: apsw.Connection | None) -> None:
            if threading.current_thread().name == name and not there.is_set():
                there.set()
                on.wait(SOON)
            shut(connection)

        def poll_late(store: SqliteStore) -> None:
            poll(store)
            if not there.is_set():
                there.set()
                on.wait(SOON)

        if name == "tenax-watch":
            monkeypatch.setattr(SqliteStore, "poll", poll_late)
        else:
            monkeypatch.setattr(sqlite, "shut", shut_late)
        return there, on

    yield of
    for each in goes_on:
        each.set()


def test_who_listens_while_the_watcher_leaves_is_told_of_other_processes(
    tmp_path: Path, leaving: Callable[[str], tuple[threading.Event, threading.Event]]
) -> None:
    """One thread looks for the commits of others while somebody listens. Its end is no gap."""
    url, told = f"sqlite:///{tmp_path}/tenax.db", threading.Event()
    with tenax.open(url) as journal, tenax.open(url) as another:
        there, on = leaving("tenax-watch")
        with journal.store.wakeups.listening(ANY, lambda: None):
            pass
        assert there.wait(SOON)
        with journal.store.wakeups.listening(ANY, told.set):
            on.set()
            told.wait(1)
            told.clear()
            begin(another)
            assert told.wait(SOON)


def test_a_log_that_grows_while_its_thread_leaves_is_copied_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leaving: Callable[[str], tuple[threading.Event, threading.Event]],
) -> None:
    """Otherwise it would grow for as long as the process lives."""
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 1)
    timing = Timing(checkpoint_idle_seconds=0.01)
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db", timing=timing) as journal:
        there, on = leaving("tenax-checkpoint")
        name = begin(journal)
        assert there.wait(SOON)
        journal.append(name, [say("while it leaves")])
        on.set()
        copied = threading.Event()
        monkeypatch.setattr(
            sqlite,
            "shut",
            lambda connection: (connection and connection.close(), copied.set()),
        )
        journal.append(name, [say("more")])
        assert copied.wait(SOON)


def test_threads_that_have_ended_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for months starts the watcher often."""
    started: list[weakref.ref[threading.Thread]] = []

    def start(work: Callable[[], object], name: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        started.append(weakref.ref(thread))
        thread.start()
        return thread

    monkeypatch.setattr(sqlite, "start_thread", start)
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db") as journal:
        for _ in range(20):
            with journal.store.wakeups.listening(ANY, lambda: None):
                pass
            for thread in threading.enumerate():
                if thread.name == "tenax-watch":
                    thread.join(SOON)
        del thread
        gc.collect()
        assert len(started) > 1
        assert sum(kept() is not None for kept in started) <= 1


def test_a_process_that_was_refused_at_first_is_known_afterwards(
    tmp_path: Path,
) -> None:
    """Recovery looks for the spools of known processes only. The spool of an unknown process would stay there."""
    url, timing = f"sqlite:///{tmp_path}/tenax.db", Timing(turn_seconds=0.2)
    with tenax.open(url, timing=timing) as journal:
        journal.store.patience = 0.1
        with (tmp_path / "tenax.db-lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(StoreBusy):
                journal.claim("run:c_talk", "me", 30)
        # A thread that waited in vain may still have the lock for a moment.
        journal.store.patience = SOON
        assert journal.claim("run:c_talk", "me", 30) is not None
        instances = [instance.id for instance in journal.instances()]
        assert instances == [journal.instance]


def test_a_process_that_cannot_show_that_it_lives_is_told_in_a_sentence(
    tmp_path: Path,
) -> None:
    """Its file cannot be made: on a full disk, for one. Nothing is claimed, and it is tried again."""
    place = tmp_path / "tenax.db-instances"
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db") as journal:
        place.write_text("in the way")
        with pytest.raises(StoreUnavailable, match="-instances cannot be written to: "):
            journal.claim("run:c_talk", "me", 30)
        place.unlink()
        assert journal.claim("run:c_talk", "me", 30) is not None


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """There is no room for one more thread, once, when the one of this name is to start."""
    start = threading.Thread.start

    def once(name: str) -> list[str]:
        refused: list[str] = []

        def start_or_not(thread: threading.Thread) -> None:
            if thread.name == name and not refused:
                refused.append(name)
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_not)
        return refused

    return once


def test_an_append_needs_no_room_for_one_more_thread(
    tmp_path: Path, no_thread: Callable[[str], list[str]]
) -> None:
    """One that is awaited is committed by whoever asked, and the next ones as ever."""
    refused = no_thread("tenax-writer")
    # one that hangs is not closed
    journal = tenax.open(f"sqlite:///{tmp_path}/tenax.db")
    name = begin(journal)

    async def go() -> None:
        for words in ("first", "second"):
            async with asyncio.timeout(SOON):
                await AsyncJournal(journal).append(name, [say(words)])

    going = threading.Thread(target=lambda: asyncio.run(go()), daemon=True)
    going.start()
    going.join(SOON)
    assert (refused, said(journal, name)) == (["tenax-writer"], ["first", "second"])
    journal.close()


def test_a_commit_whose_log_cannot_be_copied_back_now_is_told_as_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_thread: Callable[[str], list[str]],
) -> None:
    """The commit is stored. A later commit starts the checkpoint."""
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 1)
    refused = no_thread("tenax-checkpoint")
    # The thread of the later commit stays alive until the store is closed.
    timing = Timing(checkpoint_idle_seconds=600.0)
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db", timing=timing) as journal:
        name = begin(journal, say("stored"))
        assert refused
        journal.append(name, [say("more")])
        threads = [thread.name for thread in threading.enumerate()]
        assert "tenax-checkpoint" in threads
        assert said(journal, name) == ["stored", "more"]


def test_who_cannot_wait_for_its_turn_tries_again(
    tmp_path: Path, no_thread: Callable[[str], list[str]]
) -> None:
    """Another process has the store just now, and there is no room for the thread that waits for it."""
    refused = no_thread("tenax-queue")
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db") as journal:
        name = begin(journal)
        lock = (tmp_path / "tenax.db-lock").open()
        fcntl.flock(lock, fcntl.LOCK_EX)

        def let_go() -> None:
            while not refused:
                time.sleep(0.01)
            lock.close()

        threading.Thread(target=let_go, daemon=True).start()
        journal.append(name, [say("stored")])
        assert (refused, said(journal, name)) == (["tenax-queue"], ["stored"])


def test_ctrl_c_while_another_process_is_waited_for_leaves_nothing_locked(
    tmp_path: Path,
) -> None:
    """The thread that waits in the queue gives it back when its turn comes, because nobody wants it any more."""
    lock = QueueLock(tmp_path / "lock")
    with (tmp_path / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def interrupt() -> None:
            while not any(
                each.name == "tenax-queue" and each.ident
                for each in threading.enumerate()
            ):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        def wait() -> None:
            threading.Thread(target=interrupt, daemon=True).start()
            lock.wait(SOON)

        # in `wait`, wherever it is: outside of it, all tests would end
        with pytest.raises(KeyboardInterrupt):
            wait()
    assert lock.wait(SOON)


async def test_ctrl_c_while_the_writer_is_being_started_does_not_hang_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread runs, and nobody knows it; a second one is made, the append is stored, and both end."""
    threads: list[threading.Thread] = []

    def interrupted(work: Callable[[], object], name: str) -> threading.Thread | None:
        threads.append(threading.Thread(target=work, name=name, daemon=True))
        threads[-1].start()
        if len(threads) == 1:
            raise KeyboardInterrupt
        return threads[-1]

    monkeypatch.setattr(group, "start_thread", interrupted)
    journal = memory()
    name = begin(journal)
    append = Append.of_events(journal.owner, name, [say("stored")], ids=journal.ids, run=None, expect=None, lease=None,
                              dedup=None, append_id=None)  # fmt: skip
    outcome = asyncio.get_running_loop().create_future()
    with pytest.raises(KeyboardInterrupt):
        journal.store.queue.submit(journal.store.waiter(append, outcome))
    async with asyncio.timeout(SOON):
        await outcome
    assert said(journal, name) == ["stored"]
    closing = threading.Thread(target=journal.close, daemon=True)
    closing.start()
    for each in (closing, *threads):
        each.join(SOON)
        assert not each.is_alive()
    assert len(threads) == 2
