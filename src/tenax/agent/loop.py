"""A run of the agent: from inputs to an answer. Each step stores an intent before and an outcome after the work.

The run takes every decision from the journal (`History`) and appends every action under its lease. After the loss of
the lease the run stops, and its unstored output is stored as late output. During a store outage the run finishes the
current step, holds the outcome in the spool, and starts nothing new: an intent that cannot be stored is not acted upon.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from tenax.agent.history import History
from tenax.agent.partials import HOLD_SECONDS, OutputPartials, StreamedAnswer
from tenax.agent.recovery import (
    interruption,
    store_late_output,
    unknown_outcome,
    with_output,
)
from tenax.agent.spooling import OutputSpool
from tenax.agent.tour import TOUR
from tenax.clock import Timing
from tenax.concurrency import Backoff, run_in_own_thread
from tenax.errors import (
    Gone,
    HeadMoved,
    LeaseLost,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
    TenaxError,
    ToolFailed,
)
from tenax.events import (
    BODY_BYTES_MAX,
    DELEGATE,
    TEMPORARY,
    ApprovalAnswered,
    ApprovalAsked,
    Blob,
    ContextOpened,
    Event,
    FilesChanged,
    MemoryRecalled,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    Mode,
    ModelFailed,
    ModelRequested,
    ReplyDelta,
    RunFinished,
    RunStop,
    ToolFinished,
    ToolHanded,
    ToolOutput,
    ToolStarted,
)
from tenax.journal import LOCAL_USER
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Lease, Recorded
from tenax.models.base import RETRIED, Answer, Failure, Model, Thought, ToolSpec, Words
from tenax.models.render import contents_of
from tenax.parts import File, Image, Part, Reasoning, Text, ToolCall, text_of
from tenax.text import Scrubber, scrub
from tenax.tools.ask import Ask
from tenax.tools.base import Call, Elsewhere, Tool
from tenax.tools.gate import STOPPED, Allowed, Asks, Done, Gate, runs_in_plan_mode
from tenax.views.context import Context, Message
from tenax.views.open_work import OpenCall, OpenRun, Step, Turns

__all__ = [
    "RENDERER",
    "UNREMEMBERED",
    "Agent",
    "AgentMemory",
    "Ended",
    "FolderChanges",
    "Limits",
    "Rendered",
    "Run",
    "RunServices",
]

log = logging.getLogger(__name__)
T = TypeVar("T")

_NOTICED = frozenset({MessageUser.kind, RunFinished.kind, RunStop.kind})
"""Kinds of events that may stop a run, or that show the end of the run by another process."""
_RETRY_SECONDS_MAX = 60.0
_RESTING_BYTES_MAX = 4_000_000
ANSWER_BYTES_MAX = BODY_BYTES_MAX - 64 * 1024
"""Largest size of an answer, because an answer (or a cut-off part) is a single event.

The margin is for the other fields.
"""
RENDERER = 3
"""Version of the renderer. It changes when the same events would be rendered to different bytes.

From version 3 on, an epoch stores all parameters of its requests. Earlier versions sent the present `max_tokens`.
"""
_STORES_PARAMETERS = 3
_TOKEN_LIMITS = frozenset({"max_tokens", "max_completion_tokens"})
UNREMEMBERED = frozenset({DELEGATE, TEMPORARY, TOUR})
"""Sources of conversations without memory."""
Ended = Literal["completed", "failed", "cancelled", "parked", "lost"]
_MODE_NOTES: dict[Mode, str] = {
    "ask": "",
    "edits": "The person accepts changes of files in the conversation's folder without being asked.",
    "plan": (
        "This conversation is in plan mode: tools that change something are refused. Look around with the other tools, "
        "and describe the changes that you would make. The person can switch the mode."
    ),
}
"""By mode, the note for the model at the end of the prompt."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of a run."""

    steps: int = 50
    silence: float = 120.0
    """Longest silence of a model, in seconds."""
    retries: int = 4
    pause: float = 1.0
    """Seconds before the first retry. The pause doubles with each retry, up to a minute."""
    approval_seconds: float = 86_400.0
    dollars_conversation: float | None = None
    dollars_day: float | None = None
    lease_grace: float = 30.0


class AgentMemory(Protocol):
    """The interface of an agent's memory. A memory answers within a deadline and so never blocks a turn."""

    async def block(self, conversation: str) -> str:
        """Return the memory's text for the prompt, for a whole segment of the conversation."""

    async def recall(
        self, conversation: str, words: str, *, turn: int
    ) -> MemoryRecalled | None:
        """Return the memory's knowledge about the given words."""


