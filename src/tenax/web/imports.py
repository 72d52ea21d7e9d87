"""`/api/import`: conversations of other programs, from a file that a person drops on the page.

The upload and the dry run come first. Then the person confirms the import of what was found. The import runs in a process
of its own (`importers/uploads.py`), and goes on without the page.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from starlette.requests import Request

from tenax.importers.uploads import ImportState, UserImport
from tenax.web.api import RequestBody, Upload, endpoint
from tenax.web.server_state import state_of, user_of

Name = Annotated[str, Meta(max_length=1000)]


class Confirmation(RequestBody):
    """The import that a person wants."""

    id: Annotated[str, Meta(max_length=100)]
    """The id of the dry run that the person has seen."""
    remember: bool = False
    """Let the memory follow the conversations. It costs a request to the model for each conversation."""


@endpoint("GET", "/api/import")
async def get_import(call: Request) -> ImportState:
    """Return the import of the user: what happens now, or the result of the last one."""
    return (await _import_of(call)).state


@endpoint("POST", "/api/import", 202)
async def upload_import(call: Request, body: Upload, name: Name = "") -> ImportState:
    """Upload a file, and begin a dry run. Nothing is stored until it is confirmed. A user has one import at a time."""
    own = await _import_of(call)
    return await own.upload(name, body.length, body.pieces())


@endpoint("POST", "/api/import/confirm", 202)
async def confirm_import(call: Request, body: Confirmation) -> ImportState:
    """Import what the dry run found."""
    own = await _import_of(call)
    return await own.confirm(body.id, remember=body.remember)


@endpoint("DELETE", "/api/import")
async def cancel_import(call: Request) -> ImportState:
    """Stop the import and delete the uploaded file, or forget the result. Imported conversations stay."""
    return await (await _import_of(call)).cancel()


async def _import_of(call: Request) -> UserImport:
    return await state_of(call).imports.of(user_of(call))
