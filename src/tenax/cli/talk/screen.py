"""Rows of a transcript as text for a terminal: what is settled is printed once, what may still change is drawn live.

An answer is printed block by block, as its markdown closes. Whatever order changes come in, and however often, no text
is printed twice and none is left out: per answer it is known how much was printed. Nothing that a model or a tool wrote
reaches the terminal as anything but characters that can be seen.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from markdown_it import MarkdownIt
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from tenax.agent.recovery import WORDING
from tenax.cli.lines import AT_ITS_LONGEST, clean, fit, noted, one_line, with_files
from tenax.parts import leaves
from tenax.runtime.runtime import Question
from tenax.tools.ask import choices
from tenax.views.transcript import Change, Drop, Grow, Put, Row

__all__ = ["Screen", "ansi", "aside"]

_TAIL_LINES_MAX: Final = 8
_WAITS: Final = {"queued": "waits", "steering": "steers"}
_ENDS: Final = {"cut": "The answer was cut off here.", "full": AT_ITS_LONGEST}
_UNDER_WAY: Final = frozenset({"waiting", "asks", "approved", "running"})
_PADDING: Final = re.compile(r" +((?:\x1b\[[0-9;]*m)*\n)")
_STYLE: Final = re.compile(r"(\x1b\[[0-9;]*m)")
# What would be rendered as nothing, or elsewhere, stands as it was written: a definition, a tag, a picture.
_PARSER: Final = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["reference", "image"])
)


def ansi(*what: RenderableType, columns: int) -> str:
    """Text with styles, as the terminal takes it."""
    file = io.StringIO()
    console = Console(
        file=file,
        force_terminal=True,
        width=max(columns, 20),
        highlight=False,
        markup=False,
    )
    for each in what:
        console.print(each)
    # padding would wrap when the window shrinks
    parts = _STYLE.split(_PADDING.sub(r"\1", file.getvalue()))
    return "".join(part if n % 2 else clean(part) for n, part in enumerate(parts))


def aside(words: str, *, columns: int) -> str:
    """A line that nobody in the talk said."""
    return ansi(Text(clean(words).replace("\n", " "), "dim"), columns=columns)


class Screen:
    """What of a conversation was printed, and what is drawn live."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._rows: dict[str, Row] = {}
        self._said: dict[str, str] = {}
        """Per answer: what of it was printed."""
        self._printed: dict[str, str] = {}
        """Per other row: the state in which it was printed last."""
        self.mine: set[str] = set()
        """Questions that were answered here."""
        self.questions: dict[str, Question] = {}
        """How the open questions can be answered."""
        self.asked_by: str | None = None
        """The run that asked last."""

    @property
    def asks(self) -> list[Row]:
        """The questions that are open."""
        return [
            row
            for row in self._rows.values()
            if row.kind == "tool" and row.state == "asks"
        ]

    def changed(self, changes: Iterable[Change]) -> str:
        """Take changes in; what has to be printed now."""
        out, gone = "", 0
        for change in changes:
            match change:
                case Put(row):
                    out += self._put(row)
                case Grow(name, offset, text):
                    have = self._rows.get(name)
                    if have is not None and offset <= len(have.text) < offset + len(
                        text
                    ):
                        out += self._put(
                            msgspec.structs.replace(
                                have, text=have.text[:offset] + text
                            )
                        )
                case Drop(name):
                    have = self._rows.pop(name, None)
                    self._said.pop(name, None)
                    self._printed.pop(name, None)
                    gone += have is not None and have.kind != "notice"
        if gone:
            out += self._aside(
                f"The last {gone} row{'s' if gone > 1 else ''} above no longer stand."
            )
        return out

    def _put(self, row: Row) -> str:
        before = self._rows.get(row.id)
        self._rows[row.id] = row
        if row.kind == "assistant":
            return self._answer(row)
        if row.kind == "tool":
            return (
                self._settled_elsewhere(before, row)
                + self._waits_elsewhere(before, row)
                + self._tool(row)
            )
        if (
            row.state in {"user": _WAITS, "files": ("open",)}.get(row.kind, ())
            or self._printed.get(row.id) == row.state
        ):
            return ""
        first, self._printed[row.id] = row.id not in self._printed, row.state
        return self._whole(
            row, "(erased)" if row.erased else clean(row.text), first=first
        )

    def _whole(self, row: Row, text: str, *, first: bool) -> str:
        """A row that is printed as a whole, each time its state changes."""
        match row.kind:
            case "user":
                who = f"{one_line(row.author)}: " if row.author else ""
                body = f"{who}{with_files(text, row)}".replace("\n", "\n  ")
                return ansi(Text(f"> {body}", "bold"), "", columns=self._columns())
            case "marker":
                why = (
                    f" {text}" if first and text and text != WORDING[row.state] else ""
                )
                way_on = " /retry asks again." if row.state == "failed" else ""
                return self._aside(WORDING[row.state] + why + way_on)
            case "notice":
                return self._aside(
                    text + (" It is tried again." if row.state == "retrying" else "")
                )
            case "memory":
                return self._aside(noted(row))
            case "files":
                way_on = "/changes shows what, /putback puts it back."
                return self._aside(
                    "Put back." if row.state == "undone" else f"{text} {way_on}"
                )
            case _:
                return self._aside(f"{row.kind.capitalize()}:") + self._markdown(text)

    # -- answers ---------------------------------------------------------------------------------------------

    def _answer(self, row: Row) -> str:
        """What of an answer is new and closed. A text that is older than what was printed says nothing."""
        text, said, out = clean(row.text), self._said.get(row.id, ""), ""
        if row.erased or (said.startswith(text) and row.state == "streaming"):
            return ""
        if not text.startswith(said):
            out, said = self._aside("The answer, as it is kept:"), ""
        whole = row.state != "streaming"
        end = len(text) if whole else len(said) + _closed(text[len(said) :])
        out += self._markdown(text[len(said) : end])
        self._said[row.id] = text[:end]
        if row.state in _ENDS and self._printed.get(row.id) != row.state:
            out += self._aside(_ENDS[row.state])
        if whole:
            self._printed[row.id] = row.state
        return out

    def _markdown(self, text: str) -> str:
        if not text.strip():
            return ""
        shown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
        shown.parsed = _PARSER.parse(text)
        return ansi(shown, columns=self._columns()).strip("\n") + "\n\n"

    # -- tools -----------------------------------------------------------------------------------------------

    def _tool(self, row: Row) -> str:
        waits_for_words = row.state == "denied" and not row.text  # the outcome follows
        state = f"{row.state}{', late' if row.late else ''}"
        asked_before = row.state == "asks" and row.id in self._printed
        if waits_for_words or asked_before or self._printed.get(row.id) == state:
            return ""
        if row.state == "asks":
            self._printed[row.id], self.asked_by = state, row.run
            return self._question(row)
        if row.state in _UNDER_WAY:
            return ""
        self._printed[row.id] = state
        why = (
            f": {one_line(row.text)}"
            if row.state not in {"done", "cancelled"} and row.text
            else ""
        )
        return ansi(
            Text(f"  {_call(row)} … {state}{why}", "cyan"), "", columns=self._columns()
        )

    def _question(self, row: Row) -> str:
        if found := choices(row.name, row.arguments):
            lines = [
                f"  {one_line(row.touches)}",
                *(f"  {n}  {one_line(each)}" for n, each in enumerate(found, 1)),
            ]
            return ansi(Text("\n".join(lines), "yellow"), "", columns=self._columns())
        told = f"  {one_line(row.name)} asks to be allowed.\n  It touches: {one_line(row.touches)}\n  Its arguments: "
        return ansi(
            Text(told + clean(row.arguments), "yellow"), "", columns=self._columns()
        )

    def _settled_elsewhere(self, before: Row | None, row: Row) -> str:
        if (
            before is None
            or before.state != "asks"
            or row.state == "asks"
            or row.id in self.mine
        ):
            return ""
        return self._aside(
            f"The question about {row.name} was settled elsewhere: {row.state}."
        )

    def _waits_elsewhere(self, before: Row | None, row: Row) -> str:
        if not row.child_asks or (before is not None and before.child_asks):
            return ""
        return self._aside(
            f"The sub-agent waits for your answer: /open {one_line(row.child)}"
        )

    def _aside(self, words: str) -> str:
        return aside(f"-- {words}", columns=self._columns()) + "\n"

    # -- live ------------------------------------------------------------------------------------------------

    def live(self, lines_max: int) -> list[tuple[str, str]]:
        """What may still change, as styled lines that fit."""
        columns = max(self._columns() - 1, 1)
        rows = sorted(
            (row for row in self._rows.values() if row.state), key=lambda row: row.key
        )
        lines: list[tuple[str, str]] = []
        for row in rows:
            if row.kind == "assistant" and row.state == "streaming":
                lines += [("class:tail", line) for line in self._tail(row, columns)]
            elif row.kind == "tool" and row.state in _UNDER_WAY - {"asks"}:
                lines.append(("class:tool", f"  {_call(row)} … {row.state}"))
            elif row.kind == "user" and row.state:
                lines.append(
                    (
                        "class:waits",
                        f"> {one_line(row.text)} ({_WAITS.get(row.state, row.state)})",
                    )
                )
        if asks := self.asks:
            for about in _ways_to_answer(asks[0], self.questions.get(asks[0].id)):
                lines += [
                    ("class:question", piece) for piece in textwrap.wrap(about, columns)
                ]
        return [(style, fit(line, columns)) for style, line in lines[-lines_max:]]

    def _tail(self, row: Row, columns: int) -> Sequence[str]:
        text = clean(row.text)[len(self._said.get(row.id, "")) :].expandtabs(4)
        text = text[-columns * _TAIL_LINES_MAX :]
        wrapped = [
            piece
            for line in text.strip("\n").split("\n")
            for piece in textwrap.wrap(line, columns) or [""]
        ]
        return wrapped[-_TAIL_LINES_MAX:]

    def rest(self) -> str:
        """What of the live rows is worth a line when the talk is left: messages that still wait."""
        waiting = [
            row for row in self._rows.values() if row.kind == "user" and row.state
        ]
        return "".join(self._aside(f"It waits: {row.text}") for row in waiting)


