"""Write a backup of a store at a point in time.

A backup reads the store in a single read transaction, so writers do not wait. With an earlier backup in the folder,
only new events are read: the last digest of a conversation shows that the earlier segments are complete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tenax.archive.format import (
    BackupFolder,
    Conversation,
    File,
    Manifest,
    RowsWriter,
)
from tenax.errors import StoreDamaged
from tenax.journal.copying import Row, Snapshot
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS, bounds
from tenax.journal.tables import TABLES, Table

__all__ = ["About", "Progress", "Written", "write_backup"]

SEGMENTS_MAX: Final = 64
"""A conversation with more segments is written anew, as few segments."""
GROUP: Final = 64
"""The number of conversation numbers whose rows, apart from events, share an object."""
_BY_NAME: Final = {table.name: table for table in TABLES}
_EVENTS: Final = _BY_NAME["events"]
_ERASED: Final = "content.erased"

Progress = Callable[[int, int], None]
"""Called with the number of finished conversations, and of all conversations."""


class About(NamedTuple):
    """The description of a backup for the manifest."""

    created_at: str
    tenax: str
    files: tuple[File, ...]
    has_secrets: bool = False


class Written(NamedTuple):
    """A backup, not yet tested."""

    manifest: Manifest
    erased: int
    """The number of conversations that were deleted, or in which text was erased, since the earlier backup."""


def write_backup(
    snapshot: Snapshot,
    folder: BackupFolder,
    previous: Manifest | None,
    about: About,
    progress: Progress | None = None,
) -> Written:
    """Write the objects of a backup, and return the manifest. `BackupFolder.commit` stores the manifest."""
    writer = _Backup(snapshot, folder, previous, progress)
    conversations = tuple(writer.write_conversations())
    tables = {
        table.name: writer.write_table(table)
        for table in TABLES
        if not table.conversation
        and table.name != "blob_chunks"
        and snapshot.has(table.name)
    }
    manifest = Manifest(
        created_at=about.created_at,
        tenax=about.tenax,
        engine=snapshot.engine,
        schema=snapshot.schema,
        incarnation=snapshot.incarnation,
        has_secrets=about.has_secrets,
        conversations=conversations,
        states=tuple(writer.states.objects),
        tables=tables,
        files=about.files,
        blobs=writer.write_blobs(),
        counts=dict(sorted(writer.counts.items())),
    )
    return Written(manifest.sealed(), writer.erased + writer.deleted(conversations))


class _Backup:
    def __init__(
        self,
        snapshot: Snapshot,
        folder: BackupFolder,
        previous: Manifest | None,
        progress: Progress | None,
    ) -> None:
        self._snapshot = snapshot
        self._folder = folder
        earlier = previous.conversations if previous is not None else ()
        self._earlier = {one.num: one for one in earlier}
        self._progress = progress
        self._event_columns = snapshot.columns("events")
        self.states = RowsWriter(folder)
        self.counts: dict[str, int] = {}
        self.erased = 0

    # -- conversations ---------------------------------------------------------------------

    def write_conversations(self) -> Iterator[Conversation]:
        """Write every conversation, in the order of the numbers."""
        with contextlib.ExitStack() as stack:
            streams = [
                _Stream(stack, self._snapshot, table)
                for table in TABLES
                if table.conversation
                and table.name != "events"
                and self._snapshot.has(table.name)
            ]
            conversations, heads, *others = streams
            group = -1
            count = 0
            while (num := conversations.next_num()) is not None:
                if num // GROUP != group:
                    self.states.cut()
                    group = num // GROUP
                listed = conversations.take_one(num)
                head = heads.take_one(num)
                self._write_state(conversations.table.name, conversations, [listed])
                self._write_state(heads.table.name, heads, [head])
                for stream in others:
                    self._write_state(stream.table.name, stream, stream.take(num))
                yield self._write_events(
                    num,
                    dict(zip(conversations.columns, listed, strict=True)),
                    dict(zip(heads.columns, head, strict=True)),
                )
                count += 1
                if self._progress is not None:
                    self._progress(count, max(count, len(self._earlier)))
            for stream in others:
                # The ids of received messages stay when their conversation is deleted.
                self._write_state(stream.table.name, stream, stream.take(ALL_SEQS))
            self.states.cut()

    def _write_state(self, name: str, stream: _Stream, rows: Any) -> None:  # noqa: ANN401  (rows)
        for row in rows:
            self.states.add(name, stream.columns, row)
            self._count(name, 1)

    def _write_events(
        self, num: int, listed: dict[str, Any], head: dict[str, Any]
    ) -> Conversation:
        facts, digest = head["facts"], bytes(head["digest"]).hex()
        earlier = self._usable(num, listed, facts)
        segments: tuple[str, ...] = ()
        after = 0
        if earlier is not None:
            segments, after = earlier.segments, earlier.facts
        if after < facts:
            new = self._write_segments(num, after, refuse_erasure=after > 0)
            if new is None:
                self.erased += 1
                segments, new = (), self._write_segments(num, 0)
            segments += tuple(new or ())
        return Conversation(
            num, listed["owner"], listed["id"], head["head"], facts, digest, segments
        )

    def _usable(
        self, num: int, listed: dict[str, Any], facts: int
    ) -> Conversation | None:
        """Return the conversation of the earlier backup, if the store still has the events and the objects exist."""
        earlier = self._earlier.get(num)
        if (
            earlier is None
            or (earlier.owner, earlier.id) != (listed["owner"], listed["id"])
            or not 0 < earlier.facts <= facts
            or len(earlier.segments) >= SEGMENTS_MAX
        ):
            return None
        place = (num << SEQ_BITS) + earlier.facts
        index = self._event_columns.index("digest")
        found = list(self._snapshot.rows(_EVENTS, keys=(place - 1, place)))
        if not found or bytes(found[0][index]).hex() != earlier.digest:
            return None
        if not all(map(self._folder.has, earlier.segments)):
            return None
        return earlier

    def _write_segments(
        self, num: int, after: int, *, refuse_erasure: bool = False
    ) -> list[str] | None:
        """Write the events after a seq. With `refuse_erasure`, return `None` if an event erases earlier events."""
        low, high = bounds(num)
        kind = self._event_columns.index("kind")
        writer = RowsWriter(self._folder)
        for row in self._snapshot.rows(_EVENTS, keys=(low + after, high)):
            if refuse_erasure and row[kind] == _ERASED:
                return None
            writer.add("events", self._event_columns, row)
        writer.cut()
        return writer.objects

    def deleted(self, conversations: tuple[Conversation, ...]) -> int:
        """Return the number of conversations missing since the earlier backup."""
        return len(self._earlier.keys() - {one.num for one in conversations})

    # -- the other tables ------------------------------------------------------------------

    def write_table(self, table: Table) -> tuple[str, ...]:
        writer = RowsWriter(self._folder)
        columns = self._snapshot.columns(table.name)
        for row in self._snapshot.rows(table):
            writer.add(table.name, columns, row)
            self._count(table.name, 1)
        writer.cut()
        return tuple(writer.objects)

    def write_blobs(self) -> tuple[str, ...]:
        """Write the content of the attachments. Return the names."""
        columns = self._snapshot.columns("blobs")
        owner_at, hash_at = columns.index("owner"), columns.index("hash")
        owners: dict[str, str] = {}
        for row in self._snapshot.rows(_BY_NAME["blobs"]):
            owners.setdefault(row[hash_at], row[owner_at])
        for blob, owner in owners.items():
            if self._folder.has(blob):
                continue
            name = self._folder.write_bytes(self._snapshot.blob(owner, blob))
            if name != blob:
                raise StoreDamaged(
                    f"The attachment {blob} is damaged in the store.",
                    hint="run: tenax doctor",
                )
        return tuple(sorted(owners))

    def _count(self, table: str, number: int) -> None:
        self.counts[table] = self.counts.get(table, 0) + number


class _Stream:
    """The rows of a table, read conversation by conversation."""

    def __init__(
        self, stack: contextlib.ExitStack, snapshot: Snapshot, table: Table
    ) -> None:
        self.table = table
        self.columns = snapshot.columns(table.name)
        self._is_place = table.order[0] == "place"
        self._at = self.columns.index(table.order[0])
        self._rows = snapshot.rows(table)
        stack.callback(_close, self._rows)
        self._next: Row | None = next(self._rows, None)

    def next_num(self) -> int | None:
        if self._next is None:
            return None
        key = int(self._next[self._at])
        return key >> SEQ_BITS if self._is_place else key

    def take(self, num: int) -> Iterator[Row]:
        """Yield the rows up to a conversation, including rows of deleted conversations."""
        while (found := self.next_num()) is not None and found <= num:
            row = self._next
            assert row is not None
            yield row
            self._next = next(self._rows, None)

    def take_one(self, num: int) -> Row:
        rows = list(self.take(num))
        if len(rows) != 1:
            raise StoreDamaged(
                f"Conversation {num} has {len(rows)} rows in the table {self.table.name}.",
                hint="run: tenax doctor",
            )
        return rows[0]


def _close(rows: Any) -> None:  # noqa: ANN401  (a generator)
    rows.close()
