"""What is remembered of a person, what memories are owed, and what a reader gave up on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tenax.errors import (
    CursorMoved,
    InvalidInput,
    LeaseLost,
    MemoryChanged,
    NoSuchConversation,
    TenaxError,
    TooLarge,
)
from tenax.events import (
    Blob,
    ContextOpened,
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    MemoryDue,
    MemoryNoted,
    MemoryRecalled,
    MessageUser,
    RunStarted,
)
from tenax.journal import Journal
from tenax.journal.base import DeadLetter, Reader
from tenax.memory.entries import ENTRIES_MAX, TEXT_CHARS_MAX, MemoryEntries, MemoryEntry
from tenax.parts import Text
from tests.contract.engine.base import (
    Engine,
    begin,
    refused,
    say,
    take,
    take_reader,
    turn,
)

SYNC = Reader("memory:x:sync", "turns", "now")
COMMIT = Reader("memory:x:commit", "due", "now")


def texts(facts: list[MemoryEntry]) -> list[str]:
    return [fact.text for fact in facts]


def due(journal: Journal, name: str, upto: int) -> int:
    return journal.append(name, [MemoryDue(f"s-{name}", upto, "switch")])[0].seq


def join(journal: Journal, name: str, author: str = "eve") -> int:
    """Somebody else writes here."""
    return journal.append(name, [MessageUser([Text("hello")], author=author)])[0].seq


class RememberContract(Engine):
    """Remembering."""

    # -- facts -----------------------------------------------------------------------------------------------

    def test_a_fact_is_kept_with_where_it_was_learned(self, journal: Journal) -> None:
        """Its text in one line, by whom, about what, when, and from which message."""
        name, facts = begin(journal, say("I live in Oslo")), MemoryEntries(journal)
        fact = facts.add(
            " lives\nin\r\n\n Oslo ",
            about="profile",
            by="review",
            conversation=name,
            seq=2,
        )
        assert (fact.version, fact.state, fact.text) == (1, "standing", "lives in Oslo")
        assert (fact.about, fact.by, fact.conversation, fact.seq) == (
            "profile",
            "review",
            name,
            2,
        )
        assert (fact.scope, fact.replaces) == (None, None)
        assert fact.id.startswith("f_")
        assert facts.versions(fact.id)[-1] == fact
        assert facts.standing() == [fact]

    def test_a_fact_may_be_told_elsewhere(self, journal: Journal) -> None:
        """On a page, by a person: then it has no place."""
        fact = MemoryEntries(journal).add("likes tea")
        assert (fact.conversation, fact.seq, fact.by, fact.about) == (
            None,
            None,
            "person",
            "note",
        )

    def test_a_change_is_a_new_version(self, journal: Journal) -> None:
        """What it has been stays, oldest first; the last version is the fact."""
        name, facts = begin(journal, say("2"), say("3")), MemoryEntries(journal)
        first = facts.add("likes tea", conversation=name, seq=2)
        second = facts.change(
            first.id, was=1, text="likes coffee", by="model", conversation=name, seq=3
        )
        third = facts.change(first.id, was=2, about="profile")
        assert [
            (version.text, version.seq, version.about)
            for version in facts.versions(first.id)
        ] == [
            ("likes tea", 2, "note"),
            ("likes coffee", 3, "note"),
            ("likes coffee", 3, "profile"),
        ]
        assert facts.versions(first.id) == [first, second, third]
        assert facts.standing() == [facts.versions(first.id)[-1]] == [third]

    def test_a_persons_own_words_have_no_place(self, journal: Journal) -> None:
        """Whoever writes another text on a page did not learn it from the message of before."""
        name, facts = begin(journal, say("2")), MemoryEntries(journal)
        fact = facts.add("likes tea", conversation=name, seq=2)
        assert facts.change(fact.id, was=1, text="likes cake").conversation is None

    def test_what_was_forgotten_no_longer_stands(self, journal: Journal) -> None:
        """Its versions are still there for the person; it cannot be changed until that is undone."""
        name, facts = begin(journal, say("2")), MemoryEntries(journal)
        fact = facts.add("likes tea")
        gone = facts.remove(fact.id, was=1, by="model", conversation=name, seq=2)
        assert (gone.version, gone.state, gone.text, gone.seq) == (
            2,
            "removed",
            "likes tea",
            2,
        )
        assert facts.standing() == facts.usable(name) == []
        for call in (
            lambda: facts.change(fact.id, was=2, text="x"),
            lambda: facts.remove(fact.id, was=2),
        ):
            with refused(journal, name, InvalidInput):
                call()
        assert facts.versions(fact.id) == [fact, gone]

    def test_who_did_not_see_the_last_version_changes_nothing(
        self, journal: Journal
    ) -> None:
        """Of two who changed what they saw, the second is told, and nothing of theirs is stored."""
        facts = MemoryEntries(journal)
        fact, other = facts.add("likes tea"), facts.add("lives in Oslo")
        facts.change(fact.id, was=1, text="likes coffee")
        for call in (
            lambda: facts.change(fact.id, was=1, text="x"),
            lambda: facts.remove(fact.id, was=1),
            lambda: facts.undo(fact.id, was=1),
            lambda: facts.add("x", replaces=(fact.id, 1)),
            lambda: facts.change(fact.id, was=3, text="x"),
        ):
            with refused(journal, None, MemoryChanged):
                call()
        assert len(facts.versions(fact.id)) == 2
        assert sorted(texts(facts.standing())) == ["likes coffee", "lives in Oslo"]
        assert facts.versions(other.id)[-1] == other

    def test_of_many_who_change_one_fact_at_once_one_does(
        self, journal: Journal, another: Journal
    ) -> None:
        """In two processes: every other is told that it was changed, and no version is lost or missing."""
        both = [MemoryEntries(journal), MemoryEntries(another)]
        fact = both[0].add("0")

        def change(n: int) -> bool:
            try:
                both[n % 2].change(fact.id, was=1, text=f"{n}")
            except MemoryChanged:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(change, range(16)))
        assert sum(done) == 1
        assert texts(both[1].versions(fact.id)) == ["0", f"{done.index(True)}"]

    def test_of_many_calls_with_one_key_one_is_done(
        self, journal: Journal, another: Journal
    ) -> None:
        """In two processes, and however often: all are given the same fact."""
        both = [MemoryEntries(journal), MemoryEntries(another)]
        with ThreadPoolExecutor(8) as pool:
            given = list(
                pool.map(lambda n: both[n % 2].add(f"{n}", key="call-1"), range(16))
            )
        assert len({each.id for each in given}) == 1
        assert len(set(texts(given))) == 1
        assert both[0].standing() == given[:1]

    def test_a_key_is_done_once_whatever_it_did(self, journal: Journal) -> None:
        """A change, a removal and an undo that come again give back what they gave before, also later."""
        facts = MemoryEntries(journal)
        fact = facts.add("likes tea", key="1")
        calls: list[Callable[[], MemoryEntry]] = [
            lambda: facts.change(fact.id, was=1, text="likes coffee", key="2"),
            lambda: facts.remove(fact.id, was=2, key="3"),
            lambda: facts.undo(fact.id, was=3, key="4"),
        ]
        given = [call() for call in calls]
        assert [call() for call in calls] == given
        assert facts.versions(fact.id) == [fact, *given]
        assert MemoryEntries(journal.of("bob")).add("other", key="1").text == "other"

    def test_a_fact_takes_the_place_of_another(self, journal: Journal) -> None:
        """The older one is forgotten in the same moment, and the new one names it."""
        name, facts = begin(journal, say("2")), MemoryEntries(journal)
        old = facts.add("lives in Oslo")
        new = facts.add(
            "lives in Rome", replaces=(old.id, 1), by="model", conversation=name, seq=2
        )
        assert facts.standing() == [new]
        assert new.replaces == old.id
        gone = facts.versions(old.id)[-1]
        assert (gone.version, gone.state, gone.by, gone.seq) == (
            2,
            "removed",
            "model",
            2,
        )

    def test_an_undo_takes_back_what_a_version_did(self, journal: Journal) -> None:
        """As a new version: of an add, a change, a removal, and of an undo."""
        name, facts = begin(journal, say("2")), MemoryEntries(journal)
        fact = facts.add(
            "likes tea", about="profile", by="review", conversation=name, seq=2
        )
        facts.change(fact.id, was=1, text="likes coffee", about="note")
        back = facts.undo(fact.id, was=2)
        assert (back.version, back.text, back.about, back.seq) == (
            3,
            "likes tea",
            "profile",
            2,
        )
        assert back.by == "person"
        facts.remove(fact.id, was=3)
        assert facts.undo(fact.id, was=4).state == "standing"
        assert facts.undo(fact.id, was=5).state == "removed"
        other = facts.add("likes cake")
        assert facts.undo(other.id, was=1).state == "removed"
        assert facts.undo(other.id, was=2).state == "standing"
        assert texts(facts.standing()) == ["likes cake"]

    def test_an_undone_replacement_gives_the_place_back(self, journal: Journal) -> None:
        """What it replaced stands again, with its place; and undoing that replaces it again."""
        name, facts = begin(journal, say("2")), MemoryEntries(journal)
        old = facts.add("lives in Oslo", conversation=name, seq=2)
        new = facts.add("lives in Rome", replaces=(old.id, 1))
        facts.undo(new.id, was=1)
        assert [(each.text, each.seq) for each in facts.standing()] == [
            ("lives in Oslo", 2)
        ]
        facts.undo(new.id, was=2)
        assert texts(facts.standing()) == ["lives in Rome"]
        facts.undo(new.id, was=3)
        assert texts(facts.standing()) == ["lives in Oslo"]

    def test_an_undone_replacement_leaves_alone_what_was_changed_since(
        self, journal: Journal
    ) -> None:
        """What it replaced was brought back and forgotten again by hand: that stays so."""
        facts = MemoryEntries(journal)
        old = facts.add("lives in Oslo")
        new = facts.add("lives in Rome", replaces=(old.id, 1))
        facts.undo(old.id, was=2)
        facts.remove(old.id, was=3)
        facts.undo(new.id, was=1)
        assert facts.standing() == []

    def test_the_newest_stand_first(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """By when they last changed."""
        name, facts = begin(journal), MemoryEntries(journal)
        first = facts.add("1")
        pass_time(1)
        facts.add("2")
        pass_time(1)
        facts.change(first.id, was=1, text="3")
        assert texts(facts.standing()) == texts(facts.usable(name)) == ["3", "2"]

    def test_the_revision_moves_with_every_change(
        self, journal: Journal, another: Journal
    ) -> None:
        """Whoever made it; another user's does not move it."""
        name, facts, theirs = (
            begin(journal, say("2")),
            MemoryEntries(journal),
            MemoryEntries(another),
        )
        seen = [facts.revision()]

        def moved() -> bool:
            seen.append(facts.revision())
            return seen[-1] not in seen[:-1] and theirs.revision() == seen[-1]

        fact = theirs.add("1", conversation=name, seq=2)
        assert moved()
        facts.change(fact.id, was=1, text="2")
        assert moved()
        facts.remove(fact.id, was=2)
        assert moved()
        facts.undo(fact.id, was=3)
        assert moved()
        journal.erase(name, [2], by="ada")
        assert moved()
        MemoryEntries(journal.of("bob")).add("x")
        assert facts.revision() == seen[-1]

    @pytest.mark.parametrize(
        "text", ["", " \n ", "x" * (TEXT_CHARS_MAX + 1), "a\x00b", "a\ud800b", 7]
    )
    def test_what_is_no_fact_is_refused(self, journal: Journal, text: str) -> None:
        """Nothing, too much, what is no text; and nothing is stored."""
        facts = MemoryEntries(journal)
        fact = facts.add("y" * TEXT_CHARS_MAX)
        calls: list[Callable[[], MemoryEntry]] = [
            lambda: facts.add(text),
            lambda: facts.change(fact.id, was=1, text=text),
        ]
        for call in calls:
            with refused(journal, None, InvalidInput) as caught:
                call()
            assert isinstance(caught.value, TooLarge) == (
                len(str(text)) > TEXT_CHARS_MAX
            )
        assert facts.standing() == [fact]

    def test_what_says_nothing_sensible_is_refused(self, journal: Journal) -> None:
        """Kinds that are none, half a place, a place where nothing is, a fact that is not there."""
        name, facts = begin(journal, say("2")), MemoryEntries(journal)
        fact = facts.add("x")
        calls: list[Callable[[], object]] = [
            lambda: facts.add("x", about="weather"),  # type: ignore[arg-type]
            lambda: facts.add("x", by="nobody"),  # type: ignore[arg-type]
            lambda: facts.add("x", conversation=name),
            lambda: facts.add("x", seq=2),
            lambda: facts.add("x", conversation=name, seq=9),
            lambda: facts.add("x", conversation=name, seq=0),
            lambda: facts.add("x", conversation=name, seq=(1 << 32) + 2),
            lambda: facts.add("x", key=""),
            lambda: facts.add("x", replaces=("f_none", 1)),
            lambda: facts.change(fact.id, was=1),
            lambda: facts.versions("f_none")[-1],
            lambda: facts.versions(""),
            lambda: facts.undo("f_none", was=1),
            lambda: MemoryEntries(journal.of(None)),
        ]
        for call in calls:
            with refused(journal, name, InvalidInput):
                call()
        with refused(journal, name, NoSuchConversation):
            facts.add("x", conversation="c-none", seq=2)
        assert facts.standing() == [fact]

    def test_facts_are_bounded(self, journal: Journal) -> None:
        """One more than that many is refused until one is forgotten; a replacement needs no room."""
        facts = MemoryEntries(journal)
        fact = facts.add("the last")

        def fill(tx: object) -> None:
            row = {"owner": "ada", "version": 1, "state": "standing", "text": "x", "about": "note", "by": "import",
                   "at": 1, "place": None, "scope": None, "replaces": None, "replaced": None, "key": None}  # fmt: skip
            for n in range(ENTRIES_MAX - 1):
                tx.run("put_fact", {**row, "id": f"f_{n}"})  # type: ignore[attr-defined]

        journal.store.change(fill)
        with refused(journal, None, InvalidInput):
            facts.add("one too many")
        assert len(facts.standing()) == ENTRIES_MAX
        other = facts.add("in its place", replaces=(fact.id, 1))
        facts.remove(other.id, was=1)
        facts.add("room for one")
        with refused(journal, None, InvalidInput):
            facts.undo(other.id, was=2)
        assert len(facts.standing()) == ENTRIES_MAX

    # -- whose facts -----------------------------------------------------------------------------------------

    def test_facts_of_one_user_are_never_given_to_another(
        self, journal: Journal
    ) -> None:
        """Not by listing, not by id, not by a conversation's id, not by key."""
        mine, theirs = MemoryEntries(journal), MemoryEntries(journal.of("bob"))
        name, other = begin(journal, say("2")), begin(journal.of("bob"), say("2"))
        fact = mine.add("a secret", conversation=name, seq=2, key="1")
        assert theirs.standing() == theirs.usable(other) == []
        assert theirs.revision() == 0
        calls: list[Callable[[], object]] = [
            lambda: theirs.versions(fact.id)[-1],
            lambda: theirs.change(fact.id, was=1, about="profile"),
            lambda: theirs.remove(fact.id, was=1),
            lambda: theirs.undo(fact.id, was=1),
            lambda: theirs.add("x", replaces=(fact.id, 1)),
            lambda: theirs.usable(name),
            lambda: theirs.add("x", conversation=name, seq=2),
        ]
        for call in calls:
            with pytest.raises(TenaxError) as caught:
                call()
            assert "secret" not in str(caught.value)
        assert theirs.add("mine", key="1").text == "mine"
        assert mine.standing() == [fact]

    def test_others_who_write_share_a_conversation(self, journal: Journal) -> None:
        """Neither the user's own name nor none does; what was undone or erased was still written."""
        name = begin(journal, say("2"), MessageUser([Text("3")], author="ada"))
        assert not journal.shared(name)
        at = join(journal, name)
        assert journal.shared(name)
        journal.append(name, [ConversationRewound(3)])
        journal.erase(name, [at], by="ada")
        assert journal.shared(name)
        with pytest.raises(NoSuchConversation):
            journal.shared("c-none")

    def test_a_copy_has_the_authors_of_what_it_copied(self, journal: Journal) -> None:
        """A fork of before the other came is the user's own."""
        name = begin(journal, say("2"))
        at = join(journal, name)
        assert not journal.shared(journal.fork(name, upto=2))
        assert journal.shared(journal.fork(name, upto=at))

    def test_a_private_memory_never_comes_where_others_write(
        self, journal: Journal
    ) -> None:
        """There only what was learned there is recalled; what was learned there stays there."""
        private, group, facts = (
            begin(journal, say("2")),
            begin(journal, say("2")),
            MemoryEntries(journal),
        )
        facts.add("a secret", conversation=private, seq=2)
        facts.add("told on a page")
        facts.add("told before they came", conversation=group, seq=2)
        assert len(facts.usable(group)) == 3
        at = join(journal, group)
        theirs = facts.add("told in the group", conversation=group, seq=at)
        assert theirs.scope == group
        assert sorted(texts(facts.usable(group))) == [
            "told before they came",
            "told in the group",
        ]
        assert sorted(texts(facts.usable(private))) == [
            "a secret",
            "told before they came",
            "told on a page",
        ]
        assert len(facts.standing()) == 4

    def test_a_group_cannot_speak_of_a_private_fact(self, journal: Journal) -> None:
        """Who names it there is told that there is none; and elsewhere nobody speaks of the group's."""
        private, group, facts = (
            begin(journal, say("2")),
            begin(journal),
            MemoryEntries(journal),
        )
        secret = facts.add("a secret", conversation=private, seq=2)
        at = join(journal, group)
        theirs = facts.add("of the group", conversation=group, seq=at)
        for fact, name, seq in ((secret, group, at), (theirs, private, 2)):
            here: dict[str, Any] = {"conversation": name, "seq": seq}
            calls: list[Callable[[], object]] = [
                lambda fact=fact, here=here: facts.change(
                    fact.id, was=1, about="profile", **here
                ),
                lambda fact=fact, here=here: facts.remove(fact.id, was=1, **here),
                lambda fact=fact, here=here: facts.add(
                    "x", replaces=(fact.id, 1), **here
                ),
            ]
            for call in calls:
                with refused(journal, name, InvalidInput) as caught:
                    call()
                assert "There is no memory" in str(caught.value)
        assert facts.change(theirs.id, was=1, text="corrected on a page").scope == group

    def test_what_a_group_changed_stays_in_the_group(self, journal: Journal) -> None:
        """A fact that was learned there before others came, and is changed there after."""
        group, facts = begin(journal, say("2")), MemoryEntries(journal)
        fact = facts.add("before", conversation=group, seq=2)
        at = join(journal, group)
        assert (
            facts.change(fact.id, was=1, text="after", conversation=group, seq=at).scope
            == group
        )
        assert facts.usable(begin(journal)) == []

    # -- taking away -----------------------------------------------------------------------------------------

    def test_erasing_a_message_takes_what_was_learned_from_it(
        self, journal: Journal
    ) -> None:
        """Every version, also those with other words; and nothing can be learned from it any more."""
        name, facts = begin(journal, say("2"), say("3")), MemoryEntries(journal)
        kept = facts.add("kept", conversation=name, seq=3)
        gone = facts.add("secret", conversation=name, seq=2)
        facts.change(gone.id, was=1, text="secret too")
        late = facts.add("harmless", conversation=name, seq=3)
        facts.change(late.id, was=1, text="secret as well", conversation=name, seq=2)
        facts.remove(late.id, was=2)
        facts.remove(kept.id, was=1, conversation=name, seq=2)
        journal.erase(name, [2], by="ada")
        assert [version.text for version in facts.versions(kept.id)] == ["kept", "kept"]
        for each in (gone, late):
            with pytest.raises(InvalidInput):
                facts.versions(each.id)
        with refused(journal, name, InvalidInput):
            facts.add("secret", conversation=name, seq=2)
        assert facts.undo(kept.id, was=2).seq == 3

    def test_nothing_is_learned_from_a_message_while_it_is_erased(
        self, journal: Journal, another: Journal
    ) -> None:
        """In two processes at once: what came before the erasure goes with it, what comes after is refused."""
        name = begin(journal, *(say(f"{n}") for n in range(2, 12)))

        def learn(seq: int) -> None:
            facts = MemoryEntries(another)
            for n in range(10):
                try:
                    facts.add(f"{n} from {seq}", conversation=name, seq=seq)
                except InvalidInput:
                    return

        with ThreadPoolExecutor(4) as pool:
            for seq in range(2, 12):
                learning = pool.submit(learn, seq)
                pool.submit(journal.erase, name, [seq], by="ada").result(60)
                learning.result(60)
        assert MemoryEntries(journal).standing() == []

    def test_an_erasure_reaches_what_was_learned_from_a_copy(
        self, journal: Journal
    ) -> None:
        """In a fork, from the same words."""
        name, facts = begin(journal, say("secret")), MemoryEntries(journal)
        facts.add("secret", conversation=journal.fork(name), seq=2)
        journal.erase(name, [2], by="ada")
        assert facts.standing() == []

    def test_an_erasure_reaches_where_it_was_recalled(self, journal: Journal) -> None:
        """The line that tells of it, recalls in other conversations, and prompts that begin with it."""
        name, other, facts = (
            begin(journal, say("secret")),
            begin(journal),
            MemoryEntries(journal),
        )
        fact, harmless = (
            facts.add("a <b>secret</b> word", conversation=name, seq=2),
            facts.add("tea"),
        )
        blob, prompt, plain = (
            Blob(journal.put_blob(each))
            for each in (b"| a secret word", b"Be kind. | a secret word", b"Be kind.")
        )
        (noted,) = journal.append(name, [MemoryNoted(fact.id, 1, "added", fact.text)])
        events = [
            RunStarted(),
            MemoryRecalled({"built in": "- secret"}, facts=[harmless.id, fact.id]),
            MemoryRecalled({"built in": "- tea"}, facts=[harmless.id]),
            ContextOpened("start", "m", prompt, plain, memory=blob),
            ContextOpened("changed", "m", plain, plain),
        ]
        _, recalled, _, opened, _ = journal.append(other, events, run="r-recalled")
        erased = journal.erase(name, [2], by="ada")
        assert erased.conversations == {
            name: [2, noted.seq],
            other: [recalled.seq, opened.seq],
        }
        assert journal.get_blob(blob.blob) is journal.get_blob(prompt.blob) is None
        assert journal.get_blob(plain.blob) == b"Be kind."
        assert facts.standing() == [harmless]

    def test_deleting_a_conversation_takes_what_was_learned_there(
        self, journal: Journal
    ) -> None:
        """A fact that was only forgotten there stays, and can be brought back."""
        name, other, facts = (
            begin(journal, say("2")),
            begin(journal, say("2")),
            MemoryEntries(journal),
        )
        join(journal, name)
        kept, gone = facts.add("kept"), facts.add("gone", conversation=name, seq=2)
        mine = facts.add("mine", conversation=other, seq=2)
        facts.remove(mine.id, was=1, conversation=other, seq=2)
        private = begin(journal, say("2"))
        facts.remove(kept.id, was=1, conversation=private, seq=2)
        journal.delete(private)
        journal.delete(name)
        with pytest.raises(InvalidInput):
            facts.versions(gone.id)[-1]
        assert facts.versions(kept.id)[-1].conversation is None
        assert (
            facts.undo(kept.id, was=2).state
            == facts.undo(mine.id, was=2).state
            == "standing"
        )

    # -- what is owed ----------------------------------------------------------------------------------------

    def test_a_boundary_wakes_those_who_follow_it(self, journal: Journal) -> None:
        """A `memory.due` is read by readers of `due`, and by those alone."""
        name = begin(journal)
        assert journal.cursor(COMMIT, name) == journal.cursor(SYNC, name) == 1
        end = turn(journal, name, "r-1")
        assert journal.behind(COMMIT) == []
        at = due(journal, name, end)
        assert (journal.head(name).due, journal.head(name).turns) == (at, end)
        assert [(each.at, each.to) for each in journal.behind(COMMIT)] == [(1, at)]
        assert [(each.at, each.to) for each in journal.behind(SYNC)] == [(1, end)]
        with refused(journal, name, InvalidInput):
            due(journal, name, at + 9)
        with refused(journal, name, InvalidInput):
            journal.erase(name, [at], by="ada")

    def test_what_is_undone_is_told_to_those_who_follow_turns(
        self, journal: Journal
    ) -> None:
        """A rewind, a clear and their restoring move `turns`: what was given has to be taken back."""
        name = begin(journal)
        journal.cursor(SYNC, name)
        at = turn(journal, name, "r-1")
        lease = take_reader(journal, SYNC, name)
        for event in (
            ConversationRewound(1),
            ConversationRestored(at + 1),
            ConversationCleared(),
            ConversationRestored(at + 3),
        ):
            journal.advance(SYNC, name, at, was=journal.cursor(SYNC, name), lease=lease)
            assert journal.behind(SYNC) == []
            at = journal.append(name, [event])[0].seq
            assert journal.head(name).turns == at
            assert [each.to for each in journal.behind(SYNC)] == [at]

    def test_what_is_owed_is_the_last_turn_after_the_last_boundary(
        self, journal: Journal
    ) -> None:
        """Nothing without a completed turn, and nothing more once it is due."""
        name = begin(journal, say("2"))
        assert journal.owed(name) == 0
        turn(journal, name, "r-1", "failed")
        assert journal.owed(name) == 0
        first = turn(journal, name, "r-2")
        second = turn(journal, name, "r-3")
        turn(journal, name, "r-4", "cancelled")
        assert journal.owed(name) == second
        due(journal, name, first)
        assert journal.owed(name) == second
        due(journal, name, second)
        assert journal.owed(name) == 0
        assert journal.owed(name) == 0
        third = turn(journal, name, "r-5")
        assert journal.owed(name) == third

    def test_what_was_undone_is_not_owed(self, journal: Journal) -> None:
        """Unless the undo is taken back; what was cleared is owed all the same."""
        name = begin(journal, say("2"))
        first = turn(journal, name, "r-1")
        second = turn(journal, name, "r-2")
        (undone,) = journal.append(name, [ConversationRewound(first)])
        assert journal.owed(name) == first
        (again,) = journal.append(name, [ConversationRewound(2)])
        assert journal.owed(name) == 0
        journal.append(name, [ConversationRestored(again.seq)])
        assert journal.owed(name) == first
        journal.append(name, [ConversationRestored(undone.seq)])
        assert journal.owed(name) == second
        (cleared,) = journal.append(name, [ConversationCleared()])
        assert journal.owed(name) == second
        due(journal, name, second)
        third = turn(journal, name, "r-3")
        journal.append(name, [ConversationRewound(cleared.seq)])
        assert journal.owed(name) == 0
        assert third > second

    # -- letters ---------------------------------------------------------------------------------------------

    def test_what_a_reader_gives_up_on_is_kept_and_passed(
        self, journal: Journal
    ) -> None:
        """The letter says where, why and when; the reader goes on behind it."""
        name = begin(journal)
        journal.cursor(SYNC, name)
        first, second = turn(journal, name, "r-1"), turn(journal, name, "r-2")
        lease = take_reader(journal, SYNC, name)
        for _ in range(2):  # a call that is made again does no harm
            journal.bury(SYNC, name, first, was=1, error="x" * 900, lease=lease)
        (letter,) = journal.letters(SYNC.name)
        assert letter == DeadLetter(name, first, "x" * 500, letter.at)
        assert journal.cursor(SYNC, name) == first
        assert [(each.at, each.to, each.tries) for each in journal.behind(SYNC)] == [
            (first, second, 0)
        ]
        assert journal.letters("another") == journal.of("bob").letters(SYNC.name) == []
        assert journal.of(None).letters(SYNC.name) == [letter]

    def test_a_letter_is_taken_away_once(self, journal: Journal) -> None:
        """And not without the reader's lease, nor put without it or from a wrong place."""
        name = begin(journal)
        journal.cursor(SYNC, name)
        first, second = turn(journal, name, "r-1"), turn(journal, name, "r-2")
        old = take_reader(journal, SYNC, name)
        journal.bury(SYNC, name, first, was=1, error="no", lease=old)
        lease = take(journal, old.name, "other", take_over=True)
        with refused(journal, name, LeaseLost):
            journal.unbury(SYNC, name, first, lease=old)
        with refused(journal, name, LeaseLost):
            journal.bury(SYNC, name, second, was=first, error="no", lease=old)
        with refused(journal, name, CursorMoved):
            journal.bury(SYNC, name, second, was=1, error="no", lease=lease)
        with refused(journal, name, InvalidInput):
            journal.bury(SYNC, name, second + 9, was=first, error="no", lease=lease)
        assert [letter.seq for letter in journal.letters(SYNC.name)] == [first]
        assert journal.unbury(SYNC, name, first, lease=lease)
        assert not journal.unbury(SYNC, name, first, lease=lease)
        assert journal.letters(SYNC.name) == []

    def test_letters_go_with_their_conversation(self, journal: Journal) -> None:
        """Nobody can deliver them any more."""
        name = begin(journal)
        journal.cursor(SYNC, name)
        at = turn(journal, name, "r-1")
        journal.bury(
            SYNC, name, at, was=1, error="no", lease=take_reader(journal, SYNC, name)
        )
        journal.delete(name)
        assert journal.letters(SYNC.name) == []
