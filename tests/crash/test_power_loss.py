"""What a power loss leaves of an answer that is being written: all but its last second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tenax
from tenax.agent.partials import Partials
from tenax.events import ReplyDelta
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.store import FLUSH_SECONDS
from tenax.testing import FaultVfs, SimClock
from tenax.testing.contract.base import begin, delta, say

pytestmark = pytest.mark.crash

PIECES = 100
PAUSE = 0.1


def kept(journal: Journal, name: str) -> str:
    """The text of the answer that the store has."""
    events = [each.event for each in journal.read(name)]
    return "".join(event.text for event in events if isinstance(event, ReplyDelta))


def test_partials_are_flushed_while_an_answer_streams(tmp_path: Path) -> None:
    """Ten seconds of streaming: at any instant a power loss takes less than a second of it."""
    path, clock = tmp_path / "tenax.db", SimClock()
    with FaultVfs(remembers=True) as disk:
        journal = disk.open(path, clock=clock)
        name = begin(journal, say("Tell me."))
        flushes = disk.count("sync", "wal")
        for n in range(PIECES):
            journal.append(name, [delta(1, n, "x")])
            if n % 7 == 0 or n == PIECES - 1:
                lost = disk.after_power_loss(path, tmp_path / f"lost-{n}")
                with tenax.open(f"sqlite:///{lost}", user=LOCAL_USER) as left:
                    missing = n + 1 - len(kept(left, name))
                assert missing * PAUSE < 1.0
            clock.advance(PAUSE)
        assert (
            disk.count("sync", "wal") - flushes <= PIECES * PAUSE / FLUSH_SECONDS + 1
        )  # and not with every piece
        journal.close()


@contextmanager
def counted(journal: Journal, found: list[bool]) -> Iterator[None]:
    """Note for each write transaction whether it is flushed."""
    store: Any = journal.store
    transaction = store.transaction

    def noted(*, durable: bool = True) -> AbstractContextManager[Any]:
        found.append(durable)
        context: AbstractContextManager[Any] = transaction(durable=durable)
        return context

    store.transaction = noted
    try:
        yield
    finally:
        store.transaction = transaction


def test_one_commit_in_a_while_flushes_partials(store_url: str) -> None:
    """On both engines; a fact flushes what was written before it as well."""
    clock, found = SimClock(), list[bool]()
    with tenax.open(store_url, user=LOCAL_USER, clock=clock) as journal:
        name = begin(journal, say("Tell me."))
        with counted(journal, found):
            for n in range(4):
                journal.append(name, [delta(1, n, "x")])
                clock.advance(FLUSH_SECONDS / 2)
            journal.append(name, [say("A fact.")])
            journal.append(name, [delta(1, 4, "x")])
    assert found == [False, False, True, False, True, False]


async def test_the_last_words_are_flushed_when_a_model_falls_silent() -> None:
    """An empty piece follows them, once."""
    stored: list[tuple[int, str]] = []
    flushed = asyncio.Event()

    async def store(offset: int, text: str) -> None:
        stored.append((offset, text))
        if not text:
            flushed.set()

    partials = Partials(store, store)
    partials.add("some words")
    async with asyncio.timeout(60):
        await flushed.wait()
    await partials.end()
    assert stored == [(0, "some words"), (10, "")]
