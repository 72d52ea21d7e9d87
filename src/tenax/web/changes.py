"""`/api/conversations/{id}/changes`: the file changes of turns, as diffs, and reverting them."""

from __future__ import annotations

from tenax.assembly import Runtime
from tenax.web.api import Id, ResponseBody, endpoint
from tenax.web.problems import or_refused
from tenax.workspace.changes import PutBack, TurnChanges


class Changes(ResponseBody):
    """The file changes of turns, the newest last."""

    turns: list[TurnChanges]


@endpoint("GET", "/api/conversations/{id}/changes")
async def list_changes(runtime: Runtime, id: Id, turn: Id | None = None) -> Changes:  # noqa: A002  (its name in the path)
    """List the file changes of the last turns, or of a single turn."""
    return Changes(await or_refused(runtime.changes(id, turn)))


@endpoint("POST", "/api/conversations/{id}/changes/{turn}/put_back")
async def put_back(runtime: Runtime, id: Id, turn: Id) -> PutBack:  # noqa: A002
    """Revert the file changes of a turn. A file changed since then is left alone."""
    return await or_refused(runtime.put_back(id, turn))
