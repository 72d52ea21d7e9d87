"""A conversation as a runner holds it: what the model sees and what is open, folded up to a number.

It is caught up by reading what stands after that number, whoever wrote it. Nothing in it is a second truth: dropped at
any moment, it folds to the same again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenax.events import (
    ContextCompacted,
    ContextSummarised,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
)
from tenax.views.context import Context
from tenax.views.open_work import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tenax.journal.aio import AsyncJournal
    from tenax.journal.base import Recorded

__all__ = ["History", "context_at"]

_PAGE = 5000
_TAKERS = frozenset({RunStarted.kind, ModelRequested.kind})


class History:
    """One conversation, folded."""

    def __init__(self, journal: AsyncJournal, conversation: str) -> None:
        self._journal = journal
        self.conversation = conversation
        self.context = Context()
        self.turns = Turns()
        self.seq = 0
        self.incarnation = ""
        self.moved = asyncio.Event()
        """Set with every event that is folded on."""
        self._one = asyncio.Lock()

    async def catch_up(self) -> None:
        """Fold what came since. What cannot be folded on (an erasure, another life of the store) is folded anew."""
        journal = self._journal
        page: list[Recorded] | None = None
        async with self._one:
            while page is None or len(page) == _PAGE:
                if self.seq == 0 or self.incarnation != journal.incarnation:
                    await self._fold_anew()
                page = await journal.read(
                    self.conversation, after=self.seq, limit=_PAGE
                )
                # the read itself met the other life
                if self.incarnation != journal.incarnation:
                    page = None
                for each in page or ():
                    if not await self._take(each):
                        page = None
                        break
            await self._wait_for_erased()

    async def took(self, stored: Sequence[Recorded]) -> None:
        """Fold what was just appended here, if nothing of others stands before it; otherwise `catch_up` will."""
        async with self._one:
            for each in stored:
                if each.seq != self.seq + 1 or not await self._take(each):
                    return

    async def _take(self, recorded: Recorded) -> bool:
        """Fold one event on. False if everything had to be folded anew."""
        if not await _apply(self._journal, self.context, recorded):
            await self._fold_anew()
            return False
        self.turns.apply(recorded)
        self.seq = recorded.seq
        self.moved.set()
        return True

    async def _wait_for_erased(self) -> None:
        """An input that was erased before it was answered still waits; only the head says so."""
        if not self.context.erased_inputs:
            return
        head = await self._journal.head(self.conversation)
        if head.unanswered in self.context.erased_inputs and head.head == self.seq:
            waiting = {head.unanswered: MessageUser([], ask=True), **self.turns.waiting}
            self.turns.waiting = dict(sorted(waiting.items()))

    async def _fold_anew(self) -> None:
        journal, name = self._journal, self.conversation
        self.incarnation = journal.incarnation
        head = await journal.head(name)
        started = await journal.run(name, head.run) if head.run is not None else None
        after, given = await _start(journal, name, head.stretch)
        # the clear itself, if that is where it begins
        after = max(after, head.context_from - 2)
        if head.unanswered:
            after = min(after, head.unanswered - 1)
        if started is not None and started.started is not None:
            after = min(after, started.started - 1)
        while True:
            self.context, self.turns, self.seq = Context(given), Turns(), 0
            missing = await self._fold(after, head.head)
            if missing is None:
                return
            after = missing - 1

    async def _fold(self, after: int, upto: int) -> int | None:
        """Fold a range. The start of a run that it speaks of and that began before it, if there is one: fold from there."""
        async for each in _between(self._journal, self.conversation, after, upto):
            name = each.run if each.kind == RunFinished.kind else None
            if each.kind == RunStarted.kind and isinstance(
                started := each.event, RunStarted
            ):
                name = started.resumes
            if name is not None and name not in self.turns.runs:
                run = await self._journal.run(self.conversation, name)
                if run is not None and run.started is not None and run.started <= after:
                    return run.started
            await _apply(self._journal, self.context, each)
            self.turns.apply(each)
            self.seq = each.seq
        return None


async def context_at(journal: AsyncJournal, conversation: str, seq: int) -> Context:
    """What the model could see when the journal stood at `seq`."""
    stretch, found = (await journal.head(conversation)).stretch, None
    while stretch is not None and (found := await journal.stretch(stretch)) is not None:
        if found.opened_seq <= seq:
            break
        stretch = found.parent
    after, given = await _start(journal, conversation, stretch)
    context = Context(given)
    async for each in _between(journal, conversation, after, seq):
        await _apply(journal, context, each)
    return context


async def _start(
    journal: AsyncJournal, conversation: str, stretch: str | None
) -> tuple[int, list[Recorded]]:
    """Where the fold of a stretch begins, and the messages before it that its summary keeps."""
    found = await journal.stretch(stretch) if stretch is not None else None
    if found is None or found.conversation != conversation or not found.covers_to:
        return 0, []
    opened = await journal.fact(conversation, found.opened_seq)
    event = opened.event if opened is not None else None
    words = (
        await journal.fact(conversation, event.summary)
        if isinstance(event, ContextCompacted)
        else None
    )
    summary = words.event if words is not None else None
    if not isinstance(summary, ContextSummarised):
        return found.covers_to, []
    kept = [await journal.fact(conversation, seq) for seq in summary.kept]
    return found.covers_to, [each for each in kept if each is not None]


async def _between(
    journal: AsyncJournal, conversation: str, after: int, upto: int
) -> AsyncIterator[Recorded]:
    while after < upto:
        page = await journal.read(conversation, after=after, upto=upto, limit=_PAGE)
        for each in page:
            yield each
        if len(page) < _PAGE:
            return
        after = page[-1].seq


async def _apply(journal: AsyncJournal, context: Context, recorded: Recorded) -> bool:
    """Apply an event; the text of an input that it takes and that lies before the fold is fetched first."""
    for seq in (
        getattr(recorded.event, "inputs", ()) if recorded.kind in _TAKERS else ()
    ):
        if (
            not context.knows(seq)
            and (found := await journal.fact(recorded.conversation, seq)) is not None
        ):
            context.know(found)
    return context.apply(recorded)
