"""Transcript rows as text for a terminal: finished rows are printed once, unfinished rows are drawn live.

An answer is printed block by block, when a Markdown block is complete. The screen records the printed part of every
answer, so no text is printed twice or left out, in whatever order changes arrive. Output of a model or a tool reaches
the terminal only as visible characters.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from markdown_it import MarkdownIt
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from tenax.agent.recovery import WORDING
from tenax.cli.lines import (
    AT_ITS_LONGEST,
    DIFF_COLOURS,
    changed,
    clean,
    fit,
    noted,
    with_files,
)
from tenax.parts import leaves
from tenax.runtime.approvals import Question
from tenax.text import to_one_line
from tenax.tools.ask import choices
from tenax.views.transcript import Change, Drop, Grow, Put, Row
from tenax.workspace.changes import TurnChanges

__all__ = ["Screen", "ansi", "aside", "render_changes"]

_TAIL_LINES_MAX: Final = 8
_DIFF_HEADER_LINES: Final = 2
_WAITS: Final = {"queued": "queued", "steering": "steering"}
_ENDS: Final = {"cut": "The answer was cut off here.", "full": AT_ITS_LONGEST}
_UNDER_WAY: Final = frozenset({"waiting", "asks", "approved", "running"})
_PADDING: Final = re.compile(r" +((?:\x1b\[[0-9;]*m)*\n)")
_STYLE: Final = re.compile(r"(\x1b\[[0-9;]*m)")
# Definitions, tags and pictures would disappear or move when rendered, so they stay as written.
_PARSER: Final = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["reference", "image"])
)


def ansi(*what: RenderableType, columns: int) -> str:
    """Render text with styles as ANSI escape sequences."""
    file = io.StringIO()
    console = Console(
        file=file,
        force_terminal=True,
        width=max(columns, 20),
        highlight=False,
        markup=False,
    )
    for part in what:
        console.print(part)
    # Padding would wrap when the window shrinks.
    parts = _STYLE.split(_PADDING.sub(r"\1", file.getvalue()))
    return "".join(part if n % 2 else clean(part) for n, part in enumerate(parts))


def aside(words: str, *, columns: int) -> str:
    """Render a note of Tenax."""
    return ansi(Text(clean(words).replace("\n", " "), "dim"), columns=columns)


def render_changes(turn: TurnChanges, *, columns: int) -> str:
    """Render the file changes of a turn as diffs in colour. Without colours if `NO_COLOR` is set."""
    text = Text()
    for line in changed(turn):
        text.append(f"   {line}\n", DIFF_COLOURS.get(line[:1], ""))
    return ansi(text, columns=columns)


class Screen:
    """The printed part of a conversation, and the live part."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._rows: dict[str, Row] = {}
        self._said: dict[str, str] = {}
        """The printed text, per answer."""
        self._printed: dict[str, str] = {}
        """By row other than an answer, the state at the last print."""
        self.mine: set[str] = set()
        """The questions answered in the terminal of the chat."""
        self.questions: dict[str, Question] = {}
        """The possible answers of the open questions."""
        self.watched: dict[str, str] = {}
        """By message about a command that ran here, the line for the message. The person has seen the output."""
        self.asked_by: str | None = None
        """The run of the last question."""

    @property
    def asks(self) -> list[Row]:
        """The open questions."""
        return [
            row
            for row in self._rows.values()
            if row.kind == "tool" and row.state == "asks"
        ]

    @property
    def asks_with_first(self) -> list[Row]:
        """The open approvals for the calls of the same answer as the first one."""
        rows = [row for row in self.asks if not choices(row.name, row.arguments)]
        first = rows[0].id.partition(":")[0] if rows else ""
        return [row for row in rows if row.id.partition(":")[0] == first]

    def changed(self, changes: Iterable[Change]) -> str:
        """Apply changes, and return the text to print."""
        out, gone = "", 0
        for change in changes:
            match change:
                case Put(row):
                    out += self._render_row(row)
                case Grow(name, offset, text, field):
                    have = self._rows.get(name)
                    held = getattr(have, field, "")
                    if have is not None and offset <= len(held) < offset + len(text):
                        grown = {field: held[:offset] + text}
                        out += self._render_row(msgspec.structs.replace(have, **grown))
                case Drop(name):
                    have = self._rows.pop(name, None)
                    self._said.pop(name, None)
                    self._printed.pop(name, None)
                    gone += have is not None and have.kind != "notice"
        if gone:
            out += self._aside(
                f"Removed: the last {gone} row{'s' if gone > 1 else ''} above."
            )
        return out

    def _render_row(self, row: Row) -> str:
        before = self._rows.get(row.id)
        self._rows[row.id] = row
        if row.kind == "assistant":
            return self._render_answer(row)
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
        """Render a row. The row is printed again with every change of its state."""
        match row.kind:
            case "user":
                return ansi(self._message(row, text), "", columns=self._columns())
            case "marker":
                why = (
                    f" {text}" if first and text and text != WORDING[row.state] else ""
                )
                way_on = " /retry sends it again." if row.state == "failed" else ""
                return self._aside(WORDING[row.state] + why + way_on)
            case "notice":
                return self._aside(
                    text + (" Retrying." if row.state == "retrying" else "")
                )
            case "memory":
                return self._aside(noted(row))
            case "files":
                way_on = "/changes shows them, /putback reverts them."
                return self._aside(
                    "Reverted." if row.state == "undone" else f"{text} {way_on}"
                )
            case _:
                return self._aside(f"{row.kind.capitalize()}:") + self._markdown(text)

    def _message(self, row: Row, text: str) -> Text:
        """Return a message of the person. A command of the person is one line."""
        if row.text in self.watched:
            return Text(self.watched[row.text], "cyan")
        who = f"{to_one_line(row.author)}: " if row.author else ""
        body = f"{who}{with_files(text, row)}".replace("\n", "\n  ")
        message = Text(f"> {body}", "bold")
        message.append(_version_mark(row), "not bold dim")
        return message

    # -- answers ---------------------------------------------------------------------------------------------

    def _render_answer(self, row: Row) -> str:
        """Render the new complete blocks of an answer. A text older than the printed text gives nothing."""
        text, said, out = clean(row.text), self._said.get(row.id, ""), ""
        if row.erased or (said.startswith(text) and row.state == "streaming"):
            return ""
        if not text.startswith(said):
            out, said = self._aside("The answer as saved:"), ""
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
        # The outcome follows in a later change.
        waits_for_words = row.state == "denied" and not row.text
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
            f": {to_one_line(row.text)}"
            if row.state not in {"done", "cancelled"} and row.text
            else ""
        )
        return ansi(
            Text(f"  {_summarise_call(row)} … {state}{why}", "cyan"),
            "",
            columns=self._columns(),
        )

    def _question(self, row: Row) -> str:
        if found := choices(row.name, row.arguments):
            lines = [
                f"  {to_one_line(row.touches)}",
                *(f"  {n}  {to_one_line(choice)}" for n, choice in enumerate(found, 1)),
            ]
            return ansi(Text("\n".join(lines), "yellow"), "", columns=self._columns())
        question = self.questions.get(row.id)
        badge = (
            f" ({question.badge})" if question is not None and question.badge else ""
        )
        told = f"  {to_one_line(row.name)} needs approval{badge}.\n  Target: {to_one_line(row.touches)}"
        if question is not None and question.diff:
            return ansi(
                Text(told, "yellow"),
                _colour_diff(question.diff),
                "",
                columns=self._columns(),
            )
        arguments = f"\n  Arguments: {clean(row.arguments)}"
        return ansi(Text(told + arguments, "yellow"), "", columns=self._columns())

    def _settled_elsewhere(self, before: Row | None, row: Row) -> str:
        if (
            before is None
            or before.state != "asks"
            or row.state == "asks"
            or row.id in self.mine
        ):
            return ""
        return self._aside(
            f"The question about {row.name} was answered elsewhere: {row.state}."
        )

    def _waits_elsewhere(self, before: Row | None, row: Row) -> str:
        if not row.child_asks or (before is not None and before.child_asks):
            return ""
        return self._aside(
            f"The sub-agent needs your answer: /open {to_one_line(row.child)}"
        )

    def _aside(self, words: str) -> str:
        return aside(f"-- {words}", columns=self._columns()) + "\n"

    # -- live ------------------------------------------------------------------------------------------------

    def live(self, lines_max: int) -> list[tuple[str, str]]:
        """Return the unfinished rows as styled lines, cut to the width and number of lines."""
        columns = max(self._columns() - 1, 1)
        rows = sorted(
            (row for row in self._rows.values() if row.state), key=lambda row: row.key
        )
        lines: list[tuple[str, str]] = []
        for row in rows:
            if row.kind == "assistant" and row.state == "streaming":
                if row.thought and not row.text:
                    lines.append(("class:waits", "  Thinking"))
                    lines += _tail_of("waits", row.thought, columns)
                unprinted = clean(row.text)[len(self._said.get(row.id, "")) :]
                lines += _tail_of("tail", unprinted, columns, _TAIL_LINES_MAX, "")
            elif row.kind == "tool" and row.state in _UNDER_WAY - {"asks"}:
                lines.append(("class:tool", f"  {_summarise_call(row)} … {row.state}"))
                if row.text:
                    lines += _tail_of("waits", row.text, columns)
            elif row.kind == "user" and row.state:
                lines.append(
                    (
                        "class:waits",
                        f"> {to_one_line(row.text)} ({_WAITS.get(row.state, row.state)})",
                    )
                )
        if asks := self.asks:
            question = self.questions.get(asks[0].id)
            for about in _ways_to_answer(asks[0], question, len(self.asks_with_first)):
                lines += [
                    ("class:question", piece) for piece in textwrap.wrap(about, columns)
                ]
        return [(style, fit(line, columns)) for style, line in lines[-lines_max:]]

    def rest(self) -> str:
        """Return notes about queued messages, to print at the end of the chat."""
        waiting = [
            row for row in self._rows.values() if row.kind == "user" and row.state
        ]
        return "".join(self._aside(f"Still queued: {row.text}") for row in waiting)


