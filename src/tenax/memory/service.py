"""MemoryService: the background work for the memory of a user.

Every provider has a `Delivery`. The delivery sends finished turns and ends of sessions from the journal to the
provider. The `MemoryLedger` records a boundary: a conversation is left, evicted, idle or compacted, or the process
ends. Recording is quick; the deliveries follow. After a turn, a model reviews the conversation for things worth
remembering. The service loads providers in the background, and only providers named in the configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from tenax.agent.loop import UNREMEMBERED
from tenax.concurrency import run_in_own_thread
from tenax.config import Config
from tenax.errors import (
    Gone,
    InvalidInput,
    MemoryChanged,
    NoSuchConversation,
    StoreDamaged,
    StoreUnavailable,
    TenaxError,
    TooBusy,
)
from tenax.events import IMPORTED_RUN, ModelUsed, Reason
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Behind, Lease, Reader
from tenax.memory.ledger import MemoryLedger
from tenax.memory.memory import Memory
from tenax.memory.providers.base import BUILT_IN
from tenax.memory.providers.delivery import Delivery
from tenax.memory.providers.group import ProviderGroup
from tenax.memory.providers.handle import ProviderHandle
from tenax.memory.providers.plugins import Loaded, Plugin, find_plugins, load_plugin
from tenax.memory.review import ReadOnly, review
from tenax.memory.tool import UseMemory, provider_tools
from tenax.models.base import Model
from tenax.tools.base import Tool
from tenax.tools.folders import home_of

__all__ = ["MemoryService"]

log = logging.getLogger(__name__)

_STALE_US: Final = 86_400_000_000
"""The greatest age of a reviewed conversation (a day). Older conversations appear if the review is turned on late."""
_LEASE_SECONDS: Final = 300.0
_REVIEW_SECONDS: Final = 120.0
_REVIEWS_MAX: Final = 3
_READY_SECONDS: Final = 5.0
_STUCK_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 0.1
_POLL_SECONDS: Final = 0.02
_NAME: Final = re.compile(r"\w[\w.-]{0,63}")
_REVIEWED: Final = Reader("memory:review", "turns", "now")
FindReviewer = Callable[[str], Awaitable[Model | None]]
"""Return the model for the review of a conversation, or `None` if no model reviews the conversation."""


class MemoryService:
    """The memory of a user, and the background work for the memory."""

    def __init__(self, journal: AsyncJournal, config: Config) -> None:
        self.memory = Memory(journal, config.timing.recall_seconds)
        self._journal = journal
        self._config = config
        self._find_reviewer: FindReviewer | None = None
        self._ledger = MemoryLedger(
            journal.journal, owner=config.profile, leave_out=UNREMEMBERED
        )
        self._schemas: list[dict[str, Any]] = []
        self._answered: set[str] = set()
        """Conversations answered by this process since their last boundary."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn_finished = asyncio.Event()

    async def start(self, find_reviewer: FindReviewer | None) -> None:
        """Start the background work. Only turns finished from now on are reviewed, without `find_reviewer` none."""
        if self._config.memory.providers:
            self.memory.ready.clear()
            self._start_task(self._load(), "memory providers")
        self._find_reviewer = find_reviewer
        # `find_reviewer` decides for every conversation, because the review can be turned on and off.
        if find_reviewer is not None:
            with contextlib.suppress(TenaxError):
                await self._journal.behind(_REVIEWED, limit=1)
            self._start_task(self._review_all(), "memory review")

    def tool(self) -> Tool[Any]:
        """Return the tool of the built-in memory."""
        return UseMemory(self.memory)

    def offered(self) -> Sequence[object]:
        """Return the descriptions of the providers' tools, for a comparison."""
        return self._schemas

    def provider_tools(self, used_names: set[str]) -> list[Tool[Any]]:
        """Return the tools offered by the providers to the model, except tools with a name in `taken`."""
        if self.memory.providers is None:
            return []
        return provider_tools(
            self.memory.providers, self._schemas, self._open_session, used_names
        )

    def handle_answer(self, conversation: str) -> None:
        """Handle a finished and stored turn. Records no boundary."""
        self._turn_finished.set()
        if self.memory.deliveries:
            self._answered.add(conversation)
        for delivery in self.memory.deliveries:
            delivery.wake()

    async def record_boundary(self, conversation: str, reason: Reason) -> None:
        """Record a boundary, if the conversation owes anything. Quick: no provider is called."""
        if not self.memory.deliveries:
            return
        self._answered.discard(conversation)
        end = partial(self._ledger.end_conversation, conversation, reason)
        await self._journal.threads.run(end)

    async def record_compaction(self, session: str) -> None:
        """Record a boundary for a session ended by a summary."""
        if self.memory.deliveries:
            end = partial(self._ledger.end_session, session, "compacted")
            await self._journal.threads.run(end)

    async def must_keep(self, messages: list[dict[str, Any]]) -> str:
        """Return text from the providers to be included in a summary of the messages."""
        if self.memory.providers is None:
            return ""
        try:
            ask = partial(self.memory.providers.pre_compress, messages)
            return await run_in_own_thread(ask)
        except TooBusy:
            return ""

    async def record_abandoned(self) -> None:
        """Record the boundaries of conversations with an hour of idle time or without a living process."""
        if self.memory.deliveries:
            await self._journal.threads.run(self._ledger.end_abandoned)

    async def close(self, seconds: float) -> None:
        """Record the owed ends, give the deliveries a moment, and leave the remaining work to the next start."""
        part = seconds / 3
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=min(part, _STUCK_SECONDS))
        if self.memory.providers is None:
            return
        with contextlib.suppress(TimeoutError, TenaxError):
            async with asyncio.timeout(part):
                await self._journal.threads.run(self._end_answered)
        with contextlib.suppress(TimeoutError, TenaxError):
            async with asyncio.timeout(part):
                await asyncio.gather(*map(_catch_up, self.memory.deliveries))
        closing = (
            delivery.close(_CLOSE_SECONDS) for delivery in self.memory.deliveries
        )
        await asyncio.gather(*closing)
        shutdown = asyncio.ensure_future(
            run_in_own_thread(self.memory.providers.shutdown_all)
        )
        await asyncio.wait({shutdown}, timeout=part)

    def _end_answered(self) -> None:
        for conversation in list(self._answered):
            with contextlib.suppress(Gone, NoSuchConversation):
                self._ledger.end_conversation(conversation, "shutdown")

    # -- providers -------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Load the providers named in the configuration. `Memory.status` reports unusable providers."""
        try:
            await self._load_all()
        finally:
            self.memory.ready.set()
        with contextlib.suppress(TenaxError):
            await self.record_abandoned()

    async def _load_all(self) -> None:
        folder = self._config.directories.data / "plugins"
        plugins = {plugin.name: plugin for plugin in find_plugins(folder)}
        seconds = self._config.timing.provider_recall_seconds
        providers = ProviderGroup(recall_seconds=seconds)
        deliveries: list[Delivery] = []
        problems: list[Loaded] = []
        for name in self._config.memory.providers:
            missing = f"There is no folder {name} in {folder}, and no installed package offers it."
            loaded = await _load_one(name, plugins.get(name), missing)
            handle = None
            if loaded.provider is not None:
                handle = ProviderHandle(loaded.provider)
                names = {delivery.name for delivery in deliveries}
                problem = _name_problem(handle.name, names)
                if problem:
                    loaded, handle = Loaded(name, problem=problem), None
            if handle is None:
                problems.append(loaded)
                log.warning(
                    "Memory %s is not used. %s",
                    name,
                    loaded.problem,
                    extra={"action": "no_memory"},
                )
            else:
                providers.add(handle)
                deliveries.append(self._delivery_to(handle))
        if deliveries:
            await self._start_deliveries(providers, deliveries)
        self.memory.problems = problems

    def _delivery_to(self, handle: ProviderHandle) -> Delivery:
        return Delivery(
            self._journal,
            handle,
            leave_out=UNREMEMBERED,
            home=str(home_of(self._config, self._journal.user or "")),
            profile=self._config.profile,
        )

    async def _start_deliveries(
        self, providers: ProviderGroup, deliveries: list[Delivery]
    ) -> None:
        # From here on, the deliveries owe new turns to the providers.
        with contextlib.suppress(StoreUnavailable):
            await self._journal.threads.run(self._ledger.register)
            await asyncio.gather(*(delivery.status() for delivery in deliveries))
        await self._initialize(deliveries)
        self._schemas = await run_in_own_thread(providers.tool_schemas)
        self.memory.providers, self.memory.deliveries = providers, deliveries
        for delivery in deliveries:
            delivery.start()

    async def _initialize(self, deliveries: Sequence[Delivery]) -> None:
        """Initialize the providers, before the first turn waits for a provider, and wait up to five seconds."""
        session = ""
        with contextlib.suppress(StoreUnavailable):
            newest = await self._journal.conversations(limit=1)
            session = (newest[0].segment if newest else None) or ""
        started = [delivery.initialize(session) for delivery in deliveries]
        calls = [wrap_future(call) for call in started if call is not None]
        if calls:
            await asyncio.wait(calls, timeout=_READY_SECONDS)

    async def _open_session(self, conversation: str) -> str:
        return (await self._journal.head(conversation)).segment or ""

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error(
                "%s ended: %s",
                task.get_name(),
                error,
                exc_info=error,
                extra={"action": "memory_ended"},
            )

    # -- the review ------------------------------------------------------------------------------------------

    async def _review_all(self) -> None:
        """Review the new messages of a conversation after a quiet time. A single process reviews at a time."""
        # Another process may have left conversations to review.
        self._turn_finished.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.timing.review_seconds):
                    await self._turn_finished.wait()
                    self._turn_finished.clear()
                    await asyncio.sleep(self._config.timing.quiet_seconds)
            try:
                await self._review_once()
            except TenaxError as error:
                log.info(
                    "The review has to wait: %s",
                    error,
                    extra={"action": "review_waits"},
                )

    async def _review_once(self) -> None:
        lease = await self._journal.claim(
            _REVIEWED.name, await self._journal.instance(), _LEASE_SECONDS
        )
        if lease is None:
            return
        try:
            for row in await self._journal.behind(_REVIEWED):
                lease = await self._journal.renew(lease)
                try:
                    await self._review_if_quiet(row, lease)
                except (Gone, NoSuchConversation, StoreDamaged) as error:
                    # An unreadable conversation must not stop the review of the next conversations.
                    log.info("%s is not reviewed: %s", row.conversation, error)
        finally:
            await self._journal.release(lease)

    async def _review_if_quiet(self, row: Behind, lease: Lease) -> None:
        summary = await self._journal.summary(row.conversation)
        age_us = self._journal.clock.now_us() - summary.updated_at
        if age_us < self._config.timing.quiet_seconds * 1e6:
            self._turn_finished.set()
            return
        is_stale = age_us > _STALE_US and not await self._is_imported(row)
        is_left_out = is_stale or summary.source in UNREMEMBERED
        try:
            is_done = is_left_out or await self._review(row)
        except TenaxError:
            raise
        except Exception:
            log.exception(
                "A review failed unexpectedly.", extra={"action": "review_failed"}
            )
            is_done = False
        if not is_done and row.tries < _REVIEWS_MAX:
            await self._journal.defer(
                _REVIEWED,
                row.conversation,
                seconds=60.0,
                error="The model did not answer.",
                lease=lease,
            )
            return
        await self._journal.advance(
            _REVIEWED, row.conversation, row.to, was=row.at, lease=lease
        )

    async def _is_imported(self, row: Behind) -> bool:
        """Return whether the last turn was imported. A person asked to remember it, whatever its age is."""
        last = await self._journal.fact(row.conversation, row.to)
        return last is not None and (last.run or "").startswith(IMPORTED_RUN)

    async def _review(self, row: Behind) -> bool:
        """Ask the model, and store its proposals. Return False if the model gave no answer."""
        conversation = row.conversation
        find = self._find_reviewer
        model = await find(conversation) if find is not None else None
        if model is None:
            return True
        usable = await self.memory.usable(conversation)
        found = await review(
            ReadOnly(self._journal),
            model,
            conversation,
            usable,
            since=row.at,
            silence=_REVIEW_SECONDS,
        )
        if found.usage is not None:
            await self._journal.append(
                conversation, [ModelUsed("review", model.name, found.usage)]
            )
        versions = {memory.id: memory.version for memory in usable}
        for number, proposal in enumerate(found.proposals):
            replaces = None
            if proposal.replaces:
                replaces = (proposal.replaces, versions[proposal.replaces])
            try:
                await self.memory.add(
                    proposal.text,
                    about=proposal.about,
                    by="review",
                    conversation=conversation,
                    seq=proposal.seq,
                    replaces=replaces,
                    key=f"review:{conversation}:{row.to}:{number}",
                )
            except (MemoryChanged, InvalidInput) as error:
                log.info(
                    "A proposal was left out: %s",
                    error,
                    extra={"action": "proposal_refused"},
                )
        return found.answered


async def _load_one(name: str, plugin: Plugin | None, missing: str) -> Loaded:
    if plugin is None:
        return Loaded(name, problem=missing)
    return await run_in_own_thread(partial(load_plugin, plugin))


async def _catch_up(delivery: Delivery) -> None:
    """Wait for a delivery while the delivery makes progress. Do not wait for a stuck delivery."""
    while True:
        delivery.wake()
        status = await delivery.status()
        is_stuck = status.busy_seconds > _STUCK_SECONDS or status.rests_seconds
        if is_stuck or not (status.behind or status.owed):
            return
        await asyncio.sleep(_POLL_SECONDS)


def _name_problem(name: str, taken: Collection[str]) -> str:
    """Return why a provider cannot be used under the name, or "".

    No provider may take the name of the built-in memory.
    """
    if name in {BUILT_IN, *taken}:
        return f"Another memory is called {name} too."
    if _NAME.fullmatch(name):
        return ""
    return "It has no name of letters, digits, and . _ - between them."
