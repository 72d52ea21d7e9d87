"""The index of a conversation is made anew from its events."""

from __future__ import annotations

from typing import Any

import pytest

from tenax.errors import SchemaTooNew, StoreDamaged
from tenax.events import MessageUser
from tenax.journal.row_index import INDEX_VERSION, HeadState
from tenax.journal.row_key import ALL_SEQS
from tenax.journal.verify.rebuild import rebuild
from tenax.journal.verify.store import verify
from tenax.parts import Text
from tests.support.world import World, hands

HURT = {
    "rows gone": "update events set first = null, role = null, waiting = null, dead = null "
    "where place between :low and :high and body is not null",
    "rows wrong": "update events set dead = 1, waiting = 1, role = 3 where place between :low and :high "
    "and place % 2 = 0 and body is not null",
    "rows of nothing": "update events set dead = 1, first = 1, role = 3, waiting = 1 where role is null "
    "and place between :low and :high",
    "stretches gone": "delete from stretches where conversation = :num",
    "stretches wrong": "update stretches set messages = 7, ended_seq = 3, parent = 'x' where conversation = :num",
    "runs gone": "delete from runs where conversation = :num",
    "a run too many": "insert into runs (conversation, run, started_seq) values (:num, 'r_9', 3)",
    "head wrong": "update heads set facts = 3, turns = 9, messages = 9, stretch = 0, run = null, unanswered = 1, "
    "stretch_from = 2, context_from = 9, epoch = 4, revision = 1, asks = '', failed = 1, answered = 3 "
    "where conversation = :num",
    "list wrong": "update conversations set title = 'x', pinned = 0, archived = 1, updated_at = 5, opened_at = 5, "
    "source = 'x', model = 'x', mode = 'plan', project = 'x' where num = :num",
    "mentions gone": "delete from mentions where place between :low and :high",
    "authors gone": "delete from authors where conversation = :num",
    "cursors wrong": "update cursors set behind = 1 - behind where conversation = :num",
}


@pytest.mark.parametrize("hurt", HURT.values(), ids=HURT.keys())
def test_an_index_is_made_anew_from_the_events(
    world: World, engine_url: str, hurt: str
) -> None:
    """Rows, segments, runs, head, list and mentions: all of it follows from the events alone."""
    with hands(world, engine_url) as inside:
        low = inside.at(0)
        every = {"num": inside.num(), "low": low, "high": low | ALL_SEQS}
        inside.run(
            hurt, **{name: value for name, value in every.items() if f":{name}" in hurt}
        )
    assert not verify(world.journal).ok
    anew(world)
    assert list(map(str, verify(world.journal).problems)) == []


def test_authors_that_have_written_nothing_are_forgotten(
    world: World, engine_url: str
) -> None:
    """But where an input was erased: nothing else tells who wrote it."""
    with hands(world, engine_url) as inside:
        for name in (world.old, world.talk):
            num = inside.num(name)
            inside.run(
                "insert into authors (conversation, author) values (:num, 'mallory')",
                num=num,
            )
            anew(world, name=name)
        found = inside.run(
            "select conversation, author from authors where author = 'mallory'"
        )
        assert found == [(inside.num(world.talk), "mallory")]
    assert verify(world.journal).ok


def anew(world: World, version: int = 0, name: str = "") -> None:
    store, name = world.journal.store, name or world.talk
    num = store.num("ada", name)

    def work(tx: Any) -> None:
        head = tx.run("prove_head", {"num": num})[0][0]
        rebuild(tx, HeadState(num, name, "ada", head=head, version=version))

    store.change(work)


def test_rebuilding_a_healthy_index_changes_nothing(world: World) -> None:
    """The head is the same, and the conversation goes on."""
    before = (
        world.journal.head(world.talk),
        world.journal.rows(world.talk),
        world.journal.summary(world.talk),
    )
    anew(world)
    assert world.journal.head(world.talk) == before[0]
    assert world.journal.rows(world.talk) == before[1]
    assert world.journal.summary(world.talk).title == before[2].title
    world.say("new", MessageUser([Text("and on")]))
    assert verify(world.journal).ok


def test_how_often_a_run_was_tried_outlives_its_index(
    world: World, engine_url: str
) -> None:
    """It is told by no event yet."""
    with hands(world, engine_url) as inside:
        inside.run("update runs set attempts = 2, first_seen = 5 where run = 'r_2'")
        anew(world)
        found = inside.run(
            "select attempts, first_seen, outcome from runs where run = 'r_2'"
        )
    assert found == [(2, 5, "interrupted")]


def test_an_index_of_a_newer_version_is_left_alone(world: World) -> None:
    """An older process says that it has to be restarted."""
    with pytest.raises(
        SchemaTooNew, match="A newer Tenax has indexed conversation c_talk"
    ):
        anew(world, INDEX_VERSION + 1)


def test_an_index_is_not_made_from_damaged_events(
    world: World, engine_url: str
) -> None:
    """The seq is named, and nothing is written."""
    with hands(world, engine_url) as inside:
        inside.run("delete from events where place = :at", at=inside.at("started"))
        with pytest.raises(
            StoreDamaged, match=f"because of seq {world.seqs['interrupted']}"
        ):
            anew(world)
        assert inside.run("select count(*) from runs where run = 'r_2'") == [(1,)]
