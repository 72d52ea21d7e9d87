"""Snapshots of the working folder, stored before a call begins, so a crash during the call loses nothing.

A scan walks the folder like `tools/files/walk.py`, and reads only the files changed since the last scan. The scan
appends the contents to a pack file in the data folder. A manifest holds the offsets. For a running call, a file holds
the manifest from before the call. The process of the call locks the file as long as the process lives. So if another
process gets the lock, the snapshot belongs to a dead process.

Nothing is flushed to disk: a killed process loses nothing without a flush, and hashes reveal damage by a power loss.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from tenax.concurrency import LockFile, locked, write_atomically
from tenax.errors import ToolFailed
from tenax.events import FileState
from tenax.tools.files.walk import (
    DEPTH_MAX,
    FULL,
    Abandoned,
    Enough,
    Walk,
    read,
    with_ignores,
)
from tenax.tools.paths import (
    hidden_prefixes,
    is_hidden,
    open_folder,
    parent_of,
    parts_of,
)

__all__ = [
    "BYTES_MAX",
    "KEPT_BYTES_MAX",
    "About",
    "Entry",
    "Manifest",
    "Snapshots",
    "Taken",
    "is_same",
]

# The maximum number of files and folders of a scan.
ENTRIES_MAX: Final = 20_000
# The contents of larger files are not stored.
BYTES_MAX: Final = 1_000_000
KEPT_BYTES_MAX: Final = 50_000_000
_SLACK: Final = 4_000_000
# A file written so shortly before a scan may be written again within the same tick of the file system's clock.
_RACY_NS: Final = 2_100_000_000
_TICK_NS: Final = 100_000_000
# Snapshots of dead processes are removed after this time.
_EXPIRY_NS: Final = 7 * 86_400 * 10**9


class Entry(NamedTuple):
    """The state of a file, the hash of the contents, and their offset `at` in the pack, or -1 if they are not stored.

    A negative `ctime_ns` matches no file, so the next scan reads the file again.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int
    hash: str
    at: int


class Manifest(msgspec.Struct):
    """The files of the folder at a point in time. `missed` describes the files not included."""

    pack: str
    at_ns: int
    files: dict[str, Entry]
    missed: str = ""


class About(msgspec.Struct, frozen=True):
    """A call, and the paths `also` to include even if ignored. `undoes` is the turn reverted by the call."""

    user: str
    conversation: str
    run: str | None
    message: int
    call: str
    also: list[str] = []
    undoes: str = ""
    folder: str = ""
    """The folder of the call. Empty: the folder of the user."""


class Taken(NamedTuple):
    """The snapshot of the folder before a call. The file is locked until `release`."""

    about: About
    before: Manifest
    file: Path
    lock: LockFile

    def release(self) -> None:
        self.lock.release()

    def discard(self) -> None:
        """Remove the snapshot, because the call is not made."""
        self.lock.release(remove=True)


_decode = msgspec.msgpack.Decoder(Manifest).decode
_decode_taken = msgspec.msgpack.Decoder(tuple[About, Manifest]).decode


