"""A PostgreSQL address with two hosts: the primary is killed under load, and a synchronous standby takes its place."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

import tenax
from tenax.errors import CannotOpen
from tenax.journal.verify.store import verify
from tests.contract.engine.base import begin, said, say
from tests.crash.test_failing_flushes import persist
from tests.support.counts import repeat
from tests.support.postgres import PostgresServer
from tests.support.standby import Standby

pytestmark = pytest.mark.crash

FAILOVERS = repeat(1, 10)
WRITERS = 4
APPENDS = 40
"""How many appends are acknowledged before the primary is lost."""
IN_THE_DATA = {"dynamic_shared_memory_type": "mmap"}
"""A server that is killed leaves no shared memory behind."""
SECONDS = 60.0
"""For the writers to go on. Quiet machines need about a second; the test prints what it took."""


def both(
    primary: PostgresServer, standby: Standby, database: str, rest: str = ""
) -> str:
    """An address that names the standby first, so that every connection has to choose."""
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
    return f"postgresql://postgres@{hosts}/{database}{rest}"


class Writer:
    """Appends to one conversation, one event after the other, with a handle of its own."""

    def __init__(self, number: int, url: str, witness: Path) -> None:
        self._number = number
        self.journal = tenax.open(url, witness=witness)
        self.stored: dict[int, str] = {}
        """What was acknowledged, by seq."""
        self._stop = threading.Event()

    def write(self, conversation: str) -> None:
        """Write until `stop`. An append of which the outcome is unknown is repeated with its id."""
        for n in count(1):
            text = f"{self._number}.{n}"
            seq = persist(self.journal, conversation, [say(text)])
            assert self.stored.setdefault(seq, text) == text
            if self._stop.is_set():
                return

    def stop(self) -> None:
        self._stop.set()

    def wait_for(self, acknowledged: int) -> float:
        """Wait until this many events were acknowledged. Returns the time."""
        deadline = time.monotonic() + SECONDS
        while len(self.stored) < acknowledged:
            assert time.monotonic() < deadline, "a writer does not go on"
            time.sleep(0.01)
        return time.monotonic()


@pytest.mark.timeout(300)
def test_failovers_to_a_synchronous_standby_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    """The primary is killed under load, its standby is promoted, and a new standby is built in its place, again and again."""
    waits: list[tuple[float, float]] = []
    with ExitStack() as stack:
        primary = stack.enter_context(PostgresServer(IN_THE_DATA))
        database = primary.create_database().rpartition("/")[2]
        standby = stack.enter_context(Standby(primary, synchronous=True))
        free_port = 0
        url = both(primary, standby, database)
        writers = [
            Writer(number, url, tmp_path / f"witness-{number}")
            for number in range(WRITERS)
        ]
        for writer in writers:
            stack.callback(writer.journal.close)
        conversation = begin(writers[0].journal)
        pool = stack.enter_context(ThreadPoolExecutor(WRITERS))
        for writer in writers:
            stack.callback(writer.stop)
        writing = [pool.submit(writer.write, conversation) for writer in writers]
        for number in range(FAILOVERS):
            if number:
                standby = Standby(primary, synchronous=True, port=free_port)
                stack.enter_context(standby)
            for writer in writers:
                writer.wait_for(len(writer.stored) + APPENDS)
            primary.lose()
            killed = time.monotonic()
            before = [len(writer.stored) for writer in writers]
            standby.promote()
            promoted = time.monotonic()
            # The first one may have been acknowledged before the kill.
            went_on = max(
                writer.wait_for(count + 2)
                for writer, count in zip(writers, before, strict=True)
            )
            waits.append((went_on - killed, went_on - promoted))
            free_port, primary = primary.port, standby
        for writer in writers:
            writer.stop()
        for each in writing:
            each.result()
        stored = {
            seq: text for writer in writers for seq, text in writer.stored.items()
        }
        assert len(stored) == sum(len(writer.stored) for writer in writers)
        for writer in writers:
            assert writer.journal.missing == []
        journal = writers[0].journal
        assert said(journal, conversation) == [stored[seq] for seq in sorted(stored)]
        assert verify(journal).problems == []
    print(f"{len(stored)} events; every writer went on after (kill, promotion):")  # noqa: T201  (shown by `pytest -rP`)
    for after_kill, after_promotion in waits:
        print(f"{after_kill:.2f} s, {after_promotion:.2f} s")  # noqa: T201  (the same)


def test_a_standby_alone_is_refused_and_a_choice_in_the_address_is_kept() -> None:
    """Two hosts without a primary are named; `target_session_attrs=read-write` in the address reads and writes."""
    with PostgresServer({"fsync": "off"}) as primary:
        database = primary.create_database().rpartition("/")[2]
        with Standby(primary) as standby:
            address = both(
                primary, standby, database, "?target_session_attrs=read-write"
            )
            with tenax.open(address) as journal:
                name = begin(journal, say("one"))
                assert said(journal, name) == ["one"]
            primary.stop("immediate")
            nowhere = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/{database}"
            with pytest.raises(CannotOpen, match="is a standby"):
                tenax.open(nowhere)
