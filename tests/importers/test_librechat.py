"""The exports of LibreChat become drafts: flat and nested messages, tool calls and reasoning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tenax.importers.librechat import open_source
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

FOLDER = FIXTURES / "librechat"


def test_flat_messages() -> None:
    """Reasoning, tool calls of both shapes, their results, files, versions and errors of a flat list are kept."""
    found = read_found(open_source, FOLDER / "flat.json")
    draft = found.drafts["lc-flat"]
    assert (draft.title, draft.archived) == ("Zahlen: 数字", True)
    assert draft.at == draft.nodes[0].at
    assert draft.extra["endpoint"] == "agents"
    nodes = {node.id: node for node in draft.nodes}
    assert files_of(nodes["m1"]) == [("numbers.csv", None)]
    assert nodes["m2"].parts == (
        Reasoning("Counting is easy."),
        ToolCall("call_a", "count", '{"to":2}'),
    )
    assert nodes["m2:1"].call == "call_a"
    assert nodes["m2:1"].parts == (Text("1 2"),)
    assert nodes["m2:2"].parts == (ToolCall("call_b", "paint", "{}"),)
    assert nodes["m2:6"].parts == (Text("One, two."),)
    assert nodes["m2:6"].finish == "stop"
    assert nodes["m4"].parent == "m2:6"
    assert nodes["m5"].finish == "error"
    assert (nodes["m3"].parent, nodes["m3"].at) == ("m1", None)
    assert found.left_out == {
        "unknown content (hologram)": 1,
        "attachment without a file (web_search)": 1,
        "rating": 1,
    }


def test_summaries_and_messages_during_an_answer() -> None:
    """A summary stays a summary, and what the person wrote during the answer is a message of the person."""
    draft = read_found(open_source, FOLDER / "flat.json").drafts["lc-flat"]
    inserted = [node for node in draft.nodes if node.id in ("m2:4", "m2:5")]
    assert said(inserted) == [("summary", "They count."), ("user", "Only to two")]


def test_nested_messages() -> None:
    """Nested messages are the same tree, and the reasoning in the text of older versions is found."""
    draft = read_found(open_source, FOLDER / "tree.json").drafts["lc-tree"]
    assert draft.title == ""
    assert [(node.id, node.parent) for node in draft.nodes] == [
        ("t1", None),
        ("t2", "t1"),
        ("t4", "t2"),
        ("t3", "t1"),
    ]
    assert draft.nodes[1].parts == (Reasoning("Hm, so."), Text("An answer"))
    # LibreChat shows the newest version.
    assert said(path_of(draft)) == [("user", "A question"), ("assistant", "A second answer")]  # fmt: skip
    assert draft.nodes[3].finish == "unfinished"


def test_deeply_nested_messages(tmp_path: Path) -> None:
    """A nested conversation of 5,000 messages is read."""
    begin = "".join(f'[{{"messageId": "m{n}", "text": "hi", "children": ' for n in range(5000))  # fmt: skip
    path = tmp_path / "long.json"
    path.write_text(
        f'{{"conversationId": "c", "exportAt": "x", "messagesTree": {begin}[]{"}]" * 5000}}}'
    )
    draft = read_found(open_source, path).drafts["c"]
    assert len(path_of(draft)) == 5000


def test_folder_and_zip(tmp_path: Path) -> None:
    """All files of a folder or a zip are read, and a broken one is skipped with its name."""
    archive = shutil.make_archive(str(tmp_path / "chats"), "zip", FOLDER)
    (tmp_path / "folder").mkdir()
    shutil.copytree(FOLDER, tmp_path / "folder", dirs_exist_ok=True)
    (tmp_path / "folder" / "cut.json").write_text('{"conversationId": "x", "mess')
    for path, skipped in ((Path(archive), ["Broken"]), (tmp_path / "folder", ["Broken", "cut.json"])):  # fmt: skip
        found = read_found(open_source, path)
        assert [*found.drafts] == ["lc-flat", "lc-tree"]
        assert [one.title for one in found.skipped] == skipped


def test_empty_conversation(tmp_path: Path) -> None:
    """A conversation without messages is counted."""
    path = tmp_path / "empty.json"
    path.write_text(json.dumps({"conversationId": "c", "messages": []}))
    found = read_found(open_source, path)
    assert found.drafts == {}
    assert found.left_out == {"conversation without messages": 1}


@pytest.mark.parametrize("other", ["chatgpt/2024", "claude_ai/2026", "open_webui/export.json"])  # fmt: skip
def test_other_formats(other: str) -> None:
    """Exports of other programs are not recognised."""
    assert read_source(open_source, FIXTURES / other) is None


@pytest.mark.parametrize("name", ["flat.json", "tree.json"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    """A damaged file gives conversations, reasons or a sentence, and never another error."""
    assert read_damaged(open_source, FOLDER / name, tmp_path, 150)["read"] > 50
