"""Copy a store table by table: read one moment of a store, and fill a new store.

`open_snapshot` reads a store in use in a single read transaction, without the checks of `Journal`. So a store of an
earlier version can be read too. `open_filler` creates the tables of a given version and inserts rows with all columns,
including row keys, salts and digests. The caller verifies the new store afterwards.

A filled store becomes visible in one step at the end: a SQLite file is renamed by the caller, and a PostgreSQL store is
filled in a schema of its own (`SCRATCH_SCHEMA`), whose tables `publish` moves.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import apsw

from tenax.concurrency import locked, sync_directory
from tenax.errors import CannotOpen, StoreDamaged, StoreError, StoreFull
from tenax.journal import guard
from tenax.journal.schema import migrations, statements
from tenax.journal.sqlite import APPLICATION_ID, PAGE_SIZE, leave_log
from tenax.journal.tables import Table

__all__ = [
    "ROWS_AT_ONCE",
    "Filler",
    "Snapshot",
    "SqliteFiller",
    "SqliteSnapshot",
    "publish_file",
    "select",
    "sqlite_path",
]

Row = tuple[Any, ...]
ROWS_AT_ONCE: Final = 100
_SQL: Final = statements("sqlite")
_HOLD_SECONDS: Final = 10.0


class Snapshot(Protocol):
    """One moment of a store."""

    engine: str
    schema: int
    incarnation: str

    def has(self, table: str) -> bool:
        """Return whether the store has the table. A store of an earlier version lacks some tables."""

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the names of the columns, in their order."""

    def rows(
        self, table: Table, *, keys: tuple[int, int] | None = None
    ) -> Iterator[Row]:
        """Yield the rows in the order of the table. `keys` selects by the first column of the order: greater than the
        first number, up to the second.
        """

    def blob(self, owner: str, blob: str) -> Iterator[bytes]:
        """Yield the content of a blob in pieces."""

    def close(self) -> None:
        """End the read transaction."""


class Filler(Protocol):
    """A new store that is being filled."""

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
        """Insert rows and return their number."""

    def finish(self) -> None:
        """Commit. The store can be opened afterwards."""

    def close(self) -> None:
        """Give up what is not finished."""


def select(table: Table, columns: Sequence[str], keys: tuple[int, int] | None) -> str:
    """Return the statement that reads a table. A table of an earlier version may lack columns of the key."""
    conditions = [table.where] if table.where else []
    if keys is not None:
        after, up_to = keys
        conditions.append(
            f"{table.order[0]} > {after:d} and {table.order[0]} <= {up_to:d}"
        )
    where = f" where {' and '.join(conditions)}" if conditions else ""
    order = ", ".join(column for column in table.order if column in columns)
    return f"select * from {table.name}{where} order by {order}"  # noqa: S608  (names from `TABLES`)


# -- SQLite ----------------------------------------------------------------------------------


