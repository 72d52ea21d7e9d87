"""The store in memory keeps the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tenax.clock import Clock
from tenax.journal import Journal
from tenax.journal import memory as ephemeral
from tenax.journal.base import Lease
from tenax.testing import memory
from tests.contract.engine import JournalContract
from tests.support.awaited import Loop, awaited


class TestMemory(JournalContract):
    @pytest.fixture
    def journal(self, clock: Clock) -> Iterator[Journal]:
        with memory(user="ada", clock=clock) as journal:
            yield journal

    @pytest.fixture
    def reconnect(self, journal: Journal) -> Callable[[], None]:
        """Memory is never away; say so to the store."""
        return lambda: setattr(journal.store, "_since", journal.clock.monotonic())

    @pytest.fixture
    def leave_behind(self, journal: Journal) -> Callable[[str], Lease]:
        """Nobody else can be there; so somebody is made who was."""

        def claim(name: str) -> Lease:
            living, journal.store._instance = journal.instance, None  # type: ignore[attr-defined]
            lease = journal.claim(name, "dead", 3600)
            ephemeral._living.discard(journal.instance)
            journal.store._instance = living  # type: ignore[attr-defined]
            assert lease is not None
            return lease

        return claim


class TestMemoryAwaited(TestMemory):
    @pytest.fixture
    def journal(self, clock: Clock, loop: Loop) -> Iterator[Journal]:
        journal = awaited(memory(user="ada", clock=clock), loop)
        yield journal
        journal.close()
