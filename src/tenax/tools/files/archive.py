"""A zip file, written piece by piece, so that its size does not matter for memory."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["PIECE_BYTES", "ZipWriter"]

PIECE_BYTES: Final = 256 * 1024
"""The size of the pieces in which files are read and sent."""
_FIRST_YEAR: Final = 1980
_FIRST_TIME: Final = (_FIRST_YEAR, 1, 1, 0, 0, 0)
_LAST_YEAR: Final = 2107


class ZipWriter:
    """Writes a zip file. Every method yields the bytes written since the last piece; `close` comes last."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._zip = zipfile.ZipFile(self._sink, "w", zipfile.ZIP_DEFLATED)

    def add(
        self, name: str, pieces: Iterable[bytes], *, seconds: float = 0.0
    ) -> Iterator[bytes]:
        """Add a file. `seconds` is the time of its last change, since 1970."""
        info = zipfile.ZipInfo(name, _zip_time(seconds))
        info.compress_type = zipfile.ZIP_DEFLATED
        # A regular file that its owner may read and write.
        info.external_attr = 0o100644 << 16
        # The size of the file is not known yet, and may need 64 bits.
        with self._zip.open(info, "w", force_zip64=True) as file:
            for piece in pieces:
                file.write(piece)
                yield self._sink.take()
        yield self._sink.take()

    def close(self) -> Iterator[bytes]:
        """Write the directory at the end of the zip file."""
        self._zip.close()
        yield self._sink.take()


class _Sink(io.RawIOBase):
    """Keeps the written bytes until they are taken. It cannot seek, so `zipfile` writes sizes after the data."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # any buffer
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


def _zip_time(seconds: float) -> tuple[int, int, int, int, int, int]:
    """Return a time as zip files store it: in UTC, from 1980 to 2107."""
    try:
        found = time.gmtime(seconds)
    except (OverflowError, ValueError, OSError):
        return _FIRST_TIME
    if not _FIRST_YEAR <= found.tm_year <= _LAST_YEAR:
        return _FIRST_TIME
    return found[:6]
