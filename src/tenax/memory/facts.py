"""What is remembered of a person: rows of the store beside the journal, one for each version, and none is ever changed.

A fact is where it was learned and what it has been: the row with the greatest version of an id is the fact, and every
change names the version that its caller saw. Whoever writes changes the user's row in `memories` first, so that on
every engine one does so at a time, and an erasure that waits for it finds what it has stored.

Why they are no events is told in `docs/decisions/0013-facts-are-rows-beside-the-journal.md`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from tenax.errors import FactChanged, InvalidInput, TooLarge
from tenax.journal.place import ALL_SEQS, SEQ_BITS, bounds
from tenax.journal.plan import check_id, is_id
from tenax.journal.row_index import INDEX_VERSION
from tenax.parts import NO_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenax.journal.journal import Journal
    from tenax.journal.store import Tx

__all__ = ["FACTS_MAX", "TEXT_CHARS_MAX", "About", "By", "Fact", "Facts"]

TEXT_CHARS_MAX = 1000
FACTS_MAX = 5000
"""Facts of one user that stand."""
State = Literal["standing", "removed"]
About = Literal["profile", "note"]
By = Literal["person", "model", "review", "import"]
_TAG = re.compile("<[^<>]*>")


class Fact(msgspec.Struct, frozen=True):
    """One version of something that is remembered."""

    id: str
    version: int
    state: State
    text: str
    about: About
    """Who the person is, or anything else."""
    by: By
    at: int
    conversation: str | None
    """With `seq`, the message that it was learned from; None if it was told elsewhere."""
    seq: int | None
    scope: str | None
    """The one conversation that it is for; None: it is for all of the user's."""
    replaces: str | None
    """The fact that this version took the place of, or gave its place back to."""


class _Kept(NamedTuple):
    """A version as it is stored."""

    fact: Fact
    place: int | None
    scope: int | None
    replaced: int | None


class _Write(NamedTuple):
    """What one call writes with: where it comes from, and by what key it is known again."""

    tx: Tx
    by: By
    place: int | None
    scope: int | None
    """The conversation that it comes from, if others write in it too."""
    key: str


