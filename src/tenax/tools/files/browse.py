"""Look into the folder of a conversation for a person: list a folder, open a file, pack a folder as a zip file.

Like the tools, this opens every name relative to its parent folder and never through a link (`tools/paths.py`). Every
function blocks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

import msgspec

from tenax.clock import rfc3339
from tenax.errors import NoSuchFile, TooLarge, ToolFailed
from tenax.text import replace_controls, replace_hidden
from tenax.tools.files.archive import PIECE_BYTES, ZipWriter
from tenax.tools.files.walk import DEPTH_MAX, FULL
from tenax.tools.paths import (
    explained,
    hidden_prefixes,
    is_hidden,
    open_file,
    parent_of,
    parts_of,
)

__all__ = [
    "ENTRIES_MAX",
    "ZIP_BYTES_MAX",
    "ZIP_FILES_MAX",
    "Browser",
    "Entry",
    "Listing",
    "OpenFile",
]

ENTRIES_MAX: Final = 1_000
"""The most entries of a listing."""
_SCANNED_MAX: Final = 20_000
"""The most entries read from a folder before sorting."""
ZIP_FILES_MAX: Final = 10_000
ZIP_BYTES_MAX: Final = 2 * 1024**3
_LAST_TIME_US: Final = 253_402_300_799_000_000
"""The end of the year 9999. A file may claim to be younger."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Kind = Literal["dir", "file", "link", "other"]


class Entry(msgspec.Struct, frozen=True):
    """An entry of a folder."""

    name: str
    """The name to show. Hidden characters are replaced."""
    path: str | None
    """The path for further requests; `None` if the name cannot be requested."""
    kind: Kind
    size: int
    """Bytes; 0 for anything but a file."""
    modified: str


class Listing(msgspec.Struct, frozen=True):
    """The entries of a folder: folders first, then by name."""

    exists: bool
    entries: list[Entry]
    omitted: int = 0
    """The number of entries beyond the limit."""


class OpenFile(NamedTuple):
    """An open regular file. The caller closes the descriptor."""

    descriptor: int
    path: str
    size: int

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path.rpartition("/")[2]


class _Found(NamedTuple):
    path: str
    size: int
    seconds: float


