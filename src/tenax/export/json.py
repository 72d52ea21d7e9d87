"""Export as JSON: the description of a conversation and the rows of the transcript (docs/formats/export.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from tenax.clock import rfc3339
from tenax.export.rows import Exported, Indexed
from tenax.views.transcript import WAITING, Row

__all__ = ["FORMAT", "VERSION", "write", "write_index"]

FORMAT: Final = "tenax-conversation"
VERSION: Final = 1


def write(
    exported: Exported,
    rows: Iterator[Row],
    _get_blob: Callable[[str], bytes | None],
) -> Iterator[str]:
    """Yield the pieces of the JSON text. Every row has a separate line."""
    described = _encode(exported)
    yield f'{{"format":"{FORMAT}","version":{VERSION},"conversation":{described},"rows":[\n'
    comma = ""
    for row in rows:
        yield comma + _encode(_row(row))
        comma = ",\n"
    yield "\n]}\n"


def write_index(index: Iterable[Indexed]) -> Iterator[str]:
    """Yield the pieces of the list of conversations."""
    yield f'{{"format":"{FORMAT}s","version":{VERSION},"conversations":[\n'
    comma = ""
    for entry in index:
        yield comma + _encode(entry)
        comma = ",\n"
    yield "\n]}\n"


def _row(row: Row) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(row)
    # A waiting message has no position yet.
    found["key"] = None if row.key[0] == WAITING else list(row.key)
    found["at"] = rfc3339(row.at)
    if row.started:
        found["started"] = rfc3339(row.started)
    return found


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()
