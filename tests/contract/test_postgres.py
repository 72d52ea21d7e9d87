"""The store in a PostgreSQL database keeps the contract, and what only this engine has to promise."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import tenax
from tenax.agent.history import History
from tenax.clock import Clock, SystemClock, Timing
from tenax.errors import (
    CannotOpen,
    InvalidInput,
    OutcomeUnknown,
    SchemaTooNew,
    StoreFull,
    StoreUnavailable,
    TenaxError,
)
from tenax.events import MessageUser
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup, Lease, Reader
from tenax.journal.postgres import store as postgres
from tenax.journal.postgres.connection import SETTINGS, Link
from tenax.journal.postgres.notify import MANY, NOTICES_AT_ONCE, NOTICES_PER_SECOND_MAX
from tenax.journal.postgres.store import PostgresStore, PostgresTx, translate
from tenax.journal.schema import SCHEMA_VERSION, statements
from tenax.journal.search.index import Move, Position
from tenax.journal.search.postgres import PostgresSearch
from tenax.journal.store import Trouble
from tenax.journal.verify.store import verify
from tenax.memory.entries import MemoryEntries
from tenax.parts import Text
from tenax.testing import FaultyJournal
from tests.contract.engine import JournalContract
from tests.contract.engine.appending import AppendContract
from tests.contract.engine.base import Engine, begin, delta, said, say, take_reader
from tests.support.awaited import Loop, awaited
from tests.support.postgres import PostgresServer

SECRET = "hunter2-%25-geheim"  # as it stands in a URL
UNFLUSHED = Timing(flush_seconds=3600.0, read_seconds=60.0)
"""No partial is old enough for a flush, and a read waits for a server that restarts."""
LISTENING = "select pid from pg_stat_activity where datname = current_database() and query like 'listen %'"
BLOCKED = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


class ShiftedClock(SystemClock):
    """The machine's clock, whose wall can be set. The server has its own, which cannot."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


class PostgresEngine(Engine):
    @pytest.fixture
    def clock(self) -> Clock:
        return ShiftedClock()

    @pytest.fixture
    def pass_time(
        self, clock: ShiftedClock, journal: Journal, url: str
    ) -> Callable[[float], None]:
        """Only leases go by the server's clock: what it would be later than is made that much earlier."""

        def passes(seconds: float) -> None:
            clock.ahead_us += round(seconds * 1e6)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(b"update leases set until = until - %s", (seconds,))
            journal.store.connected_since -= seconds

        return passes

    @pytest.fixture
    def url(self, kept_database: str) -> str:
        """One database for all of them; what the last test stored is taken out, the tables stay."""
        with psycopg.connect(kept_database) as connection:
            connection.execute("set local synchronous_commit = off")
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid() and application_name = 'tenax'"
            )
            connection.execute(
                """
                do $$ declare each name; begin
                    for each in select tablename from pg_tables
                                where schemaname = 'public' and tablename not in ('store', 'pulse') loop
                        execute format('delete from %I', each);
                    end loop;
                end $$
                """
            )
        return kept_database

    @pytest.fixture
    def journal(self, clock: Clock, url: str) -> Iterator[Journal]:
        with tenax.open(url, user="ada", clock=clock) as journal:
            yield journal

    @pytest.fixture
    def another(self, journal: Journal, clock: Clock, url: str) -> Iterator[Journal]:
        with tenax.open(url, user="ada", clock=clock) as another:
            yield another

    @pytest.fixture
    def reconnect(self, journal: Journal) -> Callable[[], None]:
        def lose() -> None:
            journal.store.writer.close()  # type: ignore[attr-defined]
            journal.store.recover(Trouble(StoreUnavailable("The store was away.")))

        return lose

    @pytest.fixture
    def leave_behind(
        self, journal: Journal, clock: Clock, url: str
    ) -> Callable[[str], Lease]:
        def claim(name: str) -> Lease:
            other = tenax.open(url, user="ada", clock=clock)
            lease = other.claim(name, "dead", 3600)
            dead = other.instance
            _die(other)
            assert lease is not None
            wait_for(
                lambda: (
                    not any(
                        instance.alive
                        for instance in journal.instances()
                        if instance.id == dead
                    )
                )
            )
            return lease

        return claim


class TestPostgres(PostgresEngine, JournalContract):
    """The whole contract."""


class TestPostgresAwaited(PostgresEngine, AppendContract):
    """The append path of the async facade. Its other verbs: test_awaited.py."""

    @pytest.fixture
    def journal(self, clock: Clock, url: str, loop: Loop) -> Iterator[Journal]:
        journal = awaited(tenax.open(url, user="ada", clock=clock), loop)
        yield journal
        journal.close()


# -- helpers -----------------------------------------------------------------------------------------------


@pytest.fixture
def journal(postgres_url: str) -> Iterator[Journal]:
    with tenax.open(postgres_url, user="ada") as journal:
        yield journal


@pytest.fixture
def another(journal: Journal, postgres_url: str) -> Iterator[Journal]:
    """The same user in what might be another process: nothing is shared with `journal` but the server."""
    with tenax.open(postgres_url, user="ada") as another:
        yield another


