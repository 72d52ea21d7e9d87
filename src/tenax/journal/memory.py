"""A store in memory, for tests and trials: the SQLite engine without a file.

The store runs the same statements as the store on disk. The content is lost at `close`, no other process sees the
store, and a read waits for a write.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from tenax.clock import Timing
from tenax.journal.sqlite import SqliteStore, SqliteTx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenax.clock import Clock, Ids
    from tenax.journal.store import Tx

__all__ = ["EphemeralStore"]

living: set[str] = set()
"""The instances of the open stores of the process."""


class EphemeralStore(SqliteStore):
    """A store with a single connection, without a file and without other processes."""

    def __init__(self, clock: Clock, ids: Ids, timing: Timing = Timing()) -> None:
        super().__init__(Path(":memory:"), clock, ids, timing=timing)

    def _prepare(self) -> None:
        """Prepare nothing, because no other process queues for the store."""

    def _connect(self) -> apsw.Connection:
        return apsw.Connection(":memory:")

    def _witness(self) -> None:
        """Keep no witness, because the store ends with the process."""

    def _make_private(self) -> None:
        """Do nothing, because the store has no file."""

    def _journal_mode(self, connection: apsw.Connection) -> None:
        """Set nothing, because memory needs no log."""

    def _identity(self) -> None:
        """Return `None`, because the store has no file to replace."""

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tx]:
        self._check_use()
        with self._write_lock:
            yield SqliteTx(self._writing(durable=True))

    def recover(self, trouble: object) -> None:
        """Keep the connection, because the connection is the store."""

    def _flush_again(self, connection: object) -> None:
        """Flush nothing, because the store has no log."""

    def _hold_instance(self, instance: str) -> None:
        living.add(instance)
        self.instance = instance

    def alive(self, tx: Tx, instance: str) -> bool:  # noqa: ARG002  (no file holds the lock)
        return instance in living

    def scrub(self) -> bool:
        return True

    def _watch(self) -> None:
        """Watch nothing, because no other process writes."""

    def close(self) -> None:
        super().close()
        living.discard(self.instance or "")
