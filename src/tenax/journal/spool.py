"""The spool: a file for the output of a run while the store is unreachable. The spool may hold the only copy.

Every instance has a file `spool/<instance>/spool`. The disk space is reserved at creation, because the usual reason for
an unreachable store is a full disk. A record consists of the length, a checksum and the entry. The list ends at a
length of zero, or at a record left unfinished by a killed process. `write` returns when the record is on disk.

Beside the file is a file `lock`. The writer holds the lock for life. A process shipping the spool of a dead instance
holds the lock meanwhile. The kernel releases the lock when the holder dies. An unreachable store may take a live
instance for dead; the lock is reliable.
"""

from __future__ import annotations

import contextlib
import errno
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

from tenax.concurrency import (
    LockFile,
    count_forks,
    refuse_after_fork,
    sync_directory,
)
from tenax.errors import (
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMisused,
    StoreUnavailable,
)

__all__ = [
    "BYTES_MAX",
    "ROOM_BYTES",
    "HeldEvent",
    "Spool",
    "is_empty",
    "left",
    "owner_of",
    "unsent",
]

log = logging.getLogger(__name__)

ROOM_BYTES = 8 * 1024 * 1024
"""The number of bytes reserved on disk in advance."""
BYTES_MAX = 256 * 1024 * 1024
"""The largest size of a spool in bytes."""

# The length of the body, and the checksum of the body.
_HEAD = struct.Struct("<II")
_END = bytes(_HEAD.size)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PIECE = bytes(1024 * 1024)
_TRIES = 50
_PAUSE_SECONDS = 0.01
# macOS has no `fdatasync`.
flush = getattr(os, "fdatasync", os.fsync)


class HeldEvent(msgspec.Struct, frozen=True):
    """An event of a run, waiting for the store."""

    user: str
    conversation: str
    run: str
    kind: str
    body: bytes
    """The bytes from `events.encode`."""
    at: int
    """The time in microseconds since 1970."""
    index: int = 0
    """0, 1, 2 ... within a run, also after `clear`. Set by the spool; `write` ignores the given value."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HeldEvent).decode


class Spool:
    """The spool of an instance: of the process for writing, or of a dead instance (from `left`) for shipping."""

    def __init__(
        self,
        folder: Path,
        instance: str,
        *,
        make: bool = True,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.instance = instance
        self._bytes_max = bytes_max
        self._folder = folder / instance
        self._forks = count_forks()
        self._using = threading.Lock()
        self._file = -1
        with _explained(self._folder):
            self._lock = _make(self._folder) if make else _lock_spool(self._folder)
            try:
                self._file = os.open(
                    self._folder / "spool",
                    os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0),
                    0o600,
                )
                if make:
                    _take_room(self._file)
                    for directory in (self._folder, folder, folder.parent):
                        sync_directory(directory)
                entries, self._end = self._scan(os.fstat(self._file).st_size)
            except FileNotFoundError:
                # The spool was never finished, or was shipped meanwhile. This process holds the lock.
                _remove_empty(self._folder)
                self._close_file()
                raise
            except BaseException:
                self._close_file()
                raise
        self._seen = 0
        self._next = {entry.run: entry.index + 1 for entry in entries}

    def write(self, entry: HeldEvent) -> None:
        """Append an entry. The entry is on disk when the call returns, and not in the spool if the call raises."""
        with self._used():
            index = self._next.get(entry.run, 0)
            body = _encode(msgspec.structs.replace(entry, index=index))
            record = _HEAD.pack(len(body), _checksum(body)) + body + _END
            if self._end + len(record) > self._bytes_max:
                raise StoreFull(
                    f"The spool {self._folder} has reached its {self._bytes_max:,} bytes."
                )
            _write_at(self._file, record, self._end)
            flush(self._file)
            self._end += len(record) - len(_END)
            self._next[entry.run] = index + 1

    def read(self) -> list[HeldEvent]:
        """Return every entry, in the order of writing."""
        with self._used():
            entries, self._seen = self._scan(self._end)
        return entries

    def clear(self) -> bool:
        """Empty the spool after the read entries are in the store.

        Return `False`, without a change, if there are newer entries.
        """
        with self._used():
            if self._end > self._seen:
                return False
            # Overwrite the records instead of truncating the file: the disk space stays reserved, and the text is gone
            # from the disk.
            for at in range(0, self._end, len(_PIECE)):
                _write_at(self._file, _PIECE[: self._end - at], at)
            flush(self._file)
            os.ftruncate(self._file, min(ROOM_BYTES, os.fstat(self._file).st_size))
            self._end = self._seen = 0
        return True

    def close(self, *, remove: bool) -> None:
        """Close the spool and release the lock. `remove` deletes the spool; only for a spool without needed entries."""
        refuse_after_fork(self._forks)
        with self._using:
            if self._file < 0:
                return
            try:
                if remove:
                    with _explained(self._folder):
                        (self._folder / "spool").unlink(missing_ok=True)
                    _remove_empty(self._folder)
            finally:
                self._close_file()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        refuse_after_fork(self._forks)
        with self._using, _explained(self._folder):
            if self._file < 0:
                raise StoreMisused("The spool was closed.")
            yield

    def _scan(self, size: int) -> tuple[list[HeldEvent], int]:
        """Return the entries in the first `size` bytes, and the offset of the end."""
        entries: list[HeldEvent] = []
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

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._lock.release()


def left(folder: Path, alive: Callable[[str], bool]) -> list[Spool]:
    """Return the spools of dead instances under `folder`, except spools being shipped by another process.

    The caller closes every spool, with `remove` after shipping. Empty spools are included: the caller learns that the
    instance left nothing behind.
    """
    found: list[Spool] = []
    names = (
        sorted(child.name for child in folder.iterdir() if child.is_dir())
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
                # Another process ships the spool, or the instance is alive after all.
                continue
            except FileNotFoundError:
                continue
            except StoreError as error:
                # The damaged spool stays for inspection, and does not delay the others.
                log.warning(
                    "%s", error, extra={"action": "spool_unreadable", "instance": name}
                )
    except BaseException:
        for spool in found:
            spool.close(remove=False)
        raise
    return found


def owner_of(name: str) -> str:
    """Return the id of the instance with a spool. An instance may have several spools, with numbers."""
    return name.partition(".")[0]


def unsent(folder: Path) -> list[Path]:
    """Return the spools with output that no live process holds."""
    return [
        file.parent
        for file in sorted(folder.glob("*/spool"))
        if not is_empty(file)
        and not LockFile.is_held(file.with_name("lock"), posix=True)
    ]


def is_empty(file: Path) -> bool:
    """Return whether a spool has no record: most spools are only reserved space."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        return not any(opened.read(_HEAD.size))
    return True


