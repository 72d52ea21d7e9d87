"""The conversation's folder as it was before a call, on disk before the call begins: a kill in its middle loses none of it.

A look walks the folder as `seek.py` does, and reads only what moved since the last one. What files hold is appended to a
pack beside the store, and a manifest says where. A call that is under way has a file of its own with the manifest of
before, locked as long as its process lives: whoever gets the lock finds what a dead one left.

No flush waits for the disk: a killed process loses nothing by that, and what a power cut spoils is known by its hash.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

import msgspec

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
from tenax.tools.paths import open_folder, parent_of, parts_of

__all__ = [
    "BYTES_MAX",
    "KEPT_BYTES_MAX",
    "About",
    "Entry",
    "Manifest",
    "Snapshots",
    "Taken",
    "same",
]

ENTRIES_MAX: Final = 20_000
"""Files and folders that are looked at."""
BYTES_MAX: Final = 1_000_000
"""What larger files hold is not kept."""
KEPT_BYTES_MAX: Final = 50_000_000
_SLACK: Final = 4_000_000
_RACY_NS: Final = 2_100_000_000
"""A file that was written so shortly before a look may be written again within the same tick of its file system's clock."""
_TICK_NS: Final = 100_000_000
_FORGOTTEN_NS: Final = 7 * 86_400 * 10**9
"""What nobody has asked for after so long goes."""


