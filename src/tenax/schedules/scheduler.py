"""Send every scheduled message once, on any number of hosts.

A due schedule becomes a message in the conversation. The deduplication key is the schedule's id and due time, so the
store accepts the message once. Only then does the schedule get the next due time. After a crash in between, the
restarted process or a second host finds the message and continues. Missed times are sent once, late, and the message
says so. While the conversation is busy, or no model can answer, a schedule waits: its messages never pile up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial

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
from tenax.schedules.parse import (
    correct_due,
    describe_duration,
    next_time,
    parse_first,
    to_local,
)
from tenax.schedules.rows import Plan, Schedule, Schedules

__all__ = ["LATE_SECONDS", "LOOK_SECONDS", "Scheduler"]

log = logging.getLogger(__name__)

# A change by another process takes effect within this time.
LOOK_SECONDS = 2.0
LATE_SECONDS = 60
# A due time from a clock that ran ahead is corrected within this time.
_CHECK_SECONDS = 60.0
_TITLE_CHARS = 60


class Scheduler:
    """The scheduler of a user: adds, lists and removes schedules, and sends the messages."""

    def __init__(
        self,
        journal: AsyncJournal,
        explain_silence: Callable[[str], Awaitable[str]],
        wake: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._rows = Schedules(journal.journal)
        # Returns why no model can answer in a conversation, or an empty text.
        self._explain_silence = explain_silence
        self._wake = wake
        self._changed = asyncio.Event()

    # -- for people and models -------------------------------------------------------------------------------

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
        """Add a schedule to a given or a new conversation. Calls with the same `key` add the schedule once.

        `message` is the seq of the message requesting the schedule: `in 20 minutes` counts from that message.
        Without a zone, the zone of the machine is used.
        """
        name = None
        if key is not None:
            name = Schedules.id_of(key)
            known = await self._journal.threads.run(partial(self._rows.get, name))
            if known is not None:
                return known
        zone = zone or machine_zone()
        now = since = self._journal.clock.now_us()
        if message is not None and conversation is not None:
            asked = await self._journal.fact(conversation, message)
            since = now if asked is None else asked.at
        rule, due = parse_first(when, zone_of(zone), now, since_us=since)
        if conversation is None:
            conversation = await self._open(
                await self._journal.threads.run(lambda: self._rows.check(words))
            )
        made = await self._journal.threads.run(
            lambda: self._rows.add(
                conversation, words, rule, zone, due, message=message, id=name
            )
        )
        self._changed.set()
        return made

    async def _open(self, words: str) -> str:
        conversation = self._journal.ids.conversation()
        segment = self._journal.ids.segment()
        user = self._journal.user or ""
        opened = ConversationOpened(user, segment, source="schedule")
        title = ConversationTitled(" ".join(words.split())[:_TITLE_CHARS])
        await self._journal.append(conversation, [opened, title])
        return conversation

    async def all(self, conversation: str | None = None) -> list[Plan]:
        """Return the active schedules of one or every conversation, ordered by due time."""
        found = await self._journal.threads.run(self._rows.all)
        return [
            Plan(schedule, await self._explain_wait(schedule))
            for schedule in found
            if conversation is None or schedule.conversation == conversation
        ]

    async def remove(self, id: str, *, conversation: str | None = None) -> None:  # noqa: A002  (the field's name)
        """End a schedule. If `conversation` is given, the schedule must belong to it. Raises `NoSuchConversation`."""
        await self._journal.threads.run(lambda: self._rows.remove(id, conversation))

    async def _explain_wait(self, schedule: Schedule) -> str:
        """Return why the schedule waits, or an empty text."""
        try:
            why = await self._find_obstacle(schedule)
        except (Gone, NoSuchConversation) as error:
            return str(error)
        if why:
            return why
        late_us = self._journal.clock.now_us() - (schedule.due or 0)
        if late_us > LATE_SECONDS * 1_000_000:
            return "It is due, and runs once `tenax serve` does."
        return ""

    async def _find_obstacle(self, schedule: Schedule) -> str:
        """Return why the message cannot be sent now, or an empty text."""
        try:
            zone_of(schedule.zone)
        except InvalidInput as error:
            return str(error)
        why = await self._explain_silence(schedule.conversation)
        if why:
            return why
        head = await self._journal.head(schedule.conversation)
        is_busy = head.run is not None or head.unanswered
        is_due = (
            schedule.due is not None and schedule.due <= self._journal.clock.now_us()
        )
        if is_busy and is_due:
            return "Its conversation is busy, or waits for an answer of yours."
        return ""

    # -- for a server ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send due messages until the task is cancelled."""
        checked = -_CHECK_SECONDS
        while True:
            self._changed.clear()
            seconds = LOOK_SECONDS
            try:
                due = await self._journal.threads.run(self._rows.next_due)
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
            ) as error:
                # OSError: the process has no free file descriptor.
                log.warning(
                    "%s Schedules wait.", error, extra={"action": "schedules_wait"}
                )
                seconds = LOOK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def fire(self) -> int:
        """Send the due messages. Return the number of schedules with a changed due time."""
        now = self._journal.clock.now_us()
        moved = 0
        for schedule in await self._journal.threads.run(self._rows.all):
            try:
                if schedule.due is not None and schedule.due <= now:
                    moved += await self._fire(schedule, now)
                else:
                    moved += await self._correct(schedule, now)
            except StoreUnavailable:
                raise
            except TenaxError as error:
                # The other schedules continue.
                log.warning(
                    "Schedule %s waits: %s",
                    schedule.id,
                    error,
                    extra={"action": "schedule_waits"},
                )
        return moved

    async def _fire(self, schedule: Schedule, now: int) -> bool:
        """Send the message unless already sent, and set the next due time.

        Return `False` if the schedule waits, or if another process set the due time.
        """
        assert schedule.due is not None
        sent_at = await self._journal.threads.run(
            partial(self._rows.asked_at, schedule)
        )
        if sent_at is None:
            # The conversation may be deleted meanwhile, and the schedule with it.
            with contextlib.suppress(Gone, NoSuchConversation):
                if await self._find_obstacle(schedule):
                    return False
                sent_at = await self._send(schedule, now)
        if sent_at is None:
            return False
        zone = zone_of(schedule.zone)
        due, _ = next_time(schedule.when, zone, schedule.due, sent_at)
        if due is not None:
            # A process whose clock ran ahead may have sent the message.
            due = correct_due(schedule.when, zone, due, now) or due
        return await self._journal.threads.run(partial(self._rows.move, schedule, due))

    async def _correct(self, schedule: Schedule, now: int) -> bool:
        """Correct a due time set by a clock that ran ahead. Return whether the due time changed."""
        assert schedule.due is not None
        due = correct_due(schedule.when, zone_of(schedule.zone), schedule.due, now)
        if due is None:
            return False
        log.info(
            "The due time of schedule %s was corrected to the present clock.",
            schedule.id,
            extra={"action": "schedule_back"},
        )
        return await self._journal.threads.run(partial(self._rows.move, schedule, due))

    async def _send(self, schedule: Schedule, now: int) -> int | None:
        text = Text(_render_message(schedule, now))
        message = MessageUser([text], ask=True, system=True)
        try:
            (stored,) = await self._journal.append(
                schedule.conversation, [message], dedup=schedule.once
            )
        except DedupReused:
            # Another host sent the message at another moment, with another text.
            return await self._journal.threads.run(
                partial(self._rows.asked_at, schedule)
            )
        log.info(
            "The message of schedule %s was sent.",
            schedule.id,
            extra={"action": "schedule_asked"},
        )
        self._wake(schedule.conversation)
        return stored.at


def _render_message(schedule: Schedule, now: int) -> str:
    """Return the message: the schedule, the due time, the delay, and the words."""
    assert schedule.due is not None
    zone = zone_of(schedule.zone)
    due = f"{to_local(schedule.due, zone):%Y-%m-%d at %H:%M}"
    lines = [
        f"[This is schedule {schedule.id}, {schedule.when} ({schedule.zone}). It was due on {due}.]"
    ]
    late_seconds = (now - schedule.due) // 1_000_000
    if late_seconds > LATE_SECONDS:
        _, missed = next_time(schedule.when, zone, schedule.due, now)
        more = ""
        if missed:
            verb = "was" if missed == 1 else "were"
            more = f", and stands for {missed} more that {verb} missed"
        lines.append(
            f"[It runs {describe_duration(late_seconds)} late{more}. It runs once.]"
        )
    return "\n".join([*lines, "", schedule.words])