class Facts:
    """One user's facts. Safe to use from any thread."""

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
        by: By = "person",
        conversation: str | None = None,
        seq: int | None = None,
        replaces: tuple[str, int] | None = None,
        key: str | None = None,
    ) -> Fact:
        """Remember this. `replaces` is a fact, as the caller saw it, that it takes the place of."""
        text, about = _line(text), _one_of("about", about, About)
        fact = f"f_{self._journal.ids.append().hex()}"

        def work(write: _Write) -> None:
            if replaces is None:
                self._room(write)
            else:
                old = self._seen(write, *replaces)
                self._put(write, old, key=None, state="removed", place=write.place)
            new = Fact(
                fact, 0, "standing", text, about, write.by, 0, None, None, None, None
            )
            self._put(write, _Kept(new, write.place, write.scope, None), other=replaces)

        return self._write(work, by, conversation, seq, key)

    def change(
        self,
        id: str,  # noqa: A002  (the field's name)
        *,
        was: int,
        text: str | None = None,
        about: About | None = None,
        by: By = "person",
        conversation: str | None = None,
        seq: int | None = None,
        key: str | None = None,
    ) -> Fact:
        """Say it otherwise. Raises FactChanged if version `was` is no longer the last."""
        if text is None and about is None:
            raise InvalidInput(
                "There is nothing to change in this.",
                hint="give a text, or what it is about",
            )
        line = None if text is None else _line(text)
        kind = None if about is None else _one_of("about", about, About)

        def work(write: _Write) -> None:
            old = self._seen(write, id, was)
            same = line is None or line == old.fact.text
            place = old.place if write.place is None and same else write.place
            scope = old.scope if write.scope is None else write.scope
            self._put(
                write,
                old,
                text=line or old.fact.text,
                about=kind or old.fact.about,
                place=place,
                scope=scope,
            )

        return self._write(work, by, conversation, seq, key)

    def remove(
        self,
        id: str,  # noqa: A002
        *,
        was: int,
        by: By = "person",
        conversation: str | None = None,
        seq: int | None = None,
        key: str | None = None,
    ) -> Fact:
        """Forget it. Its versions stay, so that it can be undone; erasing the message it comes from takes them too."""

        def work(write: _Write) -> None:
            self._put(
                write, self._seen(write, id, was), state="removed", place=write.place
            )

        return self._write(work, by, conversation, seq, key)

    def undo(self, id: str, *, was: int, key: str | None = None) -> Fact:  # noqa: A002
        """Take back what version `was` did, as a new version; and what it did to the fact that it replaced."""

        def work(write: _Write) -> None:
            versions = self._versions(write.tx, id)
            last = _last(versions, was)
            before = versions[-2] if was > 1 else None
            other = self._undo_other(write, last)
            if before is None:
                self._put(write, last, state="removed", place=None, other=other)
            else:
                if before.fact.state == "standing" != last.fact.state and other is None:
                    self._room(write)
                self._put(write, last, state=before.fact.state, text=before.fact.text, about=before.fact.about,
                          place=before.place, scope=before.scope, other=other)  # fmt: skip

        return self._write(work, "person", None, None, key)

    def _undo_other(self, write: _Write, last: _Kept) -> tuple[str, int] | None:
        """Give the fact that this version replaced back what it was before, if nobody has changed it since."""
        name, replaced = last.fact.replaces, last.replaced
        versions = self._rows(write.tx, name) if name is not None else []
        if name is None or replaced is None or len(versions) != replaced + 1:
            return None
        old, now = versions[replaced - 1], versions[replaced]
        self._put(write, now, key=None, state=old.fact.state, place=old.place)
        return name, now.fact.version

    def _write(
        self,
        work: Callable[[_Write], None],
        by: By,
        conversation: str | None,
        seq: int | None,
        key: str | None,
    ) -> Fact:
        """Do it in one transaction, once for each key. A call that is tried again finds what it has stored."""
        _one_of("by", by, By)
        name = self._journal.ids.append().hex() if key is None else check_id("key", key)
        if (conversation is None) != (seq is None):
            raise InvalidInput(
                "A place is a conversation and a seq in it, not one of them."
            )
        num = None if conversation is None else self._num(conversation)

        def once(tx: Tx) -> Fact:
            tx.run("change_memory", {"owner": self._user})
            if not (known := tx.run("fact_of_key", {"owner": self._user, "key": name})):
                work(self._from(tx, by, num, seq, name))
                known = tx.run("fact_of_key", {"owner": self._user, "key": name})
            return self._versions(tx, known[0][0])[int(known[0][1]) - 1].fact

        return self._store.change(once)

    def _from(
        self, tx: Tx, by: By, num: int | None, seq: int | None, key: str
    ) -> _Write:
        if num is None or seq is None:
            return _Write(tx, by, None, None, key)
        place = bounds(num)[0] + seq
        if not 0 < seq <= ALL_SEQS or not tx.run("kind_at", {"place": place}):
            raise InvalidInput(
                f"Nothing stands at seq {seq} that could be remembered; it may have been erased."
            )
        ((shared,),) = tx.run("shared", {"num": num, "version": INDEX_VERSION})
        return _Write(tx, by, place, num if shared else None, key)

    def _seen(self, write: _Write, id: str, was: int) -> _Kept:  # noqa: A002
        """The fact, if it stands, is what the caller saw, and may be spoken of where the call comes from."""
        last = _last(self._versions(write.tx, id), was)
        if write.place is not None:
            here = write.place >> SEQ_BITS
            learned_here = last.place is not None and last.place >> SEQ_BITS == here
            if last.scope != here and (
                last.scope is not None or (write.scope is not None and not learned_here)
            ):
                raise _missing(id)
        if last.fact.state != "standing":
            raise InvalidInput(f"Fact {id} was forgotten.", hint="undo that first")
        return last

    def _room(self, write: _Write) -> None:
        if write.tx.run("facts_standing", {"owner": self._user})[0][0] >= FACTS_MAX:
            raise InvalidInput(
                f"{FACTS_MAX:,} facts are remembered already.",
                hint="forget some of them first",
            )

    def _put(
        self,
        write: _Write,
        old: _Kept,
        *,
        other: tuple[str, int] | None = None,
        **to: Any,  # noqa: ANN401
    ) -> None:
        """The version after `old`: as it was, but for what is said here."""
        name, replaced = other or (None, None)
        row = {"state": old.fact.state, "text": old.fact.text, "about": old.fact.about, "place": old.place,
               "scope": old.scope, "key": write.key, **to}  # fmt: skip
        key = {"owner": self._user, "id": old.fact.id, "version": old.fact.version + 1}
        row |= {
            "by": write.by,
            "at": self._journal.clock.now_us(),
            "replaces": name,
            "replaced": replaced,
        }
        write.tx.run("put_fact", {**key, **row})

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, id: str) -> Fact:  # noqa: A002
        """The fact, as it is now. Raises InvalidInput if there is none."""
        return self.versions(id)[-1]

    def versions(self, id: str) -> list[Fact]:  # noqa: A002
        """All that it has been, oldest first. Raises InvalidInput if there is none."""
        return [
            each.fact for each in self._store.read(lambda tx: self._versions(tx, id))
        ]

    def standing(self) -> list[Fact]:
        """All that stand, newest first: for the person."""
        return [
            _kept(row).fact for row in self._store.query("remembered", owner=self._user)
        ]

    def usable(self, conversation: str) -> list[Fact]:
        """What may be recalled into this conversation, newest first.

        Where others write too that is what was learned there; elsewhere, all that is for no other conversation alone.
        """
        num = self._num(conversation)
        low, high = bounds(num)
        where = {
            "owner": self._user,
            "num": num,
            "low": low,
            "high": high,
            "version": INDEX_VERSION,
        }
        return [_kept(row).fact for row in self._store.query("usable", **where)]

    def revision(self) -> int:
        """A number that moves with every change of this user's facts."""
        rows = self._store.query("revision", owner=self._user)
        return int(rows[0][0]) if rows else 0

    def _versions(self, tx: Tx, id: str) -> list[_Kept]:  # noqa: A002
        found = self._rows(tx, id)
        if not found:
            raise _missing(id)
        return found

    def _rows(self, tx: Tx, id: str) -> list[_Kept]:  # noqa: A002
        rows = (
            tx.run("fact_versions", {"owner": self._user, "id": id})
            if is_id(id)
            else []
        )
        return [_kept(row) for row in rows]

    def _num(self, conversation: str) -> int:
        num = self._journal.number(conversation)
        self._store.index((self._user, conversation), num)
        return num


