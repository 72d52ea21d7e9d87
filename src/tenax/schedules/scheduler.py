"""Schedules at work: who asks what is due, once, on any number of hosts.

What is due becomes a message in its conversation, under the schedule's id and the time: the store takes that once, whoever
sends it. Only then does the schedule go on to its next time. So a process that dies in between, and a second host, find the
message and go on from there. Times that nobody ran come once, late, and say so. While its conversation is busy or nobody
can answer, a schedule waits: what it asks never piles up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from tenax.clock import machine_zone, zone_of
from tenax.errors import (
    DedupReused,
    Gone,
    InvalidInput,
    NoSuchConversation,
    StoreUnavailable,
    TenaxError,
)
from tenax.events import ConversationOpened, ConversationTitled, MessageUser
from tenax.journal.aio import AsyncJournal
from tenax.parts import Text
from tenax.schedules.parse import brought_back, first, following, local, span
from tenax.schedules.rows import Plan, Schedule, Schedules

__all__ = ["LATE_SECONDS", "LOOK_SECONDS", "Scheduler"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How soon a change by another process is seen."""
LATE_SECONDS = 60
_CHECK_SECONDS = 60.0
"""How soon a schedule is found whose next time was set by a clock that ran ahead."""
_TITLE_CHARS = 60


class Scheduler:
    """One user's schedules: made, listed, removed, and asked when they are due."""

    def __init__(
        self,
        journal: AsyncJournal,
        why_silent: Callable[[str], Awaitable[str]],
        wake: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._rows = Schedules(journal.journal)
        self._why_silent = why_silent
        """Why nobody can answer in a conversation; "" where somebody can."""
        self._wake = wake
        self._changed = asyncio.Event()

    # -- what people and models do ---------------------------------------------------------------------------

    async def add(
        self,
        words: str,
        when: str,
        *,
        conversation: str | None = None,
        zone: str = "",
        message: int | None = None,
        key: str | None = None,
    ) -> Schedule:
        """Ask this when it is due, in a conversation or a new one. The same `key` makes it once.

        `message` asked for it: times such as `in 20 minutes` are counted from there. Without a zone: the machine's.
        """
        name = None if key is None else Schedules.id_of(key)
        known = (
            await self._journal.apart(lambda: self._rows.get(name))
            if name is not None
            else None
        )
        if known is not None:
            return known
        zone, now = zone or machine_zone(), self._journal.clock.now_us()
        since = now
        if message is not None and conversation is not None:
            asked = await self._journal.fact(conversation, message)
            since = now if asked is None else asked.at
        said, due = first(when, zone_of(zone), now, since_us=since)
        if conversation is None:
            conversation = await self._open(
                await self._journal.apart(lambda: self._rows.check(words))
            )
        made = await self._journal.apart(
            lambda: self._rows.add(
                conversation, words, said, zone, due, message=message, id=name
            )
        )
        self._changed.set()
        return made

    async def _open(self, words: str) -> str:
        conversation, stretch = (
            self._journal.ids.conversation(),
            self._journal.ids.stretch(),
        )
        opened = ConversationOpened(
            self._journal.user or "", stretch, source="schedule"
        )
        await self._journal.append(
            conversation,
            [opened, ConversationTitled(" ".join(words.split())[:_TITLE_CHARS])],
        )
        return conversation

    async def all(self, conversation: str | None = None) -> list[Plan]:
        """Those that are not over, of one conversation or of all, by the time that they are due."""
        found = await self._journal.apart(self._rows.all)
        return [
            Plan(each, await self._waits(each))
            for each in found
            if conversation is None or each.conversation == conversation
        ]

    async def remove(self, id: str, *, conversation: str | None = None) -> None:  # noqa: A002  (the field's name)
        """Take it away, if it is one of this conversation or of any. Raises NoSuchConversation."""
        await self._journal.apart(lambda: self._rows.remove(id, conversation))

    async def _waits(self, each: Schedule) -> str:
        """Why it is not run now, or would not be."""
        try:
            if why := await self._why_not(each):
                return why
        except (Gone, NoSuchConversation) as error:
            return str(error)
        late = self._journal.clock.now_us() - (each.due or 0) > LATE_SECONDS * 1_000_000
        return "It is due, and runs once `tenax serve` does." if late else ""

    async def _why_not(self, each: Schedule) -> str:
        try:
            zone_of(each.zone)
        except InvalidInput as error:
            return str(error)
        if why := await self._why_silent(each.conversation):
            return why
        head = await self._journal.head(each.conversation)
        due = each.due is not None and each.due <= self._journal.clock.now_us()
        busy = head.run is not None or head.unanswered
        return (
            "Its conversation is busy, or waits for an answer of yours."
            if busy and due
            else ""
        )

    # -- what a server does ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask what is due, as long as this process serves."""
        checked = -_CHECK_SECONDS
        while True:
            self._changed.clear()
            seconds = LOOK_SECONDS
            try:
                due = await self._journal.apart(self._rows.next_due)
                if due is not None:
                    seconds = min(seconds, (due - self._journal.clock.now_us()) / 1e6)
                monotonic = self._journal.clock.monotonic()
                if seconds <= 0 or monotonic - checked >= _CHECK_SECONDS:
                    checked = monotonic
                    if await self.fire():
                        seconds = 0.0
                    elif seconds <= 0:
                        seconds = LOOK_SECONDS
            except (
                TenaxError,
                OSError,
            ) as error:  # OSError: as many files are open here as may be
                log.warning(
                    "%s Schedules wait.", error, extra={"action": "schedules_wait"}
                )
                seconds = LOOK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def fire(self) -> int:
        """Ask what is due now; how many went on to their next time, or back to it where a clock had run ahead."""
        now, moved = self._journal.clock.now_us(), 0
        for each in await self._journal.apart(self._rows.all):
            try:
                if each.due is not None and each.due <= now:
                    moved += await self._fire(each, now)
                else:
                    moved += await self._bring_back(each, now)
            except StoreUnavailable:
                raise
            except TenaxError as error:  # it holds up no other
                log.warning(
                    "Schedule %s waits: %s",
                    each.id,
                    error,
                    extra={"action": "schedule_waits"},
                )
        return moved

    async def _fire(self, each: Schedule, now: int) -> bool:
        """Ask it, unless that was done, and go on from when it was. False: it waits."""
        assert each.due is not None
        asked_at = await self._journal.apart(lambda: self._rows.asked_at(each))
        if asked_at is None:
            # it went with its conversation just now
            with contextlib.suppress(Gone, NoSuchConversation):
                if await self._why_not(each):
                    return False
                asked_at = await self._ask(each, now)
        if asked_at is None:
            return False
        zone = zone_of(each.zone)
        to, _ = following(each.when, zone, each.due, asked_at)
        if to is not None:  # a clock that ran ahead may have asked it
            to = brought_back(each.when, zone, to, now) or to
        return await self._journal.apart(lambda: self._rows.move(each, to))

    async def _bring_back(self, each: Schedule, now: int) -> bool:
        """Go on by the present clock where the next time was set by one that ran ahead."""
        assert each.due is not None
        to = brought_back(each.when, zone_of(each.zone), each.due, now)
        if to is None:
            return False
        log.info(
            "Schedule %s goes on by the present clock.",
            each.id,
            extra={"action": "schedule_back"},
        )
        return await self._journal.apart(lambda: self._rows.move(each, to))

    async def _ask(self, each: Schedule, now: int) -> int | None:
        message = MessageUser([Text(told(each, now))], ask=True, system=True)
        try:
            (stored,) = await self._journal.append(
                each.conversation, [message], dedup=each.once
            )
        except DedupReused:  # another host has asked, at another moment
            return await self._journal.apart(lambda: self._rows.asked_at(each))
        log.info("Schedule %s was asked.", each.id, extra={"action": "schedule_asked"})
        self._wake(each.conversation)
        return stored.at


def told(each: Schedule, now: int) -> str:
    """What is said in the conversation: that it is a schedule, when it was due, how late it is, and what was asked."""
    assert each.due is not None
    zone = zone_of(each.zone)
    lines = [
        f"[This is schedule {each.id}, {each.when} ({each.zone}). It was due on {local(each.due, zone):%Y-%m-%d at %H:%M}.]"
    ]
    late = (now - each.due) // 1_000_000
    if late > LATE_SECONDS:
        _, missed = following(each.when, zone, each.due, now)
        more = (
            f", and stands for {missed} more that {'was' if missed == 1 else 'were'} missed"
            if missed
            else ""
        )
        lines.append(f"[It runs {span(late)} late{more}. It runs once.]")
    return "\n".join([*lines, "", each.words])
