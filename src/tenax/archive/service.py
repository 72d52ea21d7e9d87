"""Back up, restore and move the store of an installation."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tenax.archive.backup import About, write_backup
from tenax.archive.files import collect_files, put_files
from tenax.archive.format import BackupFolder, DamagedBackup, Manifest
from tenax.archive.restore import (
    conversations_of,
    fill,
    finish_index,
    prove,
    settle_deliveries,
)
from tenax.clock import Clock, SystemClock, rfc3339
from tenax.concurrency import locked
from tenax.config import Config, hide_password
from tenax.errors import InvalidInput, NoSuchConversation
from tenax.journal import NewStore, exists, open_snapshot
from tenax.journal import open as open_journal
from tenax.journal.copying import Filler, Snapshot, sqlite_path
from tenax.journal.tables import TABLES

__all__ = ["Backup", "Moved", "Restored", "back_up", "move", "restore"]

Report = Callable[[str, int, int], None]
"""Called with the name of the step, the number of finished conversations, and the number of all of them."""
_LOCK_SECONDS: Final = 5.0


class Backup(NamedTuple):
    """A tested backup."""

    name: str
    conversations: int
    events: int
    attachments: int
    written: int
    """Bytes written by this backup."""
    erased: int
    """Conversations that lost text or were deleted since the earlier backup; earlier backups still hold the text."""
    earlier: int
    """The number of earlier backups that are kept."""
    pruned: int
    same_disk: bool
    """Whether the backup is on the disk of the store."""


class Restored(NamedTuple):
    """A restored store."""

    name: str
    conversations: int
    events: int
    left: list[str]
    """Files that existed already, and were left as they are."""
    needs_passphrase: bool


class Moved(NamedTuple):
    """A moved store."""

    conversations: int
    events: int


# -- backup ----------------------------------------------------------------------------------


def back_up(
    config: Config,
    path: Path,
    *,
    keep: int | None,
    version: str,
    passphrase: str | None = None,
    report: Report | None = None,
    clock: Clock | None = None,
) -> Backup:
    """Write a backup, and test the backup in a scratch place. Then delete older backups than the `keep` newest."""
    if not exists(config.store_url):
        raise NoSuchConversation("There is no store to back up yet.")
    clock = clock or SystemClock()
    folder = BackupFolder(path)
    folder.create()
    with _exclusive(path):
        try:
            return _back_up(config, folder, keep, version, passphrase, report, clock)
        except DamagedBackup as damaged:
            # An object of an earlier backup is damaged. Without the object, everything is written anew.
            folder.forget(damaged.name)
            return _back_up(config, folder, keep, version, passphrase, report, clock)


def _back_up(
    config: Config,
    folder: BackupFolder,
    keep: int | None,
    version: str,
    passphrase: str | None,
    report: Report | None,
    clock: Clock,
) -> Backup:
    # The spool first: what moves from the spool to the store meanwhile is then in both, and is stored once.
    files = collect_files(config, folder, passphrase)
    about = About(rfc3339(clock.now_us()), version, files, passphrase is not None)
    with contextlib.closing(open_snapshot(config.store_url)) as snapshot:
        written = write_backup(
            snapshot, folder, folder.latest(), about, _step(report, "copying")
        )
    manifest = written.manifest
    events = _test(folder, manifest, report, clock)
    name = folder.commit(manifest)
    pruned = folder.prune(keep)[0] if keep is not None else 0
    return Backup(
        name=name,
        conversations=len(manifest.conversations),
        events=events,
        attachments=len(manifest.blobs),
        written=folder.written,
        erased=written.erased,
        earlier=len(folder.names()) - 1,
        pruned=pruned,
        same_disk=_is_same_disk(config.store_url, folder.path),
    )


def _test(
    folder: BackupFolder, manifest: Manifest, report: Report | None, clock: Clock
) -> int:
    """Restore and verify a backup in a scratch place. Return the number of events. Raises `StoreDamaged`."""
    scratch = folder.path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    try:
        store = NewStore(f"sqlite:///{scratch / 'tenax.db'}")
        return _fill(store, folder, manifest, _step(report, "testing"), clock)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_same_disk(url: str, path: Path) -> bool:
    store = sqlite_path(url)
    with contextlib.suppress(OSError):
        return store is not None and store.stat().st_dev == path.stat().st_dev
    return False


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    try:
        with locked(path / "lock", _LOCK_SECONDS):
            yield
    except TimeoutError as error:
        raise InvalidInput(
            f"Another process uses the backups in {path}.", hint="Try again later."
        ) from error


# -- restore ---------------------------------------------------------------------------------


def restore(
    config: Config,
    path: Path,
    *,
    name: str | None = None,
    passphrase: str | None = None,
    report: Report | None = None,
    clock: Clock | None = None,
) -> Restored:
    """Restore a backup into the empty place of the settings. Nothing is visible before everything is verified."""
    clock = clock or SystemClock()
    folder = BackupFolder(path)
    names = folder.names()
    if not names:
        raise InvalidInput(f"There is no backup in {path}.")
    name = name or names[-1]
    manifest = folder.read(name)
    _refuse_store(config.store_url)
    store = NewStore(config.store_url)
    with _exclusive(path):
        _make_parent(config.store_url)
        try:
            events = _fill(
                store, folder, manifest, _step(report, "restoring"), clock, settle=True
            )
            left = put_files(config, folder, manifest, passphrase)
        except BaseException:
            store.discard()
            raise
        _refuse_store(config.store_url)
        store.publish()
    return Restored(
        name,
        len(manifest.conversations),
        events,
        left,
        manifest.has_secrets and passphrase is None,
    )


def _refuse_store(url: str) -> None:
    if exists(url):
        raise InvalidInput(
            f"There is a store already: {hide_password(url)}.",
            hint="Move it away, or set another place: store.url in the settings, or TENAX_STORE.",
        )


def _make_parent(url: str) -> None:
    path = sqlite_path(url)
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _fill(
    store: NewStore,
    folder: BackupFolder,
    manifest: Manifest,
    progress: Callable[[int, int], None] | None,
    clock: Clock,
    *,
    settle: bool = False,
) -> int:
    """Fill and verify a new store. Return the number of events."""
    filler = store.begin(manifest.schema, clock)
    with contextlib.closing(filler):
        fill(filler, folder, manifest, progress)
        if settle:
            settle_deliveries(filler, manifest)
        filler.finish()
    with open_journal(store.url, user=None) as journal:
        finish_index(journal, manifest)
        with contextlib.closing(open_snapshot(store.url)) as snapshot:
            return prove(journal, iter(manifest.conversations), snapshot)


# -- move ------------------------------------------------------------------------------------


def move(
    config: Config,
    url: str,
    *,
    switch: Callable[[], None],
    report: Report | None = None,
    clock: Clock | None = None,
) -> Moved:
    """Copy the store to an empty place at `url`, row by row, and verify the copy. Then call `switch`.

    No process can write to the old store meanwhile. The old store stays as it is.
    """
    _refuse_running(config)
    if exists(url):
        raise InvalidInput(
            f"There is a store already: {hide_password(url)}.",
            hint="Name an empty place.",
        )
    clock = clock or SystemClock()
    store = NewStore(url)
    with contextlib.closing(open_snapshot(config.store_url, hold=True)) as snapshot:
        _make_parent(url)
        try:
            filler = store.begin(snapshot.schema, clock)
            with contextlib.closing(filler):
                _copy(snapshot, filler, report)
                filler.finish()
            expected = list(conversations_of(snapshot))
            with (
                open_journal(store.url, user=None) as journal,
                contextlib.closing(open_snapshot(store.url)) as copied,
            ):
                events = prove(journal, iter(expected), copied)
        except BaseException:
            store.discard()
            raise
        store.publish()
        switch()
    return Moved(len(expected), events)


def _copy(snapshot: Snapshot, filler: Filler, report: Report | None) -> None:
    tables = [table for table in TABLES if snapshot.has(table.name)]
    for count, table in enumerate(tables):
        if report is not None:
            report("copying tables", count, len(tables))
        filler.insert(table.name, snapshot.columns(table.name), snapshot.rows(table))


def _refuse_running(config: Config) -> None:
    """Raises `InvalidInput` if a process uses the store."""
    if not exists(config.store_url):
        raise NoSuchConversation("There is no store to move yet.")
    with open_journal(
        config.store_url, user=None, witness=config.directories.witness
    ) as journal:
        for instance in journal.instances():
            if instance.alive and instance.id != journal.store.instance:
                since = rfc3339(instance.started_at)[:16].replace("T", " ")
                raise InvalidInput(
                    f"Tenax is running on {instance.host} since {since} UTC, and uses the store.",
                    hint="Stop it first: the old store must not change during the move.",
                )


def _step(report: Report | None, name: str) -> Callable[[int, int], None] | None:
    if report is None:
        return None
    return lambda done, of: report(name, done, of)
