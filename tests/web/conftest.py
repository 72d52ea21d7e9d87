"""A served Tenax that most tests share, and one of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenax.models import Reply, ScriptedCall
from tests.support.postgres import PostgresServer
from tests.support.served import Pace, Page, Served
from tests.support.turns import set_up

SLOW = "word " * 60
BOTH = pytest.mark.parametrize(
    "shared", ["sqlite", "postgresql"], indirect=True, scope="session"
)
"""For tests of the shared server in which the store is meant."""
SQLITE = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
"""For tests of a server of their own in which it is not."""


@pytest.fixture(scope="session", params=["sqlite"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One server for what does not end it; with `BOTH` on each engine. It answers each first message at once."""
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
def pace(tmp_path: Path) -> Pace:
    """How far `slow` goes in an answer: to its end, unless it is told."""
    return Pace(tmp_path)


@pytest.fixture
def slow(tmp_path: Path, store_url: str, pace: Pace) -> Iterator[Served]:
    """A server of the test's own, on each engine or with `SQLITE` on one, which takes two seconds to answer."""
    set_up(tmp_path, [Reply(SLOW, pause=0.03)])
    with Served(tmp_path, env={"TENAX_STORE": store_url, **pace.env}) as served:
        yield served


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Served]:
    """A server whose model wants to write a file."""
    write = ScriptedCall("write_file", {"path": "a/note.txt", "content": "held"})
    set_up(tmp_path, [Reply("May I?", calls=[write]), Reply("Thank you.")])
    with Served(tmp_path) as served:
        yield served
