"""An export in the format `tenax` is imported whole: every digest is equal, and a second import adds nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import tenax
from tenax.config import Config, load
from tenax.errors import InvalidInput
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ContentErased,
    ContextCompacted,
    ConversationConfigured,
    ConversationOpened,
    ConversationRouted,
    ConversationTitled,
    Event,
    MessageAssistant,
    MessageUser,
    ModelUsed,
    ReplyDelta,
    RunFinished,
    RunStarted,
    Usage,
    encode,
)
from tenax.export import export_several
from tenax.export.lines import (
    VERSION,
    Conversation,
    End,
    Header,
    Line,
    encode_line,
)
from tenax.export.lines import Event as EventLine
from tenax.importers.service import Imported, import_from
from tenax.journal import Journal
from tenax.journal.journal import events_after
from tenax.journal.plan import chain, inner_hash
from tenax.journal.verify.store import verify
from tenax.parts import File, ToolCall
from tenax.views.open_work import Turns
from tests.archive.conftest import NewUrl
from tests.contract.engine.base import answer, begin, say
from tests.support.world import World, build


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load({"TENAX_HOME": str(tmp_path / "home")})


@pytest.fixture
def world_url(new_url: NewUrl, source: str) -> str:
    return new_url(source)


@pytest.fixture
def world(world_url: str) -> Iterator[World]:
    with tenax.open(world_url, user="ada") as journal:
        yield build(journal)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A store to export from, where the engine does not matter."""
    with tenax.open(f"sqlite:///{tmp_path}/from.db", user="ada") as journal:
        yield journal


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Journal]:
    """A store to import to, where the engine does not matter."""
    with tenax.open(f"sqlite:///{tmp_path}/to.db", user="ada") as journal:
        yield journal


def export(journal: Journal, file: Path, *names: str, url: str = "") -> Path:
    url = url or f"sqlite:///{file.parent}/from.db"
    pieces = export_several(journal, url, names, "tenax")
    file.write_bytes(b"".join(pieces))
    return file


def counts(done: Imported) -> tuple[int, int, int, int]:
    return done.new, done.grown, done.unchanged, done.skipped


def test_every_event_comes_over_with_its_digest(
    world: World,
    world_url: str,
    target: str,
    new_url: NewUrl,
    config: Config,
    tmp_path: Path,
) -> None:
    """From each engine to each: every kind of event, erased ones, partials, an open run, a fork and attachments."""
    names = [name for owner, name in world.all() if owner == "ada"]
    file = export(world.journal, tmp_path / "all.jsonl", *names, url=world_url)
    with tenax.open(new_url(target), user="ada") as there:
        done = import_from(config, there, file)
        assert done.reasons == []
        assert counts(done) == (len(names), 0, 0, 0)
        for name in names:
            before = world.journal.head(name)
            fact = there.fact(name, before.facts)
            assert fact is not None
            assert fact.digest == before.digest
            old = list(events_after(world.journal, name, 0))
            new = list(events_after(there, name, 0, before.head))
            assert [(e.seq, e.kind, e.at, e.run, e.body) for e in new] == [
                (e.seq, e.kind, e.at, e.run, e.body) for e in old
            ]
            assert there.head(name).run is None
            assert there.waiting(name) == []
        assert there.get_blob(world.blob) == world.journal.get_blob(world.blob)
        assert verify(there.of(None)).problems == []
        assert counts(import_from(config, there, file)) == (0, 0, len(names), 0)


def test_a_grown_conversation_continues(
    journal: Journal, other: Journal, config: Config, tmp_path: Path
) -> None:
    """A later export adds what happened since, with turns, an undo, a compaction and a new title."""
    name = begin(journal, say("one"), answer("two"))
    import_from(config, other, export(journal, tmp_path / "1.jsonl", name))
    journal.append(name, [say("three", ask=True)])
    run = journal.ids.run()
    journal.append(name, [RunStarted([4])], run=run)
    journal.append(name, [answer("four")], run=run)
    journal.append(name, [tenax.events.RunFinished("completed")], run=run)
    journal.append(name, [tenax.events.ConversationRewound(3)])
    journal.append(name, [say("five"), ConversationTitled("Later")])
    file = export(journal, tmp_path / "2.jsonl", name)
    assert counts(import_from(config, other, file, dry_run=True)) == (0, 1, 0, 0)
    assert counts(import_from(config, other, file)) == (0, 1, 0, 0)
    assert other.head(name).digest == journal.head(name).digest
    assert other.summary(name).title == "Later"
    assert verify(other.of(None)).problems == []


def test_an_import_starts_no_run(
    journal: Journal, other: Journal, config: Config, tmp_path: Path
) -> None:
    """A message that waits, and an answer that is under way, are at rest after an import."""
    waiting = begin(journal, say("Answer me", ask=True))
    busy = begin(journal, say("And me", ask=True))
    journal.append(busy, [RunStarted([2])], run="r-1")
    journal.append(busy, [ReplyDelta(3, 0, "half")], run="r-1")
    file = export(journal, tmp_path / "all.jsonl", waiting, busy)
    assert counts(import_from(config, other, file)) == (2, 0, 0, 0)
    for name in (waiting, busy):
        assert other.waiting(name) == []
        assert other.head(name).run is None
        assert other.head(name).unanswered == 0
    assert counts(import_from(config, other, file)) == (0, 0, 2, 0)


