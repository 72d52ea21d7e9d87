"""Pages of a transcript, joined together, are the transcript."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenax.assembly import Runtime
from tenax.config import Config
from tenax.errors import TenaxError
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ContextKept,
    ConversationCleared,
    ConversationOpened,
    ConversationRestored,
    ConversationRewound,
    Event,
    FilesChanged,
    MemoryNoted,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    MessageWithdrawn,
    ModelFailed,
    ModelRequested,
    ReplyDelta,
    RunFinished,
    RunLate,
    RunRecovered,
    RunSealed,
    RunStarted,
    ToolFinished,
    ToolLate,
    ToolStarted,
)
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.models import ScriptedModel
from tenax.parts import Text, ToolCall
from tenax.runtime.feed import ConversationFeed
from tenax.testing import memory
from tenax.views.pages import fold_page
from tenax.views.transcript import WAITING, Drop, Put, Row, Transcript
from tests.support.runs import config_of

NAME = "c_talk"


class Writer:
    """Writes a random journal, as a runner and the people around it could have written it."""

    def __init__(self, journal: Journal, draw: Callable[[int], int]) -> None:
        self.journal = journal
        self.draw = draw
        self.run: str | None = None
        self.runs: list[str] = []
        self.cut: list[str] = []
        """Runs that did not complete."""
        self.late: dict[str, int] = {}
        self.resumable: str | None = None
        self.waiting: list[int] = []
        self.steering: list[int] = []
        self.taken: list[int] = []
        self.request = 0
        self.calls: list[tuple[int, str]] = []
        self.left: list[tuple[int, str]] = []
        """Calls of the run that was interrupted: who goes on with it makes them."""
        self.done: list[tuple[int, str]] = []
        self.over: list[tuple[int, str]] = []
        """Calls of runs that ended."""
        self.edits: list[int] = []
        self.notes: list[int] = []
        self.turns: list[str] = []
        self.words = 0
        self.add(ConversationOpened(journal.user or "", "s_1"))

    def add(self, *events: Event, run: str | None = None) -> int:
        return self.journal.append(NAME, events, run=run)[-1].seq

    def text(self) -> str:
        self.words += 1
        return f"text {self.words}"

    def pick(self, values: list[int] | list[str] | list[tuple[int, str]]) -> int:
        return self.draw(len(values))

    def step(self) -> None:
        """One event of some kind. What the journal refuses is not written."""
        steps = [
            self.say, self.say, self.tell, self.start, self.start, self.ask, self.ask, self.answer, self.answer,
            self.tool, self.tool, self.finish, self.fail, self.note, self.files, self.come_late, self.undo, self.restore,
            self.erase, self.replace, self.withdraw, self.withdraw,
        ]  # fmt: skip
        try:
            steps[self.draw(len(steps))]()
        except TenaxError:
            return

    def say(self) -> None:
        how = ("queue", "steer")[self.draw(2)]
        seq = self.add(MessageUser([Text(self.text())], ask=True, how=how))  # type: ignore[arg-type]
        (self.steering if how == "steer" else self.waiting).append(seq)

    def tell(self) -> None:
        self.add(
            (MessageUser([Text(self.text())]), ContextKept(self.text(), 1))[
                self.draw(2)
            ]
        )

    def start(self) -> None:
        """A run takes the first input that waits, or goes on with the one that was interrupted."""
        inputs = self.waiting or self.steering
        if self.run is not None or not (inputs or self.resumable):
            return
        name = f"r{len(self.runs)}"
        taken = inputs[:1]
        resumes = self.resumable if self.draw(3) else None
        self.add(
            RunStarted([] if resumes else taken, resumes, int(resumes is not None)),
            run=name,
        )
        if not resumes:
            self.taken += taken
            del inputs[:1]
        self.run, self.resumable, self.calls = name, None, self.left if resumes else []
        self.runs.append(name)

    def ask(self) -> None:
        if self.run is None or self.request or self.calls:
            return
        head = self.journal.head(NAME).head
        self.request = self.add(
            ModelRequested(head, "", "m", 1.0, self.steering), run=self.run
        )
        self.steering = []
        if self.draw(2):
            self.add(ReplyDelta(self.request, 0, "some"))

    def answer(self) -> None:
        if not self.request:
            return
        calls = [ToolCall(f"k{n}", "clock", "{}") for n in range(self.draw(3))]
        seq = self.add(
            MessageAssistant([Text(self.text()), *calls], self.request), run=self.run
        )
        self.request, self.calls = 0, [(seq, call.id) for call in calls]

    def tool(self) -> None:
        """The next step of the first call that is open."""
        if not self.calls:
            return
        message, call = self.calls[0]
        what = self.draw(4)
        if what == 0:
            asked = ApprovalAsked(message, call, "clock", "{}", "time")
            self.add(asked, ApprovalAnswered(message, call, "once"), run=self.run)
        elif what == 1:
            self.add(ToolStarted(message, call, "clock", "once", 1.0), run=self.run)
        else:
            self.add(ToolFinished(message, call, "done", self.text()), run=self.run)
            self.done.append(self.calls.pop(0))

    def finish(self) -> None:
        if self.run is None:
            return
        outcome = ("completed", "completed", "interrupted", "interrupted", "cancelled")[
            self.draw(5)
        ]
        events: list[Event] = (
            [MessagePartial([Text(self.text())], self.request)] if self.request else []
        )
        self.add(*events, RunFinished(outcome, "why"), run=self.run)  # type: ignore[arg-type]
        self.resumable = self.run if outcome == "interrupted" else None
        self.cut += [self.run] if outcome != "completed" else []
        self.run, self.request, self.left, self.calls = None, 0, self.calls, []
        self.over += self.done
        self.done = []

    def fail(self) -> None:
        if self.request:
            self.add(
                ModelFailed(self.request, "overloaded", self.text(), 1.0), run=self.run
            )
            self.request = 0

    def note(self) -> None:
        if self.notes and self.draw(2):
            self.add(
                MemoryNoted("f", 2, "undone", of=self.notes[self.pick(self.notes)])
            )
        else:
            self.notes.append(self.add(MemoryNoted("f", 1, "added", self.text())))

    def files(self) -> None:
        """A run changes files, one that was cut short is told to have, or a turn is put back."""
        run = self.run if self.run and self.draw(3) else None
        if run is None and self.turns and self.draw(2):
            undone = self.turns[self.pick(self.turns)]
            self.turns.append(str(self.add(FilesChanged(0, "", [], 1, undoes=undone))))
        elif run or self.cut:
            run = run or self.cut[self.pick(self.cut)]
            self.add(FilesChanged(0, "", [], self.draw(3)), run=run)
            self.turns.append(run)

    def come_late(self) -> None:
        if not self.runs:
            return
        run = self.runs[self.pick(self.runs)]
        what = self.draw(6)
        if what == 0:
            self.add(RunRecovered(("recovered", "neutral")[self.draw(2)]), run=run)
        elif what == 1 and self.over:
            message, call = self.over[self.pick(self.over)]
            self.add(ToolLate(message, call, "done", self.text()), run=run)
        elif what == 2 and run != self.run:
            self.add(RunSealed(), run=run)
        else:
            index = self.late.get(run, 0)
            self.late[run] = index + 1
            kind = ("token", "tool", "tool_complete")[self.draw(3)]
            self.add(
                RunLate(index, kind, {"text": self.text(), "name": "clock"}),  # type: ignore[arg-type]
                run=run,
            )

    def undo(self) -> None:
        head = self.journal.head(NAME).head
        clear = self.draw(4) == 0
        edit = (
            ConversationCleared() if clear else ConversationRewound(1 + self.draw(head))
        )
        seq = self.add(edit)
        self.edits.append(seq)
        self._stand()

    def restore(self) -> None:
        if self.edits:
            self.add(ConversationRestored(self.edits[self.pick(self.edits)]))
            self._stand()

    def replace(self) -> None:
        """Store a further version of a message."""
        roles = [row.last for row in self.journal.rows(NAME) if row.role == "user"]
        if roles:
            rewound = ConversationRewound(roles[self.pick(roles)] - 1, replaced=True)
            seq = self.add(rewound, MessageUser([Text(self.text())], ask=True))
            self.edits.append(seq - 1)
            self._stand()

    def withdraw(self) -> None:
        """Withdraw a message that waits, or try with one that a run took. Sometimes a new message replaces it."""
        seqs = self.waiting + self.steering + self.taken
        if not seqs:
            return
        seq = seqs[self.pick(seqs)]
        new = [MessageUser([Text(self.text())], ask=True)] if self.draw(2) else []
        last = self.add(MessageWithdrawn(seq), *new)
        self.waiting = [each for each in self.waiting if each != seq]
        self.steering = [each for each in self.steering if each != seq]
        self.waiting += [last] if new else []

    def erase(self) -> None:
        rows = self.journal.rows(NAME)
        if rows:
            self.journal.erase(NAME, [rows[self.draw(len(rows))].last], by="me")

    def _stand(self) -> None:
        """After an edit no run is gone on with, and what waits is what the journal says."""
        self.resumable = None
        found = self.journal.waiting(NAME)
        steers = [
            each.seq for each in found if getattr(each.event, "how", "") == "steer"
        ]
        self.steering, self.waiting = (
            steers,
            [each.seq for each in found if each.seq not in steers],
        )


def whole(journal: Journal) -> list[Row]:
    shown = Transcript()
    for event in journal.read(NAME, limit=10_000):
        shown.apply(event)
    return shown.rows


def joined(journal: Journal, limit: int) -> list[Row]:
    """All pages, from the last one upwards, joined."""
    page = fold_page(journal, NAME, None, limit).page(limit)
    rows = [*page.rows, *page.waiting]
    while page.next is not None:
        assert len(page.rows) == limit
        page = fold_page(journal, NAME, page.next, limit).page(limit)
        assert page.waiting == []
        rows[:0] = page.rows
    return rows


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(10, 150), st.integers(1, 12))
def test_pages_joined_are_the_whole_transcript(
    data: st.DataObject, steps: int, limit: int
) -> None:
    """Queued, steered, late, resumed, undone and erased parts stand on exactly one page, as in a fold of everything."""
    seed = data.draw(st.randoms(use_true_random=False))
    with memory() as journal:
        writer = Writer(journal, seed.randrange)
        for _ in range(steps):
            writer.step()
        rows = whole(journal)
        # one total order: a page can be cut between any two
        assert len({row.key for row in rows}) == len(rows)
        assert joined(journal, limit) == rows


def test_calls_that_another_run_made_and_late_calls_are_closed_on_every_page() -> None:
    """A run that goes on with an interrupted one makes its calls; one that is sealed makes none."""
    with memory() as journal:
        writer = Writer(journal, lambda _count: 0)
        seq = writer.add(MessageUser([Text("question")], ask=True))
        writer.add(RunStarted([seq]), run="r0")
        request = writer.add(ModelRequested(seq, "", "m", 1.0, []), run="r0")
        calls = [ToolCall(name, "clock", "{}") for name in ("k0", "k1")]
        message = writer.add(
            MessageAssistant([Text("look"), *calls], request), run="r0"
        )
        writer.add(
            ToolStarted(message, "k0", "clock", "once", 1.0),
            RunFinished("interrupted"),
            run="r0",
        )
        ends = (RunFinished("interrupted"), RunFinished("completed"))
        for n, (call, end) in enumerate(zip(("k0", "k1"), ends, strict=True), 1):
            writer.add(RunStarted([], f"r{n - 1}", n), run=f"r{n}")
            writer.add(ToolStarted(message, call, "clock", "once", 1.0), run=f"r{n}")
            writer.add(ToolFinished(message, call, "done", call), end, run=f"r{n}")
        writer.add(RunLate(0, "tool", {"name": "clock"}), run="r1")
        for _ in range(10):
            writer.tell()
        writer.add(RunSealed(), run="r1")
        for limit in range(1, 10):
            assert joined(journal, limit) == whole(journal)
        states = [(row.text, row.state) for row in whole(journal) if row.kind == "tool"]
    assert states == [("k0", "done"), ("k1", "done"), ("", "unknown")]


def test_every_first_page_carries_all_inputs_that_wait() -> None:
    """However many came after them, and wherever they were stored."""
    with memory() as journal:
        writer = Writer(journal, lambda _count: 0)
        writer.say()
        writer.start()
        writer.ask()
        waiting = [writer.add(MessageUser([Text("later")], ask=True)) for _ in range(7)]
        for _ in range(40):
            writer.tell()
        page = fold_page(journal, NAME, None, 5).page(5)
        assert [int(row.id) for row in page.waiting] == waiting
        assert all(row.key[0] == WAITING for row in page.waiting)
        assert len(page.rows) == 5
        assert joined(journal, 5) == whole(journal)


class Between:
    """A journal in which others write between the reads of who has this: `does[n]` after the nth read."""

    def __init__(self, journal: Journal, does: dict[int, Callable[[], object]]) -> None:
        self._journal = journal
        self._does = does
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._journal, name)

        def read(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            self.reads += 1
            self._does.get(self.reads, lambda: None)()
            return found

        return read if callable(method) else method


class Waits:
    """A conversation with an input that waits far above its last rows."""

    def __init__(self, journal: Journal) -> None:
        self.writer = Writer(journal, lambda _count: 0)
        self.asked: list[int] = []
        self.ask()

    def ask(self) -> None:
        self.asked.append(self.writer.add(MessageUser([Text("later")], ask=True)))
        for _ in range(10):
            self.writer.tell()

    def take(self) -> None:
        """A run takes what was asked last."""
        self.writer.add(RunStarted(self.asked[-1:]), run=f"r{len(self.asked)}")
        self.writer.add(RunFinished("completed"), run=f"r{len(self.asked)}")

    def withdraw(self) -> None:
        """The person withdraws what was asked last."""
        self.writer.add(MessageWithdrawn(self.asked[-1]))


def _reads_of_a_page() -> int:
    with memory() as journal:
        Waits(journal)
        counted = Between(journal, {})
        fold_page(counted, NAME, None, 1)  # type: ignore[arg-type]
        return counted.reads


def test_an_input_that_is_taken_while_a_page_is_read_is_shown() -> None:
    """Whenever a run takes it, and also one that came while the page was read: on the page, or to who goes on from it."""
    reads = range(1, _reads_of_a_page() + 1)
    assert len(reads) > 3
    for n, m in [(0, read) for read in reads] + list(combinations(reads, 2)):
        with memory() as journal:
            waits = Waits(journal)
            folded = fold_page(
                Between(journal, {n: waits.ask, m: waits.take}),  # type: ignore[arg-type]
                NAME,
                None,
                1,
            )
            for event in journal.read(NAME, after=folded.head):
                folded.transcript.apply(event)
            rows = {row.id: row for row in whole(journal)}
            shown = {
                row.id: row
                for row in folded.transcript.rows
                if int(row.id) in waits.asked
            }
            held = {row.id for row in rows.values() if row.key >= (folded.first, -1, 0)}
            assert shown == {
                str(seq): rows[str(seq)] for seq in waits.asked if str(seq) in held
            }, (n, m)


@pytest.mark.parametrize("n", range(1, _reads_of_a_page() + 1))
def test_a_message_withdrawn_while_a_page_is_read_is_gone(n: int) -> None:
    """The page lacks the message, or the events after the page remove the message."""
    with memory() as journal:
        waits = Waits(journal)
        between = Between(journal, {n: waits.withdraw})
        folded = fold_page(between, NAME, None, 1)  # type: ignore[arg-type]
        shown = {row.id for row in folded.page(1).waiting}
        for event in journal.read(NAME, after=folded.head):
            for change in folded.transcript.apply(event):
                assert isinstance(change, Drop)
                shown.remove(change.id)
        assert shown == set()
        assert folded.page(1) == fold_page(journal, NAME, None, 1).page(1)


@pytest.mark.parametrize("n", range(1, _reads_of_a_page() + 1))
def test_who_watches_has_an_input_that_is_taken_while_the_conversation_is_opened(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever read of the first fold it comes after."""
    with memory() as journal:
        asyncio.run(_watched(journal, n, monkeypatch))


