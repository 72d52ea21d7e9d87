"""Looks for git repositories while a command exchanges them: a look finds the repository, or says that it is not complete."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tenax.tools.shell import repositories
from tenax.tools.shell.repositories import Found, find_repositories
from tests.support.bubblewrap import ROOT, need_bwrap
from tests.support.races import exchange

MOMENTS = ("", "repo", "repo/.git", "link")


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause between an exchange and the look makes no difference."""
    monkeypatch.setattr(repositories, "FRESH_NS", 10**12)


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


@pytest.mark.parametrize(
    "moments",
    [set(combination) for n in range(5) for combination in combinations(MOMENTS, n)],
)
@pytest.mark.parametrize("is_link_first", [False, True])
def test_a_repository_that_is_exchanged_during_a_look_is_not_missed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    moments: set[str],
    is_link_first: bool,
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

    open_, look = (
        repositories.Search.open_folder,
        repositories.Search.examine_folder,
    )
    monkeypatch.setattr(repositories.Search, "open_folder", opened)
    monkeypatch.setattr(repositories.Search, "examine_folder", looked)
    found = find_repositories(folder)
    locked_files = {
        (each.device, each.inode) for each in found.protected_paths if each.locked
    }
    assert (locked.st_dev, locked.st_ino) in locked_files or not is_sure(found)


def test_two_repositories_that_are_exchanged_during_a_look_are_not_taken_for_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was known is looked at first. Another one stands there when the folder is listed."""
    other = folder / "repo/other"
    other.mkdir()
    look, done = repositories.Search.examine_folder, list[str]()

    def looked(self: Any, descriptor: int, path: str, *, inside: bool) -> None:
        if path == "repo" and not done:
            done.append(path)
            exchange(folder / "repo/.git", other)
        look(self, descriptor, path, inside=inside)

    monkeypatch.setattr(repositories.Search, "examine_folder", looked)
    assert not is_sure(find_repositories(folder))
    assert done


LOOK = """
import sys
from pathlib import Path
from tenax.tools.shell.repositories import find_repositories
for _ in range(2):
    found = find_repositories(Path(sys.argv[1]))
    print(found.is_exchanged, found.is_torn, *sorted(protected.path for protected in found.protected_paths if protected.locked))
"""


def test_a_mounted_folder_is_not_taken_for_one_that_was_exchanged(folder: Path) -> None:
    """It has another inode than the one that is listed. Else no command would ever run in such a folder."""
    (folder / "mounted").mkdir()
    (folder / "other/.git").mkdir(parents=True)
    command: list[str | Path] = [need_bwrap(), "--dev-bind", "/", "/", "--tmpfs", folder / "mounted",
               "--bind", folder / "repo/.git", folder / "other/.git",
               sys.executable, "-c", LOOK, folder]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stderr == ""
    paths = "other/.git/config other/.git/hooks repo/.git/config repo/.git/hooks"
    assert done.stdout.splitlines() == [f"False False {paths}"] * 2


# -- what hides a repository ----------------------------------------------------------------------------------------


def make_git(git: Path) -> None:
    for name in ("hooks", "objects", "refs"):
        (git / name).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text("[core]\n")


def locked(found: Found) -> set[str]:
    return {protected.path for protected in found.protected_paths if protected.locked}


HIDDEN = {
    "marks in the work tree": ("", ["hooks/x", "objects/x", "config"], ".git/config"),
    "a whole repository in the work tree": ("", ["hooks/x", "objects/x", "refs/x", "HEAD", "config"], ".git/config"),
    "marks in a folder above": ("", ["objects/x", "refs/x", "HEAD"], "project/.git/config"),
    "a mark in a group of submodules": (".git", ["modules/libs/HEAD"], ".git/modules/libs/foo/config"),
    "marks in such a group": (".git", ["modules/libs/HEAD", "modules/libs/objects/x"], ".git/modules/libs/foo/config"),
    "a bare repository around its worktree": ("", ["HEAD", "objects/x", "refs/x", "hooks/x", "config"], "main/.git"),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_no_file_in_a_work_tree_hides_a_repository(tmp_path: Path, name: str) -> None:
    """In a process that did not see the repository before."""
    where, files, config = HIDDEN[name]
    if config.endswith("/.git"):
        (tmp_path / config).parent.mkdir()
        (tmp_path / config).write_text("gitdir: ../worktrees/main\n")
    else:
        make_git((tmp_path / config).parent)
    for file in files:
        (tmp_path / where / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / where / file).touch()
    found = find_repositories(tmp_path)
    assert config in locked(found)
    assert found.refusal is None


def test_folders_in_a_git_directory_hide_no_other_repository(folder: Path) -> None:
    """Those that are known are looked at first. Where there are too many, no command runs."""
    make_git(folder / ".git")
    for number in range(5_001):
        (folder / ".git/modules" / str(number)).mkdir(parents=True)
    found = find_repositories(folder)
    assert "repo/.git/config" in locked(found)
    assert "its git directories hold more than 5,000 folders" in str(found.refusal)


def test_more_included_files_than_can_be_protected_are_refused(folder: Path) -> None:
    """They would use up what is looked at, and leave the files of another repository open."""
    lines = "".join(f"path = ../x{number}\n" for number in range(201))
    make_git(folder / ".git")
    (folder / ".git/config").write_text(f"[include]\n{lines}")
    assert "include more than 200 files" in str(find_repositories(folder).refusal)


def test_more_worktrees_than_can_be_protected_are_refused(folder: Path) -> None:
    """A file named `.git` costs as much as a repository."""
    for number in range(200):
        (folder / str(number)).mkdir()
        (folder / str(number) / ".git").write_text("gitdir: elsewhere\n")
    assert "more than 200 git repositories" in str(find_repositories(folder).refusal)


def test_a_folder_on_the_way_to_missing_hooks_is_held(folder: Path) -> None:
    """A link in its place would lead git to other hooks."""
    (folder / "repo/.husky").mkdir()
    (folder / "repo/.git/config").write_text(
        "[core]\n# a comment that ends with \\\nhooksPath = .husky/_\n"
    )
    found = find_repositories(folder)
    assert "repo/.husky" in {protected.path for protected in found.protected_paths}
    assert found.forbidden["repo/.husky/_"] == "repo/.husky"


@pytest.mark.parametrize("partner", ["a file", "a folder", "a repository"])
def test_a_repository_that_was_moved_a_moment_ago_is_noted(
    folder: Path, partner: str
) -> None:
    """Whatever was exchanged with it: the next look may find something else."""
    other = folder / "other"
    if partner == "a file":
        other.write_text("gitdir: elsewhere\n")
    else:
        other.mkdir()
    if partner == "a repository":
        make_git(other)
    os.utime(other, (1, 1))
    exchange(folder / "repo/.git", other)
    assert "repo/.git" in find_repositories(folder).moved
