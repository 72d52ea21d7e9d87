"""`tenax backup`, `tenax restore` and `tenax move`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import tenax as library
from tenax.archive.format import BackupFolder
from tests.cli.conftest import tenax
from tests.contract.engine.base import begin, say
from tests.golden.stores import copy_of


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command lowers the priority of its process. The process of the tests keeps its own."""
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.delenv("TENAX_BACKUP_PASSPHRASE", raising=False)


def talk(home: Path) -> str:
    with library.open(f"sqlite:///{home}/tenax.db") as journal:
        return begin(journal, say("Hello"))


def test_a_backup_is_made_listed_and_restored(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = talk(home)
    folder = str(home / "copies")
    code, out, _ = tenax(capsys, "backup", folder)
    assert code == 0
    assert "1 conversation, 2 events, 0 attachments: restored and verified." in out
    assert "The backup is on the disk of the store." in out
    code, out, _ = tenax(capsys, "backup", folder, "--list")
    assert "1 conversation" in out
    new = home / "new"
    new.mkdir()
    monkeypatch.setenv("TENAX_HOME", str(new))
    code, out, _ = tenax(capsys, "restore", folder)
    assert (code, "1 conversation, 2 events, digests equal." in out) == (0, True)
    with library.open(f"sqlite:///{new}/tenax.db") as journal:
        assert journal.head(name).facts == 2
    code, _, err = tenax(capsys, "restore", folder)
    assert (code, "There is a store already" in err) == (1, True)


def test_doctor_names_the_newest_backup(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(home)
    none = f"none in {home}/backups. Make one with: tenax backup"
    assert none in tenax(capsys, "doctor")[1]
    assert tenax(capsys, "backup")[0] == 0
    assert (
        f"restored and verified then; 1 in {home}/backups" in tenax(capsys, "doctor")[1]
    )
    found = msgspec.json.decode(tenax(capsys, "doctor", "--json")[1])
    assert found["backup"]["count"] == 1


def test_a_moved_store_is_named_in_the_settings(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = talk(home)
    url = f"sqlite:///{home}/elsewhere/new.db"
    code, out, err = tenax(capsys, "move", url)
    assert code == 0, err
    assert f"Moved to {url}: 1 conversation, 2 events, digests equal." in out
    assert f"The old store is still at sqlite:///{home}/tenax.db" in out
    assert f'url = "{url}"' in (home / "config.toml").read_text()
    assert name in tenax(capsys, "list")[1]
    code, _, err = tenax(capsys, "move", "mysql://x")
    assert (code, "is not the address of a store" in err) == (1, True)


def test_secrets_need_a_passphrase(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(home)
    (home / "secrets.toml").touch(mode=0o600)
    code, _, err = tenax(capsys, "backup", "--secrets")
    assert (code, "needs a passphrase" in err) == (1, True)
    monkeypatch.setenv("TENAX_BACKUP_PASSPHRASE", "open")
    assert tenax(capsys, "backup", "--secrets")[0] == 0
    assert "with secrets" in tenax(capsys, "backup", "--list")[1]


def test_a_store_is_backed_up_before_an_upgrade_changes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command says where the backup is. Without a backup, nothing is changed."""
    place = copy_of("sqlite", tmp_path, "")
    monkeypatch.setenv("TENAX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TENAX_STORE", place.url)
    (tmp_path / "home" / "backups").write_text("in the way")
    code, _, err = tenax(capsys, "list")
    assert (code, "The store is not changed, because the backup" in err) == (1, True)
    (tmp_path / "home" / "backups").unlink()
    code, _, err = tenax(capsys, "list")
    assert (code, "Making a backup first" in err) == (0, True)
    (name,) = BackupFolder(tmp_path / "home" / "backups").names()
    assert f"--at {name}" in err
    assert tenax(capsys, "list")[2] == ""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["backup"], "There is no store to back up yet."),
        (["backup", "--keep", "0"], "0 is not in the range"),
        (["restore", "nowhere"], "There is no backup in"),
        (["move", "sqlite:////tmp/never/t.db"], "There is no store to move yet."),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_cannot_be_done_is_said(
    capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    code, _, err = tenax(capsys, *args)
    assert code != 0
    assert said in err


def test_a_store_restored_by_other_means_is_adopted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says what it has checked, and refuses arguments without effect."""
    code, _, err = tenax(capsys, "restore", "--adopt")
    assert (code, err) == (1, "tenax: There is no store to adopt.\n")
    talk(home)
    code, out, err = tenax(capsys, "restore", "--adopt")
    assert (code, err) == (0, "")
    assert out == (
        f"Adopted sqlite:///{home}/tenax.db: 1 conversation, 2 events, digests valid.\n"
    )
    code, out, _ = tenax(capsys, "restore", "--adopt", "--json")
    assert msgspec.json.decode(out) == {
        "conversations": 1, "events": 2, "missing": [],
    }  # fmt: skip
    assert tenax(capsys, "restore", "--adopt", "folder")[0] == 2
    code, _, err = tenax(capsys, "restore")
    assert code == 2
    assert "Name the FOLDER of the backups, or use --adopt." in err
