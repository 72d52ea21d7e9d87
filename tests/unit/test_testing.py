"""The doubles that ship with Tenax do what their pages say."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import apsw
import pytest

from tenax.errors import OutcomeUnknown, StoreFull, StoreUnavailable
from tenax.journal.store import Trouble
from tenax.testing import FaultyJournal, SimClock, memory
from tests.contract.engine.base import begin, said, say
from tests.contract.failing_vfs import Fault, FaultVfs
from tests.support import raw
from tests.support.children import Child, Teller


def test_simulated_time_passes_when_it_is_told_to() -> None:
    """Sleeping and advancing move both clocks; setting the wall clock moves one; a boot starts anew."""
    clock = SimClock()
    wall, steady, boot = clock.now_us(), clock.monotonic(), clock.boot_id()
    clock.sleep(1.5)
    clock.advance(0.25)
    assert (clock.now_us() - wall, clock.monotonic() - steady) == (1_750_000, 1.75)
    clock.set_wall(5)
    assert (clock.now_us(), clock.monotonic() - steady) == (5, 1.75)
    clock.reboot()
    assert clock.boot_id() != boot
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_simulated_time_is_for_many_threads() -> None:
    """No step is lost."""
    clock = SimClock()
    start = clock.monotonic()
    threads = [
        threading.Thread(target=lambda: [clock.advance(0.001) for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() - start == pytest.approx(2.0)


def test_the_nth_arrival_fails_and_arrivals_are_counted() -> None:
    """Before a verb nothing has happened; after it everything has."""
    with FaultyJournal(memory()) as journal:
        name = begin(journal)
        journal.faults.fail("append:before", RuntimeError("lost on the way"), nth=2)
        journal.append(name, [say("1")])
        with pytest.raises(RuntimeError, match="on the way"):
            journal.append(name, [say("2")])
        journal.faults.fail("append:after", RuntimeError("answer lost"))
        with pytest.raises(RuntimeError, match="answer lost"):
            journal.append(name, [say("3")])
        assert said(journal, name) == ["1", "3"]
        assert journal.faults.arrivals("append:before") == 4
        assert journal.faults.arrivals("store:committed") == 3


def test_a_verb_that_calls_others_counts_once() -> None:
    """`fork` reads and loads, and is one arrival at `fork`."""
    with FaultyJournal(memory()) as journal:
        name = begin(journal, say("x"))
        before = journal.faults.arrivals("head:before")
        journal.fork(name)
        assert journal.faults.arrivals("fork:after") == 1
        assert journal.faults.arrivals("head:before") == before


def test_a_handle_for_another_user_shares_the_points() -> None:
    """One set of failure points for a store."""
    with FaultyJournal(memory()) as journal:
        bob = journal.of("bob")
        assert isinstance(bob, FaultyJournal)
        journal.faults.fail("conversations:before", RuntimeError("down"), times=None)
        for each in (journal, bob):
            with pytest.raises(RuntimeError):
                each.conversations()
        journal.faults.clear()
        assert bob.conversations() == []


def test_a_point_that_is_not_there_is_refused() -> None:
    """A misspelt point would never fire."""
    with FaultyJournal(memory()) as journal:
        for point in ("append", "store:commited", "fly:before"):
            with pytest.raises(ValueError, match="no failure point"):
                journal.faults.fail(point, RuntimeError())
        begin(journal)
        with pytest.raises(ValueError, match="from 1"):
            journal.faults.fail("append:before", RuntimeError(), nth=0)


def test_a_commit_can_be_held() -> None:
    """Whoever reaches the point waits until it is released."""
    with FaultyJournal(memory()) as journal:
        name = begin(journal)
        hold = journal.faults.hold("store:commit")
        thread = threading.Thread(target=lambda: journal.append(name, [say("held")]))
        thread.start()
        hold.wait_until_reached()
        assert thread.is_alive()
        hold.release()
        thread.join()
        assert said(journal, name) == ["held"]


def test_a_commit_whose_answer_is_lost_is_resolved_by_its_id() -> None:
    """The engine looks the append up, and stores it once."""
    with FaultyJournal(memory(clock=SimClock())) as journal:
        name = begin(journal)
        gone = Trouble(StoreUnavailable("The connection was lost."), unknown=True)
        journal.faults.fail("store:committed", gone)
        assert journal.append(name, [say("once")])[0].seq == 2
        journal.faults.fail("store:committed", gone, times=None)
        with pytest.raises(OutcomeUnknown) as unknown:
            journal.append(name, [say("twice?")])
        journal.faults.clear()
        journal.append(name, [say("twice?")], append_id=unknown.value.append_id)
        assert said(journal, name) == ["once", "twice?"]


def die(teller: Teller, point: str) -> None:
    journal = FaultyJournal(memory())
    name = begin(journal)
    journal.faults.kill(point, nth=2)
    for n in range(5):
        journal.append(name, [say(f"{n}")])
        teller.tell(n)


def test_a_process_can_be_killed_at_a_point() -> None:
    """At the second append, before it or after it: the caller never hears of it."""
    for point in ("append:before", "store:write", "append:after"):
        child = Child(die, point)
        assert child.finish() == -signal.SIGKILL
        assert child.lines == [["0"]]


def test_a_disk_counts_writes_and_flushes_by_file(tmp_path: Path) -> None:
    """An append writes and flushes the log; copying it back does the same to the file."""
    with FaultVfs() as disk:
        journal = disk.open(tmp_path / "tenax.db")
        name = begin(journal)
        before = {what: disk.count(what, "wal") for what in ("write", "sync")}
        main = disk.count("sync", "main")
        journal.append(name, [say("x")])
        assert disk.count("write", "wal") > before["write"]
        assert disk.count("sync", "wal") == before["sync"] + 1
        assert disk.count("sync", "main") == main
        journal.store.scrub()
        assert disk.count("sync", "main") > main
        assert disk.count("write") >= disk.count("write", "wal") + disk.count(
            "write", "main"
        )
        journal.close()


def test_a_slow_disk_is_slow(tmp_path: Path) -> None:
    """Every flush takes at least as long as was asked for."""
    with FaultVfs() as disk:
        journal = disk.open(tmp_path / "tenax.db")
        name = begin(journal)
        disk.sync_ms = 30
        started = journal.clock.monotonic()
        journal.append(name, [say("x")])
        assert journal.clock.monotonic() - started >= 0.03
        disk.sync_ms = 0
        journal.close()


@pytest.mark.parametrize("fault", list(Fault))
def test_a_fault_is_the_error_that_sqlite_knows(tmp_path: Path, fault: Fault) -> None:
    """A failing write comes out of SQLite as its own error, and ends the transaction as SQLite does."""
    with FaultVfs() as disk:
        connection = apsw.Connection(str(tmp_path / "x.db"), vfs=disk.name)
        connection.pragma("journal_mode", "wal")
        connection.execute("create table t (x)")
        for what in ("statement", "write", "sync"):
            disk.fail(what, fault)
            with pytest.raises(fault.value):
                connection.execute("insert into t values (1)")
            assert disk.fired == 1
            disk.heal()
        connection.execute("begin; insert into t values (2)")
        disk.fail("statement", fault)
        with pytest.raises(fault.value):
            connection.execute("insert into t values (3)")
        assert connection.in_transaction is not fault.ends_transaction
        disk.heal()
        connection.close()


def test_a_disk_remembers_what_was_written_and_what_was_flushed(tmp_path: Path) -> None:
    """A partial outlives a killed process and not a power loss; a fact outlives both, and hardens what is before it."""
    path = tmp_path / "tenax.db"
    with FaultVfs(remembers=True) as disk:
        journal = disk.open(path)
        name = begin(journal, say("fact"))
        from tests.contract.engine.base import delta

        journal.append(name, [delta(1, 0, "x")])
        heads = []
        for lay_out in (disk.after_kill, disk.after_power_loss):
            left = lay_out(path, tmp_path / lay_out.__name__)
            assert list(raw.stored(left)[name].values()) == ["fact"]
            connection = apsw.Connection(str(left))
            heads.append(connection.execute("select head from heads").fetchall())
            connection.close()
        assert heads == [[(3,)], [(2,)]]
        journal.append(name, [say("hard")])
        left = disk.after_power_loss(path, tmp_path / "again")
        assert list(raw.stored(left)[name].values()) == ["fact", "hard"]
        journal.close()


def test_a_full_disk_is_full_until_it_is_healed(tmp_path: Path) -> None:
    """A lasting fault lasts, and then the journal goes on."""
    with FaultVfs() as disk:
        journal = disk.open(tmp_path / "tenax.db", clock=SimClock(), patience=0.1)
        name = begin(journal)
        disk.fail("statement", Fault.FULL, times=None)
        for _ in range(2):
            with pytest.raises(StoreFull):
                journal.append(name, [say("x")])
        disk.heal()
        journal.append(name, [say("y")])
        assert said(journal, name) == ["y"]
        journal.close()


def test_two_disks_do_not_know_each_other(tmp_path: Path) -> None:
    """Each has a name and faults of its own."""
    with FaultVfs() as one, FaultVfs() as two:
        assert one.name != two.name
        journal = two.open(tmp_path / "tenax.db")
        name = begin(journal)
        one.fail("sync", Fault.IOERR, times=None)
        journal.append(name, [say("x")])
        assert one.fired == 0
        journal.close()
    assert list(tmp_path.iterdir())
