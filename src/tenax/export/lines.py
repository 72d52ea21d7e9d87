"""The lines of the format `tenax`: the stored events of conversations, for an import into a second Tenax.

`docs/formats/export.md` describes the format. Bytes are hexadecimal text, except the content of a blob, which is
Base64. A line with a new `type` needs a new `VERSION`; a new field does not.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import msgspec

__all__ = [
    "BLOB_PIECE_BYTES",
    "VERSION",
    "Blob",
    "Conversation",
    "End",
    "Event",
    "Header",
    "Line",
    "decode_line",
    "encode_line",
]

VERSION: Final = 1
BLOB_PIECE_BYTES: Final = 1024 * 1024
"""The largest number of bytes of a blob in a line."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    pass


class Header(_Line, frozen=True, tag="tenax-export"):
    """The first line."""

    version: int
    tenax: str
    """The version of the program."""
    created_at: str
    """RFC 3339, in UTC."""


class Blob(_Line, frozen=True, tag="blob"):
    """A blob of an event, or a piece of the blob. A file has a blob once, before the first conversation with the blob.

    The pieces of a blob are consecutive lines.
    """

    name: str
    """The SHA-256 of all pieces."""
    data: bytes
    part: int = 0
    of: int = 1


class Conversation(_Line, frozen=True, tag="conversation"):
    """The beginning of a conversation. The events follow."""

    id: str
    user: str
    head: int
    """The seq of the last event or partial."""
    facts: int
    """The seq of the last event of the digest chain."""
    digest: str
    """The digest of the last event of the chain."""
    authors: tuple[str, ...] = ()
    """The authors without the user. An erased message no longer names the author."""


class Event(_Line, frozen=True, tag="event"):
    """An event or a partial of the previous `Conversation`, in the order of `seq`. A seq may be missing."""

    seq: int
    kind: str
    at: int
    """Microseconds since 1970 UTC."""
    run: str | None = None
    body: str | None = None
    """The stored bytes, which are UTF-8; `None` if the body was erased."""
    salt: str | None = None
    inner: str | None = None
    """The hash of salt and body; only of an erased body."""
    first: int | None = None
    """Only of an erased body: the first seq of the row in the transcript."""
    waiting: int | None = None
    """Only of an erased body: 1 if the message waits for an answer."""
    append: str | None = None
    """The id of the append, only at the first event of the append."""
    digest: str | None = None
    """The digest in the chain of events; `None` for a partial."""
    code: int = 0
    """The number of the kind of a partial; 0 otherwise."""

    def inner_hash(self) -> bytes:
        """Return the hash of salt and body. Raises `ValueError` without a body and without a hash."""
        if self.body is not None and self.salt is not None:
            return sha256(bytes.fromhex(self.salt) + self.body.encode()).digest()
        if self.inner is None:
            raise ValueError(f"event {self.seq} has no body and no hash")
        return bytes.fromhex(self.inner)


class End(_Line, frozen=True, tag="end"):
    """The last line. A file without this line is incomplete."""

    conversations: int
    events: int
    """The number of `event` lines."""


Line = Header | Blob | Conversation | Event | End

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Line)


def encode_line(line: Line) -> bytes:
    """Return a line with the line feed."""
    return _ENCODER.encode(line) + b"\n"


def decode_line(data: bytes) -> Line:
    """Decode a line. Raises `msgspec.DecodeError` for an invalid line."""
    line: Line = _DECODER.decode(data)
    return line
