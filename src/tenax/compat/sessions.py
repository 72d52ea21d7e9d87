"""SessionDB: a store of sessions over a `Journal`, with the names fixed by the contracts.

A *session* is a segment of a conversation, between two compactions. The caller chooses the id of a session. A
compaction (`rotate`) ends a session and opens exactly one child, in a single commit. The commit is refused if the
parent is no longer the head. So two children cannot exist, whoever holds the compression lock.

A message for a session ended by a compaction is stored at the head of the conversation, and `append_message` returns
the new place. `AsyncSessionDB` has the same methods, awaited.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tenax import journal as journals
from tenax.agent.history import find_undo_seq
from tenax.agent.rotation import Rotated as Compacted
from tenax.agent.rotation import Rotations, Summary, Superseded
from tenax.clock import Timing
from tenax.compat.repair import rows_of
from tenax.concurrency import ThreadPool
from tenax.errors import (
    ConversationExists,
    Gone,
    HeadMoved,
    InvalidInput,
    NoSuchConversation,
    SegmentMoved,
    SessionEnded,
)
from tenax.events import (
    ContextCompacted,
    ConversationArchived,
    ConversationCleared,
    ConversationOpened,
    ConversationPinned,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    Event,
    MessageAssistant,
    MessageSystem,
    MessageTool,
    MessageUser,
    RunLate,
    RunSealed,
    SegmentEnded,
)
from tenax.journal.aio import THREADS, AsyncFacade, awaited
from tenax.journal.arguments import checked
from tenax.journal.base import Erased, Expect, Hits, Recorded, Segment
from tenax.journal.base import Summary as Listed
from tenax.parts import Text, ToolResult, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenax.journal import Journal

__all__ = [
    "AsyncSessionDB",
    "Compacted",
    "SessionDB",
    "StoredMessage",
    "Superseded",
    "messages_of",
]

_KINDS: dict[
    str, type[MessageUser | MessageAssistant | MessageSystem | MessageTool]
] = {
    "user": MessageUser,
    "assistant": MessageAssistant,
    "system": MessageSystem,
    "tool": MessageTool,
}
_ROLES = {kind.kind: role for role, kind in _KINDS.items()}
_LATE = ("token", "tool", "tool_complete")
_TRIES = 20
_CONVERSATIONS_MAX = 10_000


class StoredMessage(msgspec.Struct, frozen=True):
    """The place of a stored message. After a compaction, `session_id` differs from the requested session."""

    session_id: str
    conversation_id: str
    seq: int


# `get_session` and `children` accept any value: an invalid name finds nothing.
@partial(checked, but=("get_session", "children"))
class SessionDB:
    """The sessions of a user in a store. Safe to use from any thread."""

    def __init__(
        self,
        db_path: str | Path | None = None,
        *,
        url: str | None = None,
        user: str = journals.LOCAL_USER,
        journal: Journal | None = None,
        timing: Timing = Timing(),
    ) -> None:
        given = [source for source in (db_path, url, journal) if source is not None]
        if len(given) != 1:
            raise InvalidInput(
                "A SessionDB is opened by db_path, or by url.",
                hint='SessionDB(db_path="state.db")',
            )
        if db_path is not None:
            url = f"sqlite:///{Path(db_path).absolute()}"
        self._owned = journal is None
        if journal is None:
            journal = journals.open(url or "", user=user, timing=timing)
        self.journal = journal
        self._timing = timing
        self._rotations = Rotations(self.journal)
        # A piece of late output needs the number of the piece before. Without the lock, parallel threads would refuse
        # each other's pieces.
        self._late = threading.Lock()
        self._conversations: dict[str, str] = {}
        """By session with an append, its conversation. The conversation of a session never changes."""

    def close(self) -> None:
        """Close the store, if the object opened the store."""
        if self._owned:
            self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- sessions and messages -------------------------------------------------------------------------------

    def create_session(self, /, session_id: str, source: str, **fields: Any) -> str:  # noqa: ANN401  (the caller's own)
        """Open a session in a new conversation. A repeated call changes nothing."""
        title = fields.pop("title", None)
        parent = fields.pop("parent_session_id", None)
        user = self.journal.user or ""
        events: list[Event] = [
            ConversationOpened(
                user, session_id, source=source, parent=parent, extra=fields
            )
        ]
        if title is not None:
            events.append(ConversationTitled(title))
        with suppress(ConversationExists):
            self.journal.append(self.journal.ids.conversation(), events)
        return session_id

    def get_session(
        self, session_id: str, *, rows: bool = False
    ) -> dict[str, Any] | None:
        """Return the fields of a session, or `None`. `revision` changes with every change of the transcript.

        With `rows`, also return the transcript of the conversation as shown to a person. Then the call counts as
        opening the conversation, and looks again for the output of interrupted runs.
        """
        session = self.journal.segment(session_id)
        if session is None:
            return None
        conversation = session.conversation
        try:
            head = self.journal.head(conversation)
            summary = self.journal.summary(conversation)
        except (Gone, NoSuchConversation):
            return None
        opened = self.journal.fact(conversation, 1)
        extra = getattr(opened.event, "extra", {}) if opened is not None else {}
        found = {
            **extra,
            "id": session.name,
            "conversation_id": conversation,
            "source": summary.source,
            "title": summary.title,
            "parent_session_id": session.parent,
            "message_count": session.messages,
            "started_at": session.opened_at / 1e6,
            "ended_at": None if session.ended_at is None else session.ended_at / 1e6,
            "end_reason": session.reason,
            "pinned": summary.pinned,
            "archived": summary.archived,
            "revision": head.revision,
            "head_session_id": head.segment,
        }
        if rows:
            found["rows"] = rows_of(self.journal, conversation, self._timing)
        return found

    def append_message(
        self,
        /,
        session_id: str,
        role: str,
        content: Any = None,  # noqa: ANN401  (text, or a provider's parts)
        **fields: Any,  # noqa: ANN401  (the caller's own)
    ) -> StoredMessage:
        """Store a message. After a compaction the message is stored in the child, and the result names the child."""
        return self._append(session_id, [_message(role, content, fields)])

    def append_messages(
        self, session_id: str, messages: Sequence[Mapping[str, Any]]
    ) -> StoredMessage:
        """Store several messages, either every message or no message."""
        events = [_message_of(message) for message in messages_of(messages)]
        return self._append(session_id, events)

    def get_messages(self, session_id: str) -> list[dict[str, Any]]:
        """Return the messages of a session, without undone messages.

        A session opened by a compaction begins with the summary, followed by the messages after the summarised part.
        The `session_id` of an older message names the session in which the message was written.
        """
        session = self._find(session_id)
        conversation = session.conversation
        upto = session.ended_seq or self.journal.head(conversation).head
        after = session.covers_to or session.opened_seq - 1
        recorded = self.journal.messages(conversation, after=after, upto=upto)
        parent = session.parent or session_id
        messages = []
        summary = self._summary(session) if session.covers_to else None
        if summary is not None:
            messages.append(_as_message(summary, session_id))
        for message in recorded:
            is_own = not session.covers_to or message.seq > session.opened_seq
            messages.append(_as_message(message, session_id if is_own else parent))
        return messages

    def children(self, session_id: str) -> list[str]:
        """Return the sessions with `session_id` as their parent."""
        return self.journal.children(session_id)

    def end_session(self, session_id: str, reason: str = "ended") -> None:
        """End a session without a successor. An ended session takes no more messages."""
        session = self._find(session_id)
        if session.ended_at is None:
            self._edit(session, SegmentEnded(session_id, reason))

    # -- compaction ------------------------------------------------------------------------------------------

    def rotate(
        self,
        session_id: str,
        *,
        summary: str,
        covers_to: int | None = None,
        folded_to: int | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        keep_last: int = 0,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
    ) -> Compacted | Superseded:
        """Commit a compaction: end the session and open its only child.

        Return `Superseded` if another writer was faster. `Rotations.commit` explains the parameters.
        """
        stored = Summary(
            text=summary,
            covers_to=covers_to,
            folded_to=folded_to,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
        )
        own = [_message_of(message) for message in messages_of(messages)]
        return self._rotations.commit(
            session_id, stored, messages=own, keep_last=keep_last
        )

    def try_acquire_compression_lock(
        self, session_id: str, holder: str, ttl_seconds: float = 300.0
    ) -> bool:
        """Keep other processes from paying for the same summary. The lock does not guard the commit."""
        return self._rotations.try_acquire_compression_lock(
            session_id, holder, ttl_seconds
        )

    def release_compression_lock(self, session_id: str, holder: str) -> None:
        """Release the lock, if `holder` has the lock."""
        self._rotations.release_compression_lock(session_id, holder)

    def get_compression_lock_holder(self, session_id: str) -> str | None:
        """Return the holder of the lock, or `None`."""
        return self._rotations.get_compression_lock_holder(session_id)

    # -- runs that are gone ----------------------------------------------------------------------------------

    def append_run_event(
        self,
        session_id: str,
        run_id: str,
        kind: str,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Store output of a run without ownership of the conversation.

        The transcript shows the output with its own run.
        """
        conversation = self._find(session_id).conversation
        if kind != "stream_end" and kind not in _LATE:
            raise InvalidInput(
                f"A run event is one of {', '.join(_LATE)} or stream_end, not {kind!r}."
            )
        fields = _check_payload(kind, payload)
        if kind == "token" and not fields.get("text"):
            return
        with self._late:
            for _ in range(_TRIES):
                head = self.journal.head(conversation).head
                run = self.journal.run(conversation, run_id)
                late: Event = RunSealed()
                if kind != "stream_end":
                    index = run.late if run is not None else 0
                    late = RunLate(index, kind, fields)  # type: ignore[arg-type]  # checked above
                elif run is not None and run.sealed is not None:
                    return
                with suppress(HeadMoved):
                    self.journal.append(
                        conversation, [late], run=run_id, expect=Expect(head=head)
                    )
                    return
        raise HeadMoved(
            "The conversation moves too fast for this run's output to find its place."
        )

    # -- what a person does with a conversation --------------------------------------------------------------

    def undo(self, session_id: str, to: int | None = None) -> int:
        """Undo everything after seq `to`; without `to`, the last message of a person and the events after the message.

        Return the seq of the undo, as an argument for `restore`.
        """
        session = self._find_open(session_id)
        if to is None:
            to = find_undo_seq(self.journal, session_id)
        return self._edit(session, ConversationRewound(to))

    def clear(self, session_id: str) -> int:
        """Remove everything so far from transcript and context.

        Return the seq of the clear, as an argument for `restore`.
        """
        return self._edit(self._find_open(session_id), ConversationCleared())

    def restore(self, session_id: str, of: int) -> None:
        """Undo an undo or a clear."""
        self._edit(self._find_open(session_id), ConversationRestored(of))

    def fork(
        self,
        session_id: str,
        upto: int | None = None,
        new_session_id: str | None = None,
    ) -> str:
        """Copy a conversation up to a seq into a new conversation. Return the id of the new session."""
        name = new_session_id or self.journal.ids.segment()
        conversation = self._find(session_id).conversation
        fork = self.journal.fork(conversation, upto=upto, segment=name)
        return self.journal.head(fork).segment or name

    def set_title(self, session_id: str, title: str | None) -> None:
        """Set the title in the list."""
        self._edit(self._find(session_id), ConversationTitled(title))

    def pin(self, session_id: str, pinned: bool = True) -> None:
        """Keep the conversation at the top of the list, or stop doing so."""
        self._edit(self._find(session_id), ConversationPinned(pinned))

    def archive(self, session_id: str, archived: bool = True) -> None:
        """Hide the conversation from the list, or show the conversation again.

        Search still finds an archived conversation.
        """
        self._edit(self._find(session_id), ConversationArchived(archived))

    def erase(
        self, session_id: str, seqs: Sequence[int], by: str = "", why: str = ""
    ) -> Erased:
        """Remove the text of messages from the store, together with every piece of data derived from the text."""
        by = by or self.journal.user or ""
        conversation = self._find(session_id).conversation
        return self.journal.erase(conversation, seqs, by=by, why=why)

    def delete_session(self, session_id: str) -> None:
        """Delete the whole conversation of a session. A tombstone stays."""
        self.journal.delete(self._find(session_id).conversation)

    def list_sessions(
        self,
        *,
        archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int = 50,
    ) -> list[Listed]:
        """Return a page of conversations, pinned first, then newest.

        `after` is the `place` of the last known conversation.
        """
        return self.journal.conversations(archived=archived, after=after, limit=limit)

    def search(
        self,
        words: str,
        *,
        session_id: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 20,
    ) -> Hits:
        """Return the messages with the words, newest first."""
        conversation = None
        if session_id is not None:
            conversation = self._find(session_id).conversation
        return self.journal.search(
            words, conversation=conversation, before=before, limit=limit
        )

    # -- helpers ---------------------------------------------------------------------------------------------

    def _find(self, session_id: str) -> Segment:
        session = self.journal.segment(session_id)
        if session is None:
            raise NoSuchConversation(
                f"There is no session {session_id}.", hint="create_session makes one"
            )
        return session

    def _find_open(self, session_id: str) -> Segment:
        session = self._find(session_id)
        if session.ended_at is not None:
            raise SessionEnded(
                f"Session {session_id} was ended ({session.reason}).",
                hint="use the head session",
            )
        return session

    def _edit(self, session: Segment, event: Event) -> int:
        """Append an event to the conversation of a session. Return the seq of the event."""
        return self.journal.append(session.conversation, [event])[0].seq

    def _append(self, session_id: str, events: list[Event]) -> StoredMessage:
        """Append to a session without reading from the store first.

        The append checks that the session is still open. If the session has ended, or its conversation is gone,
        `_append_to_head` looks the session up.
        """
        conversation = self._conversations.get(session_id)
        if conversation is None:
            conversation = self._find(session_id).conversation
            if len(self._conversations) >= _CONVERSATIONS_MAX:
                self._conversations.clear()
            self._conversations[session_id] = conversation
        is_open = Expect(segment=session_id)
        try:
            stored = self.journal.append(conversation, events, expect=is_open)
        except (Gone, NoSuchConversation, SegmentMoved):
            self._conversations.pop(session_id, None)
            return self._append_to_head(session_id, events)
        return StoredMessage(session_id, conversation, stored[-1].seq)

    def _append_to_head(self, session_id: str, events: list[Event]) -> StoredMessage:
        """Append to the session opened by a compaction as the successor of `session_id`."""
        session = self._find(session_id)
        if session.ended_at is not None and session.reason != "compression":
            raise SessionEnded(
                f"Session {session_id} was ended ({session.reason}); it takes no more messages."
            )
        stored = self.journal.append(session.conversation, events)
        head = self.journal.head(session.conversation).segment or session_id
        return StoredMessage(head, session.conversation, stored[-1].seq)

    def _summary(self, session: Segment) -> Recorded | None:
        """Return the summary at the start of a session opened by a compaction, or `None` if the summary was erased."""
        opened = self.journal.fact(session.conversation, session.opened_seq)
        if opened is None or not isinstance(opened.event, ContextCompacted):
            return None
        summary = self.journal.fact(session.conversation, opened.event.summary)
        return summary if summary is not None and not summary.erased else None


