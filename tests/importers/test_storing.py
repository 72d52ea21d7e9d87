"""Imported conversations: kept as they were, stored once, and continued by a later import."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenax
from tenax.config import load
from tenax.errors import InvalidInput
from tenax.events import (
    ConversationOpened,
    MessageAssistant,
    MessageTool,
    MessageUser,
    RunFinished,
    RunStarted,
    SegmentEnded,
    ToolFinished,
)
from tenax.importers import storing
from tenax.importers.draft import Attached, Draft, Node
from tenax.importers.service import Imported, import_from
from tenax.importers.storing import Importer
from tenax.journal import Journal
from tenax.journal.base import Head, Reader, Recorded
from tenax.journal.journal import events_after
from tenax.journal.verify.store import verify
from tenax.parts import File, Image, Reasoning, Text, ToolCall, ToolResult, text_of
from tenax.runtime.versions import list_versions
from tenax.views.context import Context
from tenax.views.transcript import Transcript

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
PICTURE = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0" + b"\0" * 40
)


@pytest.fixture
def journal(store_url: str) -> Iterator[Journal]:
    with tenax.open(store_url, user="ada") as journal:
        yield journal


def user(name: str, text: str, parent: str | None, at: int = 0) -> Node:
    return Node(
        id=name, parent=parent, role="user", parts=(Text(text),), at=START + at * SECOND
    )


def answer(name: str, text: str, parent: str | None, at: int = 0) -> Node:
    return Node(
        id=name,
        parent=parent,
        role="assistant",
        parts=(Text(text),),
        at=START + at * SECOND,
        model="gpt-4o",
    )


def talk(*nodes: Node, current: str | None = None, name: str = "t-1") -> Draft:
    return Draft(id=name, nodes=nodes, current=current, title="A talk", at=START)


HELLO = (user("1", "Hello", None, 1), answer("2", "Hi!", "1", 2))


def store(journal: Journal, draft: Draft, *, dry_run: bool = False) -> list[str]:
    found = Importer(journal, "chatgpt", dry_run=dry_run).store(draft)
    return [one.outcome for one in found]


def only(journal: Journal) -> str:
    [summary] = journal.conversations()
    return summary.conversation


def events(journal: Journal, name: str) -> list[Recorded]:
    return list(events_after(journal, name, 0))


def shown(journal: Journal, name: str) -> list[tuple[str, str]]:
    """Return the rows of the transcript: kind and text."""
    transcript = Transcript()
    for recorded in events(journal, name):
        transcript.apply(recorded)
    return [(row.kind, row.text) for row in transcript.rows]


def seen_by_model(journal: Journal, name: str) -> list[tuple[str, str]]:
    context = Context()
    for recorded in events(journal, name):
        context.apply(recorded)
    return [(message.role, text_of(message.parts)) for message in context.request()]


def clean_store(journal: Journal) -> bool:
    return verify(journal.of(None)).ok


def test_times_ids_and_models_are_kept(journal: Journal) -> None:
    """A message keeps its time and its id, and the conversation its place in the list."""
    assert store(journal, talk(*HELLO)) == ["new"]
    [summary] = journal.conversations()
    assert (summary.title, summary.source, summary.messages) == ("A talk", "chatgpt", 2)
    assert summary.opened_at == START
    assert summary.updated_at == START + 2 * SECOND
    found = events(journal, summary.conversation)
    question, said = found[-2:]
    assert (question.at, said.at) == (START + SECOND, START + 2 * SECOND)
    assert isinstance(question.event, MessageUser)
    assert isinstance(said.event, MessageAssistant)
    assert question.event.extra == {"import": {"id": "1"}}
    assert not question.event.ask
    assert said.event.model == "gpt-4o"
    opened = found[0].event
    assert isinstance(opened, ConversationOpened)
    assert opened.extra == {"import": {"kind": "chatgpt", "id": "t-1"}}
    assert clean_store(journal)


def test_a_second_import_adds_nothing(journal: Journal) -> None:
    """The same source again changes no conversation."""
    store(journal, talk(*HELLO))
    before = journal.head(only(journal))
    assert store(journal, talk(*HELLO)) == ["unchanged"]
    assert journal.head(only(journal)) == before


def test_a_grown_conversation_gets_the_new_messages(journal: Journal) -> None:
    """A later export continues the conversation, also after its title changed here."""
    store(journal, talk(*HELLO))
    name = only(journal)
    journal.append(name, [tenax.events.ConversationTitled("Mine")])
    longer = talk(*HELLO, user("3", "More?", "2", 3), answer("4", "Yes.", "3", 4))
    assert store(journal, longer, dry_run=True) == ["grown"]
    assert store(journal, longer) == ["grown"]
    assert store(journal, longer) == ["unchanged"]
    assert [text for _, text in shown(journal, name)] == [
        "Hello",
        "Hi!",
        "More?",
        "Yes.",
    ]
    assert events(journal, name)[-1].at == START + 4 * SECOND
    assert journal.summary(name).title == "Mine"
    assert clean_store(journal)


def test_a_conversation_that_went_on_here_is_left_alone(journal: Journal) -> None:
    """If a person wrote here and the source grew too, the source is stored beside, once."""
    store(journal, talk(*HELLO))
    name = only(journal)
    journal.append(name, [MessageUser([Text("I go on here.")])])
    assert store(journal, talk(*HELLO)) == ["unchanged"]
    longer = talk(*HELLO, user("3", "I went on there.", "2", 3))
    assert store(journal, longer) == ["beside"]
    assert store(journal, longer) == ["unchanged"]
    assert [text for _, text in shown(journal, name)][-1] == "I go on here."
    assert len(journal.conversations()) == 2
    assert clean_store(journal)


def test_a_deleted_conversation_does_not_come_back(journal: Journal) -> None:
    """What a person deleted here stays deleted."""
    store(journal, talk(*HELLO))
    journal.delete(only(journal))
    assert store(journal, talk(*HELLO)) == ["deleted"]
    assert journal.conversations() == []


def test_erased_text_does_not_come_back(journal: Journal) -> None:
    """A second import leaves an erased message erased, and still finds the rest."""
    store(journal, talk(*HELLO))
    name = only(journal)
    [question] = [
        one.seq for one in events(journal, name) if one.kind == "message.user"
    ]
    journal.erase(name, [question], by="ada")
    assert store(journal, talk(*HELLO)) == ["unchanged"]
    assert store(journal, talk(*HELLO, user("3", "More", "2", 3))) == ["grown"]
    assert "Hello" not in [text for _, text in shown(journal, name)]


def test_a_dry_run_stores_nothing(journal: Journal) -> None:
    """A dry run tells the same as the import, and the store stays as it was."""
    assert store(journal, talk(*HELLO), dry_run=True) == ["new"]
    assert journal.conversations() == []


def test_tool_calls_stay_tool_calls(journal: Journal) -> None:
    """A call, its arguments and its result belong together, for people and for a model."""
    call = ToolCall("c1", "search", '{"q": "cats"}')
    nodes = (
        user("1", "Find cats", None),
        Node(id="2", parent="1", role="assistant", parts=(Reasoning("Hm."), call)),
        Node(
            id="3",
            parent="2",
            role="tool",
            call="c1",
            name="search",
            parts=(Text("3 cats"),),
        ),
        Node(
            id="4",
            parent="3",
            role="tool",
            call="lost",
            name="shell",
            parts=(Text("x"),),
        ),
        answer("5", "There are 3.", "4"),
    )
    store(journal, talk(*nodes))
    name = only(journal)
    assert ("tool", "3 cats") in shown(journal, name)
    assert ("results", "3 cats") in seen_by_model(journal, name)
    kept = [one.event for one in events(journal, name) if one.kind == "message.tool"]
    assert kept[0].parts == [ToolResult("lost", "x", "shell")]  # type: ignore[union-attr]
    assert clean_store(journal)


def test_a_result_belongs_to_no_call_of_another_branch(journal: Journal) -> None:
    """Answers of two branches have calls with the same id, and a third branch has a result without its answer."""

    def call(name: str, parent: str) -> Node:
        parts = (ToolCall("c", "time", "{}"),)
        return Node(id=name, parent=parent, role="assistant", parts=parts)

    def result(name: str, parent: str) -> Node:
        parts = (Text(f"Result {name}"),)
        return Node(id=name, parent=parent, role="tool", parts=parts, call="c")

    nodes = [user("1", "Hello", None)]
    for one in "ab":
        nodes += (user(one, one, "1"), call(f"{one}1", one))
        nodes.append(result(f"{one}2", f"{one}1"))
    store(journal, talk(*nodes, user("c", "c", "1"), result("c2", "c")))
    found = events(journal, only(journal))
    called = [one.seq for one in found if isinstance(one.event, MessageAssistant)]
    results = [one.event for one in found if isinstance(one.event, ToolFinished)]
    assert [one.message for one in results] == called
    assert isinstance(found[-1].event, MessageTool)
    assert clean_store(journal)


def test_versions_become_versions(journal: Journal) -> None:
    """An edited question and a regenerated answer can be switched to, and the shown path stays the shown one."""
    nodes = (
        user("1", "Hello", None),
        answer("2a", "First answer", "1"),
        answer("2b", "Second answer", "1"),
        user("3", "Thanks", "2b"),
        user("1x", "Hello there", None),
        answer("2x", "Answer to the edit", "1x"),
    )
    assert store(journal, talk(*nodes, current="3")) == ["new"]
    name = only(journal)
    assert [text for _, text in shown(journal, name)] == [
        "Hello",
        "Second answer",
        "Thanks",
    ]
    edits = [one for one in events(journal, name) if one.kind == "conversation.rewound"]
    assert [len(group.seqs) for group in list_versions(edits)] == [3]
    assert clean_store(journal)


def test_branches_without_a_common_message_become_conversations(
    journal: Journal,
) -> None:
    """Two first answers without a question cannot be versions: the other one is a conversation of its own."""
    nodes = (
        answer("a", "One start", None),
        answer("b", "Another start", None),
        user("c", "Go", "b"),
    )
    assert store(journal, talk(*nodes, current="c")) == ["new", "new"]
    assert store(journal, talk(*nodes, current="c")) == ["unchanged", "unchanged"]
    found = {
        tuple(text for _, text in shown(journal, one.conversation))
        for one in journal.conversations()
    }
    assert found == {("Another start", "Go"), ("One start",)}


def test_a_compaction_stays_a_compaction(journal: Journal) -> None:
    """After a summary the model sees the summary, and a person still sees everything."""
    nodes = (
        *HELLO,
        Node(id="s", parent="2", role="summary", parts=(Text("They said hello."),)),
        user("3", "Go on", "s"),
        answer("4a", "One", "3"),
        answer("4b", "Two", "3"),
    )
    store(journal, talk(*nodes))
    name = only(journal)
    assert [text for _, text in shown(journal, name)][:2] == ["Hello", "Hi!"]
    assert journal.head(name).segment != journal.summary(name).conversation
    segment = journal.segment(str(journal.head(name).segment))
    assert segment is not None
    assert segment.parent is not None
    texts = [text for _, text in seen_by_model(journal, name)]
    assert texts[-2:] == ["Go on", "Two"]
    assert clean_store(journal)


def test_a_compaction_keeps_the_messages_after_its_cut(journal: Journal) -> None:
    """A summary that keeps messages word for word covers only what comes before them."""
    summary = Node(
        id="s",
        parent="4",
        role="summary",
        parts=(Text("They said hello."),),
        extra={"kept_from": "3"},
    )
    kept = (user("3", "Kept question", "2"), answer("4", "Kept answer", "3"))
    nodes = (*HELLO, *kept, summary, user("5", "Go on", "s"))
    store(journal, talk(*nodes))
    texts = [text for _, text in seen_by_model(journal, only(journal))]
    assert texts[-3:] == ["Kept question", "Kept answer", "Go on"]
    assert "Hi!" not in texts
    assert clean_store(journal)


def test_files_are_kept_and_missing_files_are_named(journal: Journal) -> None:
    """A picture is shown, another file is kept, and a missing one leaves its name."""
    files = (
        Attached("cat.png", lambda: PICTURE),
        Attached("data.bin", lambda: b"\0\1\2"),
        Attached("lost.pdf", lambda: None),
    )
    node = Node(id="1", parent=None, role="user", parts=(Text("Look"), *files))
    assert store(journal, talk(node)) == ["new"]
    assert store(journal, talk(node)) == ["unchanged"]
    found = events(journal, only(journal))[-1].event
    assert isinstance(found, MessageUser)
    _, picture, binary, missing = found.parts
    assert isinstance(picture, Image)
    assert isinstance(binary, File)
    assert journal.get_blob(picture.blob) == PICTURE
    assert journal.get_blob(binary.blob) == b"\0\1\2"
    assert isinstance(missing, File)
    assert missing.name == "lost.pdf"
    assert journal.get_blob(missing.blob) == b"(This file was not in the import.)"


def test_a_text_of_any_length_is_kept(journal: Journal) -> None:
    """A text that is too long for an event becomes a file, and the result of a tool is cut and kept whole."""
    long = "word " * 300_000
    nodes = (
        user("1", long, None),
        Node(id="2", parent="1", role="assistant", parts=(ToolCall("c", "cat", "{}"),)),
        Node(
            id="3", parent="2", role="tool", call="c", name="cat", parts=(Text(long),)
        ),
    )
    store(journal, talk(*nodes))
    assert store(journal, talk(*nodes)) == ["unchanged"]
    whole = hashlib.sha256(long.encode()).hexdigest()
    assert journal.get_blob(whole) == long.encode()
    assert len(journal.naming(only(journal), whole)) == 2


def test_invalid_characters_are_replaced(journal: Journal) -> None:
    """NUL and half surrogate pairs do not stop an import."""
    node = Node(
        id="1\0",
        parent=None,
        role="user",
        parts=(Text("a\0b\ud800"),),
        extra={"k\0": ["\udc00", 1 << 70, float("nan")]},
    )
    draft = msgspec.structs.replace(talk(node), title="T\0\nitle", id="x\ud800")
    assert store(journal, draft) == ["new"]
    assert store(journal, draft) == ["unchanged"]
    assert clean_store(journal)


def test_an_empty_conversation_is_archived(journal: Journal) -> None:
    """A conversation without messages does not fill the list."""
    assert store(journal, talk()) == ["new"]
    assert journal.conversations() == []
    assert len(journal.conversations(archived=True)) == 1


def test_memory_follows_only_if_asked(journal: Journal) -> None:
    """Readers of turns from now on get an import only with `remember`."""
    reader = Reader("memory:test", "turns", "now")
    journal.behind(reader)
    store(journal, talk(*HELLO))
    assert journal.behind(reader) == []
    Importer(journal, "chatgpt", remember=True).store(talk(*HELLO, name="t-2"))
    [behind] = journal.behind(reader)
    found = events(journal, behind.conversation)
    assert isinstance(found[-1].event, RunFinished)
    assert journal.head(behind.conversation).unanswered == 0
    assert clean_store(journal)


@pytest.mark.parametrize("before", [True, False])
def test_memory_follows_what_grows(journal: Journal, before: bool) -> None:
    """A later import with `remember` adds further turns, and answers to the same question."""
    Importer(journal, "chatgpt", remember=before).store(talk(*HELLO))
    more = answer("3", "How are you?", "2", 3)
    more_later = (user("4", "Fine", "3", 4), answer("5", "Good", "4", 5))
    nodes: tuple[Node, ...] = HELLO
    for new in [(more,), more_later[:1], more_later[1:]]:
        nodes += new
        importer = Importer(journal, "chatgpt", remember=True)
        assert [one.outcome for one in importer.store(talk(*nodes))] == ["grown"]
        assert journal.head(only(journal)).run is None
    reader = Reader("memory:test", "turns", "beginning")
    assert journal.behind(reader) != []
    texts = [text for _, text in shown(journal, only(journal))]
    assert texts == ["Hello", "Hi!", "How are you?", "Fine", "Good"]
    assert isinstance(events(journal, only(journal))[-1].event, RunFinished)
    assert clean_store(journal)


def test_several_turns_of_a_later_import_leave_no_question(journal: Journal) -> None:
    """A later import with `remember` adds two turns at once, and no message waits for an answer afterwards."""
    importer = Importer(journal, "chatgpt", remember=True)
    importer.store(talk(*HELLO))
    turns = (user("3", "And?", "2"), answer("4", "Yes", "3"), user("5", "So?", "4"))
    importer.store(talk(*HELLO, *turns, answer("6", "No", "5")))
    assert journal.head(only(journal)).unanswered == 0
    assert journal.waiting(only(journal)) == []
    assert clean_store(journal)


def test_an_unanswered_question_starts_no_run(journal: Journal) -> None:
    """A question without an answer waits for nobody, with `remember` too."""
    Importer(journal, "chatgpt", remember=True).store(
        talk(*HELLO, user("3", "And?", "2"))
    )
    assert journal.head(only(journal)).unanswered == 0
    assert journal.waiting(only(journal)) == []


def test_any_tree_is_stored(journal: Journal) -> None:
    """Random trees, with cycles, unknown parents and equal ids, end in a valid store, and a second import adds nothing."""
    for seed in range(30):
        chance = random.Random(seed)
        draft = _random_draft(chance, f"tree-{seed}")
        first = store(journal, draft)
        assert set(first) <= {"new"}, seed
        assert set(store(journal, draft)) == {"unchanged"}, seed
    assert clean_store(journal)


def _random_draft(chance: random.Random, name: str) -> Draft:
    ids = [str(number) for number in range(chance.randrange(1, 14))]
    roles = ["user", "user", "assistant", "assistant", "tool", "system", "summary", ""]
    nodes = []
    for number, one in enumerate(ids):
        parent = chance.choice([None, "unknown", *ids[max(0, number - 3) : number + 2]])
        role = chance.choice(roles)
        parts: tuple[Text | ToolCall, ...] = (Text(f"text {one}"),)
        if role == "assistant" and chance.random() < 0.5:
            parts = (*parts, ToolCall(f"call-{one}", "tool", "{}"))
        call = f"call-{chance.choice(ids)}"
        nodes.append(
            Node(
                id=chance.choice([one, one, one, "0"]),
                parent=parent,
                role=role,  # type: ignore[arg-type]
                parts=parts,
                call=call,
            )
        )
    return Draft(id=name, nodes=tuple(nodes), current=chance.choice([None, *ids]))


def test_every_message_of_any_tree_is_kept(journal: Journal) -> None:
    """No message of a tree is lost: every text is in an event."""
    for seed in range(100, 120):
        draft = _random_draft(random.Random(seed), f"tree-{seed}")
        found = Importer(journal, "chatgpt").store(draft)
        kept = {
            text
            for one in found
            for recorded in events(journal, one.conversation)
            for text in _texts(recorded)
        }
        wanted: dict[str, Node] = {}
        for node in draft.nodes:
            wanted.setdefault(node.id, node)
        for node in wanted.values():
            if node.role:
                assert (
                    text_of([p for p in node.parts if isinstance(p, Text)]) in kept
                ), seed


def _texts(recorded: Recorded) -> list[str]:
    event = recorded.event
    if recorded.kind == "tool.finished":
        return [event.text]  # type: ignore[union-attr]
    return [text_of(getattr(event, "parts", []))]


def test_two_programs_with_the_same_id_do_not_mix(journal: Journal) -> None:
    """The id of a conversation belongs to its program."""
    store(journal, talk(*HELLO))
    Importer(journal, "librechat").store(talk(*HELLO))
    assert len(journal.conversations()) == 2


def test_a_conversation_that_takes_nothing_stops_no_import(
    journal: Journal, tmp_path: Path
) -> None:
    """One conversation was ended here, one is being answered, and the third one gets its new message."""
    export = tmp_path / "claude.json"
    config = load({"TENAX_HOME": str(tmp_path)})

    def import_talks(count: int) -> Imported:
        talks = [_claude_talk(name, count) for name in "abc"]
        export.write_text(json.dumps(talks))
        return import_from(config, journal, export)

    ended, asked, last = import_talks(1).conversations
    journal.append(ended, [SegmentEnded(journal.head(ended).segment or "", "done")])
    journal.append(asked, [RunStarted([])], run="r-1")
    done = import_talks(2)
    assert (done.grown, done.skipped) == (1, 2)
    assert [journal.head(name).messages for name in (ended, asked, last)] == [1, 1, 2]
    assert clean_store(journal)


def _claude_talk(name: str, count: int) -> dict[str, object]:
    at = "2026-01-01T00:00:00Z"
    messages = [
        {"uuid": f"{name}{n}", "sender": "human", "text": f"Message {n}", "content": [], "created_at": at}
        for n in range(count)
    ]  # fmt: skip
    return {"uuid": name, "name": name, "created_at": at, "chat_messages": messages}


def test_a_long_import_rests_between_turns(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction of a long conversation ends in a run, or leaves a message that a server would answer."""
    monkeypatch.setattr(storing, "_ENTRIES_AT_ONCE", 3)
    extend = journal.extend
    heads: list[Head] = []

    def note(name: str, *args: Any, **kwargs: Any) -> list[Recorded]:
        heads.append(journal.head(name))
        return extend(name, *args, **kwargs)

    monkeypatch.setattr(journal, "extend", note)
    nodes: list[Node] = []
    for turn in range(5):
        parent = nodes[-1].id if nodes else None
        nodes.append(user(f"q{turn}", "Why?", parent))
        for number in range(turn):
            nodes.append(answer(f"a{turn}{number}", "So.", nodes[-1].id))
    importer = Importer(journal, "chatgpt", remember=True)
    importer.store(talk(*nodes[:3]))
    importer.store(talk(*nodes))
    importer.store(talk(*nodes, name="t-2"))
    assert len(heads) > 4
    assert {(head.run, head.unanswered) for head in heads} == {(None, 0)}


def test_too_many_versions_are_refused(journal: Journal) -> None:
    """A source that never stays the same is refused with a sentence."""
    importer = Importer(journal, "chatgpt")
    for number in range(19):
        importer.store(talk(user("1", f"Version {number}", None)))
    with pytest.raises(InvalidInput, match="different versions"):
        importer.store(talk(user("1", "One more", None)))