def wait_for(found: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def store_of(journal: Journal) -> PostgresStore:
    assert isinstance(journal.store, PostgresStore)
    return journal.store


def writer_pid(journal: Journal) -> int:
    writer = store_of(journal).writer
    assert writer is not None
    return writer.info.backend_pid


def _die(journal: Journal) -> None:
    """What the kernel does for a killed process: its connections are closed, and nobody says goodbye."""
    journal.words.close()
    store_of(journal).close_engine()


def ask(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


# Opens a journal, says what it is told line by line, and answers.
_OTHER = """
import sys, tenax
from tests.contract.engine.base import begin, say
with tenax.open(sys.argv[1], user="ada") as journal:
    print("open", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "claim":
            print(journal.claim(words[0], "other", 3600), journal.instance, flush=True)
        elif verb == "begin":
            print(begin(journal, name=words[0]), flush=True)
        else:
            print(journal.append(verb, [say(" ".join(words))])[0].seq, flush=True)
"""


class Other:
    """A real process that has the store open too."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OTHER, url], stdin=-1, stdout=-1, text=True
        )
        assert self._hear() == "open"

    def tell(self, line: str) -> str:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self._process.send_signal(number)
        self._process.communicate()
        return self._process.returncode


@pytest.fixture
def other(postgres_url: str) -> Iterator[Other]:
    process = Other(postgres_url)
    yield process
    process.end()


# -- opening -----------------------------------------------------------------------------------------------


def test_processes_that_open_an_empty_database_at_once_make_one_store(
    postgres_url: str,
) -> None:
    """Six processes come first; one makes the tables, all of them have a store, and it is the same one."""
    with ThreadPoolExecutor(6) as pool:
        others = list(pool.map(lambda _: Other(postgres_url), range(6)))
    told = [other.tell(f"begin c-{n}") for n, other in enumerate(others)]
    assert [other.end() for other in others] == [0] * 6
    with tenax.open(postgres_url, user="ada") as journal:
        assert (
            sorted(summary.conversation for summary in journal.conversations()) == told
        )
        assert verify(journal).problems == []
    assert ask(postgres_url, "select count(*), max(schema) from store") == [
        (1, SCHEMA_VERSION)
    ]


def test_the_same_store_has_the_same_incarnation(
    postgres_url: str, journal: Journal
) -> None:
    """Whoever opens it, and however often, while the server runs on."""
    with tenax.open(postgres_url) as again:
        assert again.incarnation == journal.incarnation != ""


def test_a_copy_of_a_database_has_an_incarnation_of_its_own(
    postgres_server: PostgresServer,
) -> None:
    """Restored elsewhere, the same numbers will come to mean other things; and nobody there holds a lease."""
    url = postgres_server.create_database()
    with tenax.open(url, user="ada") as journal:
        name = begin(journal, say("a"))
        before = journal.incarnation
        assert journal.claim("run:x", "me", 3600) is not None
    name_of = url.rpartition("/")[2]
    wait_for(
        lambda: (
            not ask(
                postgres_server.url(),
                f"select 1 from pg_stat_activity where datname = '{name_of}'",
            )
        )
    )
    ask(postgres_server.url(), f"create database {name_of}_copy template {name_of}")
    with tenax.open(f"{url}_copy", user="ada") as journal:
        assert journal.incarnation != before
        assert said(journal, name) == ["a"]
        assert journal.claim("run:x", "you", 60) is not None


def test_two_schemas_of_a_database_are_two_stores(postgres_url: str) -> None:
    """The search path says which; neither sees the other, nor hears it."""
    ask(postgres_url, "create schema one")
    ask(postgres_url, "create schema two")
    with (
        tenax.open(f"{postgres_url}?options=-csearch_path%3Done", user="ada") as one,
        tenax.open(f"{postgres_url}?options=-csearch_path%3Dtwo", user="ada") as two,
    ):
        begin(one, name="c-1")
        assert two.conversations() == []
        assert one.incarnation != two.incarnation
        assert store_of(one).listener.channel != store_of(two).listener.channel


def _make_locked(server: PostgresServer) -> None:
    """A user who has to give a password."""
    ask(server.url(), f"create role locked login password '{SECRET}x'")
    rules = server.data / "pg_hba.conf"
    rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    ask(server.url(), "select pg_reload_conf()")


@pytest.fixture(scope="module")
def addresses(postgres_server: PostgresServer) -> dict[str, str]:
    """Addresses at which no store can be opened, each with a password."""
    port = postgres_server.port
    here = f"127.0.0.1:{port}"
    _make_locked(postgres_server)
    foreign, empty, small, newer = (postgres_server.create_database() for _ in range(4))
    ask(foreign, "create table events (id int)")
    ask(small, "create role small login")
    ask(small, "revoke create on schema public from public")
    tenax.open(newer).close()
    ask(newer, "update store set schema = 99")
    ask(
        postgres_server.url(),
        "create database ascii encoding SQL_ASCII template template0 locale 'C'",
    )
    named = {"empty": empty, "foreign": foreign, "small": small, "newer": newer}
    name = {each: url.rpartition("/")[2] for each, url in named.items()}
    return {
        "nobody there": f"postgresql://ada:{SECRET}@127.0.0.1:1/tenax",
        "no such host": f"postgresql://ada:{SECRET}@no-such-host.invalid/tenax",
        "no such socket": f"postgresql://ada:{SECRET}@/tenax?host=/nowhere",
        "wrong password": f"postgresql://locked:{SECRET}@{here}/{name['empty']}",
        "no password": f"postgresql://locked@{here}/{name['empty']}",
        "no such database": f"postgresql://postgres:{SECRET}@{here}/nothing",
        "no such user": f"postgresql://stranger:{SECRET}@{here}/{name['empty']}",
        "another program's": f"postgresql://postgres:{SECRET}@{here}/{name['foreign']}",
        "may not create": f"postgresql://small:{SECRET}@{here}/{name['small']}",
        "newer": f"postgresql://postgres:{SECRET}@{here}/{name['newer']}",
        "not UTF-8": f"postgresql://postgres:{SECRET}@{here}/ascii",
        "not an address": f"postgresql://ada:{SECRET}%zz@127.0.0.1/tenax",
        "an unknown option": f"postgresql://ada@127.0.0.1/tenax?pasword={SECRET}",
        "nobody there, by option": f"postgresql://ada@127.0.0.1:1/tenax?password={SECRET}",
    }


SENTENCES = {
    "nobody there": "There is no PostgreSQL at 127.0.0.1:1/tenax as ada.",
    "no such host": "There is no PostgreSQL at no-such-host.invalid/tenax as ada.",
    "no such socket": "There is no PostgreSQL at /nowhere/tenax as ada.",
    "wrong password": "did not accept the user or the password.",
    "no password": "did not accept the user or the password.",
    "no such database": "has no such database.",
    "no such user": "has no such user.",
    "another program's": "holds the tables of another program.",
    "may not create": "may not make the tables of the store.",
    "newer": "a newer Tenax has changed it.",
    "not UTF-8": "stores text as SQL_ASCII, not as UTF8.",
    "not an address": "The address of the PostgreSQL store cannot be read.",
    "an unknown option": "The address of the PostgreSQL store cannot be read.",
    "nobody there, by option": "There is no PostgreSQL at 127.0.0.1:1/tenax as ada.",
}


@pytest.mark.parametrize("case", SENTENCES)
def test_what_cannot_be_opened_is_told_in_one_sentence_without_the_password(
    addresses: dict[str, str], case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the error, nor what it was made from, nor any log line holds the password."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(CannotOpen) as caught:
        tenax.open(addresses[case])
    sentence = str(caught.value)
    assert sentence.endswith(SENTENCES[case])
    assert sentence.count(". ") == sentence.count("\n") == 0
    whole = (
        "".join(traceback.format_exception(caught.value))
        + caplog.text
        + repr(vars(caught.value))
    )
    assert "hunter2" not in whole.replace(addresses[case], "")


def test_a_server_that_is_too_old_is_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its version, and the one that is needed."""
    monkeypatch.setattr(postgres, "SERVER_MIN", 99)
    with pytest.raises(CannotOpen, match="too old") as caught:
        tenax.open(postgres_url)
    assert "99" in caught.value.hint


def test_without_psycopg_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "tenax.journal.postgres.store", None)
    with pytest.raises(CannotOpen, match="psycopg") as caught:
        tenax.open("postgresql://127.0.0.1/tenax")
    assert caught.value.hint == "pip install 'tenax[postgres]'"


def test_psycopg_is_imported_with_the_first_such_store_only() -> None:
    """A SQLite user need not have it."""
    code = "import sys, tenax; tenax.open('memory:').close(); sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_append_to_a_store_that_a_newer_tenax_changed_is_refused(
    journal: Journal, postgres_url: str
) -> None:
    """The process that is still running learns it at its next append, old conversation or new."""
    name = begin(journal)
    ask(postgres_url, "update store set schema = 99")
    with pytest.raises(SchemaTooNew):
        journal.append(name, [say("x")])
    with pytest.raises(SchemaTooNew):
        begin(journal)
    ask(postgres_url, f"update store set schema = {SCHEMA_VERSION}")
    assert said(journal, name) == []
    assert len(journal.conversations()) == 1


