"""`tenax doctor`: show the folders and versions, and verify the store. Creates nothing."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Final

import click
import msgspec

from tenax.archive.format import BackupFolder
from tenax.channels.rows import ChannelRows
from tenax.channels.states import AccountState, read_states
from tenax.cli.channel import (
    FAILED_COMMAND,
    account_name,
    count_failed,
    describe_state,
    open_rows,
)
from tenax.cli.frame import FAILED, pass_config
from tenax.cli.lines import short_time
from tenax.cli.output import json_option, print_json
from tenax.cli.skills import broken
from tenax.clock import Clock, rfc3339
from tenax.config import Config, hide_password
from tenax.errors import TenaxError
from tenax.journal import LOCAL_USER, Journal, exists
from tenax.journal import open as open_journal
from tenax.journal.base import Instance
from tenax.journal.schema import SCHEMA_VERSION
from tenax.journal.verify.store import (
    UNREADABLE,
    Problem,
    Progress,
    Report,
    engine_of,
    unreadable,
    verify,
)
from tenax.journal.witness import Missing
from tenax.text import to_one_line
from tenax.tools.folders import folder_of, folders_of_users
from tenax.tools.shell.sandbox import Sandbox

__all__ = ["examine"]

NO_STORE: Final = "No store yet. The first conversation creates it."
TELL_SECONDS: Final = 0.2
"""How often a terminal shows the progress."""


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
    """The possible loss in a failover of the server; empty if no loss is possible."""


class BackupState(msgspec.Struct, frozen=True):
    """The newest backup in the folder of the settings. Every backup was restored and verified."""

    folder: str
    name: str = ""
    at: str = ""
    count: int = 0
    error: str = ""


class Findings(msgspec.Struct, kw_only=True):
    """The output of `--json`."""

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


@click.command("doctor")
@click.option(
    "--accept",
    is_flag=True,
    help="Accept that the store lost events, and continue without them.",
)
@json_option
@pass_config
def examine(config: Config, *, accept: bool, as_json: bool) -> int:
    """Show folders and versions, and verify the store. The exit code is 1 if something is wrong."""
    findings = Findings(
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
        skills=broken(config),
        backup=_find_backup(config),
    )
    if not as_json:
        _show_directories(config, findings)
    try:
        _examine_store(config, findings, accept=accept, as_json=as_json)
    except TenaxError as error:
        if not as_json:
            raise
        findings.ok, findings.error = False, str(error)
    if as_json:
        print_json(findings)
    return 0 if findings.ok else FAILED


def _examine_store(
    config: Config, findings: Findings, *, accept: bool, as_json: bool
) -> None:
    """Verify the store and add the result to the findings."""
    if not exists(config.store_url):
        with open_rows(config) as rows:
            findings.chat_apps = read_states(config, rows)
        if not as_json:
            _show_chat_apps(findings.chat_apps)
            click.echo(NO_STORE)
        return
    with open_journal(
        config.store_url,
        user=None,
        witness=config.directories.witness,
        timing=config.timing,
    ) as journal:
        found: list[Problem] = []
        try:
            alive = [instance for instance in journal.instances() if instance.alive]
            listed = [
                Alive(instance.id, instance.host, rfc3339(instance.started_at))
                for instance in alive
            ]
        except UNREADABLE as error:
            alive, listed = [], []
            found = [
                Problem(
                    None,
                    None,
                    None,
                    f"The running processes cannot be listed: {unreadable(error)}",
                )
            ]
        engine, failover = engine_of(journal), journal.store.failover()
        findings.store = Store(
            engine, SCHEMA_VERSION, journal.incarnation, listed, failover
        )
        try:
            findings.chat_apps = read_states(config, ChannelRows(journal))
        except UNREADABLE as error:
            sentence = f"The state of the chat apps cannot be read: {unreadable(error)}"
            found.append(Problem(None, None, None, sentence))
        if not as_json:
            _show_store(findings.store, alive, journal.clock)
            _show_chat_apps(findings.chat_apps)
        findings.missing = journal.missing
        if accept and findings.missing:
            journal.store.accept_loss()
            findings.accepted = True
        report = _verify(journal)
    report = msgspec.structs.replace(report, problems=[*found, *report.problems])
    findings.ok = report.ok and (findings.accepted or not findings.missing)
    findings.problems, findings.complete = report.problems, report.complete
    findings.checked = {
        name: getattr(report, name)
        for name in ("conversations", "facts", "partials", "blobs", "stale")
    }
    if not as_json:
        for line in [*_missing(findings), *report.lines()]:
            click.echo(to_one_line(line))


def _missing(findings: Findings) -> list[str]:
    """Return a line for every loss of events, and instructions for the person."""
    if not findings.missing:
        return []
    lines = [str(loss) for loss in findings.missing]
    if findings.accepted:
        return [
            *lines,
            "Accepted. The store takes messages again, without the missing events.",
        ]
    return [
        *lines,
        "The store lacks the events above: it is an older copy, or damaged. It is read-only now.",
        "Restore a newer copy, or continue without the missing events: tenax doctor --accept",
    ]


def _version() -> str:
    try:
        return metadata.version("tenax")
    except metadata.PackageNotFoundError:
        return "from source"


def _show_directories(config: Config, findings: Findings) -> None:
    there = "" if config.file.exists() else " (does not exist; the defaults apply)"
    locked = "".join(
        f" (set by {name})" for name in [config.locked.get("store.url")] if name
    )
    _pair("tenax", f"{findings.tenax}, Python {findings.python}")
    _pair("config", f"{config.file}{there}")
    _pair("data", str(config.directories.data))
    _pair("state", str(config.directories.state))
    _pair("store", f"{hide_password(config.store_url)}{locked}")
    _pair("folder", findings.places.folder)
    for user, folder in findings.places.users.items():
        _pair("folder", f"{folder} (of the user {user})")
    without = f"{findings.sandbox} Every shell command needs approval."
    _pair("sandbox", without if findings.sandbox else "bubblewrap")
    for folder, problem in findings.skills.items():
        _pair("skill", f"{folder} is not used: {problem}")
    _pair("backup", _describe_backup(findings.backup))


def _find_backup(config: Config) -> BackupState:
    folder = BackupFolder(config.backup_folder)
    names = folder.names()
    if not names:
        return BackupState(str(folder.path))
    at = error = ""
    try:
        at = folder.read(names[-1]).created_at
    except TenaxError as damage:
        error = str(damage)
    return BackupState(str(folder.path), names[-1], at, len(names), error)


def _describe_backup(backup: BackupState) -> str:
    if backup.error:
        return backup.error
    if not backup.name:
        return f"none in {backup.folder}. Make one with: tenax backup"
    at = backup.at[:16].replace("T", " ")
    return f"{at} UTC, restored and verified then; {backup.count:,} in {backup.folder}"


def _show_store(store: Store, alive: list[Instance], clock: Clock) -> None:
    _pair("engine", f"{store.engine}, schema {store.schema}")
    _pair("incarnation", store.incarnation)
    if store.failover:
        _pair("failover", store.failover)
    for instance in alive:
        since = short_time(instance.started_at, clock.now_us())
        _pair(
            "running", f"{instance.id} on {to_one_line(instance.host)}, since {since}"
        )


def _show_chat_apps(accounts: list[AccountState]) -> None:
    if accounts:
        click.echo("\nChat apps")
    for account in accounts:
        _pair(account.label, f"{account_name(account)}, {describe_state(account)}")
        if account.error:
            _pair("", account.error)
        failed = count_failed(account)
        if failed:
            _pair("", f"Not delivered: {failed}. To see them: {FAILED_COMMAND}")
    if accounts:
        click.echo()


def _pair(name: str, value: str) -> None:
    click.echo(f"{name:<11}  {to_one_line(value)}")


def _verify(journal: Journal) -> Report:
    """Verify the store. Show the progress of a long verification on stderr."""
    terminal = sys.stderr.isatty()
    monotonic = journal.clock.monotonic
    timing = journal.store.timing
    due = monotonic() + timing.verify_quiet_seconds
    pause = TELL_SECONDS if terminal else timing.verify_log_seconds
    told = False

    def progress(at: Progress) -> None:
        nonlocal due, told
        if monotonic() < due:
            return
        due, told = monotonic() + pause, True
        line = f"verifying the store: {100 * at.done // max(at.of, 1)} %, {at.conversations:,} conversations"
        click.echo(f"\r{line}" if terminal else line, nl=not terminal, err=True)

    try:
        return verify(journal, progress=progress)
    finally:
        if told and terminal:
            click.echo("\r\x1b[K", nl=False, err=True)
