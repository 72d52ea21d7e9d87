"""Collect the facts about an installation. Nothing is created, and no server is asked."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

import msgspec

from tenax.agent.skills import Skills
from tenax.archive.format import BackupFolder
from tenax.channels.rows import OPEN_STATES, ChannelRows
from tenax.channels.states import AccountState, read_states
from tenax.clock import rfc3339
from tenax.config import Config, hide_password
from tenax.doctor.findings import (
    DISK_BYTES_MIN,
    Alive,
    BackupState,
    Directories,
    Disk,
    Findings,
    MemoryOwed,
    Owed,
    Store,
    count_failed_deliveries,
)
from tenax.doctor.verified import read_verified
from tenax.errors import TenaxError
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.copying import sqlite_path
from tenax.journal.schema import SCHEMA_VERSION
from tenax.journal.spool import unsent
from tenax.journal.verify.store import UNREADABLE, Problem, engine_of, unreadable
from tenax.tools.folders import folder_of, folders_of_users
from tenax.tools.shell.sandbox import Sandbox

__all__ = ["add_store", "begin_findings", "broken_skills"]


def begin_findings(config: Config) -> Findings:
    """Return the facts that need no store."""
    verified = read_verified(config, LOCAL_USER)
    return Findings(
        tenax=_version(),
        python=platform.python_version(),
        places=Directories(
            config=str(config.file),
            data=str(config.directories.data),
            state=str(config.directories.state),
            store=hide_password(config.store_url),
            folder=str(folder_of(config, LOCAL_USER)),
            users={
                name: str(folder) for name, folder in folders_of_users(config).items()
            },
        ),
        locked=dict(config.locked),
        sandbox=Sandbox().why_not(),
        skills=broken_skills(config),
        backup=_find_backup(config),
        model=config.model or "",
        disks=_find_disks(config),
        verified_before=verified.at if verified is not None else "",
    )


def add_store(findings: Findings, config: Config, journal: Journal) -> None:
    """Add the facts of the open store. A damaged row becomes a problem."""
    try:
        alive = [instance for instance in journal.instances() if instance.alive]
    except UNREADABLE as error:
        alive = []
        _add_problem(findings, "The running processes cannot be listed", error)
    findings.store = Store(
        engine_of(journal),
        SCHEMA_VERSION,
        journal.incarnation,
        [
            Alive(instance.id, instance.host, rfc3339(instance.started_at))
            for instance in alive
        ],
        journal.store.failover(),
    )
    try:
        findings.chat_apps = read_states(config, ChannelRows(journal))
    except UNREADABLE as error:
        _add_problem(findings, "The state of the chat apps cannot be read", error)
    findings.missing = journal.missing
    try:
        findings.owed = _find_owed(config, journal, findings.chat_apps)
    except UNREADABLE as error:
        _add_problem(findings, "The unfinished work cannot be read", error)


def broken_skills(config: Config) -> dict[str, str]:
    """Return the unusable skill folders, with the reason."""
    skills = Skills(config.directories.data / "skills", config.tools_folder).all()
    return {
        str(skill.root.joinpath(*skill.parts)): skill.problem
        for skill in skills
        if skill.problem
    }


def _add_problem(findings: Findings, what: str, error: Exception) -> None:
    sentence = f"{what}: {unreadable(error)}"
    findings.problems = [*findings.problems, Problem(None, None, None, sentence)]


def _version() -> str:
    try:
        return metadata.version("tenax")
    except metadata.PackageNotFoundError:
        return "from source"


def _find_backup(config: Config) -> BackupState:
    folder = BackupFolder(config.backup_folder)
    names = folder.names()
    if not names:
        return BackupState(str(folder.path), every=config.backup.every)
    at = error = ""
    try:
        at = folder.read(names[-1]).created_at
    except TenaxError as damage:
        error = str(damage)
    return BackupState(
        str(folder.path), names[-1], at, len(names), error, config.backup.every
    )


def _find_owed(config: Config, journal: Journal, accounts: list[AccountState]) -> Owed:
    asking = journal.store.query("owed_answers", owner=LOCAL_USER)
    counts: dict[str, MemoryOwed] = {}
    for reader, behind, letters in journal.store.query("owed_memory"):
        # memory:NAME:sync or memory:NAME:commit
        prefix, _, rest = str(reader).partition(":")
        provider, separator, _ = rest.rpartition(":")
        if prefix == "memory" and separator:
            have = counts.get(provider, MemoryOwed(provider))
            counts[provider] = MemoryOwed(
                provider,
                # A conversation may owe turns and an end.
                max(have.conversations, int(behind)),
                have.letters + int(letters),
            )
    return Owed(
        approvals=len(asking),
        approval=str(asking[0][0]) if asking else "",
        waiting=sum(
            account.counts.get(state, 0)
            for account in accounts
            for state in OPEN_STATES
        ),
        failed=count_failed_deliveries(accounts),
        memory=[counts[provider] for provider in sorted(counts)],
        spools=_find_spools(config),
    )


def _find_spools(config: Config) -> list[str]:
    try:
        return [str(path) for path in unsent(config.directories.data / "spool")]
    except OSError:
        return []


def _find_disks(config: Config) -> list[Disk]:
    """Return the disks of the data, the store and the backups, each disk once."""
    store = sqlite_path(config.store_url)
    size = _size(store) if store is not None else 0
    places = {
        "data": (config.directories.data, DISK_BYTES_MIN),
        "backups": (config.backup_folder, DISK_BYTES_MIN + size),
    }
    if store is not None:
        places["store"] = (store.parent, DISK_BYTES_MIN)
    found: dict[int, Disk] = {}
    for name, (path, needed) in places.items():
        folder = _existing(path)
        try:
            device, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        except OSError:
            continue
        disk = found.get(device)
        if disk is None:
            disk = Disk(str(folder), usage.free, usage.total, needed, [])
        found[device] = msgspec.structs.replace(
            disk, needed=max(disk.needed, needed), holds=[*disk.holds, name]
        )
    return list(found.values())


def _existing(path: Path) -> Path:
    """Return the folder, or the nearest parent folder that exists."""
    return next(
        (folder for folder in (path, *path.parents) if os.access(folder, os.F_OK)), path
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
