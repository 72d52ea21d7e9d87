"""The pages about the formats say what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

import tenax
from tenax.journal.memory import EphemeralStore
from tenax.journal.schema import SCHEMA_VERSION, migrations
from tests.support.world import World, build, hands
from tools import formats

DOCS = Path(__file__).parents[2] / "docs" / "formats"
ONLY_POSTGRESQL = {"pulse", "search_docs", "instances.up"}
"""What that engine needs and SQLite has in other places: the boot, the file of words, the lock files."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db", user="ada") as journal:
        return build(journal)


def test_the_page_about_events_is_the_code() -> None:
    """Run `python -m tools.formats` after a change of an event."""
    assert formats.TARGET.read_text("utf-8") == formats.page()


def test_the_schema_is_as_many_scripts_as_it_says() -> None:
    """In both dialects."""
    assert len(migrations("sqlite")) == len(migrations("postgres")) == SCHEMA_VERSION


def columns(rows: list[tuple[str, str]]) -> set[str]:
    """Tables and columns, but for those that only one engine needs."""
    found = {name for table, column in rows for name in (table, f"{table}.{column}")}
    return {name for name in found if not {name, name.split(".")[0]} & ONLY_POSTGRESQL}


def test_both_dialects_make_the_same_tables_and_columns(postgres_url: str) -> None:
    """But for what only PostgreSQL needs."""
    with tenax.open("memory:") as journal:
        assert isinstance(journal.store, EphemeralStore)
        sqlite: list[tuple[str, str]] = journal.store.execute(
            "select t.name, c.name from sqlite_schema t, pragma_table_info(t.name) c "
            "where t.type = 'table' and t.name not like 'sqlite%'"
        ).fetchall()  # type: ignore[assignment]
    with psycopg.connect(postgres_url, autocommit=True) as server:
        for script in migrations("postgres"):
            server.execute(script.encode())
        postgres = server.execute(
            "select table_name::text, column_name::text from information_schema.columns "
            "where table_schema = current_schema()"
        ).fetchall()
    assert columns(sqlite) == columns(postgres)
    assert len(columns(sqlite)) > 100


def test_the_page_about_the_store_names_every_table() -> None:
    """A table without a word about it is a riddle."""
    page = (DOCS / "store.md").read_text("utf-8")
    with tenax.open("memory:") as journal:
        tables = {row[2] for row in journal.store.query("prove_schema")}
    named = set(
        re.findall(
            r"`(\w+)`",
            "\n".join(line for line in page.splitlines() if line.startswith("| `")),
        )
    )
    assert tables - named == set()


def stranger(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the twenty lines that the page gives, in a process without Tenax."""
    (code,) = re.findall(
        r"```python\n(.*?)```", (DOCS / "store.md").read_text("utf-8"), re.DOTALL
    )
    script = folder / "prove.py"
    script.write_text(code)
    return subprocess.run(
        [sys.executable, "-I", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_stranger_can_prove_a_chain(world: World, tmp_path: Path) -> None:
    """With the lines on the page and nothing else; erased events included."""
    for conversation in (world.talk, world.old, world.fork):
        done = stranger(tmp_path, f"{tmp_path}/tenax.db", conversation)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_stranger_sees_what_was_changed(world: World, tmp_path: Path) -> None:
    """The seq is named."""
    with hands(world, f"sqlite:///{tmp_path}/tenax.db") as inside:
        inside.flip("events", "body", "place = :at", at=inside.at("kept"))
    done = stranger(tmp_path, f"{tmp_path}/tenax.db", world.talk)
    assert done.returncode == 1
    assert f"seq {world.seqs['kept']} is not what was written" in done.stderr
