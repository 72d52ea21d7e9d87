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
    export_conversation,
    export_several,
    file_name,
    file_name_of_several,
    is_one_file,
    read_exported,
)
from tenax.export.selection import Selection, select
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
    """Download a conversation.

    `openai` has the messages as OpenAI's chat format, and `tenax` the stored events, for another Tenax.
    """
    state = state_of(call)
    journal = runtime.journal.journal
    exported = await state.file_threads.run(partial(read_exported, journal, id))
    headers = download_headers(file_name(exported, format), MEDIA_TYPES[format])
    pieces = export_conversation(journal, state.config.store_url, exported, format)
    return FilesResponse(state.file_threads, pieces, headers)


@endpoint("GET", "/api/export")
async def get_export_of_several(
    call: Request,
    runtime: Runtime,
    format: Format = "markdown",  # noqa: A002
    id: list[Id] = [],  # noqa: A002, B006  (its name in the query; nobody changes the list)
) -> Response:
    """Download conversations of the user: those with the given ids, or all of them.

    Markdown, JSON and HTML are a zip file with the attachments and an index. `openai` and `tenax` are a file with JSON
    lines.
    """
    state = state_of(call)
    journal = runtime.journal.journal
    threads = state.file_threads
    for name in id:
        # A wrong id is an error before the download begins.
        await threads.run(partial(journal.number, name))
    chosen = id or await threads.run(partial(select, journal, Selection()))
    day = rfc3339(journal.clock.now_us())[:10]
    media_type = MEDIA_TYPES[format] if is_one_file(format) else "application/zip"
    headers = download_headers(file_name_of_several(day, format), media_type)
    pieces = export_several(journal, state.config.store_url, chosen, format)
    return FilesResponse(threads, pieces, headers)
