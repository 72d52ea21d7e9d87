"""A PostgreSQL address with two hosts: the primary dies in mid-traffic, and a synchronous standby takes its place."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import tenax
from tenax.errors import CannotOpen
from tenax.journal.verify.store import verify
from tests.contract.engine.base import begin, said, say
from tests.crash.test_failing_flushes import persist
from tests.support.postgres import PostgresServer
from tests.support.standby import Standby

pytestmark = pytest.mark.crash

CALLERS = 3
APPENDS = 40
"""How many appends are acknowledged before the primary goes, and after it."""
SECONDS = 60.0


def both(
    primary: PostgresServer, standby: Standby, database: str, rest: str = ""
) -> str:
    """An address that names the standby first, so that every connection has to choose."""
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
    return f"postgresql://postgres@{hosts}/{database}{rest}"


@pytest.mark.timeout(300)
def test_a_failover_to_a_synchronous_standby_loses_no_acknowledged_event() -> None:
    """Reads and writes find the primary among two hosts, before and after the standby is promoted."""
    with PostgresServer() as primary:
        database = primary.create_database().rpartition("/")[2]
        with (
            Standby(primary, synchronous=True) as standby,
            tenax.open(both(primary, standby, database), patience=20) as journal,
        ):
            name = begin(journal)
            told: dict[int, str] = {}
            done = threading.Event()

            def call(caller: int) -> None:
                n = 0
                while not done.is_set():
                    n += 1
                    text = f"{caller}.{n}"
                    seq = persist(journal, name, [say(text)])
                    assert told.setdefault(seq, text) == text

            with ThreadPoolExecutor(CALLERS) as pool:
                callers = [pool.submit(call, caller) for caller in range(CALLERS)]
                try:
                    more_than(told, APPENDS)
                    assert len(said(journal, name)) >= APPENDS
                    primary.stop("immediate")
                    standby.promote()
                    more_than(told, len(told) + APPENDS)
                finally:
                    done.set()
                for caller in callers:
                    caller.result()
            assert said(journal, name) == [told[seq] for seq in sorted(told)]
            assert verify(journal).problems == []


def more_than(told: dict[int, str], count: int) -> None:
    """Wait until more than this many appends were acknowledged."""
    deadline = time.monotonic() + SECONDS
    while len(told) <= count:
        assert time.monotonic() < deadline, "the callers do not go on"
        time.sleep(0.01)


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
