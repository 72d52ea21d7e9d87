"""A failover to an asynchronous standby takes acknowledged messages with it: the witness notices, and says which."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import psycopg
import pytest

import tenax
from tenax.cli import tenax as command
from tenax.cli.frame import run
from tenax.errors import OutcomeUnknown, StoreIncomplete
from tests.contract.engine.base import begin, said, say
from tests.support.postgres import PostgresServer
from tests.support.standby import Standby

pytestmark = pytest.mark.crash

CAUGHT_UP = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def _both(primary: PostgresServer, standby: Standby) -> str:
    """An address that names two servers, whichever of them is the primary."""
    one, other = primary.url(), standby.url()
    hosts = ",".join(each.split("@")[1].split("/")[0] for each in (one, other))
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=primary"


def _catch_up(primary: PostgresServer, standby: Standby) -> None:
    with psycopg.connect(primary.url()) as server:
        (at,) = server.execute("select pg_current_wal_lsn()::text").fetchone() or ("",)
    with psycopg.connect(standby.url(), autocommit=True) as server:
        for _ in range(600):
            if server.execute(CAUGHT_UP, (at,)).fetchone() == (True,):
                return
            server.execute("select pg_sleep(0.1)")
    raise AssertionError("the standby did not catch up")


def test_a_standby_that_lagged_behind_is_noticed(
    primary: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the process that was connected, and by those that open it later; nothing is added until that is accepted."""
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    with Standby(primary) as standby:
        url = _both(primary, standby)
        monkeypatch.setenv("TENAX_STORE", url)
        with tenax.open(url, witness=tmp_path / "witness", patience=60) as journal:
            name = begin(journal, say("kept"))
            incarnation = journal.incarnation
            code, words = _doctor()
            assert code == 0
            assert "can lose the last messages although they were acknowledged" in words
            _catch_up(primary, standby)
            standby.stop()
            journal.append(name, [say("lost"), say("lost too")])
            gone = begin(journal, say("lost as a whole"))
            primary.stop("immediate")
            standby.start()
            standby.promote()
            with pytest.raises((StoreIncomplete, OutcomeUnknown)):
                journal.append(name, [say("new")])
            with pytest.raises(StoreIncomplete):
                journal.append(name, [say("new")])
            assert {
                each.conversation: (each.have, each.upto) for each in journal.missing
            } == {
                name: (2, 4),
                gone: (0, 2),
            }
            assert journal.incarnation != incarnation
            assert said(journal, name) == ["kept"]
            incarnation = journal.incarnation
        with tenax.open(url, witness=tmp_path / "witness") as journal:
            assert len(journal.missing) == 2
            assert journal.incarnation == incarnation
            code, words = _doctor()
            assert code == 1
            assert f"{name}: events 3 to 4 were stored, and are missing." in words
            code, words = _doctor("--accept")
            assert code == 0, words
            journal.append(name, [say("new")])
            assert said(journal, name) == ["kept", "new"]
            assert journal.incarnation == incarnation
        with tenax.open(url, witness=tmp_path / "witness") as journal:
            assert journal.missing == []
            assert journal.incarnation == incarnation


def test_a_server_that_only_restarts_lacks_nothing(
    primary: PostgresServer, tmp_path: Path
) -> None:
    with tenax.open(
        primary.url(), witness=tmp_path / "witness", patience=60
    ) as journal:
        name = begin(journal, say("first"))
        primary.stop("immediate")
        primary.start()
        journal.append(name, [say("second")])
        assert journal.missing == []
    with tenax.open(primary.url(), witness=tmp_path / "witness") as journal:
        assert journal.missing == []
        assert said(journal, name) == ["first", "second"]


def test_doctor_says_what_a_failover_could_lose(
    primary: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a standby, and with commits that wait for one."""
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    monkeypatch.setenv("TENAX_STORE", primary.url())
    tenax.open(primary.url()).close()
    assert "failover     No standby is connected." in _doctor()[1]
    with Standby(primary, synchronous=True) as standby:
        assert "failover     A commit waits for a standby (*): " in _doctor()[1]
        with psycopg.connect(primary.url(), autocommit=True) as admin:
            admin.execute("alter system reset synchronous_standby_names")
            admin.execute("select pg_reload_conf()")
        standby.stop()


def _doctor(*options: str) -> tuple[int, str]:
    words = io.StringIO()
    with redirect_stdout(words):
        code = run(command, ["doctor", *options])
    return code, words.getvalue()
