"""A conversation in the hands of a worker: the model's context and the open work, folded up to a seq.

The feed of the conversation delivers every event when the event is stored; `catch_up` reads the missing events. A
`History` is only derived data: after a loss, a new fold gives the same result.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tenax.errors import InvalidInput, StoreDamaged
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
    from collections.abc import AsyncIterator, Callable, Sequence

    from tenax.journal import Journal
    from tenax.journal.aio import AsyncJournal
    from tenax.journal.base import Recorded

__all__ = ["History", "context_at", "find_undo_seq"]

_PAGE = 5000
_TAKERS = frozenset({RunStarted.kind, ModelRequested.kind})


class History:
    """The folded state of a conversation."""

    def __init__(self, journal: AsyncJournal, conversation: str) -> None:
        self._journal = journal
        self.conversation = conversation
        self.context = Context()
        self.turns = Turns()
        self.seq = 0
        self.incarnation = ""
        self.observed_seq = 0
        """Seq of the last event given to `observe`."""
        self.observers: set[Callable[[Recorded], None]] = set()
        """Callbacks for every event of the feed, including events not folded here yet."""
        self._lock = asyncio.Lock()

    @property
    def behind(self) -> bool:
        """Whether the feed has delivered events that are not folded here."""
        return self.seq < self.observed_seq

    def observe(self, recorded: Recorded) -> None:
        """Take an event from the feed. Fold the event if no read is needed, and call the observers."""
        self.observed_seq = recorded.seq
        # Damage is reported by `catch_up`, at the moment a caller needs the event.
        with contextlib.suppress(StoreDamaged):
            self._fold_next(recorded)
        for observer in list(self.observers):
            observer(recorded)

    def _fold_next(self, recorded: Recorded) -> None:
        journal = self._journal
        first = recorded.seq == 1 and self.seq == 0
        if self._lock.locked() or recorded.seq != self.seq + 1:
            return
        if not first and (self.seq == 0 or self.incarnation != journal.incarnation):
            return
        if any(not self.context.knows(seq) for seq in _inputs_of(recorded)):
            return
        self.incarnation = journal.incarnation
        if not self.context.apply(recorded):
            # The event changes something before the start of the fold, so the next `catch_up` folds anew.
            self.seq = 0
            return
        self.turns.apply(recorded)
        self.seq = recorded.seq

    async def catch_up(self, head: int = 0) -> None:
        """Fold the events stored since the last fold.

        Fold anew where folding on is not possible: after an erasure, or in another incarnation of the store. `head`
        saves a read if the caller has just read the head of the conversation.
        """
        async with self._lock:
            observed_seq = self.observed_seq
            while not await self._fold_page(head):
                head = 0
            await self._wait_for_erased()
            # A crash of the store may have lost events that the feed delivered. Events delivered in the meantime are
            # still to be folded.
            if self.observed_seq == observed_seq:
                self.observed_seq = self.seq

    async def _fold_page(self, head: int) -> bool:
        """Fold one page of the missing events. Return whether no event is missing any more."""
        journal = self._journal
        if self.seq == 0 or self.incarnation != journal.incarnation:
            await self._fold_anew()
            return self.incarnation == journal.incarnation
        if not self.behind:
            head = head or (await journal.head(self.conversation)).head
            if head == self.seq and self.incarnation == journal.incarnation:
                return True
        page = await journal.read(self.conversation, after=self.seq, limit=_PAGE)
        # The read itself may discover a new incarnation of the store.
        if self.incarnation != journal.incarnation:
            return False
        for recorded in page:
            if not await self._fold_event(recorded):
                return False
        return len(page) < _PAGE

    async def take_stored(self, stored: Sequence[Recorded]) -> None:
        """Fold events just appended by this process.

        If events of other writers come first, `catch_up` folds the events later.
        """
        async with self._lock:
            for recorded in stored:
                if recorded.seq <= self.seq:
                    continue
                if recorded.seq != self.seq + 1 or not await self._fold_event(recorded):
                    return

    async def _fold_event(self, recorded: Recorded) -> bool:
        """Fold the next event. Return `False` if everything had to be folded anew."""
        if not await _apply(self._journal, self.context, recorded):
            await self._fold_anew()
            return False
        self.turns.apply(recorded)
        self.seq = recorded.seq
        return True

    async def _wait_for_erased(self) -> None:
        """Mark an input as waiting if the input was erased before its answer. Only the head still knows about the
        input.
        """
        if not self.context.erased_inputs:
            return
        head = await self._journal.head(self.conversation)
        if head.unanswered in self.context.erased_inputs and head.head == self.seq:
            self.turns.add_waiting(head.unanswered, MessageUser([], ask=True))

    async def _fold_anew(self) -> None:
        journal, name = self._journal, self.conversation
        self.incarnation = journal.incarnation
        head = await journal.head(name)
        started = await journal.run(name, head.run) if head.run is not None else None
        after, kept_messages = await _start_of_fold(journal, name, head.segment)
        # If the context starts with a clear, the clear itself belongs to the fold.
        after = max(after, head.context_from - 2)
        if head.unanswered:
            after = min(after, head.unanswered - 1)
        if started is not None and started.started is not None:
            after = min(after, started.started - 1)
        while True:
            self.context, self.turns, self.seq = Context(kept_messages), Turns(), 0
            missing = await self._fold(after, head.head)
            if missing is None:
                return
            after = missing - 1

    async def _fold(self, after: int, upto: int) -> int | None:
        """Fold a range of events.

        Return the seq to fold from instead if the range mentions a run that started before the range. Return `None` if
        the fold is complete.
        """
        async for recorded in _between(self._journal, self.conversation, after, upto):
            name = recorded.run if recorded.kind == RunFinished.kind else None
            if recorded.kind == RunStarted.kind and isinstance(
                started := recorded.event, RunStarted
            ):
                name = started.resumes
            if name is not None and name not in self.turns.runs:
                run = await self._journal.run(self.conversation, name)
                if run is not None and run.started is not None and run.started <= after:
                    return run.started
            await _apply(self._journal, self.context, recorded)
            self.turns.apply(recorded)
            self.seq = recorded.seq
        return None


async def context_at(journal: AsyncJournal, conversation: str, seq: int) -> Context:
    """Return the context of the model as of `seq`."""
    segment, row = (await journal.head(conversation)).segment, None
    while segment is not None and (row := await journal.segment(segment)) is not None:
        if row.opened_seq <= seq:
            break
        segment = row.parent
    after, kept_messages = await _start_of_fold(journal, conversation, segment)
    context = Context(kept_messages)
    async for recorded in _between(journal, conversation, after, seq):
        await _apply(journal, context, recorded)
    return context


async def _start_of_fold(
    journal: AsyncJournal, conversation: str, segment: str | None
) -> tuple[int, list[Recorded]]:
    """Return the seq at which the fold of a segment starts, and the earlier messages kept by the summary of the
    segment.
    """
    row = await journal.segment(segment) if segment is not None else None
    if row is None or row.conversation != conversation or not row.covers_to:
        return 0, []
    opened = await journal.fact(conversation, row.opened_seq)
    event = opened.event if opened is not None else None
    words = (
        await journal.fact(conversation, event.summary)
        if isinstance(event, ContextCompacted)
        else None
    )
    summary = words.event if words is not None else None
    if not isinstance(summary, ContextSummarised):
        return row.covers_to, []
    messages = [await journal.fact(conversation, seq) for seq in summary.kept]
    return row.covers_to, [recorded for recorded in messages if recorded is not None]


async def _between(
    journal: AsyncJournal, conversation: str, after: int, upto: int
) -> AsyncIterator[Recorded]:
    while after < upto:
        page = await journal.read(conversation, after=after, upto=upto, limit=_PAGE)
        for recorded in page:
            yield recorded
        if len(page) < _PAGE:
            return
        after = page[-1].seq


def _inputs_of(recorded: Recorded) -> Sequence[int]:
    """Return the seqs of the inputs taken by an event."""
    if recorded.kind not in _TAKERS:
        return ()
    inputs: Sequence[int] = getattr(recorded.event, "inputs", ())
    return inputs


async def _apply(journal: AsyncJournal, context: Context, recorded: Recorded) -> bool:
    """Apply an event. First fetch the text of every input that the event takes and that lies before the fold."""
    for seq in _inputs_of(recorded):
        if (
            not context.knows(seq)
            and (message := await journal.fact(recorded.conversation, seq)) is not None
        ):
            context.know(message)
    return context.apply(recorded)


def find_undo_seq(journal: Journal, segment_name: str) -> int:
    """Return the seq before the last message of a person in a segment.

    Raises `InvalidInput` if the segment has no such message.
    """
    segment = journal.segment(segment_name)
    messages = (
        journal.messages(segment.conversation, after=segment.opened_seq)
        if segment is not None
        else []
    )
    for message in reversed(messages):
        if message.kind == MessageUser.kind:
            return message.seq - 1
    raise InvalidInput("There is no message to undo.")
