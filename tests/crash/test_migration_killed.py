"""`kill -9` in every migration: the store has the tables of the version before it, or all of the version after it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Final

import apsw
import psycopg
import pytest

import tenax
from tenax.journal.schema import SCHEMA_VERSION, migrations
from tenax.journal.verify.store import verify
from tests.golden.schemas import expected, found, put_store
from tests.support.children import Child, Teller
from tests.support.postgres import PostgresServer
from tests.support.world import copy

pytestmark = pytest.mark.crash

FIRST: Final = 1
"""The version of the store that is migrated."""
SETS_SCHEMA: Final = "update store set schema"
PHASES: Final = ("half way", "before the commit", "after the commit")
SQLITE_TABLES: Final = """
select type, name, sql from sqlite_schema where name not like 'sqlite%' order by type, name
"""
POSTGRES_TABLES: Final = """
select table_name, column_name, data_type || is_nullable from information_schema.columns where table_schema = 'public'
union all select tablename, indexname, indexdef from pg_indexes where schemaname = 'public'
order by 1, 2, 3
"""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def open_and_die(teller: Teller, url: str, number: int, phase: str) -> None:
    """Open a store, and die in this phase of this migration."""
    teller.tell("opens")
    if url.startswith("sqlite"):
        apsw.connection_hooks.append(_SqliteHook(number, phase).watch)
    else:
        psycopg.Connection.execute = _dying_execute(number, phase)  # type: ignore[method-assign]
    tenax.open(url).close()
    teller.tell("opened")


class _SqliteHook:
    """Counts statements. A migration ends with the statement that sets the number of the schema."""

    def __init__(self, number: int, phase: str) -> None:
        self._number, self._phase = number, phase
        self._half = _statements(migrations("sqlite")[number - 1]) // 2
        self._schema = FIRST
        self._count = 0
        self._is_done = False

    def watch(self, connection: apsw.Connection) -> None:
        connection.exec_trace = self._trace
        connection.set_commit_hook(self._commit)

    def _trace(self, _cursor: object, statement: str, bindings: Any) -> bool:
        if self._is_done:
            die()
        if statement.startswith(SETS_SCHEMA):
            self._schema, self._count = bindings["schema"], 0
        elif statement.lstrip().startswith(("create", "alter", "insert", "drop", "--")):
            self._count += 1
            is_next = self._schema == self._number - 1 and self._phase == "half way"
            if is_next and self._count > self._half:
                die()
        return True

    def _commit(self) -> bool:
        if self._schema == self._number:
            if self._phase == "before the commit":
                die()
            self._is_done = True
        return False


def _dying_execute(number: int, phase: str) -> Any:
    """Return `Connection.execute` with a death in it."""
    execute = psycopg.Connection.execute
    script = migrations("postgres")[number - 1]
    half = ";\n".join(script.split(";\n")[: _statements(script) // 2])
    is_set = False

    def dying(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
        nonlocal is_set
        if is_set and phase == "after the commit":
            die()
        if query == script.encode() and phase == "half way":
            execute(self, half.encode(), **options)
            die()
        result = execute(self, query, params, **options)
        if _text(query).startswith(SETS_SCHEMA) and params == [number]:
            is_set = True
            if phase == "before the commit":
                die()
        return result

    return dying


def _text(query: str | bytes) -> str:
    return query.decode() if isinstance(query, bytes) else query


def _statements(script: str) -> int:
    return script.count(";\n")


def read_tables(url: str) -> tuple[int, list[Any]]:
    """Return the version of a store and its tables, past Tenax."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            ((schema,),) = connection.execute("select schema from store").fetchall()
            return int(str(schema)), connection.execute(SQLITE_TABLES).fetchall()
        finally:
            connection.close()
    with psycopg.connect(url) as server:
        ((schema,),) = server.execute("select schema from store").fetchall()
        return schema, server.execute(POSTGRES_TABLES).fetchall()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_migration_is_done_as_a_whole_or_not_at_all(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed half way, before and after the commit of each migration; the next opening finishes all of them."""
    server: PostgresServer | None = None
    if engine == "postgresql":
        server = request.getfixturevalue("postgres_server")

    def place(name: str) -> str:
        return f"sqlite:///{tmp_path / name}" if server is None else server.unused()

    golden = place("golden")
    if server is not None:
        golden = server.create_database()
    put_store(engine, FIRST, golden)
    wanted = expected(engine, FIRST)
    before = read_tables(golden)
    kills: Counter[str] = Counter()
    for number in range(FIRST + 1, SCHEMA_VERSION + 1):
        after = None
        for phase in reversed(PHASES):
            url = place(f"{number} {phase}")
            copy(golden, url)
            child = Child(open_and_die, url, number, phase)
            assert (child.finish(), child.lines) == (-signal.SIGKILL, [["opens"]])
            kills[phase] += 1
            left = read_tables(url)
            if phase == "after the commit":
                assert left[0] == number
                after = left
            else:
                assert left == before
            with tenax.open(url, user="ada") as journal:
                assert journal.store.query("store")[0][0] == SCHEMA_VERSION
                assert found(journal, wanted) == wanted
                assert verify(journal).problems == []
        assert after is not None
        before = after
    print(dict(kills))  # noqa: T201  (shown by `pytest -rP`)
    assert set(kills.values()) == {SCHEMA_VERSION - FIRST}
    assert set(kills) == set(PHASES)
