"""`repair` and the rows of a session as mappings: recovery for callers with a `SessionDB`."""

from __future__ import annotations

from typing import Any

import msgspec

from tenax.agent.recovery import PAGE_MAX, WORDING, end_orphaned_run, open_rows
from tenax.clock import Timing
from tenax.errors import InvalidInput, NoSuchConversation
from tenax.journal.arguments import checked
from tenax.journal.journal import Journal, events_after
from tenax.views.transcript import Row, Transcript

__all__ = ["marker_of", "repair", "rows_of"]


@checked
def repair(db: Any, session_id: str, run_id: str) -> dict[str, Any]:  # noqa: ANN401  (a SessionDB)
    """End a run whose process is gone, and return its marker. A repeated call changes nothing.

    Raises `RunConflict` if the process of the run is alive.
    """
    # An `AsyncSessionDB` wraps a `SessionDB` in `_db`.
    journal: Journal = getattr(db, "_db", db).journal
    session = journal.segment(session_id)
    if session is None:
        raise NoSuchConversation(f"There is no session {session_id}.")
    conversation = session.conversation
    end_orphaned_run(journal, conversation, run_id)
    run = journal.run(conversation, run_id)
    after = run.started - 1 if run is not None and run.started else 0
    transcript = Transcript()
    for event in events_after(journal, conversation, after):
        transcript.apply(event)
    found = next(
        (row for row in transcript.rows if row.kind == "marker" and row.run == run_id),
        None,
    )
    if found is None:
        raise InvalidInput(
            f"Run {run_id} has no marker: it was not interrupted, or that was taken back."
        )
    return marker_of(journal, conversation, found)


def marker_of(journal: Journal, conversation: str, row: Row) -> dict[str, Any]:
    """Return a marker as a mapping.

    Only a pending marker has the number of attempts and the time of the first attempt.
    """
    marker = _mapping(row)
    if row.state == "pending" and row.run is not None:
        state = journal.run(conversation, row.run)
        marker["attempts"] = state.attempts if state is not None else 0
        marker["first_seen"] = row.at / 1e6
    return {**marker, "content": WORDING[row.state]}


def _mapping(row: Row) -> dict[str, Any]:
    whole = {**msgspec.structs.asdict(row), **msgspec.to_builtins(row)}
    return {**whole, "role": row.kind, "content": row.text, "run_id": row.run}


def rows_of(
    journal: Journal, conversation: str, timing: Timing
) -> list[dict[str, Any]]:
    """Look for late output, and return the rows of a conversation as mappings."""
    rows = open_rows(journal, conversation, limit=PAGE_MAX, timing=timing)
    return [
        marker_of(journal, conversation, row) if row.kind == "marker" else _mapping(row)
        for row in rows
    ]
