"""SessionDB: the store as the five seed documents name it, over a Journal.

A *session* here is a stretch: a conversation between two compactions. Its id is the caller's own string. A compaction
(`rotate`) ends one session and opens exactly one child, in one commit that is refused if the parent is no longer the
head, so two children cannot exist, whoever holds the compression lock.

A message for a session that was ended by a compaction is stored at the head of its conversation, and `append_message`
says where. `AsyncSessionDB` has the same methods, awaited.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tenax import journal as journals
from tenax.compat.repair import rows_of
from tenax.errors import (
    ConversationExists,
    Gone,
    HeadMoved,
    InvalidInput,
    NoSuchConversation,
    SessionEnded,
    StretchMoved,
)
from tenax.events import (
    ContextCompacted,
    ContextSummarised,
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
    StretchEnded,
)
from tenax.journal.aio import THREADS, Threads, Twin, awaited
from tenax.journal.arguments import checked
from tenax.journal.base import Erased, Expect, Hits, Lease, Recorded, Stretch, Summary
from tenax.journal.place import ALL_SEQS
from tenax.journal.plan import ID_CHARS_MAX
from tenax.parts import Text, ToolResult, text_of
from tenax.views.context import Context

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
_LOCK_SECONDS = (1e-6, 7 * 86400.0)
"""The shortest and the longest time that a lock is kept."""


class StoredMessage(msgspec.Struct, frozen=True):
    """Where a message stands. `session_id` is another than asked for when a compaction came between."""

    session_id: str
    conversation_id: str
    seq: int


class Compacted(msgspec.Struct, frozen=True):
    """The parent is ended, `session_id` is its one child."""

    session_id: str
    seq: int


class Superseded(msgspec.Struct, frozen=True):
    """Somebody else changed the session meanwhile. Nothing was stored. `by` is the head now."""

    by: str | None


@partial(checked, but=("get_session", "children"))  # what can be no name finds nothing
class SessionDB:
    """One user's sessions in a store. Safe to use from any thread."""

    def __init__(
        self,
        db_path: str | Path | None = None,
        *,
        url: str | None = None,
        user: str = journals.LOCAL_USER,
        journal: Journal | None = None,
    ) -> None:
        if sum(each is not None for each in (db_path, url, journal)) != 1:
            raise InvalidInput(
                "A SessionDB is opened by db_path, or by url.",
                hint='SessionDB(db_path="state.db")',
            )
        if db_path is not None:
            url = f"sqlite:///{Path(db_path).absolute()}"
        self._owned = journal is None
        self.journal = (
            journal if journal is not None else journals.open(url or "", user=user)
        )
        self._late = threading.Lock()
        """Each piece of late output is told its place; threads that all guess at once would starve one another."""

    def close(self) -> None:
        """Let go of the store."""
        if self._owned:
            self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- sessions and messages -------------------------------------------------------------------------------

    def create_session(self, /, session_id: str, source: str, **fields: Any) -> str:  # noqa: ANN401  (the caller's own)
        """Open a session, and with it a conversation. Opening it again changes nothing."""
        title, parent = fields.pop("title", None), fields.pop("parent_session_id", None)
        user = self.journal.user or ""
        opened = ConversationOpened(
            user, session_id, source=source, parent=parent, extra=fields
        )
        events: list[Event] = (
            [opened] if title is None else [opened, ConversationTitled(title)]
        )
        with suppress(ConversationExists):
            self.journal.append(self.journal.ids.conversation(), events)
        return session_id

    def get_session(
        self, session_id: str, *, rows: bool = False
    ) -> dict[str, Any] | None:
        """What is known of a session, or None. `revision` moves with everything that changes its transcript.

        With `rows` also the transcript of its conversation, as a person sees it: this is opening it, and looks again
        for the output of runs that were interrupted.
        """
        stretch = self.journal.stretch(session_id)
        if stretch is None:
            return None
        try:
            head, shown = (
                self.journal.head(stretch.conversation),
                self.journal.summary(stretch.conversation),
            )
        except (Gone, NoSuchConversation):
            return None
        opened = self.journal.fact(stretch.conversation, 1)
        extra = (
            opened.event.extra
            if opened and isinstance(opened.event, ConversationOpened)
            else {}
        )
        return {
            **extra,
            "id": stretch.name,
            "conversation_id": stretch.conversation,
            "source": shown.source,
            "title": shown.title,
            "parent_session_id": stretch.parent,
            "message_count": stretch.messages,
            "started_at": stretch.opened_at / 1e6,
            "ended_at": None if stretch.ended_at is None else stretch.ended_at / 1e6,
            "end_reason": stretch.reason,
            "pinned": shown.pinned,
            "archived": shown.archived,
            "revision": head.revision,
            "head_session_id": head.stretch,
            **({"rows": rows_of(self.journal, stretch.conversation)} if rows else {}),
        }

    def append_message(
        self,
        /,
        session_id: str,
        role: str,
        content: Any = None,  # noqa: ANN401  (text, or a provider's parts)
        **fields: Any,  # noqa: ANN401  (the caller's own)
    ) -> StoredMessage:
        """Store a message. After a compaction it stands in the child, and the answer says so."""
        return self._append(session_id, [_message(role, content, fields)])

    def append_messages(
        self, session_id: str, messages: Sequence[Mapping[str, Any]]
    ) -> StoredMessage:
        """Store several messages, all or none."""
        return self._append(
            session_id, [_message_of(each) for each in messages_of(messages)]
        )

    def get_messages(self, session_id: str) -> list[dict[str, Any]]:
        """The messages of a session that stand. One that a compaction opened starts with the summary, and with
        what stood after the part that it covers; their `session_id` names the session they were written in.
        """
        stretch = self._stretch(session_id)
        conversation = stretch.conversation
        upto = stretch.ended_seq or self.journal.head(conversation).head
        if not stretch.covers_to:
            found = self.journal.messages(
                conversation, after=stretch.opened_seq - 1, upto=upto
            )
            return [_shown(each, session_id) for each in found]
        summary = self._summary(stretch)
        found = self.journal.messages(conversation, after=stretch.covers_to, upto=upto)
        parent = stretch.parent or session_id
        shown = [
            _shown(each, session_id if each.seq > stretch.opened_seq else parent)
            for each in found
        ]
        return ([_shown(summary, session_id)] if summary else []) + shown

    def children(self, session_id: str) -> list[str]:
        """The sessions that name this one as their parent."""
        return self.journal.children(session_id)

    def end_session(self, session_id: str, reason: str = "ended") -> None:
        """End a session without a successor. It takes no more messages."""
        stretch = self._stretch(session_id)
        if stretch.ended_at is None:
            self.journal.append(
                stretch.conversation, [StretchEnded(session_id, reason)]
            )

    # -- compaction ------------------------------------------------------------------------------------------

    def rotate(
        self,
        session_id: str,
        *,
        summary: str,
        covers_to: int | None = None,
        folded_to: int | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        child: str | None = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        model: str | None = None,
        keep_last: int = 0,
        kept: Sequence[int] = (),
        lease: Lease | None = None,
        run: str | None = None,
    ) -> Compacted | Superseded:
        """Commit a compaction: end this session and open its one child, or say that somebody was faster.

        `summary` stands for everything up to `covers_to`, or up to the last finished step before it; what came after
        it, also since `folded_to` (the head that the summary was made from), stays in the live context. `messages` that are only in the caller's own list are
        stored first, in the same commit, and are covered, but for the last `keep_last`, if `covers_to` is not given.
        Messages of people at the seqs in `kept` stay word for word. A run compacts under its lease.
        """
        for seq in (covers_to, folded_to):
            if seq is not None and not 0 <= seq <= ALL_SEQS:
                raise InvalidInput(
                    f"`covers_to` and `folded_to` of rotate are numbers of events, not {seq}."
                )
        stretch = self._stretch(session_id)
        if stretch.ended_at is not None:
            return Superseded(self.journal.head(stretch.conversation).stretch)
        head = self.journal.head(stretch.conversation)
        folded = head.head if folded_to is None else folded_to
        edited = head.revision if folded_to is None else folded_to
        own: list[Event] = [_message_of(each) for each in messages_of(messages)]
        name = child or self.journal.ids.stretch()
        for _ in range(_TRIES):
            covers = covers_to
            if covers is None:
                covers = head.head + len(own) - keep_last if own else folded
                # others wrote meanwhile, and that is not in the summary
                if own and head.revision > edited:
                    covers = max(folded, 1)
            covers = self._whole(stretch, covers)
            summarised = ContextSummarised(
                [Text(summary)], covers, tokens_before, tokens_after, model, list(kept)
            )
            at = head.head + len(own) + 1
            events = [
                *own,
                summarised,
                ContextCompacted(session_id, name, at, covers, folded),
            ]
            expect = Expect(head=head.head, stretch=session_id)
            try:
                stored = self.journal.append(
                    stretch.conversation, events, expect=expect, lease=lease, run=run
                )
            except StretchMoved as moved:
                return Superseded(moved.by)
            except HeadMoved:
                now = self.journal.head(stretch.conversation)
                if now.head == head.head or now.stretch != session_id:
                    return Superseded(now.stretch)
                # somebody appended meanwhile; that stays in the live context, and the commit is tried anew
                head = now
                continue
            return Compacted(name, stored[-1].seq)
        return Superseded(self.journal.head(stretch.conversation).stretch)

    def _whole(self, stretch: Stretch, covers: int) -> int:
        """Where to end what is covered, so that no call is parted from its result and nothing is lost between."""
        context, after = Context(), stretch.covers_to
        while page := self.journal.read(stretch.conversation, after=after):
            for each in page:
                context.apply(each)
            after = page[-1].seq
        while covers > stretch.covers_to:
            parted = [
                seq
                for seq in context.parted(covers)
                if not self._asks(stretch.conversation, seq)
            ]
            if not parted:
                return covers
            covers = min(parted) - 1
        return max(covers, stretch.covers_to)

    def _asks(self, conversation: str, seq: int) -> bool:
        fact = self.journal.fact(conversation, seq)
        return (
            fact is not None and isinstance(fact.event, MessageUser) and fact.event.ask
        )

    def try_acquire_compression_lock(
        self, session_id: str, holder: str, ttl_seconds: float = 300.0
    ) -> bool:
        """Keep others from paying for the same summary. It saves money, it does not guard the commit."""
        shortest, longest = _LOCK_SECONDS
        seconds = min(max(ttl_seconds, shortest), longest)
        return (
            self.journal.claim(_lock(session_id), holder, seconds, patient=False)
            is not None
        )

    def release_compression_lock(self, session_id: str, holder: str) -> None:
        """Give the lock back, if this holder has it."""
        self.journal.release_held(_lock(session_id), holder)

    def get_compression_lock_holder(self, session_id: str) -> str | None:
        """Who holds the lock, or None."""
        return self.journal.holder(_lock(session_id))

    # -- runs that are gone ----------------------------------------------------------------------------------

    def append_run_event(
        self,
        session_id: str,
        run_id: str,
        kind: str,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Output of a run that no longer has the conversation: accepted late, shown with its own run."""
        conversation = self._stretch(session_id).conversation
        if kind != "stream_end" and kind not in _LATE:
            raise InvalidInput(
                f"A run event is one of {', '.join(_LATE)} or stream_end, not {kind!r}."
            )
        if not isinstance(payload, Mapping | None):
            raise InvalidInput("The payload of a run event is a mapping.")
        said = {
            key: value for key, value in (payload or {}).items() if value is not None
        }
        word = "text" if kind == "token" else "name"
        if not isinstance(said.get(word, ""), str):
            raise InvalidInput(
                f"The {word} of a {kind} event is text, not {said[word]!r:.40}."
            )
        if kind == "token" and said.get("text", "") == "":
            return  # no words, no output
        with self._late:
            for _ in range(_TRIES):
                head = self.journal.head(conversation).head
                before = self.journal.run(conversation, run_id)
                late: Event = RunSealed()
                if kind != "stream_end":
                    index = before.late if before is not None else 0
                    late = RunLate(index, kind, said)  # type: ignore[arg-type]  # checked above
                elif before is not None and before.sealed is not None:
                    return
                try:
                    self.journal.append(
                        conversation, [late], run=run_id, expect=Expect(head=head)
                    )
                except HeadMoved:
                    continue
                return
        raise HeadMoved(
            "The conversation moves too fast for this run's output to find its place."
        )

    # -- what a person does with a conversation --------------------------------------------------------------

    def undo(self, session_id: str, to: int | None = None) -> int:
        """Take back everything after `to`; without it, the last message of a person and what followed. The seq
        of the undo, which `restore` takes.
        """
        stretch = self._open(session_id)
        if to is None:
            found = self.journal.messages(
                stretch.conversation, after=stretch.opened_seq
            )
            asked = [each.seq for each in found if each.kind == MessageUser.kind]
            if not asked:
                raise InvalidInput("There is no message to undo.")
            to = asked[-1] - 1
        return self.journal.append(stretch.conversation, [ConversationRewound(to)])[
            0
        ].seq

    def clear(self, session_id: str) -> int:
        """Everything so far leaves transcript and context. The seq of the clear, which `restore` takes."""
        return self.journal.append(
            self._open(session_id).conversation, [ConversationCleared()]
        )[0].seq

    def restore(self, session_id: str, of: int) -> None:
        """Take back an undo or a clear."""
        self.journal.append(
            self._open(session_id).conversation, [ConversationRestored(of)]
        )

    def fork(
        self,
        session_id: str,
        upto: int | None = None,
        new_session_id: str | None = None,
    ) -> str:
        """A new conversation with what stands up to a seq. Its session's id."""
        name = new_session_id or self.journal.ids.stretch()
        fork = self.journal.fork(
            self._stretch(session_id).conversation, upto=upto, stretch=name
        )
        return self.journal.head(fork).stretch or name

    def set_title(self, session_id: str, title: str | None) -> None:
        """The title in the list."""
        self.journal.append(
            self._stretch(session_id).conversation, [ConversationTitled(title)]
        )

    def pin(self, session_id: str, pinned: bool = True) -> None:
        """Keep the conversation at the top of the list, or no longer."""
        self.journal.append(
            self._stretch(session_id).conversation, [ConversationPinned(pinned)]
        )

    def archive(self, session_id: str, archived: bool = True) -> None:
        """Leave the conversation out of the list, or bring it back. Search finds it all the same."""
        self.journal.append(
            self._stretch(session_id).conversation, [ConversationArchived(archived)]
        )

    def erase(
        self, session_id: str, seqs: Sequence[int], by: str = "", why: str = ""
    ) -> Erased:
        """Take the text of these messages out of the store, and all that was derived from it."""
        return self.journal.erase(
            self._stretch(session_id).conversation,
            seqs,
            by=by or self.journal.user or "",
            why=why,
        )

    def delete_session(self, session_id: str) -> None:
        """Delete the session's conversation, whole. A tombstone stays."""
        self.journal.delete(self._stretch(session_id).conversation)

    def list_sessions(
        self,
        *,
        archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        """A page of conversations, pinned first, then newest. `after` is the `place` of the last one seen."""
        return self.journal.conversations(archived=archived, after=after, limit=limit)

    def search(
        self,
        words: str,
        *,
        session_id: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 20,
    ) -> Hits:
        """Messages with these words, newest first."""
        conversation = (
            None if session_id is None else self._stretch(session_id).conversation
        )
        return self.journal.search(
            words, conversation=conversation, before=before, limit=limit
        )

    # -- small things ----------------------------------------------------------------------------------------

    def _stretch(self, session_id: str) -> Stretch:
        found = self.journal.stretch(session_id)
        if found is None:
            raise NoSuchConversation(
                f"There is no session {session_id}.", hint="create_session makes one"
            )
        return found

    def _open(self, session_id: str) -> Stretch:
        found = self._stretch(session_id)
        if found.ended_at is not None:
            raise SessionEnded(
                f"Session {session_id} was ended ({found.reason}).",
                hint="use the head session",
            )
        return found

    def _append(self, session_id: str, events: list[Event]) -> StoredMessage:
        stretch = self._stretch(session_id)
        conversation = stretch.conversation
        if stretch.ended_at is not None and stretch.reason != "compression":
            raise SessionEnded(
                f"Session {session_id} was ended ({stretch.reason}); it takes no more messages."
            )
        stored = self.journal.append(conversation, events)
        stands_in = self.journal.head(conversation).stretch or session_id
        return StoredMessage(stands_in, conversation, stored[-1].seq)

    def _summary(self, stretch: Stretch) -> Recorded | None:
        compacted = self.journal.fact(stretch.conversation, stretch.opened_seq)
        if compacted is None or not isinstance(
            event := compacted.event, ContextCompacted
        ):
            return None
        summary = self.journal.fact(stretch.conversation, event.summary)
        return summary if summary is not None and not summary.erased else None


def _lock(session_id: str) -> str:
    name = f"compress:{session_id}"
    if len(name) <= ID_CHARS_MAX:
        return name
    return f"compress:{sha256(name.encode(errors='surrogatepass')).hexdigest()}"


def messages_of(given: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same as a list. What are no messages is refused here, in words."""
    found: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for each in found:
        if not isinstance(each, Mapping):
            raise InvalidInput(
                f"A message is a mapping with a role and a content, not {each!r:.40}."
            )
    return found


def _message_of(message: Mapping[str, Any]) -> Event:
    fields = {
        key: value for key, value in message.items() if key not in ("role", "content")
    }
    return _message(str(message.get("role", "")), message.get("content"), fields)


def _message(role: str, content: Any, fields: Mapping[str, Any]) -> Event:  # noqa: ANN401  (text, or a provider's parts)
    """A message as the event of its role. What is not plain text is kept as it came, beside its words."""
    kind = _KINDS.get(role) if isinstance(role, str) else None
    if kind is None:
        raise InvalidInput(f"A role is one of {', '.join(_KINDS)}, not {role!r}.")
    extra = dict(fields)
    if content is None:
        words = []
    elif isinstance(content, str):
        words = [content]
    elif isinstance(content, list):
        words = [
            each["text"]
            for each in content
            if isinstance(each, dict) and isinstance(each.get("text"), str)
        ]
        extra["content"] = content
    else:
        raise InvalidInput("The content of a message is text, or a list of parts.")
    if role == "tool":
        call, name = str(extra.get("tool_call_id", "")), str(extra.get("tool_name", ""))
        return MessageTool([ToolResult(call, "\n".join(words), name)], extra=extra)
    return kind(parts=[Text(each) for each in words], extra=extra)


def _shown(message: Recorded, session_id: str) -> dict[str, Any]:
    """A stored message as callers of the seeds read it."""
    event = message.event
    extra = getattr(event, "extra", {})
    parts = getattr(event, "parts", None)
    content = (
        extra["content"]
        if "content" in extra
        else None
        if not parts
        else text_of(parts)
    )
    return {
        **extra,
        "id": message.seq,
        "session_id": session_id,
        "role": _ROLES.get(message.kind, "user"),
        "content": content,
        "timestamp": message.at / 1e6,
        "erased": message.erased,
    }


class AsyncSessionDB(Twin[SessionDB]):
    """A `SessionDB` whose methods are awaited. `_db` is the one behind it."""

    def __init__(self, db: SessionDB) -> None:
        super().__init__(db, Threads(THREADS))
        self._db = db

    async def close(self) -> None:
        """Let go of the store, and of the threads."""
        await self._threads.run(self._db.close)
        self._threads.stop()

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
