"""`compact`: compaction for a caller with a `SessionDB`. The agent's loop uses `Compactor`."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tenax.agent.compaction import (
    KEEP_MESSAGES,
    NO_SHORTER,
    Aborted,
    Busy,
    Compacted,
    NothingToDo,
    Outcome,
    Superseded,
    acquire_lock,
    cut_index,
    redacted,
    release_lock,
)
from tenax.agent.rotation import Rotated
from tenax.compat.sessions import AsyncSessionDB, messages_of
from tenax.views.context import quote_summary

__all__ = ["compact"]

log = logging.getLogger(__name__)


def compact(
    db: Any,  # noqa: ANN401  (a SessionDB, or what stands in for one)
    session_id: str,
    messages: Sequence[Mapping[str, Any]] | None = None,
    *,
    summarise: Callable[[list[Mapping[str, Any]]], str],
    keep: int = KEEP_MESSAGES,
) -> Outcome:
    """Replace every message except the last messages by a summary.

    Failures of the summariser and the lock raise nothing.
    """
    db = db._db if isinstance(db, AsyncSessionDB) else db  # noqa: SLF001  (the facade)
    given: list[Any] = (
        messages_of(messages) if messages is not None else db.get_messages(session_id)
    )
    same: dict[str, Any] = {
        "messages": given if messages is None else messages,
        "session_id": session_id,
    }
    holder = f"compact-{uuid.uuid4().hex}"
    locked = acquire_lock(db, session_id, holder)
    if locked is False:
        return Busy(**same)
    try:
        return _compact(
            db,
            session_id,
            given,
            same,
            own=messages is not None,
            summarise=summarise,
            keep=keep,
        )
    finally:
        if locked:
            release_lock(db, session_id, holder)


def _compact(
    db: Any,  # noqa: ANN401
    session_id: str,
    given: list[Any],
    same: dict[str, Any],
    *,
    own: bool,
    summarise: Callable[[list[Mapping[str, Any]]], str],
    keep: int,
) -> Outcome:
    session = db.get_session(session_id)
    if session is None:
        return Aborted(**same, why=f"There is no session {session_id}.")
    if session["ended_at"] is not None:
        return Superseded(**same, by=session.get("head_session_id"))
    stored = db.get_messages(session_id)
    if not own:
        # Read after the revision, so these messages are at least as new as the revision compared in the commit.
        given = same["messages"] = stored
    shared = _shared(stored, given)
    cut = cut_index([str(message.get("role", "")) for message in given], keep)
    if cut == 0:
        return NothingToDo(**same)
    summary, why = _summary(summarise, given[:cut])
    size = len(summary) // 4
    if not why and size + sum(map(_size, given[cut:])) >= sum(map(_size, given)):
        why = NO_SHORTER
    if why:
        return Aborted(**same, why=why)
    covered = _covered(stored, given, shared, cut)
    stays = given[cut:]
    if cut > shared and "covers_to" in covered:
        # The caller's own messages are stored after the messages of other writers.
        live = [message for message in stored if message["id"] > covered["covers_to"]]
        stays = [*live, *given[shared:]]
    before = sum(map(_size, [*given, *_unseen(stored, given, shared)]))
    rotated = db.rotate(
        session_id,
        summary=summary,
        messages=given[shared:],
        tokens_before=before,
        tokens_after=size + sum(map(_size, stays)),
        folded_to=session["revision"],
        **covered,
    )
    if not isinstance(rotated, Rotated):
        return Superseded(**same, by=rotated.by)
    first = {"role": "user", "content": quote_summary(summary)}
    # The stored messages include messages of other writers since.
    kept = _as_given(db.get_messages(rotated.session_id)[1:], given)
    return Compacted(
        messages=[first, *kept],
        session_id=rotated.session_id,
        summary=summary,
        tokens_before=before,
        tokens_after=size + sum(map(_size, kept)),
    )


def _as_given(live: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Return the messages of the child, using the caller's own objects for messages from the caller."""
    found: list[Any] = []
    left = len(given)
    for message in reversed(live):
        if left and _key(given[left - 1]) == _key(message):
            left -= 1
            found.append(given[left])
        else:
            found.append(message)
    return found[::-1]


def _summary(
    summarise: Callable[[list[Any]], str], messages: list[Any]
) -> tuple[str, str]:
    """Return the summary, or "" and the reason."""
    try:
        summary = summarise(messages)
    except Exception as error:  # noqa: BLE001  (foreign code)
        return "", f"The summary could not be written: {error}"
    if not isinstance(summary, str) or not summary.strip():
        return "", "The summary came back empty."
    return redacted(summary.strip()), ""


def _shared(stored: Sequence[Any], given: Sequence[Any]) -> int:
    """Return the number of messages from the caller already in the store. The first may be a summary from `compact`."""
    count = 0
    for old, new in zip(stored, given, strict=False):
        said, content = old.get("content"), new.get("content")
        known = content == said or (
            count == 0 and isinstance(said, str) and content == quote_summary(said)
        )
        if old.get("role") != new.get("role") or not known:
            break
        count += 1
    return count


def _covered(
    stored: Sequence[Any], given: Sequence[Any], shared: int, cut: int
) -> dict[str, int]:
    """Return the range covered by the summary, as arguments of `rotate`."""
    if cut < shared:
        # The results of the calls before the cut are covered too.
        return {"covers_to": stored[cut]["id"] - 1}
    if cut == shared:
        return {"covers_to": stored[cut - 1]["id"]}
    unseen = _unseen(stored, given, shared)
    if unseen:
        # Other writers stored these messages, so the summary does not contain them.
        return {"covers_to": min(message["id"] for message in unseen) - 1}
    return {"keep_last": len(given) - cut}


def _unseen(stored: Sequence[Any], given: Sequence[Any], shared: int) -> list[Any]:
    """Return the stored messages missing in the caller's list."""
    known = set(map(_key, given))
    return [message for message in stored[shared:] if _key(message) not in known]


def _key(message: Mapping[str, Any]) -> tuple[Any, str]:
    return message.get("role"), str(message.get("content"))


def _size(message: Mapping[str, Any]) -> int:
    return len(str(message.get("content") or "")) // 4 + 4