def test_an_import_allows_nothing(
    journal: Journal, other: Journal, config: Config, tmp_path: Path
) -> None:
    """A file may come from anywhere: its approvals and its mode do not let a tool run here."""
    name = begin(journal, say("Go", ask=True))
    journal.append(name, [RunStarted([2])], run="r-1")
    call = MessageAssistant([ToolCall("c", "shell", "{}")])
    answered = ApprovalAnswered(4, "c", "conversation", pattern="*")
    asked = ApprovalAsked(4, "c", "shell", "{}")
    journal.append(name, [call, asked, answered], run="r-1")
    journal.append(name, [RunFinished("completed")], run="r-1")
    journal.append(name, [ConversationConfigured(mode="edits", project="p-1")])
    journal.append(name, [ConversationRouted("telegram:1", "7")])
    assert len(_folded(journal, name).allowed_rules) == 1
    file = export(journal, tmp_path / "1.jsonl", name)
    assert counts(import_from(config, other, file)) == (1, 0, 0, 0)
    assert list(_folded(other, name).allowed_rules) == []
    choice = other.choice(name)
    assert (choice.mode, choice.project) == ("ask", "")
    last = list(events_after(other, name, 0))
    closed = ConversationRouted("telegram:1", "7", closed=True)
    assert closed in [recorded.event for recorded in last]
    assert verify(other.of(None)).problems == []


def _folded(journal: Journal, name: str) -> Turns:
    turns = Turns()
    for recorded in events_after(journal, name, 0):
        turns.apply(recorded)
    return turns


def test_a_conversation_that_went_on_on_both_sides_is_left_alone(
    journal: Journal, other: Journal, config: Config, tmp_path: Path
) -> None:
    """Two different continuations cannot be one chain: nothing changes, and the reason is told."""
    name = begin(journal, say("one"))
    import_from(config, other, export(journal, tmp_path / "1.jsonl", name))
    other.append(name, [say("here")])
    before = other.head(name)
    journal.append(name, [say("there")])
    done = import_from(config, other, export(journal, tmp_path / "2.jsonl", name))
    assert counts(done) == (0, 0, 0, 1)
    assert "went on differently" in done.reasons[0]
    assert other.head(name) == before


def test_what_was_deleted_here_does_not_come_back(
    journal: Journal, other: Journal, config: Config, tmp_path: Path
) -> None:
    """The person deleted it on purpose."""
    name = begin(journal, say("one"))
    file = export(journal, tmp_path / "1.jsonl", name)
    import_from(config, other, file)
    other.delete(name)
    done = import_from(config, other, file)
    assert (done.deleted, done.new) == (1, 0)


def test_the_conversations_of_another_user_are_refused(
    journal: Journal, other: Journal, config: Config, tmp_path: Path
) -> None:
    """The name of the user is part of the chain."""
    name = begin(journal, say("one"))
    file = export(journal, tmp_path / "1.jsonl", name)
    done = import_from(config, other.of("bob"), file)
    assert counts(done) == (0, 0, 0, 1)
    assert "belongs to the user 'ada'" in done.reasons[0]


def _cut(data: bytes) -> bytes:
    return data[: data.rindex(b'{"type":"end"')]


def _changed_word(data: bytes) -> bytes:
    return data.replace(b"one", b"two")


def _changed_digest(data: bytes) -> bytes:
    place = data.rindex(b'"digest":"') + len(b'"digest":"')
    digit = b"0" if data[place : place + 1] != b"0" else b"1"
    return data[:place] + digit + data[place + 1 :]


def _half_line(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("damage", "is_refused_whole"),
    [
        (_cut, True),
        (_half_line, True),
        (_changed_word, False),
        (_changed_digest, False),
    ],
)
def test_a_damaged_file_stores_nothing(
    journal: Journal,
    other: Journal,
    config: Config,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    is_refused_whole: bool,
) -> None:
    """A file that is cut is refused as a whole; an event that does not fit its digest refuses its conversation."""
    name = begin(journal, say("one"), answer("yes"))
    file = export(journal, tmp_path / "1.jsonl", name)
    file.write_bytes(damage(file.read_bytes()))
    if is_refused_whole:
        with pytest.raises(InvalidInput, match=r"complete|damaged"):
            import_from(config, other, file)
    else:
        assert counts(import_from(config, other, file)) == (0, 0, 0, 1)
    assert other.conversations() == []


def test_a_file_of_a_newer_version_is_refused(
    other: Journal, config: Config, tmp_path: Path
) -> None:
    """The sentence says what to do."""
    file = tmp_path / "new.jsonl"
    file.write_text(
        '{"type":"tenax-export","version":99,"tenax":"9","created_at":"x"}\n'
    )
    with pytest.raises(InvalidInput, match="version 99"):
        import_from(config, other, file)


