"""The place of an import: a file, a folder or a zip file."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from tenax.errors import InvalidInput, StoreFull

__all__ = ["Place", "read_items", "read_lines", "read_rows"]

_FILE_BYTES_MAX: Final = 8 * 1024**3
"""The largest size of a file in a zip file. A larger file would fill the disk."""
_UNPACKED_BYTES_MAX: Final = 16 * 1024**3
"""The size of all files that are unpacked from a zip file."""
_FREE_BYTES_MIN: Final = 512 * 1024**2
"""Unpacking leaves this much of the disk free: the store may be on the same disk."""
_FILES_MAX: Final = 200_000
_LINE_BYTES_MAX: Final = 256 * 1024**2
_HEAD_BYTES: Final = 64 * 1024
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},"]', re.DOTALL)
"""A string, or a character that opens, closes or separates values. A single quote begins a string without an end."""
_ROW: Final = re.compile(rb"[^\n]*[^\s][^\n]*")


class Place:
    """Files by name. A single file has its own name; the files of a folder or a zip file have relative names.

    Links in a folder are followed only to files inside the folder. Files of a zip file are unpacked one at a time to a
    temporary folder.
    """

    def __init__(self, path: Path) -> None:
        """Open a file or a folder. Raises `InvalidInput` for a missing or unreadable path."""
        self.path = path
        self._scratch: Path | None = None
        self._zip: zipfile.ZipFile | None = None
        self._unpacked = 0
        try:
            if not path.exists():
                raise InvalidInput(f"There is no file or folder {path}.")
            if path.is_file() and zipfile.is_zipfile(path):
                self._zip = zipfile.ZipFile(path)
            elif not path.is_dir() and not path.is_file():
                raise InvalidInput(f"{path} is neither a file nor a folder.")
            elif path.is_file() and _begins_like_zip(path):
                raise InvalidInput(
                    f"{path} is a damaged zip file.", hint="Download the file again."
                )
            self._names = self._list_names()
        except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
            raise InvalidInput(f"{path} cannot be read: {_reason(error)}.") from error

    def close(self) -> None:
        if self._zip is not None:
            self._zip.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def names(self, ending: str = "") -> list[str]:
        """Return the names of the files, sorted."""
        return [name for name in self._names if name.endswith(ending)]

    def has(self, name: str) -> bool:
        return name in self._names

    def file(self, name: str) -> Path:
        """Return the path of a file. Raises `InvalidInput`."""
        if self._zip is not None:
            return self._unpack(self._zip, name)
        if name not in self._names:
            raise InvalidInput(f"{self.path} has no file {name!r:.100}.")
        return self.path / name if self.path.is_dir() else self.path

    def read(self, name: str, most: int) -> bytes | None:
        """Return the content of a small file, or `None` if the file is missing, unreadable or larger than `most` bytes."""
        try:
            if self._zip is not None:
                if self._zip.getinfo(name).file_size > most:
                    return None
                with self._zip.open(name) as member:
                    data = member.read(most + 1)
            else:
                with self.file(name).open("rb") as file:
                    data = file.read(most + 1)
        except (
            InvalidInput,
            OSError,
            KeyError,
            RuntimeError,
            zipfile.BadZipFile,
            zlib.error,
        ):
            return None
        return data if len(data) <= most else None

    def head(self, name: str) -> bytes:
        """Return the beginning of a file, for recognising its format."""
        try:
            if self._zip is not None:
                with self._zip.open(name) as member:
                    return member.read(_HEAD_BYTES)
            with self.file(name).open("rb") as file:
                return file.read(_HEAD_BYTES)
        except (OSError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error):
            return b""

    def _list_names(self) -> dict[str, None]:
        if self._zip is not None:
            members = self._zip.infolist()
            names = [member.filename for member in members if not member.is_dir()]
        elif self.path.is_file():
            return {self.path.name: None}
        else:
            names = list(_walk(self.path))
        if len(names) > _FILES_MAX:
            raise InvalidInput(
                f"{self.path} has {len(names):,} files, more than an import reads.",
                hint="Name a folder with fewer files.",
            )
        return dict.fromkeys(sorted(names))

    def _unpack(self, archive: zipfile.ZipFile, name: str) -> Path:
        try:
            info = archive.getinfo(name)
        except KeyError:
            raise InvalidInput(f"{self.path} has no file {name!r:.100}.") from None
        if info.file_size > _FILE_BYTES_MAX:
            raise InvalidInput(
                f"{name!r:.100} in {self.path} has {info.file_size:,} bytes, more than an import reads."
            )
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="tenax-import-"))
        # The number of the member is a safe name, whatever the name in the zip file is.
        target = self._scratch / f"{archive.infolist().index(info)}"
        if target.exists():
            return target
        try:
            self._check_room(info, self._scratch)
            _copy_member(archive, info, target)
        except (RuntimeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            target.unlink(missing_ok=True)
            raise InvalidInput(
                f"{name!r:.100} in {self.path} cannot be read: {_reason(error)}.",
                hint="Download the file again.",
            ) from error
        except OSError as error:
            target.unlink(missing_ok=True)
            raise StoreFull(
                f"{name!r:.100} cannot be unpacked: {_reason(error)}.",
                hint="Free some disk space, or set TMPDIR to a folder on another disk.",
            ) from error
        return target

    def _check_room(self, info: zipfile.ZipInfo, scratch: Path) -> None:
        self._unpacked += info.file_size
        if self._unpacked > _UNPACKED_BYTES_MAX:
            raise InvalidInput(
                f"The files in {self.path} have more than {_UNPACKED_BYTES_MAX >> 30} GB, more than an import reads.",
                hint="Unpack the zip file, and import a part of it.",
            )
        if shutil.disk_usage(scratch).free - info.file_size < _FREE_BYTES_MIN:
            raise StoreFull(
                f"{info.filename!r:.100} has {info.file_size:,} bytes and cannot be unpacked: the disk is almost full.",
                hint="Free some disk space, or set TMPDIR to a folder on another disk.",
            )


def _copy_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    remaining = info.file_size
    with archive.open(info) as member, target.open("wb") as file:
        while piece := member.read(1024 * 1024):
            # A zip file may lie about the size.
            remaining -= len(piece)
            if remaining < 0:
                raise zipfile.BadZipFile("a file is larger than the zip file says")
            file.write(piece)


def _begins_like_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def _walk(folder: Path) -> Iterator[str]:
    """Yield the relative names of the files in a folder. A link to a file outside the folder is skipped."""
    real = folder.resolve()
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in files:
            path = Path(parent) / name
            with contextlib.suppress(OSError):
                if path.is_file() and path.resolve().is_relative_to(real):
                    yield PurePosixPath(path.relative_to(folder)).as_posix()


def read_items(path: Path) -> Iterator[msgspec.Raw]:
    """Yield the items of a JSON array, or the single value of another JSON file. Raises `InvalidInput`.

    The file is mapped into memory, and the items become Python objects one after the other. A damaged item fails only
    in the decoder of the caller.
    """
    with _mapped(path) as data:
        is_array = _first_byte(data) == b"["
        try:
            if is_array:
                items = msgspec.json.decode(data, type=list[msgspec.Raw])
            else:
                items = [msgspec.json.decode(data, type=msgspec.Raw)]
        except (ValueError, RecursionError):
            # A lone surrogate, deep nesting or a damaged item. The other items are still readable.
            items = _split(data, is_array=is_array, name=path.name)
        yield from items


def read_rows(path: Path) -> Iterator[msgspec.Raw]:
    """Yield the lines of a file of JSON lines without empty lines, like `read_items`. Raises `InvalidInput`."""
    with _mapped(path) as data:
        for row in _ROW.finditer(data):
            yield msgspec.Raw(data[row.start() : row.end()])


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without empty lines. Raises `InvalidInput`.

    Unlike `read_rows`, the function does not map the file, so another program may truncate the file in the meantime.
    """
    try:
        with path.open("rb") as file:
            while line := file.readline(_LINE_BYTES_MAX):
                if len(line) == _LINE_BYTES_MAX:
                    raise InvalidInput(
                        f"{path.name} has a line that is longer than an import reads."
                    )
                if line := line.strip():
                    yield line
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {_reason(error)}.") from error


