"""Looking for files by name and for lines in them, inside the conversation's folder. The work is done by `seek.py`."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
import re
import signal
import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from tenax.config.rules import Rule
from tenax.errors import ToolFailed
from tenax.tools.base import Call, Tool
from tenax.tools.files import walk as seek
from tenax.tools.paths import parts_of, real_folder

__all__ = ["FindFiles", "SearchFiles"]

SECONDS_MAX = 10.0
"""How long is looked. What was found until then is told."""
_START_SECONDS = 5.0
_PROCESSES_MAX = 4
_CHARS_MAX = 1000
_GLOBS_MAX = 64
_BRACES = re.compile(r"\{([^{}]*)\}")

_InArg = Annotated[
    str,
    Meta(
        description="The folder to look in, such as src; the conversation's folder if it is left out."
    ),
]
_GLOB = "such as *.py (in any folder), src/*.py or src/**/test_*.{ts,tsx}; relative to the folder to look in."


class FindFilesArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description=f"A glob, {_GLOB}")]
    folder: _InArg = msgspec.field(default="", name="in")


class SearchFilesArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[
        str,
        Meta(
            description="A regular expression as Python knows it, for one line: (?i) ignores case."
        ),
    ]
    plain: Annotated[
        bool, Meta(description="The pattern is plain words, no regular expression.")
    ] = False
    folder: _InArg = msgspec.field(default="", name="in")
    glob: Annotated[str, Meta(description=f"Only in files that fit this, {_GLOB}")] = (
        "*"
    )


A = TypeVar("A", FindFilesArgs, SearchFilesArgs)


class _Finding(Tool[A]):
    """What both have in common: they look, a few at a time, and ask nobody."""

    effect = "pure"
    seconds = SECONDS_MAX + _START_SECONDS
    asks = False

    def __init__(self, rules: Callable[[], Iterable[Rule]] = tuple) -> None:
        self._few = asyncio.Semaphore(_PROCESSES_MAX)
        self._rules = rules

    @abc.abstractmethod
    def _what(self, args: A) -> tuple[str, str | None]:
        """The glob, and the regular expression of the lines."""

    def touches(self, args: A, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        _globs(self._what(args)[0])
        return "/".join(parts_of(args.folder)) or "."

    async def run(self, args: A, call: Call) -> str:
        async with self._few:
            return await _seek(
                call.folder, args.folder, *self._what(args), self._denied()
            )

    def _denied(self) -> list[str]:
        """Patterns of the files that a rule forbids to read, or to find in this way: they are left out."""
        denies = [each for each in self._rules() if each.verdict == "deny"]
        names = ("read_file", self.name)
        return [
            each.touches
            for each in denies
            if any(fnmatchcase(name, each.tool) for name in names)
        ]


class FindFiles(_Finding[FindFilesArgs]):
    name = "find_files"
    description = "List the files in the conversation's folder whose path fits a glob. Ignored files are left out."
    args = FindFilesArgs

    def _what(self, args: FindFilesArgs) -> tuple[str, None]:
        return args.pattern, None


class SearchFiles(_Finding[SearchFilesArgs]):
    name = "search_files"
    description = (
        "Search the text files in the conversation's folder, a line at a time. Ignored files are left out. "
        "The result is lines such as src/a.py:12: text."
    )
    args = SearchFilesArgs

    def _what(self, args: SearchFilesArgs) -> tuple[str, str]:
        if not args.pattern or len(args.pattern) > _CHARS_MAX:
            raise ToolFailed(f"The pattern must have 1 to {_CHARS_MAX:,} characters.")
        if "\n" in args.pattern:
            raise ToolFailed(
                "The pattern holds a line break, but one line is searched at a time."
            )
        return args.glob, re.escape(args.pattern) if args.plain else args.pattern


def _globs(pattern: str) -> list[str]:
    """The globs that one with braces stands for. Without a slash it is for a name in any folder."""
    if not pattern or len(pattern) > _CHARS_MAX:
        raise ToolFailed(f"A glob must have 1 to {_CHARS_MAX:,} characters.")
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise ToolFailed(
            "A glob is for paths below the folder to look in: it may not begin with a slash or hold '..'."
        )
    globs = [pattern]
    while _BRACES.search(globs[0]):
        globs = [
            each[: braces.start()] + word + each[braces.end() :]
            for each in globs
            if (braces := _BRACES.search(each))
            for word in braces[1].split(",")
        ]
        if len(globs) > _GLOBS_MAX:
            raise ToolFailed(f"The glob stands for more than {_GLOBS_MAX} others.")
    parts = [
        [part for part in each.split("/") if part not in {"", "."}] for each in globs
    ]
    return ["/".join(each if len(each) > 1 else ["**", *each]) for each in parts]


async def _seek(
    root: Path, folder: str, glob: str, lines: str | None, denied: list[str]
) -> str:
    """Have it looked for by a process, which goes when nobody waits for it any more, and by itself when its time is up."""
    asked = {
        "folder": str(real_folder(root)),
        "parts": parts_of(folder),
        "globs": _globs(glob),
        "lines": lines,
        "denied": denied,
        "seconds": SECONDS_MAX,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-X", "utf8", seek.__file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us
    )
    try:
        out, err = await process.communicate(json.dumps(asked).encode())
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    text = out.decode(errors="replace")
    if process.returncode == -signal.SIGALRM:
        whole = text[: text.rfind("\n") + 1]
        return f"{whole}[Stopped after {SECONDS_MAX:g} seconds: this is not all of it. Look in a smaller folder.]"
    if process.returncode == seek.REFUSED:
        raise ToolFailed(text.strip())
    if process.returncode:
        raise RuntimeError(
            f"The search ended with {process.returncode}: {err.decode(errors='replace')[-2000:]}"
        )
    return text.removesuffix("\n")
