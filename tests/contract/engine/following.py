"""Durable readers: cursors, start policies, who is behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tenax.errors import CursorMoved, InvalidInput, LeaseLost
from tenax.events import ConversationOpened, RunFinished, RunStarted
from tenax.journal import Journal
from tenax.journal.base import Behind, RawEvent, Reader
from tests.contract.engine.base import (
    Engine,
    answer,
    begin,
    delta,
    refused,
    say,
    take,
    take_reader,
    turn,
)

INDEX = Reader("index", "facts", "beginning")
SENDER = Reader("sender", "facts", "now")
MEMORY = Reader("memory", "turns", "beginning")


def owed(journal: Journal, reader: Reader) -> list[tuple[str, int, int]]:
    """Where a reader has work: the conversation, from where, up to where."""
    return [(each.conversation, each.at, each.to) for each in journal.behind(reader)]


class FollowContract(Engine):
    """Following."""

    def test_a_reader_from_the_beginning_owes_what_was_there_before_it(
        self, journal: Journal
    ) -> None:
        """A new reader that starts at the beginning has everything to do."""
        name = begin(journal, say("2"), say("3"))
        assert owed(journal, INDEX) == [(name, 0, 3)]
        assert journal.cursor(INDEX, name) == 0

    def test_a_reader_from_now_owes_nothing_that_was_there_before_it(
        self, journal: Journal
    ) -> None:
        """A new reader that starts now is not sent the history, but whatever comes."""
        name = begin(journal, say("2"), say("3"))
        assert owed(journal, SENDER) == []
        assert journal.cursor(SENDER, name) == 3
        journal.append(name, [say("4")])
        assert owed(journal, SENDER) == [(name, 3, 4)]

    def test_every_reader_owes_what_a_new_conversation_brings(
        self, journal: Journal
    ) -> None:
        """A conversation that is opened after the reader is read from its first event, whatever the policy."""
        assert owed(journal, INDEX) == owed(journal, SENDER) == []
        name = begin(journal, say("2"))
        assert owed(journal, INDEX) == owed(journal, SENDER) == [(name, 0, 2)]

    def test_an_import_and_a_fork_resend_no_history(self, journal: Journal) -> None:
        """Readers that start now stand at the end of a copied history; those from the beginning read it."""
        origin = begin(journal, say("2"), say("3"))
        for reader in (INDEX, SENDER):
            lease = take_reader(journal, reader, origin)
            journal.advance(
                reader, origin, 3, was=journal.cursor(reader, origin), lease=lease
            )
        fork = journal.fork(origin)
        journal.load(
            "c-in",
            ConversationOpened("ada", "s-in"),
            [RawEvent("message.user", 5, None, b'{"parts":[]}')],
        )
        assert owed(journal, SENDER) == []
        assert sorted(owed(journal, INDEX)) == sorted([(fork, 0, 3), ("c-in", 0, 2)])
        journal.append(fork, [say("new")])
        assert owed(journal, SENDER) == [(fork, 3, 4)]

    def test_an_advance_is_remembered(self, journal: Journal) -> None:
        """A reader goes on from where it has advanced to."""
        name = begin(journal, say("2"), say("3"))
        lease = take_reader(journal, INDEX, name)
        journal.advance(INDEX, name, 2, was=0, lease=lease)
        assert (journal.cursor(INDEX, name), owed(journal, INDEX)) == (
            2,
            [(name, 2, 3)],
        )
        journal.advance(INDEX, name, 3, was=2, lease=lease)
        assert (journal.cursor(INDEX, name), owed(journal, INDEX)) == (3, [])
        journal.append(name, [say("4")])
        assert owed(journal, INDEX) == [(name, 3, 4)]

    def test_an_advance_says_where_the_reader_stood(self, journal: Journal) -> None:
        """Who did not know where the cursor stands does not move it; the same advance twice is no harm."""
        name = begin(journal, say("2"), say("3"))
        lease = take_reader(journal, INDEX, name)
        journal.advance(INDEX, name, 2, was=0, lease=lease)
        journal.advance(INDEX, name, 2, was=0, lease=lease)
        with refused(journal, name, CursorMoved):
            journal.advance(INDEX, name, 3, was=0, lease=lease)
        with refused(journal, name, InvalidInput):
            journal.advance(INDEX, name, 1, was=2, lease=lease)
        assert journal.cursor(INDEX, name) == 2

    def test_a_cursor_does_not_pass_the_head(self, journal: Journal) -> None:
        """A reader cannot have read what is not stored."""
        name = begin(journal, say("2"))
        lease = take_reader(journal, INDEX, name)
        with refused(journal, name, InvalidInput):
            journal.advance(INDEX, name, 99, was=0, lease=lease)
        assert journal.cursor(INDEX, name) == 0

    def test_an_advance_needs_the_readers_lease(self, journal: Journal) -> None:
        """Two processes with one reader: the one that lost the lease moves nothing and defers nothing."""
        name = begin(journal, say("2"))
        old = take_reader(journal, INDEX, name)
        new = take(journal, old.name, "other", take_over=True)
        with refused(journal, name, LeaseLost):
            journal.advance(INDEX, name, 2, was=0, lease=old)
        with refused(journal, name, LeaseLost):
            journal.defer(INDEX, name, seconds=5, error="x", lease=old)
        journal.advance(INDEX, name, 2, was=0, lease=new)
        journal.release(new)
        journal.append(name, [say("3")])
        with refused(journal, name, LeaseLost):
            journal.advance(INDEX, name, 3, was=2, lease=new)

    def test_partials_owe_nothing(self, journal: Journal) -> None:
        """A streamed answer wakes durable readers when it is a fact."""
        name = begin(journal, say("2"))
        lease = take_reader(journal, INDEX, name)
        journal.advance(INDEX, name, 2, was=journal.cursor(INDEX, name), lease=lease)
        journal.append(name, [delta(2, 0, "x")])
        assert owed(journal, INDEX) == []
        journal.append(name, [answer("x", request=2)])
        assert owed(journal, INDEX) == [(name, 2, 4)]

    def test_a_reader_of_turns_waits_for_finished_runs(self, journal: Journal) -> None:
        """It owes nothing for messages alone, and is owed up to the last finished run."""
        name = begin(journal, say("2"))
        assert owed(journal, MEMORY) == []
        journal.append(name, [say("3"), RunStarted()], run="r-1")
        assert owed(journal, MEMORY) == []
        journal.append(name, [answer("a"), RunFinished("completed")], run="r-1")
        journal.append(name, [say("7")])
        assert owed(journal, MEMORY) == [(name, 0, 6)]
        lease = take_reader(journal, MEMORY, name)
        journal.advance(MEMORY, name, 6, was=0, lease=lease)
        assert owed(journal, MEMORY) == []
        at = turn(journal, name, "r-2")
        assert owed(journal, MEMORY) == [(name, 6, at)]

    def test_a_reader_of_turns_that_comes_later_finds_them(
        self, journal: Journal
    ) -> None:
        """The turns of before are owed to a reader from the beginning, and not to one from now."""
        name = begin(journal)
        at = turn(journal, name, "r-1")
        quiet = begin(journal, say("no turn"))
        assert owed(journal, MEMORY) == [(name, 0, at)]
        assert owed(journal, Reader("later", "turns", "now")) == []
        assert journal.cursor(MEMORY, quiet) == 0

    def test_what_was_deferred_is_left_alone_for_a_while(
        self, journal: Journal, pass_time: Callable[[float], None]
    ) -> None:
        """A failure puts the conversation off, counts, and keeps its reason; success forgets both."""
        bad, good = begin(journal, say("2")), begin(journal, say("2"))
        lease = take_reader(journal, INDEX, bad)
        assert journal.defer(INDEX, bad, seconds=30, error="no route", lease=lease) == 1
        assert owed(journal, INDEX) == [(good, 0, 2)]
        pass_time(31)
        assert journal.behind(INDEX)[0] == Behind("ada", bad, 0, 2, 1, "no route")
        lease = journal.claim(lease.name, "again", 60, take_over=True) or lease
        assert (
            journal.defer(INDEX, bad, seconds=30, error="still none", lease=lease) == 2
        )
        journal.advance(INDEX, bad, 2, was=0, lease=lease)
        journal.append(bad, [say("3")])
        (found,) = [each for each in journal.behind(INDEX) if each.conversation == bad]
        assert (found.at, found.tries, found.error) == (2, 0, None)

    def test_one_bad_conversation_never_hides_the_others(
        self, journal: Journal
    ) -> None:
        """Each call of `behind` goes on where the last one stopped, round and round."""
        names = [begin(journal, say("2")) for _ in range(5)]
        seen: list[str] = []
        for _ in range(3):
            seen += [each.conversation for each in journal.behind(INDEX, 2)]
        assert set(seen) == set(names)

    def test_a_reader_is_what_it_was(self, journal: Journal) -> None:
        """A name that follows facts cannot come back as one that follows turns, or starts elsewhere."""
        name = begin(journal)
        journal.cursor(INDEX, name)
        for changed in (
            Reader("index", "turns", "beginning"),
            Reader("index", "facts", "now"),
        ):
            with refused(journal, name, InvalidInput):
                journal.of("ada").behind(changed)

    def test_appending_renewing_and_advancing_at_once_disturb_nobody(
        self, journal: Journal
    ) -> None:
        """Whatever else is written meanwhile, no append fails, and no reader stops being told that it is behind."""
        names = [begin(journal) for _ in range(3)]
        leases = {name: take_reader(journal, INDEX, name) for name in names}
        done = threading.Event()

        def append(name: str) -> None:
            for n in range(40):
                journal.append(name, [say(f"{n}")])

        def renew(name: str) -> None:
            while not done.is_set():
                journal.renew(leases[name])

        def follow() -> None:
            while not done.is_set():
                for each in journal.behind(INDEX):
                    journal.advance(
                        INDEX,
                        each.conversation,
                        each.to,
                        was=each.at,
                        lease=leases[each.conversation],
                    )

        with ThreadPoolExecutor(len(names) + 3) as pool:
            appending = [pool.submit(append, name) for name in names]
            others = [
                pool.submit(follow),
                *(pool.submit(renew, name) for name in names[:2]),
            ]
            try:
                for each in appending:
                    each.result()
            finally:
                done.set()
            for other in others:
                other.result()
        late = {each.conversation for each in journal.behind(INDEX)}
        assert late == {
            name
            for name in names
            if journal.cursor(INDEX, name) < journal.head(name).facts
        }

    def test_following_by_cursor_does_each_thing_once(self, journal: Journal) -> None:
        """A reader that takes its lease, reads after its cursor and advances has seen every fact once, in order."""
        names = [begin(journal, say("0")) for _ in range(3)]
        seen: dict[str, list[int]] = {name: [] for name in names}
        for round_ in range(6):
            journal.append(names[round_ % 3], [say("x"), delta(1, 0, "p"), say("y")])
            for each in journal.behind(INDEX):
                lease = take_reader(journal, INDEX, each.conversation)
                found = journal.read(each.conversation, after=each.at, upto=each.to)
                seen[each.conversation] += [fact.seq for fact in found if fact.digest]
                journal.advance(
                    INDEX, each.conversation, each.to, was=each.at, lease=lease
                )
                journal.release(lease)
        for name in names:
            assert seen[name] == [
                event.seq for event in journal.read(name) if event.digest
            ]
        assert journal.behind(INDEX) == []
