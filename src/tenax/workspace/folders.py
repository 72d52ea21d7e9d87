"""Where tools work and memory providers keep their files: every user but the owner has a folder in the data folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import unquote

from tenax.config import Config
from tenax.errors import unusable
from tenax.journal import LOCAL_USER

__all__ = ["folder_of", "folders_of_users", "home_of"]

_FILES = "files"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_NAME_CHARS_MAX = 200
_KEPT_CHARS = 100


def folder_of(config: Config, user: str) -> Path:
    """Return the folder in which the tools of this user work.

    The folder of a user who is not the owner is made, readable for nobody else. The owner's is made by the first tool
    that writes in it. Raises `CannotOpen` where the folder cannot be made.
    """
    if user == LOCAL_USER:
        return config.tools_folder
    own = config.places.users / _name_of(user)
    folder = own / _FILES
    try:
        config.places.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        # `parents` would give them no mode
        for each in (config.places.users, own, folder):
            each.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        hint = f"remove what stands in its place, and let Tenax write in {config.places.users}"
        raise unusable(f"{folder} cannot be made", error, hint=hint) from error
    return folder


def home_of(config: Config, user: str) -> Path:
    """Return the folder in which memory providers keep the data of this user: the data folder, or a user's part of it.

    Raises `CannotOpen` where the folder cannot be made.
    """
    return config.places.data if user == LOCAL_USER else folder_of(config, user).parent


def folders_of_users(config: Config) -> dict[str, Path]:
    """Return the folders of the users who are not the owner, as far as they are made, by name."""
    found = sorted(config.places.users.glob(f"*/{_FILES}"))
    return {unquote(folder.parent.name): folder for folder in found}


def _name_of(user: str) -> str:
    """Return a file name that no other user has, on any file system.

    A name may hold slashes and dots, and some file systems do not tell `Bob` from `bob`. So every byte but small letters,
    digits, `-`, `_` and a dot that is not the first stands as %XX. A name that is too long for a file ends in a digest.
    """
    encoded = "".join(
        chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in user.encode()
    )
    if encoded.startswith("."):
        encoded = f"%2E{encoded[1:]}"
    if 0 < len(encoded) <= _NAME_CHARS_MAX:
        return encoded
    return f"{encoded[:_KEPT_CHARS]}%-{hashlib.sha256(user.encode()).hexdigest()}"
