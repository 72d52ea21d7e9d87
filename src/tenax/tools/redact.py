"""Replace the secrets of the configuration in the output of tools by `[secret]`.

The gate redacts every output. A tool that splits its output redacts the output before the split, to leave no half of a
secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["Redact"]

# A shorter secret would also match ordinary words.
_CHARS_MIN = 6


class Redact:
    """A callable that replaces secrets in text. `known` is called every time, because the configuration can change."""

    def __init__(self, known: Callable[[], Iterable[str]] = tuple) -> None:
        self._known = known

    def __call__(self, text: str) -> str:
        for secret in self._secrets():
            text = text.replace(secret, "[secret]")
        return text

    @property
    def longest(self) -> int:
        """The length of the longest secret in bytes."""
        return max((len(secret.encode()) for secret in self._secrets()), default=0)

    def half(self, data: bytes) -> int:
        """Return the number of bytes at the end of `data` that may be the beginning of a secret."""
        longest = 0
        for secret in self._secrets():
            encoded = secret.encode()
            for length in range(1, len(encoded)):
                if data.endswith(encoded[:length]):
                    longest = max(longest, length)
        return longest

    def _secrets(self) -> list[str]:
        secrets = {secret for secret in self._known() if len(secret) >= _CHARS_MIN}
        return sorted(secrets, key=len, reverse=True)
