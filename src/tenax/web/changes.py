"""`/api/conversations/{id}/changes`: what turns changed in the folder, as diffs, and putting it back."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from tenax.changes import PutBack, TurnChanges
from tenax.errors import InvalidInput, Refused
from tenax.web.api import endpoint
from tenax.web.conversations import Id
from tenax.web.house import runtime_of


class Changes(msgspec.Struct, frozen=True):
    """What turns changed, the newest last."""

    turns: list[TurnChanges]


@endpoint("GET", "/api/conversations/{id}/changes")
async def list_changes(call: Request, id: Id, turn: Id | None = None) -> Changes:  # noqa: A002  (its name in the path)
    """What the last turns changed in the folder, or what this one did."""
    try:
        return Changes(await (await runtime_of(call)).changes(id, turn))
    except InvalidInput as error:
        raise Refused(str(error)) from error


@endpoint("POST", "/api/conversations/{id}/changes/{turn}/put_back")
async def put_back(call: Request, id: Id, turn: Id) -> PutBack:  # noqa: A002
    """Make the files again what they were before this turn, where they are still what it left."""
    try:
        return await (await runtime_of(call)).put_back(id, turn)
    except InvalidInput as error:
        raise Refused(str(error)) from error
