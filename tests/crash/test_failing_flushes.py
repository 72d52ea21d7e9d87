"""The disk fails to flush at many random instants while callers append and try again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import apsw
import pytest

from tenax.errors import OutcomeUnknown, StoreUnavailable
from tenax.events import Event
from tenax.journal import Journal
from tenax.journal.verify.store import verify
from tenax.testing import SimClock
from tests.contract.engine.base import begin, delta, said, say
from tests.contract.failing_vfs import Fault, FaultVfs
from tests.support import raw
from tests.support.counts import repeat

pytestmark = pytest.mark.crash

FAILURES = repeat(100, 1000)
CALLERS = 4


def persist(journal: Journal, name: str, events: Sequence[Event]) -> int:
    """Append as a caller does that has something to say: until it is stored. The last seq."""
    append_id: bytes | None = None
    while True:
        try:
            return journal.append(name, events, append_id=append_id)[-1].seq
        except OutcomeUnknown as unknown:
            append_id = unknown.append_id
        except StoreUnavailable:
            continue


@pytest.mark.parametrize("seed", [1, 2])
def test_every_body_is_stored_once_however_often_a_flush_fails(
    tmp_path: Path, seed: int
) -> None:
    """A hundred flushes fail at random; callers try again; each body is there once, where it was told."""
    chance = random.Random(seed)
    path = tmp_path / "tenax.db"
    failures = 0
    done = threading.Event()
    told: list[tuple[str, int, str]] = []
    with FaultVfs(remembers=True) as disk:
        journal = disk.open(path, clock=SimClock(), patience=0.3)
        names = [begin(journal) for _ in range(2)]

        def call(caller: int) -> None:
            n = 0
            while not done.is_set():
                n += 1
                name, text = names[(caller + n) % 2], f"{caller}.{n}"
                if n % 3 == 0:
                    persist(journal, name, [delta(1, 0, text)])
                told.append((name, persist(journal, name, [say(text)]), text))

        with ThreadPoolExecutor(CALLERS) as pool:
            callers = [pool.submit(call, caller) for caller in range(CALLERS)]
            try:
                while failures < FAILURES and not any(
                    caller.done() for caller in callers
                ):
                    times = chance.choice([1, 1, 1, 2, 5, 40])
                    disk.fail(
                        "sync",
                        chance.choice(list(Fault)),
                        nth=chance.randint(1, 12),
                        times=times,
                    )
                    while disk.fired < min(times, 5) and not any(
                        caller.done() for caller in callers
                    ):
                        done.wait(0.001)
                    failures += disk.fired
                    disk.heal()
                    if chance.random() < 0.2:
                        acknowledged = list(told)
                        left = raw.stored(
                            disk.after_power_loss(path, tmp_path / "lost")
                        )
                        assert all(
                            left[name].get(seq) == text
                            for name, seq, text in acknowledged
                        )
            finally:
                disk.heal()
                done.set()
            for caller in callers:
                caller.result()
        for name in names:
            expected = {seq: text for each, seq, text in told if each == name}
            assert (
                raw.stored(disk.after_kill(path, tmp_path / "killed"))[name] == expected
            )
            assert said(journal, name) == [expected[seq] for seq in sorted(expected)]
        assert verify(journal).problems == []
        journal.close()
    assert failures >= FAILURES


@pytest.mark.parametrize("file", ["wal", "main"])
def test_a_flush_that_fails_while_the_log_is_copied_back_harms_no_later_append(
    tmp_path: Path, file: Literal["wal", "main"]
) -> None:
    """Partials are flushed with the next fact. If it is a checkpoint that fails to flush them, the fact still holds."""
    path = tmp_path / "tenax.db"
    with FaultVfs(remembers=True) as disk:
        journal = disk.open(path, clock=SimClock())
        name = begin(journal, say("before"))
        failures = 0
        for n in range(5):
            journal.append(name, [delta(1, n, "x")])
            disk.fail("sync", Fault.IOERR, file=file)
            journal.store.scrub()
            failures += disk.fired
            disk.heal()
            journal.append(name, [say(f"{n}")])
            left = raw.stored(disk.after_power_loss(path, tmp_path / f"lost-{n}"))[name]
            assert list(left.values()) == ["before", *map(str, range(n + 1))]
        assert failures, "there was nothing to flush"
        journal.close()


def copy_back(connection: apsw.Connection) -> None:
    """Copy the log back, after whoever does so at this moment."""
    deadline = time.monotonic() + 30
    while True:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            # the store's own thread: after a failed scrub it tries by itself
            assert time.monotonic() < deadline
        else:
            return


def test_what_was_copied_back_in_parts_survives_a_flush_that_fails_later(
    tmp_path: Path,
) -> None:
    """A reader lets the log be copied back only in part, without a flush; the flush of the rest then fails."""
    path = tmp_path / "tenax.db"
    with FaultVfs(remembers=True) as disk:
        journal = disk.open(path, clock=SimClock())
        name = begin(journal, say("before"))
        reader = apsw.Connection(str(path), vfs=disk.name)
        reader.execute("begin; select count(*) from events").fetchall()
        journal.append(name, [say("while it reads")])
        copier = apsw.Connection(str(path), vfs=disk.name)
        copier.pragma("user_version")
        log, copied = copier.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        assert 0 < copied < log
        reader.close()
        disk.fail("sync", Fault.IOERR, file="main")
        assert not journal.store.scrub()
        disk.heal()
        copy_back(copier)
        copier.close()
        journal.append(name, [say("after")])
        said_before = ["before", "while it reads", "after"]
        assert (
            list(
                raw.stored(disk.after_power_loss(path, tmp_path / "lost"))[
                    name
                ].values()
            )
            == said_before
        )
        journal.close()
        assert (
            list(
                raw.stored(disk.after_power_loss(path, tmp_path / "shut"))[
                    name
                ].values()
            )
            == said_before
        )
