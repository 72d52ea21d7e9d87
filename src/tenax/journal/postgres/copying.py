"""Copy a PostgreSQL store: see `tenax.journal.copying`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg import conninfo, sql

from tenax.errors import CannotOpen
from tenax.journal.copying import ROWS_AT_ONCE, Row, select
from tenax.journal.postgres.connection import Connection, Link
from tenax.journal.schema import migrations
from tenax.journal.store import Trouble
from tenax.journal.tables import Table

__all__ = ["SCRATCH_SCHEMA", "PostgresFiller", "PostgresSnapshot", "scratch_url"]

SCRATCH_SCHEMA: Final = "tenax_restoring"
"""The schema of a store that is being filled."""
_CHUNKS_AT_ONCE: Final = 8
_NO_LIMITS: Final = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_RELATIONS: Final = """
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relkind = 'r' order by c.relname
"""


def scratch_url(url: str) -> str:
    """Return the address of the store that is being filled for `url`."""
    given = conninfo.conninfo_to_dict(url)
    options = f"{given.get('options') or ''} -csearch_path={SCRATCH_SCHEMA}".strip()
    return "postgresql:///?" + _query({**given, "options": options})


def _query(values: dict[str, Any]) -> str:
    return urlencode(values, quote_via=quote)


class PostgresSnapshot:
    """A read transaction on a PostgreSQL store. With `hold`, no process can write until `close`."""

    def __init__(self, url: str, *, hold: bool = False) -> None:
        self.engine = "postgresql"
        self._link = Link(url)
        try:
            self._connection = self._link.connect(**_NO_LIMITS)
        except psycopg.Error as error:
            raise self._link.cannot_open(error) from error
        try:
            with self._explained():
                self._begin(hold=hold)
                self.schema, self.incarnation = self._read_store()
        except BaseException:
            self.close()
            raise

    def _begin(self, *, hold: bool) -> None:
        access = "read write" if hold else "read only"
        self._run(f"begin isolation level repeatable read {access}")
        if hold:
            # Before the first query, which takes the snapshot.
            self._run("lock table heads in share row exclusive mode")

    def _read_store(self) -> tuple[int, str]:
        if not self.has("store"):
            raise CannotOpen(f"{self._link.where} has no store of Tenax.")
        ((schema, incarnation),) = self._run("select schema, incarnation from store")
        return int(schema), str(incarnation)

    def has(self, table: str) -> bool:
        return bool(self._run("select to_regclass(%s) is not null", table)[0][0])

    def columns(self, table: str) -> tuple[str, ...]:
        rows = self._run(
            "select attname from pg_attribute where attrelid = cast(%s as regclass) and attnum > 0 "
            "and not attisdropped order by attnum",
            table,
        )
        return tuple(str(name) for (name,) in rows)

    def rows(
        self, table: Table, *, keys: tuple[int, int] | None = None
    ) -> Iterator[Row]:
        at_once = _CHUNKS_AT_ONCE if table.name == "blob_chunks" else ROWS_AT_ONCE
        text = select(table, self.columns(table.name), keys)
        return self._stream(text, (), f"c_{table.name}", at_once)

    def blob(self, owner: str, blob: str) -> Iterator[bytes]:
        text = "select bytes from blob_chunks where owner = %s and hash = %s order by n"
        for (data,) in self._stream(text, (owner, blob), "c_blob", _CHUNKS_AT_ONCE):
            yield bytes(data)

    def _stream(
        self, text: str, values: tuple[Any, ...], name: str, at_once: int
    ) -> Iterator[Row]:
        with (
            self._explained(),
            self._connection.cursor(name, binary=True) as cursor,
        ):
            cursor.itersize = at_once
            cursor.execute(text.encode(), values)
            yield from cursor

    def _run(self, text: str, *values: object) -> list[Row]:
        cursor = self._connection.execute(text.encode(), values or None, prepare=False)
        return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, UnicodeError) as error:
            raise _cause(self._link, error) from error

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.close()


class PostgresFiller:
    """A new store in the schema `SCRATCH_SCHEMA`."""

    def __init__(self, url: str, schema: int, incarnation: str, at: int) -> None:
        self._link = Link(url)
        try:
            self._connection = self._link.connect(**_NO_LIMITS)
        except psycopg.Error as error:
            raise self._link.cannot_open(error) from error
        with self._explained():
            run = self._run
            run("begin")
            run(f"drop schema if exists {SCRATCH_SCHEMA} cascade")
            run(f"create schema {SCRATCH_SCHEMA}")
            run(f"set local search_path = {SCRATCH_SCHEMA}")
            for script in migrations("postgres")[:schema]:
                run(script)
            run(
                "insert into store (one, schema, incarnation, life, created_at) values (1, %s, %s, '', %s)",
                schema,
                incarnation,
                at,
            )

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        text = sql.SQL("copy {} ({}) from stdin").format(sql.Identifier(table), names)
        count = 0
        with self._explained(), self._connection.cursor().copy(text) as copy:
            for row in rows:
                copy.write_row(row)
                count += 1
        return count

    def finish(self) -> None:
        with self._explained():
            for table in ("conversations", "stretches"):
                self._run(
                    f"select setval(pg_get_serial_sequence('{table}', 'num'), greatest("  # noqa: S608  (fixed names)
                    f"(select max(num) from {table}), (select max(num) from tombstones), 1))"
                )
            self._run("commit")
            self._connection.close()

    def close(self) -> None:
        """Give up what is not finished."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def _run(self, text: str, *values: object) -> None:
        self._connection.execute(text.encode(), values or None, prepare=False)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, UnicodeError) as error:
            raise _cause(self._link, error) from error


def publish(url: str) -> None:
    """Move the tables of the filled store to the schema of `url`, in one transaction."""
    link = Link(url)
    with _connected(link) as connection:
        schema = _value(connection, "select current_schema()")
        with connection.transaction():
            for (table,) in connection.execute(
                _RELATIONS.encode(), (SCRATCH_SCHEMA,)
            ).fetchall():
                connection.execute(
                    sql.SQL("alter table {}.{} set schema {}").format(
                        sql.Identifier(SCRATCH_SCHEMA),
                        sql.Identifier(table),
                        sql.Identifier(schema),
                    )
                )
            connection.execute(f"drop schema {SCRATCH_SCHEMA} cascade".encode())


def discard(url: str) -> None:
    """Remove a filled store that was not published."""
    with _connected(Link(url)) as connection:
        connection.execute(f"drop schema if exists {SCRATCH_SCHEMA} cascade".encode())


@contextlib.contextmanager
def _connected(link: Link) -> Iterator[Connection]:
    try:
        with link.connect(**_NO_LIMITS) as connection:
            yield connection
    except (psycopg.Error, UnicodeError) as error:
        raise _cause(link, error) from error


def _value(connection: Connection, text: str) -> str:
    return str(connection.execute(text.encode()).fetchall()[0][0])


def _cause(link: Link, error: psycopg.Error | UnicodeError) -> Exception:
    trouble: Trouble = link.judge(error)
    return trouble.error
