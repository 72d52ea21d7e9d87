"""The spool: where the output of a run goes while the store is unreachable. It may hold the only copy.

One file per instance, `spool/<instance>/spool`, with its room taken when it is made, because "unreachable" mostly means
that the disk is full. A record is its length, a checksum and the entry; a length of zero ends the list, and so does a
record that a killed process did not finish. `write` returns when the record is on disk.

Beside it stands `lock`. Its writer holds it for life, and whoever ships a dead instance's spool holds it meanwhile; the
kernel frees it when the holder dies. A store that is away may think that an instance is dead; the lock knows better.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tenax.errors import (
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMisused,
    StoreUnavailable,
)
from tenax.journal import guard

__all__ = ["BYTES_MAX", "ROOM_BYTES", "Entry", "Spool", "left"]

log = logging.getLogger(__name__)

ROOM_BYTES = 8 * 1024 * 1024
"""Taken from the disk in advance."""
BYTES_MAX = 256 * 1024 * 1024
"""No spool grows past this."""

_HEAD = struct.Struct("<II")  # the length of the body, and its checksum
_END = bytes(_HEAD.size)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PIECE = bytes(1024 * 1024)
_TRIES = 50
_PAUSE_SECONDS = 0.01
_flush = getattr(os, "fdatasync", os.fsync)  # macOS has only the second
_held: set[str] = set()
"""The spools that this process holds: a POSIX lock does not keep a process from itself."""
_holding = threading.Lock()


class Entry(msgspec.Struct, frozen=True):
    """One event of a run that waits for the store."""

    user: str
    conversation: str
    run: str
    kind: str
    body: bytes
    """As `events.encode` gives it."""
    at: int
    """Microseconds."""
    index: int = 0
    """0, 1, 2 ... in each run, also after `clear`. Given by the spool, whatever stands here when it is written."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


class Spool:
    """One instance's spool: its own, to write to; or, from `left`, a dead one's, to ship."""

    def __init__(self, folder: Path, instance: str, *, make: bool = True) -> None:
        self.instance = instance
        self._folder = folder / instance
        self._forks = guard.forks()
        self._using = threading.Lock()
        self._file = -1
        with _explained(self._folder):
            self._lock = _make(self._folder) if make else _hold(self._folder)
            try:
                self._file = os.open(
                    self._folder / "spool",
                    os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0),
                    0o600,
                )
                if make:
                    _take_room(self._file)
                    for each in (self._folder, folder, folder.parent):
                        _flush_folder(each)
                entries, self._end = self._scan(os.fstat(self._file).st_size)
            except FileNotFoundError:
                # begun and not finished, or shipped meanwhile; the lock is ours
                _remove_empty(self._folder)
                self._let_go()
                raise
            except BaseException:
                self._let_go()
                raise
        self._seen = 0
        self._next = {each.run: each.index + 1 for each in entries}

    def write(self, entry: Entry) -> None:
        """Append one entry. It is on disk when this returns; if it raises, the entry is not in the spool."""
        with self._used():
            index = self._next.get(entry.run, 0)
            body = _encode(msgspec.structs.replace(entry, index=index))
            record = _HEAD.pack(len(body), _checksum(body)) + body + _END
            if self._end + len(record) > BYTES_MAX:
                raise StoreFull(
                    f"The spool {self._folder} has reached its {BYTES_MAX:,} bytes."
                )
            _write_at(self._file, record, self._end)
            _flush(self._file)
            self._end += len(record) - len(_END)
            self._next[entry.run] = index + 1

    def read(self) -> list[Entry]:
        """Every entry, in the order in which they were written."""
        with self._used():
            entries, self._seen = self._scan(self._end)
        return entries

    def clear(self) -> bool:
        """Empty it: what was read is in the store. False, and nothing is gone, if more was written since."""
        with self._used():
            if self._end > self._seen:
                return False
            # Written over rather than cut off: the room stays taken, and the text is gone from the disk.
            for at in range(0, self._end, len(_PIECE)):
                _write_at(self._file, _PIECE[: self._end - at], at)
            _flush(self._file)
            os.ftruncate(self._file, min(ROOM_BYTES, os.fstat(self._file).st_size))
            self._end = self._seen = 0
        return True

    def close(self, *, remove: bool) -> None:
        """Let go of it; and remove it, once nothing in it is needed."""
        guard.refuse_after_fork(self._forks)
        with self._using:
            if self._file < 0:
                return
            try:
                if remove:
                    with _explained(self._folder):
                        (self._folder / "spool").unlink(missing_ok=True)
                    _remove_empty(self._folder)
            finally:
                self._let_go()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        guard.refuse_after_fork(self._forks)
        with self._using, _explained(self._folder):
            if self._file < 0:
                raise StoreMisused("The spool was closed.")
            yield

    def _scan(self, size: int) -> tuple[list[Entry], int]:
        """The entries in the first `size` bytes, and where they end."""
        entries: list[Entry] = []
        at = 0
        while at + _HEAD.size <= size:
            length, checksum = _HEAD.unpack(os.pread(self._file, _HEAD.size, at))
            if length == 0:
                break
            body = (
                os.pread(self._file, length, at + _HEAD.size)
                if length <= size - at
                else b""
            )
            if len(body) != length or _checksum(body) != checksum:
                log.warning(
                    "The spool %s ends in a record that was not finished; what comes before it is whole.",
                    self._folder,
                    extra={"action": "spool_torn", "at": at},
                )
                break
            try:
                entries.append(_decode(body))
            except msgspec.MsgspecError as error:
                raise StoreDamaged(
                    f"A record of the spool {self._folder} cannot be read: {error}."
                ) from error
            at += _HEAD.size + length
        return entries, at

    def _let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        _release(self._folder, self._lock)


