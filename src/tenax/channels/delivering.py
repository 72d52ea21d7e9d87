"""Delivers what is stored in conversations to the chats of an account.

The deliverer is a durable reader: a route holds the seq up to which its events are delivered. Delivering an event again
has no effect, because the ledger knows the state of every message. So a crash between a delivery and the move of the
route loses and repeats nothing.

Every chat has a task of its own while there is something to deliver. A chat that has to wait delays no other chat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from tenax.assembly import Runtime
from tenax.channels.base import About, Channel, Chat, Traits
from tenax.channels.ledger import Ledger, Target
from tenax.channels.outgoing_files import find_files
from tenax.channels.rows import AsyncChannelRows, Outgoing, RouteNews
from tenax.channels.units import (
    answer_unit,
    approval_buttons,
    approval_text,
    end_unit,
    file_unit,
    kind_of,
    make_key,
    mirror_text,
    mirror_unit,
    question_unit,
)
from tenax.clock import Timing
from tenax.concurrency import Backoff, call_in_loop
from tenax.errors import (
    ChannelAway,
    ChannelError,
    FloodWait,
    Gone,
    LeaseLost,
    NoSuchConversation,
    NotAuthorized,
    SendUncertain,
    StoreDamaged,
    StoreError,
    TenaxError,
)
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.journal.wakeups import ANY
from tenax.parts import text_of
from tenax.runtime.feed import ConversationFeed
from tenax.runtime.workers import RESUME_SECONDS
from tenax.text import to_one_line
from tenax.views.transcript import Row

__all__ = ["Deliverer"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""A change by another process takes effect within this time, if its wake-up is lost."""
_REST_SECONDS: Final = 0.05
_FACTS_PAGE: Final = 200
_PREVIEW_CHARS_MIN: Final = 24
"""A growing answer is shown from this length on."""
_TOUCHES_CHARS: Final = 80
_ANSWERS: Final = {
    "once": "✅ Allowed once",
    "conversation": "✅ Allowed in this conversation",
    "always": "✅ Always allowed",
    "no": "❌ Denied",
}

_ENDED: Final = {"denied": "⌛ Not allowed in time", "cancelled": "⏹ Stopped"}


class _Work(msgspec.Struct):
    """What there is to deliver in a chat."""

    notices: list[Outgoing]
    routes: list[RouteNews]


class _Live(msgspec.Struct):
    """A conversation with an open run, whose growing answer is shown."""

    news: RouteNews
    runtime: Runtime
    feed: ConversationFeed
    cut: int = 0
    """The request of an attempt that was cut off, or 0. The next attempt continues its messages."""