@dataclass(frozen=True, eq=False)
class Agent:
    """An agent, immutable. State of a turn lives in the turn, and messages live in the journal."""

    models: tuple[Model, ...]
    """Models in order of preference. The first working model is asked."""
    prompt: str
    gate: Gate
    settings: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    memory: AgentMemory | None = None
    instructions: Callable[[], str] | None = None
    """Function that returns the text of instruction files. Called at the start of a segment; reads from the disk."""
    scope: str = ""
    """Identifies the project. A change of the scope reads the instruction files again, within a segment too."""

    @cached_property
    def signature(self) -> str:
        """A hash that changes when the start of a request would change."""
        specs = msgspec.json.encode(self.gate.specs())
        request_start = msgspec.json.encode(
            [
                self.prompt,
                self.settings,
                [(model.name, model.sees, model.parameters) for model in self.models],
                RENDERER,
            ]
        )
        digest = hashlib.sha256(request_start + specs).hexdigest()
        return f"{digest}.{self.scope}" if self.scope else digest

    def signature_in(self, mode: Mode) -> str:
        """Return the signature in a mode. The mode `ask` adds nothing to a request."""
        return self.signature if mode == "ask" else f"{self.signature}/{mode}"


def _scope_of(signature: str) -> str:
    """Return the scope of the agent with a signature."""
    return signature.partition("/")[0].partition(".")[2]


def _settings_of(model: Model, opened: ContextOpened | None) -> Mapping[str, Any]:
    """Return the parameters of a request in an epoch."""
    if opened is None:
        return model.parameters
    if opened.renderer >= _STORES_PARAMETERS:
        return opened.settings
    limits = {
        name: value for name, value in model.parameters.items() if name in _TOKEN_LIMITS
    }
    return {**limits, **opened.settings}


class ParentLink(Protocol):
    """The links of a run to its parent conversation and to the conversations of its own calls."""

    async def payer(self, conversation: str) -> str:
        """Return the conversation with the budget to use."""

    async def is_wanted(self, history: History) -> bool:
        """Return whether somebody still waits for the result of the open run."""

    async def stop(self, conversation: str) -> bool:
        """Ask the run in the conversation to stop."""

    async def mode(self, conversation: str) -> Mode:
        """Return the present mode of a conversation. A sub-agent is at least as restricted as its parent."""


