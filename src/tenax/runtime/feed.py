"""A feed for every followed conversation of the process.

A feed keeps the seq of the last seen event. The store passes the appends of the process to the feed directly. After a
wake-up from another process the feed reads the missing events, once for all watchers. The watchers share the folds of
the feed: the rows of the transcript, and the history used by a worker and a run for their decisions.

A watcher keeps a seq and asks for the changes after the seq. The feed has no queue per watcher, so a slow watcher costs
nothing. A watcher gets a snapshot if the seq is too old, ahead of the feed, or from another incarnation of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from tenax.agent.history import History
from tenax.agent.recovery import ended_above
from tenax.concurrency import call_in_loop
from tenax.errors import Gone, NoSuchConversation, StoreError
from tenax.events import ContentErased, MessageWithdrawn, RunLate, RunStarted
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.journal.journal import TAIL_PAGE, TailPosition
from tenax.journal.standing import EDITS
from tenax.views.pages import Folded, Page, fold_page
from tenax.views.transcript import Change, Transcript

__all__ = ["SHOWN_ROWS", "ConversationFeed", "FeedRegistry"]

log = logging.getLogger(__name__)

SHOWN_ROWS: Final = 60
"""The number of rows in a snapshot. Watchers read older rows page by page."""
_KEPT_EVENTS: Final = 4000
_AWAY_SECONDS: Final = 0.5
_LINGER_SECONDS: Final = 30.0
_FAR_CHANGES: Final = (EDITS | {ContentErased.kind}) - {MessageWithdrawn.kind}
"""Kinds of events able to change rows far above the rows of the feed. The feed holds every waiting message."""


class _Rows:
    """The last rows of the transcript, folded up to `at`, and the changes since `floor`."""

    def __init__(self, journal: AsyncJournal, conversation: str) -> None:
        self._journal = journal
        self._conversation = conversation
        self._folded = Folded(Transcript(), 0, 0, more=False)
        self._recent: deque[tuple[Recorded, list[Change]]] = deque()
        self.ready = False
        """Whether the rows are folded."""
        self.at = 0
        self.floor = 0
        self.incarnation = ""

    @property
    def is_current(self) -> bool:
        return self.ready and self.incarnation == self._journal.incarnation

    def begin(self, incarnation: str) -> None:
        """Start with an empty conversation."""
        self.ready, self.incarnation = True, incarnation

    def since(self, at: int) -> list[tuple[Recorded, list[Change]]] | None:
        """Return the events after a seq with their changes; `None` if the fold does not hold all of the events."""
        if not self.floor <= at <= self.at:
            return None
        events: list[tuple[Recorded, list[Change]]] = []
        for recorded, changes in reversed(self._recent):
            if recorded.seq <= at:
                break
            events.append((recorded, changes))
        events.reverse()
        return events

    def page(self) -> Page:
        return self._folded.page(SHOWN_ROWS)

    def apply_event(self, recorded: Recorded) -> bool:
        """Apply the next event. Return `False` if applying the event needs a read from the store."""
        if not self.is_current or recorded.seq != self.at + 1:
            return False
        if recorded.kind == RunLate.kind or self._affects_all_rows(recorded):
            return False
        self._apply(recorded)
        return True

    async def apply_with_reads(self, recorded: Recorded) -> None:
        """Apply an event after `at`, and read from the store as necessary."""
        if not self.is_current or self._affects_all_rows(recorded):
            await self.refold(beyond=recorded.seq)
        elif recorded.kind == RunLate.kind and await self._affects_rows_above(recorded):
            self._apply(recorded, visible=False)
        elif recorded.seq > self.at:
            self._apply(recorded)

    async def refold(self, beyond: int = 0) -> None:
        """Fold the rows again from the store, up to `beyond` at least. The watchers get a snapshot."""
        journal, conversation = self._journal, self._conversation
        self.ready = False
        incarnation = ""
        while incarnation != journal.incarnation:
            # The incarnation of the store may change during the fold.
            incarnation = journal.incarnation
            self._folded = await journal.threads.run(
                lambda: fold_page(journal.journal, conversation, None, SHOWN_ROWS)
            )
        self.incarnation = incarnation
        self.at = self.floor = max(beyond, self._folded.head)
        self._recent.clear()
        self.ready = True

    def _affects_all_rows(self, recorded: Recorded) -> bool:
        """Return whether an event may change rows far above the held rows, or resumes a run from up there."""
        if recorded.kind in _FAR_CHANGES:
            return True
        event = recorded.event if recorded.kind == RunStarted.kind else None
        if not isinstance(event, RunStarted) or event.resumes is None:
            return False
        return not self._folded.transcript.knows_run(event.resumes)

    async def _affects_rows_above(self, recorded: Recorded) -> bool:
        """Return whether an event is late output of a run above the held rows. The output is shown with the run."""
        journal, conversation, first = (
            self._journal,
            self._conversation,
            self._folded.first,
        )
        return await journal.threads.run(
            lambda: ended_above(journal.journal, conversation, recorded.run, first)
        )

    def _apply(self, recorded: Recorded, *, visible: bool = True) -> None:
        changes = self._folded.transcript.apply(recorded) if visible else []
        self.at = recorded.seq
        self._recent.append((recorded, changes))
        while len(self._recent) > _KEPT_EVENTS:
            dropped, _ = self._recent.popleft()
            self.floor = dropped.seq


class ConversationFeed:
    """A conversation and the changes seen by the process."""

    def __init__(self, journal: AsyncJournal, conversation: str) -> None:
        self.conversation = conversation
        self.history = History(journal, conversation)
        self.is_deleted = False
        self.spooled_bytes = 0
        """Bytes of an answer in the spool on the local disk, because the store is unavailable."""
        self.error: StoreError | None = None
        """The reason for a failing read from the store."""
        self._journal = journal
        self._position: TailPosition | None = None
        """The position of the feed; `None` before the first read."""
        self._rows: _Rows | None = None
        """The rows, while the rows have watchers."""
        self._hints: set[asyncio.Event] = set()
        self._number: int | None = None
        self._absorb_in_loop: Callable[[Sequence[Recorded]], None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._read_again = False
        self.worker_needs_history = False
        """Whether a worker needs the history, even without followers."""

    # -- followers -------------------------------------------------------------------------------------------

    @property
    def followed(self) -> bool:
        return bool(self._hints)

    def enter(self, hint: asyncio.Event, *, rows: bool = False) -> None:
        """Set `hint` at every change, until `leave`. With `rows`, fold the rows too."""
        self._hints.add(hint)
        if rows and self._rows is None:
            self._rows = _Rows(self._journal, self.conversation)
        if self._absorb_in_loop is None or (
            self._rows is not None and not self._rows.ready
        ):
            self._start_reading()

    def leave(self, hint: asyncio.Event) -> None:
        self._hints.discard(hint)

    def begin(self, stored: Sequence[Recorded]) -> None:
        """Start with the first events of a conversation just opened by the process."""
        incarnation = self._journal.incarnation
        self._position = TailPosition(0, incarnation)
        self._rows = _Rows(self._journal, self.conversation)
        self._rows.begin(incarnation)
        # The store already knows the number of a new conversation.
        self._listen(self._journal.journal.known_number(self.conversation))
        self._absorb(stored)

    def wake_followers(self) -> None:
        """Wake the followers."""
        for hint in self._hints:
            hint.set()

    async def stop(self) -> None:
        """Stop following the conversation, and wait for the end of the current read."""
        reading = self.detach()
        if reading is not None:
            await asyncio.wait({reading})

    def detach(self) -> asyncio.Task[None] | None:
        """Stop listening for wake-ups, and drop the rows. Return the task of the cancelled read, if any."""
        if self._absorb_in_loop is not None and self._number is not None:
            self._journal.store.wakeups.unfollow(self._number, self._absorb_in_loop)
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._absorb_in_loop = self._position = self._rows = self._read_timer = None
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        return reading

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def at(self) -> int:
        """The seq of the last event in the rows."""
        return self._rows.at if self._rows is not None else 0

    @property
    def seq(self) -> int:
        """The seq of the last seen event."""
        return self._position.after if self._position is not None else 0

    def is_ready(self) -> bool:
        """Return whether the rows are available. Fold rows of another incarnation of the store again first."""
        rows = self._rows
        if rows is None:
            return False
        if rows.ready and not rows.is_current:
            self._start_reading()
        return rows.is_current

    def since(self, at: int | None, incarnation: str) -> list[Change] | None:
        """Return the changes after a seq; `None` if the watcher needs a snapshot."""
        rows = self._rows
        if rows is None or at is None or incarnation != rows.incarnation:
            return None
        events = rows.since(at)
        if events is None:
            return None
        return [change for _, changes in events for change in changes]

    def events_since(self, at: int) -> list[tuple[Recorded, list[Change]]] | None:
        """Return the events after a seq with their changes; `None` if the caller has to read the store."""
        return self._rows.since(at) if self._rows is not None else None

    def snapshot(self) -> Page:
        """Return the last rows and the waiting inputs."""
        return self._rows.page() if self._rows is not None else Page([], [], None)

    async def is_settled(self, input_seq: int) -> bool:
        """Return whether an input is settled: answered, or its run ended in another way or waits for a person."""
        history = self.history
        if self.is_deleted:
            raise Gone(f"Conversation {self.conversation} was deleted.")
        if history.seq < input_seq or history.behind:
            await history.catch_up()
        turns = history.turns
        if history.seq < input_seq or input_seq in turns.waiting:
            return False
        run = turns.run
        return run is None or input_seq not in run.inputs or bool(run.waits)

    # -- reading ---------------------------------------------------------------------------------------------

    def _listen(self, number: int) -> None:
        """Subscribe to the events stored under a number of a conversation."""
        wakeups = self._journal.store.wakeups
        if self._absorb_in_loop is not None and self._number is not None:
            if number == self._number:
                return
            wakeups.unfollow(self._number, self._absorb_in_loop)
        loop = asyncio.get_running_loop()
        self._number, self._absorb_in_loop = (
            number,
            partial(call_in_loop, loop, self._absorb),
        )
        wakeups.follow(number, self._absorb_in_loop)

    def _absorb(self, stored: Sequence[Recorded]) -> None:
        """Take events stored by the process. If earlier events are missing, read the earlier events from the store."""
        if self._absorb_in_loop is None:
            return
        position = self._position
        if position is None or not stored or not self._is_current_incarnation():
            self._start_reading()
            return
        for recorded in stored:
            if recorded.seq <= position.after:
                continue
            if recorded.seq != position.after + 1:
                self._start_reading()
                break
            self._observe(recorded, position)
            if self._rows is not None and not self._rows.apply_event(recorded):
                self._start_reading()
        self.wake_followers()

    def _is_current_incarnation(self) -> bool:
        incarnation = self._journal.incarnation
        return self._position is not None and self._position.incarnation == incarnation

    def _observe(self, recorded: Recorded, position: TailPosition) -> None:
        position.take(recorded)
        self.history.observe(recorded)

    def _start_reading(self) -> None:
        """Start a task to read the missing events. A running task reads once more before its end."""
        self._read_again = True
        if self._reading is None:
            name = f"feed {self.conversation}"
            self._reading = asyncio.create_task(self._read_all(), name=name)
            self._reading.add_done_callback(self._read_ended)

    def _read_ended(self, task: asyncio.Task[None]) -> None:
        """Wake the followers after the end of a read, also after an unexpected error."""
        if self._reading is task:
            self._reading = None
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "Following %s ended: %s",
                self.conversation,
                task.exception(),
                exc_info=task.exception(),
            )
            self.is_deleted = True
        self.wake_followers()

    async def _read_all(self) -> None:
        while self._read_again and not self.is_deleted:
            self._read_again = False
            try:
                await self._read_missing()
                self.error = None
            except (Gone, NoSuchConversation):
                self.is_deleted = True
            except StoreError as error:
                log.info("Following %s has to wait: %s", self.conversation, error)
                self.error, self._read_again = error, True
                self.wake_followers()
                await asyncio.sleep(_AWAY_SECONDS)
        self._schedule_read()

    def _schedule_read(self) -> None:
        """Schedule another read, in case a wake-up was lost."""
        if self._read_timer is not None:
            self._read_timer.cancel()
        seconds = self._journal.store.wakeups.look_seconds
        self._read_timer = asyncio.get_running_loop().call_later(
            seconds, self._start_reading
        )

    async def _read_missing(self) -> None:
        journal, conversation = self._journal, self.conversation
        is_first_read = self._position is None
        if is_first_read:
            # Listen first: from here on the store passes every new event, or a wake-up, to the feed.
            self._listen(await journal.known_number(self.conversation))
            self._position = await journal.position(conversation)
            history = self.history
            history.observed_seq = max(history.observed_seq, self._position.after)
        if self._rows is not None and not self._rows.is_current:
            await self._rows.refold()
            self.wake_followers()
        if is_first_read:
            if self._report_position():
                self._read_again = True
            return
        while await self._read_page():
            pass
        self._report_position()

    def _report_position(self) -> bool:
        """Report the position of the feed to the store. Return whether another process has stored later events."""
        if self._number is None or self._position is None:
            return False
        wakeups = self._journal.store.wakeups
        return wakeups.know(self._number, self._position.after)

    async def _read_page(self) -> bool:
        """Read a page of missing events. Return whether more events may be missing."""
        journal, position, rows = self._journal, self._position, self._rows
        if position is None:
            return False
        after = position.after if rows is None else min(position.after, rows.at)
        page = await journal.read(self.conversation, after=after, limit=TAIL_PAGE)
        if not position.holds(journal.incarnation):
            # The store may have lost seen events, and other events may have the same seqs now.
            position.limit((await journal.head(self.conversation)).facts)
            self._listen(await journal.known_number(self.conversation))
            self._read_again = True
            return False
        for recorded in page:
            if recorded.seq > position.after:
                self._observe(recorded, position)
            if rows is not None and recorded.seq > rows.at:
                await rows.apply_with_reads(recorded)
            self.wake_followers()
        return len(page) == TAIL_PAGE


class FeedRegistry:
    """The feeds of the conversations of a user in the process."""

    def __init__(self, journal: AsyncJournal) -> None:
        self.journal = journal
        self._feeds: dict[str, ConversationFeed] = {}

    def of(self, conversation: str) -> ConversationFeed:
        """Return the only feed of a conversation. The feed reads nothing before the first `enter`."""
        feed = self._feeds.get(conversation)
        if feed is None or feed.is_deleted:
            feed = ConversationFeed(self.journal, conversation)
            self._feeds[conversation] = feed
        return feed

    def begin(self, conversation: str, stored: Sequence[Recorded]) -> None:
        """Follow a conversation just opened by the process, from the first event on."""
        feed = self.of(conversation)
        feed.begin(stored)
        self._linger(feed)

    def enter(
        self, conversation: str, hint: asyncio.Event, *, rows: bool = False
    ) -> ConversationFeed:
        """Add a follower of the conversation. Every change sets `hint`."""
        feed = self.of(conversation)
        feed.enter(hint, rows=rows)
        return feed

    def leave(self, feed: ConversationFeed, hint: asyncio.Event) -> None:
        """Remove a follower. The feed stays active for a while, because a reloading page returns soon."""
        feed.leave(hint)
        if not feed.followed:
            self._linger(feed)

    @contextlib.contextmanager
    def following(
        self, conversation: str, *, rows: bool = False
    ) -> Iterator[tuple[ConversationFeed, asyncio.Event]]:
        """Follow a conversation inside a `with` block."""
        hint = asyncio.Event()
        feed = self.enter(conversation, hint, rows=rows)
        try:
            yield feed, hint
        finally:
            self.leave(feed, hint)

    def forget_history(self, conversation: str) -> None:
        """Drop the folded history of a conversation. The next use folds the history again."""
        feed = self._feeds.get(conversation)
        if feed is None:
            return
        feed.history, feed.worker_needs_history = (
            History(self.journal, conversation),
            False,
        )
        self._detach_unused(feed)

    def set_spooled_bytes(self, conversation: str, count: int) -> None:
        """Set the number of spooled bytes of an answer, and wake the followers."""
        feed = self._feeds.get(conversation)
        if feed is not None:
            feed.spooled_bytes = count
            feed.wake_followers()

    async def close(self) -> None:
        for feed in list(self._feeds.values()):
            await feed.stop()

    def _linger(self, feed: ConversationFeed) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_LINGER_SECONDS, self._detach_unused, feed)

    def _detach_unused(self, feed: ConversationFeed) -> None:
        """Stop a feed without followers. Drop the feed, unless a worker needs the history."""
        if feed.followed:
            return
        feed.detach()
        if not feed.worker_needs_history and self._feeds.get(feed.conversation) is feed:
            del self._feeds[feed.conversation]
