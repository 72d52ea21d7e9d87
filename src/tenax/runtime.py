"""Runtime: everything that a face does, for one user.

A face submits words and follows a conversation; the runtime answers in this process, or leaves it to the process that
has the conversation already. Whatever it is asked to do is in the journal before it returns, so a face may vanish at
any moment, and the next one shows the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from tenax import journal as journals
from tenax.agent.compact import Compactor, Outcome
from tenax.agent.history import History, context_at
from tenax.agent.loop import Agent, Limits, Rendered
from tenax.agent.prompt import PROMPT
from tenax.config import Config
from tenax.errors import ConfigError, InvalidInput, NoSuchConversation, StoreError, TenaxError
from tenax.events import (
    ApprovalAnswered,
    ConversationOpened,
    Event,
    MessageUser,
    ModelRequested,
    RunStop,
    Unknown,
    decode,
    encode,
)
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup, Recorded
from tenax.journal.spool import Entry, Spool, left
from tenax.models import Model, ToolSpec, connect
from tenax.parts import Part, Text
from tenax.recovery import retry, ship
from tenax.runner import Lanes, Policy
from tenax.tools import Gate, ReadFile, WriteFile
from tenax.views.transcript import Change, Row, Transcript
from tenax.views.turns import Turns

__all__ = ["How", "Runtime"]

log = logging.getLogger(__name__)

How = Literal["queue", "steer", "interrupt", "take over"]


class Runtime:
    """One user's conversations, answered here. Use it as `async with Runtime(config) as runtime`."""

    def __init__(
        self,
        config: Config,
        *,
        user: str = journals.LOCAL_USER,
        journal: Journal | None = None,
        models: Sequence[Model] | None = None,
        asks: bool = True,
        limits: Limits | None = None,
        on_held: Callable[[str, int], None] | None = None,
    ) -> None:
        self._config = config
        self._owns = journal is None
        self._sync = journal if journal is not None else journals.open(config.store_url, user=user)
        self.journal = AsyncJournal(self._sync)
        self._models = models
        self._asks = asks
        self._limits = limits or Limits()
        self._held = _Held(self.journal, config.places.data / "spool", on_held)
        self._agent: Agent | None = None
        self._lanes: Lanes | None = None
        self._compactor = Compactor(self._sync)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Repair what dead processes left, and go on with it. Nothing has to be read for that."""
        await self._held.sweep()
        for each in await self.journal.unfinished():
            if self._can_answer():
                self.lanes.wake(each.conversation, patient=False)

    async def close(self) -> None:
        """End the runs of this process so that the next start goes on with them, and let go of the store."""
        if self._lanes is not None:
            await self._lanes.close()
        if self._agent is not None:
            for model in self._agent.models:
                await model.close()
        await self._held.close()
        if self._owns:
            await self.journal.close()

    # -- who answers -----------------------------------------------------------------------------------------

    def _can_answer(self) -> bool:
        return self._models is not None or self._config.model is not None

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
        if not parts or parts == [Text("")]:
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
        if (await self.journal.head(conversation)).run is not None:
            await self.journal.append(conversation, [RunStop(self._sync.user or "")])
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
        history = await self._history(conversation)
        while not _settled(history.turns, seq):
            await self.journal.wait(conversation, history.seq, seconds=5.0)
            await history.catch_up()

    # -- reading ---------------------------------------------------------------------------------------------

    async def transcript(self, conversation: str, *, before: int | None = None, limit: int = 50) -> list[Row]:
        """The last rows, or the last before a seq. Opening a conversation also looks for output that came late."""
        events = await self.journal.open(conversation, before=before, limit=limit)
        shown = _folded(events)
        if any(row.state == "pending" for row in shown.rows) and await retry(
            self.journal, conversation, shown
        ):
            shown = _folded(await self.journal.open(conversation, before=before, limit=limit))
        return shown.rows

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

    async def compact(self, conversation: str) -> Outcome:
        """Shorten the context now, whatever its length."""
        return await self._compactor.by_hand(self.journal, self.agent, conversation)

    async def _history(self, conversation: str) -> History:
        history = History(self.journal, conversation)
        await history.catch_up()
        return history


def _folded(events: Sequence[Recorded]) -> Transcript:
    shown = Transcript()
    for each in events:
        shown.apply(each)
    return shown


def _settled(turns: Turns, seq: int) -> bool:
    if seq in turns.waiting:
        return False
    run = turns.run
    return run is None or seq not in run.inputs or bool(run.waits)


class _Held:
    """The spool of this process, made when it is first needed, and the shipping of dead ones'."""

    def __init__(self, journal: AsyncJournal, folder: Path, tell: Callable[[str, int], None] | None) -> None:
        self._journal = journal
        self._folder = folder
        self._tell = tell
        self._spool: Spool | None = None
        self._runs: dict[tuple[str, str], int] = {}

    async def hold(self, conversation: str, run: str, event: Event) -> None:
        journal = self._journal
        body = encode(event)
        entry = Entry(journal.user or "", conversation, run, event.kind, body, journal.clock.now_us())
        if self._spool is None:
            instance = await journal.instance()
            self._spool = await asyncio.to_thread(Spool, self._folder, instance)
        await asyncio.to_thread(self._spool.write, entry)
        self._runs[conversation, run] = held = self._runs.get((conversation, run), 0) + len(body)
        if self._tell is not None:
            self._tell(conversation, held)

    async def let_go(self, conversation: str, run: str) -> None:
        self._runs.pop((conversation, run), None)
        if self._tell is not None:
            self._tell(conversation, 0)
        if not self._runs and self._spool is not None:
            await asyncio.to_thread(self._spool.read)
            await asyncio.to_thread(self._spool.clear)

    async def sweep(self) -> None:
        """Ship what dead processes of this host held, each once; then say that no more will come of them."""
        alive = {each.id for each in await self._journal.of(None).instances() if each.alive}
        for spool in await asyncio.to_thread(left, self._folder, alive.__contains__):
            try:
                await self._ship(spool)
            except StoreError as error:
                log.warning("A spool is kept for later: %s", error, extra={"action": "spool_kept"})
                spool.close(remove=False)
                continue
            spool.close(remove=True)
        everybody = self._journal.of(None)
        for each in await everybody.instances():
            if each.host == platform.node() and not each.alive and each.swept_at is None:
                with contextlib.suppress(TenaxError):
                    await everybody.swept(each.id)

    async def _ship(self, spool: Spool) -> None:
        runs: dict[tuple[str, str, str], list[Event]] = {}
        for entry in await asyncio.to_thread(spool.read):
            event = decode(entry.kind, entry.body)
            if not isinstance(event, Unknown):
                runs.setdefault((entry.user, entry.conversation, entry.run), []).append(event)
        for (user, conversation, run), events in runs.items():
            journal = self._journal.of(user)
            history = History(journal, conversation)
            try:
                await history.catch_up()
                said = history.turns.runs[run].said if run in history.turns.runs else ""
                await ship(
                    journal, conversation, run, events, source=f"{run}:{spool.instance}", said=len(said)
                )
            except NoSuchConversation:
                continue

    async def close(self) -> None:
        if self._spool is not None:
            self._spool.close(remove=not self._runs)
