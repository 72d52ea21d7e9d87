"""Runs: one at a time, and what comes late from a run that is over."""

from __future__ import annotations

from tenax.errors import InvalidInput, LeaseLost, RunConflict
from tenax.events import (
    ApprovalAsked,
    Event,
    MemoryRecalled,
    MessageAssistant,
    ModelRequested,
    ModelUsed,
    RunFinished,
    RunLate,
    RunSealed,
    RunStarted,
    ToolStarted,
    Usage,
)
from tenax.journal import Journal
from tenax.journal.base import Spent
from tenax.parts import Text
from tests.contract.engine.base import (
    Engine,
    answer,
    at_once,
    begin,
    refused,
    said,
    say,
    standing,
    take,
)

RIVALS = 6


class RunContract(Engine):
    """Runs."""

    def test_one_run_is_open_at_a_time(self, journal: Journal) -> None:
        """A second run is refused until the first has finished."""
        name = begin(journal, say("q", ask=True))
        journal.append(name, [RunStarted([2])], run="r-1")
        assert (journal.head(name).run, journal.summary(name).running) == ("r-1", True)
        for run in ("r-1", "r-2"):
            with refused(journal, name, RunConflict):
                journal.append(name, [RunStarted([2])], run=run)
        journal.append(name, [answer("a"), RunFinished("completed")], run="r-1")
        assert (journal.head(name).run, journal.summary(name).running) == (None, False)
        journal.append(name, [RunStarted()], run="r-2")

    def test_of_many_runners_one_starts(self, journal: Journal) -> None:
        """Runners that race for one input: one has it."""
        name = begin(journal, say("q", ask=True))

        def work(n: int) -> bool:
            try:
                journal.append(name, [RunStarted([2])], run=f"r-{n}")
            except RunConflict:
                return False
            return True

        assert at_once(work, range(RIVALS)).count(True) == 1

    def test_only_the_open_run_finishes(self, journal: Journal) -> None:
        """Another run's end, an end without a run and a second end are refused."""
        name = begin(journal)
        with refused(journal, name, RunConflict):
            journal.append(name, [RunFinished("completed")], run="r-1")
        journal.append(name, [RunStarted()], run="r-1")
        for run in ("r-2", None):
            with refused(journal, name, RunConflict):
                journal.append(name, [RunFinished("completed")], run=run)
        journal.append(name, [RunFinished("failed", "why")], run="r-1")
        with refused(journal, name, RunConflict):
            journal.append(name, [RunFinished("completed")], run="r-1")

    def test_a_run_has_a_name(self, journal: Journal) -> None:
        """A run starts, is late and is sealed under its own id."""
        name = begin(journal)
        for event in (RunStarted(), RunLate(0, "token", {"text": "x"}), RunSealed()):
            with refused(journal, name, InvalidInput):
                journal.append(name, [event])

    def test_a_run_takes_its_inputs(self, journal: Journal) -> None:
        """What a run took is no longer unanswered; what it did not take still is."""
        name = begin(
            journal,
            say("2", ask=True),
            say("3", ask=True),
            say("4"),
            say("5", ask=True),
        )
        assert journal.head(name).unanswered == 2
        journal.append(name, [RunStarted([2, 3])], run="r-1")
        assert journal.head(name).unanswered == 5
        journal.append(name, [RunFinished("completed")], run="r-1")
        journal.append(name, [RunStarted([5])], run="r-2")
        assert journal.head(name).unanswered == 0

    def test_a_finished_run_is_a_turn(self, journal: Journal) -> None:
        """`turns` is the seq at which the last run finished, or at which turns were last undone or brought back."""
        name = begin(journal, say("2"))
        assert journal.head(name).turns == 0
        journal.append(name, [RunStarted()], run="r-1")
        journal.append(name, [answer("a"), RunFinished("completed")], run="r-1")
        assert journal.head(name).turns == 5

    def test_storing_a_message_asks_for_no_run(self, journal: Journal) -> None:
        """Only a message that asks is unanswered."""
        name = begin(journal, say("2"))
        assert journal.head(name).unanswered == 0

    def test_late_output_is_kept_with_its_run(self, journal: Journal) -> None:
        """What arrives after the run was over is stored, shown, counted for its run, and is no message."""
        name = begin(journal, say("2"))
        journal.append(name, [RunStarted()], run="r-1")
        journal.append(name, [RunFinished("interrupted")], run="r-1")
        journal.append(name, [RunStarted()], run="r-2")
        journal.append(
            name,
            [RunLate(0, "token", {"text": "a"}), RunLate(1, "tool", {"name": "t"})],
            run="r-1",
        )
        assert [_late(journal, name, run) for run in ("r-1", "r-2", "r-3")] == [2, 0, 0]
        assert [event.run for event in journal.read(name, after=5)] == ["r-1", "r-1"]
        assert standing(journal, name) == [(2, "user"), (6, "late"), (7, "late")]
        head = journal.head(name)
        assert (head.messages, head.run, head.turns) == (1, "r-2", 4)
        assert said(journal, name) == ["2"]

    def test_late_output_may_name_a_run_the_store_never_saw(
        self, journal: Journal
    ) -> None:
        """A run whose start was lost with its host still delivers what it has."""
        name = begin(journal)
        journal.append(
            name, [RunLate(0, "token", {"text": "a"}), RunSealed()], run="r-lost"
        )
        assert _late(journal, name, "r-lost") == 1

    def test_only_late_kinds_are_written_after_the_lease_was_lost(
        self, journal: Journal
    ) -> None:
        """An owner that lost its run writes nothing under its lease; late output needs none."""
        name = begin(journal, say("2"))
        lease = take(journal, f"run:{name}", "old")
        journal.append(name, [RunStarted()], run="r-1", lease=lease)
        take(journal, f"run:{name}", "new", take_over=True)
        for events in ([answer("a")], [RunFinished("completed")]):
            with refused(journal, name, LeaseLost):
                journal.append(name, events, run="r-1", lease=lease)
        journal.append(
            name, [RunLate(0, "token", {"text": "a"}), RunSealed()], run="r-1"
        )
        assert _late(journal, name, "r-1") == 1

    def test_steps_belong_to_the_open_run(self, journal: Journal) -> None:
        """A request, an approval and a tool's start are refused where their run is not the open one."""
        name = begin(journal, say("q", ask=True))
        steps: list[Event] = [
            ModelRequested(2, "d", "m", 60.0),
            ApprovalAsked(1, "c", "t", "{}"),
            MemoryRecalled({"builtin": "- tea"}),
            ToolStarted(1, "c", "t", "pure", 60.0),
        ]
        for step in steps:
            with refused(journal, name, RunConflict):
                journal.append(name, [step], run="r-1")
        journal.append(name, [RunStarted([2]), *steps], run="r-1")

    def test_a_request_takes_inputs_too(self, journal: Journal) -> None:
        """A steer is taken by the request that names it; what no request names still waits."""
        name = begin(journal, say("q", ask=True))
        journal.append(name, [RunStarted([2])], run="r-1")
        journal.append(name, [say("steer", ask=True)])
        journal.append(name, [say("later", ask=True)])
        journal.append(name, [ModelRequested(5, "d", "m", 60.0, [4])], run="r-1")
        assert journal.head(name).unanswered == 5
        with refused(journal, name, InvalidInput):
            journal.append(name, [ModelRequested(6, "d", "m", 60.0, [99])], run="r-1")

    def test_what_is_unfinished_is_found_without_reading(
        self, journal: Journal
    ) -> None:
        """Conversations with an open run, and those with an input that waits, are found by asking for them."""
        quiet, asked, runs = (
            begin(journal, say("x")),
            begin(journal, say("q", ask=True)),
            begin(journal),
        )
        journal.append(runs, [RunStarted()], run="r-1")
        mine = {quiet, asked, runs}
        found = {
            (conversation.conversation, conversation.run)
            for conversation in journal.unfinished()
            if conversation.conversation in mine
        }
        assert found == {(asked, None), (runs, "r-1")}
        journal.append(asked, [RunStarted([2])], run="r-2")
        journal.append(asked, [RunFinished("completed")], run="r-2")
        journal.append(runs, [RunFinished("completed")], run="r-1")
        assert not [
            conversation
            for conversation in journal.unfinished()
            if conversation.conversation in mine
        ]

    def test_what_was_interrupted_lately_is_found_without_reading(
        self, journal: Journal
    ) -> None:
        """A conversation whose last run was interrupted; not one in which another run has ended since, or that rested."""
        cut, over, done, busy = (begin(journal) for _ in range(4))
        for name in (cut, over, busy):
            journal.append(name, [RunStarted(), RunFinished("interrupted")], run="r-1")
        journal.append(over, [RunStarted(), RunFinished("completed")], run="r-2")
        journal.append(done, [RunStarted(), RunFinished("completed")], run="r-1")
        journal.append(busy, [RunStarted()], run="r-2")
        mine = {cut, over, done, busy}
        found = [each for each in journal.interrupted(0) if each.conversation in mine]
        assert [(each.conversation, each.run) for each in found] == [(cut, "r-1")]
        assert journal.interrupted(journal.clock.now_us() + 10_000_000) == []

    def test_a_look_for_output_is_counted_once(self, journal: Journal) -> None:
        """Of two that count the same look, one is told that it did."""
        name = begin(journal)
        journal.append(name, [RunStarted(), RunFinished("interrupted")], run="r-1")
        assert journal.use_attempt(name, "r-1", was=0)
        assert not journal.use_attempt(name, "r-1", was=0)
        state = journal.run(name, "r-1")
        assert state is not None
        assert (state.attempts, state.outcome, journal.run(name, "r-none")) == (
            1,
            "interrupted",
            None,
        )

    def test_what_was_spent_is_summed(self, journal: Journal) -> None:
        """Tokens and money of every call count, for the conversation and for the day; no price is no money."""
        name, other = begin(journal), begin(journal)
        today = journal.spent()
        journal.append(
            name, [MessageAssistant([Text("a")], usage=Usage(100, 10, cost=0.25))]
        )
        journal.append(name, [ModelUsed("summary", "m", Usage(50, 5))])
        journal.append(
            other, [MessageAssistant([Text("b")], usage=Usage(1, 1, cost=0.5))]
        )
        assert journal.spent(name) == Spent(150, 15, 0.25, 1)
        now = journal.spent()
        assert (now.input - today.input, round(now.cost - today.cost, 6)) == (151, 0.75)


def _late(journal: Journal, conversation: str, run: str) -> int:
    found = journal.run(conversation, run)
    return found.late if found is not None else 0
