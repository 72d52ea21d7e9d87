"""The top of the list of conversations, followed live for the page and the terminal, with the rows of the user."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import Final

import msgspec

from tenax.concurrency import call_in_loop
from tenax.errors import StoreError
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Summary
from tenax.journal.wakeups import ANY
from tenax.runtime.list_entry import Listed, find_first_words, make_entry
from tenax.runtime.personal_rows import PersonalRows

__all__ = ["ConversationList", "Moved"]

FOLLOWED_MAX: Final = 50
"""The number of followed conversations. Clients read the rest of the list page by page."""
_CHANGES_KEPT: Final = 200
_WORDS_KEPT: Final = 2000
_REST_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 2.0


class Moved(msgspec.Struct, frozen=True):
    """A change of the list."""

    conversations: list[Listed]
    gone: list[str]
    reset: bool


def _encode(change: Moved) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(change))


class ConversationList:
    """The top of the list of a user, followed while there are watchers.

    Every change has a number. A watcher keeps the number of the last seen change.
    """

    def __init__(self, journal: AsyncJournal, personal: PersonalRows) -> None:
        self.number = 0
        self._personal = personal
        """Followed with the list, and reported by the same hints."""
        self._journal = journal
        self._page: dict[str, Listed] = {}
        self._moves: deque[tuple[int, msgspec.Raw]] = deque(maxlen=_CHANGES_KEPT)
        self._words: dict[str, tuple[int, str | None]] = {}
        """First words and the revision of the conversation. Older words may have been undone or erased."""
        self._hints: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, hint: asyncio.Event) -> None:
        """Start watching. Every change sets `hint`."""
        self._hints.add(hint)
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name="list")
            await self._read_changes()

    def leave(self, hint: asyncio.Event) -> None:
        """Stop watching. Without watchers the list reads nothing."""
        self._hints.discard(hint)
        if not self._hints and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def since(self, number: int | None) -> list[msgspec.Raw]:
        """Return the changes after a number as JSON; the whole list if the number is `None` or too old."""
        if number == self.number:
            return []
        if number is not None:
            moves = [move for at, move in self._moves if at > number]
            if len(moves) == self.number - number:
                return moves
        return [_encode(Moved(list(self._page.values()), [], reset=True))]

    async def page(self, summaries: list[Summary]) -> list[Listed]:
        """Return the entries of the conversations, with the first words."""
        return await self._journal.threads.run(
            lambda: [self._make_entry(summary) for summary in summaries]
        )

    def _make_entry(self, summary: Summary) -> Listed:
        """Return the entry of a conversation. A new revision makes the list read the first words again."""
        if summary.title:
            return make_entry(summary, None)
        name = summary.conversation
        cached = self._words.get(name)
        if cached is None or cached[0] != summary.revision:
            if len(self._words) >= _WORDS_KEPT:
                self._words.clear()
            words = find_first_words(self._journal.journal, name)
            cached = self._words[name] = (summary.revision, words)
        return make_entry(summary, cached[1])

    def _read_top(self) -> tuple[list[Listed], bool]:
        """Read the top of the list, and whether preferences or projects changed, with a single switch to a thread."""
        summaries = self._journal.journal.conversations(limit=FOLLOWED_MAX)
        entries = [self._make_entry(summary) for summary in summaries]
        return entries, self._personal.refresh()

    async def _follow(self) -> None:
        loop, hint = asyncio.get_running_loop(), asyncio.Event()
        with self._journal.store.wakeups.listening(
            ANY, partial(call_in_loop, loop, hint.set)
        ):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await hint.wait()
                hint.clear()
                # After an error the loop reads the list again two seconds later.
                with contextlib.suppress(StoreError):
                    await self._read_changes()
                await asyncio.sleep(_REST_SECONDS)

    async def _read_changes(self) -> None:
        """Read the top of the list, and report the changes to the watchers."""
        entries, personal_changed = await self._journal.threads.run(self._read_top)
        new = {entry.id: entry for entry in entries}
        changed_entries = [
            entry for entry in new.values() if self._page.get(entry.id) != entry
        ]
        # A conversation older than the last entry may only have moved below the followed part of the list.
        last = ""
        if len(new) >= FOLLOWED_MAX:
            times = [entry.updated_at for entry in new.values() if not entry.pinned]
            last = min(times, default="")
        removed_ids = [
            entry.id
            for entry in self._page.values()
            if entry.id not in new and entry.updated_at >= last
        ]
        list_changed = bool(changed_entries or removed_ids or not self.number)
        if list_changed:
            self.number += 1
            self._page = new
            self._moves.append(
                (self.number, _encode(Moved(changed_entries, removed_ids, reset=False)))
            )
        if list_changed or personal_changed:
            for hint in self._hints:
                hint.set()