class _Lane:
    """The deliveries to a chat."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.hint = asyncio.Event()
        self.work: _Work | None = None
        self.live: dict[int, _Live] = {}
        """By number of the conversation."""
        self.previewed_at = 0.0
        self.typing_at = 0.0
        self.task: asyncio.Task[None] | None = None

    def give(self, work: _Work) -> None:
        self.work = work
        self.hint.set()


class Deliverer:
    """Delivers for an account while `run` runs. `report` learns of every success ("") and failure of the platform."""

    def __init__(
        self,
        channel: Channel,
        journal: AsyncJournal,
        rows: AsyncChannelRows,
        ledger: Ledger,
        runtime_of: Callable[[str], Awaitable[Runtime]],
        lease: Callable[[], Any],
        report: Callable[[str], None],
        timing: Timing,
    ) -> None:
        self._timing = timing
        self._channel = channel
        self._account = channel.account
        self._journal = journal
        self._rows = rows
        self._ledger = ledger
        self._runtime_of = runtime_of
        self._lease = lease
        self._report = report
        self._hint = asyncio.Event()
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._failure: BaseException | None = None

    def wake(self) -> None:
        """Look for something to deliver."""
        self._hint.set()

    async def run(self) -> None:
        """Deliver until the task is cancelled. Raises `LeaseLost` and `NotAuthorized`."""
        loop = asyncio.get_running_loop()
        hint = partial(call_in_loop, loop, self._hint.set)
        with self._journal.store.wakeups.listening(ANY, hint):
            try:
                while True:
                    self._hint.clear()
                    try:
                        await self._start_lanes()
                    except StoreError as error:
                        log.info("%s: deliveries wait: %s", self._account, error)
                    await self._wait_for_hint()
                    await asyncio.sleep(_REST_SECONDS)
            finally:
                await self._stop()

    async def _wait_for_hint(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._hint.wait()
        if self._failure is not None:
            raise self._failure

    async def _stop(self) -> None:
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- chats -------------------------------------------------------------------------

    async def _start_lanes(self) -> None:
        """Give every chat what there is to deliver."""
        work: dict[tuple[str, str], _Work] = {}
        seen: set[tuple[str, str, int]] = set()

        def work_of(chat: str, thread: str) -> _Work:
            return work.setdefault((chat, thread), _Work([], []))

        for news in await self._rows.news(self._account):
            seen.add((news.chat, news.thread, news.num))
            work_of(news.chat, news.thread).routes.append(news)
        for row in await self._rows.unfinished(self._account):
            key = (row.chat, row.thread, row.conversation or 0)
            if row.conversation is None:
                work_of(row.chat, row.thread).notices.append(row)
            elif key not in seen:
                seen.add(key)
                await self._add_leftover(row, work_of(row.chat, row.thread))
        for (chat, thread), found in work.items():
            if found.notices or found.routes:
                self._give(await self._rows.chat(self._account, chat, thread), found)

    async def _add_leftover(self, row: Outgoing, work: _Work) -> None:
        """Add the route of an unfinished message, if no event of its conversation waits."""
        num = row.conversation or 0
        lane = self._lanes.get((row.chat, row.thread))
        if lane is not None and num in lane.live:
            # The message grows.
            return
        route = await self._rows.route(self._account, num, row.chat, row.thread)
        if route is not None:
            work.routes.append(route)

    def _give(self, chat: Chat, work: _Work) -> None:
        key = (chat.id, chat.thread)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(chat)
            lane.task = asyncio.create_task(self._run_lane(lane))
            lane.task.add_done_callback(partial(self._lane_ended, key, lane))
        lane.chat = chat
        lane.give(work)

    def _lane_ended(
        self, key: tuple[str, str], lane: _Lane, task: asyncio.Task[None]
    ) -> None:
        self._lanes.pop(key, None)
        if lane.work is not None:
            # The work came after the last look of the task.
            self._hint.set()
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._hint.set()

    async def _run_lane(self, lane: _Lane) -> None:
        """Deliver to a chat until nothing is left, and show growing answers."""
        backoff = Backoff(self._timing.channel_retry_seconds, 60.0, jitter=0.2)
        try:
            while lane.work is not None or lane.live:
                lane.hint.clear()
                work, lane.work = lane.work, None
                try:
                    if work is not None:
                        await self._deliver(lane, work)
                    await self._preview_all(lane)
                except FloodWait as error:
                    # The budget of the chat waits.
                    self._report("")
                    log.info("%s", error)
                    lane.work = lane.work or work
                    continue
                except (LeaseLost, NotAuthorized):
                    raise
                except Exception as error:
                    if isinstance(error, ChannelAway | SendUncertain):
                        self._report(str(error))
                    elif not isinstance(error, TenaxError):
                        log.exception("A delivery failed unexpectedly.")
                    else:
                        log.info("A delivery has to wait: %s", error)
                    lane.work = lane.work or work
                    await backoff.sleep()
                    continue
                backoff.reset()
                if lane.work is None and lane.live:
                    await self._wait_for_growth(lane)
        finally:
            for num in list(lane.live):
                self._unfollow(lane, num)

    async def _wait_for_growth(self, lane: _Lane) -> None:
        """Wait for new work or for a longer answer, and keep the sign of a typing bot alive."""
        traits = self._channel.traits
        seconds = traits.typing_seconds or LOOK_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await lane.hint.wait()
        since = self._journal.clock.monotonic() - lane.previewed_at
        if lane.work is None and since < traits.preview_seconds:
            # A message that settles the answer must not wait for the next preview.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(traits.preview_seconds - since):
                    while lane.work is None:
                        lane.hint.clear()
                        await lane.hint.wait()

    async def _deliver(self, lane: _Lane, work: _Work) -> None:
        for notice in work.notices:
            await self._deliver_notice(lane.chat, notice)
        for news in work.routes:
            try:
                await self._deliver_route(lane, news)
            except (Gone, NoSuchConversation):
                self._unfollow(lane, news.num)
            except StoreDamaged as error:
                # A damaged conversation must not stop the other conversations of the chat.
                log.warning("%s is not delivered: %s", news.conversation, error)
                self._unfollow(lane, news.num)

    async def _deliver_notice(self, chat: Chat, notice: Outgoing) -> None:
        about = About("notice", "", 0, notice.at)
        target = Target(chat, notice.unit, None, 0, about)
        await self._ledger.deliver(target, self._channel.render(notice.text))
        self._report("")

    # -- the events of a route -----------------------------------------------------------

    async def _deliver_route(self, lane: _Lane, news: RouteNews) -> None:
        """Deliver the events of a conversation after the position of the route."""
        runtime = await self._runtime_of(news.user)
        facts = await self._rows.facts(news, news.seq)
        reading = _Reading(self, lane.chat, news, runtime, facts)
        await reading.deliver()
        is_whole = len(facts) < _FACTS_PAGE
        if is_whole and reading.run is None:
            await self._finish_leftovers(reading)
        if reading.position > news.seq or (is_whole and not reading.cut):
            seq = reading.position
            if is_whole and not reading.cut:
                seq = max(seq, news.facts)
            await self._rows.move(self._account, news, seq, self._lease())
            if is_whole and news.superseded and reading.run is None and not reading.cut:
                await self._rows.end(self._account, news, seq, self._lease())
        if not is_whole:
            self._hint.set()
        await self._follow(lane, reading)

    async def _follow(self, lane: _Lane, reading: _Reading) -> None:
        """Follow the growing answer of an open run, until the run ends."""
        news = reading.news
        live = lane.live.get(news.num)
        if reading.run is None or not self._channel.traits.edits:
            self._unfollow(lane, news.num)
        elif live is None:
            feed = await reading.runtime.watch(news.conversation, lane.hint)
            lane.live[news.num] = _Live(news, reading.runtime, feed, reading.cut)
        else:
            live.news, live.cut = news, reading.cut

    def _unfollow(self, lane: _Lane, num: int) -> None:
        live = lane.live.pop(num, None)
        if live is not None:
            live.runtime.leave(live.feed, lane.hint)

    async def _finish_leftovers(self, reading: _Reading) -> None:
        """Deliver messages that a person wants to be tried again, and settle previews without an answer."""
        if reading.cut:
            return
        news = reading.news
        for row in await self._rows.unfinished_in(self._account, news):
            fact = await reading.runtime.journal.fact(news.conversation, row.seq)
            if fact is None or not await reading.deliver_again(row, fact):
                await self._ledger.settle(row)

    # -- growing answers -------------------------------------------------------------------

    async def _preview_all(self, lane: _Lane) -> None:
        now = self._journal.clock.monotonic()
        if (
            not lane.live
            or now - lane.previewed_at < self._channel.traits.preview_seconds
        ):
            return
        lane.previewed_at = now
        for num, live in list(lane.live.items()):
            feed = live.feed
            if feed.is_deleted:
                self._unfollow(lane, num)
            elif feed.is_ready():
                await self._preview(lane, live, feed.snapshot().rows)

    async def _preview(self, lane: _Lane, live: _Live, rows: Sequence[Row]) -> None:
        if any(row.state == "asks" for row in rows):
            return
        last = rows[-1] if rows else None
        is_growing = last is not None and last.state == "streaming"
        if last is None or not is_growing or len(last.text) < _PREVIEW_CHARS_MIN:
            await self._show_typing(lane)
            return
        num, request = live.news.num, int(last.id)
        unit = answer_unit(num, request)
        if live.cut and live.cut != request:
            await self.continue_unit(live.news, live.cut, request)
            live.cut = request
        pieces = self._channel.render(last.text)
        await self._ledger.preview(Target(lane.chat, unit, num, request), pieces)
        self._report("")

    async def continue_unit(self, news: RouteNews, was: int, request: int) -> None:
        """Let the messages of an attempt that was cut off become the messages of the next attempt."""
        old, new = answer_unit(news.num, was), answer_unit(news.num, request)
        await self._rows.rename_unit(
            self._account, news.chat, news.thread, old, new, self._lease()
        )

    async def _show_typing(self, lane: _Lane) -> None:
        seconds = self._channel.traits.typing_seconds
        now = self._journal.clock.monotonic()
        if (
            seconds
            and now - lane.typing_at >= seconds
            and self._ledger.is_free(lane.chat)
        ):
            lane.typing_at = now
            with contextlib.suppress(ChannelError):
                await self._channel.show_typing(lane.chat)

    # -- what a reading of a route needs ---------------------------------------------------

    async def deliver_text(
        self, target: Target, markdown: str, buttons: Sequence[Any] = ()
    ) -> None:
        pieces = self._channel.render(markdown)
        if pieces:
            await self._ledger.deliver(target, pieces, buttons)
            self._report("")

    async def deliver_files(
        self, chat: Chat, news: RouteNews, runtime: Runtime, fact: Recorded
    ) -> None:
        answer = fact.event
        assert isinstance(answer, MessageAssistant)
        bytes_max = self._channel.traits.file_bytes_max
        files = await find_files(runtime, news.conversation, answer, bytes_max)
        for number, file in enumerate(files):
            unit = file_unit(news.num, answer.request, number)
            about = About("file", news.conversation, fact.seq, fact.at)
            target = Target(chat, unit, news.num, fact.seq, about)
            await self._ledger.deliver_file(target, file)

    def key_of(self, chat: Chat, unit: str) -> str:
        """Return the key of the first message of a unit."""
        return make_key(self._account, chat.id, chat.thread, unit, 0)

    async def resolve_question(
        self, reading: _Reading, chat: Chat, unit: str, outcome: str
    ) -> None:
        """Show the outcome of an approval in its message, without the buttons."""
        rows = await self._rows.unit(self._account, chat.id, chat.thread, unit)
        delivered = [row for row in rows if row.state == "delivered" and not row.text]
        if not delivered:
            return
        row = delivered[-1]
        fact = await reading.runtime.journal.fact(reading.news.conversation, row.seq)
        asked = fact.event if fact is not None else None
        what = ""
        if isinstance(asked, ApprovalAsked):
            touches = to_one_line(asked.touches)[:_TOUCHES_CHARS].replace("`", "'")
            what = f": `{to_one_line(asked.name)}` {touches}".rstrip()
        (piece, *_) = self._channel.render(f"{outcome}{what}")
        await self._ledger.replace(chat, row, piece)

    @property
    def account(self) -> str:
        return self._account

    @property
    def traits(self) -> Traits:
        return self._channel.traits

    def now_us(self) -> int:
        return self._rows.now_us()


class _Reading:
    """A pass over the events of a conversation after the position of a route."""

    def __init__(
        self,
        deliverer: Deliverer,
        chat: Chat,
        news: RouteNews,
        runtime: Runtime,
        facts: Sequence[Recorded],
    ) -> None:
        self.news = news
        self.runtime = runtime
        self.position = news.seq
        """The events up to here are delivered."""
        self.run = news.run
        """The open run after the last fact. A run may begin or end between the reading of the route and of the facts."""
        self.cut = 0
        """The request of an attempt that was cut off and may go on, or 0."""
        self._cut_fact: Recorded | None = None
        self._deliverer = deliverer
        self._chat = chat
        self._facts = facts
        self._answered = {
            (event.message, event.call)
            for event in (fact.event for fact in facts)
            if isinstance(event, ApprovalAnswered | ToolFinished)
        }

    async def deliver(self) -> None:
        for fact in self._facts:
            await self._deliver_fact(fact)
            if not self.cut:
                self.position = fact.seq
        if self._cut_fact is not None and self._is_abandoned(self._cut_fact):
            await self._end_attempt()
            self.position = self._facts[-1].seq

    def _is_abandoned(self, cut: Recorded) -> bool:
        """Return whether no run continues an attempt that was cut off."""
        age_us = self._deliverer.now_us() - cut.at
        is_old = age_us > RESUME_SECONDS * 1e6
        return (self.run is None and is_old) or len(self._facts) >= _FACTS_PAGE

    async def _deliver_fact(self, fact: Recorded) -> None:
        match fact.event:
            case MessageUser() as message:
                await self._mirror(fact, message)
            case MessageAssistant() as answer:
                await self._continue_attempt(answer.request)
                await self._deliver_answer(fact, answer)
            case MessagePartial(request=request):
                await self._continue_attempt(request)
                self.cut, self._cut_fact = request, fact
            case RunStarted(resumes=resumes):
                self._note_run(fact, fact.run)
                if not resumes:
                    await self._end_attempt()
            case RunFinished() as end:
                self._note_run(fact, None)
                await self._end_run(fact, end)
            case _:
                await self._deliver_question(fact)

    def _note_run(self, fact: Recorded, run: str | None) -> None:
        if fact.seq > self.news.facts:
            self.run = run

    async def _deliver_question(self, fact: Recorded) -> None:
        match fact.event:
            case ApprovalAsked() as asked:
                if (asked.message, asked.call) not in self._answered:
                    await self._ask(fact, asked)
            case ApprovalAnswered() as answered:
                words = to_one_line(answered.words)[:_TOUCHES_CHARS]
                text = f"💬 Answered: {words}" if words else _ANSWERS[answered.answer]
                await self._resolve(answered.message, answered.call, text)
            case ToolFinished() as finished:
                text = _ENDED.get(finished.outcome, "✅ Done")
                await self._resolve(finished.message, finished.call, text)

    async def _continue_attempt(self, request: int) -> None:
        """Let the messages of an attempt that was cut off become those of the next attempt."""
        if self.cut and self.cut != request:
            await self._deliverer.continue_unit(self.news, self.cut, request)
        self._forget_attempt()

    async def _end_run(self, fact: Recorded, end: RunFinished) -> None:
        if end.outcome == "interrupted":
            # Another run may continue.
            return
        await self._end_attempt()
        text = ""
        if end.outcome == "failed":
            text = f"⚠️ The answer failed. {end.why}\n\nTo try again: /retry"
        elif end.outcome == "cancelled":
            text = f"⏹ Stopped. {end.why}"
        if text:
            await self._deliver(end_unit(self.news.num, fact.seq), fact, text)

    async def _end_attempt(self) -> None:
        """Deliver the text of an attempt that was cut off, because nothing continues it."""
        fact = self._cut_fact
        if fact is None:
            return
        self._forget_attempt()
        event = fact.event
        assert isinstance(event, MessagePartial)
        text = f"{text_of(event.parts)} …"
        await self._deliver(answer_unit(self.news.num, event.request), fact, text)

    def _forget_attempt(self) -> None:
        self.cut, self._cut_fact = 0, None

    async def deliver_again(self, row: Outgoing, fact: Recorded) -> bool:
        """Deliver the event of a row once more. Return `False` if the row is not about this event."""
        event, num = fact.event, self.news.num
        match event:
            case MessageAssistant() if row.unit == answer_unit(num, event.request):
                await self._deliver(row.unit, fact, text_of(event.parts))
            case MessageAssistant() if row.unit.startswith(f"f:{num}:{event.request}:"):
                await self._deliver_files(fact)
            case MessagePartial() if row.unit == answer_unit(num, event.request):
                await self._deliver(row.unit, fact, f"{text_of(event.parts)} …")
            case MessageUser() if row.unit == mirror_unit(num, fact.seq):
                await self._mirror(fact, event)
            case RunFinished() if row.unit == end_unit(num, fact.seq):
                await self._end_run(fact, event)
            case ApprovalAsked() if row.unit == question_unit(
                num, event.message, event.call
            ):
                return await self._ask(fact, event)
            case _:
                return False
        return True

    # -- messages ------------------------------------------------------------------------

    async def _deliver(
        self, unit: str, fact: Recorded, markdown: str, buttons: Sequence[Any] = ()
    ) -> None:
        about = About(kind_of(unit), self.news.conversation, fact.seq, fact.at)
        target = Target(self._chat, unit, self.news.num, fact.seq, about)
        await self._deliverer.deliver_text(target, markdown, buttons)

    async def _deliver_answer(self, fact: Recorded, answer: MessageAssistant) -> None:
        unit = answer_unit(self.news.num, answer.request)
        await self._deliver(unit, fact, text_of(answer.parts))
        await self._deliver_files(fact)

    async def _deliver_files(self, fact: Recorded) -> None:
        await self._deliverer.deliver_files(self._chat, self.news, self.runtime, fact)

    async def _mirror(self, fact: Recorded, message: MessageUser) -> None:
        """Show a message that was written in the page, in the terminal or in another chat."""
        if not message.ask or message.system or self._is_from_here(message):
            return
        if not self._deliverer.traits.mirrors:
            return
        text = mirror_text(message.extra, text_of(message.parts))
        await self._deliver(mirror_unit(self.news.num, fact.seq), fact, text)

    def _is_from_here(self, message: MessageUser) -> bool:
        source = message.extra.get("chat")
        if not isinstance(source, dict):
            return False
        if source.get("account") != self._deliverer.account:
            return False
        # A file that came late names no chat.
        here = (self.news.chat, self.news.thread)
        return (source.get("chat", here[0]), source.get("thread", here[1])) == here

    async def _ask(self, fact: Recorded, asked: ApprovalAsked) -> bool:
        """Ask the person. Return `False` if the question is not open any more."""
        for question in await self.runtime.questions(self.news.conversation):
            if (question.message, question.call) == (asked.message, asked.call):
                unit = question_unit(self.news.num, asked.message, asked.call)
                text = approval_text(asked, question.diff, question.badge)
                can_allow_all = bool(question.conversation)
                key = self._deliverer.key_of(self._chat, unit)
                buttons = approval_buttons(asked, key, conversation=can_allow_all)
                await self._deliver(unit, fact, text, buttons)
                return True
        return False

    async def _resolve(self, message: int, call: str, text: str) -> None:
        unit = question_unit(self.news.num, message, call)
        await self._deliverer.resolve_question(self, self._chat, unit, text)