# -- statements and connections ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "text", "names"),
    [
        ("select :a, :b_2, :a", "select %s, %s, %s", ("a", "b_2", "a")),
        ("select :a::text, x::bigint", "select %s::text, x::bigint", ("a",)),
        (
            "select ':a', \":b\", 'it''s :c' || :d",
            "select ':a', \":b\", 'it''s :c' || %s",
            ("d",),
        ),
        ("select 7 % 2, '100%' like :a", "select 7 %% 2, '100%%' like %s", ("a",)),
        ("select 1 -- not :this, 5 %\n+ :a /* nor :that */", "select 1 \n+ %s", ("a",)),
    ],
)
def test_parameters_are_translated(sql: str, text: str, names: tuple[str, ...]) -> None:
    """Casts, quotes, comments and percent signs stay what they are."""
    assert translate(sql) == (text, names)


def test_every_connection_is_named_and_bounded(
    journal: Journal, postgres_url: str
) -> None:
    """None waits for ever, none leaves a transaction open for long, and an administrator sees whose they are."""
    begin(journal)
    assert journal.instance
    store = store_of(journal)
    with store.reading() as reader:
        assert isinstance(reader, PostgresTx)
        shown = {
            name: reader.say(f"show {name}".encode()).fetchall()[0][0]
            for name in SETTINGS
        }
        assert reader.say(b"show default_transaction_read_only").fetchall() == [("on",)]
    assert shown == SETTINGS
    wait_for(
        lambda: (
            len(
                ask(
                    postgres_url,
                    "select 1 from pg_stat_activity where application_name = 'tenax'",
                )
            )
            >= 4
        )
    )
    idle = "select 1 from pg_stat_activity where application_name = 'tenax' and state like 'idle in%'"
    assert ask(postgres_url, idle) == []