def _split(data: Any, *, is_array: bool, name: str) -> list[msgspec.Raw]:  # noqa: ANN401  (bytes or a map)
    """Return the items of an array, or another value as the only item.

    The function finds the ends of items by brackets and strings, without decoding.
    """
    items: list[msgspec.Raw] = []
    depth = start = 0
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark == b'"':
            break
        if mark in (b"[", b"{"):
            depth += 1
            if depth == 1:
                start = token.end() if is_array else token.start()
        elif mark in (b"]", b"}"):
            depth -= 1
        is_last = depth <= 0
        is_separator = is_array and depth == 1 and mark == b","
        if is_last or is_separator:
            end = token.start() if is_array else token.end()
            item = data[start:end]
            start = token.end()
            if bytes(item).strip():
                items.append(msgspec.Raw(item))
        if is_last:
            if depth < 0 or bytes(data[start:]).strip():
                break
            return items
    raise InvalidInput(
        f"{name} is not JSON, or is not complete.", hint="Download the file again."
    )


def _first_byte(data: Any) -> bytes:  # noqa: ANN401  (bytes or a map)
    return bytes(data[:_HEAD_BYTES]).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise InvalidInput(f"{path.name} is empty.")
            # The items refer to the map. Python closes the map after the last item is deleted.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            yield data[3:] if data[:3] == b"\xef\xbb\xbf" else memoryview(data)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.rstrip(".")
