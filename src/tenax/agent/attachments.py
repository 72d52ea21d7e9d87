"""What may go with a message besides words: text, pictures and PDFs, each told by its bytes and by nothing else.

Bytes are a blob of the store before a message names them, and are judged again when one does: neither a name nor what a
browser claims is believed. The text of a PDF is taken out by a process of its own, which has no environment, little time
and little memory; it is a blob too, so what a model was shown stays the same whatever becomes of the library.
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

from tenax.errors import InvalidInput, TooLarge, ToolFailed
from tenax.parts import Extracted, File, Image
from tenax.text import clean_name
from tenax.tools.files.walk import FILE
from tenax.tools.paths import file_at, parent_of

if TYPE_CHECKING:
    from tenax.journal.aio import AsyncJournal

__all__ = ["BYTES_MAX", "COUNT_MAX", "Attachments", "judge", "read_file"]

COUNT_MAX: Final = 10  # with one message
TEXT_BYTES_MAX: Final = 1 << 20
PICTURE_BYTES_MAX: Final = 5 << 20
PIXELS_MAX: Final = 8000
BYTES_MAX: Final = 20 << 20  # of a PDF, which is the largest of all
PDF_SECONDS_MAX: Final = 20
PDF_MEMORY_MAX: Final = 768 << 20
PDF_CHARS_MAX: Final = 400_000
PDFS_AT_ONCE: Final = 2
_KNOWN_MAX: Final = 256
_PDF: Final = "application/pdf"


def judge(name: str, data: bytes) -> Image | File:
    """What these bytes are as a part of a message; InvalidInput says why they cannot be one."""
    name, blob = clean_name(name), hashlib.sha256(data).hexdigest()
    for mark, kind, measure in _PICTURES:
        if mark.match(data):
            _fits(name, data, PICTURE_BYTES_MAX, "A picture")
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
        _fits(name, data, BYTES_MAX, "A PDF")
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
    _fits(name, data, TEXT_BYTES_MAX, "A text")
    return File(blob, "text/plain", name, len(data))


def _fits(name: str, data: bytes, most: int, what: str) -> None:
    if len(data) > most:
        raise TooLarge(
            f"{name} has {len(data):,} bytes. {what} may have {most >> 20} MB."
        )


_big: Final = partial(int.from_bytes, byteorder="big")
_little: Final = partial(int.from_bytes, byteorder="little")


def _jpeg(data: bytes) -> tuple[int, int]:
    """The size stands in the frame's header, behind as many other segments as there are."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:  # noqa: PLR2004  (every segment begins so)
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:  # noqa: PLR2004
            return _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7])
        at += 1 if marker == 0xFF else 2 + _big(data[at + 2 : at + 4])  # noqa: PLR2004  (it may be padded)
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
        re.compile(rb"\x89PNG\r\n\x1a\n"),
        "image/png",
        lambda data: (_big(data[16:20]), _big(data[20:24])),
    ),
    (
        re.compile(rb"GIF8[79]a"),
        "image/gif",
        lambda data: (_little(data[6:8]), _little(data[8:10])),
    ),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg", _jpeg),
    (re.compile(rb"RIFF.{4}WEBPVP8[ LX]", re.DOTALL), "image/webp", _webp),
)


class Attachments:
    """One user's. What is put here and named by no message is collected after a day."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal
        self._texts: dict[str, Extracted] = {}
        """Of PDFs that were read lately, by hash."""
        self._reading = asyncio.Semaphore(PDFS_AT_ONCE)

    async def put(self, name: str, data: bytes) -> Image | File:
        """Store these bytes, and say what they are. The same bytes again are the same blob."""
        part = await self._journal.apart(partial(judge, name, data))
        if isinstance(part, File) and part.media_type == _PDF:
            part = msgspec.structs.replace(part, text=await self._text(part, data))
        await self._journal.put_blob(data)
        return part

    async def named(self, blob: str, name: str) -> Image | File:
        """What was put earlier, for a message. Only this user's blobs are found."""
        data = await self._journal.get_blob(blob)
        if data is None:
            raise InvalidInput(
                f"{clean_name(name)} is not kept here any more.",
                hint="Attach it again.",
            )
        return await self.put(name, data)

    async def _text(self, part: File, data: bytes) -> Extracted:
        known = self._texts.get(part.blob)
        words = await self._journal.get_blob(known.blob) if known is not None else None
        if words is None:
            async with self._reading:
                words = (await _taken_out(part.name, data)).encode()
        if len(self._texts) >= _KNOWN_MAX:
            self._texts.clear()
        self._texts[part.blob] = Extracted(
            await self._journal.put_blob(words), len(words)
        )
        return self._texts[part.blob]


def read_file(path: Path, folder: Path) -> bytes:
    """Return the bytes of a regular file, for who attaches it in a terminal.

    `folder` is the tools' folder, where a command may put a link in the place of a file: no link in it is followed.
    """
    try:
        path = path.expanduser()
        with _opened(path, folder) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidInput(f"{path} is no file.")
            # whatever is longer is refused for being too long
            return file.read(BYTES_MAX + 1)
    except (
        RuntimeError,
        FileNotFoundError,
        IsADirectoryError,
    ):  # also ~somebody, who has no home here
        raise InvalidInput(f"{path} is no file.") from None
    except ToolFailed as error:
        raise InvalidInput(f"{path} is not attached: {error}") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error


def _opened(path: Path, folder: Path) -> IO[bytes]:
    whole = Path(os.path.normpath(path.absolute()))
    for root in {folder, folder.resolve()}:
        if whole != root and whole.is_relative_to(root):
            parts = list(whole.relative_to(root).parts)
            with parent_of(root, parts, make=False) as parent:
                file_at(parts[-1], parent, parts[-1])
                return open(os.open(parts[-1], FILE, dir_fd=parent), "rb")  # noqa: PTH123  (a descriptor)
    return open(os.open(path, FILE & ~os.O_NOFOLLOW), "rb")  # noqa: PTH123  (a descriptor)


async def _taken_out(name: str, data: bytes) -> str:
    """The text of a PDF, read by another process, which is ended however it goes."""
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    # -P: nothing is imported from where we are
    command = (sys.executable, "-P", "-m", "tenax.agent.attachments")
    how: dict[str, Any] = {
        "stdin": pipe,
        "stdout": pipe,
        "stderr": none,
        "env": {},
        "cwd": "/",
    }
    process = await asyncio.create_subprocess_exec(*command, **how)
    try:
        async with asyncio.timeout(PDF_SECONDS_MAX):
            out, _ = await process.communicate(data)
        text = msgspec.json.decode(out, type=str | None)
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


def _take_out(data: bytes) -> str | None:
    """In the process of its own: what it is allowed is little, before the library is even there. None: it is locked."""
    logging.disable()
    for kind, most in ((resource.RLIMIT_AS, PDF_MEMORY_MAX), (resource.RLIMIT_CPU, PDF_SECONDS_MAX),
                       (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):  # fmt: skip
        with contextlib.suppress(ValueError, OSError):  # not every system has each
            resource.setrlimit(kind, (most, most))
    import pypdf  # noqa: PLC0415  (only here, behind the limits)

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
        msgspec.json.encode(_take_out(sys.stdin.buffer.read(BYTES_MAX)))
    )
