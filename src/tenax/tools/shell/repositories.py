"""Find the git repositories in a folder, and the files there that git reads or runs on behalf of the person.

The search opens every folder from its parent folder without following a link. A command that runs at the same time can
exchange files. Such an exchange can make a search incomplete, but never leads the search out of the folder. `Found`
says whether a file was exchanged during the search.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from tenax.errors import ToolFailed
from tenax.tools.paths import FOLDER
from tenax.tools.shell.git_settings import Settings, parse_settings
from tenax.tools.shell.mounted import ProtectedPath, open_beneath

__all__ = [
    "FOLDERS_MAX",
    "FRESH_NS",
    "FULL",
    "GIT_FOLDERS_MAX",
    "REPOSITORIES_MAX",
    "Found",
    "Search",
    "find_repositories",
    "refuse_where_full",
]

FOLDERS_MAX = 20_000
"""The maximum number of searched folders.

Known repositories come first, then folders inside git directories, then the nearest folders.
"""
GIT_FOLDERS_MAX = 5_000
"""The maximum number of searched folders inside git directories. If there are more, no command runs."""
REPOSITORIES_MAX = 200
"""The maximum number of protected repositories and worktrees. If there are more, no command runs."""
_CLONE_SECONDS = 600.0
"""A git directory without an index, changed within the last 600 seconds, may belong to an unfinished clone."""
FULL = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors of a system temporarily out of processes, open files or memory."""
FRESH_NS = 300_000_000
"""The age up to which a change counts as recent. A recent change may be part of an exchange still in progress."""
_BARE = frozenset({"HEAD", "objects", "refs"})
_KEPT = frozenset({"config", "hooks"})
"""Marks of a known repository. They are permanent, because no command can move them out of a found repository."""
_INSIDE = frozenset({"HEAD", "objects", "commondir", *_KEPT})
"""Marks of the repository of a submodule or worktree. A single mark is enough, because the location says the rest."""
_seen: dict[str, list[tuple[str, bool]]] = {}
"""The repositories found by this process, per folder. The next search starts with them."""
_INCLUDES_MAX = 200
_HOOKS_MAX = 200
_SETTINGS_BYTES_MAX = 1_000_000
_SETTINGS = ("config", "hooks", "config.worktree", "commondir")
_PARTS = frozenset({"branches", "hooks", "info", "logs", "objects", "refs"})
"""Folders of a git directory without further git directories inside."""
_NAMES = frozenset({".git", "index", *_BARE, *_SETTINGS})
"""The names of the files read by a search. A search ignores files with different names."""


class _Entry(NamedTuple):
    inode: int
    is_folder: bool
    is_link: bool


class _Next(NamedTuple):
    """A folder to search."""

    path: str
    inode: int | None
    """The listed inode, or `None` for a folder not listed by its parent. With `None`, every inode is accepted."""
    inside: bool
    """Whether the folder is inside a git directory."""


