"""One run of the agent: from inputs to an answer, each step an intent before and an outcome after.

Everything that it decides it decides from the journal (`History`), and everything it does is appended under the lease of
the run; when the lease is lost it stops, and what it still has is stored as late output. While the store is away it
finishes the step in flight, whose outcome is held in the spool, and begins nothing: an intent that cannot be stored is
not acted upon.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from tenax.agent.history import History
from tenax.agent.partials import HOLD_SECONDS, Partials
from tenax.agent.recovery import UNKNOWN_OUTCOME, interruption, ship
from tenax.agent.spooling import Held
from tenax.errors import (
    Gone,
    LeaseLost,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
    TenaxError,
)
from tenax.events import (
    BODY_BYTES_MAX,
    ApprovalAsked,
    Blob,
    ContextOpened,
    Event,
    FilesChanged,
    MessageAssistant,
    MessagePartial,
    ModelFailed,
    ModelRequested,
    ReplyDelta,
    RunFinished,
    ToolFinished,
    ToolHanded,
    ToolStarted,
)
from tenax.journal import LOCAL_USER
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Lease, Recorded
from tenax.journal.journal import Place
from tenax.memory.memory import Memory
from tenax.models.base import RETRIED, Answer, Failure, Model, Thought, ToolSpec, Words
from tenax.models.render import contents_of
from tenax.parts import File, Image, Part, Text, ToolCall, text_of
from tenax.text import Scrubber, scrub
from tenax.tools.base import Call, Elsewhere, Tool
from tenax.tools.gate import Allowed, Asks, Done, Gate
from tenax.views.context import Context, Message
from tenax.views.open_work import OpenCall, OpenRun, Step, Turns
from tenax.workspace.changes import Changes, Watch

__all__ = ["RENDERER", "Agent", "Ended", "Limits", "Rendered", "Run"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_WATCH_PAUSE = 0.03
_TELL_SECONDS = 1.0
_RESTING_BYTES_MAX = 4_000_000
ANSWER_BYTES_MAX = BODY_BYTES_MAX - 64 * 1024
"""An answer is one event, and so is what there is of it when it is cut off. The rest is for what stands around it."""
RENDERER = 2
"""Moves when the same events would be rendered to other bytes."""
Ended = Literal["completed", "failed", "cancelled", "parked", "lost"]


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a run."""

    steps: int = 50
    silence: float = 120.0
    """How long a model may be silent."""
    retries: int = 4
    pause: float = 1.0
    """Before the first retry; then twice as long each time, up to a minute."""
    approval_seconds: float = 86_400.0
    dollars_conversation: float | None = None
    dollars_day: float | None = None
    lease_grace: float = 30.0


@dataclass(frozen=True, eq=False)
class Agent:
    """What answers: immutable. What a turn changes lives in the turn, what was said in the journal."""

    models: tuple[Model, ...]
    """The first one that works is asked."""
    prompt: str
    gate: Gate
    settings: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    memory: Memory | None = None
    """What it knows from elsewhere. It never holds a turn: there is a deadline, and nothing that it raises."""
    instructions: Callable[[], str] | None = None
    """What files want it to know. It is read when a stretch begins, and reads from a disk."""

    @cached_property
    def signature(self) -> str:
        """Changes when requests would begin otherwise."""
        specs = msgspec.json.encode(self.gate.specs())
        told = msgspec.json.encode(
            [
                self.prompt,
                self.settings,
                [(each.name, each.sees) for each in self.models],
                RENDERER,
            ]
        )
        return hashlib.sha256(told + specs).hexdigest()


class Kin(Protocol):
    """The conversation whose call a run works for, and those in which its own calls go on."""

    async def payer(self, conversation: str) -> str:
        """The conversation whose budget it is."""

    async def wanted(self, history: History) -> bool:
        """Whether somebody still waits for what the open run does."""

    async def stop(self, conversation: str) -> None:
        """Ask the run there to stop."""


