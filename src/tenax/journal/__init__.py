"""The journal and its engines. `open` chooses the engine by the URL."""

from __future__ import annotations

import os
from pathlib import Path

from tenax.clock import Clock, Ids, SystemClock, Timing
from tenax.errors import CannotOpen, InvalidInput
from tenax.journal.journal import Journal
from tenax.journal.memory import EphemeralStore
from tenax.journal.search.search import Search
from tenax.journal.search.sqlite import SqliteSearch
from tenax.journal.sqlite import SqliteStore

__all__ = ["LOCAL_USER", "Journal", "exists", "open"]

LOCAL_USER = "local"
"""The user of a single-user store."""


def open(  # noqa: A001
    url: str,
    *,
    user: str | None = LOCAL_USER,
    clock: Clock | None = None,
    patience: float = 30.0,
    witness: Path | None = None,
    timing: Timing = Timing(),
) -> Journal:
    """Open a store: `sqlite:///path`, `postgresql://...` or `memory:`. A missing store is created.

    `witness` is a file on this host. The file records the last events of a PostgreSQL store, so that Tenax notices
    events lost by a failover or a restore. A SQLite store has its own witness beside the database file.
    `timing` has the waits without a setting; a test passes other values.
    """
    if not isinstance(url, str):
        raise InvalidInput(f"`url` of open has to be str, not {type(url).__name__}.")
    clock = clock or SystemClock()
    ids = Ids(clock)
    if url.startswith("sqlite:///"):
        store = SqliteStore(
            Path(url.removeprefix("sqlite:///")),
            clock,
            ids,
            patience=patience,
            timing=timing,
        )
        index = SqliteSearch(store, Path(f"{store.path}-search"))
        return Journal(store, user, Search(store, index))
    if url.startswith(("postgresql://", "postgres://")):
        return _postgres(url, user, clock, ids, patience, witness, timing)
    if url == "memory:":
        memory = EphemeralStore(clock, ids, timing)
        return Journal(memory, user, Search(memory, SqliteSearch(memory, None)))
    raise CannotOpen(
        f"The URL of a store must be sqlite:///PATH or postgresql://..., not {url.rsplit('@', maxsplit=1)[-1]!r}."
    )


def exists(url: str) -> bool:
    """Return whether a store exists.

    Create nothing. If the answer is unknown, return `True`: `open` reports the reason.
    """
    if url.startswith("sqlite:///"):
        path = os.path.realpath(url.removeprefix("sqlite:///"))
        return any(map(_holds_something, (path, f"{path}-wal", f"{path}-witness")))
    if url.startswith(("postgresql://", "postgres://")):
        return _postgres_exists(url)
    return url != "memory:"


def _holds_something(path: str) -> bool:
    try:
        return Path(path).stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _postgres_exists(url: str) -> bool:
    try:
        from tenax.journal.postgres.store import store_exists  # noqa: PLC0415  (psycopg is an extra)
    except ImportError:
        return True
    return store_exists(url)


def _postgres(
    url: str,
    user: str | None,
    clock: Clock,
    ids: Ids,
    patience: float,
    witness: Path | None,
    timing: Timing,
) -> Journal:
    try:
        from tenax.journal.postgres.store import PostgresStore  # noqa: PLC0415  (psycopg is an extra)
        from tenax.journal.search.postgres import PostgresSearch  # noqa: PLC0415  (the same)
    except ImportError as error:
        raise CannotOpen(
            "A PostgreSQL store needs psycopg, which is not installed here.",
            hint="pip install 'tenax[postgres]'",
        ) from error
    store = PostgresStore(
        url, clock, ids, patience=patience, witness=witness, timing=timing
    )
    return Journal(store, user, Search(store, PostgresSearch(store)))
