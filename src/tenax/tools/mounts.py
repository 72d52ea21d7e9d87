"""Protect the repositories in a command's folder: plan the mounts, have them made (`mounted.py`), and look again.

Bubblewrap mounts only the folder. Before the command begins, each protected place is mounted upon itself inside the
command's mount namespace. Another command in the same folder may exchange places meanwhile: the folder is looked through
again until a look saw nothing exchanged. Where that does not come to an end, there is an error and no command.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tenax.errors import ToolFailed
from tenax.tools import mounted
from tenax.tools.mounted import Place
from tenax.tools.paths import FOLDER
from tenax.tools.repositories import Found, find_repositories

__all__ = ["Protection"]

_LOOKS_MAX: Final = 50
_BUSY_LOOKS_MAX: Final = 4
_PAUSE_SECONDS: Final = 0.02
_MOUNT_SECONDS: Final = 10.0


class Protection:
    """What is protected in the namespace of one command. Every method blocks."""

    def __init__(self, folder: Path) -> None:
        """Look through the folder. Raises ToolFailed."""
        self.folder = folder
        self._covered: set[tuple[str, int, int, bool]] = set()
        self._paths: set[str] = set()
        self._forbidden: dict[str, None] = {}
        for _ in range(_BUSY_LOOKS_MAX):
            self._found = self._look()
            if self.is_needed or not self._found.is_torn:
                break

    @property
    def is_needed(self) -> bool:
        """Whether there is a repository, or may be one that was exchanged for a link. Else nothing is mounted."""
        return bool(self._found.places or self._found.fresh_links or self._found.is_exchanged)

    def is_folder(self, found: os.stat_result) -> bool:
        """Return whether this is the folder that was looked through."""
        return (found.st_dev, found.st_ino) == (self._found.device, self._found.inode)

    def mount(self, pid: int, pidfd: int) -> None:
        """Protect every repository in the mount namespace of this process, which waits. Raises ToolFailed."""
        found = self._found
        for look in range(_LOOKS_MAX):
            if look:
                found = self._look()
            complete = self._cover(found, pid, pidfd) and not found.is_exchanged
            # A link in the place of a repository is that of another command, unless it stays. A folder in which files
            # come and go is looked through a few times more.
            if (
                complete
                and found.fresh_links <= self._paths
                and not (found.is_torn and look < _BUSY_LOOKS_MAX)
            ):
                return
            time.sleep(_PAUSE_SECONDS)
        raise ToolFailed(
            f"Nothing was run: the repositories in {self.folder} cannot be protected, because another command moves them, "
            "or puts links in their place.",
            hint="stop that command, and try again",
        )

    def update(self, pid: int, pidfd: int) -> None:
        """Protect repositories that came to be while the command runs, except a clone that may be under way."""
        found = self._look(is_running=True)
        self._cover(found, pid, pidfd, leave=found.unfinished)

    def _look(self, *, is_running: bool = False) -> Found:
        """Look through the folder. A command that runs is kept from what was found, even where none may begin."""
        found = find_repositories(self.folder)
        self._forbidden.update(dict.fromkeys(found.forbidden))
        if found.refusal is not None and not is_running:
            raise found.refusal
        return found

    def _cover(self, found: Found, pid: int, pidfd: int, leave: Collection[str] = ()) -> bool:
        """Mount what is not covered yet, and not inside of `leave`. Return whether all of it was where it was seen."""
        new = [
            place
            for place in found.places
            if _identity(place) not in self._covered
            and not any(f"{place.path}/".startswith(f"{git}/") for git in leave)
        ]
        if not new:
            return True
        fields = [
            (place.path, str(place.device), str(place.inode), "locked" if place.locked else "held")
            for place in new
        ]
        data = b"".join(os.fsencode(field) + b"\0" for group in fields for field in group)
        arguments = (str(pid), str(pidfd), str(self.folder), str(found.device), str(found.inode))
        try:
            done = subprocess.run(  # noqa: S603  (our own program)
                [sys.executable, "-I", "-S", "-X", "utf8", mounted.__file__, *arguments],
                input=data, capture_output=True, pass_fds=(pidfd,), timeout=_MOUNT_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_protected(getattr(error, "strerror", "") or "it took too long") from error
        if done.returncode == mounted.CHANGED:
            return False
        if done.returncode:
            raise _not_protected(done.stderr.decode(errors="replace")[-300:])
        self._covered.update(_identity(place) for place in new)
        self._paths.update(place.path for place in new)
        return True

    def planted(self) -> str:
        """Return the sentence for a file that no command may make, once there is one.

        No link is followed out of the folder: whether a file is there would tell about files of others.
        """
        try:
            root = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            for path in list(self._forbidden):  # a look on another thread may add to it
                found = _planted_at(root, path)
                if found:
                    return f"{found} in a repository, where git finds what to run"
            return ""
        finally:
            os.close(root)

    def clear(self) -> str:
        """Remove such files. Return the sentence for what is left."""
        for path in list(self._forbidden):
            with contextlib.suppress(OSError, RecursionError):
                _remove(self.folder, path)
        return f"{left}; it could not be removed" if (left := self.planted()) else ""


def _planted_at(root: int, path: str) -> str:
    """Return what a command did at this path, or an empty string."""
    name = Path(path).name
    try:
        os.close(mounted.open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW, links=True))
    except PermissionError:
        return f"it closed the folder of {name}"
    except OSError:  # it is not there, or a link leads out of the folder
        return ""
    return f"it wrote {name}"


def _remove(folder: Path, path: str) -> None:
    """Remove a file or a folder with all that is in it. A link is removed, not followed. Raises OSError."""
    *ways, name = path.split("/")
    parent = _entered(str(folder), None)
    try:
        for way in ways:
            try:
                below = _entered(way, parent)
            except NotADirectoryError:  # the folder on the way was exchanged
                os.unlink(way, dir_fd=parent)
                return
            os.close(parent)
            parent = below
        try:
            os.unlink(name, dir_fd=parent)
        except IsADirectoryError:  # it goes at once, however much is in it
            gone = f".tenax-{os.urandom(8).hex()}"
            os.rename(name, gone, src_dir_fd=parent, dst_dir_fd=parent)
            shutil.rmtree(gone, ignore_errors=True, dir_fd=parent)
    finally:
        os.close(parent)


def _entered(name: str, parent: int | None) -> int:
    """Open a folder without following a link, also one that a command closed. Raises OSError."""
    way = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.fstat(way).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            Path(f"/proc/self/fd/{way}").chmod(mode | stat.S_IRWXU)
        return os.open(".", FOLDER, dir_fd=way)
    finally:
        os.close(way)


def _identity(place: Place) -> tuple[str, int, int, bool]:
    """A file that is seen under another path is mounted there too: a folder on the way may be a mount of its own."""
    return place.path, place.device, place.inode, place.locked


def _not_protected(why: str) -> ToolFailed:
    return ToolFailed(
        f"Nothing was run: the repositories in the folder cannot be protected: {why}.",
        hint="this needs Linux 5.12 or newer, and a bubblewrap that is not setuid",
    )
