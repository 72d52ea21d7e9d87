"""`tenax doctor`: where everything is, what it is made of, and whether the store can prove itself. It makes nothing."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Final

import click
import msgspec

from tenax.cli.frame import FAILED, json_option, pass_config, print_json
from tenax.cli.lines import one_line, short_time
from tenax.cli.skills import broken
from tenax.clock import Clock, rfc3339
from tenax.config import Config, shown
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
from tenax.tools.shell.sandbox import Sandbox
from tenax.workspace.folders import folder_of, folders_of_users

__all__ = ["examine"]

NO_STORE: Final = "There is no store yet; it is made with the first conversation."
QUIET_SECONDS: Final = 1.0
"""A store that is proved faster than this is proved without a word."""
TELL_SECONDS: Final = 0.2
TELL_SECONDS_IN_A_LOG: Final = 10.0


class Alive(msgspec.Struct, frozen=True):
    """A running Tenax."""

    id: str
    host: str
    since: str


class Places(msgspec.Struct, frozen=True):
    """Where things are kept."""

    config: str
    data: str
    state: str
    store: str
    folder: str
    """Where the tools of the owner work."""
    users: dict[str, str]
    """Where those of other users work, by name."""


class Store(msgspec.Struct, frozen=True):
    """What an open store says of itself."""

    engine: str
    schema: int
    incarnation: str
    instances: list[Alive]
    failover: str = ""
    """What a failover of the server could lose."""


class Findings(msgspec.Struct, kw_only=True):
    """Everything that `--json` prints."""

    ok: bool = True
    tenax: str
    python: str
    places: Places
    locked: dict[str, str]
    sandbox: str
    """Why commands run without one; empty where there is one."""
    skills: dict[str, str]
    """Folders that should be skills and are none, and why."""
    store: Store | None = None
    missing: list[Missing] = []
    """What the store had stored and lacks now."""
    accepted: bool = False
    """Whether it was told to go on without it."""
    checked: dict[str, int] | None = None
    problems: list[Problem] = []
    complete: bool = True
    error: str | None = None


@click.command("doctor")
@click.option(
    "--accept",
    is_flag=True,
    help="Go on with a store that lacks events which it had stored. They are no longer missed.",
)
@json_option
@pass_config
def examine(config: Config, *, accept: bool, as_json: bool) -> int:
    """Show the places and versions, and prove the store. Exits with 1 if something is wrong."""
    findings = Findings(
        tenax=_version(),
        python=platform.python_version(),
        places=Places(
            config=str(config.file),
            data=str(config.places.data),
            state=str(config.places.state),
            store=shown(config.store_url),
            folder=str(folder_of(config, LOCAL_USER)),
            users={
                name: str(folder) for name, folder in folders_of_users(config).items()
            },
        ),
        locked=dict(config.locked),
        sandbox=Sandbox().why_not(),
        skills=broken(config),
    )
    if not as_json:
        _show_places(config, findings)
    try:
        _look(config, findings, accept=accept, as_json=as_json)
    except TenaxError as error:
        if not as_json:
            raise
        findings.ok, findings.error = False, str(error)
    if as_json:
        print_json(findings)
    return 0 if findings.ok else FAILED


def _look(config: Config, findings: Findings, *, accept: bool, as_json: bool) -> None:
    if not exists(config.store_url):
        if not as_json:
            click.echo(NO_STORE)
        return
    with open_journal(
        config.store_url, user=None, witness=config.places.witness
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
        if not as_json:
            _show_store(findings.store, alive, journal.clock)
        findings.missing = journal.missing
        if accept and findings.missing:
            journal.store.accept_loss()
            findings.accepted = True
        report = _prove(journal)
    report = msgspec.structs.replace(report, problems=[*found, *report.problems])
    findings.ok = report.ok and (findings.accepted or not findings.missing)
    findings.problems, findings.complete = report.problems, report.complete
    findings.checked = {
        name: getattr(report, name)
        for name in ("conversations", "facts", "partials", "blobs", "stale")
    }
    if not as_json:
        for line in [*_missing(findings), *report.lines()]:
            click.echo(one_line(line))


def _missing(findings: Findings) -> list[str]:
    """What the store lacks, a line each, and what to do about it."""
    if not findings.missing:
        return []
    lines = [str(each) for each in findings.missing]
    if findings.accepted:
        return [
            *lines,
            "Accepted: the store takes messages again, without what is missing.",
        ]
    return [
        *lines,
        "The store lacks what stands above: an older copy was put back, or it is damaged. It is read-only now.",
        "Put back a newer copy, or go on without what is missing: tenax doctor --accept",
    ]


def _version() -> str:
    try:
        return metadata.version("tenax")
    except metadata.PackageNotFoundError:
        return "from its source folder"


def _show_places(config: Config, findings: Findings) -> None:
    there = "" if config.file.exists() else " (not there: the defaults hold)"
    locked = "".join(
        f" (set by {name})" for name in [config.locked.get("store.url")] if name
    )
    _pair("tenax", f"{findings.tenax}, Python {findings.python}")
    _pair("config", f"{config.file}{there}")
    _pair("data", str(config.places.data))
    _pair("state", str(config.places.state))
    _pair("store", f"{shown(config.store_url)}{locked}")
    _pair("folder", findings.places.folder)
    for user, folder in findings.places.users.items():
        _pair("folder", f"{folder} (of the user {user})")
    without = f"{findings.sandbox} Every command of the shell is asked for."
    _pair("sandbox", without if findings.sandbox else "bubblewrap")
    for folder, problem in findings.skills.items():
        _pair("skill", f"{folder} is not used: {problem}")


def _show_store(store: Store, alive: list[Instance], clock: Clock) -> None:
    _pair("engine", f"{store.engine}, schema {store.schema}")
    _pair("incarnation", store.incarnation)
    if store.failover:
        _pair("failover", store.failover)
    for each in alive:
        _pair(
            "running",
            f"{each.id} on {one_line(each.host)}, since {short_time(each.started_at, clock.now_us())}",
        )


def _pair(name: str, value: str) -> None:
    click.echo(f"{name:<11}  {one_line(value)}")


def _prove(journal: Journal) -> Report:
    """Prove the store, and tell on stderr how far it is where that takes a while."""
    terminal = sys.stderr.isatty()
    monotonic = journal.clock.monotonic
    due = monotonic() + QUIET_SECONDS
    told = False

    def progress(at: Progress) -> None:
        nonlocal due, told
        if monotonic() < due:
            return
        due, told = (
            monotonic() + (TELL_SECONDS if terminal else TELL_SECONDS_IN_A_LOG),
            True,
        )
        line = f"proving the store: {100 * at.done // max(at.of, 1)} %, {at.conversations:,} conversations"
        click.echo(f"\r{line}" if terminal else line, nl=not terminal, err=True)

    try:
        return verify(journal, progress=progress)
    finally:
        if told and terminal:
            click.echo("\r\x1b[K", nl=False, err=True)
