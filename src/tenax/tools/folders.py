"""The folders of users, for the work of tools and the files of memory providers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from tenax.config import Config
from tenax.errors import InvalidInput, Refused, unusable
from tenax.journal import LOCAL_USER
from tenax.journal.projects import FOLDER_CHARS_MAX

__all__ = ["check_folder", "folder_of", "folders_of_users", "home_of"]

_FILES = "files"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_NAME_CHARS_MAX = 200
_KEPT_CHARS = 100


def folder_of(config: Config, user: str) -> Path:
    """Return the folder in which the tools of a user work.

    The first writing tool creates the folder of the owner. The folder of every other user is created here, without
    access for other accounts of the machine. Raises `CannotOpen` if the folder cannot be created.
    """
    if user == LOCAL_USER:
        return config.tools_folder
    own = config.directories.users / _name_of(user)
    folder = own / _FILES
    try:
        config.directories.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        # `parents=True` would ignore the mode.
        for directory in (config.directories.users, own, folder):
            directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        hint = f"remove what stands in its place, and let Tenax write in {config.directories.users}"
        raise unusable(f"{folder} cannot be made", error, hint=hint) from error
    return folder


def home_of(config: Config, user: str) -> Path:
    """Return the folder in which memory providers keep the data of a user.

    For the owner, the result is the data folder. Raises `CannotOpen` if the folder cannot be created.
    """
    if user == LOCAL_USER:
        return config.directories.data
    return folder_of(config, user).parent


def folders_of_users(config: Config) -> dict[str, Path]:
    """Return the existing folders of every user except the owner, by user name."""
    found = sorted(config.directories.users.glob(f"*/{_FILES}"))
    return {unquote(folder.parent.name): folder for folder in found}


def check_folder(text: str, own: Path, private: Iterable[Path], *, owner: bool) -> Path:
    """Return the real path of a project's folder. Blocks. Raises `InvalidInput` or `Refused`.

    `own` is the folder of the user, and `private` are the paths of Tenax itself. Another user than the owner must not
    learn which other folders exist, so `owner` is checked first.
    """
    if len(text) > FOLDER_CHARS_MAX or not text.isprintable() or text[0] != "/":
        raise InvalidInput(
            "The folder of a project must be an absolute path.",
            hint="Begin the path with a slash.",
        )
    folder = Path(os.path.realpath(text))
    is_own = folder.is_relative_to(os.path.realpath(own))
    if not is_own and not owner:
        raise Refused(
            "Only the person who runs this Tenax may use folders outside their own.",
            hint=f"Choose a folder in {own}.",
        )
    if not folder.is_dir():
        raise InvalidInput(
            f"{text:.200} is not a folder.", hint="Create the folder first."
        )
    if is_own:
        return folder
    for path in private:
        real = Path(os.path.realpath(path))
        if folder.is_relative_to(real) or real.is_relative_to(folder):
            raise InvalidInput(
                f"{text:.200} holds files of Tenax itself: its settings, keys or store.",
                hint="Choose another folder.",
            )
    return folder


def _name_of(user: str) -> str:
    """Return a file name for a user, unique on every file system.

    A user name may contain slashes and dots, and some file systems do not distinguish `Bob` from `bob`. Therefore every
    byte is written as %XX, except small letters, digits, `-`, `_` and a dot after the first byte. A name too long for a
    file ends in a digest.
    """
    encoded = "".join(
        chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in user.encode()
    )
    if encoded.startswith("."):
        encoded = f"%2E{encoded[1:]}"
    if 0 < len(encoded) <= _NAME_CHARS_MAX:
        return encoded
    return f"{encoded[:_KEPT_CHARS]}%-{hashlib.sha256(user.encode()).hexdigest()}"
