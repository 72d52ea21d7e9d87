"""Exports of a conversation: everything in order, in every format of its transcript, and harmless to open."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pytest

from tenax.errors import InvalidInput
from tenax.events import (
    ConversationArchived,
    ConversationRewound,
    ConversationTitled,
    Event,
    MessageAssistant,
    MessageSystem,
    MessageTool,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolStarted,
)
from tenax.export import (
    Format,
    export_conversation,
    export_several,
    file_name,
    parse_format,
    read_exported,
)
from tenax.export.selection import Selection, parse_time, select
from tenax.journal import Journal
from tenax.parts import File, Image, Reasoning, Text, ToolCall, ToolResult
from tenax.testing import memory
from tests.contract.engine.base import answer, begin, say
from tests.support.files import png

URL = "memory:"
OF_ROWS: tuple[Format, ...] = ("markdown", "json", "html", "openai")
ZIPPED: tuple[Format, ...] = ("markdown", "json", "html")
HOSTILE = "<script>alert(1)</script> ![x](http://evil.invalid/p.png) [y](javascript:alert(1)) <img src=x>"


@pytest.fixture
def journal() -> Iterator[Journal]:
    with memory() as journal:
        yield journal


def exported(journal: Journal, conversation: str, kind: Format) -> str:
    found = read_exported(journal, conversation)
    return b"".join(export_conversation(journal, URL, found, kind)).decode()


def chat(journal: Journal, conversation: str) -> list[dict[str, Any]]:
    """The messages of a conversation in OpenAI's format."""
    (line,) = exported(journal, conversation, "openai").splitlines()
    found: dict[str, list[dict[str, Any]]] = msgspec.json.decode(line)
    assert list(found) == ["messages"]
    return found["messages"]


def several(journal: Journal, kind: Format) -> Iterator[bytes]:
    return export_several(journal, URL, select(journal, Selection()), kind)


def turn(journal: Journal, conversation: str) -> None:
    """A turn with reasoning, a tool call, its result, and an answer with everything hostile."""
    picture = journal.put_blob(png())
    text = journal.put_blob(b"attached")
    parts: list[Any] = [
        Text(f"Look at this\n{HOSTILE}"),
        Image(picture, "image/png", "a.png"),
        File(text, "text/plain", "note\u202e.txt", 8),
    ]

    def add(event: Event, run: str | None = "r-1") -> int:
        return journal.append(conversation, [event], run=run)[0].seq

    asked = add(MessageUser(parts, ask=True), None)
    add(RunStarted([asked]))
    request = add(ModelRequested(asked, "", "model-x", 1.0, [asked]))
    call = ToolCall("c1", "read_file", '{"path": "a```b"}')
    words = Text(f"# An answer\n{HOSTILE}")
    answer = add(MessageAssistant([Reasoning("Let me think."), words, call], request))
    add(ToolStarted(answer, "c1", "read_file", "pure", 1.0))
    add(ToolFinished(answer, "c1", "done", "```\n</pre><script>"))
    add(RunFinished("completed"))


def test_a_long_conversation_is_exported_whole_and_in_order(journal: Journal) -> None:
    """Pages are read from the end; the export begins at the beginning, and has every message once."""
    words = [f"word-{number}." for number in range(1001)]
    name = begin(journal, *(say(word) for word in words))
    for kind in OF_ROWS:
        found = re.findall(r"word-\d+\.", exported(journal, name, kind))
        assert [word for word in found if word != words[0]] == words[1:]
        assert found.count(words[0]) >= 1


def test_json_holds_all_rows_and_the_description(journal: Journal) -> None:
    name = begin(journal, ConversationTitled("A title"), say("First"))
    found = msgspec.json.decode(exported(journal, name, "json"))
    assert (found["format"], found["version"]) == ("tenax-conversation", 1)
    described = found["conversation"]
    assert (described["id"], described["title"], described["messages"]) == (
        name,
        "A title",
        1,
    )
    (row,) = found["rows"]
    assert (row["kind"], row["text"], row["key"]) == ("user", "First", [3, 0, 0])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", row["at"])


