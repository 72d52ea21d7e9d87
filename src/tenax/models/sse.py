"""An incremental parser for server-sent events: bytes in, events out.

A chunk can end anywhere: inside a line, between a carriage return and its line feed, inside a character. The parser
therefore works on bytes, and returns an event only after the final empty line. An incomplete event at the end of a
stream is dropped. Memory is bounded: `TooLong` is raised for an event or a stream larger than every valid answer.
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
    """An event. `name` is empty if the stream gives no name."""

    name: bytes
    data: bytes


class Reader:
    """Parses a stream, chunk by chunk."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._begun = False
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0
        self._total = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events completed by the chunk."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        lines = (self._rest + chunk).splitlines(keepends=True)
        self._rest = b""
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            self._rest = lines.pop()
        elif lines:
            self._after_cr = lines[-1].endswith(b"\r")
        events = []
        for line in lines:
            event = self._parse_line(line.rstrip(b"\r\n"))
            if event is not None:
                events.append(event)
        self._total += len(chunk)
        if (
            self._size + len(self._rest) > EVENT_BYTES_MAX
            or self._total > STREAM_BYTES_MAX
        ):
            raise TooLong
        return events

    def _parse_line(self, line: bytes) -> ServerEvent | None:
        if not self._begun:
            line = line.removeprefix(_BOM)
            self._begun = True
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value
        return None

    def _end_event(self) -> ServerEvent | None:
        event = ServerEvent(self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data, self._size = b"", [], 0
        return event
