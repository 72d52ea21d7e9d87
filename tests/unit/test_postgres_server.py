"""The PostgreSQL of the tests does what the tests ask of it."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest

from tests.support.postgres import PostgresServer


def test_databases_are_new_and_apart(postgres_server: PostgresServer) -> None:
    """Each database is empty."""
    for url in (postgres_server.create_database(), postgres_server.create_database()):
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE t (x int)")
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)


@pytest.mark.crash
def test_a_committed_row_outlives_a_crash_of_the_server() -> None:
    """Stop at once, start again, kill a backend: the address and the data stay."""
    with PostgresServer() as server:
        url = server.create_database()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT x FROM t").fetchone() == (1,)
            assert server.kill_backend(connection.info.backend_pid)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")


@pytest.mark.crash
def test_the_server_goes_with_a_killed_test_process() -> None:
    """After kill -9 of its owner nobody listens there any more, and the folder is gone."""
    code = """
from tests.support.postgres import PostgresServer
with PostgresServer() as server:
    print(server.url(), server.folder, flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=-1, stdout=-1, text=True
    ) as owner:
        assert owner.stdout
        url, folder = owner.stdout.readline().split()
        psycopg.connect(url).close()
        owner.kill()
    gone = f"while [ -e {folder} ]; do sleep 0.05; done"
    subprocess.run(["/bin/sh", "-c", gone], check=True, timeout=30)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
