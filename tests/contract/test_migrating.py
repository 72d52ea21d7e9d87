"""A store of an earlier version is opened by this one, and everything is kept."""

from __future__ import annotations

import re
import subprocess
import sys

import apsw
import psycopg
import pytest

import tenax
from tenax.events import ApprovalAsked, MessageAssistant, RunStarted, Usage
from tenax.journal.base import Spent
from tenax.journal.devices import Devices
from tenax.journal.schema import SCHEMA_VERSION, migrations
from tenax.journal.verify.store import verify
from tenax.memory.entries import MemoryEntries
from tenax.parts import Text
from tenax.schedules.rows import Schedules
from tests.contract.engine.base import begin, said, say, turn
from tests.support.world import Hands, World, build, hands

SECOND = ("facts", "memories", "authors", "letters")
THIRD = ("schedules",)
FOURTH = ("devices",)
FIFTH = ("preferences", "read_marks", "projects", "personal")
SEVENTH = (
    "routes",
    "route_cursors",
    "deliveries",
    "channel_values",
    "chats",
    "channel_people",
    "pairings",
    "observed",
    "late_files",
)


def take_back_the_fifth(inside: Hands, url: str) -> None:
    """Make the tables of the fourth migration of those that the later ones made or changed."""
    for table in (*FIFTH, *SEVENTH):
        inside.run(f"drop table {table}")
    added = {
        "conversations": ("model", "mode", "project"),
        "heads": ("asks", "failed", "answered"),
    }
    for table, names in added.items():
        for column in names:
            inside.run(f"alter table {table} drop column {column}")
    columns = "conversation, day, owner, input, output, cost, unpriced"
    inside.run(f"create table spent_then as select {columns} from spent")
    inside.run("drop table spent")
    script = migrations("sqlite" if url.startswith("sqlite") else "postgres")[0]
    made = re.findall(
        r"^create (?:table|index) spent.*?;", script, re.DOTALL | re.MULTILINE
    )
    assert len(made) == 2
    for statement in made:
        inside.run(statement.rstrip(";"))
    inside.run(f"insert into spent ({columns}) select {columns} from spent_then")
    inside.run("drop table spent_then")


@pytest.fixture
def first(bare_url: str) -> World:
    """A store that only the first migration has made, with a world in it; nobody has it open."""
    with tenax.open(bare_url, user="ada") as journal:
        world = build(journal)
        with hands(world, bare_url) as inside:
            take_back_the_fifth(inside, bare_url)
            for table in (*SECOND, *THIRD, *FOURTH):
                inside.run(f"drop table {table}")
            inside.run("delete from mentions where hash like 'f\\_%' escape '\\'")
            turns = "select coalesce(max(finished_seq), 0) from runs r where r.conversation = heads.conversation"
            inside.run(f"update heads set version = 1, turns = ({turns})")
            inside.run("update store set schema = 1")
    return world


def test_nothing_of_the_later_migrations_is_left(first: World, bare_url: str) -> None:
    """What the other tests start from is what the first script makes by itself."""
    if not bare_url.startswith("sqlite"):
        with psycopg.connect(bare_url) as server:
            tables = {
                row[0]
                for row in server.execute("select tablename from pg_tables").fetchall()
            }
        assert not tables & {*SECOND, *THIRD, *FOURTH, *FIFTH, *SEVENTH}
        return
    schema = "select type, name, sql from sqlite_schema where name not like 'sqlite%' order by type, name"
    made, kept = (
        apsw.Connection(":memory:"),
        apsw.Connection(bare_url.removeprefix("sqlite:///")),
    )
    made.execute(migrations("sqlite")[0])
    assert kept.execute(schema).fetchall() == made.execute(schema).fetchall()
    kept.close()


def test_a_store_of_the_first_migration_is_opened_with_all_that_is_in_it(
    first: World, bare_url: str
) -> None:
    """Every event, blob, cursor and lease; what this version derives besides is derived when it is needed."""
    with tenax.open(bare_url, user="ada") as journal:
        assert journal.store.query("store")[0][0] == SCHEMA_VERSION
        report = verify(journal)
        assert [str(problem) for problem in report.problems] == []
        assert report.stale == report.conversations == 5
        assert said(journal, first.old) == ["third", "and an answer", "here", "may I?"]
        assert journal.get_blob(first.blob) == b"picture" * 200_000
        assert journal.shared(first.old)
        assert journal.shared(first.talk)
        assert not journal.shared(first.carried)
        assert verify(journal).stale == 2
        journal.of("bob").append(first.other, [say("and on")])
        assert journal.head(first.talk).turns == first.seqs["r_cat finished"]
        assert journal.head(first.talk).due == first.seqs["due"]
        assert verify(journal).ok


