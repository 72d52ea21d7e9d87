"""`/api/attachments`: bytes that go with a message. They are stored first, and the message names them.

What is handed out again is told what it is by us, may do nothing, and opens nowhere: a picture is shown, all else is saved.
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.responses import Response

from tenax.agent.attachments import COUNT_MAX
from tenax.parts import File, Image
from tenax.runtime.runtime import Runtime
from tenax.text import clean_name
from tenax.web.api import Id, endpoint
from tenax.web.problems import problem

__all__ = ["Named", "Names"]

_SANDBOX: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Meta(max_length=1000)]


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that was put here before."""

    blob: Hash
    name: Name = ""


Names = Annotated[list[Named], Meta(max_length=COUNT_MAX)]


class Put(msgspec.Struct, frozen=True):
    """What was stored. A message names it by `blob`; what no message names is dropped after a day."""

    blob: str
    media_type: str
    name: str
    bytes: int


@endpoint("POST", "/api/attachments", 201)
async def put_attachment(runtime: Runtime, body: bytes, name: Name = "") -> Put:
    """Store a text, a picture or a PDF. The same bytes again are the same."""
    part = await runtime.attachments.put(name, body)
    return Put(part.blob, part.media_type, part.name, len(body))


@endpoint("GET", "/api/conversations/{id}/attachments/{blob}")
async def get_attachment(runtime: Runtime, id: Id, blob: Hash) -> Response:  # noqa: A002  (its name in the path)
    """What a message of this conversation has with it, as it was put."""
    journal = runtime.journal
    for seq in await journal.naming(id, blob):
        fact = await journal.fact(id, seq)
        for part in getattr(fact.event, "parts", ()) if fact is not None else ():
            if isinstance(part, Image | File) and part.blob == blob:
                data = await journal.get_blob(blob)
                if data is not None:
                    return _answer(part, data)
    return problem(
        404,
        "Not found",
        "Nothing like this is attached here.",
        "It may have been erased.",
    )


def _answer(part: Image | File, data: bytes) -> Response:
    how = "inline" if isinstance(part, Image) else "attachment"
    name = quote(clean_name(part.name), safe="")
    headers = {
        "content-disposition": f"{how}; filename*=UTF-8''{name}",
        "content-security-policy": _SANDBOX,
        "x-content-type-options": "nosniff",
    }
    known = isinstance(part, Image) or part.media_type == "application/pdf"
    return Response(
        data, headers=headers, media_type=part.media_type if known else "text/plain"
    )