def _tail_of(
    style: str, text: str, columns: int, lines_max: int = 3, indent: str = "    "
) -> list[tuple[str, str]]:
    """Return the last lines of a growing text, wrapped."""
    text = clean(text).expandtabs(4)[-columns * lines_max :]
    wrapped = [
        piece
        for line in text.strip("\n").split("\n")
        for piece in textwrap.wrap(line, max(columns - len(indent), 1)) or [""]
    ]
    return [(f"class:{style}", indent + line) for line in wrapped[-lines_max:]]


def _version_mark(row: Row) -> str:
    """Return the number of the version and of all versions, as the page shows it; "" for a single version."""
    versions = [str(seq) for seq in row.versions]
    if row.id not in versions:
        return ""
    return f"  < {versions.index(row.id) + 1}/{len(versions)} >"


def _closed(text: str) -> int:
    """Return the length of the complete Markdown blocks: the offset of the last block."""
    if "\n" not in text.strip("\n"):
        return 0
    begins = [
        token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map
    ]
    if len(begins) < 2 or begins[-1] == 0:  # noqa: PLR2004  (a last one, and one before it)
        return 0
    return sum(len(line) + 1 for line in text.split("\n")[: begins[-1]])


def _colour_diff(diff: str) -> Text:
    """Return a unified diff with added lines in green and removed lines in red."""
    text = Text()
    for n, line in enumerate(clean(diff).split("\n")):
        style = DIFF_COLOURS.get(line[:1], "")
        if n < _DIFF_HEADER_LINES:
            style = "bold"
        text.append(f"  {line}\n", style)
    text.rstrip()
    return text


