"""MemoryEntries: the built-in memory of a user, stored as rows beside the journal.

A row is a version of an entry, and a row never changes. The greatest version of an id is the current entry. Every
change names the version seen by the caller. A writer first changes the user's row in `memories`. So on every engine a
single writer works at a time, and an erasure waiting for the writer finds the stored rows.

The reason for rows instead of events is in `docs/decisions/0013-facts-are-rows-beside-the-journal.md`.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    Unpack,
    get_args,
)

import msgspec

from tenax.errors import InvalidInput, MemoryChanged, TooLarge
from tenax.journal.plan import check_id, is_id
from tenax.journal.row_index import INDEX_VERSION
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS, bounds
from tenax.text import is_storable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenax.journal.journal import Journal
    from tenax.journal.store import Tx

__all__ = [
    "ENTRIES_MAX",
    "TEXT_CHARS_MAX",
    "About",
    "By",
    "MemoryEntries",
    "MemoryEntry",
    "Origin",
]

TEXT_CHARS_MAX = 1000
ENTRIES_MAX = 5000
"""The most entries of a user, without removed entries."""
State = Literal["standing", "removed"]
About = Literal["profile", "note"]
By = Literal["person", "model", "review", "import"]


class Origin(TypedDict, total=False):
    """The origin of a change: its author, its source message and the key of the call. Default: the person."""

    by: By
    conversation: str
    seq: int
    key: str


class MemoryEntry(msgspec.Struct, frozen=True):
    """A version of a remembered text."""

    id: str
    version: int
    state: State
    text: str
    about: About
    """`profile`: about the person. `note`: anything else."""
    by: By
    at: int
    conversation: str | None
    """With `seq`, the source message of the entry. `None` if the entry was not learned in a conversation."""
    seq: int | None
    scope: str | None
    """The only conversation allowed to use the entry. `None` allows every conversation of the user."""
    replaces: str | None
    """The id of the entry replaced by the version. After an undo: the id of the restored entry."""


class _Row(NamedTuple):
    """The columns of a version, in the order of the SQL statements."""

    id: str
    version: int
    state: State
    text: str
    about: About
    by: By
    at: int
    conversation: str | None
    row_key: int | None
    scope_name: str | None
    replaces: str | None
    scope: int | None
    replaced: int | None

    @property
    def entry(self) -> MemoryEntry:
        return MemoryEntry(
            id=self.id,
            version=self.version,
            state=self.state,
            text=self.text,
            about=self.about,
            by=self.by,
            at=self.at,
            conversation=self.conversation,
            seq=None if self.row_key is None else self.row_key & ALL_SEQS,
            scope=self.scope_name,
            replaces=self.replaces,
        )


class _Write(NamedTuple):
    """A write: transaction, author, source message, and key of the call."""

    tx: Tx
    by: By
    row_key: int | None
    scope: int | None
    """The conversation of the write, if several people write in the conversation."""
    key: str


class MemoryEntries:
    """The entries of a user. Safe to use from any thread."""

    def __init__(self, journal: Journal) -> None:
        if journal.user is None:
            raise InvalidInput(
                "This handle belongs to no user.", hint="use journal.of(user)"
            )
        self._journal = journal
        self._user = journal.user
        self._store = journal.store

    # -- writing ---------------------------------------------------------------------------------------------

    def add(
        self,
        text: str,
        *,
        about: About = "note",
        replaces: tuple[str, int] | None = None,
        **origin: Unpack[Origin],
    ) -> MemoryEntry:
        """Remember a text. `replaces` is the id and the version of the entry to replace."""
        line = _one_line(text)
        about = _check_word("about", about, About)
        id_ = f"f_{self._journal.ids.append().hex()}"

        def add_entry(write: _Write) -> None:
            if replaces is None:
                self._check_room(write)
            else:
                old = self._find_seen(write, *replaces)
                self._store_version(
                    write, old, key=None, state="removed", place=write.row_key
                )
            new = _Row(
                id_,
                0,
                "standing",
                line,
                about,
                write.by,
                0,
                None,
                write.row_key,
                None,
                None,
                write.scope,
                None,
            )
            self._store_version(write, new, replaced=replaces)

        return self._write_once(add_entry, **origin)

    def change(
        self,
        id: str,  # noqa: A002  (the field's name)
        *,
        was: int,
        text: str | None = None,
        about: About | None = None,
        **origin: Unpack[Origin],
    ) -> MemoryEntry:
        """Change an entry. Raises `MemoryChanged` if `was` is not the last version."""
        if text is None and about is None:
            raise InvalidInput(
                "There is nothing to change in this.",
                hint="give a text, or what it is about",
            )
        line = None if text is None else _one_line(text)
        kind = None if about is None else _check_word("about", about, About)

        def change_entry(write: _Write) -> None:
            old = self._find_seen(write, id, was)
            has_same_text = line is None or line == old.text
            keeps_source = write.row_key is None and has_same_text
            self._store_version(
                write,
                old,
                text=line or old.text,
                about=kind or old.about,
                place=old.row_key if keeps_source else write.row_key,
                scope=old.scope if write.scope is None else write.scope,
            )

        return self._write_once(change_entry, **origin)

    def remove(
        self,
        id: str,  # noqa: A002
        *,
        was: int,
        **origin: Unpack[Origin],
    ) -> MemoryEntry:
        """Forget an entry. Its versions stay for an undo until the source message is erased."""

        def remove_entry(write: _Write) -> None:
            old = self._find_seen(write, id, was)
            self._store_version(write, old, state="removed", place=write.row_key)

        return self._write_once(remove_entry, **origin)

    def undo(
        self,
        id: str,  # noqa: A002
        *,
        was: int,
        **origin: Unpack[Origin],
    ) -> MemoryEntry:
        """Undo the change of version `was`, and restore a replaced entry. The undo is a new version."""

        def undo_change(write: _Write) -> None:
            versions = self._versions(write.tx, id)
            last = _check_last(versions, was)
            restored = self._undo_replacement(write, last)
            if was == 1:
                self._store_version(
                    write, last, state="removed", place=None, replaced=restored
                )
                return
            before = versions[-2]
            if before.state == "standing" != last.state and restored is None:
                self._check_room(write)
            self._store_version(
                write,
                last,
                state=before.state,
                text=before.text,
                about=before.about,
                place=before.row_key,
                scope=before.scope,
                replaced=restored,
            )

        return self._write_once(undo_change, **origin)

    def _undo_replacement(self, write: _Write, last: _Row) -> tuple[str, int] | None:
        """Restore the entry replaced by version `last`, unless the entry changed since. Return id and version."""
        if last.replaces is None or last.replaced is None:
            return None
        versions = self._rows(write.tx, last.replaces)
        if len(versions) != last.replaced + 1:
            return None
        old, now = versions[last.replaced - 1], versions[last.replaced]
        self._store_version(write, now, key=None, state=old.state, place=old.row_key)
        return last.replaces, now.version

    def _write_once(
        self,
        work: Callable[[_Write], None],
        by: By = "person",
        conversation: str | None = None,
        seq: int | None = None,
        key: str | None = None,
    ) -> MemoryEntry:
        """Write in a single transaction, once per key. A repeated call returns the version stored by the first call."""
        _check_word("by", by, By)
        name = self._journal.ids.append().hex() if key is None else check_id("key", key)
        if (conversation is None) != (seq is None):
            raise InvalidInput(
                "A source is a conversation and a seq in it, not one of them."
            )
        num = None if conversation is None else self._num(conversation)
        by_key = {"owner": self._user, "key": name}

        def once(tx: Tx) -> MemoryEntry:
            tx.run("change_memory", {"owner": self._user})
            stored = tx.run("fact_of_key", by_key)
            if not stored:
                work(self._begin_write(tx, by, num, seq, name))
                stored = tx.run("fact_of_key", by_key)
            ((id_, version),) = stored
            return self._versions(tx, id_)[int(version) - 1].entry

        return self._store.change(once)

    def _begin_write(
        self, tx: Tx, by: By, num: int | None, seq: int | None, key: str
    ) -> _Write:
        if num is None or seq is None:
            return _Write(tx, by, None, None, key)
        row_key = bounds(num)[0] + seq
        if not 0 < seq <= ALL_SEQS or not tx.run("kind_at", {"place": row_key}):
            raise InvalidInput(
                f"Nothing stands at seq {seq} that could be remembered; it may have been erased."
            )
        ((is_shared,),) = tx.run("shared", {"num": num, "version": INDEX_VERSION})
        return _Write(tx, by, row_key, num if is_shared else None, key)

    def _find_seen(self, write: _Write, id: str, was: int) -> _Row:  # noqa: A002
        """Return the last version of an entry.

        Raises `MemoryChanged` if the caller did not see the last version, and `InvalidInput` if the entry is removed or
        hidden from the conversation of the call.
        """
        last = _check_last(self._versions(write.tx, id), was)
        if write.row_key is not None:
            here = write.row_key >> SEQ_BITS
            is_of_other = last.scope is not None and last.scope != here
            is_learned_here = (
                last.row_key is not None and last.row_key >> SEQ_BITS == here
            )
            # In a conversation with several people, a call may name only entries learned in the conversation.
            is_private = (
                last.scope is None and write.scope is not None and not is_learned_here
            )
            if is_of_other or is_private:
                raise _missing(id)
        if last.state != "standing":
            raise InvalidInput(f"Memory {id} was forgotten.", hint="undo that first")
        return last

    def _check_room(self, write: _Write) -> None:
        ((count,),) = write.tx.run("facts_standing", {"owner": self._user})
        if count >= ENTRIES_MAX:
            raise InvalidInput(
                f"{ENTRIES_MAX:,} memories are kept already.",
                hint="forget some of them first",
            )

    def _store_version(
        self,
        write: _Write,
        old: _Row,
        *,
        replaced: tuple[str, int] | None = None,
        **changes: Any,  # noqa: ANN401
    ) -> None:
        """Store the version after `old`, with `changes`."""
        other_id, other_version = replaced or (None, None)
        row = {
            "owner": self._user,
            "id": old.id,
            "version": old.version + 1,
            "state": old.state,
            "text": old.text,
            "about": old.about,
            "by": write.by,
            "at": self._journal.clock.now_us(),
            "place": old.row_key,
            "scope": old.scope,
            "replaces": other_id,
            "replaced": other_version,
            "key": write.key,
        }
        write.tx.run("put_fact", row | changes)

    # -- reading ---------------------------------------------------------------------------------------------

    def versions(self, id: str) -> list[MemoryEntry]:  # noqa: A002
        """Return every version of an entry, oldest first. Raises `InvalidInput` if the entry does not exist."""
        rows = self._store.read(lambda tx: self._versions(tx, id))
        return [row.entry for row in rows]

    def standing(self) -> list[MemoryEntry]:
        """Return the entries that are not removed, newest first, for the person."""
        rows = self._store.query("remembered", owner=self._user)
        return [_Row(*columns).entry for columns in rows]

    def usable(self, conversation: str) -> list[MemoryEntry]:
        """Return the usable entries of a conversation, newest first.

        In a conversation with several people, only entries learned in the conversation are usable. In other
        conversations, the entries without a scope and the entries with the conversation as their scope are usable.
        """
        num = self._num(conversation)
        low, high = bounds(num)
        rows = self._store.query(
            "usable",
            owner=self._user,
            num=num,
            low=low,
            high=high,
            version=INDEX_VERSION,
        )
        return [_Row(*columns).entry for columns in rows]

    def revision(self) -> int:
        """Return a number. Every change of the user's entries changes the number."""
        rows = self._store.query("revision", owner=self._user)
        return int(rows[0][0]) if rows else 0

    def _versions(self, tx: Tx, id: str) -> list[_Row]:  # noqa: A002
        rows = self._rows(tx, id)
        if not rows:
            raise _missing(id)
        return rows

    def _rows(self, tx: Tx, id: str) -> list[_Row]:  # noqa: A002
        if not is_id(id):
            return []
        rows = tx.run("fact_versions", {"owner": self._user, "id": id})
        return [_Row(*columns) for columns in rows]

    def _num(self, conversation: str) -> int:
        num = self._journal.number(conversation)
        self._store.index((self._user, conversation), num)
        return num


