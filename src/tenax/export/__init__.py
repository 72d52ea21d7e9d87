"""Export conversations.

In Markdown, JSON and HTML, a conversation is a file, and several conversations are a zip file. `openai` and `tenax` are
JSON lines in a single file; `tenax` has the stored events, for an import into a second Tenax.

The functions are generators of pieces and read page by page, so the memory does not depend on the length of a
conversation. `docs/formats/export.md` describes the formats.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from importlib import metadata
from itertools import chain, islice
from typing import Final, Literal, get_args

from tenax.clock import rfc3339
from tenax.errors import Gone, InvalidInput, NoSuchConversation
from tenax.export import html, json, lossless, markdown, openai
from tenax.export.lines import VERSION, Header
from tenax.export.rows import (
    Exported,
    Indexed,
    read_all_exported,
    read_exported,
    read_rows,
)
from tenax.journal import Journal, open_snapshot
from tenax.journal.copying import Snapshot
from tenax.parts import File, Image
from tenax.text import replace_hidden
from tenax.tools.files.archive import ZipWriter
from tenax.views.transcript import Row

__all__ = [
    "FORMATS",
    "MEDIA_TYPES",
    "Format",
    "export_conversation",
    "export_several",
    "file_name",
    "file_name_of_several",
    "is_one_file",
    "parse_format",
    "read_exported",
]

Format = Literal["markdown", "json", "html", "openai", "tenax"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
_LINES: Final = "application/jsonl"
MEDIA_TYPES: Final[dict[Format, str]] = {
    "markdown": "text/markdown; charset=utf-8",
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "openai": _LINES,
    "tenax": _LINES,
}
_ENDINGS: Final[dict[Format, str]] = {
    "markdown": "md",
    "json": "json",
    "html": "html",
    "openai": "jsonl",
    "tenax": "jsonl",
}
_WRITERS: Final = {
    "markdown": markdown.write,
    "json": json.write,
    "html": html.write,
    "openai": openai.write,
}
_INDEXES: Final = {
    "markdown": markdown.write_index,
    "json": json.write_index,
    "html": html.write_index,
}
_PIECE_BYTES: Final = 64 * 1024
_TITLE_CHARS_MAX: Final = 60
_KINDS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "application/pdf": ".pdf",
}


def parse_format(text: str) -> Format:
    """Return the format with a name. Raises `InvalidInput` for an unknown name."""
    for name in FORMATS:
        if name == text:
            return name
    raise InvalidInput(
        f"There is no format {text[:50]!r}.", hint=f"Use {', '.join(FORMATS)}."
    )


def file_name(exported: Exported, kind: Format) -> str:
    """Return a file name for a conversation, from the day of the start and the title."""
    words = replace_hidden(exported.title, " ")
    words = re.sub(r'[^\w\s.,()+&-]|[\\/:*?"<>|]', " ", words)
    title = " ".join(words.split())[:_TITLE_CHARS_MAX].strip(" .")
    title = title or "Conversation"
    day = exported.opened_at[:10]
    return f"{day} {title}.{_ENDINGS[kind]}"


def file_name_of_several(day: str, kind: Format) -> str:
    """Return a file name for several conversations, with the day of the export."""
    ending = _ENDINGS[kind] if is_one_file(kind) else "zip"
    return f"Tenax conversations {day}.{ending}"


def is_one_file(kind: Format) -> bool:
    """Return whether several conversations are lines of a file, and not files in a zip file."""
    return kind not in _INDEXES


def export_conversation(
    journal: Journal, store_url: str, exported: Exported, kind: Format
) -> Generator[bytes]:
    """Yield the pieces of an exported conversation. `store_url` is the store of the journal."""
    if kind == "tenax":
        return export_several(journal, store_url, [exported.id], kind)
    rows = read_rows(journal, exported)
    texts = _WRITERS[kind](exported, rows, journal.get_blob)
    return _joined(_encoded(texts))


def export_several(
    journal: Journal, store_url: str, conversations: Sequence[str], kind: Format
) -> Generator[bytes]:
    """Yield the pieces of a file with conversations. `store_url` is the store of the journal.

    Markdown, JSON and HTML are a zip file: a file per conversation, the attachments, and an index.
    """
    names = dict.fromkeys(conversations)
    if kind == "tenax":
        now = rfc3339(journal.clock.now_us())
        header = Header(VERSION, metadata.version("tenax"), now)
        snapshots = partial(_open_snapshot, store_url)
        return _joined(lossless.write(journal, snapshots, names, header))
    if kind == "openai":
        return _joined(_chats(journal, names))
    return _zip(journal, names, kind)


def _open_snapshot(store_url: str) -> Snapshot:
    if store_url == "memory:":
        raise InvalidInput("A store in memory cannot be exported in this format.")
    return open_snapshot(store_url)


def _chats(journal: Journal, conversations: Iterable[str]) -> Generator[bytes]:
    for exported in read_all_exported(journal, conversations):
        rows = _until_deleted(read_rows(journal, exported))
        yield from _encoded(openai.write(exported, rows, journal.get_blob))


def _zip(
    journal: Journal, conversations: Iterable[str], kind: Format
) -> Generator[bytes]:
    archive = ZipWriter()
    index: list[Indexed] = []
    names: set[str] = set()
    attached: dict[str, str] = {}
    """The file of every attachment, by hash of the blob."""
    for exported in read_all_exported(journal, conversations):
        name = _unique(f"conversations/{file_name(exported, kind)}", names)
        endings: dict[str, str] = {}
        rows = read_rows(journal, exported)
        try:
            first = list(islice(rows, 1))
        except (Gone, NoSuchConversation):
            # The conversation was deleted in the meantime.
            continue
        all_rows = _note_attachments(chain(first, rows), endings)
        texts = _encoded(_WRITERS[kind](exported, all_rows, journal.get_blob))
        yield from archive.add(name, texts, seconds=exported.updated_seconds)
        index.append(Indexed(name, exported))
        for blob, ending in endings.items():
            if blob in attached:
                continue
            data = journal.get_blob(blob)
            if data is not None:
                attached[blob] = f"attachments/{blob}{ending}"
                yield from archive.add(attached[blob], [data])
    texts = _encoded(_INDEXES[kind](index))
    yield from archive.add(f"index.{_ENDINGS[kind]}", texts)
    yield from archive.close()


def _encoded(pieces: Iterator[str]) -> Generator[bytes]:
    for piece in pieces:
        yield piece.encode()


def _joined(pieces: Generator[bytes]) -> Generator[bytes]:
    """Join small pieces, because every piece of a download is a separate task."""
    waiting: list[bytes] = []
    size = 0
    with contextlib.closing(pieces):
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= _PIECE_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
    yield b"".join(waiting)


def _until_deleted(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows. A conversation deleted in the meantime ends early, and the file stays valid."""
    with contextlib.suppress(Gone, NoSuchConversation):
        yield from rows


def _note_attachments(rows: Iterator[Row], endings: dict[str, str]) -> Iterator[Row]:
    """Yield the rows, and add the endings of the attachments to `endings`, by name of the blob."""
    for row in _until_deleted(rows):
        for part in row.parts:
            if isinstance(part, Image | File):
                endings[part.blob] = _KINDS.get(part.media_type, ".txt")
        yield row


def _unique(name: str, names: set[str]) -> str:
    """Return the name, with a number after a file with the same name in upper or lower case."""
    stem, _, ending = name.rpartition(".")
    number = 1
    while name.casefold() in names:
        number += 1
        name = f"{stem} {number}.{ending}"
    names.add(name.casefold())
    return name