class Snapshots:
    """The snapshots of a folder, in the directory `storage`. Tenax's own files, named in `hidden`, are omitted.

    Every method blocks. A scan raises `Abandoned` after the event `abandoned` is set.
    """

    def __init__(self, folder: Path, storage: Path, hidden: Iterable[Path]) -> None:
        self._folder = folder
        self._storage = storage / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        self._hidden = hidden_prefixes(folder, hidden)

    def take(self, about: About, abandoned: threading.Event | None = None) -> Taken:
        """Store and return a snapshot of the folder. The caller releases the snapshot."""
        with _locked(self._storage):
            before = self._scan(about.also, abandoned)
            file = self._storage / f"call-{os.urandom(8).hex()}"
            data = msgspec.msgpack.encode((about, before))
            # Not flushed: after a power loss no process needs the snapshot.
            lock = LockFile.create(file, data, durable=False)
        return Taken(about, before, file, lock)

    def claim_orphans(self, user: str, conversation: str | None) -> list[Taken]:
        """Return the snapshots of calls whose process died, in all folders of `user`. The caller releases them.

        This folder belongs to `user`. In earlier versions other users shared the folder: their snapshots are removed.
        """
        kept = []
        for file in sorted(self._storage.parent.glob("*/call-*")):
            is_here = file.parent == self._storage
            # A snapshot of another user must stay unlocked, because that user may look for it now.
            if not is_here and _user_of(file) != user:
                continue
            taken = self._claim(file)
            if taken is None:
                continue
            if taken.about.user != user:
                taken.discard()
            elif conversation in {None, taken.about.conversation}:
                kept.append(taken)
            else:
                taken.release()
        return kept

    def _claim(self, file: Path) -> Taken | None:
        with (
            contextlib.suppress(OSError),
            _locked(file.parent),
            contextlib.ExitStack() as undo,
        ):
            lock = LockFile.acquire(file, create=False)
            if lock is None:
                return None
            undo.callback(lock.release)
            try:
                taken = Taken(*_decode_taken(lock.read()), file, lock)
            except msgspec.DecodeError:
                # The process died while it wrote the snapshot, before the call began.
                taken = None
            if taken is None or time.time_ns() - taken.before.at_ns > _EXPIRY_NS:
                file.unlink()
                return None
            undo.pop_all()
            return taken
        return None

    def find_changes(
        self, taken: Taken, abandoned: threading.Event | None = None
    ) -> tuple[Manifest, list[tuple[str, Entry | None, Entry | None]]]:
        """Return the manifest of a new scan, and every file changed since the snapshot."""
        before = taken.before.files
        with _locked(self._storage):
            now = self._scan([*before, *taken.about.also], abandoned)
        items = {path for path, _ in before.items() ^ now.files.items()}
        pairs = [
            (path, before.get(path), now.files.get(path)) for path in sorted(items)
        ]
        found = [(path, was, to) for path, was, to in pairs if not is_same(was, to)]
        if taken.before.missed or any(
            path.endswith(".gitignore") for path, _, _ in found
        ):
            # A file not included in the first scan only seems to be new.
            since = taken.before.at_ns - _TICK_NS
            found = [
                (path, was, now_entry)
                for path, was, now_entry in found
                if was or not now_entry or abs(now_entry.ctime_ns) > since
            ]
        return now, found

    def content(self, manifest: Manifest, entry: Entry) -> bytes | None:
        """Return the contents of the file, or `None` for missing or damaged contents."""
        if entry.at < 0:
            return None
        try:
            with (self._storage / manifest.pack).open("rb") as pack:
                pack.seek(entry.at)
                data = pack.read(entry.size)
        except FileNotFoundError:
            return None
        return data if hashlib.sha256(data).hexdigest() == entry.hash else None

    def forget(self) -> None:
        """Delete the stored contents of every folder. A running call keeps the contents until the end of the call.

        Other folders may contain the same text: an earlier folder of the tools, or a folder shared by users.
        """
        others = {lock.parent for lock in self._storage.parent.glob("*/lock")} - {
            self._storage
        }
        for storage in (self._storage, *sorted(others)):
            with _locked(storage):
                (storage / "manifest").unlink(missing_ok=True)
                _last_manifest(storage)

    def _scan(self, also: Iterable[str], abandoned: threading.Event | None) -> Manifest:
        old = _last_manifest(self._storage)
        now = Manifest(old.pack, time.time_ns(), {}, "")
        with _open_private(self._storage / old.pack) as pack:
            scan = _Scan(
                self._folder,
                old,
                now,
                pack,
                self._hidden,
                abandoned or threading.Event(),
            )
            try:
                scan.walk()
            except Enough:
                now.missed = f"The folder has more than {ENTRIES_MAX:,} files and folders: what changed in the others is not known."
            scan.add(also)
        if now.files != old.files or now.missed != old.missed:
            # Not flushed: a lost manifest is created again.
            data = msgspec.msgpack.encode(now)
            write_atomically(self._storage / "manifest", data, durable=False)
        return now


@contextlib.contextmanager
def _locked(storage: Path) -> Iterator[None]:
    storage.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(storage / "lock"):
        yield