class Entry(NamedTuple):
    """A file: how it looked, a hash of what it held, and where in the pack that stands; -1: it is not kept.

    A negative `ctime_ns` looks like no file's, so that it is read again.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int
    hash: str
    at: int


class Manifest(msgspec.Struct):
    """All files at one time. `missed` says what is not among them."""

    pack: str
    at_ns: int
    files: dict[str, Entry]
    missed: str = ""


class About(msgspec.Struct, frozen=True):
    """Whose call it is, and paths that count even where an ignore file names them. `undoes`: it puts that turn back."""

    user: str
    conversation: str
    run: str | None
    message: int
    call: str
    also: list[str] = []
    undoes: str = ""


class Taken(NamedTuple):
    """The folder before a call. The file is locked until it is let go."""

    about: About
    before: Manifest
    file: Path
    lock: int

    def let_go(self) -> None:
        os.close(self.lock)

    def drop(self) -> None:
        """The call is not made."""
        self.file.unlink(missing_ok=True)
        self.let_go()


_decode = msgspec.msgpack.Decoder(Manifest).decode
_decode_taken = msgspec.msgpack.Decoder(tuple[About, Manifest]).decode


class Snapshots:
    """Of one folder, kept in a place of our own. `hidden` is left out: it is Tenax's. Every method blocks.

    A look ends with Abandoned once its event `deserted` is set.
    """

    def __init__(self, folder: Path, place: Path, hidden: Iterable[Path]) -> None:
        self._folder = folder
        self._place = place / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        real, own = folder.resolve(), [each.resolve() for each in hidden]
        inside = [
            (each.relative_to(real), each.is_file())
            for each in own
            if each.is_relative_to(real)
        ]
        # of a file also what SQLite puts beside it
        names = [
            f"{each}{end}"
            for each, is_file in inside
            for end in ("/", "-")[: 1 + is_file]
        ]
        self._hidden = tuple(each.removeprefix("./") for each in names)

    def take(self, about: About, deserted: threading.Event | None = None) -> Taken:
        """Keep the folder as it is now. The caller lets go of it."""
        with _locked(self._place), contextlib.ExitStack() as undo:
            before = self._look(about.also, deserted)
            file = self._place / f"call-{os.urandom(8).hex()}"
            lock = os.open(
                file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            taken = Taken(about, before, file, lock)
            undo.callback(taken.drop)
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(lock, "wb", closefd=False) as writer:
                writer.write(msgspec.msgpack.encode((about, before)))
            undo.pop_all()
        return taken

    def left(self, user: str, conversation: str | None) -> list[Taken]:
        """What calls of the user left whose process is gone. The caller lets go of each.

        The folder is this user's. In earlier versions others worked in it: what their calls left is removed.
        """
        found = [self._claim(file) for file in sorted(self._place.glob("call-*"))]
        kept = []
        for taken in filter(None, found):
            if taken.about.user != user:
                taken.drop()
            elif conversation in {None, taken.about.conversation}:
                kept.append(taken)
            else:
                taken.let_go()
        return kept

    def _claim(self, file: Path) -> Taken | None:
        with (
            contextlib.suppress(OSError),
            _locked(self._place),
            contextlib.ExitStack() as undo,
        ):
            lock = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                taken = Taken(*_decode_taken(file.read_bytes()), file, lock)
            except (
                msgspec.DecodeError
            ):  # it was killed while it wrote this: its call was never begun
                taken = None
            if taken is None or time.time_ns() - taken.before.at_ns > _FORGOTTEN_NS:
                file.unlink()
                return None
            undo.pop_all()
            return taken
        return None

    def moved(
        self, taken: Taken, deserted: threading.Event | None = None
    ) -> tuple[Manifest, list[tuple[str, Entry | None, Entry | None]]]:
        """The folder now, and every file that is another than before the call."""
        before = taken.before.files
        with _locked(self._place):
            now = self._look([*before, *taken.about.also], deserted)
        items = {path for path, _ in before.items() ^ now.files.items()}
        pairs = [
            (path, before.get(path), now.files.get(path)) for path in sorted(items)
        ]
        found = [(path, was, to) for path, was, to in pairs if not same(was, to)]
        if taken.before.missed or any(
            path.endswith(".gitignore") for path, _, _ in found
        ):
            # what was not looked at before may only seem to be new
            since = taken.before.at_ns - _TICK_NS
            found = [
                each
                for each in found
                if each[1] or not each[2] or abs(each[2].ctime_ns) > since
            ]
        return now, found

    def content(self, manifest: Manifest, entry: Entry) -> bytes | None:
        """What the file held, if that is kept."""
        if entry.at < 0:
            return None
        try:
            with (self._place / manifest.pack).open("rb") as pack:
                pack.seek(entry.at)
                data = pack.read(entry.size)
        except FileNotFoundError:
            return None
        return data if hashlib.sha256(data).hexdigest() == entry.hash else None

    def forget(self) -> None:
        """Keep nothing of what files held before now; what a call under way needs, until it ends.

        The same text may be kept of other folders: of one that tools worked in before, or that users shared.
        """
        others = {lock.parent for lock in self._place.parent.glob("*/lock")} - {
            self._place
        }
        for place in (self._place, *sorted(others)):
            with _locked(place):
                (place / "manifest").unlink(missing_ok=True)
                _last(place)

    def _look(self, also: Iterable[str], deserted: threading.Event | None) -> Manifest:
        old = _last(self._place)
        now = Manifest(old.pack, time.time_ns(), {}, "")
        with _private(self._place / old.pack, "ab") as pack:
            look = _Look(
                self._folder,
                old,
                now,
                pack,
                self._hidden,
                deserted or threading.Event(),
            )
            try:
                look.walk()
            except Enough:
                now.missed = f"The folder has more than {ENTRIES_MAX:,} files and folders: what changed in the others is not known."
            look.add(also)
        if now.files != old.files or now.missed != old.missed:
            file = self._place / "manifest.new"
            with _private(file, "wb") as writer:
                writer.write(msgspec.msgpack.encode(now))
            file.replace(self._place / "manifest")
        return now


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _private(place / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _last(place: Path) -> Manifest:
    """The last look. When most of the pack is of the past, and no call needs it, it begins anew."""
    idle = not any(place.glob("call-*"))
    last = Manifest(f"pack-{os.urandom(4).hex()}", 0, {})
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        old = _decode((place / "manifest").read_bytes())
        live = sum(each.size for each in old.files.values() if each.at >= 0)
        if not idle or (place / old.pack).stat().st_size <= 2 * live + _SLACK:
            last = old
    for each in place.glob("pack-*") if idle else ():
        if each.name != last.pack:
            each.unlink()
    return last


def _private(file: Path, mode: Literal["wb", "ab"]) -> IO[bytes]:
    """Open a file of ours for writing. Nobody else may read it, nor one that was made with another mode before."""
    flags = (
        os.O_WRONLY
        | os.O_CREAT
        | os.O_CLOEXEC
        | (os.O_TRUNC if mode == "wb" else os.O_APPEND)
    )
    descriptor = os.open(file, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return open(descriptor, mode)  # noqa: PTH123  (a descriptor)


class _Look:
    """One look at a folder: what moved since the old one is read, and added to the pack."""

    def __init__(
        self,
        folder: Path,
        old: Manifest,
        now: Manifest,
        pack: IO[bytes],
        hidden: tuple[str, ...],
        deserted: threading.Event,
    ) -> None:
        self._folder, self._old, self._now, self._pack = folder, old.files, now, pack
        self._hidden, self._deserted = hidden, deserted
        self._racy = now.at_ns - _RACY_NS
        self._kept = 0

    def walk(self) -> None:
        try:
            root = open_folder(self._folder)
        except FileNotFoundError:  # it may not have been made yet
            return
        try:
            walk = Walk(ENTRIES_MAX, self._deserted.is_set)
            for parent, name, path in walk.walk(
                root, "", with_ignores([], root, ""), DEPTH_MAX
            ):
                self._take(parent, name, path)
        finally:
            os.close(root)

    def add(self, paths: Iterable[str]) -> None:
        """These too, although they are ignored or lie beyond the limit."""
        for path in paths:
            if self._deserted.is_set():
                raise Abandoned
            if path not in self._now.files:
                with contextlib.suppress(ToolFailed), _unless_unread():
                    parts = parts_of(path)
                    with parent_of(self._folder, parts, make=False) as parent:
                        self._take(parent, parts[-1], path)

    def _take(self, parent: int, name: str, path: str) -> None:
        if f"{path}/".startswith(self._hidden):
            return
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError:  # it went away meanwhile
            return
        looks = (
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
            found.st_ino,
            found.st_mode,
        )
        entry = self._old.get(path)
        if entry is None or entry[:5] != looks:
            if not stat.S_ISREG(found.st_mode) or not _is_text(path):
                return
            entry = self._read(looks, parent, name, entry)
        if entry.at >= 0:
            self._kept += entry.size
        self._now.files[path] = entry

    def _read(
        self,
        looks: tuple[int, int, int, int, int],
        parent: int,
        name: str,
        old: Entry | None,
    ) -> Entry:
        size, mtime, ctime, inode, mode = looks
        data = None
        if size <= min(BYTES_MAX, KEPT_BYTES_MAX - self._kept):
            with _unless_unread():
                data = read(name, parent)
        if data is None or len(data) > BYTES_MAX:
            return Entry(*looks, f"{size} {mtime} {inode}", -1)
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
def _unless_unread() -> Iterator[None]:
    """What may not be read is not; but where it is us who can open no more, there is no look."""
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


def same(was: Entry | FileState | None, now: Entry | FileState | None) -> bool:
    """Whether a file is the same as before, whatever its times are."""
    return (was and (was.hash, was.mode)) == (now and (now.hash, now.mode))
