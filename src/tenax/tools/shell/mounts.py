"""Protect the repositories in a command's folder: plan the mounts, create them (`mounted.py`), and search again.

Bubblewrap mounts only the folder. Before the command begins, `mounted.py` mounts every protected path upon itself
inside the command's mount namespace. A different command in the same folder may exchange files meanwhile. So the
search is repeated until a search finds no exchanged file. After too many searches the command fails with an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tenax.concurrency import python_file
from tenax.errors import ToolFailed
from tenax.tools.paths import FOLDER
from tenax.tools.shell import mounted
from tenax.tools.shell.mounted import ProtectedPath
from tenax.tools.shell.repositories import Found, find_repositories

__all__ = ["Protection"]

_LOOKS_MAX: Final = 50
_BUSY_LOOKS_MAX: Final = 4
_PAUSE_SECONDS: Final = 0.02
_MOUNT_SECONDS: Final = 10.0


class Protection:
    """The protected paths in the mount namespace of a command. Every method blocks."""

    def __init__(self, folder: Path) -> None:
        """Search the folder for repositories. Raises `ToolFailed`."""
        self.folder = folder
        self._covered: set[tuple[str, int, int, bool, int]] = set()
        self._paths: set[str] = set()
        self._forbidden: dict[str, str] = {}
        for _ in range(_BUSY_LOOKS_MAX):
            self._found = self._search_folder()
            if self.is_needed or not self._found.is_torn:
                break

    @property
    def is_needed(self) -> bool:
        """Whether the folder contains a repository, or a link that may replace one. Otherwise nothing is mounted."""
        return bool(
            self._found.protected_paths
            or self._found.fresh_links
            or self._found.is_exchanged
        )

    def is_folder(self, found: os.stat_result) -> bool:
        """Return whether `found` describes the searched folder."""
        return (found.st_dev, found.st_ino) == (self._found.device, self._found.inode)

    def mount(self, pid: int, pidfd: int) -> None:
        """Protect every repository in the mount namespace of the process `pid`, which waits. Raises `ToolFailed`."""
        found = self._found
        for look in range(_LOOKS_MAX):
            if look:
                found = self._search_folder()
            complete = self._cover(found, pid, pidfd) and not found.is_exchanged
            # A link in place of a repository comes from a different command, unless the link stays. A recently moved
            # file may move again. A folder whose files come and go is searched a few more times.
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
        """Protect the repositories created while the command runs, except a clone that may be unfinished."""
        found = self._search_folder(is_running=True)
        self._cover(found, pid, pidfd, leave=found.unfinished)

    def _search_folder(self, *, is_running: bool = False) -> Found:
        """Search the folder. Raises `ToolFailed` if no command may start there.

        For a running command there is no such error: the found repositories are protected in any case.
        """
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
        """Mount the paths not mounted yet and not inside `leave`. Return whether every path was unchanged."""
        new = [
            protected
            for protected in found.protected_paths
            if _identity(protected, found) not in self._covered
            and not _is_inside(protected.path, leave)
        ]
        if not new:
            return True
        fields = [
            (
                protected.path,
                str(protected.device),
                str(protected.inode),
                "locked" if protected.locked else "held",
            )
            for protected in new
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
                python_file(mounted.__file__, *arguments),
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
        self._covered.update(_identity(protected, found) for protected in new)
        self._paths.update(protected.path for protected in new)
        return True

    def planted(self) -> str:
        """Return a sentence about a forbidden file that exists now, or an empty text.

        No link is followed out of the folder, because the answer would reveal whether a file outside exists.
        """
        try:
            root = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            # Copy the dictionary, because a search on another thread may add to it.
            for path, held in list(self._forbidden.items()):
                found = _planted_at(root, path, held)
                if found:
                    return f"{found} in a repository, where git finds what to run"
            return ""
        finally:
            os.close(root)

    def clear(self) -> str:
        """Rename forbidden files, and return a sentence about the result.

        Forbidden files are not deleted, because a person may have created them.
        """
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
    """Describe the forbidden file or link at the path, or return an empty text. No command can move `held`."""
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
    """Rename the file at the path, or a link in place of a parent folder. Return the new path. Raises `OSError`.

    No link is followed.
    """
    *ways, name = path.split("/")
    parent, above = _entered(str(folder), None), ""
    try:
        for way in ways:
            try:
                below = _entered(way, parent)
            except NotADirectoryError:
                # No command can have created the link there, because the folder `held` cannot be moved.
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
    """Open a folder without following a link. Restore the access rights if a command removed them. Raises `OSError`."""
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


def _identity(
    protected: ProtectedPath, found: Found
) -> tuple[str, int, int, bool, int]:
    """Return the key of a mount. The key includes the path: a file found under a second path is mounted there too.

    A second mount is necessary, because a parent folder may be a separate mount.
    """
    return (
        protected.path,
        protected.device,
        protected.inode,
        protected.locked,
        found.changed.get(protected.path, 0),
    )


def _not_protected(why: str) -> ToolFailed:
    return ToolFailed(
        f"Nothing was run: the repositories in the folder cannot be protected: {why}.",
        hint="this needs Linux 5.12 or newer, and a bubblewrap that is not setuid",
    )
