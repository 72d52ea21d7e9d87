"""Stores to back up, on both engines."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenax
from tenax.config import Config, load
from tenax.journal import open_snapshot
from tenax.journal.tables import TABLES, Table
from tests.support.world import build

NewUrl = Callable[[str], str]
ConfigFor = Callable[[str], Config]


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> NewUrl:
    """Returns the address of an empty place on an engine."""
    count = 0

    def create(engine: str) -> str:
        nonlocal count
        count += 1
        if engine == "postgresql":
            server = request.getfixturevalue("postgres_server")
            return str(server.create_database())
        folder = tmp_path / f"store{count}"
        folder.mkdir()
        return f"sqlite:///{folder}/tenax.db"

    return create


@pytest.fixture(params=["sqlite", "postgresql"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def config_for(tmp_path: Path) -> ConfigFor:
    """Returns the configuration of an installation of its own with a store."""
    count = 0

    def create(url: str) -> Config:
        nonlocal count
        count += 1
        home = tmp_path / f"home{count}"
        home.mkdir(exist_ok=True)
        return load({"TENAX_HOME": str(home), "TENAX_STORE": url})

    return create


@pytest.fixture
def world_url(new_url: NewUrl, source: str) -> str:
    """The address of a store with every kind of event."""
    url = new_url(source)
    with tenax.open(url, user="ada") as journal:
        build(journal)
    return url


def read_tables(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of a store by table. Numbers that a new index may change are left out."""
    # A new index knows the time of the last change exactly; the list may be a second behind.
    changing = {
        "conversations": {"updated_at"},
        "heads": {"stretch", "version", "listed_at"},
        "stretches": {"num"},
    }
    found = {}
    with contextlib.closing(open_snapshot(url)) as snapshot:
        for table in TABLES:
            columns = snapshot.columns(table.name)
            without = changing.get(table.name, set())
            rows = [
                {
                    name: _short(value)
                    for name, value in zip(columns, row, strict=True)
                    if name not in without
                }
                for row in snapshot.rows(table)
            ]
            found[table.name] = rows
    return found


def count_rows(url: str, table: str) -> int:
    """Return the number of rows of a table that `read_tables` leaves out."""
    with contextlib.closing(open_snapshot(url)) as snapshot:
        key = snapshot.columns(table)[0]
        return len(list(snapshot.rows(Table(table, (key,)))))


def _short(value: Any) -> Any:
    """Return bytes as their hash, so that a difference can be read."""
    if isinstance(value, bytes | memoryview):
        return hashlib.sha256(bytes(value)).hexdigest()
    return value
