"""Pages of a transcript. Rows have one total order, their keys, and a page is a range of that order.

A key begins with the seq of the event that a row stands at: the request of an answer, the start of the run that took an
input, the end of a run for its marker, its late output and its files. Keys are derived by the fold and never stored. An
input that waits has no place yet; the first page carries all of them separately.

A page reads the events at which its rows stand. Other events that say something about these rows may stand far away:
above (an input, the start of a run) or below (an answer, a result, late output, an undo). They are looked up, so that a
page shows what a fold of the whole journal shows between the same keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    FilesChanged,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunLate,
    RunSealed,
    RunStarted,
    ToolFinished,
    ToolHanded,
    ToolStarted,
)
from tenax.views.transcript import WAITING, Key, Row, Transcript

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tenax.journal import Journal
    from tenax.journal.base import Head, Recorded

__all__ = ["Folded", "Page", "first_key", "fold_page"]

_CHUNK: Final = 200
_SPARE_ROWS: Final = 8
"""A message may be stored on one page and shown on another, so that a few more are looked at."""
_READ_MAX: Final = 10_000
"""As many rows or events as a journal gives at once."""
_TAKERS: Final = frozenset({RunStarted.kind, ModelRequested.kind})
_CHANGED_LATER: Final = frozenset({"memory", "files"})
"""Kinds of rows that a person takes back with an event far below."""
_EDITS: Final = frozenset(
    {ConversationCleared.kind, ConversationRestored.kind, ConversationRewound.kind}
)
_MOVED: Final = frozenset({FilesChanged.kind, RunLate.kind, RunSealed.kind})
"""What a run writes and what is shown at its end."""
_OF_CALLS: Final = (
    ApprovalAsked,
    ApprovalAnswered,
    ToolStarted,
    ToolHanded,
    ToolFinished,
)
_SHORT: Final = 1000
"""The beginning of a conversation that is read whole."""


class Page(msgspec.Struct, frozen=True):
    """Rows in their order. `next` is the key before which the page above ends, or None where there is none."""

    rows: list[Row]
    waiting: list[Row]
    next: Key | None


class Folded(msgspec.Struct):
    """A fold that knows every row from seq `first` on, up to `before`, as the journal stood at `head`."""

    shown: Transcript
    first: int
    head: int
    more: bool
    before: Key = (WAITING, -1, 0)

    @property
    def rows(self) -> list[Row]:
        return [
            row
            for row in self.shown.rows
            if first_key(self.first) <= row.key < self.before
        ]

    def page(self, limit: int) -> Page:
        """The last rows of it."""
        rows = self.rows
        more = self.more or len(rows) > limit
        rows = rows[-limit:]
        waiting = (
            [row for row in self.shown.rows if row.key[0] == WAITING]
            if self.before[0] == WAITING
            else []
        )
        return Page(
            rows,
            waiting,
            (rows[0].key if rows else first_key(self.first)) if more else None,
        )


def first_key(seq: int) -> Key:
    """A key that no row at an earlier seq reaches, and every row at this one does."""
    return (seq, -1, 0)


def fold_page(
    journal: Journal,
    conversation: str,
    before: Key | None,
    limit: int,
    *,
    upto: int | None = None,
) -> Folded:
    """Fold the last rows before a key, or the last of all: at least as many as the limit, if there are.

    `upto`: fold what was written up to this seq, with the inputs that waited then.
    """
    head = journal.head(conversation)
    known = head.head
    waiting: list[Recorded] = []
    if before is None and head.unanswered:
        # Runs take inputs meanwhile: what is written after the first look is read with the page, up to the second.
        waiting = journal.waiting(conversation)
        head = journal.head(conversation)
    if upto is not None and upto < head.head:
        waiting = [each for each in waiting if each.seq <= upto]
        waiting += _taken_after(journal, conversation, upto, head.head)
        head = msgspec.structs.replace(head, head=upto)
    end = head.head if before is None else min(before[0], head.head)
    reader = _Reader(journal, conversation, head, end, waiting)
    if end > known:
        reader.read_from(known + 1)
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
    """The events that say something about the rows between `first` and `end`, and the inputs that wait."""

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
        """Read the events above those that are read."""
        first = min(first, self.first)
        self._between.update(
            (each.seq, each) for each in self._events(first - 1, self.first - 1)
        )
        self.first = first

    def fold(self) -> Transcript:
        """Fold them, and what stands elsewhere."""
        found = {each.seq: each for each in self._waiting} | self._between
        self._add_above(found)
        shown = Transcript()
        _apply(shown, found)
        if self._end < self._head.head:
            self._apply_below(shown)
        return shown

    def top(self) -> int:
        """Where to begin if no message stands above `first`: at the clear that took them away, or at the first event."""
        if self.first <= _SHORT:
            return 1
        cleared = self._journal.fact(self._conversation, self._head.context_from - 1)
        if (
            cleared is not None
            and cleared.kind == ConversationCleared.kind
            and cleared.seq < self.first
        ):
            return cleared.seq
        edits = self._journal.row_changes(self._conversation, upto=self._head.head)
        restored = {
            each.event.of
            for each in edits
            if isinstance(each.event, ConversationRestored)
        }
        clears = [
            each.seq for each in edits if isinstance(each.event, ConversationCleared)
        ]
        return max(
            (seq for seq in clears if seq < self.first and seq not in restored),
            default=1,
        )

    # -- above ---------------------------------------------------------------------------------------------------

    def _add_above(self, found: dict[int, Recorded]) -> None:
        """The inputs that are taken here, the runs that began above, and the edits that an edit here builds on."""
        runs: dict[str, None] = {}
        for each in list(found.values()):
            self._add_facts(found, _inputs_of(each))
            runs.update(dict.fromkeys(_runs_of(each)))
        started = {each.run for each in found.values() if each.kind == RunStarted.kind}
        for run in runs:
            if run not in started:
                self._add_run(found, run)
        oldest = min(found, default=self.first)
        if oldest < self.first and any(
            each.kind in _EDITS for each in self._between.values()
        ):
            above = self._journal.row_changes(
                self._conversation, after=oldest, upto=self.first - 1
            )
            found.update((each.seq, each) for each in above if each.kind in _EDITS)

    def _add_run(self, found: dict[int, Recorded], run: str) -> None:
        """A run that began above, those that it went on with, and what of it is moved to its end."""
        chain: list[str] = []
        name: str | None = run
        first = self.first
        while name is not None and name not in chain:
            state = self._journal.run(self._conversation, name)
            if state is None:
                break
            chain.append(name)
            if state.finished is not None and state.finished < self.first:
                self._add_facts(found, [state.finished])
            if state.started is None or state.started >= self.first:
                break
            first = state.started
            self._add_facts(found, [first])
            event = found[first].event if first in found else None
            name = event.resumes if isinstance(event, RunStarted) else None
        if first < self.first:
            above = self._journal.row_changes(
                self._conversation, after=first, upto=self.first - 1
            )
            found.update((each.seq, each) for each in above if each.kind in _MOVED)

    # -- below ---------------------------------------------------------------------------------------------------

    def _apply_below(self, shown: Transcript) -> None:
        """What came later and changes rows of this page."""
        end, ends = (
            self._end,
            [each for each in self._between.values() if each.kind == RunFinished.kind],
        )
        while end < self._head.head and not shown.settled:
            chunk = self._journal.read(
                self._conversation, after=end, upto=self._head.head, limit=_CHUNK
            )
            if not chunk:
                break
            for each in chunk:
                shown.apply(each)
            ends += [each for each in chunk if each.kind == RunFinished.kind]
            end = chunk[-1].seq
        below: dict[int, Recorded] = {}
        self._add_ends(below, shown, ends, end)
        self._add_takers(below)
        ends += below.values()
        if self._may_change(shown, ends):
            changes = self._journal.row_changes(
                self._conversation, after=end, upto=self._head.head
            )
            below.update((each.seq, each) for each in changes)
        _apply(shown, {seq: each for seq, each in below.items() if seq > end})

    def _may_change(self, shown: Transcript, ends: list[Recorded]) -> bool:
        """Whether an event far below can say something about these rows. The journal's index tells what is not so."""
        return (
            self._head.epoch > self._end
            or any(row.kind in _CHANGED_LATER for row in shown.rows)
            or any(
                isinstance(each.event, RunFinished)
                and each.event.outcome != "completed"
                for each in ends
            )
            or self._journal.has_late_output(
                self._conversation,
                self.first,
                max([self._end, *(each.seq for each in ends)]),
            )
        )

    def _add_takers(self, below: dict[int, Recorded]) -> None:
        """What took an input whose text is erased: it does not say itself whether it waited."""
        erased = {
            each.seq
            for each in self._between.values()
            if each.kind == MessageUser.kind and each.erased
        }
        for each in self._between.values() if erased else ():
            erased.difference_update(_inputs_of(each))
        if not erased:
            return
        for each in self._events(self._end, self._head.head):
            if erased.intersection(_inputs_of(each)):
                below[each.seq] = each
                erased.difference_update(_inputs_of(each))
            if not erased:
                return

    def _add_ends(
        self,
        below: dict[int, Recorded],
        shown: Transcript,
        ends: list[Recorded],
        known: int,
    ) -> None:
        """The end of the run that is open here, and the runs that went on with one that was interrupted, and its calls."""
        ends, calls = list(ends), dict[str | None, set[str]]()
        if shown.run is not None:
            ends += self._end_of(shown.run)
            below.update((each.seq, each) for each in ends if each.run == shown.run)
        while ends:
            end = ends.pop()
            if (
                not isinstance(end.event, RunFinished)
                or end.event.outcome != "interrupted"
            ):
                continue
            following = self._journal.next_run(self._conversation, after=end.seq)
            event = following.event if following is not None else None
            if (
                following is not None
                and isinstance(event, RunStarted)
                and event.resumes == end.run
            ):
                found = self._end_of(following.run or "")
                below.update((each.seq, each) for each in (following, *found))
                ends += found
                left = calls.get(end.run, set()) | shown.left_open(end.run or "")
                after, upto = (
                    max(known, following.seq),
                    found[0].seq if found else self._head.head,
                )
                calls[following.run] = self._add_calls(below, left, after, upto)

    def _add_calls(
        self, below: dict[int, Recorded], calls: set[str], after: int, upto: int
    ) -> set[str]:
        """What became of these calls in the run that went on with them. It makes them first."""
        while calls and after < upto:
            chunk = self._journal.read(
                self._conversation, after=after, upto=upto, limit=_CHUNK
            )
            for each in chunk:
                event = each.event
                if (
                    isinstance(event, _OF_CALLS)
                    and (name := f"{event.message}:{event.call}") in calls
                ):
                    below[each.seq] = each
                    if isinstance(event, ToolFinished):
                        calls.discard(name)
            after = chunk[-1].seq if chunk else upto
        return calls

    def _end_of(self, run: str) -> list[Recorded]:
        """The end of a run, if it has one."""
        state = self._journal.run(self._conversation, run)
        if state is None or state.finished is None:
            return []
        fact = self._journal.fact(self._conversation, state.finished)
        return [] if fact is None else [fact]

    # -- reading -------------------------------------------------------------------------------------------------

    def _add_facts(self, found: dict[int, Recorded], seqs: Iterable[int]) -> None:
        for seq in seqs:
            if seq not in found and seq <= self._head.head:
                fact = self._journal.fact(self._conversation, seq)
                if fact is not None:
                    found[seq] = fact

    def _events(self, after: int, upto: int) -> Iterator[Recorded]:
        return _events(self._journal, self._conversation, after, upto)


