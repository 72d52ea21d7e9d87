"""A store of every version of the schema is backed up, migrated and complete. A newer store is refused."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import psycopg
import pytest

import tenax as library
from tenax.archive.format import BackupFolder
from tenax.journal.devices import Devices
from tenax.journal.preferences import Preferences
from tenax.journal.projects import Projects
from tenax.journal.schema import SCHEMA_VERSION
from tenax.journal.verify.store import verify
from tenax.memory.entries import MemoryEntries
from tenax.schedules.rows import Schedules
from tests.cli.conftest import tenax
from tests.golden.schemas import expected, found, put_store, versions
from tests.support.postgres import PostgresServer

ENGINES = ("sqlite", "postgresql")
CASES = [
    pytest.param(engine, version, id=f"{engine}-{version}")
    for engine in ENGINES
    for version in versions(engine)
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of its own. The command lowers the priority of its process; the process of the tests keeps its own."""
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def url(
    request: pytest.FixtureRequest,
    engine: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The address of the store, with nothing there."""
    url = f"sqlite:///{home / 'tenax.db'}"
    if engine == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_database()
    monkeypatch.setenv("TENAX_STORE", url)
    return url


@pytest.mark.parametrize("engine", ENGINES)
def test_there_is_a_store_of_every_earlier_version(engine: str) -> None:
    """Before a migration is added, `write_schemas.py` writes the store of the version before it."""
    assert set(range(1, SCHEMA_VERSION)) <= set(versions(engine))


@pytest.mark.parametrize(("engine", "version"), CASES)
def test_a_store_of_every_version_is_backed_up_migrated_and_complete(
    engine: str, version: int, url: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any command makes the backup and says how to go back. All that was stored is there, and `verify` finds nothing."""
    put_store(engine, version, url)
    code, _, err = tenax(capsys, "list")
    assert code == 0, err
    names = BackupFolder(home / "backups").names()
    if version < SCHEMA_VERSION:
        (name,) = names
        assert f"tenax restore {home / 'backups'} --at {name}" in err
        assert BackupFolder(home / "backups").read(name).schema == version
    else:
        assert names == []
    wanted = expected(engine, version)
    with library.open(url, user="ada") as journal:
        assert journal.store.query("store")[0][0] == SCHEMA_VERSION
        assert found(journal, wanted) == wanted
        remembered = [entry.text for entry in MemoryEntries(journal).standing()]
        assert remembered == (["has two cats", "has a cat"] if version >= 2 else [])
        asked = [each.words for each in Schedules(journal).all()]
        assert asked == (["how is the cat?"] if version >= 3 else [])
        devices = [each.name for each in Devices(journal, days=36_500).all("ada")]
        assert devices == (["A browser"] if version >= 4 else [])
        projects = [each.name for each in Projects(journal).all()]
        assert projects == (["Boat"] if version >= 5 else [])
        assert Preferences(journal).all() == ({"theme": "dark"} if version >= 5 else {})
        assert journal.search("first").hits
        assert [str(problem) for problem in verify(journal).problems] == []


@pytest.mark.parametrize(("engine", "version"), [(e, SCHEMA_VERSION) for e in ENGINES])
def test_a_newer_store_is_refused_with_the_command_that_restores(
    engine: str, version: int, url: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier version of Tenax changes nothing in it, and no backup is made."""
    library.open(url).close()
    newer = "update store set schema = schema + 1"
    if engine == "sqlite":
        with apsw.Connection(url.removeprefix("sqlite:///")) as connection:
            connection.execute(newer)
        connection.close()
    else:
        with psycopg.connect(url) as server:
            server.execute(newer)
    code, out, err = tenax(capsys, "list")
    assert (code, out) == (1, "")
    assert f"has schema {version + 1}, and this Tenax knows {version}" in err
    assert "tenax restore FOLDER --at BACKUP" in err
    assert not (home / "backups").exists()
