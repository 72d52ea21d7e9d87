"""A store in memory, for tests and trials: the SQLite engine without a file.

The same statements run as on disk, so it cannot drift from it; what it lacks is what a file gives. It is gone when it
is closed, no other process sees it, and a read waits for a write.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from tenax.journal.sqlite import SqliteStore, SqliteTx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenax.clock import Clock, Ids
    from tenax.journal.store import Tx

__all__ = ["EphemeralStore"]

_living: set[str] = set()


class EphemeralStore(SqliteStore):
    """One connection, no file, no other process."""

    def __init__(self, clock: Clock, ids: Ids) -> None:
        super().__init__(Path(":memory:"), clock, ids)

    def _prepare(self) -> None:
        """There is nothing to queue for."""

    def _connect(self) -> apsw.Connection:
        return apsw.Connection(":memory:")

    def _witness(self) -> None:
        """It ends with this process."""

    def _make_private(self) -> None:
        """Nobody else sees it."""

    def _journal_mode(self, connection: apsw.Connection) -> None:
        """Memory needs no log."""

    def _identity(self) -> None:
        """No file can be moved away."""

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tx]:
        self._check_use()
        with self._write_lock:
            yield SqliteTx(self._writing(durable=True))

    def recover(self, trouble: object) -> None:
        """The one connection is the store: it is never dropped."""

    def _flush_again(self, connection: object) -> None:
        """There is no log."""

    def _hold(self, instance: str) -> None:
        _living.add(instance)
        self._instance = instance

    def alive(self, tx: Tx, instance: str) -> bool:  # noqa: ARG002  (no file holds the lock)
        return instance in _living

    def scrub(self) -> bool:
        return True

    def _watch(self) -> None:
        """Nobody else writes."""

    def close(self) -> None:
        super().close()
        _living.discard(self._instance or "")