def test_facts_are_flushed_and_partials_are_not(journal: Journal) -> None:
    """A transaction of partials alone does not wait for the disk."""
    store = store_of(journal)
    for durable, shown in ((True, "on"), (False, "off")):
        with store.transaction(durable=durable) as tx:
            assert isinstance(tx, PostgresTx)
            assert tx.say(b"show synchronous_commit").fetchall() == [(shown,)]


def test_reads_do_not_wait_for_a_write(journal: Journal) -> None:
    """A conversation is read while an append to it is under way."""
    faulty = FaultyJournal(journal)
    name = begin(journal, say("a"))
    hold = faulty.faults.hold("store:commit")
    with ThreadPoolExecutor(1) as pool:
        append = pool.submit(faulty.append, name, [say("b")])
        hold.wait_until_reached()
        assert said(journal, name) == ["a"]
        hold.release()
        append.result()
    assert said(journal, name) == ["a", "b"]


def test_a_page_is_read_through_the_index(journal: Journal, postgres_url: str) -> None:
    """A page of a long conversation reads a page of facts and one of partials, not all of it."""
    name = begin(journal, *(say(str(n)) for n in range(2000)))
    journal.append(name, [delta(2, n, "x") for n in range(2000)])
    ask(postgres_url, "analyze")
    text, names = translate(statements("postgres")["read"])
    sql = text % tuple({"low": 0, "high": 1 << 60, "limit": 10}[each] for each in names)
    plan = "\n".join(
        str(line[0]) for line in ask(postgres_url, f"explain analyze {sql}")
    )
    assert plan.count("Index Scan") == 2
    assert "rows=2000 loops" not in plan


# -- trouble -----------------------------------------------------------------------------------------------


def _terminate(url: str, pid: int) -> None:
    ask(url, f"select pg_terminate_backend({pid})")


def test_a_lost_connection_is_not_the_callers_trouble(
    journal: Journal, postgres_url: str
) -> None:
    """Writing, reading and claiming go on over new ones."""
    name = begin(journal, say("a"))
    for kind in ("tenax", "tenax"):
        ask(
            postgres_url,
            f"select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{kind}'",
        )
        assert journal.append(name, [say("b")])[0].seq > 2
        assert journal.claim("run:x", "me", 60, take_over=True) is not None
        assert said(journal, name)[0] == "a"


def test_a_store_that_may_not_be_written_to_says_so_at_once(
    journal: Journal, postgres_url: str
) -> None:
    """Waiting would not help."""
    name = begin(journal)
    ask(
        postgres_url,
        f"alter database {postgres_url.rpartition('/')[2]} set default_transaction_read_only = on",
    )
    _terminate(postgres_url, writer_pid(journal))
    # An append that waited would end only after an hour.
    journal.store.patience = 3600.0
    with pytest.raises(StoreUnavailable, match="cannot be written to"):
        journal.append(name, [say("b")])


def test_what_the_server_says_is_judged(postgres_url: str) -> None:
    """Full, busy, racing, damaged: what to tell the caller, and whether to try again."""
    link = Link(postgres_url)

    def verdict(state: str, **more: bool) -> tuple[str, bool, bool]:
        trouble = link.judge(psycopg.errors.lookup(state)("it said so"), **more)
        return type(trouble.error).__name__, trouble.lasting, trouble.unknown

    assert verdict("53100") == ("StoreFull", True, False)
    assert verdict("40001") == verdict("40P01") == ("StoreBusy", False, False)
    assert verdict("55P03") == verdict("57014") == ("StoreBusy", False, False)
    assert verdict("42501") == verdict("25006") == ("StoreUnavailable", True, False)
    assert verdict("57P01") == verdict("53300") == ("StoreUnavailable", False, False)
    assert verdict("57P01", committing=True, lost=True) == (
        "StoreUnavailable",
        False,
        True,
    )
    assert verdict("57P01", committing=False, lost=True) == (
        "StoreUnavailable",
        False,
        False,
    )
    assert (
        verdict("42P01")
        == verdict("23505")
        == verdict("XX001")
        == ("StoreDamaged", True, False)
    )
    assert issubclass(StoreFull, StoreUnavailable)


@pytest.fixture
def impatient(postgres_url: str) -> Iterator[Journal]:
    """A journal that waits two seconds for the server."""
    timing = Timing(answer_seconds=2.0)
    with tenax.open(postgres_url, user="ada", timing=timing) as journal:
        yield journal


