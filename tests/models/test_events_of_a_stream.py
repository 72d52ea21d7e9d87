"""The reader of server-sent events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenax.models.sse import (
    EVENT_BYTES_MAX,
    STREAM_BYTES_MAX,
    Reader,
    ServerEvent,
    TooLong,
)

STREAM = "\ufeffevent: a\r\ndata: häll°\r\ndata:  two\r\n\r\n: a comment\r\rid: 7\nretry: 5\ndata:x\n\ndata\n\nevent: b\n\ndata: 🙂\r\r".encode()
EVENTS = [
    ServerEvent(b"a", "häll°\n two".encode()),
    ServerEvent(b"", b"x"),
    ServerEvent(b"", b""),
    ServerEvent(b"", "🙂".encode()),
]


@given(st.lists(st.integers(0, len(STREAM))))
def test_it_does_not_matter_where_a_stream_is_cut(cuts: list[int]) -> None:
    """Every kind of line end, several lines of data, comments and unknown fields, in chunks of any size."""
    edges = [0, *sorted(cuts), len(STREAM)]
    reader = Reader()
    got = [
        event
        for begin, end in pairwise(edges)
        for event in reader.feed(STREAM[begin:end])
    ]
    assert got == EVENTS


def test_every_single_cut_gives_the_same_events() -> None:
    """Also inside a character, and between CR and LF."""
    for cut in range(len(STREAM) + 1):
        reader = Reader()
        assert reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:]) == EVENTS


def test_an_event_without_its_empty_line_is_none() -> None:
    """A stream that breaks off in an event has not sent it."""
    assert Reader().feed(b"data: {}\n") == []


@pytest.mark.parametrize("line", [b"data: " + b"x" * 65_536 + b"\n", b"x" * 65_536])
def test_an_event_that_never_ends_is_refused(line: bytes) -> None:
    """What is held in memory is bounded, in one line and in many."""
    reader = Reader()
    for _ in range(EVENT_BYTES_MAX // 65_536 - 1):
        reader.feed(line)
    with pytest.raises(TooLong):
        reader.feed(line + line)


def test_a_stream_that_never_ends_is_refused() -> None:
    """So is the whole of it."""
    reader = Reader()
    comment = b":" + b"x" * 1_000_000 + b"\n"
    for _ in range(STREAM_BYTES_MAX // len(comment)):
        reader.feed(comment)
    with pytest.raises(TooLong):
        reader.feed(comment)