def _checksum(body: bytes) -> int:
    return zlib.crc32(body, len(body))


def _make(folder: Path) -> LockFile:
    """Create the folder and take the lock, although a sweep may remove an empty folder at any moment."""
    for _ in range(_TRIES):
        try:
            # With `parents`, the parent folder would not get the mode.
            for path in (folder.parent, folder):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return _lock_spool(folder)
        except FileNotFoundError:
            continue
        except FileExistsError:
            # Otherwise the folder existed and has been removed since.
            if folder.is_file() or folder.parent.is_file():
                raise
        except StoreMisused:
            if (folder / "spool").exists():
                raise
            time.sleep(_PAUSE_SECONDS)
    raise StoreMisused(f"The spool {folder} is in use.", hint="leave it to who has it")


def _lock_spool(folder: Path) -> LockFile:
    """Lock a spool. Raises `StoreMisused` if another holder has the lock."""
    lock = LockFile.acquire(folder / "lock", posix=True)
    if lock is None:
        raise StoreMisused(
            f"The spool {folder} is in use.", hint="leave it to who has it"
        )
    return lock


def _remove_empty(folder: Path) -> None:
    """Remove a folder without a spool."""
    # Another sweep may remove the folder at the same time. The next sweep removes the rest.
    with contextlib.suppress(OSError):
        (folder / "lock").unlink(missing_ok=True)
        folder.rmdir()


def _take_room(file: int) -> None:
    """Reserve the usual size of the file, so that a full disk does not stop the spool."""
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, ROOM_BYTES)
    else:
        # This branch is untested.
        for at in range(os.fstat(file).st_size, ROOM_BYTES, len(_PIECE)):
            _write_at(file, _PIECE[: ROOM_BYTES - at], at)
    os.fsync(file)


def _write_at(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, at)
        view, at = view[count:], at + count


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn an `OSError` into an error of the store. `FileNotFoundError` goes to the caller unchanged."""
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
