"""Whatever reads or writes in the tools' folder, while a file or a folder there is exchanged for a link all the time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tenax.agent.attachments import read_file
from tenax.agent.skills import ReadSkill, ReadSkillArgs, Skills
from tenax.errors import InvalidInput, ToolFailed
from tenax.tools.base import Call
from tenax.tools.files.edit import (
    EditFile,
    EditFileArgs,
    ReadFile,
    ReadFileArgs,
    WriteFile,
    WriteFileArgs,
)
from tenax.workspace.snapshots import About, Snapshots
from tests.support.races import swapping_here

SECRET = "hunter2"
TIMES = 150
SWAPS = {"the file": ("way/file", "link"), "the folder": ("way", "link")}


@pytest.fixture(params=SWAPS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Two names in the folder; the second is a link to the same thing outside, with a secret in it."""
    name, link = SWAPS[request.param]
    for place, text in (
        ("folder", "---\nname: way\ndescription: mine\n---\nmine\n"),
        ("outside", SECRET),
    ):
        for file in ("file", "SKILL.md"):
            (tmp_path / place / "way" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place / "way" / file).write_text(text)
    (tmp_path / "folder" / link).symlink_to(tmp_path / "outside" / name)
    return tmp_path / "folder" / name, tmp_path / "folder" / link


def _outside(folder: Path) -> dict[str, str]:
    return {
        str(file): file.read_text()
        for file in sorted((folder.parent / "outside").rglob("*"))
        if file.is_file()
    }


async def test_the_file_tools_reach_nothing_outside(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Read, write and edit: what is read is ours, and what is written stays inside."""
    folder, answers = tmp_path / "folder", []
    call, before = Call("ada", "c_1", 3, "call", folder), _outside(folder)
    with swapping_here(*pair):
        for number in range(TIMES):
            for tool, args in (
                (ReadFile(), ReadFileArgs("way/file")),
                (WriteFile(), WriteFileArgs("way/file", f"mine {number}")),
                (EditFile(), EditFileArgs("way/file", "mine", "mine, too")),
            ):
                try:
                    answers.append(await tool.run(args, call))  # type: ignore[arg-type]
                except ToolFailed as error:
                    answers.append(str(error))
    assert SECRET not in "".join(answers)
    assert _outside(folder) == before


def test_an_attached_file_is_none_outside(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """For `/attach` and `--file`: no link in the tools' folder is followed, whenever it came to be there."""
    folder, found = tmp_path / "folder", []
    with swapping_here(*pair):
        for _ in range(TIMES):
            try:
                found.append(read_file(folder / "way" / "file", folder))
            except InvalidInput as error:
                found.append(str(error).encode())
    assert SECRET.encode() not in b"".join(found)
    assert any(data.endswith(b"mine\n") for data in found)


def test_a_link_outside_of_the_folder_is_followed(tmp_path: Path) -> None:
    """A person attaches what they name, also by a link of their own; a folder or a pipe is no file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "link", tmp_path / "folder") == b"mine"
    for name in ("pipe", "folder", "nothing", "folder/nothing"):
        with pytest.raises(InvalidInput, match="is no file"):
            read_file(tmp_path / name, tmp_path / "folder")


async def test_a_skill_and_a_snapshot_hold_nothing_from_outside(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Neither what a model reads as a skill, nor what is kept of the folder before a call."""
    folder = tmp_path / "folder"
    snapshots = Snapshots(folder, tmp_path / "kept", [])
    said = []
    with swapping_here(*pair):
        for number in range(TIMES // 3):
            snapshots.take(About("ada", "c_1", None, number, "call")).discard()
            try:
                said.append(
                    await ReadSkill(Skills(folder, None)).run(
                        ReadSkillArgs("way", "file"),
                        Call("ada", "c_1", 1, "call", folder),
                    )
                )
            except ToolFailed as error:
                said.append(str(error))
    assert SECRET not in "".join(said)
    kept = b"".join(
        file.read_bytes() for file in (tmp_path / "kept").rglob("*") if file.is_file()
    )
    assert SECRET.encode() not in kept


def test_nobody_else_may_read_what_a_snapshot_keeps(tmp_path: Path) -> None:
    """Every file of it is its owner's, whatever the umask is, also one that was made before."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text(SECRET)
    snapshots = Snapshots(tmp_path / "folder", tmp_path / "kept", [])
    taken = snapshots.take(About("ada", "c_1", None, 3, "call"))
    for file in (tmp_path / "kept").rglob("pack-*"):
        file.chmod(0o644)
    (tmp_path / "folder" / "file").write_text(SECRET * 2)
    snapshots.find_changes(taken)
    modes = {
        file.name: oct(file.stat().st_mode & 0o777)
        for file in (tmp_path / "kept").rglob("*")
        if file.is_file()
    }
    taken.discard()
    assert set(modes.values()) == {"0o600"}, modes
    assert len(modes) >= 4
