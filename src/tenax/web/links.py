"""The link that lets a browser in: a code that works once becomes a cookie.

A code is a file whose name is the code's digest; whoever takes the file away has used it. The cookie is signed with a key
that only this machine's user can read, so it outlives the server, and nothing about it is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

from tenax.errors import CannotOpen, unusable

__all__ = ["CODE_SECONDS", "COOKIE_SECONDS", "Links"]

CODE_SECONDS: Final = 15 * 60
COOKIE_SECONDS: Final = 400 * 24 * 3600
_KEY_BYTES: Final = 32


class Links:
    """Codes and cookies of one Tenax, kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._codes = folder / "codes"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._codes.mkdir(mode=0o700, exist_ok=True)
            self._key = self._read_key()
        except OSError as error:
            raise unusable(f"{folder} cannot be used", error) from error

    def cookie(self, port: int) -> str:
        """Its name. Browsers keep the cookies of all ports of a host together."""
        return f"tenax_{port}"

    def make_code(self, user: str) -> str:
        """A code for this user, which works once and for a quarter of an hour."""
        self._forget_old()
        code = secrets.token_urlsafe(18)
        file = self._codes / _digest(code)
        try:
            file.touch(mode=0o600, exist_ok=False)
            file.write_text(user, encoding="utf-8")
        except OSError as error:
            raise unusable(f"No link can be made in {self._codes}", error) from error
        return code

    def use(self, code: str) -> str | None:
        """The cookie's value, if the code is good; then it is not any more."""
        if not re.fullmatch(r"[\w-]{10,64}", code, re.ASCII):
            return None
        file = self._codes / _digest(code)
        taken = file.with_suffix(f".{secrets.token_hex(4)}")
        try:
            file.rename(taken)  # of two who use it at once, one does
            fresh = time.time() - taken.stat().st_mtime < CODE_SECONDS
            user = taken.read_text(encoding="utf-8")
            taken.unlink()
        except OSError:
            return None
        return self.sign(user) if fresh else None

    def sign(self, user: str) -> str:
        """The cookie's value for this user."""
        text = f"{user.encode().hex()}.{int(time.time())}"
        return f"{text}.{self._mac(text)}"

    def user(self, cookie: str) -> str | None:
        """Who this cookie was given to, if it is ours and not too old."""
        text, _, mac = cookie.rpartition(".")
        if not text or not hmac.compare_digest(mac.encode(), self._mac(text).encode()):
            return None
        name, _, at = text.rpartition(".")
        if time.time() - int(at) > COOKIE_SECONDS:
            return None
        return bytes.fromhex(name).decode()

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def _read_key(self) -> bytes:
        file = self._folder / "key"
        temporary = file.with_suffix(f".{secrets.token_hex(4)}")
        if not file.exists():
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:  # noqa: PTH123  (a descriptor)
                opened.write(secrets.token_bytes(_KEY_BYTES))
                opened.flush()
                os.fsync(opened.fileno())
            try:
                os.link(temporary, file)  # who is first wins
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        key = file.read_bytes()
        if len(key) != _KEY_BYTES:  # whoever knows what is left of it could sign
            raise CannotOpen(f"{file} is damaged.", hint="delete it; then every browser needs a new link")
        return key

    def _forget_old(self) -> None:
        for file in self._codes.iterdir():
            try:
                if time.time() - file.stat().st_mtime > CODE_SECONDS:
                    file.unlink()
            except FileNotFoundError:
                continue


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
