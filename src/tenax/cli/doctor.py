"""`tenax doctor`: verify the store, and show the issues of the installation with the commands for solving them."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from tenax.channels.states import AccountState, read_states
from tenax.cli.channel import (
    FAILED_COMMAND,
    account_name,
    count_failed,
    describe_state,
    open_rows,
)
from tenax.cli.frame import FAILED, pass_config
from tenax.cli.lines import room_across
from tenax.cli.output import TELL_SECONDS, json_option, print_json
from tenax.clock import SystemClock
from tenax.config import Config
from tenax.doctor.collect import add_store, begin_findings
from tenax.doctor.findings import (
    BackupState,
    Findings,
    Issue,
    ModelState,
    Owed,
    command_of,
    find_issues,
    megabytes,
)
from tenax.doctor.models import check_models
from tenax.doctor.verified import describe_report, write_verified
from tenax.errors import TenaxError
from tenax.journal import LOCAL_USER, Journal, exists
from tenax.journal import open as open_journal
from tenax.journal.verify.store import Progress, Report, verify
from tenax.schedules.parse import describe_duration
from tenax.text import count_noun, to_one_line

__all__ = ["examine"]

NO_STORE: Final = "No store yet. The first conversation creates it."
_COLUMNS_MIN: Final = 40
_COLOURS: Final = {"problem": "red", "warning": "yellow"}


@click.command("doctor")
@click.option(
    "--accept",
    is_flag=True,
    help="Accept that the store lost events, and continue without them.",
)
@json_option
@pass_config
def examine(config: Config, *, accept: bool, as_json: bool) -> int:
    """Verify the store, and show what is wrong and what solves it. The exit code is 1 for a problem, 0 for warnings.

    Asks the servers of the models for their list of models; this costs no tokens.
    """
    findings = begin_findings(config)
    report: Report | None = None
    failure: TenaxError | None = None
    try:
        report = _examine_store(config, findings, accept=accept)
    except TenaxError as error:
        findings.ok, findings.error, failure = False, str(error), error
    findings.models = asyncio.run(check_models(config))
    now = datetime.fromtimestamp(SystemClock().now_us() / 1e6, UTC)
    findings.issues = find_issues(findings, now, command_of(config))
    if as_json:
        print_json(findings)
        return 0 if findings.ok else FAILED
    # `run` prints the sentence and the hint of a failure.
    shown = [issue for issue in findings.issues if issue.text != findings.error]
    _show_issues(shown)
    _show_facts(config, findings, now)
    if failure is not None:
        raise failure
    if report is None:
        click.echo(NO_STORE)
        return 0
    for line in [*_missing(findings), *report.lines()]:
        click.echo(to_one_line(line))
    return 0 if findings.ok else FAILED


def _examine_store(
    config: Config, findings: Findings, *, accept: bool
) -> Report | None:
    """Verify the store and add the result to the findings. Return `None` without a store."""
    if not exists(config.store_url):
        with open_rows(config) as rows:
            findings.chat_apps = read_states(config, rows)
        return None
    with open_journal(
        config.store_url,
        user=None,
        witness=config.directories.witness,
        timing=config.timing,
    ) as journal:
        add_store(findings, config, journal)
        if accept and findings.missing:
            journal.store.accept_loss()
            findings.accepted = True
        began = journal.clock.monotonic()
        report = _verify(journal)
        seconds = journal.clock.monotonic() - began
        found = describe_report(report, seconds, journal.clock.now_us())
        write_verified(config, LOCAL_USER, found)
    problems = [*findings.problems, *report.problems]
    report = msgspec.structs.replace(report, problems=problems)
    findings.ok = report.ok and (findings.accepted or not findings.missing)
    findings.problems, findings.complete = report.problems, report.complete
    findings.checked = {
        name: getattr(report, name)
        for name in ("conversations", "facts", "partials", "blobs", "stale")
    }
    return report


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


def _show_issues(issues: list[Issue]) -> None:
    for issue in issues:
        _pair(issue.level, issue.text, colour=_COLOURS[issue.level])
        if issue.command:
            click.echo(f"{'':<15}{to_one_line(issue.command)}")
    if issues:
        click.echo()


def _show_facts(config: Config, findings: Findings, now: datetime) -> None:
    for name, value in _facts(config, findings, now):
        _pair(name, value)
    _show_chat_apps(findings.chat_apps)


def _facts(
    config: Config, findings: Findings, now: datetime
) -> Iterator[tuple[str, str]]:
    places = findings.places
    there = "" if config.file.exists() else " (does not exist; the defaults apply)"
    locked = findings.locked.get("store.url")
    yield "tenax", f"{findings.tenax}, Python {findings.python}"
    yield "config", f"{places.config}{there}"
    yield "data", places.data
    yield "state", places.state
    yield "store", f"{places.store}{f' (set by {locked})' if locked else ''}"
    yield "folder", places.folder
    for user, folder in places.users.items():
        yield "folder", f"{folder} (of the user {user})"
    without = f"{findings.sandbox} Every shell command needs approval."
    yield "sandbox", without if findings.sandbox else "bubblewrap"
    for folder, problem in findings.skills.items():
        yield "skill", f"{folder} is not used: {problem}"
    for model in findings.models:
        yield "model", _describe_model(model, is_default=model.label == findings.model)
    yield "backup", _describe_backup(findings.backup, now)
    for disk in findings.disks:
        yield (
            "disk",
            f"{megabytes(disk.free)} of {megabytes(disk.total)} free at {disk.path}",
        )
    store = findings.store
    if store is None:
        return
    yield "engine", f"{store.engine}, schema {store.schema}"
    yield "incarnation", store.incarnation
    if store.failover:
        yield "failover", store.failover
    for alive in store.instances:
        yield (
            "running",
            f"{alive.id} on {to_one_line(alive.host)}, since {_time(alive.since)}",
        )
    yield "owed", _describe_owed(findings.owed)
    before = findings.verified_before
    yield (
        "verified",
        f"now; before on {_time(before)}" if before else "now, for the first time here",
    )


def _describe_model(model: ModelState, *, is_default: bool) -> str:
    server = f" at {model.server}" if model.server else ""
    name = f"{model.label}{' (default)' if is_default else ''}: {model.name}{server}"
    words = {
        "answers": "answers" if model.server else "installed",
        "key": "no valid key",
        "away": "cannot be reached" if model.server else "not installed",
        "refused": "refuses requests",
    }
    detail = f". {model.detail}" if model.state == "answers" and model.detail else ""
    return f"{name}, {words[model.state]}{detail}"


def _describe_backup(backup: BackupState, now: datetime) -> str:
    if backup.error:
        return backup.error
    if not backup.name:
        return f"none in {backup.folder}. Make one with: tenax backup"
    age = describe_duration(
        int((now - datetime.fromisoformat(backup.at)).total_seconds())
    )
    return f"{_time(backup.at)} ({age} ago), restored and verified then; {backup.count:,} in {backup.folder}"


def _describe_owed(owed: Owed) -> str:
    parts = [count_noun(owed.approvals, "approval")] if owed.approvals else []
    if owed.waiting:
        parts.append(f"{count_noun(owed.waiting, 'message')} to chat apps")
    if owed.failed:
        parts.append(f"{count_noun(owed.failed, 'message')} not delivered")
    for memory in owed.memory:
        if memory.conversations:
            count = count_noun(memory.conversations, "conversation")
            parts.append(f"{count} to the memory provider {memory.provider}")
        if memory.letters:
            parts.append(f"{memory.letters:,} not taken by {memory.provider}")
    if owed.spools:
        parts.append(f"output of {count_noun(len(owed.spools), 'stopped server')}")
    return ", ".join(parts) or "nothing"


def _time(at: str) -> str:
    return f"{at[:16].replace('T', ' ')} UTC"


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


def _pair(name: str, value: str, *, colour: str = "") -> None:
    """Print a line. In a terminal, the next line of a long value begins below the value."""
    mark = click.style(f"{name:<11}", fg=colour or None, bold=bool(colour))
    text = to_one_line(value)
    columns = room_across()
    if columns is not None:
        indent = " " * 13
        text = textwrap.fill(
            f"{indent}{text}",
            max(columns, _COLUMNS_MIN),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ).lstrip()
    click.echo(f"{mark}  {text}")


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
