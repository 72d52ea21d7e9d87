"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new store, on each engine that several processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tenax.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url