def test_an_old_conversation_is_private_until_it_is_known_to_be(
    first: World, bare_url: str
) -> None:
    """A private fact does not come where another wrote before there was a list of authors."""
    with tenax.open(bare_url, user="ada") as journal:
        facts = MemoryEntries(journal)
        facts.add("a secret")
        assert facts.usable(first.old) == []
        assert [each.text for each in facts.usable(first.carried)] == ["a secret"]
        fact = facts.add("told by a guest", conversation=first.fork, seq=2)
        assert fact.scope == first.fork
        assert verify(journal).ok


def test_a_store_of_the_second_migration_keeps_what_is_remembered(
    bare_url: str,
) -> None:
    """Facts and all; and it takes schedules from then on."""
    with tenax.open(bare_url, user="ada") as journal:
        world = build(journal)
        facts = MemoryEntries(journal).standing()
        with hands(world, bare_url) as inside:
            take_back_the_fifth(inside, bare_url)
            for table in (*THIRD, *FOURTH):
                inside.run(f"drop table {table}")
            inside.run("update store set schema = 2")
    with tenax.open(bare_url, user="ada") as journal:
        assert MemoryEntries(journal).standing() == facts
        made = Schedules(journal).add(world.talk, "Look.", "every hour", "UTC", 1)
        assert Schedules(journal).all() == [made]
        assert verify(journal).ok


def test_a_store_of_the_third_migration_takes_devices(bare_url: str) -> None:
    """Schedules stay; a browser can sign in from then on."""
    with tenax.open(bare_url, user="ada") as journal:
        world = build(journal)
        planned = Schedules(journal).all()
        with hands(world, bare_url) as inside:
            take_back_the_fifth(inside, bare_url)
            inside.run("drop table devices")
            inside.run("update store set schema = 3")
    with tenax.open(bare_url, user="ada") as journal:
        assert Schedules(journal).all() == planned
        devices = Devices(journal, days=1)
        made = devices.add("ada", "A browser", 80)
        assert devices.find(made.cookie) == made.device
        assert verify(journal).ok


def test_a_store_of_the_fourth_migration_knows_what_failed_and_what_was_spent(
    bare_url: str,
) -> None:
    """Usage stays, without a model; what waits for a person is derived when the conversation is next written."""
    with tenax.open(bare_url, user="ada") as journal:
        world = build(journal)
        used = MessageAssistant([Text("a")], usage=Usage(10, 1, cost=0.5), model="m")
        done = begin(journal, used)
        turn(journal, done, "r-1", "completed")
        failed = begin(journal)
        turn(journal, failed, "r-1", "completed")
        turn(journal, failed, "r-2", "failed")
        asking = begin(journal)
        journal.append(asking, [RunStarted([])], run="r-1")
        journal.append(asking, [ApprovalAsked(1, "c", "shell", "{}")], run="r-1")
        with hands(world, bare_url) as inside:
            take_back_the_fifth(inside, bare_url)
            inside.run("update store set schema = 4")
    with tenax.open(bare_url, user="ada") as journal:
        assert verify(journal).problems == []
        states = [journal.summary(name).state for name in (done, failed, asking)]
        assert states == ["", "failed", "running"]
        assert not any(summary.unread for summary in journal.conversations())
        assert journal.spent(done) == Spent(10, 1, 0.5, 0)
        day = journal.clock.now_us() // 86_400_000_000
        rows = journal.usage(day - 1, day)
        assert [(row.model, row.conversation, row.cost) for row in rows] == [
            ("", done, 0.5)
        ]
        journal.append(asking, [say("well?")])
        assert journal.summary(asking).state == "asks"
        assert verify(journal).problems == []


_PROCESS = """
import sys, tenax
from tenax.errors import MemoryChanged
from tenax.memory.entries import MemoryEntries
with tenax.open(sys.argv[1], user="ada") as journal:
    facts = MemoryEntries(journal)
    fact = facts.add(sys.argv[2], key="once")
    try:
        facts.change(fact.id, was=1, text=f"changed by {sys.argv[2]}")
    except MemoryChanged:
        print(fact.id, "late")
    else:
        print(fact.id, "first")
"""


def test_processes_that_migrate_and_remember_at_once_do_it_once(
    first: World, bare_url: str
) -> None:
    """One makes the tables, one key is one fact, and of all who change it one does."""
    command = [sys.executable, "-c", _PROCESS, bare_url]
    started = [
        subprocess.Popen([*command, f"{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    told = [each.communicate(timeout=60)[0].split() for each in started]
    assert len({fact for fact, _ in told}) == 1
    assert sorted(word for _, word in told) == ["first", "late", "late", "late"]
    with tenax.open(bare_url, user="ada") as journal:
        text = f"changed by {[word for _, word in told].index('first')}"
        assert [
            (each.version, each.text) for each in MemoryEntries(journal).standing()
        ] == [(2, text)]
        assert verify(journal).ok
