"""The input line: keys, history, completion, and an area above the line for live text.

A single prompt_toolkit application runs for the whole chat: Enter passes the input on and the line stays open, so no
key is lost between two messages. Output is printed above the line; drawing and printing never interleave.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

__all__ = ["Prompt"]

_STYLE = Style.from_dict(
    {
        "tail": "ansibrightblack",
        "tool": "ansicyan",
        "waits": "ansibrightblack",
        "question": "bold ansiyellow",
        "hint": "ansiyellow",
        "status": "ansibrightblack",
    }
)
_REDRAW_SECONDS = 0.03
_CLOSED = (OSError, termios.error)
"""The errors of a closed terminal."""


class Prompt:
    """The input line. The callbacks run in the event loop and must return at once.

    `begin` is called with the first character of a line, `accept` at Enter.
    """

    def __init__(
        self,
        history: Path,
        *,
        above: Callable[[int], list[tuple[str, str]]],
        complete: Callable[[str], Iterable[tuple[str, str]]],
        begin: Callable[[], None],
        accept: Callable[[str], None],
        interrupt: Callable[[], None],
    ) -> None:
        self._above = above
        self._begin = begin
        self._accept = accept
        self._is_empty = True
        depth = ColorDepth.from_env()
        output = _Output.from_pty(
            sys.stdout, term=os.environ.get("TERM"), default_color_depth=depth
        )
        self._output = cast("_Output", output)
        self._session: PromptSession[None] = PromptSession(
            self._message,
            multiline=True,
            prompt_continuation="  ",
            history=_history(history),
            completer=_Words(complete),
            complete_while_typing=Condition(lambda: self.text.startswith("/")),
            key_bindings=self._keys(interrupt),
            style=_STYLE,
            erase_when_done=True,
            enable_suspend=True,
            output=self._output,
        )
        self._session.app.min_redraw_interval = _REDRAW_SECONDS
        self._session.app.ttimeoutlen = 0.1
        self._session.default_buffer.accept_handler = self._accepted
        self._session.default_buffer.on_text_changed += self._changed

    async def run(self) -> None:
        """Run until `leave`, or until the terminal is closed."""
        try:
            # Output of other code also goes above the line.
            with patch_stdout():
                await self._session.prompt_async(set_exception_handler=False)
        except (EOFError, *_CLOSED):
            if os.isatty(self._output.fileno()):
                raise
        finally:
            # SIGHUP ends the application before it reads that the terminal is closed. Text left in a buffer would then
            # make Python exit with status 120.
            if not os.isatty(self._output.fileno()):
                _discard_output()

    @property
    def text(self) -> str:
        return self._session.default_buffer.text

    @property
    def is_open(self) -> bool:
        return self._session.app.is_running and not self._session.app.is_done

    @property
    def columns(self) -> int:
        return self._output.get_size().columns

    def put(self, text: str) -> None:
        """Put a text into the line, before text typed in the meantime."""
        buffer = self._session.default_buffer
        buffer.text = f"{text}\n{buffer.text}" if buffer.text else text
        buffer.cursor_position = len(buffer.text)

    def clear(self) -> None:
        self._session.default_buffer.reset()
        self._is_empty = True

    def refresh(self) -> None:
        self._session.app.invalidate()

    def leave(self) -> None:
        if self.is_open:
            self._session.app.exit()

    def print(self, text: str) -> None:
        """Print text above the line. The terminal mode does not change, so no key is echoed or lost."""
        app = self._session.app
        with contextlib.suppress(*_CLOSED), self._output.at_once():
            if self.is_open:
                app.renderer.erase()
            self._output.write_raw(text.replace("\n", "\r\n"))
            if self.is_open:
                app.renderer.request_absolute_cursor_position()
                app._redraw()  # noqa: SLF001  (at once: until then a paste would not be seen as one)

    def _accepted(self, buffer: Buffer) -> bool:
        self._accept(buffer.text)
        self._is_empty = True
        return False

    def _changed(self, buffer: Buffer) -> None:
        if self._is_empty and buffer.text:
            self._begin()
        self._is_empty = not buffer.text

    def _message(self) -> StyleAndTextTuples:
        lines = self._above(max(3, self._output.get_size().rows // 3))
        drawn: StyleAndTextTuples = []
        for style, line in lines:
            drawn += [(style, line), ("", "\n")]
        return [*drawn, ("bold", "> ")]

    def _keys(self, interrupt: Callable[[], None]) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(DEFAULT_BUFFER)

        @keys.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text.strip():
                event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c", filter=typing)
        @keys.add("<sigint>")
        def _(_event: KeyPressEvent) -> None:
            interrupt()

        @keys.add("c-d", filter=typing & Condition(lambda: not self.text))
        def _(_event: KeyPressEvent) -> None:
            self.leave()

        return keys


class _Output(Vt100_Output):
    """A terminal output written in a single piece, without flicker."""

    _held = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.flush()

    def flush(self) -> None:
        if not self._held:
            super().flush()


class _Words(Completer):
    """Completes slash commands and their arguments."""

    def __init__(self, complete: Callable[[str], Iterable[tuple[str, str]]]) -> None:
        self._complete = complete

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002
    ) -> Iterable[Completion]:
        line = document.text_before_cursor
        if line.startswith("/") and "\n" not in line:
            last = line.rpartition(" ")[2]
            for word, about in self._complete(line):
                yield Completion(word, -len(last), display_meta=about)


class _File(FileHistory):
    """A history file. Errors are ignored, because a full disk must not end the chat."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError, UnicodeError):
            super().store_string(string)


def _history(file: Path) -> History:
    """Open the input history, in a file readable only by the user."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(
            os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        )
        file.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return _File(str(file))


def _discard_output() -> None:
    """Send what is still written to stdout and stderr to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        os.dup2(nowhere, stream.fileno() if stream is not None else nowhere)
