"""Where tools work: the owner's folder is the one of the settings, every other user has one of their own."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tenax.config import Config, load
from tenax.errors import CannotOpen, ConfigError
from tenax.journal import LOCAL_USER
from tenax.tools.base import Call
from tenax.tools.files.edit import WriteFile, WriteFileArgs
from tenax.tools.folders import folder_of, folders_of_users, home_of
from tenax.tools.paths import open_folder

ODD_NAMES = (
    "bob", "Bob", "BOB", "b%6Fb", ".", "..", "...", ".bob", "bob.", "a/b", "a%2Fb", "../work", "/etc", "files", "users",
    "ada@example.org", "Zo\u00eb", "Zoe\u0308", "\u732b" * 100, "x" * 200, f"{'x' * 199}y", "local ", "-rf", "*", "a\\b",
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load({"TENAX_HOME": str(tmp_path / "home")})


def test_the_owner_keeps_the_folder_of_the_settings_and_nothing_is_made(
    config: Config,
) -> None:
    """It is made by whoever first writes in it, as ever."""
    assert folder_of(config, LOCAL_USER) == config.tools_folder
    assert not config.directories.data.exists()
    assert folders_of_users(config) == {}


def test_every_other_user_has_a_folder_that_nobody_else_can_look_into(
    config: Config,
) -> None:
    """Whatever the mask of the process is, on the way to it too; asking again changes nothing."""
    before = os.umask(0)
    try:
        folder = folder_of(config, "bob")
    finally:
        os.umask(before)
    assert folder == config.directories.data / "users" / "bob" / "files"
    for place in (folder, folder.parent, config.directories.users):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    (folder / "note").write_text("x")
    assert folder_of(config, "bob") == folder
    assert (folder / "note").read_text() == "x"
    assert folders_of_users(config) == {"bob": folder}


def test_memory_providers_keep_the_data_of_each_user_in_another_folder(
    config: Config,
) -> None:
    """The owner's stays in the data folder; another user's lies beside the files of their tools, not among them."""
    assert home_of(config, LOCAL_USER) == config.directories.data
    assert home_of(config, "bob") == config.directories.data / "users" / "bob"
    assert home_of(config, "bob") not in {
        home_of(config, "carol"),
        folder_of(config, "bob"),
    }


def test_no_two_users_share_a_folder_and_no_name_leads_out(config: Config) -> None:
    """Also where a file system does not tell small letters from large ones, or one spelling of a letter from another."""
    folders = [folder_of(config, name) for name in ODD_NAMES]
    assert len({str(folder).casefold() for folder in folders}) == len(ODD_NAMES)
    for folder in folders:
        assert folder.parent.parent == config.directories.users
        assert (
            folder.resolve()
            == config.directories.users.resolve() / folder.parent.name / "files"
        )
        assert str(folder).isascii()
    shorter = [name for name in ODD_NAMES if len(name.encode()) < 60]
    assert {name: folders_of_users(config).get(name) for name in shorter} == {
        name: folder_of(config, name) for name in shorter
    }


@pytest.mark.parametrize("how", ["write_file", "a command"])
async def test_a_folder_that_was_removed_is_made_again_for_its_user_only(
    config: Config, how: str
) -> None:
    """While Tenax runs, by the first tool that needs it."""
    folder = folder_of(config, "bob")
    shutil.rmtree(config.directories.users)
    if how == "write_file":
        await WriteFile().run(
            WriteFileArgs("a.txt", "x"), Call("bob", "c_1", 3, "call", folder)
        )
    else:
        os.close(open_folder(folder, make=True))
    modes = {
        stat.S_IMODE(place.stat().st_mode)
        for place in (folder, folder.parent, folder.parent.parent)
    }
    assert modes == {0o700}


def test_a_folder_that_cannot_be_made_is_told(config: Config) -> None:
    """In a sentence, with what to do."""
    config.directories.data.mkdir()
    config.directories.users.write_text("in the way")
    with pytest.raises(
        CannotOpen, match=r"users/bob/files cannot be made: .+\.$"
    ) as caught:
        folder_of(config, "bob")
    assert caught.value.hint


@pytest.mark.parametrize(
    "inside", ["users", "users/bob/files", "files", "files/0123", "link/bob/files"]
)
def test_the_owner_cannot_work_where_others_do(tmp_path: Path, inside: str) -> None:
    """Nor in the snapshots, nor by a link; the error names a folder that will do."""
    home = tmp_path / "home"
    (home / "users").mkdir(parents=True)
    (home / "link").symlink_to(home / "users")
    (home / "config.toml").write_text(f'[tools]\nfolder = "{home / inside}"\n')
    with pytest.raises(ConfigError, match="the files of other users") as caught:
        load({"TENAX_HOME": str(home)})
    assert str(home / "work") in (caught.value.hint or "")
    (home / "config.toml").write_text(f'[tools]\nfolder = "{home / "work"}"\n')
    assert load({"TENAX_HOME": str(home)}).tools_folder == home / "work"


def test_the_folder_that_is_used_unless_set_is_checked_too(tmp_path: Path) -> None:
    """It may hold the data folder, or be a link to the files of another user."""
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "tenax")}
    with pytest.raises(
        ConfigError, match=r"tools\.folder is not set, so it is .*own files"
    ):
        load(env)
    env = {"HOME": str(tmp_path)}
    theirs = folder_of(load(env), "bob")
    (tmp_path / "tenax").symlink_to(theirs)
    with pytest.raises(
        ConfigError,
        match=r"tools\.folder is not set, so it is .*the files of other users",
    ):
        load(env)