def test_a_server_that_hangs_is_not_waited_for_for_ever(
    impatient: Journal, postgres_server: PostgresServer
) -> None:
    """The caller learns that the outcome is unknown. A retry with the append id stores the events once."""
    journal = impatient
    name = begin(journal, say("a"))
    store = store_of(journal)
    pid = writer_pid(journal)
    store.patience = 0.3
    faulty = FaultyJournal(journal)
    append_id = journal.ids.append()
    try:
        with ThreadPoolExecutor(1) as pool:
            hold = faulty.faults.hold("store:commit")
            append = pool.submit(faulty.append, name, [say("b")], append_id=append_id)
            hold.wait_until_reached()
            assert postgres_server.kill_backend(pid, signal.SIGSTOP)
            hold.release()
            with pytest.raises(OutcomeUnknown) as caught:
                append.result(60)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert caught.value.append_id == append_id
    store.patience = 30.0
    faulty.append(name, [say("b")], append_id=append_id)
    assert said(journal, name) == ["a", "b"]


def test_closing_is_bounded_while_the_server_is_away() -> None:
    """A closing store waits a few seconds, however patient its appends are."""
    with PostgresServer() as server:
        journal = tenax.open(server.create_database(), user="ada", patience=3600.0)
        assert journal.claim("run:x", begin(journal), 60) is not None
        server.stop()
        closing = threading.Thread(target=journal.close, daemon=True)
        closing.start()
        closing.join(90)
        assert not closing.is_alive()


# -- two processes at once ---------------------------------------------------------------------------------


def test_of_processes_that_claim_at_once_one_gets_the_lease(
    journal: Journal, another: Journal
) -> None:
    """Also when there never was a row that one of them could have locked."""
    start = threading.Barrier(2)

    def claim(each: Journal, n: int) -> Lease | None:
        start.wait()
        return each.claim(f"run:{n}", "me", 60)

    with ThreadPoolExecutor(2) as pool:
        for n in range(25):
            won = [
                task.result()
                for task in [pool.submit(claim, each, n) for each in (journal, another)]
            ]
            assert sum(lease is not None for lease in won) == 1


def test_of_processes_that_bring_the_same_one_stores_it(
    journal: Journal, another: Journal
) -> None:
    """A message that is delivered to two processes is stored once, and both are told where."""
    names = [begin(journal), begin(journal)]
    start = threading.Barrier(2)

    def bring(each: Journal, name: str, n: int) -> tuple[str, int]:
        start.wait()
        (stored,) = each.append(name, [say(f"m{n}")], dedup=Dedup("chat", str(n)))
        return stored.conversation, stored.seq

    with ThreadPoolExecutor(2) as pool:
        for n in range(25):
            tasks = [
                pool.submit(bring, each, name, n)
                for each, name in zip((journal, another), names, strict=True)
            ]
            first, second = (task.result() for task in tasks)
            assert first == second
    assert len(said(journal, names[0]) + said(journal, names[1])) == 25


def test_of_processes_that_open_the_same_conversation_one_does(
    journal: Journal, another: Journal
) -> None:
    """The other is told that the id is taken."""
    start = threading.Barrier(2)

    def work(each: Journal, n: int) -> str:
        start.wait()
        try:
            return begin(each, name=f"twice-{n}")
        except TenaxError as error:
            return type(error).__name__

    with ThreadPoolExecutor(2) as pool:
        for n in range(15):
            told = [
                task.result()
                for task in [pool.submit(work, each, n) for each in (journal, another)]
            ]
            assert sorted(told) == ["ConversationExists", f"twice-{n}"]


def test_groups_over_the_same_conversations_do_not_lock_each_other_out(
    journal: Journal, another: Journal
) -> None:
    """Each locks the heads in the order of their numbers, whatever order their callers came in."""
    names = [begin(journal) for _ in range(8)]

    def work(n: int) -> None:
        each = (journal, another)[n % 2]
        for at in range(12):
            each.append(
                names[(n * 5 + at * (1 if n % 4 < 2 else -1)) % 8], [say(f"{n}.{at}")]
            )

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert sorted(text for name in names for text in said(journal, name)) == sorted(
        f"{n}.{at}" for n in range(16) for at in range(12)
    )
    assert verify(journal).problems == []