def _check_payload(kind: str, payload: object) -> dict[str, Any]:
    """Return the fields of a run event, without fields of the value `None`."""
    if payload is None:
        return {}
    if not isinstance(payload, Mapping):
        raise InvalidInput("The payload of a run event is a mapping.")
    fields = {key: value for key, value in payload.items() if value is not None}
    name = "text" if kind == "token" else "name"
    if not isinstance(fields.get(name, ""), str):
        raise InvalidInput(
            f"The {name} of a {kind} event is text, not {fields[name]!r:.40}."
        )
    return fields


def messages_of(given: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages as a list. Raises `InvalidInput` for anything else."""
    messages: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for message in messages:
        if not isinstance(message, Mapping):
            raise InvalidInput(
                f"A message is a mapping with a role and a content, not {message!r:.40}."
            )
    return messages


def _message_of(message: Mapping[str, Any]) -> Event:
    fields = dict(message)
    role = str(fields.pop("role", ""))
    content = fields.pop("content", None)
    return _message(role, content, fields)


def _message(role: str, content: Any, fields: Mapping[str, Any]) -> Event:  # noqa: ANN401  (text, or a provider's parts)
    """Return a message as the event of its role. Content other than plain text is stored in addition to its text."""
    kind = _KINDS.get(role) if isinstance(role, str) else None
    if kind is None:
        raise InvalidInput(f"A role is one of {', '.join(_KINDS)}, not {role!r}.")
    extra = dict(fields)
    texts: list[str] = []
    if isinstance(content, str):
        texts = [content]
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
        extra["content"] = content
    elif content is not None:
        raise InvalidInput("The content of a message is text, or a list of parts.")
    if role == "tool":
        call = str(extra.get("tool_call_id", ""))
        name = str(extra.get("tool_name", ""))
        return MessageTool([ToolResult(call, "\n".join(texts), name)], extra=extra)
    return kind(parts=[Text(text) for text in texts], extra=extra)


def _as_message(recorded: Recorded, session_id: str) -> dict[str, Any]:
    """Return a stored message as a mapping."""
    extra = getattr(recorded.event, "extra", {})
    parts = getattr(recorded.event, "parts", None)
    content = extra.get("content")
    if "content" not in extra and parts:
        content = text_of(parts)
    return {
        **extra,
        "id": recorded.seq,
        "session_id": session_id,
        "role": _ROLES.get(recorded.kind, "user"),
        "content": content,
        "timestamp": recorded.at / 1e6,
        "erased": recorded.erased,
    }


class AsyncSessionDB(AsyncFacade[SessionDB]):
    """A `SessionDB` with awaited methods. `_db` is the wrapped `SessionDB`."""

    def __init__(self, db: SessionDB) -> None:
        super().__init__(db, ThreadPool(THREADS, "tenax-aio"))
        self._db = db

    async def close(self) -> None:
        """Close the store and stop the threads."""
        await self.threads.run(self._db.close)
        self.threads.stop()

    create_session = awaited(SessionDB.create_session)
    get_session = awaited(SessionDB.get_session)
    append_message = awaited(SessionDB.append_message)
    append_messages = awaited(SessionDB.append_messages)
    get_messages = awaited(SessionDB.get_messages)
    children = awaited(SessionDB.children)
    end_session = awaited(SessionDB.end_session)
    rotate = awaited(SessionDB.rotate)
    try_acquire_compression_lock = awaited(SessionDB.try_acquire_compression_lock)
    release_compression_lock = awaited(SessionDB.release_compression_lock)
    get_compression_lock_holder = awaited(SessionDB.get_compression_lock_holder)
    append_run_event = awaited(SessionDB.append_run_event)
    undo = awaited(SessionDB.undo)
    clear = awaited(SessionDB.clear)
    restore = awaited(SessionDB.restore)
    fork = awaited(SessionDB.fork)
    set_title = awaited(SessionDB.set_title)
    pin = awaited(SessionDB.pin)
    archive = awaited(SessionDB.archive)
    erase = awaited(SessionDB.erase)
    delete_session = awaited(SessionDB.delete_session)
    list_sessions = awaited(SessionDB.list_sessions)
    search = awaited(SessionDB.search)
