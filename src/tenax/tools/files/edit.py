"""The tools `read_file`, `write_file` and `edit_file`, for the folder of a conversation (`paths.py`)."""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import re
import sys
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

from msgspec import Meta

from tenax.concurrency import run_in_own_thread, write_atomically
from tenax.config.rules import Rule
from tenax.errors import ToolFailed
from tenax.tools.base import Args, Call, Tool
from tenax.tools.files.diff import diff
from tenax.tools.paths import (
    explained,
    file_at,
    is_git,
    open_file,
    open_folder,
    parent_of,
    parts_of,
)
from tenax.tools.shell.repositories import find_repositories

__all__ = ["READ_BYTES_MAX", "EditFile", "ReadFile", "WriteFile", "replace"]

# Larger files are not read, and no edit creates one.
READ_BYTES_MAX = 10 * 1024 * 1024
_SECONDS = 30.0
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OFFSETS_MAX = 100_000
_PREVIEW_LINES_MAX = 2000
_NOT_SHOWN = "The change is not shown: a rule forbids to read this file."

_PathArg = Annotated[
    str,
    Meta(description="A path in the conversation's folder, such as notes/today.md."),
]


class ReadFileArgs(Args):
    path: _PathArg
    first_line: Annotated[
        int,
        Meta(ge=1, description="The first line to read; the file begins with line 1."),
    ] = 1
    lines: Annotated[int, Meta(ge=1, description="How many lines to read at most.")] = (
        2000
    )


class WriteFileArgs(Args):
    path: _PathArg
    content: Annotated[str, Meta(description="The whole new content of the file.")]


class EditFileArgs(Args):
    path: _PathArg
    old: Annotated[
        str, Meta(description="The text to replace, exactly as the file holds it.")
    ]
    new: Annotated[str, Meta(description="The text to put in its place.")]
    all: Annotated[
        bool,
        Meta(
            description="Replace it wherever it occurs; otherwise it must occur once."
        ),
    ] = False


A = TypeVar("A", WriteFileArgs, EditFileArgs)


