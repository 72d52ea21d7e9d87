"""A worker for every conversation answered by the process. The lease `run:<conversation>` decides between processes.

A worker reads the open work from the journal and does the next step: the worker ends a run of a dead owner, resumes a
run after an interruption or after the answer of a person, or answers the first waiting input. When no work is left, the
worker releases the lease and then reads the head again, so the worker misses no input from the time in between.

A claim, a release and a take-over run in tasks of their own, so a cancelled caller leaves no lease behind. A lease
without a worker would block the conversation until the lease expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from tenax.agent.compaction import Compactor
from tenax.agent.history import History
from tenax.agent.loop import (
    Ended,
    FolderChanges,
    Rendered,
    Run,
    RunServices,
)
from tenax.agent.recovery import GONE, interruption
from tenax.agent.spooling import OutputSpool
from tenax.concurrency import Backoff
from tenax.errors import (
    ConfigError,
    Gone,
    HeadMoved,
    LeaseLost,
    NoSuchConversation,
    StoreUnavailable,
    TenaxError,
)
from tenax.events import (
    ApprovalAnswered,
    Event,
    Mode,
    RunFinished,
    RunStarted,
    RunStop,
)
from tenax.journal.base import Dedup, Lease
from tenax.journal.row_key import ALL_SEQS
from tenax.runtime.agents import Agents, Setting
from tenax.runtime.feed import FeedRegistry
from tenax.tools.delegate import TASK, Origin, find_origin
from tenax.views.open_work import OpenRun, Turns

__all__ = ["RESUMES_MAX", "RESUME_SECONDS", "Policy", "Workers"]

log = logging.getLogger(__name__)
T = TypeVar("T")

RESUMES_MAX = 2
RESUME_SECONDS = 15 * 60.0
HISTORIES_MAX = 128
_ORIGINS_MAX = 10_000
_LOOK_SECONDS = 2.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_CLOSE_SECONDS = 4.0
_NEWER = "A newer message came instead."
_INSTEAD = {"ask": "The person said something else instead."}
_STRICTEST_FIRST: tuple[Mode, ...] = ("plan", "ask", "edits")


class Policy(msgspec.Struct, frozen=True):
    """The actions allowed to a worker without asking."""

    folder: Path
    resume: Literal["auto", "ask"] = "auto"
    asks: bool = True
    """Whether a person is available for approvals."""

    @property
    def workdir_id(self) -> str:
        """The host and folder of the tools. An interrupted run resumes automatically only in the same folder."""
        return _place_of(self.folder)


class _Claim(NamedTuple):
    """A claimed conversation: the lease, and the head and the choices at the claim, or 0 and `None` if unknown."""

    lease: Lease
    head: int = 0
    setting: Setting | None = None
    took_over: bool = False
    """Whether the lease was taken from an owner that may be alive."""


class Workers:
    """The workers of the process, by conversation."""

    def __init__(
        self,
        feeds: FeedRegistry,
        agents: Agents,
        policy: Policy,
        spool: OutputSpool,
        compactor: Compactor,
        changes: FolderChanges,
    ) -> None:
        self._journal = feeds.journal
        self._agents = agents
        self._policy = policy
        self._spool = spool
        self._services = RunServices(
            self._journal, policy.folder, spool, compactor, self, changes, policy.asks
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake_again: dict[str, bool] = {}
        """Conversations with a wake-up during work. The value: whether the next worker resumes an interrupted run."""
        self._uncertain_claims: set[str] = set()
        """Conversations with a failed claim, because the store was unavailable. The store may have given the lease."""
        self._taken_over: dict[str, _Claim] = {}
        """Claims of take-overs, for the next worker of the conversation."""
        self._take_over_locks: WeakValueDictionary[str, asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._background: set[asyncio.Task[Any]] = set()
        """Claims, releases and take-overs in progress. The end of the caller does not end them."""
        self._feeds = feeds
        self._recent: OrderedDict[str, None] = OrderedDict()
        """The conversations with a kept history, the most recently used at the end."""
        self._rendered: dict[str, Rendered] = {}
        """The rendered messages of the conversations with a kept history."""
        self._origins: dict[str, Origin | None] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Timers for waiting runs. A timer wakes the worker when an approval or a tool call expires."""
        self._closed = False
        self._instance_id = ""

    def wake(
        self, conversation: str, *, patient: bool = True, resume: bool = False
    ) -> None:
        """Start the worker of a conversation. A `patient` worker waits while another process holds the lease."""
        if self._closed:
            return
        if conversation in self._tasks:
            self._wake_again[conversation] = resume or self._wake_again.get(
                conversation, False
            )
            return
        task = self._tasks[conversation] = asyncio.create_task(
            self._drive(conversation, patient=patient, resume=resume),
            name=f"worker {conversation}",
        )
        task.add_done_callback(lambda task: self._finish_task(conversation, task))

    def _finish_task(self, conversation: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(conversation, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "A worker ended: %s",
                error,
                exc_info=error,
                extra={"action": "lane_failed"},
            )
        if conversation in self._wake_again or conversation in self._taken_over:
            self.wake(conversation, resume=self._wake_again.pop(conversation, False))

    def _start_background(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def take_over(self, conversation: str) -> None:
        """Take the conversation from the present owner, even from the own process. The new worker ends the old run.

        A take-over that has begun goes on if the caller is cancelled, because the old owner loses the conversation.
        """
        await asyncio.shield(self._start_background(self._take_over(conversation)))

    async def _take_over(self, conversation: str) -> None:
        # The results of two claims may arrive in the wrong order. Without the lock, the take-over with the older lease
        # would then replace the worker with the newer lease.
        lock = self._take_over_locks.setdefault(conversation, asyncio.Lock())
        async with lock:
            try:
                claim = await self._claim(conversation, take_over=True)
            except StoreUnavailable:
                # The old worker may have lost the lease. A worker continues when the store is back.
                self.wake(conversation)
                raise
            if claim is None:
                return
            if self._closed:
                await self._release(claim.lease)
                return
            # The old worker of this process may still write, so the head from the claim is not reliable.
            self._taken_over[conversation] = _Claim(claim.lease, took_over=True)
            self._wake_again.pop(conversation, None)
            task = self._tasks.get(conversation)
            if task is None:
                self.wake(conversation)
            else:
                # The next worker starts when the old worker has ended.
                task.cancel()

    async def stop(self, conversation: str, *, dedup: Dedup | None = None) -> bool:
        """Ask the open run to stop, in any process. Return whether a run was open."""
        run = (await self._journal.head(conversation)).run
        if run is None:
            return False
        stop = RunStop(self._journal.user or "")
        await self._journal.append(conversation, [stop], run=run, dedup=dedup)
        self.wake(conversation, patient=False)
        return True

    # -- sub-agents ------------------------------------------------------------------------------------------

    async def turns(self, conversation: str) -> Turns:
        """Return the open work of a conversation."""
        history = self.history(conversation)
        await history.catch_up()
        return history.turns

    async def find_origin(self, conversation: str) -> Origin | None:
        """Return the call behind the conversation of a sub-agent; `None` for a conversation opened by a person."""
        if conversation not in self._origins:
            origin = await find_origin(self._journal, conversation)
            self.remember_origin(conversation, origin)
        return self._origins[conversation]

    def remember_origin(self, conversation: str, origin: Origin | None) -> None:
        """Remember the call behind a conversation; `None` for a conversation opened by a person."""
        if len(self._origins) >= _ORIGINS_MAX:
            self._origins.clear()
        self._origins[conversation] = origin

    async def payer(self, conversation: str) -> str:
        """Return the conversation with the budget to charge. A sub-agent uses the budget of the parent."""
        origin = await self.find_origin(conversation)
        return origin.conversation if origin is not None else conversation

    async def mode(self, conversation: str) -> Mode:
        """Return the present mode of a conversation. A sub-agent is at least as restricted as its parent."""
        own = (await self._journal.choice(conversation)).mode
        return await self._restrict_mode(conversation, own)

    async def _restrict_mode(self, conversation: str, own: Mode) -> Mode:
        origin = await self.find_origin(conversation)
        if origin is None:
            return own
        try:
            parent = (await self._journal.choice(origin.conversation)).mode
        except (Gone, NoSuchConversation):
            return own
        return min(own, parent, key=_STRICTEST_FIRST.index)

    async def is_wanted(self, history: History) -> bool:
        """Return whether the result of the open run is still needed. A message of a person always needs an answer."""
        origin, run = await self.find_origin(history.conversation), history.turns.run
        if origin is None or run is None or TASK not in run.inputs:
            return True
        try:
            turns = await self.turns(origin.conversation)
        except (Gone, NoSuchConversation):
            return False
        parent = turns.run or turns.resumable
        if parent is None or turns.stopped or parent.stop or parent.step is None:
            return False
        call = (
            parent.step.calls.get(origin.call)
            if parent.step.message == origin.message
            else None
        )
        return call is not None and not call.finished

    async def wake_parent(self, conversation: str) -> None:
        """Wake the parent of a sub-agent, because the sub-agent's conversation changed."""
        origin = await self.find_origin(conversation)
        if origin is not None:
            self.wake(origin.conversation)

    async def idle(self, conversation: str) -> None:
        """Wait until the process has no worker in the conversation."""
        while (task := self._tasks.get(conversation)) is not None:
            await asyncio.wait({task})

    async def close(self) -> None:
        """Interrupt every run of the process. The runs store partial answers, and the next start resumes the runs."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        for claim in self._taken_over.values():
            self._start_background(self._release(claim.lease))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while pending := [*self._tasks.values(), *self._background]:
                    await asyncio.wait(pending)
        for background_task in self._background:
            background_task.cancel()

    # -- a worker --------------------------------------------------------------------------------------------

    async def _drive(
        self,
        conversation: str,
        *,
        patient: bool,
        resume: bool,
    ) -> None:
        with self._feeds.following(conversation):
            await self._work_until_idle(conversation, patient=patient, resume=resume)

    async def _work_until_idle(
        self,
        conversation: str,
        *,
        patient: bool,
        resume: bool,
    ) -> None:
        """Work until nothing is left to do."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                claim = self._taken_over.pop(conversation, None)
                if claim is None:
                    claim = await self._claim(conversation)
                worked, upto = False, None
                if claim is not None:
                    worked, upto = await self._do_open_work(
                        conversation, claim, resume=resume
                    )
                elif not patient:
                    return
                if not await self._has_more_work(conversation, upto, worked=worked):
                    return
                resume = resume and not worked
                backoff.reset()
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
                await backoff.sleep()

    async def _claim(
        self, conversation: str, *, take_over: bool = False
    ) -> _Claim | None:
        """Claim the conversation. Return `None` while another process holds the lease."""
        limits = self._agents.limits
        seconds = limits.silence + limits.lease_grace
        journal = self._journal.journal

        def claim() -> _Claim | None:
            name, self._instance_id = f"run:{conversation}", journal.instance
            self._spool.instance = self._instance_id
            try:
                # A failed claim may have reached the store. No worker has its lease.
                is_lost = (
                    conversation in self._uncertain_claims
                    and journal.holder(name) == self._instance_id
                )
                lease = journal.claim(
                    name, self._instance_id, seconds, take_over=take_over or is_lost
                )
            except StoreUnavailable:
                self._uncertain_claims.add(conversation)
                raise
            self._uncertain_claims.discard(conversation)
            if lease is None:
                return None
            try:
                head = journal.head(conversation).head
                return _Claim(lease, head, self._agents.read_setting(conversation))
            except TenaxError:
                # The worker meets the same error under the lease, and releases the lease.
                return _Claim(lease)

        claiming = self._start_background(self._journal.threads.run(claim))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The thread claims the lease all the same.
            self._start_background(self._release_abandoned(claiming))
            raise

    async def _release_abandoned(self, claiming: asyncio.Task[_Claim | None]) -> None:
        """Release the lease of a claim whose caller was cancelled."""
        with contextlib.suppress(TenaxError):
            claim = await claiming
            if claim is not None:
                await self._release(claim.lease)

    async def _instance(self) -> str:
        """Return the id of the process in the store. The id stays the same while the store is open."""
        if not self._instance_id:
            self._instance_id = await self._journal.instance()
        return self._instance_id

    async def _release(self, lease: Lease) -> None:
        """Release a lease. The release goes on if the caller is cancelled."""
        await asyncio.shield(
            self._start_background(self._release_when_available(lease))
        )

    async def _release_when_available(self, lease: Lease) -> None:
        """Release a lease, and retry while the store is unavailable. A closed process does not retry."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                await self._journal.release(lease)
            except StoreUnavailable as error:
                log.warning("%s Trying again.", error, extra={"action": "store_away"})
                if not self._closed:
                    await backoff.sleep()
                    continue
            except TenaxError as error:
                log.info("A lease was not released: %s", error)
            return

    async def _has_more_work(
        self, conversation: str, upto: int | None, *, worked: bool
    ) -> bool:
        """Return whether work is left. May wait for a change while another process holds the lease.

        `upto` is the seq of the history at the last search for work, or `None` if another process holds the lease. The
        history may hold later events, not yet considered by the worker, because other readers advance the history too.
        """
        owned = upto is not None
        head = await self._journal.head(conversation)
        if upto is not None and head.run is not None and head.head > upto:
            # A stop or an answer arrived during the release of the lease. The sender could not claim the lease.
            return True
        if head.unanswered == 0 and (owned or head.run is None):
            return False
        if owned:
            return worked and head.run is None
        await self._journal.wait(conversation, head.head, seconds=_LOOK_SECONDS)
        return True

    async def _do_open_work(
        self,
        conversation: str,
        claim: _Claim,
        *,
        resume: bool,
    ) -> tuple[bool, int]:
        """Do the open work. Return whether there was work, and the seq of the history at the last search for work."""
        lease, head, setting, took_over = claim
        history = self.history(conversation)
        worked, released, upto = False, False, history.seq
        try:
            while not released:
                await history.catch_up(head)
                head = 0
                if setting is None:
                    setting = await self._agents.setting(conversation)
                # Raises `ConfigError` before a run starts if no model is set up.
                self._agents.agent_of(setting)
                place = _place_of(self._agents.folder_of(setting))
                run = await self._start_next_run(
                    history, lease, place, resume=resume, took_over=took_over
                )
                upto = history.seq
                if run is None:
                    break
                resume, took_over, worked = False, False, True
                acting = await self._make_run(history, lease, run, setting)
                # Another choice counts for the next run.
                setting = None
                ended = await self._perform(acting)
                released, upto = acting.released, history.seq
                await self.wake_parent(conversation)
                if ended == "completed":
                    self._agents.handle_answer(conversation)
                if ended == "lost" or (
                    ended == "parked" and not _has_unseen_change(history.turns)
                ):
                    await history.catch_up()
                    # The new owner continues the work.
                    upto = ALL_SEQS if ended == "lost" else upto
                    break
        except LeaseLost:
            upto = ALL_SEQS
            log.info("%s was taken over.", conversation, extra={"action": "taken_over"})
        finally:
            if not released:
                await self._release(lease)
        self._schedule_expiry_check(history)
        return worked, upto

    def _schedule_expiry_check(self, history: History) -> None:
        """Set a timer for the expiry of approvals and tool calls, so an unanswered approval is denied in time."""
        run = history.turns.run
        calls = run.open if run is not None else []
        ends = [
            call.approval.expires_at
            for call in calls
            if call.approval and not call.answered
        ]
        late = [call.handed_at + int(call.started.deadline * 1e6) for call in calls
                if call.started and call.handed and not call.handed.asks]  # fmt: skip
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
        """Return the folded history of the conversation. The history may lag behind the journal."""
        feed = self._feeds.of(conversation)
        feed.worker_needs_history = True
        self._recent.pop(conversation, None)
        self._recent[conversation] = None
        excess = len(self._recent) - HISTORIES_MAX
        if excess > 0:
            # A conversation with a worker is in use, even if the caller asks for another conversation.
            in_use = {conversation, *self._tasks}
            idle = [name for name in self._recent if name not in in_use]
            for oldest in idle[:excess]:
                del self._recent[oldest]
                self._feeds.forget_history(oldest)
                self._rendered.pop(oldest, None)
                self._agents.handle_eviction(oldest)
        return feed.history

    async def _make_run(
        self, history: History, lease: Lease, run: str, setting: Setting
    ) -> Run:
        rendered = self._rendered.setdefault(
            history.conversation, Rendered(self._journal)
        )
        agent = self._agents.agent_of(setting)
        project, explain_folder = setting.project, None
        if project is not None and project.folder:
            explain_folder = partial(self._agents.explain_folder, project)
        services = replace(
            self._services,
            folder=self._agents.folder_of(setting),
            mode=await self._restrict_mode(history.conversation, setting.mode),
            explain_folder=explain_folder,
        )
        return Run(agent, services, history, lease, run, rendered)

    async def _perform(self, acting: Run) -> Ended:
        """Perform the run to the end. An unexpected error ends the run as failed."""
        history, run = acting.history, acting.id
        try:
            return await acting.go()
        except (Gone, LeaseLost, NoSuchConversation, StoreUnavailable):
            raise
        except Exception as error:
            log.exception(
                "A run ended in a surprise.", extra={"action": "run_failed", "run": run}
            )
            surprise = "Something went wrong inside Tenax; the log says what."
            reason = str(error) if isinstance(error, TenaxError) else surprise
            await history.catch_up()
            await self._append(
                history,
                acting.lease,
                run,
                *acting.seal_partial(),
                RunFinished("failed", reason),
            )
            return "failed"

    async def _start_next_run(
        self,
        history: History,
        lease: Lease,
        place: str,
        *,
        resume: bool,
        took_over: bool,
    ) -> str | None:
        """Return the next run, with the start stored; `None` if no work is left.

        `place` is the host and folder of the tools.
        """
        turns = history.turns
        if turns.run is not None:
            if not took_over and _is_parked(turns.run):
                run = await self._unpark(history, lease, turns.run)
                if run is not None:
                    await self.wake_parent(history.conversation)
                return run
            reason = "Somebody else took over." if took_over else GONE
            await self._append(
                history, lease, turns.run.id, *interruption(turns.run, reason)
            )
            # Other events may have arrived meanwhile.
            await history.catch_up()
            turns = history.turns
        before = turns.resumable
        if before is not None and (resume or self._may_resume(turns, before, place)):
            return await self._start_run(history, lease, place, [], before)
        while history.turns.waiting:
            inputs = [next(iter(history.turns.waiting))]
            try:
                return await self._start_run(history, lease, place, inputs, None)
            except HeadMoved:
                # The person withdrew the message in the meantime.
                await history.catch_up()
        return None

    async def _start_run(
        self,
        history: History,
        lease: Lease,
        place: str,
        inputs: list[int],
        before: OpenRun | None,
    ) -> str:
        run = self._journal.ids.run()
        instance = await self._instance()
        resumes, attempt = None, 0
        if before is not None:
            resumes, attempt = before.id, before.started.attempt + (not before.planned)
        started = RunStarted(inputs, resumes, attempt, place, instance)
        await self._append(history, lease, run, started)
        return run

    async def _unpark(self, history: History, lease: Lease, run: OpenRun) -> str | None:
        """Return the id of a waiting run if the run can continue; `None` while an unexpired approval is open.

        A newer message of a person denies the open approvals. A run stopped or with a sub-agent continues at once.
        """
        if history.turns.stopped:
            return run.id
        waits = run.waits
        now = self._journal.clock.now_us()
        person_wrote = any(
            not message.system for message in history.turns.waiting.values()
        )
        if waits and person_wrote and run.step is not None:
            denials: list[Event] = [
                ApprovalAnswered(
                    run.step.message,
                    open_call.call.id,
                    "no",
                    why=_INSTEAD.get(open_call.call.name, _NEWER),
                )
                for open_call in waits
            ]
            await self._append(history, lease, run.id, *denials)
        elif not run.handed and any(
            open_call.approval and open_call.approval.expires_at >= now
            for open_call in waits
        ):
            return None
        return run.id

    async def _append(
        self, history: History, lease: Lease, run: str, *events: Event
    ) -> None:
        stored = await self._journal.append(
            history.conversation, events, lease=lease, run=run
        )
        await history.take_stored(stored)

    def _may_resume(self, turns: Turns, before: OpenRun, place: str) -> bool:
        """Return whether an interrupted run resumes without a person."""
        policy = self._policy
        age_us = self._journal.clock.now_us() - before.finished_at
        return (
            policy.resume == "auto"
            and not before.stop
            and before.started.attempt + (not before.planned) <= RESUMES_MAX
            and age_us < RESUME_SECONDS * 1e6
            and turns.newest_person <= max(before.inputs, default=0)
            and before.started.place == place
        )


def _place_of(folder: Path) -> str:
    """Return the host and the folder. An interrupted run resumes automatically only in the same folder."""
    return f"{platform.node()}:{folder}"


def _has_unseen_change(turns: Turns) -> bool:
    """Return whether the history holds a stop or an answer not yet seen by the run, which has just begun to wait."""
    calls = turns.run.open if turns.run is not None else []
    return turns.stopped or any(call.answered and not call.handed for call in calls)


def _is_parked(run: OpenRun) -> bool:
    """Return whether a run waits, or waited, for a person or a sub-agent, and has no work in progress."""
    return run.at_rest and any(
        open_call.approval or open_call.handed for open_call in run.open
    )
