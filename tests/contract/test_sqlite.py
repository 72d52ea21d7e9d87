"""The store in a SQLite file keeps the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tenax
from tenax.clock import Clock
from tenax.journal import Journal
from tenax.journal.base import Lease
from tenax.testing.contract import JournalContract
from tests.support.awaited import Loop, awaited


class TestSqlite(JournalContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/tenax.db"

    @pytest.fixture
    def journal(self, clock: Clock, url: str) -> Iterator[Journal]:
        with tenax.open(url, user="ada", clock=clock) as journal:
            yield journal

    @pytest.fixture
    def another(self, journal: Journal, clock: Clock, url: str) -> Iterator[Journal]:
        with tenax.open(url, user="ada", clock=clock) as another:
            yield another

    @pytest.fixture
    def leave_behind(self, journal: Journal, clock: Clock, url: str) -> Callable[[str], Lease]:
        def claim(name: str) -> Lease:
            other = tenax.open(url, user="ada", clock=clock)
            lease = other.claim(name, "dead", 3600)
            other.store._let_go()  # type: ignore[attr-defined]  # the kernel does as much for a killed process
            assert lease is not None
            return lease

        return claim


class TestSqliteAwaited(TestSqlite):
    @pytest.fixture
    def journal(self, clock: Clock, url: str, loop: Loop) -> Iterator[Journal]:
        journal = awaited(tenax.open(url, user="ada", clock=clock), loop)
        yield journal
        journal.close()
