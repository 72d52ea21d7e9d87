"""Schedules: rows of the store beside the journal. Each says what is asked in which conversation, and when it is due next.

A schedule that is over keeps its id and loses its words, so that a call which made it is known when it comes again. That
it was due is a message of the journal, stored once whoever stores it; only then does `move` go on to the next time.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from tenax.errors import InvalidInput, NoSuchConversation, TooLarge
from tenax.journal.base import Dedup
from tenax.journal.place import bounds
from tenax.journal.plan import is_id
from tenax.parts import NO_TEXT

if TYPE_CHECKING:
    from tenax.journal.journal import Journal
    from tenax.journal.store import Tx

__all__ = ["SCHEDULES_MAX", "WORDS_CHARS_MAX", "Plan", "Schedule", "Schedules"]

SCHEDULES_MAX = 100
"""Schedules of one user that are not over."""
WORDS_CHARS_MAX = 4000


class Schedule(msgspec.Struct, frozen=True):
    """What is asked by itself, and when."""

    id: str
    conversation: str
    words: str
    when: str
    """In words: `every weekday at 08:00`."""
    zone: str
    due: int | None
    """The next time, in microseconds; None once it is over."""
    made_at: int

    @property
    def once(self) -> Dedup:
        """Names the time that is due, so that it is asked once."""
        return Dedup(f"schedule:{self.id}", str(self.due))


class Plan(msgspec.Struct, frozen=True):
    """A schedule, and why it waits, if it does."""

    schedule: Schedule
    waits: str


class Schedules:
    """One user's schedules. Safe to use from any thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._store = journal.store
        self._user = journal.user or ""

    def add(
        self,
        conversation: str,
        words: str,
        when: str,
        zone: str,
        due: int,
        *,
        message: int | None = None,
        id: str | None = None,  # noqa: A002  (the field's name)
    ) -> Schedule:
        """Make one in a conversation of this user's. With an `id` that is there: that one, as it is.

        `message` asked for it: if that is erased, the schedule goes too.
        """
        num, key = self._journal.number(conversation), (self._user, conversation)
        name = id or f"t_{self._journal.ids.append().hex()}"
        place = None if message is None else bounds(num)[0] + message
        row = {
            "num": num,
            "words": self.check(words),
            "times": when,
            "zone": zone,
            "due": due,
            "place": place,
        }

        def work(tx: Tx) -> list[tuple[Any, ...]]:
            where = {"owner": self._user, "id": name}
            # it was deleted since its number was learned
            if key not in self._store.heads(tx, [key]):
                return []
            if not (known := tx.run("schedule", where)):
                tx.run(
                    "put_schedule", {**where, **row, "at": self._journal.clock.now_us()}
                )
                known = tx.run("schedule", where)
            return known

        if not (made := self._store.change(work)):
            self._journal.head(conversation)  # says so
        return Schedule(*made[0])

    def check(self, words: str) -> str:
        """The words as they are kept. Raises InvalidInput where they are none, or there are enough schedules."""
        if not words.strip() or NO_TEXT.search(words):
            raise InvalidInput(
                "There is nothing to ask in this, or it is no text.",
                hint="say what to do",
            )
        if len(words) > WORDS_CHARS_MAX:
            raise TooLarge(
                f"A schedule has at most {WORDS_CHARS_MAX:,} characters.",
                hint="say it shorter",
            )
        if len(self.all()) >= SCHEDULES_MAX:
            raise InvalidInput(
                f"There are {SCHEDULES_MAX} schedules already.",
                hint="remove one of them",
            )
        return words.strip()

    def get(self, id: str) -> Schedule | None:  # noqa: A002
        """The one with this id, also if it is over."""
        rows = (
            self._store.query("schedule", owner=self._user, id=id) if is_id(id) else []
        )
        return Schedule(*rows[0]) if rows else None

    def all(self) -> list[Schedule]:
        """Those that are not over, by the time that they are due."""
        return [
            Schedule(*row) for row in self._store.query("schedules", owner=self._user)
        ]

    def next_due(self) -> int | None:
        """When the first of them is due."""
        return self._store.query("first_due", owner=self._user)[0][0]  # type: ignore[no-any-return]

    def asked_at(self, schedule: Schedule) -> int | None:
        """When the time that is due was asked, if it was."""
        once = schedule.once
        rows = self._store.query(
            "schedule_fired", owner=self._user, source=once.source, key=once.id
        )
        return int(rows[0][0]) if rows else None

    def move(self, schedule: Schedule, to: int | None) -> bool:
        """Go on from the time that was due to the next, or to the end. False if another has done so already."""
        if to is None:
            return self._end(schedule.id)
        where = {"owner": self._user, "id": schedule.id, "was": schedule.due, "to": to}
        return bool(self._store.change(lambda tx: tx.run("move_schedule", where)))

    def remove(self, id: str, conversation: str | None = None) -> None:  # noqa: A002
        """Take it away, if it is one of this conversation or of any. Raises NoSuchConversation."""
        found = self.get(id)
        if (
            found is None
            or found.due is None
            or conversation not in {None, found.conversation}
        ):
            raise NoSuchConversation(
                f"There is no schedule {id:.60}.", hint="look at the list"
            )
        self._end(id)

    def _end(self, id: str) -> bool:  # noqa: A002
        return bool(
            self._store.change(
                lambda tx: tx.run("end_schedule", {"owner": self._user, "id": id})
            )
        )

    @staticmethod
    def owners(journal: Journal) -> set[str]:
        """Every user of the store who has a schedule."""
        return {row[0] for row in journal.store.query("schedule_owners")}

    @staticmethod
    def id_of(key: str) -> str:
        """The id of the schedule that a call with this key makes."""
        return f"t_{hashlib.sha256(key.encode()).hexdigest()[:32]}"
