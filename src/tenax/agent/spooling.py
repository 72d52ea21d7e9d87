"""Output of runs during a store outage, held on the local disk until a process can store the output.

Each runtime has its own spool, with disk space reserved in advance. A sweep stores the output left by dead processes of
the host, and then records that no more output of the processes will arrive. Disk work runs on a daemon thread, because
a hanging disk must block neither the event loop nor the exit of the process.
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

from tenax.agent.recovery import replay_spool
from tenax.concurrency import ThreadPool
from tenax.errors import Gone, NoSuchConversation, StoreUnavailable, TenaxError
from tenax.events import Event, Unknown, decode, encode
from tenax.journal.aio import AsyncJournal
from tenax.journal.spool import HeldEvent, Spool, left, owner_of

__all__ = ["OutputSpool"]

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 1.0


class OutputSpool:
    """The spool of the runtime, with reserved disk space, and the sweep of dead processes' spools."""

    def __init__(
        self, journal: AsyncJournal, folder: Path, tell: Callable[[str, int], None]
    ) -> None:
        self._journal = journal
        self._folder = folder
        self._tell = tell
        self.instance = ""
        """The id of this process in the store, once a worker knows it."""
        self._spool: Spool | None = None
        self._making: asyncio.Task[Spool] | None = None
        self.held_bytes: dict[tuple[str, str], int] = {}
        """The bytes waiting for the store, by conversation and run."""
        # The spool has its own thread: all threads of the journal may be waiting for the store.
        self._threads = ThreadPool(1, "tenax-spool")

    async def prepare(self) -> Spool:
        """Reserve the disk space now, because a full disk has no space when the spool is needed."""
        making = self._making
        if making is None or (making.done() and making.exception() is not None):
            making = self._making = asyncio.create_task(self._make(), name="spool")
            # The caller may be gone when the task fails. The next call tries again and raises the error.
            making.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(making)

    async def _make(self) -> Spool:
        # A store that is away may not be able to say which process this is.
        instance = self.instance or await self._journal.instance()
        name = f"{instance}.{next(_numbers)}"
        self._spool = await self._threads.run(partial(Spool, self._folder, name))
        return self._spool

    async def hold(self, conversation: str, run: str, event: Event) -> None:
        """Write an event to the local disk. Returns once the event is on the disk."""
        journal = self._journal
        body = encode(event)
        entry = HeldEvent(
            journal.user or "",
            conversation,
            run,
            event.kind,
            body,
            journal.clock.now_us(),
        )
        spool = self._spool or await self.prepare()
        self.held_bytes[conversation, run] = held = self.held_bytes.get(
            (conversation, run), 0
        ) + len(body)
        await self._threads.run(partial(spool.write, entry))
        self._tell(conversation, held)

    async def let_go(self, conversation: str, run: str) -> None:
        """Forget the held events of a run, because the store now has the events. Clear the spool if no run is held."""
        self.held_bytes.pop((conversation, run), None)
        self._tell(conversation, 0)
        if not self.held_bytes and self._spool is not None:
            await self._threads.run(self._spool.read)
            await self._threads.run(self._spool.clear)

    async def sweep(self) -> None:
        """Store the spooled output of dead processes of this host once, then record that no more output will follow."""
        everybody = self._journal.of(None)
        before = await everybody.instances()
        known = {instance.id for instance in before}
        dead = await self._threads.run(
            partial(left, self._folder, lambda name: owner_of(name) not in known)
        )
        try:
            for spool in dead:
                await self._replay_and_remove(spool)
        finally:
            # Close every spool: no process could take over a spool that stays locked by this process.
            for spool in dead:
                spool.close(remove=False)
        kept = {
            owner_of(spool_file.parent.name)
            for spool_file in self._folder.glob("*/spool")
        }
        for instance in before:
            gone = (
                instance.host == platform.node()
                and not instance.alive
                and instance.swept_at is None
            )
            if gone and instance.id not in kept:
                # The next sweep records the end.
                with contextlib.suppress(StoreUnavailable):
                    await everybody.swept(instance.id)

    async def _replay_and_remove(self, spool: Spool) -> None:
        try:
            await self._replay(spool)
            await self._threads.run(partial(spool.close, remove=True))
        except TenaxError as error:
            log.warning(
                "A spool is kept for later: %s", error, extra={"action": "spool_kept"}
            )

    async def _replay(self, spool: Spool) -> None:
        runs: dict[tuple[str, str, str], list[Event]] = {}
        for entry in await self._threads.run(spool.read):
            event = decode(entry.kind, entry.body)
            if not isinstance(event, Unknown):
                runs.setdefault((entry.user, entry.conversation, entry.run), []).append(
                    event
                )
        for (user, conversation, run), events in runs.items():
            # If the conversation was deleted in the meantime, its spooled output is dropped as well.
            with contextlib.suppress(Gone, NoSuchConversation):
                theirs = self._journal.of(user)
                owner = owner_of(spool.instance)
                await theirs.threads.run(
                    partial(
                        replay_spool, theirs.journal, conversation, run, events, owner
                    )
                )

    async def close(self) -> None:
        if self._making is not None:
            await asyncio.wait({self._making}, timeout=_CLOSE_SECONDS)
        if self._spool is not None:
            close = partial(self._spool.close, remove=not self.held_bytes)
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._threads.run(close)
            except (TenaxError, TimeoutError) as error:
                # The next process finds the spool.
                log.warning(
                    "The spool stays as it is. %s",
                    error,
                    extra={"action": "spool_left"},
                )
        self._threads.stop()


_numbers = itertools.count(1)
"""Numbers for spool names. A process may have a runtime per user, and each runtime has its own spool."""
