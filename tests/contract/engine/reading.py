"""Reading: pages, heads, rows, the list, waiting, tails and blobs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import pytest

from tenax.errors import TooLarge
from tenax.events import (
    ConversationArchived,
    ConversationOpened,
    ConversationPinned,
    ConversationTitled,
    MemoryNoted,
    MessageAssistant,
    MessagePartial,
    MessageSystem,
    MessageTool,
    MessageUser,
    ModelUsed,
    Unknown,
    Usage,
)
from tenax.journal import Journal
from tenax.journal.base import RawEvent, Recorded, RowSpan
from tenax.journal.journal import BLOB_BYTES_MAX
from tenax.journal.verify.store import verify
from tenax.parts import File, Text
from tests.contract.engine.base import Engine, answer, begin, delta, said, say, texts

SECONDS_MAX = 30.0


class ReadContract(Engine):
    """Reading."""

    def test_a_read_goes_on_after_a_number(self, journal: Journal) -> None:
        """Pages follow one another by the last seq seen, and end with an empty one."""
        name = begin(journal, *(say(str(n)) for n in range(10)))
        seen: list[int] = []
        while page := journal.read(name, after=seen[-1] if seen else 0, limit=4):
            seen += [each.seq for each in page]
        assert seen == list(range(1, 12))

    def test_a_read_ends_where_it_is_told(self, journal: Journal) -> None:
        """`upto` is the last seq of interest."""
        name = begin(journal, say("2"), say("3"), say("4"))
        assert [event.seq for event in journal.read(name, after=1, upto=3)] == [2, 3]
        assert journal.read(name, after=99) == []

    def test_a_fact_is_found_by_its_number(self, journal: Journal) -> None:
        """One fact is read by its seq; where none stands there is none."""
        name = begin(journal, say("2"))
        journal.append(name, [delta(2, 0, "x")])
        found = journal.fact(name, 2)
        assert found is not None
        assert found.event == say("2")
        assert journal.fact(name, 3) is None
        assert journal.fact(name, 0) is None

    def test_the_head_knows_what_was_stored(self, journal: Journal) -> None:
        """The head says how far the conversation is, without its events being read."""
        name = begin(journal)
        head = journal.head(name)
        assert (head.conversation, head.head, head.facts, head.messages, head.segment, head.run) == (
            name, 1, 1, 0, f"s-{name}", None,
        )  # fmt: skip
        journal.append(name, [say("q", ask=True), answer("a"), ConversationTitled("t")])
        journal.append(name, [delta(2, 0, "x")])
        head = journal.head(name)
        assert (
            head.head,
            head.facts,
            head.revision,
            head.messages,
            head.unanswered,
        ) == (5, 4, 3, 2, 2)

    def test_rows_say_where_the_transcript_stands(self, journal: Journal) -> None:
        """Every message is a row; titles and partials are none; an answer's row reaches back to its request."""
        name = begin(
            journal,
            MessageSystem([Text("rules")]),
            say("q"),
            delta(3, 0, "an"),
            delta(3, 2, "swer"),
            ConversationTitled("t"),
            answer("answer", request=3),
            MessageTool([Text("result")]),
        )
        journal.append(name, [MessagePartial([Text("cut")], request=8)])
        assert journal.rows(name) == [
            RowSpan(2, 2, "system"),
            RowSpan(3, 3, "user"),
            RowSpan(3, 7, "assistant"),
            RowSpan(8, 8, "tool"),
            RowSpan(8, 9, "partial"),
        ]

    def test_rows_come_in_pages_from_the_end(self, journal: Journal) -> None:
        """The last rows first, then those before the first one seen; each page in reading order."""
        name = begin(journal, *(say(str(n)) for n in range(7)))
        last = journal.rows(name, limit=3)
        assert [row.last for row in last] == [6, 7, 8]
        assert [
            row.last for row in journal.rows(name, before=last[0].last, limit=3)
        ] == [3, 4, 5]
        assert [row.last for row in journal.rows(name, before=3, limit=3)] == [2]
        assert journal.rows(name, before=0) == []

    def test_opening_gives_the_last_rows_and_what_is_being_written(
        self, journal: Journal
    ) -> None:
        """A page of the transcript comes with the partials of its answers and with the unfinished answer at its end."""
        name = begin(journal, *(say(str(n)) for n in range(5)))
        journal.append(
            name, [delta(6, 0, "do"), delta(6, 2, "ne"), answer("done", request=6)]
        )
        journal.append(name, [say("next"), delta(10, 0, "not yet")])
        shown = journal.open(name, limit=2)
        assert [each.seq for each in shown] == [6, 7, 8, 9, 10, 11]
        assert [each.seq for each in journal.open(name, before=6, limit=2)] == [4, 5]
        assert [each.seq for each in journal.open(begin(journal))] == [1]

    def test_an_answer_shows_its_partials_once_in_an_open_page(
        self, journal: Journal
    ) -> None:
        """Rows whose ranges overlap are read once."""
        name = begin(journal, say("q"))
        journal.append(
            name,
            [
                delta(2, 0, "a"),
                say("meanwhile"),
                delta(2, 1, "b"),
                answer("ab", request=2),
            ],
        )
        assert [each.seq for each in journal.open(name)] == [2, 3, 4, 5, 6]

    def test_messages_are_what_stands(self, journal: Journal) -> None:
        """The messages of a range, in order: neither titles nor partials nor what was cut off."""
        name = begin(journal, say("2"), answer("3"), ConversationTitled("t"))
        journal.append(
            name, [MessagePartial([Text("cut")], request=1), delta(1, 0, "x"), say("7")]
        )
        assert said(journal, name) == ["2", "3", "7"]
        assert texts(journal.messages(name, after=2, upto=6)) == ["3"]

    def test_an_unknown_kind_that_was_imported_is_read_as_it_came(
        self, journal: Journal
    ) -> None:
        """Events of a later version are carried: their kind, time, run and bytes."""
        journal.load(
            "c-in",
            ConversationOpened("ada", "s-in"),
            [RawEvent("later.kind", 5, "r-x", b'{"a":1}')],
        )
        carried = journal.read("c-in")[1]
        assert (carried.kind, carried.at, carried.run, carried.body) == (
            "later.kind",
            5,
            "r-x",
            b'{"a":1}',
        )
        assert carried.event == Unknown("later.kind", b'{"a":1}')
        journal.append("c-in", [say("goes on")])

    def test_segments_are_found_by_name(self, journal: Journal) -> None:
        """A segment says where it began, whose it is and how many messages stand in it."""
        name = begin(journal, say("a"), say("b"))
        found = journal.segment(f"s-{name}")
        assert found is not None
        assert (
            found.conversation,
            found.opened_seq,
            found.ended_seq,
            found.messages,
        ) == (name, 1, None, 2)
        assert journal.segment("s-none") is None
        assert journal.children(f"s-{name}") == []

    # -- the list --------------------------------------------------------------------------------------------

    def test_the_list_shows_the_newest_first(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """A conversation moves to the top when something is stored in it."""
        names = []
        for _ in range(3):
            names.append(begin(journal))
            pass_time(2)
        assert [summary.conversation for summary in journal.conversations()] == names[
            ::-1
        ]
        journal.append(names[0], [say("hello")])
        assert [summary.conversation for summary in journal.conversations()] == [
            names[0],
            names[2],
            names[1],
        ]

    def test_a_title_a_pin_and_a_memory_do_not_move_a_conversation(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """Only what is said moves a conversation in the list. The store still verifies."""
        first = begin(journal, say("a"))
        pass_time(2)
        second = begin(journal, say("b"))
        before = journal.summary(first).updated_at
        quiet = [
            ConversationTitled("t"),
            ConversationArchived(archived=False),
            MemoryNoted("f-1", 1, "added", "likes tea"),
            ModelUsed("review", "m", Usage(input=1, output=1)),
        ]
        for event in quiet:
            pass_time(2)
            journal.append(first, [event])
        listed = [summary.conversation for summary in journal.conversations()]
        assert listed == [second, first]
        assert journal.summary(first).updated_at == before
        assert verify(journal).problems == []
        journal.append(first, [say("c")])
        listed = [summary.conversation for summary in journal.conversations()]
        assert listed == [first, second]

    def test_the_list_shows_what_a_person_wants_to_know(self, journal: Journal) -> None:
        """Title, source, counts and times stand in the list."""
        journal.append(
            "c-one",
            [
                ConversationOpened("ada", "s-one", source="web"),
                ConversationTitled("My talk"),
                say("a"),
            ],
        )
        (shown,) = journal.conversations()
        assert (shown.conversation, shown.segment, shown.title, shown.source, shown.messages) == (
            "c-one", "s-one", "My talk", "web", 1,
        )  # fmt: skip
        assert (shown.pinned, shown.archived, shown.running) == (False, False, False)
        assert shown == journal.summary("c-one")
        journal.append("c-one", [ConversationTitled(None)])
        assert journal.summary("c-one").title is None

    def test_pinned_conversations_stand_at_the_top(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """A pin outranks newness until it is taken off."""
        old = begin(journal)
        pass_time(2)
        new = begin(journal)
        journal.append(old, [ConversationPinned(True)])
        assert [
            (summary.conversation, summary.pinned)
            for summary in journal.conversations()
        ] == [
            (old, True),
            (new, False),
        ]
        pass_time(2)
        journal.append(new, [say("newer")])
        journal.append(old, [ConversationPinned(False)])
        assert {
            summary.conversation: summary.pinned for summary in journal.conversations()
        } == {
            old: False,
            new: False,
        }

    def test_archived_conversations_have_a_list_of_their_own(
        self, journal: Journal
    ) -> None:
        """Archiving takes a conversation out of the list, and back."""
        one, two = begin(journal), begin(journal)
        journal.append(one, [ConversationArchived(True)])
        assert [summary.conversation for summary in journal.conversations()] == [two]
        assert [
            (summary.conversation, summary.archived)
            for summary in journal.conversations(archived=True)
        ] == [(one, True)]
        journal.append(one, [say("still writable"), ConversationArchived(False)])
        assert {summary.conversation for summary in journal.conversations()} == {
            one,
            two,
        }

    def test_pages_of_the_list_repeat_and_miss_nothing_that_stays(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """While conversations move to the top, are pinned, opened and deleted, each that stays is listed once."""
        names = []
        for n in range(24):
            names.append(begin(journal, name=f"c-{n:02}"))
            if n % 5:
                pass_time(2)  # some share a moment
        seen: list[str] = []
        place: tuple[int, int, int] | None = None
        moves: list[Callable[[], object]] = [
            lambda: journal.append("c-23", [say("seen, moves")]),
            lambda: journal.append("c-00", [say("unseen, moves to the top")]),
            lambda: journal.append("c-01", [ConversationPinned(True)]),
            lambda: begin(journal, name="c-late"),
            lambda: journal.delete("c-02"),
            lambda: journal.append("c-03", [ConversationArchived(True)]),
        ]
        while page := journal.conversations(after=place, limit=4):
            seen += [each.conversation for each in page]
            place = page[-1].place
            pass_time(2)
            if moves:
                moves.pop(0)()
        assert len(seen) == len(set(seen))
        stayed = set(names) - {"c-00", "c-01", "c-02", "c-03", "c-23"}
        assert stayed <= set(seen)

    # -- waiting ---------------------------------------------------------------------------------------------

    def test_waiting_ends_at_once_when_there_is_something(
        self, journal: Journal
    ) -> None:
        """Nobody waits for what is stored already, and nobody waits when no time is given."""
        name = begin(journal, say("a"))
        assert journal.wait(name, 1, seconds=SECONDS_MAX)
        assert not journal.wait(name, 2, seconds=0)

    def test_waiting_ends_when_something_comes(self, journal: Journal) -> None:
        """Who waits for a conversation is woken by the next append to it, a fact or a partial."""
        name, other = begin(journal), begin(journal)
        for after, event in ((1, say("a")), (2, delta(1, 0, "x"))):
            woken: list[bool] = []
            waiter = threading.Thread(
                target=lambda after=after, woken=woken: woken.append(
                    journal.wait(name, after, seconds=SECONDS_MAX)
                )
            )
            waiter.start()
            journal.append(other, [say("not this one")])
            journal.append(name, [event])
            waiter.join(SECONDS_MAX)
            assert woken == [True]

    def test_a_tail_gives_what_is_there_and_then_what_comes(
        self, journal: Journal
    ) -> None:
        """One path for the past and the present: nothing twice, nothing missing, in order."""
        name = begin(journal, say("2"))
        stop, seen = threading.Event(), list[Recorded]()
        caught_up, done = threading.Event(), threading.Event()

        def follow() -> None:
            for each in journal.tail(name, 1, stop=stop):
                seen.append(each)
                if each.seq == 2:
                    caught_up.set()
                if each.seq == 40:
                    done.set()
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        assert caught_up.wait(SECONDS_MAX)
        for n in range(3, 41):
            journal.append(name, [delta(2, n, "x")] if n % 3 else [say(str(n))])
        assert done.wait(SECONDS_MAX)
        thread.join(SECONDS_MAX)
        assert [each.seq for each in seen] == list(range(2, 41))

    def test_a_tail_ends_when_it_is_stopped(self, journal: Journal) -> None:
        """A tail that nobody needs any more is let go."""
        name = begin(journal)
        stop, caught_up = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=lambda: [caught_up.set() for _ in journal.tail(name, stop=stop)]
        )
        thread.start()
        assert caught_up.wait(SECONDS_MAX)
        stop.set()
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()

    # -- blobs -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 1, 1 << 20, (5 << 18) + 3])
    def test_a_blob_comes_back_by_its_hash(self, journal: Journal, size: int) -> None:
        """Bytes of any size up to the limit come back as they went in, under their SHA-256."""
        data = bytes(n * 7 & 255 for n in range(251)) * (size // 251 + 1)
        data = data[:size]
        name = journal.put_blob(data)
        assert name == hashlib.sha256(data).hexdigest()
        assert journal.get_blob(name) == data

    def test_a_blob_is_stored_once(self, journal: Journal) -> None:
        """The same bytes have the same name, however often they are stored."""
        assert journal.put_blob(b"twice") == journal.put_blob(b"twice")
        assert journal.get_blob(journal.put_blob(b"twice")) == b"twice"

    def test_a_blob_that_is_not_there_is_none(self, journal: Journal) -> None:
        """A hash that nobody stored finds nothing."""
        assert journal.get_blob("0" * 64) is None
        assert journal.get_blob("' or 1=1 --") is None

    def test_a_blob_that_is_too_large_is_refused(self, journal: Journal) -> None:
        """One blob has at most 64 mebibytes."""
        with pytest.raises(TooLarge):
            journal.put_blob(bytes(BLOB_BYTES_MAX + 1))

    def test_a_message_names_its_blobs(self, journal: Journal) -> None:
        """A file is stored before the message that names it, and is there when the message is read."""
        blob = journal.put_blob(b"%PDF")
        name = begin(journal, MessageUser([File(blob, "application/pdf", "a.pdf")]))
        event = journal.read(name)[1].event
        assert isinstance(event, MessageUser | MessageAssistant)
        part = event.parts[0]
        assert isinstance(part, File)
        assert journal.get_blob(part.blob) == b"%PDF"
