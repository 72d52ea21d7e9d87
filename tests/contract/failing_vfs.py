"""A disk for the SQLite engine that is slow, full or broken when a test wants it to be.

`FaultVfs` stands between SQLite and the operating system. It sees every write and every flush of the store's files, and
the connections that use it show it every statement. The n-th one of a sort can be made to fail, once or from then on,
or to be the last thing that the process does.

    with FaultVfs() as disk:
        journal = disk.open(path)
        disk.fail("sync", Fault.IOERR, nth=3, file="wal")

With `remembers` it also keeps what was written and what was flushed. `after_kill` and `after_power_loss` then lay out
the files as a killed process or a power loss at this instant would leave them. A flush that failed is taken at its
worst, which is Linux's way: what it should have flushed counts as clean and never reaches the disk.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import apsw

from tenax.clock import Clock, Ids, SystemClock
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.sqlite import SqliteStore
from tests.support.no_search import NoSearch

__all__ = ["Fault", "FaultVfs"]

What = Literal["statement", "sync", "write"]
File = Literal["main", "other", "wal"]
Name = str | apsw.URIFilename | None
_names = itertools.count(1)


class Fault(Enum):
    """The ways in which a step of SQLite fails."""

    FULL = apsw.FullError
    IOERR = apsw.IOError
    NOMEM = apsw.NoMemError
    INTERRUPT = apsw.InterruptError
    BUSY = apsw.BusyError

    @property
    def ends_transaction(self) -> bool:
        """All but BUSY make SQLite undo the whole transaction, whatever savepoint is open."""
        return self is not Fault.BUSY


class _Plan(NamedTuple):
    """What is to happen to which of the things to come."""

    what: What
    file: File | None
    first: int
    last: float
    fault: Fault | None
    """None: the process is killed."""


class FaultVfs(apsw.VFS):
    """A disk with faults. Journals that it opened have to be closed before it is."""

    def __init__(self, *, remembers: bool = False) -> None:
        self.name = f"tenax-fault-{os.getpid()}-{next(_names)}"
        super().__init__(self.name, "")
        self.sync_ms = 0.0
        """Every flush takes this much longer."""
        self.fired = 0
        """How many faults have happened since the last one was asked for."""
        # A connection that is collected as garbage syncs in the midst of anything, also under this lock.
        self._lock = threading.RLock()
        self._counts: Counter[tuple[What, File | None]] = Counter()
        self._plan: _Plan | None = None
        self._quiet = threading.local()
        self._images: dict[str, _Image] | None = {} if remembers else None
        apsw.connection_hooks.append(self._hook)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        apsw.connection_hooks.remove(self._hook)
        self.unregister()

    def open(
        self,
        path: Path,
        *,
        user: str | None = LOCAL_USER,
        clock: Clock | None = None,
        patience: float = 30.0,
    ) -> Journal:
        """A journal whose file lies on this disk."""
        clock = clock or SystemClock()
        store = SqliteStore(path, clock, Ids(clock), patience=patience, vfs=self.name)
        return Journal(store, user, NoSearch())

    # -- what a test asks for ----------------------------------------------------------------------------------

    def fail(
        self,
        what: What,
        fault: Fault,
        *,
        nth: int = 1,
        times: int | None = 1,
        file: File | None = None,
    ) -> None:
        """The n-th from now on fails, and so do those after it: `times` in all, None until `heal`."""
        self._expect(what, file, nth, times, fault)

    def kill(self, what: What, *, nth: int = 1, file: File | None = None) -> None:
        """The process dies in the n-th from now on, before it has had any effect: SIGKILL, no goodbye."""
        self._expect(what, file, nth, 1, None)

    def heal(self) -> None:
        """The disk works again."""
        with self._lock:
            self._plan = None

    def count(self, what: What, file: File | None = None) -> int:
        """How many of these there were, failed ones included."""
        with self._lock:
            return self._counts[what, file]

    def after_kill(self, path: Path, into: Path) -> Path:
        """Lay out the store as kill -9 at this instant would leave it: everything that was written."""
        return self._lay_out(path, into, lambda image: image.written)

    def after_power_loss(self, path: Path, into: Path) -> Path:
        """Lay out the store as a power loss at this instant would leave it: only what was flushed."""
        return self._lay_out(path, into, lambda image: image.flushed)

    def _expect(
        self,
        what: What,
        file: File | None,
        nth: int,
        times: int | None,
        fault: Fault | None,
    ) -> None:
        with self._lock:
            first = self._counts[what, file] + nth
            self._plan = _Plan(
                what,
                file,
                first,
                math.inf if times is None else first + times - 1,
                fault,
            )
            self.fired = 0

    def _lay_out(self, path: Path, into: Path, state: Any) -> Path:
        if self._images is None:
            raise ValueError(
                "This disk remembers nothing; make it with remembers=True."
            )
        into.mkdir(parents=True, exist_ok=True)
        with self._lock:
            for suffix in ("", "-wal"):
                image = self._images.get(f"{path}{suffix}")
                target = into / f"{path.name}{suffix}"
                target.unlink(missing_ok=True)
                if image is not None:
                    target.write_bytes(state(image))
        return into / path.name

    # -- what SQLite asks for ----------------------------------------------------------------------------------

    def xOpen(self, name: Name, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        if self._images is not None:
            self._images.pop(filename, None)

    def excepthook(self, *error: object) -> bool:  # the usual three
        """Say nothing: SQLite may ignore a fault that was asked for, and Python would print it."""
        return bool(error)

    def image(self, name: str) -> _Image | None:
        """What this disk knows of a file."""
        return None if self._images is None else self._images.setdefault(name, _Image())

    def reach(self, what: What, file: File) -> None:
        """One more of these. Does what is due."""
        with self._lock:
            self._counts[what, file] += 1
            self._counts[what, None] += 1
            plan = self._plan
            if plan is None or plan.what != what or plan.file not in {None, file}:
                return
            number = self._counts[what, plan.file]
            if not plan.first <= number <= plan.last:
                return
            self.fired += 1
        if plan.fault is None:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise plan.fault.value(f"{what} number {number} fails, as asked")

    def _hook(self, connection: apsw.Connection) -> None:
        if connection.open_vfs == self.name:
            connection.exec_trace = self._statement

    def _statement(
        self,
        cursor: apsw.Cursor | apsw.Connection,
        sql: str,
        bindings: object,
    ) -> bool:
        """Before each statement. A fault here has the effect that it has inside SQLite."""
        if getattr(self._quiet, "on", False):
            return True
        try:
            self.reach("statement", "main")
        except apsw.Error as error:
            if Fault(type(error)).ends_transaction:
                self._undo(
                    cursor.connection if isinstance(cursor, apsw.Cursor) else cursor
                )
            raise
        return True

    def _undo(self, connection: apsw.Connection) -> None:
        self._quiet.on = True
        try:
            if connection.in_transaction:
                with suppress(apsw.Error):
                    connection.execute("rollback")
        finally:
            self._quiet.on = False


class _Image:
    """A file as it was written, and as it was flushed."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.flushed = bytearray()
        self._dirty: list[tuple[int, int]] = []
        self._size: int | None = None

    def known(self, content: bytes) -> None:
        """The file was there before."""
        if not self.written:
            self.written, self.flushed = bytearray(content), bytearray(content)

    def write(self, data: bytes, offset: int) -> None:
        self.written.extend(bytes(max(0, offset + len(data) - len(self.written))))
        self.written[offset : offset + len(data)] = data
        self._dirty.append((offset, offset + len(data)))

    def truncate(self, size: int) -> None:
        del self.written[size:]
        self._size = size if self._size is None else min(size, self._size)

    def flush(self) -> None:
        if self._size is not None:
            del self.flushed[self._size :]
        for start, end in self._dirty:
            data = self.written[start:end]
            self.flushed.extend(bytes(max(0, start + len(data) - len(self.flushed))))
            self.flushed[start : start + len(data)] = data
        self.fail_to_flush()

    def fail_to_flush(self) -> None:
        """What was dirty counts as clean from now on, though it never reached the disk."""
        self._dirty, self._size = [], None


class _File(apsw.VFSFile):
    """One open file of the store."""

    def __init__(self, disk: FaultVfs, name: Name, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._file: File = "other"
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            self._file = "main"
        elif flags[0] & apsw.SQLITE_OPEN_WAL:
            self._file = "wal"
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._image = disk.image(path) if path else None
        if self._image is not None and (size := self.xFileSize()):
            self._image.known(self.xRead(size, 0))

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.reach("write", self._file)
        super().xWrite(data, offset)
        if self._image is not None:
            self._image.write(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        if self._image is not None:
            self._image.truncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._disk.sync_ms:
            time.sleep(self._disk.sync_ms / 1000)
        try:
            self._disk.reach("sync", self._file)
        except apsw.Error:
            if self._image is not None:
                self._image.fail_to_flush()
            raise
        super().xSync(flags)
        if self._image is not None:
            self._image.flush()

    def excepthook(self, *error: object) -> bool:  # the usual three
        """Say nothing, as the disk does."""
        return bool(error)
