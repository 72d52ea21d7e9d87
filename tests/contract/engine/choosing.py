"""The choices for a conversation, its state in the list, and usage by model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenax.errors import InvalidInput
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ConversationConfigured,
    ConversationOpened,
    ConversationRewound,
    ConversationTitled,
    Event,
    MessageAssistant,
    ModelUsed,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolHanded,
    Usage,
)
from tenax.journal import Journal
from tenax.journal.base import RawEvent, UsageRow
from tenax.journal.store import DAY_US
from tenax.journal.verify.store import verify
from tenax.parts import Text
from tests.contract.engine.base import Engine, answer, begin, say, turn

ASKED = ApprovalAsked(3, "call", "shell", "{}")
ANSWERED = ApprovalAnswered(3, "call", "once")


class ChoiceContract(Engine):
    """What a person chose for a conversation, and what the list says about it."""

    def test_choices_stand_in_the_list(self, journal: Journal) -> None:
        """`None` leaves a choice as it is; an empty one is the default again."""
        name = begin(journal)
        assert choices(journal, name) == ("", "ask", "")
        journal.append(name, [ConversationConfigured("large", "plan", "p_1")])
        assert choices(journal, name) == ("large", "plan", "p_1")
        assert journal.conversations()[0] == journal.summary(name)
        journal.append(name, [ConversationConfigured(mode="edits")])
        assert choices(journal, name) == ("large", "edits", "p_1")
        journal.append(name, [ConversationConfigured(model="", project="")])
        assert choices(journal, name) == ("", "edits", "")

    def test_a_choice_moves_neither_the_order_nor_the_revision(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """A conversation stays where its last message put it."""
        first = begin(journal, say("a"))
        pass_time(2)
        begin(journal, say("b"))
        before, revision = journal.conversations(), journal.head(first).revision
        pass_time(2)
        journal.append(first, [ConversationConfigured("large")])
        after = journal.conversations()
        assert [summary.place for summary in after] == [
            summary.place for summary in before
        ]
        assert journal.head(first).revision == revision

    def test_a_choice_has_a_length_and_a_mode_is_a_known_one(
        self, journal: Journal
    ) -> None:
        """And it cannot be erased: it is no text."""
        name = begin(journal)
        with pytest.raises(InvalidInput, match="at most 200 characters"):
            journal.append(name, [ConversationConfigured("x" * 201)])
        wild: Event = ConversationConfigured(mode="wild")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="does not fit its schema"):
            journal.append(name, [wild])
        journal.append(name, [ConversationConfigured("large")])
        with pytest.raises(InvalidInput, match="holds no text"):
            journal.erase(name, [2], by="ada")
        assert choices(journal, name) == ("large", "ask", "")

    def test_a_fork_has_the_choices_of_its_origin(self, journal: Journal) -> None:
        """Those of now, wherever it was forked; and without a choice no event."""
        name = begin(journal, say("a"))
        upto = journal.head(name).head
        plain = journal.fork(name)
        assert [event.kind for event in journal.read(plain)][2:] == []
        journal.append(name, [ConversationConfigured("large", "edits", "p_1")])
        fork = journal.fork(name, upto=upto)
        assert choices(journal, fork) == ("large", "edits", "p_1")
        again = journal.fork(fork)
        assert choices(journal, again) == ("large", "edits", "p_1")

    def test_imported_choices_count(self, journal: Journal) -> None:
        """They stand in the list like those that were made here."""
        opened = ConversationOpened("ada", "s-in")
        entry = RawEvent(
            "conversation.configured", 5, None, b'{"model":"m","mode":"plan"}'
        )
        journal.load("c-in", opened, [entry])
        assert choices(journal, "c-in") == ("m", "plan", "")

    def test_the_list_says_who_waits_for_whom(self, journal: Journal) -> None:
        """A run runs, asks until everything is answered, and may have failed."""
        name = begin(journal)
        assert state(journal, name) == ""
        journal.append(name, [say("q"), RunStarted()], run="r-1")
        assert state(journal, name) == "running"
        second = ApprovalAsked(3, "other", "shell", "{}")
        journal.append(name, [ASKED, second], run="r-1")
        assert (state(journal, name), journal.summary(name).running) == ("asks", True)
        journal.append(name, [ANSWERED], run="r-1")
        assert state(journal, name) == "asks"
        journal.append(name, [ApprovalAnswered(3, "other", "no")], run="r-1")
        assert state(journal, name) == "running"
        journal.append(name, [RunFinished("failed", "no model")], run="r-1")
        assert (state(journal, name), journal.summary(name).running) == (
            "failed",
            False,
        )
        assert journal.conversations()[0] == journal.summary(name)
        journal.append(name, [RunStarted()], run="r-2")
        assert state(journal, name) == "running"
        journal.append(name, [RunFinished("completed")], run="r-2")
        assert state(journal, name) == ""

    def test_a_failure_that_was_undone_is_none(self, journal: Journal) -> None:
        """Nothing stands that failed."""
        name = begin(journal)
        turn(journal, name, "r-1", "failed")
        assert state(journal, name) == "failed"
        journal.append(name, [ConversationRewound(1)])
        assert state(journal, name) == ""

    def test_what_a_sub_agent_asks_its_parent_asks(self, journal: Journal) -> None:
        """From `tool.handed` on, until it was answered or the call has a result."""
        name = begin(journal)
        journal.append(name, [say("q"), RunStarted()], run="r-1")
        for handed, expected in (
            (ToolHanded(3, "call", "c-child"), "running"),
            (ToolHanded(3, "call", "c-child", asks=True), "asks"),
            (ToolHanded(3, "call", "c-child"), "running"),
            (ToolHanded(3, "call", "c-child", asks=True), "asks"),
            (ToolFinished(3, "call", "done", "done"), "running"),
        ):
            journal.append(name, [handed], run="r-1")
            assert state(journal, name) == expected

    def test_a_question_outlives_an_interruption(self, journal: Journal) -> None:
        """The run that resumes waits for the same answer; any other run does not."""
        name = begin(journal)
        journal.append(name, [say("q"), RunStarted(), ASKED], run="r-1")
        journal.append(name, [RunFinished("interrupted")], run="r-1")
        assert state(journal, name) == ""
        journal.append(name, [RunStarted(resumes="r-1")], run="r-2")
        assert state(journal, name) == "asks"
        journal.append(name, [RunFinished("interrupted")], run="r-2")
        journal.append(name, [RunStarted()], run="r-3")
        assert state(journal, name) == "running"

    def test_an_erased_answer_leaves_no_question_behind(self, journal: Journal) -> None:
        """What the erased event said cannot be derived again, so nothing depends on it."""
        name = begin(journal)
        journal.append(name, [say("q"), RunStarted(), answer("may I?")], run="r-1")
        asked = ApprovalAsked(4, "one", "ask", "{}")
        journal.append(name, [asked, ApprovalAsked(4, "two", "ask", "{}")], run="r-1")
        said = [
            ApprovalAnswered(4, "one", "once", words="a secret"),
            ToolFinished(4, "one", "done", "a secret"),
        ]
        seq = journal.append(name, said, run="r-1")[-1].seq
        assert state(journal, name) == "asks"
        journal.erase(name, [seq], by="ada")
        assert verify(journal).problems == []
        assert state(journal, name) == "running"
        later = ApprovalAsked(seq + 1, "three", "ask", "{}")
        journal.append(name, [answer("and now?"), later], run="r-1")
        journal.erase(name, [2], by="ada")
        assert state(journal, name) == "asks"

    def test_usage_is_known_by_day_model_and_conversation(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """What a sub-agent used, its parent used; what a deleted conversation used stays, without a name."""
        name = begin(journal)
        other = begin(journal)
        day = journal.clock.now_us() // DAY_US
        journal.append(
            name,
            [
                MessageAssistant([Text("a")], model="m", usage=Usage(100, 10, cost=1)),
                MessageAssistant([Text("b")], model="m", usage=Usage(10, 1, cost=0.5)),
                ModelUsed("title", "small", Usage(5, 5)),
            ],
        )
        child = ConversationOpened(
            "ada", "s-sub", source="delegate", parent=f"s-{name}"
        )
        used = MessageAssistant([Text("c")], model="m", usage=Usage(1, 1, cost=0.25))
        journal.append("c-sub", [child, used])
        journal.append(other, [used])
        journal.delete(other)
        pass_time(86_400)
        late = begin(journal, used)
        last = journal.clock.now_us() // DAY_US
        assert journal.usage(day, day) == [
            UsageRow(day, "m", "", 1, 1, 0.25, 0),
            UsageRow(day, "m", name, 111, 12, 1.75, 0),
            UsageRow(day, "small", name, 5, 5, 0.0, 1),
        ]
        assert journal.usage(last, last) == [UsageRow(last, "m", late, 1, 1, 0.25, 0)]
        assert journal.usage(last + 1, last + 9) == []
        assert journal.of("bob").usage(0, last) == []
        with pytest.raises(InvalidInput, match="since_day"):
            journal.usage(-1, 5)

    def test_a_title_and_a_pin_leave_the_state_alone(self, journal: Journal) -> None:
        """Only runs, questions and edits change it."""
        name = begin(journal)
        turn(journal, name, "r-1", "failed")
        journal.append(name, [ConversationTitled("x"), ConversationConfigured("m")])
        assert state(journal, name) == "failed"


def choices(journal: Journal, name: str) -> tuple[str, str, str]:
    found = journal.summary(name)
    return found.model, found.mode, found.project


def state(journal: Journal, name: str) -> str:
    return journal.summary(name).state