class Found:
    """The repositories found by a single search."""

    def __init__(self, folder: Path, root: os.stat_result) -> None:
        self.folder = folder
        self.device = root.st_dev
        self.inode = root.st_ino
        self._repositories: dict[str, ProtectedPath] = {}
        self._ways: dict[str, ProtectedPath] = {}
        self.forbidden: dict[str, str] = {}
        """Missing files that no command may create, because a missing file cannot be mounted read-only. Every path
        maps to its nearest existing parent folder. The parent folder is held."""
        self.changed: dict[str, int] = {}
        """The last change time (`ctime`, nanoseconds) of every locked path, because an inode may be reused later."""
        self.identities: dict[str, tuple[int, int]] = {}
        """Device and inode of every searched folder."""
        self.unfinished: set[str] = set()
        """Git directories without an index: a clone may be writing them."""
        self.is_torn = False
        """Whether a listed folder was gone at the time of opening. A second search may find more."""
        self.is_exchanged = False
        """Whether a listed file or folder was replaced by a link or a different file before opening."""
        self.refusal: ToolFailed | None = None
        """The reason why no command may run in the folder."""
        self.moved: set[str] = set()
        """Repositories, and their parent folders, moved within the last 0.3 seconds. They may move again."""
        self.fresh_links: set[str] = set()
        """Links in place of a repository, settings or hooks, in folders changed within the last 0.3 seconds."""

    @property
    def protected_paths(self) -> list[ProtectedPath]:
        """The paths to mount, in order: repositories and their contents first, then their parent folders.

        The mount of a parent folder includes the mounts below the folder. So the protection of a repository continues
        after an unprotected command moves the repository into a different folder.
        """
        return [*self._repositories.values(), *sorted(self._ways.values(), key=_depth)]

    def hold(self, path: str) -> None:
        """Let no command move a git directory or its parent folders. No command can move the searched folder anyway."""
        if not path:
            return
        self._repositories.setdefault(path, self._held(path))
        self.hold_way(path.rpartition("/")[0])

    def hold_way(self, path: str) -> None:
        """Let no command move a folder or its parent folders."""
        while path:
            self._ways.setdefault(path, self._held(path))
            path = path.rpartition("/")[0]

    def lock(self, path: str, found: os.stat_result) -> None:
        """Let no command write a file or folder, nor move its parent folders."""
        self._repositories[path] = ProtectedPath(
            path, found.st_dev, found.st_ino, locked=True
        )
        self.changed[path] = found.st_ctime_ns
        self.hold_way(path.rpartition("/")[0])

    def protects(self, path: str) -> bool:
        """Return whether the path is forbidden to commands, or lies in a repository."""
        return any(
            f"{path}/".startswith(f"{kept}/")
            for kept in (*self._repositories, *self.forbidden)
        )

    def _held(self, path: str) -> ProtectedPath:
        return ProtectedPath(path, *self.identities[path], locked=False)


def _depth(protected: ProtectedPath) -> int:
    return protected.path.count("/")


def find_repositories(folder: Path) -> Found:
    """Search the folder for repositories. Raises `ToolFailed` if the folder cannot be searched."""
    try:
        root = os.open(folder, FOLDER | os.O_NOFOLLOW)
    except OSError as error:
        raise ToolFailed(
            f"The conversation's folder cannot be used: {error.strerror}."
        ) from error
    try:
        return Search(folder, root).run()
    finally:
        os.close(root)


def refuse_where_full(error: OSError) -> None:
    """Raise `ToolFailed` for an error in `FULL`, because an unsearched folder would be unprotected."""
    if error.errno in FULL:
        raise ToolFailed(
            f"The folder cannot be looked through: {error.strerror}."
        ) from error


