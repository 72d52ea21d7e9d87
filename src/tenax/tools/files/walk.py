"""A program for searching a folder for files by name, or for lines in files. Ignored files are omitted.

`python -I -S -X utf8 walk.py` reads a request as JSON from standard input, and prints every result immediately. The
program is a separate process, because a regular expression can run forever and Python cannot stop it: the process sets
an alarm, and the kernel ends the process. The program uses only the standard library, to start in milliseconds.

The program opens every folder relative to the parent folder and never through a link. So an exchanged folder does not
lead out of the searched folder.
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

# The maximum number of files and folders of a search.
ENTRIES_MAX: Final = 50_000
# Larger files are not searched.
BYTES_MAX: Final = 2_000_000
FOUND_MAX: Final = 200
# The maximum number of different lines of an ignore file. Later lines are ignored.
IGNORE_LINES_MAX: Final = 2_000
_IGNORE_BYTES_MAX = 200_000
_IGNORE_LINE_CHARS_MAX = 1_000
# The exit code if the output is an error message.
REFUSED: Final = 3
_OUT_CHARS_MAX = 28_000
_LINE_CHARS_MAX = 300
_BEFORE_CHARS = 100
DEPTH_MAX: Final = 100
_MEMORY_MAX = 512 * 1024 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A parent folder may allow entering, but not listing.
_WAY = _FOLDER | getattr(os, "O_PATH", 0)
FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# Errors of this process, not of the file: the process has no free descriptor or memory.
FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

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
# The same set as in tenax/text.py, which a program of the standard library cannot
# import. tests/unit/test_text.py compares the two.
_BREAKS = frozenset({"Cc", "Zl", "Zp"})
_UNSEEN = _BREAKS | {"Cf", "Cs"}


class Line(NamedTuple):
    """A line of an ignore file. Every line is a separate expression, because a match blocks every thread of Python."""

    fits: Callable[[str], object]
    is_name: bool
    """Whether the line matches only the last name of a path, instead of the whole path."""
    ignored: bool


class Ignores(NamedTuple):
    """An ignore file. The last line comes first, because the last matching line decides."""

    at: int
    """The offset of the folder's own paths within a whole path."""
    lines: list[Line]


class Enough(Exception):
    """The search reached the limit named in the message."""


class Abandoned(Exception):
    """The caller of the walk has gone away."""


def glob_to_regex(glob: str) -> str:
    """Translate a glob into a regular expression for paths with a slash after every name.

    A star does not backtrack, so no match takes long. The result is still correct, because the text between two stars
    has a fixed length: the first match is as good as a later match.
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
        # An open bracket, or a backslash at the end.
        if token is None:
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
        + "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1])
        + f"[^/]*{pieces[-1]}"
    )


def _set_to_regex(inside: str, *, no: bool) -> str:
    items = ""
    for kind, first, last, one in _ITEM.findall(inside):
        if kind:
            items += _CLASSES.get(kind, "")
        elif one:
            items += re.escape(one[-1])
        else:
            # Of a reversed range, Git takes the first character.
            items += f"{re.escape(first[-1])}-{re.escape(max(first[-1], last[-1]))}"
    if no:
        return f"[^/{items}]"
    return f"(?!/)[{items}]" if items else _NEVER


def parse_ignores(text: str, at: int = 0) -> Ignores | None:
    """Parse an ignore file. Return `None` for a file without patterns."""
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
    is_abandoned: Callable[[], bool] = bool,
) -> bool:
    """Return whether a path is ignored. The ignore file in the deepest folder decides first. Raises `Abandoned`."""
    end = f"/{chr(0) * folder}"
    name = path.rpartition("/")[2] + end
    for at, lines in reversed(files):
        whole = path[at:] + end
        for fits, is_name, ignored in lines:
            # Matching a long path takes milliseconds for every line.
            if not is_name and is_abandoned():
                raise Abandoned
            if fits(name if is_name else whole):
                return ignored
    return False


class Walk:
    """A walk through a folder, limited to a number of files and folders."""

    def __init__(
        self, entries_max: int = ENTRIES_MAX, is_abandoned: Callable[[], bool] = bool
    ) -> None:
        self._max = self._left = entries_max
        self._is_abandoned = is_abandoned
        # The number of unreadable files and folders.
        self.unread = 0

    def walk(
        self, folder: int, path: str, files: list[Ignores], depth: int
    ) -> Iterator[tuple[int, str, str]]:
        """Yield every file except ignored files: the descriptor of the folder, the name and the path.

        Raises `Abandoned` after the caller has gone away, and `Enough` at the limit.
        """
        for name, is_folder, is_file in self._entries(folder):
            if self._is_abandoned():
                raise Abandoned
            file_path = path + name
            if not (is_folder or is_file):
                continue
            if is_ignored(
                file_path, files, folder=is_folder, is_abandoned=self._is_abandoned
            ):
                continue
            if is_file:
                yield folder, name, file_path
                continue
            with self._count_unreadable():
                if not depth:
                    raise OSError
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    below = f"{file_path}/"
                    yield from self.walk(
                        inner, below, with_ignores(files, inner, below), depth - 1
                    )
                finally:
                    os.close(inner)

    def _entries(self, folder: int) -> list[tuple[str, bool, bool]]:
        found: list[tuple[str, bool, bool]] = []
        with self._count_unreadable(), os.scandir(folder) as entries:
            for entry in islice(entries, self._left + 1):
                if entry.name.casefold() != ".git":
                    is_folder = entry.is_dir(follow_symlinks=False)
                    is_file = entry.is_file(follow_symlinks=False)
                    found.append((entry.name, is_folder, is_file))
        self._left -= len(found)
        if self._left < 0:
            raise Enough(
                f"Stopped after {self._max:,} files and folders: this is not all of it"
            )
        return sorted(found)

    @contextlib.contextmanager
    def _count_unreadable(self) -> Iterator[None]:
        """Count unreadable entries. Entries deleted or replaced by links meanwhile are not counted."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            if error.errno in FULL:
                raise
            self.unread += error.errno != errno.ELOOP