class ReadFile(Tool[ReadFileArgs]):
    name = "read_file"
    description = "Read a text file in the conversation's folder."
    effect = "pure"
    args = ReadFileArgs
    seconds = _SECONDS
    asks = False
    only_reads = True

    def touches(self, args: ReadFileArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return "/".join(_named(args.path))

    async def run(self, args: ReadFileArgs, call: Call) -> str:
        return await run_in_own_thread(functools.partial(_read_file, args, call.folder))


class _Changes(Tool[A]):
    """The base of `WriteFile` and `EditFile`. Both return a diff, unless a rule forbids reading the file."""

    seconds = _SECONDS
    asks = True
    edits = True
    paths = True
    open_words = "any content"

    def __init__(self, rules: Callable[[], Iterable[Rule]] = tuple) -> None:
        self._rules = rules

    @abc.abstractmethod
    def _change(
        self, args: A, folder: Path, abandoned: threading.Event, *, readable: bool
    ) -> str:
        """Change the file, and return the text for the model. Blocks."""

    @abc.abstractmethod
    def _changed_text(self, args: A, folder: Path) -> tuple[str, str]:
        """Return the text of the file before and after the change. Changes nothing. Blocks."""

    def badge(self, args: A) -> str:  # noqa: ARG002  (the contract's signature)
        return "changes a file"

    async def preview(self, args: A, call: Call) -> str:
        shown = "/".join(_writable(args.path))
        if not self._readable(shown):
            return ""

        def compare() -> str:
            with explained(shown):
                before, after = self._changed_text(args, call.folder)
            return diff(shown, before, after, _PREVIEW_LINES_MAX)

        return await run_in_own_thread(compare)

    def _readable(self, shown: str) -> bool:
        return not any(
            rule.verdict == "deny" and rule.matches("read_file", shown)
            for rule in self._rules()
        )

    async def run(self, args: A, call: Call) -> str:
        shown = "/".join(_named(args.path))
        readable = self._readable(shown)
        abandoned = threading.Event()
        change = functools.partial(
            self._change, args, call.folder, abandoned, readable=readable
        )
        return await run_in_own_thread(change, abandoned=abandoned)


class WriteFile(_Changes[WriteFileArgs]):
    name = "write_file"
    description = (
        "Write a text file in the conversation's folder. What the file held before is replaced; "
        "the result is a diff then."
    )
    effect = "idempotent"
    args = WriteFileArgs

    def touches(self, args: WriteFileArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return "/".join(_writable(args.path))

    def _changed_text(self, args: WriteFileArgs, folder: Path) -> tuple[str, str]:
        parts = _writable(args.path)
        shown = "/".join(parts)
        try:
            with parent_of(folder, parts, make=False) as parent:
                before = _read_content(parts[-1], parent, shown).text
        except FileNotFoundError:
            before = ""
        if before is None:
            raise ToolFailed(f"{shown} is not UTF-8 text.")
        return before, args.content

    def _change(
        self,
        args: WriteFileArgs,
        folder: Path,
        abandoned: threading.Event,
        *,
        readable: bool,
    ) -> str:
        parts = _writable(args.path)
        shown = "/".join(parts)
        data = args.content.encode()
        content = None
        with explained(shown):
            os.close(open_folder(folder, make=True))
            _refuse_protected(folder.resolve(), shown)
            with parent_of(folder, parts, make=True) as parent:
                # A file that cannot be read may still be replaced.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    content = _read_content(parts[-1], parent, shown)
                replace(parts[-1], parent, shown, data, abandoned)
        wrote = f"{shown} was written: {len(data):,} bytes."
        if not readable:
            return f"{wrote} {_NOT_SHOWN}"
        change = ""
        if content and content.text is not None:
            change = diff(shown, content.text, args.content)
        return f"{wrote}\n{change}" if change else wrote


class EditFile(_Changes[EditFileArgs]):
    """Replace a text in a file.

    The effect is `once`: a repeated call would either not find the text and report the finished edit as a failure, or
    would find the text in the replacement and edit twice. After a crash the model gets `unknown` and reads the file.
    """

    name = "edit_file"
    description = (
        "Replace a text in a file in the conversation's folder. The text must be the file's own, to the space, with "
        "enough around it to occur once. Line ends stay those of the file. The result is a diff."
    )
    effect = "once"
    args = EditFileArgs

    def touches(self, args: EditFileArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        if not args.old:
            raise ToolFailed(
                "The text to replace is empty.", hint="write_file makes a new file"
            )
        if args.old.replace("\r\n", "\n") == args.new.replace("\r\n", "\n"):
            raise ToolFailed("The new text is the old one, so nothing would change.")
        return "/".join(_writable(args.path))

    def _changed_text(self, args: EditFileArgs, folder: Path) -> tuple[str, str]:
        parts = _writable(args.path)
        shown = "/".join(parts)
        with parent_of(folder, parts, make=False) as parent:
            before = _editable(_read_content(parts[-1], parent, shown), shown)
        return before, _replace_text(args, shown, before)

    def _change(
        self,
        args: EditFileArgs,
        folder: Path,
        abandoned: threading.Event,
        *,
        readable: bool,
    ) -> str:
        parts = _writable(args.path)
        shown = "/".join(parts)
        with explained(shown), parent_of(folder, parts, make=False) as parent:
            content = _read_content(parts[-1], parent, shown)
            before = _editable(content, shown)
            _refuse_protected(folder.resolve(), shown)
            text = _replace_text(args, shown, before)
            replace(parts[-1], parent, shown, text.encode(), abandoned, content.found)
        if not readable:
            return f"{shown} was edited. {_NOT_SHOWN}"
        return diff(shown, before, text)


class _Content(NamedTuple):
    """The contents of a file: only the first bytes of a long file. `text` is `None` for a long or binary file."""

    data: bytes
    text: str | None
    found: os.stat_result


def _editable(content: _Content, shown: str) -> str:
    """Return the text of a file. Raises `ToolFailed` for a long or binary file."""
    if content.text is None:
        raise ToolFailed(
            f"{shown} is not UTF-8 text of at most {READ_BYTES_MAX:,} bytes: it is not edited."
        )
    return content.text


def _named(path: str) -> list[str]:
    parts = parts_of(path)
    if not parts:
        raise ToolFailed("The path names no file.")
    return parts


def _writable(path: str) -> list[str]:
    """Return the names of a path. Refuse `.git`, because git runs programs from there with the rights of the person."""
    parts = _named(path)
    if any(is_git(part) for part in parts):
        raise ToolFailed(
            "Nothing is written inside of .git: what stands there can run programs."
        )
    return parts


def _refuse_protected(folder: Path, shown: str) -> None:
    """Refuse files that git reads or runs. Commands cannot write such files either."""
    if sys.platform == "linux" and find_repositories(folder).protects(shown):
        raise ToolFailed(f"{shown} is not written: git finds there what to run.")


def _read_file(args: ReadFileArgs, folder: Path) -> str:
    parts = _named(args.path)
    shown = "/".join(parts)
    with explained(shown), parent_of(folder, parts, make=False) as parent:
        content = _read_content(parts[-1], parent, shown)
    if len(content.data) > READ_BYTES_MAX:
        return f"{shown} has {content.found.st_size:,} bytes. Files of more than {READ_BYTES_MAX:,} bytes are not read."
    if content.text is None:
        return f"{shown} is not UTF-8 text. It has {len(content.data):,} bytes."
    return _show_lines(args, shown, content.text)


def _read_content(name: str, parent: int, shown: str) -> _Content:
    descriptor, found = open_file(name, parent, shown)
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor, not a path)
        data = file.read(READ_BYTES_MAX + 1)
    text = None
    if len(data) <= READ_BYTES_MAX and b"\0" not in data:
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode()
    return _Content(data, text, found)


def _show_lines(args: ReadFileArgs, shown: str, text: str) -> str:
    if not text:
        return f"{shown} is empty."
    lines = text.removesuffix("\n").split("\n")
    first, last = args.first_line, min(args.first_line - 1 + args.lines, len(lines))
    if first > len(lines):
        return f"{shown} has no line {first:,}; its last one is {len(lines):,}."
    if (first, last) == (1, len(lines)):
        return text
    return f"Lines {first:,} to {last:,} of {len(lines):,}:\n" + "\n".join(
        lines[first - 1 : last]
    )


def _replace_text(args: EditFileArgs, shown: str, text: str) -> str:
    """Return the edited text. A line break in the arguments matches both kinds, and the file keeps its own kind."""
    plain, old, new = (
        value.replace("\r\n", "\n") for value in (text, args.old, args.new)
    )
    # The offsets of CRLF breaks in `plain`, which convert its offsets to those of `text`.
    matches = enumerate(re.finditer("\r\n", text))
    breaks = array("L", (match.start() - n for n, match in matches))
    is_mostly_crlf = 2 * len(breaks) > plain.count("\n")
    pieces: list[str] = []
    done, size = 0, len(text.encode())
    for offset in _find_offsets(plain, old, shown, every=args.all):
        start = offset + bisect_left(breaks, offset)
        end = offset + len(old)
        end += bisect_left(breaks, end)
        is_crlf = "\r\n" in text[start:end] if "\n" in old else is_mostly_crlf
        replacement = new.replace("\n", "\r\n") if is_crlf else new
        pieces += [text[done:start], replacement]
        done = end
        size += len(replacement.encode()) - len(text[start:end].encode())
        if size > READ_BYTES_MAX:
            raise ToolFailed(
                f"{shown} would have more than {READ_BYTES_MAX:,} bytes, so it was not edited."
            )
    return "".join([*pieces, text[done:]])


def _find_offsets(text: str, old: str, shown: str, *, every: bool) -> list[int]:
    """Return the offsets of a text. Overlapping occurrences count as two, unless every occurrence is wanted."""
    offsets = [text.find(old)]
    if offsets[0] < 0:
        raise ToolFailed(
            f"The old text does not occur in {shown}.",
            hint="read the file: it must be the same to the space",
        )
    step = len(old) if every else 1
    while (offset := text.find(old, offsets[-1] + step)) >= 0:
        if not every:
            raise ToolFailed(
                f"The old text occurs more than once in {shown}.",
                hint="give more of what stands around it, or set all",
            )
        if len(offsets) == _OFFSETS_MAX:
            raise ToolFailed(
                f"The old text occurs more than {_OFFSETS_MAX:,} times in {shown}."
            )
        offsets.append(offset)
    return offsets


def replace(
    name: str,
    parent: int,
    shown: str,
    data: bytes,
    abandoned: threading.Event,
    edited: os.stat_result | None = None,
    mode: int | None = None,
) -> None:
    """Replace a file atomically, and flush the file to disk.

    `edited` is the status of the file at the time of reading. Raises `ToolFailed` if the file has changed since, or if
    `abandoned` is set. The mode stays, unless `mode` is given.
    """
    before = file_at(name, parent, shown)
    if mode is None and before is not None:
        mode = before.st_mode & 0o777

    def check() -> None:
        if edited is not None and _state(file_at(name, parent, shown)) != _state(
            edited
        ):
            raise ToolFailed(
                f"{shown} was changed meanwhile, so it was not edited.",
                hint="read it again",
            )
        if abandoned.is_set():
            raise ToolFailed(f"{shown} was not written: nobody waited for it any more.")

    write_atomically(name, data, mode=mode, directory=parent, before_rename=check)


def _state(found: os.stat_result | None) -> tuple[int, ...] | None:
    return found and (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )
