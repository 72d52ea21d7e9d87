"""The files of an answer: attached pictures and files, and files of the folder that the answer links to."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tenax.assembly import Runtime
from tenax.channels.base import OutgoingFile
from tenax.concurrency import run_in_own_thread
from tenax.errors import NoSuchFile, ToolFailed
from tenax.events import MessageAssistant
from tenax.parts import File, Image, text_of
from tenax.tools.files.browse import Browser

__all__ = ["find_files"]

_FILES_MAX: Final = 5
_TARGETS_MAX: Final = 50


async def find_files(
    runtime: Runtime, conversation: str, answer: MessageAssistant, bytes_max: int
) -> list[OutgoingFile]:
    """Return the files of an answer. A missing or too large file is left out: the text of the answer names it."""
    found = [
        OutgoingFile(
            getattr(part, "name", "") or "picture",
            part.media_type,
            await runtime.journal.get_blob(part.blob) or b"",
            is_picture=isinstance(part, Image),
        )
        for part in answer.parts
        if isinstance(part, Image | File)
    ]
    targets = list(_find_targets(text_of(answer.parts)))
    if targets:
        folder = await runtime.folder(conversation)
        read = partial(_read_files, folder, runtime.hidden_paths(), targets, bytes_max)
        found += await run_in_own_thread(read)
    return found[:_FILES_MAX]


def _find_targets(markdown: str) -> Iterator[str]:
    """Yield the paths of the pictures and links of a text that name files of the folder."""
    if "](" not in markdown:
        return
    seen: set[str] = set()
    for token in _inline_tokens(_parser().parse(markdown)):
        target = token.attrGet("src" if token.type == "image" else "href")
        path = _path_of(str(target or ""))
        if path and path not in seen:
            seen.add(path)
            yield path
        if len(seen) >= _TARGETS_MAX:
            return


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark")


def _inline_tokens(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        for child in token.children or ():
            if child.type in {"image", "link_open"}:
                yield child


def _path_of(target: str) -> str:
    """Return the path in the folder that a link names, or ""."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return ""
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return ""
    return unquote(parts.path).removeprefix("./")


def _read_files(
    folder: Path, hidden: list[Path], paths: list[str], bytes_max: int
) -> list[OutgoingFile]:
    browser = Browser(folder, hidden)
    found: list[OutgoingFile] = []
    for path in paths:
        if len(found) >= _FILES_MAX:
            break
        try:
            opened = browser.open_file(path)
        except (NoSuchFile, ToolFailed):
            continue
        with open(opened.descriptor, "rb") as raw:  # noqa: PTH123  (a descriptor, not a path)
            data = raw.read(bytes_max + 1) if opened.size <= bytes_max else b""
        if 0 < len(data) <= bytes_max:
            kind = mimetypes.guess_type(opened.name)[0] or "application/octet-stream"
            picture = kind in {"image/png", "image/jpeg", "image/gif", "image/webp"}
            found.append(OutgoingFile(opened.name, kind, data, is_picture=picture))
    return found
