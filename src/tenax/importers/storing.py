"""Store imported conversations. A second import stores only new events.

The id of a conversation is derived from the id in the source. A second import compares the stored events with the
events of the source. If the source has more events, the new events follow with their own times. If the conversation
continued differently in Tenax (a person wrote a message, or the source changed), the conversation of the source becomes
a second conversation. Nothing is replaced.

A conversation is a single transaction, or several transactions for a very long conversation. So a person can stop and
repeat an import.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

import msgspec

from tenax.agent.attachments import BYTES_MAX, judge
from tenax.errors import (
    ConversationExists,
    Gone,
    HeadMoved,
    InvalidInput,
    NoSuchConversation,
    TooLarge,
)
from tenax.events import (
    ConversationArchived,
    ConversationOpened,
    ConversationPinned,
    ConversationTitled,
    Event,
    RunFinished,
    RunStarted,
    encode,
)
from tenax.importers.draft import Attached, Draft
from tenax.importers.events import (
    COMPARED,
    Entry,
    clean,
    list_entries,
    mark_of,
    split_branches,
)
from tenax.journal import Journal
from tenax.journal.base import Expect, RawEvent
from tenax.journal.journal import events_after
from tenax.journal.standing import EDITS
from tenax.parts import File, Part
from tenax.text import clean_name, make_storable, to_one_line

__all__ = ["Found", "Importer", "Outcome"]

Outcome = Literal["new", "grown", "unchanged", "beside", "deleted"]
_COPIES_MAX: Final = 20
_ENTRIES_AT_ONCE: Final = 20_000
_ENTRIES_MAX: Final = 80_000
"""The size of a transaction in the middle of a run."""
_TITLE_CHARS_MAX: Final = 300
_EXTRA_BYTES_MAX: Final = 64 * 1024
_SOLO: Final = frozenset({*EDITS, "context.compacted"})
"""The kinds of events that begin a new transaction in an existing conversation."""


class Found(NamedTuple):
    """The result of the import of a conversation, or in a dry run the expected result."""

    outcome: Outcome
    conversation: str
    events: int
    """The number of new events."""


class _Stored(NamedTuple):
    """The comparison of a stored conversation with a source."""

    head: int
    run: str | None
    """The open run."""
    matched: list[int]
    """The seqs of the events in common with the source, in order."""
    is_longer: bool
    """Whether the source lacks events of the stored conversation."""


class Importer:
    """Stores the conversations of a source for a user."""

    def __init__(
        self,
        journal: Journal,
        kind: str,
        *,
        dry_run: bool = False,
        remember: bool = False,
    ) -> None:
        self._journal = journal
        self._kind = kind
        self._dry_run = dry_run
        self._remember = remember
        self.count: Counter[str] = Counter()
        """The new events by kind, the files, and the missing files."""

    def store(self, draft: Draft) -> list[Found]:
        """Store a conversation, and the branches in conversations of their own. Raises `InvalidInput`."""
        main, branches = split_branches(draft)
        return [self._store_one(part) for part in (main, *branches)]

    def _store_one(self, draft: Draft) -> Found:
        for number in range(1, _COPIES_MAX):
            name = self._derive("c_", draft.id, number)
            found = self._try_store(draft, name, number)
            if found is not None:
                return found
        raise InvalidInput(
            f"The conversation {draft.id!r:.100} was imported {_COPIES_MAX} times in different versions.",
            hint="Delete the versions that you do not need.",
        )

    def _try_store(self, draft: Draft, name: str, number: int) -> Found | None:
        """Store a conversation under an id. Return `None` if the stored conversation continued differently."""
        segment = self._derive("s_", draft.id, number)
        now = self._journal.clock.now_us()
        entries = list_entries(
            draft, segment, self._put_file, now, with_runs=self._remember
        )
        try:
            stored = self._compare(name, entries)
        except NoSuchConversation:
            return self._store_new(draft, name, segment, entries, number, now)
        except Gone:
            return Found("deleted", name, 0)
        compared = sum(entry.mark[0] in COMPARED for entry in entries)
        if len(stored.matched) == compared:
            return Found("unchanged", name, 0)
        if stored.is_longer:
            return None
        return self._extend(name, entries, stored)

    def _derive(self, prefix: str, name: str, number: int) -> str:
        text = f"{self._kind}\n{name}\n{number}".encode(errors="replace")
        return f"{prefix}{hashlib.sha256(text).hexdigest()[:32]}"

    # -- comparing -------------------------------------------------------------------------

    def _compare(self, name: str, entries: Sequence[Entry]) -> _Stored:
        """Compare a stored conversation. Raises `NoSuchConversation` or `Gone`."""
        found = self._journal.head(name)
        head, run = found.head, found.run
        wanted = iter([entry.mark for entry in entries if entry.mark[0] in COMPARED])
        matched: list[int] = []
        for recorded in events_after(self._journal, name, 0, head):
            if recorded.kind not in COMPARED:
                continue
            mark = next(wanted, None)
            event = recorded.event
            if mark is None:
                return _Stored(head, run, matched, is_longer=True)
            if recorded.erased or not isinstance(event, Event):
                # A text that was erased in Tenax stays erased.
                is_same = recorded.kind == mark[0]
            else:
                is_same = mark_of(event) == mark
            if not is_same:
                return _Stored(head, run, matched, is_longer=True)
            matched.append(recorded.seq)
        return _Stored(head, run, matched, is_longer=False)

    # -- writing ---------------------------------------------------------------------------

    def _store_new(
        self,
        draft: Draft,
        name: str,
        segment: str,
        entries: Sequence[Entry],
        number: int,
        now: int,
    ) -> Found:
        opened, settings = self._opening(draft, segment, entries)
        self._count(entries)
        outcome: Outcome = "new" if number == 1 else "beside"
        at = entries[0].at if entries else now
        opened_at = min(draft.at or at, at)
        first_seq = len(settings) + 2
        events = list(_make(entries, [], first=first_seq))
        batch = [
            RawEvent(setting.kind, opened_at, None, encode(setting))
            for setting in settings
        ]
        begin = _first_part(events)
        batch += events[:begin]
        if self._dry_run:
            return Found(outcome, name, len(entries))
        try:
            self._journal.load(
                name, opened, batch, opened_at=opened_at, is_owed=self._remember
            )
        except ConversationExists:
            # Another import stored the conversation in the meantime.
            found = self._try_store(draft, name, number)
            return found if found is not None else self._store_one(draft)
        self._append(name, events[begin:], len(batch) + 1)
        return Found(outcome, name, len(entries))

    def _extend(self, name: str, entries: Sequence[Entry], stored: _Stored) -> Found:
        if stored.run not in {None, *(entry.run for entry in entries)}:
            raise InvalidInput(
                "An answer is under way in this conversation.", hint="Import again."
            )
        known = 0
        remaining = len(stored.matched)
        while remaining:
            if entries[known].mark[0] in COMPARED:
                remaining -= 1
            known += 1
        # The end of a run is not compared. The run has ended here, or was not imported.
        if (
            known < len(entries)
            and entries[known].mark[0] == RunFinished.kind
            and entries[known].run != stored.run
        ):
            known += 1
        begun, new = _begin_again(entries[known:], stored, known)
        self._count(new)
        seqs = iter(stored.matched)
        last = 0
        places: list[int] = []
        for entry in entries[:known]:
            # Runs are not compared, and no event refers to a run by its seq.
            last = next(seqs) if entry.mark[0] in COMPARED else last
            places.append(last)
        first = stored.head + 1 + len(begun)
        events = [*begun, *_make(new, places, first=first)]
        if not self._dry_run:
            self._append(name, events, stored.head)
        return Found("grown", name, len(new))

    def _append(self, name: str, events: Sequence[RawEvent], head: int) -> None:
        for part in _parts_of(events):
            try:
                stored = self._journal.extend(name, part, expect=Expect(head=head))
            except HeadMoved:
                raise InvalidInput(
                    f"Conversation {name} changed during the import.",
                    hint="Import again.",
                ) from None
            head = stored[-1].seq

    def _opening(
        self, draft: Draft, segment: str, entries: Sequence[Entry]
    ) -> tuple[ConversationOpened, list[Event]]:
        """Return the first event, and the events with the title and the place in the list."""
        imported: dict[str, Any] = {**self._keep(draft.extra)}
        imported["kind"] = self._kind
        imported["id"] = make_storable(draft.id)
        if draft.parent is not None:
            imported["parent"] = self._derive("c_", draft.parent, 1)
            imported["relation"] = draft.relation
        opened = ConversationOpened(
            self._journal.owner,
            segment,
            source=self._kind,
            extra={"import": imported},
        )
        settings: list[Event] = []
        title = to_one_line(make_storable(draft.title))[:_TITLE_CHARS_MAX].strip()
        if title:
            settings.append(ConversationTitled(title))
        if draft.pinned:
            settings.append(ConversationPinned(pinned=True))
        if draft.archived or draft.relation == "delegate" or not entries:
            settings.append(ConversationArchived(archived=True))
        return opened, settings

    def _keep(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the fields without an equivalent in Tenax. Long fields become a file."""
        kept: dict[str, Any] = clean(extra)
        data = msgspec.json.encode(kept)
        if len(data) <= _EXTRA_BYTES_MAX:
            return kept
        return {"kept": {"blob": self._put_blob(data)}}

    def _put_file(self, file: Attached) -> Sequence[Part]:
        """Store a file of a message. A file with the reason replaces a missing or too large file."""
        name = clean_name(make_storable(file.name))
        data = file.read()
        if data is None:
            data = b"(This file was not in the import.)"
            self.count["missing files"] += 1
        elif len(data) > BYTES_MAX:
            data = f"(This file was too large for the import: {len(data):,} bytes.)".encode()
            self.count["missing files"] += 1
        self.count["files"] += 1
        try:
            part: Part = judge(name, data)
        except (InvalidInput, TooLarge):
            part = File("", "application/octet-stream", name, len(data))
        return [msgspec.structs.replace(part, blob=self._put_blob(data))]

    def _put_blob(self, data: bytes) -> str:
        if self._dry_run:
            return hashlib.sha256(data).hexdigest()
        return self._journal.put_blob(data)

    def _count(self, entries: Sequence[Entry]) -> None:
        self.count.update(entry.mark[0] for entry in entries)


