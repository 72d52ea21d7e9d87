"""PostgreSQL killed, stopped and started at random instants while callers append and try again."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

import tenax
from tenax.errors import OutcomeUnknown, StoreUnavailable
from tenax.journal import Journal
from tenax.journal.store import Trouble
from tenax.journal.verify.store import verify
from tenax.testing import FaultyJournal
from tests.contract.engine.base import begin, said, say
from tests.crash.test_failing_flushes import persist
from tests.crash.test_kill import chatter
from tests.support.children import Child, Teller
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.crash

CALLERS = 4
INSTANTS = {"connection": 184, "backend": 8, "crash": 4, "stop": 4}
"""How often: a connection is ended, a backend is killed (all connections go), the server crashes, is stopped."""
STEPS = ["begin", "load", "write", "commit", "committed"]
KILLS_AT_A_STEP = 6


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server to kill. Commits wait a little before they flush, so that more of them are hit."""
    with PostgresServer({"commit_delay": 2000, "commit_siblings": 0}) as server:
        yield server


def backends(url: str) -> list[int]:
    """The processes that serve the store."""
    with psycopg.connect(url, autocommit=True) as admin:
        rows = admin.execute(
            "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend' order by (state = 'active') desc"
        ).fetchall()
    return [row[0] for row in rows]


def strike(
    server: PostgresServer, journal: Journal, url: str, how: str, chance: random.Random
) -> bool:
    """Take the store away for a moment. Whether it was hit."""
    if how in {"crash", "stop"}:
        server.stop("immediate" if how == "crash" else "fast")
        server.start()
        return True
    try:
        writer = journal.store.writer  # type: ignore[attr-defined]
        pids = (
            backends(url)
            if chance.random() < 0.4 or writer is None
            else [writer.info.backend_pid]
        )
    except psycopg.OperationalError:
        return False  # it is away already
    number = signal.SIGTERM if how == "connection" else signal.SIGKILL
    time.sleep(chance.uniform(0, 0.004))  # any instant will do
    hit = bool(pids) and server.kill_backend(
        pids[min(len(pids) - 1, int(chance.expovariate(1)))], number
    )
    if hit and how == "backend":
        wait_until_back(url)
    return hit


def wait_until_back(url: str) -> None:
    """A killed backend makes the server end all connections and recover."""
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


@pytest.mark.timeout(300)  # each of its stops may take a quarter of a minute
def test_every_body_is_stored_once_however_often_the_server_goes(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred times away: callers get success, a refusal or `OutcomeUnknown`, and go on by themselves."""
    chance = random.Random(11)
    url = server.create_database()
    plan = [how for how, times in INSTANTS.items() for _ in range(times)]
    chance.shuffle(plan)
    told: list[tuple[str, int, str]] = []
    done = threading.Event()
    with tenax.open(url, patience=20) as journal:
        names = [begin(journal) for _ in range(2)]
        unknown: list[Trouble] = []
        recover = journal.store.recover

        def recover_counted(trouble: Trouble) -> None:
            unknown.extend([trouble] if trouble.unknown else [])
            recover(trouble)

        monkeypatch.setattr(journal.store, "recover", recover_counted)

        def call(caller: int) -> None:
            n = 0
            while not done.is_set():
                n += 1
                name, text = names[(caller + n) % 2], f"{caller}.{n}"
                told.append((name, persist(journal, name, [say(text)]), text))

        struck: Counter[str] = Counter()
        with ThreadPoolExecutor(CALLERS) as pool:
            callers = [pool.submit(call, caller) for caller in range(CALLERS)]
            try:
                for how in plan:
                    while not strike(server, journal, url, how, chance):
                        assert not any(caller.done() for caller in callers)
                    struck[how] += 1
                    wait_for_progress(told, callers, chance.randint(0, 3))
            finally:
                done.set()
            for caller in callers:
                caller.result()
        assert struck == INSTANTS
        print(f"{len(unknown)} commits of unknown outcome")  # noqa: T201  (with -s)
        assert unknown, "no commit was hit; the test proves nothing"
        for name in names:
            expected = {seq: text for each, seq, text in told if each == name}
            assert said(journal, name) == [expected[seq] for seq in sorted(expected)]
            assert len(expected) == journal.head(name).messages
        assert verify(journal).problems == []


def wait_for_progress(
    told: list[tuple[str, int, str]], callers: list[Future[None]], appends: int
) -> None:
    """Wait until the callers have stored some more."""
    target = len(told) + appends
    deadline = time.monotonic() + 30
    while len(told) < target and not any(caller.done() for caller in callers):
        assert time.monotonic() < deadline, "the callers did not go on"
        time.sleep(0.001)


def test_a_server_that_stays_away_is_told_and_found_again(
    server: PostgresServer,
) -> None:
    """Past its patience an append is refused or unknown, with a sentence; when the server is back, all goes on."""
    with tenax.open(server.create_database(), patience=0.5) as journal:
        name = begin(journal, say("before"))
        server.stop()
        try:
            with pytest.raises((StoreUnavailable, OutcomeUnknown)) as caught:
                journal.append(name, [say("while away")])
            assert str(caught.value).endswith(".")
            with pytest.raises(StoreUnavailable):
                journal.read(name)
        finally:
            server.start()
        unknown = caught.value
        append_id = unknown.append_id if isinstance(unknown, OutcomeUnknown) else None
        persist_patiently(journal, name, append_id)
        assert said(journal, name) == ["before", "while away"]


def persist_patiently(journal: Journal, name: str, append_id: bytes | None) -> None:
    """Try again, as often as it takes for the connections to find the server."""
    for _ in range(20):
        try:
            journal.append(name, [say("while away")], append_id=append_id)
        except StoreUnavailable:
            continue
        return
    pytest.fail("the store was not found again")


def write(teller: Teller, url: str, me: str, step: str, nth: int) -> None:
    """Append in several threads until the step that is the end."""
    journal = FaultyJournal(tenax.open(url))
    own = begin(journal, name=f"c-{me}")
    journal.faults.kill(f"store:{step}", nth=nth)
    threads = [
        threading.Thread(
            target=chatter,
            args=(teller, journal, own if n % 2 else "c-shared", f"{me}.{n}"),
            daemon=True,
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    threads[0].join(60)


def test_a_writer_killed_at_any_step_loses_nothing(postgres_url: str) -> None:
    """`kill -9` of the process, not of the server: what was acknowledged is there, and its leases are free."""
    chance = random.Random(5)
    with tenax.open(postgres_url) as journal:
        begin(journal, name="c-shared")
        told: dict[str, dict[int, str]] = defaultdict(dict)
        plans = [step for step in STEPS for _ in range(KILLS_AT_A_STEP)]
        chance.shuffle(plans)
        for number in range(0, len(plans), 3):
            children = [
                Child(write, postgres_url, f"{number}.{n}", step, chance.randint(1, 20))
                for n, step in enumerate(plans[number : number + 3])
            ]
            for child in children:
                assert child.finish() == -9
                for _, name, seq, text in child.lines:
                    assert int(seq) not in told[name], (
                        f"seq {seq} of {name} was given twice"
                    )
                    told[name][int(seq)] = text
        for name, expected in told.items():
            stored = {message.seq: message.event for message in journal.messages(name)}
            assert all(str(stored[seq]).count(text) for seq, text in expected.items())
        assert verify(journal).problems == []