def _events(
    journal: Journal, conversation: str, after: int, upto: int
) -> Iterator[Recorded]:
    while after < upto:
        page = journal.read(conversation, after=after, upto=upto, limit=_READ_MAX)
        yield from page
        if len(page) < _READ_MAX:
            return
        after = page[-1].seq


def _taken_after(
    journal: Journal, conversation: str, seq: int, upto: int
) -> Iterator[Recorded]:
    """The inputs from before a seq that were taken after it."""
    for each in _events(journal, conversation, seq, upto):
        for taken in _inputs_of(each):
            if taken <= seq and (fact := journal.fact(conversation, taken)) is not None:
                yield fact


def _apply(shown: Transcript, found: dict[int, Recorded]) -> None:
    for seq in sorted(found):
        shown.apply(found[seq])


def _runs_of(recorded: Recorded) -> list[str]:
    """The runs that an event speaks of."""
    event = recorded.event if recorded.kind == RunStarted.kind else None
    resumes = event.resumes if isinstance(event, RunStarted) else None
    return [run for run in (recorded.run, resumes) if run]


def _inputs_of(recorded: Recorded) -> list[int]:
    """The inputs that an event takes."""
    event = recorded.event if recorded.kind in _TAKERS else None
    return event.inputs if isinstance(event, RunStarted | ModelRequested) else []
