"""Runtime: everything that a face does, for one user.

A face submits words and follows a conversation; the runtime answers in this process, or leaves it to the process that
has the conversation already. Whatever it is asked to do is in the journal before it returns, so a face may vanish at
any moment, and the next one shows the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from tenax import journal as journals
from tenax.agent.compact import Compactor, Outcome
from tenax.agent.held import Held
from tenax.agent.history import History, context_at
from tenax.agent.loop import Agent, Limits, Rendered
from tenax.agent.prompt import PROMPT
from tenax.config import Config
from tenax.errors import (
    CannotOpen,
    ConfigError,
    InvalidInput,
    Refused,
    TenaxError,
)
from tenax.events import (
    ApprovalAnswered,
    ConversationArchived,
    ConversationOpened,
    ConversationPinned,
    ConversationRestored,
    ConversationTitled,
    MessageUser,
    ModelRequested,
    RunStop,
)
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup, Erased, Hits, Recorded, Summary
from tenax.models import Model, ToolSpec, connect
from tenax.parts import Part, Text
from tenax.recovery import mend, open_rows
from tenax.runner import RESUME_SECONDS, Lanes, Policy
from tenax.sessions import SessionDB
from tenax.tools import Gate, ReadFile, WriteFile
from tenax.views.transcript import Change, Row, Transcript
from tenax.views.turns import Turns

__all__ = ["How", "Runtime"]

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_UPKEEP_SECONDS = 10.0
How = Literal["queue", "steer", "interrupt", "take over"]


class Runtime:
    """One user's conversations, answered here. Use it as `async with Runtime(config) as runtime`.

    One that `serves` goes on with whatever other processes leave; otherwise it answers what is submitted to it, and ends.
    `asks` is whether somebody can be asked for an approval.
    """

    def __init__(
        self,
        config: Config,
        *,
        user: str = journals.LOCAL_USER,
        journal: Journal | None = None,
        models: Sequence[Model] | None = None,
        asks: bool = True,
        serves: bool = True,
        limits: Limits | None = None,
        on_held: Callable[[str, int], None] | None = None,
    ) -> None:
        self._config = config
        self._owns = journal is None
        if journal is None and config.store_url == f"sqlite:///{config.places.database}":
            _make(config.places.data)
        self._sync = journal if journal is not None else journals.open(config.store_url, user=user)
        self.journal = AsyncJournal(self._sync)
        self._models = models
        self._asks = asks
        self._serves = serves
        self._limits = limits or Limits(
            dollars_conversation=config.budget_conversation, dollars_day=config.budget_day
        )
        self._held = Held(self.journal, config.places.data / "spool", on_held)
        self._agent: Agent | None = None
        self._lanes: Lanes | None = None
        self._compactor = Compactor(self._sync)
        self._upkeep: asyncio.Task[None] | None = None
        self._owned: set[str] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Repair what dead processes left, and go on with it. Nothing has to be read for that."""
        await self._unless_away(self._look_after)
        self._upkeep = asyncio.create_task(self._keep_up(), name="upkeep")

    async def _look_after(self) -> None:
        """See to what nobody has any more: at the start all of it, later what somebody had the last time."""
        await self._held.sweep()
        owned: set[str] = set()
        for each in await self.journal.unfinished():
            name = each.conversation
            if await self.journal.holder(f"run:{name}") is not None:
                owned.add(name)
            elif self._owned is None or name in self._owned or each.run is None:
                if self._serves and self._can_answer():
                    self.lanes.wake(name, patient=False)
                elif each.run is not None:
                    await self._mend(name, each.run)
        self._owned = owned

    async def _mend(self, conversation: str, run: str) -> None:
        """Nobody goes on with it here; but a run whose owner is gone is shown as one."""
        try:
            await self.journal.apart(lambda: mend(self._sync, conversation, run))
        except Refused as error:
            log.info("%s is left as it is: %s", conversation, error, extra={"action": "left", "run": run})

    async def _keep_up(self) -> None:
        """Go on with what was ended in good order, and look again for what other processes leave."""
        if self._can_answer():
            if self._serves:
                await self._unless_away(self._go_on_all)
            await self._unless_away(self._held.prepare)
        while self._serves:
            await asyncio.sleep(_UPKEEP_SECONDS)
            await self._unless_away(self._look_after)

    async def _unless_away(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except TenaxError as error:
            log.warning("%s It is tried later.", error, extra={"action": "upkeep_waits"})

    async def _go_on_all(self) -> None:
        """Wake the lanes of runs that were interrupted lately. Whether such a run goes on is the lane's to say."""
        since = self.journal.clock.now_us() - int(RESUME_SECONDS * 1e6)
        for each in await self.journal.interrupted(since):
            self.lanes.wake(each.conversation, patient=False)

    async def close(self) -> None:
        """End the runs of this process so that the next start goes on with them, and let go of the store.

        A store that does not answer is not waited for: what was not stored stands in the spool.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _CLOSE_SECONDS
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait({self._upkeep}, timeout=0.5)
        if self._lanes is not None:
            await self._lanes.close()
        if self._agent is not None:
            for model in self._agent.models:
                await model.close()
        await self._held.close()
        if self._owns:
            try:
                await asyncio.wait_for(self.journal.close(), max(0.5, until - loop.time()))
            except TimeoutError:
                log.warning("The store does not answer, and was left as it is.", extra={"action": "left"})
        else:
            self.journal.let_go()

    # -- who answers -----------------------------------------------------------------------------------------

    def _can_answer(self) -> bool:
        try:
            return bool(self.agent.models)
        except ConfigError:
            return False

    @property
    def agent(self) -> Agent:
        """What answers. Raises ConfigError where no model is set up."""
        if self._agent is None:
            self._agent = Agent(
                self._connected(),
                PROMPT,
                Gate([ReadFile(), WriteFile()]),
                limits=self._limits,
            )
        return self._agent

    def _connected(self) -> tuple[Model, ...]:
        if self._models is not None:
            return tuple(self._models)
        if self._config.model is None:
            raise ConfigError(
                "No model is set up, so nobody can answer.",
                hint=f"Put a model into {self._config.file}, or set OPENAI_BASE_URL and TENAX_MODEL.",
            )
        return tuple(
            connect(self._config.models[label]) for label in (self._config.model, *self._config.fallback)
        )

    @property
    def lanes(self) -> Lanes:
        if self._lanes is None:
            policy = Policy(self._config.tools_folder, self._config.resume, asks=self._asks)
            agent = self.agent
            self._lanes = Lanes(
                self.journal, lambda _conversation: agent, policy, self._held, self._compactor.make_room
            )
        return self._lanes

    # -- talking ---------------------------------------------------------------------------------------------

    async def new(self, *, source: str = "api") -> str:
        """A new conversation; its id."""
        conversation = self.journal.ids.conversation()
        opened = ConversationOpened(self._sync.user or "", self.journal.ids.stretch(), source=source)
        await self.journal.append(conversation, [opened])
        return conversation

    async def submit(
        self,
        conversation: str,
        words: str | Sequence[Part],
        *,
        how: How = "queue",
        author: str = "",
        dedup: Dedup | None = None,
    ) -> Recorded:
        """Store a message and see to it that it is answered. When this returns it is safe.

        While a run is busy: `queue` waits behind it, `steer` stands in its next request, `interrupt` stops it,
        `take over` takes it from the process that has it.
        """
        parts: list[Part] = [Text(words)] if isinstance(words, str) else list(words)
        if not any(each.text.strip() if isinstance(each, Text) else True for each in parts):
            raise InvalidInput("The message is empty.")
        lanes = self.lanes
        message = MessageUser(parts, author, ask=True, how="queue" if how == "take over" else how)
        (stored,) = await self.journal.append(conversation, [message], dedup=dedup)
        if how == "take over":
            await lanes.take_over(conversation)
        lanes.wake(stored.conversation)
        return stored

    async def stop(self, conversation: str) -> None:
        """Stop the run, wherever it is."""
        run = (await self.journal.head(conversation)).run
        if run is not None:
            await self.journal.append(conversation, [RunStop(self._sync.user or "")], run=run)
            self.lanes.wake(conversation, patient=False)

    async def go_on(self, conversation: str) -> None:
        """Go on with a run that was interrupted and is not gone on with by itself."""
        self.lanes.wake(conversation, resume=True)

    async def take_over(self, conversation: str) -> None:
        """Take the conversation from the process that has it."""
        await self.lanes.take_over(conversation)
        self.lanes.wake(conversation)

    async def answer(
        self, conversation: str, message: int, call: str, answer: Literal["once", "conversation", "no"]
    ) -> None:
        """Answer an approval. Raises InvalidInput where nothing was asked, or it was answered already."""
        turns = (await self._history(conversation)).turns
        waits = turns.run.waits if turns.run is not None else []
        run = turns.run.id if turns.run is not None else None
        if not any(each.asked and (each.asked.message, each.asked.call) == (message, call) for each in waits):
            raise InvalidInput("Nothing was asked there, or it was answered already.")
        answered = ApprovalAnswered(message, call, answer, by=self._sync.user or "")
        once = Dedup(f"approval:{conversation}", f"{message}:{call}")
        await self.journal.append(conversation, [answered], run=run, dedup=once)
        self.lanes.wake(conversation)

    async def finished(self, conversation: str, seq: int) -> None:
        """Wait until the input at this seq was answered, or the run that took it ended otherwise or waits."""
        head = await self.journal.head(conversation)
        run = await self.journal.run(conversation, head.run) if head.run is not None else None
        first = run.started if run is not None and run.started is not None else seq
        turns = Turns()
        async for each in self.journal.tail(conversation, min(seq, first) - 1):
            turns.apply(each)
            if each.seq >= seq and _settled(turns, seq):
                return

    # -- reading ---------------------------------------------------------------------------------------------

    async def transcript(self, conversation: str, *, before: int | None = None, limit: int = 50) -> list[Row]:
        """The last rows, or the last before a seq.

        Opening a conversation also repairs a run whose owner is gone, and looks for output that came late.
        """
        run = (await self.journal.head(conversation)).run
        if run is not None and await self.journal.holder(f"run:{conversation}") is None:
            await self._unless_away(partial(self._mend, conversation, run))
        return await self.journal.apart(
            lambda: open_rows(self._sync, conversation, before=before, limit=limit)
        )

    async def follow(self, conversation: str, after: int = 0) -> AsyncIterator[tuple[int, list[Change]]]:
        """What changes in the transcript, from a number on: stored events first, then new ones as they come."""
        shown = Transcript()
        if after:
            for each in await self.journal.open(conversation):
                if each.seq <= after:
                    shown.apply(each)
        async for each in self.journal.tail(conversation, after):
            yield each.seq, shown.apply(each)

    async def seen(self, conversation: str, request: int) -> bytes:
        """What the model saw: the body that was sent for the request at this seq, rendered again from the journal."""
        found = await self.journal.fact(conversation, request)
        event = found.event if found is not None else None
        if not isinstance(event, ModelRequested):
            raise InvalidInput(f"No model was asked at seq {request}.")
        history = History(self.journal, conversation)
        history.context = await context_at(self.journal, conversation, event.folded_to)
        for seq in event.inputs:
            if (
                not history.context.knows(seq)
                and (named := await self.journal.fact(conversation, seq)) is not None
            ):
                history.context.know(named)
        opened = history.context.opened
        model = next((each for each in self.agent.models if each.name == event.model), None)
        if opened is None or model is None:
            raise InvalidInput(f"{event.model} is not set up here, so its request cannot be shown.")
        prompt = await self.journal.get_blob(opened.prompt.blob)
        tools = msgspec.json.decode(
            await self.journal.get_blob(opened.tools.blob) or b"[]", type=list[ToolSpec]
        )
        return Rendered().body(model, history, (prompt or b"").decode(), tools, event.inputs)

    async def conversations(
        self, *, archived: bool = False, after: tuple[int, int, int] | None = None, limit: int = 50
    ) -> list[Summary]:
        """A page of the list. `after` is the `place` of the last one seen."""
        return await self.journal.conversations(archived=archived, after=after, limit=limit)

    async def search(
        self,
        words: str,
        *,
        conversation: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 20,
    ) -> Hits:
        """Everything that was ever said with these words, newest first."""
        return await self.journal.search(words, conversation=conversation, before=before, limit=limit)

    # -- what a person does with a conversation --------------------------------------------------------------

    async def rename(self, conversation: str, title: str | None) -> None:
        """Give it a title, or none."""
        await self.journal.append(conversation, [ConversationTitled(title)])

    async def pin(self, conversation: str, *, pinned: bool = True) -> None:
        """Keep it at the top of the list, or no longer."""
        await self.journal.append(conversation, [ConversationPinned(pinned)])

    async def archive(self, conversation: str, *, archived: bool = True) -> None:
        """Leave it out of the list, or bring it back. It is still found."""
        await self.journal.append(conversation, [ConversationArchived(archived)])

    async def undo(self, conversation: str, *, to: int | None = None) -> int:
        """Take back everything after a seq; without one, the last message of a person and what followed."""
        return await self._as_session(conversation, lambda db, name: db.undo(name, to))

    async def clear(self, conversation: str) -> int:
        """Everything so far leaves transcript and context. Its seq, which `restore` takes."""
        return await self._as_session(conversation, lambda db, name: db.clear(name))

    async def restore(self, conversation: str, of: int) -> None:
        """Take back the undo or the clear at this seq."""
        await self.journal.append(conversation, [ConversationRestored(of)])

    async def fork(self, conversation: str, *, upto: int | None = None) -> str:
        """A new conversation with what stands up to a seq; its id."""
        return await self.journal.fork(conversation, upto=upto)

    async def erase(self, conversation: str, seqs: Sequence[int], *, why: str = "") -> Erased:
        """Take the text of these events away for good, and all that was derived from it."""
        return await self.journal.erase(conversation, seqs, by=self._sync.user or "", why=why)

    async def delete(self, conversation: str) -> None:
        """Delete it. Only its tombstone is left."""
        await self.journal.delete(conversation)

    async def _as_session(self, conversation: str, work: Callable[[SessionDB, str], int]) -> int:
        stretch = (await self.journal.head(conversation)).stretch
        if stretch is None:
            raise InvalidInput("This conversation was ended.")
        return await self.journal.apart(lambda: work(SessionDB(journal=self._sync), stretch))

    async def compact(self, conversation: str) -> Outcome:
        """Shorten the context now, whatever its length."""
        return await self._compactor.by_hand(self.journal, self.agent, conversation)

    async def _history(self, conversation: str) -> History:
        history = History(self.journal, conversation)
        await history.catch_up()
        return history


def _make(folder: Path) -> None:
    """The usual place of the store, for the first time."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotOpen(
            f"{folder} cannot be made: {error.strerror}.", hint="set TENAX_HOME to a folder of yours"
        ) from error


def _settled(turns: Turns, seq: int) -> bool:
    if seq in turns.waiting:
        return False
    run = turns.run
    return run is None or seq not in run.inputs or bool(run.waits)