def left(folder: Path, alive: Callable[[str], bool]) -> list[Spool]:
    """The spools under `folder` whose instances are dead and that nobody else ships. Close each, removed once shipped.

    An empty one is among them too: its instance left nothing, and that is worth knowing.
    """
    found: list[Spool] = []
    names = (
        sorted(each.name for each in folder.iterdir() if each.is_dir())
        if folder.is_dir()
        else []
    )
    try:
        for name in names:
            if alive(name):
                continue
            try:
                found.append(Spool(folder, name, make=False))
            except StoreMisused:
                continue  # somebody ships it, or it is not dead after all
            except FileNotFoundError:
                continue
            except StoreError as error:  # it stays, for a person to look at, and does not hold up the others
                log.warning(
                    "%s", error, extra={"action": "spool_unreadable", "instance": name}
                )
    except BaseException:
        for spool in found:
            spool.close(remove=False)
        raise
    return found


def _checksum(body: bytes) -> int:
    return zlib.crc32(body, len(body))


def _make(folder: Path) -> int:
    """Make the folder and take its lock, though a sweep may take an empty one away at any moment."""
    for _ in range(_TRIES):
        try:
            for each in (folder.parent, folder):  # of `parents` none would get the mode
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            return _hold(folder)
        except FileNotFoundError:
            continue
        except FileExistsError:
            # otherwise it was there, and is gone since
            if folder.is_file() or folder.parent.is_file():
                raise
        except StoreMisused:
            if str(folder.resolve()) in _held or (folder / "spool").exists():
                raise
            time.sleep(_PAUSE_SECONDS)
    raise StoreMisused(f"The spool {folder} is in use.", hint="leave it to who has it")


def _hold(folder: Path) -> int:
    """Take the lock, or say that somebody has it."""
    taken = StoreMisused(
        f"The spool {folder} is in use.", hint="leave it to who has it"
    )
    name = str(folder.resolve())
    with _holding:
        if name in _held:  # opening and closing the file here would free it
            raise taken
        descriptor = os.open(
            folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            raise taken from None
        except OSError:
            os.close(descriptor)
            raise
        try:
            lost = os.stat(folder / "lock").st_ino != os.fstat(descriptor).st_ino  # noqa: PTH116  (beside fstat)
        except FileNotFoundError:
            lost = True
        # it was removed between opening and locking it: this is the lock of nothing
        if lost:
            os.close(descriptor)
            raise taken
        _held.add(name)
        return descriptor


def _release(folder: Path, descriptor: int) -> None:
    with _holding:
        os.close(descriptor)
        _held.discard(str(folder.resolve()))


def _remove_empty(folder: Path) -> None:
    """Remove a folder in which there is no spool (any more)."""
    # another sweep may be at the same; the next one takes what is left
    with contextlib.suppress(OSError):
        (folder / "lock").unlink(missing_ok=True)
        folder.rmdir()


def _take_room(file: int) -> None:
    """Make the file as large as it will mostly be, so that a full disk does not stop it."""
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, ROOM_BYTES)
    else:  # not tried
        for at in range(os.fstat(file).st_size, ROOM_BYTES, len(_PIECE)):
            _write_at(file, _PIECE[: ROOM_BYTES - at], at)
    os.fsync(file)


def _write_at(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, at)
        view, at = view[count:], at + count


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """What the system says, as an error of the store. That something is not there is for the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFull(
                f"There is no room left for the spool {folder}.",
                hint="free some disk space",
            ) from error
        raise StoreUnavailable(
            f"The spool {folder} cannot be used: {error.strerror}."
        ) from error
