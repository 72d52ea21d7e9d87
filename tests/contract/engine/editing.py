"""Undo, clear, bring back."""

from __future__ import annotations

from tenax.errors import InvalidInput, RunConflict
from tenax.events import (
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    RunFinished,
    RunStarted,
)
from tenax.journal import Journal
from tests.contract.engine.base import (
    Engine,
    answer,
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
