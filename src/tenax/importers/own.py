"""Import an export in the format `tenax`: conversations with every event as it was stored.

The events keep their seqs, salts and digests, so a conversation has the same digest as in the original store. The file
is read twice: first as a check for completeness, then conversation by conversation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tenax.errors import Gone, HeadMoved, InvalidInput, NoSuchConversation, Refused
from tenax.events import (
    ApprovalAnswered,
    ContentErased,
    ConversationConfigured,
    ConversationRouted,
    Event,
    MessageAssistant,
    MessageUser,
    ModelUsed,
    RunFinished,
    RunStarted,
    ToolFinished,
    decode,
)
from tenax.export.lines import (
    VERSION,
    Blob,
    Conversation,
    End,
    Header,
    Line,
    decode_line,
)
from tenax.export.lines import Event as EventLine
from tenax.importers.draft import Skipped
from tenax.importers.place import Place
from tenax.importers.storing import Found
from tenax.journal import Journal
from tenax.journal.base import Expect, StoredEvent
from tenax.journal.plan import check_id, named_in
from tenax.journal.row_index import SOLO
from tenax.journal.row_key import ALL_SEQS
from tenax.journal.verify.conversation import prove_copy
from tenax.journal.verify.derive import Derived

__all__ = ["KIND", "LABEL", "OwnExport", "is_own"]

KIND: Final = "tenax"
LABEL: Final = "Tenax"
_MARK: Final = b'{"type":"tenax-export"'
_LINE_BYTES_MAX: Final = 64 * 1024**2
_EVENTS_AT_ONCE: Final = 20_000
_MESSAGES: Final = frozenset({MessageUser.kind, MessageAssistant.kind})
_WITH_USAGE: Final = frozenset({MessageAssistant.kind, ModelUsed.kind})
_TOKENS_MAX: Final = 10**9
_COST_MAX: Final = 10.0**6
_HASH_CHARS: Final = 64
_LEASE_SECONDS: Final = 600.0
_WHY: Final = "The conversation was imported while an answer was under way."
_DIFFERS: Final = (
    "It went on differently here and in the export. Nothing was changed here."
)


def is_own(place: Place) -> bool:
    """Return whether a file is an export in the format `tenax`."""
    names = place.names()
    return len(names) == 1 and place.head(names[0]).startswith(_MARK)


class _Part(NamedTuple):
    """A conversation in the file: the line, and the offset of the line in bytes."""

    line: Conversation
    place: int


class OwnExport:
    """The conversations of a file. Raises `InvalidInput` for a damaged or incomplete file."""

    def __init__(self, journal: Journal, path: Path, *, dry_run: bool = False) -> None:
        self._journal = journal
        self._path = path
        self._dry_run = dry_run
        self._blobs: dict[str, int] = {}
        """The offset of the first piece, by name of the blob."""
        self._parts: list[_Part] = []
        self.events = 0
        self.messages = 0
        """The number of new messages."""
        self.tool_calls = 0
        self._look_through()

    def store(
        self, progress: Callable[[int], None] | None = None
    ) -> Iterator[Found | Skipped]:
        """Store the conversations, one after the other."""
        for count, part in enumerate(self._parts, 1):
            name = part.line.id
            try:
                yield self._store(part)
            except Gone:
                yield Found("deleted", name, 0)
            except (InvalidInput, Refused) as error:
                yield Skipped(name, "", str(error))
            if progress is not None:
                progress(count)

    # -- the file --------------------------------------------------------------------------

    def _lines(self, place: int = 0) -> Iterator[tuple[int, Line]]:
        """Yield the lines of the file after an offset, with their offsets."""
        try:
            with self._path.open("rb") as file:
                file.seek(place)
                while data := file.readline(_LINE_BYTES_MAX):
                    yield place, self._decode(data)
                    place += len(data)
        except OSError as error:
            raise InvalidInput(
                f"{self._path} cannot be read: {error.strerror}."
            ) from error

    def _decode(self, data: bytes) -> Line:
        try:
            return decode_line(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(
                f"{self._path.name} is damaged: {error}.",
                hint="Export the conversations again.",
            ) from error

    def _look_through(self) -> None:
        """Find the conversations and the blobs. Raises `InvalidInput` for an incomplete file."""
        end: End | None = None
        for place, line in self._lines():
            match line:
                case Header(version=version) if version > VERSION:
                    raise InvalidInput(
                        f"{self._path.name} has version {version} of the format, and this Tenax reads up to {VERSION}.",
                        hint="Use a newer Tenax.",
                    )
                case Blob(name=name, part=0):
                    self._blobs.setdefault(name, place)
                case Conversation():
                    self._parts.append(_Part(line, place))
                case EventLine():
                    self.events += 1
                case End():
                    end = line
        is_complete = (
            end is not None
            and end.conversations == len(self._parts)
            and end.events == self.events
        )
        if not is_complete:
            raise InvalidInput(
                f"{self._path.name} is not complete: its end is missing.",
                hint="Export the conversations again, or copy the whole file.",
            )

    def _events(self, part: _Part) -> list[StoredEvent]:
        events: list[StoredEvent] = []
        lines = self._lines(part.place)
        next(lines)
        for _, line in lines:
            if not isinstance(line, EventLine):
                break
            events.append(_stored(line))
        return events

    def _read_blob(self, name: str) -> bytes:
        pieces: list[bytes] = []
        for _, line in self._lines(self._blobs[name]):
            if not isinstance(line, Blob) or line.name != name:
                break
            pieces.append(line.data)
            if line.part + 1 >= line.of:
                break
        data = b"".join(pieces)
        if hashlib.sha256(data).hexdigest() != name:
            raise InvalidInput(
                f"{self._path.name} is damaged: the attachment {name} has another content than its name says.",
                hint="Export the conversations again.",
            )
        return data

    # -- storing ---------------------------------------------------------------------------

    def _store(self, part: _Part) -> Found | Skipped:
        line = part.line
        owner = self._journal.owner
        if line.user != owner:
            return Skipped(
                line.id,
                "",
                f"It belongs to the user {line.user!r:.60}, not to {owner}.",
            )
        try:
            head = self._journal.head(line.id)
        except NoSuchConversation:
            events = self._events(part)
            closing = self._closing(line, events)
            if not self._dry_run:
                self._put_blobs(events)
                # The whole conversation is a single transaction, so that no process answers in the middle.
                self._journal.carry(
                    line.id, events, authors=line.authors, closing=closing
                )
            self._count(events)
            return Found("new", line.id, len(events))
        if self._has(line.id, line.facts, line.digest):
            return Found("unchanged", line.id, 0)
        events = self._events(part)
        known = [event.seq for event in events if event.digest == head.digest]
        if known != [head.facts] or head.head > head.facts:
            return Skipped(line.id, "", _DIFFERS)
        new = [event for event in events if event.seq > head.facts]
        closing = self._closing(line, events)
        if not self._dry_run:
            self._put_blobs(new)
            try:
                self._carry_more(line, new, closing, head.head)
            except HeadMoved:
                return Skipped(line.id, "", "It changed during the import.")
        self._count(new)
        return Found("grown", line.id, len(new))

    def _count(self, events: Sequence[StoredEvent]) -> None:
        kinds = [event.kind for event in events]
        self.messages += sum(map(_MESSAGES.__contains__, kinds))
        self.tool_calls += kinds.count(ToolFinished.kind)

    def _has(self, name: str, seq: int, digest: str) -> bool:
        fact = self._journal.fact(name, seq)
        return fact is not None and fact.digest.hex() == digest

    def _put_blobs(self, events: Sequence[StoredEvent]) -> None:
        """Store the blobs of the events, as far as the file has them."""
        for event in events:
            if event.body is None or event.code:
                continue
            for name in named_in(event.kind, event.body):
                if name in self._blobs:
                    self._journal.put_blob(self._read_blob(name))

    def _check_blobs(self, event: StoredEvent) -> None:
        """Raises `InvalidInput` if an attachment is neither in the file nor in the store."""
        if event.body is None or event.code:
            return
        for name in named_in(event.kind, event.body):
            # The id of a memory is shorter than the name of a blob.
            is_blob = len(name) == _HASH_CHARS and name not in self._blobs
            if is_blob and self._journal.get_blob(name) is None:
                raise InvalidInput(f"The attachment {name} is missing in the file.")

    def _carry_more(
        self,
        line: Conversation,
        new: Sequence[StoredEvent],
        closing: Sequence[tuple[str | None, Event]],
        head: int,
    ) -> None:
        parts = list(_parts_of(new))
        # A server must not answer a message before the rest of the conversation is stored.
        name, holder = f"run:{line.id}", self._journal.instance
        lease = self._journal.claim(name, holder, _LEASE_SECONDS)
        if lease is None:
            raise InvalidInput("An answer is under way here.", hint="Import again.")
        try:
            for part in parts:
                stored = self._journal.carry(line.id, part, expect=Expect(head=head))
                head = stored[-1].seq
            if closing:
                expect = Expect(head=head)
                self._journal.carry(line.id, [], expect=expect, closing=closing)
        finally:
            self._journal.release(lease)

    def _prove(self, line: Conversation, events: Sequence[StoredEvent]) -> Derived:
        """Return the index of the conversation. Raises `InvalidInput` for events that no Tenax has stored."""
        last = 0
        for event in events:
            if not last < event.seq <= ALL_SEQS:
                raise InvalidInput(f"Event {event.seq} cannot follow {last}.")
            if event.code and event.body is None:
                raise InvalidInput(f"Event {event.seq} has no body.")
            last = event.seq
        for author in line.authors:
            check_id("author", author)
        problems, derived = prove_copy(
            self._journal.owner, line.id, events, line.authors
        )
        for seq, what in problems:
            where = "" if seq is None else f"Event {seq}: "
            raise InvalidInput(f"The events do not fit together. {where}{what}")
        for event in events:
            _check_usage(event)
            self._check_blobs(event)
        return derived

    def _closing(
        self, line: Conversation, events: Sequence[StoredEvent]
    ) -> list[tuple[str | None, Event]]:
        """Return the new events after the events of the export, with their runs.

        The events end an open run and take waiting messages, so that the import starts no run. They also take back the
        permissions of tools and the connections with chats: the file may come from anywhere, and nobody gave permission
        here.
        """
        derived = self._prove(line, events)
        allowed = [event.seq for event in events if _allows(event)]
        closing: list[tuple[str | None, Event]] = []
        state = derived.settle()
        cancelled = RunFinished("cancelled", _WHY)
        if state.run is not None:
            closing.append((state.run, cancelled))
        waiting = [seq for seq in derived.rows if derived.is_waiting(seq)]
        if waiting:
            run = self._journal.ids.run()
            closing += [(run, RunStarted(waiting)), (run, cancelled)]
        if allowed:
            erased = ContentErased(allowed, "import", "An import allows nothing.")
            closing.append((None, erased))
        for (account, chat, thread), (is_closed, *_) in derived.routes.items():
            if not is_closed:
                route = ConversationRouted(account, chat, thread, closed=True)
                closing.append((None, route))
        if derived.list["mode"] != "ask" or derived.list["project"]:
            closing.append((None, ConversationConfigured(mode="ask", project="")))
        return closing


def _check_usage(event: StoredEvent) -> None:
    """Raises `InvalidInput` for a usage that would spoil the sums of all conversations."""
    if event.body is None or event.kind not in _WITH_USAGE:
        return
    decoded = decode(event.kind, event.body)
    usage = getattr(decoded, "usage", None)
    if usage is None:
        return
    tokens = (usage.input, usage.output, usage.cached)
    is_cost = usage.cost is None or 0 <= usage.cost <= _COST_MAX
    if not is_cost or not all(0 <= count <= _TOKENS_MAX for count in tokens):
        raise InvalidInput(f"Event {event.seq} has a usage that no model reports.")


def _allows(event: StoredEvent) -> bool:
    """Return whether an event lets a tool run again without a question."""
    if event.kind != ApprovalAnswered.kind or event.body is None:
        return False
    answered = decode(event.kind, event.body)
    return isinstance(answered, ApprovalAnswered) and answered.answer == "conversation"


def _stored(line: EventLine) -> StoredEvent:
    """Return an event. Raises `InvalidInput` for digits that are not hexadecimal."""
    try:
        return StoredEvent(
            line.seq,
            line.kind,
            line.at,
            line.run,
            None if line.body is None else line.body.encode(),
            salt=_bytes(line.salt),
            inner=_bytes(line.inner),
            digest=_bytes(line.digest) or b"",
            append_id=_bytes(line.append),
            code=line.code,
            first=line.first,
            waiting=line.waiting,
        )
    except ValueError as error:
        raise InvalidInput(f"Event {line.seq} is damaged: {error}.") from error


def _bytes(digits: str | None) -> bytes | None:
    return None if digits is None else bytes.fromhex(digits)


def _parts_of(events: Sequence[StoredEvent]) -> Iterator[Sequence[StoredEvent]]:
    """Yield the transactions for events of an existing conversation.

    An event in `SOLO` looks up earlier events in the store, so the event begins a new transaction.
    """
    start = 0
    for end in range(1, len(events)):
        is_full = end - start >= _EVENTS_AT_ONCE
        if is_full or events[end].kind in SOLO:
            yield events[start:end]
            start = end
    if events:
        yield events[start:]
