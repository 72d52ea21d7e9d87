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
from tests.contract.engine.appending import AppendContract
from tests.contract.engine.base import Engine
from tests.contract.engine.reading import ReadContract
from tests.support.awaited import Loop, awaited


class MemoryEngine(Engine):
    @pytest.fixture
    def journal(self, clock: Clock) -> Iterator[Journal]:
        with memory(user="ada", clock=clock) as journal:
            yield journal

    @pytest.fixture
    def reconnect(self, journal: Journal) -> Callable[[], None]:
        """Memory is never away; say so to the store."""
        return lambda: setattr(
            journal.store, "connected_since", journal.clock.monotonic()
        )

    @pytest.fixture
    def leave_behind(self, journal: Journal) -> Callable[[str], Lease]:
        """Nobody else can be there; so somebody is made who was."""

        def claim(name: str) -> Lease:
            living, journal.store.instance = journal.instance, None
            lease = journal.claim(name, "dead", 3600)
            ephemeral.living.discard(journal.instance)
            journal.store.instance = living
            assert lease is not None
            return lease

        return claim


class TestMemory(MemoryEngine, JournalContract):
    """The whole contract."""


class TestMemoryAwaited(MemoryEngine, AppendContract, ReadContract):
    """What the async facade does in its own way: append, load, tail and wait. Its other verbs: test_awaited.py."""

    @pytest.fixture
    def journal(self, clock: Clock, loop: Loop) -> Iterator[Journal]:
        journal = awaited(memory(user="ada", clock=clock), loop)
        yield journal
        journal.close()
