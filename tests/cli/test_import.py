"""`tenax import`: conversations of other programs in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenax as library
from tests.cli.conftest import tenax
from tests.contract.engine.base import begin, say

pytestmark = pytest.mark.usefixtures("home")


def chat(number: int, *, words: str = "Hello", more: int = 0) -> dict[str, Any]:
    """Return a conversation as ChatGPT exports it."""
    messages = [("user", words), ("assistant", "Hi!")] + [("user", "More")] * more
    mapping: dict[str, Any] = {"root": {"id": "root", "parent": None, "children": []}}
    parent = "root"
    for place, (role, text) in enumerate(messages):
        name = f"m{number}-{place}"
        mapping[name] = {
            "id": name,
            "parent": parent,
            "children": [],
            "message": {
                "id": name,
                "author": {"role": role},
                "create_time": 1_700_000_000.5 + place,
                "content": {"content_type": "text", "parts": [text]},
            },
        }
        mapping[parent]["children"].append(name)
        parent = name
    return {
        "id": f"chat-{number}",
        "title": f"Chat {number}",
        "create_time": 1_700_000_000.0,
        "mapping": mapping,
        "current_node": parent,
    }


def write(file: Path, *chats: object) -> str:
    file.write_bytes(msgspec.json.encode(list(chats)))
    return str(file)


def test_a_dry_run_an_import_and_a_second_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentences say what would happen, what happened, and that nothing is new."""
    file = write(home / "conversations.json", chat(1), chat(2))
    code, out, err = tenax(capsys, "import", file, "--dry-run")
    assert (code, err) == (0, "")
    assert out == ("Would import from ChatGPT. Conversations: 2 new (4 messages).\n")
    assert tenax(capsys, "list", "--json")[1].strip() in {"", "[]"}
    assert tenax(capsys, "import", file)[1].startswith("Imported from ChatGPT.")
    assert tenax(capsys, "import", file)[1] == (
        "Imported from ChatGPT. Conversations: 2 unchanged.\n"
    )
    write(home / "conversations.json", chat(1, more=1), chat(2), chat(3))
    out = tenax(capsys, "import", file)[1]
    assert "1 new, 1 continued, 1 unchanged (3 messages)" in out
    assert "Chat 3" in tenax(capsys, "list")[1]


def test_a_broken_conversation_is_skipped_with_its_reason(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other conversations are imported, and the exit code says that something was skipped."""
    broken = {**chat(2), "mapping": 7}
    code, out, err = tenax(
        capsys, "import", write(home / "conversations.json", chat(1), broken)
    )
    assert code == 1
    assert "1 new" in out
    assert err.startswith("Skipped: Chat 2: ")


def test_wrong_files_get_a_sentence(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, and a way on."""
    (home / "notes.txt").write_text("hello")
    code, _, err = tenax(capsys, "import", str(home / "notes.txt"))
    assert code == 1
    assert "nothing that can be imported" in err
    assert "ChatGPT" in err
    code, _, err = tenax(capsys, "import", str(home / "missing.zip"))
    assert (code, "There is no file or folder" in err) == (1, True)
    file = write(home / "conversations.json", chat(1))
    code, _, err = tenax(capsys, "import", file, "--from", "librechat")
    assert (code, "not an export of LibreChat" in err) == (1, True)


def test_an_export_moves_to_another_home(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tenax export --all --format tenax`, and `tenax import` elsewhere: the same digests."""
    with library.open(f"sqlite:///{home}/tenax.db", user="local") as journal:
        name = begin(journal, say("Hello"))
        digest = journal.head(name).digest
    file = home / "all.jsonl"
    code, _, err = tenax(
        capsys, "export", "--all", "--format", "tenax", "-o", str(file)
    )
    assert (code, err) == (0, "")
    other = home / "other"
    other.mkdir()
    monkeypatch.setenv("TENAX_HOME", str(other))
    code, out, err = tenax(capsys, "import", str(file), "--json")
    assert (code, err) == (0, "")
    assert msgspec.json.decode(out)["conversations"] == [name]
    with library.open(f"sqlite:///{other}/tenax.db", user="local") as journal:
        assert journal.head(name).digest == digest
