"""Writing: numbers, all or nothing, conditions, and things that are sent twice."""

from __future__ import annotations

from tenax.errors import DedupReused, HeadMoved, InvalidInput, LeaseLost, SegmentMoved
from tenax.events import (
    ConversationCleared,
    ConversationOpened,
    ConversationRewound,
    ConversationTitled,
    MessageAssistant,
    MessageUser,
)
from tenax.journal import Journal
from tenax.journal.base import Dedup, Expect, Lease
from tenax.parts import Text, ToolCall
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
    take,
    texts,
)

THREADS = 8


class AppendContract(Engine):
    """Appending."""

    def test_the_first_event_opens_the_conversation(self, journal: Journal) -> None:
        """A conversation begins with its opening, at seq 1."""
        (opened,) = journal.append(
            "c-new", [ConversationOpened("ada", "s-new", source="cli")]
        )
        assert (opened.conversation, opened.seq, opened.kind) == (
            "c-new",
            1,
            "conversation.opened",
        )
        assert journal.head("c-new").head == 1

    def test_numbers_are_consecutive_in_each_conversation(
        self, journal: Journal
    ) -> None:
        """Each conversation counts 1, 2, 3 for itself, whatever happens in others."""
        one, two = begin(journal), begin(journal)
        seqs: dict[str, list[int]] = {one: [], two: []}
        for name in (one, one, two, one, two):
            seqs[name] += [
                each.seq for each in journal.append(name, [say("a"), answer("b")])
            ]
        assert seqs == {one: [2, 3, 4, 5, 6, 7], two: [2, 3, 4, 5]}

    def test_what_is_returned_is_what_is_read(self, journal: Journal) -> None:
        """An append returns the stored events exactly as a read finds them."""
        name = begin(journal)
        stored = journal.append(name, [say("hello"), answer("hi")], run="r-1")
        fields = ("conversation", "seq", "kind", "at", "run", "body", "digest")
        read = journal.read(name, after=1)
        assert [[getattr(each, field) for field in fields] for each in read] == [
            [getattr(each, field) for field in fields] for each in stored
        ]
        assert [each.event for each in read] == [say("hello"), answer("hi")]
        assert {each.run for each in read} == {"r-1"}

    def test_every_part_of_a_message_comes_back(self, journal: Journal) -> None:
        """Text in any script, tool calls and extra fields come back as they went in."""
        message = MessageAssistant(
            [
                Text("naïve 日本語 🜚 \u202e \ufeff \x1b[0m"),
                ToolCall("t1", "shell", '{"cmd": "ls"}'),
            ],
            extra={"model": "m", "deep": {"list": [1, 2.5, None, True, "\u2028"]}},
        )
        name = begin(journal, message)
        assert journal.read(name)[1].event == message

    def test_time_is_the_journals_clock(self, journal: Journal) -> None:
        """An event carries the time at which it was stored."""
        before = journal.clock.now_us()
        name = begin(journal)
        assert before <= journal.read(name)[0].at <= journal.clock.now_us()

    def test_an_append_is_stored_whole_or_not_at_all(self, journal: Journal) -> None:
        """When the last of several events is refused, none of them is stored, and the next number is not lost."""
        name = begin(journal, say("first"))
        with refused(journal, name, HeadMoved):
            journal.append(name, [say("a"), say("b")], expect=Expect(head=99))
        with refused(journal, name, InvalidInput):
            journal.append(name, [say("a"), ConversationRewound(50)])
        assert [each.seq for each in journal.append(name, [say("second")])] == [3]
        assert said(journal, name) == ["first", "second"]

    def test_an_opening_is_stored_with_what_follows_or_not_at_all(
        self, journal: Journal
    ) -> None:
        """A conversation whose second event is refused does not exist."""
        with refused(journal, None, InvalidInput):
            journal.append(
                "c-half", [ConversationOpened("ada", "s-half"), ConversationRewound(1)]
            )
        assert journal.segment("s-half") is None
        begin(journal, name="c-half")

    def test_the_same_words_never_have_the_same_digest(self, journal: Journal) -> None:
        """A digest takes in the one before it, the place and a salt; the head carries the last one."""
        name = begin(journal, say("same"), say("same"))
        digests = [event.digest for event in journal.read(name)]
        assert len(set(digests)) == 3
        assert {len(digest) for digest in digests} == {32}
        assert journal.head(name).digest == digests[-1]

    def test_threads_that_append_at_once_lose_and_double_nothing(
        self, journal: Journal
    ) -> None:
        """Many callers on one conversation: each gets its own numbers, and each body stands where it was told."""
        name = begin(journal)

        def work(thread: int) -> list[tuple[int, str]]:
            told = []
            for n in range(15):
                (one,) = journal.append(name, [say(f"{thread}.{n}")])
                told.append((one.seq, f"{thread}.{n}"))
            return told

        told = sorted(each for part in at_once(work, range(THREADS)) for each in part)
        assert told == list(
            zip(range(2, 2 + THREADS * 15), said(journal, name), strict=True)
        )

    def test_threads_on_their_own_conversations_do_not_meet(
        self, journal: Journal
    ) -> None:
        """Callers that share a commit on different conversations each see only their own."""
        names = [begin(journal) for _ in range(THREADS)]

        def work(name: str) -> None:
            for n in range(10):
                journal.append(name, [say(f"{name} {n}"), answer(f"{name} {n}!")])

        at_once(work, names)
        for name in names:
            assert said(journal, name) == [
                f"{name} {n}{end}" for n in range(10) for end in ("", "!")
            ]

    def test_a_refused_caller_harms_no_other(self, journal: Journal) -> None:
        """Of callers that append at once, those that are refused leave the others' appends as they are."""
        name = begin(journal)

        def work(thread: int) -> bool:
            expect = Expect(segment="s-none") if thread % 2 else None
            try:
                journal.append(name, [say(f"{thread}")], expect=expect)
            except SegmentMoved:
                return False
            return True

        stored = at_once(work, range(THREADS))
        assert stored == [not thread % 2 for thread in range(THREADS)]
        assert sorted(said(journal, name)) == [
            str(thread) for thread in range(0, THREADS, 2)
        ]

    # -- expect ----------------------------------------------------------------------------------------------

    def test_expect_head_holds_or_refuses(self, journal: Journal) -> None:
        """An append that expects the head at a number is stored only if it stands there."""
        name = begin(journal)
        journal.append(name, [say("a")], expect=Expect(head=1))
        with refused(journal, name, HeadMoved):
            journal.append(name, [say("b")], expect=Expect(head=1))
        with refused(journal, name, HeadMoved):
            journal.append(name, [say("b")], expect=Expect(head=3))

    def test_of_all_that_expect_the_same_head_one_is_stored(
        self, journal: Journal
    ) -> None:
        """Callers that race with the same expectation: one wins, the others are told that the head moved."""
        name = begin(journal)

        def work(thread: int) -> bool:
            try:
                journal.append(name, [say(f"{thread}")], expect=Expect(head=1))
            except HeadMoved:
                return False
            return True

        assert at_once(work, range(THREADS)).count(True) == 1
        assert journal.head(name).head == 2

    def test_expect_revision_sees_transcript_changes_only(
        self, journal: Journal
    ) -> None:
        """Titles and partials leave the revision alone; messages and edits move it."""
        name = begin(journal, say("a"))
        at = journal.head(name).revision
        journal.append(name, [ConversationTitled("t"), delta(1, 0, "x")])
        journal.append(name, [say("b")], expect=Expect(revision=at))
        with refused(journal, name, HeadMoved):
            journal.append(name, [say("c")], expect=Expect(revision=at))

    def test_expect_segment_names_the_successor(self, journal: Journal) -> None:
        """An append that expects a segment which was compacted is told where to go on."""
        name = begin(journal, say("a"), say("b"))
        journal.append(name, [say("c")], expect=Expect(segment=f"s-{name}"))
        compact(journal, name, 2, parent=f"s-{name}", child="s-child")
        with refused(journal, name, SegmentMoved) as moved:
            journal.append(name, [say("d")], expect=Expect(segment=f"s-{name}"))
        assert moved.value.by == "s-child"

    def test_expect_unedited_looks_at_what_it_names(self, journal: Journal) -> None:
        """An undo above the named seq does not matter; one that reaches below it does."""
        name = begin(journal, say("2"), say("3"), say("4"))
        since = journal.head(name).head
        journal.append(name, [ConversationRewound(3)])
        journal.append(name, [say("6")], expect=Expect(unedited=(3, since)))
        journal.append(name, [ConversationRewound(2)])
        with refused(journal, name, HeadMoved):
            journal.append(name, [say("8")], expect=Expect(unedited=(3, since)))
        journal.append(
            name, [say("8")], expect=Expect(unedited=(3, journal.head(name).head))
        )
        journal.append(name, [ConversationCleared()])
        with refused(journal, name, HeadMoved):
            journal.append(name, [say("10")], expect=Expect(unedited=(1, since)))

    # -- lease -----------------------------------------------------------------------------------------------

    def test_an_append_under_a_lease_is_stored_while_the_lease_is_held(
        self, journal: Journal
    ) -> None:
        """The holder of a lease appends under it."""
        name = begin(journal)
        lease = take(journal, "run:x")
        journal.append(name, [say("a")], lease=lease)
        journal.append(name, [say("b")], lease=journal.renew(lease))
        assert said(journal, name) == ["a", "b"]

    def test_an_append_under_a_lost_lease_is_refused(self, journal: Journal) -> None:
        """Taken over or released: the old holder writes nothing more."""
        name = begin(journal)
        old = take(journal, "run:x", "old")
        new = take(journal, "run:x", "new", take_over=True)
        with refused(journal, name, LeaseLost):
            journal.append(name, [say("late")], lease=old)
        journal.append(name, [say("mine")], lease=new)
        journal.release(new)
        with refused(journal, name, LeaseLost):
            journal.append(name, [say("later")], lease=new)

    def test_a_made_up_lease_is_refused(self, journal: Journal) -> None:
        """A lease that nobody claimed, or one with another's number, opens nothing."""
        name = begin(journal)
        with refused(journal, name, LeaseLost):
            journal.append(
                name, [say("a")], lease=Lease("run:none", "me", 1, 60, bytes(16))
            )
        real = take(journal, "run:x")
        with refused(journal, name, LeaseLost):
            journal.append(
                name, [say("a")], lease=Lease("run:x", "me", real.term, 60, bytes(16))
            )

    # -- dedup -----------------------------------------------------------------------------------------------

    def test_what_a_source_sends_twice_is_stored_once(self, journal: Journal) -> None:
        """The same id with the same body returns the first result."""
        name = begin(journal)
        first = journal.append(
            name, [say("hello"), say("again")], dedup=Dedup("web:1", "m1")
        )
        journal.append(name, [say("between")])
        again = journal.append(
            name, [say("hello"), say("again")], dedup=Dedup("web:1", "m1")
        )
        assert [(each.seq, each.digest) for each in again] == [
            (each.seq, each.digest) for each in first
        ]
        assert said(journal, name) == ["hello", "again", "between"]

    def test_a_repeat_is_known_wherever_it_was_stored(self, journal: Journal) -> None:
        """A redelivery that arrives in another conversation returns the first result and stores nothing there."""
        one, two = begin(journal), begin(journal)
        (first,) = journal.append(one, [say("hello")], dedup=Dedup("tg:bot", "1001"))
        (again,) = journal.append(two, [say("hello")], dedup=Dedup("tg:bot", "1001"))
        assert (again.conversation, again.seq, again.body) == (
            one,
            first.seq,
            first.body,
        )
        assert journal.head(two).head == 1

    def test_an_id_that_comes_back_with_another_body_is_refused(
        self, journal: Journal
    ) -> None:
        """One id of a source means one thing, in any conversation."""
        one, two = begin(journal), begin(journal)
        journal.append(one, [say("hello")], dedup=Dedup("web:1", "m1"))
        for name in (one, two):
            with refused(journal, name, DedupReused):
                journal.append(name, [say("other")], dedup=Dedup("web:1", "m1"))
            with refused(journal, name, DedupReused):
                journal.append(
                    name, [say("hello"), say("more")], dedup=Dedup("web:1", "m1")
                )

    def test_ids_belong_to_their_source(self, journal: Journal) -> None:
        """Another source may use the same id for something else."""
        name = begin(journal)
        journal.append(name, [say("a")], dedup=Dedup("web:1", "m1"))
        journal.append(name, [say("b")], dedup=Dedup("web:2", "m1"))
        assert said(journal, name) == ["a", "b"]

    def test_one_update_delivered_to_many_callers_is_stored_once(
        self, journal: Journal
    ) -> None:
        """Callers that bring the same update at the same moment all get the same number."""
        name = begin(journal)

        def work(_: int) -> int:
            return journal.append(name, [say("hello")], dedup=Dedup("web:1", "m1"))[
                0
            ].seq

        assert set(at_once(work, range(THREADS))) == {2}
        assert journal.head(name).head == 2

    def test_a_repeat_is_answered_even_when_its_conditions_have_passed(
        self, journal: Journal
    ) -> None:
        """What is stored is stored: a retry is not refused because of what happened since."""
        name = begin(journal)
        key = Dedup("web:1", "m1")
        first = journal.append(name, [say("a")], expect=Expect(head=1), dedup=key)
        journal.append(name, [say("b")])
        again = journal.append(name, [say("a")], expect=Expect(head=1), dedup=key)
        assert again[0].seq == first[0].seq

    def test_a_refused_append_leaves_its_id_free(self, journal: Journal) -> None:
        """An id is used up by storing, not by trying."""
        name = begin(journal)
        with refused(journal, name, HeadMoved):
            journal.append(
                name, [say("a")], expect=Expect(head=9), dedup=Dedup("web:1", "m1")
            )
        journal.append(name, [say("other")], dedup=Dedup("web:1", "m1"))
        assert said(journal, name) == ["other"]

    # -- append id -------------------------------------------------------------------------------------------

    def test_an_append_that_is_repeated_with_its_id_is_stored_once(
        self, journal: Journal
    ) -> None:
        """A retry with the same append id returns the first result, however much was stored since."""
        name = begin(journal)
        append_id = journal.ids.append()
        first = journal.append(
            name, [say("a"), say("b")], append_id=append_id, expect=Expect(head=1)
        )
        for n in range(250):
            journal.append(name, [delta(1, n, "x")] if n % 2 else [say(f"{n}")])
        again = journal.append(
            name, [say("a"), say("b")], append_id=append_id, expect=Expect(head=1)
        )
        assert [(each.seq, each.body, each.digest) for each in again] == [
            (each.seq, each.body, each.digest) for each in first
        ]
        assert journal.head(name).head == 253

    def test_an_append_id_can_be_used_before_anything_is_stored(
        self, journal: Journal
    ) -> None:
        """A first try with an append id is an append like any other."""
        name = begin(journal)
        assert (
            journal.append(name, [say("a")], append_id=journal.ids.append())[0].seq == 2
        )

    def test_an_append_id_means_one_thing(self, journal: Journal) -> None:
        """The same append id with other events is refused."""
        name = begin(journal)
        append_id = journal.ids.append()
        journal.append(name, [say("a")], append_id=append_id)
        with refused(journal, name, DedupReused):
            journal.append(name, [say("b")], append_id=append_id)

    def test_partials_can_be_repeated_with_their_append_id(
        self, journal: Journal
    ) -> None:
        """A retry of a partial is stored once too."""
        name = begin(journal)
        append_id = journal.ids.append()
        first = journal.append(
            name, [delta(1, 0, "a"), delta(1, 1, "b")], append_id=append_id
        )
        again = journal.append(
            name, [delta(1, 0, "a"), delta(1, 1, "b")], append_id=append_id
        )
        assert [each.seq for each in first] == [each.seq for each in again] == [2, 3]
        assert journal.head(name).head == 3

    def test_an_opening_can_be_repeated_with_its_append_id(
        self, journal: Journal
    ) -> None:
        """A retry of an append that opened the conversation finds it, and is not told that the id is taken."""
        append_id = journal.ids.append()
        events = [ConversationOpened("ada", "s-once"), say("a")]
        first = journal.append("c-once", events, append_id=append_id)
        again = journal.append("c-once", events, append_id=append_id)
        assert [each.digest for each in again] == [each.digest for each in first]
        assert texts(journal.read("c-once")) == ["conversation.opened", "a"]

    # -- partials --------------------------------------------------------------------------------------------

    def test_partials_and_facts_share_one_numbering(self, journal: Journal) -> None:
        """A read merges partials and facts in the order in which they were stored."""
        name = begin(journal, say("q"))
        journal.append(name, [delta(2, 0, "Hel")])
        journal.append(name, [say("meanwhile")])
        journal.append(name, [delta(2, 3, "lo"), answer("Hello", request=2)])
        read = journal.read(name, after=2)
        assert [(each.seq, each.kind) for each in read] == [
            (3, "reply.delta"),
            (4, "message.user"),
            (5, "reply.delta"),
            (6, "message.assistant"),
        ]
        assert read[0].event == delta(2, 0, "Hel")
        assert [bool(each.digest) for each in read] == [False, True, False, True]

    def test_partials_move_the_head_and_nothing_else(self, journal: Journal) -> None:
        """A partial takes a number, but is no fact, no row and no change of the transcript."""
        name = begin(journal, say("q"))
        before = journal.head(name)
        journal.append(name, [delta(2, 0, "x")])
        after = journal.head(name)
        assert after.head == before.head + 1
        fields = ("facts", "turns", "revision", "digest", "messages", "unanswered")
        assert [getattr(after, field) for field in fields] == [
            getattr(before, field) for field in fields
        ]

    def test_the_body_is_kept_byte_for_byte(self, journal: Journal) -> None:
        """What was hashed is what is stored and read."""
        name = begin(journal)
        (stored,) = journal.append(
            name, [MessageUser([Text("é\u0301 \r\n\t")], author="x")]
        )
        assert journal.read(name, after=1)[0].body == stored.body
