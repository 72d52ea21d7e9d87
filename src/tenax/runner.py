"""Runners: who answers what waits. One lane per conversation, on any host; the lease `run:<conversation>` decides.

A lane looks at what the journal says is open and does the next thing: repairs a run whose owner is gone, goes on with
one that was interrupted or waited for a person, answers the first input that waits. When nothing is left it gives the
lease back and looks once more, so that an input which came in between is never left lying.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Literal

import msgspec

from tenax.agent.history import History
from tenax.agent.loop import Agent, Ended, Holder, Run
from tenax.errors import ConfigError, Gone, LeaseLost, NoSuchConversation, StoreUnavailable, TenaxError
from tenax.events import ApprovalAnswered, Event, RunFinished, RunStarted
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Lease
from tenax.recovery import interruption
from tenax.views.turns import OpenRun, Turns

__all__ = ["RESUMES_MAX", "RESUME_SECONDS", "Lanes", "Policy"]

log = logging.getLogger(__name__)

RESUMES_MAX = 2
RESUME_SECONDS = 15 * 60.0
HISTORIES_MAX = 128
_LOOK_SECONDS = 2.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class Policy(msgspec.Struct, frozen=True):
    """What a runner may do by itself."""

    folder: Path
    resume: Literal["auto", "ask"] = "auto"
    resume_seconds: float = RESUME_SECONDS
    asks: bool = True
    """Whether somebody can be asked for an approval."""

    @property
    def place(self) -> str:
        """What tools act upon: an interrupted run goes on by itself only where it was."""
        return f"{platform.node()}:{self.folder}"


class Lanes:
    """The conversations that this process answers."""

    def __init__(
        self,
        journal: AsyncJournal,
        agent: Callable[[str], Awaitable[Agent]],
        policy: Policy,
        holder: Holder,
        compact: Callable[[Run], Awaitable[bool]] | None = None,
        answered: Callable[[str], None] = lambda _conversation: None,
        evicted: Callable[[str], None] = lambda _conversation: None,
    ) -> None:
        self._journal = journal
        self._agent = agent
        self._answered = answered
        self._evicted = evicted
        self._policy = policy
        self._holder = holder
        self._compact = compact
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, bool] = {}
        """Lanes that were woken while they were at work, and whether to go on with what was interrupted."""
        self._kept: dict[str, Lease] = {}
        """Leases that could not be given back, because the store was away."""
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._closed = False
        self._me = ""

    def wake(self, conversation: str, *, patient: bool = True, resume: bool = False) -> None:
        """There may be something to do. `patient`: wait for another process that has the conversation now."""
        if self._closed:
            return
        if conversation in self._tasks:
            self._again[conversation] = resume or self._again.get(conversation, False)
            return
        self._begin(conversation, self._drive(conversation, patient=patient, resume=resume))

    def _begin(self, conversation: str, drive: Coroutine[None, None, None]) -> None:
        task = self._tasks[conversation] = asyncio.create_task(drive, name=f"lane {conversation}")
        task.add_done_callback(lambda done: self._done(conversation, done))

    def _done(self, conversation: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(conversation, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A lane ended: %s", error, exc_info=error, extra={"action": "lane_failed"})
        if conversation in self._again:
            self.wake(conversation, resume=self._again.pop(conversation))

    async def take_over(self, conversation: str) -> None:
        """Take the conversation from whoever has it, this process included; its run is repaired, and the lane goes on."""
        taken = await self._claim(conversation, take_over=True)
        while (task := self._tasks.get(conversation)) is not None:
            self._again.pop(conversation, None)
            task.cancel()
            await asyncio.wait({task})
        self._begin(conversation, self._drive(conversation, patient=True, resume=False, taken=taken))

    async def idle(self, conversation: str) -> None:
        """Wait until this process has nothing to do there."""
        while (task := self._tasks.get(conversation)) is not None:
            await asyncio.wait({task})

    async def close(self) -> None:
        """End every run here: what it has is sealed, and the next start goes on with it."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=4.0)

    # -- one lane --------------------------------------------------------------------------------------------

    async def _drive(
        self, conversation: str, *, patient: bool, resume: bool, taken: Lease | None = None
    ) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                lease = taken or await self._claim(conversation)
                worked = False
                if lease is not None:
                    over, taken = taken is not None, None
                    worked = await self._work(conversation, lease, resume=resume, taken=over)
                elif not patient:
                    return
                if not await self._left(conversation, owned=lease is not None, worked=worked):
                    return
                pause = _FIRST_PAUSE
            except (Gone, NoSuchConversation):
                log.info("%s is gone; there is nothing to do in it.", conversation)
                return
            except ConfigError as error:
                log.warning("%s waits: %s", conversation, error, extra={"action": "no_model"})
                return
            except StoreUnavailable as error:
                log.warning("%s Trying again.", error, extra={"action": "store_away"})
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _claim(self, conversation: str, *, take_over: bool = False) -> Lease | None:
        limits = (await self._agent(conversation)).limits
        seconds = limits.silence + limits.lease_grace
        holder = await self._instance()
        if conversation in self._kept:
            await self._journal.release(self._kept[conversation])
            del self._kept[conversation]
        return await self._journal.claim(f"run:{conversation}", holder, seconds, take_over=take_over)

    async def _instance(self) -> str:
        """This process, as the store knows it: the same as long as the store is open."""
        if not self._me:
            self._me = await self._journal.instance()
        return self._me

    async def _release(self, conversation: str, lease: Lease) -> None:
        try:
            await self._journal.release(lease)
        except StoreUnavailable:
            self._kept[conversation] = lease
        except TenaxError as error:
            log.info("A lease was not given back: %s", error)

    async def _left(self, conversation: str, *, owned: bool, worked: bool) -> bool:
        """Whether there is more to do: after giving the lease back, or while another process has it."""
        head = await self._journal.head(conversation)
        if head.unanswered == 0 and (owned or head.run is None):
            return False
        if owned:
            return worked and head.run is None
        await self._journal.wait(conversation, head.head, seconds=_LOOK_SECONDS)
        return True

    async def _work(self, conversation: str, lease: Lease, *, resume: bool, taken: bool) -> bool:
        """Do what there is to do. False if there was nothing."""
        history = self.history(conversation)
        worked = False
        try:
            while True:
                await history.catch_up()
                run = await self._next(history, lease, resume=resume, taken=taken)
                if run is None:
                    break
                resume, taken, worked = False, False, True
                ended = await self._run(history, lease, run)
                if ended == "completed":
                    self._answered(conversation)
                if ended in {"parked", "lost"}:
                    await history.catch_up()
                    break
        except LeaseLost:
            log.info("%s was taken over.", conversation, extra={"action": "taken_over"})
        finally:
            await self._release(conversation, lease)
        self._look_again_at_expiry(history)
        return worked

    def _look_again_at_expiry(self, history: History) -> None:
        """An approval that nobody answers is denied when its time is over, without anybody coming by."""
        waits = history.turns.run.waits if history.turns.run is not None else []
        ends = [each.asked.expires_at for each in waits if each.asked is not None]
        if ends:
            seconds = max(0.0, (max(ends) - self._journal.clock.now_us()) / 1e6) + _FIRST_PAUSE
            asyncio.get_running_loop().call_later(seconds, self.wake, history.conversation)

    def history(self, conversation: str) -> History:
        """The conversation as this process has folded it, up to some number."""
        history = self._histories.pop(conversation, None) or History(self._journal, conversation)
        self._histories[conversation] = history
        if len(self._histories) > HISTORIES_MAX:
            self._evicted(self._histories.popitem(last=False)[0])
        return history

    async def _run(self, history: History, lease: Lease, run: str) -> Ended:
        acting = Run(
            await self._agent(history.conversation),
            self._journal,
            history,
            lease,
            run,
            folder=self._policy.folder,
            holder=self._holder,
            asks=self._policy.asks,
            compact=self._compact,
        )
        try:
            return await acting.go()
        except (Gone, LeaseLost, NoSuchConversation, StoreUnavailable):
            raise
        except Exception as error:
            log.exception("A run ended in a surprise.", extra={"action": "run_failed", "run": run})
            surprise = "Something went wrong inside Tenax; the log says what."
            why = str(error) if isinstance(error, TenaxError) else surprise
            await history.catch_up()
            await self._append(history, acting.lease, run, *acting.cut(), RunFinished("failed", why))
            return "failed"

    async def _next(self, history: History, lease: Lease, *, resume: bool, taken: bool) -> str | None:
        """The run to go on with, its start appended; None if nothing is to be done."""
        turns = history.turns
        if turns.run is not None:
            if not taken and _parked(turns.run):
                return await self._unpark(history, lease, turns.run)
            why = "Somebody else took over." if taken else "The process that ran it is gone."
            await self._append(history, lease, turns.run.id, *interruption(turns.run, why))
            turns = history.turns
        before = turns.resumable
        if before is not None and (resume or self._may_resume(turns, before)):
            return await self._start(history, lease, [], before)
        if turns.waiting:
            return await self._start(history, lease, [next(iter(turns.waiting))], None)
        return None

    async def _start(self, history: History, lease: Lease, inputs: list[int], before: OpenRun | None) -> str:
        run = self._journal.ids.run()
        instance = await self._instance()
        resumes, attempt = None, 0
        if before is not None:
            resumes, attempt = before.id, before.started.attempt + (not before.planned)
        started = RunStarted(inputs, resumes, attempt, self._policy.place, instance)
        await self._append(history, lease, run, started)
        return run

    async def _unpark(self, history: History, lease: Lease, run: OpenRun) -> str | None:
        """Go on with a run that waited for a person, once all is answered. A newer message is an answer too: no."""
        if history.turns.stopped:
            return run.id
        waits = run.waits
        now = self._journal.clock.now_us()
        if waits and history.turns.waiting and run.step is not None:
            denied: list[Event] = [
                ApprovalAnswered(run.step.message, each.call.id, "no", why="A newer message came instead.")
                for each in waits
            ]
            await self._append(history, lease, run.id, *denied)
        elif any(each.asked is not None and each.asked.expires_at >= now for each in waits):
            return None
        return run.id

    async def _append(self, history: History, lease: Lease, run: str, *events: Event) -> None:
        await history.took(await self._journal.append(history.conversation, events, lease=lease, run=run))

    def _may_resume(self, turns: Turns, before: OpenRun) -> bool:
        """Whether an interrupted run goes on by itself."""
        policy = self._policy
        age_us = self._journal.clock.now_us() - before.finished_at
        return (
            policy.resume == "auto"
            and not before.stop
            and before.started.attempt + (not before.planned) <= RESUMES_MAX
            and age_us < policy.resume_seconds * 1e6
            and turns.newest_person <= max(before.inputs, default=0)
            and before.started.place == policy.place
        )


def _parked(run: OpenRun) -> bool:
    """Whether a run waits, or waited, for a person: nothing of it is under way, and somebody was asked."""
    if run.step is None or run.request:
        return False
    return any(each.asked for each in run.step.open) and not any(each.started for each in run.step.open)