def test_an_unknown_event_comes_over(
    journal: Journal, other: Journal, config: Config, tmp_path: Path
) -> None:
    """An event of a later version of Tenax is carried as it is."""
    opened = tenax.events.ConversationOpened("ada", "s-new")
    raw = tenax.journal.base.RawEvent("message.hologram", 5, None, b'{"x":1}')
    journal.load("c-new", opened, [raw])
    file = export(journal, tmp_path / "1.jsonl", "c-new")
    assert counts(import_from(config, other, file)) == (1, 0, 0, 0)
    assert other.head("c-new").digest == journal.head("c-new").digest


def test_nothing_else_is_taken_for_an_export(
    other: Journal, config: Config, tmp_path: Path
) -> None:
    """A place without anything to import gets a sentence with the programs that are known."""
    for name, data in (("a.txt", b"hello"), ("b.json", b"{}"), ("c.jsonl", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidInput, match=r"nothing that can be imported|empty"):
            import_from(config, other, tmp_path / name)
    with pytest.raises(InvalidInput, match="There is no file"):
        import_from(config, other, tmp_path / "missing")


def _lines(
    *events: tuple[int, Event | bytes], name: str = "c", authors: tuple[str, ...] = ()
) -> list[Line]:
    """Return a conversation with digests that fit, whatever the events are. Bytes are a bad `memory.recalled`."""
    digest = bytes(32)
    lines: list[Line] = []
    for seq, event in events:
        if isinstance(event, Event):
            kind, body = event.kind, encode(event)
        else:
            kind, body = "memory.recalled", event
        salt = b"salt" * 4
        digest = chain(digest, name, seq, kind, 1, None, inner_hash(salt, body))
        lines.append(
            EventLine(
                seq, kind, 1, body=body.decode(), salt=salt.hex(), digest=digest.hex()
            )
        )
    seq = events[-1][0]
    return [Conversation(name, "ada", seq, seq, digest.hex(), authors), *lines]


def _write(file: Path, lines: list[Line]) -> Path:
    counts = Counter(map(type, lines))
    end = End(counts[Conversation], counts[EventLine])
    whole = [Header(VERSION, "1", "2026-01-01T00:00:00Z"), *lines, end]
    file.write_bytes(b"".join(map(encode_line, whole)))
    return file


def _change(line: Line, **changes: str | None) -> Line:
    return msgspec.structs.replace(line, **changes)


def _erase(line: Line) -> Line:
    assert isinstance(line, EventLine)
    return _change(line, body=None, salt=None, inner=line.inner_hash().hex())


OPENED = (1, ConversationOpened("ada", "s_1"))
HELLO = (2, say("Hello"))
FORGED = {
    "a seq of more than 32 bits": _lines(OPENED, (2**32 + 2, say("Hi"))),
    "a seq of more than 64 bits": _lines(OPENED, (2**64, say("Hi"))),
    "a seq twice": _lines(OPENED, HELLO, HELLO),
    "a gap": _lines(OPENED, (9, say("Hi"))),
    "authors who wrote nothing": _lines(OPENED, authors=("eve",)),
    "an erasure that erased nothing": _lines(
        OPENED, HELLO, (3, ContentErased([2], "ada"))
    ),
    "an erased event without an erasure": [
        *_lines(OPENED, HELLO)[:2],
        _erase(_lines(OPENED, HELLO)[2]),
    ],
    "an append id that is none": [
        _lines(OPENED)[0],
        _change(_lines(OPENED)[1], append="00"),
    ],
    "the name of a segment twice": _lines(
        OPENED,
        HELLO,
        (3, ContextCompacted("s_1", "s_2", 2, 2, 2)),
        (4, ContextCompacted("s_2", "s_1", 2, 2, 2)),
    ),
    "a segment of another conversation": _lines((1, ConversationOpened("ada", "s_b"))),
    "an event that cannot be read": _lines(OPENED, (2, b"7")),
    "a cost beyond all sums": _lines(
        OPENED, (2, MessageAssistant([], usage=Usage(1, 1, cost=1e308)))
    ),
    "negative tokens": _lines(OPENED, (2, ModelUsed("title", "m", Usage(-5)))),
    "an attachment that is nowhere": _lines(
        OPENED, (2, MessageUser([File("0" * 64, "text/plain", "a.txt")]))
    ),
    "an author with a strange name": _lines(OPENED, HELLO, authors=("e\0ve",)),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_conversation_is_left_out(
    other: Journal, config: Config, tmp_path: Path, forged: list[Line]
) -> None:
    """Its digests fit, and no Tenax would have stored it. The other conversations come in, and none here changes."""
    for name in "ab":
        other.append(name, [ConversationOpened("ada", f"s_{name}"), say("Mine")])
    before = [other.head(name) for name in "ab"]
    fine = _lines((1, ConversationOpened("ada", "s_3")), HELLO, name="fine")
    file = _write(tmp_path / "forged.jsonl", [*forged, *fine])
    assert counts(import_from(config, other, file)) == (1, 0, 0, 1)
    assert [other.head(name) for name in "ab"] == before
    assert verify(other.of(None)).problems == []