def _begin_again(
    new: Sequence[Entry], stored: _Stored, known: int
) -> tuple[list[RawEvent], Sequence[Entry]]:
    """Return the beginning of a further run, and the events, if the first of them continue a run that has ended."""
    first = next((entry for entry in new if entry.run is not None), None)
    if first is None or first.run == stored.run or first.mark[0] == RunStarted.kind:
        return [], new
    run = first.run
    name = f"{run}-{known}"
    started = RawEvent(RunStarted.kind, new[0].at, name, encode(RunStarted([])))
    return [started], [
        entry._replace(run=name) if entry.run == run else entry for entry in new
    ]


def _make(
    entries: Sequence[Entry], places: Sequence[int], *, first: int
) -> Iterator[RawEvent]:
    """Yield the events with their references. `places` has the seqs of the earlier entries, which are stored."""
    seqs = [*places, *range(first, first + len(entries))]
    for entry in entries:
        event = entry.make(seqs)
        yield RawEvent(event.kind, entry.at, entry.run, encode(event))


def _parts_of(events: Sequence[RawEvent]) -> Iterator[Sequence[RawEvent]]:
    """Yield the transactions for events in an existing conversation."""
    start = 0
    for end, is_rest in enumerate(_rests(events), 1):
        is_full = _is_full(end - start, is_rest=is_rest)
        if is_full or events[end].kind in _SOLO:
            yield events[start:end]
            start = end
    if events:
        yield events[start:]


def _first_part(events: Sequence[RawEvent]) -> int:
    """Return the number of events in the transaction that opens a conversation."""
    for end, is_rest in enumerate(_rests(events), 1):
        if _is_full(end, is_rest=is_rest):
            return end
    return len(events)


def _is_full(size: int, *, is_rest: bool) -> bool:
    return size >= _ENTRIES_MAX or (size >= _ENTRIES_AT_ONCE and is_rest)


def _rests(events: Sequence[RawEvent]) -> Iterator[bool]:
    """Yield for each event but the first whether the conversation is at rest before it.

    In between, a server would answer the message, or end the run.
    """
    is_open = False
    for before, event in pairwise(events):
        is_open = before.kind == RunStarted.kind or (
            is_open and before.kind != RunFinished.kind
        )
        yield not is_open and event.kind != RunStarted.kind
