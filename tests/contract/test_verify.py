"""The store proves itself: nothing is wrong with a healthy one, and every kind of damage is found where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import tenax
from tenax.events import ConversationOpened, MessageUser, RunStarted
from tenax.journal.plan import inner_hash
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS
from tenax.journal.verify import store as check
from tenax.journal.verify.store import Problem, Progress, verify
from tenax.parts import Text
from tests.support.world import Hands, World, build, hands


def shown(found: list[Problem]) -> str:
    return "\n".join(map(str, found))


# -- health ------------------------------------------------------------------------------------------------


def test_a_healthy_store_has_no_problems(world: World) -> None:
    """Every kind of event, erased ones and holes of pruned partials included."""
    report = verify(world.journal)
    assert report.problems == []
    assert report.ok
    assert report.complete
    assert (report.conversations, report.blobs, report.stale) == (5, 3, 0)
    assert report.facts > 50
    assert report.partials == 5


def test_an_empty_store_has_no_problems(engine_url: str) -> None:
    """There is nothing to be wrong."""
    with tenax.open(engine_url) as journal:
        assert verify(journal).ok


def test_a_run_may_take_what_is_no_message(world: World) -> None:
    """It is no row of the transcript, and does not become one."""
    opened = ConversationOpened("ada", "s_run")
    world.journal.append("c_run", [opened])
    world.journal.append("c_run", [RunStarted([1])], run="r_run")
    assert shown(verify(world.journal).problems) == ""
    assert world.journal.rows("c_run") == []


def test_it_needs_no_user(world: World) -> None:
    """The handle of the process itself proves what every user has."""
    assert verify(world.journal.of(None)).conversations == 5


def test_progress_is_told(world: World) -> None:
    """It only grows, and ends at all there is."""
    told: list[Progress] = []
    report = verify(world.journal, progress=told.append)
    done = [each.done for each in told]
    assert done == sorted(done)
    assert (
        done[-1]
        == told[-1].of
        == sum(world.journal.of(user).head(each).head for user, each in world.all())
    )
    assert told[-1].conversations == report.conversations


def test_a_problem_is_a_sentence_that_names_its_place() -> None:
    """For a person who reads it in a terminal."""
    assert str(Problem("ada", "c_1", 7, "It is wrong.")) == "c_1, seq 7: It is wrong."
    assert str(Problem(None, None, None, "It is wrong.")) == "the store: It is wrong."


# -- damage ------------------------------------------------------------------------------------------------

NO_ROW = "update events set first = null, role = null, waiting = null, dead = null"
Hurt = Callable[[Hands, World], None]
DAMAGE: list[Any] = []


def damage(where: str | None, says: str) -> Callable[[Hurt], Hurt]:
    """Doing this to the store has to be found in that conversation of the world, in these words."""

    def register(hurt: Hurt) -> Hurt:
        DAMAGE.append(pytest.param(hurt, where, says, id=hurt.__name__))
        return hurt

    return register


@damage("talk", "digest does not follow")
def a_byte_of_a_body(hands: Hands, world: World) -> None:
    at = hands.at("system")
    ((body,),) = hands.run("select body from events where place = :at", at=at)
    hands.run(
        "update events set body = :body where place = :at",
        body=body.replace(b"kind", b"kinD"),
        at=at,
    )


@damage("talk", "cannot be read")
def a_body_that_is_no_json(hands: Hands, world: World) -> None:
    hands.flip("events", "body", "place = :at", at=hands.at("system"))


@damage("talk", "digest does not follow")
def a_byte_of_a_salt(hands: Hands, world: World) -> None:
    hands.flip("events", "salt", "place = :at", at=hands.at("kept"))


@damage("talk", "digest does not follow")
def a_byte_of_a_digest(hands: Hands, world: World) -> None:
    hands.flip("events", "digest", "place = :at", at=hands.at("kept"))


@damage("talk", "digest does not follow")
def a_byte_of_the_hash_of_what_was_erased(hands: Hands, world: World) -> None:
    hands.flip("events", "body_hash", "place = :at", at=hands.at("r_3 answered"))


@damage("talk", "digest does not follow")
def the_time_of_a_fact(hands: Hands, world: World) -> None:
    hands.run("update events set at = at + 1 where place = :at", at=hands.at("picture"))


@damage("talk", "digest does not follow")
def the_kind_of_a_fact(hands: Hands, world: World) -> None:
    hands.run(
        "update events set kind = 'message.tool' where place = :at",
        at=hands.at("system"),
    )


@damage("talk", "digest does not follow")
def the_run_of_a_fact(hands: Hands, world: World) -> None:
    hands.run(
        "update events set run = 'r_9' where place = :at", at=hands.at("r_1 answered")
    )


@damage("talk", "Nothing stands at seq")
def a_fact_that_is_gone(hands: Hands, world: World) -> None:
    hands.run("delete from events where place = :at", at=hands.at("picture"))


@damage("old", "The head row says that the head is")
def the_last_fact_that_is_gone(hands: Hands, world: World) -> None:
    last = world.journal.head(world.old).head
    hands.run("delete from events where place = :at", at=hands.at(last, world.old))


@damage("old", "It has no first event")
def all_facts_that_are_gone(hands: Hands, world: World) -> None:
    low = hands.at(0, world.old)
    hands.run(
        "delete from events where place > :low and place <= :high",
        low=low,
        high=low | ALL_SEQS,
    )


@damage("talk", "digest does not follow")
def two_facts_in_each_others_place(hands: Hands, world: World) -> None:
    one, two, free = hands.at("system"), hands.at("picture"), hands.at(ALL_SEQS)
    for old, new in ((one, free), (two, one), (free, two)):
        hands.run("update events set place = :new where place = :old", new=new, old=old)


@damage("talk", "neither whole nor erased")
def a_body_without_its_salt(hands: Hands, world: World) -> None:
    hands.run("update events set salt = null where place = :at", at=hands.at("kept"))


@damage("talk", "no content.erased says so")
def an_erasure_that_nothing_says(hands: Hands, world: World) -> None:
    ((salt, body),) = hands.run(
        "select salt, body from events where place = :at", at=hands.at("system")
    )
    inner = inner_hash(salt, body)
    hands.run("update events set body_hash = :inner, body = null, salt = null where place = :at",
              inner=inner, at=hands.at("system"))  # fmt: skip


@damage("talk", "It was erased, and its body is still there")
def an_erased_body_that_is_back(hands: Hands, world: World) -> None:
    body = b'{"parts":[{"type":"text","text":"a secret question"}],"author":"ada","ask":true}'
    where = {"salt": bytes(16), "body": body, "at": hands.at("r_3 asked")}
    hands.run(
        "update events set body = :body, salt = :salt, body_hash = null where place = :at",
        **where,
    )


@damage("talk", "An event and a partial have the same number")
def a_seq_in_both_tables(hands: Hands, world: World) -> None:
    at = hands.at("kept")
    hands.run(
        "insert into partials (place, code, at, body) values (:at, 1, 0, :body)",
        at=at,
        body=b'[1,0,"x"]',
    )


@damage("talk", "where no partial can have been")
def partials_that_nothing_replaced_are_gone(hands: Hands, world: World) -> None:
    """Text that a person was shown, lost: the run went on after it."""
    world.journal.append(world.talk, [MessageUser([Text("go on")])])
    hands.run("delete from partials where place = :at", at=hands.at("last delta"))


@damage("talk", "the last event there is has seq")
def the_last_partial_is_gone(hands: Hands, world: World) -> None:
    hands.run("delete from partials where place = :at", at=hands.at("last delta"))


@damage("talk", "which stands for nothing")
def the_code_of_a_partial(hands: Hands, world: World) -> None:
    hands.run(
        "update partials set code = 99 where place = :at", at=hands.at("last delta")
    )


@damage("talk", "cannot be read")
def the_body_of_a_partial(hands: Hands, world: World) -> None:
    hands.flip("partials", "body", "place = :at", at=hands.at("last delta"))


@damage("talk", "Its append id was used before")
def an_append_id_that_came_twice(hands: Hands, world: World) -> None:
    ((used,),) = hands.run(
        "select append_id from events where place = :at", at=hands.at("system")
    )
    hands.run(
        "update events set append_id = :used where place = :at",
        used=used,
        at=hands.at("kept"),
    )


@damage("talk", "Its append id is none")
def an_append_id_that_is_none(hands: Hands, world: World) -> None:
    hands.run(
        "update events set append_id = :no where place = :at",
        no=bytes(16),
        at=hands.at("kept"),
    )


def _head(column: str, value: str, says: str) -> None:
    def hurt(hands: Hands, world: World) -> None:
        hands.run(
            f"update heads set {column} = {value} where conversation = :num",
            num=hands.num(),
        )

    hurt.__name__ = f"head_row_{column}"
    damage("talk", says)(hurt)


for _column in ("turns", "due", "revision", "epoch", "context_from", "unanswered", "messages", "stretch_messages",
                "stretch_from", "stretch_covers"):  # fmt: skip
    _head(_column, f"{_column} + 1", f"The head row has {_column} ")
_head("head", "head + 1", "The head row says that the head is")
_head("facts", "facts - 1", "The head row has facts ")
_head("run", "null", "The head row has run none")
_head("stretch", "0", "The head row has stretch none")
_head("listed_at", "listed_at + 1", "The list has updated_at")


@damage("talk", "The head row says that the head is 3")
def a_head_that_went_back(hands: Hands, world: World) -> None:
    hands.run("update heads set head = 3 where conversation = :num", num=hands.num())


@damage("talk", "The head row has digest")
def the_digest_of_the_head(hands: Hands, world: World) -> None:
    hands.flip("heads", "digest", "conversation = :num", num=hands.num())


@damage("talk", "It has no head row")
def no_head_row(hands: Hands, world: World) -> None:
    hands.run("delete from heads where conversation = :num", num=hands.num())


def _row(column: str, name: str, value: int) -> None:
    def hurt(hands: Hands, world: World) -> None:
        hands.run(
            f"update events set {column} = {value} where place = :at", at=hands.at(name)
        )

    hurt.__name__ = f"row_{column}_of_{name}"
    damage("talk", f"The index row has {column} {value}")(hurt)


_row("first", "r_1 answered", 1)
_row("role", "system", 4)
_row("waiting", "waiting", 0)
_row("waiting", "r_3 asked", 1)
_row("dead", "regretted", 0)
_row("dead", "kept", 3)


@damage("talk", "This message has no index row")
def a_row_that_is_gone(hands: Hands, world: World) -> None:
    hands.run(f"{NO_ROW} where place = :at", at=hands.at("picture"))


@damage("talk", "The index row has role none, and the events say 1")
def a_row_without_its_role(hands: Hands, world: World) -> None:
    hands.run("update events set role = null where place = :at", at=hands.at("picture"))


@damage("talk", "There is an index row, and no message")
def a_row_of_nothing(hands: Hands, world: World) -> None:
    hands.run(
        "update events set first = 1, role = 1, waiting = 0, dead = 0 where place = :at",
        at=hands.at("pinned"),
    )


def _stray(column: str) -> None:
    def hurt(hands: Hands, world: World) -> None:
        hands.run(
            f"update events set {column} = 0 where place = :at", at=hands.at("pinned")
        )

    hurt.__name__ = f"{column}_of_no_row"
    damage("talk", "There is an index row, and no message")(hurt)


for _column in ("first", "waiting", "dead"):
    _stray(_column)


@damage("talk", "Segment s_talk is missing from the index")
def a_segment_that_is_gone(hands: Hands, world: World) -> None:
    hands.run("delete from stretches where name = 's_talk'")


@damage("talk", "Segment s_talk has two children, s_talk_2 and s_rival")
def a_second_child(hands: Hands, world: World) -> None:
    seq = world.seqs["compacted"]
    hands.run(
        "insert into stretches (owner, name, conversation, parent, opened_at, opened_seq, covers_to, messages) "
        "values ('ada', 's_rival', :num, 's_talk', 0, :seq, 0, 0)", num=hands.num(), seq=seq + 1,
    )  # fmt: skip


@damage("talk", "Two segments are open")
def two_head_segments(hands: Hands, world: World) -> None:
    hands.run("update stretches set ended_seq = null where name = 's_talk'")


@damage("talk", "The index of segment s_talk has messages 99")
def the_messages_of_a_segment(hands: Hands, world: World) -> None:
    hands.run("update stretches set messages = 99 where name = 's_talk'")


@damage("talk", "belongs to another user")
def the_user_of_a_segment(hands: Hands, world: World) -> None:
    hands.run("update stretches set owner = 'bob' where name = 's_talk'")


@damage("talk", "Run r_4 is missing from the index")
def an_open_run_that_is_gone(hands: Hands, world: World) -> None:
    hands.run("delete from runs where run = 'r_4'")


@damage("talk", "The index of run r_2 has outcome 'completed'")
def how_a_run_ended(hands: Hands, world: World) -> None:
    hands.run("update runs set outcome = 'completed' where run = 'r_2'")


@damage("talk", "The index of run r_1 has finished_seq none")
def a_run_that_never_ended(hands: Hands, world: World) -> None:
    hands.run("update runs set finished_seq = null where run = 'r_1'")


@damage("talk", "The index of run r_2 has late 0")
def late_output_uncounted(hands: Hands, world: World) -> None:
    hands.run("update runs set late = 0 where run = 'r_2'")


@damage("talk", "Run r_9 is in the index")
def a_run_of_nothing(hands: Hands, world: World) -> None:
    hands.run(
        "insert into runs (conversation, run, started_seq) values (:num, 'r_9', 3)",
        num=hands.num(),
    )


@damage("talk", "No append would have stored this run.finished")
def a_run_that_ended_without_a_start(hands: Hands, world: World) -> None:
    hands.run("delete from events where place = :at", at=hands.at("started"))


def _listed(column: str, value: str) -> None:
    def hurt(hands: Hands, world: World) -> None:
        hands.run(
            f"update conversations set {column} = {value} where num = :num",
            num=hands.num(),
        )

    hurt.__name__ = f"list_{column}"
    damage("talk", f"The list has {column} ")(hurt)


_listed("title", "'Another'")
_listed("pinned", "0")
_listed("archived", "1")
_listed("source", "'elsewhere'")
_listed("opened_at", "opened_at + 1")
_listed("updated_at", "updated_at + 1")
_listed("origin", "1")
_listed("model", "'another'")
_listed("mode", "'ask'")
_listed("project", "''")


def _in_head(column: str, value: str) -> None:
    def hurt(hands: Hands, world: World) -> None:
        hands.run(
            f"update heads set {column} = {value} where conversation = :num",
            num=hands.num(),
        )

    hurt.__name__ = f"head_{column}"
    damage("talk", f"The head row has {column} ")(hurt)


_in_head("asks", "''")
_in_head("failed", "1")
_in_head("answered", "answered + 1")


@damage(None, "The preference 'theme' is not JSON.")
def a_preference_that_is_no_json(hands: Hands, world: World) -> None:
    hands.run("insert into preferences values ('ada', 'theme', '{')")


@damage("talk", "There is a read mark of 'bob', who does not have it.")
def a_read_mark_of_another_user(hands: Hands, world: World) -> None:
    hands.run("insert into read_marks values (:num, 'bob', 1)", num=hands.num())


@damage("talk", "'ada' has read it up to 99999, and it ends at ")
def a_read_mark_past_the_end(hands: Hands, world: World) -> None:
    hands.run("insert into read_marks values (:num, 'ada', 99999)", num=hands.num())


@damage("fork", "The list has origin none")
def a_fork_that_lost_its_origin(hands: Hands, world: World) -> None:
    hands.run("update conversations set origin = null where id = :id", id=world.fork)


@damage("talk", "The list has updated_at")
def a_list_that_stopped(hands: Hands, world: World) -> None:
    hands.run(
        "update heads set listed_at = 5 where conversation = :num", num=hands.num()
    )
    hands.run(
        "update conversations set updated_at = 5 where num = :num", num=hands.num()
    )


@damage("talk", "The cursor of notes stands at 99999, past the head")
def a_cursor_past_the_head(hands: Hands, world: World) -> None:
    hands.run("update cursors set seq = 99999, behind = 0 where conversation = :num and reader = 'notes'",
              num=hands.num())  # fmt: skip


@damage("talk", "The reader notes is behind")
def a_cursor_that_is_behind_and_says_no(hands: Hands, world: World) -> None:
    hands.run(
        "update cursors set behind = 0 where conversation = :num and reader = 'notes'",
        num=hands.num(),
    )


@damage("old", "The reader notes is not behind")
def a_cursor_that_is_not_behind_and_says_yes(hands: Hands, world: World) -> None:
    hands.run(
        "update cursors set behind = 1 where conversation = :num and reader = 'notes'",
        num=hands.num(world.old),
    )


@damage("old", "The reader delivery:chat has no cursor here")
def a_cursor_that_is_gone(hands: Hands, world: World) -> None:
    hands.run(
        "delete from cursors where conversation = :num and reader = 'delivery:chat'",
        num=hands.num(world.old),
    )


@damage("talk", "The cursor of notes follows due")
def a_cursor_that_follows_something_else(hands: Hands, world: World) -> None:
    hands.run(
        "update cursors set follows = 'due' where conversation = :num and reader = 'notes'",
        num=hands.num(),
    )


@damage("talk", "There is a cursor of notes, and no such reader")
def a_reader_that_is_gone(hands: Hands, world: World) -> None:
    hands.run("delete from readers where name = 'notes'")


@damage("old", "is named here, and is not in the store")
def a_blob_that_is_gone(hands: Hands, world: World) -> None:
    hands.run(
        "delete from blob_chunks where owner = 'ada' and hash = :hash", hash=world.blob
    )
    hands.run("delete from blobs where owner = 'ada' and hash = :hash", hash=world.blob)


@damage(None, "does not hold the 1,400,000 bytes that it is named after")
def a_byte_of_a_blob(hands: Hands, world: World) -> None:
    hands.flip(
        "blob_chunks",
        "bytes",
        "owner = 'ada' and hash = :hash and n = 1",
        hash=world.blob,
    )


@damage(None, "does not hold the 1,400,000 bytes that it is named after")
def a_piece_of_a_blob(hands: Hands, world: World) -> None:
    hands.run(
        "delete from blob_chunks where owner = 'ada' and hash = :hash and n = 1",
        hash=world.blob,
    )


@damage(None, "does not hold the 5 bytes that it is named after")
def the_size_of_a_blob(hands: Hands, world: World) -> None:
    hands.run(
        "update blobs set size = 5 where owner = 'ada' and hash = :hash",
        hash=world.blob,
    )


@damage(None, "and no such blob")
def pieces_without_a_blob(hands: Hands, world: World) -> None:
    hands.run(
        "insert into blob_chunks (owner, hash, n, bytes) values ('ada', 'feed', 0, :bytes)",
        bytes=b"x",
    )


@damage("talk", "is named here, and does not count as named")
def a_mention_that_is_gone(hands: Hands, world: World) -> None:
    hands.run("delete from mentions where place = :at", at=hands.at("picture"))


@damage("talk", "counts as named here, and is not")
def a_mention_of_nothing(hands: Hands, world: World) -> None:
    hands.run(
        "insert into mentions (owner, hash, place) values ('ada', 'feed', :at)",
        at=hands.at("kept"),
    )


def _orphan(table: str, insert: str) -> None:
    def hurt(hands: Hands, world: World) -> None:
        ((num,),) = hands.run(
            "select num from tombstones where id = :id", id=world.gone
        )
        hands.run(
            insert.replace(":at", str(num << SEQ_BITS | 1)).replace(":num", str(num))
        )

    hurt.__name__ = f"{table}_of_a_deleted_conversation"
    damage("gone", f"It was deleted, and it still has {table}")(hurt)


_orphan(
    "mentions", "insert into mentions (owner, hash, place) values ('ada', 'feed', :at)"
)
_orphan("runs", "insert into runs (conversation, run) values (:num, 'r_1')")
_orphan(
    "cursors",
    "insert into cursors (conversation, reader, follows, seq, behind) values (:num, 'notes', 'facts', 0, 0)",
)
_orphan("authors", "insert into authors (conversation, author) values (:num, 'eve')")
_orphan(
    "letters",
    "insert into letters (conversation, reader, seq, error, at) values (:num, 'notes', 1, 'x', 0)",
)
_orphan("schedules", "insert into schedules (owner, id, conversation, words, times, zone, made_at) "
        "values ('ada', 't_1', :num, 'x', 'x', 'UTC', 0)")  # fmt: skip
_orphan("stretches", "insert into stretches (owner, name, conversation, opened_at, opened_seq, covers_to, messages) "
        "values ('ada', 's_gone', :num, 0, 1, 0, 0)")  # fmt: skip


@damage("gone", "It was deleted, and it still has events")
def events_of_a_deleted_conversation(hands: Hands, world: World) -> None:
    ((num,),) = hands.run("select num from tombstones where id = :id", id=world.gone)
    hands.run("insert into events (place, kind, at, digest) values (:at, 'x', 0, :zero)",
              at=num << SEQ_BITS | 1, zero=b"")  # fmt: skip


@damage(None, "There is no conversation with number 77, and it still has partials")
def partials_of_no_conversation(hands: Hands, world: World) -> None:
    hands.run("insert into partials (place, code, at, body) values (:at, 1, 0, :body)",
              at=77 << SEQ_BITS | 1, body=b'[1,0,"x"]')  # fmt: skip


@damage("talk", "It was deleted, and is still there")
def a_tombstone_of_the_living(hands: Hands, world: World) -> None:
    hands.run("insert into tombstones (owner, id, num, head, digest, at) values ('ada', :id, 999, 1, :zero, 0)",
              id=world.talk, zero=bytes(32))  # fmt: skip


@damage("gone", "Its tombstone does not hold its last digest")
def a_tombstone_without_a_digest(hands: Hands, world: World) -> None:
    hands.run(
        "update tombstones set digest = :zero where id = :id", zero=b"", id=world.gone
    )


@damage("talk", "What chat:1 sent as update-7 should stand here, and nothing does")
def a_received_message_that_is_not_there(hands: Hands, world: World) -> None:
    hands.run(
        "update received set place = :at where id = 'update-7'", at=hands.at(4_000_000)
    )


@damage(
    "other", "What chat:1 sent as update-7 stands in a conversation of another user"
)
def a_received_message_of_another_user(hands: Hands, world: World) -> None:
    hands.run(
        "update received set place = :at where id = 'update-7'",
        at=hands.at(1, world.other),
    )


@damage(None, "What chat:1 sent as update-8 stands in no conversation")
def a_received_message_of_no_conversation(hands: Hands, world: World) -> None:
    hands.run("delete from tombstones")


@damage(None, "has fence 0")
def a_fence_that_is_no_number(hands: Hands, world: World) -> None:
    hands.run(
        "update leases set fence = 0 where name = :name",
        name=f"reader:notes:{world.talk}",
    )


@damage(None, "has only one of holder and token")
def a_holder_without_a_token(hands: Hands, world: World) -> None:
    hands.run(
        "update leases set token = null where name = :name",
        name=f"reader:notes:{world.carried}",
    )


@damage("talk", "'eve' has written here, and does not count as an author")
def an_author_that_is_gone(hands: Hands, world: World) -> None:
    hands.run("delete from authors where conversation = :num", num=hands.num())


@damage("old", "'mallory' counts as an author, and has written nothing")
def an_author_too_many(hands: Hands, world: World) -> None:
    num = hands.num(world.old)
    hands.run(
        "insert into authors (conversation, author) values (:num, 'mallory')", num=num
    )


@damage("talk", "The reader notes gave up on this, and stands at 5")
def a_letter_that_the_reader_has_yet_to_reach(hands: Hands, world: World) -> None:
    hands.run("update letters set seq = 7 where conversation = :num", num=hands.num())


@damage("old", "The reader nobody gave up on this, and stands at 0")
def a_letter_of_no_reader(hands: Hands, world: World) -> None:
    hands.run("insert into letters (conversation, reader, seq, error, at) values (:num, 'nobody', 1, 'x', 0)",
              num=hands.num(world.old))  # fmt: skip


@damage("other", "is not of this conversation or its user")
def a_schedule_in_the_conversation_of_another(hands: Hands, world: World) -> None:
    hands.run("update schedules set conversation = :num, place = null where words = 'how is the cat?'",
              num=hands.num(world.other))  # fmt: skip


@damage("talk", "is not of this conversation or its user")
def a_schedule_that_was_asked_for_elsewhere(hands: Hands, world: World) -> None:
    hands.run(
        "update schedules set place = :at where words = 'how is the cat?'",
        at=hands.at(2, world.old),
    )


@damage("talk", "counts as named here, and is not")
def a_fact_that_is_not_named(hands: Hands, world: World) -> None:
    hands.run(
        "insert into mentions (owner, hash, place) values ('ada', 'f_1', :at)",
        at=hands.at("kept"),
    )


@damage(None, "follows none")
def a_version_of_a_fact_that_is_gone(hands: Hands, world: World) -> None:
    hands.run("delete from facts where id = :id and version = 1", id=world.fact)


@damage(None, "at revision None")
def facts_without_a_revision(hands: Hands, world: World) -> None:
    hands.run("delete from memories where owner = 'bob'")


@damage("talk", "was learned from this, and nothing stands here")
def a_fact_that_was_learned_from_what_was_erased(hands: Hands, world: World) -> None:
    hands.run("update facts set place = :at where id = :id and version = 1",
              at=hands.at("r_3 asked"), id=world.fact)  # fmt: skip


@damage(None, "is of a conversation that ada does not have")
def a_fact_that_was_learned_from_another_user(hands: Hands, world: World) -> None:
    hands.run(
        "update facts set place = :at where id = :id",
        at=hands.at(2, world.other),
        id=world.fact,
    )


@damage(None, "is of a conversation that ada does not have")
def a_fact_for_a_conversation_that_is_gone(hands: Hands, world: World) -> None:
    hands.run("update facts set scope = 77 where id = :id", id=world.fact)


@damage(None, "Its own row does not name schema")
def a_store_without_an_incarnation(hands: Hands, world: World) -> None:
    hands.run("update store set incarnation = ''")


ON_EVERY_ENGINE: list[Hurt] = [
    a_byte_of_a_body,
    a_byte_of_a_digest,
    a_fact_that_is_gone,
    an_erased_body_that_is_back,
    the_body_of_a_partial,
    the_digest_of_the_head,
    a_row_that_is_gone,
    a_second_child,
    how_a_run_ended,
    a_cursor_past_the_head,
    a_byte_of_a_blob,
    events_of_a_deleted_conversation,
    a_store_without_an_incarnation,
]
"""One damage of each kind. The code that finds damage is the same for every engine, so SQLite is enough for the others."""


def damage_by_engine() -> list[Any]:
    """Return the damages for each engine: all for SQLite, those of `ON_EVERY_ENGINE` for the others."""
    return [
        pytest.param(engine, *damage.values, id=f"{engine}-{damage.id}")
        for engine in ("sqlite", "memory", "postgresql")
        for damage in DAMAGE
        if engine == "sqlite" or damage.values[0] in ON_EVERY_ENGINE
    ]


@pytest.mark.parametrize(
    ("engine_url", "hurt", "where", "says"), damage_by_engine(), indirect=["engine_url"]
)
def test_damage_is_found_where_it_is(
    world: World, engine_url: str, hurt: Hurt, where: str | None, says: str
) -> None:
    """The conversation is named, and what is wrong with it; the others are left alone."""
    with hands(world, engine_url) as inside:
        hurt(inside, world)
    found = verify(world.journal).problems
    conversation = where and getattr(world, where)
    assert any(
        each.conversation == conversation and says in each.what for each in found
    ), shown(found)
    if where == "talk" and hurt is not a_reader_that_is_gone:
        assert {each.conversation for each in found} == {conversation}, shown(found)


@pytest.mark.parametrize("hurt", [a_byte_of_a_digest, a_byte_of_a_salt])
def test_damage_of_one_event_is_told_once(
    world: World, engine_url: str, hurt: Hurt
) -> None:
    """One wrong digest does not make every later one wrong."""
    with hands(world, engine_url) as inside:
        hurt(inside, world)
    assert [problem.seq for problem in verify(world.journal).problems] == [
        world.seqs["kept"]
    ]


def test_there_is_an_end_to_what_is_told(world: World, engine_url: str) -> None:
    """The report of a store with many problems is bounded, and says that there are more problems."""
    with hands(world, engine_url) as inside:
        inside.run(NO_ROW)
    report = verify(world.journal, problems_max=5)
    assert len(report.problems) == 5
    assert not report.complete


def test_an_index_of_another_version_is_no_damage(
    world: World, engine_url: str
) -> None:
    """It is made anew when the conversation is next written; until then nothing is compared."""
    with hands(world, engine_url) as inside:
        inside.run(
            "update heads set version = 0, messages = 99 where conversation = :num",
            num=inside.num(),
        )
    report = verify(world.journal)
    assert report.ok, shown(report.problems)
    assert report.stale == 1


# -- the SQLite file ---------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A healthy store in a file, closed."""
    path = tmp_path / "tenax.db"
    with tenax.open(f"sqlite:///{path}", user="ada") as journal:
        build(journal)
        journal.store.scrub()
    return path


