"""A list in the terminal: type to filter, move with the arrow keys, choose with Enter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from tenax.cli.resume import Entry

__all__ = ["pick"]

_LINES_MAX: Final = 15
_OTHER_LINES: Final = 3
"""The lines besides the list: the help, the input, and a line below."""
_STYLE: Final = Style.from_dict({"chosen": "reverse", "hint": "ansibrightblack"})
_HELP: Final = "Type to filter, ↑ ↓ to move, Enter to open, Esc to leave."


class _Picker:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._position = 0
        self._session: PromptSession[str] = PromptSession(
            self._message,
            key_bindings=self._keys(),
            style=_STYLE,
            erase_when_done=True,
        )
        self._session.app.ttimeoutlen = 0.1
        self._session.default_buffer.on_text_changed += self._start_over

    def pick(self) -> Entry | None:
        """Return the chosen entry, or `None` if the person leaves."""
        try:
            self._session.prompt()
        except (EOFError, KeyboardInterrupt):
            return None
        return self._chosen

    @property
    def _matches(self) -> list[Entry]:
        text = self._session.default_buffer.text
        return [entry for entry in self._entries if entry.matches(text)]

    @property
    def _chosen(self) -> Entry | None:
        matches = self._matches
        return matches[self._position] if self._position < len(matches) else None

    def _start_over(self, _buffer: object) -> None:
        self._position = 0

    def _move(self, by: int) -> None:
        last = max(len(self._matches) - 1, 0)
        self._position = min(max(self._position + by, 0), last)

    def _message(self) -> StyleAndTextTuples:
        """Return the visible part of the list, and the input line."""
        size = self._session.app.output.get_size()
        room = max(min(size.rows - _OTHER_LINES, _LINES_MAX), 1)
        matches = self._matches
        first = min(max(self._position - room // 2, 0), max(len(matches) - room, 0))
        lines: StyleAndTextTuples = [("class:hint", f"{_HELP}\n")]
        for number, entry in enumerate(matches[first : first + room], first):
            style = "class:chosen" if number == self._position else ""
            lines.append((style, entry.line(size.columns - 1)))
            lines.append(("", "\n"))
        if not matches:
            lines.append(("class:hint", "No conversation matches.\n"))
        return [*lines, ("", "> ")]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("up")
        def _(_event: KeyPressEvent) -> None:
            self._move(-1)

        @keys.add("down")
        def _(_event: KeyPressEvent) -> None:
            self._move(1)

        @keys.add("pageup")
        def _(_event: KeyPressEvent) -> None:
            self._move(-_LINES_MAX)

        @keys.add("pagedown")
        def _(_event: KeyPressEvent) -> None:
            self._move(_LINES_MAX)

        @keys.add("escape")
        def _(event: KeyPressEvent) -> None:
            event.app.exit(exception=EOFError)

        # Enter without a match keeps the list open.
        @keys.add("enter", filter=Condition(lambda: self._chosen is None))
        def _(_event: KeyPressEvent) -> None:
            """Do nothing."""

        return keys


def pick(entries: Sequence[Entry]) -> Entry | None:
    """Let the person choose an entry. Return `None` if the person leaves."""
    return _Picker(entries).pick()
