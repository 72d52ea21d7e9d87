"""The data export of Claude.ai becomes drafts: content in order, tool calls, reasoning and the text of attachments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tenax.importers.claude_ai import open_source
from tenax.parts import Reasoning, Text, ToolCall
from tests.support.importing import (
    FIXTURES,
    files_of,
    path_of,
    read_damaged,
    read_found,
    read_source,
    said,
)

OLD = FIXTURES / "claude_ai" / "2024"
NEW = FIXTURES / "claude_ai" / "2026"
CHAT = "22222222-2222-4222-8222-000000000001"


def test_older_shape_with_text_only() -> None:
    """Messages with only `text` are read. The text of a document becomes a text file, other files keep their name."""
    found = read_found(open_source, OLD)
    [draft] = found.drafts.values()
    assert draft.at == 1_709_287_200_123_456
    assert said(path_of(draft)) == [("user", 'Summarise this „Ünïcode" 🐈'), ("assistant", "Yes.")]  # fmt: skip
    assert files_of(draft.nodes[0]) == [
        ("report.pdf.txt", b"The report says yes."),
        ("pasted.txt", b"pasted words"),
        ("photo.jpg", None),
    ]
    assert [(one.title, one.why) for one in found.skipped] == [("Broken", "its messages are not a JSON array")]  # fmt: skip
    assert found.left_out == {"conversation without messages": 1}


def test_content_with_tools_and_reasoning() -> None:
    """Reasoning, calls and results keep their order, and results follow the calls."""
    draft = read_found(open_source, NEW).drafts[CHAT]
    assert draft.pinned
    path = path_of(draft)
    assert [node.id for node in path] == ["m-1", "m-2", "m-2:1", "m-2:2", "m-2:3", "m-3", "m-4", "m-4:1", "m-4:2"]  # fmt: skip
    assert path[1].parts == (
        Reasoning("I need the weather.", seconds=3.5),
        Text("Let me look."),
        ToolCall("toolu_1", "web_search", '{"query": "weather"}'),
        ToolCall("toolu_2", "clock", "{}"),
    )
    assert [(node.call, node.outcome) for node in path[2:4]] == [("toolu_1", "done"), ("toolu_2", "failed")]  # fmt: skip
    assert said(path)[4] == ("assistant", "It rains.")


def test_calls_without_ids() -> None:
    """A result without an id belongs to the call of its name."""
    path = path_of(read_found(open_source, NEW).drafts[CHAT])
    [call] = path[6].parts
    assert isinstance(call, ToolCall)
    assert (path[7].call, path[7].name) == (call.id, "artifacts")


def test_versions_keep_their_shape() -> None:
    """An edited message is another branch of the same answer."""
    draft = read_found(open_source, NEW).drafts[CHAT]
    assert [node.id for node in draft.nodes if node.parent == "m-2:3"] == ["m-3", "m-5"]
    assert draft.current == "m-4:2"


def test_other_files_are_listed() -> None:
    """Projects and the account are not taken, and the list says so."""
    assert read_found(open_source, NEW).left_out == {
        "projects (projects.json)": 1,
        "account (users.json)": 1,
        "unknown content (token_budget)": 1,
    }


def test_file_in_the_zip(tmp_path: Path) -> None:
    """A file whose path has its id is read."""
    folder = tmp_path / "export"
    shutil.copytree(NEW, folder)
    (folder / "files").mkdir()
    name = "33333333-3333-4333-8333-000000000001.txt"
    (folder / "files" / name).write_text("a map")
    archive = shutil.make_archive(str(tmp_path / "export"), "zip", folder)
    draft = read_found(open_source, Path(archive)).drafts[CHAT]
    assert files_of(draft.nodes[0]) == [("map.txt", b"a map")]


def test_empty_export(tmp_path: Path) -> None:
    """The export of an account without conversations has none."""
    (tmp_path / "conversations.json").write_text("[]")
    assert read_source(open_source, tmp_path) is None
    (tmp_path / "users.json").write_text("[]")
    assert read_found(open_source, tmp_path).drafts == {}


@pytest.mark.parametrize("other", ["chatgpt/2024", "open_webui/export.json", "librechat"])  # fmt: skip
def test_other_formats(other: str) -> None:
    """Exports of other programs are not recognised."""
    assert read_source(open_source, FIXTURES / other) is None


@pytest.mark.parametrize("folder", [OLD, NEW])
def test_damaged_files(tmp_path: Path, folder: Path) -> None:
    """A damaged file gives conversations, reasons or a sentence, and never another error."""
    file = folder / "conversations.json"
    assert read_damaged(open_source, file, tmp_path, 150)["read"] > 50