def _missing(id: str) -> InvalidInput:  # noqa: A002
    return InvalidInput(
        f"There is no memory {id:.60}.",
        hint="list the memories, and name one of them",
    )


def _check_last(versions: list[_Row], was: int) -> _Row:
    last = versions[-1]
    if last.version != was:
        raise MemoryChanged(
            f"Memory {last.id} was changed meanwhile: it is at version {last.version}, not {was}.",
            hint="look at it as it is now, and try again",
        )
    return last


def _one_line(text: object) -> str:
    if not isinstance(text, str) or not is_storable(text):
        raise InvalidInput(
            "A memory is text, without a NUL or half of a surrogate pair."
        )
    parts = [part.strip() for part in text.splitlines()]
    line = " ".join(part for part in parts if part)
    if not line:
        raise InvalidInput(
            "There is nothing to remember in this.", hint="give a sentence"
        )
    if len(line) > TEXT_CHARS_MAX:
        raise TooLarge(
            f"A memory has at most {TEXT_CHARS_MAX:,} characters, not {len(line):,}.",
            hint="say it shorter",
        )
    return line


def _check_word(name: str, word: Any, words: Any) -> Any:  # noqa: ANN401  (one of a Literal's values)
    if word not in get_args(words):
        raise InvalidInput(
            f"`{name}` is one of {', '.join(get_args(words))}, not {str(word)[:40]!r}."
        )
    return word
