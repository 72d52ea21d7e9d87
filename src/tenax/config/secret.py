"""Keys and passwords: values that are never printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from urllib.parse import unquote

import msgspec

from tenax.errors import ConfigError

__all__ = ["Secret", "find_secrets", "hide_password"]


class Secret:
    """A key, or the place where a key is missing. It prints as stars.

    A missing or malformed key is an error only in `reveal`: most commands need no model, and must work without its key.
    """

    __slots__ = ("_origin", "_value")

    def __init__(self, value: str | None, origin: str) -> None:
        self._value = value.strip() if value else None
        self._origin = origin

    def reveal(self) -> str:
        """Return the key. Raises `ConfigError` if the key is missing or malformed."""
        if not self._value:
            raise ConfigError(f"There is no key in {self._origin}.")
        if not re.fullmatch(r"[!-~]+", self._value):
            raise ConfigError(
                f"The key in {self._origin} contains a space or a character that is not allowed in keys."
            )
        return self._value

    @property
    def is_set(self) -> bool:
        """Whether there is a key."""
        return bool(self._value)

    @property
    def origin(self) -> str:
        """The place of the key, in words."""
        return self._origin

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return False
        return (self._value, self._origin) == (other._value, other._origin)

    def __hash__(self) -> int:
        return hash((self._value, self._origin))


def find_secrets(part: object) -> Iterator[str]:
    """Yield every key in a part of a configuration, and every password in a URL."""
    inside: Iterable[object] = ()
    if isinstance(part, Secret):
        if part._value:  # noqa: SLF001  (`reveal` raises if the key is missing)
            yield part._value  # noqa: SLF001
    elif isinstance(part, str):
        yield from _find_passwords(part)
    elif isinstance(part, Mapping):
        inside = part.values()
    elif isinstance(part, tuple | list):
        inside = part
    elif isinstance(part, msgspec.Struct):
        inside = (getattr(part, name) for name in part.__struct_fields__)
    elif is_dataclass(part):
        inside = (getattr(part, field.name) for field in fields(part))
    for item in inside:
        yield from find_secrets(item)


def _find_passwords(text: str) -> set[str]:
    """Return the passwords in a URL, both percent-encoded and decoded."""
    groups = re.findall(
        r"://[^:@/]*:(.*)@|[?&](?:ssl)?password=([^&]*)", text, re.IGNORECASE
    )
    passwords = {userinfo or parameter for userinfo, parameter in groups}
    return passwords | {unquote(password) for password in passwords}


def hide_password(url: str) -> str:
    """Return a URL with stars instead of its password.

    If the URL is malformed and the end of the password is unclear, more than the password is hidden.
    """
    url = re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url, count=1)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", url, flags=re.IGNORECASE)