def test_what_is_written_later_is_not_in_an_export_that_has_begun(
    journal: Journal,
) -> None:
    name = begin(journal, say("Before"))
    found = read_exported(journal, name)
    pieces = export_conversation(journal, URL, found, "json")
    journal.append(name, [say("Later")])
    rows = msgspec.json.decode(b"".join(pieces))["rows"]
    assert [row["text"] for row in rows] == ["Before"]


def test_a_turn_is_readable_and_does_nothing(journal: Journal) -> None:
    """No script, no tag and no picture from elsewhere comes through; fences are longer than the text needs."""
    name = begin(journal)
    turn(journal, name)
    page = exported(journal, name, "html")
    assert "Content-Security-Policy" in page
    for bad in ("<script", "<img src=x", 'href="javascript', 'src="http'):
        assert bad not in page
    assert page.count("<img ") == 1
    assert 'src="data:image/png;base64,' in page
    assert "<h1>An answer</h1>" in page
    assert "Let me think." in page
    assert "\u202e" not in page
    text = exported(journal, name, "markdown")
    assert "- Attachment: a.png (image/png)" in text
    assert "````\n```\n</pre><script>\n````" in text
    assert "**read\\_file** (done)" in text
    assert "> Let me think." in text
    rows = msgspec.json.decode(exported(journal, name, "json"))["rows"]
    assert [row["kind"] for row in rows] == ["user", "assistant", "tool"]
    assert rows[2]["arguments"] == '{"path": "a```b"}'


@pytest.mark.parametrize("kind", ZIPPED)
def test_all_conversations_are_a_zip_with_attachments_and_an_index(
    journal: Journal, kind: Format
) -> None:
    """Two conversations with one title have two files; a title cannot name a path."""
    for _ in range(2):
        begin(journal, ConversationTitled("../../etc/<passwd>"), say("Hello"))
    name = begin(journal)
    turn(journal, name)
    archive = zipfile.ZipFile(io.BytesIO(b"".join(several(journal, kind))))
    assert archive.testzip() is None
    names = archive.namelist()
    assert len(names) == len(set(names)) == 3 + 2 + 1
    assert all(".." not in found and not found.startswith("/") for found in names)
    ending = {"markdown": "md", "json": "json", "html": "html"}[kind]
    talks = [found for found in names if found.startswith("conversations/")]
    assert sum("etc passwd" in found for found in talks) == 2
    assert f"index.{ending}" in names
    index = archive.read(f"index.{ending}").decode()
    assert "passwd" in index
    attached = [found for found in names if found.startswith("attachments/")]
    assert {archive.read(found) for found in attached} == {png(), b"attached"}


def test_a_conversation_that_is_deleted_meanwhile_is_left_out(journal: Journal) -> None:
    first = begin(journal, say("One"))
    second = begin(journal, say("Two"))
    pieces = several(journal, "json")
    data = next(pieces)
    journal.delete(first)
    journal.delete(second)
    data += b"".join(pieces)
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    index = msgspec.json.decode(archive.read("index.json"))
    assert len(index["conversations"]) <= 1


def test_messages_for_openai_keep_calls_with_their_results(journal: Journal) -> None:
    """A call is a call, its result has the id of the call, and an attachment is its text or its name."""
    name = begin(journal)
    turn(journal, name)
    user, answer, result = chat(journal, name)
    assert user["role"] == "user"
    assert user["content"].startswith("Look at this")
    assert "[Attachment: a.png (image/png)]" in user["content"]
    assert user["content"].endswith("(text/plain)]\nattached")
    assert answer["role"] == "assistant"
    assert answer["content"].startswith("# An answer")
    function = {"name": "read_file", "arguments": '{"path": "a```b"}'}
    assert answer["tool_calls"] == [
        {"id": "c1", "type": "function", "function": function}
    ]
    assert result["role"] == "tool"
    assert result["tool_call_id"] == "c1"
    assert result["content"] == "```\n</pre><script>"


