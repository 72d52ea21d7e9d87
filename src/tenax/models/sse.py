"""Server-sent events, read as they come: bytes in, events out.

A stream is cut anywhere: inside a line, between a carriage return and its line feed, inside a character. So the reader
works on bytes, and hands on an event only when the empty line that ends it is there. What a stream ends in the middle of
is no event. What is held is bounded: an event or a stream that is larger than any answer is a `TooLong`.
"""

from __future__ import annotations

import msgspec

__all__ = ["EVENT_BYTES_MAX", "STREAM_BYTES_MAX", "Reader", "ServerEvent", "TooLong"]

EVENT_BYTES_MAX = 4 * 1024 * 1024
STREAM_BYTES_MAX = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class TooLong(ValueError):
    """An event is larger than `EVENT_BYTES_MAX`, or a stream than `STREAM_BYTES_MAX`."""


class ServerEvent(msgspec.Struct, frozen=True):
    """One event. `name` is empty where the stream gives none."""

    name: bytes
    data: bytes


class Reader:
    """Feed it chunks; it returns the events that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._begun = False
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0
        self._total = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that this chunk completes."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        lines = (self._rest + chunk).splitlines(keepends=True)
        self._rest = b""
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            self._rest = lines.pop()
        elif lines:
            self._after_cr = lines[-1].endswith(b"\r")
        events = [
            event
            for line in lines
            if (event := self._take(line.rstrip(b"\r\n"))) is not None
        ]
        self._total += len(chunk)
        if (
            self._size + len(self._rest) > EVENT_BYTES_MAX
            or self._total > STREAM_BYTES_MAX
        ):
            raise TooLong
        return events

    def _take(self, line: bytes) -> ServerEvent | None:
        if not self._begun:
            line = line.removeprefix(_BOM)
            self._begun = True
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        event = ServerEvent(self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data, self._size = b"", [], 0
        return event
