"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import PostgresMissing, PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test process's own. A machine without one fails: no test is skipped."""
    try:
        with PostgresServer() as server:
            yield server
    except PostgresMissing as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """A new and empty database."""
    return postgres_server.create_database()


@pytest.fixture(scope="session")
def kept_database(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database()


@pytest.fixture
def emptied_postgres_url(kept_database: str) -> str:
    """An empty database, the same one each time: making and removing one for each of a thousand tests takes minutes."""
    others = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
    with psycopg.connect(kept_database, autocommit=True) as connection:
        connection.execute(f"{others} and pid <> pg_backend_pid()".encode())
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return kept_database


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new store, on each engine that several processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tenax.db'}"
    url: str = request.getfixturevalue("emptied_postgres_url")
    return url
