"""`/api/conversations/{id}/changes`: what turns changed in the folder, as diffs, and putting it back."""

from __future__ import annotations

import msgspec

from tenax.runtime.runtime import Runtime
from tenax.web.api import Id, endpoint
from tenax.web.problems import or_refused
from tenax.workspace.changes import PutBack, TurnChanges


class Changes(msgspec.Struct, frozen=True):
    """What turns changed, the newest last."""

    turns: list[TurnChanges]


@endpoint("GET", "/api/conversations/{id}/changes")
async def list_changes(runtime: Runtime, id: Id, turn: Id | None = None) -> Changes:  # noqa: A002  (its name in the path)
    """What the last turns changed in the folder, or what this one did."""
    return Changes(await or_refused(runtime.changes(id, turn)))


@endpoint("POST", "/api/conversations/{id}/changes/{turn}/put_back")
async def put_back(runtime: Runtime, id: Id, turn: Id) -> PutBack:  # noqa: A002
    """Make the files again what they were before this turn, where they are still what it left."""
    return await or_refused(runtime.put_back(id, turn))
