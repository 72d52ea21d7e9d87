"""Export as `tenax`: the stored events of conversations in a single file of JSON lines.

The rows come from a snapshot of the store. A conversation is read from a single snapshot, so the events, the partials
and the head fit together.

An open snapshot prevents the store from removing erased text from the files, and delays the writers of a SQLite store. A
download may be slow. So the lines go to a temporary file first, and the snapshot is closed before the download starts. A
short export stays in memory.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final, NamedTuple

from tenax.errors import Gone, NoSuchConversation, StoreDamaged, unusable
from tenax.events import PARTIALS
from tenax.export.lines import (
    BLOB_PIECE_BYTES,
    Blob,
    Conversation,
    End,
    Event,
    Header,
    Line,
    encode_line,
)
from tenax.journal import Journal
from tenax.journal.copying import Row, Snapshot
from tenax.journal.plan import chain
from tenax.journal.row_key import ALL_SEQS, bounds
from tenax.journal.tables import TABLES, Table

__all__ = ["write"]

_BY_NAME: Final = {table.name: table for table in TABLES}
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""The largest batch in memory. After a batch of this size, the next conversation is read from a new snapshot."""
_READ_BYTES: Final = 64 * 1024
_HASH_CHARS: Final = 64
"""The length of the name of a blob. The id of a memory is shorter."""
_EMPTY: Final = hashlib.sha256(b"").hexdigest()


def write(
    journal: Journal,
    open_snapshot: Callable[[], Snapshot],
    conversations: Iterable[str],
    header: Header,
) -> Generator[bytes]:
    """Yield the lines of conversations and of their sub-agents, without conversations deleted in the meantime.

    Raises `StoreDamaged` for an event or a blob with a wrong digest. The file then has no last line.
    """
    writer = _Writer(journal, conversations)
    yield encode_line(header)
    while writer.remaining:
        with SpooledTemporaryFile(_BATCH_BYTES) as batch:
            with closing(open_snapshot()) as snapshot:
                while writer.remaining and batch.tell() < _BATCH_BYTES:
                    for line in writer.read_next(snapshot):
                        _append(batch, encode_line(line))
            batch.seek(0)
            while piece := batch.read(_READ_BYTES):
                yield piece
    yield encode_line(End(writer.conversations, writer.events))


def _append(batch: IO[bytes], line: bytes) -> None:
    try:
        batch.write(line)
    except OSError as error:
        raise unusable(
            "The folder for temporary files cannot be used",
            error,
            hint="set TMPDIR to a folder of yours",
        ) from error


class _Head(NamedTuple):
    """A conversation in a snapshot."""

    num: int
    id: str
    head: int
    facts: int
    digest: bytes


