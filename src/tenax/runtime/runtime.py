"""The runtime: all operations of a user interface, for a single user.

A user interface submits messages and follows a conversation. The runtime answers in the own process, or leaves the
answer to the process with the lease of the conversation. Every request is in the journal before the call returns, so a
user interface may crash at any moment, and the next user interface shows the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from tenax import journal as journals
from tenax.agent.attachments import COUNT_MAX, Attachments
from tenax.agent.compaction import Compactor, Outcome, count_used_tokens
from tenax.agent.history import History, context_at, find_undo_seq
from tenax.agent.loop import Agent, Limits, Rendered
from tenax.agent.recovery import end_orphaned_run, open_page
from tenax.agent.spooling import OutputSpool
from tenax.agent.titles import title_of_copy
from tenax.concurrency import run_in_own_thread
from tenax.config import Config
from tenax.config.rules import Rule
from tenax.config.write import add_rule, choose_model, remove_rule
from tenax.errors import (
    ConfigError,
    DedupReused,
    Gone,
    InvalidInput,
    NoSuchConversation,
    Refused,
    StoreDamaged,
    StoreUnavailable,
    unusable,
)
from tenax.events import (
    ConversationArchived,
    ConversationCleared,
    ConversationConfigured,
    ConversationOpened,
    ConversationPinned,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    Event,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    MessageWithdrawn,
    Mode,
    ModelRequested,
    RunFinished,
    ToolFinished,
    ToolLate,
)
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.arguments import checked
from tenax.journal.base import (
    Dedup,
    Erased,
    Hits,
    Recorded,
    Summary,
    UsageRow,
)
from tenax.journal.journal import TailPosition
from tenax.journal.store import DAY_US
from tenax.models import Model, ToolSpec
from tenax.parts import Part, Text
from tenax.runtime.agents import Agents, Setting, list_private_paths
from tenax.runtime.approvals import Answer, Approvals, Question
from tenax.runtime.at_head import Planned, append_at_head
from tenax.runtime.choices import Choices, UserProjects
from tenax.runtime.conversation_list import ConversationList
from tenax.runtime.extensions import Extensions
from tenax.runtime.feed import SHOWN_ROWS, ConversationFeed, FeedRegistry
from tenax.runtime.personal_rows import PersonalRows
from tenax.runtime.tasks import try_now
from tenax.runtime.versions import ShownVersions, list_versions, switch_version
from tenax.runtime.workers import RESUME_SECONDS, Policy, Workers
from tenax.tools.base import Call
from tenax.tools.delegate import Delegate, find_children
from tenax.tools.gate import Asks
from tenax.tools.shell.commands import Finished
from tenax.views.pages import Page, first_key, fold_page
from tenax.views.transcript import Change, Key, Row, Transcript

__all__ = [
    "COMMAND",
    "CoreRuntime",
    "How",
    "Usage",
    "open_store",
]

log = logging.getLogger(__name__)

_COLLECT_SECONDS = 3600.0
_FOLDED_AT_ONCE = 5000
"""The greatest number of events folded for a usage figure, because the fold blocks other work."""
_FOLLOWED_ROWS = 50
_FOLLOWED_PAGE = 500
_AWAY_SECONDS = 0.5
COMMAND = "command"
"""The key in `extra` of a message about a command that the person ran."""
How = Literal["queue", "steer", "interrupt", "take over"]


class Usage(msgspec.Struct, frozen=True):
    """The usage of a conversation: tokens, US dollars (`None` if the price of a call is unknown), and used context."""

    tokens_in: int
    tokens_out: int
    cost: float | None
    unpriced: int
    context_used: int | None
    """`None` if the computation would take long."""
    context: int | None


@checked
class CoreRuntime:
    """The runtime without its extensions. `tenax.Runtime` builds the extensions and has the public constructor."""

    def __init__(
        self,
        config: Config,
        journal: AsyncJournal,
        extensions: Extensions,
        *,
        models: Sequence[Model] | None,
        asks: bool,
        serves: bool,
        limits: Limits | None,
        on_held: Callable[[str, int], None] | None,
    ) -> None:
        self.journal = journal
        self._sync = journal.journal
        self._serves = serves
        self._asks = asks
        self._on_held = on_held
        self.agents = Agents(
            config,
            self.journal,
            self._report_process_end,
            extensions,
            models=models,
            limits=limits or _limits_of(config),
        )
        """The agents of the user, by conversation."""
        self._background = self.agents.background
        self._servers = extensions.servers
        self._memory_service = extensions.memory
        self._changes = extensions.changes
        self._feeds = FeedRegistry(self.journal)
        self.personal = PersonalRows(self._sync)
        """The preferences and projects, followed while the list has watchers."""
        self.list = ConversationList(self.journal, self.personal)
        self.projects = UserProjects(self.journal, self.agents)
        """The projects of the user."""
        self.choices = Choices(self.journal, self.agents, self.projects)
        """Model, mode and project of conversations, read marks, and preferences."""
        self.attachments = Attachments(self.journal)
        self.spool = OutputSpool(
            self.journal, config.directories.data / "spool", self._report_spooled_bytes
        )
        self._compactor = Compactor(
            self._sync,
            self._memory_service.must_keep,
            self._memory_service.record_compaction,
        )
        self.workers = self._make_workers()
        self._approvals = Approvals(journal, self.agents, self.workers, self.add_rule)
        wake = partial(self.workers.wake, patient=False)
        self.agents.offers.append(
            Delegate(self.journal, self.workers.turns, wake, config.timing)
        )
        self._idle_heads: dict[str, int] = {}
        """Conversations without a worker at the last check, with the head of the conversation."""
        self._interrupted_runs: set[str] | None = None
        """Runs found interrupted at the last check; `None` before the first check."""

    def _make_workers(self) -> Workers:
        return Workers(
            self._feeds,
            self.agents,
            Policy(self.agents.folder, self.config.resume, asks=self._asks),
            self.spool,
            self._compactor,
            self._changes,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Repair and continue the runs of dead processes. No conversation has to be opened for the repair."""
        self.agents.start()
        if self._serves:
            await self.try_sandbox()
        await try_now(self.pick_up_orphans)
        tasks = self.agents.tasks
        find_reviewer = self.agents.find_reviewer if self._serves else None
        await self._memory_service.start(find_reviewer)
        tasks.start("upkeep", self._run_upkeep)

    async def try_sandbox(self) -> None:
        """Test the sandbox in a thread, once per process, so later users of the agent do not wait for the test."""
        # If the test is impossible now, the agent raises the error at the first use.
        with contextlib.suppress(ConfigError):
            await run_in_own_thread(self._background.sandbox.why_not)

    async def pick_up_orphans(self) -> None:
        """Pick up conversations without a live owner: all of them at startup, later only changed conversations.

        A conversation with sub-agents is checked every time, because the process of a sub-agent may die before waking
        the parent.
        """
        await self.spool.sweep()
        self.agents.tasks.start("background", self._background.sweep)
        idle_heads: dict[str, int] = {}
        for unfinished in await self.journal.unfinished():
            name = unfinished.conversation
            if await self.journal.holder(f"run:{name}") is not None:
                continue
            idle_heads[name] = (await self.journal.head(name)).head
            if (
                unfinished.run is None
                or self._idle_heads.get(name) != idle_heads[name]
                or await self.journal.delegated(name)
            ):
                if self._serves and not await self.agents.explain_silence(name):
                    self.workers.wake(name, patient=False)
                elif unfinished.run is not None:
                    await self._end_orphaned_run(name, unfinished.run)
        self._idle_heads = idle_heads
        self.agents.tasks.start("changes", self._report_changes)

    async def _report_changes(self) -> None:
        await self._changes.try_briefly(self._changes.report_orphans(), seconds=60.0)

    async def _end_orphaned_run(self, conversation: str, run: str) -> None:
        """End a run of a dead owner without continuing the run, so the user interface shows the interruption."""
        try:
            await self.journal.threads.run(
                lambda: end_orphaned_run(self._sync, conversation, run)
            )
        except (Refused, StoreDamaged) as error:
            # Continue with the other conversations.
            log.info(
                "%s is left as it is: %s",
                conversation,
                error,
                extra={"action": "left", "run": run},
            )

    async def _run_upkeep(self) -> None:
        """Continue runs interrupted by a shutdown, then check regularly for work left by other processes."""
        if self._serves:
            await try_now(self._resume_interrupted)
        # A process for a single question reserves disk space only while the store is unavailable.
        stays = self._serves or (self._asks and self.agents.is_set_up())
        if stays:
            await try_now(self.spool.prepare)
        collected = -_COLLECT_SECONDS
        while self._serves:
            if (now := self.journal.clock.monotonic()) - collected >= _COLLECT_SECONDS:
                collected = now
                await try_now(self.journal.collect_blobs)
            await asyncio.sleep(self.config.timing.upkeep_seconds)
            await try_now(self.pick_up_orphans)
            await try_now(self._resume_interrupted)
            await try_now(self._memory_service.record_abandoned)

    async def _resume_interrupted(self) -> None:
        """Wake the workers of recently interrupted runs. The worker decides whether the run continues.

        At startup the runtime wakes all of the workers. Later the runtime wakes only the workers of runs with a dead
        owner, ended by another process. A run interrupted by a shutdown continues in its process, or at the next start.
        """
        since = self.journal.clock.now_us() - int(RESUME_SECONDS * 1e6)
        interrupted_runs: set[str] = set()
        for interrupted in await self.journal.interrupted(since):
            name, run = interrupted.conversation, interrupted.run or ""
            if self._interrupted_runs is None or run not in self._interrupted_runs:
                if (
                    await self.agents.explain_silence(name)
                    or await self.journal.holder(f"run:{name}") is not None
                ):
                    # The process ending the run still holds the lease. The next check finds the run.
                    continue
                if self._interrupted_runs is None or not await self._was_planned(
                    name, run
                ):
                    self.workers.wake(name, patient=False)
            interrupted_runs.add(run)
        self._interrupted_runs = interrupted_runs

    async def _was_planned(self, conversation: str, run: str) -> bool:
        state = await self.journal.run(conversation, run)
        end = (
            await self.journal.fact(conversation, state.finished)
            if state and state.finished
            else None
        )
        return (
            end is not None and isinstance(end.event, RunFinished) and end.event.planned
        )

    async def close(self) -> None:
        """Interrupt the runs of the process, for the next start to continue. The caller closes the journal."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.config.timing.close_seconds
        await self.agents.tasks.close()
        await self._feeds.close()
        await self.list.close()
        await asyncio.gather(self.workers.close(), self._servers.close())
        await self._background.close()
        await self._memory_service.close(max(0.5, (until - loop.time()) / 2))
        await self.agents.close()
        await self.spool.close()

    def _report_spooled_bytes(self, conversation: str, count: int) -> None:
        """Show the number of spooled bytes of an answer."""
        self._feeds.set_spooled_bytes(conversation, count)
        if self._on_held is not None:
            self._on_held(conversation, count)

    # -- agents ----------------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The current configuration."""
        return self.agents.config

    async def configure(self, config: Config) -> None:
        """Use a configuration from now on. A run in progress keeps the old configuration."""
        self.agents.use(config)
        await try_now(self.pick_up_orphans)

    @property
    def agent(self) -> Agent:
        """The agent of conversations with memory. Raises `ConfigError` if no model is set up."""
        return self.agents.full_agent

    async def use_model(self, label: str) -> None:
        """Use a model of the configuration from now on, in the process and in processes started later."""
        self.agents.require_owner("chooses its model")
        if label != self.config.model:
            choose_model(self.config, label)
            await self.configure(replace(self.config, model=label))

    def rules(self) -> tuple[Rule, ...]:
        """Return the current rules. Deny rules apply to every user, allow rules only to the local user."""
        return self.agents.rules()

    async def add_rule(self, rule: Rule) -> None:
        """Add a rule. The rule applies in every process from the next call on."""
        self.agents.require_owner()
        await run_in_own_thread(partial(add_rule, self.config, rule))

    async def remove_rule(self, rule: Rule) -> None:
        """Remove a rule."""
        self.agents.require_owner()
        await run_in_own_thread(partial(remove_rule, self.config, rule))

    def rule_for(self, conversation: str, name: str, arguments: str) -> Rule | None:
        """Return the narrowest rule to allow a call without asking; `None` if no rule helps or is needed."""
        call = Call(self._sync.user or "", conversation, 0, "", self.agents.folder)
        verdict = self.agent.gate.weigh(name, arguments, call, allowed=())
        return verdict.rule if isinstance(verdict, Asks) else None

    async def _report_process_end(self, process: Finished) -> None:
        """Report the end of a background process. Only a serving runtime answers about processes of a dead Tenax."""
        once, wake = Dedup("background", process.id), self._serves or not process.lost
        with contextlib.suppress(Gone, NoSuchConversation, DedupReused):
            await self.submit(
                process.conversation, process.text, system=True, dedup=once, wake=wake
            )

    async def folder(self, conversation: str) -> Path:
        """Return the folder in which the tools of a conversation work. The folder may not exist yet."""
        return self.agents.folder_of(await self.agents.setting(conversation))

    def hidden_paths(self) -> list[Path]:
        """Return the files and folders of Tenax itself, which no conversation may show or change."""
        return list_private_paths(self.config)

    # -- messages --------------------------------------------------------------------------------------------

    async def new(
        self,
        *,
        source: str = "api",
        leaving: str | None = None,
        model: str = "",
        mode: Mode = "ask",
        project: str = "",
    ) -> str:
        """Open a conversation with the given choices and return the id.

        Record a memory boundary in the conversation `leaving`.
        """
        chosen = await self.choices.make_event(model=model, mode=mode, project=project)
        if leaving is not None:
            try:
                # Raises `NoSuchConversation` for an unknown conversation.
                await self.journal.summary(leaving)
            except Gone:
                # The conversation was just deleted, and owes the memory nothing.
                leaving = None
        conversation = self.journal.ids.conversation()
        opened = ConversationOpened(
            self._sync.user or "", self.journal.ids.segment(), source=source
        )
        is_default = chosen == ConversationConfigured("", "ask", "")
        events = [opened] if is_default else [opened, chosen]
        stored = await self.journal.append(conversation, events)
        self._feeds.begin(conversation, stored)
        if is_default:
            self.agents.remember_setting(conversation, Setting(source))
        self.workers.remember_origin(conversation, None)
        if leaving is not None:
            await self._memory_service.record_boundary(leaving, "new")
        return conversation

    async def left(self, conversation: str) -> None:
        """Record a memory boundary, because the person switches to another conversation."""
        with contextlib.suppress(Gone):
            # Raises `NoSuchConversation`, also for a conversation of another user.
            await self.journal.summary(conversation)
            await self._memory_service.record_boundary(conversation, "switch")

    async def submit(
        self,
        conversation: str,
        words: str | Sequence[Part],
        *,
        how: How = "queue",
        author: str = "",
        dedup: Dedup | None = None,
        system: bool = False,
        wake: bool = True,
    ) -> Recorded:
        """Store a message and start the answer. The message is durable when the call returns.

        During a run, a `queue` message waits for the end of the run, `steer` adds the message to the next request of
        the run, `interrupt` stops the run, and `take over` takes the conversation from the process of the run.
        A `system` message comes from Tenax, not from a person, and is stored even if no model is set up. Without
        `wake` the message waits for the next worker of the conversation.
        """
        parts = _parts_of(words)
        workers = self.workers
        if not system:
            # Raise `ConfigError` before anything is stored if no model can answer.
            await self.agents.require_agent(conversation)
        busy: Any = "queue" if how == "take over" else how
        message = MessageUser(parts, author, ask=True, how=busy, system=system)
        (stored,) = await self.journal.append(conversation, [message], dedup=dedup)
        if how == "take over":
            await workers.take_over(conversation)
        if wake:
            workers.wake(stored.conversation)
        return stored

    async def add_command(
        self, conversation: str, text: str, *, dedup: Dedup | None = None
    ) -> Recorded:
        """Store a command that the person ran, with its output. The model reads the message with its next request.

        No run answers the message. The message is durable when the call returns.
        """
        message = MessageUser([Text(text)], ask=False, extra={COMMAND: True})
        (stored,) = await self.journal.append(conversation, [message], dedup=dedup)
        return stored

    async def stop(self, conversation: str, *, dedup: Dedup | None = None) -> bool:
        """Stop the run, in any process, and the runs of the sub-agents. Return whether a run was open."""
        return await self.workers.stop(conversation, dedup=dedup)

    async def go_on(self, conversation: str) -> None:
        """Continue an interrupted run, also a run without automatic resumption, and the runs of the sub-agents."""
        turns = await self.workers.turns(conversation)
        for open_call in (
            run.handed if (run := turns.run or turns.resumable) is not None else ()
        ):
            if open_call.handed is not None:
                self.workers.wake(
                    open_call.handed.conversation, patient=False, resume=True
                )
        self.workers.wake(conversation, resume=True)

    async def take_over(self, conversation: str) -> None:
        """Take the conversation from the present owner."""
        await self.workers.take_over(conversation)
        self.workers.wake(conversation)

    async def questions(self, conversation: str) -> list[Question]:
        """Return the waiting approvals with the possible answers."""
        return await self._approvals.questions(conversation)

    async def answer(
        self,
        conversation: str,
        message: int,
        call: str,
        answer: Answer,
        *,
        pattern: str = "",
        words: str = "",
        why: str = "",
        dedup: Dedup | None = None,
    ) -> None:
        """Answer an approval. Raises `InvalidInput` if no approval waits, or the approval was already answered.

        See `Approvals.answer` for the possible answers.
        """
        more = {"pattern": pattern, "words": words, "why": why}
        await self._approvals.answer(
            conversation, message, call, answer, **more, dedup=dedup
        )

    async def answer_all(
        self,
        conversation: str,
        message: int,
        answer: Literal["once", "no"],
        *,
        why: str = "",
    ) -> int:
        """Answer all waiting approvals for the calls of one answer of the model. Return the number of answers."""
        return await self._approvals.answer_all(conversation, message, answer, why=why)

    async def finished(self, conversation: str, seq: int) -> None:
        """Wait until an input is settled: answered, or its run ended in another way or waits for a person."""
        with self._feeds.following(conversation) as (feed, hint):
            while True:
                hint.clear()
                # The feed continues when the store is available again.
                with contextlib.suppress(StoreUnavailable):
                    if await feed.is_settled(seq):
                        return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AWAY_SECONDS if feed.error else None):
                        await hint.wait()

    # -- reading ---------------------------------------------------------------------------------------------

    async def transcript(
        self, conversation: str, *, before: int | None = None, limit: int = 50
    ) -> list[Row]:
        """Return the last rows and the waiting inputs, or the last rows before a seq. Repairs like `page`."""
        page = await self.page(
            conversation,
            before=None if before is None else first_key(before),
            limit=limit,
        )
        return [*page.rows, *page.waiting]

    async def page(
        self, conversation: str, *, before: Key | None = None, limit: int = 50
    ) -> Page:
        """Return the last rows, or the last rows before a key (`next` of the page below).

        The call also ends a run of a dead owner, and looks for late output.
        """
        run = (await self.journal.head(conversation)).run
        if run is not None and await self.journal.holder(f"run:{conversation}") is None:
            await try_now(partial(self._end_orphaned_run, conversation, run))
            # A worker started meanwhile could not claim the conversation, and no other process continues the work.
            if self._serves:
                self.workers.wake(conversation, patient=False)
        return await self.journal.threads.run(
            lambda: open_page(
                self._sync, conversation, before, limit, self.config.timing
            )
        )

    async def follow(
        self,
        conversation: str,
        after: int | TailPosition = 0,
        *,
        until_settled: int | None = None,
    ) -> AsyncGenerator[tuple[int, list[Change]], None]:
        """Yield the changes of the transcript after a seq: first of the stored events, then of new events.

        Keep a `TailPosition` (`journal.position`) to continue after an error, as for `Journal.tail`. After a crash of
        the store the rows since the last fact come again. With the seq of an input in `until_settled`, the generator
        ends as soon as the input is settled (see `finished`).
        """
        position = (
            after
            if isinstance(after, TailPosition)
            else await self.journal.position(conversation, after)
        )
        with self._feeds.following(conversation, rows=True) as (feed, hint):
            while True:
                hint.clear()
                before = position.after
                for recorded, changes in await self._read_missed(feed, position):
                    yield recorded.seq, changes
                    position.take(recorded)
                if position.after != before:
                    # More pages may follow.
                    continue
                if until_settled is not None and position.after >= feed.seq > 0:
                    is_settled = await feed.is_settled(until_settled)
                    if is_settled and position.after >= feed.seq:
                        return
                await hint.wait()

    async def _read_missed(
        self, feed: ConversationFeed, position: TailPosition
    ) -> list[tuple[Recorded, list[Change]]]:
        """Return the events of the feed after a position. Read events dropped by the feed from the store."""
        if feed.is_deleted:
            raise Gone(f"Conversation {feed.conversation} was deleted.")
        if feed.error is not None:
            raise feed.error
        if not feed.is_ready():
            return []
        if not position.holds(self.journal.incarnation):
            # Other events may have the seqs of the shown events now.
            position.limit((await self.journal.head(feed.conversation)).facts)
        events = feed.events_since(position.after)
        if events is None and position.after < feed.at:
            events = await self._fold_since(feed.conversation, position.after)
        return events or []

    async def _fold_since(
        self, conversation: str, after: int
    ) -> list[tuple[Recorded, list[Change]]]:
        """Read a page of events after a seq. Return the events with their changes."""
        page = await self.journal.read(conversation, after=after, limit=_FOLLOWED_PAGE)
        if not page or page[0].seq <= 1:
            transcript = Transcript()
        else:
            folded = await self.journal.threads.run(
                lambda: fold_page(
                    self._sync, conversation, None, _FOLLOWED_ROWS, upto=page[0].seq - 1
                )
            )
            transcript = folded.transcript
        return [(recorded, transcript.apply(recorded)) for recorded in page]

    async def watch(self, conversation: str, hint: asyncio.Event) -> ConversationFeed:
        """Return the feed of a conversation. Every change of the rows sets `hint`, until `leave`."""
        # The call looks for late output. Readers of the transcript get the error about damage. A watcher of several
        # conversations goes on without the damaged conversation.
        with contextlib.suppress(StoreDamaged):
            await self.transcript(conversation, limit=SHOWN_ROWS)
        return self._feeds.enter(conversation, hint, rows=True)

    def leave(self, feed: ConversationFeed, hint: asyncio.Event) -> None:
        """Stop watching a conversation."""
        self._feeds.leave(feed, hint)

    async def usage(self, conversation: str) -> Usage:
        """Return the usage of a conversation so far, and the fill of the context."""
        totals, head = (
            await self.journal.spent(conversation),
            await self.journal.head(conversation),
        )
        history, context_used = self.workers.history(conversation), None
        if head.head - max(history.seq, head.context_from) < _FOLDED_AT_ONCE:
            await history.catch_up()
            context_used = count_used_tokens(history.context)
        try:
            room = (await self.agents.of(conversation)).models[0].context
        except ConfigError:
            room = None
        is_priced = totals.unpriced == 0
        return Usage(
            totals.input,
            totals.output,
            totals.cost if is_priced else None,
            totals.unpriced,
            context_used,
            room,
        )

    async def usage_by_day(self, days: int) -> list[UsageRow]:
        """Return the usage of the last days, today included, by day, model and conversation."""
        if days < 1:
            raise InvalidInput(f"`days` must be at least 1, not {days}.")
        today = self.journal.clock.now_us() // DAY_US
        return await self.journal.usage(max(0, today - days + 1), today)

    async def seen(self, conversation: str, request: int) -> bytes:
        """Return the body of the model request at a seq, rendered again from the journal."""
        recorded = await self.journal.fact(conversation, request)
        event = recorded.event if recorded is not None else None
        if not isinstance(event, ModelRequested):
            raise InvalidInput(
                "This answer has no request in this conversation: it was imported or copied."
            )
        history = History(self.journal, conversation)
        history.context = await context_at(self.journal, conversation, event.folded_to)
        for seq in event.inputs:
            if (
                not history.context.knows(seq)
                and (message := await self.journal.fact(conversation, seq)) is not None
            ):
                history.context.know(message)
        opened = history.context.opened
        agent = await self.agents.of(conversation)
        model = self.agents.find_model(agent, event.model)
        if opened is None or model is None:
            raise InvalidInput(
                f"{event.model} is not set up here, so its request cannot be shown."
            )
        prompt = await self.journal.get_blob(opened.prompt.blob)
        tools = msgspec.json.decode(
            await self.journal.get_blob(opened.tools.blob) or b"[]", type=list[ToolSpec]
        )
        rendered = Rendered(self.journal)
        return await rendered.body(
            model, history, (prompt or b"").decode(), tools, event.inputs
        )

    async def conversations(
        self,
        *,
        archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        """Return a page of the list. `after` is the `place` of the last seen conversation."""
        return await self.journal.conversations(
            archived=archived, after=after, limit=limit
        )

    async def search(
        self,
        words: str,
        *,
        conversation: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 20,
    ) -> Hits:
        """Search everything ever said for words. Return the hits, newest first."""
        return await self.journal.search(
            words, conversation=conversation, before=before, limit=limit
        )

    # -- changes of a conversation ---------------------------------------------------------------------------

    async def rename(self, conversation: str, title: str | None) -> None:
        """Set or remove the title."""
        await self.journal.append(conversation, [ConversationTitled(title)])

    async def pin(self, conversation: str, *, pinned: bool = True) -> None:
        """Pin the conversation to the top of the list, or unpin the conversation."""
        await self.journal.append(conversation, [ConversationPinned(pinned)])

    async def archive(self, conversation: str, *, archived: bool = True) -> None:
        """Remove the conversation from the list, or undo the removal. The search finds archived conversations too."""
        await self.journal.append(conversation, [ConversationArchived(archived)])

    async def undo(
        self,
        conversation: str,
        *,
        to: int | None = None,
        dedup: Dedup | None = None,
    ) -> int:
        """Undo everything after seq `to`, by default the last message of a person and everything after the message.

        Return the seq of the undo, for `restore`.
        """
        segment = await self._open_segment(conversation)
        if to is None:
            to = await self.journal.threads.run(
                partial(find_undo_seq, self._sync, segment)
            )
        undo = ConversationRewound(to)
        (stored,) = await self.journal.append(conversation, [undo], dedup=dedup)
        return stored.seq

    async def last_message(self, conversation: str) -> int:
        """Return the seq of the last message of a person. Raises `InvalidInput` if there is none."""
        segment = await self._open_segment(conversation)
        find = partial(find_undo_seq, self._sync, segment)
        return await self.journal.threads.run(find) + 1

    async def replace(
        self,
        conversation: str,
        seq: int,
        words: str | Sequence[Part] | None = None,
        *,
        model: str | None = None,
        dedup: Dedup | None = None,
    ) -> Recorded:
        """Store a further version of the message at a seq, without words the same message again, and start the answer.

        `model` is the label of another model for the conversation, "" for the default. The choice, the undo of the
        earlier version and the new message are one append. `choose_version` brings a version back.

        A message that waits for a run is withdrawn instead, also during an answer. It keeps no version, and the new
        message waits behind all other messages. Raises `Refused` if a run takes the message first.
        """
        replaced = await self._own_message(conversation, seq)
        parts = replaced.parts if words is None else _parts_of(words)
        await self.agents.require_agent(conversation)
        # A repeated message still comes from the chat in which it was written.
        extra = replaced.extra if words is None else {}
        message = MessageUser(parts, replaced.author, ask=True, extra=extra)
        removal: Event = ConversationRewound(seq - 1, replaced=True)
        # A repeated call finds the message withdrawn, and `dedup` returns the stored events.
        if await self._waits(conversation, seq) or await self._is_withdrawn(
            conversation, seq
        ):
            how: Any = "steer" if replaced.how == "steer" else "queue"
            message = msgspec.structs.replace(message, how=how)
            removal = MessageWithdrawn(seq)
        events: list[Event] = [removal, message]
        if model is not None:
            # The choice stands before the undo, so no later undo of the new version can hide it.
            events.insert(0, await self.choices.make_event(model=model))
        stored = await self.journal.append(conversation, events, dedup=dedup)
        self.agents.forget_setting(conversation)
        self.workers.wake(conversation)
        return stored[-1]

    async def withdraw(self, conversation: str, seq: int) -> None:
        """Remove a message that waits for a run. The message does not come back.

        Raises `Refused` if a run has taken the message. To withdraw a message twice changes nothing.
        """
        await self._own_message(conversation, seq)
        try:
            await self.journal.append(conversation, [MessageWithdrawn(seq)])
        except Refused:
            if not await self._is_withdrawn(conversation, seq):
                raise

    async def _waits(self, conversation: str, seq: int) -> bool:
        """Return whether the message at a seq waits for a run."""
        waiting = await self.journal.waiting(conversation)
        return any(recorded.seq == seq for recorded in waiting)

    async def _is_withdrawn(self, conversation: str, seq: int) -> bool:
        """Return whether the message at a seq was withdrawn."""
        changes = await self.journal.row_changes(conversation, after=seq)
        events = [change.event for change in changes]
        return any(
            isinstance(event, MessageWithdrawn) and event.of == seq for event in events
        )

    async def versions(self, conversation: str) -> list[ShownVersions]:
        """Return the versions of every shown message that has several versions, newest message first."""
        return list_versions(await self.journal.row_changes(conversation))

    async def choose_version(self, conversation: str, seq: int) -> None:
        """Show another version of a message, with all later events of the version."""
        await self._own_message(conversation, seq)

        async def plan(head: int) -> Planned:
            changes = await self.journal.row_changes(conversation, upto=head)
            return switch_version(changes, seq), None

        await append_at_head(self.journal, conversation, plan)

    async def _own_message(self, conversation: str, seq: int) -> MessageUser:
        """Return a message of the person. Raises `InvalidInput` for any other event."""
        fact = await self.journal.fact(conversation, seq)
        message = fact.event if fact is not None else None
        if not isinstance(message, MessageUser) or message.system:
            raise InvalidInput(f"Seq {seq} is no message of a person.")
        return message

    async def clear(self, conversation: str) -> int:
        """Remove everything so far from transcript and context. Return the seq of the clear, for `restore`."""
        await self._memory_service.record_boundary(conversation, "cleared")
        await self._open_segment(conversation)
        (stored,) = await self.journal.append(conversation, [ConversationCleared()])
        return stored.seq

    async def restore(self, conversation: str, of: int) -> None:
        """Revert the undo or the clear at a seq."""
        await self.journal.append(conversation, [ConversationRestored(of)])

    async def fork(self, conversation: str, *, upto: int | None = None) -> str:
        """Copy the conversation up to a seq into a new conversation, with a numbered title. Return the id of the copy.

        The seq of a request stands for the end of its answer.
        """
        if upto is not None:
            upto = await self._end_of_answer(conversation, upto)
        copy = await self.journal.fork(conversation, upto=upto)
        title = (await self.journal.summary(conversation)).title
        if title is not None:
            await self.rename(copy, title_of_copy(title))
        return copy

    async def _end_of_answer(self, conversation: str, request: int) -> int:
        """Return the seq of the answer to a request. Any other seq is returned as it is."""
        fact = await self.journal.fact(conversation, request)
        if fact is None or fact.kind != ModelRequested.kind:
            return request
        after = request
        while page := await self.journal.read(
            conversation, after=after, limit=_FOLLOWED_PAGE
        ):
            for recorded in page:
                match recorded.event:
                    case MessageAssistant(request=of) | MessagePartial(request=of):
                        if of == request:
                            return recorded.seq
            after = page[-1].seq
        return request

    async def erase(
        self, conversation: str, seqs: Sequence[int], *, why: str = ""
    ) -> Erased:
        """Erase the text of events permanently, with all data derived from the text.

        Erasing the call or the answer of a sub-agent deletes the conversation of the sub-agent. Erasing text in the
        conversation of a sub-agent also erases the answer of the sub-agent in the parent conversation.
        """
        children = set(await self.journal.delegated(conversation))
        facts = (
            [await self.journal.fact(conversation, seq) for seq in seqs]
            if children
            else []
        )
        erased_children = {
            name for fact in facts if fact is not None for name in find_children(fact)
        }
        for child in sorted(children & erased_children):
            await self._delete_child(child)
        by = self._sync.user or ""
        if (origin := await self.workers.find_origin(conversation)) is not None:
            async for result_seq in self._find_results(
                origin.conversation, origin.message, origin.call
            ):
                await self.journal.erase(
                    origin.conversation, [result_seq], by=by, why=why
                )
        erased = await self.journal.erase(conversation, seqs, by=by, why=why)
        await self._changes.try_briefly(self._changes.forget())
        return erased

    async def _find_results(
        self, conversation: str, message: int, call: str
    ) -> AsyncIterator[int]:
        """Yield the seqs of the results of a call, late results included."""
        after = message
        with contextlib.suppress(Gone, NoSuchConversation):
            while page := await self.journal.read(conversation, after=after):
                after = page[-1].seq
                for recorded in page:
                    match recorded.event:
                        case ToolFinished(at, of) | ToolLate(at, of) if (at, of) == (
                            message,
                            call,
                        ):
                            yield recorded.seq

    async def delete(self, conversation: str) -> None:
        """Delete the conversation and the conversations of the sub-agents. Only tombstones remain."""
        # With an open run the store refuses to delete, so the sub-agents stay too.
        if (await self.journal.head(conversation)).run is None:
            for child in await self.journal.delegated(conversation):
                await self._delete_child(child)
        origin = await self.workers.find_origin(conversation)
        await self.journal.delete(conversation)
        await self._changes.try_briefly(self._changes.forget())
        await self._background.close(conversation)
        if origin is not None:
            self.workers.wake(origin.conversation)

    async def _delete_child(self, child: str) -> None:
        await self.workers.stop(child)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timing.close_seconds):
                while (head := await self.journal.head(child)).run is not None:
                    await self.journal.wait(child, head.head, seconds=1.0)
        await self.journal.delete(child)

    async def _open_segment(self, conversation: str) -> str:
        """Return the name of the open segment. Raises `InvalidInput` if the conversation was ended."""
        segment = (await self.journal.head(conversation)).segment
        if segment is None:
            raise InvalidInput("This conversation was ended.")
        return segment

    async def compact(self, conversation: str) -> Outcome:
        """Compact the context now, at any length."""
        agent = await self.agents.of(conversation)
        if not self.agents.can_summarise(agent.models[0]):
            raise InvalidInput(
                "This model cannot write a summary.",
                hint="Choose another model for this conversation.",
            )
        return await self._compactor.by_hand(self.journal, agent, conversation)


def _parts_of(words: str | Sequence[Part]) -> list[Part]:
    """Return the parts of a message. Raises `InvalidInput` for an empty message or too many attachments."""
    parts: list[Part] = [Text(words)] if isinstance(words, str) else list(words)
    attached = [part for part in parts if not isinstance(part, Text)]
    texts = [part.text for part in parts if isinstance(part, Text)]
    if not attached and not any(text.strip() for text in texts):
        raise InvalidInput("The message is empty.")
    if len(attached) > COUNT_MAX:
        raise InvalidInput(
            f"A message takes {COUNT_MAX} attachments.", hint="Send the rest apart."
        )
    return parts


def _limits_of(config: Config) -> Limits:
    budget = config.budget
    return Limits(dollars_conversation=budget.conversation, dollars_day=budget.day)


def open_store(config: Config, user: str = journals.LOCAL_USER) -> Journal:
    """Open the store of a configuration. Create the default folder if necessary."""
    if config.store_url == f"sqlite:///{config.directories.database}":
        folder = config.directories.data
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(f"{folder} cannot be made", error) from error
    return journals.open(
        config.store_url,
        user=user,
        witness=config.directories.witness,
        timing=config.timing,
    )
