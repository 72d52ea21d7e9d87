"""Undo, clear, bring back, withdraw."""

from __future__ import annotations

from tenax.errors import HeadMoved, InvalidInput, Refused, RunConflict
from tenax.events import (
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    Event,
    MessageWithdrawn,
    ModelRequested,
    RunFinished,
    RunStarted,
)
from tenax.journal import Journal
from tests.contract.engine.base import (
    Engine,
    answer,
    at_once,
    begin,
    compact,
    delta,
    refused,
    said,
    say,
)


class EditContract(Engine):
    """Editing, which is appending."""

    def test_undo_takes_everything_after_a_seq_out_of_the_transcript(
        self, journal: Journal
    ) -> None:
        """What was undone no longer stands and no longer counts, but is still in the journal."""
        name = begin(journal, say("2"), answer("3"), say("4"), answer("5"))
        journal.append(name, [ConversationRewound(3)])
        assert said(journal, name) == ["2", "3"]
        assert [row.last for row in journal.rows(name)] == [2, 3]
        head = journal.head(name)
        assert (head.messages, head.revision, head.head) == (2, 6, 6)
        assert [event.seq for event in journal.read(name)] == [1, 2, 3, 4, 5, 6]
        assert journal.summary(name).messages == 2

    def test_the_conversation_goes_on_after_an_undo(self, journal: Journal) -> None:
        """New messages stand after those that are left, and an undo of an undo's rest works."""
        name = begin(journal, say("2"), say("3"))
        journal.append(name, [ConversationRewound(2), say("5")])
        assert said(journal, name) == ["2", "5"]
        journal.append(name, [ConversationRewound(1)])
        assert said(journal, name) == []

    def test_a_message_is_replaced_only_while_it_stands(self, journal: Journal) -> None:
        """A further version replaces a standing message; one append switches back to the earlier version."""
        name = begin(journal, say("2"), answer("3"), say("4"), answer("5"))
        journal.append(name, [ConversationRewound(3, replaced=True), say("7")])
        assert said(journal, name) == ["2", "3", "7"]
        for wrong in (2, 3, 7):
            with refused(journal, name, InvalidInput):
                journal.append(
                    name, [ConversationRewound(wrong, replaced=True), say("x")]
                )
        journal.append(name, [ConversationRewound(6), ConversationRestored(6)])
        assert said(journal, name) == ["2", "3", "4", "5"]
        assert journal.head(name).messages == 4
        with refused(journal, name, InvalidInput):
            journal.append(name, [ConversationRewound(4), ConversationRestored(6)])

    def test_an_undone_question_is_not_unanswered(self, journal: Journal) -> None:
        """Undo withdraws a question; bringing it back asks it again."""
        name = begin(journal, say("2"), say("3", ask=True), say("4", ask=True))
        assert journal.head(name).unanswered == 3
        journal.append(name, [ConversationRewound(3)])
        assert journal.head(name).unanswered == 3
        journal.append(name, [ConversationRewound(2)])
        assert journal.head(name).unanswered == 0
        journal.append(name, [ConversationRestored(6)])
        assert journal.head(name).unanswered == 3

    def test_there_has_to_be_something_to_undo(self, journal: Journal) -> None:
        """An undo that would change nothing, or reaches past the end or before the beginning, is refused."""
        name = begin(journal, say("2"), ConversationTitled("t"))
        for to in (0, 2, 3, 4, 99):
            with refused(journal, name, InvalidInput):
                journal.append(name, [ConversationRewound(to)])

    def test_undo_does_not_reach_behind_a_compaction(self, journal: Journal) -> None:
        """Undo goes back to the beginning of the head segment; further back is a fork."""
        name = begin(journal, say("2"), say("3"), say("4"))
        at = compact(journal, name, 3, parent=f"s-{name}", child="s-child")[-1].seq
        journal.append(name, [say("7")])
        with refused(journal, name, InvalidInput):
            journal.append(name, [ConversationRewound(at - 1)])
        journal.append(name, [ConversationRewound(at)])
        assert said(journal, name) == ["2", "3", "4"]

    def test_clearing_empties_the_transcript(self, journal: Journal) -> None:
        """Everything before it leaves transcript and context; what follows stands."""
        name = begin(journal, say("2", ask=True), answer("3"))
        journal.append(name, [ConversationCleared()])
        head = journal.head(name)
        assert (said(journal, name), head.messages, head.unanswered) == ([], 0, 0)
        assert head.context_from == 5
        journal.append(name, [say("5")])
        assert said(journal, name) == ["5"]

    def test_an_undo_can_be_taken_back(self, journal: Journal) -> None:
        """Bringing back makes the same rows stand again."""
        name = begin(journal, say("2"), say("3"), say("4"))
        before = journal.rows(name)
        journal.append(name, [ConversationRewound(2)])
        journal.append(name, [ConversationRestored(5)])
        assert journal.rows(name) == before
        head = journal.head(name)
        assert (head.messages, head.revision) == (3, 6)

    def test_an_undo_can_not_be_taken_back_once_the_conversation_went_on(
        self, journal: Journal
    ) -> None:
        """After a new message the undone ones have no place any more."""
        name = begin(journal, say("2"), say("3"))
        journal.append(name, [ConversationRewound(2), say("5")])
        with refused(journal, name, InvalidInput):
            journal.append(name, [ConversationRestored(4)])

    def test_a_clear_can_be_taken_back_later(self, journal: Journal) -> None:
        """What was cleared comes back before what was written since."""
        name = begin(journal, say("2"), say("3"))
        journal.append(name, [ConversationCleared(), say("5")])
        journal.append(name, [ConversationRestored(4)])
        assert said(journal, name) == ["2", "3", "5"]
        assert journal.head(name).context_from == 1

    def test_a_clear_that_is_taken_back_keeps_an_older_clear(
        self, journal: Journal
    ) -> None:
        """Bringing back one clear does not bring back what another one took away."""
        name = begin(journal, say("2"))
        journal.append(name, [ConversationCleared(), say("4")])
        journal.append(name, [ConversationCleared(), say("6")])
        journal.append(name, [ConversationRestored(5)])
        assert said(journal, name) == ["4", "6"]
        journal.append(name, [ConversationRestored(3)])
        assert said(journal, name) == ["2", "4", "6"]

    def test_only_an_undo_or_a_clear_is_taken_back_and_only_once(
        self, journal: Journal
    ) -> None:
        """Bringing back something else, nothing, or the same thing twice is refused."""
        name = begin(journal, say("2"), say("3"))
        journal.append(name, [ConversationRewound(2)])
        for of in (0, 2, 5, 99):
            with refused(journal, name, InvalidInput):
                journal.append(name, [ConversationRestored(of)])
        journal.append(name, [ConversationRestored(4)])
        with refused(journal, name, InvalidInput):
            journal.append(name, [ConversationRestored(4)])

    def test_edits_wait_for_the_run(self, journal: Journal) -> None:
        """While a run is open nothing is undone, cleared or brought back under it."""
        name = begin(journal, say("2"), say("3"))
        journal.append(name, [ConversationRewound(2)])
        journal.append(name, [RunStarted()], run="r-1")
        for event in (
            ConversationRewound(1),
            ConversationCleared(),
            ConversationRestored(4),
        ):
            with refused(journal, name, RunConflict):
                journal.append(name, [event])
        journal.append(name, [RunFinished("completed")], run="r-1")
        journal.append(name, [ConversationRewound(1)])
        assert said(journal, name) == []

    def test_partials_of_an_undone_answer_stay_with_it(self, journal: Journal) -> None:
        """A page of the transcript shows nothing of an undone answer but the edit itself."""
        name = begin(journal, say("2"))
        journal.append(name, [delta(2, 0, "x"), answer("x", request=2)])
        journal.append(name, [ConversationRewound(2)])
        assert [(row.first, row.last) for row in journal.rows(name)] == [(2, 2)]

    # -- withdrawing a message that waits ----------------------------------------------------------------------

    def test_a_waiting_message_is_withdrawn_during_a_run(
        self, journal: Journal
    ) -> None:
        """The message no longer stands, counts or waits. The later message waits on, and the run goes on."""
        name = begin(journal, say("2", ask=True))
        journal.append(name, [RunStarted([2])], run="r-1")
        journal.append(name, [say("4", ask=True), say("5", ask=True)])
        before = journal.head(name)
        journal.append(name, [MessageWithdrawn(4)])
        head = journal.head(name)
        assert (said(journal, name), head.messages) == (["2", "5"], 2)
        assert (head.unanswered, head.revision, head.run) == (5, 6, "r-1")
        assert (head.epoch, head.turns) == (before.epoch, before.turns)
        assert [waits.seq for waits in journal.waiting(name)] == [5]
        answered = [answer("7"), RunFinished("completed")]
        journal.append(name, answered, run="r-1")
        assert said(journal, name) == ["2", "5", "7"]
        assert journal.summary(name).messages == 3

    def test_a_queued_message_is_replaced_in_one_append(self, journal: Journal) -> None:
        """The new message waits in place of the earlier one."""
        name = begin(journal, say("2"), say("3", ask=True))
        journal.append(name, [RunStarted()], run="r-1")
        journal.append(name, [MessageWithdrawn(3), say("6", ask=True)])
        assert said(journal, name) == ["2", "6"]
        assert journal.head(name).unanswered == 6

    def test_only_a_message_that_waits_is_withdrawn(self, journal: Journal) -> None:
        """A taken, removed or withdrawn message, a message without a run to come and any other event are refused."""
        name = begin(journal, say("2", ask=True), say("3"), say("4", ask=True))
        journal.append(name, [MessageWithdrawn(4)])
        journal.append(name, [say("6", ask=True)])
        journal.append(name, [ConversationRewound(5)])
        journal.append(name, [RunStarted([2])], run="r-1")
        for of in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99):
            with refused(journal, name, Refused):
                journal.append(name, [MessageWithdrawn(of)])

    def test_no_run_takes_a_withdrawn_message(self, journal: Journal) -> None:
        """The start of a run and a request of a run are refused, and are tried again without the message."""
        name = begin(journal, say("2", ask=True), say("3", ask=True))
        journal.append(name, [MessageWithdrawn(2)])
        with refused(journal, name, HeadMoved):
            journal.append(name, [RunStarted([2])], run="r-1")
        journal.append(name, [RunStarted([3])], run="r-1")
        journal.append(name, [say("6", ask=True)])
        journal.append(name, [MessageWithdrawn(6)])
        with refused(journal, name, HeadMoved):
            journal.append(name, [ModelRequested(7, "", "m", 1.0, [6])], run="r-1")
        request = ModelRequested(7, "", "m", 1.0, [])
        journal.append(name, [request], run="r-1")

    def test_one_append_cannot_withdraw_what_it_removes_or_takes(
        self, journal: Journal
    ) -> None:
        """The events of one append follow each other, as if each had an append of its own."""
        name = begin(journal, say("2"), say("3", ask=True))
        withdrawn = MessageWithdrawn(3)
        for events, error in (
            ([ConversationRewound(2), withdrawn], Refused),
            ([RunStarted([3]), withdrawn], Refused),
            ([withdrawn, withdrawn], Refused),
            ([withdrawn, RunStarted([3])], HeadMoved),
            ([withdrawn, ConversationRewound(2)], InvalidInput),
        ):
            with refused(journal, name, error):
                journal.append(name, events, run="r-1")
        journal.append(name, [withdrawn, ConversationRewound(1)])
        assert said(journal, name) == []

    def test_no_restore_brings_a_withdrawn_message_back(self, journal: Journal) -> None:
        """An undo over a withdrawal and its restore leave the message away, and a withdrawal is not restored."""
        name = begin(journal, say("2"), say("3", ask=True), say("4"))
        journal.append(name, [MessageWithdrawn(3)])
        with refused(journal, name, InvalidInput):
            journal.append(name, [ConversationRestored(5)])
        for edit in (ConversationRewound(1), ConversationCleared()):
            (stored,) = journal.append(name, [edit])
            assert said(journal, name) == []
            journal.append(name, [ConversationRestored(stored.seq)])
            assert said(journal, name) == ["2", "4"]
            assert journal.head(name).unanswered == 0

    def test_a_fork_has_no_withdrawn_message(self, journal: Journal) -> None:
        """Neither a fork at the end nor a fork before the withdrawal."""
        name = begin(journal, say("2"), say("3", ask=True))
        journal.append(name, [MessageWithdrawn(3)])
        for upto in (None, 3):
            assert said(journal, journal.fork(name, upto=upto)) == ["2"]

    def test_a_message_from_before_a_compaction_is_withdrawn(
        self, journal: Journal
    ) -> None:
        """The counts of both segments are right, as `verify` proves after the test."""
        name = begin(journal, say("2"), say("3", ask=True), say("4"))
        compact(journal, name, 2, parent=f"s-{name}", child=f"s2-{name}")
        journal.append(name, [MessageWithdrawn(3)])
        assert said(journal, name) == ["2", "4"]
        assert journal.head(name).messages == 2

    def test_of_a_withdrawal_and_a_run_at_once_one_wins(self, journal: Journal) -> None:
        """Either the run has the message and the withdrawal is refused, or the other way round."""
        for n in range(20):
            name = begin(journal, say("2", ask=True))
            events: list[Event] = [RunStarted([2]), MessageWithdrawn(2)]

            def append(
                event: Event, name: str = name, n: int = n
            ) -> type[Exception] | None:
                try:
                    journal.append(name, [event], run=f"r-{n}")
                except Refused as error:
                    return type(error)
                return None

            outcomes = at_once(append, events)
            assert outcomes in ([None, Refused], [HeadMoved, None])
            is_taken = outcomes[0] is None
            assert said(journal, name) == (["2"] if is_taken else [])
            assert (journal.head(name).run is not None) == is_taken
