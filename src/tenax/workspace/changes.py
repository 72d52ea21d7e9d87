"""Find, show and revert the changes of turns in the working folder.

Before a call that may change files, a snapshot of the folder is stored (`snapshots.py`). Afterwards the differences
become an event `files.changed` beside the outcome of the call, and the contents of the files go into blobs. If the
process dies during a call, the next process reports the changes. The work delays a turn only briefly, and no error in
this module fails a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec

from tenax.clock import Timing
from tenax.concurrency import run_in_own_thread
from tenax.errors import (
    Gone,
    InvalidInput,
    NoSuchConversation,
    Refused,
    TenaxError,
    ToolFailed,
)
from tenax.events import FileChange, FilesChanged, FileState, RunStarted
from tenax.journal import LOCAL_USER
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.tools.files.diff import diff
from tenax.tools.files.edit import replace
from tenax.tools.files.walk import read
from tenax.tools.paths import (
    explained,
    file_at,
    is_git,
    keep_real,
    parent_of,
    parts_of,
    real_folder,
)
from tenax.workspace.snapshots import (
    BYTES_MAX,
    KEPT_BYTES_MAX,
    About,
    Entry,
    Manifest,
    Snapshots,
    Taken,
    is_same,
)

__all__ = ["FILES_MAX", "Changed", "Changes", "PutBack", "TurnChanges", "Watch"]

log = logging.getLogger(__name__)

# The maximum number of changed files of a call.
FILES_MAX: Final = 1000
# The maximum size of the paths of a call: the size of an event is limited, and JSON can make a path six times as long.
_PATHS_BYTES_MAX: Final = 400_000
_TURNS_MAX: Final = 20
_PAUSE_SECONDS: Final = 60.0
_BRIEF_SECONDS: Final = 5.0
_REPORT_SECONDS: Final = 3.0
_NOT_SCANNED: Final = (
    "The folder could not be looked at in time, so what was changed in it is not known."
)
_ELSEWHERE: Final = "This turn worked in another folder, so its changes are not shown."
_SEQ_DIGITS: Final = 12
What = Literal["added", "changed", "removed"]
_Net = dict[str, FileChange]


class Changed(msgspec.Struct, frozen=True):
    """A file changed by a turn. `note` describes changes not shown in the diff."""

    path: str
    what: What
    diff: str = ""
    note: str = ""


class TurnChanges(msgspec.Struct, frozen=True):
    """The changes of a turn. `turn` is the name for `put_back`. `undoes` is the name of the reverted turn, if any."""

    turn: str
    at: int
    files: list[Changed]
    missed: str = ""
    undoes: str = ""
    undone: bool = False


class PutBack(msgspec.Struct, frozen=True):
    """The reverted files, and for every other file the reason why it was not reverted."""

    done: list[str]
    left: dict[str, str]


class _Turn:
    def __init__(self, name: str, at: int) -> None:
        self.name = name
        self.at = at
        self.runs: set[str | None] = set()
        # The working folders of the runs.
        self.folders: set[str] = set()
        self.events: list[FilesChanged] = []
        self.undone = False

    def net(self, *more: FilesChanged) -> _Net:
        """Return every file before the first and after the last change, if the two states differ."""
        found: _Net = {}
        for event in (*self.events, *more):
            for change in event.files:
                first = found.get(change.path, change)
                found[change.path] = FileChange(change.path, first.before, change.after)
        return {
            path: change
            for path, change in sorted(found.items())
            if not is_same(change.before, change.after)
        }


class Watch:
    """The watch over the folder during a call."""

    def __init__(self, changes: Changes, about: About, taken: Taken | None) -> None:
        self._changes = changes
        self._about = about
        self.taken = taken

    async def events(self) -> list[FilesChanged]:
        """Return the event to append with the outcome of the call, or an empty list if nothing changed.

        After an error the list is empty, and the changes are reported later.
        """
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                found = await self._changes.event(self._about, self.taken)
        except (TenaxError, TimeoutError, OSError) as error:
            log.warning(
                "The changes of a call are reported later: %s",
                error,
                extra={"action": "changes_wait"},
            )
            self.taken = None
            return []
        return [found] if found is not None else []

    def drop_snapshot(self) -> None:
        """Remove the snapshot, after the event is stored or if nothing changed."""
        if self.taken is not None:
            self.taken.file.unlink(missing_ok=True)


class Changes:
    """The changes in the folders of a user, by the conversations of the user. `storage` is the folder for snapshots.

    `folder` is the folder of the user. Conversations of a project work in the folder of the project.
    """

    def __init__(
        self,
        journal: AsyncJournal,
        folder: Path,
        storage: Path,
        hidden: Iterable[Path] = (),
        timing: Timing = Timing(),
    ) -> None:
        self.timing = timing
        self._journal = journal
        self._user = journal.user or ""
        self.folder = folder
        # The path of the folder below the data folder, or an empty text for a folder elsewhere. The path stays the same
        # if the data folder is moved.
        self._tail = ""
        data = storage.parent
        if folder.is_relative_to(data):
            self._tail = f"/{folder.relative_to(data)}"
        self.snapshots = Snapshots(folder, storage, hidden)
        """The snapshots of the user's folder."""
        self._storage = storage
        self._hidden = list(hidden)
        self._paused_until = 0.0

    def _snapshots_of(self, about: About) -> Snapshots:
        """Return the snapshots of the folder of a call. Blocks."""
        if not about.folder:
            return self.snapshots
        return Snapshots(keep_real(Path(about.folder)), self._storage, self._hidden)

    # -- around a call ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def watch(
        self,
        conversation: str,
        run: str | None,
        message: int,
        call: str,
        also: Sequence[str] = (),
        undoes: str = "",
        folder: Path | None = None,
    ) -> AsyncIterator[Watch]:
        """Store a snapshot of the folder, by default of the user's folder, and watch the folder during the call."""
        other = "" if folder in {None, self.folder} else str(folder)
        about = About(
            self._user, conversation, run, message, call, list(also), undoes, other
        )
        taken = await self._take_snapshot(about)
        try:
            yield Watch(self, about, taken)
        finally:
            if taken is not None:
                taken.release()

    async def _take_snapshot(self, about: About) -> Taken | None:
        """Store a snapshot before the call. After a slow scan, skip scans for a while, because the disk may hang."""
        began = time.monotonic()
        if began < self._paused_until:
            return None
        try:
            await self.try_briefly(self.report_orphans(about.conversation))
            async with asyncio.timeout(self.timing.scan_seconds):
                abandoned = threading.Event()
                return await run_in_own_thread(
                    lambda: self._snapshots_of(about).take(about, abandoned),
                    Taken.discard,
                    abandoned=abandoned,
                    owner=self._user,
                )
        except (ToolFailed, TimeoutError, OSError) as error:
            log.warning(
                "%s %s", _NOT_SCANNED, error, extra={"action": "changes_missed"}
            )
            return None
        finally:
            if time.monotonic() - began >= self.timing.scan_seconds:
                self._paused_until = time.monotonic() + _PAUSE_SECONDS

    async def event(self, about: About, taken: Taken | None) -> FilesChanged | None:
        """Store the contents of changed files and return the event, or `None` if nothing changed."""
        missed, now = _NOT_SCANNED, None
        moved: list[tuple[str, Entry | None, Entry | None]] = []
        if taken is not None:
            abandoned = threading.Event()
            before_call = taken
            now, moved = await run_in_own_thread(
                lambda: self._snapshots_of(about).find_changes(before_call, abandoned),
                abandoned=abandoned,
                owner=self._user,
            )
            missed = taken.before.missed or now.missed
            if about.undoes:
                moved = [change for change in moved if change[0] in about.also]
        kept = _fit_event(moved)
        if len(kept) < len(moved):
            missed = f"{len(moved) - len(kept):,} more files were changed than are kept. {missed}".rstrip()
        if not moved and not missed:
            return None
        turn = await self._turn(about.conversation, about.run)
        # An earlier event of the turn says that the scan was incomplete.
        if not moved and any(event.missed for event in turn.events):
            return None
        files: list[FileChange] = []
        if taken is not None and now is not None:
            left = KEPT_BYTES_MAX - sum(_stored_bytes(event) for event in turn.events)
            store = partial(self._store_contents, about, taken.before, now, kept, left)
            files = await self._journal.threads.run(store)
        found = FilesChanged(about.message, about.call, files, 0, missed, about.undoes)
        return msgspec.structs.replace(found, total=len(turn.net(found)))

    def _store_contents(
        self,
        about: About,
        before: Manifest,
        now: Manifest,
        moved: Sequence[tuple[str, Entry | None, Entry | None]],
        left: int,
    ) -> list[FileChange]:
        """Store the contents of the files as blobs, up to `left` bytes."""
        snapshots = self._snapshots_of(about)

        def state(manifest: Manifest, entry: Entry | None) -> FileState | None:
            nonlocal left
            if entry is None:
                return None
            data = blob = None
            if entry.size <= left:
                data = snapshots.content(manifest, entry)
            if data is not None:
                left -= len(data)
                blob = self._journal.journal.put_blob(data)
            return FileState(entry.mode & 0o7777, entry.size, entry.hash, blob)

        return [
            FileChange(path, state(before, was), state(now, to))
            for path, was, to in moved
        ]

    async def report_orphans(self, conversation: str | None = None) -> None:
        """Append the changes of calls whose process died, in the given conversation or in every conversation."""
        claim = partial(self.snapshots.claim_orphans, self._user, conversation)
        orphans = await run_in_own_thread(claim, _release_all, owner=self._user)
        try:
            for taken in orphans:
                with contextlib.suppress(Gone, NoSuchConversation):
                    await self._report(taken)
                taken.file.unlink(missing_ok=True)
        finally:
            _release_all(orphans)

    async def _report(self, taken: Taken) -> None:
        if await self._is_reported(taken.about):
            return
        event = await self.event(taken.about, taken)
        if event is not None:
            await self._journal.append(
                taken.about.conversation, [event], run=taken.about.run
            )

    async def try_briefly(
        self, work: Awaitable[None], *, seconds: float = _BRIEF_SECONDS
    ) -> None:
        """Wait for `work` up to a timeout, and log errors. A later call repeats the work."""
        try:
            async with asyncio.timeout(seconds):
                await work
        except (TenaxError, TimeoutError, OSError) as error:
            log.warning(
                "The changes of calls are reported later: %s",
                error,
                extra={"action": "changes_wait"},
            )

    async def _is_reported(self, about: About) -> bool:
        for recorded in await self._events(about.conversation, about.message):
            event = recorded.event
            if isinstance(event, FilesChanged):
                call = (recorded.run, event.message, event.call)
                if call == (about.run, about.message, about.call):
                    return True
        return False

    async def forget(self) -> None:
        """Delete the stored file contents after an erasure, because they may contain the erased text."""
        await run_in_own_thread(self.snapshots.forget, owner=self._user)

    # -- reading ---------------------------------------------------------------------------------------------

    async def turns(
        self, conversation: str, turn: str | None = None
    ) -> list[TurnChanges]:
        """Return the changes of the last turns, newest last, or of a single turn."""
        await self.try_briefly(self.report_orphans(conversation))
        if turn is not None:
            found = [await self._find_turn(conversation, turn)]
        else:
            events = await self._events(conversation, 0)
            found = list(_fold_turns(events).values())[-_TURNS_MAX:]
        return [await self._render(conversation, turn) for turn in found]

    async def _render(self, conversation: str, turn: _Turn) -> TurnChanges:
        is_own = self._user == LOCAL_USER
        # In earlier versions every user worked in the owner's folder. The files there belong to the owner.
        if not is_own:
            with contextlib.suppress(InvalidInput):
                folders = await self._folders(conversation, turn)
                is_own = all(self._is_inside(folder) for folder in folders)
        if is_own:
            files = [await self._diff(change) for change in turn.net().values()]
            reasons = dict.fromkeys(event.missed for event in turn.events)
            missed = " ".join(reason for reason in reasons if reason)
        else:
            files, missed = [], _ELSEWHERE
        undoes = turn.events[0].undoes
        return TurnChanges(turn.name, turn.at, files, missed, undoes, turn.undone)

    async def _diff(self, change: FileChange) -> Changed:
        was, now = change.before, change.after
        what: What = "added" if was is None else "removed" if now is None else "changed"
        notes = []
        if was and now and was.mode != now.mode:
            notes.append(f"Its mode was {was.mode:o} and is {now.mode:o}.")
        old, new = await self._text(was), await self._text(now)
        if old is None or new is None:
            notes.append(
                f"There is no diff: it is no text, larger than {BYTES_MAX:,} bytes, or was erased."
            )
            return Changed(change.path, what, note=" ".join(notes))
        made = await self._journal.threads.run(partial(diff, change.path, old, new))
        return Changed(change.path, what, made, " ".join(notes))

    async def _text(self, state: FileState | None) -> str | None:
        """Return the text of the file, or `None` if the contents are not stored or not text."""
        if state is None:
            return ""
        data = await self._journal.get_blob(state.blob) if state.blob else None
        try:
            return data.decode() if data is not None and b"\0" not in data else None
        except UnicodeDecodeError:
            return None

    async def _find_turn(self, conversation: str, name: str) -> _Turn:
        """Return the turn of a run, or the revert at a seq. Raises `InvalidInput` for a turn without changes."""
        is_seq = name.isascii() and name.isdecimal() and len(name) <= _SEQ_DIGITS
        if is_seq:
            turn = await self._turn(conversation, None, name)
        else:
            turn = await self._turn(conversation, name)
        if not turn.events:
            raise InvalidInput(
                "That turn changed no files, or what it changed was erased."
            )
        return turn

    async def _turn(self, conversation: str, run: str | None, name: str = "") -> _Turn:
        """Return the turn of a run: the run, the earlier runs resumed by it, and the later runs resuming it."""
        first = int(name or 0)
        seen: set[str] = set()
        while run is not None and run not in seen:
            seen.add(run)
            state = await self._journal.run(conversation, run)
            name = run
            first = (state.started or 0) if state is not None else 0
            started = await self._journal.fact(conversation, first) if first else None
            run = None
            if started and isinstance(started.event, RunStarted):
                run = started.event.resumes
        turns = {}
        if name:
            turns = _fold_turns(await self._events(conversation, max(0, first - 1)))
        return turns.get(name, _Turn(name, 0))

    async def _events(self, conversation: str, after: int) -> list[Recorded]:
        found: list[Recorded] = []
        while page := await self._journal.read(conversation, after=after):
            found += [
                recorded
                for recorded in page
                if isinstance(recorded.event, FilesChanged | RunStarted)
            ]
            after = page[-1].seq
        return found

    # -- reverting -------------------------------------------------------------------------------------------

    async def put_back(
        self, conversation: str, name: str, projects: Sequence[Path] = ()
    ) -> PutBack:
        """Revert every file to the contents before the turn, unless the file changed after the turn.

        `projects` are the folders of the user's projects. Raises `Refused` if the turn is not over, or worked in
        another folder than these and the folder of the user.
        """
        await self.try_briefly(self.report_orphans(conversation))
        turn = await self._find_turn(conversation, name)
        if (await self._journal.head(conversation)).run in turn.runs:
            raise Refused("This turn is not over yet.", hint="Stop it first.")
        folders = await self._folders(conversation, turn)
        try:
            folder = await run_in_own_thread(
                lambda: self._find_folder(folders, projects), owner=self._user
            )
        except ToolFailed as error:
            raise Refused(str(error), hint="Try again later.") from error
        if folder is None:
            raise Refused(
                "This turn worked in another folder, so it cannot be put back here.",
                hint="Look at what it changed, and change the files by hand.",
            )
        net = turn.net()
        done, left = [], {}
        key = self._journal.ids.run()
        async with self.watch(
            conversation, None, 0, key, list(net), turn.name, folder
        ) as watch:
            if watch.taken is None:
                raise Refused(_NOT_SCANNED, hint="Try again later.")
            for path, change in net.items():
                data = None
                if change.before is not None and change.before.blob is not None:
                    data = await self._journal.get_blob(change.before.blob)
                try:
                    abandoned = threading.Event()
                    await run_in_own_thread(
                        partial(_restore, folder, change, data, abandoned),
                        abandoned=abandoned,
                        owner=self._user,
                    )
                    done.append(path)
                except ToolFailed as error:
                    left[path] = str(error)
            events = await watch.events()
            if events:
                await self._journal.append(conversation, events)
            watch.drop_snapshot()
        return PutBack(done, left)

    async def _folders(self, conversation: str, turn: _Turn) -> set[str]:
        """Return the working folders of the turn, with an empty name for an unknown folder.

        A revert has no run. Its folders are the folders of the reverted turn.
        """
        while turn.events and turn.events[0].undoes:
            turn = await self._find_turn(conversation, turn.events[0].undoes)
        return turn.folders or {""}

    def _find_folder(self, folders: set[str], projects: Sequence[Path]) -> Path | None:
        """Return the folder of the user or of a project if a turn worked in that folder only. Blocks."""
        if all(map(self._is_here, folders)):
            return self.folder
        for project in projects:
            if folders == {str(project)} and project.is_dir():
                return keep_real(project)
        return None

    def _is_here(self, folder: str) -> bool:
        """Return whether the path leads to the folder of the user, or did so before a move of the data folder."""
        if not folder or os.path.realpath(folder) == str(real_folder(self.folder)):
            return bool(folder)
        return self._has_tail(folder) and not Path(folder).exists()

    def _has_tail(self, folder: str) -> bool:
        return bool(self._tail) and folder.endswith(self._tail)

    def _is_inside(self, folder: str) -> bool:
        """Return whether a folder is the folder of the user, or a folder in it."""
        return bool(self._tail) and f"{self._tail}/" in f"{folder}/"


