"""Conversations that somebody watches: each is followed and folded once, however many watch it in this process.

A watcher holds a number and asks for what came `since`. Nothing is queued for it, so a slow one costs nothing and catches
up with one read; where its number is too old, from elsewhere or ahead, it is given a snapshot, never a silent skip.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from tenax.agent.recovery import ended_above
from tenax.errors import Gone, NoSuchConversation, StoreError
from tenax.events import (
    ContentErased,
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    RunLate,
    RunStarted,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.journal.journal import Place
from tenax.views.pages import Folded, Page, fold_page
from tenax.views.transcript import Change, Transcript

__all__ = ["SHOWN_ROWS", "Live", "Lives"]

log = logging.getLogger(__name__)

SHOWN_ROWS: Final = 60
"""How many rows a snapshot has; older ones are read page by page."""
_KEPT_EVENTS: Final = 4000
_AWAY_SECONDS: Final = 0.5
_LINGER_SECONDS: Final = 30.0
_EDITS: Final = frozenset(
    {
        ContentErased.kind,
        ConversationCleared.kind,
        ConversationRestored.kind,
        ConversationRewound.kind,
    }
)
"""What changes rows that may stand far above those held here."""


class Live:
    """One conversation, folded as far as `at`."""

    def __init__(self, journal: AsyncJournal, conversation: str) -> None:
        self.conversation = conversation
        self.at = 0
        self.gone = False
        self.held = 0
        """Bytes of an answer that wait on this host's disk, because the store is away."""
        self.ready = False
        """Whether it was folded once."""
        self.hints: set[asyncio.Event] = set()
        """Those of who watches: each is set whenever something changes."""
        self._journal = journal
        self._incarnation = ""
        self._place = Place(0, "")
        """How far the tail is."""
        self._folded = Folded(Transcript(), 0, 0, more=False)
        self._recent: deque[tuple[int, list[Change]]] = deque()
        self._floor = 0
        """Changes are held from here on."""
        self._task = asyncio.create_task(self._follow(), name=f"live {conversation}")
        self._task.add_done_callback(self._ended)

    def is_of(self, incarnation: str) -> bool:
        """Whether it was folded in this life of the store. If not, it soon will be."""
        return incarnation == self._incarnation

    def since(self, at: int | None, incarnation: str) -> list[Change] | None:
        """What came after a number; None where only a snapshot can say it."""
        if (
            at is None
            or incarnation != self._incarnation
            or not self._floor <= at <= self.at
        ):
            return None
        found: list[Change] = []
        for seq, changes in reversed(self._recent):
            if seq <= at:
                break
            found[:0] = changes
        return found

    def snapshot(self) -> Page:
        """The last rows, and the inputs that wait."""
        return self._folded.page(SHOWN_ROWS)

    def cancel(self) -> None:
        self._task.cancel()

    async def stop(self) -> None:
        self.cancel()
        await asyncio.wait({self._task})

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whoever waits is not left waiting, whatever ended it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "Following %s ended: %s", self.conversation, error, exc_info=error
            )
            self.gone = True
        self.tell()

    async def _follow(self) -> None:
        while not self.gone:
            try:
                await self._fold_anew()
                # In another life of the store events may be missing that were folded: also if none comes, fold anew.
                async for each in self._journal.tail(
                    self.conversation, self._place, one_life=True
                ):
                    if (
                        self._is_of_all(each)
                        or self._journal.incarnation != self._incarnation
                    ):
                        await self._fold_anew(beyond=each.seq)
                    elif each.seq > self.at:
                        self._take(each, shown=not await self._is_of_above(each))
                    self.tell()
            except (Gone, NoSuchConversation):
                self.gone = True
            except StoreError as error:
                log.info("Following %s has to wait: %s", self.conversation, error)
                await asyncio.sleep(_AWAY_SECONDS)

    async def _fold_anew(self, beyond: int = 0) -> None:
        """Begin with what stands now. Whoever watches gets a snapshot, unless nothing changed while the store was away."""
        if self.at and not beyond and self._journal.incarnation == self._incarnation:
            return
        # Before the fold: if that meets another life, the tail begins after the last fact, and it is folded again.
        place = await self._journal.place(self.conversation)
        self._folded = await self._journal.apart(
            lambda: fold_page(
                self._journal.journal, self.conversation, None, SHOWN_ROWS
            )
        )
        self._incarnation = place.incarnation
        if not beyond:
            self._place = place
        self.at = self._floor = max(beyond, self._folded.head)
        self._recent.clear()
        self.ready = True
        self.tell()

    def _is_of_all(self, each: Recorded) -> bool:
        """Whether it may change rows that stand far above those held here, or speaks of a run that began there."""
        resumes = each.event.resumes if isinstance(each.event, RunStarted) else None
        return each.kind in _EDITS or (
            resumes is not None and not self._folded.shown.knows_run(resumes)
        )

    async def _is_of_above(self, each: Recorded) -> bool:
        """Whether it is late output that stands with its run, above the rows held here."""
        return each.kind == RunLate.kind and await self._journal.apart(
            lambda: ended_above(
                self._journal.journal, self.conversation, each.run, self._folded.first
            )
        )

    def _take(self, each: Recorded, *, shown: bool = True) -> None:
        changes = self._folded.shown.apply(each) if shown else []
        self.at = each.seq
        self._recent.append((each.seq, changes))
        while len(self._recent) > _KEPT_EVENTS:
            self._floor = self._recent.popleft()[0]

    def tell(self) -> None:
        """Wake those who watch."""
        for hint in self.hints:
            hint.set()


class Lives:
    """The conversations that are watched, by one user."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal
        self._lives: dict[str, Live] = {}

    def enter(self, conversation: str, hint: asyncio.Event) -> Live:
        """One more watches it, and is woken by this."""
        live = self._lives.get(conversation)
        if live is None or live.gone:
            live = self._lives[conversation] = Live(self._journal, conversation)
        live.hints.add(hint)
        return live

    def leave(self, live: Live, hint: asyncio.Event) -> None:
        """One less does. What nobody watches is followed for a while yet: a page that reloads comes back soon."""
        live.hints.discard(hint)
        if not live.hints:
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._drop, live)

    def _drop(self, live: Live) -> None:
        if not live.hints:
            if self._lives.get(live.conversation) is live:
                del self._lives[live.conversation]
            live.cancel()

    def held(self, conversation: str, count: int) -> None:
        """So many bytes of an answer wait for the store."""
        live = self._lives.get(conversation)
        if live is not None:
            live.held = count
            live.tell()

    async def close(self) -> None:
        for live in list(self._lives.values()):
            await live.stop()