class Rendered:
    """Messages rendered to bytes. Each message is rendered once per epoch, even across runs."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal
        self._of: tuple[str, int] = ("", -1)
        self._messages: dict[int, tuple[Message, bytes]] = {}
        self.prompt: tuple[ContextOpened, str] | None = None
        """The prompt of the epoch, which stays the same across runs."""

    async def body(
        self,
        model: Model,
        history: History,
        prompt: str,
        tools: Sequence[ToolSpec],
        inputs: Sequence[int],
    ) -> bytes:
        """Return the body of the next request.

        Attached blobs are read first. After that, nothing is awaited, so the body shows the context at a single moment.
        """
        contents: dict[Part, str | None] = {}
        while (
            missing := self._attached(model, history.context, inputs) - contents.keys()
        ):
            contents |= await contents_of(
                missing, self._journal.get_blob, self._journal.threads
            )
        context, rendered = history.context, self._messages
        messages = []
        for item in context.items:
            entry = rendered.get(item.nth)
            if entry is None or entry[0] is not item.message:
                entry = rendered[item.nth] = (
                    item.message,
                    model.message(item.message, contents),
                )
            messages.append(entry[1])
        messages += [
            model.message(message, contents) for message in context.end(inputs)
        ]
        return model.body(prompt, tools, messages, _settings_of(model, context.opened))

    def _attached(
        self, model: Model, context: Context, inputs: Sequence[int]
    ) -> set[Part]:
        """Return the files, and the pictures if the model sees pictures, of messages not rendered yet."""
        if self._of != (model.name, context.epoch):
            self._of, self._messages = (model.name, context.epoch), {}
        kinds = (
            (File, Image)
            if context.opened is not None and context.opened.sees
            else (File,)
        )
        rendered = self._messages
        new = [item.message for item in context.items
               if (entry := rendered.get(item.nth)) is None or entry[0] is not item.message]  # fmt: skip
        return {
            part
            for message in new + context.end(inputs)
            for part in message.parts
            if isinstance(part, kinds)
        }

    def drop_large(self) -> None:
        """Drop the rendered messages at the end of a run if they are large, mostly because of pictures.

        The next run renders them again.
        """
        if sum(len(data) for _, data in self._messages.values()) > _RESTING_BYTES_MAX:
            self._messages = {}


class RunCompactor(Protocol):
    """The interface of the compactor that a run uses before a request."""

    async def make_room(self, run: Run) -> bool:
        """Compact if the context is nearly full. Return whether the run has to check again."""


class CallWatch(Protocol):
    """The watch over the working folder during a call."""

    async def events(self) -> list[FilesChanged]:
        """Return the event to append with the outcome of the call, or an empty list if nothing changed."""

    def drop_snapshot(self) -> None:
        """Drop the snapshot, because the event is stored."""


class FolderChanges(Protocol):
    """The interface that a run uses to find the changes of a call in the working folder."""

    timing: Timing

    def watch(
        self,
        conversation: str,
        run: str,
        message: int,
        call: str,
        also: Sequence[str],
        *,
        folder: Path,
    ) -> contextlib.AbstractAsyncContextManager[CallWatch]:
        """Watch a folder during a call."""


@dataclass(frozen=True, eq=False)
class RunServices:
    """The parts of a process that all runs of a user share, and the folder of the conversation."""

    journal: AsyncJournal
    folder: Path
    spool: OutputSpool
    compactor: RunCompactor
    parent: ParentLink
    changes: FolderChanges
    asks: bool
    """Whether somebody can be asked for an approval."""
    mode: Mode = "ask"
    """The mode of the conversation at the start of the run."""
    explain_folder: Callable[[], str] | None = None
    """Function that returns the reason why the folder of a project cannot be used, or "". Blocks."""


class Run:
    """A run, under its lease."""

    def __init__(
        self,
        agent: Agent,
        services: RunServices,
        history: History,
        lease: Lease,
        run: str,
        rendered: Rendered,
    ) -> None:
        self.agent = agent
        self.journal = services.journal
        self.history = history
        self.lease = lease
        self.released = False
        """Whether the run has ended and its last append has released the lease."""
        self.id = run
        self.rendered = rendered
        self.overflow: int | None = None
        """Context size reported by the provider after a request was too long.

        1 means that the provider named no size, 0 means that the overflow has been handled.
        """
        self._folder = services.folder
        self._explain_folder = services.explain_folder
        self._mode = services.mode
        """The mode of the conversation, as last read."""
        self._changes = services.changes
        self._spool = services.spool
        self._can_ask = services.asks
        self._compactor = services.compactor
        self._parent = services.parent
        self._elsewhere = False
        """Whether a call continues in another conversation."""
        self._nth_model = 0
        self._failures = 0
        """Number of consecutive failed calls of the current model."""
        self._backoff = Backoff(agent.limits.pause, _RETRY_SECONDS_MAX, jitter=0.25)
        """Pauses between the retries."""
        self._stop = asyncio.Event()
        self._taken_over = asyncio.Event()
        self._late: list[Event] = []
        self._is_spooled = False
        self._call_seconds: list[float] = []
        """The time limits of the running calls."""
        self._renewed_at = self.journal.clock.monotonic()
        self._streamed: StreamedAnswer | None = None
        self._recalled = False
        self._has_folded = False
        self._began_at = 0
        """Seq folded at the start of the run. A message up to this seq stops nothing."""
        self._shared: bool | None = None
        """Whether several people write here, as of the start of the run."""

    # -- the run ---------------------------------------------------------------------------------------------

    async def go(self) -> Ended:
        """Answer. On return, the run is finished, parked or lost."""
        self._began_at = self.history.seq
        self.history.observers.add(self._notice)
        try:
            return await self._steps()
        except LeaseLost:
            await self._store_late_output()
            return "lost"
        except asyncio.CancelledError:
            await self._seal_run("Tenax was stopped.")
            raise
        finally:
            self.history.observers.discard(self._notice)
            self.rendered.drop_large()

    async def _steps(self) -> Ended:
        while True:
            await self._fold_new_events()
            run = self._open_run()
            if self.turns.stopped or not await self._retry_while_unavailable(
                partial(self._parent.is_wanted, self.history)
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
            reason = await self._find_spent_budget() or await self._find_lost_folder()
            if reason:
                return await self._finish("failed", reason)
            await self._open_epoch()
            await self._recall(run)
            if self.history.context.opened is None or await self._compactor.make_room(
                self
            ):
                # The context was erased or summarised in the meantime, so requests start differently now.
                continue
            ended = await self._call_model()
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

    async def _fold_new_events(self) -> None:
        """Fold the events stored since the last step.

        The first step needs no read, because the starter of the run has just folded them.
        """
        run = self.turns.run
        if self._has_folded or self.history.behind or run is None or run.id != self.id:
            await self._catch_up()
        self._has_folded = True

    async def _catch_up(self) -> None:
        await self._retry_while_unavailable(self.history.catch_up)

    async def _retry_while_unavailable(self, function: Callable[[], Awaitable[T]]) -> T:
        """Do work with the store, and retry as long as the store is unavailable."""
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                return await function()
            except StoreUnavailable as error:
                log.warning(
                    "%s Trying again.",
                    error,
                    extra={"action": "store_away", "run": self.id},
                )
                await backoff.sleep()

    def _notice(self, recorded: Recorded) -> None:
        """Notice a stop, an interruption or a take-over during work."""
        if recorded.seq <= self._began_at:
            return
        match recorded.event if recorded.kind in _NOTICED else None:
            case MessageUser(how="interrupt"):
                self._stop.set()
            case RunStop() if recorded.run in {None, self.id}:
                self._stop.set()
            case RunFinished() if recorded.run == self.id:
                self._taken_over.set()

    # -- the store -------------------------------------------------------------------------------------------

    async def record(
        self, *events: Event, has_happened: bool = False
    ) -> list[Recorded]:
        """Append under the lease, and retry while the store is unavailable.

        `has_happened` means that the events have already happened. If the store does not accept them within a second, they are
        also held on this host.
        """
        happened = [event for event in events if not isinstance(event, RunFinished)]
        append = asyncio.ensure_future(self._append(events))
        try:
            done, _ = await asyncio.wait(
                {append}, timeout=HOLD_SECONDS if has_happened else None
            )
            if not done:
                for event in happened:
                    await self._hold_event(event)
            stored = await append
        except LeaseLost:
            self._late += happened if has_happened else ()
            raise
        except asyncio.CancelledError:
            # The append may still be stored or refused. The next append has to come after it.
            append.cancel()
            await asyncio.wait({append}, timeout=HOLD_SECONDS)
            raise
        # The spool may hold more text than the stored partials, so partials do not clear the spool.
        if not events[-1].code:
            await self._clear_spool()
        return stored

    async def _append(self, events: Sequence[Event]) -> list[Recorded]:
        """Append events. The append that ends the run also releases the lease."""
        append_id: bytes | None = None
        ends = isinstance(events[-1], RunFinished)

        async def once() -> list[Recorded]:
            nonlocal append_id
            try:
                return await self.journal.append(
                    self.conversation,
                    events,
                    lease=self.lease,
                    run=self.id,
                    append_id=append_id,
                    release=ends,
                )
            except OutcomeUnknown as unknown:
                append_id = unknown.append_id
                raise StoreUnavailable(str(unknown)) from unknown

        stored = await self._retry_while_unavailable(once)
        await self.history.take_stored(stored)
        self.released = ends
        if not ends:
            await self._renew()
        return stored

    async def _hold_event(self, event: Event) -> None:
        self._is_spooled = True
        await self._spool.hold(self.conversation, self.id, event)

    async def _clear_spool(self) -> None:
        """Clear the spool of the run, because the store has all held events."""
        if self._is_spooled:
            self._is_spooled = False
            await self._spool.let_go(self.conversation, self.id)

    async def _renew(self, seconds_needed: float = 0.0) -> None:
        """Renew the lease past the longest silence and the time limits of the running calls, or past `seconds_needed`.

        Steps keep a run alive: each stored step renews the lease.
        """
        limits = self.agent.limits
        needs = (limits.silence, seconds_needed, *self._call_seconds)
        seconds = max(needs) + limits.lease_grace
        now = self.journal.clock.monotonic()
        if (
            seconds_needed > limits.silence
            or now - self._renewed_at > limits.lease_grace / 2
        ):
            self._renewed_at = now
            self.lease = await self._retry_while_unavailable(
                lambda: self.journal.renew(self.lease, seconds=seconds)
            )

    # -- the model -------------------------------------------------------------------------------------------

    async def _open_epoch(self) -> None:
        """Record the start of requests (prompt, tools, settings, model) if it differs from the recorded start."""
        opened, specs = self.history.context.opened, self.agent.gate.specs()
        was_shared = opened is not None and opened.shared
        shared = was_shared
        if (
            self.agent.memory is not None
            and not shared
            and (opened is None or opened.memory is not None)
        ):
            if self._shared is None:
                self._shared = await self._retry_while_unavailable(
                    partial(self.journal.shared, self.conversation)
                )
            shared = self._shared
        signature = self.agent.signature_in(self._mode)
        begins = (signature, shared, self.model.name)
        is_same_scope = (
            opened is None or _scope_of(opened.signature) == self.agent.scope
        ) and not self._opened_elsewhere()
        if (
            is_same_scope
            and opened is not None
            and (opened.signature, opened.shared, opened.model) == begins
        ):
            return
        # Memory text for a single person must not be shown to several people.
        stays = opened is not None and shared == was_shared and is_same_scope
        memory = (
            opened.memory
            if opened is not None and stays
            else await self._store_additions()
        )
        text = await self._prompt_with(memory)
        prompt, tools = await self._put_blobs(text.encode(), msgspec.json.encode(specs))
        reason: Literal["start", "changed"] = "start" if opened is None else "changed"
        stored = await self.record(
            ContextOpened(
                reason,
                self.model.name,
                Blob(prompt),
                Blob(tools),
                {**self.agent.settings, **self.model.parameters},
                RENDERER,
                memory=memory,
                signature=signature,
                shared=shared,
                sees=self.model.sees,
            )
        )
        await self._fold_stored(stored)

    async def _put_blobs(self, *contents: bytes) -> list[str]:
        """Store contents as blobs. Return their hashes."""
        journal = self.journal

        def put() -> list[str]:
            return [journal.journal.put_blob(content) for content in contents]

        return await self._retry_while_unavailable(lambda: journal.threads.run(put))

    async def _fold_stored(self, stored: Sequence[Recorded]) -> None:
        """Make sure that events stored by this run are folded, together with all earlier events."""
        if self.history.behind or self.history.seq < stored[-1].seq:
            await self._catch_up()

    def _opened_elsewhere(self) -> bool:
        """Return whether the prompt may contain instruction files and skills of another user's folder.

        Earlier versions gave the owner's folder to all users. For the owner, every folder is the owner's own.
        """
        if self.journal.user == LOCAL_USER:
            return False
        opener = self.turns.runs.get(self.history.context.opened_in or "")
        return opener is None or opener.started.folder != str(self._folder)

    async def _store_additions(self) -> Blob | None:
        """Store the segment's additions to the agent's prompt: instruction files and memory. Return their blob."""
        parts = []
        if self.agent.instructions is not None:
            parts.append(await self.journal.threads.run(self.agent.instructions))
        if self.agent.memory is not None:
            # A segment without memory is better than no segment.
            with contextlib.suppress(TenaxError):
                parts.append(await self.agent.memory.block(self.conversation))
        additions = "\n\n".join(filter(None, parts)).encode()
        return (
            Blob(
                await self._retry_while_unavailable(
                    lambda: self.journal.put_blob(additions)
                )
            )
            if additions
            else None
        )

    async def _prompt_with(self, memory: Blob | None) -> str:
        """Return the prompt: the agent's prompt, the additions of the segment, and a note about the mode."""
        parts = [self.agent.prompt, _MODE_NOTES[self._mode]]
        if memory is not None:
            additions = await self._retry_while_unavailable(
                lambda: self.journal.get_blob(memory.blob)
            )
            parts.insert(1, (additions or b"").decode())
        return "\n\n".join(filter(None, parts))

    async def _prompt_now(self) -> str:
        """Return the prompt of the request, which is the same for the whole epoch."""
        opened = self.history.context.opened
        assert opened is not None
        prompt = self.rendered.prompt
        if prompt is None or prompt[0] is not opened:
            prompt = opened, await self._prompt_with(opened.memory)
            self.rendered.prompt = prompt
        return prompt[1]

    async def _recall(self, run: OpenRun) -> None:
        """Ask the memory about the inputs, before the first request. A resumed run already has the recalled text."""
        if (
            self.agent.memory is None
            or run.requests
            or run.started.resumes is not None
            or self._recalled
        ):
            return
        self._recalled = True
        inputs = set(run.inputs)
        questions = [
            item.message
            for item in self.history.context.items
            if item.person and inputs & set(item.seqs)
        ]
        words = "\n".join(text_of(message.parts) for message in questions)
        recalled = await self.agent.memory.recall(
            self.conversation, words, turn=len(self.turns.runs)
        )
        if recalled is not None:
            await self._fold_stored(await self.record(recalled))

    async def _find_spent_budget(self) -> str:
        """Return the reason if the budget is used up, or "". Only calls with a price count (docs/CONFIGURATION.md)."""
        limits = self.agent.limits
        payer = await self._retry_while_unavailable(
            partial(self._parent.payer, self.conversation)
        )
        for limit, conversation, period in (
            (limits.dollars_conversation, payer, "this conversation"),
            (limits.dollars_day, None, "today (UTC)"),
        ):
            if limit is None:
                continue
            totals = await self._retry_while_unavailable(
                partial(self.journal.spent, conversation)
            )
            if totals.cost >= limit:
                return f"The budget for {period} is used up: {totals.cost:.2f} of {limit:.2f} US dollars. Raise it in the configuration."
        return ""

    async def _find_lost_folder(self) -> str:
        """Return the reason why the folder of the project cannot be used, or ""."""
        if self._explain_folder is None:
            return ""
        try:
            async with asyncio.timeout(self._changes.timing.scan_seconds):
                return await run_in_own_thread(
                    self._explain_folder, owner=self.journal.user or ""
                )
        except TimeoutError:
            return f"The folder of the project, {self._folder}, does not respond. Try again later."
        except ToolFailed as error:
            return f"The folder of the project was not checked: {error} {error.hint}"

    async def _call_model(self) -> Ended | None:
        """Call the model once. Return `None` if the run goes on."""
        model, steers = self.model, self.turns.steers
        prompt = await self._prompt_now()
        specs = self.agent.gate.specs()
        body = await self._retry_while_unavailable(
            lambda: self.rendered.body(model, self.history, prompt, specs, steers)
        )
        request = ModelRequested(
            self.history.seq,
            hashlib.sha256(body).hexdigest(),
            model.name,
            self.agent.limits.silence,
            steers,
        )
        try:
            (requested,) = await self.record(request)
        except HeadMoved:
            # The person withdrew a message that joins this request. The next step makes the request again.
            return None
        outcome = await self._stream(model, body, requested.seq)
        streamed, self._streamed = self._streamed, None
        assert streamed is not None
        match outcome:
            case Answer(parts, usage, finish):
                parts = _timed(parts, streamed.thought_seconds)
                answer = MessageAssistant(
                    parts, requested.seq, model.name, usage, finish
                )
                self.overflow, self._failures = None, 0
                if any(isinstance(part, ToolCall) for part in parts):
                    await self.record(answer, has_happened=True)
                    return None
                return await self._finish("completed", answer=answer)
            case Failure() as failure:
                await self._seal(requested.seq, streamed.parts)
                return await self._handle_failure(requested.seq, failure)
            case None:
                await self._seal(requested.seq, streamed.parts)
                # The run was asked to stop, and the next step handles the stop.
                return None

    async def _seal(self, request: int, parts: list[Part]) -> None:
        """Turn a cut-off answer into a fact before a new answer replaces it."""
        if parts:
            await self.record(MessagePartial(parts, request), has_happened=True)

    async def _stream(
        self, model: Model, body: bytes, request: int
    ) -> Answer | Failure | None:
        """Stream an answer into the store. Return `None` if the run was stopped."""

        async def store(event: Event) -> None:
            await self.record(event)

        self._streamed = streamed = StreamedAnswer(
            request,
            store,
            self._hold_event,
            self.journal.clock,
            self.journal.store.timing,
        )
        reading = asyncio.create_task(
            self._read_answer(model, body, streamed), name=f"model {self.id}"
        )
        try:
            return await self.unless_stopped(reading, self._taken_over)
        finally:
            await streamed.end()

    async def _read_answer(
        self, model: Model, body: bytes, streamed: StreamedAnswer
    ) -> Answer | Failure:
        # A model may repeat recalled text, including the quote marks.
        scrubber = Scrubber()
        room = ANSWER_BYTES_MAX
        async with contextlib.aclosing(
            model.stream(body, silence=self.agent.limits.silence)
        ) as stream:
            try:
                async for piece in stream:
                    match piece:
                        case Words(text) | Thought(text):
                            room -= len(msgspec.json.encode(text))
                            if room < 0:
                                return _endless(model)
                            if isinstance(piece, Thought):
                                streamed.add_thought(text)
                            else:
                                streamed.add_text(scrubber.feed(text))
                        case Answer(parts):
                            fits = len(msgspec.json.encode(parts)) <= ANSWER_BYTES_MAX
                            return _scrubbed(piece) if fits else _endless(model)
                        case Failure():
                            return piece
            finally:
                streamed.add_text(scrubber.finish())
        return Failure("dropped", f"{model.name} ended its answer without an end.")

    async def unless_stopped(
        self, task: asyncio.Task[T], *also: asyncio.Event
    ) -> T | None:
        """Return the task's result, or `None` if the run was asked to stop. The task is then cancelled."""
        stops = [asyncio.create_task(event.wait()) for event in (self._stop, *also)]
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

    async def _handle_failure(self, request: int, failure: Failure) -> Ended | None:
        """Handle a failed call: retry, use the next model, make room, or end the run with the reason."""
        limits, last = self.agent.limits, len(self.agent.models) - 1
        wait: float | None = None
        if failure.why == "overflow" and self.overflow is None:
            self.overflow, wait = failure.limit or 1, 0.0
        elif failure.why in RETRIED and self._failures < limits.retries:
            if self._failures == 0:
                self._backoff.reset()
            wait = max(self._backoff.next_pause(), failure.retry_after or 0.0)
            self._failures += 1
        elif self._nth_model < last:
            self._nth_model, self._failures, wait = self._nth_model + 1, 0, 0.0
        failed = ModelFailed(
            request, failure.why, failure.message, wait, attempt=self._failures
        )
        await self.record(failed)
        if wait is None:
            return await self._finish(
                "failed", f"{failure.message} {failure.hint}".strip()
            )
        await self._pause(wait)
        return None

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the run is asked to stop. The lease is renewed meanwhile."""
        until = self.journal.clock.monotonic() + seconds
        while (
            remaining := until - self.journal.clock.monotonic()
        ) > 0 and not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    min(remaining, self.agent.limits.lease_grace)
                ):
                    await self._stop.wait()
            await self._renew()

    # -- tools -----------------------------------------------------------------------------------------------

    async def _use_tools(self, step: Step) -> bool:
        """Make the calls of a step. Return `False` if calls wait for a person or continue elsewhere."""
        ready: list[tuple[OpenCall, Allowed]] = []
        approvals: list[Event] = []
        waits = False
        await self._read_mode()
        lost_folder = await self._find_lost_folder()
        for open_call in step.open:
            verdict = self._weigh(step, open_call)
            if lost_folder:
                # A tool would create the folder.
                verdict = Done("failed", lost_folder)
            if isinstance(verdict, Allowed):
                ready.append((open_call, verdict))
            elif isinstance(verdict, Done):
                await self._record_result(step, open_call, verdict)
            else:
                waits = True
                if open_call.approval is None:
                    expires = self.journal.clock.now_us() + int(
                        self.agent.limits.approval_seconds * 1e6
                    )
                    approvals.append(ApprovalAsked(step.message, open_call.call.id, open_call.call.name,
                                              open_call.call.arguments, verdict.touches, expires))  # fmt: skip
        if approvals:
            await self.record(*approvals)
        self._elsewhere = False
        await self._perform_all(step, ready)
        return not (waits or self._elsewhere) or self._stop.is_set()

    def _mode_for(self, open_call: OpenCall) -> Mode:
        """Return the mode for a call. A call handed over before is restricted in the conversation of the sub-agent."""
        is_answered = open_call.answered is not None and self._mode == "edits"
        return "ask" if is_answered or open_call.handed is not None else self._mode

    async def _read_mode(self) -> None:
        self._mode = await self._retry_while_unavailable(
            partial(self._parent.mode, self.conversation)
        )

    def _weigh(self, step: Step, open_call: OpenCall) -> Allowed | Asks | Done:
        # A "no" takes precedence over everything that allows the call.
        if open_call.answered is not None and open_call.answered.answer == "no":
            return Done("denied", _denial(open_call.call.name, open_call.answered))
        gate, call = self.agent.gate, open_call.call
        words = open_call.answered.words if open_call.answered is not None else ""
        context = Call(
            self.journal.user or "",
            self.conversation,
            step.message,
            call.id,
            self._folder,
            words,
        )
        verdict = gate.weigh(
            call.name,
            call.arguments,
            context,
            allowed=self.turns.allowed_rules,
            mode=self._mode_for(open_call),
        )
        if not isinstance(verdict, Asks):
            return verdict
        if open_call.answered is not None and open_call.approval is not None:
            return self._apply_approval(verdict, open_call.approval)
        if (
            open_call.approval is not None
            and open_call.approval.expires_at < self.journal.clock.now_us()
        ):
            return Done("denied", "Nobody answered in time, so it was not allowed.")
        if not self._can_ask:
            suggestion = (
                f" This rule would: {verdict.rule.command}"
                if verdict.rule is not None
                else ""
            )
            return Done(
                "denied",
                f"Nobody is there to be asked, and no rule allows it, so it was not done.{suggestion}",
            )
        return verdict

    def _apply_approval(self, verdict: Asks, approval: ApprovalAsked) -> Allowed | Done:
        """Apply the person's approval to exactly the call that the person saw."""
        if verdict.touches != approval.touches:
            return Done(
                "denied",
                "What it would touch is not what was approved, so it was not done.",
            )
        return self.agent.gate.approve(verdict, approval.arguments)

    async def _perform_all(
        self, step: Step, ready: list[tuple[OpenCall, Allowed]]
    ) -> None:
        """Run calls without effects in parallel and the other calls in sequence, in the order of the answer."""
        for pure, calls in groupby(ready, lambda call: call[1].tool.effect == "pure"):
            if pure:
                await asyncio.gather(
                    *(
                        self._perform(step, open_call, permit)
                        for open_call, permit in calls
                    )
                )
            else:
                for open_call, permit in calls:
                    await self._perform(step, open_call, permit)

    async def _perform(self, step: Step, open_call: OpenCall, permit: Allowed) -> None:
        if self._stop.is_set():
            return
        tool = permit.tool
        if open_call.started is not None and tool.effect == "once":
            unknown = unknown_outcome(step.message, open_call)
            await self.record(unknown, has_happened=True)
            return
        if open_call.handed is None:
            await self.record(
                ToolStarted(
                    step.message,
                    open_call.call.id,
                    tool.name,
                    tool.effect,
                    tool.seconds,
                )
            )
            await self._renew(tool.seconds)
        self._call_seconds.append(tool.seconds)
        try:
            await self._perform_started(step, open_call, permit)
        finally:
            self._call_seconds.remove(tool.seconds)

    async def _perform_started(
        self, step: Step, open_call: OpenCall, permit: Allowed
    ) -> None:
        """Make a call with a stored start, and store its outcome."""
        tool = permit.tool
        approved = (
            open_call.approval.arguments
            if permit.approved and open_call.approval is not None
            else None
        )
        if not runs_in_plan_mode(tool):
            # The person may have switched the mode during the earlier calls of the step.
            await self._read_mode()
        async with self._watch_call(step, open_call, permit) as watch:
            task = asyncio.create_task(
                self.agent.gate.perform(
                    permit, approved_arguments=approved, mode=self._mode_for(open_call)
                )
            )
            output = self._output_partials(step, open_call, permit)
            try:
                result = await self.unless_stopped(task)
            except asyncio.CancelledError:
                await self._record_changes(watch)
                raise
            finally:
                await output.end()
            if result is None and not task.cancelled():
                # The person has stopped the call, and the tool gave its output.
                result = task.result()
            changes = await watch.events() if watch is not None else []
            if result is not None and result.at is None:
                await self._record_result(step, open_call, result, *changes)
            elif changes:
                await self.record(*changes)
            if watch is not None:
                watch.drop_snapshot()
        if result is not None and result.at is not None:
            await self._record_hand_over(step, open_call, tool, result.at)

    def _output_partials(
        self, step: Step, open_call: OpenCall, permit: Allowed
    ) -> OutputPartials:
        """Store the output of a call while the call runs."""

        async def store(offset: int, text: str) -> None:
            await self.record(ToolOutput(step.message, open_call.call.id, offset, text))

        return OutputPartials(
            partial(self.agent.gate.output_of, permit),
            store,
            self.journal.store.timing,
        )

    def _watch_call(
        self, step: Step, open_call: OpenCall, permit: Allowed
    ) -> contextlib.AbstractAsyncContextManager[CallWatch | None]:
        """Return a context manager that finds the call's changes in the folder.

        A call that cannot change the folder is not watched.
        """
        if permit.tool.effect == "pure" or open_call.handed is not None:
            return contextlib.nullcontext()
        also = [permit.touches] if permit.tool.paths else []
        return self._changes.watch(
            self.conversation,
            self.id,
            step.message,
            open_call.call.id,
            also,
            folder=self._folder,
        )

    async def _record_changes(self, watch: CallWatch | None) -> None:
        """Record the changes of a call that is interrupted by the end of the process.

        They are recorded now, because later changes are not the call's own.
        """
        if watch is not None:
            with contextlib.suppress(TenaxError, TimeoutError):
                async with asyncio.timeout(self._changes.timing.interrupt_seconds):
                    if changes := await watch.events():
                        await self.record(*changes)
                    watch.drop_snapshot()

    async def _record_hand_over(
        self, step: Step, open_call: OpenCall, tool: Tool[Any], at: Elsewhere
    ) -> None:
        """Record that a call continues in another conversation, or stop the call after the time of the tool.

        The time that a person needs for an answer does not count.
        """
        until = open_call.handed_at + int(tool.seconds * 1e6)
        # After the answer of a person, the call gets its full time again.
        was_asking = open_call.handed is not None and open_call.handed.asks
        if (
            open_call.handed is not None
            and not (at.asks or was_asking)
            and self.journal.clock.now_us() > until
        ):
            await self._halt(at.conversation)
            late = f"{tool.name} was stopped because it took more than {tool.seconds:g} seconds."
            await self._record_result(step, open_call, Done("failed", late))
            return
        self._elsewhere = True
        if open_call.handed is None or open_call.handed.asks != at.asks:
            await self.record(
                ToolHanded(step.message, open_call.call.id, at.conversation, at.asks)
            )

    async def _halt(self, conversation: str) -> None:
        """Stop the run that works for a call in another conversation."""
        with contextlib.suppress(Gone):
            await self._retry_while_unavailable(lambda: self._parent.stop(conversation))

    async def _record_result(
        self, step: Step, open_call: OpenCall, result: Done, *changes: FilesChanged
    ) -> None:
        finished = ToolFinished(
            step.message, open_call.call.id, result.outcome, result.text, result.cut
        )
        await self.record(*changes, finished, has_happened=True)

    # -- ends ------------------------------------------------------------------------------------------------

    async def _finish(
        self,
        outcome: Literal["completed", "failed", "cancelled"],
        reason: str = "",
        answer: MessageAssistant | None = None,
    ) -> Ended:
        """End the run. The answer and the end of the run are stored in a single append."""
        if answer is not None:
            await self.record(answer, RunFinished(outcome, reason), has_happened=True)
        else:
            await self.record(RunFinished(outcome, reason))
        return outcome

    async def _cancel(self, run: OpenRun) -> Ended:
        """End a run stopped by the person. Every open call gets an outcome, so that the conversation can go on."""
        for open_call in run.handed:
            await self._halt(open_call.handed.conversation)  # type: ignore[union-attr]
        for open_call in run.open:
            was_started = open_call.started is not None
            text = with_output(STOPPED, open_call.output)
            if not was_started:
                text = "It was stopped before it ran."
            await self.record(
                ToolFinished(run.step.message, open_call.call.id, "cancelled", text)  # type: ignore[union-attr]
            )
        return await self._finish("cancelled", "Stopped.")

    def seal_partial(self) -> list[Event]:
        """Return an unexpectedly cut-off answer as a sealed event."""
        run = self.turns.run
        if run is None or not run.request:
            return []
        streamed = self._streamed
        parts = streamed.parts if streamed is not None else run.partial_parts
        return [MessagePartial(parts, run.request)] if parts else []

    async def _seal_run(self, reason: str) -> None:
        """Seal the partial answer at the end of the process, so that the run can be resumed."""
        streamed = self._streamed
        try:
            async with asyncio.timeout(2.0):
                await self._catch_up()
                run = self.turns.run
                if run is not None and run.id == self.id:
                    if streamed is not None:
                        run.partial_text = streamed.text or run.partial_text
                        run.partial_thought = streamed.thought or run.partial_thought
                    await self.record(*interruption(run, reason, planned=True))
        except LeaseLost:
            await self._store_late_output()
        except (TimeoutError, Refused) as error:
            log.warning(
                "A run is left to the next start: %s",
                error,
                extra={"action": "left", "run": self.id},
            )

    async def _store_late_output(self) -> None:
        """Store the remaining output as late output of this run, after the lease was lost."""
        late = list(self._late)
        if self._streamed is not None:
            late.insert(0, ReplyDelta(0, 0, self._streamed.text))
        store_late = partial(
            store_late_output, self.journal.journal, self.conversation, self.id, late
        )
        await self._retry_while_unavailable(
            lambda: self.journal.threads.run(store_late)
        )
        await self._clear_spool()


def _denial(tool: str, answered: ApprovalAnswered) -> str:
    """Return the result of a denied call for the model, with the reason of the person."""
    if not answered.why:
        return "The person said no."
    # Only a person is named in `by`. A question has its own sentence.
    if answered.by and tool != Ask.name:
        return f"The person said no, and why: {answered.why}"
    return answered.why


def _endless(model: Model) -> Failure:
    return Failure(
        "refused",
        f"{model.name} says more than an answer can hold, and was stopped.",
        hint="Ask for less at once, or use another model.",
    )


def _timed(parts: list[Part], seconds: float) -> list[Part]:
    """Return the parts of an answer with the duration of the reasoning at its first part."""
    first = next((part for part in parts if isinstance(part, Reasoning)), None)
    if first is None or not seconds:
        return parts
    timed = msgspec.structs.replace(first, seconds=seconds)
    return [timed if part is first else part for part in parts]


def _scrubbed(answer: Answer) -> Answer:
    parts = [
        Text(scrub(part.text)) if isinstance(part, Text) else part
        for part in answer.parts
    ]
    return msgspec.structs.replace(answer, parts=parts)
