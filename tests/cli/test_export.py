"""`tenax export`: conversations as files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import msgspec
import pytest

import tenax as library
from tenax.events import ConversationTitled
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


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["export"], "Name a conversation, or use --all."),
        (["export", "c", "--all"], "Name a conversation, or use --all."),
        (["export", "c-none"], "There are no conversations yet."),
    ],
)
def test_what_cannot_be_exported_is_said(
    capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    code, _, err = tenax(capsys, *args)
    assert code != 0
    assert said in err
