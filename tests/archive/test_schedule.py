"""A running server makes backups by itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tenax
from tenax.archive import schedule
from tenax.archive.format import BackupFolder
from tenax.archive.schedule import BackupSchedule, is_due
from tenax.clock import Timing
from tenax.config import Config, load

SECONDS = 60
NAME = "2026-11-19T174005Z"
AT = datetime(2026, 11, 19, 17, 40, 5, tzinfo=UTC)


def config_with(home: Path, every: str) -> Config:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f'[backup]\nevery = "{every}"\n')
    return load({"TENAX_HOME": str(home)})


def test_a_backup_is_due_after_the_period(tmp_path: Path) -> None:
    config = config_with(tmp_path, "day")
    assert not is_due(config, AT), "there is no store"
    tenax.open(config.store_url).close()
    assert is_due(config, AT), "there is no backup"
    folder = tmp_path / "backups" / "backups"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.json").touch()
    assert not is_due(config, AT + timedelta(hours=23))
    assert is_due(config, AT + timedelta(hours=24))
    weekly = config_with(tmp_path, "week")
    assert not is_due(weekly, AT + timedelta(days=6))
    assert is_due(weekly, AT + timedelta(days=7))
    assert not is_due(config_with(tmp_path, "never"), AT + timedelta(days=400))


async def test_a_server_makes_the_backup_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers of one store make one backup."""
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    monkeypatch.delenv("TENAX_STORE", raising=False)
    quick = Timing(backup_look_seconds=0.01)
    config = replace(config_with(tmp_path, "day"), timing=quick)
    with tenax.open(config.store_url) as journal:
        schedules = [BackupSchedule(journal, lambda: config) for _ in range(2)]
        for backups in schedules:
            backups.start()
        folder = BackupFolder(config.backup_folder)
        async with asyncio.timeout(SECONDS):
            while not folder.names():  # noqa: ASYNC110  (another process writes)
                await asyncio.sleep(0.01)
        for backups in schedules:
            await backups.close()
    assert len(folder.names()) == 1


async def test_a_failure_does_not_end_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look makes the backup."""
    monkeypatch.setenv("TENAX_HOME", str(tmp_path))
    monkeypatch.delenv("TENAX_STORE", raising=False)
    config = replace(
        config_with(tmp_path, "day"), timing=Timing(backup_look_seconds=0.01)
    )
    fails = iter([OSError("no processes left"), ValueError("an odd name")])

    def is_due_or_fails(config: Config, now: datetime) -> bool:
        for failure in fails:
            raise failure
        return is_due(config, now)

    monkeypatch.setattr(schedule, "is_due", is_due_or_fails)
    with tenax.open(config.store_url) as journal:
        backups = BackupSchedule(journal, lambda: config)
        backups.start()
        folder = BackupFolder(config.backup_folder)
        async with asyncio.timeout(SECONDS):
            while not folder.names():  # noqa: ASYNC110  (another process writes)
                await asyncio.sleep(0.01)
        await backups.close()
