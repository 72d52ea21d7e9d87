"""One-time codes that a terminal gives, and addresses that are good for some minutes.

A code is a file whose name is the code's digest; whoever takes the file away has used it. Only the account that runs Tenax
can read the folder. The code of a link signs a browser in; a confirmation code shows that the person at the page also has
the terminal.

A browser fetches pictures and downloads without the page's key. Their addresses are signed instead, for one device, with a
key that only this account can read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tenax.errors import CannotOpen, unusable

__all__ = [
    "ADDRESS_SECONDS",
    "CODE_SECONDS",
    "CONFIRMATION_SECONDS",
    "SIGNED_PATHS",
    "Links",
    "can_be_signed",
]

CODE_SECONDS: Final = 15 * 60
CONFIRMATION_SECONDS: Final = 5 * 60
ADDRESS_SECONDS: Final = 5 * 60
SIGNED_PATHS: Final = (
    "/api/conversations/{id}/attachments/{blob}",
    "/api/memory/export",
)
"""What a browser fetches by itself, without the page's key."""

_CLOCK_SECONDS: Final = 10
"""How far the clocks of a file system and of this machine may be apart."""
_KEY_BYTES: Final = 32
_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Of confirmation codes, which a person types: no characters that look alike."""
_SIGNED: Final = re.compile(
    "|".join(re.sub(r"{\w+}", r"[A-Za-z0-9_.-]{1,128}", path) for path in SIGNED_PATHS)
)


def can_be_signed(path: str) -> bool:
    """Whether the address of this path can be signed."""
    return _SIGNED.fullmatch(path) is not None


class _Codes:
    """Codes of one kind. Each is good once, for some seconds."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        folder.mkdir(mode=0o700, exist_ok=True)

    def add(self, code: str, text: str) -> None:
        """Keep a code, with the text that its user gets."""
        self._forget_old()
        file = self._file(code)
        temporary = file.with_suffix(f".{secrets.token_hex(4)}")
        try:
            try:
                temporary.touch(mode=0o600, exist_ok=False)
                temporary.write_text(text, encoding="utf-8")
                os.link(temporary, file)  # whoever finds the code finds its whole text
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise unusable(f"No code can be made in {self._folder}", error) from error

    def read(self, code: str) -> str | None:
        """The text of a code that is still good. The code stays so."""
        file = self._file(code)
        try:
            return file.read_text(encoding="utf-8") if self._is_fresh(file) else None
        except (OSError, UnicodeDecodeError):
            return None

    @contextlib.contextmanager
    def taken(self, code: str) -> Iterator[str | None]:
        """The text of a code that is still good. From now on it is not; unless the block fails, then for the rest of its time."""
        file = self._file(code)
        taken = file.with_suffix(f".{secrets.token_hex(4)}")
        try:
            file.rename(taken)  # of two who use it at once, one does
            text = taken.read_text(encoding="utf-8") if self._is_fresh(taken) else None
        except (OSError, UnicodeDecodeError):
            yield None
            return
        try:
            yield text
        except BaseException:
            with contextlib.suppress(OSError):
                taken.rename(file)
            raise
        taken.unlink(missing_ok=True)

    def take(self, code: str) -> str | None:
        """The text of a code that is still good. From now on it is not."""
        with self.taken(code) as text:
            return text

    def forget(self, text: str | None) -> None:
        """Delete the codes with this text, or all. Also delete files that cannot be read: nobody can use them.

        Raises OSError if a code could not be deleted, after it has tried all others.
        """
        failed: OSError | None = None
        for file in self._folder.iterdir():
            if file.is_dir():  # never a code
                continue
            found: str | None
            try:
                found = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                found = text
            try:
                if text in {None, found}:
                    file.unlink(missing_ok=True)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def _file(self, code: str) -> Path:
        return self._folder / hashlib.sha256(code.encode(errors="replace")).hexdigest()

    def _forget_old(self) -> None:
        for file in self._folder.iterdir():
            # a file that stays is too old to be used
            with contextlib.suppress(OSError):
                if not self._is_fresh(file):
                    file.unlink()

    def _is_fresh(self, file: Path) -> bool:
        # A clock that was set back must not make a code good for longer than its time.
        age = time.time() - file.stat().st_mtime
        return -_CLOCK_SECONDS < age < self._seconds


class Links:
    """Codes and signatures of one Tenax, kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._codes = _Codes(folder / "codes", CODE_SECONDS)
            self._confirmations = _Codes(folder / "confirmations", CONFIRMATION_SECONDS)
            self._key = self._read_key()
        except OSError as error:
            raise unusable(f"{folder} cannot be used", error) from error

    def make_code(self, user: str) -> str:
        """The code of a link for this user, which works once and for a quarter of an hour."""
        code = secrets.token_urlsafe(18)
        self._codes.add(code, user)
        return code

    def user_of(self, code: str) -> str | None:
        """The user whom this code would sign in. The code stays good."""
        return self._codes.read(code)

    def use_code(self, code: str) -> str | None:
        """The user whom this code signs in. From now on the code is not good any more."""
        return self._codes.take(code)

    def using(self, code: str) -> contextlib.AbstractContextManager[str | None]:
        """The user whom this code signs in, as `use_code`. If the block fails, the code is good for the rest of its time."""
        return self._codes.taken(code)

    def forget_codes(self, user: str | None) -> None:
        """Make the links of this user, or of all users, not good any more."""
        try:
            self._codes.forget(user)
        except OSError as error:
            raise unusable(
                f"The codes in {self._folder} cannot be deleted", error
            ) from error

    def make_confirmation(self) -> str:
        """A code for what asks for one. A person reads it in the terminal and types it into the page."""
        code = "".join(secrets.choice(_ALPHABET) for _ in range(8))
        self._confirmations.add(code, "")
        return f"{code[:4]}-{code[4:]}"

    @contextlib.contextmanager
    def confirming(self, code: str) -> Iterator[bool]:
        """Whether this is a confirmation code; then it is not any more. If the block fails, it is for the rest of its time."""
        with self._confirmations.taken(re.sub(r"[\s-]", "", code).upper()) as text:
            yield text is not None

    def sign(self, device: str, path: str) -> str:
        """The address of this path for a device. It is good for `ADDRESS_SECONDS`."""
        until = int(time.time()) + ADDRESS_SECONDS
        return f"{path}?signed={until}.{self._mac(device, path, str(until))}"

    def is_signed(self, device: str, path: str, signature: str) -> bool:
        """Whether this signature was made for the device and the path, and is still good."""
        until, _, mac = signature.partition(".")
        if not can_be_signed(path) or not re.fullmatch(r"[0-9]{1,12}", until, re.ASCII):
            return False
        right = hmac.compare_digest(
            mac.encode(errors="replace"), self._mac(device, path, until).encode()
        )
        return right and time.time() < int(until)

    def _mac(self, *words: str) -> str:
        return hmac.new(
            self._key, "\n".join(words).encode(), hashlib.sha256
        ).hexdigest()

    def _read_key(self) -> bytes:
        file = self._folder / "key"
        temporary = file.with_suffix(f".{secrets.token_hex(4)}")
        if not file.exists():
            with open(  # noqa: PTH123
                os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as opened:
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
            raise CannotOpen(
                f"{file} is damaged.", hint="delete it; Tenax makes another"
            )
        return key
