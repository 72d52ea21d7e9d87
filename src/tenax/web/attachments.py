"""`/api/attachments`: files attached to a message. A file is stored first; then a message refers to the file.

The server decides the media type of a download, and a sandbox policy forbids scripts in the download: pictures are
shown, other files are saved.
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

from msgspec import Meta
from starlette.responses import Response

from tenax.agent.attachments import COUNT_MAX
from tenax.assembly import Runtime
from tenax.parts import File, Image
from tenax.text import clean_name
from tenax.web.api import Id, RequestBody, ResponseBody, endpoint
from tenax.web.problems import problem

__all__ = ["Named", "Names"]

_SANDBOX: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Meta(max_length=1000)]


class Named(RequestBody):
    """A file uploaded before."""

    blob: Hash
    name: Name = ""


Names = Annotated[list[Named], Meta(max_length=COUNT_MAX)]


class Put(ResponseBody):
    """An uploaded file. A message refers to the file by `blob`; a file without a message is deleted after a day."""

    blob: str
    media_type: str
    name: str
    bytes: int


@endpoint("POST", "/api/attachments", 201)
async def put_attachment(runtime: Runtime, body: bytes, name: Name = "") -> Put:
    """Upload a text file, a picture or a PDF. The same bytes again give the same blob."""
    part = await runtime.attachments.put(name, body)
    return Put(part.blob, part.media_type, part.name, len(body))


@endpoint("GET", "/api/conversations/{id}/attachments/{blob}")
async def get_attachment(runtime: Runtime, id: Id, blob: Hash) -> Response:  # noqa: A002  (its name in the path)
    """Download a file attached to a message of the conversation."""
    journal = runtime.journal
    for seq in await journal.naming(id, blob):
        fact = await journal.fact(id, seq)
        for part in getattr(fact.event, "parts", ()) if fact is not None else ():
            if isinstance(part, Image | File) and part.blob == blob:
                data = await journal.get_blob(blob)
                if data is not None:
                    return _file_response(part, data)
    return problem(
        404,
        "Not found",
        "This conversation has no such attachment.",
        "The attachment may have been erased.",
    )


def _file_response(part: Image | File, data: bytes) -> Response:
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
