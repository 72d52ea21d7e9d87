"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator

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