async def _watched(journal: Journal, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(journal)
    for _ in range(100):  # more than a snapshot has
        waits.writer.tell()

    between = Between(journal, {n: waits.take})
    monkeypatch.setattr(AsyncJournal, "journal", between)
    feed = ConversationFeed(AsyncJournal(journal), NAME)
    hint = asyncio.Event()
    feed.enter(hint, rows=True)
    async with asyncio.timeout(60):
        while not feed.is_deleted and (
            not feed.is_ready() or feed.at < journal.head(NAME).head
        ):
            await hint.wait()
            hint.clear()
    page = feed.snapshot()
    await feed.stop()
    assert str(waits.asked[0]) in {row.id for row in page.rows}
    assert page.waiting == []


_ELSEWHERE = {
    "content.erased",
    "conversation.cleared",
    "conversation.restored",
    "conversation.rewound",
    "run.late",
}


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(10, 100), st.integers(1, 12))
def test_a_page_that_is_followed_is_the_page_that_is_opened_later(
    seed: Random, steps: int, limit: int
) -> None:
    """Who watches sees what a reload shows, as long as nothing changes what stands above."""
    with memory() as journal:
        writer = Writer(journal, seed.randrange)
        for _ in range(steps):
            writer.step()
        folded = fold_page(journal, NAME, None, limit)
        for _ in range(steps):
            writer.step()
            for event in journal.read(NAME, after=folded.head):
                resumes = (
                    event.event.resumes if isinstance(event.event, RunStarted) else None
                )
                # What a run above changed late stands at its end, which is not on this page.
                of = event.run if isinstance(event.event, FilesChanged) else resumes
                if event.kind in _ELSEWHERE or (
                    of and not folded.transcript.knows_run(of)
                ):
                    return
                folded.transcript.apply(event)
                folded.head = event.seq
            opened = fold_page(journal, NAME, None, limit).page(limit)
            assert folded.page(limit) == opened


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(10, 100), st.integers(1, 12))
def test_a_page_is_folded_as_it_stood_at_an_earlier_number(
    seed: Random, steps: int, limit: int
) -> None:
    """With the inputs that waited then, unless what stands above was changed since."""
    with memory() as journal:
        writer = Writer(journal, seed.randrange)
        for _ in range(steps):
            writer.step()
        then = fold_page(journal, NAME, None, limit)
        for _ in range(20):
            writer.step()
        if not any(
            event.kind in _ELSEWHERE for event in journal.read(NAME, after=then.head)
        ):
            again = fold_page(journal, NAME, None, limit, upto=then.head)
            assert again.page(limit) == then.page(limit)


