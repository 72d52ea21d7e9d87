"""Find the git repositories in a folder, and what git reads or runs there on behalf of the person.

Every folder is opened from the one above it without following a link. What another command exchanges meanwhile can make
a look wrong, but leads it nowhere else; `Found` says whether something was exchanged during the look.
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
from tenax.tools.shell.mounted import Place, open_beneath

__all__ = ["FULL", "Found", "find_repositories", "refuse_where_full"]

_FOLDERS_MAX = 20_000
"""So many folders are looked through: known repositories first, then the insides of git directories, then the nearest."""
_GIT_FOLDERS_MAX = 5_000
"""So many folders inside of git directories are looked through. Where there are more, no command runs."""
_REPOSITORIES_MAX = 200
_CLONE_SECONDS = 600.0
"""A git directory without an index that was changed within this time may belong to a clone under way."""
FULL = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""There is no room for one more process or file, for a moment."""
_FRESH_NS = 300_000_000
_BARE = frozenset({"HEAD", "objects", "refs"})
_KEPT = frozenset({"config", "hooks"})
"""No command can move them out of a repository once it was seen, so they stay its mark."""
_INSIDE = frozenset({"HEAD", "objects", "commondir", *_KEPT})
"""Marks of a repository of a submodule or worktree: its place says enough, so one of them will do."""
_seen: dict[str, list[tuple[str, bool]]] = {}
"""For each folder the repositories that were found there in this process. They are looked at first the next time."""
_INCLUDES_MAX = 200
_HOOKS_MAX = 200
_SETTINGS_BYTES_MAX = 1_000_000
_SETTINGS = ("config", "hooks", "config.worktree", "commondir")
_PARTS = frozenset({"branches", "hooks", "info", "logs", "objects", "refs"})
"""Folders of a git directory in which no other one is."""
_NAMES = frozenset({".git", "index", *_BARE, *_SETTINGS})
"""Files that are looked at. Others are passed over."""


class _Entry(NamedTuple):
    inode: int
    is_folder: bool
    is_link: bool


class _Next(NamedTuple):
    """A folder to look at."""

    path: str
    inode: int | None
    """None: the folder was not listed, so any inode is accepted."""
    inside: bool
    """Whether it is inside of a git directory."""


class Found:
    """The repositories of one look."""

    def __init__(self, folder: Path, root: os.stat_result) -> None:
        self.folder, self.device, self.inode = folder, root.st_dev, root.st_ino
        self._repositories: dict[str, Place] = {}
        self._ways: dict[str, Place] = {}
        self.forbidden: dict[str, str] = {}
        """Files that no command may make: they cannot be covered while they are missing. For each the nearest folder that
        is there; it is held."""
        self.changed: dict[str, int] = {}
        """When each locked file or folder was changed last. Its inode may belong to another file later."""
        self.identities: dict[str, tuple[int, int]] = {}
        """Device and inode of every folder that was looked through."""
        self.unfinished: set[str] = set()
        """Git directories without an index: a clone may be under way there."""
        self.is_torn = False
        """A folder was listed, but was gone when it was opened: another look may find more."""
        self.is_exchanged = False
        """A file or folder was listed, but a link or another file stood there when it was opened."""
        self.refusal: ToolFailed | None = None
        """Why no command may run in the folder."""
        self.moved: set[str] = set()
        """Repositories, and folders on the way to one, that were moved a moment ago: they may be moved again."""
        self.fresh_links: set[str] = set()
        """Links where a repository, its settings or its hooks are expected, in folders that were changed a moment ago."""

    @property
    def places(self) -> list[Place]:
        """What is mounted, in this order: repositories and what is in them, then the folders on the way to them.

        A folder on the way takes along the mounts below it. So a repository that is moved into another folder, by a
        command that was not kept from it, is covered there too.
        """
        return [*self._repositories.values(), *sorted(self._ways.values(), key=_depth)]

    def hold(self, path: str) -> None:
        """Keep a git directory, and the folders on the way to it, where they are. The folder itself stays anyway."""
        if not path:
            return
        self._repositories.setdefault(path, self._held(path))
        self.hold_way(path.rpartition("/")[0])

    def hold_way(self, path: str) -> None:
        """Keep a folder, and those on the way to it, where they are."""
        while path:
            self._ways.setdefault(path, self._held(path))
            path = path.rpartition("/")[0]

    def lock(self, path: str, found: os.stat_result) -> None:
        """Let no command write a file or folder."""
        self._repositories[path] = Place(path, found.st_dev, found.st_ino, locked=True)
        self.changed[path] = found.st_ctime_ns
        self.hold_way(path.rpartition("/")[0])

    def protects(self, path: str) -> bool:
        """Return whether this path is one that no command may write, or lies in a repository."""
        return any(
            f"{path}/".startswith(f"{kept}/")
            for kept in (*self._repositories, *self.forbidden)
        )

    def _held(self, path: str) -> Place:
        return Place(path, *self.identities[path], locked=False)


def _depth(place: Place) -> int:
    return place.path.count("/")


def find_repositories(folder: Path) -> Found:
    """Look through the folder. Raises ToolFailed where it cannot be looked through."""
    try:
        root = os.open(folder, FOLDER | os.O_NOFOLLOW)
    except OSError as error:
        raise ToolFailed(
            f"The conversation's folder cannot be used: {error.strerror}."
        ) from error
    try:
        return _Search(folder, root).run()
    finally:
        os.close(root)


def refuse_where_full(error: OSError) -> None:
    """Raise ToolFailed if there was no room to look: what was not looked at would be open to a command."""
    if error.errno in FULL:
        raise ToolFailed(
            f"The folder cannot be looked through: {error.strerror}."
        ) from error


class _Search:
    """One look through a folder, breadth first."""

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
        """Folders with a file that says where their repository is."""
        self._folders_inside = 0
        self._moved: set[str] = set()
        self._named = 0
        self._hooks: set[str] = set()
        """Relative paths of hooks: each is one in every worktree."""
        self._included = 0
        self._personal = _personal_settings()

    def run(self) -> Found:
        looked: dict[str, int] = {}
        """Every folder that was looked through, and its inode then."""
        while (following := self._following(looked)) is not None:
            path, inode, inside = following
            if path in looked:
                # One that was seen before is looked at first, by its path. Another one may be listed there later.
                self._found.is_exchanged |= inode not in {None, looked[path]}
                continue
            try:
                descriptor = self._open(path)
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
                    self._look(descriptor, path, inside=inside)
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
        _seen[folder] = list(seen)[: 2 * _REPOSITORIES_MAX]
        self._found.moved = self._moved & {place.path for place in self._found.places}
        for worktree in self._worktrees:
            for hooks in self._hooks:
                self._lock_named(os.path.normpath(f"{worktree}/{hooks}"), forbid=False)
        return self._found

    def _following(self, looked: dict[str, int]) -> _Next | None:
        """Return the folder to look at next. None: there is none, or the limit is reached."""
        if len(self._repositories) + len(self._worktrees) > _REPOSITORIES_MAX:
            return None
        if self._known:
            return self._known.popleft()
        if self._inside:
            self._folders_inside += 1
            if self._folders_inside <= _GIT_FOLDERS_MAX:
                return self._inside.popleft()
            self._refuse(
                f"its git directories hold more than {_GIT_FOLDERS_MAX:,} folders, and so many cannot be looked through",
                hint="look what is in the folders named .git/modules",
            )
            return None
        return (
            self._nearest.popleft()
            if self._nearest and len(looked) < _FOLDERS_MAX
            else None
        )

    def _refuse(self, why: str, hint: str) -> None:
        if self._found.refusal is None:
            self._found.refusal = ToolFailed(
                f"No command is run in {self._found.folder}: {why}.", hint=hint
            )

    def _refuse_closed(self, path: str, error: OSError) -> None:
        """Refuse a folder that is closed to us if we own it, or the one above it: a command could open it."""
        if error.errno != errno.EACCES:
            return
        while True:
            with contextlib.suppress(OSError):
                descriptor = self._open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
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

    def _open(self, path: str, flags: int = FOLDER) -> int:
        try:
            return open_beneath(self._root, path, flags)
        except OSError as error:
            if error.errno not in {errno.ENOSYS, errno.EPERM}:
                raise
        descriptor = os.dup(self._root)
        # an old kernel: one name at a time
        for part in path.split("/") if path else ():
            above = descriptor
            try:
                descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
            finally:
                os.close(above)
        return descriptor

    def _look(self, descriptor: int, path: str, *, inside: bool) -> None:
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
        """Return the folders in a folder, and the files that are looked at.

        The inode is asked for: where something is mounted, and on some file systems, another one is listed.
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
        """Note a file or folder that was moved a moment ago: a change of what is in it would change `mtime` too."""
        if path and state.st_ctime_ns != state.st_mtime_ns and _is_fresh(state):
            self._moved.add(path)

    def _protect_worktree(
        self, descriptor: int, path: str, entries: dict[str, _Entry]
    ) -> None:
        """Protect a folder that holds a repository or the file that says where it is."""
        # Else git would take the folder itself for a repository once its own is broken.
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
        if len(self._repositories) + len(self._worktrees) > _REPOSITORIES_MAX:
            self._refuse(
                f"it holds more than {_REPOSITORIES_MAX} git repositories, and so many cannot be protected",
                hint="use a folder inside it",
            )

    def _hold_marks(
        self, descriptor: int, path: str, entries: dict[str, _Entry]
    ) -> None:
        """Keep the folders by which a bare repository is known. Git writes `HEAD` by a rename, so that is not held."""
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
        """Refuse links: a command could put another there. One that came a moment ago may be that of another command."""
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
        """Protect a git directory. `whole`: it is no worktree's, so it has settings and hooks of its own."""
        self._found.hold(path)
        if whole:
            self._make_missing(descriptor, path, entries)
        if (
            "index" not in entries
            and time.time() - os.fstat(descriptor).st_ctime < _CLONE_SECONDS
        ):
            self._found.unfinished.add(path)
        for name in _SETTINGS:
            if name == "commondir" and whole:  # only a worktree has one
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
        """Protect what the settings of a repository name, as far as it lies in the folder."""
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
        """Return a path that the settings name, relative to the folder. None: it lies elsewhere."""
        root = str(self._found.folder)
        whole = os.path.normpath(os.path.join(root, base, os.path.expanduser(path)))  # noqa: PTH111, PTH118  (text only)
        return whole[len(root) + 1 :] if path and whole.startswith(f"{root}/") else None

    def _read_settings(self, path: str) -> Settings:
        """Read a settings file without following a link. One that cannot be read names nothing."""
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
        """Lock a file or folder that the settings name. `forbid`: no command may make it while it is missing."""
        if path.startswith("../") or path in {".", ".."}:
            return
        above, _, name = path.rpartition("/")
        try:
            descriptor = self._open(above)
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
        """Let no command make a file that the settings name, nor put a link on the way to it."""
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
        """Note folders on the way that were not looked through."""
        while path and path not in self._found.identities:
            descriptor = self._open(path)
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
        """Make settings and hooks that are missing, empty, so that they can be covered. Git takes them for none."""
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
        except (
            PermissionError
        ) as error:  # where the folder is not ours, no command may make them either
            self._refuse_closed(path, error)

    def _lock(self, descriptor: int, path: str, name: str) -> None:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        # it was exchanged for a link since the folder was listed
        if stat.S_ISLNK(found.st_mode):
            self._found.is_exchanged = True
            return
        self._note_moved(_joined(path, name), found)
        self._found.lock(_joined(path, name), found)
        self._refuse_second_names(_joined(path, name), found)

    def _refuse_second_names(self, path: str, found: os.stat_result) -> None:
        """Refuse a hard link to settings or to a hook: by its other name a command could write it."""
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            self._refuse(
                f"{path} has another name (a hard link), by which a command could write it",
                hint=f"cp -p {path} copy && mv copy {path}",
            )
        if not stat.S_ISDIR(found.st_mode):
            return
        try:
            descriptor = self._open(path)
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
    """What the person's own settings name: in each repository git looks there for a relative path of hooks."""
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
    return time.time_ns() - state.st_ctime_ns < _FRESH_NS


def _is_bare(entries: dict[str, _Entry]) -> bool:
    """Return whether git takes a folder with these names for a repository, or did before a command moved a part of it."""
    if entries.keys() >= _BARE:
        return True
    # A work tree may hold such names too. It has a `.git`, and one name of a bare repository is forbidden there.
    if ".git" in entries or not entries.keys() >= _KEPT:
        return False
    return not entries["config"].is_folder and bool(entries.keys() & _BARE)


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