def _release_all(snapshots: Iterable[Taken]) -> None:
    for taken in snapshots:
        taken.release()


def _fit_event(
    moved: Sequence[tuple[str, Entry | None, Entry | None]],
) -> list[tuple[str, Entry | None, Entry | None]]:
    """Return as many of the first changes as fit into an event."""
    lengths = (len(path.encode()) for path, _, _ in moved)
    totals = itertools.accumulate(lengths)
    count = sum(total <= _PATHS_BYTES_MAX for total in totals)
    return list(moved[: min(count, FILES_MAX)])


def _fold_turns(events: Iterable[Recorded]) -> dict[str, _Turn]:
    """Return the turns with changed files, by name, oldest first."""
    turns: dict[str, _Turn] = {}
    # The name of a turn is its first run.
    names: dict[str | None, str] = {}
    folders: dict[str, str] = {}
    for recorded in events:
        run = recorded.run
        match recorded.event:
            case RunStarted(resumes=resumes, folder=folder) if run is not None:
                folders[run] = folder
                names[run] = run if resumes is None else names.get(resumes, run)
            case FilesChanged(undoes=undoes) as event:
                name = str(recorded.seq) if undoes else names.get(run, run or "")
                turn = turns.setdefault(name, _Turn(name, recorded.at))
                turn.events.append(event)
                _mark_undone(turns, undoes)
    for run, name in names.items():
        if name in turns:
            turns[name].runs.add(run)
            if run is not None:
                turns[name].folders.add(folders[run])
    return turns