def test_who_follows_is_told_of_a_taken_message_far_above(tmp_path: Path) -> None:
    """Also one that was sent long before, and was taken before the first read."""
    with memory() as journal:
        waits = Waits(journal)
        for _ in range(100):
            waits.writer.tell()
        told = asyncio.run(_followed(journal, waits, config_of("sqlite", tmp_path)))
    assert [(row.id, row.state) for row in told] == [(str(waits.asked[0]), "")]


async def _followed(journal: Journal, waits: Waits, config: Config) -> list[Row]:
    at = journal.head(NAME).head
    waits.take()
    told: list[Row] = []
    model = ScriptedModel([])
    async with (
        Runtime(config, journal=journal, models=[model], serves=False) as runtime,
        asyncio.timeout(60),
    ):
        async for seq, changes in runtime.follow(NAME, at):
            told += [change.row for change in changes if isinstance(change, Put)]
            if seq == journal.head(NAME).head:
                break
    return told


def test_cut_off_answers_keep_their_place_in_a_fork() -> None:
    """Each stands under its message, though the request that it belonged to stayed behind."""
    with memory() as journal:
        writer = Writer(journal, lambda _count: 0)
        for n in range(2):
            seq = writer.add(MessageUser([Text(f"question {n}")], ask=True))
            writer.add(RunStarted([seq]), run=f"r{n}")
            request = writer.add(ModelRequested(seq, "", "m", 1.0, []), run=f"r{n}")
            cut = MessagePartial([Text(f"half an answer {n}")], request)
            writer.add(cut, RunFinished("interrupted", "why"), run=f"r{n}")
        fork = journal.fork(NAME)
        page = fold_page(journal, fork, None, 10).page(10)
    expected = ["question 0", "half an answer 0", "question 1", "half an answer 1"]
    assert [row.text for row in page.rows] == expected