def _kept(row: tuple[Any, ...]) -> _Kept:
    place = row[8]
    columns: list[Any] = [
        *row[:8],
        None if place is None else place & ALL_SEQS,
        *row[9:11],
    ]
    return _Kept(Fact(*columns), place, row[11], row[12])


def _missing(id: str) -> InvalidInput:  # noqa: A002
    return InvalidInput(
        f"There is no fact {id:.60}.",
        hint="look at what is remembered, and name one of that",
    )


def _last(versions: list[_Kept], was: int) -> _Kept:
    last = versions[-1]
    if last.fact.version != was:
        raise FactChanged(
            f"Fact {last.fact.id} was changed meanwhile: it is at version {last.fact.version}, not {was}.",
            hint="look at it as it is now, and try again",
        )
    return last


def _line(text: object) -> str:
    if not isinstance(text, str) or NO_TEXT.search(text):
        raise InvalidInput("A fact is text, without a NUL or half of a surrogate pair.")
    line = " ".join(each for line in text.splitlines() if (each := line.strip()))
    if not line:
        raise InvalidInput(
            "There is nothing to remember in this.", hint="give a sentence"
        )
    if len(line) > TEXT_CHARS_MAX:
        raise TooLarge(
            f"A fact has at most {TEXT_CHARS_MAX:,} characters, not {len(line):,}.",
            hint="say it shorter",
        )
    return line


def _one_of(what: str, value: Any, kinds: Any) -> Any:  # noqa: ANN401  (one of a Literal's values)
    if value not in get_args(kinds):
        raise InvalidInput(
            f"`{what}` is one of {', '.join(get_args(kinds))}, not {str(value)[:40]!r}."
        )
    return value
