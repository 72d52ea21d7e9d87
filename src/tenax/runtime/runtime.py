"""Runtime: everything that a face does, for one user.

A face submits words and follows a conversation; the runtime answers in this process, or leaves it to the process that
has the conversation already. Whatever it is asked to do is in the journal before it returns, so a face may vanish at
any moment, and the next one shows the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from tenax import journal as journals
from tenax.agent.attachments import COUNT_MAX, Attachments
from tenax.agent.compaction import Compactor, Outcome, used
from tenax.agent.history import History, context_at
from tenax.agent.loop import Agent, Limits, Rendered
from tenax.agent.recovery import mend, open_page
from tenax.agent.spooling import Held
from tenax.agent.titles import give_title
from tenax.agent.tour import TOUR
from tenax.compat.sessions import SessionDB
from tenax.config import Config
from tenax.config.rules import Rule, exactly, mistake
from tenax.config.write import add_rule, choose_model, remove_rule
from tenax.errors import (
    ConfigError,
    DedupReused,
    Gone,
    HeadMoved,
    InvalidInput,
    NoSuchConversation,
    Refused,
    StoreDamaged,
    TenaxError,
    unusable,
)
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ConversationArchived,
    ConversationOpened,
    ConversationPinned,
    ConversationRestored,
    ConversationTitled,
    MessageUser,
    ModelRequested,
    RunFinished,
    ToolFinished,
    ToolLate,
)
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.arguments import checked
from tenax.journal.base import Dedup, Erased, Expect, Hits, Recorded, Summary
from tenax.journal.journal import Place
from tenax.models import Model, ToolSpec
from tenax.parts import Part, Text
from tenax.runtime.agents import Answerers, own_files
from tenax.runtime.conversation_list import LiveList
from tenax.runtime.feed import SHOWN_ROWS, Live, Lives
from tenax.runtime.workers import RESUME_SECONDS, Lanes, Policy
from tenax.schedules.scheduler import Scheduler
from tenax.schedules.tool import UseSchedules
from tenax.tools.ask import WORDS_CHARS_MAX, Ask
from tenax.tools.base import Call, Tool
from tenax.tools.delegate import Delegate, made_in
from tenax.tools.gate import Allowed, Asks, Done
from tenax.tools.shell.commands import Finished
from tenax.views.open_work import Turns
from tenax.views.pages import Page, first_key, fold_page
from tenax.views.transcript import Change, Key, Row, Transcript
from tenax.workspace.changes import Changes, PutBack, TurnChanges

__all__ = ["Answer", "How", "Question", "Runtime", "Usage", "open_store"]

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_UPKEEP_SECONDS = 10.0
_COLLECT_SECONDS = 3600.0
_TITLE_SECONDS = 30.0
_FOLDED_AT_ONCE = 5000
_FOLLOWED_ROWS = 50
"""How many events are folded for a figure, while everybody else waits."""
_ANSWER_TRIES = 100
"""How often an answer is tried again while others write to the conversation."""
_NOT_ASKED = "Nothing was asked there, or it was answered already."
How = Literal["queue", "steer", "interrupt", "take over"]
Answer = Literal["once", "conversation", "always", "no"]


class Usage(msgspec.Struct, frozen=True):
    """What a conversation took: tokens, US dollars (None where a call had no known price), and how full its context is."""

    tokens_in: int
    tokens_out: int
    cost: float | None
    unpriced: int
    context_used: int | None
    """None where it would take long to find out."""
    context: int | None


class Question(msgspec.Struct, frozen=True):
    """An approval that waits, and what may be answered besides once and no."""

    message: int
    call: str
    conversation: list[str]
    """Patterns that may be allowed for this conversation, the exact call first. Empty if it can be allowed once only."""
    always: list[str]
    """Patterns of rules that would allow it for good. Empty where it asks every time, or for who makes no rules here."""
    notes: list[str] = []
    """What each pattern leaves open: "any content" of a file; empty where it is the exact call."""

    def noted(self, patterns: list[str]) -> list[str]:
        """Return patterns of these with what they leave open."""
        notes = dict(zip(self.conversation, self.notes, strict=False))
        return [
            f"{each} ({notes[each]})" if notes.get(each) else each for each in patterns
        ]


@checked
class Runtime:
    """One user's conversations, answered here. Use it as `async with Runtime(config) as runtime`.

    One that `serves` goes on with whatever other processes leave; otherwise it answers what is submitted to it, and ends.
    `asks` is whether somebody can be asked for an approval, `context_files` whether instruction files are read.
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
        context_files: bool = True,
    ) -> None:
        self._owns = journal is None
        self._sync = journal if journal is not None else open_store(config, user)
        self.journal = AsyncJournal(self._sync)
        self._serves = serves
        self._answerers = Answerers(
            config,
            self.journal,
            self._process_ended,
            self._offers,
            models=models,
            limits=limits
            or Limits(
                dollars_conversation=config.budget_conversation,
                dollars_day=config.budget_day,
            ),
            context_files=context_files,
        )
        self._owner = self._answerers.owner
        self.mcp = self._answerers.mcp
        self._background = self._answerers.background
        self._readers = self._answerers.readers
        self.memory = self._readers.memory
        """What is remembered beyond a conversation."""
        self._lives = Lives(self.journal)
        self.list = LiveList(self.journal)
        self.attachments = Attachments(self.journal)
        self._held = Held(
            self.journal, config.places.data / "spool", self._on_held(on_held)
        )
        folder = self._answerers.folder
        self._changes = Changes(
            self.journal, folder, config.places.snapshots, own_files(config)
        )
        self._compactor = Compactor(
            self._sync, self._readers.must_keep, self._readers.compacted
        )
        self.lanes = Lanes(
            self.journal,
            self._answerers.of,
            Policy(folder, config.resume, asks=asks),
            self._held,
            self._compactor.make_room,
            self._answered,
            self._evicted,
            self._changes,
        )
        self.schedules = Scheduler(
            self.journal, self._answerers.why_silent, self.lanes.wake
        )
        """What is asked by itself, and when."""
        self._besides: set[asyncio.Task[None]] = set()
        self._upkeep: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._rests: dict[str, int] = {}
        """Where nobody was at work when this process looked last, and up to which seq."""
        self._cut: set[str] | None = None
        """Runs that were interrupted when it looked last; None before the first look."""

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
        """Repair what dead processes left, and go on with it. Nothing has to be read for that."""
        self._answerers.start()
        await self._unless_away(self._look_after)
        await self._readers.start(reviews=self._serves)
        self._upkeep = asyncio.create_task(self._keep_up(), name="upkeep")
        if self._serves:
            self._asking = asyncio.create_task(self.schedules.run(), name="schedules")

    async def _look_after(self) -> None:
        """See to what nobody has: at the start all of it, later what came or moved since the last look.

        A run that waits for a sub-agent is looked at each time: who ran that one may have died before it told.
        """
        await self._held.sweep()
        self._beside("background", self._background.sweep)
        rests: dict[str, int] = {}
        for each in await self.journal.unfinished():
            name = each.conversation
            if await self.journal.holder(f"run:{name}") is not None:
                continue
            rests[name] = (await self.journal.head(name)).head
            if (
                each.run is None
                or self._rests.get(name) != rests[name]
                or await self.journal.delegated(name)
            ):
                if self._serves and not await self._answerers.why_silent(name):
                    self.lanes.wake(name, patient=False)
                elif each.run is not None:
                    await self._mend(name, each.run)
        self._rests = rests
        self._beside(
            "changes", lambda: self._changes.soon(self._changes.settle(), seconds=60.0)
        )

    async def _mend(self, conversation: str, run: str) -> None:
        """Nobody goes on with it here; but a run whose owner is gone is shown as one."""
        try:
            await self.journal.apart(lambda: mend(self._sync, conversation, run))
        except (Refused, StoreDamaged) as error:  # the others are seen to all the same
            log.info(
                "%s is left as it is: %s",
                conversation,
                error,
                extra={"action": "left", "run": run},
            )

    async def _keep_up(self) -> None:
        """Go on with what was ended in good order, and look again for what other processes leave."""
        if self._serves:
            await self._unless_away(self._go_on_all)
        if self._serves or self._answerers.is_set_up():
            await self._unless_away(self._held.prepare)
        collected = -_COLLECT_SECONDS
        while self._serves:
            if (now := self.journal.clock.monotonic()) - collected >= _COLLECT_SECONDS:
                collected = now
                await self._unless_away(self.journal.collect_blobs)
            await asyncio.sleep(_UPKEEP_SECONDS)
            await self._unless_away(self._look_after)
            await self._unless_away(self._go_on_all)
            await self._unless_away(self._readers.settle)

    async def _unless_away(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except (
            TenaxError,
            OSError,
        ) as error:  # the second: this process has as many files open as it may
            log.warning(
                "%s It is tried later.", error, extra={"action": "upkeep_waits"}
            )

    async def _go_on_all(self) -> None:
        """Wake the lanes of runs that were interrupted lately. Whether such a run goes on is the lane's to say.

        At the start all of them; later only one whose owner died, and which another process ended when it found that:
        what is left in good order elsewhere goes on there, or at the next start.
        """
        since = self.journal.clock.now_us() - int(RESUME_SECONDS * 1e6)
        seen: set[str] = set()
        for each in await self.journal.interrupted(since):
            name, run = each.conversation, each.run or ""
            if self._cut is None or run not in self._cut:
                if (
                    await self._answerers.why_silent(name)
                    or await self.journal.holder(f"run:{name}") is not None
                ):
                    # who ended it is about to give the conversation back: the next look finds it
                    continue
                if self._cut is None or not await self._was_planned(name, run):
                    self.lanes.wake(name, patient=False)
            seen.add(run)
        self._cut = seen

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
        """End the runs of this process so that the next start goes on with them, and let go of the store.

        A store that does not answer is not waited for: what was not stored stands in the spool.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _CLOSE_SECONDS
        if tasks := {task for task in (self._upkeep, self._asking) if task is not None}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.5)
        for task in self._besides:
            task.cancel()
        await self._lives.close()
        await self.list.close()
        await asyncio.gather(self.lanes.close(), self.mcp.close())
        await self._background.close()
        await self._readers.close(max(0.5, (until - loop.time()) / 2))
        await self._answerers.close()
        await self._held.close()
        if self._owns:
            try:
                await asyncio.wait_for(
                    self.journal.close(), max(0.5, until - loop.time())
                )
            except TimeoutError:
                log.warning(
                    "The store does not answer, and was left as it is.",
                    extra={"action": "left"},
                )
        else:
            self.journal.let_go()

    def _on_held(
        self, told: Callable[[str, int], None] | None
    ) -> Callable[[str, int], None]:
        def tell(conversation: str, count: int) -> None:
            self._lives.held(conversation, count)
            if told is not None:
                told(conversation, count)

        return tell

    # -- who answers -----------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """What is set up now."""
        return self._answerers.config

    async def configure(self, config: Config) -> None:
        """Answer with this configuration from now on. A run that is under way ends as it began."""
        self._answerers.use(config)
        await self._unless_away(self._look_after)

    @property
    def agent(self) -> Agent:
        """What answers. Raises ConfigError where no model is set up."""
        return self._answerers.whole

    def _offers(self) -> list[Tool[Any]]:
        """The tools with which an agent sets other runs going."""
        wake = partial(self.lanes.wake, patient=False)
        return [
            UseSchedules(self.schedules),
            Delegate(self.journal, self.lanes.turns, wake),
        ]

    async def use_model(self, label: str) -> None:
        """Answer with this model of the configuration from now on, here and in whatever starts later."""
        self._owner_only("chooses its model")
        if label != self.config.model:
            choose_model(self.config, label)
            await self.configure(replace(self.config, model=label))

    def _owner_only(self, does: str = "makes its rules") -> None:
        if not self._owner:
            raise Refused(f"Only the person who runs this Tenax {does}.")

    def rules(self) -> tuple[Rule, ...]:
        """The rules as they stand. What they forbid holds for every user; what they allow only for the local one."""
        return self._answerers.rules()

    async def add_rule(self, rule: Rule) -> None:
        """Decide this for all calls of a kind, here and in every other process, from the next call on."""
        self._owner_only()
        await asyncio.to_thread(add_rule, self.config, rule)

    async def remove_rule(self, rule: Rule) -> None:
        """Take a rule back."""
        self._owner_only()
        await asyncio.to_thread(remove_rule, self.config, rule)

    def rule_for(self, conversation: str, name: str, arguments: str) -> Rule | None:
        """The narrowest rule that would let a call be made without asking; None where none would, or none is needed."""
        found = self.agent.gate.weigh(
            name, arguments, self._call(conversation), allowed=()
        )
        return found.rule if isinstance(found, Asks) else None

    async def _process_ended(self, ended: Finished) -> None:
        """Tell a conversation that its background process ended. What a dead Tenax left is answered by who serves."""
        once, wake = Dedup("background", ended.id), self._serves or not ended.lost
        with contextlib.suppress(Gone, NoSuchConversation, DedupReused):
            await self.submit(
                ended.conversation, ended.text, system=True, dedup=once, wake=wake
            )

    def _answered(self, conversation: str) -> None:
        self._give_title(conversation)
        self._readers.answered(conversation)

    def _evicted(self, conversation: str) -> None:
        """It was not used for long, and is folded no more: a boundary."""
        self._beside(
            f"left {conversation}", lambda: self._readers.left(conversation, "evicted")
        )

    def _give_title(self, conversation: str) -> None:
        """A conversation without a title gets one from a model that can find it, while nobody waits."""

        async def work() -> None:
            model = (await self._answerers.of(conversation)).models[0]
            if (
                self._answerers.is_real(model)
                and (await self.journal.summary(conversation)).title is None
            ):
                await give_title(
                    self.journal, model, conversation, silence=_TITLE_SECONDS
                )

        self._beside(f"title {conversation}", work)

    def _beside(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do this while nobody waits for it, unless it is being done."""
        if not any(task.get_name() == name for task in self._besides):
            task = asyncio.create_task(self._unless_away(work), name=name)
            self._besides.add(task)
            task.add_done_callback(self._besides.discard)

    # -- talking ---------------------------------------------------------------------------------------------

    async def new(self, *, source: str = "api", leaving: str | None = None) -> str:
        """A new conversation; its id. The one that the person is `leaving` for it is left: a boundary."""
        if leaving is not None:
            try:
                await self.journal.summary(leaving)  # it has to be there
            except Gone:  # it was deleted a moment ago: nothing is owed there
                leaving = None
        conversation = self.journal.ids.conversation()
        opened = ConversationOpened(
            self._sync.user or "", self.journal.ids.stretch(), source=source
        )
        await self.journal.append(conversation, [opened])
        if leaving is not None:
            await self._readers.left(leaving, "new")
        return conversation

    async def left(self, conversation: str) -> None:
        """The person goes on in another conversation: a boundary."""
        with contextlib.suppress(Gone):
            await self._readers.left(conversation, "switch")

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
        """Store a message and see to it that it is answered. When this returns it is safe.

        While a run is busy: `queue` waits behind it, `steer` stands in its next request, `interrupt` stops it,
        `take over` takes it from the process that has it. `system`: it is Tenax's own, not a person's, and is stored
        also where nobody can answer yet. Without `wake` it waits for whoever answers there next.
        """
        parts: list[Part] = [Text(words)] if isinstance(words, str) else list(words)
        if not any(
            each.text.strip() if isinstance(each, Text) else True for each in parts
        ):
            raise InvalidInput("The message is empty.")
        if sum(not isinstance(each, Text) for each in parts) > COUNT_MAX:
            raise InvalidInput(
                f"A message takes {COUNT_MAX} attachments.", hint="Send the rest apart."
            )
        lanes = self.lanes
        if not system:
            # Who could not be answered is told before anything is stored.
            await self._answerers.of(conversation)
        busy: Any = "queue" if how == "take over" else how
        message = MessageUser(parts, author, ask=True, how=busy, system=system)
        (stored,) = await self.journal.append(conversation, [message], dedup=dedup)
        if how == "take over":
            await lanes.take_over(conversation)
        if wake:
            lanes.wake(stored.conversation)
        return stored

    async def stop(self, conversation: str) -> None:
        """Stop the run, wherever it is, and what its sub-agents do."""
        await self.lanes.stop(conversation)

    async def go_on(self, conversation: str) -> None:
        """Go on with a run that was interrupted and is not gone on with by itself, and with what its sub-agents do."""
        turns = await self.lanes.turns(conversation)
        for each in (
            run.handed if (run := turns.run or turns.resumable) is not None else ()
        ):
            if each.handed is not None:
                self.lanes.wake(each.handed.conversation, patient=False, resume=True)
        self.lanes.wake(conversation, resume=True)

    async def take_over(self, conversation: str) -> None:
        """Take the conversation from the process that has it."""
        await self.lanes.take_over(conversation)
        self.lanes.wake(conversation)

    async def questions(self, conversation: str) -> list[Question]:
        """The approvals that wait, and how each can be answered."""
        run = (await self.lanes.turns(conversation)).run
        return [
            await self._question(conversation, each.asked)
            for each in (run.waits if run is not None else ())
            if each.asked is not None
        ]

    async def _question(self, conversation: str, asked: ApprovalAsked) -> Question:
        gate = (await self._answerers.of(conversation)).gate
        found = gate.weigh(
            asked.name,
            asked.arguments,
            self._call(conversation, asked.message, asked.call),
            allowed=(),
        )
        here, notes = list[str](), list[str]()
        if not isinstance(found, Done) and found.touches == asked.touches:
            standing = isinstance(found, Allowed) or found.standing
            here, whole = found.patterns * standing, exactly(found.exact)
            notes = [
                "" if pattern == whole else found.tool.open_words for pattern in here
            ]
        source = await self._answerers.source(conversation)
        always = (
            here if isinstance(found, Asks) and self._owner and source != TOUR else []
        )
        return Question(asked.message, asked.call, here, always, notes)

    def _call(self, conversation: str, message: int = 0, call: str = "") -> Call:
        return Call(
            self._sync.user or "", conversation, message, call, self._answerers.folder
        )

    async def answer(
        self,
        conversation: str,
        message: int,
        call: str,
        answer: Answer,
        *,
        pattern: str = "",
        words: str = "",
    ) -> None:
        """Answer an approval. Raises InvalidInput where nothing was asked, or it was answered already.

        `conversation` allows, from now on and here, what matches the pattern: one that was offered, or the exact call.
        `always` then makes a rule of the pattern, which has to fit this call. If that fails, Refused says so, and this
        call is allowed all the same. Only the local user can: the rules are those of the person who runs this Tenax. A
        question of the model is answered with `once` and `words`, or with `no`.
        """
        _, asked = await self._asked(conversation, message, call)
        if (asked.name == Ask.name and answer != "no") != bool(words.strip()) or len(
            words
        ) > WORDS_CHARS_MAX:
            raise InvalidInput(
                f"A question is answered with words, up to {WORDS_CHARS_MAX:,} characters; nothing else is."
            )
        rule = (
            await self._rule_always(conversation, asked, pattern)
            if answer == "always"
            else None
        )
        if answer == "conversation":
            pattern = await self._allow_here(conversation, asked, pattern)
        kept = pattern if answer in {"always", "conversation"} else ""
        by = self._sync.user or ""
        why = (
            "The person gave no answer."
            if asked.name == Ask.name and answer == "no"
            else ""
        )
        answered = ApprovalAnswered(message, call, answer, by, why, kept, words.strip())
        await self._append_answer(conversation, answered)
        try:
            if rule is not None:  # an answer that came too late leaves no rule
                await self._make_rule(rule)
        finally:
            self.lanes.wake(conversation)

    async def _make_rule(self, rule: Rule) -> None:
        try:
            await self.add_rule(rule)
        except TenaxError as error:
            said = f"This call is allowed, but later ones ask again: no rule was made. {error}"
            raise Refused(said, hint=error.hint) from error

    async def _asked(
        self, conversation: str, message: int, call: str
    ) -> tuple[str, ApprovalAsked]:
        """The run that waits for this approval, and what it asks. Raises InvalidInput where nothing waits for it."""
        run = (await self.lanes.turns(conversation)).run
        waits = (
            [each.asked for each in run.waits if each.asked is not None]
            if run is not None
            else []
        )
        asked = next(
            (each for each in waits if (each.message, each.call) == (message, call)),
            None,
        )
        if run is None or asked is None:
            raise InvalidInput(_NOT_ASKED)
        return run.id, asked

    async def _append_answer(
        self, conversation: str, answered: ApprovalAnswered
    ) -> None:
        """Store an answer if the approval still waits when it is stored: of several at once exactly one is.

        The head is read before the approval is looked up, so that whatever the look missed moves the head.
        """
        for _ in range(_ANSWER_TRIES):
            head = (await self.journal.head(conversation)).head
            run, _ = await self._asked(conversation, answered.message, answered.call)
            with contextlib.suppress(HeadMoved):
                await self.journal.append(
                    conversation, [answered], run=run, expect=Expect(head=head)
                )
                return
        raise Refused(
            "The conversation changes too fast to store the answer.", hint="Try again."
        )

    async def _allow_here(
        self, conversation: str, asked: ApprovalAsked, pattern: str
    ) -> str:
        """Return the pattern that an answer for the conversation allows."""
        offered = (await self._question(conversation, asked)).conversation
        if not offered:
            raise Refused("This call can be allowed once only.", hint="Allow it once.")
        if pattern and pattern not in offered:
            raise InvalidInput(
                f"The pattern {pattern} was not offered for this call.",
                hint=f"Use {' or '.join(offered)}",
            )
        return pattern or offered[0]

    async def _rule_always(
        self, conversation: str, asked: ApprovalAsked, pattern: str
    ) -> Rule:
        """Return the rule that an answer for good makes."""
        rule = Rule("allow", exactly(asked.name), pattern)
        self._owner_only()
        offered = (await self._question(conversation, asked)).always
        if not offered:
            raise Refused("This cannot be allowed for good.", hint="Allow it once.")
        if pattern not in offered and not rule.fits(asked.name, asked.touches):
            raise InvalidInput(
                f"The pattern {pattern} does not fit what this call touches: {asked.touches}"
            )
        if said := mistake(rule):
            raise InvalidInput(f"This cannot be a rule: its {said}.")
        return rule

    async def finished(self, conversation: str, seq: int) -> None:
        """Wait until the input at this seq was answered, or the run that took it ended otherwise or waits."""
        here = await self.lanes.folded(
            conversation,
            lambda history: history.seq >= seq and _settled(history.turns, seq),
        )
        if here:  # it was answered in this process, which need not read it again
            return
        head = await self.journal.head(conversation)
        run = (
            await self.journal.run(conversation, head.run)
            if head.run is not None
            else None
        )
        first = run.started if run is not None and run.started is not None else seq
        turns = Turns()
        async for each in self.journal.tail(conversation, min(seq, first) - 1):
            turns.apply(each)
            if each.seq >= seq and _settled(turns, seq):
                return

    # -- reading ---------------------------------------------------------------------------------------------

    async def transcript(
        self, conversation: str, *, before: int | None = None, limit: int = 50
    ) -> list[Row]:
        """The last rows and the inputs that wait, or the last rows before a seq. It is opened as `page` opens it."""
        page = await self.page(
            conversation,
            before=None if before is None else first_key(before),
            limit=limit,
        )
        return [*page.rows, *page.waiting]

    async def page(
        self, conversation: str, *, before: Key | None = None, limit: int = 50
    ) -> Page:
        """The last rows, or the last before a key: `next` of the page below.

        Opening a conversation also repairs a run whose owner is gone, and looks for output that came late.
        """
        run = (await self.journal.head(conversation)).run
        if run is not None and await self.journal.holder(f"run:{conversation}") is None:
            await self._unless_away(partial(self._mend, conversation, run))
            # a lane that came meanwhile could not claim it, and nobody else goes on with it
            if self._serves:
                self.lanes.wake(conversation, patient=False)
        return await self.journal.apart(
            lambda: open_page(self._sync, conversation, before, limit)
        )

    async def follow(
        self, conversation: str, after: int | Place = 0
    ) -> AsyncIterator[tuple[int, list[Change]]]:
        """What changes in the transcript, from a number on: stored events first, then new ones as they come.

        Keep a `Place` (`journal.place`) to go on after an error, as for `Journal.tail`. After a crash of the store the rows since
        the last fact come again.
        """
        place = (
            after
            if isinstance(after, Place)
            else await self.journal.place(conversation, after)
        )
        shown, incarnation = Transcript(), ""
        async for each in self.journal.tail(conversation, place):
            # the numbers of what was folded may mean other events now
            if incarnation != place.incarnation:
                shown, incarnation = (
                    await self._folded_before(conversation, each.seq),
                    place.incarnation,
                )
            yield each.seq, shown.apply(each)

    async def _folded_before(self, conversation: str, seq: int) -> Transcript:
        if seq <= 1:
            return Transcript()
        folded = await self.journal.apart(
            lambda: fold_page(
                self._sync, conversation, None, _FOLLOWED_ROWS, upto=seq - 1
            )
        )
        return folded.shown

    async def live(self, conversation: str, hint: asyncio.Event) -> Live:
        """The conversation as it stands and moves, folded once for all who watch it here. Let go of it with `leave`."""
        # This looks for what came late. Whoever reads it is told of damage; who watches others too is not held up.
        with contextlib.suppress(StoreDamaged):
            await self.transcript(conversation, limit=SHOWN_ROWS)
        return self._lives.enter(conversation, hint)

    def leave(self, live: Live, hint: asyncio.Event) -> None:
        """Watch it no longer."""
        self._lives.leave(live, hint)

    async def changes(
        self, conversation: str, turn: str | None = None
    ) -> list[TurnChanges]:
        """What the last turns changed in the folder, or what one of them did: the turn of a run, or a putting back by its seq."""
        return await self._changes.turns(conversation, turn)

    async def put_back(self, conversation: str, turn: str) -> PutBack:
        """Make the files again what they were before this turn, where they are still what it left. This can be put back too."""
        return await self._changes.put_back(conversation, turn)

    async def usage(self, conversation: str) -> Usage:
        """What it took so far, and how full the context is."""
        spent, head = (
            await self.journal.spent(conversation),
            await self.journal.head(conversation),
        )
        history, context_used = self.lanes.history(conversation), None
        if head.head - max(history.seq, head.context_from) < _FOLDED_AT_ONCE:
            await history.catch_up()
            context_used = used(history.context)
        try:
            room = (await self._answerers.of(conversation)).models[0].context
        except ConfigError:
            room = None
        known = spent.unpriced == 0
        return Usage(
            spent.input,
            spent.output,
            spent.cost if known else None,
            spent.unpriced,
            context_used,
            room,
        )

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
        agent = await self._answerers.of(conversation)
        model = next((each for each in agent.models if each.name == event.model), None)
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
        """A page of the list. `after` is the `place` of the last one seen."""
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
        """Everything that was ever said with these words, newest first."""
        return await self.journal.search(
            words, conversation=conversation, before=before, limit=limit
        )

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
        await self._readers.left(conversation, "cleared")
        return await self._as_session(conversation, lambda db, name: db.clear(name))

    async def restore(self, conversation: str, of: int) -> None:
        """Take back the undo or the clear at this seq."""
        await self.journal.append(conversation, [ConversationRestored(of)])

    async def fork(self, conversation: str, *, upto: int | None = None) -> str:
        """A new conversation with what stands up to a seq; its id."""
        return await self.journal.fork(conversation, upto=upto)

    async def erase(
        self, conversation: str, seqs: Sequence[int], *, why: str = ""
    ) -> Erased:
        """Take the text of these events away for good, and all that was derived from it.

        A sub-agent to which a call gave words of them, or whose answer they are, goes with them; what is erased in the
        conversation of a sub-agent is erased in its answer too.
        """
        children = set(await self.journal.delegated(conversation))
        facts = (
            [await self.journal.fact(conversation, seq) for seq in seqs]
            if children
            else []
        )
        made_there = {
            name for each in facts if each is not None for name in made_in(each)
        }
        for child in sorted(children & made_there):
            await self._delete_child(child)
        by = self._sync.user or ""
        if (made := await self.lanes.made(conversation)) is not None:
            async for each in self._results(made.conversation, made.message, made.call):
                await self.journal.erase(made.conversation, [each], by=by, why=why)
        erased = await self.journal.erase(conversation, seqs, by=by, why=why)
        await self._changes.soon(self._changes.forget())
        return erased

    async def _results(
        self, conversation: str, message: int, call: str
    ) -> AsyncIterator[int]:
        """Where the outcome of a call stands, if it has one with text."""
        after = message
        with contextlib.suppress(Gone, NoSuchConversation):
            while page := await self.journal.read(conversation, after=after):
                after = page[-1].seq
                for each in page:
                    match each.event:
                        case ToolFinished(at, of) | ToolLate(at, of) if (at, of) == (
                            message,
                            call,
                        ):
                            yield each.seq

    async def delete(self, conversation: str) -> None:
        """Delete it, and the conversations of its sub-agents. Only their tombstones are left."""
        # otherwise the store refuses
        if (await self.journal.head(conversation)).run is None:
            for child in await self.journal.delegated(conversation):
                await self._delete_child(child)
        made = await self.lanes.made(conversation)
        await self.journal.delete(conversation)
        await self._changes.soon(self._changes.forget())
        await self._background.close(conversation)
        if made is not None:
            self.lanes.wake(made.conversation)

    async def _delete_child(self, child: str) -> None:
        await self.lanes.stop(child)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while (head := await self.journal.head(child)).run is not None:
                    await self.journal.wait(child, head.head, seconds=1.0)
        await self.journal.delete(child)

    async def _as_session(
        self, conversation: str, work: Callable[[SessionDB, str], int]
    ) -> int:
        stretch = (await self.journal.head(conversation)).stretch
        if stretch is None:
            raise InvalidInput("This conversation was ended.")
        return await self.journal.apart(
            lambda: work(SessionDB(journal=self._sync), stretch)
        )

    async def compact(self, conversation: str) -> Outcome:
        """Shorten the context now, whatever its length."""
        agent = await self._answerers.of(conversation)
        if not self._answerers.can_summarise(agent.models[0]):
            raise InvalidInput(
                "This model cannot write a summary.",
                hint="Connect another one with `tenax setup`.",
            )
        return await self._compactor.by_hand(self.journal, agent, conversation)


def open_store(config: Config, user: str = journals.LOCAL_USER) -> Journal:
    """The store of this configuration; its usual place is made for the first time."""
    if config.store_url == f"sqlite:///{config.places.database}":
        folder = config.places.data
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(f"{folder} cannot be made", error) from error
    return journals.open(config.store_url, user=user, witness=config.places.witness)


def _settled(turns: Turns, seq: int) -> bool:
    if seq in turns.waiting:
        return False
    run = turns.run
    return run is None or seq not in run.inputs or bool(run.waits)
