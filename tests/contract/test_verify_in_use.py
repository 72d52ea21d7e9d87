"""A store proves itself while others use it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import tenax
from tenax.events import (
    ContentErased,
    ConversationOpened,
    ConversationRewound,
    MessageAssistant,
    MessageUser,
    ReplyDelta,
    RunFinished,
    RunStarted,
)
from tenax.journal import Journal
from tenax.journal.base import Reader
from tenax.journal.row_key import SEQ_BITS
from tenax.journal.store import SqlRow, Store
from tenax.journal.verify.store import Problem, verify
from tenax.memory.entries import MemoryEntries
from tenax.parts import Text
from tests.support.world import NOTES, World, build, hands, words


def shown(found: list[Problem]) -> str:
    return "\n".join(map(str, found))


def meanwhile(
    store: Store, name: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Do something once, just before this statement is first read for `talk`."""
    query, talk = store.query, store.num("ada", "c_talk")
    done: list[str] = []

    def watched(each: str, /, **params: Any) -> list[SqlRow]:
        if (
            each == name
            and not done
            and talk in {params.get("num"), params.get("high", 0) >> SEQ_BITS}
        ):
            done.append(name)
            act()
        return query(each, **params)

    monkeypatch.setattr(store, "query", watched)
    return done


def answer(world: World) -> None:
    world.say(
        "answered",
        MessageAssistant([Text("yes")], world.seqs["open question"]),
        run="r_4",
    )
    world.say("finished", RunFinished("completed"), run="r_4")


def advance(world: World) -> None:
    lease = world.journal.claim(
        f"reader:notes:{world.talk}", "test", 60, take_over=True
    )
    assert lease is not None
    world.journal.advance(
        NOTES, world.talk, world.journal.head(world.talk).head, was=5, lease=lease
    )


def bury(world: World) -> None:
    lease = world.journal.claim(
        f"reader:notes:{world.talk}", "test", 60, take_over=True
    )
    assert lease is not None
    world.journal.bury(NOTES, world.talk, 7, was=5, error="no", lease=lease)


def undo(world: World) -> None:
    answer(world)
    world.say("new", ConversationRewound(world.seqs["waiting"]))


def answer_and_prune(world: World) -> None:
    answer(world)
    world.journal.prune(world.talk)


def answer_and_delete(world: World) -> None:
    answer(world)
    world.journal.delete(world.talk)


ACTS: dict[str, Callable[[World], object]] = {
    "message": lambda world: world.say("new", words("new", ask=True)),
    "partial": lambda world: world.say(
        "new", ReplyDelta(world.seqs["open question"], 3, "!")
    ),
    "prune": lambda world: world.journal.prune(world.talk),
    "answer": answer,
    "answer and prune": answer_and_prune,
    "undo": undo,
    "erase": lambda world: world.journal.erase(
        world.talk, [world.seqs["picture"], world.seqs["waiting"]], by="ada"
    ),
    "reader": lambda world: world.journal.behind(Reader("new", "turns")),
    "advance": advance,
    "bury": bury,
    "guest": lambda world: world.say(
        "new", MessageUser([Text("and I?")], author="mallory")
    ),
    "remember": lambda world: MemoryEntries(world.journal).add(
        "new", conversation=world.talk, seq=world.seqs["kept"]
    ),
    "erase what was learned": lambda world: world.journal.erase(
        world.talk, [world.seqs["kept"], world.seqs["guest"]], by="ada"
    ),
    "delete": answer_and_delete,
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    "name",
    ["last_fact", "prove_head", "prove_facts", "prove_partials", "prove_rows", "prove_stretches", "prove_runs",
     "prove_mentions", "prove_cursors", "prove_authors", "prove_letters"],
)  # fmt: skip
def test_what_happens_meanwhile_is_no_damage(
    name: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever others do between two reads, nothing healthy is called wrong."""
    with tenax.open("memory:", user="ada") as journal:
        world = build(journal)
        done = meanwhile(journal.store, name, lambda: ACTS[act](world), monkeypatch)
        report = verify(journal)
        assert done
        assert report.ok, shown(report.problems)


def test_damage_is_found_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation that moves at every look does not hide what is wrong with it."""
    with tenax.open("memory:", user="ada") as journal:
        world = build(journal)
        with hands(world, "memory:") as inside:
            inside.flip("events", "salt", "place = :at", at=inside.at("kept"))
            inside.run("update runs set outcome = 'completed' where run = 'r_2'")
            inside.run(
                "update conversations set title = 'Another' where num = :num",
                num=inside.num(),
            )
        query = journal.store.query

        def busy(each: str, /, **params: Any) -> list[SqlRow]:
            if each == "prove_runs":
                monkeypatch.setattr(journal.store, "query", query)
                world.say("new", words("new", ask=True))
                monkeypatch.setattr(journal.store, "query", busy)
            return query(each, **params)

        monkeypatch.setattr(journal.store, "query", busy)
        found = [problem.what for problem in verify(journal).problems]
        assert [what.split(" ")[0:4] for what in found] == [
            ["Its", "digest", "does", "not"],
            ["The", "list", "has", "title"],
            ["The", "index", "of", "run"],
        ]


def test_a_store_is_proved_while_threads_write(engine_url: str) -> None:
    """Appends, answers, undo and new conversations go on; nothing is wrong at any time."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def write(journal: Journal, n: int) -> None:
        try:
            for turn in range(10_000):
                if stop.is_set():
                    return
                name = f"c_{n}_{turn // 20}"
                if turn % 20 == 0:
                    journal.append(name, [ConversationOpened("local", f"s_{n}_{turn}")])
                asked = journal.append(name, [words("?", ask=True)])[0].seq
                journal.append(name, [RunStarted([asked])], run=f"r_{turn}")
                journal.append(name, [ReplyDelta(asked, 0, "so")])
                journal.append(
                    name, [MessageAssistant([Text("so")], asked)], run=f"r_{turn}"
                )
                journal.append(name, [RunFinished("completed")], run=f"r_{turn}")
                if turn % 5 == 3:
                    journal.append(name, [ConversationRewound(asked)])
                    journal.prune(name)
                if turn % 7 == 2:
                    journal.append(name, [ContentErased([asked], "test")])
        except BaseException as error:  # noqa: BLE001  (told to the test's own thread)
            failed.append(error)

    with tenax.open(engine_url) as journal:
        journal.behind(NOTES)
        threads = [threading.Thread(target=write, args=(journal, n)) for n in range(3)]
        for thread in threads:
            thread.start()
        try:
            reports = [verify(journal) for _ in range(6)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failed
        assert [shown(report.problems) for report in reports] == [""] * 6
        assert verify(journal).ok
