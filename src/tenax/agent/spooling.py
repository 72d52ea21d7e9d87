"""What a run has while the store is away: held on this host's disk, and handed in by whoever comes after.

Each runtime has a spool of its own, whose room is taken before it is needed. A sweep hands in what dead processes of
this host left, and then says that no more will come of them. Disk work is done on a daemon thread, so that a disk that
hangs keeps neither the loop nor the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tenax.agent.recovery import hand_in
from tenax.errors import Gone, NoSuchConversation, StoreUnavailable, TenaxError
from tenax.events import Event, Unknown, decode, encode
from tenax.journal.aio import AsyncJournal, Threads
from tenax.journal.spool import Entry, Spool, left

__all__ = ["Held"]

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 1.0


class Held:
    """The spool of this runtime, its room taken before it is needed, and the handing in of dead ones'."""

    def __init__(
        self, journal: AsyncJournal, folder: Path, tell: Callable[[str, int], None]
    ) -> None:
        self._journal = journal
        self._folder = folder
        self._tell = tell
        self._spool: Spool | None = None
        self._making: asyncio.Task[Spool] | None = None
        self._runs: dict[tuple[str, str], int] = {}
        # of its own: those of the journal may all wait for the store
        self._threads = Threads(1)

    async def prepare(self) -> Spool:
        """Take the room now: a disk that is full has none when it is needed."""
        making = self._making
        if making is None or (making.done() and making.exception() is not None):
            making = self._making = asyncio.create_task(self._make(), name="spool")
            # The caller may be gone when it fails. Whoever needs the spool next tries again and is told.
            making.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(making)

    async def _make(self) -> Spool:
        name = f"{await self._journal.instance()}.{next(_numbers)}"
        self._spool = await self._threads.run(partial(Spool, self._folder, name))
        return self._spool

    async def hold(self, conversation: str, run: str, event: Event) -> None:
        """Put it on this host's disk. Returns once it is there."""
        journal = self._journal
        body = encode(event)
        entry = Entry(
            journal.user or "",
            conversation,
            run,
            event.kind,
            body,
            journal.clock.now_us(),
        )
        spool = self._spool or await self.prepare()
        self._runs[conversation, run] = held = self._runs.get(
            (conversation, run), 0
        ) + len(body)
        await self._threads.run(partial(spool.write, entry))
        self._tell(conversation, held)

    async def let_go(self, conversation: str, run: str) -> None:
        """Everything that was held of this run is in the store."""
        self._runs.pop((conversation, run), None)
        self._tell(conversation, 0)
        if not self._runs and self._spool is not None:
            await self._threads.run(self._spool.read)
            await self._threads.run(self._spool.clear)

    async def sweep(self) -> None:
        """Hand in what dead processes of this host held, each once; then say that no more will come of them."""
        everybody = self._journal.of(None)
        before = await everybody.instances()
        known = {each.id for each in before}
        dead = await self._threads.run(
            partial(left, self._folder, lambda name: _owner(name) not in known)
        )
        try:
            for spool in dead:
                await self._take(spool)
        finally:  # one that this process keeps locked is handed in by nobody
            for spool in dead:
                spool.close(remove=False)
        kept = {_owner(each.parent.name) for each in self._folder.glob("*/spool")}
        for each in before:
            gone = (
                each.host == platform.node()
                and not each.alive
                and each.swept_at is None
            )
            if gone and each.id not in kept:
                with contextlib.suppress(StoreUnavailable):  # it is said the next time
                    await everybody.swept(each.id)

    async def _take(self, spool: Spool) -> None:
        try:
            await self._ship(spool)
            await self._threads.run(partial(spool.close, remove=True))
        except TenaxError as error:
            log.warning(
                "A spool is kept for later: %s", error, extra={"action": "spool_kept"}
            )

    async def _ship(self, spool: Spool) -> None:
        runs: dict[tuple[str, str, str], list[Event]] = {}
        for entry in await self._threads.run(spool.read):
            event = decode(entry.kind, entry.body)
            if not isinstance(event, Unknown):
                runs.setdefault((entry.user, entry.conversation, entry.run), []).append(
                    event
                )
        for (user, conversation, run), events in runs.items():
            # deleted meanwhile, and so is this
            with contextlib.suppress(Gone, NoSuchConversation):
                theirs, owner = self._journal.of(user), _owner(spool.instance)
                await theirs.apart(
                    partial(hand_in, theirs.journal, conversation, run, events, owner)
                )

    async def close(self) -> None:
        if self._making is not None:
            await asyncio.wait({self._making}, timeout=_CLOSE_SECONDS)
        if self._spool is not None:
            close = partial(self._spool.close, remove=not self._runs)
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._threads.run(close)
            except (TenaxError, TimeoutError) as error:  # the next process finds it
                log.warning(
                    "The spool stays as it is. %s",
                    error,
                    extra={"action": "spool_left"},
                )
        self._threads.stop()


_numbers = itertools.count(1)
"""A process may have a runtime for each of its users, and each has a spool of its own."""


def _owner(spool: str) -> str:
    return spool.partition(".")[0]
