"""A small world in a store: events of all sorts, two users, readers, leases, blobs, facts, a fork, a deleted conversation.

`build` makes it through the journal alone; `Hands` reaches into the store past the journal, to damage it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg

from tenax.events import (
    ApprovalAsked,
    ContextCompacted,
    ContextSummarised,
    ConversationArchived,
    ConversationCleared,
    ConversationConfigured,
    ConversationOpened,
    ConversationPinned,
    ConversationRestored,
    ConversationRewound,
    ConversationTitled,
    Event,
    MemoryDue,
    MemoryNoted,
    MemoryRecalled,
    MessageAssistant,
    MessagePartial,
    MessageSystem,
    MessageTool,
    MessageUser,
    ReplyDelta,
    RunFinished,
    RunLate,
    RunSealed,
    RunStarted,
    SegmentEnded,
)
from tenax.journal import Journal
from tenax.journal.base import Dedup, RawEvent, Reader
from tenax.journal.row_key import SEQ_BITS
from tenax.memory.entries import MemoryEntries
from tenax.parts import File, Text, ToolCall, ToolResult
from tenax.schedules.rows import Schedules

NOTES = Reader("notes")
DELIVERY = Reader("delivery:chat", "turns", "now")


@dataclass
class World:
    """Names and numbers of what `build` made. `seqs` are those of the conversation `talk`."""

    journal: Journal
    talk: str = "c_talk"
    old: str = "c_old"
    gone: str = "c_gone"
    carried: str = "c_carried"
    other: str = "c_other"
    fork: str = ""
    blob: str = ""
    fact: str = ""
    seqs: dict[str, int] = field(default_factory=dict)

    def all(self) -> list[tuple[str, str]]:
        """Every conversation that is there, with its user."""
        return [
            ("bob", self.other),
            *(("ada", each) for each in (self.talk, self.old, self.carried, self.fork)),
        ]

    def say(self, name: str, *events: Event, run: str | None = None) -> int:
        """Append to `talk`, and keep the seq of the last event under this name."""
        seq = self.journal.append(self.talk, events, run=run)[-1].seq
        self.seqs[name] = seq
        return seq


def words(text: str, *, ask: bool = False) -> MessageUser:
    return MessageUser([Text(text)], author="ada", ask=ask)


def build(journal: Journal) -> World:
    """Fill an empty store."""
    world = World(journal)
    journal.behind(NOTES)
    world.blob = journal.put_blob(b"picture" * 200_000)
    journal.put_blob(b"nobody names this")
    _old(world)
    _talk(world)
    _carried(world)
    _gone(world)
    _other(world)
    journal.behind(DELIVERY)
    world.fork = journal.fork(world.old)
    _follow(world)
    _memory(world)
    _end_of_talk(world)
    return world


def _old(world: World) -> None:
    """Archived, cleared and ended."""
    append, old = world.journal.append, world.old
    append(
        old,
        [
            ConversationOpened("ada", "s_old", source="cli"),
            words("first"),
            words("second"),
        ],
    )
    append(old, [ConversationCleared()])
    append(old, [words("third"), MessageAssistant([Text("and an answer")])])
    append(old, [MessageUser([Text("here"), File(world.blob, "image/png", "a.png")])])
    append(old, [MessageUser([Text("may I?")], author="eve")])
    append(old, [ConversationArchived(archived=True)])
    append(old, [SegmentEnded("s_old", "new conversation")])


def _talk(world: World) -> None:
    """Runs, partials, tools, undo, a compaction, erasures."""
    say = world.say
    source = Dedup("chat:1", "update-7")
    world.journal.append(
        world.talk, [ConversationOpened("ada", "s_talk"), words("hello")], dedup=source
    )
    say("title", ConversationTitled("A talk"))
    _run(world, "r_1", "the first question", "the first answer")
    world.journal.prune(world.talk)
    say("system", MessageSystem([Text("be kind")]))
    say("picture", MessageUser([Text("look"), File(world.blob, "image/png")]))
    asked = say("asked", words("what is it?", ask=True))
    say("started", RunStarted([asked]), run="r_2")
    for offset, piece in enumerate(("a ", "cat")):
        say("delta", ReplyDelta(asked, offset * 2, piece))
    say("sealed", MessagePartial([Text("a cat")], asked), run="r_2")
    say("interrupted", RunFinished("interrupted", "the process died"), run="r_2")
    say("late", RunLate(0, "token", {"text": " on a mat"}), run="r_2")
    say("no more", RunSealed(), run="r_2")
    kept = say("kept", words("kept"))
    say("regretted", words("regretted"))
    undone = say("undone", ConversationRewound(kept))
    say("restored", ConversationRestored(undone))
    say("rewound", ConversationRewound(kept))
    summary = say("summary", ContextSummarised([Text("they talked about a cat")], kept))
    say("compacted", ContextCompacted("s_talk", "s_talk_2", summary, kept, summary))
    say("pinned", ConversationPinned(pinned=True))
    say("configured", ConversationConfigured("large", "plan", "p_1"))
    _run(world, "r_3", "a secret question", "a secret answer")
    world.journal.erase(
        world.talk,
        [world.seqs["r_3 asked"], world.seqs["r_3 answered"]],
        by="ada",
        why="a key",
    )
    say("waiting and erased", words("another secret", ask=True))
    world.journal.erase(world.talk, [world.seqs["waiting and erased"]], by="ada")


def _run(world: World, run: str, question: str, answer: str) -> None:
    asked = world.say(f"{run} asked", words(question, ask=True))
    world.say(f"{run} started", RunStarted([asked]), run=run)
    for offset, letter in enumerate(answer):
        world.say(f"{run} delta", ReplyDelta(asked, offset, letter))
    call = ToolCall("call-1", "clock", "{}")
    world.say(f"{run} answered", MessageAssistant([Text(answer), call], asked), run=run)
    world.say(f"{run} tool", MessageTool([ToolResult("call-1", "noon")]), run=run)
    world.say(f"{run} finished", RunFinished("completed"), run=run)


def _carried(world: World) -> None:
    """Imported, with a kind of a later version."""
    opened = ConversationOpened("ada", "s_carried", source="import")
    at = world.journal.clock.now_us() - 86_400_000_000
    entries = [
        RawEvent(
            "message.user",
            at,
            None,
            b'{"parts":[{"type":"text","text":"from elsewhere"}]}',
        ),
        RawEvent("weather.changed", at + 1, None, b'{"to":"rain"}'),
    ]
    world.journal.load(world.carried, opened, entries)


def _gone(world: World) -> None:
    """Deleted, and still known to the source that it came from."""
    opened = [ConversationOpened("ada", "s_gone"), words("forget me")]
    world.journal.append(world.gone, opened, dedup=Dedup("chat:1", "update-8"))
    world.journal.delete(world.gone)


def _other(world: World) -> None:
    """Of another user, who stored the same bytes."""
    bob = world.journal.of("bob")
    bob.put_blob(b"picture" * 200_000)
    bob.append(
        world.other,
        [
            ConversationOpened("bob", "s_other"),
            MessageUser([File(world.blob, "image/png")]),
        ],
    )


def _follow(world: World) -> None:
    """Readers that have got somewhere, a lease that is held and one that was given back."""
    journal = world.journal
    for name, to in ((world.talk, 5), (world.old, journal.head(world.old).facts)):
        lease = journal.claim(f"reader:notes:{name}", "test", 60)
        assert lease is not None
        journal.advance(NOTES, name, to, was=0, lease=lease)
        journal.release(lease)
    lease = journal.claim(f"reader:notes:{world.carried}", "test", 60)
    assert lease is not None
    journal.defer(NOTES, world.carried, seconds=60, error="not now", lease=lease)


def _memory(world: World) -> None:
    """Facts that were changed, replaced and forgotten, here and by another user; a boundary, and a turn given up on."""
    journal, facts = world.journal, MemoryEntries(world.journal)
    guest = world.say("guest", MessageUser([Text("I am new here")], author="eve"))
    fact = facts.add("likes cats", conversation=world.talk, seq=world.seqs["kept"])
    world.fact = facts.change(
        fact.id, was=1, text="has a cat", by="review", key="call-1"
    ).id
    facts.remove(
        facts.add("of the guest", conversation=world.talk, seq=guest).id, was=1
    )
    facts.add("has two cats", replaces=(facts.add("has no dog").id, 1))
    MemoryEntries(journal.of("bob")).add("is bob", about="profile")
    world.say("noted", MemoryNoted(fact.id, 1, "added", "likes cats"))
    asked = world.say("do I have a cat", words("do I have a cat?", ask=True))
    recalled = MemoryRecalled({"built in": "- has a cat"}, facts=[fact.id])
    world.say("recalled", RunStarted([asked]), recalled, run="r_cat")
    world.say("r_cat finished", RunFinished("cancelled"), run="r_cat")
    world.say("due", MemoryDue("s_talk_2", world.seqs["r_3 finished"], "idle"))
    lease = journal.claim(f"reader:notes:{world.talk}", "test", 60)
    assert lease is not None
    journal.bury(NOTES, world.talk, 5, was=5, error="no", lease=lease)
    journal.release(lease)
    schedules = Schedules(journal)
    schedules.add(
        world.talk,
        "how is the cat?",
        "every day at 08:00",
        "UTC",
        1,
        message=world.seqs["kept"],
    )
    schedules.remove(schedules.add(world.old, "over", "every hour", "UTC", 1).id)


def _end_of_talk(world: World) -> None:
    """An input that waits, an open run, and text that nothing has replaced yet."""
    asked = world.say("open question", words("still there?", ask=True))
    world.say("waiting", words("hello?", ask=True))
    world.say("open run", RunStarted([asked]), run="r_4")
    world.say("asks", ApprovalAsked(asked, "call-2", "shell", "{}"), run="r_4")
    for offset, letter in enumerate("yes"):
        world.say("last delta", ReplyDelta(asked, offset, letter))


class _Connection(Protocol):
    def execute(self, query: str, params: Any, /) -> Any: ...


class Hands:
    """Reaches into a store past the journal. Statements have `:named` parameters."""

    def __init__(self, connection: _Connection, world: World, *, dollar: bool) -> None:
        self._connection = connection
        self._world = world
        self._dollar = dollar

    def run(self, sql: str, **params: object) -> list[tuple[Any, ...]]:
        if self._dollar:
            sql = re.sub(r":(\w+)\b(?!')", r"%(\1)s", sql.replace("%", "%%"))
        cursor = self._connection.execute(sql, params)
        if self._dollar and cursor.description is None:
            return []
        return [tuple(row) for row in cursor.fetchall()]

    def num(self, conversation: str | None = None) -> int:
        found = self.run(
            "select num from conversations where id = :id",
            id=conversation or self._world.talk,
        )
        return int(found[0][0])

    def at(self, name: str | int, conversation: str | None = None) -> int:
        """The place of an event of `talk` by its name, or of any by its seq."""
        seq = self._world.seqs[name] if isinstance(name, str) else name
        return self.num(conversation) << SEQ_BITS | seq

    def flip(self, table: str, column: str, where: str, **params: object) -> None:
        """Change one bit of bytes."""
        ((value,),) = self.run(f"select {column} from {table} where {where}", **params)
        changed = value[:-1] + bytes([value[-1] ^ 1])
        self.run(
            f"update {table} set {column} = :changed where {where}",
            changed=changed,
            **params,
        )


@contextmanager
def hands(world: World, url: str) -> Iterator[Hands]:
    """Hands in the store of this world, which stays open."""
    store: Any = world.journal.store
    if url.startswith("postgresql:"):
        with psycopg.connect(url, autocommit=True) as postgres:
            yield Hands(postgres, world, dollar=True)
    elif url == "memory:":
        yield Hands(store, world, dollar=False)
    else:
        connection = apsw.Connection(str(Path(url.removeprefix("sqlite:///"))))
        connection.set_busy_timeout(5000)
        try:
            yield Hands(connection, world, dollar=False)
        finally:
            connection.close()


def copy(url: str, to: str) -> None:
    """Copy a store that nobody has open to where none is, or an empty database."""
    if url.startswith("sqlite:"):
        source, target = (
            apsw.Connection(each.removeprefix("sqlite:///")) for each in (url, to)
        )
        with target.backup("main", source, "main") as backup:
            backup.step()
        source.close()
        target.close()
        return
    old, new = (each.rsplit("/", 1)[1] for each in (url, to))
    with psycopg.connect(
        f"{url.rsplit('/', 1)[0]}/postgres", autocommit=True
    ) as server:
        server.execute(f"drop database if exists {new}".encode())
        server.execute(f"create database {new} template {old}".encode())
