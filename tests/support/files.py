"""Files that people attach, and files that somebody made to do harm. All are made here, byte by byte."""

from __future__ import annotations

import struct
import zlib


def png(
    width: int = 8, height: int = 6, claims: tuple[int, int] | None = None
) -> bytes:
    """A real picture of one colour; `claims` is another size in its header."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data))
            + kind
            + data
            + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + b"\x22\x66\xcc" * width) * height
    head = struct.pack(">IIBBBBB", *(claims or (width, height)), 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def jpeg(width: int, height: int) -> bytes:
    """As much of one as says how large it is, behind a segment that only looks like the frame's header."""
    inside = b"\xff\xc0\x00\x11\x08\x00\x01\x00\x01"
    before = b"\xff\xe1" + struct.pack(">H", 2 + len(inside)) + inside
    return (
        b"\xff\xd8"
        + before
        + b"\xff\xff\xc2"
        + struct.pack(">HBHH", 17, 8, height, width)
        + bytes(20)
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(8)


def webp(kind: bytes, width: int, height: int) -> bytes:
    body = {
        b"VP8X": bytes(8)
        + (width - 1).to_bytes(3, "little")
        + (height - 1).to_bytes(3, "little"),
        b"VP8L": b"\0\0\0\0\x2f" + struct.pack("<I", width - 1 | height - 1 << 14),
        b"VP8 ": bytes(7) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height),
    }[kind]
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + kind + body + bytes(8)


def pdf(
    *pages: bytes,
    filters: bytes = b"/FlateDecode",
    trailer: bytes = b"",
    extra: bytes = b"",
) -> bytes:
    """A PDF with these content streams, already packed as `filters` says; one page each."""
    kids = b" ".join(b"%d 0 R" % (10 + 2 * n) for n in range(len(pages)))
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(pages)),
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    }
    for n, content in enumerate(pages):
        objects[10 + 2 * n] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Resources << /Font << /F 3 0 R >> >> "
            b"/Contents %d 0 R >>" % (11 + 2 * n)
        )
        stream = b"<< /Filter [%b] /Length %d >>\nstream\n%b\nendstream" % (
            filters,
            len(content),
            content,
        )
        objects[11 + 2 * n] = stream
    out, places = b"%PDF-1.7\n", {}
    for number, body in objects.items():
        places[number] = len(out)
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    out += extra
    table = b"".join(b"%d 1\n%010d 00000 n \n" % item for item in places.items())
    last = b"trailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n"
    return (
        out
        + b"xref\n0 1\n0000000000 65535 f \n"
        + table
        + last % (100, trailer, len(out))
    )


def written(*texts: str) -> bytes:
    """A PDF that says this, a page for each."""
    return pdf(
        *(
            zlib.compress(b"BT /F 12 Tf 20 200 Td (%b) Tj ET" % text.encode())
            for text in texts
        )
    )


def bomb() -> bytes:
    """A small PDF that unpacks to more than anybody needs: packed twice."""
    once = zlib.compressobj(1)
    piece = b"".join(once.compress(bytes(1 << 24)) for _ in range(12)) + once.flush()
    return pdf(zlib.compress(piece), filters=b"/FlateDecode /FlateDecode")


def endless() -> bytes:
    """A PDF that keeps a reader busy for long: megabytes of instructions."""
    return pdf(
        *[zlib.compress(b"BT /F 12 Tf " + b"(ab) Tj " * 1_000_000 + b"ET", 1)] * 9
    )
