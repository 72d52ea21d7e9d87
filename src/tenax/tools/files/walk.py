"""A program: look for files by name, or for lines in them, below one folder, and leave out what its ignore files name.

`python -I -S -X utf8 seek.py`, with a request as JSON on its standard input. It prints what it finds as it finds it. It is a
process of its own, of the standard library alone so that it starts in milliseconds, because a regular expression can
take for ever and nothing in Python can stop one: here the kernel does, by an alarm that this process sets for itself.

Each folder is opened in the one before it and never through a link, so what is swapped meanwhile leads nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import re
import resource
import signal
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, NoReturn

__all__ = [
    "DEPTH_MAX",
    "FILE",
    "FULL",
    "REFUSED",
    "Abandoned",
    "Enough",
    "Walk",
    "read",
    "with_ignores",
]

ENTRIES_MAX: Final = 50_000
"""Files and folders that are looked at."""
BYTES_MAX: Final = 2_000_000
"""Larger files are not searched."""
FOUND_MAX: Final = 200
IGNORE_LINES_MAX: Final = 2_000
"""Different lines of an ignore file. Those after them do not count."""
_IGNORE_BYTES_MAX = 200_000
_IGNORE_LINE_CHARS_MAX = 1_000
REFUSED: Final = 3
"""The exit code with which a sentence is printed instead of a result."""
_OUT_CHARS_MAX = 28_000
_LINE_CHARS_MAX = 300
_BEFORE_CHARS = 100
DEPTH_MAX: Final = 100
_MEMORY_MAX = 512 * 1024 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# a folder on the way may be one that we may enter and not list
_WAY = _FOLDER | getattr(os, "O_PATH", 0)
FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""It is this process that can open no more: of what it would have opened nothing is known."""

_TOKEN = re.compile(
    r"(\*+)|(\?)|\[([!^]?)(\]?(?:\[:[a-z]+:\]|\\.|[^]\\])*)\]|\\(.)|([^\\[])", re.DOTALL
)
_ITEM = re.compile(r"\[:([a-z]+):\]|(\\.|[^\\])-(\\.|[^\\])|(\\.|[^\\])", re.DOTALL)
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "digit": "0-9",
    "lower": "a-z",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_NEVER = "(?!)"
_BREAKS = frozenset({"Cc", "Zl", "Zp"})
_UNSEEN = _BREAKS | {"Cf", "Cs"}


class Line(NamedTuple):
    """A line of an ignore file. One expression per line: Python runs no other thread while it matches one."""

    fits: Callable[[str], object]
    is_name: bool
    """Whether it is about the last name of a path, and not about the whole."""
    ignored: bool


class Ignores(NamedTuple):
    """An ignore file, the last line first, since the last one that fits decides."""

    at: int
    """Where the part of a path begins that its patterns are about."""
    lines: list[Line]


class Enough(Exception):
    """No more is looked for. The message says why."""


class Abandoned(Exception):
    """Nobody waits for the walk any more."""


def glob_to_regex(glob: str) -> str:
    """What a path fits whose every name is followed by a slash. No pattern takes long: a star never gives back.

    That is right because what stands between two stars has a fixed length: where it fits first, it may stay.
    """
    runs: list[str] = [""]
    for name in glob.split("/"):
        if name == "**":
            runs.append("")
        else:
            runs[-1] += f"{_name_to_regex(name)}/"
    if len(runs) == 1:
        return runs[0]
    between = "".join(f"(?>(?:[^/]+/)*?{run})" for run in runs[1:-1])
    return (
        runs[0] + between + (f"(?:[^/]+/)*?{runs[-1]}" if runs[-1] else "(?:[^/]+/)+")
    )


def _name_to_regex(glob: str) -> str:
    pieces, at = [""], 0
    while at < len(glob):
        token = _TOKEN.match(glob, at)
        if token is None:  # a bracket that is not closed, or a backslash at the end
            return _NEVER
        at = token.end()
        star, one, no, inside, escaped, plain = token.groups()
        if star:
            pieces.append("")
        elif one:
            pieces[-1] += "[^/]"
        elif inside is not None:
            pieces[-1] += _set_to_regex(inside, no=bool(no))
        else:
            pieces[-1] += re.escape(escaped or plain)
    if len(pieces) == 1:
        return pieces[0]
    return (
        pieces[0]
        + "".join(f"(?>[^/]*?{each})" for each in pieces[1:-1])
        + f"[^/]*{pieces[-1]}"
    )


def _set_to_regex(inside: str, *, no: bool) -> str:
    items = ""
    for kind, first, last, one in _ITEM.findall(inside):
        if kind:
            items += _CLASSES.get(kind, "")
        elif one:
            items += re.escape(one[-1])
        else:  # of one that runs backwards, Git takes the first character
            items += f"{re.escape(first[-1])}-{re.escape(max(first[-1], last[-1]))}"
    if no:
        return f"[^/{items}]"
    return f"(?!/)[{items}]" if items else _NEVER


