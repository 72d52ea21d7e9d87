"""Export conversations as Markdown, JSON or HTML: a single conversation as a text, all of them as a zip file.

Everything here is a generator of pieces that reads the transcript page by page, so that the length of a conversation
does not matter for memory. `docs/formats/export.md` describes the JSON format.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator
from itertools import chain, islice
from typing import Final, Literal, get_args

from tenax.errors import Gone, InvalidInput, NoSuchConversation
from tenax.export import html, json, markdown
from tenax.export.rows import (
    Exported,
    Indexed,
    list_exported,
    read_exported,
    read_rows,
)
from tenax.journal import Journal
from tenax.parts import File, Image
from tenax.text import replace_hidden
from tenax.tools.files.archive import ZipWriter
from tenax.views.transcript import Row

__all__ = [
    "FORMATS",
    "MEDIA_TYPES",
    "Format",
    "export_all",
    "export_conversation",
    "file_name",
    "parse_format",
    "read_exported",
]

Format = Literal["markdown", "json", "html"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
MEDIA_TYPES: Final[dict[Format, str]] = {
    "markdown": "text/markdown; charset=utf-8",
    "json": "application/json",
    "html": "text/html; charset=utf-8",
}
_ENDINGS: Final[dict[Format, str]] = {"markdown": "md", "json": "json", "html": "html"}
_WRITERS: Final = {
    "markdown": markdown.write,
    "json": json.write,
    "html": html.write,
}
_INDEXES: Final = {
    "markdown": markdown.write_index,
    "json": json.write_index,
    "html": html.write_index,
}
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
    """Return a file name for a conversation, from the day of its start and the title."""
    words = replace_hidden(exported.title, " ")
    words = re.sub(r'[^\w\s.,()+&-]|[\\/:*?"<>|]', " ", words)
    title = " ".join(words.split())[:_TITLE_CHARS_MAX].strip(" .")
    return f"{exported.opened_at[:10]} {title or 'Conversation'}.{_ENDINGS[kind]}"


def export_conversation(
    journal: Journal, exported: Exported, kind: Format
) -> Generator[bytes]:
    """Yield the pieces of an exported conversation."""
    rows = read_rows(journal, exported)
    yield from _encoded(_WRITERS[kind](exported, rows, journal.get_blob))


def export_all(journal: Journal, kind: Format) -> Generator[bytes]:
    """Yield the pieces of a zip file: a file per conversation, the attachments, and an index."""
    archive = ZipWriter()
    index: list[Indexed] = []
    names: set[str] = set()
    attached: dict[str, str] = {}
    """The file of every attachment, by hash of the blob."""
    for exported in list_exported(journal):
        name = _unique(f"conversations/{file_name(exported, kind)}", names)
        found: dict[str, str] = {}
        rows = read_rows(journal, exported)
        try:
            first = list(islice(rows, 1))
        except (Gone, NoSuchConversation):
            # The conversation was deleted in the meantime.
            continue
        noted = _note_attachments(chain(first, rows), found)
        texts = _encoded(_WRITERS[kind](exported, noted, journal.get_blob))
        yield from archive.add(name, texts, seconds=exported.updated_seconds)
        index.append(Indexed(name, exported))
        for blob, ending in found.items():
            data = None if blob in attached else journal.get_blob(blob)
            if data is not None:
                attached[blob] = f"attachments/{blob}{ending}"
                yield from archive.add(attached[blob], [data])
    texts = _encoded(_INDEXES[kind](index))
    yield from archive.add(f"index.{_ENDINGS[kind]}", texts)
    yield from archive.close()


def _encoded(pieces: Iterator[str]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece.encode()


def _note_attachments(rows: Iterator[Row], found: dict[str, str]) -> Iterator[Row]:
    """Yield the rows, and note the attachments with the ending of their files.

    A conversation that is deleted in the meantime ends early, so that the zip file stays whole.
    """
    with contextlib.suppress(Gone, NoSuchConversation):
        for row in rows:
            for part in row.parts:
                if isinstance(part, Image | File):
                    found[part.blob] = _KINDS.get(part.media_type, ".txt")
            yield row


def _unique(name: str, names: set[str]) -> str:
    """Return the name, with a number if another file has the name in any case."""
    stem, _, ending = name.rpartition(".")
    number = 1
    while name.casefold() in names:
        number += 1
        name = f"{stem} {number}.{ending}"
    names.add(name.casefold())
    return name
