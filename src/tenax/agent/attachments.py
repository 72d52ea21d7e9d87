"""Attachments of a message: text, pictures and PDFs. Only the bytes decide about the type.

The bytes are stored as a blob before a message names them, and are checked again when a message does. Neither the file
name nor the type claimed by a browser is trusted. A separate process extracts the text of a PDF, with an empty
environment and limits on time and memory. The extracted text is stored as a blob too, so the text shown to a model
stays the same if the PDF library changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import logging
import os
import re
import resource
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from tenax.concurrency import python_module
from tenax.errors import InvalidInput, TooLarge, ToolFailed
from tenax.parts import Extracted, File, Image
from tenax.text import clean_name
from tenax.tools.files.walk import FILE
from tenax.tools.paths import file_at, parent_of

if TYPE_CHECKING:
    from tenax.journal.aio import AsyncJournal

__all__ = ["BYTES_MAX", "COUNT_MAX", "Attachments", "judge", "read_file"]

# Attachments per message.
COUNT_MAX: Final = 10
TEXT_BYTES_MAX: Final = 1 << 20
PICTURE_BYTES_MAX: Final = 5 << 20
PIXELS_MAX: Final = 8000
# Bytes of a PDF, the largest kind of attachment.
BYTES_MAX: Final = 20 << 20
PDF_SECONDS_MAX: Final = 20
PDF_MEMORY_MAX: Final = 768 << 20
PDF_CHARS_MAX: Final = 400_000
PDFS_AT_ONCE: Final = 2
_KNOWN_MAX: Final = 256
_PDF: Final = "application/pdf"


def judge(name: str, data: bytes) -> Image | File:
    """Return the bytes as a part of a message.

    Raises `InvalidInput` with the reason if the bytes are not acceptable, and `TooLarge` if they are too many.
    """
    name, blob = clean_name(name), hashlib.sha256(data).hexdigest()
    for mark, kind, measure in _PICTURES:
        if mark.match(data):
            _check_size(name, data, PICTURE_BYTES_MAX, "A picture")
            width, height = measure(data)
            if min(width, height) < 1:
                raise InvalidInput(
                    f"{name} is a broken picture.", hint="Save it again."
                )
            if max(width, height) > PIXELS_MAX:
                size = f"{width:,} x {height:,} pixels"
                raise InvalidInput(
                    f"{name} has {size}; the most is {PIXELS_MAX:,} a side.",
                    hint="Make it smaller.",
                )
            return Image(blob, kind, name, width, height)
    if data.startswith(b"%PDF-"):
        _check_size(name, data, BYTES_MAX, "A PDF")
        return File(blob, _PDF, name, len(data))
    try:
        words = data.decode().strip("\ufeff \t\r\n")
    except UnicodeDecodeError:
        words = "\0"
    if "\0" in words:
        kinds = "text (UTF-8), no picture (PNG, JPEG, GIF, WebP) and no PDF"
        raise InvalidInput(f"{name} is no {kinds}.", hint="Save it as one of these.")
    if not words:
        raise InvalidInput(f"{name} is empty.")
    _check_size(name, data, TEXT_BYTES_MAX, "A text")
    return File(blob, "text/plain", name, len(data))


def _check_size(name: str, data: bytes, most: int, kind: str) -> None:
    if len(data) > most:
        raise TooLarge(
            f"{name} has {len(data):,} bytes. {kind} may have {most >> 20} MB."
        )


_big: Final = partial(int.from_bytes, byteorder="big")
_little: Final = partial(int.from_bytes, byteorder="little")


def _jpeg(data: bytes) -> tuple[int, int]:
    """Return the width and height from the frame header. Any number of segments may precede the header."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:  # noqa: PLR2004  (every segment starts with 0xFF)
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:  # noqa: PLR2004
            return _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7])
        at += 1 if marker == 0xFF else 2 + _big(data[at + 2 : at + 4])  # noqa: PLR2004  (segments may be padded)
    return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            return 1 + _little(data[24:27]), 1 + _little(data[27:30])
        case b"VP8L":
            return 1 + (_little(data[21:25]) & 0x3FFF), 1 + (
                _little(data[21:25]) >> 14 & 0x3FFF
            )
    return _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF


_PICTURES: Final[
    tuple[tuple[re.Pattern[bytes], str, Callable[[bytes], tuple[int, int]]], ...]
] = (
    (
        re.compile(rb"\x89PNG\r\n\x1a\n.{4}IHDR", re.DOTALL),
        "image/png",
        lambda data: (_big(data[16:20]), _big(data[20:24])),
    ),
    (
        re.compile(rb"GIF8[79]a"),
        "image/gif",
        lambda data: (_little(data[6:8]), _little(data[8:10])),
    ),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg", _jpeg),
    # The width and the height of a shorter file would be read as 1.
    (
        re.compile(rb"RIFF.{4}WEBPVP8(?:L.{9}|[ X].{14})", re.DOTALL),
        "image/webp",
        _webp,
    ),
)


