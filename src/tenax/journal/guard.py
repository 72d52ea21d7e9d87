"""What may not touch a SQLite store: a second library, a network file system, a copy after `fork`.

SQLite guards its file with POSIX locks, which belong to the process: when anything in it closes any descriptor of the
`-shm` file, all its locks on that file are gone. The standard library's `sqlite3` does that, being a second copy of
SQLite in the process; another process then writes into the middle of our transaction, and a committed row is lost,
without any error. So an audit hook refuses it before it happens.
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
    "forks",
    "make_private",
    "protect",
    "refuse_after_fork",
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
_forks = 0


def forks() -> int:
    """How often this process and those it comes from were forked. What is opened now is good until that changes."""
    return _forks


def _forked() -> None:
    global _forks  # noqa: PLW0603  (every append asks, and a look at a number is quicker than the kernel's answer)
    _forks += 1


os.register_at_fork(after_in_child=_forked)


def protect(path: Path) -> None:
    """Refuse, from now on and in this process, to let another SQLite library open this store."""
    global _hooked  # noqa: PLW0603  (an audit hook is for the life of the process)
    real = str(path.resolve())
    with _protecting:  # who comes second may find the file open already, by the first
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
                f"{target} is a Tenax store that is open here, and Python's own sqlite3 may not open it as well: "
                "that would drop its locks and lose other processes' writes.",
                hint="read it through tenax, or from another process",
            )
    elif event == "open" and _is_protected_shm(args[0]):
        raise StoreMisused(
            f"{args[0]} belongs to a Tenax store that is open here; opening it would drop the store's locks.",
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
    """Another library may have opened the file before us; then its descriptor is there to see (on Linux)."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return
    for each in folder.iterdir():
        try:
            target = str(each.readlink())
        except OSError:
            continue
        if target in {real, f"{real}-wal", f"{real}-shm"}:
            raise StoreMisused(
                f"Something else in this process has {target} open already, and two SQLite libraries on one file "
                "lose writes.",
                hint="close it first, or open it from another process",
            )


def refuse_after_fork(opened_at: int) -> None:
    """A child process has its parent's locks and connections but not its threads; nothing of them may be used."""
    if _forks != opened_at:
        raise StoreMisused(
            "The store was opened before a fork and may not be used after it.",
            hint="open it in the new process",
        )


def refuse_network_file_system(folder: Path) -> None:
    """SQLite's write-ahead log needs shared memory and locks that network file systems do not give."""
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
            f"{folder} lies on a network file system ({kind}), where a SQLite store would be damaged.",
            hint="put the store on a local disk, or use postgresql://",
        )


def make_private(path: Path) -> None:
    """A new file of SQLite's, for nobody else's eyes; its log and its index take their mode from it."""
    with contextlib.suppress(OSError):  # a file system without modes
        path.chmod(0o600)