class _Writer:
    """Turns conversations into lines, one after the other."""

    def __init__(self, journal: Journal, conversations: Iterable[str]) -> None:
        self._journal = journal
        self.remaining = self._in_order(conversations)
        """The remaining conversations, the next conversation last."""
        self._read: set[str] = set()
        self._blobs: set[bytes] = set()
        self.conversations = 0
        self.events = 0

    def _in_order(self, conversations: Iterable[str]) -> list[str]:
        """Return the conversations, the newest first. A fork is newer than the original."""
        numbers: dict[str, int] = {}
        for name in conversations:
            with suppress(Gone, NoSuchConversation):
                numbers[name] = self._journal.number(name)
        return sorted(numbers, key=numbers.__getitem__, reverse=True)

    def read_next(self, snapshot: Snapshot) -> Iterator[Line]:
        """Yield the lines of the next conversation. The sub-agents of the conversation follow."""
        name = self.remaining.pop()
        if name in self._read:
            return
        self._read.add(name)
        with suppress(Gone, NoSuchConversation):
            num = self._journal.number(name)
            self.remaining += reversed(self._journal.delegated(name))
            yield from self._lines(snapshot, num, name)

    def _lines(self, snapshot: Snapshot, num: int, name: str) -> Iterator[Line]:
        head = self._find(snapshot, num, name)
        if head is None:
            return
        yield from self._blobs_of(snapshot, num)
        authors = _read(snapshot, "authors", ("author",), (num - 1, num))
        yield Conversation(
            head.id,
            self._journal.owner,
            head.head,
            head.facts,
            head.digest.hex(),
            tuple(author for (author,) in authors),
        )
        self.conversations += 1
        for event in _events(snapshot, head):
            self.events += 1
            yield event

    def _find(self, snapshot: Snapshot, num: int, name: str) -> _Head | None:
        """Return the conversation, or `None` if the number belongs to no or to a different conversation in the snapshot."""
        keys = (num - 1, num)
        owners = list(_read(snapshot, "conversations", ("owner", "id"), keys))
        if owners != [(self._journal.owner, name)]:
            return None
        columns = ("head", "facts", "digest")
        ((head, facts, digest),) = _read(snapshot, "heads", columns, keys)
        return _Head(num, name, head, facts, bytes(digest))

    def _blobs_of(self, snapshot: Snapshot, num: int) -> Iterator[Blob]:
        """Yield the blobs of a conversation, without blobs from earlier in the file."""
        for (name,) in _read(snapshot, "mentions", ("hash",), bounds(num)):
            if len(name) != _HASH_CHARS:
                continue
            key = bytes.fromhex(name)
            if key in self._blobs:
                continue
            self._blobs.add(key)
            yield from self._pieces(snapshot, name)

    def _pieces(self, snapshot: Snapshot, name: str) -> Iterator[Blob]:
        owner = self._journal.owner
        sizes = self._journal.store.query("blob", owner=owner, hash=name)
        if not sizes:
            # An erasure removed the blob.
            return
        count = max(1, -(-sizes[0][0] // BLOB_PIECE_BYTES))
        digest = hashlib.sha256()
        part = 0
        pieces = snapshot.blob(owner, name) if name != _EMPTY else iter([b""])
        for part, piece in enumerate(pieces, 1):
            digest.update(piece)
            yield Blob(name, piece, part - 1, count)
        if part != count or digest.hexdigest() != name:
            raise StoreDamaged(
                f"The attachment {name} is damaged in the store.",
                hint="run: tenax doctor",
            )


def _events(snapshot: Snapshot, head: _Head) -> Iterator[Event]:
    """Yield facts and partials by seq. Raises `StoreDamaged` for a digest that does not fit the previous event."""
    digest = bytes(32)
    facts = _facts(snapshot, head.num)
    partials = _partials(snapshot, head.num)
    for event in heapq.merge(facts, partials, key=_seq):
        if event.digest is not None:
            digest = _following(digest, head.id, event)
        yield event
    if digest != head.digest:
        raise _damaged(head.id, head.facts)


def _seq(event: Event) -> int:
    return event.seq


def _following(digest: bytes, conversation: str, event: Event) -> bytes:
    try:
        inner = event.inner_hash()
    except ValueError:
        raise _damaged(conversation, event.seq) from None
    seq, kind = event.seq, event.kind
    expected = chain(digest, conversation, seq, kind, event.at, event.run, inner)
    if expected.hex() != event.digest:
        raise _damaged(conversation, seq)
    return expected


def _facts(snapshot: Snapshot, num: int) -> Iterator[Event]:
    names = ("place", "kind", "at", "run", "first", "waiting", "append_id", "salt", "body_hash", "digest", "body")  # fmt: skip
    for row in _read(snapshot, "events", names, bounds(num)):
        place, kind, at, run, first, waiting, append, salt, inner, digest, body = row
        erased = body is None
        yield Event(
            seq=place & ALL_SEQS,
            kind=kind,
            at=at,
            run=run,
            body=None if erased else _text(body),
            salt=_hex(salt),
            inner=_hex(inner),
            first=first if erased else None,
            waiting=waiting if erased else None,
            append=_hex(append),
            digest=_hex(digest),
        )


def _partials(snapshot: Snapshot, num: int) -> Iterator[Event]:
    names = ("place", "code", "at", "append_id", "body")
    rows = _read(snapshot, "partials", names, bounds(num))
    for place, code, at, append, body in rows:
        kind = PARTIALS[code].kind if code in PARTIALS else ""
        yield Event(
            place & ALL_SEQS,
            kind,
            at,
            body=_text(body),
            append=_hex(append),
            code=code,
        )


def _read(
    snapshot: Snapshot, name: str, columns: tuple[str, ...], keys: tuple[int, int]
) -> Iterator[Row]:
    """Yield columns of the rows of a table between two keys."""
    table: Table = _BY_NAME[name]
    all_columns = snapshot.columns(name)
    positions = [all_columns.index(column) for column in columns]
    for row in snapshot.rows(table, keys=keys):
        yield tuple(row[position] for position in positions)


def _text(body: Any) -> str:  # noqa: ANN401  (bytes or a memoryview, by engine)
    try:
        return bytes(body).decode()
    except UnicodeDecodeError as error:
        raise StoreDamaged(
            "The body of an event is not UTF-8.", hint="run: tenax doctor"
        ) from error


def _hex(value: Any) -> str | None:  # noqa: ANN401  (bytes or a memoryview, by engine)
    return None if value is None else bytes(value).hex()


def _damaged(conversation: str, seq: int) -> StoreDamaged:
    return StoreDamaged(
        f"Event {seq} of conversation {conversation} is not what was stored.",
        hint="run: tenax doctor",
    )