class Browser:
    """A view of a folder. Paths in `hidden` belong to Tenax itself, and do not exist in the view."""

    def __init__(self, folder: Path, hidden: Iterable[Path]) -> None:
        self._folder = folder
        self._hidden = hidden_prefixes(folder, hidden)

    def hides(self, path: str) -> bool:
        """Return whether a path belongs to Tenax itself."""
        return is_hidden(path, self._hidden)

    def list_folder(self, path: str) -> Listing:
        """List a folder. The root of the view may be missing. Raises `NoSuchFile` and `ToolFailed`."""
        parts = self._parts(path)
        try:
            with self._opened(parts) as folder:
                return self._list(folder, "/".join(parts))
        except NoSuchFile:
            if parts:
                raise
            return Listing(exists=False, entries=[])

    def open_file(self, path: str) -> OpenFile:
        """Open a regular file for reading. Raises `NoSuchFile` and `ToolFailed`."""
        parts = self._parts(path)
        if not parts:
            raise ToolFailed("The path names no file.")
        shown = "/".join(parts)
        with explained(shown), parent_of(self._folder, parts, make=False) as parent:
            descriptor, found = open_file(parts[-1], parent, shown)
        return OpenFile(descriptor, shown, found.st_size)

    def pack_folder(self, path: str) -> Generator[bytes]:
        """Return the pieces of a zip file with all regular files of a folder. Links are not followed.

        Raises `TooLarge` before the first piece if the folder is too large.
        """
        parts = self._parts(path)
        files: list[_Found] = []
        size = 0
        with self._opened(parts) as folder:
            for file in self._walk(folder, "/".join(parts), DEPTH_MAX):
                files.append(file)
                size += file.size
                if len(files) > ZIP_FILES_MAX or size > ZIP_BYTES_MAX:
                    raise TooLarge(
                        f"The folder has more than {ZIP_FILES_MAX:,} files or {ZIP_BYTES_MAX // 1024**3} GiB, which is "
                        "too much for a zip file.",
                        hint="Download a folder in it instead.",
                    )
        return self._pack(files, len("/".join([*parts, ""])))

    def _pack(self, files: list[_Found], start: int) -> Generator[bytes]:
        archive = ZipWriter()
        for file in files:
            try:
                opened = self.open_file(file.path)
            except ToolFailed:
                # The file has gone away, or can no longer be read.
                continue
            with open(opened.descriptor, "rb", buffering=0) as raw:  # noqa: PTH123  (a descriptor, not a path)
                pieces = _read(raw, file.size)
                yield from archive.add(file.path[start:], pieces, seconds=file.seconds)
        yield from archive.close()

    def _parts(self, path: str) -> list[str]:
        parts = parts_of(path)
        shown = "/".join(parts)
        if self.hides(shown):
            raise NoSuchFile(f"There is no file {shown}.")
        return parts

    @contextlib.contextmanager
    def _opened(self, parts: list[str]) -> Iterator[int]:
        """Open a folder of the view."""
        shown = "/".join(parts) or "the folder"
        # `parent_of` opens everything but the last name.
        with (
            explained(shown),
            parent_of(self._folder, [*parts, ""], make=False) as folder,
        ):
            yield folder

    def _list(self, folder: int, path: str) -> Listing:
        prefix = f"{path}/" if path else ""
        found: list[tuple[bool, str, str]] = []
        total = 0
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_hidden(prefix + entry.name, self._hidden):
                    continue
                total += 1
                if total <= _SCANNED_MAX:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    found.append((not is_folder, entry.name.casefold(), entry.name))
        found.sort()
        shown = []
        for _, _, name in found[:ENTRIES_MAX]:
            # The entry may be gone by now.
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                shown.append(_entry(name, prefix, status))
        return Listing(exists=True, entries=shown, omitted=max(0, total - ENTRIES_MAX))

    def _walk(self, folder: int, path: str, depth: int) -> Iterator[_Found]:
        """Yield the regular files below an open folder."""
        prefix = f"{path}/" if path else ""
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, ZIP_FILES_MAX * 2))
        for name in names:
            below = prefix + name
            if is_hidden(below, self._hidden) or not _can_be_named(name):
                continue
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield _Found(below, status.st_size, status.st_mtime)
                elif stat.S_ISDIR(status.st_mode) and depth:
                    inner = os.open(name, _FOLDER, dir_fd=folder)
                    try:
                        yield from self._walk(inner, below, depth - 1)
                    finally:
                        os.close(inner)
            except OSError as error:
                # Files and folders that are gone or cannot be read are left out.
                if error.errno in FULL:
                    raise


def _entry(name: str, prefix: str, status: os.stat_result) -> Entry:
    mode = status.st_mode
    kind: Kind = "other"
    if stat.S_ISDIR(mode):
        kind = "dir"
    elif stat.S_ISREG(mode):
        kind = "file"
    elif stat.S_ISLNK(mode):
        kind = "link"
    return Entry(
        name=replace_hidden(name),
        path=prefix + name if _can_be_named(name) else None,
        kind=kind,
        size=status.st_size if kind == "file" else 0,
        modified=rfc3339(min(max(0, status.st_mtime_ns // 1000), _LAST_TIME_US)),
    )


def _can_be_named(name: str) -> bool:
    """Return whether `parts_of` accepts a name."""
    return replace_controls(name) == name and not {"\t", "\n"} & set(name)


def _read(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the content of a file, up to a number of bytes."""
    while size > 0:
        piece = file.read(min(PIECE_BYTES, size))
        if not piece:
            return
        size -= len(piece)
        yield piece
