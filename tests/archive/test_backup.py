"""A backup holds everything, and a restored store is the same store."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import apsw
import msgspec
import pytest

import tenax
from tenax.archive.format import BackupFolder, File
from tenax.archive.service import Backup, Restored, back_up, restore
from tenax.config import Config
from tenax.errors import InvalidInput, NoSuchConversation, StoreDamaged
from tenax.events import ConversationOpened, MessageUser
from tenax.journal import open_snapshot
from tenax.journal.schema import SCHEMA_VERSION, migrations
from tenax.journal.tables import NOT_COPIED, TABLES
from tenax.journal.verify.store import verify
from tenax.parts import Text
from tests.archive.conftest import ConfigFor, NewUrl, read_tables
from tests.golden.stores import copy_of, on_the_same_host
from tests.support.world import words

SECRET = "sesame-4711"


def make_backup(
    config: Config,
    folder: Path,
    *,
    keep: int | None = None,
    passphrase: str | None = None,
) -> Backup:
    return back_up(config, folder, keep=keep, version="test", passphrase=passphrase)


def test_the_list_of_tables_is_complete(new_url: NewUrl, source: str) -> None:
    """A new table is either copied, or named as belonging to a running store."""
    url = new_url(source)
    tenax.open(url).close()
    with contextlib.closing(open_snapshot(url)) as snapshot:
        for table in TABLES:
            assert set(table.order) <= set(snapshot.columns(table.name))
    scripts = " ".join(migrations("sqlite") + migrations("postgres"))
    named = _tables_in(scripts)
    assert named == {table.name for table in TABLES} | NOT_COPIED


def _tables_in(scripts: str) -> set[str]:
    created = set(re.findall(r"create (?:unlogged )?table (\w+)", scripts))
    return created - set(re.findall(r"rename to (\w+)", scripts))


def test_a_restored_store_has_every_row(
    world_url: str, target: str, new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    backup = make_backup(config_for(world_url), tmp_path / "backups")
    assert backup.conversations == 5
    assert backup.events > 50
    url = new_url(target)
    restored = restore(config_for(url), tmp_path / "backups")
    assert restored == Restored(
        backup.name, 5, backup.events, [], needs_passphrase=False
    )
    assert read_tables(url) == read_tables(world_url)
    with (
        tenax.open(url, user="ada") as journal,
        tenax.open(world_url, user="ada") as old,
    ):
        assert verify(journal).ok
        assert journal.incarnation != old.incarnation
        assert journal.head("c_talk").digest == old.head("c_talk").digest
        assert journal.instances() == [] or all(
            one.alive for one in journal.instances()
        )


def test_a_further_backup_writes_only_what_is_new(
    world_url: str, new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    config, folder = config_for(world_url), tmp_path / "backups"
    first = make_backup(config, folder)
    with tenax.open(world_url, user="ada") as journal:
        journal.append("c_talk", [words("more")])
        journal.append("c_new", [ConversationOpened("ada", "s_new"), words("new")])
    second = make_backup(config, folder)
    assert second.conversations == 6
    assert second.written < first.written / 50
    url = new_url("sqlite")
    restore(config_for(url), folder)
    assert read_tables(url) == read_tables(world_url)
    older = new_url("sqlite")
    restore(config_for(older), folder, name=first.name)
    with tenax.open(older, user="ada") as journal:
        assert verify(journal).ok


def test_many_backups_of_a_growing_conversation_restore_it(
    new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    """After many segments, a conversation is written anew as one."""
    url = new_url("sqlite")
    config, folder = config_for(url), tmp_path / "backups"
    with tenax.open(url) as journal:
        journal.append("c_long", [ConversationOpened("local", "s_long")])
        for number in range(70):
            journal.append("c_long", [MessageUser([Text(f"message {number}")])])
            make_backup(config, folder)
    (entry,) = BackupFolder(folder).read(BackupFolder(folder).names()[-1]).conversations
    assert len(entry.segments) < 20
    copy = new_url("sqlite")
    restore(config_for(copy), folder)
    assert read_tables(copy) == read_tables(url)


def test_a_later_backup_has_no_erased_text(
    world_url: str, config_for: ConfigFor, new_url: NewUrl, tmp_path: Path
) -> None:
    config, folder = config_for(world_url), tmp_path / "backups"
    with tenax.open(world_url, user="ada") as journal:
        seq = journal.append("c_talk", [words(SECRET)])[-1].seq
    make_backup(config, folder)
    assert SECRET in everything(folder)
    with tenax.open(world_url, user="ada") as journal:
        journal.erase("c_talk", [seq], by="person", why="")
    backup = make_backup(config, folder)
    assert (backup.erased, backup.earlier) == (1, 1)
    assert SECRET in everything(folder), "the earlier backup still holds the text"
    pruned = make_backup(config, folder, keep=1)
    assert (pruned.earlier, pruned.pruned) == (0, 2)
    assert SECRET not in everything(folder)
    url = new_url("sqlite")
    restore(config_for(url), folder)
    assert read_tables(url) == read_tables(world_url)


def everything(folder: Path) -> str:
    """Return all texts in a backup folder."""
    backups = BackupFolder(folder)
    found = []
    for file in (folder / "objects").glob("*/*"):
        try:
            found.append(backups.read_object(file.name).decode(errors="replace"))
        except StoreDamaged:
            found.append(file.read_bytes().decode(errors="replace"))
    return "".join(found)


def test_only_the_owner_can_read_a_backup(
    world_url: str, config_for: ConfigFor, tmp_path: Path
) -> None:
    make_backup(config_for(world_url), tmp_path / "backups")
    for path in [tmp_path / "backups", *(tmp_path / "backups").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert not (tmp_path / "backups" / "scratch").exists()


def test_files_beside_the_store_come_back(
    new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    url = new_url("sqlite")
    tenax.open(url).close()
    config = config_for(url)
    home = config.directories.data
    (home / "config.toml").write_text(
        '[store]\nurl = "postgresql://ada:hunter2@db/tenax"\n[backup]\nkeep = 3\n'
    )
    (home / "secrets.toml").write_text('main = "sk-secret"\n')
    (home / "skills" / "tides").mkdir(parents=True)
    (home / "skills" / "tides" / "SKILL.md").write_text("Tides.")
    folder = tmp_path / "backups"
    make_backup(config, folder, passphrase="open")
    text = everything(folder)
    assert "hunter2" not in text
    assert "sk-secret" not in text
    new = config_for(new_url("sqlite"))
    with pytest.raises(InvalidInput, match="passphrase does not open"):
        restore(new, folder, passphrase="wrong")
    done = restore(new, folder, passphrase="open")
    there = new.directories.data
    assert (there / "secrets.toml").read_text() == 'main = "sk-secret"\n'
    assert (there / "secrets.toml").stat().st_mode & 0o077 == 0
    assert (there / "config.toml").read_text() == "[store]\n[backup]\nkeep = 3\n"
    assert (there / "skills/tides/SKILL.md").read_text() == "Tides."
    assert done.left == []


def test_files_that_exist_are_left_as_they_are(
    new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    url = new_url("sqlite")
    tenax.open(url).close()
    config = config_for(url)
    config.file.write_text("[backup]\nkeep = 3\n")
    make_backup(config, tmp_path / "backups")
    new = config_for(new_url("sqlite"))
    new.file.write_text("[backup]\nkeep = 9\n")
    done = restore(new, tmp_path / "backups")
    assert done.left == [str(new.file)]
    assert new.file.read_text() == "[backup]\nkeep = 9\n"


def test_a_path_outside_the_folders_is_refused(
    new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    """A manifest of somebody else cannot write anywhere."""
    url = new_url("sqlite")
    tenax.open(url).close()
    folder = tmp_path / "backups"
    name = make_backup(config_for(url), folder).name
    backups = BackupFolder(folder)
    evil = backups.write_bytes([b"evil"])
    manifest = msgspec.structs.replace(
        backups.read(name), files=(File("data/../../evil", 0o600, evil),)
    ).sealed()
    (folder / "backups" / f"{name}.json").write_bytes(msgspec.json.encode(manifest))
    new = config_for(new_url("sqlite"))
    with pytest.raises(InvalidInput, match="invalid path"):
        restore(new, folder)
    assert not list(tmp_path.rglob("evil"))


def test_damage_is_found_and_the_next_backup_repairs_it(
    world_url: str, config_for: ConfigFor, new_url: NewUrl, tmp_path: Path
) -> None:
    config, folder = config_for(world_url), tmp_path / "backups"
    name = make_backup(config, folder).name
    entry = BackupFolder(folder).read(name).conversations[0]
    file = folder / "objects" / entry.segments[0][:2] / entry.segments[0]
    file.write_bytes(file.read_bytes()[:-9] + b"012345678")
    url = new_url("sqlite")
    with pytest.raises(StoreDamaged, match="part of the backup is damaged"):
        restore(config_for(url), folder)
    assert not Path(url.removeprefix("sqlite:///")).exists()
    make_backup(config, folder)
    restore(config_for(url), folder)
    assert read_tables(url) == read_tables(world_url)


def test_a_changed_manifest_is_refused(
    world_url: str, config_for: ConfigFor, new_url: NewUrl, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    name = make_backup(config_for(world_url), folder).name
    file = folder / "backups" / f"{name}.json"
    manifest = json.loads(file.read_bytes())
    manifest["conversations"].pop()
    file.write_text(json.dumps(manifest))
    with pytest.raises(StoreDamaged, match="root hash is wrong"):
        restore(config_for(new_url("sqlite")), folder)


def test_a_damaged_store_is_not_backed_up_as_whole(
    config_for: ConfigFor, new_url: NewUrl, tmp_path: Path
) -> None:
    """The test of the backup finds the damage of the store. No backup is listed."""
    url = new_url("sqlite")
    with tenax.open(url) as journal:
        journal.append("c", [ConversationOpened("local", "s"), words("hello")])
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("update events set body = x'7878' where kind = 'message.user'")
    connection.close()
    with pytest.raises(StoreDamaged, match="problem"):
        make_backup(config_for(url), tmp_path / "backups")
    assert BackupFolder(tmp_path / "backups").names() == []


def test_a_place_with_a_store_is_refused(
    world_url: str, config_for: ConfigFor, tmp_path: Path
) -> None:
    make_backup(config_for(world_url), tmp_path / "backups")
    before = read_tables(world_url)
    with pytest.raises(InvalidInput, match="There is a store already"):
        restore(config_for(world_url), tmp_path / "backups")
    assert read_tables(world_url) == before


def test_what_cannot_be_done_is_said(
    new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    config = config_for(new_url("sqlite"))
    with pytest.raises(NoSuchConversation, match="no store to back up"):
        make_backup(config, tmp_path / "backups")
    with pytest.raises(InvalidInput, match="There is no backup in"):
        restore(config, tmp_path / "nothing")
    tenax.open(config.store_url).close()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.png").write_bytes(b"")
    with pytest.raises(InvalidInput, match="has other files in it"):
        make_backup(config, tmp_path / "pictures")


def test_nothing_is_delivered_again_after_a_restore(
    new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    url = new_url("sqlite")
    with tenax.open(url) as journal:
        journal.append("c", [ConversationOpened("local", "s"), words("hello")])
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    for piece, state in enumerate(("waiting", "sending", "placed", "delivered")):
        connection.execute(
            "insert into deliveries values ('telegram:1', '7', '', 'a:1:2', ?, 1, 2, ?, 'k', '', '', 0, 0, 0, '', 5)",
            (piece, state),
        )
    connection.execute(
        "insert into route_cursors values (1, 'telegram:1', '7', '', 1, 0)"
    )
    connection.close()
    make_backup(config_for(url), tmp_path / "backups")
    copy = new_url("sqlite")
    restore(config_for(copy), tmp_path / "backups")
    tables = read_tables(copy)
    assert [row["state"] for row in tables["deliveries"]] == [
        "uncertain", "uncertain", "uncertain", "delivered",
    ]  # fmt: skip
    assert [row["seq"] for row in tables["route_cursors"]] == [2]


def test_a_backup_of_an_older_schema_is_migrated_on_restore(
    new_url: NewUrl, config_for: ConfigFor, tmp_path: Path
) -> None:
    """The tables are created as they were, and migrated afterwards."""
    with on_the_same_host():
        place = copy_of("sqlite", tmp_path, "")
        backup = make_backup(config_for(place.url), tmp_path / "backups")
        manifest = BackupFolder(tmp_path / "backups").read(backup.name)
        assert manifest.schema < SCHEMA_VERSION
        url = new_url("sqlite")
        restore(config_for(url), tmp_path / "backups")
        with tenax.open(url) as journal:
            assert verify(journal).ok


def test_a_snapshot_leaves_the_files_of_a_store_as_they_are(tmp_path: Path) -> None:
    """A copy of a store with its log, as after a crash: nothing is copied back, and nothing is deleted."""
    url = f"sqlite:///{tmp_path}/tenax.db"
    copied = tmp_path / "copy"
    copied.mkdir()
    with tenax.open(url) as journal:
        journal.append("c", [ConversationOpened("local", "s"), words("hello")])
        for suffix in ("", "-wal"):
            data = (tmp_path / f"tenax.db{suffix}").read_bytes()
            (copied / f"tenax.db{suffix}").write_bytes(data)
    before = {file.name: file.read_bytes() for file in copied.iterdir()}
    assert before["tenax.db-wal"]
    with contextlib.closing(open_snapshot(f"sqlite:///{copied}/tenax.db")) as snapshot:
        assert len(list(snapshot.rows(TABLES[0]))) == 1
    after = {name: (copied / name).read_bytes() for name in before}
    assert after == before


def test_an_empty_file_keeps_its_log(tmp_path: Path) -> None:
    path = tmp_path / "tenax.db"
    path.write_bytes(b"x")
    log = tmp_path / "tenax.db-wal"
    log.write_bytes(b"the only copy")
    with pytest.raises(StoreDamaged, match="is empty"):
        open_snapshot(f"sqlite:///{path}")
    assert log.read_bytes() == b"the only copy"
