"""Mount protected paths inside the mount namespace of a sandbox. Runs as a separate program:

    python -I -S mounted.py PID PIDFD FOLDER DEVICE INODE < paths

`paths` is a list of fields terminated by NUL: path in the folder, device, inode, and `locked` or `held`. The program
joins the mount namespace of the process, so no path leads out of the sandbox from then on. For every path, the program
opens the file without following a link, compares device and inode with the planned file, and mounts the open file upon
itself. The source and the destination of a mount are the same descriptor, so no command can exchange them. Then the
program opens every path again and checks file, mount and read-only flag. The program uses only the standard
library, because it runs without Tenax's packages.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import sys
import time

__all__ = ["CHANGED", "FAILED", "ProtectedPath", "open_beneath"]

CHANGED = 3
"""Exit status: at every attempt, a path was not the planned file. The caller searches for repositories again."""
FAILED = 4
"""Exit status: a system call failed. Standard error has the reason."""
_LOOKS_MAX = 300
_PAUSE_SECONDS = 0.0002

# These numbers are the same on every processor.
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_EMPTY_PATHS = 0x04 | 0x40
_MOUNT_ATTR_RDONLY = 1
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_NS_GET_USERNS = 0xB701
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_O_PATH = 0x200000

_libc = ctypes.CDLL(None, use_errno=True)


# Not a `NamedTuple`, because `typing` takes as long to import as every other import together.
class ProtectedPath:
    """A file or folder that no command may move. If `locked`, no command may write it either."""

    __slots__ = ("device", "inode", "locked", "path")

    def __init__(self, path: str, device: int, inode: int, *, locked: bool) -> None:
        self.path, self.device, self.inode, self.locked = path, device, inode, locked


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _Changed(Exception):
    """A path does not lead to the planned file."""


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open a path below an open folder. No part of the path may be a link. Raises `OSError`."""
    resolve = _RESOLVE_NO_MAGICLINKS | _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    return _call_kernel(
        _OPENAT2,
        folder,
        os.fsencode(path) or b".",
        ctypes.byref(how),
        ctypes.sizeof(how),
    )


def _call_kernel(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _join(pid: str, pidfd: int) -> None:
    """Join the mount namespace of a process, with full rights in the owning user namespace."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    alive = select.poll()
    alive.register(pidfd, select.POLLIN)
    # The process ended, so a new process may have its id.
    if alive.poll(0):
        raise ProcessLookupError(3, "the command has ended")
    owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
    for namespace, kind in ((owner, _CLONE_NEWUSER), (mounts, _CLONE_NEWNS)):
        if _libc.setns(namespace, kind):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _is_planned(descriptor: int, protected: ProtectedPath) -> bool:
    found = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (protected.device, protected.inode)


def _open_protected(folder: int, protected: ProtectedPath) -> tuple[int, int]:
    """Open a protected path and its parent folder, as soon as the path leads to the planned file. Raises `_Changed`."""
    above, _, name = protected.path.rpartition("/")
    for _ in range(_LOOKS_MAX):
        descriptors: list[int] = []
        try:
            descriptors.append(open_beneath(folder, above, _O_PATH | os.O_DIRECTORY))
            descriptors.append(
                open_beneath(descriptors[0], name, _O_PATH | os.O_NOFOLLOW)
            )
            if _is_planned(descriptors[1], protected):
                return descriptors[0], descriptors[1]
        # The file is missing at the moment, or a part of the path is a link.
        except OSError:
            pass
        for descriptor in descriptors:
            os.close(descriptor)
        time.sleep(_PAUSE_SECONDS)
    raise _Changed(protected.path)


def _mount_of(descriptor: int, descriptors: int) -> str:
    """Return the id of the mount of a descriptor. `descriptors` is `/proc/self/fdinfo`, opened earlier."""
    info = os.open(str(descriptor), os.O_RDONLY, dir_fd=descriptors)
    try:
        lines = os.read(info, 4096).decode().splitlines()
    finally:
        os.close(info)
    return next(line for line in lines if line.startswith("mnt_id:"))


def _mount(folder: int, protected: ProtectedPath) -> None:
    """Mount a protected path upon itself."""
    above, descriptor = _open_protected(folder, protected)
    try:
        # The mount of a held folder includes the mounts below it. Nothing is mounted below a locked folder.
        recursive = 0 if protected.locked else _AT_RECURSIVE
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | recursive
        tree = _call_kernel(_OPEN_TREE, descriptor, b"", flags)
        try:
            if protected.locked:
                attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
                size = ctypes.sizeof(attributes)
                _call_kernel(
                    _MOUNT_SETATTR,
                    tree,
                    b"",
                    _AT_EMPTY_PATH,
                    ctypes.byref(attributes),
                    size,
                )
            _call_kernel(
                _MOVE_MOUNT, tree, b"", descriptor, b"", _MOVE_MOUNT_EMPTY_PATHS
            )
        finally:
            os.close(tree)
    finally:
        os.close(above)
        os.close(descriptor)


def _check(folder: int, protected: ProtectedPath, descriptors: int) -> None:
    """Check that the path leads to a mount of the planned file, read-only if `locked`. Raises `_Changed`."""
    above, descriptor = _open_protected(folder, protected)
    try:
        if _mount_of(descriptor, descriptors) == _mount_of(above, descriptors):
            raise _Changed(protected.path)
        if protected.locked and not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            raise _Changed(protected.path)
    finally:
        os.close(above)
        os.close(descriptor)


def _read_paths(data: bytes) -> list[ProtectedPath]:
    fields = iter(data.split(b"\0")[:-1])
    groups = zip(fields, fields, fields, fields, strict=True)
    return [
        ProtectedPath(
            os.fsdecode(path), int(device), int(inode), locked=kind == b"locked"
        )
        for path, device, inode, kind in groups
    ]


def main(pid: str, pidfd: str, folder: str, device: str, inode: str) -> int:
    protected_paths = _read_paths(sys.stdin.buffer.read())
    try:
        descriptors = os.open(
            "/proc/self/fdinfo", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        _join(pid, int(pidfd))
        root = os.open(
            folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        if not _is_planned(
            root, ProtectedPath(folder, int(device), int(inode), locked=False)
        ):
            return CHANGED
        for protected in protected_paths:
            _mount(root, protected)
        for protected in protected_paths:
            _check(root, protected, descriptors)
    except _Changed:
        return CHANGED
    except OSError as error:
        sys.stderr.write(error.strerror or type(error).__name__)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
