"""Exports of a conversation: everything in order, in three formats, and harmless to open."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tenax.events import (
    ConversationTitled,
    Event,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolStarted,
)
from tenax.export import (
    FORMATS,
    Format,
    export_all,
    export_conversation,
    file_name,
    parse_format,
    read_exported,
)
from tenax.journal import Journal
from tenax.parts import File, Image, Reasoning, Text, ToolCall
from tenax.testing import memory
from tests.contract.engine.base import begin, say
from tests.support.files import png

HOSTILE = "<script>alert(1)</script> ![x](http://evil.invalid/p.png) [y](javascript:alert(1)) <img src=x>"


@pytest.fixture
def journal() -> Iterator[Journal]:
    with memory() as journal:
        yield journal


def exported(journal: Journal, conversation: str, kind: Format) -> str:
    found = read_exported(journal, conversation)
    return b"".join(export_conversation(journal, found, kind)).decode()


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
    for kind in FORMATS:
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
    pieces = export_conversation(journal, found, "json")
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


@pytest.mark.parametrize("kind", FORMATS)
def test_all_conversations_are_a_zip_with_attachments_and_an_index(
    journal: Journal, kind: Format
) -> None:
    """Two conversations with one title have two files; a title cannot name a path."""
    for _ in range(2):
        begin(journal, ConversationTitled("../../etc/<passwd>"), say("Hello"))
    name = begin(journal)
    turn(journal, name)
    archive = zipfile.ZipFile(io.BytesIO(b"".join(export_all(journal, kind))))
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
    pieces = export_all(journal, "json")
    data = next(pieces)
    journal.delete(first)
    journal.delete(second)
    data += b"".join(pieces)
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    index = msgspec.json.decode(archive.read("index.json"))
    assert len(index["conversations"]) <= 1


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
