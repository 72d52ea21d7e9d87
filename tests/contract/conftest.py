"""What the tests of every engine may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tenax
from tests.support.awaited import Loop
from tests.support.postgres import PostgresServer
from tests.support.world import World, build, copy


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    """The event loop that the async facade is called on."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def engine_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store can be made, on every engine in turn; `world` makes the database itself, by copying one."""
    if request.param == "postgresql":
        copied = "world" in request.fixturenames
        return str(
            request.getfixturevalue(
                "uncopied_url" if copied else "emptied_postgres_url"
            )
        )
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/tenax.db"


@pytest.fixture
def uncopied_url(postgres_server: PostgresServer) -> str:
    """Where a database can be copied to."""
    return postgres_server.unused()


@pytest.fixture(scope="session")
def healthy() -> dict[str, tuple[str, World]]:
    """A world by engine, made once: where it is, and what is in it."""
    return {}


@pytest.fixture
def world(
    request: pytest.FixtureRequest,
    engine_url: str,
    healthy: dict[str, tuple[str, World]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """A healthy store with every kind of event in it, for this test alone."""
    engine = engine_url.split(":", maxsplit=1)[0]
    if engine == "memory":
        with tenax.open(engine_url, user="ada") as journal:
            yield build(journal)
        return
    if engine not in healthy:
        folder = tmp_path_factory.mktemp("healthy")
        url = f"sqlite:///{folder}/tenax.db"
        if engine == "postgresql":
            url = request.getfixturevalue("postgres_server").create_database()
        with tenax.open(url, user="ada") as journal:
            healthy[engine] = url, build(journal)
    url, made = healthy[engine]
    copy(url, engine_url)
    with tenax.open(engine_url, user="ada") as journal:
        yield replace(made, journal=journal, seqs=dict(made.seqs))