class SqliteSnapshot:
    """A read transaction on a SQLite file. With `hold`, no process can write until `close`."""

    def __init__(self, path: Path, *, hold: bool = False) -> None:
        self.engine = "sqlite"
        self._stack = contextlib.ExitStack()
        try:
            with _explained(path):
                self._connection = self._connect(path, hold=hold)
                self.schema, self.incarnation = self._read_store(path)
        except BaseException:
            self._stack.close()
            raise

    def _connect(self, path: Path, *, hold: bool) -> apsw.Connection:
        if hold:
            lock = Path(f"{path.resolve()}-lock")
            try:
                self._stack.enter_context(locked(lock, _HOLD_SECONDS))
            except TimeoutError as error:
                raise CannotOpen(
                    f"Another process is writing to {path}.", hint="Try again."
                ) from error
        if path.stat().st_size <= 1:
            # SQLite would treat the file as new, and delete the log.
            raise StoreDamaged(f"{path} is empty.", hint="Restore a copy of the store.")
        # The log of a store in use needs a connection that may write.
        flags = apsw.SQLITE_OPEN_READWRITE
        connection = apsw.Connection(str(path), flags=flags)
        self._stack.callback(connection.close, force=True)
        connection.set_busy_timeout(int(_HOLD_SECONDS * 1000))
        connection.pragma("wal_autocheckpoint", 0)
        # The store and its log stay as they are, also if this is the last connection.
        leave_log(connection)
        connection.execute("begin immediate" if hold else "begin")
        if connection.pragma("application_id") != APPLICATION_ID:
            raise CannotOpen(f"{path} is not a store of Tenax.")
        return connection

    def _read_store(self, path: Path) -> tuple[int, str]:
        if not self.has("store"):
            raise CannotOpen(f"{path} is not a store of Tenax.")
        rows = self._connection.execute(_SQL["store"]).fetchall()
        if not rows:
            raise StoreDamaged(f"{path} does not say which version it has.")
        return int(str(rows[0][0])), str(rows[0][1])

    def has(self, table: str) -> bool:
        found = self._connection.execute(
            "select 1 from sqlite_schema where type = 'table' and name = ?", (table,)
        )
        return bool(found.fetchall())

    def columns(self, table: str) -> tuple[str, ...]:
        rows = self._connection.execute(
            "select name from pragma_table_info(?) order by cid", (table,)
        )
        return tuple(str(name) for (name,) in rows)

    def rows(
        self, table: Table, *, keys: tuple[int, int] | None = None
    ) -> Iterator[Row]:
        with _explained(Path(self._connection.filename)):
            yield from self._connection.execute(
                select(table, self.columns(table.name), keys)
            )

    def blob(self, owner: str, blob: str) -> Iterator[bytes]:
        found = self._connection.execute(
            "select bytes from blob_chunks where owner = ? and hash = ? order by n",
            (owner, blob),
        )
        for (data,) in found:
            assert isinstance(data, bytes)
            yield data

    def close(self) -> None:
        self._stack.close()


class SqliteFiller:
    """A new SQLite file. Nothing reads the file before `finish`, so the file needs no log."""

    def __init__(self, path: Path, schema: int, incarnation: str, at: int) -> None:
        self._path = path
        path.touch(mode=0o600, exist_ok=False)
        guard.make_private(path)
        self._connection = apsw.Connection(str(path))
        with _explained(path):
            self._create_tables(schema, incarnation, at)

    def _create_tables(self, schema: int, incarnation: str, at: int) -> None:
        connection = self._connection
        connection.pragma("page_size", PAGE_SIZE)
        connection.pragma("auto_vacuum", "incremental")
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("journal_mode", "off")
        connection.pragma("synchronous", "off")
        connection.pragma("temp_store", "memory")
        connection.execute("begin")
        for script in migrations("sqlite")[:schema]:
            connection.execute(script)
        row = {"schema": schema, "incarnation": incarnation, "life": "", "at": at}
        connection.execute(_SQL["put_store"], row)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
        places = ", ".join("?" * len(columns))
        sql = f"insert into {table} ({', '.join(columns)}) values ({places})"  # noqa: S608  (names from `TABLES`)
        count = 0
        remaining = iter(rows)
        with _explained(self._path):
            while page := list(islice(remaining, ROWS_AT_ONCE)):
                self._connection.executemany(sql, page)
                count += len(page)
        return count

    def finish(self) -> None:
        with _explained(self._path):
            # The numbers of deleted conversations are not used again.
            self._connection.execute(
                "update sqlite_sequence set seq = max(seq, coalesce((select max(num) from tombstones), 0)) "
                "where name = 'conversations'"
            )
            self._connection.execute("commit")
            self._connection.close()

    def close(self) -> None:
        self._connection.close(force=True)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except apsw.FullError as error:
        raise StoreFull(
            f"There is no room for {path}.", hint="Free some disk space."
        ) from error
    except (apsw.CorruptError, apsw.NotADBError, TypeError, ValueError) as error:
        # A damaged row may have a value of another type, or text that is not UTF-8.
        raise StoreDamaged(f"{path} is damaged: {error}.") from error
    except apsw.Error as error:
        raise StoreError(f"{path}: {error}.") from error


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite store, or `None` for another engine."""
    return (
        Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
    )


def publish_file(filled: Path, path: Path) -> None:
    """Give a filled and closed file its final name, in one step."""
    with _explained(filled):
        connection = apsw.Connection(str(filled))
        # Without a log the file is whole by itself.
        connection.pragma("journal_mode", "delete")
        connection.close()
    with filled.open("rb") as file:
        os.fsync(file.fileno())
    filled.rename(path)
    sync_directory(path.parent)