def test_messages_for_openai_keep_results_that_are_messages(journal: Journal) -> None:
    """As in a conversation from elsewhere. A call without a result gets a sentence, and a result without a call a call."""
    calls = [ToolCall(f"c{n}", "look", "{}") for n in range(3)]
    results = [
        MessageTool([ToolResult(f"c{n}", f"seen {n}", "look")]) for n in range(2)
    ]
    name = begin(
        journal,
        MessageSystem([Text("Be kind.")]),
        say("Look!"),
        MessageAssistant([*calls]),
        *results,
        say("And?"),
        MessageTool([ToolResult("lost", "found", "find")]),
    )
    found = chat(journal, name)
    assert [message["role"] for message in found] == [
        "system",
        "user",
        "assistant",
        *["tool"] * 3,
        "user",
        "assistant",
        "tool",
    ]
    texts = {
        message["tool_call_id"]: message["content"]
        for message in found
        if message["role"] == "tool"
    }
    assert [texts[f"c{n}"] for n in range(3)] == [
        "seen 0",
        "seen 1",
        "[There is no result of this call.]",
    ]
    assert found[2]["content"] is None
    (call,) = found[-2]["tool_calls"]
    assert texts[call["id"]] == "found"


def test_only_standing_messages_are_for_openai(journal: Journal) -> None:
    """An undone message is not there, an erased one has a placeholder, and a conversation without messages has no line."""
    name = begin(journal, say("Secret"), answer("Answer"))
    journal.append(name, [say("Undone")])
    journal.append(name, [ConversationRewound(3)])
    journal.erase(name, [2], by="local")
    assert [message["content"] for message in chat(journal, name)] == [
        "[erased]",
        "Answer",
    ]
    begin(journal)
    begin(journal, say("Other"))
    lines = b"".join(several(journal, "openai")).splitlines()
    assert len(lines) == 2


def test_conversations_are_selected_by_day_and_words(journal: Journal) -> None:
    """The day is the day of the last message; archived conversations count too."""
    early = begin(journal, say("The okapi"))
    late = begin(journal, say("The okapi again"), ConversationArchived(archived=True))
    begin(journal, say("A zebra"))
    found = journal.summary(early).updated_at
    day = 24 * 3600 * 1_000_000
    assert set(select(journal, Selection(words="okapi"))) == {early, late}
    assert len(select(journal, Selection(since=found - day))) == 3
    assert select(journal, Selection(since=found + day)) == []
    assert select(journal, Selection(until=found)) == []
    assert set(select(journal, Selection(until=found + day, words="okapi"))) == {
        early,
        late,
    }


def test_a_day_is_a_day_of_this_place() -> None:
    """`--until` includes its day, and a time is exact."""
    day = parse_time("2026-11-19")
    assert datetime.fromtimestamp(day / 1e6).isoformat() == "2026-11-19T00:00:00"  # noqa: DTZ006  (local on purpose)
    end = parse_time("2026-11-19", end=True)
    assert datetime.fromtimestamp(end / 1e6).isoformat() == "2026-11-20T00:00:00"  # noqa: DTZ006  (local on purpose)
    assert parse_time("2026-11-19T08:00:00Z", end=True) == 1_795_075_200_000_000
    for bad in ("yesterday", "2026-02-30", "9999-12-31", ""):
        with pytest.raises(InvalidInput):
            parse_time(bad, end=True)


def test_a_file_name_is_safe_on_every_system(journal: Journal) -> None:
    name = begin(journal, ConversationTitled('a/b\\c:"d" \u202e|x?* .'))
    found = read_exported(journal, name)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d a b c d x\.html", file_name(found, "html")), (
        file_name(found, "html")
    )
    untitled = read_exported(journal, begin(journal))
    assert file_name(untitled, "markdown").endswith(" Conversation.md")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(Exception, match="There is no format 'pdf'"):
        parse_format("pdf")
