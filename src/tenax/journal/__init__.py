"""The journal and its engines. `open` chooses the engine by the URL."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType

from tenax.clock import Clock, Ids, SystemClock, Timing
from tenax.errors import CannotOpen, InvalidInput
from tenax.journal.copying import (
    Filler,
    Snapshot,
    SqliteFiller,
    SqliteSnapshot,
    publish_file,
    sqlite_path,
)
from tenax.journal.journal import Journal
from tenax.journal.memory import EphemeralStore
from tenax.journal.search.search import Search
from tenax.journal.search.sqlite import SqliteSearch
from tenax.journal.sqlite import SqliteStore

__all__ = ["LOCAL_USER", "Journal", "NewStore", "exists", "open", "open_snapshot"]

_NO_PSYCOPG = "A PostgreSQL store needs psycopg, which is not installed here."
_INSTALL_PSYCOPG = "pip install 'tenax[postgres]'"
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


def open_snapshot(url: str, *, hold: bool = False) -> Snapshot:
    """Read one moment of a store, of this version or an earlier one. With `hold`, no process can write meanwhile."""
    path = sqlite_path(url)
    if path is not None:
        if not path.exists():
            raise CannotOpen(f"There is no store at {path}.")
        return SqliteSnapshot(path, hold=hold)
    snapshot: Snapshot = _postgres_copying().PostgresSnapshot(url, hold=hold)
    return snapshot


class NewStore:
    """A store that is filled in a place of its own, and then published at `url` in one step."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = sqlite_path(url)
        self._scratch = Path(f"{self._path}-restoring")

    @property
    def url(self) -> str:
        """The address of the store before `publish`."""
        if self._path is None:
            return str(_postgres_copying().scratch_url(self._url))
        return f"sqlite:///{self._scratch / self._path.name}"

    def begin(self, schema: int, clock: Clock) -> Filler:
        """Create the tables of a schema version, and remove what an interrupted attempt has left."""
        incarnation = Ids(clock).append().hex()
        if self._path is None:
            create = _postgres_copying().PostgresFiller
            filler: Filler = create(self._url, schema, incarnation, clock.now_us())
            return filler
        self.discard()
        self._scratch.mkdir(mode=0o700, parents=True)
        path = self._scratch / self._path.name
        return SqliteFiller(path, schema, incarnation, clock.now_us())

    def publish(self) -> None:
        """Put the closed store in its final place."""
        if self._path is None:
            _postgres_copying().publish(self._url)
            return
        publish_file(self._scratch / self._path.name, self._path)
        self.discard()

    def discard(self) -> None:
        """Remove what is not published."""
        if self._path is None:
            _postgres_copying().discard(self._url)
        else:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _postgres_copying() -> ModuleType:
    try:
        from tenax.journal.postgres import copying  # noqa: PLC0415  (psycopg is an extra)
    except ImportError as error:
        raise CannotOpen(_NO_PSYCOPG, hint=_INSTALL_PSYCOPG) from error
    return copying


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
        raise CannotOpen(_NO_PSYCOPG, hint=_INSTALL_PSYCOPG) from error
    store = PostgresStore(
        url, clock, ids, patience=patience, witness=witness, timing=timing
    )
    return Journal(store, user, Search(store, PostgresSearch(store)))
