"""Refuse dangerous uses of a SQLite store: by a second library or on a network file system.

SQLite guards the file with POSIX locks, and POSIX locks belong to the process: when any code in the process closes a
descriptor of the `-shm` file, the process loses all its locks on the file. The standard library's `sqlite3` does so,
because `sqlite3` is a second copy of SQLite in the process. Another process then writes into the middle of our
transaction, and a committed row is lost without an error. Therefore an audit hook refuses to open the file a second
time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tenax.errors import CannotOpen, StoreMisused

__all__ = [
    "make_private",
    "protect",
    "refuse_network_file_system",
]

_NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone", "fuse.sshfs", "glusterfs",
        "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
    }
)  # fmt: skip
_protected: set[str] = set()
_protecting = threading.Lock()
_hooked = False


def protect(path: Path) -> None:
    """Refuse every later attempt of another SQLite library in the process to open the store."""
    global _hooked  # noqa: PLW0603  (an audit hook is for the life of the process)
    real = str(path.resolve())
    # A second caller would find the file opened by the first caller and refuse.
    with _protecting:
        if real in _protected:
            return
        _refuse_if_open(real)
        _protected.add(real)
        if not _hooked:
            _hooked = True
            sys.addaudithook(_audit)


def _audit(event: str, args: tuple[object, ...]) -> None:
    if event == "sqlite3.connect":
        target = _file_of(args[0])
        if target is not None and os.path.realpath(target) in _protected:
            raise StoreMisused(
                f"{target} is a Tenax store that is open in this process. Python's sqlite3 may not open it too: "
                "closing it would drop the store's locks and lose writes of other processes.",
                hint="read it through tenax, or from another process",
            )
    elif event == "open" and _is_protected_shm(args[0]):
        raise StoreMisused(
            f"{args[0]} belongs to a Tenax store that is open in this process. Opening it would drop the store's locks.",
            hint="copy a store with a backup, or from another process",
        )


def _is_protected_shm(target: object) -> bool:
    if not isinstance(target, str | bytes):
        return False
    name = os.fsdecode(target)
    return (
        name.endswith("-shm")
        and os.path.realpath(name.removesuffix("-shm")) in _protected
    )


def _file_of(target: object) -> str | None:
    name = os.fsdecode(target) if isinstance(target, str | bytes | os.PathLike) else ""
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    return name if name and name != ":memory:" else None


def _refuse_if_open(real: str) -> None:
    """Refuse the store if another library has opened the file. On Linux the descriptor is listed in /proc."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return
    for descriptor in folder.iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target in {real, f"{real}-wal", f"{real}-shm"}:
            raise StoreMisused(
                f"Other code in this process has {target} open, and two SQLite libraries on one file "
                "lose writes.",
                hint="close it first, or open it from another process",
            )


def refuse_network_file_system(folder: Path) -> None:
    """Refuse a network file system: it lacks the shared memory and the locks of SQLite's write-ahead log."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace")
    except OSError:
        return
    kind, length = "", -1
    real = folder.resolve()
    for line in mounts.splitlines():
        _, point, fstype, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if len(point) >= length and real.is_relative_to(point):
            kind, length = fstype, len(point)
    if kind in _NETWORK:
        raise CannotOpen(
            f"{folder} is on a network file system ({kind}), where a SQLite store would be damaged.",
            hint="put the store on a local disk, or use postgresql://",
        )


def make_private(path: Path) -> None:
    """Make a new SQLite file private. The log and the index inherit the mode."""
    # Some file systems have no modes.
    with contextlib.suppress(OSError):
        path.chmod(0o600)
