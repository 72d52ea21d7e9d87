"""The files of a backup beside the store: settings, the spool, changes of files to revert, skills and plugins.

The file of the settings comes without `store.url`, because the address may have a password and belongs to one machine.
Secrets come only if asked for, encrypted with a passphrase in the format of the program age.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from tenax.archive.format import BackupFolder, File, Manifest
from tenax.concurrency import write_atomically
from tenax.config import Config
from tenax.errors import InvalidInput
from tenax.journal.spool import is_empty, owner_of

__all__ = ["SECRETS", "collect_files", "put_files", "spool_owners"]

SECRETS: Final = "config/secrets.toml.age"
_SETTINGS: Final = "config/config.toml"
_FOLDERS: Final = ("spool", "files", "skills", "plugins")
"""The folders in the data folder that a backup holds."""
_OTHER_SETTINGS: Final = ("AGENTS.md",)
_MODE_BITS: Final = 0o777


def collect_files(
    config: Config, folder: BackupFolder, passphrase: str | None
) -> tuple[File, ...]:
    """Store the files in a backup folder. A file may disappear meanwhile."""
    found = list(_collect(config, folder))
    if passphrase is not None:
        secrets = _secrets_file(config)
        with contextlib.suppress(FileNotFoundError):
            data = _encrypt(secrets.read_bytes(), passphrase)
            found.append(File(SECRETS, 0o600, folder.write_bytes([data])))
    return tuple(found)


def _collect(config: Config, folder: BackupFolder) -> Iterator[File]:
    for name in _FOLDERS:
        top = config.directories.data / name
        for parent, folders, files in os.walk(top):
            folders.sort()
            for file in sorted(files):
                path = Path(parent) / file
                label = f"data/{name}/{path.relative_to(top).as_posix()}"
                yield from _collect_file(folder, path, label)
    for name in _OTHER_SETTINGS:
        path = config.directories.config / name
        yield from _collect_file(folder, path, f"config/{name}")
    with contextlib.suppress(FileNotFoundError):
        data = _without_store(config.file.read_text("utf-8"))
        yield File(_SETTINGS, 0o600, folder.write_bytes([data.encode()]))


def _collect_file(folder: BackupFolder, path: Path, label: str) -> Iterator[File]:
    if path.is_symlink() or not path.is_file() or path.name == "lock":
        return
    if path.name == "spool" and is_empty(path):
        return
    with contextlib.suppress(FileNotFoundError):
        mode = path.stat().st_mode & _MODE_BITS
        yield File(label, mode, folder.write_bytes(_pieces(path)))


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1024 * 1024):
            yield piece


def _without_store(text: str) -> str:
    try:
        document: Any = tomlkit.parse(text)
    except TOMLKitError as error:
        raise InvalidInput(f"The settings cannot be read: {error}.") from error
    document.get("store", {}).pop("url", None)
    return tomlkit.dumps(document)


def put_files(
    config: Config, folder: BackupFolder, manifest: Manifest, passphrase: str | None
) -> list[str]:
    """Write the files of a backup. Return the existing files; such files are not changed."""
    left = []
    for file in manifest.files:
        path = _place(config, file.path)
        if path.exists() and not _is_same(path, file.object):
            left.append(str(path))
            continue
        data = b"".join(folder.read_bytes(file.object))
        if file.path == SECRETS:
            if passphrase is None:
                continue
            data = _decrypt(data, passphrase)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, data, mode=file.mode)
    return left


def spool_owners(manifest: Manifest) -> set[str]:
    """Return the ids of the processes with a spool in a backup."""
    return {
        owner_of(Path(file.path).parent.name)
        for file in manifest.files
        if file.path.startswith("data/spool/")
    }


def _is_same(path: Path, name: str) -> bool:
    with contextlib.suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest() == name
    return False


def _place(config: Config, label: str) -> Path:
    """Return the place of a file. Raises `InvalidInput` for a path outside the folders of Tenax."""
    top, _, rest = label.partition("/")
    parts = rest.split("/")
    if not rest or {"", ".", ".."} & set(parts) or top not in {"data", "config"}:
        raise InvalidInput(
            f"The backup names a file at an invalid path: {label!r:.80}."
        )
    if label == SECRETS:
        return _secrets_file(config)
    if label == _SETTINGS:
        return config.file
    root = config.directories.data if top == "data" else config.directories.config
    return root.joinpath(*parts)


def _secrets_file(config: Config) -> Path:
    return config.file.with_name("secrets.toml")


def _encrypt(data: bytes, passphrase: str) -> bytes:
    encrypted: bytes = _pyrage().passphrase.encrypt(data, passphrase)
    return encrypted


def _decrypt(data: bytes, passphrase: str) -> bytes:
    pyrage = _pyrage()
    try:
        decrypted: bytes = pyrage.passphrase.decrypt(data, passphrase)
    except pyrage.DecryptError as error:
        raise InvalidInput(
            "The passphrase does not open the secrets of the backup.",
            hint="Try again, or leave the passphrase empty to restore without secrets.",
        ) from error
    return decrypted


def _pyrage() -> Any:  # noqa: ANN401  (a module without types)
    try:
        import pyrage  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise InvalidInput(
            "A backup with secrets needs a package that is not installed.",
            hint="Install it with: pip install 'tenax[secrets]'",
        ) from error
    return pyrage
