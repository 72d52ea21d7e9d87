"""Make the n-th statement, write or flush fail, look at what is left, n += 1, until the operation finishes.

After each failure the store is looked at three times: as `kill -9` at that instant would leave it, as a power loss
would, and opened again. What was acknowledged is there under its number; what was said not to be stored is not.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenax.errors import (
    NoSuchConversation,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from tenax.journal import Journal
from tenax.journal.verify.store import verify
from tenax.memory.entries import MemoryEntries
from tenax.testing import FaultyJournal, SimClock
from tests.contract.engine.base import begin, said, say
from tests.contract.failing_vfs import Fault, FaultVfs, What
from tests.support import raw

pytestmark = pytest.mark.crash

PATIENCE = 0.1
CALLERS = 5
N_MAX = 200
Outcome = int | StoreUnavailable | OutcomeUnknown


@pytest.fixture
def disk() -> Iterator[FaultVfs]:
    with FaultVfs(remembers=True) as disk:
        yield disk


def alone(
    journal: Journal, name: str, tag: str, arm: Callable[[], None]
) -> dict[str, Outcome]:
    """One append, one caller."""
    arm()
    return {tag: outcome(journal, name, tag)}


def outcome(journal: Journal, name: str, text: str) -> Outcome:
    """Append, and say what the caller was told."""
    try:
        return journal.append(name, [say(text)])[0].seq
    except (StoreUnavailable, OutcomeUnknown) as error:
        return error


def together(
    journal: Journal, name: str, tag: str, arm: Callable[[], None]
) -> dict[str, Outcome]:
    """Five appends of five callers in one group: they queue up behind a first one that is held."""
    faulty = FaultyJournal(journal)
    hold = faulty.faults.hold("store:begin")
    told: dict[str, Outcome] = {}

    def lead() -> None:
        # it only keeps the queue
        with pytest.raises((NoSuchConversation, StoreUnavailable, OutcomeUnknown)):
            journal.append("c-none", [say("x")])

    def follow(text: str) -> None:
        told[text] = outcome(journal, name, text)

    first = threading.Thread(target=lead)
    first.start()
    hold.wait_until_reached()
    callers = [
        threading.Thread(target=follow, args=(f"{tag}.{n}",)) for n in range(CALLERS)
    ]
    for caller in callers:
        caller.start()
    while journal.store.queue.waiting < CALLERS:
        time.sleep(0.0005)
    groups = journal.store.queue.groups
    arm()
    hold.release()
    for thread in (first, *callers):
        thread.join()
    assert journal.store.queue.groups == groups + 1, "the five were no group"
    return told


def witnessed(
    journal: Journal, name: str, tag: str, arm: Callable[[], None]
) -> dict[str, Outcome]:
    """One append while another connection has the file open: then no reopening reads the log from its beginning."""
    with journal.store.reading() as tx:
        tx.run("store")
        return alone(journal, name, tag, arm)


@pytest.mark.parametrize("operation", [alone, together, witnessed])
@pytest.mark.parametrize("times", [1, None], ids=["once", "lasting"])
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name)
@pytest.mark.parametrize("what", ["statement", "write", "sync"])
def test_nobody_is_lied_to_when_the_nth_step_fails(
    disk: FaultVfs,
    tmp_path: Path,
    what: What,
    fault: Fault,
    times: int | None,
    operation: Callable[[Journal, str, str, Callable[[], None]], dict[str, Outcome]],
) -> None:
    """An acknowledged seq is in the file with that caller's body, a denied one is not, no seq is given twice."""
    path = tmp_path / "tenax.db"
    journal = disk.open(path, clock=SimClock(), patience=PATIENCE)
    name = begin(journal)
    expected: dict[int, str] = {}
    fired = 0
    for nth in range(1, N_MAX):
        told = operation(
            journal,
            name,
            f"{nth}",
            lambda nth=nth: disk.fail(what, fault, nth=nth, times=times),
        )
        killed = raw.stored(disk.after_kill(path, tmp_path / "killed"))[name]
        lost = raw.stored(disk.after_power_loss(path, tmp_path / "lost"))[name]
        finished = not disk.fired
        fired += disk.fired
        disk.heal()
        for text, answer in told.items():
            if isinstance(answer, int):
                assert answer not in expected, f"seq {answer} was given twice"
                expected[answer] = text
                assert (killed.get(answer), lost.get(answer)) == (text, text), (
                    "an acknowledged message is not there"
                )
            elif isinstance(answer, StoreUnavailable):
                assert text not in [*killed.values(), *lost.values()], (
                    f"denied, but stored: {answer}"
                )
            else:
                (again,) = journal.append(name, [say(text)], append_id=answer.append_id)
                expected[again.seq] = text
        journal.close()
        assert raw.stored(path)[name] == expected
        journal = disk.open(path, clock=SimClock(), patience=PATIENCE)
        assert said(journal, name) == [expected[seq] for seq in sorted(expected)]
        if finished:
            break
    else:
        pytest.fail("the operation never finished")
    assert fired
    assert verify(journal).problems == []
    journal.close()


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name)
@pytest.mark.parametrize("what", ["statement", "write", "sync"])
def test_what_is_remembered_is_changed_once_when_the_nth_step_fails(
    disk: FaultVfs, tmp_path: Path, what: What, fault: Fault
) -> None:
    """Whoever was told that it failed asks again with the same key: one version more, never two and never none."""
    path = tmp_path / "tenax.db"
    journal = disk.open(path, clock=SimClock(), patience=PATIENCE)
    fact = MemoryEntries(journal).add("0").id
    for nth in range(1, N_MAX):
        disk.fail(what, fault, nth=nth, times=1)
        facts = MemoryEntries(journal)
        with contextlib.suppress(StoreError):
            facts.change(fact, was=nth, text=f"{nth}", key=f"{nth}")
        finished = not disk.fired
        disk.heal()
        stored = facts.change(fact, was=nth, text=f"{nth}", key=f"{nth}")
        assert (stored.version, stored.text) == (nth + 1, f"{nth}")
        journal.close()
        journal = disk.open(path, clock=SimClock(), patience=PATIENCE)
        assert [version.text for version in MemoryEntries(journal).versions(fact)] == [
            f"{n}" for n in range(nth + 1)
        ]
        if finished:
            break
    else:
        pytest.fail("the operation never finished")
    assert verify(journal).problems == []
    journal.close()
