"""`/api/conversations/{id}/files`: the files in the folder of a conversation, for a person to look at and to download.

A file of the folder is foreign content: a model or a command may have written it. The server decides its media type by
its bytes, a policy forbids scripts and requests in it, and everything that is not on a short list is a download.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tenax.assembly import Runtime
from tenax.concurrency import ThreadPool
from tenax.errors import TooLarge
from tenax.journal import LOCAL_USER
from tenax.text import clean_name
from tenax.tools.files.archive import PIECE_BYTES
from tenax.tools.files.browse import Browser, Entry, OpenFile
from tenax.tools.files.find import find_names
from tenax.web.api import Id, ResponseBody, endpoint
from tenax.web.server_state import state_of, user_of
from tenax.web.setup import path_at_home

__all__ = ["FilesResponse", "download_headers"]

PREVIEW_BYTES_MAX: Final = 20 * 1024 * 1024
"""Larger files are only downloaded."""
NAMES_MAX: Final = 50
_NAMES_SECONDS: Final = 5.0
_SANDBOX: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; "
    "base-uri 'none'; form-action 'none'; sandbox"
)
"""No script, no request, and an origin of its own. Chromium shows a PDF with this policy."""
_PICTURES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_BY_ENDING: Final = {
    ".html": "text/html",
    ".htm": "text/html",
    ".svg": "image/svg+xml",
}
_UNKNOWN: Final = "application/octet-stream"

FilePath = Annotated[str, Meta(max_length=4096)]
Words = Annotated[str, Meta(max_length=200)]


class Files(ResponseBody):
    """The entries of a folder: folders first, then by name."""

    folder: str
    """The folder of the conversation, with ~ for the home folder. Empty for users other than the owner."""
    path: str
    exists: bool
    entries: list[Entry]
    omitted: int
    """The number of entries beyond the limit."""


class FileNames(ResponseBody):
    """Paths of files."""

    names: list[str]


@endpoint("GET", "/api/conversations/{id}/files")
async def list_files(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002  (its name in the path)
    path: FilePath = "",
) -> Files:
    """List a folder in the folder of the conversation."""
    folder, browser = await _browser(runtime, id)
    found = await state_of(call).file_threads.run(partial(browser.list_folder, path))
    owner = user_of(call) == LOCAL_USER
    return Files(
        folder=path_at_home(folder) if owner else "",
        path="/".join(part for part in path.split("/") if part not in {"", "."}),
        exists=found.exists,
        entries=found.entries,
        omitted=found.omitted,
    )


@endpoint("GET", "/api/conversations/{id}/files/content")
async def get_file(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002
    path: FilePath,
    download: bool = False,
) -> Response:
    """Show a file in the folder of the conversation, or download it."""
    _, browser = await _browser(runtime, id)
    threads = state_of(call).file_threads
    file, start = await threads.run(partial(_open, browser, path))
    try:
        headers = _headers(file, start, download=download)
    except BaseException:
        os.close(file.descriptor)
        raise
    pieces = _read(file, start)
    return FilesResponse(
        threads, pieces, headers, finish=partial(os.close, file.descriptor)
    )


@endpoint("GET", "/api/conversations/{id}/files/zip")
async def download_folder(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002
    path: FilePath = "",
) -> Response:
    """Download a folder in the folder of the conversation as a zip file. Links are left out."""
    folder, browser = await _browser(runtime, id)
    threads = state_of(call).file_threads
    pieces = await threads.run(partial(browser.pack_folder, path))
    name = path.rstrip("/").rpartition("/")[2]
    if not name:
        # The name of a user's folder says nothing: every user but the owner has a folder `files`.
        name = folder.name if user_of(call) == LOCAL_USER else "files"
    headers = download_headers(f"{clean_name(name)}.zip", "application/zip")
    return FilesResponse(threads, pieces, headers)


@endpoint("GET", "/api/conversations/{id}/files/names")
async def find_file_names(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002
    query: Words = "",
) -> FileNames:
    """Find files by a part of their path, for completion. Ignored files are left out."""
    folder, browser = await _browser(runtime, id)
    if not query.isprintable():
        return FileNames([])
    async with state_of(call).name_searches:
        names = await find_names(folder, query, limit=NAMES_MAX, seconds=_NAMES_SECONDS)
    return FileNames([name for name in names if not browser.hides(name)])


class FilesResponse(StreamingResponse):
    """Sends pieces that are made on a thread, one at a time, as fast as the client takes them.

    `finish` runs at the end, also if the client has gone away or has taken nothing.
    """

    def __init__(
        self,
        threads: ThreadPool,
        pieces: Generator[bytes],
        headers: dict[str, str],
        finish: Callable[[], object] = bool,
    ) -> None:
        super().__init__(self._taken(), headers=headers)
        self._threads = threads
        self._pieces = pieces
        self._finish = finish
        self._lock = threading.Lock()
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # A cancelled call goes on in its thread, and may still read the file.
            await asyncio.shield(self._threads.run(self._end))

    async def _taken(self) -> AsyncIterator[bytes]:
        while (piece := await self._threads.run(self._next)) is not None:
            if piece:
                yield piece

    def _next(self) -> bytes | None:
        with self._lock:
            return None if self._ended else next(self._pieces, None)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._pieces.close()
            self._finish()


def download_headers(name: str, media_type: str) -> dict[str, str]:
    """Return the headers of a file to save."""
    return {
        "content-type": media_type,
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-security-policy": _SANDBOX,
        "x-content-type-options": "nosniff",
    }


async def _browser(runtime: Runtime, conversation: str) -> tuple[Path, Browser]:
    folder = await runtime.folder(conversation)
    return folder, Browser(folder, runtime.hidden_paths())


def _open(browser: Browser, path: str) -> tuple[OpenFile, bytes]:
    """Open a file, and read its first bytes."""
    file = browser.open_file(path)
    try:
        return file, os.read(file.descriptor, PIECE_BYTES)
    except BaseException:
        os.close(file.descriptor)
        raise


def _read(file: OpenFile, start: bytes) -> Generator[bytes]:
    """Yield the content of a file, up to the size at the time of opening."""
    start = start[: file.size]
    left = file.size - len(start)
    yield start
    while left > 0:
        piece = os.read(file.descriptor, min(PIECE_BYTES, left))
        if not piece:
            return
        left -= len(piece)
        yield piece


def _headers(file: OpenFile, start: bytes, *, download: bool) -> dict[str, str]:
    media_type = _media_type(file.name, start)
    headers = download_headers(clean_name(file.name), media_type)
    headers["content-length"] = str(file.size)
    if download or media_type == _UNKNOWN:
        return headers
    if file.size > PREVIEW_BYTES_MAX:
        raise TooLarge(
            f"{file.name} has {file.size:,} bytes. Files of more than {PREVIEW_BYTES_MAX:,} bytes are not shown.",
            hint="Download it instead.",
        )
    how = headers["content-disposition"].partition(";")[2]
    headers["content-disposition"] = f"inline;{how}"
    return headers


def _media_type(name: str, start: bytes) -> str:
    """Return the media type of a file, by its first bytes. Only text depends on the ending of the name."""
    for magic, kind in _PICTURES.items():
        if start.startswith(magic):
            return kind
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp"
    if start.startswith(b"%PDF-"):
        return "application/pdf"
    if b"\0" in start or not _is_text(start):
        return _UNKNOWN
    ending = os.path.splitext(name)[1].lower()  # noqa: PTH122  (a name, not a path)
    return f"{_BY_ENDING.get(ending, 'text/plain')}; charset=utf-8"


def _is_text(start: bytes) -> bool:
    """Return whether bytes are the beginning of UTF-8 text."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True
