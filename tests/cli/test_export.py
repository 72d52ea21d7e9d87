"""`tenax export`: conversations as files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import apsw
import msgspec
import pytest

import tenax as library
from tenax.events import ConversationTitled
from tenax.export.lines import Conversation, End, decode_line
from tests.cli.conftest import tenax
from tests.contract.engine.base import begin, say

pytestmark = pytest.mark.usefixtures("home")


def test_a_conversation_goes_to_stdout_or_to_a_new_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that exists is not overwritten."""
    with library.open(f"sqlite:///{home}/tenax.db", user="local") as journal:
        name = begin(journal, ConversationTitled("Trip"), say("Hello"))
    code, out, _ = tenax(capsys, "export", name)
    assert (code, out.partition("\n")[0], "Hello" in out) == (0, "# Trip", True)
    file = home / "out.json"
    assert tenax(capsys, "export", name, "--format", "json", "-o", str(file))[0] == 0
    assert msgspec.json.decode(file.read_bytes())["conversation"]["id"] == name
    code, _, err = tenax(capsys, "export", name, "-o", str(file))
    assert (code, "already exists" in err) == (1, True)
    code, _, err = tenax(capsys, "export", "--all", "-o", str(home / "all.zip"))
    assert code == 0, err
    assert len(zipfile.ZipFile(home / "all.zip").namelist()) == 2


def test_several_conversations_are_one_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named, selected or all. A wrong id is an error before the file is created."""
    with library.open(f"sqlite:///{home}/tenax.db", user="local") as journal:
        names = [begin(journal, say(f"Animal {number}")) for number in range(3)]

    def ids_in(*args: str) -> list[str]:
        file = home / "out.jsonl"
        code, _, err = tenax(
            capsys, "export", *args, "--format", "tenax", "-o", str(file)
        )
        assert (code, err) == (0, "")
        lines = [decode_line(line) for line in file.read_bytes().splitlines()]
        file.unlink()
        assert isinstance(lines[-1], End)
        return [line.id for line in lines if isinstance(line, Conversation)]

    assert ids_in(names[1], names[0], names[1]) == names[:2]
    assert ids_in("--all") == names
    assert ids_in("--search", "animal 2", "--since", "2020-01-01") == [names[2]]
    archive = home / "two.zip"
    assert tenax(capsys, "export", *names[:2], "-o", str(archive))[0] == 0
    assert len(zipfile.ZipFile(archive).namelist()) == 3
    code, out, _ = tenax(capsys, "export", "--all", "--format", "openai")
    assert (code, len(out.splitlines())) == (0, 3)
    none = home / "none.jsonl"
    for args, said in (
        ([names[0], "c-none"], "c-none"),
        (["--until", "2020-01-01"], "No conversation matches."),
    ):
        code, _, err = tenax(capsys, "export", *args, "-o", str(none))
        assert (code, said in err, none.exists()) == (1, True, False)


def test_a_failed_export_leaves_no_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a file could be taken for a whole one."""
    url = f"{home}/tenax.db"
    with library.open(f"sqlite:///{url}", user="local") as journal:
        name = begin(journal, say("Something"))
    with apsw.Connection(url) as store:
        store.execute("update events set salt = zeroblob(16) where place & 255 = 2")
    file = home / "out.jsonl"
    code, _, err = tenax(capsys, "export", name, "--format", "tenax", "-o", str(file))
    assert (code, file.exists()) == (1, False)
    assert "run: tenax doctor" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["export"], "Name conversations, or use --all, or select"),
        (["export", "c", "--all"], "Name conversations, or use --all, or select"),
        (["export", "--all", "--since", "2026-01-01"], "Name conversations, or use"),
        (["export", "c", "--search", "okapi"], "Name conversations, or use --all"),
        (
            ["export", "--since", "2026-01-02", "--until", "2026-01-01"],
            "--since is later than --until.",
        ),
        (["export", "--search", " "], "--search needs words."),
        (["export", "--since", "yesterday"], "'yesterday' is not a date."),
        (["export", "c-none"], "There are no conversations yet."),
    ],
)
def test_what_cannot_be_exported_is_said(
    capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    code, _, err = tenax(capsys, *args)
    assert code != 0
    assert said in err
