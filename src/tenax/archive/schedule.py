"""The backups of a running server.

A backup runs in a separate process and does not slow the server. A lease keeps the hosts of a store from making
backups at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from tenax.archive.format import BackupFolder
from tenax.concurrency import python_module, run_in_own_thread
from tenax.config import Config
from tenax.errors import TenaxError
from tenax.journal import LOCAL_USER, Journal, exists

__all__ = ["BackupSchedule", "is_due"]

log = logging.getLogger(__name__)

_PERIODS: Final = {"day": timedelta(days=1), "week": timedelta(weeks=1)}
_LEASE: Final = "backup"
_LEASE_SECONDS: Final = 3600.0
_DIGITS: Final = "%Y-%m-%dT%H%M%SZ"
_NAME_CHARS: Final = 18


def is_due(config: Config, now: datetime) -> bool:
    """Return whether the newest backup is older than the settings want."""
    period = _PERIODS.get(config.backup.every)
    if period is None or not exists(config.store_url):
        return False
    names = BackupFolder(config.backup_folder).names()
    if not names:
        return True
    newest = datetime.strptime(names[-1][:_NAME_CHARS], _DIGITS).replace(tzinfo=UTC)
    return now - newest >= period


class BackupSchedule:
    """Makes the backups of a server. `config` returns the present settings."""

    def __init__(self, journal: Journal, config: Callable[[], Config]) -> None:
        self._journal = journal.of(LOCAL_USER)
        self._config = config
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="backups")

    async def close(self) -> None:
        """Stop. The next backup removes the files of a stopped backup."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config().timing.backup_look_seconds)
            try:
                await self._look()
            except TenaxError as error:
                log.warning("No backup was made: %s", error)
            except Exception:
                # The schedule must outlive any failure of one backup.
                log.exception("No backup was made.")

    async def _look(self) -> None:
        config = self._config()
        now = datetime.fromtimestamp(self._journal.clock.now_us() / 1e6, UTC)
        if not await run_in_own_thread(lambda: is_due(config, now)):
            return
        claim = lambda: self._journal.claim(_LEASE, _LEASE, _LEASE_SECONDS)  # noqa: E731
        lease = await run_in_own_thread(claim)
        if lease is None:
            return
        try:
            # Another host may have made the backup before it released the lease.
            if await run_in_own_thread(lambda: is_due(config, now)):
                await _back_up(config)
        finally:
            with contextlib.suppress(TenaxError):
                await run_in_own_thread(lambda: self._journal.release(lease))


async def _back_up(config: Config) -> None:
    profile = ["--profile", config.profile] if config.profile else []
    command = python_module("tenax", *profile, "backup")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    except BaseException:
        # A backup that is killed leaves only files that the next one removes.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        log.error(
            "The backup failed: %s",
            said.decode(errors="replace").strip()[-500:],
            extra={"action": "backup_failed"},
        )
    else:
        log.info("A backup was made in %s.", config.backup_folder)
