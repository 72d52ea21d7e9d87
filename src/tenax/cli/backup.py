"""`tenax backup`, `tenax restore` and `tenax move`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import click

from tenax.archive.format import BackupFolder
from tenax.archive.service import Report, back_up
from tenax.archive.service import adopt as adopt_store
from tenax.archive.service import move as move_store
from tenax.archive.service import restore as restore_store
from tenax.cli.frame import pass_config
from tenax.cli.output import json_option, print_json, show_progress
from tenax.config import Config, hide_password
from tenax.config.write import change_settings
from tenax.errors import InvalidInput
from tenax.text import count_noun, to_one_line

__all__ = ["backup", "move", "restore"]

_VARIABLE: Final = "TENAX_BACKUP_PASSPHRASE"
_NICE: Final = 19
_MB: Final = 1_000_000


@click.command("backup")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Delete older backups and keep this number. Default for the folder of the settings: backup.keep.",
)
@click.option(
    "--secrets",
    is_flag=True,
    help=f"Include the keys of models and chat apps, encrypted with a passphrase (asked, or {_VARIABLE}).",
)
@click.option("--list", "list_only", is_flag=True, help="List the backups.")
@json_option
@pass_config
def backup(
    config: Config,
    folder: Path | None,
    *,
    keep: int | None,
    secrets: bool,
    list_only: bool,
    as_json: bool,
) -> None:
    """Back up the store, and test the backup.

    Works while Tenax runs. FOLDER holds all backups; a further backup writes only what is new. Every backup is restored
    in a scratch place and verified. Files in the folders of the tools are not included.
    """
    path = (folder or config.backup_folder).absolute()
    if list_only:
        _list_backups(path, as_json=as_json)
        return
    if keep is None and folder is None:
        keep = config.backup.keep
    passphrase = _ask_passphrase(confirm=True) if secrets else None
    with suppress(OSError):
        # Running conversations go first.
        os.nice(_NICE)
    with _progress() as report:
        done = back_up(
            config,
            path,
            keep=keep,
            version=_version(),
            passphrase=passphrase,
            report=report,
        )
    if as_json:
        print_json({"folder": str(path), **done._asdict()})
        return
    click.echo(f"{path}, backup {done.name}")
    click.echo(
        f"{count_noun(done.conversations, 'conversation')}, {count_noun(done.events, 'event')}, "
        f"{count_noun(done.attachments, 'attachment')}: restored and verified. {_size(done.written)} written."
    )
    if done.pruned:
        click.echo(f"Deleted: {count_noun(done.pruned, 'older backup')}.")
    if done.erased and done.earlier:
        click.echo(
            f"In {count_noun(done.erased, 'conversation')} text was erased or everything deleted since the backup before. "
            f"{count_noun(done.earlier, 'older backup')} may still hold the text. Delete them with: "
            f"tenax backup {folder or ''} --keep 1".replace("  ", " ")
        )
    if done.same_disk:
        click.echo(
            "The backup is on the disk of the store. Copy it elsewhere, or set backup.folder to a folder on another disk."
        )


@click.command("restore")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--at", "name", help="The backup to restore. Default: the newest one.")
@click.option(
    "--adopt",
    is_flag=True,
    help="Use the store that you restored by other means, such as pg_restore or a copied file.",
)
@json_option
@pass_config
def restore(
    config: Config,
    folder: Path | None,
    *,
    name: str | None,
    adopt: bool,
    as_json: bool,
) -> None:
    """Restore a backup.

    FOLDER is the folder of the backups. The place of the store must be empty. Every digest is checked before the store
    is put there.
    """
    if adopt:
        if folder is not None or name is not None:
            raise click.UsageError("--adopt takes no FOLDER and no --at.")
        _adopt(config, as_json=as_json)
        return
    if folder is None:
        raise click.UsageError("Name the FOLDER of the backups, or use --adopt.")
    path = folder.absolute()
    backups = BackupFolder(path)
    wanted = name or (backups.names() or [""])[-1]
    passphrase = None
    if wanted and backups.read(wanted).has_secrets:
        passphrase = _ask_passphrase(confirm=False) or None
    with _progress() as report:
        done = restore_store(
            config, path, name=name, passphrase=passphrase, report=report
        )
    if as_json:
        print_json(done._asdict())
        return
    click.echo(
        f"Restored backup {done.name} to {hide_password(config.store_url)}: "
        f"{count_noun(done.conversations, 'conversation')}, {count_noun(done.events, 'event')}, digests equal."
    )
    for file in done.left:
        click.echo(f"Not changed, because it exists: {file}")
    if done.needs_passphrase:
        click.echo("The secrets were not restored: no passphrase was given.")


def _adopt(config: Config, *, as_json: bool) -> None:
    done = adopt_store(config)
    if as_json:
        print_json(done._asdict())
        return
    for loss in done.missing:
        click.echo(to_one_line(loss))
    if done.missing:
        click.echo("The store continues without the events above.")
    click.echo(
        f"Adopted {hide_password(config.store_url)}: {count_noun(done.conversations, 'conversation')}, "
        f"{count_noun(done.events, 'event')}, digests valid."
    )


@click.command("move")
@click.argument("url")
@pass_config
def move(config: Config, url: str) -> None:
    """Move the store to another engine or place.

    URL is sqlite:///PATH or postgresql://USER@HOST/DATABASE, and must have no store. Stop Tenax first. The copy has the
    same digests, and is verified before the settings name it. The old store stays where it is.
    """
    locked = config.locked.get("store.url")

    def switch() -> None:
        if locked is None:
            change_settings(config, {"store.url": url}, os.environ, keys={})

    with _progress() as report:
        done = move_store(config, _full_url(url), switch=switch, report=report)
    click.echo(
        f"Moved to {hide_password(url)}: {count_noun(done.conversations, 'conversation')}, "
        f"{count_noun(done.events, 'event')}, digests equal."
    )
    if locked is not None:
        click.echo(f"{locked} names the old store. Set it to the new address.")
    click.echo(
        f"The old store is still at {hide_password(config.store_url)}. Delete it when you no longer need it."
    )


def _full_url(url: str) -> str:
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///")).expanduser().absolute()
        return f"sqlite:///{path}"
    if url.startswith(("postgresql://", "postgres://")):
        return url
    raise InvalidInput(
        f"{hide_password(url)!r} is not the address of a store.",
        hint="Use sqlite:///PATH or postgresql://USER@HOST/DATABASE.",
    )


def _list_backups(path: Path, *, as_json: bool) -> None:
    folder = BackupFolder(path)
    names = folder.names()
    if as_json:
        print_json(names)
        return
    for name in names:
        manifest = folder.read(name)
        click.echo(
            f"{name}  {count_noun(len(manifest.conversations), 'conversation')}"
            f"{', with secrets' if manifest.has_secrets else ''}"
        )
    if not names:
        click.echo(f"No backups in {path}.")


def _ask_passphrase(*, confirm: bool) -> str:
    given = os.environ.get(_VARIABLE)
    if given:
        return given
    if not sys.stdin.isatty():
        if confirm:
            raise InvalidInput(
                "A backup with secrets needs a passphrase.", hint=f"Set {_VARIABLE}."
            )
        return ""
    answer: str = click.prompt(
        "Passphrase of the secrets (not shown)",
        hide_input=True,
        confirmation_prompt=confirm,
        default=None if confirm else "",
        show_default=False,
    )
    return answer


@contextmanager
def _progress() -> Iterator[Report | None]:
    with show_progress() as show:
        if show is None:
            yield None
        else:
            yield lambda step, done, of: show(f"{step}: {done:,} of {of:,}")


def _version() -> str:
    from importlib import metadata  # noqa: PLC0415  (slow, and used here only)

    return metadata.version("tenax")


def _size(count: int) -> str:
    return f"{count / _MB:,.1f} MB"
