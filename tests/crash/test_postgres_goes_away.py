"""Connections and servers are killed at random instants while callers append and try again."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import tenax
from tenax.errors import OutcomeUnknown, StoreUnavailable
from tenax.journal import Journal
from tenax.journal.check import verify
from tenax.testing.contract.base import begin, delta, said, say
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.crash

CALLERS = 4
KILLS = 30
CRASHES = 4
STOPS = 4


def persist(journal: Journal, name: str, text: str) -> int:
    """Append as a caller does that has something to say: until it is stored. The seq."""
    append_id = journal.ids.append()
    while True:
        try:
            return journal.append(name, [say(text)], append_id=append_id)[0].seq
        except (OutcomeUnknown, StoreUnavailable):
            time.sleep(0.01)


@contextmanager
def callers(journal: Journal, names: list[str]) -> Iterator[list[tuple[str, int, str]]]:
    """Callers that append all the time, alone and together. What they were told."""
    told: list[tuple[str, int, str]] = []
    done = threading.Event()

    def call(caller: int) -> None:
        n = 0
        while not done.is_set():
            n += 1
            name, text = names[(caller + n) % len(names)], f"{caller}.{n}"
            if n % 3 == 0:
                try:
                    journal.append(name, [delta(1, 0, text)])
                except (OutcomeUnknown, StoreUnavailable):
                    continue
            told.append((name, persist(journal, name, text), text))

    with ThreadPoolExecutor(CALLERS) as pool:
        tasks: list[Future[None]] = [pool.submit(call, caller) for caller in range(CALLERS)]
        try:
            yield told
        finally:
            done.set()
        for task in tasks:
            task.result(60)


def check(journal: Journal, names: list[str], told: list[tuple[str, int, str]]) -> None:
    """Every body is there once, where its caller was told."""
    for name in names:
        mine = sorted((seq, text) for each, seq, text in told if each == name)
        assert said(journal, name) == [text for _, text in mine]
        for seq, text in mine:
            fact = journal.fact(name, seq)
            assert fact is not None
            assert f'"{text}"'.encode() in (fact.body or b"")
    assert verify(journal).problems == []


@pytest.mark.timeout(300)
def test_every_body_is_stored_once_however_often_the_backend_dies() -> None:
    """The connection that writes is killed in the midst of it, at times the whole server with it; callers go on."""
    chance = random.Random(7)
    with PostgresServer() as server, tenax.open(server.create_database(), user="ada", patience=15) as journal:
        names = [begin(journal) for _ in range(3)]
        with callers(journal, names) as told:
            killed = crashed = 0
            while killed < KILLS:
                before = len(told)
                while len(told) < before + 5:  # they are at it again
                    time.sleep(0.001)
                time.sleep(chance.random() * 0.01)
                writer = journal.store._writer  # type: ignore[attr-defined]
                if writer is None or writer.closed:
                    continue
                crash = crashed < CRASHES and killed % (KILLS // CRASHES) == 3
                if server.kill_backend(writer.info.backend_pid, signal.SIGKILL if crash else signal.SIGTERM):
                    killed += 1
                    crashed += crash
        check(journal, names, told)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("patience", [0.5, 30.0])
def test_every_body_is_stored_once_while_the_server_stops_and_starts(patience: float) -> None:
    """Callers with patience notice nothing; others are told, and store it once when they come back."""
    chance = random.Random(11)
    with (
        PostgresServer() as server,
        tenax.open(server.create_database(), user="ada", patience=patience) as journal,
    ):
        names = [begin(journal) for _ in range(3)]
        with callers(journal, names) as told:
            for n in range(STOPS):
                before = len(told)
                while len(told) < before + 20:
                    time.sleep(0.001)
                time.sleep(chance.random() * 0.02)
                server.stop("immediate" if n % 2 else "fast")
                time.sleep(chance.random())
                server.start()
        journal.store.patience = 30.0
        check(journal, names, told)
