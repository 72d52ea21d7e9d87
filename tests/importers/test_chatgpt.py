"""The data export of ChatGPT becomes drafts: the tree of messages, tool calls, reasoning and attachments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tenax.errors import InvalidInput
from tenax.importers.chatgpt import open_source
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

OLD = FIXTURES / "chatgpt" / "2024"
NEW = FIXTURES / "chatgpt" / "2026"
PICTURE = (OLD / "file-AbC123-photo.png").read_bytes()


def write(folder: Path, value: object) -> Path:
    path = folder / "export.json"
    path.write_text(json.dumps(value))
    return path


def test_plain_chat_with_versions() -> None:
    """The shown path, the other version, times, title and the archived state are kept."""
    draft = read_found(open_source, OLD).drafts["c-plain"]
    assert (draft.title, draft.at) == ("Grüße 👋 an Köln", 1_700_000_000_250_000)
    assert (draft.archived, draft.pinned) == (True, False)
    path = path_of(draft)
    assert said(path) == [
        ("user", 'Schreib „Grüße" 👋'),
        ("assistant", "Second version"),
        ("user", "Thanks"),
        ("assistant", "You are welcome"),
    ]
    assert [node.at for node in path] == [1_700_000_001_500_000, 1_700_000_003_000_000, None, 1_700_000_005_000_000]  # fmt: skip
    assert path[1].model == "gpt-4o"
    assert path[1].finish == "stop"
    assert "citations" in path[1].extra
    versions = [node.id for node in draft.nodes if node.parent == "u1"]
    assert versions == ["a1", "a2"]


def test_tool_calls_and_results() -> None:
    """Messages to tools become calls, and all messages of a tool become the result of the call."""
    draft = read_found(open_source, OLD).drafts["c-tools"]
    assert draft.title == ""
    path = path_of(draft)
    assert [node.role for node in path] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]  # fmt: skip
    assert path[1].parts == (ToolCall("a1", "python", '{"code": "print(6 * 7)"}'),)
    assert (path[2].call, path[2].name) == ("a1", "python")
    assert path[2].parts[0] == Text("42\n")
    assert path[3].parts == (ToolCall("a2", "browser.search", '{"query": "cats"}'),)
    assert said(path)[4] == ("tool", "# Cats|Cats https://cats.example|Cats sleep.")


def test_attachments() -> None:
    """Attached files are found by their id, and a missing file keeps its name."""
    path = path_of(read_found(open_source, OLD).drafts["c-tools"])
    assert files_of(path[0]) == [("photo.png", PICTURE), ("notes.pdf", None)]
    assert files_of(path[2]) == [("file-Plot77", None)]
    image = path_of(read_found(open_source, NEW).drafts["c-thoughts"])[4]
    assert files_of(image) == [("file_00000000bbbb-sanitized.png", PICTURE)]


def test_what_does_not_fit_is_listed() -> None:
    """A broken conversation is skipped with the reason. Folders and hidden messages are counted."""
    found = read_found(open_source, OLD)
    assert [*found.drafts] == ["c-tools", "c-plain"]
    assert [(one.title, one.why) for one in found.skipped] == [
        ("entry 5", "it is not a JSON object"),
        ("Broken", "its messages are not a JSON object"),
    ]
    assert found.left_out == {
        "entry without messages": 1,
        "hidden message": 1,
        "conversation without messages": 1,
    }


def test_split_export() -> None:
    """The files of a split export are read together, the oldest conversation first."""
    found = read_found(open_source, NEW)
    assert [*found.drafts] == ["c-old", "c-thoughts"]
    draft = found.drafts["c-thoughts"]
    assert draft.pinned
    assert draft.extra == {"gizmo_id": "g-moons"}
    path = path_of(draft)
    assert path[1].parts == (
        Reasoning("Counting moons\n\nPhobos and Deimos."),
        Reasoning("So two."),
        Text("Two."),
    )
    assert path[1].model == "gpt-5-thinking"
    assert said(path)[2] == ("user", "Draw them.")
    assert files_of(path[2]) == [("file_00000000aaaa", None)]
    # The error of a tool that was never called by a message.
    assert [node.outcome for node in path if node.role == "tool"] == ["done", "failed"]
    assert found.left_out["unknown content (hologram)"] == 1


def test_zip_and_single_file(tmp_path: Path) -> None:
    """The zip, a folder inside the zip and the JSON file alone give the same conversations."""
    archive = shutil.make_archive(str(tmp_path / "export"), "zip", OLD)
    inner = shutil.make_archive(str(tmp_path / "inner"), "zip", OLD.parent, "2024")
    for path in (Path(archive), Path(inner), OLD / "conversations.json"):
        found = read_found(open_source, path)
        assert [*found.drafts] == ["c-tools", "c-plain"]
        picture = files_of(path_of(found.drafts["c-tools"])[0])[0]
        assert picture == ("photo.png", PICTURE if path.suffix == ".zip" else None)


def test_empty_export(tmp_path: Path) -> None:
    """The export of an account without conversations has none, and an empty list alone is no export of ChatGPT."""
    (tmp_path / "conversations.json").write_text("[]")
    assert read_source(open_source, tmp_path) is None
    (tmp_path / "chat.html").touch()
    assert read_found(open_source, tmp_path).drafts == {}


def test_incomplete_file(tmp_path: Path) -> None:
    """Of a file that is cut off nothing is read."""
    whole = (OLD / "conversations.json").read_bytes()
    path = tmp_path / "conversations.json"
    path.write_bytes(whole[:-100])
    with pytest.raises(InvalidInput, match="not complete"):
        read_source(open_source, path)


def test_lone_surrogate(tmp_path: Path) -> None:
    """A conversation with half an emoji is read."""
    message = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["\ud83d"]}}  # fmt: skip
    path = write(tmp_path, [{"id": "c", "mapping": {"m": {"message": message}}}])
    assert read_found(open_source, path).drafts["c"].nodes[0].parts == (Text("\ud83d"),)


@pytest.mark.parametrize("other", ["claude_ai/2026", "open_webui/export.json", "librechat"])  # fmt: skip
def test_other_formats(other: str) -> None:
    """Exports of other programs are not recognised."""
    assert read_source(open_source, FIXTURES / other) is None


@pytest.mark.parametrize("file", [OLD / "conversations.json", NEW / "conversations-000.json"])  # fmt: skip
def test_damaged_files(tmp_path: Path, file: Path) -> None:
    """A damaged file gives conversations, reasons or a sentence, and never another error."""
    assert read_damaged(open_source, file, tmp_path, 100)["read"] > 50
