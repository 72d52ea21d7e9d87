"""Reading, writing and editing files, inside the conversation's folder and nowhere else (`paths.py`)."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import sys
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from tenax.config.rules import Rule
from tenax.errors import ToolFailed
from tenax.tools.base import Call, Tool, aside
from tenax.tools.files.diff import diff
from tenax.tools.files.walk import FILE
from tenax.tools.paths import (
    explained,
    file_at,
    is_git,
    kind,
    open_folder,
    parent_of,
    parts_of,
)
from tenax.tools.shell.repositories import find_repositories

__all__ = ["READ_BYTES_MAX", "EditFile", "ReadFile", "WriteFile", "replace"]

READ_BYTES_MAX = 10 * 1024 * 1024
"""Larger files are described, not read; and no edit makes one."""
_SECONDS = 30.0
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACES_MAX = 100_000
_NOT_SHOWN = "The change is not shown: a rule forbids to read this file."

_PathArg = Annotated[
    str,
    Meta(description="A path in the conversation's folder, such as notes/today.md."),
]


class ReadFileArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: _PathArg
    first_line: Annotated[
        int,
        Meta(ge=1, description="The first line to read; the file begins with line 1."),
    ] = 1
    lines: Annotated[int, Meta(ge=1, description="How many lines to read at most.")] = (
        2000
    )


class WriteFileArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: _PathArg
    content: Annotated[str, Meta(description="The whole new content of the file.")]


class EditFileArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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

    def touches(self, args: ReadFileArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return "/".join(_named(args.path))

    async def run(self, args: ReadFileArgs, call: Call) -> str:
        return await aside(functools.partial(_read, args, call.folder))


class _Changes(Tool[A]):
    """What both tools that change a file have in common: they show a diff, unless a rule forbids to read the file."""

    def __init__(self, rules: Callable[[], Iterable[Rule]] = tuple) -> None:
        self._rules = rules

    def _is_readable(self, path: str) -> bool:
        shown = "/".join(_named(path))
        return not any(
            rule.verdict == "deny" and rule.fits("read_file", shown)
            for rule in self._rules()
        )


class WriteFile(_Changes[WriteFileArgs]):
    name = "write_file"
    description = (
        "Write a text file in the conversation's folder. What the file held before is replaced; "
        "the result is a diff then."
    )
    effect = "idempotent"
    args = WriteFileArgs
    seconds = _SECONDS
    asks = True
    paths = True
    open_words = "any content"

    def touches(self, args: WriteFileArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return "/".join(_writable(args.path))

    async def run(self, args: WriteFileArgs, call: Call) -> str:
        readable = self._is_readable(args.path)
        return await aside(
            functools.partial(_write, args, call.folder, readable=readable)
        )


class EditFile(_Changes[EditFileArgs]):
    """Replace a text in a file.

    `once`: made again, the call would not find the text any more and would say so of an edit that was done, or would
    find it in what it put there itself and do it twice. Whoever hears `unknown` after a crash reads the file.
    """

    name = "edit_file"
    description = (
        "Replace a text in a file in the conversation's folder. The text must be the file's own, to the space, with "
        "enough around it to occur once. Line ends stay those of the file. The result is a diff."
    )
    effect = "once"
    args = EditFileArgs
    seconds = _SECONDS
    asks = True
    paths = True
    open_words = "any content"

    def touches(self, args: EditFileArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        if not args.old:
            raise ToolFailed(
                "The text to replace is empty.", hint="write_file makes a new file"
            )
        if args.old.replace("\r\n", "\n") == args.new.replace("\r\n", "\n"):
            raise ToolFailed("The new text is the old one, so nothing would change.")
        return "/".join(_writable(args.path))

    async def run(self, args: EditFileArgs, call: Call) -> str:
        readable = self._is_readable(args.path)
        return await aside(
            functools.partial(_edit, args, call.folder, readable=readable)
        )


class _Held(NamedTuple):
    """What a file held: its first bytes if it is too long, and no text if it is none."""

    data: bytes
    text: str | None
    found: os.stat_result


def _named(path: str) -> list[str]:
    parts = parts_of(path)
    if not parts:
        raise ToolFailed("The path names no file.")
    return parts


def _writable(path: str) -> list[str]:
    """Git runs what its own folder says, as the person and outside of every sandbox: nothing is put there."""
    parts = _named(path)
    if any(is_git(part) for part in parts):
        raise ToolFailed(
            "Nothing is written inside of .git: what stands there can run programs."
        )
    return parts


def _refuse_protected(folder: Path, shown: str) -> None:
    """What no command may write because git runs it, the other tools do not write either."""
    if sys.platform == "linux" and find_repositories(folder).protects(shown):
        raise ToolFailed(f"{shown} is not written: git finds there what to run.")


def _read(args: ReadFileArgs, folder: Path, deserted: threading.Event) -> str:  # noqa: ARG001  (nothing to undo)
    parts = _named(args.path)
    shown = "/".join(parts)
    with explained(shown), parent_of(folder, parts, make=False) as parent:
        held = _hold(parts[-1], parent, shown)
    if len(held.data) > READ_BYTES_MAX:
        return f"{shown} has {held.found.st_size:,} bytes. Files of more than {READ_BYTES_MAX:,} bytes are not read."
    if held.text is None:
        return f"{shown} is not UTF-8 text. It has {len(held.data):,} bytes."
    return _lines(args, shown, held.text)


def _hold(name: str, parent: int, shown: str) -> _Held:
    file_at(name, parent, shown)
    descriptor = os.open(name, FILE, dir_fd=parent)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise ToolFailed(f"{shown} is {kind(found)}.")
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor, not a path)
        data = file.read(READ_BYTES_MAX + 1)
    text = None
    if len(data) <= READ_BYTES_MAX and b"\0" not in data:
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode()
    return _Held(data, text, found)


def _lines(args: ReadFileArgs, shown: str, text: str) -> str:
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


def _write(
    args: WriteFileArgs, folder: Path, deserted: threading.Event, *, readable: bool
) -> str:
    parts = _writable(args.path)
    shown = "/".join(parts)
    data = args.content.encode()
    held = None
    with explained(shown):
        os.close(open_folder(folder, make=True))
        _refuse_protected(folder.resolve(), shown)
        with parent_of(folder, parts, make=True) as parent:
            # to replace it is another right
            with contextlib.suppress(FileNotFoundError, PermissionError):
                held = _hold(parts[-1], parent, shown)
            replace(parts[-1], parent, shown, data, deserted)
    wrote = f"{shown} was written: {len(data):,} bytes."
    if not readable:
        return f"{wrote} {_NOT_SHOWN}"
    change = (
        diff(shown, held.text, args.content) if held and held.text is not None else ""
    )
    return f"{wrote}\n{change}" if change else wrote


def _edit(
    args: EditFileArgs, folder: Path, deserted: threading.Event, *, readable: bool
) -> str:
    parts = _writable(args.path)
    shown = "/".join(parts)
    with explained(shown), parent_of(folder, parts, make=False) as parent:
        held = _hold(parts[-1], parent, shown)
        if held.text is None:
            raise ToolFailed(
                f"{shown} is not UTF-8 text of at most {READ_BYTES_MAX:,} bytes: it is not edited."
            )
        _refuse_protected(folder.resolve(), shown)
        text = _edited(args, shown, held.text)
        replace(parts[-1], parent, shown, text.encode(), deserted, held.found)
    return (
        diff(shown, held.text, text)
        if readable
        else f"{shown} was edited. {_NOT_SHOWN}"
    )


def _edited(args: EditFileArgs, shown: str, text: str) -> str:
    """The text with the replacement. A line break of the model's stands for the file's own, whichever that is."""
    plain, old, new = (
        each.replace("\r\n", "\n") for each in (text, args.old, args.new)
    )
    breaks = array(
        "L", (each.start() - n for n, each in enumerate(re.finditer("\r\n", text)))
    )
    usual = 2 * len(breaks) > plain.count("\n")
    pieces, at, size = [], 0, len(text.encode())
    for place in _places(plain, old, shown, every=args.all):
        start, end = (n + bisect_left(breaks, n) for n in (place, place + len(old)))
        crlf = "\r\n" in text[start:end] if "\n" in old else usual
        pieces += [text[at:start], new.replace("\n", "\r\n") if crlf else new]
        at, size = end, size + len(pieces[-1].encode()) - len(text[start:end].encode())
        if size > READ_BYTES_MAX:
            raise ToolFailed(
                f"{shown} would have more than {READ_BYTES_MAX:,} bytes, so it was not edited."
            )
    return "".join([*pieces, text[at:]])


def _places(text: str, old: str, shown: str, *, every: bool) -> list[int]:
    """Where it occurs. What overlaps counts as two where it may occur only once."""
    places = [text.find(old)]
    if places[0] < 0:
        raise ToolFailed(
            f"The old text does not occur in {shown}.",
            hint="read the file: it must be the same to the space",
        )
    while (place := text.find(old, places[-1] + (len(old) if every else 1))) >= 0:
        if not every:
            raise ToolFailed(
                f"The old text occurs more than once in {shown}.",
                hint="give more of what stands around it, or set all",
            )
        if len(places) == _PLACES_MAX:
            raise ToolFailed(
                f"The old text occurs more than {_PLACES_MAX:,} times in {shown}."
            )
        places.append(place)
    return places


def replace(
    name: str,
    parent: int,
    shown: str,
    data: bytes,
    deserted: threading.Event,
    edited: os.stat_result | None = None,
    mode: int | None = None,
) -> None:
    """Put the new file in the place of the old one in one step, on disk before it is told.

    `edited` is the file that the new one was made from: it must still be the one that is there. The mode stays, unless one is given.
    """
    before = file_at(name, parent, shown)
    temporary = f".tenax-{os.urandom(8).hex()}"
    descriptor = os.open(temporary, _NEW, 0o666, dir_fd=parent)
    with contextlib.ExitStack() as undo:
        undo.callback(os.unlink, temporary, dir_fd=parent)
        with open(descriptor, "wb") as file:  # noqa: PTH123  (a descriptor, not a path)
            if mode is None and before is not None:
                mode = before.st_mode & 0o777
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if edited is not None and _state(file_at(name, parent, shown)) != _state(
            edited
        ):
            raise ToolFailed(
                f"{shown} was changed meanwhile, so it was not edited.",
                hint="read it again",
            )
        if deserted.is_set():
            raise ToolFailed(f"{shown} was not written: nobody waited for it any more.")
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        undo.pop_all()
    os.fsync(parent)


def _state(found: os.stat_result | None) -> tuple[int, ...] | None:
    return found and (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )
