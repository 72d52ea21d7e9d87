"""Two users of one store: nothing of the one is reachable for the other, by any call or guess."""

from __future__ import annotations

from tenax.errors import InvalidInput, LeaseLost, NoSuchConversation
from tenax.events import ConversationOpened, ConversationTitled, MessageUser
from tenax.journal import Journal
from tenax.journal.base import Dedup, Reader
from tenax.parts import File
from tests.contract.engine.base import (
    Engine,
    begin,
    compact,
    every_call,
    refused,
    said,
    say,
    take_reader,
    texts,
)

READER = Reader("index")


class ShareContract(Engine):
    """Sharing a store."""

    def test_no_call_with_anothers_conversation_finds_it(
        self, journal: Journal
    ) -> None:
        """Another user's conversation is one that is not there: not forbidden, not there."""
        name = begin(journal, say("secret"), ConversationTitled("secret"))
        journal.behind(READER)
        for call in every_call(journal.of("bob"), name):
            with refused(journal, name, NoSuchConversation):
                call()

    def test_lists_search_and_readers_show_ones_own(self, journal: Journal) -> None:
        """Each user lists, finds and follows what is theirs; the process itself sees who owes what."""
        bob = journal.of("bob")
        mine = begin(journal, say("mine secret"))
        theirs = begin(bob, say("theirs secret"))
        assert [summary.conversation for summary in journal.conversations()] == [mine]
        assert [summary.conversation for summary in bob.conversations()] == [theirs]
        assert {hit.conversation for hit in bob.search("secret").hits} <= {theirs}
        assert [each.conversation for each in journal.behind(READER)] == [mine]
        assert [each.conversation for each in bob.behind(READER)] == [theirs]
        everybody = journal.of(None).behind(READER)
        assert {(each.user, each.conversation) for each in everybody} == {
            ("ada", mine),
            ("bob", theirs),
        }

    def test_two_users_may_use_the_same_names(self, journal: Journal) -> None:
        """Conversation, segment, dedup, lease and blob: the same name is two things."""
        bob = journal.of("bob")
        for each in (journal, bob):
            begin(each, say(f"of {each.user}"), name="c-same")
            each.append("c-same", [say("hello")], dedup=Dedup("tg:bot", "1"))
            assert each.claim("run:x", each.user or "", 60) is not None
            compact(each, "c-same", 2, parent="s-c-same", child="s-child")
        assert said(journal, "c-same") == ["of ada", "hello"]
        assert said(bob, "c-same") == ["of bob", "hello"]
        assert (journal.holder("run:x"), bob.holder("run:x")) == ("ada", "bob")
        journal.delete("c-same")
        assert said(bob, "c-same") == ["of bob", "hello"]
        assert bob.children("s-c-same") == ["s-child"]

    def test_anothers_segment_is_not_there(self, journal: Journal) -> None:
        """Names of segments find one's own."""
        name = begin(journal, say("2"))
        compact(journal, name, 2, parent=f"s-{name}", child="s-child")
        bob = journal.of("bob")
        assert (bob.segment("s-child"), bob.children(f"s-{name}")) == (None, [])

    def test_anothers_blob_is_not_there(self, journal: Journal) -> None:
        """Knowing a hash is not having the bytes, and naming it in a message does not give them."""
        blob = journal.put_blob(b"secret")
        bob = journal.of("bob")
        name = begin(bob, MessageUser([File(blob, "text/plain")]))
        assert bob.get_blob(blob) is None
        bob.delete(name)
        assert journal.get_blob(blob) == b"secret"
        assert bob.put_blob(b"secret") == blob
        begin(journal, MessageUser([File(blob, "text/plain")]), name="c-mine")
        journal.erase("c-mine", [2], by="ada")
        assert (journal.get_blob(blob), bob.get_blob(blob)) == (None, b"secret")

    def test_anothers_lease_opens_nothing(self, journal: Journal) -> None:
        """A lease is good for the user who claimed it."""
        bob = journal.of("bob")
        name = begin(bob, say("2"))
        lease = take_reader(journal, READER, name)
        with refused(bob, name, LeaseLost):
            bob.append(name, [say("x")], lease=lease)
        with refused(bob, name, LeaseLost):
            bob.advance(READER, name, 2, was=0, lease=lease)
        with refused(bob, name, LeaseLost):
            bob.renew(lease)
        assert not bob.release(lease)
        assert bob.holder(lease.name) is None

    def test_anothers_dedup_tells_nothing(self, journal: Journal) -> None:
        """The same source and id of another user is neither a repeat nor a reuse."""
        mine = begin(journal)
        bob = journal.of("bob")
        theirs = begin(bob)
        journal.append(mine, [say("secret")], dedup=Dedup("web", "1"))
        (stored,) = bob.append(theirs, [say("other")], dedup=Dedup("web", "1"))
        assert (stored.conversation, texts([stored])) == (theirs, ["other"])

    def test_anothers_append_id_tells_nothing(self, journal: Journal) -> None:
        """An append id is looked for in one's own conversation."""
        bob = journal.of("bob")
        mine, theirs = begin(journal), begin(bob)
        append_id = journal.ids.append()
        journal.append(mine, [say("secret")], append_id=append_id)
        (stored,) = bob.append(theirs, [say("other")], append_id=append_id)
        assert stored.conversation == theirs

    def test_no_number_reaches_into_another_conversation(
        self, journal: Journal
    ) -> None:
        """However large or small a seq is, a read stays in its conversation."""
        bob = journal.of("bob")
        before, theirs, after = (
            begin(journal, say("secret")),
            begin(bob, say("theirs")),
            begin(journal, say("secret")),
        )
        assert before != after
        for number in (
            -(1 << 32),
            -1,
            1 << 31,
            (1 << 32) - 1,
            1 << 32,
            1 << 33,
            1 << 62,
        ):
            for call in (
                lambda number=number: bob.read(theirs, upto=number),
                lambda number=number: bob.read(theirs, after=number),
                lambda number=number: bob.messages(theirs, upto=number),
                lambda number=number: bob.messages(theirs, after=number),
                lambda number=number: bob.open(theirs, before=number),
                lambda number=number: [
                    each for each in [bob.fact(theirs, number)] if each
                ],
            ):
                try:
                    found = call()
                except InvalidInput:
                    continue
                assert all(b"secret" not in (each.body or b"") for each in found)

    def test_a_fork_cannot_name_anothers_conversation(self, journal: Journal) -> None:
        """A made-up origin links to nothing, so that an erasure there never reaches here."""
        name = begin(journal, say("secret"))
        opened = journal.read(journal.fork(name))[0].event
        assert isinstance(opened, ConversationOpened)
        bob = journal.of("bob")
        bob.append(
            "c-false",
            [
                ConversationOpened(
                    "bob", "s-false", origin=opened.origin, copied=opened.copied
                ),
                say("x"),
            ],
        )
        journal.erase(name, [2], by="ada")
        assert said(bob, "c-false") == ["x"]

    def test_wall_and_store_names_are_no_way_in(self, journal: Journal) -> None:
        """Names are values, never part of a statement."""
        nasty = "x' or '1'='1"
        begin(journal, say("secret"))
        bob = journal.of(nasty)
        assert bob.conversations() == []
        name = begin(bob, say("mine"), name='c"; drop table events; --')
        assert said(bob, name) == ["mine"]
        assert len(journal.conversations()) == 1