class Search:
    """A single breadth-first search of a folder."""

    def __init__(self, folder: Path, root: int) -> None:
        self._root = root
        self._found = Found(folder, os.fstat(root))
        self._known: deque[_Next] = deque(
            _Next(path, None, inside) for path, inside in _seen.get(str(folder), ())
        )
        self._inside: deque[_Next] = deque()
        self._nearest: deque[_Next] = deque([_Next("", None, inside=False)])
        self._repositories: list[tuple[str, bool]] = []
        self._worktrees: list[str] = []
        """Folders with a `.git` file naming the repository."""
        self._folders_inside = 0
        self._moved: set[str] = set()
        self._named = 0
        self._hooks: set[str] = set()
        """Relative paths of hooks. Every path applies to every worktree."""
        self._included = 0
        self._personal = _personal_settings()

    def run(self) -> Found:
        looked: dict[str, int] = {}
        """Every searched folder, with the inode at the time of the search."""
        while (following := self._following(looked)) is not None:
            path, inode, inside = following
            if path in looked:
                # The search visits known repositories first, by path. A different folder may be listed there later.
                self._found.is_exchanged |= inode not in {None, looked[path]}
                continue
            try:
                descriptor = self.open_folder(path)
            except OSError as error:
                refuse_where_full(error)
                self._refuse_closed(path, error)
                if inode is not None:
                    looked[path] = inode
                    self._found.is_torn |= error.errno == errno.ENOENT
                    self._found.is_exchanged |= error.errno in {
                        errno.ELOOP,
                        errno.ENOTDIR,
                    }
                continue
            try:
                looked[path] = os.fstat(descriptor).st_ino
                if inode in {None, looked[path]}:
                    self.examine_folder(descriptor, path, inside=inside)
                else:
                    self._found.is_exchanged = True
            except OSError as error:
                refuse_where_full(error)
                self._refuse_closed(path, error)
                self._found.is_torn = True
            finally:
                os.close(descriptor)
        folder = str(self._found.folder)
        seen = dict.fromkeys([*self._repositories, *_seen.get(folder, ())])
        _seen[folder] = list(seen)[: 2 * REPOSITORIES_MAX]
        self._found.moved = self._moved & {
            protected.path for protected in self._found.protected_paths
        }
        for worktree in self._worktrees:
            for hooks in self._hooks:
                self._lock_named(os.path.normpath(f"{worktree}/{hooks}"), forbid=False)
        return self._found

    def _following(self, looked: dict[str, int]) -> _Next | None:
        """Return the next folder to search, or `None` after the last folder or at the limit."""
        if len(self._repositories) + len(self._worktrees) > REPOSITORIES_MAX:
            return None
        if self._known:
            return self._known.popleft()
        if self._inside:
            self._folders_inside += 1
            if self._folders_inside <= GIT_FOLDERS_MAX:
                return self._inside.popleft()
            self._refuse(
                f"its git directories hold more than {GIT_FOLDERS_MAX:,} folders, and so many cannot be looked through",
                hint="look what is in the folders named .git/modules",
            )
            return None
        return (
            self._nearest.popleft()
            if self._nearest and len(looked) < FOLDERS_MAX
            else None
        )

    def _refuse(self, why: str, hint: str) -> None:
        if self._found.refusal is None:
            self._found.refusal = ToolFailed(
                f"No command is run in {self._found.folder}: {why}.", hint=hint
            )

    def _refuse_closed(self, path: str, error: OSError) -> None:
        """Refuse an unreadable folder if this user owns the folder or its parent: a command could make it readable.

        A folder owned by a different user is accepted.
        """
        if error.errno != errno.EACCES:
            return
        while True:
            with contextlib.suppress(OSError):
                descriptor = self.open_folder(
                    path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
                )
                try:
                    owner = os.fstat(descriptor).st_uid
                finally:
                    os.close(descriptor)
                if owner != os.geteuid():
                    return
                self._refuse(
                    f"{path or 'it'} may hold a git repository, which cannot be protected: {error.strerror}",
                    hint=f"chmod u+rwx {path or '.'}",
                )
                return
            if not path:
                return
            path = path.rpartition("/")[0]

    def open_folder(self, path: str, flags: int = FOLDER) -> int:
        """Open a folder below the searched folder without following a link. Raises `OSError`."""
        try:
            return open_beneath(self._root, path, flags)
        except OSError as error:
            if error.errno not in {errno.ENOSYS, errno.EPERM}:
                raise
        descriptor = os.dup(self._root)
        # An old kernel without `openat2`: open the path name by name.
        for part in path.split("/") if path else ():
            above = descriptor
            try:
                descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
            finally:
                os.close(above)
        return descriptor

    def examine_folder(self, descriptor: int, path: str, *, inside: bool) -> None:
        """Protect the repository in a folder, if there is one, and queue the folders below. Raises `OSError`."""
        state = os.fstat(descriptor)
        self._found.identities[path] = (state.st_dev, state.st_ino)
        self._identify(path.rpartition("/")[0])
        self._note_moved(path, state)
        entries = self._list(descriptor)
        is_git = path.rpartition("/")[2] == ".git"
        is_bare = not inside and _is_bare(entries)
        is_marked = inside and bool(entries.keys() & _INSIDE)
        if is_git or is_bare or is_marked:
            self._count(path, inside=inside)
            whole = is_git or ("objects" in entries and "commondir" not in entries)
            self._protect(descriptor, path, entries, whole=whole)
            if is_bare:
                self._hold_marks(descriptor, path, entries)
            self._note_links(descriptor, path, entries, ("config", "hooks"))
        if is_git:
            entries = {
                name: entries[name]
                for name in ("modules", "worktrees")
                if name in entries
            }
        elif ".git" in entries:
            self._protect_worktree(descriptor, path, entries)
        for name, entry in entries.items():
            below = _joined(path, name)
            if entry.is_folder and name == ".git":
                self._inside.append(_Next(below, entry.inode, inside=False))
            elif entry.is_folder and (inside or is_git):
                if not (is_marked and name in _PARTS):
                    self._inside.append(_Next(below, entry.inode, inside=True))
            elif entry.is_folder:
                self._nearest.append(_Next(below, entry.inode, inside=False))

    def _list(self, descriptor: int) -> dict[str, _Entry]:
        """Return the folders in a folder, and the files named in `_NAMES`.

        The inode of a folder comes from `stat`: at a mount point, and on some file systems, the listed inode differs.
        """
        entries: dict[str, _Entry] = {}
        with os.scandir(descriptor) as listed:
            for entry in listed:
                is_folder = entry.is_dir(follow_symlinks=False)
                if not is_folder and entry.name not in _NAMES:
                    continue
                try:
                    inode = (
                        entry.stat(follow_symlinks=False).st_ino
                        if is_folder
                        else entry.inode()
                    )
                except FileNotFoundError:
                    self._found.is_torn = True
                    continue
                entries[entry.name] = _Entry(inode, is_folder, entry.is_symlink())
        return entries

    def _note_moved(self, path: str, state: os.stat_result) -> None:
        """Record a recently moved file or folder. A move changes only `ctime`; a change of content also `mtime`."""
        if path and state.st_ctime_ns != state.st_mtime_ns and _is_fresh(state):
            self._moved.add(path)

    def _protect_worktree(
        self, descriptor: int, path: str, entries: dict[str, _Entry]
    ) -> None:
        """Protect a folder with a `.git` directory or a `.git` file."""
        # Otherwise git would treat the folder itself as a bare repository after a command breaks its `.git`.
        missing = next(
            (name for name in ("HEAD", "objects", "refs") if name not in entries), None
        )
        if missing is not None:
            self._found.forbidden[_joined(path, missing)] = path
        self._note_links(descriptor, path, entries, (".git",))
        if not entries[".git"].is_folder and not entries[".git"].is_link:
            self._lock(descriptor, path, ".git")
            self._worktrees.append(path)
            self._refuse_too_many()

    def _count(self, path: str, *, inside: bool) -> None:
        self._repositories.append((path, inside))
        self._refuse_too_many()

    def _refuse_too_many(self) -> None:
        if len(self._repositories) + len(self._worktrees) > REPOSITORIES_MAX:
            self._refuse(
                f"it holds more than {REPOSITORIES_MAX} git repositories, and so many cannot be protected",
                hint="use a folder inside it",
            )

    def _hold_marks(
        self, descriptor: int, path: str, entries: dict[str, _Entry]
    ) -> None:
        """Hold the folders marking a bare repository. `HEAD` is not held, because git writes `HEAD` by a rename."""
        for name in ("objects", "refs"):
            if name in entries and entries[name].is_folder:
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    self._found.is_exchanged = True
                    continue
                self._found.identities[_joined(path, name)] = (
                    found.st_dev,
                    found.st_ino,
                )
                self._found.hold(_joined(path, name))

    def _note_links(
        self,
        descriptor: int,
        path: str,
        entries: dict[str, _Entry],
        names: tuple[str, ...],
    ) -> None:
        """Refuse links, because a command could replace them. A recent link may come from a different running command.

        A recent link below the top level is only recorded in `fresh_links`.
        """
        links = {
            _joined(path, name)
            for name in names
            if name in entries and entries[name].is_link
        }
        if not links:
            return
        is_top = _joined(path, names[0]) in {".git", ".git/config"}
        if not is_top and _is_fresh(os.fstat(descriptor)):
            self._found.fresh_links |= links
            return
        self._refuse(
            f"{min(links)} is a link, and a command could put another there",
            hint="put in its place what it leads to",
        )

    def _protect(
        self, descriptor: int, path: str, entries: dict[str, _Entry], *, whole: bool
    ) -> None:
        """Protect a git directory. `whole`: not the directory of a worktree, so it has its own settings and hooks."""
        self._found.hold(path)
        if whole:
            self._make_missing(descriptor, path, entries)
        if (
            "index" not in entries
            and time.time() - os.fstat(descriptor).st_ctime < _CLONE_SECONDS
        ):
            self._found.unfinished.add(path)
        for name in _SETTINGS:
            # Only the git directory of a worktree has a `commondir`.
            if name == "commondir" and whole:
                self._found.forbidden[_joined(path, name)] = path
            elif name not in entries:
                if not whole or name == "config.worktree":
                    self._found.forbidden[_joined(path, name)] = path
            elif not entries[name].is_link:
                self._lock(descriptor, path, name)
        for name in ("config", "config.worktree"):
            if name in entries:
                self._protect_named(path, name)

    def _protect_named(self, git: str, name: str) -> None:
        """Protect the hooks and included settings named by the settings of a repository, inside the folder only."""
        settings = self._read_settings(_joined(git, name))
        above, _, last = git.rpartition("/")
        worktree = above if last == ".git" else git
        if settings.worktree:
            worktree = str(Path(git) / settings.worktree)
        self._protect_hooks(settings, worktree)
        self._protect_hooks(self._personal, worktree)
        files = [(_joined(git, name), settings)]
        while files:
            file, settings = files.pop()
            for path in settings.includes:
                included = self._in_folder(file.rpartition("/")[0], path)
                if included is not None and not self._too_many_includes():
                    self._lock_named(included, forbid=True)
                    more = self._read_settings(included)
                    self._protect_hooks(more, worktree)
                    files.append((included, more))

    def _too_many_includes(self) -> bool:
        self._included += 1
        if self._included <= _INCLUDES_MAX:
            return False
        self._refuse(
            f"its git settings include more than {_INCLUDES_MAX} files of the folder, and so many cannot be protected",
            hint="remove include.path lines from the settings of its repositories",
        )
        return True

    def _protect_hooks(self, settings: Settings, worktree: str) -> None:
        self._named += len(settings.hooks)
        if self._named > _HOOKS_MAX:
            self._refuse(
                f"its git settings name more than {_HOOKS_MAX} folders of hooks, and so many cannot be protected",
                "remove core.hooksPath lines from the settings of its repositories",
            )
            return
        for path in settings.hooks:
            hooks = self._in_folder(worktree, path)
            if hooks is not None:
                self._lock_named(hooks, forbid=True)
            if not path.startswith(("/", "~")):
                self._hooks.add(path)

    def _in_folder(self, base: str, path: str) -> str | None:
        """Return a path named by the settings, relative to the folder, or `None` for a path outside the folder."""
        root = str(self._found.folder)
        whole = os.path.normpath(os.path.join(root, base, os.path.expanduser(path)))  # noqa: PTH111, PTH118  (text only)
        return whole[len(root) + 1 :] if path and whole.startswith(f"{root}/") else None

    def _read_settings(self, path: str) -> Settings:
        """Read a settings file without following a link. Return empty settings for an unreadable file."""
        try:
            descriptor = open_beneath(self._root, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            refuse_where_full(error)
            return Settings([], [], "")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return Settings([], [], "")
        with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor)
            return parse_settings(
                file.read(_SETTINGS_BYTES_MAX).decode(errors="surrogateescape")
            )

    def _lock_named(self, path: str, *, forbid: bool) -> None:
        """Lock a file or folder named by the settings. With `forbid`, no command may create a missing file there."""
        if path.startswith("../") or path in {".", ".."}:
            return
        above, _, name = path.rpartition("/")
        try:
            descriptor = self.open_folder(above)
        except OSError as error:
            refuse_where_full(error)
            if forbid and error.errno == errno.ENOENT:
                self._forbid(path)
            return
        try:
            self._identify(above)
            if stat.S_ISLNK(
                os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            ):
                link = {name: _Entry(0, is_folder=False, is_link=True)}
                self._note_links(descriptor, above, link, (name,))
            else:
                self._lock(descriptor, above, name)
        except FileNotFoundError:
            if forbid:
                self._forbid(path)
        except OSError as error:
            refuse_where_full(error)
            self._found.is_torn = True
        finally:
            os.close(descriptor)

    def _forbid(self, path: str) -> None:
        """Forbid commands to create a file named by the settings, or to put a link in place of a parent folder."""
        above = path.rpartition("/")[0]
        while above:
            try:
                self._identify(above)
            except FileNotFoundError:
                above = above.rpartition("/")[0]
            except OSError as error:
                refuse_where_full(error)
                self._found.is_torn = True
                return
            else:
                self._found.hold_way(above)
                break
        self._found.forbidden[path] = above

    def _identify(self, path: str) -> None:
        """Record the identity of a folder and of its parent folders, where the search has not visited them."""
        while path and path not in self._found.identities:
            descriptor = self.open_folder(path)
            try:
                state = os.fstat(descriptor)
                self._found.identities[path] = (state.st_dev, state.st_ino)
                self._note_moved(path, state)
            finally:
                os.close(descriptor)
            path = path.rpartition("/")[0]

    def _make_missing(
        self, descriptor: int, path: str, entries: dict[str, _Entry]
    ) -> None:
        """Create missing settings and hooks, because only existing files can be mounted. Git ignores empty ones."""
        try:
            with contextlib.suppress(FileExistsError):
                if "config" not in entries:
                    flags = (
                        os.O_WRONLY
                        | os.O_CREAT
                        | os.O_EXCL
                        | os.O_NOFOLLOW
                        | os.O_CLOEXEC
                    )
                    os.close(os.open("config", flags, 0o644, dir_fd=descriptor))
                    entries["config"] = _Entry(0, is_folder=False, is_link=False)
            with contextlib.suppress(FileExistsError):
                if "hooks" not in entries:
                    os.mkdir("hooks", dir_fd=descriptor)
                    entries["hooks"] = _Entry(0, is_folder=True, is_link=False)
        except PermissionError as error:
            # In a folder owned by a different user, no command may create the files either.
            self._refuse_closed(path, error)

    def _lock(self, descriptor: int, path: str, name: str) -> None:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        # A link replaced the file after the folder was listed.
        if stat.S_ISLNK(found.st_mode):
            self._found.is_exchanged = True
            return
        self._note_moved(_joined(path, name), found)
        self._found.lock(_joined(path, name), found)
        self._refuse_second_names(_joined(path, name), found)

    def _refuse_second_names(self, path: str, found: os.stat_result) -> None:
        """Refuse settings and hooks with a second hard link: a command could write them under the second name."""
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            self._refuse(
                f"{path} has another name (a hard link), by which a command could write it",
                hint=f"cp -p {path} copy && mv copy {path}",
            )
        if not stat.S_ISDIR(found.st_mode):
            return
        try:
            descriptor = self.open_folder(path)
        except OSError as error:
            refuse_where_full(error)
            return
        try:
            with os.scandir(descriptor) as hooks:
                for hook in hooks:
                    if hook.is_file(follow_symlinks=False):
                        self._refuse_second_names(
                            f"{path}/{hook.name}", hook.stat(follow_symlinks=False)
                        )
        finally:
            os.close(descriptor)


def _personal_settings() -> Settings:
    """Return the hooks named by the person's own git settings. Git resolves a relative path in every repository."""
    hooks: list[str] = []
    for file in ("~/.gitconfig", "~/.config/git/config"):
        with contextlib.suppress(OSError, RuntimeError):
            path = Path(file).expanduser()
            if path.is_file():
                hooks += parse_settings(
                    path.read_text("utf-8", "surrogateescape")[:_SETTINGS_BYTES_MAX]
                ).hooks
    return Settings(hooks, [], "")


def _is_fresh(state: os.stat_result) -> bool:
    return time.time_ns() - state.st_ctime_ns < FRESH_NS


def _is_bare(entries: dict[str, _Entry]) -> bool:
    """Return whether git treats the folder as a bare repository, or did so before a command moved a part of it."""
    if entries.keys() >= _BARE:
        return True
    # A worktree may contain such names too, but has a `.git`, and one name of a bare repository is forbidden there.
    if ".git" in entries or not entries.keys() >= _KEPT:
        return False
    return not entries["config"].is_folder and bool(entries.keys() & _BARE)


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
