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
from tenax.agent.loop import Agent, Ended, Rendered, Run
from tenax.agent.recovery import GONE, interruption
from tenax.agent.spooling import Held
from tenax.errors import (
    ConfigError,
    Gone,
    LeaseLost,
    NoSuchConversation,
    StoreUnavailable,
    TenaxError,
)
from tenax.events import ApprovalAnswered, Event, RunFinished, RunStarted, RunStop
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Lease
from tenax.journal.place import ALL_SEQS
from tenax.tools.delegate import TASK, Made, made_by
from tenax.views.open_work import OpenRun, Turns
from tenax.workspace.changes import Changes

__all__ = ["RESUMES_MAX", "RESUME_SECONDS", "Lanes", "Policy"]

log = logging.getLogger(__name__)

RESUMES_MAX = 2
RESUME_SECONDS = 15 * 60.0
HISTORIES_MAX = 128
_MADE_MAX = 10_000
_LOOK_SECONDS = 2.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_NEWER = "A newer message came instead."
_INSTEAD = {"ask": "The person said something else instead."}


class Policy(msgspec.Struct, frozen=True):
    """What a runner may do by itself."""

    folder: Path
    resume: Literal["auto", "ask"] = "auto"
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
        held: Held,
        compact: Callable[[Run], Awaitable[bool]],
        answered: Callable[[str], None],
        evicted: Callable[[str], None],
        changes: Changes,
    ) -> None:
        self._journal = journal
        self._agent = agent
        self._answered = answered
        self._evicted = evicted
        self._policy = policy
        self._held = held
        self._compact = compact
        self._changes = changes
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, bool] = {}
        """Lanes that were woken while they were at work, and whether to go on with what was interrupted."""
        self._kept: dict[str, Lease] = {}
        """Leases that could not be given back, because the store was away."""
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._rendered: dict[str, Rendered] = {}
        """What was sent in the conversations that are folded here."""
        self._made: dict[str, Made | None] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """When a run that waits is looked at again, whoever comes by before."""
        self._closed = False
        self._me = ""

    def wake(
        self, conversation: str, *, patient: bool = True, resume: bool = False
    ) -> None:
        """There may be something to do. `patient`: wait for another process that has the conversation now."""
        if self._closed:
            return
        if conversation in self._tasks:
            self._again[conversation] = resume or self._again.get(conversation, False)
            return
        self._begin(
            conversation, self._drive(conversation, patient=patient, resume=resume)
        )

    def _begin(self, conversation: str, drive: Coroutine[None, None, None]) -> None:
        task = self._tasks[conversation] = asyncio.create_task(
            drive, name=f"lane {conversation}"
        )
        task.add_done_callback(lambda done: self._done(conversation, done))

    def _done(self, conversation: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(conversation, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "A lane ended: %s",
                error,
                exc_info=error,
                extra={"action": "lane_failed"},
            )
        if conversation in self._again:
            self.wake(conversation, resume=self._again.pop(conversation))

    async def take_over(self, conversation: str) -> None:
        """Take the conversation from whoever has it, this process included; its run is repaired, and the lane goes on."""
        taken = await self._claim(conversation, take_over=True)
        while (task := self._tasks.get(conversation)) is not None:
            self._again.pop(conversation, None)
            task.cancel()
            await asyncio.wait({task})
        self._begin(
            conversation,
            self._drive(conversation, patient=True, resume=False, taken=taken),
        )

    async def stop(self, conversation: str) -> None:
        """Ask the run to stop, wherever it is."""
        run = (await self._journal.head(conversation)).run
        if run is not None:
            await self._journal.append(
                conversation, [RunStop(self._journal.user or "")], run=run
            )
            self.wake(conversation, patient=False)

    # -- sub-agents ------------------------------------------------------------------------------------------

    async def turns(self, conversation: str) -> Turns:
        """What is open there now."""
        history = self.history(conversation)
        await history.catch_up()
        return history.turns

    async def made(self, conversation: str) -> Made | None:
        """The call that a conversation is for, if it is a sub-agent's."""
        if conversation not in self._made:
            if len(self._made) >= _MADE_MAX:
                self._made.clear()
            self._made[conversation] = await made_by(self._journal, conversation)
        return self._made[conversation]

    async def payer(self, conversation: str) -> str:
        """The conversation whose budget it is: that of a sub-agent is its parent's."""
        made = await self.made(conversation)
        return made.conversation if made is not None else conversation

    async def wanted(self, history: History) -> bool:
        """Whether the call still waits for which the open run works. What a person asked for always is."""
        made, run = await self.made(history.conversation), history.turns.run
        if made is None or run is None or TASK not in run.inputs:
            return True
        try:
            turns = await self.turns(made.conversation)
        except (Gone, NoSuchConversation):
            return False
        parent = turns.run or turns.resumable
        if parent is None or turns.stopped or parent.stop or parent.step is None:
            return False
        call = (
            parent.step.calls.get(made.call)
            if parent.step.message == made.message
            else None
        )
        return call is not None and not call.finished

    async def tell(self, conversation: str) -> None:
        """Something moved there: the run whose call it works for looks at it."""
        made = await self.made(conversation)
        if made is not None:
            self.wake(made.conversation)

    async def folded(self, conversation: str, done: Callable[[History], bool]) -> bool:
        """Wait until what the lane here has folded is so. False where there is no lane, or it ended before."""
        history = self.history(conversation)
        while (task := self._tasks.get(conversation)) is not None and not task.done():
            if done(history):
                return True
            history.moved.clear()
            moved = asyncio.ensure_future(history.moved.wait())
            try:
                await asyncio.wait({task, moved}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
        return False

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
        self,
        conversation: str,
        *,
        patient: bool,
        resume: bool,
        taken: Lease | None = None,
    ) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                lease = taken or await self._claim(conversation)
                worked, upto = False, None
                if lease is not None:
                    over, taken = taken is not None, None
                    worked, upto = await self._work(
                        conversation, lease, resume=resume, taken=over
                    )
                elif not patient:
                    return
                if not await self._left(conversation, upto, worked=worked):
                    return
                pause = _FIRST_PAUSE
            except (Gone, NoSuchConversation):
                log.info("%s is gone; there is nothing to do in it.", conversation)
                return
            except ConfigError as error:
                log.warning(
                    "%s waits: %s", conversation, error, extra={"action": "no_model"}
                )
                return
            except StoreUnavailable as error:
                log.warning("%s Trying again.", error, extra={"action": "store_away"})
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _claim(
        self, conversation: str, *, take_over: bool = False
    ) -> Lease | None:
        limits = (await self._agent(conversation)).limits
        seconds = limits.silence + limits.lease_grace
        holder = await self._instance()
        if (kept := self._kept.get(conversation)) is not None:
            await self._journal.release(kept)
            # who takes over may have come between
            if self._kept.get(conversation) is kept:
                del self._kept[conversation]
        return await self._journal.claim(
            f"run:{conversation}", holder, seconds, take_over=take_over
        )

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

    async def _left(self, conversation: str, upto: int | None, *, worked: bool) -> bool:
        """Whether there is more to do: after giving the lease back, or (None) while another process has it.

        `upto`: what was known when it was last seen what there is to do. The history may know more by now, of which
        nobody has thought: others read it too.
        """
        owned = upto is not None
        head = await self._journal.head(conversation)
        if upto is not None and head.run is not None and head.head > upto:
            # a stop or an answer came while the lease was given back, and whoever sent it could not claim it
            return True
        if head.unanswered == 0 and (owned or head.run is None):
            return False
        if owned:
            return worked and head.run is None
        await self._journal.wait(conversation, head.head, seconds=_LOOK_SECONDS)
        return True

    async def _work(
        self, conversation: str, lease: Lease, *, resume: bool, taken: bool
    ) -> tuple[bool, int]:
        """Do what there is to do. Whether there was anything, and what was known when it was last looked for."""
        history = self.history(conversation)
        worked, upto = False, history.seq
        try:
            while True:
                await history.catch_up()
                run = await self._next(history, lease, resume=resume, taken=taken)
                upto = history.seq
                if run is None:
                    break
                resume, taken, worked = False, False, True
                ended = await self._run(history, lease, run)
                upto = history.seq
                await self.tell(conversation)
                if ended == "completed":
                    self._answered(conversation)
                if ended == "lost" or (ended == "parked" and not _moved(history.turns)):
                    await history.catch_up()
                    # who took it sees to it
                    upto = ALL_SEQS if ended == "lost" else upto
                    break
        except LeaseLost:
            upto = ALL_SEQS
            log.info("%s was taken over.", conversation, extra={"action": "taken_over"})
        finally:
            await self._release(conversation, lease)
        self._look_again_at_expiry(history)
        return worked, upto

    def _look_again_at_expiry(self, history: History) -> None:
        """An approval that nobody answers is denied when its time is over, without anybody coming by."""
        run = history.turns.run
        calls = run.open if run is not None else []
        ends = [
            each.asked.expires_at for each in calls if each.asked and not each.answered
        ]
        late = [each.handed_at + int(each.started.deadline * 1e6) for each in calls
                if each.started and each.handed and not each.handed.asks]  # fmt: skip
        if (before := self._timers.pop(history.conversation, None)) is not None:
            before.cancel()
        if ends or late:
            first = min([*late, max(ends)] if ends else late)
            seconds = (
                max(0.0, (first - self._journal.clock.now_us()) / 1e6) + _FIRST_PAUSE
            )
            loop = asyncio.get_running_loop()
            self._timers[history.conversation] = loop.call_later(
                seconds, self.wake, history.conversation
            )

    def history(self, conversation: str) -> History:
        """The conversation as this process has folded it, up to some number."""
        history = self._histories.pop(conversation, None) or History(
            self._journal, conversation
        )
        self._histories[conversation] = history
        if (over := len(self._histories) - HISTORIES_MAX) > 0:
            # what is at work is in use, whoever else asks for it
            kept = {conversation, *self._tasks}
            for oldest in [each for each in self._histories if each not in kept][:over]:
                del self._histories[oldest]
                self._rendered.pop(oldest, None)
                self._evicted(oldest)
        return history

    async def _run(self, history: History, lease: Lease, run: str) -> Ended:
        acting = Run(
            await self._agent(history.conversation),
            self._journal,
            history,
            lease,
            run,
            folder=self._policy.folder,
            held=self._held,
            asks=self._policy.asks,
            compact=self._compact,
            kin=self,
            changes=self._changes,
            rendered=self._rendered.setdefault(
                history.conversation, Rendered(self._journal)
            ),
        )
        try:
            return await acting.go()
        except (Gone, LeaseLost, NoSuchConversation, StoreUnavailable):
            raise
        except Exception as error:
            log.exception(
                "A run ended in a surprise.", extra={"action": "run_failed", "run": run}
            )
            surprise = "Something went wrong inside Tenax; the log says what."
            why = str(error) if isinstance(error, TenaxError) else surprise
            await history.catch_up()
            await self._append(
                history, acting.lease, run, *acting.cut(), RunFinished("failed", why)
            )
            return "failed"

    async def _next(
        self, history: History, lease: Lease, *, resume: bool, taken: bool
    ) -> str | None:
        """The run to go on with, its start appended; None if nothing is to be done."""
        turns = history.turns
        if turns.run is not None:
            if not taken and _parked(turns.run):
                found = await self._unpark(history, lease, turns.run)
                if found is not None:
                    await self.tell(history.conversation)
                return found
            why = "Somebody else took over." if taken else GONE
            await self._append(
                history, lease, turns.run.id, *interruption(turns.run, why)
            )
            await history.catch_up()  # something else may have come between
            turns = history.turns
        before = turns.resumable
        if before is not None and (resume or self._may_resume(turns, before)):
            return await self._start(history, lease, [], before)
        if turns.waiting:
            return await self._start(history, lease, [next(iter(turns.waiting))], None)
        return None

    async def _start(
        self, history: History, lease: Lease, inputs: list[int], before: OpenRun | None
    ) -> str:
        run = self._journal.ids.run()
        instance = await self._instance()
        resumes, attempt = None, 0
        if before is not None:
            resumes, attempt = before.id, before.started.attempt + (not before.planned)
        started = RunStarted(inputs, resumes, attempt, self._policy.place, instance)
        await self._append(history, lease, run, started)
        return run

    async def _unpark(self, history: History, lease: Lease, run: OpenRun) -> str | None:
        """Go on with a run that waited for a person, once all is answered. A newer message of a person is an answer too: no."""
        if history.turns.stopped:
            return run.id
        waits = run.waits
        now = self._journal.clock.now_us()
        said = any(not each.system for each in history.turns.waiting.values())
        if waits and said and run.step is not None:
            denied: list[Event] = [
                ApprovalAnswered(
                    run.step.message,
                    each.call.id,
                    "no",
                    why=_INSTEAD.get(each.call.name, _NEWER),
                )
                for each in waits
            ]
            await self._append(history, lease, run.id, *denied)
        elif not run.handed and any(
            each.asked and each.asked.expires_at >= now for each in waits
        ):
            return None
        return run.id

    async def _append(
        self, history: History, lease: Lease, run: str, *events: Event
    ) -> None:
        await history.took(
            await self._journal.append(
                history.conversation, events, lease=lease, run=run
            )
        )

    def _may_resume(self, turns: Turns, before: OpenRun) -> bool:
        """Whether an interrupted run goes on by itself."""
        policy = self._policy
        age_us = self._journal.clock.now_us() - before.finished_at
        return (
            policy.resume == "auto"
            and not before.stop
            and before.started.attempt + (not before.planned) <= RESUMES_MAX
            and age_us < RESUME_SECONDS * 1e6
            and turns.newest_person <= max(before.inputs, default=0)
            and before.started.place == policy.place
        )


def _moved(turns: Turns) -> bool:
    """Whether a stop or an answer was folded that the run has not seen, which has just begun to wait."""
    calls = turns.run.open if turns.run is not None else []
    return turns.stopped or any(each.answered and not each.handed for each in calls)


def _parked(run: OpenRun) -> bool:
    """Whether a run waits, or waited, for a person or a sub-agent, and nothing of it is under way."""
    return run.at_rest and any(each.asked or each.handed for each in run.open)
