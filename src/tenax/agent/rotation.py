"""Commit a compaction: end the open segment of a conversation and open its only successor.

The commit names the expected head and the expected segment, so two compactors cannot both succeed, regardless of the
compression lock. The lock only saves the price of a second summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from tenax.errors import (
    HeadMoved,
    InvalidInput,
    NoSuchConversation,
    SegmentMoved,
)
from tenax.events import ContextCompacted, ContextSummarised, Event, MessageUser
from tenax.journal import Journal
from tenax.journal.base import Expect, Lease, Segment
from tenax.journal.journal import events_after
from tenax.journal.plan import ID_CHARS_MAX
from tenax.journal.row_key import ALL_SEQS
from tenax.parts import Text
from tenax.views.context import Context

__all__ = ["Rotated", "Rotations", "Summary", "Superseded"]

_TRIES = 20
_LOCK_SECONDS_MIN = 1e-6
_LOCK_SECONDS_MAX = 7 * 86_400.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary and the range covered by the summary."""

    text: str
    covers_to: int | None = None
    """Seq of the last event covered by the summary, or of the last finished step before the event.

    `None` means every event used for the summary.
    """
    folded_to: int | None = None
    """Head at the time of the summary. Later events stay in the live context. `None` means the current head."""
    kept: Sequence[int] = ()
    """Seqs of people's messages kept word for word within the range of the summary."""
    tokens_before: int | None = None
    tokens_after: int | None = None
    model: str | None = None


class Rotated(msgspec.Struct, frozen=True):
    """A successful commit. The parent segment is ended, and `session_id` is its only child."""

    session_id: str
    seq: int


class Superseded(msgspec.Struct, frozen=True):
    """A commit refused because another writer changed the session.

    Nothing was stored. `by` is the current segment.
    """

    by: str | None


class Rotations:
    """Commits compactions to a journal. Safe to use from any thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def commit(
        self,
        segment_name: str,
        summary: Summary,
        *,
        messages: Sequence[Event] = (),
        keep_last: int = 0,
        lease: Lease | None = None,
        run: str | None = None,
    ) -> Rotated | Superseded:
        """End a segment and open its only child, or return `Superseded` if another writer was faster.

        `messages` exist only in the caller's own list so far. They are stored first, in the same commit. Without
        `covers_to`, the summary covers `messages` except for the last `keep_last`. A run compacts under its lease.
        Raises `NoSuchConversation` if the segment does not exist.
        """
        _check_numbers(summary)
        segment = self._journal.segment(segment_name)
        if segment is None:
            raise NoSuchConversation(f"There is no session {segment_name}.")
        conversation = segment.conversation
        head = self._journal.head(conversation)
        if segment.ended_at is not None:
            return Superseded(head.segment)
        # A caller without `folded_to` has seen everything stored so far.
        folded_to = head.head if summary.folded_to is None else summary.folded_to
        seen_revision = (
            head.revision if summary.folded_to is None else summary.folded_to
        )
        child = self._journal.ids.segment()
        for _ in range(_TRIES):
            covers_to = summary.covers_to
            if covers_to is None and messages:
                covers_to = head.head + len(messages) - keep_last
                # Other writers appended in the meantime, and the summary does not contain their messages.
                if head.revision > seen_revision:
                    covers_to = max(folded_to, 1)
            elif covers_to is None:
                covers_to = folded_to
            covers_to = self._end_of_whole_step(segment, covers_to)
            summarised = ContextSummarised(
                [Text(summary.text)],
                covers_to,
                summary.tokens_before,
                summary.tokens_after,
                summary.model,
                list(summary.kept),
            )
            summary_seq = head.head + len(messages) + 1
            compacted = ContextCompacted(
                segment_name, child, summary_seq, covers_to, folded_to
            )
            events = [*messages, summarised, compacted]
            expect = Expect(head=head.head, segment=segment_name)
            try:
                stored = self._journal.append(
                    conversation, events, expect=expect, lease=lease, run=run
                )
            except SegmentMoved as error:
                return Superseded(error.by)
            except HeadMoved:
                now = self._journal.head(conversation)
                if now.head == head.head or now.segment != segment_name:
                    return Superseded(now.segment)
                # Another writer appended in the meantime. The new events stay in the live context, and the commit is
                # retried.
                head = now
                continue
            return Rotated(child, stored[-1].seq)
        return Superseded(self._journal.head(conversation).segment)

    def _end_of_whole_step(self, segment: Segment, covers_to: int) -> int:
        """Return the last seq up to `covers_to` that separates no call from its result."""
        context = Context()
        for event in events_after(
            self._journal, segment.conversation, segment.covers_to
        ):
            context.apply(event)
        while covers_to > segment.covers_to:
            parted = [
                seq
                for seq in context.parted(covers_to)
                if not self._is_question(segment.conversation, seq)
            ]
            if not parted:
                return covers_to
            covers_to = min(parted) - 1
        return max(covers_to, segment.covers_to)

    def _is_question(self, conversation: str, seq: int) -> bool:
        recorded = self._journal.fact(conversation, seq)
        if recorded is None or not isinstance(recorded.event, MessageUser):
            return False
        return recorded.event.ask

    # -- the lock, under names fixed by the contracts --------------------------------------------------------

    def try_acquire_compression_lock(
        self, session_id: str, holder: str, ttl_seconds: float = 300.0
    ) -> bool:
        """Acquire the lock that prevents a second payment for the same summary.

        The lock does not guard the commit. Return whether the holder has the lock.
        """
        seconds = min(max(ttl_seconds, _LOCK_SECONDS_MIN), _LOCK_SECONDS_MAX)
        name = _lock_name(session_id)
        lease = self._journal.claim(name, holder, seconds, patient=False)
        return lease is not None

    def release_compression_lock(self, session_id: str, holder: str) -> None:
        """Release the lock if `holder` has the lock."""
        self._journal.release_held(_lock_name(session_id), holder)

    def get_compression_lock_holder(self, session_id: str) -> str | None:
        """Return the holder of the lock, or `None`."""
        return self._journal.holder(_lock_name(session_id))


def _check_numbers(summary: Summary) -> None:
    for seq in (summary.covers_to, summary.folded_to):
        if seq is not None and not 0 <= seq <= ALL_SEQS:
            raise InvalidInput(
                f"`covers_to` and `folded_to` of rotate are numbers of events, not {seq}."
            )


def _lock_name(session_id: str) -> str:
    name = f"compress:{session_id}"
    if len(name) <= ID_CHARS_MAX:
        return name
    return f"compress:{sha256(name.encode(errors='surrogatepass')).hexdigest()}"
