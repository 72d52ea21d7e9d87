"""Protect the repositories in a command's folder: plan the mounts, have them made (`mounted.py`), and look again.

Bubblewrap mounts only the folder. Before the command begins, each protected place is mounted upon itself inside the
command's mount namespace. Another command in the same folder may exchange places meanwhile: the folder is looked through
again until a look saw nothing exchanged. Where that does not come to an end, there is an error and no command.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tenax.errors import ToolFailed
from tenax.tools.paths import FOLDER
from tenax.tools.shell import mounted
from tenax.tools.shell.mounted import Place
from tenax.tools.shell.repositories import Found, find_repositories

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
        self._covered: set[tuple[str, int, int, bool, int]] = set()
        self._paths: set[str] = set()
        self._forbidden: dict[str, str] = {}
        for _ in range(_BUSY_LOOKS_MAX):
            self._found = self._look()
            if self.is_needed or not self._found.is_torn:
                break

    @property
    def is_needed(self) -> bool:
        """Whether there is a repository, or may be one that was exchanged for a link. Else nothing is mounted."""
        return bool(
            self._found.places or self._found.fresh_links or self._found.is_exchanged
        )

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
            # A link in the place of a repository is that of another command, unless it stays. What was moved a moment ago
            # may be moved again. A folder in which files come and go is looked through a few times more.
            if (
                complete
                and not found.moved
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
        leave = found.unfinished if is_running else ()
        self._forbidden.update(
            (path, held)
            for path, held in found.forbidden.items()
            if not _is_inside(path, leave)
        )
        if found.refusal is not None and not is_running:
            raise found.refusal
        return found

    def _cover(
        self, found: Found, pid: int, pidfd: int, leave: Collection[str] = ()
    ) -> bool:
        """Mount what is not covered yet, and not inside of `leave`. Return whether all of it was where it was seen."""
        new = [
            place
            for place in found.places
            if _identity(place, found) not in self._covered
            and not _is_inside(place.path, leave)
        ]
        if not new:
            return True
        fields = [
            (
                place.path,
                str(place.device),
                str(place.inode),
                "locked" if place.locked else "held",
            )
            for place in new
        ]
        data = b"".join(
            os.fsencode(field) + b"\0" for group in fields for field in group
        )
        arguments = (
            str(pid),
            str(pidfd),
            str(self.folder),
            str(found.device),
            str(found.inode),
        )
        try:
            done = subprocess.run(  # noqa: S603  (our own program)
                [sys.executable, "-I", "-S", "-X", "utf8", mounted.__file__, *arguments],
                input=data, capture_output=True, pass_fds=(pidfd,), timeout=_MOUNT_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_protected(
                getattr(error, "strerror", "") or "it took too long"
            ) from error
        if done.returncode == mounted.CHANGED:
            return False
        if done.returncode:
            raise _not_protected(done.stderr.decode(errors="replace")[-300:])
        self._covered.update(_identity(place, found) for place in new)
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
            # a look on another thread may add to it
            for path, held in list(self._forbidden.items()):
                found = _planted_at(root, path, held)
                if found:
                    return f"{found} in a repository, where git finds what to run"
            return ""
        finally:
            os.close(root)

    def clear(self) -> str:
        """Rename forbidden files. They are not deleted, because a person may have made them. Return what was done, as a sentence."""
        planted = self.planted()
        renamed: list[str] = []
        for path, held in list(self._forbidden.items()):
            with contextlib.suppress(OSError):
                renamed.append(_set_aside(self.folder, path, held))
        if left := self.planted():
            return f"{left}; it could not be renamed"
        return (
            f"{planted}; what was there is now {', '.join(renamed)}"
            if renamed
            else planted
        )


def _is_inside(path: str, folders: Collection[str]) -> bool:
    return any(f"{path}/".startswith(f"{folder}/") for folder in folders)


def _planted_at(root: int, path: str, held: str) -> str:
    """Return what a command did at this path, or an empty string. No command can move the folder `held`."""
    name = Path(path).name
    try:
        folder = mounted.open_beneath(root, held, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return ""
    try:
        os.close(
            mounted.open_beneath(folder, _below(path, held), os.O_PATH | os.O_NOFOLLOW)
        )
    except PermissionError:
        return f"it closed the folder of {name}"
    except OSError as error:
        return (
            f"it put a link on the way to {name}" if error.errno == errno.ELOOP else ""
        )
    finally:
        os.close(folder)
    return f"it wrote {name}"


def _below(path: str, folder: str) -> str:
    return path[len(folder) + 1 :] if folder else path


def _set_aside(folder: Path, path: str, held: str) -> str:
    """Rename what is at this path, or a link on the way to it. No link is followed. Return its new path. Raises OSError."""
    *ways, name = path.split("/")
    parent, above = _entered(str(folder), None), ""
    try:
        for way in ways:
            try:
                below = _entered(way, parent)
            except NotADirectoryError:
                # no command can have put it there
                if _is_inside(held, [f"{above}{way}"]):
                    raise
                name = way
                break
            os.close(parent)
            parent, above = below, f"{above}{way}/"
        aside = f"{name}.set-aside-{os.urandom(4).hex()}"
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
        return f"{above}{aside}"
    finally:
        os.close(parent)


def _entered(name: str, parent: int | None) -> int:
    """Open a folder without following a link, also one that a command closed. Raises OSError."""
    way = os.open(
        name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent
    )
    try:
        mode = stat.S_IMODE(os.fstat(way).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            Path(f"/proc/self/fd/{way}").chmod(mode | stat.S_IRWXU)
        return os.open(".", FOLDER, dir_fd=way)
    finally:
        os.close(way)


def _identity(place: Place, found: Found) -> tuple[str, int, int, bool, int]:
    """A file that is seen under another path is mounted there too: a folder on the way may be a mount of its own."""
    return (
        place.path,
        place.device,
        place.inode,
        place.locked,
        found.changed.get(place.path, 0),
    )


def _not_protected(why: str) -> ToolFailed:
    return ToolFailed(
        f"Nothing was run: the repositories in the folder cannot be protected: {why}.",
        hint="this needs Linux 5.12 or newer, and a bubblewrap that is not setuid",
    )
