"""The search index of a SQLite store, in a separate file beside the store: `-search`.

The file stores the position in every conversation in the same transaction as the words, so a message is indexed exactly
once. The file can be deleted or damaged at any time: the process with the lease creates the file again, moves the
journal's cursors back, and indexes everything again. The journal never waits for the index, and stores only the
cursors.

A killed process can leave the file ahead of the journal's cursor, never behind. A power loss can leave the file behind.
So the cursors are compared with the file at the first use in every incarnation of the store.

Forgetting deletes the text and marks the trigrams as deleted. Single trigrams stay in older pages of the index until a
merge of the pages. The merge starts at once and ends in the background.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import uuid
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from tenax.journal import guard
from tenax.journal.row_key import SEQ_BITS, bounds
from tenax.journal.schema import named
from tenax.journal.search.index import (
    READER,
    Position,
    Proposed,
    SearchIndex,
    Unusable,
)
from tenax.journal.search.query import keys_of, trigrams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tenax.journal.search.index import Doc, Key, Move
    from tenax.journal.search.query import Query
    from tenax.journal.store import SqlRow, Store, Tx

__all__ = ["SqliteSearch"]

APPLICATION_ID = 0x546E7857  # "TnxW"
VERSION = 1
"""The version of the file and of the folding. An older file is created again, a newer file is not touched."""
UNIT_BITS = 6
GRAMS_MAX = 48
BUSY_MS = 5000
CACHE_KIB = 16_384
READERS_MAX = 4
FORGET_PER_STEP = 500
VACUUM_PAGES = 2000
MERGE_AFTER, MERGE_SHARE = 20_000, 5
"""After this many new messages, or a fifth of all messages, an idle index is merged, because every segment slows every
search a little.
"""
LOOK_AT_ONCE = 500
PAGE = 1000
SET_BACK_AT_ONCE = 100
"""The largest number of cursors moved back in a transaction. Appends wait for the transaction."""
_OWNER, _CONVERSATION = (0xE000, 12), (0xF0000, 15)
_DAMAGE = (apsw.CorruptError, apsw.NotADBError)
_NOT_OURS = (apsw.ConstraintError, apsw.SQLError)
"""Errors of a write into a file with foreign content. During a read, the query may be the cause."""
_MERGE, _MERGE_GRAMS, _MERGE_KEYS, _GIVE_ROOM_BACK, _EMPTY_LOG, _CHORES = (
    1,
    2,
    3,
    4,
    5,
    6,
)
"""The steps of the maintenance after a message was forgotten, in order."""
_SQL = named("words.sql")


class SqliteSearch(SearchIndex):
    """The index in a file, or in memory for a store without a file."""

    def __init__(self, store: Store, path: Path | None) -> None:
        self._store = store
        self._file = _File(path)
        self._swept = False

    # -- searching -------------------------------------------------------------------------------------------

    def ready(self) -> str | None:
        with self._file.reading() as db:
            ((generation, life),) = _run(db, "meta")
        return f"{generation}.{life}" if life == self._store.incarnation else None

    def propose(
        self,
        user: str,
        query: Query,
        *,
        num: int | None,
        before: Key | None,
        limit: int,
    ) -> Proposed:
        with self._file.reading() as db:
            if not (known := _run(db, "owner", {"name": user})):
                return Proposed([])
            ((owner,),) = known
            low, high = (0, 2**63 - 1) if num is None else bounds(num)
            deadline = self._store.clock.monotonic() + self._store.timing.search_seconds

            def meant(doc: int, at: int, row_key: int, whose: int) -> bool:
                # Check the scope again, because text could contain the characters of a scope.
                ours = whose == owner and low <= row_key <= high
                if not ours or (before is not None and (at, row_key) >= before):
                    return False
                return query.matches(_run(db, "folded", {"id": doc})[0][0])

            scope = _scope(_OWNER, owner) if num is None else _scope(_CONVERSATION, num)
            ((drift,),) = _run(db, "drift")
            rows = _candidates(db, query, scope, before, drift)
            return _newest(
                rows,
                meant,
                limit,
                drift,
                lambda: self._store.clock.monotonic() < deadline,
            )

    # -- indexing --------------------------------------------------------------------------------------------

    def prepare(self, hold: Callable[[Tx], None]) -> None:
        with self._file.writing(create=True) as db:
            ((_, life),) = _run(db, "meta")
        if life != self._store.incarnation:
            self._compare_cursors(hold)
            self._swept = False
        if not self._swept:
            self._sweep()
        if life != self._store.incarnation:
            with self._file.writing() as db, _changing(db):
                _run(db, "set_life", {"life": self._store.incarnation})

    def _compare_cursors(self, hold: Callable[[Tx], None]) -> None:
        """Move the journal's cursors back to the positions of the file, wherever the file is behind."""
        past = 0
        while page := self._store.query(
            "cursors_page", reader=READER.name, past=past, limit=PAGE
        ):
            with self._file.writing() as db:
                have: dict[int, int] = dict(
                    _run(
                        db,
                        "positions_page",
                        {"nums": json.dumps([num for num, _ in page])},
                    )
                )
            wrong = [
                (num, have.get(num, 0)) for num, seq in page if have.get(num, 0) < seq
            ]
            for start in range(0, len(wrong), SET_BACK_AT_ONCE):
                with self._store.transaction(durable=False) as tx:
                    hold(tx)
                    for num, seq in wrong[start : start + SET_BACK_AT_ONCE]:
                        tx.run(
                            "set_back", {"num": num, "reader": READER.name, "to": seq}
                        )
            past = page[-1][0]

    def _sweep(self) -> None:
        """Forget deleted conversations left in the index because the deleting process died."""
        past = 0
        while page := self._store.query("tombstones_page", past=past, limit=PAGE):
            with self._file.writing() as db:
                indexed = _run(
                    db, "have_docs", {"nums": json.dumps([num for (num,) in page])}
                )
            for (num,) in indexed:
                self._remove(num, None)
            past = page[-1][0]
        self._swept = True

    def position(self, num: int, was: int) -> Position:  # noqa: ARG002  (only the position in the file counts)
        with self._file.writing() as db:
            return _position(db, num)

    def apply(self, moves: Sequence[Move], hold: Callable[[Tx], None]) -> None:
        with self._file.writing() as db:
            with _changing(db):
                done = [move for move in moves if _begin_move(db, move)]
                _insert_docs(db, done)
            self._file.check_there()
        with self._store.transaction(durable=False) as tx:
            hold(tx)
            for move in done:
                tx.run(
                    "advance",
                    {
                        "num": move.num,
                        "reader": READER.name,
                        "to": move.to,
                        "was": move.was,
                    },
                )

    # -- forgetting ------------------------------------------------------------------------------------------

    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:
        try:
            if not self._file.exists():
                return True
            self._remove(num, seqs)
            with self._file.writing() as db:
                return self._file.in_memory or _empty_log(db)
        except Unusable:
            # A damaged file is created again only by an indexing process. Until then the file would keep the text.
            return self._file.damaged and self._file.discard()

    def _remove(self, num: int, seqs: Sequence[int] | None) -> None:
        """Delete the text at once. A batch of the conversation read in the meantime is not indexed."""
        low, high = bounds(num)
        spans = (
            [(low, high)] if seqs is None else [(low + seq, low + seq) for seq in seqs]
        )
        with self._file.writing() as db, _changing(db):
            _run(db, "note_forgetting", {"num": num})
        for start, end in spans:
            dropped = FORGET_PER_STEP
            while dropped == FORGET_PER_STEP:
                with self._file.writing() as db, _changing(db):
                    dropped = _drop(db, start, end, FORGET_PER_STEP)

    def tidy(self, *, idle: bool = False) -> bool:
        if self._file.in_memory or not self._file.exists():
            return False
        with self._file.writing() as db:
            ((chore, docs, unmerged),) = _run(db, "chores")
            if not chore and idle and unmerged >= max(MERGE_AFTER, docs // MERGE_SHARE):
                chore = _MERGE
                _run(db, "set_chore", {"chore": chore})
            if chore and self._do(db, chore):
                _run(db, "next_chore", {"was": chore, "to": (chore + 1) % _CHORES})
            return bool(chore)

    @staticmethod
    def _do(db: apsw.Connection, chore: int) -> bool:
        """Do a small step of a chore. Return `True` if the chore is done. Indexing and forgetting wait for the step."""
        if chore == _MERGE:
            with _changing(db):
                _run(db, "begin_merging_grams")
                _run(db, "begin_merging_keys")
            return True
        if chore in {_MERGE_GRAMS, _MERGE_KEYS}:
            before = db.total_changes()
            _run(db, "merge_grams" if chore == _MERGE_GRAMS else "merge_keys")
            return db.total_changes() - before < 2  # noqa: PLR2004  (FTS5 reports fewer than 2 changes if nothing was left)
        if chore == _GIVE_ROOM_BACK:
            db.execute(f"pragma incremental_vacuum({VACUUM_PAGES})").fetchall()
            return not db.pragma("freelist_count")
        return _empty_log(db)

    # -- closing ---------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        self._file.interrupt()

    def close(self) -> None:
        self._file.close()


class _File:
    """The connections to the file: a connection for writing, a few for reading.

    Every use first checks that the file is still the same, because another process may have created the file again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path or Path()
        self.in_memory = path is None
        self.damaged = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._writer: apsw.Connection | None = None
        self._writes_to: _Identity = None
        self._idle: list[tuple[apsw.Connection, _Identity]] = []
        # The lock of `_idle`: a reader does not wait for the writer.
        self._shelf = threading.Lock()
        self._closed = False
        if path is not None:
            guard.protect(path)

    def exists(self) -> bool:
        return self.in_memory or self._identity() is not None

    def check_there(self) -> None:
        """Raise `Unusable` if the last write went into a replaced file."""
        if self._identity() != self._writes_to:
            raise Unusable("The search file was replaced.")

    @contextlib.contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        if self.in_memory:
            with self.writing(create=True) as db:
                yield db
            return
        connection, of = self._borrow()
        try:
            yield connection
        except apsw.Error as error:
            raise self._judge(error) from error
        finally:
            with self._shelf:
                keep = (
                    not self._closed
                    and not self.damaged
                    and len(self._idle) < READERS_MAX
                )
                if keep:
                    self._idle.append((connection, of))
            if not keep:
                _shut(connection)

    def _borrow(self) -> tuple[apsw.Connection, _Identity]:
        self._check_use()
        of = self._identity()
        if of is None or self.damaged:
            raise Unusable("There is no search file.")
        while True:
            with self._shelf:
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                break
            if idle[1] == of:
                return idle
            _shut(idle[0])
        try:
            connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
            connection.pragma("query_only", 1)
            version = self._version(connection)
        except apsw.Error as error:
            raise self._judge(error) from error
        if version != VERSION or self._identity() != of:
            _shut(connection)
            raise Unusable("The search file is of another version.")
        return connection, of

    @contextlib.contextmanager
    def writing(self, *, create: bool = False) -> Iterator[apsw.Connection]:
        """Lock and return the write connection. `create` creates a missing, old or damaged file."""
        with self._lock:
            try:
                yield self._open_writer(create=create)
            except apsw.Error as error:
                raise self._judge(error, writing=True) from error

    def _open_writer(self, *, create: bool) -> apsw.Connection:
        self._check_use()
        if self._writer is not None and self._identity() != self._writes_to:
            self._drop_writer()
        if create and self.damaged:
            self._unlink()
        if self._writer is None:
            if not self.exists() and not create:
                raise Unusable("There is no search file.")
            self._writer = self._connect(
                apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
            )
            self._writes_to = self._identity()
        version = self._version(self._writer)
        if version == VERSION:
            return self._writer
        if version > VERSION or not create:
            raise Unusable("The search file is of another version.")
        if self._writer.pragma("page_count") > 0:
            self._unlink()
            self._writer = self._connect(
                apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
            )
        self._make(self._writer)
        self._writes_to = self._identity()
        return self._writer

    def _make(self, db: apsw.Connection) -> None:
        if not self.in_memory:
            guard.make_private(self._path)
        db.pragma("auto_vacuum", "incremental")
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("journal_mode", "wal")
        with _changing(db):
            db.execute(_SQL["schema"])
            _run(db, "put_meta", {"generation": uuid.uuid4().hex})
            db.pragma("user_version", VERSION)

    def _connect(self, flags: int) -> apsw.Connection:
        connection = apsw.Connection(
            ":memory:" if self.in_memory else str(self._path), flags=flags
        )
        connection.set_busy_timeout(BUSY_MS)
        connection.pragma("synchronous", "normal")
        connection.pragma("secure_delete", "on")
        connection.pragma("temp_store", "memory")
        connection.pragma("cache_size", -CACHE_KIB)
        # An ending process does not wait for a checkpoint.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection

    @staticmethod
    def _version(connection: apsw.Connection) -> int:
        ours = connection.pragma("application_id") == APPLICATION_ID
        return int(connection.pragma("user_version")) if ours else 0

    def _judge(self, error: apsw.Error, *, writing: bool = False) -> Unusable:
        if (
            isinstance(error, _DAMAGE + _NOT_OURS if writing else _DAMAGE)
            and not self._closed
        ):
            self.damaged = True
            self._mark()
        return Unusable(
            f"The search file cannot be used: {str(error) or type(error).__name__}."
        )

    def _mark(self) -> None:
        """Tell other processes about the damage, if the file is still writable."""
        with contextlib.suppress(apsw.Error):
            connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
            connection.pragma("user_version", 0)
            _shut(connection)

    def discard(self) -> bool:
        """Remove a damaged file. The next indexing process creates a new file."""
        with self._lock:
            self._unlink()
        return True

    def _unlink(self) -> None:
        """Remove the file before its log: SQLite discards a log without a file and never applies it to another file."""
        self._close_connections()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        self.damaged = False

    def _identity(self) -> _Identity:
        if self.in_memory:
            return 0, 0
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_use(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise Unusable("The search file was closed.")

    def interrupt(self) -> None:
        writer = self._writer
        if writer is not None:
            with contextlib.suppress(apsw.Error):
                writer.interrupt()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            self._close_connections()

    def _close_connections(self) -> None:
        self._drop_writer()
        with self._shelf:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            _shut(connection)

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            _shut(writer)


_Identity = tuple[int, int] | None


# -- rows --------------------------------------------------------------------------------------------------


def _candidates(
    db: apsw.Connection, query: Query, scope: str, before: Key | None, drift: int
) -> apsw.Cursor:
    top = 2**63 - 1
    if before is not None:
        top = min(_slot(before[0]) + drift, top)
    grams = _all_of([*trigrams(query.pieces)[:GRAMS_MAX], scope])
    keys = _all_of([*query.keys, scope])
    if not query.keys:
        return db.execute(_SQL["by_grams"], {"grams": grams, "top": top})
    if not query.pieces:
        return db.execute(_SQL["by_keys"], {"keys": keys, "top": top})
    return db.execute(_SQL["by_both"], {"grams": grams, "keys": keys, "top": top})


def _newest(
    rows: apsw.Cursor,
    meant: Callable[[int, int, int, int], bool],
    limit: int,
    drift: int,
    in_time: Callable[[], bool],
) -> Proposed:
    """Return the newest matching rows. Rows arrive by id, and a later row may be newer by up to `drift` ids.

    So the loop continues past the limit until no later row can be newer. The loop never stops so early that the next
    page would start at the same position.
    """
    found: list[Key] = []
    first = enough = -1
    upto = None
    with contextlib.closing(rows):
        for n, (doc, at, row_key, whose) in enumerate(rows):
            first = max(first, doc)
            if doc < enough:
                break
            # The next page would start below this page.
            below = first - doc > drift + 1
            if (
                n % LOOK_AT_ONCE == LOOK_AT_ONCE - 1
                and enough < 0
                and below
                and not in_time()
            ):
                upto = (doc + 1) << UNIT_BITS, 0
                break
            if (enough < 0 or (at, row_key) > found[-1]) and meant(
                doc, at, row_key, whose
            ):
                found.append((at, row_key))
                if len(found) >= limit:
                    found.sort(reverse=True)
                    del found[limit:]
                    enough = _slot(found[-1][0])
    return Proposed(sorted(found, reverse=True), upto)


def _position(db: apsw.Connection, num: int) -> Position:
    rows = _run(db, "position", {"num": num})
    return Position(*rows[0]) if rows else Position(0, b"")


def _begin_move(db: apsw.Connection, move: Move) -> bool:
    """Start a move. Return `False` if the position has changed since the read; the move is then read again."""
    if _position(db, move.num) != move.start:
        return False
    while move.anew and _drop(db, *bounds(move.num), PAGE):
        pass
    for row_key in move.erased:
        _drop(db, row_key, row_key, 1)
    _run(db, "set_position", {"num": move.num, "seq": move.to, "digest": move.digest})
    return True


def _insert_docs(db: apsw.Connection, moves: Sequence[Move]) -> None:
    """Insert the docs of the moves, oldest first: FTS5 writes a new segment whenever an id is not above the last id."""
    gone = {row_key for move in moves for row_key in move.erased}
    docs = [
        (_slot(doc.at), doc, move.user)
        for move in moves
        for doc in move.docs
        if doc.row_key not in gone
    ]
    docs.sort(key=itemgetter(0))
    owners: dict[str, int] = {}
    rows: list[tuple[int, int, Doc]] = []
    last = drift = -1
    for slot, doc, user in docs:
        if user not in owners:
            owners[user] = (
                _run(db, "owner", {"name": user})
                or _run(db, "put_owner", {"name": user})
            )[0][0]
        last = _free_id(db, max(slot, last + 1))
        drift = max(drift, last - slot)
        rows.append((last, owners[user], doc))
    db.executemany(
        _SQL["put_doc"],
        [(new, doc.row_key, doc.at, owner, doc.folded) for new, owner, doc in rows],
    )
    db.executemany(
        _SQL["put_grams"],
        [(new, *_scopes(owner, doc.row_key), doc.folded) for new, owner, doc in rows],
    )
    keys = [
        (new, *_scopes(owner, doc.row_key), " ".join(keys_of(doc.folded)))
        for new, owner, doc in rows
    ]
    db.executemany(_SQL["put_keys"], keys)
    _run(db, "count_docs", {"docs": len(rows), "drift": drift})


def _free_id(db: apsw.Connection, first: int) -> int:
    """Return a free id at or above `first`, found by growing strides and then by bisection."""

    def taken(doc: int) -> bool:
        return bool(db.execute(_SQL["taken"], (doc,)).fetchall())

    if not taken(first):
        return first
    low, stride = first, 1
    while taken(low + stride):
        low, stride = low + stride, stride * 2
    high = low + stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if taken(middle) else (low, middle)
    return high


def _drop(db: apsw.Connection, low: int, high: int, limit: int) -> int:
    """Remove at most `limit` docs between two row keys. Return the number of removed docs."""
    rows = _run(db, "docs_between", {"low": low, "high": high, "limit": limit})
    for doc, row_key, owner, folded in rows:
        db.execute(_SQL["drop_grams"], (doc, *_scopes(owner, row_key), folded))
        db.execute(
            _SQL["drop_keys"],
            (doc, *_scopes(owner, row_key), " ".join(keys_of(folded))),
        )
        db.execute(_SQL["drop_doc"], (doc,))
    if rows:
        _run(db, "set_chore", {"chore": _MERGE})
    return len(rows)


def _empty_log(db: apsw.Connection) -> bool:
    """Copy the log back and truncate it, so that no older copy of a page is left. Return `False` while others read."""
    try:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    return True


def _slot(at: int) -> int:
    return max(at, 0) >> UNIT_BITS


def _scopes(owner: int, row_key: int) -> tuple[str, str]:
    return _scope(_OWNER, owner), _scope(_CONVERSATION, row_key >> SEQ_BITS)


@functools.lru_cache(maxsize=4096)
def _scope(alphabet: tuple[int, int], number: int) -> str:
    """Return a number as three private-use characters."""
    first, bits = alphabet
    mask = (1 << bits) - 1
    return "".join(
        chr(first + (number >> shift & mask)) for shift in (2 * bits, bits, 0)
    )


def _all_of(tokens: Sequence[str]) -> str:
    """Return an FTS5 query for all tokens. Inside quotes only the quote is special."""
    return " AND ".join('"' + token.replace('"', '""') + '"' for token in tokens)


def _run(
    db: apsw.Connection, name: str, params: dict[str, Any] | None = None
) -> list[SqlRow]:
    return db.execute(_SQL[name], params or {}).fetchall()


@contextlib.contextmanager
def _changing(db: apsw.Connection) -> Iterator[None]:
    """Open a transaction with the write lock from the start, not from the first write."""
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def _shut(connection: apsw.Connection) -> None:
    with contextlib.suppress(apsw.Error):
        connection.close()
