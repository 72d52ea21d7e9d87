"""Compaction: one successor, and nothing lost around it."""

from __future__ import annotations

from tenax.errors import ConversationExists, HeadMoved, InvalidInput, SegmentMoved
from tenax.events import (
    ContextCompacted,
    ContextSummarised,
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
)
from tenax.journal import Journal
from tenax.parts import Text
from tests.contract.engine.base import (
    Engine,
    at_once,
    begin,
    compact,
    refused,
    said,
    say,
)

RIVALS = 6


class CompactContract(Engine):
    """Compacting, which is appending."""

    def test_a_compaction_ends_the_parent_and_opens_one_child(
        self, journal: Journal
    ) -> None:
        """The parent ends for the reason `compression`, and the child names it."""
        name = begin(journal, say("2"), say("3"), say("4"))
        at = compact(journal, name, 3, parent=f"s-{name}", child="s-child")[-1].seq
        parent, child = journal.segment(f"s-{name}"), journal.segment("s-child")
        assert parent is not None
        assert child is not None
        assert (parent.reason, parent.ended_seq, parent.messages) == (
            "compression",
            at,
            3,
        )
        assert (child.parent, child.opened_seq, child.ended_seq, child.covers_to) == (
            f"s-{name}",
            at,
            None,
            3,
        )
        assert journal.children(f"s-{name}") == ["s-child"]
        assert journal.head(name).segment == "s-child"

    def test_a_compaction_moves_context_revision_and_epoch(
        self, journal: Journal
    ) -> None:
        """The context begins after what the summary covers; the transcript keeps everything."""
        name = begin(journal, say("2"), say("3"), say("4"))
        at = compact(journal, name, 3, parent=f"s-{name}", child="s-child")[-1].seq
        head = journal.head(name)
        assert (head.context_from, head.revision, head.epoch, head.messages) == (
            4,
            at,
            at,
            3,
        )
        assert said(journal, name) == ["2", "3", "4"]
        assert [row.role for row in journal.rows(name)] == [
            "user",
            "user",
            "user",
            "summary",
        ]

    def test_messages_belong_to_the_segment_that_was_open(
        self, journal: Journal
    ) -> None:
        """What is said after a compaction counts for the child, and undo takes it from there."""
        name = begin(journal, say("2"), say("3"))
        compact(journal, name, 3, parent=f"s-{name}", child="s-child")
        journal.append(name, [say("6"), say("7")])
        journal.append(name, [ConversationRewound(6)])
        counts = {
            each: segment.messages
            for each in (f"s-{name}", "s-child")
            if (segment := journal.segment(each))
        }
        assert counts == {f"s-{name}": 2, "s-child": 1}

    def test_what_was_said_meanwhile_stays_in_the_context(
        self, journal: Journal
    ) -> None:
        """Messages that were stored while the summary was being written stand after what it covers."""
        name = begin(journal, say("2"), say("3"))
        folded_to = journal.head(name).head
        journal.append(name, [say("meanwhile")])
        compact(
            journal, name, 3, parent=f"s-{name}", child="s-child", folded_to=folded_to
        )
        assert journal.head(name).context_from == 4
        assert said(journal, name)[-1] == "meanwhile"

    def test_of_many_compactors_one_wins(self, journal: Journal) -> None:
        """Without any lock there is one child; the others are told its name and have stored nothing."""
        name = begin(journal, say("2"), say("3"))

        def work(n: int) -> str | None:
            summary = ContextSummarised([Text(f"summary {n}")], 3)
            try:
                journal.append(
                    name,
                    [summary, ContextCompacted(f"s-{name}", f"s-child-{n}", 4, 3, 3)],
                )
            except SegmentMoved as error:
                return error.by
            return f"s-child-{n}"

        (winner,) = set(at_once(work, range(RIVALS)))
        assert journal.children(f"s-{name}") == [winner]
        assert journal.head(name).head == 5

    def test_a_compaction_that_comes_after_another_is_refused(
        self, journal: Journal
    ) -> None:
        """The second one to the same parent is told which child came first."""
        name = begin(journal, say("2"), say("3"))
        compact(journal, name, 2, parent=f"s-{name}", child="s-first")
        with refused(journal, name, SegmentMoved) as moved:
            compact(journal, name, 3, parent=f"s-{name}", child="s-second")
        assert moved.value.by == "s-first"
        assert journal.segment("s-second") is None

    def test_a_compaction_loses_against_an_edit_of_what_it_covers(
        self, journal: Journal
    ) -> None:
        """A summary of words that were undone, cleared, brought back or erased meanwhile is not stored."""
        for edit in ("rewound", "cleared", "restored", "erased"):
            name = begin(journal, say("2"), say("3"), say("4"))
            journal.append(name, [ConversationCleared()])
            if edit != "restored":
                journal.append(name, [ConversationRestored(5)])
            folded_to = journal.head(name).head
            match edit:
                case "rewound":
                    journal.append(name, [ConversationRewound(2)])
                case "cleared":
                    journal.append(name, [ConversationCleared()])
                case "restored":
                    journal.append(name, [ConversationRestored(5)])
                case _:
                    journal.erase(name, [3], by="ada")
            with refused(journal, name, HeadMoved):
                compact(
                    journal,
                    name,
                    3,
                    parent=f"s-{name}",
                    child=f"s-{name}-child",
                    folded_to=folded_to,
                )
            compact(journal, name, 3, parent=f"s-{name}", child=f"s-{name}-child")

    def test_a_compaction_does_not_mind_an_edit_above_what_it_covers(
        self, journal: Journal
    ) -> None:
        """An undo or an erasure after the covered part leaves the summary true."""
        name = begin(journal, say("2"), say("3"), say("4"), say("5"))
        folded_to = journal.head(name).head
        journal.append(name, [ConversationRewound(4)])
        journal.erase(name, [4], by="ada")
        compact(
            journal, name, 3, parent=f"s-{name}", child="s-child", folded_to=folded_to
        )
        assert journal.head(name).segment == "s-child"

    def test_a_summary_covers_what_is_there_and_never_less_than_before(
        self, journal: Journal
    ) -> None:
        """A compaction cannot cover the future, nor less than the one before it."""
        name = begin(journal, say("2"), say("3"), say("4"))
        with refused(journal, name, InvalidInput):
            compact(journal, name, 99, parent=f"s-{name}", child="s-child")
        compact(journal, name, 3, parent=f"s-{name}", child="s-child")
        with refused(journal, name, InvalidInput):
            compact(journal, name, 2, parent="s-child", child="s-grandchild")
        journal.append(name, [say("7")])
        compact(journal, name, 4, parent="s-child", child="s-grandchild")
        assert journal.children("s-child") == ["s-grandchild"]

    def test_a_child_has_a_name_of_its_own(self, journal: Journal) -> None:
        """A compaction into a name that is taken is refused."""
        name, other = begin(journal, say("2")), begin(journal)
        for taken in (f"s-{name}", f"s-{other}"):
            with refused(journal, name, ConversationExists):
                compact(journal, name, 2, parent=f"s-{name}", child=taken)

    def test_titles_and_later_words_do_not_stop_a_compaction(
        self, journal: Journal
    ) -> None:
        """Only edits of what is covered do."""
        name = begin(journal, say("2"))
        folded_to = journal.head(name).head
        journal.append(name, [ConversationTitled("t"), say("4")])
        compact(
            journal, name, 2, parent=f"s-{name}", child="s-child", folded_to=folded_to
        )
        assert journal.head(name).segment == "s-child"
