"""The secrets of the configuration leave by no tool: where one stands in an output, `[secret]` stands instead.

The gate does this to everything that a tool says. Who cuts an output into pieces does it before, so that no half is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["Redact"]

_CHARS_MIN = 6
"""What is shorter than this stands in ordinary words too."""


class Redact:
    """Takes these secrets out of text. They are looked up each time, because the configuration changes."""

    def __init__(self, known: Callable[[], Iterable[str]] = tuple) -> None:
        self._known = known

    def __call__(self, text: str) -> str:
        for each in self._secrets():
            text = text.replace(each, "[secret]")
        return text

    @property
    def longest(self) -> int:
        """In bytes: so much of one may be left where an output is cut."""
        return max((len(each.encode()) for each in self._secrets()), default=0)

    def half(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret."""
        begun = (
            each.encode()[:n]
            for each in self._secrets()
            for n in range(1, len(each.encode()))
        )
        return max((len(each) for each in begun if data.endswith(each)), default=0)

    def _secrets(self) -> list[str]:
        return sorted(
            {each for each in self._known() if len(each) >= _CHARS_MIN},
            key=len,
            reverse=True,
        )
