"""Reading and writing files, inside the conversation's folder and nowhere else.

A path is walked from that folder one name at a time, each name opened in the folder opened before it and never through
a link. So it does not matter what is swapped between a look and the use of what was seen: what is used is what was
opened.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tenax.errors import ToolFailed
from tenax.tools.base import Call, Tool, aside

__all__ = ["READ_BYTES_MAX", "ReadFile", "ReadFileArgs", "WriteFile", "WriteFileArgs"]

READ_BYTES_MAX = 10 * 1024 * 1024
"""Larger files are described, not read."""
_PATH_CHARS_MAX = 4096
_SECONDS = 30.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = {
    stat.S_IFLNK: "a link, and links are not followed",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file, not a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}

_PathArg = Annotated[str, Meta(description="A path in the conversation's folder, such as notes/today.md.")]


class ReadFileArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which lines of which file."""

    path: _PathArg
    first_line: Annotated[
        int, Meta(ge=1, description="The first line to read; the file begins with line 1.")
    ] = 1
    lines: Annotated[int, Meta(ge=1, description="How many lines to read at most.")] = 2000


class WriteFileArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to put where."""

    path: _PathArg
    content: Annotated[str, Meta(description="The whole new content of the file.")]


class ReadFile(Tool[ReadFileArgs]):
    """Read a text file."""

    name = "read_file"
    description = "Read a text file in the conversation's folder."
    effect = "pure"
    args = ReadFileArgs
    seconds = _SECONDS
    asks = False

    def touches(self, args: ReadFileArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return "/".join(_parts(args.path))

    async def run(self, args: ReadFileArgs, call: Call) -> str:
        return await aside(functools.partial(_read, args, call.folder))


class WriteFile(Tool[WriteFileArgs]):
    """Write a text file."""

    name = "write_file"
    description = "Write a text file in the conversation's folder. What the file held before is replaced."
    effect = "idempotent"
    args = WriteFileArgs
    seconds = _SECONDS
    asks = True

    def touches(self, args: WriteFileArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return "/".join(_parts(args.path))

    async def run(self, args: WriteFileArgs, call: Call) -> str:
        return await aside(functools.partial(_write, args, call.folder))


def _parts(path: str) -> list[str]:
    """The names on the way. Refuses what could not be inside the folder, or not be seen for what it is."""
    if path.startswith("/"):
        raise ToolFailed(
            "The path must be relative to the conversation's folder: it may not begin with a slash."
        )
    if len(path) > _PATH_CHARS_MAX:
        raise ToolFailed(f"A path may have {_PATH_CHARS_MAX:,} characters; this one has {len(path):,}.")
    if any(unicodedata.category(each) in {"Cc", "Cs"} for each in path):
        raise ToolFailed("The path holds a character that cannot be seen, such as a NUL or a line break.")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ToolFailed("The path may not hold '..': only the conversation's folder can be reached.")
    if not parts:
        raise ToolFailed("The path names no file.")
    return parts


def _read(args: ReadFileArgs, folder: Path, deserted: threading.Event) -> str:  # noqa: ARG001  (nothing to undo)
    parts = _parts(args.path)
    shown = "/".join(parts)
    with _explained(shown), _parent(folder, parts, make=False) as parent:
        _refuse_others(parts[-1], parent, shown)
        with open(os.open(parts[-1], _READ, dir_fd=parent), "rb") as file:  # noqa: PTH123  (a descriptor, not a path)
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ToolFailed(_what(shown, found))
            data = file.read(READ_BYTES_MAX + 1)
    if len(data) > READ_BYTES_MAX:
        return (
            f"{shown} has {found.st_size:,} bytes. Files of more than {READ_BYTES_MAX:,} bytes are not read."
        )
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return f"{shown} is not UTF-8 text. It has {len(data):,} bytes."
    return _lines(args, shown, text)


def _lines(args: ReadFileArgs, shown: str, text: str) -> str:
    if not text:
        return f"{shown} is empty."
    lines = text.removesuffix("\n").split("\n")
    first, last = args.first_line, min(args.first_line - 1 + args.lines, len(lines))
    if first > len(lines):
        return f"{shown} has no line {first:,}; its last one is {len(lines):,}."
    if (first, last) == (1, len(lines)):
        return text
    return f"Lines {first:,} to {last:,} of {len(lines):,}:\n" + "\n".join(lines[first - 1 : last])


def _write(args: WriteFileArgs, folder: Path, deserted: threading.Event) -> str:
    parts = _parts(args.path)
    shown = "/".join(parts)
    try:
        data = args.content.encode()
    except UnicodeEncodeError as error:
        raise ToolFailed("The content holds half of a surrogate pair, which is no text.") from error
    with _explained(shown):
        folder.mkdir(parents=True, exist_ok=True)
        with _parent(folder, parts, make=True) as parent:
            _replace(parts[-1], parent, shown, data, deserted)
    return f"{shown} was written: {len(data):,} bytes."


def _replace(name: str, parent: int, shown: str, data: bytes, deserted: threading.Event) -> None:
    """Put the new file in the place of the old one in one step, on disk before it is told."""
    before = _refuse_others(name, parent, shown)
    temporary = f".tenax-{os.urandom(8).hex()}"
    descriptor = os.open(temporary, _NEW, 0o666, dir_fd=parent)
    with contextlib.ExitStack() as undo:
        undo.callback(os.unlink, temporary, dir_fd=parent)
        with open(descriptor, "wb") as file:  # noqa: PTH123  (a descriptor, not a path)
            if before is not None:
                os.fchmod(descriptor, before.st_mode & 0o777)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if deserted.is_set():
            raise ToolFailed(f"{shown} was not written: nobody waited for it any more.")
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        undo.pop_all()
    os.fsync(parent)


@contextlib.contextmanager
def _parent(folder: Path, parts: list[str], *, make: bool) -> Iterator[int]:
    """The folder that holds the last of these names, open."""
    parent = os.open(folder, _FOLDER)
    try:
        for at, part in enumerate(parts[:-1], start=1):
            child = _enter(part, parent, "/".join(parts[:at]), make=make)
            os.close(parent)
            parent = child
        yield parent
    finally:
        os.close(parent)


def _enter(part: str, parent: int, shown: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=parent)
            os.fsync(parent)
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        found = _look(part, parent)
        if found is None or stat.S_ISDIR(found.st_mode):
            raise
        raise ToolFailed(_what(shown, found)) from error


def _look(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refuse_others(name: str, parent: int, shown: str) -> os.stat_result | None:
    """What is there, if it is a file. A device is not even opened: that alone can do something."""
    found = _look(name, parent)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise ToolFailed(_what(shown, found))
    return found


def _what(shown: str, found: os.stat_result) -> str:
    return f"{shown} is {_OTHERS.get(stat.S_IFMT(found.st_mode), 'a device')}."


@contextlib.contextmanager
def _explained(shown: str) -> Iterator[None]:
    """What the system says, as a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailed(f"There is no file {shown}.") from error
    except OSError as error:
        raise ToolFailed(f"{shown} cannot be used: {error.strerror}.") from error
