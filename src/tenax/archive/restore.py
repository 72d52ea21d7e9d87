"""Fill a new store from a backup, and prove the equality."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from tenax.archive.format import BackupFolder, Conversation, Manifest, read_rows
from tenax.errors import StoreDamaged
from tenax.journal.copying import Filler, Row, Snapshot
from tenax.journal.journal import Journal
from tenax.journal.tables import TABLES
from tenax.journal.verify.rebuild import rebuild
from tenax.journal.verify.store import verify

if TYPE_CHECKING:
    from tenax.journal.plan import Key
    from tenax.journal.store import Store, Tx

__all__ = [
    "add_dead_instance",
    "compare",
    "fill",
    "finish_index",
    "prove",
    "settle",
    "settle_in",
]

Progress = Callable[[int, int], None]
CHUNK_BYTES: Final = 1024 * 1024
_BY_NAME: Final = {table.name: table for table in TABLES}
_CHUNK_COLUMNS: Final = ("owner", "hash", "n", "bytes")


def fill(
    filler: Filler,
    folder: BackupFolder,
    manifest: Manifest,
    progress: Progress | None = None,
) -> None:
    """Insert every row of a backup into a new store. Raises `DamagedBackup`."""
    for name in manifest.states:
        _insert(filler, folder, name)
    for count, conversation in enumerate(manifest.conversations, 1):
        for name in conversation.segments:
            _insert(filler, folder, name)
        if progress is not None:
            progress(count, len(manifest.conversations))
    for names in manifest.tables.values():
        for name in names:
            _insert(filler, folder, name)
    for name in manifest.tables.get("blobs", ()):
        for _, columns, rows in read_rows(folder.read_object(name)):
            for row in rows:
                values = dict(zip(columns, row, strict=True))
                chunks = _chunks(folder, values["owner"], values["hash"])
                filler.insert("blob_chunks", _CHUNK_COLUMNS, chunks)


def _insert(filler: Filler, folder: BackupFolder, name: str) -> None:
    for table, columns, rows in read_rows(folder.read_object(name)):
        if table not in _BY_NAME:
            raise StoreDamaged(
                f"The backup has a table {table!r:.60}, which no store has.",
                hint="Use a newer Tenax.",
            )
        filler.insert(table, columns, rows)


def _chunks(folder: BackupFolder, owner: str, blob: str) -> Iterator[Row]:
    for number, piece in enumerate(folder.read_bytes(blob)):
        yield owner, blob, number, piece


def settle(journal: Journal, instances: Iterable[str]) -> None:
    """Let a restored store send nothing twice.

    An unfinished delivery to a chat is uncertain, and every chat continues after the last event. What a memory provider
    was owed is a dead letter. A person decides about both. `instances` are the dead processes with a spool on this host:
    the next server stores the output in these spools.
    """
    store = journal.store
    now = journal.clock.now_us()

    def once(tx: Tx) -> None:
        settle_in(tx)
        for instance in instances:
            add_dead_instance(tx, instance, now)

    store.change(once)


def settle_in(tx: Tx) -> None:
    """Settle the deliveries of a restored store, in a transaction."""
    for name in ("settle_deliveries", "settle_routes", "bury_owed", "settle_readers"):
        tx.run(name)


def add_dead_instance(tx: Tx, instance: str, now: int) -> None:
    """Store the row of a dead process of this host. Only a spool of a known process is replayed."""
    row = {"id": instance, "host": platform.node(), "at": now, "up": ""}
    tx.run("put_instance", row)
    tx.run("end_instance", row)


def finish_index(journal: Journal, manifest: Manifest) -> None:
    """Derive the index rows of the conversations with several segments: a later event may change an earlier row."""
    store = journal.store
    for one in manifest.conversations:
        if len(one.segments) > 1:
            key = (one.owner, one.id)
            store.change(partial(_rebuild, store, key))


def _rebuild(store: Store, key: Key, tx: Tx) -> None:
    rebuild(tx, store.heads(tx, [key])[key])


def prove(
    journal: Journal,
    expected: Iterator[Conversation],
    snapshot: Snapshot,
) -> int:
    """Verify a filled store, and compare the conversations. Return the number of events. Raises `StoreDamaged`."""
    report = verify(journal)
    if not report.ok:
        raise StoreDamaged(
            f"The copy of the store has {len(report.problems):,} problems. The first one: {report.problems[0]}",
            hint="run: tenax doctor",
        )
    compare(expected, conversations_of(snapshot))
    return report.facts


def compare(expected: Iterator[Conversation], found: Iterator[Conversation]) -> None:
    """Raises `StoreDamaged` if a conversation is missing, is new, or has a different digest."""
    wanted = {one.num: _identity(one) for one in expected}
    for one in found:
        if wanted.pop(one.num, None) != _identity(one):
            raise StoreDamaged(
                f"Conversation {one.id} of the copy is not the one of the original.",
                hint="run: tenax doctor",
            )
    if wanted:
        raise StoreDamaged(f"{len(wanted):,} conversations are missing in the copy.")


def _identity(one: Conversation) -> tuple[str, str, int, str]:
    return one.owner, one.id, one.facts, one.digest


def conversations_of(snapshot: Snapshot) -> Iterator[Conversation]:
    """Yield the conversations of a store, without segments."""
    names = _read(snapshot, "conversations", ("num", "owner", "id"))
    heads = _read(snapshot, "heads", ("conversation", "head", "facts", "digest"))
    for (num, owner, name), (same, head, facts, digest) in zip(
        names, heads, strict=True
    ):
        if num != same:
            raise StoreDamaged(f"Conversation {num} has no head.")
        yield Conversation(num, owner, name, head, facts, bytes(digest).hex(), ())


def _read(snapshot: Snapshot, table: str, columns: tuple[str, ...]) -> Iterator[Row]:
    have = snapshot.columns(table)
    places = [have.index(column) for column in columns]
    for row in snapshot.rows(_BY_NAME[table]):
        yield tuple(row[place] for place in places)