class Rendered:
    """Messages as the bytes that are sent, each rendered once in an epoch, also where one run follows another."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal
        self._of: tuple[str, int] = ("", -1)
        self._known: dict[int, tuple[Message, bytes]] = {}

    async def body(
        self,
        model: Model,
        history: History,
        prompt: str,
        tools: Sequence[ToolSpec],
        inputs: Sequence[int],
    ) -> bytes:
        """The next request. What is attached is read first; then nothing waits, so it is all of one moment."""
        contents: dict[Part, str | None] = {}
        while (
            wanted := self._attached(model, history.context, inputs) - contents.keys()
        ):
            contents |= await contents_of(
                wanted, self._journal.get_blob, self._journal.apart
            )
        context, known = history.context, self._known
        messages = []
        for each in context.items:
            found = known.get(each.nth)
            if found is None or found[0] is not each.message:
                found = known[each.nth] = (
                    each.message,
                    model.message(each.message, contents),
                )
            messages.append(found[1])
        messages += [model.message(each, contents) for each in context.end(inputs)]
        settings = context.opened.settings if context.opened is not None else {}
        return model.body(prompt, tools, messages, settings)

    def _attached(
        self, model: Model, context: Context, inputs: Sequence[int]
    ) -> set[Part]:
        """Files, and pictures where they are seen, in what is not rendered yet."""
        if self._of != (model.name, context.epoch):
            self._of, self._known = (model.name, context.epoch), {}
        shown = (
            (File, Image)
            if context.opened is not None and context.opened.sees
            else (File,)
        )
        known = self._known
        new = [each.message for each in context.items
               if (found := known.get(each.nth)) is None or found[0] is not each.message]  # fmt: skip
        return {
            part
            for each in new + context.end(inputs)
            for part in each.parts
            if isinstance(part, shown)
        }

    def rest(self) -> None:
        """A run has ended. What is long, pictures above all, is rendered again by the next one."""
        if sum(len(sent) for _, sent in self._known.values()) > _RESTING_BYTES_MAX:
            self._known = {}


class Run:
    """One run, under its lease."""

    def __init__(
        self,
        agent: Agent,
        journal: AsyncJournal,
        history: History,
        lease: Lease,
        run: str,
        *,
        folder: Path,
        held: Held,
        asks: bool,
        compact: Callable[[Run], Awaitable[bool]],
        kin: Kin,
        changes: Changes,
        rendered: Rendered,
    ) -> None:
        self.agent = agent
        self.journal = journal
        self.history = history
        self.lease = lease
        self.id = run
        self.rendered = rendered
        self.overflow: int | None = None
        """What the provider said its context holds, when a request was too long."""
        self._folder = folder
        self._changes = changes
        self._spool = held
        self._asks = asks
        self._make_room = compact
        self._kin = kin
        self._elsewhere = False
        """Some call goes on in another conversation."""
        self._nth_model = 0
        self._failures = 0
        """Calls of this model that failed, one after the other."""
        self._stop = asyncio.Event()
        self._taken = asyncio.Event()
        self._late: list[Event] = []
        self._held = False
        self._renewed_at = journal.clock.monotonic()
        self._partials: Partials | None = None
        self._prompt: tuple[ContextOpened, str] | None = None
        self._recalled = False
        self._looked = False
        self._shared: bool | None = None
        """Whether several people write here, as it was when the run began."""

    # -- the run ---------------------------------------------------------------------------------------------

    async def go(self) -> Ended:
        """Answer. The run is finished, parked or lost when this returns."""
        watcher = asyncio.create_task(
            self._watch(self.history.seq), name=f"watch {self.id}"
        )
        try:
            return await self._steps()
        except LeaseLost:
            await self._leave_late()
            return "lost"
        except asyncio.CancelledError:
            await self._cut_off("Tenax was stopped.")
            raise
        finally:
            watcher.cancel()
            self.rendered.rest()

    async def _steps(self) -> Ended:
        while True:
            await self._look()
            run = self._open_run()
            if self.turns.stopped or not await self._while_away(
                partial(self._kin.wanted, self.history)
            ):
                return await self._cancel(run)
            if run.step is not None and run.open:
                if not await self._use_tools(run.step):
                    return "parked"
                continue
            if run.answered:
                return await self._finish("completed")
            if run.requests >= self.agent.limits.steps:
                return await self._finish(
                    "failed",
                    f"It took {run.requests} steps without coming to an end, and was stopped.",
                )
            if why := await self._over_budget():
                return await self._finish("failed", why)
            await self._open_epoch()
            await self._recall(run)
            if self.history.context.opened is None or await self._make_room(self):
                # something was erased meanwhile, or summarised: what requests begin with is another
                continue
            ended = await self._ask()
            if ended is not None:
                return ended

    @property
    def turns(self) -> Turns:
        return self.history.turns

    @property
    def conversation(self) -> str:
        return self.history.conversation

    @property
    def model(self) -> Model:
        return self.agent.models[min(self._nth_model, len(self.agent.models) - 1)]

    def _open_run(self) -> OpenRun:
        run = self.turns.run
        if run is None or run.id != self.id:
            raise LeaseLost("Another run has the conversation.")
        return run

    async def _look(self) -> None:
        """Fold what came since the last step. Before the first one whoever started the run has just done so."""
        if self._looked or self.turns.run is None or self.turns.run.id != self.id:
            await self._catch_up()
        self._looked = True

    async def _catch_up(self) -> None:
        await self._while_away(self.history.catch_up)

    async def _while_away(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do this with the store, however long the store is away."""
        pause = 0.1
        while True:
            try:
                return await work()
            except StoreUnavailable as error:
                log.warning(
                    "%s Trying again.",
                    error,
                    extra={"action": "store_away", "run": self.id},
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)

    async def _watch(self, seq: int) -> None:
        """Notice a stop, an interruption or a take-over while something is under way. It need not hurry."""
        place = Place(seq, self.journal.incarnation)
        while True:
            await asyncio.sleep(_WATCH_PAUSE)
            # the run itself meets whatever is wrong
            with contextlib.suppress(TenaxError):
                await self.journal.wait(self.conversation, place.after, seconds=1.0)
                page = await self.journal.read(self.conversation, after=place.after)
                for each in (
                    page if place.passed(page, self.journal.incarnation) else ()
                ):
                    if (
                        each.kind == "message.user"
                        and getattr(each.event, "how", "") == "interrupt"
                    ) or (each.kind == "run.stop" and each.run in {None, self.id}):
                        self._stop.set()
                    elif each.kind == "run.finished" and each.run == self.id:
                        self._taken.set()

    # -- the store -------------------------------------------------------------------------------------------

    async def record(self, *events: Event, held: bool = False) -> list[Recorded]:
        """Append under the lease, and keep trying while the store is away.

        `held`: these have happened. If the store does not take them within a second they are held on this host too.
        """
        happened = [event for event in events if not isinstance(event, RunFinished)]
        append = asyncio.ensure_future(self._append(events))
        try:
            done, _ = await asyncio.wait(
                {append}, timeout=HOLD_SECONDS if held else None
            )
            if not done:
                for event in happened:
                    await self._hold(event)
            stored = await append
        except LeaseLost:
            self._late += happened if held else ()
            raise
        except asyncio.CancelledError:
            # it is stored or refused all the same: what is appended next shall stand after it
            append.cancel()
            await asyncio.wait({append}, timeout=HOLD_SECONDS)
            raise
        if not events[-1].code:  # partials may be held further than they are stored
            await self._let_go()
        return stored

    async def _append(self, events: Sequence[Event]) -> list[Recorded]:
        append_id: bytes | None = None

        async def once() -> list[Recorded]:
            nonlocal append_id
            try:
                return await self.journal.append(
                    self.conversation,
                    events,
                    lease=self.lease,
                    run=self.id,
                    append_id=append_id,
                )
            except OutcomeUnknown as unknown:
                append_id = unknown.append_id
                raise StoreUnavailable(str(unknown)) from unknown

        stored = await self._while_away(once)
        await self.history.took(stored)
        await self._renew()
        return stored

    async def _hold(self, event: Event) -> None:
        self._held = True
        await self._spool.hold(self.conversation, self.id, event)

    async def _let_go(self) -> None:
        """All that was held of this run is in the store."""
        if self._held:
            self._held = False
            await self._spool.let_go(self.conversation, self.id)

    async def _renew(self, work: float = 0.0) -> None:
        """A run lives by its steps: what it stores moves the lease on, past the longest silence, or past `work`."""
        limits = self.agent.limits
        seconds = max(limits.silence, work) + limits.lease_grace
        now = self.journal.clock.monotonic()
        if work > limits.silence or now - self._renewed_at > limits.lease_grace / 2:
            self._renewed_at = now
            self.lease = await self._while_away(
                lambda: self.journal.renew(self.lease, seconds=seconds)
            )

    # -- the model -------------------------------------------------------------------------------------------

    async def _open_epoch(self) -> None:
        """Say what requests begin with, if that is another than it was."""
        opened, specs = self.history.context.opened, self.agent.gate.specs()
        was_shared = opened is not None and opened.shared
        shared = was_shared
        if (
            self.agent.memory is not None
            and not shared
            and (opened is None or opened.memory is not None)
        ):
            if self._shared is None:
                self._shared = await self._while_away(
                    partial(self.journal.shared, self.conversation)
                )
            shared = self._shared
        begins = (self.agent.signature, shared, self.model.name)
        here = not self._opened_elsewhere()
        if (
            here
            and opened is not None
            and (opened.signature, opened.shared, opened.model) == begins
        ):
            return
        # What the prompt remembered for one person is not for several.
        stays = opened is not None and shared == was_shared and here
        memory = (
            opened.memory if opened is not None and stays else await self._remembered()
        )
        text = await self._prompt_with(memory)
        prompt = await self._while_away(lambda: self.journal.put_blob(text.encode()))
        tools = await self._while_away(
            lambda: self.journal.put_blob(msgspec.json.encode(specs))
        )
        reason: Literal["start", "changed"] = "start" if opened is None else "changed"
        await self.record(
            ContextOpened(
                reason,
                self.model.name,
                Blob(prompt),
                Blob(tools),
                self.agent.settings,
                RENDERER,
                memory=memory,
                signature=self.agent.signature,
                shared=shared,
                sees=self.model.sees,
            )
        )
        await self._catch_up()

    def _opened_elsewhere(self) -> bool:
        """Return whether the prompt may hold instruction files and skills of a folder that is not this user's.

        Earlier versions gave all users the owner's folder. Whatever folder the owner worked in was the owner's own.
        """
        if self.journal.user == LOCAL_USER:
            return False
        opener = self.turns.runs.get(self.history.context.opened_in or "")
        return opener is None or opener.started.folder != str(self._folder)

    async def _remembered(self) -> Blob | None:
        """What the prompt says in this stretch beside the agent's own words, stored: instruction files, and the memory."""
        parts = []
        if self.agent.instructions is not None:
            parts.append(await self.journal.apart(self.agent.instructions))
        if self.agent.memory is not None:
            # a stretch without it is better than none
            with contextlib.suppress(TenaxError):
                parts.append(await self.agent.memory.block(self.conversation))
        said = "\n\n".join(filter(None, parts)).encode()
        return (
            Blob(await self._while_away(lambda: self.journal.put_blob(said)))
            if said
            else None
        )

    async def _prompt_with(self, memory: Blob | None) -> str:
        if memory is None:
            return self.agent.prompt
        said = await self._while_away(lambda: self.journal.get_blob(memory.blob))
        return f"{self.agent.prompt}\n\n{(said or b'').decode()}"

    async def _prompt_now(self) -> str:
        """What this request begins with: the agent's words, and what the stretch remembers."""
        opened = self.history.context.opened
        assert opened is not None
        if self._prompt is None or self._prompt[0] is not opened:
            self._prompt = opened, await self._prompt_with(opened.memory)
        return self._prompt[1]

    async def _recall(self, run: OpenRun) -> None:
        """Before the first request: what memories know about what was said. A run that goes on was told already."""
        if (
            self.agent.memory is None
            or run.requests
            or run.started.resumes is not None
            or self._recalled
        ):
            return
        self._recalled = True
        inputs = set(run.inputs)
        asked = [
            each.message
            for each in self.history.context.items
            if each.person and inputs & set(each.seqs)
        ]
        words = "\n".join(text_of(each.parts) for each in asked)
        found = await self.agent.memory.recall(
            self.conversation, words, turn=len(self.turns.runs)
        )
        if found is not None:
            await self.record(found)
            await self._catch_up()

    async def _over_budget(self) -> str:
        """Why no more may be spent, if so. Only what has a price counts (docs/CONFIGURATION.md)."""
        limits = self.agent.limits
        here = await self._while_away(partial(self._kin.payer, self.conversation))
        for limit, conversation, where in (
            (limits.dollars_conversation, here, "this conversation"),
            (limits.dollars_day, None, "today (UTC)"),
        ):
            if limit is None:
                continue
            spent = await self._while_away(partial(self.journal.spent, conversation))
            if spent.cost >= limit:
                return f"The budget for {where} is used up: {spent.cost:.2f} of {limit:.2f} US dollars. Raise it in the configuration."
        return ""

    async def _ask(self) -> Ended | None:
        """One call of the model. None: go on."""
        model, steers = self.model, self.turns.steers
        prompt = await self._prompt_now()
        specs = self.agent.gate.specs()
        body = await self._while_away(
            lambda: self.rendered.body(model, self.history, prompt, specs, steers)
        )
        (requested,) = await self.record(
            ModelRequested(
                self.history.seq,
                hashlib.sha256(body).hexdigest(),
                model.name,
                self.agent.limits.silence,
                steers,
            )
        )
        outcome = await self._stream(model, body, requested.seq)
        whole = self._partials.whole if self._partials is not None else ""
        self._partials = None
        match outcome:
            case Answer(parts, usage, finish):
                answer = MessageAssistant(
                    parts, requested.seq, model.name, usage, finish
                )
                self.overflow, self._failures = None, 0
                if any(isinstance(part, ToolCall) for part in parts):
                    await self.record(answer, held=True)
                    return None
                return await self._finish("completed", answer=answer)
            case Failure() as failure:
                await self._seal(requested.seq, whole)
                return await self._failed(requested.seq, failure)
            case None:
                await self._seal(requested.seq, whole)
                return None  # it was asked to stop, and the next step sees to that

    async def _seal(self, request: int, text: str) -> None:
        """Text that was cut off becomes a fact before anything replaces it."""
        if text:
            await self.record(MessagePartial([Text(text)], request), held=True)

    async def _stream(
        self, model: Model, body: bytes, request: int
    ) -> Answer | Failure | None:
        """Stream an answer into the store. None if it was stopped."""

        async def store(offset: int, text: str) -> None:
            await self.record(ReplyDelta(request, offset, text))

        async def hold(offset: int, text: str) -> None:
            await self._hold(ReplyDelta(request, offset, text))

        self._partials = partials = Partials(store, hold)
        reading = asyncio.create_task(
            self._read(model, body, partials), name=f"model {self.id}"
        )
        try:
            return await self.unless_stopped(reading, self._taken)
        finally:
            await partials.end()

    async def _read(
        self, model: Model, body: bytes, partials: Partials
    ) -> Answer | Failure:
        scrubber = Scrubber()  # a model may repeat what it recalls, fence and all
        room = ANSWER_BYTES_MAX
        async with contextlib.aclosing(
            model.stream(body, silence=self.agent.limits.silence)
        ) as stream:
            try:
                async for piece in stream:
                    match piece:
                        case Words(text):
                            room -= len(msgspec.json.encode(text))
                            if room < 0:
                                return _endless(model)
                            partials.add(scrubber.feed(text))
                        case Thought():
                            partials.add("")
                        case Answer(parts):
                            fits = len(msgspec.json.encode(parts)) <= ANSWER_BYTES_MAX
                            return _scrubbed(piece) if fits else _endless(model)
                        case Failure():
                            return piece
            finally:
                partials.add(scrubber.finish())
        return Failure("dropped", f"{model.name} ended its answer without an end.")

    async def unless_stopped(
        self, task: asyncio.Task[T], *also: asyncio.Event
    ) -> T | None:
        """The task's result, or None: then the run was asked to stop, and the task has been."""
        stops = [asyncio.create_task(each.wait()) for each in (self._stop, *also)]
        try:
            await asyncio.wait({task, *stops}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for stop in stops:
                stop.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _failed(self, request: int, failure: Failure) -> Ended | None:
        """A call failed: try again, try the next model, make room, or say why not."""
        limits, last = self.agent.limits, len(self.agent.models) - 1
        wait: float | None = None
        if failure.why == "overflow" and self.overflow is None:
            self.overflow, wait = failure.limit or 1, 0.0
        elif failure.why in RETRIED and self._failures < limits.retries:
            pause = min(limits.pause * 2**self._failures, 60.0) * random.uniform(  # noqa: S311
                0.75, 1.25
            )
            wait = max(pause, failure.retry_after or 0.0)
            self._failures += 1
        elif self._nth_model < last:
            self._nth_model, self._failures, wait = self._nth_model + 1, 0, 0.0
        await self.record(ModelFailed(request, failure.why, failure.message, wait))
        if wait is None:
            return await self._finish(
                "failed", f"{failure.message} {failure.hint}".strip()
            )
        await self._pause(wait)
        return None

    async def _pause(self, seconds: float) -> None:
        """Wait, unless it is asked to stop. The lease is kept meanwhile."""
        until = self.journal.clock.monotonic() + seconds
        while (
            left := until - self.journal.clock.monotonic()
        ) > 0 and not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, self.agent.limits.lease_grace)):
                    await self._stop.wait()
            await self._renew()

    # -- tools -----------------------------------------------------------------------------------------------

    async def _use_tools(self, step: Step) -> bool:
        """Make the calls of a step. False: some of them wait for a person."""
        ready: list[tuple[OpenCall, Allowed]] = []
        asks: list[Event] = []
        waits = False
        for each in step.open:
            verdict = self._weigh(step, each)
            if isinstance(verdict, Allowed):
                ready.append((each, verdict))
            elif isinstance(verdict, Done):
                await self._finished(step, each, verdict)
            else:
                waits = True
                if each.asked is None:
                    expires = self.journal.clock.now_us() + int(
                        self.agent.limits.approval_seconds * 1e6
                    )
                    asks.append(ApprovalAsked(step.message, each.call.id, each.call.name, each.call.arguments,
                                              verdict.touches, expires))  # fmt: skip
        if asks:
            await self.record(*asks)
        self._elsewhere = False
        await self._perform_all(step, ready)
        return not (waits or self._elsewhere) or self._stop.is_set()

    def _weigh(self, step: Step, each: OpenCall) -> Allowed | Asks | Done:
        # whatever is allowed besides
        if each.answered is not None and each.answered.answer == "no":
            return Done("denied", each.answered.why or "The person said no.")
        gate, call = self.agent.gate, each.call
        said = each.answered.words if each.answered is not None else ""
        where = Call(
            self.journal.user or "",
            self.conversation,
            step.message,
            call.id,
            self._folder,
            said,
        )
        verdict = gate.weigh(
            call.name, call.arguments, where, allowed=self.turns.allowed
        )
        if not isinstance(verdict, Asks):
            return verdict
        if each.answered is not None and each.asked is not None:
            return self._approved(verdict, each.asked)
        if (
            each.asked is not None
            and each.asked.expires_at < self.journal.clock.now_us()
        ):
            return Done("denied", "Nobody answered in time, so it was not allowed.")
        if not self._asks:
            way = (
                f" This rule would: {verdict.rule.command}"
                if verdict.rule is not None
                else ""
            )
            return Done(
                "denied",
                f"Nobody is there to be asked, and no rule allows it, so it was not done.{way}",
            )
        return verdict

    def _approved(self, asks: Asks, asked: ApprovalAsked) -> Allowed | Done:
        """The answer is good for exactly what the person saw."""
        if asks.touches != asked.touches:
            return Done(
                "denied",
                "What it would touch is not what was approved, so it was not done.",
            )
        return self.agent.gate.approve(asks, asked.arguments)

    async def _perform_all(
        self, step: Step, ready: list[tuple[OpenCall, Allowed]]
    ) -> None:
        """Calls without effects side by side, the others one after the other, in the order of the answer."""
        for pure, calls in groupby(ready, lambda call: call[1].tool.effect == "pure"):
            if pure:
                await asyncio.gather(
                    *(self._perform(step, each, permit) for each, permit in calls)
                )
            else:
                for each, permit in calls:
                    await self._perform(step, each, permit)

    async def _perform(self, step: Step, each: OpenCall, permit: Allowed) -> None:
        if self._stop.is_set():
            return
        tool = permit.tool
        if each.started is not None and tool.effect == "once":
            await self.record(
                ToolFinished(step.message, each.call.id, "unknown", UNKNOWN_OUTCOME),
                held=True,
            )
            return
        if each.handed is None:
            await self.record(
                ToolStarted(
                    step.message, each.call.id, tool.name, tool.effect, tool.seconds
                )
            )
            await self._renew(tool.seconds)
        approved = (
            each.asked.arguments if permit.approved and each.asked is not None else None
        )
        async with self._watched(step, each, permit) as watch:
            task = asyncio.create_task(
                self.agent.gate.perform(permit, approved_arguments=approved)
            )
            try:
                done = await self.unless_stopped(task)
            except asyncio.CancelledError:
                await self._tell_changes(watch)
                raise
            changed = await watch.events() if watch is not None else []
            if done is not None and done.at is None:
                await self._finished(step, each, done, *changed)
            elif changed:
                await self.record(*changed)
            if watch is not None:
                watch.stored()
        if done is not None and done.at is not None:
            await self._handed(step, each, tool, done.at)

    def _watched(
        self, step: Step, each: OpenCall, permit: Allowed
    ) -> contextlib.AbstractAsyncContextManager[Watch | None]:
        """What this call changes in the folder is found, unless it can change nothing there."""
        if permit.tool.effect == "pure" or each.handed is not None:
            return contextlib.nullcontext()
        also = [permit.touches] if permit.tool.paths else []
        return self._changes.around(
            self.conversation, self.id, step.message, each.call.id, also
        )

    async def _tell_changes(self, watch: Watch | None) -> None:
        """The process ends in the middle of a call. What that changed is told now: what moves later is not its own."""
        if watch is not None:
            with contextlib.suppress(TenaxError, TimeoutError):
                async with asyncio.timeout(_TELL_SECONDS):
                    if changed := await watch.events():
                        await self.record(*changed)
                    watch.stored()

    async def _handed(
        self, step: Step, each: OpenCall, tool: Tool[Any], at: Elsewhere
    ) -> None:
        """It goes on elsewhere: not for longer than the tool may take, but for the time that a person takes to answer."""
        until = each.handed_at + int(tool.seconds * 1e6)
        # it has its time from the answer on
        asked = each.handed is not None and each.handed.asks
        if (
            each.handed is not None
            and not (at.asks or asked)
            and self.journal.clock.now_us() > until
        ):
            await self._halt(at.conversation)
            late = f"{tool.name} was stopped because it took more than {tool.seconds:g} seconds."
            await self._finished(step, each, Done("failed", late))
            return
        self._elsewhere = True
        if each.handed is None or each.handed.asks != at.asks:
            await self.record(
                ToolHanded(step.message, each.call.id, at.conversation, at.asks)
            )

    async def _halt(self, conversation: str) -> None:
        """Stop what goes on there for a call."""
        with contextlib.suppress(Gone):
            await self._while_away(lambda: self._kin.stop(conversation))

    async def _finished(
        self, step: Step, each: OpenCall, done: Done, *changed: FilesChanged
    ) -> None:
        finished = ToolFinished(
            step.message, each.call.id, done.outcome, done.text, done.cut
        )
        await self.record(*changed, finished, held=True)

    # -- ends ------------------------------------------------------------------------------------------------

    async def _finish(
        self,
        outcome: Literal["completed", "failed", "cancelled"],
        why: str = "",
        answer: MessageAssistant | None = None,
    ) -> Ended:
        """The last words and the end of the run are one append."""
        if answer is not None:
            await self.record(answer, RunFinished(outcome, why), held=True)
        else:
            await self.record(RunFinished(outcome, why))
        with contextlib.suppress(StoreUnavailable):
            await self.journal.prune(self.conversation)
        return outcome

    async def _cancel(self, run: OpenRun) -> Ended:
        """The person stopped it. Every call gets its outcome, so that the conversation can go on."""
        for each in run.handed:
            await self._halt(each.handed.conversation)  # type: ignore[union-attr]
        for each in run.open:
            begun = each.started is not None
            text = (
                "It was stopped while it ran."
                if begun
                else "It was stopped before it ran."
            )
            await self.record(
                ToolFinished(run.step.message, each.call.id, "cancelled", text)  # type: ignore[union-attr]
            )
        return await self._finish("cancelled", "Stopped.")

    def cut(self) -> list[Event]:
        """What was cut off by a surprise, sealed."""
        run = self.turns.run
        if run is None or not run.request:
            return []
        said = self._partials.whole if self._partials is not None else run.said
        return [MessagePartial([Text(said)], run.request)] if said else []

    async def _cut_off(self, why: str) -> None:
        """The process ends: seal what there is, so that the run can be gone on with."""
        whole = self._partials.whole if self._partials is not None else ""
        try:
            async with asyncio.timeout(2.0):
                await self._catch_up()
                run = self.turns.run
                if run is not None and run.id == self.id:
                    run.said = whole or run.said
                    await self.record(*interruption(run, why, planned=True))
        except LeaseLost:
            await self._leave_late()
        except (TimeoutError, Refused) as error:
            log.warning(
                "A run is left to the next start: %s",
                error,
                extra={"action": "left", "run": self.id},
            )

    async def _leave_late(self) -> None:
        """The lease was taken: what is not stored yet is stored as late output, with this run."""
        late = list(self._late)
        if self._partials is not None:
            late.insert(0, ReplyDelta(0, 0, self._partials.whole))
        ship_late = partial(
            ship, self.journal.journal, self.conversation, self.id, late
        )
        await self._while_away(lambda: self.journal.apart(ship_late))
        await self._let_go()


def _endless(model: Model) -> Failure:
    return Failure(
        "refused",
        f"{model.name} says more than an answer can hold, and was stopped.",
        hint="Ask for less at once, or use another model.",
    )


def _scrubbed(answer: Answer) -> Answer:
    parts = [
        Text(scrub(part.text)) if isinstance(part, Text) else part
        for part in answer.parts
    ]
    return msgspec.structs.replace(answer, parts=parts)
