"""The facts about an installation, and the resulting issues."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from tenax.channels.rows import FAILED_STATES
from tenax.channels.states import AccountState
from tenax.config import Config
from tenax.journal.verify.store import Problem
from tenax.journal.witness import Missing
from tenax.schedules.parse import describe_duration
from tenax.text import count_noun, to_one_line

__all__ = [
    "Alive",
    "BackupState",
    "Directories",
    "Disk",
    "Findings",
    "Issue",
    "MemoryOwed",
    "ModelState",
    "Owed",
    "State",
    "Store",
    "command_of",
    "find_issues",
]

Level = Literal["problem", "warning"]
State = Literal["answers", "key", "away", "refused"]
"""answers: the server answers.
key: the key is missing, or the server refuses it.
away: the server cannot be reached, or does not answer.
refused: the server answers with another error."""
_LATE: Final = {
    "never": timedelta(days=7),
    "day": timedelta(days=2),
    "week": timedelta(days=9),
}
"""By the value of backup.every, the age from which a backup is too old."""
DISK_BYTES_MIN: Final = 500_000_000


class Issue(msgspec.Struct, frozen=True):
    """A task for the person.

    A problem is about stored messages: messages are damaged or missing, or the store is unusable. Other issues are
    warnings.
    """

    level: Level
    about: str
    text: str
    command: str
    """The command for solving the issue; empty if the text is sufficient."""


class Alive(msgspec.Struct, frozen=True):
    """A running Tenax."""

    id: str
    host: str
    since: str


class Directories(msgspec.Struct, frozen=True):
    """The folders and the store."""

    config: str
    data: str
    state: str
    store: str
    folder: str
    """The tools folder of the local user."""
    users: dict[str, str]
    """The tools folders of the other users, by name."""


class Store(msgspec.Struct, frozen=True):
    """The properties of an open store."""

    engine: str
    schema: int
    incarnation: str
    instances: list[Alive]
    failover: str = ""
    """The possible loss in a failover of the server; empty for a server without loss."""


class BackupState(msgspec.Struct, frozen=True):
    """The newest backup in the folder of the settings. Every backup was restored and verified."""

    folder: str
    name: str = ""
    at: str = ""
    count: int = 0
    error: str = ""
    every: str = "never"


class ModelState(msgspec.Struct, frozen=True):
    """The answer of the server of a configured model."""

    label: str
    name: str
    server: str
    """The host of the server, empty for a model on this machine."""
    state: State
    detail: str = ""


class Disk(msgspec.Struct, frozen=True):
    """A disk with files of Tenax. A folder for backups needs room for a further copy of the store."""

    path: str
    free: int
    total: int
    needed: int
    """The recommended number of free bytes."""
    holds: list[str]
    """`data`, `store` or `backups`."""


class MemoryOwed(msgspec.Struct, frozen=True):
    """The undelivered turns of a memory provider."""

    provider: str
    conversations: int = 0
    """The number of conversations with undelivered turns or ends. A running Tenax delivers the turns."""
    letters: int = 0
    """The number of failed deliveries."""


class Owed(msgspec.Struct, frozen=True):
    """Unfinished work."""

    approvals: int = 0
    """The number of conversations of the owner with a call that waits for an approval."""
    approval: str = ""
    """The last changed conversation with such a call."""
    waiting: int = 0
    """The number of messages on their way to chat apps."""
    failed: int = 0
    """The number of uncertain and dead messages."""
    memory: list[MemoryOwed] = []
    spools: list[str] = []
    """Folders with output of dead processes that the store lacks."""


class Findings(msgspec.Struct, kw_only=True):
    """The output of `tenax doctor --json`."""

    ok: bool = True
    tenax: str
    python: str
    places: Directories
    locked: dict[str, str]
    sandbox: str
    """The reason for running commands without a sandbox; empty with a sandbox."""
    skills: dict[str, str]
    """By unusable skill folder, the reason."""
    chat_apps: list[AccountState] = []
    backup: BackupState
    store: Store | None = None
    missing: list[Missing] = []
    """Stored events missing now."""
    accepted: bool = False
    """Whether the loss was accepted with `--accept`."""
    checked: dict[str, int] | None = None
    problems: list[Problem] = []
    complete: bool = True
    error: str | None = None
    model: str = ""
    """The label of the model that answers by default; empty if none is chosen."""
    models: list[ModelState] = []
    owed: Owed = Owed()
    disks: list[Disk] = []
    verified_before: str = ""
    """The time of the last verification of the whole store on this host, or empty."""
    issues: list[Issue] = []


def command_of(config: Config, program: str = "tenax") -> str:
    """Return the beginning of a command for the installation of the settings."""
    profile = f" --profile {shlex.quote(config.profile)}" if config.profile else ""
    return f"{program}{profile}"


def find_issues(findings: Findings, now: datetime, program: str) -> list[Issue]:
    """Return the issues, problems first. `program` is the beginning of a command, such as `tenax`."""
    issues = [
        *_store_issues(findings, program),
        *_backup_issues(findings, now, program),
        *_model_issues(findings, program),
        *_chat_issues(findings, program),
        *_owed_issues(findings.owed, program),
        *_place_issues(findings, program),
    ]
    return sorted(issues, key=_is_warning)


def _is_warning(issue: Issue) -> bool:
    return issue.level == "warning"


def _store_issues(findings: Findings, program: str) -> Iterator[Issue]:
    backup = findings.backup
    save = (
        f"{program} restore {shlex.quote(backup.folder)}"
        if backup.name
        else f"{program} export --all"
    )
    if findings.error is not None:
        yield Issue("problem", "store", findings.error, f"{program} restore --help")
    if findings.missing and not findings.accepted:
        lost = count_noun(len(findings.missing), "conversation")
        text = f"Stored messages are missing in {lost}. Restore a newer copy, or continue without them:"
        yield Issue("problem", "store", text, f"{program} doctor --accept")
    if findings.problems:
        count = count_noun(len(findings.problems), "problem")
        text = f"The verification found {count}. Where a problem names no command of its own: "
        text += (
            "move the store away and restore a backup:"
            if backup.name
            else "there is no backup; save what can be read:"
        )
        yield Issue("problem", "store", text, save)


def _backup_issues(findings: Findings, now: datetime, program: str) -> Iterator[Issue]:
    backup, command = findings.backup, f"{program} backup"
    if backup.error:
        text = f"The newest backup cannot be used: {backup.error}"
        yield Issue("warning", "backup", text, command)
    elif not backup.name:
        if findings.store is not None:
            yield Issue("warning", "backup", "There is no backup.", command)
    else:
        age = now - datetime.fromisoformat(backup.at)
        if age > _LATE[backup.every]:
            text = f"The newest backup is {describe_duration(int(age.total_seconds()))} old"
            if backup.every != "never":
                text += (
                    f", although backup.every is {backup.every!r}: no server made one"
                )
            yield Issue("warning", "backup", f"{text}.", command)


def _model_issues(findings: Findings, program: str) -> Iterator[Issue]:
    command = f"{program} setup"
    if not findings.model:
        yield Issue("warning", "model", "No model is set up.", command)
    for model in findings.models:
        if model.state != "answers":
            text = f"{model.label} ({to_one_line(model.name)}): {model.detail}"
            missing = command if model.name != "practice" else f"{command} --practice"
            yield Issue("warning", "model", text, missing)


def _chat_issues(findings: Findings, program: str) -> Iterator[Issue]:
    for account in findings.chat_apps:
        if account.state in {"starting", "connected"}:
            continue
        text = f"{account.label} is {account.state}. {account.error}".strip()
        command = f"{program} serve"
        if account.state in {"refused", "broken"}:
            command = (
                f"{program} channel add {account.platform} --label {account.label}"
            )
        elif account.state != "off":
            command = f"{program} channel"
        yield Issue("warning", "chat_apps", text, command)
    if findings.owed.failed:
        count = count_noun(findings.owed.failed, "message")
        text = f"{count} to chat apps may not have arrived."
        yield Issue("warning", "chat_apps", text, f"{program} channel failed")


def _owed_issues(owed: Owed, program: str) -> Iterator[Issue]:
    if owed.approvals:
        text = f"{count_noun(owed.approvals, 'conversation')} wait for your answer."
        if owed.approvals == 1:
            text = "1 conversation waits for your answer."
        yield Issue("warning", "approvals", text, f"{program} -c {owed.approval}")
    for memory in owed.memory:
        if memory.letters:
            text = f"The memory provider {memory.provider} did not get {memory.letters:,} of your turns."
            yield Issue(
                "warning", "memory", text, f"{program} memory retry {memory.provider}"
            )
    if owed.spools:
        count = count_noun(len(owed.spools), "stopped server")
        text = f"Output of {count} is not in the store yet. A server stores it."
        yield Issue("warning", "spool", text, f"{program} serve")


def _place_issues(findings: Findings, program: str) -> Iterator[Issue]:
    for disk in findings.disks:
        if disk.free < disk.needed:
            text = f"{disk.path} has {megabytes(disk.free)} free; {megabytes(disk.needed)} are needed."
            command = f"du -xhd1 {shlex.quote(disk.path)}"
            if "backups" in disk.holds and findings.backup.count > 1:
                text += " Fewer backups take less:"
                command = f"{program} backup --keep 1"
            yield Issue("warning", "disk", text, command)
    if findings.sandbox:
        text = f"{findings.sandbox} Every shell command needs approval."
        missing = "is not installed" in findings.sandbox
        command = "apt install bubblewrap" if missing else ""
        yield Issue("warning", "sandbox", text, command)
    for folder, problem in findings.skills.items():
        yield Issue(
            "warning", "skill", f"{folder} is not used: {problem}", f"{program} skills"
        )


def count_failed_deliveries(accounts: list[AccountState]) -> int:
    return sum(
        account.counts.get(state, 0) for account in accounts for state in FAILED_STATES
    )


def megabytes(count: int) -> str:
    """Return a size for a person."""
    if count >= 10_000_000_000:  # noqa: PLR2004  (10 GB)
        return f"{count / 1e9:,.0f} GB"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"  # noqa: PLR2004
