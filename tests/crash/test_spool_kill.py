"""`kill -9` of processes that spool, and of processes that sweep: what was written is shipped, once, in order."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path

import pytest

from tenax.journal.spool import HeldEvent, Spool, left
from tests.support.children import Child, Teller, finish_all
from tests.support.counts import repeat

pytestmark = pytest.mark.crash

KILLS = repeat(40, 200)
SWEEPS = 20
SWEEPERS = 3


def dead(_: str) -> bool:
    return False


def body(run: str, n: int) -> bytes:
    """What the n-th entry of a run holds: now and then it is long."""
    size = random.Random(f"{run}.{n}").choice((10, 300, 5_000, 400_000))
    return f"{run}.{n}.".encode().ljust(size, b"x")


def spool_for_ever(teller: Teller, folder: str, instance: str) -> None:
    """Write in two threads, and tell of each entry once its write has returned."""
    spool = Spool(Path(folder), instance)

    def talk(run: str) -> None:
        for n in count():
            spool.write(HeldEvent("ada", "c_1", run, "reply.delta", body(run, n), n))
            teller.tell("wrote", run, n)

    threads = [
        threading.Thread(target=talk, args=(f"{instance}.{n}",), daemon=True)
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    threads[0].join(60)


def test_every_entry_whose_write_returned_is_read_back_once_and_in_order(
    tmp_path: Path,
) -> None:
    """Killed from outside after a random number of writes and a random moment more, also in the middle of one."""
    chance = random.Random(5)
    for number in range(KILLS):
        instance = f"i_{number}"
        child = Child(spool_for_ever, str(tmp_path), instance)
        child.read_until(chance.randint(1, 40))
        time.sleep(chance.uniform(0, 0.004))  # any instant will do
        child.kill()
        assert child.finish() == -9
        told = Counter(line[1] for line in child.lines)

        (spool,) = left(tmp_path, dead)
        read = defaultdict(list)
        for event in spool.read():
            read[event.run].append(event)
        for run, entries in read.items():
            assert [entry.index for entry in entries] == list(range(len(entries)))
            assert [entry.body for entry in entries] == [
                body(run, n) for n in range(len(entries))
            ]
        for run, many in told.items():
            assert many <= len(read[run]) <= many + 1, (
                "only the write in flight may be there untold"
            )
        assert spool.clear()
        spool.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def sweep(teller: Teller, folder: str, die: bool) -> None:
    """Get what is left, tell what it holds, and remove it; or die with it in hand."""
    for spool in left(Path(folder), dead):
        teller.tell("got", spool.instance, len(spool.read()))
        if die:
            threading.Event().wait(60)
        spool.clear()
        spool.close(remove=True)


def test_sweeps_at_the_same_time_never_both_get_one(tmp_path: Path) -> None:
    """Each spool is shipped by exactly one of them."""
    for number in range(SWEEPS):
        names = {f"i_{number}.{n}" for n in range(4)}
        for name in names:
            spool = Spool(tmp_path, name)
            spool.write(HeldEvent("ada", "c_1", "r_1", "reply.delta", b"words", 1))
            spool.close(remove=False)
        sweepers = [Child(sweep, str(tmp_path), False) for _ in range(SWEEPERS)]
        assert finish_all(sweepers) == [0] * SWEEPERS
        got = sorted(tuple(line) for sweeper in sweepers for line in sweeper.lines)
        assert got == sorted(("got", name, "1") for name in names)
        assert list(tmp_path.iterdir()) == []


def test_what_a_killed_sweeper_had_in_hand_goes_to_the_next(tmp_path: Path) -> None:
    """The kernel frees its locks; until then nobody else gets them."""
    for name in ("i_1", "i_2"):
        spool = Spool(tmp_path, name)
        spool.write(HeldEvent("ada", "c_1", "r_1", "reply.delta", b"words", 1))
        spool.close(remove=False)
    sweeper = Child(sweep, str(tmp_path), True)
    sweeper.read_until(1)
    assert left(tmp_path, dead) == []
    sweeper.kill()
    assert sweeper.finish() == -9
    found = left(tmp_path, dead)
    assert [(each.instance, len(each.read())) for each in found] == [
        ("i_1", 1),
        ("i_2", 1),
    ]
    for each in found:
        each.close(remove=True)