def ignores(text: str, at: int = 0) -> Ignores | None:
    """What an ignore file says; None if that is nothing."""
    found: dict[str, Line] = {}
    for raw in text.removeprefix("\ufeff").split("\n"):
        line = raw.removesuffix("\r").rstrip(" ")
        if line.endswith("\\") and raw.startswith(f"{line} "):
            line += " "
        no = line.startswith("!")
        body = line[no:].removesuffix("/")
        if (
            not body.strip("/")
            or line.startswith("#")
            or len(line) > _IGNORE_LINE_CHARS_MAX
        ):
            continue
        known = found.pop(line, None)
        if known is None and len(found) == IGNORE_LINES_MAX:
            break
        if known is None:
            regex = glob_to_regex(body.removeprefix("/")) + (
                "\0" if line.endswith("/") else "\0?"
            )
            known = Line(re.compile(regex).fullmatch, "/" not in body, not no)
        found[line] = known
    return Ignores(at, list(reversed(found.values()))) if found else None


def is_ignored(
    path: str,
    files: list[Ignores],
    *,
    folder: bool,
    is_deserted: Callable[[], bool] = bool,
) -> bool:
    """Whether these files say so of this path; the one that lies deepest decides first. Raises Abandoned."""
    end = f"/{chr(0) * folder}"
    name = path.rpartition("/")[2] + end
    for at, lines in reversed(files):
        whole = path[at:] + end
        for fits, is_name, ignored in lines:
            # a whole path can be long, and then a line takes milliseconds
            if not is_name and is_deserted():
                raise Abandoned
            if fits(name if is_name else whole):
                return ignored
    return False