class Attachments:
    """The attachments of a user. A blob that no message names is deleted after a day."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal
        self._texts: dict[str, Extracted] = {}
        """Extracted texts of recently read PDFs, by hash of the PDF."""
        self._reading = asyncio.Semaphore(PDFS_AT_ONCE)

    async def put(self, name: str, data: bytes) -> Image | File:
        """Store the bytes and return their part. Storing the same bytes again yields the same blob."""
        part = await self._journal.threads.run(partial(judge, name, data))
        if isinstance(part, File) and part.media_type == _PDF:
            part = msgspec.structs.replace(part, text=await self._text(part, data))
        await self._journal.put_blob(data)
        return part

    async def put_sound(self, name: str, media_type: str, data: bytes) -> File:
        """Store a voice note and return its part. The model gets a note instead of the sound."""
        name = clean_name(name)
        _check_size(name, data, BYTES_MAX, "A voice note")
        note = b"(A voice note. The text of the message says what was heard.)"
        return File(
            await self._journal.put_blob(data),
            media_type,
            name,
            len(data),
            Extracted(await self._journal.put_blob(note), len(note)),
        )

    async def put_again(self, blob: str, name: str) -> Image | File:
        """Return the part of an earlier upload, for a message. Only blobs of the user are found.

        Raises `InvalidInput` if the blob is gone.
        """
        data = await self._journal.get_blob(blob)
        if data is None:
            raise InvalidInput(
                f"{clean_name(name)} is not kept here any more.",
                hint="Attach it again.",
            )
        return await self.put(name, data)

    async def _text(self, part: File, data: bytes) -> Extracted:
        extracted = self._texts.get(part.blob)
        words = (
            await self._journal.get_blob(extracted.blob)
            if extracted is not None
            else None
        )
        if words is None:
            async with self._reading:
                words = (await _extract_text(part.name, data)).encode()
        if len(self._texts) >= _KNOWN_MAX:
            self._texts.clear()
        self._texts[part.blob] = Extracted(
            await self._journal.put_blob(words), len(words)
        )
        return self._texts[part.blob]


def read_file(path: Path, folder: Path) -> bytes:
    """Return the bytes of a regular file to attach from a terminal.

    `folder` is the tools' folder. A command may replace a file in it by a link, so links inside the folder are not
    followed. Raises `InvalidInput` if the file cannot be attached.
    """
    try:
        path = path.expanduser()
        with _open_file(path, folder) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidInput(f"{path} is no file.")
            # One byte more than the limit is enough to refuse a longer file.
            return file.read(BYTES_MAX + 1)
    except (
        RuntimeError,
        FileNotFoundError,
        IsADirectoryError,
    ):
        # `RuntimeError` means `~name` of an unknown user.
        raise InvalidInput(f"{path} is no file.") from None
    except ToolFailed as error:
        raise InvalidInput(f"{path} is not attached: {error}") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error


def _open_file(path: Path, folder: Path) -> IO[bytes]:
    absolute = Path(os.path.normpath(path.absolute()))
    for root in {folder, folder.resolve()}:
        if absolute != root and absolute.is_relative_to(root):
            parts = list(absolute.relative_to(root).parts)
            with parent_of(root, parts, make=False) as parent:
                file_at(parts[-1], parent, parts[-1])
                return open(os.open(parts[-1], FILE, dir_fd=parent), "rb")  # noqa: PTH123  (a descriptor)
    return open(os.open(path, FILE & ~os.O_NOFOLLOW), "rb")  # noqa: PTH123  (a descriptor)


async def _extract_text(name: str, data: bytes) -> str:
    """Return the text of a PDF. A separate process reads the PDF and is killed if it is still running at the end."""
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    command = python_module("tenax.agent.attachments")
    options: dict[str, Any] = {
        "stdin": pipe,
        "stdout": pipe,
        "stderr": none,
        "env": {},
        "cwd": "/",
    }
    process = await asyncio.create_subprocess_exec(*command, **options)
    try:
        async with asyncio.timeout(PDF_SECONDS_MAX):
            output, _ = await process.communicate(data)
        text = msgspec.json.decode(output, type=str | None)
    except TimeoutError:
        raise InvalidInput(
            f"{name} took too long to read.", hint="Attach a part of it."
        ) from None
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"{name} is a PDF that cannot be read.", hint="Save it again."
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if text is None:
        raise InvalidInput(
            f"{name} is locked with a password.",
            hint="Save it without one, and attach that.",
        )
    if not text.strip():
        raise InvalidInput(
            f"{name} holds no text.",
            hint="If it was scanned, attach its pages as pictures.",
        )
    return text


def _extract_in_child(data: bytes) -> str | None:
    """Extract the text of a PDF, inside the separate process. Return `None` if a password is needed.

    Resource limits are set before the PDF library is imported.
    """
    logging.disable()
    for kind, most in ((resource.RLIMIT_AS, PDF_MEMORY_MAX), (resource.RLIMIT_CPU, PDF_SECONDS_MAX),
                       (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):  # fmt: skip
        # Not every system has all of the limits.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    import pypdf  # noqa: PLC0415  (imported only here, after the limits are set)

    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return None
    text, pages = "", len(reader.pages)
    for n, page in enumerate(reader.pages, 1):
        words = page.extract_text().strip().replace("\0", "")
        text += words.encode("utf-8", "replace").decode() + "\n\n"
        if len(text) > PDF_CHARS_MAX:
            return f"{text[:PDF_CHARS_MAX]}\n[It goes on; this is from {n} of its {pages} pages.]"
    return text


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(_extract_in_child(sys.stdin.buffer.read(BYTES_MAX)))
    )
