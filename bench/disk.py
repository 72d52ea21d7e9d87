"""A disk for SQLite that is slow to flush when told to, and counts what is written to the log."""

from __future__ import annotations

import itertools
import os
import time
from types import TracebackType
from typing import Self

import apsw

__all__ = ["Disk"]

_names = itertools.count(1)


class Disk(apsw.VFS):
    """It changes nothing but that. What it has opened is closed before it is."""

    def __init__(self) -> None:
        self.name = f"tenax-bench-{os.getpid()}-{next(_names)}"
        self.sync_ms = 0.0
        """Every flush takes this much longer."""
        self.log_bytes = 0
        """Written to write-ahead logs so far."""
        super().__init__(self.name, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.unregister()

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        log = flags[0] & apsw.SQLITE_OPEN_WAL
        return _Log(self, name, flags) if log else _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(
        self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xSync(self, flags: int) -> None:  # noqa: N802  (APSW's)
        if self._disk.sync_ms:
            time.sleep(self._disk.sync_ms / 1000)
        super().xSync(flags)


class _Log(_File):
    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  (APSW's)
        self._disk.log_bytes += len(data)
        super().xWrite(data, offset)
