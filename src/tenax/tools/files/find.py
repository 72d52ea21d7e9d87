"""The tools `find_files` and `search_files`, for the folder of a conversation. `walk.py` does the work."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
import re
import signal
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from tenax.clock import Timing
from tenax.concurrency import python_file
from tenax.config.rules import Rule
from tenax.errors import ToolFailed
from tenax.tools.base import Args, Call, Tool
from tenax.tools.files import walk
from tenax.tools.paths import parts_of, real_folder

__all__ = ["FindFiles", "SearchFiles", "find_names"]

_START_SECONDS = 5.0
_PROCESSES_MAX = 4
_CHARS_MAX = 1000
_GLOBS_MAX = 64
_BRACES = re.compile(r"\{([^{}]*)\}")
_SPECIAL = re.compile(r"([\\*?\[\]])")

_InArg = Annotated[
    str,
    Meta(
        description="The folder to look in, such as src; the conversation's folder if it is left out."
    ),
]
_GLOB = "such as *.py (in any folder), src/*.py or src/**/test_*.{ts,tsx}; relative to the folder to look in."


class FindFilesArgs(Args):
    pattern: Annotated[str, Meta(description=f"A glob, {_GLOB}")]
    folder: _InArg = msgspec.field(default="", name="in")


class SearchFilesArgs(Args):
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
    """The base of both tools: a few searches at a time, without approval."""

    effect = "pure"
    asks = False
    only_reads = True

    def __init__(
        self,
        rules: Callable[[], Iterable[Rule]] = tuple,
        timing: Timing = Timing(),
    ) -> None:
        self.seconds = timing.find_seconds + _START_SECONDS
        self._find_seconds = timing.find_seconds
        self._few = asyncio.Semaphore(_PROCESSES_MAX)
        self._rules = rules

    @abc.abstractmethod
    def _what(self, args: A) -> tuple[str, str | None]:
        """Return the glob, and the regular expression for lines."""

    def touches(self, args: A, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        _globs(self._what(args)[0])
        return "/".join(parts_of(args.folder)) or "."

    async def run(self, args: A, call: Call) -> str:
        async with self._few:
            glob, lines = self._what(args)
            request = {
                "folder": str(real_folder(call.folder)),
                "parts": parts_of(args.folder),
                "globs": _globs(glob),
                "lines": lines,
                "denied": self._denied(),
                "seconds": self._find_seconds,
            }
            return await _seek(request)

    def _denied(self) -> list[str]:
        """Return the patterns of the files that a rule forbids to read or to find."""
        denies = [rule for rule in self._rules() if rule.verdict == "deny"]
        names = ("read_file", self.name)
        return [
            rule.touches
            for rule in denies
            if any(fnmatchcase(name, rule.tool) for name in names)
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
    """Expand the braces of a glob. A glob without a slash matches a name in every folder."""
    if not pattern or len(pattern) > _CHARS_MAX:
        raise ToolFailed(f"A glob must have 1 to {_CHARS_MAX:,} characters.")
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise ToolFailed(
            "A glob is for paths below the folder to look in: it may not begin with a slash or hold '..'."
        )
    globs = [pattern]
    while _BRACES.search(globs[0]):
        globs = [expanded for glob in globs for expanded in _expand_first_braces(glob)]
        if len(globs) > _GLOBS_MAX:
            raise ToolFailed(f"The glob stands for more than {_GLOBS_MAX} others.")
    return [_normalise(glob) for glob in globs]


def _expand_first_braces(glob: str) -> list[str]:
    braces = _BRACES.search(glob)
    if braces is None:
        return []
    before, after = glob[: braces.start()], glob[braces.end() :]
    return [before + word + after for word in braces[1].split(",")]


def _normalise(glob: str) -> str:
    parts = [part for part in glob.split("/") if part not in {"", "."}]
    if len(parts) <= 1:
        parts.insert(0, "**")
    return "/".join(parts)


async def find_names(
    folder: Path, words: str, *, limit: int, seconds: float
) -> list[str]:
    """Return the paths of files whose path contains the words, in any case. Ignored files are left out.

    A search that takes too long returns what it has found so far.
    """
    parts = [part for part in words.split("/") if part not in {"", "."}]
    # A slash at the end asks for the files in a folder.
    inside = words.endswith("/") and parts
    glob = "/".join(_SPECIAL.sub(r"\\\1", part) for part in parts)
    request = {
        "folder": str(real_folder(folder)),
        "parts": [],
        "globs": [f"**/*{glob}/**" if inside else f"**/*{glob}*"],
        "lines": None,
        "denied": [],
        "seconds": seconds,
        "names": limit,
    }
    status, text, _ = await _run_search(request)
    if status == walk.REFUSED:
        raise ToolFailed(text.strip())
    return text[: text.rfind("\n") + 1].splitlines()


async def _seek(request: dict[str, Any]) -> str:
    """Search, and return the result for the model."""
    status, text, errors = await _run_search(request)
    if status == -signal.SIGALRM:
        whole = text[: text.rfind("\n") + 1]
        return f"{whole}[Stopped after {request['seconds']:g} seconds: this is not all of it. Look in a smaller folder.]"
    if status == walk.REFUSED:
        raise ToolFailed(text.strip())
    if status:
        raise RuntimeError(f"The search ended with {status}: {errors[-2000:]}")
    return text.removesuffix("\n")


async def _run_search(request: dict[str, Any]) -> tuple[int, str, str]:
    """Search in a child process, and return the exit code and the output.

    The child ends at the timeout, and is killed if the caller is cancelled.
    """
    process = await asyncio.create_subprocess_exec(
        *python_file(walk.__file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Ctrl-C must not reach the child.
        start_new_session=True,
    )
    try:
        out, err = await process.communicate(json.dumps(request).encode())
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert process.returncode is not None
    return (
        process.returncode,
        out.decode(errors="replace"),
        err.decode(errors="replace"),
    )