def _mark_undone(turns: dict[str, _Turn], name: str) -> None:
    """Mark a turn as reverted. If the turn was itself a revert, the turn reverted by it is valid again, and so on."""
    undone = True
    for _ in range(len(turns)):
        turn = turns.get(name)
        if turn is None:
            return
        turn.undone = undone
        undone = not undone
        name = turn.events[0].undoes


def _restore(
    folder: Path, change: FileChange, data: bytes | None, abandoned: threading.Event
) -> None:
    was, left = change.before, change.after
    parts = parts_of(change.path)
    if not parts or any(map(is_git, parts)):
        raise ToolFailed("It lies in a place where nothing is written.")
    if was is not None and data is None:
        raise ToolFailed("What it held before was not kept.")
    with explained(change.path), parent_of(folder, parts, make=left is None) as parent:
        found = file_at(parts[-1], parent, change.path)
        if not is_same(left, _current_state(found, parts[-1], parent)):
            raise ToolFailed("It is no longer what the turn left.")
        if data is None:
            os.unlink(parts[-1], dir_fd=parent)
            os.fsync(parent)
        else:
            assert was is not None
            replace(
                parts[-1], parent, change.path, data, abandoned, found, was.mode & 0o777
            )


def _current_state(
    found: os.stat_result | None, name: str, parent: int
) -> FileState | None:
    if found is None:
        return None
    digest = f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
    if found.st_size <= BYTES_MAX:
        digest = hashlib.sha256(read(name, parent)).hexdigest()
    return FileState(found.st_mode & 0o7777, found.st_size, digest)


def _stored_bytes(event: FilesChanged) -> int:
    """Return the size of the stored contents of an event, in bytes."""
    states = [change.before for change in event.files]
    states += [change.after for change in event.files]
    return sum(
        state.size for state in states if state is not None and state.blob is not None
    )