class Walk:
    """A way through a folder, which takes so many files and folders and no more."""

    def __init__(
        self, entries_max: int = ENTRIES_MAX, is_deserted: Callable[[], bool] = bool
    ) -> None:
        self._max = self._left = entries_max
        self._is_deserted = is_deserted
        self.unread = 0
        """What could not be looked into."""

    def walk(
        self, folder: int, path: str, files: list[Ignores], depth: int
    ) -> Iterator[tuple[int, str, str]]:
        """Every file below that is not ignored: the folder that holds it, open, its name and its path.

        Raises Abandoned once nobody waits for it.
        """
        for name, is_folder, is_file in self._entries(folder):
            if self._is_deserted():
                raise Abandoned
            place = path + name
            if not (is_folder or is_file):
                continue
            if is_ignored(
                place, files, folder=is_folder, is_deserted=self._is_deserted
            ):
                continue
            if is_file:
                yield folder, name, place
                continue
            with self._counted():
                if not depth:
                    raise OSError
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    below = f"{place}/"
                    yield from self.walk(
                        inner, below, with_ignores(files, inner, below), depth - 1
                    )
                finally:
                    os.close(inner)

    def _entries(self, folder: int) -> list[tuple[str, bool, bool]]:
        found: list[tuple[str, bool, bool]] = []
        with self._counted(), os.scandir(folder) as entries:
            for each in islice(entries, self._left + 1):
                if each.name.casefold() != ".git":
                    kinds = (
                        each.is_dir(follow_symlinks=False),
                        each.is_file(follow_symlinks=False),
                    )
                    found.append((each.name, *kinds))
        self._left -= len(found)
        if self._left < 0:
            raise Enough(
                f"Stopped after {self._max:,} files and folders: this is not all of it"
            )
        return sorted(found)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """What cannot be read is counted; what went away or became a link meanwhile is just not there."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            if error.errno in FULL:
                raise
            self.unread += error.errno != errno.ELOOP


class Search(Walk):
    """One look through a folder. What it finds is said at once, whatever ends this process afterwards."""

    def __init__(
        self,
        glob: re.Pattern[str],
        lines: re.Pattern[str] | None,
        denied: re.Pattern[str] | None = None,
    ) -> None:
        super().__init__()
        self._glob = glob
        self._lines = lines
        self._denied = denied
        self._found = self._chars = self._large = 0

    def run(self, root: str, parts: list[str]) -> None:
        """Look below this folder of the root, then say what was left out."""
        notes = []
        try:
            # it may not have been made yet
            with contextlib.suppress(FileNotFoundError):
                self._below(open_folder(root), parts)
        except Enough as enough:
            notes.append(str(enough))
        if not self._found:
            say("Nothing was found.")
        if self._large:
            notes.append(
                f"Larger than {BYTES_MAX:,} bytes and not searched: {self._large:,}"
            )
        if self.unread:
            notes.append(f"Could not be read: {self.unread:,}")
        for note in notes:
            say(f"[{note}.]")

    def _below(self, folder: int, parts: list[str]) -> None:
        path, files = "", with_ignores([], folder, "")
        for part in parts:
            path += part
            folder = _enter(part, folder, path)
            path += "/"
            files = with_ignores(files, folder, path)
        for parent, name, place in self.walk(folder, path, files, DEPTH_MAX):
            if self._glob.fullmatch(f"{place[len(path) :]}/") and not self._is_denied(
                place
            ):
                if self._lines is None:
                    self._say(shown(place))
                else:
                    self._search(self._lines, parent, name, place)

    def _is_denied(self, path: str) -> bool:
        """Whether a rule forbids to read it. The rule is about the path as a person would be told it."""
        told = "".join(
            "\ufffd" if unicodedata.category(each) in _UNSEEN else each for each in path
        )
        return self._denied is not None and self._denied.fullmatch(told) is not None

    def _search(
        self, lines: re.Pattern[str], parent: int, name: str, path: str
    ) -> None:
        data = b""
        with self._counted():
            data = read(name, parent)
        if len(data) > BYTES_MAX:
            self._large += 1
        elif data and b"\0" not in data:
            text = (
                data.decode("utf-8-sig", "replace")
                .replace("\r\n", "\n")
                .removesuffix("\n")
            )
            for number, line in enumerate(text.split("\n"), start=1):
                if found := lines.search(line):
                    self._say(f"{shown(path)}:{number}: {_window(line, found.start())}")

    def _say(self, line: str) -> None:
        self._chars += len(line) + 1
        if self._found == FOUND_MAX or self._chars > _OUT_CHARS_MAX:
            raise Enough(f"There is more than these {self._found:,}")
        self._found += 1
        say(line)


def read(name: str, parent: int) -> bytes:
    """The bytes of a file, no more than one over the limit; none if it is no file."""
    descriptor = os.open(name, FILE, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return b""
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor, not a path)
        return file.read(BYTES_MAX + 1)


def shown(path: str) -> str:
    """The path on one line, in quotes if it holds what cannot be seen."""
    unseen = any(unicodedata.category(each) in _UNSEEN for each in path)
    return json.dumps(path) if unseen or path.startswith('"') else path


def _window(line: str, at: int) -> str:
    """The part of a line around what was found, and nothing that would begin another one."""
    first = max(0, at - _BEFORE_CHARS) if len(line) > _LINE_CHARS_MAX else 0
    part = line[first : first + _LINE_CHARS_MAX]
    part = f"{'[...]' * (first > 0)}{part}{'[...]' * (len(line) > first + len(part))}"
    return "".join(
        "\ufffd" if each != "\t" and unicodedata.category(each) in _BREAKS else each
        for each in part
    )


def with_ignores(files: list[Ignores], folder: int, path: str) -> list[Ignores]:
    """These files, and the one that lies in this folder."""
    try:
        data = read(".gitignore", folder)
    except OSError as error:
        if error.errno in FULL:
            raise
        return files  # there is none, or it is a link
    here = ignores(data[:_IGNORE_BYTES_MAX].decode(errors="surrogateescape"), len(path))
    return [*files, here] if here else files


def open_folder(path: str, *, make: bool = False) -> int:
    """Open a folder by its absolute path, no part of which may be a link. Make what is missing. Raises OSError."""
    folder = os.open("/", _WAY)
    for part in filter(None, path.split("/")):
        parent = folder
        try:
            folder = (
                _open_or_make(part, parent)
                if make
                else os.open(part, _WAY, dir_fd=parent)
            )
        finally:
            os.close(parent)
    try:
        return os.open(".", _FOLDER, dir_fd=folder)
    finally:
        os.close(folder)


def _open_or_make(part: str, parent: int) -> int:
    try:
        return os.open(part, _WAY, dir_fd=parent)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            # it may be the folder of one user among others
            os.mkdir(part, mode=0o700, dir_fd=parent)
        return os.open(part, _WAY, dir_fd=parent)


def _enter(part: str, parent: int, path: str) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        refuse(f"There is no folder {path}.")
    except OSError as error:
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(
                os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode
            ):
                refuse(f"{path} is a link, and links are not followed.")
        refuse(f"{path} cannot be looked into: {error.strerror}.")


def say(line: str) -> None:
    """Print it, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def refuse(sentence: str) -> NoReturn:
    """End with a sentence instead of a result."""
    say(sentence)
    sys.exit(REFUSED)


def main() -> None:
    """Do what the request says, and be ended by the kernel if it takes longer than that."""
    asked: dict[str, Any] = json.load(sys.stdin)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
    with contextlib.suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
    try:
        lines = None if asked["lines"] is None else re.compile(asked["lines"])
        glob = re.compile("|".join(glob_to_regex(each) for each in asked["globs"]))
        denied = (
            re.compile("|".join(map(fnmatch.translate, asked["denied"])))
            if asked["denied"]
            else None
        )
        Search(glob, lines, denied).run(asked["folder"], asked["parts"])
    except re.error as error:
        refuse(
            f"This is no regular expression: {error}. With plain set, the words themselves are looked for."
        )
    except (MemoryError, RecursionError, OverflowError):
        refuse("The pattern needs too much memory.")
    except OSError as error:
        refuse(f"The conversation's folder cannot be looked into: {error.strerror}.")


if __name__ == "__main__":
    main()