def _user_of(file: Path) -> str | None:
    """Return the user of a snapshot in a folder of projects, or `None` for any other snapshot."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        about, _ = _decode_taken(file.read_bytes())
        return about.user if about.folder else None
    return None


def _last_manifest(storage: Path) -> Manifest:
    """Return the manifest of the last scan, or an empty manifest with a new pack if most of the pack is obsolete.

    Delete the other packs, unless a call is running and needs them.
    """
    idle = not any(storage.glob("call-*"))
    last = Manifest(f"pack-{os.urandom(4).hex()}", 0, {})
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        old = _decode((storage / "manifest").read_bytes())
        live = sum(entry.size for entry in old.files.values() if entry.at >= 0)
        if not idle or (storage / old.pack).stat().st_size <= 2 * live + _SLACK:
            last = old
    for pack in storage.glob("pack-*") if idle else ():
        if pack.name != last.pack:
            pack.unlink()
    return last


def _open_private(file: Path) -> IO[bytes]:
    """Open a file for appending. Make it unreadable for other users, even if an earlier version set another mode."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(file, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return open(descriptor, "ab")  # noqa: PTH123  (a descriptor)


class _Scan:
    """A scan of a folder. Files changed since the old scan are read and added to the pack."""

    def __init__(
        self,
        folder: Path,
        old: Manifest,
        now: Manifest,
        pack: IO[bytes],
        hidden: tuple[str, ...],
        abandoned: threading.Event,
    ) -> None:
        self._folder, self._old, self._now, self._pack = folder, old.files, now, pack
        self._hidden, self._abandoned = hidden, abandoned
        self._racy = now.at_ns - _RACY_NS
        self._kept = 0

    def walk(self) -> None:
        try:
            root = open_folder(self._folder)
        except FileNotFoundError:
            # The first tool that writes creates the folder.
            return
        try:
            walk = Walk(ENTRIES_MAX, self._abandoned.is_set)
            for parent, name, path in walk.walk(
                root, "", with_ignores([], root, ""), DEPTH_MAX
            ):
                self._add_file(parent, name, path)
        finally:
            os.close(root)

    def add(self, paths: Iterable[str]) -> None:
        """Include the paths, even if ignored or beyond the limit."""
        for path in paths:
            if self._abandoned.is_set():
                raise Abandoned
            if path not in self._now.files:
                with contextlib.suppress(ToolFailed), _skip_unreadable():
                    parts = parts_of(path)
                    with parent_of(self._folder, parts, make=False) as parent:
                        self._add_file(parent, parts[-1], path)

    def _add_file(self, parent: int, name: str, path: str) -> None:
        if is_hidden(path, self._hidden):
            return
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError:
            # The file was deleted meanwhile.
            return
        state = (
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
            found.st_ino,
            found.st_mode,
        )
        entry = self._old.get(path)
        if entry is None or entry[:5] != state:
            if not stat.S_ISREG(found.st_mode) or not _is_text(path):
                return
            entry = self._read_entry(state, parent, name, entry)
        if entry.at >= 0:
            self._kept += entry.size
        self._now.files[path] = entry

    def _read_entry(
        self,
        state: tuple[int, int, int, int, int],
        parent: int,
        name: str,
        old: Entry | None,
    ) -> Entry:
        size, mtime, ctime, inode, mode = state
        data = None
        if size <= min(BYTES_MAX, KEPT_BYTES_MAX - self._kept):
            with _skip_unreadable():
                data = read(name, parent)
        if data is None or len(data) > BYTES_MAX:
            return Entry(*state, f"{size} {mtime} {inode}", -1)
        digest, at = hashlib.sha256(data).hexdigest(), self._pack.tell()
        if old is not None and old.at >= 0 and old.hash == digest:
            at = old.at
        else:
            self._pack.write(data)
        return Entry(
            len(data),
            mtime,
            -ctime if ctime > self._racy else ctime,
            inode,
            mode,
            digest,
            at,
        )


@contextlib.contextmanager
def _skip_unreadable() -> Iterator[None]:
    """Ignore errors of unreadable files, but not the lack of file descriptors or memory, which fails the whole scan."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise


def _is_text(path: str) -> bool:
    try:
        return bool(path.encode())
    except UnicodeEncodeError:
        return False


def is_same(was: Entry | FileState | None, now: Entry | FileState | None) -> bool:
    """Return whether a file has the same contents and mode as before."""
    return (was and (was.hash, was.mode)) == (now and (now.hash, now.mode))