def _closed(text: str) -> int:
    """How much of a text are closed blocks of markdown: where its last block begins."""
    if "\n" not in text.strip("\n"):
        return 0
    begins = [
        token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map
    ]
    if len(begins) < 2 or begins[-1] == 0:  # noqa: PLR2004  (a last one, and one before it)
        return 0
    return sum(len(line) + 1 for line in text.split("\n")[: begins[-1]])


def _ways_to_answer(row: Row, question: Question | None) -> list[str]:
    """Say how what is asked can be answered. The patterns stand first: a small terminal shows the last lines."""
    if choices(row.name, row.arguments):
        return [
            "  Answer with a number or in your own words; then Enter. /queue says something else."
        ]
    here = question.conversation if question is not None else []
    keys = ["c", *(f"c {number}" for number in range(2, len(here) + 1))]
    lines = [
        f"  {key} in this conversation: {one_line(row.name)} {pattern}"
        for key, pattern in zip(
            keys, question.noted(here) if question is not None else [], strict=False
        )
    ]
    ways = ["y once", *keys[: len(here)]]
    if question is not None and question.always:
        ways.append("always")
    return [*lines, f"  Allow {_call(row)}? {', '.join(ways)}, n no; then Enter"]


def _call(row: Row) -> str:
    """A call of a tool in a few words: its name, and what it is about."""
    about = row.touches
    if not about:
        try:
            found: Any = msgspec.json.decode(row.arguments)
            about = " ".join(leaves(found))
        except (msgspec.DecodeError, RecursionError):  # a model wrote it
            about = row.arguments
    return f"{one_line(row.name)} {fit(one_line(about[:200]), 60)}".rstrip()