def _ways_to_answer(row: Row, question: Question | None, waiting: int) -> list[str]:
    """Return the possible answers of a question.

    The patterns come first, because a small terminal shows only the last lines.
    """
    if choices(row.name, row.arguments):
        return [
            "  Type a number or your own answer, then Enter. /queue sends a message instead."
        ]
    here = question.conversation if question is not None else []
    keys = ["c", *(f"c {number}" for number in range(2, len(here) + 1))]
    lines = [
        f"  {key} in this conversation: {to_one_line(row.name)} {pattern}"
        for key, pattern in zip(
            keys,
            question.annotate_patterns(here) if question is not None else [],
            strict=False,
        )
    ]
    ways = ["y once", *keys[: len(here)]]
    if question is not None and question.always:
        ways.append("always")
    if waiting > 1:
        ways.append(f"a all {waiting}")
    return [
        *lines,
        f"  Allow {_summarise_call(row)}? {', '.join(ways)}, n deny; then Enter",
    ]


def _summarise_call(row: Row) -> str:
    """Summarise a tool call: the name, and the target or arguments."""
    about = row.touches
    if not about:
        try:
            found: Any = msgspec.json.decode(row.arguments)
            about = " ".join(leaves(found))
        except (msgspec.DecodeError, RecursionError):
            # The model may have written invalid JSON.
            about = row.arguments
    return f"{to_one_line(row.name)} {fit(to_one_line(about[:200]), 60)}".rstrip()
