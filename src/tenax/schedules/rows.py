"""Schedules are rows of the store beside the journal: the words to send, the conversation, and the next due time.

An ended schedule keeps the id and loses the words, so a repeated call of the tool finds the schedule of the first call.
A due schedule becomes a message in the journal. The store accepts the message once. Only then does `move` set the next
due time.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from tenax.errors import InvalidInput, NoSuchConversation, TooLarge
from tenax.journal.base import Dedup
from tenax.journal.plan import is_id
from tenax.journal.row_key import bounds
from tenax.text import is_storable

if TYPE_CHECKING:
    from tenax.journal.journal import Journal
    from tenax.journal.store import Tx

__all__ = ["SCHEDULES_MAX", "WORDS_CHARS_MAX", "Plan", "Schedule", "Schedules"]

# The maximum number of active schedules of a user.
SCHEDULES_MAX = 100
WORDS_CHARS_MAX = 4000


class Schedule(msgspec.Struct, frozen=True):
    """A message sent at set times."""

    id: str
    conversation: str
    words: str
    when: str
    """The rule in words, for example `every weekday at 08:00`."""
    zone: str
    due: int | None
    """The next due time in microseconds, or `None` after the end."""
    made_at: int

    @property
    def once(self) -> Dedup:
        """The deduplication key of the due time: the message is stored once."""
        return Dedup(f"schedule:{self.id}", str(self.due))


class Plan(msgspec.Struct, frozen=True):
    """A schedule, and the reason why it waits, or an empty text."""

    schedule: Schedule
    waits: str


class Schedules:
    """The schedules of a user. Every method is thread-safe."""

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
        """Add a schedule to a conversation of the user. If the `id` exists, return the existing schedule unchanged.

        `message` is the seq of the message requesting the schedule. Erasing the message also removes the schedule.
        """
        num = self._journal.number(conversation)
        key = (self._user, conversation)
        name = id or f"t_{self._journal.ids.append().hex()}"
        row_key = None if message is None else bounds(num)[0] + message
        row = {
            "num": num,
            "words": self.check(words),
            "times": when,
            "zone": zone,
            "due": due,
            "place": row_key,
        }

        def insert(tx: Tx) -> list[tuple[Any, ...]]:
            where = {"owner": self._user, "id": name}
            # The conversation may have been deleted after `number` returned.
            if key not in self._store.heads(tx, [key]):
                return []
            known = tx.run("schedule", where)
            if not known:
                now = self._journal.clock.now_us()
                tx.run("put_schedule", {**where, **row, "at": now})
                known = tx.run("schedule", where)
            return known

        made = self._store.change(insert)
        if not made:
            # This call raises `Gone` or `NoSuchConversation`.
            self._journal.head(conversation)
        return Schedule(*made[0])

    def check(self, words: str) -> str:
        """Return the words to store. Raises `TooLarge` for long words.

        Raises `InvalidInput` for empty words, words not storable as text, or too many schedules.
        """
        if not words.strip() or not is_storable(words):
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
        """Return the schedule with the id, even an ended schedule, or `None`."""
        rows = (
            self._store.query("schedule", owner=self._user, id=id) if is_id(id) else []
        )
        return Schedule(*rows[0]) if rows else None

    def all(self) -> list[Schedule]:
        """Return the active schedules, ordered by due time."""
        return [
            Schedule(*row) for row in self._store.query("schedules", owner=self._user)
        ]

    def next_due(self) -> int | None:
        """Return the earliest due time in microseconds, or `None` without active schedules."""
        return self._store.query("first_due", owner=self._user)[0][0]  # type: ignore[no-any-return]

    def asked_at(self, schedule: Schedule) -> int | None:
        """Return when the message for the due time was stored, or `None` if it is not stored."""
        once = schedule.once
        rows = self._store.query(
            "schedule_fired", owner=self._user, source=once.source, key=once.id
        )
        return int(rows[0][0]) if rows else None

    def move(self, schedule: Schedule, to: int | None) -> bool:
        """Set the next due time, or end the schedule if `to` is `None`. Return `False` if another process was first."""
        if to is None:
            return self._end_schedule(schedule.id)
        where = {"owner": self._user, "id": schedule.id, "was": schedule.due, "to": to}
        return bool(self._store.change(lambda tx: tx.run("move_schedule", where)))

    def remove(self, id: str, conversation: str | None = None) -> None:  # noqa: A002
        """End a schedule. If `conversation` is given, the schedule must belong to it. Raises `NoSuchConversation`."""
        found = self.get(id)
        if (
            found is None
            or found.due is None
            or conversation not in {None, found.conversation}
        ):
            raise NoSuchConversation(
                f"There is no schedule {id:.60}.", hint="look at the list"
            )
        self._end_schedule(id)

    def _end_schedule(self, id: str) -> bool:  # noqa: A002
        return bool(
            self._store.change(
                lambda tx: tx.run("end_schedule", {"owner": self._user, "id": id})
            )
        )

    @staticmethod
    def owners(journal: Journal) -> set[str]:
        """Return every user of the store with a schedule."""
        return {row[0] for row in journal.store.query("schedule_owners")}

    @staticmethod
    def id_of(key: str) -> str:
        """Return the id of the schedule created by a call with the key."""
        return f"t_{hashlib.sha256(key.encode()).hexdigest()[:32]}"
