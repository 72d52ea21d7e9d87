"""`tenax.doctor`: what follows from the facts about an installation, and the command that solves each issue."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from tenax.channels.states import AccountState, State
from tenax.doctor.findings import (
    BackupState,
    Directories,
    Disk,
    Findings,
    MemoryOwed,
    ModelState,
    Owed,
    Store,
    find_issues,
)
from tenax.journal.verify.store import Problem
from tenax.journal.witness import Missing

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
HEALTHY = Findings(
    tenax="1",
    python="3",
    places=Directories("", "", "", "", "", {}),
    locked={},
    sandbox="",
    skills={},
    backup=BackupState("/b", "2026-11-19T100000Z", "2026-11-19T10:00:00Z", 2),
    store=Store("SQLite", 7, "i", []),
    model="main",
    models=[ModelState("main", "m", "host", "answers")],
    disks=[Disk("/d", 10**12, 10**12, 5 * 10**8, ["data"])],
)


def issues(**facts: object) -> list[tuple[str, str]]:
    """Return the level and the command of each issue."""
    findings = msgspec.structs.replace(HEALTHY, **facts)
    found = find_issues(findings, NOW, "tenax")
    assert all(issue.text and issue.text.isprintable() for issue in found)
    return [(issue.level, issue.command) for issue in found]


def account(state: State, **counts: int) -> AccountState:
    return AccountState(
        "home", "telegram", "telegram:1", state, "", "", 0, 0, 0, 0, counts, "", ""
    )


def test_a_healthy_installation_has_no_issue() -> None:
    assert issues() == []
    assert issues(chat_apps=[account("connected")]) == []


@pytest.mark.parametrize(
    ("every", "at", "late"),
    [
        ("never", "2026-11-13T12:00:00Z", False),
        ("never", "2026-11-11T12:00:00Z", True),
        ("day", "2026-11-18T00:00:00Z", False),
        ("day", "2026-11-17T00:00:00Z", True),
        ("week", "2026-11-11T12:00:00Z", False),
        ("week", "2026-11-09T12:00:00Z", True),
    ],
)
def test_an_old_backup_is_an_issue(every: str, at: str, *, late: bool) -> None:
    """The age depends on the schedule of the settings."""
    found = issues(backup=BackupState("/b", "x", at, 1, every=every))
    assert found == ([("warning", "tenax backup")] if late else [])


def test_a_missing_or_damaged_backup_is_an_issue() -> None:
    assert issues(backup=BackupState("/b")) == [("warning", "tenax backup")]
    damaged = BackupState("/b", "x", "", 1, "It is damaged.")
    assert issues(backup=damaged) == [("warning", "tenax backup")]
    assert issues(backup=BackupState("/b"), store=None) == []


def test_problems_of_the_store_come_first() -> None:
    problem = Problem(None, "c", 1, "It is wrong.")
    missing = Missing("local", "c", 1, 2, 1)
    found = issues(
        backup=BackupState("/b"), problems=[problem], missing=[missing], model=""
    )
    assert found == [
        ("problem", "tenax doctor --accept"),
        ("problem", "tenax export --all"),
        ("warning", "tenax backup"),
        ("warning", "tenax setup"),
    ]
    assert issues(problems=[problem]) == [("problem", "tenax restore /b")]
    assert issues(missing=[missing], accepted=True) == []


@pytest.mark.parametrize("state", ["key", "away", "refused"])
def test_a_model_that_does_not_answer_is_a_warning(state: str) -> None:
    model = ModelState("main", "m", "host", state, "Why.")  # type: ignore[arg-type]
    assert issues(models=[model]) == [("warning", "tenax setup")]
    practice = ModelState("p", "practice", "", "away", "It is missing.")
    assert issues(models=[practice]) == [("warning", "tenax setup --practice")]


@pytest.mark.parametrize(
    ("state", "command"),
    [
        ("off", "tenax serve"),
        ("refused", "tenax channel add telegram --label home"),
        ("away", "tenax channel"),
    ],
)
def test_a_chat_app_that_is_not_connected_is_an_issue(
    state: State, command: str
) -> None:
    assert issues(chat_apps=[account(state)]) == [("warning", command)]


def test_unfinished_work_is_an_issue_if_a_person_has_to_act() -> None:
    """What a running server does by itself is not."""
    assert issues(owed=Owed(waiting=3, memory=[MemoryOwed("notes", 2)])) == []
    owed = Owed(
        approvals=2,
        approval="c1",
        failed=1,
        memory=[MemoryOwed("notes", 0, 4)],
        spools=["/s"],
    )
    assert issues(owed=owed) == [
        ("warning", "tenax channel failed"),
        ("warning", "tenax -c c1"),
        ("warning", "tenax memory retry notes"),
        ("warning", "tenax serve"),
    ]


def test_a_full_disk_is_an_issue() -> None:
    """With several backups there, fewer of them are the way out."""
    data = Disk("/my disk", 10**8, 10**9, 5 * 10**8, ["data"])
    assert issues(disks=[data]) == [("warning", "du -xhd1 '/my disk'")]
    backups = Disk("/d", 10**8, 10**9, 5 * 10**8, ["data", "backups"])
    assert issues(disks=[backups]) == [("warning", "tenax backup --keep 1")]
