"""Back up a store before a newer version of Tenax changes its tables."""

from __future__ import annotations

import contextlib

import click

from tenax.config import Config
from tenax.errors import TenaxError
from tenax.journal import exists, open_snapshot
from tenax.journal.schema import SCHEMA_VERSION

__all__ = ["back_up_before_migration"]


def back_up_before_migration(config: Config) -> None:
    """Make a backup if the next opening of the store changes its tables. Raises `TenaxError` if that fails."""
    if not _is_older(config.store_url):
        return
    from importlib import metadata  # noqa: PLC0415  (not needed otherwise)

    from tenax.archive.service import back_up  # noqa: PLC0415  (the same)

    click.echo(
        "This version of Tenax changes the tables of the store. Making a backup first ...",
        err=True,
    )
    try:
        done = back_up(
            config, config.backup_folder, keep=None, version=metadata.version("tenax")
        )
    except TenaxError as error:
        raise type(error)(
            f"The store is not changed, because the backup before it failed: {error}",
            hint=error.hint or "Set backup.folder to a folder on another disk.",
        ) from error
    click.echo(
        f"Backup {done.name} is in {config.backup_folder}. To go back: move the store away, install the earlier version, "
        f"and run: tenax restore {config.backup_folder} --at {done.name}",
        err=True,
    )


def _is_older(url: str) -> bool:
    """Return whether a store has the tables of an earlier version. What cannot be read is judged by its opening."""
    with contextlib.suppress(TenaxError):
        if exists(url):
            with contextlib.closing(open_snapshot(url)) as snapshot:
                return 0 < snapshot.schema < SCHEMA_VERSION
    return False
