"""The list of conversations, as every face shows it; and, for one that stays, as it moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import Final

import msgspec

from tenax.clock import rfc3339
from tenax.errors import Gone, NoSuchConversation, StoreDamaged, StoreError
from tenax.events import TEMPORARY, MessageAssistant, MessageUser
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded, Summary
from tenax.journal.hub import ANY, call_in
from tenax.parts import text_of

__all__ = ["Listed", "LiveList", "Moved", "first_words", "listed"]

FIRST_EVENTS: Final = 64
"""Where the first words are looked for."""
WORDS_CHARS: Final = 200
LISTED: Final = 50
"""How much of the list is followed; the rest is read page by page."""
_KEPT: Final = 200
_WORDS_KEPT: Final = 2000
_REST_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 2.0


class Listed(msgspec.Struct, frozen=True):
    """A conversation in the list."""

    id: str
    title: str | None
    words: str | None
    """Its first words, where it has no title."""
    messages: int
    source: str
    opened_at: str
    updated_at: str
    pinned: bool
    archived: bool
    running: bool
    temporary: bool
    """Nothing is remembered of it."""
    parent: str | None
    """The conversation whose sub-agent works here."""


class Moved(msgspec.Struct, frozen=True):
    """What changed in the list."""

    conversations: list[Listed]
    gone: list[str]
    reset: bool


def listed(each: Summary, words: str | None) -> Listed:
    return Listed(each.conversation, each.title, words, each.messages, each.source, rfc3339(each.opened_at),
                  rfc3339(each.updated_at), each.pinned, each.archived, each.running, each.source == TEMPORARY,
                  each.parent)  # fmt: skip


def first_words(journal: Journal, conversation: str) -> str | None:
    """The first words that stand, or the last ones, where the beginning was cleared."""
    try:
        standing = journal.messages(conversation, upto=FIRST_EVENTS)
        if not standing and (rows := journal.rows(conversation, limit=1)):
            standing = [
                fact
                for row in rows
                if (fact := journal.fact(conversation, row.last)) is not None
            ]
    except (
        Gone,
        NoSuchConversation,
        StoreDamaged,
    ):  # `doctor` names the damage; the list goes on
        return None
    for words in filter(None, map(_words, standing)):
        return "".join(char if char.isprintable() else "\ufffd" for char in words)[
            :WORDS_CHARS
        ]
    return None


def _words(message: Recorded) -> str:
    """What it says, in one line. One that cannot be read says nothing; `doctor` says why."""
    try:
        event = message.event
    except StoreDamaged:
        return ""
    said = (
        text_of(event.parts)
        if isinstance(event, MessageUser | MessageAssistant)
        else ""
    )
    return " ".join(said[: 4 * WORDS_CHARS].split())


def _encoded(moved: Moved) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(moved))


class LiveList:
    """The top of one user's list, read again whenever something moves. Whoever watches holds a number."""

    def __init__(self, journal: AsyncJournal) -> None:
        self.number = 0
        self._journal = journal
        self._page: dict[str, Listed] = {}
        self._moves: deque[tuple[int, msgspec.Raw]] = deque(maxlen=_KEPT)
        self._words: dict[str, tuple[int, str | None]] = {}
        """First words, as of a revision: what was undone or erased is not shown from here."""
        self._hints: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, hint: asyncio.Event) -> None:
        """Set this event whenever the list moves."""
        self._hints.add(hint)
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name="list")
            await self._look()

    def leave(self, hint: asyncio.Event) -> None:
        """No longer. A list that nobody watches is not read."""
        self._hints.discard(hint)
        if not self._hints and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def since(self, number: int | None) -> list[msgspec.Raw]:
        """What `Moved` after a number, encoded once for all; all of it for somebody who has none, or too old a one."""
        if number == self.number:
            return []
        moves = [each for at, each in self._moves if number is not None and at > number]
        if number is None or len(moves) != self.number - number:
            return [_encoded(Moved(list(self._page.values()), [], reset=True))]
        return moves

    async def page(self, found: list[Summary]) -> list[Listed]:
        """These, with their first words."""
        return await self._journal.apart(lambda: [self._listed(each) for each in found])

    def _listed(self, each: Summary) -> Listed:
        if each.title:
            return listed(each, None)
        try:
            revision = self._journal.journal.head(each.conversation).revision
        except (Gone, NoSuchConversation):
            return listed(each, None)
        known = self._words.get(each.conversation)
        if known is None or known[0] != revision:
            if len(self._words) >= _WORDS_KEPT:
                self._words.clear()
            known = self._words[each.conversation] = (
                revision,
                first_words(self._journal.journal, each.conversation),
            )
        return listed(each, known[1])

    async def _follow(self) -> None:
        loop, hint = asyncio.get_running_loop(), asyncio.Event()
        with self._journal.store.hub.listening(ANY, partial(call_in, loop, hint.set)):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await hint.wait()
                hint.clear()
                with contextlib.suppress(StoreError):  # it is read again soon
                    await self._look()
                await asyncio.sleep(_REST_SECONDS)

    async def _look(self) -> None:
        found = await self._journal.conversations(limit=LISTED)
        new = {each.id: each for each in await self.page(found)}
        changed = [each for each in new.values() if self._page.get(each.id) != each]
        last = min(
            (each.updated_at for each in new.values() if not each.pinned), default=""
        )
        if len(new) < LISTED:
            last = ""
        gone = [
            each.id
            for each in self._page.values()
            if each.id not in new and each.updated_at >= last
        ]
        if changed or gone or not self.number:
            self.number += 1
            self._page = new
            self._moves.append(
                (self.number, _encoded(Moved(changed, gone, reset=False)))
            )
            for hint in self._hints:
                hint.set()
