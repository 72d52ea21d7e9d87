"""`repair` and the rows of a session as mappings: recovery for callers with a `SessionDB`."""

from __future__ import annotations

from typing import Any

import msgspec

from tenax.agent.recovery import PAGE_MAX, WORDING, events_after, mend, open_rows
from tenax.errors import InvalidInput, NoSuchConversation
from tenax.journal import Journal
from tenax.journal.arguments import checked
from tenax.views.transcript import Row, Transcript

__all__ = ["marker_of", "repair", "rows_of"]


@checked
def repair(db: Any, session_id: str, run_id: str) -> dict[str, Any]:  # noqa: ANN401  (a SessionDB)
    """End a run whose owner is gone, and say what its marker says. Repairing it again changes nothing.

    A run that is still open somewhere alive is not touched: that is a RunConflict.
    """
    # also that behind an AsyncSessionDB
    journal: Journal = getattr(db, "_db", db).journal
    stretch = journal.stretch(session_id)
    if stretch is None:
        raise NoSuchConversation(f"There is no session {session_id}.")
    conversation = stretch.conversation
    mend(journal, conversation, run_id)
    known = journal.run(conversation, run_id)
    shown = Transcript()
    for each in events_after(
        journal, conversation, known.started - 1 if known and known.started else 0
    ):
        shown.apply(each)
    found = next(
        (row for row in shown.rows if row.kind == "marker" and row.run == run_id), None
    )
    if found is None:
        raise InvalidInput(
            f"Run {run_id} has no marker: it was not interrupted, or that was taken back."
        )
    return marker_of(journal, conversation, found)


def marker_of(journal: Journal, conversation: str, row: Row) -> dict[str, Any]:
    """A marker as a mapping. Only a pending one says how often it was looked at, and since when."""
    marker = _mapping(row)
    if row.state == "pending" and row.run is not None:
        state = journal.run(conversation, row.run)
        marker["attempts"] = state.attempts if state is not None else 0
        marker["first_seen"] = row.at / 1e6
    return {**marker, "content": WORDING[row.state]}


def _mapping(row: Row) -> dict[str, Any]:
    whole = {**msgspec.structs.asdict(row), **msgspec.to_builtins(row)}
    return {**whole, "role": row.kind, "content": row.text, "run_id": row.run}


def rows_of(journal: Journal, conversation: str) -> list[dict[str, Any]]:
    """The rows of a conversation as mappings, after a look for output that came late."""
    rows = open_rows(journal, conversation, limit=PAGE_MAX)
    return [
        marker_of(journal, conversation, row) if row.kind == "marker" else _mapping(row)
        for row in rows
    ]