class Search(Walk):
    """A search of a folder. Every result is printed immediately, so that an alarm loses no result."""

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
        """Search below a folder of the root, then print notes about the omitted files."""
        notes = []
        try:
            # The folder may not exist yet.
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
        for parent, name, file_path in self.walk(folder, path, files, DEPTH_MAX):
            if self._glob.fullmatch(
                f"{file_path[len(path) :]}/"
            ) and not self._is_denied(file_path):
                if self._lines is None:
                    self._say(shown(file_path))
                else:
                    self._search(self._lines, parent, name, file_path)

    def _is_denied(self, path: str) -> bool:
        """Return whether a rule forbids reading a file. Rules match the displayed path."""
        visible = "".join(
            "\ufffd" if unicodedata.category(char) in _UNSEEN else char for char in path
        )
        return self._denied is not None and self._denied.fullmatch(visible) is not None

    def _search(
        self, lines: re.Pattern[str], parent: int, name: str, path: str
    ) -> None:
        data = b""
        with self._count_unreadable():
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


class Names(Search):
    """A search for the paths of files. Paths with hidden characters are omitted, and no note is printed."""

    def __init__(self, glob: re.Pattern[str], limit: int) -> None:
        super().__init__(glob, None)
        self._limit = limit

    def run(self, root: str, parts: list[str]) -> None:
        """Search below a folder of the root."""
        with contextlib.suppress(FileNotFoundError, Enough):
            self._below(open_folder(root), parts)

    def _say(self, line: str) -> None:
        # `shown` puts a path with hidden characters in quotes.
        if line.startswith('"'):
            return
        if self._found == self._limit:
            raise Enough
        self._found += 1
        say(line)


def read(name: str, parent: int) -> bytes:
    """Read a file up to one byte over the limit. Return no bytes if it is not a regular file."""
    descriptor = os.open(name, FILE, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return b""
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor, not a path)
        return file.read(BYTES_MAX + 1)


def shown(path: str) -> str:
    """Return the path on a single line, in quotes if the path contains invisible characters."""
    unseen = any(unicodedata.category(char) in _UNSEEN for char in path)
    return json.dumps(path) if unseen or path.startswith('"') else path


def _window(line: str, at: int) -> str:
    """Return the part of a line around a match, with line breaks and control characters replaced."""
    first = max(0, at - _BEFORE_CHARS) if len(line) > _LINE_CHARS_MAX else 0
    part = line[first : first + _LINE_CHARS_MAX]
    part = f"{'[...]' * (first > 0)}{part}{'[...]' * (len(line) > first + len(part))}"
    return "".join(
        "\ufffd" if char != "\t" and unicodedata.category(char) in _BREAKS else char
        for char in part
    )


def with_ignores(files: list[Ignores], folder: int, path: str) -> list[Ignores]:
    """Return the ignore files, including the file in `folder`."""
    try:
        data = read(".gitignore", folder)
    except OSError as error:
        if error.errno in FULL:
            raise
        # There is no ignore file, or it is a link.
        return files
    here = parse_ignores(
        data[:_IGNORE_BYTES_MAX].decode(errors="surrogateescape"), len(path)
    )
    return [*files, here] if here else files


def open_folder(path: str, *, make: bool = False) -> int:
    """Open a folder by an absolute path without links. With `make`, create missing folders."""
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
            # The folder may belong to one of several users.
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
    """Print a line and flush the output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def refuse(sentence: str) -> NoReturn:
    """Print an error message and exit."""
    say(sentence)
    sys.exit(REFUSED)


def main() -> None:
    """Perform the request. The kernel ends the process after the timeout."""
    request: dict[str, Any] = json.load(sys.stdin)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    # Not every system has this limit.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
    try:
        lines = None if request["lines"] is None else re.compile(request["lines"])
        flags = re.IGNORECASE if "names" in request else 0
        glob = re.compile(
            "|".join(glob_to_regex(glob) for glob in request["globs"]), flags
        )
        if "names" in request:
            Names(glob, request["names"]).run(request["folder"], request["parts"])
            return
        denied = (
            re.compile("|".join(map(fnmatch.translate, request["denied"])))
            if request["denied"]
            else None
        )
        Search(glob, lines, denied).run(request["folder"], request["parts"])
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
