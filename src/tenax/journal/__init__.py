"""The journal and its engines. `open` is the only difference a user sees between them."""

from __future__ import annotations

import os
from pathlib import Path

from tenax.clock import Clock, Ids, SystemClock
from tenax.errors import CannotOpen, InvalidInput
from tenax.journal.journal import Journal
from tenax.journal.memory import EphemeralStore
from tenax.journal.search.index import SearchIndex
from tenax.journal.search.indexer import Indexer
from tenax.journal.search.search import Search, WordSearch
from tenax.journal.search.sqlite import SqliteSearch
from tenax.journal.sqlite import SqliteStore
from tenax.journal.store import Store

__all__ = ["LOCAL_USER", "Journal", "exists", "open"]

LOCAL_USER = "local"
"""The user of a store that one person has to themselves."""


def open(  # noqa: A001
    url: str,
    *,
    user: str | None = LOCAL_USER,
    clock: Clock | None = None,
    patience: float = 30.0,
    witness: Path | None = None,
) -> Journal:
    """Open a store: `sqlite:///path`, `postgresql://...` or `memory:`. It is made if it is not there.

    `witness` is a file on this host that remembers how far a PostgreSQL store had come, so that a failover or a restore
    that lost events is noticed. A SQLite store has its own beside it.
    """
    if not isinstance(url, str):
        raise InvalidInput(f"`url` of open has to be str, not {type(url).__name__}.")
    clock = clock or SystemClock()
    ids = Ids(clock)
    if url.startswith("sqlite:///"):
        store = SqliteStore(
            Path(url.removeprefix("sqlite:///")), clock, ids, patience=patience
        )
        return Journal(
            store,
            user,
            _search(store, SqliteSearch(store, Path(f"{store.path}-search"))),
        )
    if url.startswith(("postgresql://", "postgres://")):
        return _postgres(url, user, clock, ids, patience, witness)
    if url == "memory:":
        memory = EphemeralStore(clock, ids)
        return Journal(memory, user, _search(memory, SqliteSearch(memory, None)))
    raise CannotOpen(
        f"A store is named by sqlite:///PATH or postgresql://..., not by {url.rsplit('@', maxsplit=1)[-1]!r}."
    )


def exists(url: str) -> bool:
    """Whether there is a store already. Makes nothing. Where that cannot be told, `open` says why."""
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


def _search(store: Store, index: SearchIndex) -> Search:
    return WordSearch(store, index, Indexer(store, index))


def _postgres(
    url: str,
    user: str | None,
    clock: Clock,
    ids: Ids,
    patience: float,
    witness: Path | None,
) -> Journal:
    try:
        from tenax.journal.postgres.store import PostgresStore  # noqa: PLC0415  (psycopg is an extra)
        from tenax.journal.search.postgres import PostgresSearch  # noqa: PLC0415  (the same)
    except ImportError as error:
        raise CannotOpen(
            "A PostgreSQL store needs psycopg, which is not installed here.",
            hint="pip install 'tenax[postgres]'",
        ) from error
    store = PostgresStore(url, clock, ids, patience=patience, witness=witness)
    return Journal(store, user, _search(store, PostgresSearch(store)))