def test_search_and_appends_do_not_lock_each_other_out(
    journal: Journal, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken in at once comes in any order. The heads are locked in the order of their numbers, as appends do."""
    nums = [journal.number(begin(journal, say("a"))) for _ in range(2)]
    assert journal.words.catch_up(30)
    journal.words.close()  # what indexes by itself would move the cursors first
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            b"update cursors set behind = 1, seq = 0 where reader = 'search'"
        )
    index = PostgresSearch(store_of(journal))
    moves = [
        Move(num, "ada", 0, Position(0), False, 2, b"", [], [])
        for num in reversed(nums)
    ]
    run, one, goes_on = postgres.PostgresTx.run, threading.Event(), threading.Event()

    def slowly(tx: postgres.PostgresTx, name: str, params: Any = ()) -> Any:
        found = run(tx, name, params)
        if name == "advance" and not one.is_set():
            one.set()
            goes_on.wait(60)
        return found

    with psycopg.connect(postgres_url) as append, ThreadPoolExecutor(2) as pool:
        lock = b"select 1 from heads where conversation = %s for update"
        append.execute(lock, (nums[0],))
        monkeypatch.setattr(postgres.PostgresTx, "run", slowly)
        indexing = pool.submit(index.apply, moves, lambda _: None)
        wait_for(lambda: one.is_set() or ask(postgres_url, BLOCKED))
        rest = pool.submit(append.execute, lock, (nums[1],))
        wait_for(lambda: rest.done() or (one.is_set() and ask(postgres_url, BLOCKED)))
        goes_on.set()
        rest.result(60)
        append.commit()
        indexing.result(60)


def test_a_cursor_that_moves_while_an_append_is_under_way_misses_nothing(
    journal: Journal, another: Journal
) -> None:
    """The reader saw all there was; what commits a moment later still makes it behind."""
    reader = Reader("r")
    name = begin(journal, say("a"))
    lease = take_reader(another, reader, name)
    another.cursor(reader, name)
    faulty = FaultyJournal(journal)
    hold = faulty.faults.hold("store:commit")
    with ThreadPoolExecutor(2) as pool:
        append = pool.submit(faulty.append, name, [say("b")])
        hold.wait_until_reached()
        advance = pool.submit(another.advance, reader, name, 2, was=0, lease=lease)
        time.sleep(0.2)
        hold.release()
        append.result()
        advance.result()
    assert [(each.at, each.to) for each in another.behind(reader)] == [(2, 3)]


def test_a_cursor_waits_for_an_append_that_left_it_as_it_was(
    journal: Journal, postgres_url: str
) -> None:
    """An append that found the reader behind changes nothing there; advancing must not call it done meanwhile."""
    reader = Reader("r")
    name = begin(journal, say("a"))
    lease = take_reader(journal, reader, name)
    assert journal.cursor(reader, name) == 0
    with psycopg.connect(postgres_url) as append, ThreadPoolExecutor(1) as pool:
        append.execute(b"update heads set head = 3, facts = 3")
        assert (
            append.execute(b"update cursors set behind = 1 where behind = 0").rowcount
            == 0
        )
        advance = pool.submit(journal.advance, reader, name, 2, was=0, lease=lease)
        wait_for(lambda: advance.done() or ask(postgres_url, BLOCKED))
        assert not advance.done()
        append.commit()
        advance.result()
    assert [(each.at, each.to) for each in journal.behind(reader)] == [(2, 3)]


def test_a_reader_that_follows_many_writers_misses_nothing(
    journal: Journal, another: Journal
) -> None:
    """Commits come out of order, conversations are opened, readers join late: in the end all have seen everything."""
    stop = threading.Event()
    seen: dict[tuple[str, str], list[int]] = {}

    def write(n: int) -> None:
        each = (journal, another)[n % 2]
        for at in range(4):
            name = begin(each, name=f"w{n}-{at}")
            for text in range(6):
                each.append(name, [say(str(text))])

    def follow(reader: Reader, each: Journal) -> None:
        done = False
        while not done:
            done = stop.is_set()
            for found in each.behind(reader):
                lease = take_reader(each, reader, found.conversation)
                page = each.read(found.conversation, after=found.at)
                seen.setdefault((reader.name, found.conversation), []).extend(
                    fact.seq for fact in page
                )
                each.advance(
                    reader, found.conversation, page[-1].seq, was=found.at, lease=lease
                )
                each.release(lease)
                done = False

    with ThreadPoolExecutor(7) as pool:
        writers = [pool.submit(write, n) for n in range(4)]
        readers = [
            pool.submit(follow, Reader(f"r{n}"), each)
            for n, each in enumerate((journal, another, journal))
        ]
        wait(writers)
        stop.set()
        for task in [*writers, *readers]:
            task.result()
    assert len(seen) == 3 * 16
    assert all(seqs == list(range(1, 8)) for seqs in seen.values())
    assert verify(journal).problems == []


# -- wake-ups ----------------------------------------------------------------------------------------------


def test_another_process_is_heard_soon(journal: Journal, other: Other) -> None:
    """Not by looking again: the hint itself arrives, and names the conversation."""
    name, silent = begin(journal), begin(journal)
    hint, wrong = threading.Event(), threading.Event()
    heard_number, silent_number = journal.number(name), journal.number(silent)
    # The first call starts the thread that listens, and the thread wakes everybody once. So the listener that the test
    # waits for comes first.
    with (
        journal.store.wakeups.listening(silent_number, wrong.set),
        journal.store.wakeups.listening(heard_number, hint.set),
    ):
        wait_for(wrong.is_set)  # it listens now, and says so to everybody
        for _ in range(5):
            time.sleep(0.05)
            hint.clear()
            wrong.clear()
            other.tell(f"{name} hello")
            # it looks again, and tells everybody, only when its connection was lost
            assert hint.wait(60.0)
            assert not wrong.is_set()


def test_a_process_with_many_open_files_hears_others(
    postgres_url: str, journal: Journal
) -> None:
    """A file whose number is beyond a thousand can be waited for too."""
    name, hint = begin(journal), threading.Event()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with (
            tenax.open(postgres_url, user=journal.user) as crowded,
            crowded.store.wakeups.listening(crowded.number(name), hint.set),
        ):
            assert hint.wait(60.0)  # it listens now
            hint.clear()
            journal.append(name, [say("hello")])
            assert hint.wait(60.0)
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_that_could_not_be_started_are_started_the_next_time(
    postgres_url: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may have no room for one more at that moment. Later others are heard, and hear."""
    name, start = begin(journal), threading.Thread.start
    refused: set[str] = set()

    def full(thread: threading.Thread) -> None:
        if (
            thread.name in {"tenax-listen", "tenax-notify"}
            and thread.name not in refused
        ):
            refused.add(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    hint = threading.Event()
    with tenax.open(postgres_url, user="ada") as crowded:
        with (
            suppress(RuntimeError),
            crowded.store.wakeups.listening(crowded.number(name), hint.set),
        ):
            pass
        crowded.append(name, [say("not told")])
        assert refused == {"tenax-listen", "tenax-notify"}
        with (
            journal.store.wakeups.listening(journal.number(name), hint.set),
            crowded.store.wakeups.listening(crowded.number(name), hint.set),
        ):
            wait_for(lambda: len(ask(postgres_url, LISTENING)) == 2)
            for says in (crowded, journal):
                time.sleep(0.2)
                hint.clear()
                says.append(name, [say("told")])
                assert hint.wait(60.0)


def test_hints_are_few_however_many_the_appends(
    journal: Journal, postgres_url: str
) -> None:
    """A few at once, then at most a hundred a second; too many conversations for one are told as `many`."""
    store = store_of(journal)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'listen "{store.listener.channel}"'.encode())
        began = time.monotonic()
        store.announce([1, 2])
        # it is connected now, and keeps its pace
        heard = [next(connection.notifies(timeout=60)).payload]
        again = time.monotonic()
        while time.monotonic() - again < 0.5:
            store.announce([1, 2])
        store.announce(range(1, 10_000))
        for notice in connection.notifies(timeout=60):
            heard.append(notice.payload)
            if notice.payload == MANY:
                break
        took = time.monotonic() - began
    assert heard[0] == "1,2"
    assert heard[-1] == MANY
    # The pause comes after a notice, so one more than these may have been sent.
    assert 2 <= len(heard) <= NOTICES_AT_ONCE + NOTICES_PER_SECOND_MAX * took + 1


def test_who_was_deaf_for_a_while_looks_everywhere(
    journal: Journal, postgres_url: str
) -> None:
    """When the listening connection is back, everybody is woken: hints may have been missed."""
    hint = threading.Event()
    name = begin(journal)
    with journal.store.wakeups.listening(journal.number(name), hint.set):
        wait_for(hint.is_set)
        hint.clear()
        wait_for(lambda: ask(postgres_url, LISTENING))
        _terminate(postgres_url, int(str(ask(postgres_url, LISTENING)[0][0])))
        assert hint.wait(60.0)


def test_a_tail_goes_on_after_a_crash_that_took_partials_and_their_numbers() -> None:
    """Events after the crash have seqs that other events had before. The tail returns the new events."""
    seen: dict[str, list[str]] = {"sync": [], "async": []}
    stop = threading.Event()

    def follow(journal: Journal, name: str) -> None:
        for each in journal.tail(name, stop=stop):
            seen["sync"].append(each.kind)

    async def follow_async(journal: Journal, name: str) -> None:
        async for each in AsyncJournal(journal).tail(name):
            seen["async"].append(each.kind)
            if each.kind == "message.user":
                return

    with PostgresServer({"wal_writer_delay": "10s"}) as server:
        url = server.create_database()
        with (
            tenax.open(url, user="ada", patience=60.0, timing=UNFLUSHED) as journal,
            tenax.open(url, user="ada", timing=UNFLUSHED) as writer,
        ):
            for each in (journal, writer):
                # The indexer claims a lease. That commit would flush the partials too.
                each.words.close()
            name = begin(writer)
            tails = [
                threading.Thread(target=follow, args=(journal, name), daemon=True),
                threading.Thread(
                    target=lambda: asyncio.run(follow_async(journal, name)), daemon=True
                ),
            ]
            for tail in tails:
                tail.start()
            wal_writer = server.hold_wal_writer()
            for n in range(20):
                writer.append(name, [delta(1, n, "x")])
            wait_for(lambda: all(len(value) == 21 for value in seen.values()))
            kept = journal.position(name)  # of a reader that begins its tail later
            server.crash(wal_writer)
            server.start()
            (stored,) = writer.append(name, [say("after")])
            assert stored.seq < 21, "the crash took no partials, so this shows nothing"
            wait_for(lambda: all("message.user" in value for value in seen.values()))
            assert stored.seq in (
                each.seq for each in journal.tail(name, kept) if each.digest
            )
            stop.set()
            for tail in tails:
                tail.join(60)


def test_what_a_runner_holds_is_not_folded_on_over_a_crash_that_took_partials() -> None:
    """The history notices the crash in the read that catches up, and folds again."""

    async def hold(
        server: PostgresServer, journal: Journal, writer: Journal, name: str
    ) -> None:
        history = History(AsyncJournal(journal), name)
        await history.catch_up()
        assert history.seq == 21
        server.crash(wal_writer)
        server.start()
        (first,) = writer.append(name, [MessageUser([Text("first")], ask=True)])
        assert first.seq < 21, "the crash took no partials, so this shows nothing"
        for n in range(21 - first.seq):
            writer.append(name, [say(f"{n}")])
        writer.append(name, [say("last")])
        await history.catch_up()
        assert first.seq in history.turns.waiting

    with PostgresServer({"wal_writer_delay": "10s"}) as server:
        url = server.create_database()
        with (
            tenax.open(url, user="ada", timing=UNFLUSHED) as journal,
            tenax.open(url, user="ada", timing=UNFLUSHED) as writer,
        ):
            for each in (journal, writer):
                # The indexer claims a lease. That commit would flush the partials too.
                each.words.close()
            name = begin(writer)
            wal_writer = server.hold_wal_writer()
            for n in range(20):
                writer.append(name, [delta(1, n, "x")])
            asyncio.run(hold(server, journal, writer, name))


# -- instances ---------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_the_lease_of_a_killed_process_is_free(journal: Journal, other: Other) -> None:
    """Its lock goes with its connection, and nobody waits for the hour it had left."""
    lease, _, instance = other.tell("claim run:x").rpartition(" ")
    assert lease.startswith("Lease(")
    assert journal.claim("run:x", "me", 60) is None
    (found,) = [each for each in journal.instances() if each.id == instance]
    assert found.alive
    other.end(signal.SIGKILL)
    wait_for(lambda: journal.claim("run:x", "me", 60))
    (found,) = [each for each in journal.instances() if each.id == instance]
    assert not found.alive


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_server_reaps_nobody_who_lives(mode: str) -> None:
    """Everybody's lock is gone with the server; who comes back soon still has what they had."""
    with PostgresServer() as server:
        url = server.create_database()
        with (
            tenax.open(url, user="ada") as journal,
            tenax.open(url, user="ada") as another,
        ):
            name = begin(journal)
            lease = journal.claim("run:x", "me", 3600)
            assert lease is not None
            before = journal.incarnation
            server.stop(mode)  # type: ignore[arg-type]
            server.start()
            assert another.claim("run:x", "you", 60) is None
            journal.append(name, [say("still here")], lease=lease)
            assert journal.incarnation == another.incarnation != before
            dead = another.instance
            wait_for(
                lambda: any(
                    instance.id == dead and instance.alive
                    for instance in journal.instances()
                )
            )
            wait_for(
                lambda: (
                    "advisory"
                    in str(
                        ask(
                            url,
                            "select locktype from pg_locks where locktype = 'advisory'",
                        )
                    )
                )
            )
            _die(another)
            wait_for(
                lambda: (
                    not any(
                        instance.alive
                        for instance in journal.instances()
                        if instance.id == dead
                    )
                )
            )


def test_who_learns_from_a_message_waits_for_its_erasure(
    journal: Journal, another: Journal, postgres_url: str
) -> None:
    """And is then refused: the text that was read before does not come back as a fact."""
    name = begin(journal, say("secret"))
    faulty = FaultyJournal(journal)
    hold = faulty.faults.hold("store:commit")
    with ThreadPoolExecutor(2) as pool:
        erasing = pool.submit(faulty.erase, name, [2], by="ada")
        hold.wait_until_reached()
        learning = pool.submit(
            MemoryEntries(another).add, "secret", conversation=name, seq=2
        )
        wait_for(
            lambda: ask(
                postgres_url,
                "select 1 from pg_stat_activity where wait_event_type = 'Lock'",
            )
        )
        hold.release()
        assert erasing.result(60).conversations == {name: [2]}
        with pytest.raises(InvalidInput, match="may have been erased"):
            learning.result(60)
    assert MemoryEntries(journal).standing() == []


def test_an_erasure_waits_for_who_learns_from_its_message(
    journal: Journal, another: Journal, postgres_url: str
) -> None:
    """And takes what was learned meanwhile."""
    name = begin(journal, say("secret"))
    facts, waits = (
        MemoryEntries(another),
        "select 1 from pg_stat_activity where wait_event_type = 'Lock'",
    )
    store = store_of(another)
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as tx:
            tx.run("change_memory", {"owner": "ada"})
            place = another.number(name) << 32 | 2
            row = {
                "id": "f_1",
                "version": 1,
                "state": "standing",
                "text": "secret",
                "about": "note",
                "by": "model",
            }
            rest = dict.fromkeys(("scope", "replaces", "replaced", "key"))
            tx.run("put_fact", {"owner": "ada", "at": 1, "place": place, **row, **rest})
            erasing = pool.submit(journal.erase, name, [2], by="ada")
            wait_for(lambda: ask(postgres_url, waits))
        erasing.result(60)
    assert facts.standing() == []


def test_a_connection_that_is_lost_in_the_midst_of_a_group_says_nothing_on_stderr(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised, and that is all: what is left of psycopg's wait ends without a word."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    connection = Link(postgres_url).connect()

    def lose() -> None:
        with connection.pipeline():
            connection.execute(b"select 1")
            os.close(connection.pgconn.socket)  # as libpq does when it finds out first

    with pytest.raises(psycopg.OperationalError):
        lose()
    connection.close()
    gc.collect()
    assert ignored == []
