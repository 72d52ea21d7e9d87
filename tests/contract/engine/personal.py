"""Preferences, read marks and projects: rows of a user beside the journals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tenax.errors import Gone, InvalidInput, NoSuchConversation, TenaxError, TooLarge
from tenax.journal import Journal
from tenax.journal.base import Head
from tenax.journal.preferences import PREFERENCES_MAX, Preferences, ReadMarks
from tenax.journal.projects import PROJECTS_MAX, Project, Projects
from tests.contract.engine.base import Engine, at_once, begin, say, turn


class PersonalContract(Engine):
    """What belongs to a user and to no conversation."""

    def test_preferences_are_json_by_name(self, journal: Journal) -> None:
        """Of one user; set, changed and removed, all or none of a change."""
        mine = Preferences(journal)
        assert mine.all() == {}
        values: dict[str, Any] = {"theme": "dark", "size": 1.5, "a": [1, {"b": "ü"}]}
        mine.change(values)
        mine.change({})
        assert mine.all() == Preferences(journal.of("ada")).all() == values
        assert Preferences(journal.of("bob")).all() == {}
        mine.change({"theme": "light", "size": None, "never": None, "no": False})
        assert mine.all() == {"a": [1, {"b": "ü"}], "theme": "light", "no": False}
        fails(TooLarge, lambda: mine.change({"theme": "x", "big": "x" * 17_000}))
        fails(InvalidInput, lambda: mine.change({"theme": "x", "": 1}))
        fails(InvalidInput, lambda: mine.change({"theme": "x", "a": object()}))
        fails(InvalidInput, lambda: mine.change({"theme": "\ud800"}))
        assert mine.all()["theme"] == "light"

    def test_there_are_at_most_so_many_preferences(
        self, journal: Journal, another: Journal
    ) -> None:
        """Also when several set one at the same time."""
        Preferences(journal).change({f"n{n}": n for n in range(PREFERENCES_MAX - 1)})

        def add(number: int) -> bool:
            handle = (journal, another)[number % 2]
            try:
                Preferences(handle).change({f"more{number}": number})
            except InvalidInput:
                return False
            return True

        assert sum(at_once(add, range(4))) == 1
        assert len(Preferences(journal).all()) == PREFERENCES_MAX

    def test_a_read_mark_only_grows(self, journal: Journal, another: Journal) -> None:
        """Up to the head, wherever it is set."""
        name = begin(journal, say("a"), say("b"))
        marks, others = ReadMarks(journal), ReadMarks(another)
        assert marks.mark(name, 2)
        assert not others.mark(name, 1)
        assert not others.mark(name, 2)
        assert journal.summary(name).read == 2
        assert others.mark(name, 99)
        assert journal.summary(name).read == 3
        assert journal.conversations()[0].read == 3
        fails(InvalidInput, lambda: marks.mark(name, 0))
        fails(NoSuchConversation, lambda: ReadMarks(journal.of("bob")).mark(name, 1))
        fails(NoSuchConversation, lambda: marks.mark("c-none", 1))

    def test_a_read_mark_goes_with_its_conversation(self, journal: Journal) -> None:
        """A deleted conversation takes none."""
        name = begin(journal, say("a"))
        ReadMarks(journal).mark(name, 2)
        journal.delete(name)
        fails(Gone, lambda: ReadMarks(journal).mark(name, 2))

    def test_rows_of_a_user_move_nothing(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """No head, no order, no revision, no time."""
        first = begin(journal, say("a"))
        pass_time(2)
        second = begin(journal, say("b"))

        def shown() -> tuple[list[Head], list[tuple[int, int, int]]]:
            places = [summary.place for summary in journal.conversations()]
            return [journal.head(first), journal.head(second)], places

        before = shown()
        pass_time(2)
        ReadMarks(journal).mark(first, 2)
        Preferences(journal).change({"a": 1})
        Projects(journal).add(Project("p_1", "One"))
        assert shown() == before

    def test_unread_is_an_answer_after_the_mark(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """Nothing is unread for a person who has never read with marks; a message of the person is no answer."""
        old, new = begin(journal), begin(journal)
        turn(journal, old, "r-1")
        turn(journal, new, "r-1")
        assert unread(journal) == set()
        pass_time(2)
        ReadMarks(journal).mark(new, journal.head(new).head)
        assert unread(journal) == set()
        pass_time(2)
        journal.append(new, [say("and?")])
        assert unread(journal) == set()
        turn(journal, new, "r-2", "failed")
        assert unread(journal) == {new}
        turn(journal, old, "r-2", "completed")
        third = begin(journal, say("nobody answered"))
        assert unread(journal) == {new, old}
        assert journal.summary(old).unread
        assert not journal.summary(third).unread
        for name in (new, old):
            ReadMarks(journal).mark(name, journal.head(name).head)
        assert unread(journal) == set()
        turn(journal, old, "r-3", "cancelled")
        assert unread(journal) == set()

    def test_projects_are_added_changed_and_removed(self, journal: Journal) -> None:
        """Of one user; an id is added once."""
        mine = Projects(journal)
        one = mine.add(Project("p_1", " The  garden ", "/srv", "Be kind.", "large"))
        assert one == Project(
            "p_1", "The garden", "/srv", "Be kind.", "large", one.created_at
        )
        assert mine.add(Project("p_1", "Another")) == one
        assert mine.all() == [one] == [mine.get("p_1")]
        mine.change(msgspec.structs.replace(one, name="Harbour", model=""))
        assert mine.get("p_1") == msgspec.structs.replace(one, name="Harbour", model="")
        bob = Projects(journal.of("bob"))
        assert bob.all() == []
        for call in (
            lambda: bob.get("p_1"),
            lambda: bob.remove("p_1"),
            lambda: bob.change(one),
            lambda: mine.get(""),
        ):
            with pytest.raises(NoSuchConversation, match="There is no project"):
                call()
        fails(InvalidInput, lambda: mine.add(Project("p_2", "  ")))
        fails(TooLarge, lambda: mine.add(Project("p_2", "x" * 101)))
        fails(
            TooLarge, lambda: mine.add(Project("p_2", "x", instructions="x" * 10_001))
        )
        mine.remove("p_1")
        assert mine.all() == []

    def test_there_are_at_most_so_many_projects(self, journal: Journal) -> None:
        """The next one is refused."""
        mine = Projects(journal)
        for number in range(PROJECTS_MAX):
            mine.add(Project(f"p_{number}", "x"))
        with pytest.raises(InvalidInput, match="100 projects already"):
            mine.add(Project("p_more", "x"))


def fails(error: type[TenaxError], call: Callable[[], object]) -> None:
    with pytest.raises(error):
        call()


def unread(journal: Journal) -> set[str]:
    return {
        summary.conversation for summary in journal.conversations() if summary.unread
    }
