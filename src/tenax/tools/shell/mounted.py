"""Mount protected places inside the mount namespace of a sandbox. Runs as a program of its own:

    python -I -S mounted.py PID PIDFD FOLDER DEVICE INODE < places

`places` is a list of fields that end with NUL: path in the folder, device, inode, and `locked` or `held`. The program joins the
mount namespace of the process, so no path leads out of the sandbox from then on. It opens each place without following a
link, checks that it is the file that was planned, and mounts the open file upon itself: the source and the destination of
a mount are one descriptor, so nobody can exchange either of them. Then it opens each place again by its path and checks
file, mount and read-only flag. Standard library only: it runs without Tenax's packages.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import sys
import time

__all__ = ["CHANGED", "FAILED", "Place", "open_beneath"]

CHANGED = 3
"""Exit status: a place is not the planned file, at every look. The caller looks for repositories again."""
FAILED = 4
"""Exit status: the system refused; standard error says what."""
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


class Place:  # no NamedTuple: `typing` takes as long to import as all of the rest
    """A file or folder that a command may not move; `locked`: nor write."""

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
    """A place is not the planned file."""


def open_beneath(folder: int, path: str, flags: int, *, links: bool = False) -> int:
    """Open a path below an open folder. No part of it may be a link; with `links`, none that leads out. Raises OSError."""
    resolve = (
        _RESOLVE_NO_MAGICLINKS
        | _RESOLVE_BENEATH
        | (0 if links else _RESOLVE_NO_SYMLINKS)
    )
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    return _call(
        _OPENAT2,
        folder,
        os.fsencode(path) or b".",
        ctypes.byref(how),
        ctypes.sizeof(how),
    )


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _join(pid: str, pidfd: int) -> None:
    """Join the mount namespace of a process, with all rights in the user namespace that owns it."""
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    alive = select.poll()
    alive.register(pidfd, select.POLLIN)
    if alive.poll(0):  # it ended, so its number may be that of another process
        raise ProcessLookupError(3, "the command has ended")
    owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
    for namespace, kind in ((owner, _CLONE_NEWUSER), (mounts, _CLONE_NEWNS)):
        if _libc.setns(namespace, kind):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _is_planned(descriptor: int, place: Place) -> bool:
    found = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (place.device, place.inode)


def _open(folder: int, place: Place) -> tuple[int, int]:
    """Open a place and the folder that holds it, as soon as its path leads to the planned file. Raises _Changed."""
    above, _, name = place.path.rpartition("/")
    for _ in range(_LOOKS_MAX):
        descriptors: list[int] = []
        try:
            descriptors.append(open_beneath(folder, above, _O_PATH | os.O_DIRECTORY))
            descriptors.append(
                open_beneath(descriptors[0], name, _O_PATH | os.O_NOFOLLOW)
            )
            if _is_planned(descriptors[1], place):
                return descriptors[0], descriptors[1]
        except OSError:  # it is not there now, or there is a link on the way
            pass
        for descriptor in descriptors:
            os.close(descriptor)
        time.sleep(_PAUSE_SECONDS)
    raise _Changed(place.path)


def _mount_of(descriptor: int, descriptors: int) -> str:
    """Return the id of the mount that a descriptor is on. `descriptors` is /proc/self/fdinfo, opened before."""
    info = os.open(str(descriptor), os.O_RDONLY, dir_fd=descriptors)
    try:
        lines = os.read(info, 4096).decode().splitlines()
    finally:
        os.close(info)
    return next(line for line in lines if line.startswith("mnt_id:"))


def _mount(folder: int, place: Place) -> None:
    """Mount a place upon itself."""
    above, descriptor = _open(folder, place)
    try:
        # Mounts below a folder that is only held come along. Nothing is mounted below a locked one.
        recursive = 0 if place.locked else _AT_RECURSIVE
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | recursive
        tree = _call(_OPEN_TREE, descriptor, b"", flags)
        try:
            if place.locked:
                attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
                size = ctypes.sizeof(attributes)
                _call(
                    _MOUNT_SETATTR,
                    tree,
                    b"",
                    _AT_EMPTY_PATH,
                    ctypes.byref(attributes),
                    size,
                )
            _call(_MOVE_MOUNT, tree, b"", descriptor, b"", _MOVE_MOUNT_EMPTY_PATHS)
        finally:
            os.close(tree)
    finally:
        os.close(above)
        os.close(descriptor)


def _check(folder: int, place: Place, descriptors: int) -> None:
    """Check that the path leads to a mount of the planned file, and that it is read-only. Raises _Changed."""
    above, descriptor = _open(folder, place)
    try:
        if _mount_of(descriptor, descriptors) == _mount_of(above, descriptors):
            raise _Changed(place.path)
        if place.locked and not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            raise _Changed(place.path)
    finally:
        os.close(above)
        os.close(descriptor)


def _places(data: bytes) -> list[Place]:
    fields = iter(data.split(b"\0")[:-1])
    groups = zip(fields, fields, fields, fields, strict=True)
    return [
        Place(os.fsdecode(path), int(device), int(inode), locked=kind == b"locked")
        for path, device, inode, kind in groups
    ]


def main(pid: str, pidfd: str, folder: str, device: str, inode: str) -> int:
    places = _places(sys.stdin.buffer.read())
    try:
        descriptors = os.open(
            "/proc/self/fdinfo", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        _join(pid, int(pidfd))
        root = os.open(
            folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        if not _is_planned(root, Place(folder, int(device), int(inode), locked=False)):
            return CHANGED
        for place in places:
            _mount(root, place)
        for place in places:
            _check(root, place, descriptors)
    except _Changed:
        return CHANGED
    except OSError as error:
        sys.stderr.write(error.strerror or type(error).__name__)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
