"""One-time codes from the terminal, and signed URLs with a validity of minutes.

A code is a file with the digest of the code as its name. The process renaming the file uses the code. Only the account
of Tenax can read the folder. The code of a link signs a browser in; a confirmation code shows that the person at the
page also has the terminal.

A browser fetches pictures, frames and downloads without the page's key. Their URLs are signed instead, with all of
their parameters, for a single device, with a key readable only by the same account.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tenax.concurrency import write_atomically
from tenax.errors import CannotOpen, unusable

__all__ = [
    "ADDRESS_SECONDS",
    "CODE_SECONDS",
    "CONFIRMATION_SECONDS",
    "SIGNED_PATHS",
    "Links",
    "can_be_signed",
    "may_be_shown",
    "unsigned",
]

CODE_SECONDS: Final = 15 * 60
CONFIRMATION_SECONDS: Final = 5 * 60
ADDRESS_SECONDS: Final = 5 * 60
SIGNED_PATHS: Final = {
    "/api/conversations/{id}/attachments/{blob}": frozenset({"image"}),
    "/api/conversations/{id}/files/content": frozenset({"image", "iframe"}),
    "/api/conversations/{id}/files/zip": frozenset[str](),
    "/api/conversations/{id}/export": frozenset[str](),
    "/api/export": frozenset[str](),
    "/api/memory/export": frozenset[str](),
}
"""The paths fetched by the browser itself, without the page's key, and the elements that may show them.

A link may download each of them.
"""

_CLOCK_SECONDS: Final = 10
"""The allowed difference between the clocks of the file system and of the machine."""
_KEY_BYTES: Final = 32
_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""The characters of confirmation codes. No two look alike, because a person types the codes."""
_SIGNED: Final = {
    re.compile(re.sub(r"{\w+}", r"[A-Za-z0-9_.-]{1,128}", path)): elements
    for path, elements in SIGNED_PATHS.items()
}


def can_be_signed(path: str) -> bool:
    """Return whether URLs with the path can be signed."""
    return any(pattern.fullmatch(path) for pattern in _SIGNED)


def may_be_shown(path: str, element: str) -> bool:
    """Return whether an element of a page, such as `image` or `iframe`, may show the path."""
    return any(
        element in elements
        for pattern, elements in _SIGNED.items()
        if pattern.fullmatch(path)
    )


def unsigned(query: str) -> tuple[str, str]:
    """Split the query of a signed URL into the signed parameters and the signature."""
    before, _, signature = query.rpartition("signed=")
    return before.removesuffix("&"), signature


class _Codes:
    """Codes of the same kind. A code is valid once, for a number of seconds."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        folder.mkdir(mode=0o700, exist_ok=True)

    def add(self, code: str, text: str) -> None:
        """Store a code with its text."""
        self._forget_old()
        try:
            write_atomically(
                self._file(code), text.encode(), overwrite=False, durable=False
            )
        except OSError as error:
            raise unusable(f"No code can be made in {self._folder}", error) from error

    def read(self, code: str) -> str | None:
        """Return the text of a valid code. The code stays valid."""
        file = self._file(code)
        try:
            return file.read_text(encoding="utf-8") if self._is_fresh(file) else None
        except (OSError, UnicodeDecodeError):
            return None

    @contextlib.contextmanager
    def taken(self, code: str) -> Iterator[str | None]:
        """Use a valid code and return its text. If the block fails, the code is valid again for its remaining time."""
        file = self._file(code)
        taken = file.with_suffix(f".{secrets.token_hex(4)}")
        try:
            # If two processes use the code at once, a single process succeeds.
            file.rename(taken)
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

    def forget(self, text: str | None) -> None:
        """Delete the codes with a given text, or every code. Also delete unreadable files, because nobody can use them.

        Raises `OSError` if a code could not be deleted, after trying the remaining codes.
        """
        failed: OSError | None = None
        for file in self._folder.iterdir():
            # A folder is never a code.
            if file.is_dir():
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
            # A file that cannot be deleted is too old to be valid anyway.
            with contextlib.suppress(OSError):
                if not self._is_fresh(file):
                    file.unlink()

    def _is_fresh(self, file: Path) -> bool:
        # A clock set back must not make a code valid for longer.
        age = time.time() - file.stat().st_mtime
        return -_CLOCK_SECONDS < age < self._seconds


class Links:
    """The codes and signatures of an installation, stored in `folder`."""

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
        """Create the code of a link for a user. The code is valid once, for 15 minutes."""
        code = secrets.token_urlsafe(18)
        self._codes.add(code, user)
        return code

    def user_of(self, code: str) -> str | None:
        """Return the user of a valid code. The code stays valid."""
        return self._codes.read(code)

    def using(self, code: str) -> contextlib.AbstractContextManager[str | None]:
        """Use a code and return its user. If the block fails, the code is valid again for its remaining time."""
        return self._codes.taken(code)

    def forget_codes(self, user: str | None) -> None:
        """Cancel the unused links of a user, or of every user."""
        try:
            self._codes.forget(user)
        except OSError as error:
            raise unusable(
                f"The codes in {self._folder} cannot be deleted", error
            ) from error

    def make_confirmation(self) -> str:
        """Create a confirmation code. A person reads the code in the terminal and types the code into the page."""
        code = "".join(secrets.choice(_ALPHABET) for _ in range(8))
        self._confirmations.add(code, "")
        return f"{code[:4]}-{code[4:]}"

    @contextlib.contextmanager
    def confirming(self, code: str) -> Iterator[bool]:
        """Use a confirmation code and return whether the code was valid.

        If the block fails, the code is valid again.
        """
        with self._confirmations.taken(re.sub(r"[\s-]", "", code).upper()) as text:
            yield text is not None

    def sign(self, device: str, address: str) -> str:
        """Return a signed URL of a path, or of a path with a query, for a device.

        The URL is valid for `ADDRESS_SECONDS`.
        """
        until = int(time.time()) + ADDRESS_SECONDS
        mark = "&" if "?" in address else "?"
        return f"{address}{mark}signed={until}.{self._mac(device, address, str(until))}"

    def is_signed(self, device: str, address: str, signature: str) -> bool:
        """Return whether the signature matches the device and the address, and has not expired."""
        until, _, mac = signature.partition(".")
        if not can_be_signed(address.partition("?")[0]) or not re.fullmatch(
            r"[0-9]{1,12}", until, re.ASCII
        ):
            return False
        right = hmac.compare_digest(
            mac.encode(errors="replace"), self._mac(device, address, until).encode()
        )
        return right and time.time() < int(until)

    def _mac(self, *words: str) -> str:
        return hmac.new(
            self._key, "\n".join(words).encode(), hashlib.sha256
        ).hexdigest()

    def _read_key(self) -> bytes:
        file = self._folder / "key"
        if not file.exists():
            # Two processes starting at once both use the key written first.
            with contextlib.suppress(FileExistsError):
                write_atomically(file, secrets.token_bytes(_KEY_BYTES), overwrite=False)
        key = file.read_bytes()
        # With a short key, anybody knowing the remaining bytes could sign.
        if len(key) != _KEY_BYTES:
            raise CannotOpen(
                f"{file} is damaged.", hint="Delete it. Tenax creates a new one."
            )
        return key
