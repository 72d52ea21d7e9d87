"""Turns that are stored as a runner stores them, and processes that give them to a provider and die at a chosen instant."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tenax
from tenax.events import (
    Event,
    MemoryDue,
    MessageAssistant,
    MessageUser,
    RunFinished,
    RunStarted,
)
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.memory import MemoryManager, MemoryProvider
from tenax.memory.providers.delivery import Delivery
from tenax.parts import Text
from tests.support.children import Teller

SECONDS = 60.0
USER = "ada"


def turn(journal: Journal, name: str, words: str, outcome: Any = "completed") -> int:
    """A question and its answer, stored at once; where the turn is finished."""
    asked = journal.head(name).head + 1
    question, answer = (
        MessageUser([Text(words)], ask=True),
        MessageAssistant([Text(f"{words}!")]),
    )
    events: list[Event] = [question, RunStarted([asked]), answer, RunFinished(outcome)]
    return journal.append(name, events, run=journal.ids.run())[-1].seq


def due(journal: Journal, name: str, *, owner: str = "", upto: int = 0) -> int:
    """A boundary of the open segment, after everything that is finished."""
    head = journal.head(name)
    event = MemoryDue(head.segment or "", upto or head.turns, "switch", owner)
    return journal.append(name, [event])[-1].seq


async def until(done: Callable[[], object]) -> None:
    """Wait until this is so."""
    async with asyncio.timeout(SECONDS):
        while not done():  # noqa: ASYNC110  (it is so on another thread, or in the store)
            await asyncio.sleep(0.005)


class Ledger(MemoryProvider):
    """A provider that writes a line for each thing it has kept, on the disk before it comes back."""

    def __init__(
        self, file: Path, at: Callable[[str], None] = lambda _point: None
    ) -> None:
        self._file = file
        self._at = at
        self._session = ""

    @property
    def name(self) -> str:
        return "ledger"

    def is_available(self) -> bool:
        return True

    def initialize(self, session_id: str, **kwargs: Any) -> None:
        self._session = session_id

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return []

    def on_session_switch(self, new_session_id: str, **kwargs: Any) -> None:
        self._session = new_session_id

    def sync_turn(
        self,
        user_content: str,
        assistant_content: str,
        *,
        session_id: str = "",
        messages: Any = None,
        key: str = "",
    ) -> None:
        self._write("sync", session_id, key)

    def on_session_end(self, messages: list[dict[str, Any]]) -> None:
        self._write("end", self._session, messages[-1]["content"])

    def _write(self, what: str, session: str, key: str) -> None:
        self._at(f"{what} begun")
        line = json.dumps([what, session, key, os.getpid()]) + "\n"
        with self._file.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._at(f"{what} kept")


def kept(file: Path) -> list[list[Any]]:
    """What a `Ledger` has kept: what, of which session, the key, by which process."""
    return (
        [json.loads(line) for line in file.read_text().splitlines()]
        if file.exists()
        else []
    )


def remember(
    teller: Teller,
    url: str,
    file: str,
    names: Sequence[str],
    turns: int,
    point: str = "",
    nth: int = 1,
) -> None:
    """Store turns and a boundary in each conversation while a provider is given them, until nothing is owed.

    `kill -9` at the nth time that a point is reached.
    """
    left = nth

    def reach(here: str) -> None:
        nonlocal left
        teller.tell(here)
        left -= here == point
        if left == 0 and point:
            os.kill(os.getpid(), signal.SIGKILL)

    async def work() -> None:
        journal = AsyncJournal(tenax.open(url, user=USER))
        manager = MemoryManager()
        follower = Delivery(journal, manager.add_provider(Ledger(Path(file), reach)))
        if point != "turn stored":  # there nothing was given before the kill
            follower.start()
        for number in range(turns):
            for name in names:
                words = f"{name} {os.getpid()} {number}"
                await journal.threads.run(
                    lambda name=name, words=words: turn(journal.journal, name, words)
                )
                reach("turn stored")
                follower.wake()
        for name in names:
            await journal.threads.run(lambda name=name: due(journal.journal, name))
            reach("end due")
            follower.wake()
        if point == "turn stored":
            follower.start()
        async with asyncio.timeout(SECONDS):
            while (standing := await follower.status()).behind or standing.owed:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await follower.close(SECONDS)
        await journal.threads.run(manager.shutdown_all)
        await journal.close()

    asyncio.run(work())
    teller.tell("done")
