"""A served Tenax that most tests share, and one of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenax.models import Call, Reply
from tests.support.postgres import PostgresServer
from tests.support.served import Page, Served
from tests.support.turns import set_up

SLOW = "word " * 60


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for what does not end it, on each engine. It answers each first message at once."""
    home = tmp_path_factory.mktemp("served")
    set_up(home, [Reply("Forty-two, I think.")])
    env = {}
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        env["TENAX_STORE"] = server.create_database()
    with Served(home, env=env) as served:
        yield served


@pytest.fixture(scope="session")
def page(shared: Served) -> Page:
    return shared.browser()


@pytest.fixture
def slow(tmp_path: Path, store_url: str) -> Iterator[Served]:
    """A server of the test's own, on each engine, which takes seconds to answer."""
    set_up(tmp_path, [Reply(SLOW, pause=0.05)])
    with Served(tmp_path, env={"TENAX_STORE": store_url}) as served:
        yield served


@pytest.fixture
def asking(tmp_path: Path, store_url: str) -> Iterator[Served]:
    """A server whose model wants to write a file."""
    write = Call("write_file", {"path": "a/note.txt", "content": "held"})
    set_up(tmp_path, [Reply("May I?", calls=[write]), Reply("Thank you.")])
    with Served(tmp_path, env={"TENAX_STORE": store_url}) as served:
        yield served
