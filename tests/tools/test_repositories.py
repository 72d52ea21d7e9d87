"""Looks for git repositories while a command exchanges them: a look finds the repository, or says that it is not complete."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tenax.tools import repositories
from tenax.tools.repositories import Found, find_repositories
from tests.support.bubblewrap import ROOT
from tests.support.races import exchange

MOMENTS = ("", "repo", "repo/.git", "link")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository, and a link at the top of the folder; it was looked through once."""
    for name in ("hooks", "objects", "refs"):
        (tmp_path / "folder/repo/.git" / name).mkdir(parents=True)
    (tmp_path / "folder/repo/.git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "folder/repo/.git/config").write_text("[core]\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "folder/link").symlink_to(tmp_path / "outside")
    assert is_sure(find_repositories(tmp_path / "folder"))
    return tmp_path / "folder"


def is_sure(found: Found) -> bool:
    """Return whether nothing says that another look is needed."""
    return not (found.fresh_links or found.is_exchanged or found.is_torn)


@pytest.mark.parametrize("moments", [set(each) for n in range(5) for each in combinations(MOMENTS, n)])
@pytest.mark.parametrize("is_link_first", [False, True])
def test_a_repository_that_is_exchanged_during_a_look_is_not_missed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moments: set[str], is_link_first: bool
) -> None:
    """It is exchanged after the look at any of the folders, in both directions."""
    names, left = (folder / "repo/.git", folder / "link"), set(moments)
    locked = (folder / "repo/.git/config").stat()
    if is_link_first:
        exchange(*names)

    def exchange_after(path: str) -> None:
        if path in left:
            left.remove(path)
            exchange(*names)

    def opened(self: Any, path: str, *arguments: int) -> int:
        try:
            return open_(self, path, *arguments)
        except OSError:
            exchange_after(path)
            raise

    def looked(self: Any, descriptor: int, path: str, *, inside: bool) -> None:
        look(self, descriptor, path, inside=inside)
        exchange_after(path)

    open_, look = repositories._Search._open, repositories._Search._look
    monkeypatch.setattr(repositories._Search, "_open", opened)
    monkeypatch.setattr(repositories._Search, "_look", looked)
    found = find_repositories(folder)
    places = {(each.device, each.inode) for each in found.places if each.locked}
    assert (locked.st_dev, locked.st_ino) in places or not is_sure(found)


def test_two_repositories_that_are_exchanged_during_a_look_are_not_taken_for_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was known is looked at first. Another one stands there when the folder is listed."""
    other = folder / "repo/other"
    other.mkdir()
    look, done = repositories._Search._look, []

    def looked(self: Any, descriptor: int, path: str, *, inside: bool) -> None:
        if path == "repo" and not done:
            done.append(path)
            exchange(folder / "repo/.git", other)
        look(self, descriptor, path, inside=inside)

    monkeypatch.setattr(repositories._Search, "_look", looked)
    assert not is_sure(find_repositories(folder))
    assert done


LOOK = """
import sys
from pathlib import Path
from tenax.tools.repositories import find_repositories
for _ in range(2):
    found = find_repositories(Path(sys.argv[1]))
    print(found.is_exchanged, found.is_torn, *sorted(place.path for place in found.places if place.locked))
"""


def test_a_mounted_folder_is_not_taken_for_one_that_was_exchanged(folder: Path, tmp_path: Path) -> None:
    """It has another inode than the one that is listed. Else no command would ever run in such a folder."""
    (folder / "mounted").mkdir()
    (folder / "other/.git").mkdir(parents=True)
    command = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", folder / "mounted",
               "--bind", folder / "repo/.git", folder / "other/.git",
               sys.executable, "-c", LOOK, folder]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""
    paths = "other/.git/config other/.git/hooks repo/.git/config repo/.git/hooks"
    assert done.stdout.splitlines() == [f"False False {paths}"] * 2
