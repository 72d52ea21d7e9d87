"""`/api/export`: conversations as files, for keeping them and for reading them elsewhere."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from tenax.assembly import Runtime
from tenax.clock import rfc3339
from tenax.export import (
    MEDIA_TYPES,
    Format,
    export_all,
    export_conversation,
    file_name,
    read_exported,
)
from tenax.web.api import Id, endpoint
from tenax.web.files import FilesResponse, download_headers
from tenax.web.server_state import state_of


@endpoint("GET", "/api/conversations/{id}/export")
async def get_export(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002  (its name in the path)
    format: Format = "markdown",  # noqa: A002
) -> Response:
    """Download a conversation as Markdown, JSON or HTML."""
    threads = state_of(call).file_threads
    journal = runtime.journal.journal
    exported = await threads.run(partial(read_exported, journal, id))
    headers = download_headers(file_name(exported, format), MEDIA_TYPES[format])
    return FilesResponse(
        threads, export_conversation(journal, exported, format), headers
    )


@endpoint("GET", "/api/export")
async def get_export_of_all(
    call: Request,
    runtime: Runtime,
    format: Format = "markdown",  # noqa: A002
) -> Response:
    """Download all conversations of the user as a zip file, with their attachments and an index."""
    journal = runtime.journal.journal
    day = rfc3339(journal.clock.now_us())[:10]
    headers = download_headers(f"Tenax conversations {day}.zip", "application/zip")
    return FilesResponse(
        state_of(call).file_threads, export_all(journal, format), headers
    )
