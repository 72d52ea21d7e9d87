"""Back up, restore and move the store of an installation."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tenax.archive.backup import About, write_backup
from tenax.archive.files import collect_files, put_files, spool_owners
from tenax.archive.format import BackupFolder, DamagedBackup, Manifest
from tenax.archive.restore import (
    add_dead_instance,
    conversations_of,
    fill,
    finish_index,
    prove,
    settle,
    settle_in,
)
from tenax.clock import Clock, SystemClock, rfc3339
from tenax.concurrency import locked
from tenax.config import Config, hide_password
from tenax.errors import InvalidInput, NoSuchConversation, StoreDamaged
from tenax.journal import Journal, NewStore, exists, open_snapshot
from tenax.journal import open as open_journal
from tenax.journal.base import Instance
from tenax.journal.copying import Filler, Snapshot, sqlite_path
from tenax.journal.spool import owner_of
from tenax.journal.tables import TABLES
from tenax.journal.verify.store import verify
from tenax.text import count_noun

if TYPE_CHECKING:
    from tenax.journal.store import Tx

__all__ = [
    "Adopted",
    "Backup",
    "Moved",
    "Restored",
    "adopt",
    "back_up",
    "move",
    "restore",
]

Report = Callable[[str, int, int], None]
"""Called with the name of the step, the number of finished conversations, and the number of all of them."""
_LOCK_SECONDS: Final = 5.0
_STOP_TO_MOVE: Final = "Stop it first: the old store must not change during the move."
_STOP_TO_ADOPT: Final = "Stop it first."
_LOOK_SECONDS: Final = 0.5


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


class Adopted(NamedTuple):
    """A store that was restored by other means."""

    conversations: int
    events: int
    missing: list[str]
    """The events that this host has seen in the store and that the store lacks, in words."""


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
                store,
                folder,
                manifest,
                _step(report, "restoring"),
                clock,
                restoring=True,
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
    restoring: bool = False,
) -> int:
    """Fill and verify a new store. Return the number of events."""
    filler = store.begin(manifest.schema, clock)
    with contextlib.closing(filler):
        fill(filler, folder, manifest, progress)
        filler.finish()
    with open_journal(store.url, user=None) as journal:
        finish_index(journal, manifest)
        if restoring:
            settle(journal, spool_owners(manifest))
        with contextlib.closing(open_snapshot(store.url)) as snapshot:
            return prove(journal, iter(manifest.conversations), snapshot)


# -- adopt -----------------------------------------------------------------------------------


def adopt(config: Config) -> Adopted:
    """Make the store of the settings usable after a restore by other means, such as a copied file or `pg_restore`.

    The store is verified first; a damaged store is not changed. Then one transaction removes what belongs to the old
    processes, starts a new incarnation, and lets nothing be sent twice.
    """
    if not exists(config.store_url):
        raise NoSuchConversation("There is no store to adopt.")
    with open_journal(
        config.store_url,
        user=None,
        witness=config.directories.witness,
        timing=config.timing,
    ) as journal:
        _wait_until_unused(config, journal)
        report = verify(journal)
        if not report.ok:
            raise StoreDamaged(
                f"The store was not changed: it has {count_noun(len(report.problems), 'problem')}. "
                f"The first one: {report.problems[0]}",
                hint="Restore another copy of the store. All problems: tenax doctor",
            )
        missing = [str(loss) for loss in journal.missing]
        spools = {
            owner_of(file.parent.name)
            for file in (config.directories.data / "spool").glob("*/spool")
        }
        journal.store.change(partial(_adopt, journal, spools), even_incomplete=True)
        # The file beside the store that knows the lost events is written last. Until then the store is read-only.
        journal.store.accept_loss()
    return Adopted(report.conversations, report.facts, missing)


def _wait_until_unused(config: Config, journal: Journal) -> None:
    """Wait until no other process uses the store. Raises `InvalidInput` after `adopt_seconds`.

    A PostgreSQL server that has just started gives the processes from before 15 seconds to come back. A restored
    database begins in the same way.
    """
    waits = sqlite_path(config.store_url) is None
    end = monotonic() + (config.timing.adopt_seconds if waits else 0.0)
    while True:
        try:
            _refuse_alive(journal, journal.instances(), _STOP_TO_ADOPT)
        except InvalidInput:
            if monotonic() >= end:
                raise
            sleep(_LOOK_SECONDS)
        else:
            return


def _adopt(journal: Journal, spools: set[str], tx: Tx) -> None:
    store = journal.store
    store.lock_all(tx)
    instances = [
        msgspec.structs.replace(
            instance,
            alive=instance.ended_at is None and store.alive(tx, instance.id),
        )
        for instance in (Instance(*row) for row in tx.run("instances"))
    ]
    _refuse_alive(journal, instances, _STOP_TO_ADOPT)
    tx.run("drop_leases")
    for instance in instances:
        tx.run("drop_instance", {"id": instance.id})
    for owner in spools:
        add_dead_instance(tx, owner, journal.clock.now_us())
    settle_in(tx)
    incarnation = journal.ids.append().hex()
    tx.run("set_incarnation", {"incarnation": incarnation, "life": store.boot})


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
        _refuse_alive(journal, journal.instances(), _STOP_TO_MOVE)


def _refuse_alive(journal: Journal, instances: list[Instance], hint: str) -> None:
    for instance in instances:
        if instance.alive and instance.id != journal.store.instance:
            since = rfc3339(instance.started_at)[:16].replace("T", " ")
            raise InvalidInput(
                f"Tenax is running on {instance.host} since {since} UTC, and uses the store.",
                hint=hint,
            )


def _step(report: Report | None, name: str) -> Callable[[int, int], None] | None:
    if report is None:
        return None
    return lambda done, of: report(name, done, of)
