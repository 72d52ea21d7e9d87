"""Preferences and read marks: rows of the store beside the journal. They move no head, no order and no revision."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenax.errors import InvalidInput, TooLarge
from tenax.journal.plan import check_id
from tenax.text import is_storable

if TYPE_CHECKING:
    from tenax.journal.journal import Journal
    from tenax.journal.store import Tx

__all__ = ["PREFERENCES_MAX", "VALUE_BYTES_MAX", "Preferences", "ReadMarks"]

PREFERENCES_MAX: Final = 200
"""The largest number of preferences of a user."""
VALUE_BYTES_MAX: Final = 16 * 1024
"""The largest value of a preference, as JSON."""


class Preferences:
    """The preferences of a user: JSON values by name. Every method is thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._store = journal.store
        self._user = journal.owner

    def all(self) -> dict[str, Any]:
        """Return the values by name. A damaged value is left out; `tenax doctor` reports the value."""
        values: dict[str, Any] = {}
        for name, value in self._store.query("preferences", owner=self._user):
            with contextlib.suppress(msgspec.DecodeError):
                values[name] = msgspec.json.decode(value)
        return values

    def change(self, changes: Mapping[str, Any]) -> None:
        """Set preferences, all or none. The value `None` removes a preference."""
        encoded = {name: _encode(name, value) for name, value in changes.items()}
        if not encoded:
            return
        own = {"owner": self._user}

        def store_changes(tx: Tx) -> None:
            # The row of the user is locked first, so concurrent changes cannot exceed the limit together.
            tx.run("change_personal", own)
            names = {name for name, _ in tx.run("preferences", own)}
            for name, value in encoded.items():
                if value is None:
                    tx.run("drop_preference", {**own, "name": name})
                    names.discard(name)
                else:
                    tx.run("put_preference", {**own, "name": name, "value": value})
                    names.add(name)
            if len(names) > PREFERENCES_MAX:
                raise InvalidInput(
                    f"A user has at most {PREFERENCES_MAX} preferences.",
                    hint="remove some of them",
                )

        self._store.change(store_changes)
        self._store.announce_rows()


def _encode(name: str, value: object) -> str | None:
    """Return a value as JSON text; `None` for `None`. Raises `InvalidInput` or `TooLarge`."""
    check_id("preference", name)
    if value is None:
        return None
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"The preference {name} is not JSON: {error}.") from error
    if len(text.encode()) > VALUE_BYTES_MAX:
        raise TooLarge(
            f"The preference {name} has more than {VALUE_BYTES_MAX:,} bytes.",
            hint="make it smaller",
        )
    if not is_storable(text):
        raise InvalidInput(f"The preference {name} holds text that cannot be stored.")
    return text


class ReadMarks:
    """How far a user has read each conversation. Every method is thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._store = journal.store

    def mark(self, conversation: str, seq: int) -> bool:
        """Move the mark of a conversation to a seq, at most to the head. Return `False` if the mark is there already.

        A mark only grows. Raises `InvalidInput`, `Gone` or `NoSuchConversation`.
        """
        if seq < 1:
            raise InvalidInput(f"A read mark must be a seq from 1, not {seq}.")
        user = self._journal.owner
        own = {"num": self._journal.number(conversation), "owner": user}
        key = (user, conversation)
        for (marked,) in self._store.query("read_mark", **own):
            if marked >= seq:
                return False

        def move_mark(tx: Tx) -> bool | None:
            state = self._store.heads(tx, [key]).get(key)
            if state is None:
                return None
            now = self._journal.clock.now_us()
            tx.run("start_reading", {"owner": user, "at": now})
            row = {**own, "num": state.num, "seq": min(seq, state.head)}
            return bool(tx.run("put_read_mark", row))

        moved = self._store.change(move_mark)
        if moved is None:
            # This call raises `Gone` or `NoSuchConversation`.
            self._journal.head(conversation)
        if moved:
            self._store.announce_rows()
        return bool(moved)
