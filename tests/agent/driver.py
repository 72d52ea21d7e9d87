"""Random but valid conversations, made by driving a real journal in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tenax.agent.rotation import Rotations, Summary
from tenax.errors import Refused, TenaxError
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Blob,
    ContextKept,
    ContextOpened,
    ConversationCleared,
    ConversationOpened,
    ConversationRestored,
    ConversationRewound,
    Event,
    FileChange,
    FilesChanged,
    FileState,
    MemoryNoted,
    MemoryRecalled,
    MessageAssistant,
    MessagePartial,
    MessageSystem,
    MessageTool,
    MessageUser,
    MessageWithdrawn,
    ModelFailed,
    ModelRequested,
    ReplyDelta,
    ReplyThought,
    RunFinished,
    RunLate,
    RunRecovered,
    RunSealed,
    RunStarted,
    ToolFinished,
    ToolLate,
    ToolOutput,
    ToolStarted,
    Usage,
)
from tenax.journal import Journal
from tenax.journal.base import Recorded
from tenax.parts import Reasoning, Text, ToolCall, ToolResult
from tenax.sessions import SessionDB
from tenax.views.context import Context
from tenax.views.open_work import OpenRun, Turns

TALK = "c_talk"


class Driver:
    """One conversation. Each operation appends what a writer could append now, or nothing."""

    def __init__(self, journal: Journal, chance: random.Random) -> None:
        self.journal = journal
        self.chance = chance
        self.db = SessionDB(journal=journal)
        self.words = 0
        self.edits: list[int] = []
        self.requests: list[int] = []
        self.append(ConversationOpened(journal.user or "", "s_0"))

    def append(self, *events: Event, run: str | None = None) -> list[Recorded]:
        return self.journal.append(TALK, events, run=run)

    def say(self) -> str:
        self.words += 1
        return f"w{self.words} " + "x" * self.chance.choice([0, 3, 700])

    def events(self) -> list[Recorded]:
        return self.journal.read(TALK, limit=5000)

    def turns(self) -> Turns:
        turns = Turns()
        for event in self.events():
            turns.apply(event)
        return turns

    def head(self) -> int:
        return self.journal.head(TALK).head

    # -- what people and other programs do -------------------------------------------------------------------

    def message(self) -> None:
        self.append(MessageUser([Text(self.say())]))

    def ask(self) -> None:
        how = self.chance.choice(["queue", "steer", "queue"])
        self.append(MessageUser([Text(self.say())], ask=True, how=how))  # type: ignore[arg-type]

    def withdraw(self) -> None:
        waiting = list(self.turns().waiting)
        if waiting:
            self.append(MessageWithdrawn(self.chance.choice(waiting)))

    def foreign(self) -> None:
        kind = self.chance.randrange(4)
        if kind == 0:
            self.append(MessageSystem([Text(self.say())]))
        elif kind == 1:
            self.append(MessageAssistant([Text(self.say())]))
        elif kind == 2:
            self.append(MessageTool([ToolResult("nobody", self.say(), "clock")]))
        else:
            self.append(
                MessageAssistant(
                    [Text(self.say()), ToolCall(f"f{self.words}", "clock", "{}")]
                )
            )
            call = f"f{self.words}"
            if self.chance.random() < 0.5:
                self.message()
            self.append(MessageTool([ToolResult(call, self.say(), "clock")]))

    def undo(self) -> None:
        self.edits += [
            self.append(
                ConversationRewound(self.head() - self.chance.randrange(1, 12))
            )[0].seq
        ]

    def clear(self) -> None:
        self.edits += [self.append(ConversationCleared())[0].seq]

    def restore(self) -> None:
        if self.edits:
            self.append(
                ConversationRestored(
                    self.edits.pop(self.chance.randrange(len(self.edits)))
                )
            )

    def erase(self) -> None:
        seqs = [
            event.seq
            for event in self.events()
            if "parts" in (event.body or b"").decode() or "text" in event.kind
        ]
        if seqs:
            self.db.journal.erase(TALK, [self.chance.choice(seqs)], by="ada")

    def compact(self) -> None:
        segment, head = self.journal.head(TALK).segment, self.head()
        if segment is not None:
            covers = max(1, head - self.chance.randrange(8))
            context = Context()
            for event in self.events():
                context.apply(event)
            persons = [
                item
                for item in context.items
                if item.person and item.position <= covers
            ]
            kept = persons[-1].seqs if persons and self.chance.random() < 0.5 else ()
            summary = Summary(
                text=f"summary {self.say()}", covers_to=covers, kept=list(kept)
            )
            Rotations(self.db.journal).commit(segment, summary)

    # -- what runs do ----------------------------------------------------------------------------------------

    def start(self) -> None:
        turns = self.turns()
        if turns.run is None and turns.waiting:
            self.append(RunStarted(list(turns.waiting)[:1]), run=f"r{self.head()}")

    def resume(self) -> None:
        before = self.turns().resumable
        if before is not None:
            self.append(
                RunStarted([], before.id, before.started.attempt + 1),
                run=f"r{self.head()}",
            )

    def step(self) -> None:
        """The next thing that the open run would do."""
        turns = self.turns()
        run = turns.run
        if run is None:
            self.start()
        elif run.request:
            self.answer(run)
        elif run.step is not None and run.step.open:
            self.use_tool()
        elif run.answered:
            self.append(RunFinished("completed"), run=run.id)
        else:
            self.request(turns)

    def request(self, turns: Turns) -> None:
        assert turns.run is not None
        head = self.head()
        if self.chance.random() < 0.2:
            self.foreign()  # it comes between the fold and the append
        if self.chance.random() < 0.15:
            self.append(
                ContextOpened("start", "m", Blob("a" * 64), Blob("b" * 64)),
                run=turns.run.id,
            )
            head = self.head()
        if not turns.run.requests and self.chance.random() < 0.3:
            self.append(
                MemoryRecalled({"builtin": f"- {self.say()}"}, facts=["f_1"]),
                run=turns.run.id,
            )
            head = self.head()
        asked = ModelRequested(head, "", "m", 1.0, turns.steers)
        self.requests += [self.append(asked, run=turns.run.id)[0].seq]

    def answer(self, open_run: OpenRun) -> None:
        request, run = open_run.request, open_run.id
        match self.chance.randrange(9):
            case 0 | 1:
                at = len(open_run.partial_text)
                self.append(ReplyDelta(request, at, "some words "))
            case 8:
                at = len(open_run.partial_thought)
                self.append(ReplyThought(request, at, "some thoughts "))
            case 2:
                parts = open_run.partial_parts
                events: list[Event] = [MessagePartial(parts, request)] if parts else []
                self.append(
                    *events, ModelFailed(request, "dropped", "It broke.", 0.0), run=run
                )
            case 3:
                thought = Reasoning(self.say(), seconds=1.5)
                self.append(
                    MessageAssistant(
                        [thought, Text(self.say())], request, "m", Usage(10, 5)
                    ),
                    run=run,
                )
            case _:
                calls = [
                    ToolCall(f"k{n}", "clock", "{}")
                    for n in range(self.chance.randrange(1, 4))
                ]
                self.append(
                    MessageAssistant(
                        [Text(self.say()), *calls], request, "m", Usage(20, 5)
                    ),
                    run=run,
                )

    def use_tool(self) -> None:
        turns = self.turns()
        run = turns.run
        if run is None or run.step is None or not run.step.open:
            return
        each = self.chance.choice(run.step.open)
        at, call = run.step.message, each.call.id
        match self.chance.randrange(5):
            case 4 if each.started is not None:
                offset = self.chance.randint(0, len(each.output))
                self.append(ToolOutput(at, call, offset, self.say()), run=run.id)
            case 0 if each.approval is None:
                self.append(
                    ApprovalAsked(at, call, "clock", "{}", "the clock"), run=run.id
                )
            case 1 if each.approval is not None and each.answered is None:
                self.append(
                    ApprovalAnswered(at, call, self.chance.choice(["once", "no"])),
                    run=run.id,
                )
            case 2 if each.started is None:
                self.append(ToolStarted(at, call, "clock", "once", 5.0), run=run.id)
            case _:
                self.append(ToolFinished(at, call, "done", self.say()), run=run.id)

    def end(self) -> None:
        run = self.turns().run
        if run is not None:
            partial: list[Event] = (
                [MessagePartial(run.partial_parts, run.request)]
                if run.request and run.partial_parts
                else []
            )
            outcome = self.chance.choice(
                ["interrupted", "interrupted", "failed", "cancelled"]
            )
            self.append(*partial, RunFinished(outcome, "why"), run=run.id)  # type: ignore[arg-type]

    def late(self) -> None:
        runs = [each for each in self.turns().runs.values() if each.finished]
        if not runs:
            return
        run = self.chance.choice(runs[-2:])
        state = self.journal.run(TALK, run.id)
        index = state.late if state is not None else 0
        match self.chance.randrange(5):
            case 0 if run.step is not None:
                call = self.chance.choice(list(run.step.calls))
                self.append(
                    ToolLate(run.step.message, call, "done", self.say()), run=run.id
                )
            case 1:
                self.append(
                    RunLate(index, "tool", {"name": "clock", "args": {}}), run=run.id
                )
            case 2:
                self.append(
                    RunLate(index, "tool_complete", {"name": "clock", "text": "noon"}),
                    run=run.id,
                )
            case 3:
                self.append(RunSealed(), RunRecovered("recovered"), run=run.id)
            case _:
                self.append(RunLate(index, "token", {"text": self.say()}), run=run.id)

    def note(self) -> None:
        noted = self.append(MemoryNoted("f_1", 1, "added", self.say()))[0].seq
        if self.chance.random() < 0.5:
            self.append(MemoryNoted("f_1", 2, "undone", of=noted))

    def files(self) -> None:
        runs = list(self.turns().runs)
        if runs:
            change = FileChange("a.txt", None, FileState(0o644, 1, "x"))
            total, undoes = (
                self.chance.randrange(3),
                self.chance.choice(["", "", *runs[-2:]]),
            )
            self.append(
                FilesChanged(1, "k0", [change], total, undoes=undoes),
                run=None if undoes else runs[-1],
            )

    def keep(self) -> None:
        self.append(ContextKept("It was no shorter.", self.head()))

    # -- all of it -------------------------------------------------------------------------------------------

    def drive(
        self, operations: Sequence[str], after: Callable[[], None] | None = None
    ) -> None:
        for name in operations:
            try:
                getattr(self, name)()
            except (Refused, TenaxError):
                continue  # it was not the time for that
            if after is not None:
                after()


OPERATIONS = (
    *(
        "message",
        "withdraw",
        "foreign",
        "undo",
        "undo",
        "restore",
        "restore",
        "clear",
        "erase",
        "compact",
        "keep",
        "note",
        "files",
    ),
    *("ask",) * 4,
    *("end",) * 4,
    *("late",) * 4,
    *("resume",) * 5,
    *("step",) * 24,
)
QUIET = tuple(operation for operation in OPERATIONS if operation != "erase")
