"""Pages of a transcript. The keys of the rows have a total order, and a page is a range of keys.

A key begins with the seq of an event: the request of an answer, the start of the run with an input, the end of a run for
its marker, its late output and its files. The fold derives the keys; the store has no keys. A waiting input has no
position yet, so the first page carries all waiting inputs separately.

A page reads the events in its range. Events about these rows may be far away: above (an input, the start of a run) or below
(an answer, a result, late output, an undo). The page looks these events up, and then shows the same rows as a fold of the
whole journal between the same keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ConversationCleared,
    FilesChanged,
    MessageUser,
    MessageWithdrawn,
    ModelRequested,
    RunFinished,
    RunLate,
    RunSealed,
    RunStarted,
    ToolFinished,
    ToolHanded,
    ToolStarted,
)
from tenax.journal.journal import events_after
from tenax.journal.standing import EDITS, Standing, Versions
from tenax.views.transcript import WAITING, Key, Row, Transcript, call_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tenax.journal import Journal
    from tenax.journal.base import Head, Recorded

__all__ = ["Folded", "Page", "first_key", "fold_page"]

_CHUNK: Final = 200
_SPARE_ROWS: Final = 8
"""Extra rows, because a page may show a message stored in the range of another page."""
_READ_MAX: Final = 10_000
"""The most rows of a single read."""
_TAKERS: Final = frozenset({RunStarted.kind, ModelRequested.kind})
_CHANGED_LATER: Final = frozenset({"memory", "files"})
"""Kinds of rows with changes by events far below."""
_MOVED: Final = frozenset({FilesChanged.kind, RunLate.kind, RunSealed.kind})
"""Kinds of events shown at the end of a run."""
_OF_CALLS: Final = (
    ApprovalAsked,
    ApprovalAnswered,
    ToolStarted,
    ToolHanded,
    ToolFinished,
)
_SHORT: Final = 1000
"""The first events of a conversation, which a page reads without looking for a clear."""


class Page(msgspec.Struct, frozen=True):
    """Rows in order. `next` is the end of the page above, or None for the first rows of the conversation."""

    rows: list[Row]
    waiting: list[Row]
    next: Key | None


class Folded(msgspec.Struct):
    """A fold with all rows from seq `first` to key `before`, for the journal up to seq `head`."""

    transcript: Transcript
    first: int
    head: int
    more: bool
    before: Key = (WAITING, -1, 0)

    @property
    def rows(self) -> list[Row]:
        """The rows in the range of keys."""
        first = first_key(self.first)
        return [row for row in self.transcript.rows if first <= row.key < self.before]

    def page(self, limit: int) -> Page:
        """Return the last rows, at most `limit`."""
        all_rows = self.rows
        rows = all_rows[-limit:]
        waiting: list[Row] = []
        if self.before[0] == WAITING:
            waiting = [row for row in self.transcript.rows if row.key[0] == WAITING]
        next_key: Key | None = None
        if self.more or len(all_rows) > limit:
            next_key = rows[0].key if rows else first_key(self.first)
        return Page(rows, waiting, next_key)


def first_key(seq: int) -> Key:
    """Return the smallest possible key of a row at a seq."""
    return (seq, -1, 0)


def fold_page(
    journal: Journal,
    conversation: str,
    before: Key | None,
    limit: int,
    *,
    upto: int | None = None,
) -> Folded:
    """Fold the last rows before a key (by default the last rows of all): at least `limit` rows, if the journal has them.

    With `upto`, fold the journal up to this seq, with the inputs waiting at this seq.
    """
    head = journal.head(conversation)
    known_head = head.head
    waiting: list[Recorded] = []
    if before is None and head.unanswered:
        # Runs may take inputs meanwhile. So the page also reads the events between the first and the second head.
        waiting = journal.waiting(conversation)
        head = journal.head(conversation)
    if upto is not None and upto < head.head:
        waiting = [recorded for recorded in waiting if recorded.seq <= upto]
        waiting += _find_inputs_taken_after(journal, conversation, upto, head.head)
        head = msgspec.structs.replace(head, head=upto)
    end = head.head if before is None else min(before[0], head.head)
    reader = _Reader(journal, conversation, head, end, waiting)
    if end > known_head:
        reader.read_from(known_head + 1)
    count = min(limit + _SPARE_ROWS, _READ_MAX)
    while True:
        rows = journal.rows(conversation, before=reader.first, limit=count)
        reader.read_from(min(row.first for row in rows) if rows else reader.top())
        folded = Folded(reader.fold(), reader.first, head.head, bool(rows))
        if before is not None:
            folded.before = before
        if not rows or len(folded.rows) > limit:
            return folded
        count = min(2 * count, _READ_MAX)


class _Reader:
    """Reads the events about the rows between `first` and `end`, and the waiting inputs."""

    def __init__(
        self,
        journal: Journal,
        conversation: str,
        head: Head,
        end: int,
        waiting: list[Recorded],
    ) -> None:
        self._journal = journal
        self._conversation = conversation
        self._head = head
        self._end = end
        self._waiting = waiting
        self.first = end + 1
        self._between: dict[int, Recorded] = {}

    def read_from(self, first: int) -> None:
        """Read the events from `first` to the events already read."""
        first = min(first, self.first)
        for recorded in self._events(first - 1, self.first - 1):
            self._between[recorded.seq] = recorded
        self.first = first

    def fold(self) -> Transcript:
        """Fold the events of the range, and the events about the same rows above and below."""
        events = {recorded.seq: recorded for recorded in self._waiting} | self._between
        self._add_above(events)
        transcript = Transcript()
        messages = [seq for seq in events if events[seq].kind == MessageUser.kind]
        if messages and self._head.epoch >= min(messages) - 1:
            transcript.know_versions(self._versions())
        _apply(transcript, events)
        if self._end < self._head.head:
            self._apply_below(transcript)
        return transcript

    def top(self) -> int:
        """Return the start of the range if no message above `first` stands: the clear of these messages, or seq 1."""
        if self.first <= _SHORT:
            return 1
        cleared = self._journal.fact(self._conversation, self._head.context_from - 1)
        is_clear = cleared is not None and cleared.kind == ConversationCleared.kind
        if cleared is not None and is_clear and cleared.seq < self.first:
            return cleared.seq
        changes = self._journal.row_changes(self._conversation, upto=self._head.head)
        standing = Standing()
        for change in changes:
            standing.apply(change.seq, change.event)
        clears = {
            change.seq
            for change in changes
            if change.kind == ConversationCleared.kind and change.seq < self.first
        }
        return max(clears - standing.restored, default=1)

    def _versions(self) -> Versions:
        """Return the versions of all messages. The edits may be above and below the rows of this page."""
        versions = Versions()
        upto = self._head.head
        for change in self._journal.row_changes(self._conversation, upto=upto):
            versions.apply(change.seq, change.event)
        return versions

    # -- above ---------------------------------------------------------------------------------------------------

    def _add_above(self, events: dict[int, Recorded]) -> None:
        """Add the inputs taken in the range, the runs started above, and the edits before the edits of the range."""
        runs: dict[str, None] = {}
        started: set[str | None] = set()
        for recorded in list(events.values()):
            self._add_facts(events, _inputs_of(recorded))
            runs.update(dict.fromkeys(_runs_of(recorded)))
        for recorded in events.values():
            if recorded.kind == RunStarted.kind:
                started.add(recorded.run)
        for run in runs:
            if run not in started:
                self._add_run(events, run)
        oldest = min(events, default=self.first)
        edited = any(recorded.kind in EDITS for recorded in self._between.values())
        if edited:
            self._add_changes(events, oldest, EDITS)

    def _add_changes(
        self, events: dict[int, Recorded], after: int, kinds: frozenset[str]
    ) -> None:
        """Add the events of some kinds between a seq and the range."""
        if after >= self.first:
            return
        upto = self.first - 1
        changes = self._journal.row_changes(self._conversation, after=after, upto=upto)
        for change in changes:
            if change.kind in kinds:
                events[change.seq] = change

    def _add_run(self, events: dict[int, Recorded], run: str) -> None:
        """Add the start of a run above, the runs resumed by this run, and the events shown at the end of the run."""
        chain: list[str] = []
        name: str | None = run
        first = self.first
        while name is not None and name not in chain:
            state = self._journal.run(self._conversation, name)
            if state is None:
                break
            chain.append(name)
            if state.finished is not None and state.finished < self.first:
                self._add_facts(events, [state.finished])
            if state.started is None or state.started >= self.first:
                break
            first = state.started
            self._add_facts(events, [first])
            event = events[first].event if first in events else None
            name = event.resumes if isinstance(event, RunStarted) else None
        self._add_changes(events, first, _MOVED)

    # -- below ---------------------------------------------------------------------------------------------------

    def _apply_below(self, transcript: Transcript) -> None:
        """Apply the later events about the rows of this page."""
        head = self._head.head
        end = self._end
        ends = _ends_of_runs(self._between.values())
        while end < head and not transcript.is_settled:
            chunk = self._journal.read(
                self._conversation, after=end, upto=head, limit=_CHUNK
            )
            if not chunk:
                break
            for recorded in chunk:
                transcript.apply(recorded)
            ends += _ends_of_runs(chunk)
            end = chunk[-1].seq
        below: dict[int, Recorded] = {}
        self._add_ends(below, transcript, ends, end)
        self._add_takers(below)
        ends += below.values()
        if self._may_change(transcript, ends):
            changes = self._journal.row_changes(
                self._conversation, after=end, upto=head
            )
            below.update((change.seq, change) for change in changes)
        _apply(
            transcript, {seq: recorded for seq, recorded in below.items() if seq > end}
        )

    def _may_change(self, transcript: Transcript, ends: list[Recorded]) -> bool:
        """Return whether an event far below may change these rows. The index of the journal rules most pages out."""
        if self._head.epoch > self._end:
            return True
        if any(row.kind in _CHANGED_LATER for row in transcript.rows):
            return True
        last = self._end
        for recorded in ends:
            last = max(last, recorded.seq)
            event = recorded.event
            if isinstance(event, RunFinished) and event.outcome != "completed":
                return True
        return self._journal.has_late_output(self._conversation, self.first, last)

    def _add_takers(self, below: dict[int, Recorded]) -> None:
        """Add the events taking or withdrawing an erased input. An erased input does not tell whether the input waited."""
        between = self._between.values()
        erased = {
            recorded.seq
            for recorded in between
            if recorded.kind == MessageUser.kind and recorded.erased
        }
        if not erased:
            return
        for recorded in between:
            erased.difference_update(_settled_by(recorded))
        for recorded in self._events(self._end, self._head.head):
            if not erased:
                return
            settled_inputs = erased.intersection(_settled_by(recorded))
            if settled_inputs:
                below[recorded.seq] = recorded
                erased -= settled_inputs

    def _add_ends(
        self,
        below: dict[int, Recorded],
        transcript: Transcript,
        ends: list[Recorded],
        read_to: int,
    ) -> None:
        """Add the end of the open run, the runs resuming an interrupted run, and the outcome of the calls left open."""
        ends = list(ends)
        calls: dict[str | None, set[str]] = {}
        if transcript.run is not None:
            ends += self._end_of(transcript.run)
            for end in ends:
                if end.run == transcript.run:
                    below[end.seq] = end
        while ends:
            end = ends.pop()
            resuming = self._resuming(end)
            if resuming is None:
                continue
            run_ends = self._end_of(resuming.run or "")
            for recorded in (resuming, *run_ends):
                below[recorded.seq] = recorded
            ends += run_ends
            left_open = calls.get(end.run, set()) | transcript.find_open_calls(
                end.run or ""
            )
            after = max(read_to, resuming.seq)
            upto = run_ends[0].seq if run_ends else self._head.head
            calls[resuming.run] = self._add_calls(below, left_open, after, upto)

    def _resuming(self, end: Recorded) -> Recorded | None:
        """Return the start of the run resuming an interrupted run, or None."""
        if not isinstance(end.event, RunFinished) or end.event.outcome != "interrupted":
            return None
        following = self._journal.next_run(self._conversation, after=end.seq)
        event = following.event if following is not None else None
        if isinstance(event, RunStarted) and event.resumes == end.run:
            return following
        return None

    def _add_calls(
        self, below: dict[int, Recorded], calls: set[str], after: int, upto: int
    ) -> set[str]:
        """Add the events about these calls in the resuming run, and return the calls without a result."""
        while calls and after < upto:
            chunk = self._journal.read(
                self._conversation, after=after, upto=upto, limit=_CHUNK
            )
            for recorded in chunk:
                event = recorded.event
                if not isinstance(event, _OF_CALLS):
                    continue
                name = call_id(event.message, event.call)
                if name in calls:
                    below[recorded.seq] = recorded
                    if isinstance(event, ToolFinished):
                        calls.discard(name)
            after = chunk[-1].seq if chunk else upto
        return calls

    def _end_of(self, run: str) -> list[Recorded]:
        """Return the end of a run in a list, or an empty list."""
        state = self._journal.run(self._conversation, run)
        if state is None or state.finished is None:
            return []
        fact = self._journal.fact(self._conversation, state.finished)
        return [] if fact is None else [fact]

    # -- reading -------------------------------------------------------------------------------------------------

    def _add_facts(self, events: dict[int, Recorded], seqs: Iterable[int]) -> None:
        for seq in seqs:
            if seq not in events and seq <= self._head.head:
                fact = self._journal.fact(self._conversation, seq)
                if fact is not None:
                    events[seq] = fact

    def _events(self, after: int, upto: int) -> Iterator[Recorded]:
        return events_after(self._journal, self._conversation, after, upto)


def _find_inputs_taken_after(
    journal: Journal, conversation: str, seq: int, upto: int
) -> Iterator[Recorded]:
    """Yield the inputs stored up to a seq and taken or withdrawn after this seq."""
    for recorded in events_after(journal, conversation, seq, upto):
        for input_seq in _settled_by(recorded):
            fact = journal.fact(conversation, input_seq) if input_seq <= seq else None
            if fact is not None:
                yield fact


def _ends_of_runs(events: Iterable[Recorded]) -> list[Recorded]:
    return [recorded for recorded in events if recorded.kind == RunFinished.kind]


def _apply(transcript: Transcript, events: dict[int, Recorded]) -> None:
    for seq in sorted(events):
        transcript.apply(events[seq])


def _runs_of(recorded: Recorded) -> list[str]:
    """Return the run of an event, and the run resumed by the event."""
    event = recorded.event if recorded.kind == RunStarted.kind else None
    resumes = event.resumes if isinstance(event, RunStarted) else None
    return [run for run in (recorded.run, resumes) if run]


def _inputs_of(recorded: Recorded) -> list[int]:
    """Return the inputs taken by an event."""
    event = recorded.event if recorded.kind in _TAKERS else None
    return event.inputs if isinstance(event, RunStarted | ModelRequested) else []


def _settled_by(recorded: Recorded) -> list[int]:
    """Return the inputs taken or withdrawn by an event."""
    if recorded.kind != MessageWithdrawn.kind:
        return _inputs_of(recorded)
    event = recorded.event
    return [event.of] if isinstance(event, MessageWithdrawn) else []
