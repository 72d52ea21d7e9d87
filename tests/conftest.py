"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings

import tenax
from tenax.journal.schema import SCHEMA_VERSION
from tests.support.needs import judge_skip, summarise
from tests.support.postgres import PostgresServer
from tests.support.targets import ENGINES, ROOT, TARGETS, Case, Targets

# A busy machine may take any time for one example.
# The same examples in every run: CI must not fail by chance.
settings.register_profile("tenax", settings(), deadline=None, derandomize=True)
settings.load_profile("tenax")

OTHERS_END = """
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""
RELATIONS = "select relname from pg_class where relnamespace = 'public'::regnamespace"
VERSION = "select schema from store"
AS_NEW = """
do $$ declare each name; begin
    for each in select tablename from pg_tables where schemaname = 'public' and tablename not in ('store', 'pulse') loop
        execute format('delete from %I', each);
    end loop;
    for each in select sequencename from pg_sequences where schemaname = 'public' loop
        perform setval(each::regclass, 1, false);
    end loop;
    update store set incarnation = md5(random()::text);
end $$
"""


TABLE = Targets.read()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        default="",
        choices=("", *TARGETS, "all"),
        help="run the tests of one make target; without this option, all but those of nightly",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that hold no test of the target: to import them takes seconds."""
    if not collection_path.match("test_*.py"):
        return None
    file = collection_path.relative_to(ROOT).as_posix()
    try:
        included = TABLE.includes_file(config.getoption("target"), file)
    except LookupError as error:
        raise pytest.UsageError(str(error)) from None
    return None if included else True


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the tests of the target."""
    chosen = TABLE.selected(config.getoption("target"), map(_case, items))
    deselected = [item for item in items if item.nodeid not in chosen]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item.nodeid in chosen]


def _case(item: pytest.Item) -> Case:
    markers = frozenset(marker.name for marker in item.iter_markers())
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec else []
    engine = next((name for name in ENGINES if name in values), "")
    if "postgres_server" in getattr(item, "fixturenames", ()):
        engine = "postgresql"
    return Case(item.nodeid, markers, engine)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[
    None, pytest.TestReport, pytest.TestReport
]:
    """Fail a test that must not be skipped."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        failure = judge_skip(_reason(report))
        if failure:
            report.outcome, report.longrepr = "failed", failure
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what is missing on this machine, and how many tests it costs."""
    skipped = terminalreporter.stats.get("skipped", [])
    for line in summarise(map(_reason, skipped)):
        terminalreporter.write_line(line, yellow=True)


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped: pytest gives the file, the line and the words."""
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else ""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test process's own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """A new and empty database."""
    return postgres_server.create_database()


@pytest.fixture(scope="session")
def kept_database(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database()


@pytest.fixture(scope="session")
def relations_of_a_store() -> set[str]:
    """Tables, sequences and indexes that were last seen in `kept_database`; none before the first store was made there."""
    return set()


@pytest.fixture
def bare_postgres_url(kept_database: str) -> str:
    """A database without a store, the same one each time: to make one for each of a thousand tests takes minutes."""
    with psycopg.connect(kept_database, autocommit=True) as connection:
        connection.execute(OTHERS_END)
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return kept_database


@pytest.fixture
def emptied_postgres_url(
    request: pytest.FixtureRequest, kept_database: str, relations_of_a_store: set[str]
) -> str:
    """The same with a store as if it were new. It is made only where a test has changed its tables: that takes a while."""

    def emptied() -> bool:
        with psycopg.connect(kept_database, autocommit=True) as connection:
            connection.execute(OTHERS_END)
            there = {row[0] for row in connection.execute(RELATIONS).fetchall()}
            whole = "store" in there and there >= relations_of_a_store
            if whole := whole and connection.execute(VERSION).fetchall() == [
                (SCHEMA_VERSION,)
            ]:
                relations_of_a_store.update(there)
                connection.execute("set synchronous_commit = off")
                connection.execute(AS_NEW)
            return whole

    if not relations_of_a_store or not emptied():
        relations_of_a_store.clear()
        tenax.open(str(request.getfixturevalue("bare_postgres_url"))).close()
        assert emptied()
    return kept_database


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new store, on each engine that several processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tenax.db'}"
    url: str = request.getfixturevalue("emptied_postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def bare_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same for a test to which it matters that nothing has ever been there."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tenax.db'}"
    url: str = request.getfixturevalue("bare_postgres_url")
    return url
