"""Forks, erasure, deletion and pruning."""

from __future__ import annotations

from tenax.errors import Gone, InvalidInput, NoSuchConversation, RunConflict
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ContentErased,
    ContextSummarised,
    ConversationOpened,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    MessagePartial,
    MessageUser,
    RunFinished,
    RunStarted,
    ToolFinished,
    Unknown,
)
from tenax.journal import Journal
from tenax.journal.base import Dedup, Reader
from tenax.memory.entries import MemoryEntries
from tenax.parts import File, Text
from tests.contract.engine.base import (
    Engine,
    answer,
    begin,
    compact,
    delta,
    refused,
    said,
    say,
    standing,
    take_reader,
)

READER = Reader("index")


class RemoveContract(Engine):
    """Copying and taking away."""

    # -- fork ------------------------------------------------------------------------------------------------

    def test_a_fork_is_a_conversation_of_its_own(self, journal: Journal) -> None:
        """It holds what stood, and from then on the two go their own ways."""
        name = begin(journal, say("2"), answer("3"))
        fork = journal.fork(name)
        assert said(journal, fork) == ["2", "3"]
        journal.append(fork, [say("only here")])
        journal.append(name, [say("only there")])
        assert (said(journal, fork)[2:], said(journal, name)[2:]) == (
            ["only here"],
            ["only there"],
        )

    def test_a_fork_names_its_origin(self, journal: Journal) -> None:
        """Its first event says from which conversation, seq and digest it comes."""
        name = begin(journal, say("2"), say("3"), say("4"))
        fork = journal.fork(name, upto=3)
        opened = journal.read(fork)[0].event
        assert isinstance(opened, ConversationOpened)
        assert opened.origin is not None
        last = journal.fact(name, 3)
        assert last is not None
        assert (opened.origin.conversation, opened.origin.seq) == (name, 3)
        assert opened.origin.digest == last.digest.hex()
        assert said(journal, fork) == ["2", "3"]

    def test_a_fork_has_a_chain_of_its_own(self, journal: Journal) -> None:
        """The same words have other digests there."""
        name = begin(journal, say("2"), say("3"))
        fork = journal.fork(name)
        mine = {event.digest for event in journal.read(name)}
        assert mine.isdisjoint(event.digest for event in journal.read(fork))

    def test_a_fork_copies_what_stands(self, journal: Journal) -> None:
        """Undone messages, partials and the open run stay behind."""
        name = begin(journal, say("2"), say("undone"))
        journal.append(name, [ConversationRewound(2), say("5")])
        journal.append(name, [RunStarted()], run="r-1")
        journal.append(
            name, [delta(5, 0, "par"), answer("half a turn", request=5)], run="r-1"
        )
        fork = journal.fork(name)
        assert said(journal, fork) == ["2", "5"]
        assert journal.head(fork).run is None
        assert all(event.kind != "reply.delta" for event in journal.read(fork))

    def test_a_fork_asks_nothing(self, journal: Journal) -> None:
        """An unanswered question that was copied starts no run."""
        name = begin(journal, say("2", ask=True))
        fork = journal.fork(name)
        assert said(journal, fork) == ["2"]
        assert journal.head(fork).unanswered == 0

    def test_a_fork_of_a_compacted_conversation_keeps_its_context(
        self, journal: Journal
    ) -> None:
        """The summary comes along, and the fork's context begins after what it covers."""
        name = begin(journal, say("2"), say("3"), say("4"))
        compact(journal, name, 3, parent=f"s-{name}", child="s-child")
        journal.append(name, [say("7")])
        fork = journal.fork(name)
        assert said(journal, fork) == ["2", "3", "4", "7"]
        head = journal.head(fork)
        covered = journal.read(fork, after=head.context_from - 1)
        assert [each.event for each in covered if each.kind == "message.user"] == [
            say("4"),
            say("7"),
        ]
        assert any(
            isinstance(event.event, ContextSummarised) for event in journal.read(fork)
        )

    def test_a_fork_can_be_cut_anywhere_it_stands(self, journal: Journal) -> None:
        """A fork at the very beginning is empty; its segment may be named."""
        name = begin(journal, say("2"), say("3"))
        assert said(journal, journal.fork(name, upto=1, segment="s-mine")) == []
        found = journal.segment("s-mine")
        assert found is not None
        assert said(journal, journal.fork(found.conversation)) == []

    # -- erase -----------------------------------------------------------------------------------------------

    def test_erasing_takes_the_text_and_leaves_the_chain(
        self, journal: Journal
    ) -> None:
        """Body gone, digest kept, and a fact says what was erased, by whom and why."""
        name = begin(journal, say("keep"), say("secret"), answer("keep too"))
        digests = [event.digest for event in journal.read(name)]
        erased = journal.erase(name, [3], by="ada", why="a password")
        assert erased.conversations == {name: [3]}
        read = journal.read(name)
        assert [each.digest for each in read][:4] == digests
        assert (read[2].body, read[2].erased, read[2].event) == (
            None,
            True,
            Unknown("message.user", None),
        )
        assert read[-1].event == ContentErased([3], "ada", "a password")
        assert journal.head(name).revision == 5

    def test_erasing_reaches_the_summary_that_covered_it(
        self, journal: Journal
    ) -> None:
        """A summary made from erased words goes too; one that did not cover them stays."""
        name = begin(journal, say("secret"), say("3"))
        early = compact(journal, name, 2, parent=f"s-{name}", child="s-child")[0].seq
        journal.append(name, [say("6"), say("7")])
        late = compact(journal, name, 6, parent="s-child", child="s-grandchild")[0].seq
        assert journal.erase(name, [6], by="ada").conversations == {name: [6, late]}
        assert journal.erase(name, [2], by="ada").conversations == {name: [2, early]}

    def test_erasing_reaches_the_title_that_was_made_from_it(
        self, journal: Journal
    ) -> None:
        """A derived title goes with its words; a title that a person gave stays."""
        name = begin(
            journal, say("secret"), ConversationTitled("About the secret", derived=True)
        )
        given = begin(journal, say("secret"), ConversationTitled("Mine"))
        journal.erase(name, [2], by="ada")
        journal.erase(given, [2], by="ada")
        assert (journal.summary(name).title, journal.summary(given).title) == (
            None,
            "Mine",
        )

    def test_erasing_an_old_title_leaves_the_present_one(
        self, journal: Journal
    ) -> None:
        """Only the title that was erased goes."""
        name = begin(journal, ConversationTitled("secret"), ConversationTitled("fine"))
        journal.erase(name, [2], by="ada")
        assert journal.summary(name).title == "fine"

    def test_erasing_reaches_forks(self, journal: Journal) -> None:
        """Copies of the words in forks, and in forks of forks, are erased with them."""
        name = begin(journal, say("2"), say("secret"))
        fork = journal.fork(name)
        grandchild = journal.fork(fork)
        other = journal.fork(name, upto=2)
        erased = journal.erase(name, [3], by="ada").conversations
        assert erased == {name: [3], fork: [3], grandchild: [3]}
        for each in (name, fork, grandchild):
            assert b"secret" not in b"".join(
                part.body or b"" for part in journal.read(each)
            )
        assert said(journal, other) == ["2"]

    def test_erasing_reaches_what_a_person_was_asked_and_said(
        self, journal: Journal
    ) -> None:
        """A question holds the arguments of the answer's call, and what the person said is the call's result."""
        name = begin(journal, say("2"))
        asked = ApprovalAsked(4, "a", "ask", '{"question": "the secret?"}')
        said_so = ApprovalAnswered(4, "a", "once", "ada", words="the secret")
        other = ApprovalAnswered(4, "b", "once", "ada")
        journal.append(name, [RunStarted()], run="r-1")
        journal.append(name, [answer("secret"), asked, said_so, other], run="r-1")
        results = [
            ToolFinished(4, "a", "done", "the secret"),
            ToolFinished(4, "b", "done", "another"),
        ]
        journal.append(name, results, run="r-1")
        assert journal.erase(name, [8], by="ada").conversations == {name: [6, 8]}
        assert journal.erase(name, [9], by="ada").conversations == {name: [9]}, (
            "that somebody allowed it is no text"
        )
        assert journal.erase(name, [4], by="ada").conversations == {name: [4]}, (
            "the run may still need it"
        )
        journal.append(name, [RunFinished("completed")], run="r-1")
        assert journal.erase(name, [4], by="ada").conversations == {name: [5]}, (
            "what was left goes when it is over"
        )

    def test_erasing_reaches_the_pattern_that_was_allowed(
        self, journal: Journal
    ) -> None:
        """A pattern repeats arguments of the answer's call. It goes with the answer, once its run is over."""
        name = begin(journal, say("2"))
        here = ApprovalAnswered(4, "a", "conversation", "ada", pattern="echo secret")
        always = ApprovalAnswered(4, "b", "always", "ada", pattern="echo secret")
        journal.append(name, [RunStarted()], run="r-1")
        journal.append(
            name,
            [answer("secret"), here, always, ToolFinished(4, "a", "done", "x")],
            run="r-1",
        )
        assert journal.erase(name, [7], by="ada").conversations == {name: [7]}, (
            "the result is not the call"
        )
        assert journal.erase(name, [4], by="ada").conversations == {name: [4]}, (
            "the run may still need it"
        )
        journal.append(name, [RunFinished("completed")], run="r-1")
        assert journal.erase(name, [4], by="ada").conversations == {name: [5, 6]}
        assert b"secret" not in b"".join(
            fact.body or b"" for fact in journal.read(name)
        )

    def test_erasing_reaches_the_partials_of_an_answer(self, journal: Journal) -> None:
        """The pieces that an erased answer was streamed in are gone."""
        name = begin(journal, say("2"))
        journal.append(
            name, [delta(2, 0, "sec"), delta(2, 3, "ret"), answer("secret", request=2)]
        )
        journal.erase(name, [5], by="ada")
        assert [event.seq for event in journal.read(name)] == [1, 2, 5, 6]

    def test_erasing_spares_partials_of_other_answers(self, journal: Journal) -> None:
        """Pieces of another request that stand between are somebody else's."""
        name = begin(journal, say("2"), say("3"))
        journal.append(
            name,
            [delta(2, 0, "sec"), delta(3, 0, "other"), answer("secret", request=2)],
        )
        journal.erase(name, [6], by="ada")
        assert [event.event for event in journal.read(name, after=3, upto=5)] == [
            delta(3, 0, "other")
        ]

    def test_erasing_drops_blobs_that_nothing_else_names(
        self, journal: Journal
    ) -> None:
        """A file goes with the last message that names it."""
        shared, own = journal.put_blob(b"shared"), journal.put_blob(b"own")
        files = MessageUser([File(shared, "text/plain"), File(own, "text/plain")])
        name = begin(journal, files, MessageUser([File(shared, "text/plain")]))
        journal.erase(name, [2], by="ada")
        assert (journal.get_blob(shared), journal.get_blob(own)) == (b"shared", None)
        journal.erase(name, [3], by="ada")
        assert journal.get_blob(shared) is None

    def test_erasing_again_is_no_harm(self, journal: Journal) -> None:
        """What is erased already is not erased twice, and nothing is appended for it."""
        name = begin(journal, say("secret"))
        journal.erase(name, [2], by="ada")
        head = journal.head(name)
        assert journal.erase(name, [2], by="ada").conversations == {}
        assert journal.head(name) == head

    def test_only_text_that_is_there_is_erased(self, journal: Journal) -> None:
        """A seq without a fact, and a fact that holds nobody's words, are refused."""
        name = begin(journal, say("2"))
        journal.append(name, [delta(2, 0, "x")])
        for seqs in ([99], [3], [0], []):
            with refused(journal, name, InvalidInput):
                journal.erase(name, seqs, by="ada")
        with refused(journal, name, InvalidInput):
            journal.erase(name, [1], by="ada")
        with refused(journal, name, InvalidInput):
            journal.append(name, [ContentErased([], "ada")])
        with refused(journal, name, InvalidInput):
            journal.append(name, [ContentErased([99], "ada")])

    def test_an_erased_message_still_stands_in_its_place(
        self, journal: Journal
    ) -> None:
        """The row stays, so that the page can say that something was erased there; undo and redo still work."""
        name = begin(journal, say("2"), say("secret"), say("4"))
        journal.erase(name, [3], by="ada")
        assert standing(journal, name) == [(2, "user"), (3, "user"), (4, "user")]
        assert journal.head(name).messages == 3
        journal.append(name, [ConversationRewound(2)])
        journal.append(name, [ConversationRestored(6)])
        assert journal.head(name).messages == 3

    def test_an_erased_message_is_not_stored_again_by_its_source(
        self, journal: Journal
    ) -> None:
        """A redelivery of what was erased is recognised, whatever it says, and brings nothing back."""
        name = begin(journal)
        journal.append(name, [say("secret")], dedup=Dedup("tg:bot", "1"))
        journal.erase(name, [2], by="ada")
        (again,) = journal.append(name, [say("secret")], dedup=Dedup("tg:bot", "1"))
        assert (again.seq, again.erased) == (2, True)
        assert journal.head(name).head == 3

    # -- delete ----------------------------------------------------------------------------------------------

    def test_a_deleted_conversation_is_gone(self, journal: Journal) -> None:
        """It is in no list, has no events, and every call says that it was deleted."""
        name, other = begin(journal, say("2")), begin(journal, say("stays"))
        journal.delete(name)
        assert [summary.conversation for summary in journal.conversations()] == [other]
        for call in (
            lambda: journal.append(name, [say("late")]),
            lambda: journal.read(name),
            lambda: journal.head(name),
            lambda: journal.fork(name),
            lambda: journal.delete(name),
            lambda: journal.cursor(READER, name),
            lambda: begin(journal, name=name),
            lambda: journal.load(name, ConversationOpened("ada", "s-again"), []),
            lambda: MemoryEntries(journal).usable(name),
            lambda: MemoryEntries(journal).add("late", conversation=name, seq=2),
        ):
            with refused(journal, other, Gone):
                call()
        assert journal.segment(f"s-{name}") is None

    def test_what_another_process_deleted_is_gone_here_too(
        self, journal: Journal, another: Journal
    ) -> None:
        """A process that knew the conversation is told, whatever it asks next."""
        names = [begin(journal, say("2")) for _ in range(6)]
        for name in names:
            assert said(journal, name) == ["2"]
            another.delete(name)
        for name, call in zip(
            names,
            (
                journal.read,
                journal.rows,
                journal.open,
                journal.messages,
                journal.head,
                journal.summary,
            ),
            strict=True,
        ):
            with refused(journal, None, Gone):
                call(name)
            with refused(journal, None, Gone):
                journal.append(name, [say("late")])

    def test_a_deleted_conversation_owes_nothing(self, journal: Journal) -> None:
        """No reader is behind in it, and its files go."""
        blob = journal.put_blob(b"file")
        name = begin(journal, MessageUser([File(blob, "text/plain")]))
        lease = take_reader(journal, READER, name)
        assert journal.behind(READER)
        journal.delete(name)
        assert journal.behind(READER) == []
        assert journal.get_blob(blob) is None
        with refused(journal, None, Gone):
            journal.advance(READER, name, 2, was=0, lease=lease)

    def test_a_deleted_conversation_leaves_its_forks(self, journal: Journal) -> None:
        """A fork is a conversation of its own, and can be erased and deleted afterwards."""
        name = begin(journal, say("2"), say("3"))
        fork = journal.fork(name)
        journal.delete(name)
        assert said(journal, fork) == ["2", "3"]
        journal.erase(fork, [2], by="ada")
        journal.delete(fork)

    def test_a_running_conversation_is_not_deleted(self, journal: Journal) -> None:
        """The run is stopped first."""
        name = begin(journal)
        journal.append(name, [RunStarted()], run="r-1")
        with refused(journal, name, RunConflict):
            journal.delete(name)
        journal.append(name, [RunFinished("cancelled")], run="r-1")
        journal.delete(name)

    def test_a_redelivery_for_a_deleted_conversation_is_gone(
        self, journal: Journal
    ) -> None:
        """What a source sends again after its conversation was deleted is told so, and is stored nowhere else."""
        name, other = begin(journal), begin(journal)
        journal.append(name, [say("hello")], dedup=Dedup("tg:bot", "1"))
        journal.delete(name)
        for target in (name, other):
            with refused(journal, other, Gone):
                journal.append(target, [say("hello")], dedup=Dedup("tg:bot", "1"))

    def test_numbers_of_a_deleted_conversation_are_not_given_again(
        self, journal: Journal
    ) -> None:
        """A conversation that is opened afterwards shows nothing of the deleted one."""
        name = begin(journal, say("old"), ConversationTitled("old"))
        journal.cursor(READER, name)
        journal.delete(name)
        new = begin(journal, say("new"))
        assert said(journal, new) == ["new"]
        assert journal.cursor(READER, new) == 0
        with refused(journal, new, Gone):
            journal.read(name)
        with refused(journal, new, NoSuchConversation):
            journal.read("c-never")

    # -- prune -----------------------------------------------------------------------------------------------

    def test_pruning_drops_partials_that_a_fact_has_replaced(
        self, journal: Journal
    ) -> None:
        """The whole answer, or its sealed beginning, is there; its pieces may go."""
        name = begin(journal, say("2"))
        journal.append(
            name, [delta(2, 0, "a"), delta(2, 1, "b"), answer("ab", request=2)]
        )
        journal.append(
            name, [delta(5, 0, "cut"), MessagePartial([Text("cut")], request=5)]
        )
        assert journal.prune(name) == 3
        assert [event.seq for event in journal.read(name)] == [1, 2, 5, 7]
        assert journal.prune(name) == 0
        assert journal.append(name, [say("next")])[0].seq == 8

    def test_pruning_does_not_forget_what_was_stored(self, journal: Journal) -> None:
        """An append that is repeated by its id after its partials were pruned is still stored once."""
        name = begin(journal, say("2"))
        append_id = journal.ids.append()
        events = [delta(2, 0, "ab"), answer("ab", request=2)]
        journal.append(name, events, append_id=append_id)
        journal.prune(name)
        again = journal.append(name, events, append_id=append_id)
        assert again[-1].seq == 4
        assert said(journal, name) == ["2", "ab"]

    def test_pruning_keeps_what_is_the_only_copy(self, journal: Journal) -> None:
        """Pieces of an answer that is not finished stay, also when other answers are."""
        name = begin(journal, say("2"), say("3"))
        journal.append(
            name,
            [delta(2, 0, "only copy"), delta(3, 0, "done"), answer("done", request=3)],
        )
        assert journal.prune(name) == 1
        assert [event.event for event in journal.read(name, after=3, upto=5)] == [
            delta(2, 0, "only copy")
        ]
