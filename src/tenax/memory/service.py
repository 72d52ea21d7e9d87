"""What follows the journal beside the talk: the line of each memory provider, the review, and what is owed at boundaries.

A boundary (a conversation is left, evicted, idle, compacted, or the process ends) appends `memory.due`, which is quick; the
lines of the providers follow it. What a process that was killed did not come to is found at the next start. Providers are
loaded beside everything else, and only those that the configuration names.
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

from tenax.agent.tour import TOUR
from tenax.compat.lifecycle import SessionLifecycle
from tenax.compat.sessions import SessionDB
from tenax.config import Config
from tenax.errors import (
    FactChanged,
    Gone,
    InvalidInput,
    NoSuchConversation,
    StoreDamaged,
    StoreUnavailable,
    TenaxError,
)
from tenax.events import DELEGATE, TEMPORARY, ModelUsed, Reason, RunStarted
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Behind, Lease, Reader
from tenax.memory.manager import MemoryManager, Seat
from tenax.memory.memory import Memory
from tenax.memory.providers.base import BUILT_IN
from tenax.memory.providers.delivery import Follower
from tenax.memory.providers.plugins import Loaded, find_plugins, load_plugin
from tenax.memory.review import ReadOnly, review
from tenax.memory.tool import provided
from tenax.models.base import Model
from tenax.tools.base import Tool, aside
from tenax.workspace.folders import home_of

__all__ = ["UNREMEMBERED", "Readers"]

log = logging.getLogger(__name__)

UNREMEMBERED: Final = frozenset({DELEGATE, TEMPORARY, TOUR})
"""Sources of conversations of which nothing is remembered."""
IDLE_SECONDS: Final = 3600.0
QUIET_SECONDS = 20.0
"""How long a conversation rests before it is looked over."""
_STALE_US: Final = 86_400_000_000
"""What is older than a day is not looked over any more: somebody turned the review on late."""
_LOOK_SECONDS: Final = 30.0
_LEASE_SECONDS: Final = 300.0
_REVIEW_SECONDS: Final = 120.0
_REVIEWS_MAX: Final = 3
_READY_SECONDS: Final = 5.0
_STUCK_SECONDS: Final = 0.5
_LOOK_AGAIN: Final = 0.02
_MARK: Final = "mark"
_NAME: Final = re.compile(r"\w[\w.-]{0,63}")
_REVIEWED: Final = Reader("memory:review", "turns", "now")
_IDLE: Final = Reader("memory:idle", "turns", "now")
Asked = Callable[[str], Awaitable[Model | None]]


class _Owner:
    """Who owes the end of a conversation: the providers of this profile. Their lines do the work, from `memory.due` on."""

    def __init__(self, profile: str) -> None:
        self.memory_owner = profile

    def commit_memory_session(self) -> None:
        """Nothing is done here: the ledger appends `memory.due`."""


class Readers:
    """One user's memory, and all that works for it."""

    def __init__(
        self,
        journal: AsyncJournal,
        config: Config,
        asked: Asked,
        changed: Callable[[], None],
    ) -> None:
        self.memory = Memory(journal)
        self._journal = journal
        self._config = config
        self._asked = asked
        """The model that looks a conversation over; None where nobody does."""
        self._changed = changed
        self._manager: MemoryManager | None = None
        self._followers: list[Follower] = []
        self._schemas: list[dict[str, Any]] = []
        self._lifecycle = SessionLifecycle(SessionDB(journal=journal.journal))
        self._owner = _Owner(config.profile)
        self._tasks: set[asyncio.Task[None]] = set()
        self._turned = asyncio.Event()

    async def start(self, *, reviews: bool) -> None:
        """Begin, beside everything else. What is said from here on is looked over."""
        if self._config.memory_providers:
            self.memory.ready.clear()
            self._begin(self._load(), "memory providers")
        # whether anything is looked over is asked each time: it can be turned on and off
        if reviews:
            with contextlib.suppress(TenaxError):
                await self._journal.behind(_REVIEWED, limit=1)
            self._begin(self._review_all(), "memory review")

    def tools(self, taken: set[str]) -> list[Tool[Any]]:
        """What the providers offer to the model."""
        manager = self._manager
        return (
            []
            if manager is None
            else provided(manager, self._schemas, self._stretch, taken)
        )

    def answered(self, conversation: str) -> None:
        """A turn is finished, and stored. It is marked, and committed nowhere near here."""
        self._turned.set()
        for each in self._followers:
            each.wake()
        if self._followers:
            self._begin(self._mark(conversation), f"{_MARK} {conversation}")

    async def left(self, conversation: str, reason: Reason) -> None:
        """A boundary: what is owed there becomes due. Quick, and nothing where nothing is owed."""
        if await self._is_unremembered(conversation) or not self._followers:
            return
        await self._commit(await self._stretch(conversation), reason)

    async def compacted(self, parent: str) -> None:
        """A stretch ended with a summary."""
        stretch = await self._journal.stretch(parent) if self._followers else None
        if stretch is not None and not await self._is_unremembered(
            stretch.conversation
        ):
            await self._commit(parent, "compacted")

    async def must_keep(self, messages: list[dict[str, Any]]) -> str:
        """What a summary of these must not leave out, as the providers see it."""
        manager = self._manager
        return (
            ""
            if manager is None
            else await self._journal.apart(lambda: manager.pre_compress(messages))
        )

    async def settle(self) -> None:
        """Make due what was left alone for an hour, and what a process that is gone would have made due at its end."""
        if not self._followers or not (behind := await self._journal.behind(_IDLE)):
            return
        lease = await self._journal.claim(
            "memory:idle", await self._journal.instance(), _LEASE_SECONDS
        )
        if lease is None:
            return
        try:
            alive = {each.id for each in await self._journal.instances() if each.alive}
            for each in behind:
                await self._settle_one(each, alive, lease)
        finally:
            await self._journal.release(lease)

    async def close(self, seconds: float) -> None:
        """What is owed becomes due, the lines get a moment to go on, and whatever does not end is left to the next start."""
        part = seconds / 3
        if marks := {task for task in self._tasks if task.get_name().startswith(_MARK)}:
            await asyncio.wait(marks, timeout=min(part, _STUCK_SECONDS))
        if tasks := set(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=min(part, _STUCK_SECONDS))
        if (manager := self._manager) is None:
            return
        with contextlib.suppress(TimeoutError, TenaxError):
            async with asyncio.timeout(part):
                await self._journal.apart(
                    partial(self._lifecycle.drain_all_on_shutdown, part)
                )
        with contextlib.suppress(TimeoutError, TenaxError):
            async with asyncio.timeout(part):
                await asyncio.gather(*map(self._caught_up, self._followers))
        await asyncio.gather(*(each.close(0.1) for each in self._followers))
        shutdown = asyncio.ensure_future(
            aside(lambda _deserted: manager.shutdown_all())
        )
        await asyncio.wait({shutdown}, timeout=part)

    async def _caught_up(self, follower: Follower) -> None:
        """Wait for a line that goes on. One that is stuck is not waited for."""
        while True:
            follower.wake()
            now = await follower.standing()
            if (
                now.busy_seconds > _STUCK_SECONDS
                or now.rests_seconds
                or not (now.behind or now.owed)
            ):
                return
            await asyncio.sleep(_LOOK_AGAIN)

    # -- providers -------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Load the providers that are named. One that cannot be used is told of in the status, and holds nobody up."""
        try:
            await self._load_all()
        finally:
            self.memory.ready.set()
        with contextlib.suppress(TenaxError):
            await self.settle()

    async def _load_all(self) -> None:
        folder = self._config.places.data / "plugins"
        plugins = {each.name: each for each in find_plugins(folder)}
        manager, problems = MemoryManager(), []
        followers: list[Follower] = []
        for name in self._config.memory_providers:
            if name not in plugins:
                missing = f"There is no folder {name} in {folder}, and no installed package offers it."
                loaded = Loaded(name, problem=missing)
            else:
                loaded = await aside(
                    lambda _deserted, name=name: load_plugin(plugins[name])  # type: ignore[misc]
                )
            seat = Seat(loaded.provider) if loaded.provider is not None else None
            if seat is not None and (
                why := _misnamed(seat.name, {each.name for each in followers})
            ):
                loaded, seat = Loaded(name, problem=why), None
            if seat is None:
                problems.append(loaded)
                log.warning(
                    "Memory %s is not used. %s",
                    name,
                    loaded.problem,
                    extra={"action": "no_memory"},
                )
                continue
            followers.append(
                Follower(
                    self._journal,
                    manager.seat(seat),
                    leave_out=UNREMEMBERED,
                    home=str(home_of(self._config, self._journal.user or "")),
                    profile=self._config.profile,
                )
            )
        if followers:
            # from here on they are owed what is said
            with contextlib.suppress(StoreUnavailable):
                await self._journal.behind(_IDLE, limit=1)
                await asyncio.gather(*(each.standing() for each in followers))
            await self._get_ready(followers)
            self._schemas = await aside(lambda _deserted: manager.tool_schemas())
            self._manager, self._followers = manager, followers
            for each in followers:
                each.start()
        self.memory.use(self._manager, followers, problems)
        self._changed()

    async def _get_ready(self, followers: Sequence[Follower]) -> None:
        """Let them begin now, while nobody waits, and give them a moment for it."""
        session = ""
        with contextlib.suppress(StoreUnavailable):
            newest = await self._journal.conversations(limit=1)
            session = (newest[0].stretch if newest else None) or ""
        calls = [
            wrap_future(call)
            for each in followers
            if (call := each.ready(session)) is not None
        ]
        if calls:
            await asyncio.wait(calls, timeout=_READY_SECONDS)

    async def _settle_one(self, each: Behind, alive: set[str], lease: Lease) -> None:
        name = each.conversation
        try:
            if await self._journal.holder(f"run:{name}") is not None:
                return
            rests_us = (
                self._journal.clock.now_us()
                - (await self._journal.summary(name)).updated_at
            )
            idle = rests_us > IDLE_SECONDS * 1e6
            owed = await self._journal.owed(name)
            if owed and not idle and await self._ran_in(name, owed) in {None, *alive}:
                return
            await self.left(name, "idle" if idle else "shutdown")
            await self._journal.advance(_IDLE, name, each.to, was=each.at, lease=lease)
        except (
            Gone,
            NoSuchConversation,
            StoreDamaged,
        ) as error:  # it holds up no other
            log.info("What %s owes is not known: %s", name, error)

    async def _ran_in(self, conversation: str, seq: int) -> str | None:
        """The process of the run that finished there; None where that is not known."""
        ended = await self._journal.fact(conversation, seq)
        run = (
            await self._journal.run(conversation, ended.run)
            if ended is not None and ended.run
            else None
        )
        began = (
            await self._journal.fact(conversation, run.started)
            if run is not None and run.started
            else None
        )
        return (
            began.event.instance
            if began is not None and isinstance(began.event, RunStarted)
            else None
        )

    async def _mark(self, conversation: str) -> None:
        # the store has it; this is for the end of the process
        with contextlib.suppress(TenaxError):
            shown = await self._journal.summary(conversation)
            if shown.source not in UNREMEMBERED:
                self._lifecycle.mark_turn_completed(
                    shown.stretch, self._owner, stored=True
                )

    async def _commit(self, stretch: str | None, reason: Reason) -> None:
        commit = partial(
            self._lifecycle.commit_session_memory,
            stretch,
            self._owner,
            wait=True,
            reason=reason,
        )
        await self._journal.apart(commit)

    async def _stretch(self, conversation: str) -> str:
        return (await self._journal.head(conversation)).stretch or ""

    async def _is_unremembered(self, conversation: str) -> bool:
        return (await self._journal.summary(conversation)).source in UNREMEMBERED

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "%s ended: %s",
                task.get_name(),
                error,
                exc_info=error,
                extra={"action": "memory_ended"},
            )

    # -- the review ------------------------------------------------------------------------------------------

    async def _review_all(self) -> None:
        """Look over what was said since the last look, once a conversation rests. One process at a time."""
        self._turned.set()  # also what another process left
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._turned.wait()
                    self._turned.clear()
                    await asyncio.sleep(QUIET_SECONDS)
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
            "memory:review", await self._journal.instance(), _LEASE_SECONDS
        )
        if lease is None:
            return
        try:
            for each in await self._journal.behind(_REVIEWED):
                lease = await self._journal.renew(lease)
                try:
                    await self._look_over(each, lease)
                except (
                    Gone,
                    NoSuchConversation,
                    StoreDamaged,
                ) as error:  # it holds up no other
                    log.info("%s is not looked over: %s", each.conversation, error)
        finally:
            await self._journal.release(lease)

    async def _look_over(self, each: Behind, lease: Lease) -> None:
        summary = await self._journal.summary(each.conversation)
        age_us = self._journal.clock.now_us() - summary.updated_at
        if age_us < QUIET_SECONDS * 1e6:
            self._turned.set()
            return
        left_out = age_us > _STALE_US or summary.source in UNREMEMBERED
        try:
            answered = left_out or await self._reviewed(each)
        except TenaxError:
            raise
        except Exception:
            log.exception(
                "A review ended in a surprise.", extra={"action": "review_failed"}
            )
            answered = False
        if not answered and each.tries < _REVIEWS_MAX:
            await self._journal.defer(
                _REVIEWED,
                each.conversation,
                seconds=60.0,
                error="The model did not answer.",
                lease=lease,
            )
            return
        await self._journal.advance(
            _REVIEWED, each.conversation, each.to, was=each.at, lease=lease
        )

    async def _reviewed(self, each: Behind) -> bool:
        """Ask, and keep what is worth keeping. False if the model could not be asked."""
        conversation = each.conversation
        if (model := await self._asked(conversation)) is None:
            return True
        facts = await self.memory.usable(conversation)
        found = await review(
            ReadOnly(self._journal),
            model,
            conversation,
            facts,
            since=each.at,
            silence=_REVIEW_SECONDS,
        )
        if found.usage is not None:
            await self._journal.append(
                conversation, [ModelUsed("review", model.name, found.usage)]
            )
        versions = {fact.id: fact.version for fact in facts}
        for n, proposal in enumerate(found.proposals):
            place = (conversation, proposal.seq)
            replaces = (
                (proposal.replaces, versions[proposal.replaces])
                if proposal.replaces
                else None
            )
            try:
                await self.memory.add(
                    proposal.text,
                    about=proposal.about,
                    by="review",
                    place=place,
                    replaces=replaces,
                    key=f"review:{conversation}:{each.to}:{n}",
                )
            except (FactChanged, InvalidInput) as error:
                log.info(
                    "A proposal was left out: %s",
                    error,
                    extra={"action": "proposal_refused"},
                )
        return found.answered


def _misnamed(name: str, taken: Collection[str]) -> str:
    """Why a provider of this name cannot be used, or "". The built-in memory is called in place: no other passes for it."""
    if name in {BUILT_IN, *taken}:
        return f"Another memory is called {name} too."
    return (
        ""
        if _NAME.fullmatch(name)
        else "It has no name of letters, digits, and . _ - between them."
    )
