"""Paths inside one folder, and no way out of it.

A path is walked from that folder one name at a time, each name opened in the folder opened before it and never through
a link. So it does not matter what is swapped between a look and the use of what was seen: what is used is what was
opened.
"""

from __future__ import annotations

import contextlib
import os
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from tenax.errors import ToolFailed
from tenax.tools.files import walk as seek

__all__ = [
    "FOLDER",
    "explained",
    "file_at",
    "is_git",
    "kind",
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
    """The names on the way. Refuses what could not be inside the folder, or not be seen for what it is."""
    if path.startswith("/"):
        raise ToolFailed(
            "The path must be relative to the conversation's folder: it may not begin with a slash."
        )
    if len(path) > _CHARS_MAX:
        raise ToolFailed(
            f"A path may have {_CHARS_MAX:,} characters; this one has {len(path):,}."
        )
    if any(unicodedata.category(each) in {"Cc", "Cs"} for each in path):
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
    """This name is `.git`, or one that some file systems take for it: in other case, or with characters without width."""
    seen = "".join(each for each in part if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", seen).casefold() in {".git", "git~1"}


_real_folders: dict[Path, Path] = {}


def real_folder(folder: Path) -> Path:
    """Return the path without links, as it was when this process asked first.

    A command of another Tenax, whose folder holds this one, can put a link in its place later.
    """
    if folder not in _real_folders:
        real = folder.resolve()
        # asked for by its real path, it stays the same
        _real_folders[folder] = _real_folders[real] = real
    return _real_folders[folder]


def open_folder(folder: Path, *, make: bool = False) -> int:
    """Open the folder in which tools work. Raises ToolFailed where it has become a link, or another OSError."""
    try:
        return seek.open_folder(str(real_folder(folder)), make=make)
    except NotADirectoryError as error:
        raise ToolFailed(
            f"{real_folder(folder)} cannot be used: it is not the folder any more that it was when Tenax started. There "
            "is a link or a file in its place, or on the way to it.",
            hint="put the folder back, or restart Tenax if you moved it yourself",
        ) from error


@contextlib.contextmanager
def parent_of(folder: Path, parts: list[str], *, make: bool) -> Iterator[int]:
    """The folder that holds the last of these names, open."""
    parent = open_folder(folder)
    try:
        for at, part in enumerate(parts[:-1], start=1):
            child = _enter(part, parent, "/".join(parts[:at]), make=make)
            os.close(parent)
            parent = child
        yield parent
    finally:
        os.close(parent)


def file_at(name: str, parent: int, shown: str) -> os.stat_result | None:
    """What is there, if it is a file. A device is not even opened: that alone can do something."""
    found = _look(name, parent)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise ToolFailed(f"{shown} is {kind(found)}.")
    _refuse_respelled(name, parent, shown, found)
    return found


def kind(found: os.stat_result) -> str:
    """What it is, where something else was looked for."""
    return _OTHERS.get(stat.S_IFMT(found.st_mode), "a device")


@contextlib.contextmanager
def explained(shown: str) -> Iterator[None]:
    """What the system says, as a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailed(f"There is no file {shown}.") from error
    except OSError as error:
        raise ToolFailed(f"{shown} cannot be used: {error.strerror}.") from error


def _enter(part: str, parent: int, shown: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=parent)
            os.fsync(parent)
    _refuse_respelled(part, parent, shown, _look(part, parent))
    try:
        return os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        found = _look(part, parent)
        if found is None or stat.S_ISDIR(found.st_mode):
            raise
        raise ToolFailed(f"{shown} is {kind(found)}.") from error


def _look(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refuse_respelled(
    name: str, parent: int, shown: str, found: os.stat_result | None
) -> None:
    """Some file systems find `Secret` under the name `secret`; a rule that a person made does not."""
    twin = _look(name.swapcase(), parent) if found and name != name.swapcase() else None
    if (
        found
        and twin
        and os.path.samestat(found, twin)
        and name not in os.listdir(parent)
    ):
        raise ToolFailed(
            f"{shown} is spelled otherwise there.", hint="use the name as it is listed"
        )
