"""The chats of Open WebUI become drafts: the tree, files in `data:` URLs, reasoning and calls in HTML or as `output`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tenax.importers.open_webui import open_source
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

FOLDER = FIXTURES / "open_webui"
EXPORT = FOLDER / "export.json"


def test_reasoning_and_calls_in_html() -> None:
    """The blocks of older versions become reasoning, tool calls and results, and other HTML stays text."""
    draft = read_found(open_source, EXPORT).drafts["w-details"]
    assert (draft.title, draft.archived, draft.pinned) == ("Katzen 🐈", True, True)
    assert draft.extra == {"tags": ["pets"], "params": {"temperature": 0.5}}
    path = path_of(draft)
    assert path[1].parts == (
        Reasoning("A cat is\nnot a dog.", seconds=7.0),
        Text("Cats purr."),
        ToolCall("call_1", "search", '{"q": "<cats>"}'),
    )
    assert path[1].model == "llama3:8b"
    assert said(path)[2] == ("tool", 'Found "3" cats & dogs')
    assert files_of(path[2])[0][0] == "image.png"
    assert path[3].parts[0] == ToolCall("a1:call-2", "code_interpreter", '{"code": "print(3)"}')  # fmt: skip
    assert said(path)[4:] == [("tool", "3\n"), ("assistant", "Three <details> of cats.")]  # fmt: skip


def test_answers_of_two_models() -> None:
    """The answers of several models are versions, and escaped reasoning is plain text again."""
    draft = read_found(open_source, EXPORT).drafts["w-details"]
    versions = [node for node in draft.nodes if node.parent == "u1"]
    assert [node.model for node in versions] == ["llama3:8b", "qwen3"]
    assert versions[1].parts[0] == Reasoning("a < b\n\nc", seconds=1.0)


def test_files() -> None:
    """Images in `data:` URLs and the text of documents are attached, and a missing file keeps its name."""
    path = path_of(read_found(open_source, EXPORT).drafts["w-details"])
    image, gone, document = files_of(path[0])
    assert image[0] == "image.png"
    assert (image[1] or b"").startswith(b"\x89PNG")
    assert gone == ("gone.png", None)
    assert document == ("cats.pdf.txt", b"All about cats")


def test_output_of_newer_versions() -> None:
    """`output` is taken before the text made from it. Times in milliseconds and missing times are read."""
    found = read_found(open_source, EXPORT)
    path = path_of(found.drafts["w-output"])
    assert (path[0].at, path[-2].at) == (1_772_000_000_123_000, None)
    assert path[1].parts == (
        Reasoning("I shall count.", seconds=2.0),
        ToolCall("call_9", "count", '{"to": 2}'),
    )
    assert (path[2].call, path[2].name) == ("call_9", "count")
    assert path[4].outcome == "failed"
    assert said(path)[5:] == [
        ("assistant", "One, two."),
        ("user", "And now?"),
        ("assistant", "The model is away"),
    ]
    assert path[-1].finish == "error"
    assert found.left_out["unknown content (web_search_call)"] == 1


def test_broken_and_empty_chats() -> None:
    """A broken chat is skipped with the reason, an empty one is counted."""
    found = read_found(open_source, EXPORT)
    assert [*found.drafts] == ["w-details", "w-output"]
    assert {(one.title, one.why) for one in found.skipped} == {
        ("entry 4", "it is not a JSON object"),
        ("Broken", "its chat is not a JSON object"),
    }
    assert found.left_out["conversation without messages"] == 1


def test_lines_of_json() -> None:
    """The lines of `/chats/all` are read, and a broken line is skipped."""
    found = read_found(open_source, FOLDER / "all.ndjson")
    assert [*found.drafts] == ["n-1", "n-2"]
    assert len(found.skipped) == 1


def test_bare_chat_of_early_versions() -> None:
    """A chat without an envelope takes the id of its first message, and its time in milliseconds."""
    [draft] = read_found(open_source, FOLDER / "bare.json").drafts.values()
    assert (draft.id, draft.title) == ("m-a", "An early chat")
    assert draft.at == 1_700_000_000_000_000
    assert draft.extra["tags"] == ["old"]
    assert said(path_of(draft)) == [("user", "Hello"), ("assistant", "Hi")]


def test_list_of_messages() -> None:
    """A chat without a tree is the list of its messages."""
    draft = read_found(open_source, FOLDER / "list.json").drafts["l-1"]
    assert said(path_of(draft)) == [("user", "Ping"), ("assistant", "Pong")]


def test_folder_and_zip(tmp_path: Path) -> None:
    """All exports of a folder or a zip are read."""
    archive = shutil.make_archive(str(tmp_path / "chats"), "zip", FOLDER)
    for path in (FOLDER, Path(archive)):
        assert len(read_found(open_source, path).drafts) == 6


def test_other_files_beside(tmp_path: Path) -> None:
    """A file of another program in the folder is left out and counted."""
    shutil.copy(FOLDER / "list.json", tmp_path)
    (tmp_path / "a.json").write_text('{"name": "another"}')
    found = read_found(open_source, tmp_path)
    assert [*found.drafts] == ["l-1"]
    assert found.left_out == {"file of another format": 1}


@pytest.mark.parametrize("other", ["chatgpt/2024", "claude_ai/2026", "librechat"])
def test_other_formats(other: str) -> None:
    """Exports of other programs are not recognised."""
    assert read_source(open_source, FIXTURES / other) is None


@pytest.mark.parametrize("name", ["export.json", "bare.json", "list.json"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    """A damaged file gives conversations, reasons or a sentence, and never another error."""
    assert read_damaged(open_source, FOLDER / name, tmp_path, 120)["read"] > 50