def after(file: Path, *statements: str) -> list[Problem]:
    connection = apsw.Connection(str(file))
    for statement in statements:
        connection.execute(statement)
    connection.close()
    with tenax.open(f"sqlite:///{file}") as journal:
        return verify(journal).problems


def test_a_schema_is_the_sum_of_its_migrations(file: Path) -> None:
    """An index that is missing, one too many, and a column that nobody added."""
    found = after(
        file,
        "drop index events_waiting",
        "create index mine on events (at)",
        "alter table instances add column mood text",
    )
    assert [each.what for each in found] == [
        "In the schema, the index events_waiting is missing.",
        "In the schema, the index mine is not what the migrations make.",
        "In the schema, the table instances is not what the migrations make.",
    ]


def test_the_settings_of_the_file_are_checked(file: Path) -> None:
    """Without incremental vacuum what was erased would stay in free pages."""
    found = after(
        file, "pragma journal_mode = delete", "pragma auto_vacuum = none", "vacuum"
    )
    assert "auto_vacuum 0" in shown(found)


@pytest.mark.parametrize("large", [False, True])
def test_a_damaged_page_is_found(
    file: Path, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the file is checked as a whole or, being large, table by table."""
    if large:
        monkeypatch.setattr(check, "WHOLE_FILE_BYTES_MAX", 0)
    connection = apsw.Connection(str(file))
    found: Any = connection.execute(
        "select rootpage from sqlite_schema where name = 'mentions_place'"
    )
    ((root,),) = found.fetchall()
    connection.close()
    with file.open("r+b") as raw:
        raw.seek((root - 1) * 4096 + 8)
        raw.write(b"\xff" * 600)
    assert "damaged" in shown(after(file))
