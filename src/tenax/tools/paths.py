"""Open paths inside a folder, without a way out of the folder.

A path is opened name by name, relative to the descriptor of the parent folder, and never through a link. An exchange of
a file between check and use is therefore harmless: the checked descriptor is also the used descriptor.
"""

from __future__ import annotations

import contextlib
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from tenax.errors import NoSuchFile, ToolFailed
from tenax.text import replace_controls, replace_hidden
from tenax.tools.files import walk

__all__ = [
    "FOLDER",
    "explained",
    "file_at",
    "hidden_prefixes",
    "is_git",
    "is_hidden",
    "keep_real",
    "kind",
    "open_file",
    "open_folder",
    "parent_of",
    "parts_of",
    "real_folder",
]

_CHARS_MAX = 4096
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHERS = {
    stat.S_IFLNK: "a link, and links are not followed",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file, not a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def parts_of(path: str) -> list[str]:
    """Split a path into names. Raises `ToolFailed` if the path leaves the folder or contains invisible characters."""
    if path.startswith("/"):
        raise ToolFailed(
            "The path must be relative to the conversation's folder: it may not begin with a slash."
        )
    if len(path) > _CHARS_MAX:
        raise ToolFailed(
            f"A path may have {_CHARS_MAX:,} characters; this one has {len(path):,}."
        )
    if replace_controls(path) != path or "\t" in path or "\n" in path:
        raise ToolFailed(
            "The path holds a character that cannot be seen, such as a NUL or a line break."
        )
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ToolFailed(
            "The path may not hold '..': only the conversation's folder can be reached."
        )
    return parts


def is_git(part: str) -> bool:
    """Return whether a file system may read the name as `.git`, despite different case or invisible characters."""
    seen = replace_hidden(part, "")
    return unicodedata.normalize("NFKC", seen).casefold() in {".git", "git~1"}


_real_folders: dict[Path, Path] = {}


def real_folder(folder: Path) -> Path:
    """Return the path with links resolved at the first call in this process.

    The first result is kept, because a command of another Tenax, with an enclosing folder, can replace the folder by a
    link later.
    """
    if folder not in _real_folders:
        real = folder.resolve()
        # The real path resolves to itself from now on, too.
        _real_folders[folder] = _real_folders[real] = real
    return _real_folders[folder]


def keep_real(folder: Path) -> Path:
    """Return the folder, whose path was stored without links. A link on the way to the folder is not followed."""
    return _real_folders.setdefault(folder, folder)


def open_folder(folder: Path, *, make: bool = False) -> int:
    """Open the folder of the tools. Raises `ToolFailed` if a link replaced the folder, or another `OSError`."""
    try:
        return walk.open_folder(str(real_folder(folder)), make=make)
    except NotADirectoryError as error:
        raise ToolFailed(
            f"{real_folder(folder)} cannot be used: it is not the folder any more that it was when Tenax started. There "
            "is a link or a file in its place, or on the way to it.",
            hint="put the folder back, or restart Tenax if you moved it yourself",
        ) from error


@contextlib.contextmanager
def parent_of(folder: Path, parts: list[str], *, make: bool) -> Iterator[int]:
    """Open the folder containing the last name of `parts`. With `make`, create missing folders."""
    parent = open_folder(folder)
    try:
        for depth, part in enumerate(parts[:-1], start=1):
            child = _enter(part, parent, "/".join(parts[:depth]), make=make)
            os.close(parent)
            parent = child
        yield parent
    finally:
        os.close(parent)


def file_at(name: str, parent: int, shown: str) -> os.stat_result | None:
    """Return the status of a regular file, or `None` if there is no file. Raises `ToolFailed` for other file types.

    A device is not opened, because opening alone can have an effect.
    """
    found = _stat(name, parent)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise ToolFailed(f"{shown} is {kind(found)}.")
    _refuse_respelled(name, parent, shown, found)
    return found


def open_file(name: str, parent: int, shown: str) -> tuple[int, os.stat_result]:
    """Open a regular file for reading, and return the descriptor and the status. Raises `ToolFailed` for other types."""
    file_at(name, parent, shown)
    descriptor = os.open(name, walk.FILE, dir_fd=parent)
    found = os.fstat(descriptor)
    # Another file may have taken the place of the checked file.
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise ToolFailed(f"{shown} is {kind(found)}.")
    return descriptor, found


def hidden_prefixes(folder: Path, hidden: Iterable[Path]) -> tuple[str, ...]:
    """Return the prefixes of paths in the folder that belong to Tenax itself, for `is_hidden`."""
    real = folder.resolve()
    prefixes = []
    for path in hidden:
        resolved = path.resolve()
        if not resolved.is_relative_to(real):
            continue
        name = str(resolved.relative_to(real))
        prefixes.append(f"{name}/")
        # SQLite writes NAME-wal and NAME-shm beside a database.
        if resolved.is_file():
            prefixes.append(f"{name}-")
    return tuple(prefix.removeprefix("./") for prefix in prefixes)


def is_hidden(path: str, prefixes: tuple[str, ...]) -> bool:
    """Return whether a path in the folder belongs to Tenax itself."""
    return f"{path}/".startswith(prefixes)


def kind(found: os.stat_result) -> str:
    """Return the type of a file, for an error message."""
    return _OTHERS.get(stat.S_IFMT(found.st_mode), "a device")


@contextlib.contextmanager
def explained(shown: str) -> Iterator[None]:
    """Turn errors of the operating system into `ToolFailed`."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoSuchFile(f"There is no file {shown}.") from error
    except OSError as error:
        raise ToolFailed(f"{shown} cannot be used: {error.strerror}.") from error


def _enter(part: str, parent: int, shown: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=parent)
            os.fsync(parent)
    _refuse_respelled(part, parent, shown, _stat(part, parent))
    try:
        return os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        found = _stat(part, parent)
        if found is None or stat.S_ISDIR(found.st_mode):
            raise
        raise ToolFailed(f"{shown} is {kind(found)}.") from error


def _stat(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refuse_respelled(
    name: str, parent: int, shown: str, found: os.stat_result | None
) -> None:
    """Refuse a name with a different case on disk, because a file system may ignore case, but rules do not."""
    swapped = name.swapcase()
    if found is None or name == swapped:
        return
    other = _stat(swapped, parent)
    if (
        other is not None
        and os.path.samestat(found, other)
        and name not in os.listdir(parent)
    ):
        raise ToolFailed(
            f"{shown} is spelled otherwise there.", hint="use the name as it is listed"
        )
