"""The two engines as the bench needs them: a journal of ours, and the bare engine beside it on the same disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import apsw
import psycopg

import tenax
from bench.disk import Disk
from tenax.clock import Ids, SystemClock
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.postgres.store import PostgresStore
from tenax.journal.sqlite import SqliteStore
from tests.support.no_search import NoSearch
from tests.support.postgres import PostgresServer

__all__ = ["Bare", "Engine", "Postgres", "Sqlite"]

_STEP = 250
_WARM_MAX = 10


class Bare:
    """The engine alone: one table, one insert, one commit."""

    def __init__(
        self, insert: Callable[[bytes], object], close: Callable[[], None]
    ) -> None:
        self.insert = insert
        self._close = close

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()


class Engine(Protocol):
    """What both have in common. A label names a store of this run."""

    name: str
    title: str

    def url(self, label: str) -> str:
        """The address of a store."""

    def open(
        self, label: str, *, search: bool = False, metered: bool = False
    ) -> Journal:
        """A journal, without the reader that indexes words unless it is asked for."""

    def bare(self, label: str, *, durable: bool = True) -> Bare:
        """The bare engine."""

    def warm(self, label: str, work: Callable[[], object], calls: int) -> None:
        """Call so often at least, until the log has taken its usual size: growing makes every commit slower."""

    def rows_bytes(self, label: str) -> int:
        """What a store takes at rest, its log copied back."""

    def log_bytes(self, label: str) -> int:
        """What was written to the logs of metered stores so far."""

    def version(self) -> str:
        """What it calls itself."""


class Sqlite:
    """SQLite by APSW, in files of one folder."""

    name = "sqlite"
    title = "SQLite"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = Disk()

    def path(self, label: str) -> Path:
        return self.folder / f"{label}.db"

    def url(self, label: str) -> str:
        return f"sqlite:///{self.path(label)}"

    def open(
        self, label: str, *, search: bool = False, metered: bool = False
    ) -> Journal:
        if search:
            return tenax.open(self.url(label))
        clock = SystemClock()
        store = SqliteStore(
            self.path(label), clock, Ids(clock), vfs=self.disk.name if metered else None
        )
        return Journal(store, LOCAL_USER, NoSearch())

    def bare(self, label: str, *, durable: bool = True, metered: bool = False) -> Bare:
        connection = apsw.Connection(
            str(self.path(f"{label}-bare")), vfs=self.disk.name if metered else None
        )
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full" if durable else "normal")
        connection.execute("create table bare (id integer primary key, body blob)")
        execute = connection.execute
        return Bare(
            lambda body: execute("insert into bare (body) values (?)", (body,)),
            connection.close,
        )

    def warm(self, label: str, work: Callable[[], object], calls: int) -> None:
        log, size, grown = Path(f"{self.path(label)}-wal"), -1, 0
        step = min(_STEP, calls)
        for done in range(0, calls * _WARM_MAX, step):
            if (now := log.stat().st_size) != size:
                size, grown = now, done
            if done >= calls and done - grown >= calls // 2:
                return
            for _ in range(step):
                work()

    def rest(self, label: str) -> None:
        """It keeps itself in order as it goes."""

    def rows_bytes(self, label: str) -> int:
        connection = apsw.Connection(str(self.path(label)))
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            pages = connection.pragma("page_count") - connection.pragma(
                "freelist_count"
            )
            return int(pages * connection.pragma("page_size"))
        finally:
            connection.close()

    def log_bytes(self, label: str) -> int:  # noqa: ARG002  (the disk counts for all)
        return self.disk.log_bytes

    def version(self) -> str:
        return f"APSW {apsw.apsw_version()} with SQLite {apsw.sqlite_lib_version()}"


class Postgres:
    """A PostgreSQL server of this run's own; a database for each label."""

    name = "postgresql"
    title = "PostgreSQL"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._urls: dict[str, str] = {}

    def url(self, label: str) -> str:
        if label not in self._urls:
            self._urls[label] = self._server.create_database()
        return self._urls[label]

    def open(
        self,
        label: str,
        *,
        search: bool = False,
        metered: bool = False,  # noqa: ARG002
    ) -> Journal:
        if search:
            return tenax.open(self.url(label))
        clock = SystemClock()
        return Journal(
            PostgresStore(self.url(label), clock, Ids(clock)), LOCAL_USER, NoSearch()
        )

    def bare(self, label: str, *, durable: bool = True) -> Bare:
        connection = psycopg.connect(self.url(f"{label}-bare"), autocommit=True)
        connection.execute(
            f"set synchronous_commit = {'on' if durable else 'off'}".encode()
        )
        connection.execute(
            "create table bare (id bigint generated always as identity primary key, body bytea)"
        )
        cursor = connection.cursor(binary=True)
        sql = b"insert into bare (body) values (%s)"
        return Bare(
            lambda body: cursor.execute(sql, (body,), prepare=True), connection.close
        )

    def warm(self, label: str, work: Callable[[], object], calls: int) -> None:  # noqa: ARG002  (the log is the server's)
        for _ in range(calls):
            work()

    def rest(self, label: str) -> None:
        """What the server does by itself within a minute or so, done now: otherwise it does it while we measure."""
        with psycopg.connect(self.url(label), autocommit=True) as connection:
            connection.execute("vacuum (analyze)")

    def rows_bytes(self, label: str) -> int:
        tables = b"from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
        with psycopg.connect(self.url(label), autocommit=True) as connection:
            names = _only(
                connection, b"select string_agg(quote_ident(relname), ', ') " + tables
            )
            connection.execute(f"vacuum full {names}".encode())
            return int(
                _only(connection, b"select sum(pg_total_relation_size(oid)) " + tables)
            )

    def log_bytes(self, label: str) -> int:
        with psycopg.connect(self.url(label)) as connection:
            return int(
                _only(connection, b"select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
            )

    def version(self) -> str:
        with psycopg.connect(self._server.url()) as connection:
            return f"PostgreSQL {_only(connection, b'show server_version')} with psycopg {psycopg.__version__}"


def _only(connection: psycopg.Connection[tuple[object, ...]], sql: bytes) -> str:
    row = connection.execute(sql).fetchone()
    return str(row[0]) if row else ""
