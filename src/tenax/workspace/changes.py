"""What turns changed in the conversation's folder: found around each call that may change something, shown, put back.

The folder is on disk as it was before such a call begins (`tools/snapshot.py`). What is another afterwards is an event
beside the call's outcome, `files.changed`, and what the files held is in blobs. What a call changed whose process died is
found by whoever comes next. None of this holds a turn for long, and nothing that goes wrong here fails one.
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
from tenax.tools.base import aside
from tenax.tools.files.diff import diff
from tenax.tools.files.edit import replace
from tenax.tools.files.walk import read
from tenax.tools.paths import (
    explained,
    file_at,
    is_git,
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
    same,
)

__all__ = ["FILES_MAX", "Changed", "Changes", "PutBack", "TurnChanges", "Watch"]

log = logging.getLogger(__name__)

FILES_MAX: Final = 1000
"""Files of one call."""
_PATHS_BYTES_MAX: Final = 400_000
"""Of all their paths: an event has an end, and what stands in a path may take six times as much there."""
_TURNS_MAX: Final = 20
_LOOK_SECONDS: Final = 5.0
_REST_SECONDS: Final = 60.0
_TELL_SECONDS: Final = 3.0
_NOT_LOOKED: Final = (
    "The folder could not be looked at in time, so what was changed in it is not known."
)
_ELSEWHERE: Final = "This turn worked in another folder, so its changes are not shown."
_SEQ_DIGITS: Final = 12
What = Literal["added", "changed", "removed"]
_Net = dict[str, FileChange]


class Changed(msgspec.Struct, frozen=True):
    """A file that a turn changed. `note` says what the diff cannot."""

    path: str
    what: What
    diff: str = ""
    note: str = ""


class TurnChanges(msgspec.Struct, frozen=True):
    """What a turn changed, under the name that `put_back` takes. `undoes` is the turn that it put back itself."""

    turn: str
    at: int
    files: list[Changed]
    missed: str = ""
    undoes: str = ""
    undone: bool = False


class PutBack(msgspec.Struct, frozen=True):
    """The files that are again as they were, and why others are not."""

    done: list[str]
    left: dict[str, str]


class _Turn:
    def __init__(self, name: str, at: int) -> None:
        self.name, self.at = name, at
        self.runs: set[str | None] = set()
        self.folders: set[str] = set()
        """Where its runs worked."""
        self.events: list[FilesChanged] = []
        self.undone = False

    def net(self, *more: FilesChanged) -> _Net:
        """Each file before the first change and after the last one, if that makes a difference."""
        found: _Net = {}
        for each in (
            change for event in (*self.events, *more) for change in event.files
        ):
            first = found.get(each.path, each)
            found[each.path] = FileChange(each.path, first.before, each.after)
        return {
            path: each
            for path, each in sorted(found.items())
            if not same(each.before, each.after)
        }


class Watch:
    """One call, from before to after."""

    def __init__(self, changes: Changes, about: About, taken: Taken | None) -> None:
        self._changes, self._about, self.taken = changes, about, taken

    async def events(self) -> list[FilesChanged]:
        """What is to be appended with the call's outcome: one event, or none. What cannot be said now is said later."""
        try:
            async with asyncio.timeout(_TELL_SECONDS):
                found = await self._changes.event(self._about, self.taken)
        except (TenaxError, TimeoutError, OSError) as error:
            log.warning(
                "What a call changed is told later: %s",
                error,
                extra={"action": "changes_wait"},
            )
            self.taken = None
            return []
        return [found] if found is not None else []

    def stored(self) -> None:
        """It is in the journal, or there was nothing to say."""
        if self.taken is not None:
            self.taken.file.unlink(missing_ok=True)


class Changes:
    """The changes in one folder, in one user's conversations. `place` lies in the data folder."""

    def __init__(
        self,
        journal: AsyncJournal,
        folder: Path,
        place: Path,
        hidden: Iterable[Path] = (),
    ) -> None:
        self._journal = journal
        self._user = journal.user or ""
        self._folder = folder
        home = place.parent
        self._tail = (
            f"/{folder.relative_to(home)}" if folder.is_relative_to(home) else ""
        )
        """How the path of this folder ends wherever the data folder lies; "" where it is not part of it."""
        self._snapshots = Snapshots(folder, place, hidden)
        self._rests_until = 0.0

    # -- around a call ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def around(
        self,
        conversation: str,
        run: str | None,
        message: int,
        call: str,
        also: Sequence[str] = (),
        undoes: str = "",
    ) -> AsyncIterator[Watch]:
        """Keep the folder as it is now, then let the call be made."""
        about = About(self._user, conversation, run, message, call, list(also), undoes)
        taken = await self._take(about)
        try:
            yield Watch(self, about, taken)
        finally:
            if taken is not None:
                taken.let_go()

    async def _take(self, about: About) -> Taken | None:
        """The folder before the call. After a look that took too long none is tried for a while: a disk may hang."""
        began = time.monotonic()
        if began < self._rests_until:
            return None
        try:
            await self.soon(self.settle(about.conversation))
            async with asyncio.timeout(_LOOK_SECONDS):
                return await aside(
                    partial(self._snapshots.take, about), Taken.drop, user=self._user
                )
        except (ToolFailed, TimeoutError, OSError) as error:
            log.warning("%s %s", _NOT_LOOKED, error, extra={"action": "changes_missed"})
            return None
        finally:
            if time.monotonic() - began >= _LOOK_SECONDS:
                self._rests_until = time.monotonic() + _REST_SECONDS

    async def event(self, about: About, taken: Taken | None) -> FilesChanged | None:
        """What is another in the folder than before, its contents stored; None if nothing is."""
        missed, now = _NOT_LOOKED, None
        moved: list[tuple[str, Entry | None, Entry | None]] = []
        if taken is not None:
            now, moved = await aside(
                partial(self._snapshots.moved, taken), user=self._user
            )
            missed = taken.before.missed or now.missed
            moved = [
                each for each in moved if not about.undoes or each[0] in about.also
            ]
        ends = itertools.accumulate(len(path.encode()) for path, _, _ in moved)
        kept = [
            each
            for each, end in zip(moved, ends, strict=True)
            if end <= _PATHS_BYTES_MAX
        ][:FILES_MAX]
        if len(kept) < len(moved):
            missed = f"{len(moved) - len(kept):,} more files were changed than are kept. {missed}".rstrip()
        if not moved and not missed:
            return None
        turn = await self._turn(about.conversation, about.run)
        if not moved and any(each.missed for each in turn.events):
            return None  # it was said already
        files: list[FileChange] = []
        if taken is not None and now is not None:
            left = KEPT_BYTES_MAX - sum(_kept(each) for each in turn.events)
            keep = partial(self._keep, taken.before, now, kept, left)
            files = await self._journal.apart(keep)
        found = FilesChanged(about.message, about.call, files, 0, missed, about.undoes)
        return msgspec.structs.replace(found, total=len(turn.net(found)))

    def _keep(
        self,
        before: Manifest,
        now: Manifest,
        moved: Sequence[tuple[str, Entry | None, Entry | None]],
        left: int,
    ) -> list[FileChange]:
        """Put what the files held into blobs, as far as there is room."""

        def state(manifest: Manifest, entry: Entry | None) -> FileState | None:
            nonlocal left
            if entry is None:
                return None
            data = (
                self._snapshots.content(manifest, entry) if entry.size <= left else None
            )
            blob = None
            if data is not None:
                left, blob = left - len(data), self._journal.journal.put_blob(data)
            return FileState(entry.mode & 0o7777, entry.size, entry.hash, blob)

        return [
            FileChange(path, state(before, was), state(now, to))
            for path, was, to in moved
        ]

    async def settle(self, conversation: str | None = None) -> None:
        """Tell what calls changed whose process is gone: in this conversation, or in all."""
        find = partial(self._snapshots.left, self._user, conversation)
        left = await aside(lambda _deserted: find(), _let_go, user=self._user)
        try:
            for taken in left:
                with contextlib.suppress(Gone, NoSuchConversation):
                    found = (
                        None
                        if await self._is_told(taken.about)
                        else await self.event(taken.about, taken)
                    )
                    if found is not None:
                        await self._journal.append(
                            taken.about.conversation, [found], run=taken.about.run
                        )
                taken.file.unlink(missing_ok=True)
        finally:
            _let_go(left)

    async def soon(
        self, work: Awaitable[None], *, seconds: float = _LOOK_SECONDS
    ) -> None:
        """Wait for this, but not for long: what cannot be done now is done by whoever comes next."""
        try:
            async with asyncio.timeout(seconds):
                await work
        except (TenaxError, TimeoutError, OSError) as error:
            log.warning(
                "What calls changed is told later: %s",
                error,
                extra={"action": "changes_wait"},
            )

    async def _is_told(self, about: About) -> bool:
        told = await self._events(about.conversation, about.message)
        return any(
            isinstance(each.event, FilesChanged)
            and (each.run, each.event.message, each.event.call)
            == (about.run, about.message, about.call)
            for each in told
        )

    async def forget(self) -> None:
        """What was erased or deleted is not kept beside the store either."""
        await aside(lambda _deserted: self._snapshots.forget(), user=self._user)

    # -- reading ---------------------------------------------------------------------------------------------

    async def turns(
        self, conversation: str, turn: str | None = None
    ) -> list[TurnChanges]:
        """What the last turns changed, the newest last; or what this one did."""
        await self.soon(self.settle(conversation))
        if turn is not None:
            return [
                await self._shown(conversation, await self._named(conversation, turn))
            ]
        found = list(_folded(await self._events(conversation, 0)).values())
        return [await self._shown(conversation, each) for each in found[-_TURNS_MAX:]]

    async def _shown(self, conversation: str, turn: _Turn) -> TurnChanges:
        own = self._user == LOCAL_USER
        # earlier versions gave all users the owner's folder: the files in it are the owner's
        if not own:
            with contextlib.suppress(InvalidInput):
                own = all(map(self._has_tail, await self._folders(conversation, turn)))
        if not own:
            return TurnChanges(
                turn.name, turn.at, [], _ELSEWHERE, turn.events[0].undoes, turn.undone
            )
        files = [await self._diffed(each) for each in turn.net().values()]
        missed = " ".join(
            dict.fromkeys(each.missed for each in turn.events if each.missed)
        )
        return TurnChanges(
            turn.name, turn.at, files, missed, turn.events[0].undoes, turn.undone
        )

    async def _diffed(self, change: FileChange) -> Changed:
        was, now = change.before, change.after
        what: What = "added" if was is None else "removed" if now is None else "changed"
        notes = []
        if was and now and was.mode != now.mode:
            notes.append(f"Its mode was {was.mode:o} and is {now.mode:o}.")
        old, new = [await self._text(each) for each in (was, now)]
        if old is None or new is None:
            notes.append(
                f"There is no diff: it is no text, larger than {BYTES_MAX:,} bytes, or was erased."
            )
            return Changed(change.path, what, note=" ".join(notes))
        made = await self._journal.apart(partial(diff, change.path, old, new))
        return Changed(change.path, what, made, " ".join(notes))

    async def _text(self, state: FileState | None) -> str | None:
        """What the file held; None if that is not kept, or no text."""
        if state is None:
            return ""
        data = await self._journal.get_blob(state.blob) if state.blob else None
        try:
            return data.decode() if data is not None and b"\0" not in data else None
        except UnicodeDecodeError:
            return None

    async def _named(self, conversation: str, name: str) -> _Turn:
        """The turn of this run, or what was put back at this seq."""
        is_seq = name.isascii() and name.isdecimal() and len(name) <= _SEQ_DIGITS
        turn = await (
            self._turn(conversation, None, name)
            if is_seq
            else self._turn(conversation, name)
        )
        if not turn.events:
            raise InvalidInput(
                "That turn changed no files, or what it changed was erased."
            )
        return turn

    async def _turn(self, conversation: str, run: str | None, name: str = "") -> _Turn:
        """A turn is a run and those that went on with it."""
        first = int(name or 0)
        seen: set[str] = set()
        while run is not None and run not in seen:
            seen.add(run)
            state = await self._journal.run(conversation, run)
            name, first = run, (state.started or 0) if state is not None else 0
            started = await self._journal.fact(conversation, first) if first else None
            run = (
                started.event.resumes
                if started and isinstance(started.event, RunStarted)
                else None
            )
        turns = (
            _folded(await self._events(conversation, max(0, first - 1))) if name else {}
        )
        return turns.get(name, _Turn(name, 0))

    async def _events(self, conversation: str, after: int) -> list[Recorded]:
        found: list[Recorded] = []
        while page := await self._journal.read(conversation, after=after):
            found += [
                each
                for each in page
                if isinstance(each.event, FilesChanged | RunStarted)
            ]
            after = page[-1].seq
        return found

    # -- putting back ----------------------------------------------------------------------------------------

    async def put_back(self, conversation: str, name: str) -> PutBack:
        """Make every file again what it was before this turn, where it is still what the turn left."""
        await self.soon(self.settle(conversation))
        turn = await self._named(conversation, name)
        if (await self._journal.head(conversation)).run in turn.runs:
            raise Refused("This turn is not over yet.", hint="Stop it first.")
        folders = await self._folders(conversation, turn)
        try:
            here = await aside(
                lambda _deserted: all(map(self._is_here, folders)), user=self._user
            )
        except ToolFailed as error:
            raise Refused(str(error), hint="Try again later.") from error
        if not here:
            raise Refused(
                "This turn worked in another folder, so it cannot be put back here.",
                hint="Look at what it changed, and change the files by hand.",
            )
        net = turn.net()
        done, left = [], {}
        key = self._journal.ids.run()
        async with self.around(
            conversation, None, 0, key, list(net), turn.name
        ) as watch:
            if watch.taken is None:
                raise Refused(_NOT_LOOKED, hint="Try again later.")
            for path, each in net.items():
                data = None
                if each.before is not None and each.before.blob is not None:
                    data = await self._journal.get_blob(each.before.blob)
                try:
                    await aside(
                        partial(_restore, self._folder, each, data), user=self._user
                    )
                    done.append(path)
                except ToolFailed as error:
                    left[path] = str(error)
            told = await watch.events()
            if told:
                await self._journal.append(conversation, told)
            watch.stored()
        return PutBack(done, left)

    async def _folders(self, conversation: str, turn: _Turn) -> set[str]:
        """Return where the turn worked; "" where that is not known.

        What was put back has no run: it was done where the turn worked that it undid.
        """
        while turn.events and turn.events[0].undoes:
            turn = await self._named(conversation, turn.events[0].undoes)
        return turn.folders or {""}

    def _is_here(self, folder: str) -> bool:
        """Return whether this is our folder, perhaps by another path, or was before the data folder was moved."""
        if not folder or os.path.realpath(folder) == str(real_folder(self._folder)):
            return bool(folder)
        return self._has_tail(folder) and not Path(folder).exists()

    def _has_tail(self, folder: str) -> bool:
        return bool(self._tail) and folder.endswith(self._tail)


def _let_go(left: Iterable[Taken]) -> None:
    for taken in left:
        taken.let_go()


def _folded(events: Iterable[Recorded]) -> dict[str, _Turn]:
    turns: dict[str, _Turn] = {}
    of: dict[str | None, str] = {}
    folders: dict[str, str] = {}
    for each in events:
        match each.event:
            case RunStarted(resumes=resumes, folder=folder) if each.run is not None:
                folders[each.run] = folder
                of[each.run] = (
                    of.get(resumes, each.run) if resumes is not None else each.run
                )
            case FilesChanged(undoes=undoes) as event:
                name = str(each.seq) if undoes else of.get(each.run, each.run or "")
                turn = turns.setdefault(name, _Turn(name, each.at))
                turn.events.append(event)
                _undo(turns, undoes, undone=True)
    for run, name in of.items():
        if name in turns:
            turns[name].runs.add(run)
            if run is not None:
                turns[name].folders.add(folders[run])
    return turns


def _undo(turns: dict[str, _Turn], name: str, *, undone: bool) -> None:
    """What was put back is undone; and what that had undone stands again."""
    for _ in range(len(turns)):
        if (turn := turns.get(name)) is not None:
            turn.undone, undone, name = undone, not undone, turn.events[0].undoes


def _restore(
    folder: Path, change: FileChange, data: bytes | None, deserted: threading.Event
) -> None:
    was, left = change.before, change.after
    parts = parts_of(change.path)
    if not parts or any(map(is_git, parts)):
        raise ToolFailed("It lies in a place where nothing is written.")
    if was is not None and data is None:
        raise ToolFailed("What it held before was not kept.")
    with explained(change.path), parent_of(folder, parts, make=left is None) as parent:
        found = file_at(parts[-1], parent, change.path)
        if not same(left, _now(found, parts[-1], parent)):
            raise ToolFailed("It is no longer what the turn left.")
        if data is None:
            os.unlink(parts[-1], dir_fd=parent)
            os.fsync(parent)
        else:
            assert was is not None
            replace(
                parts[-1], parent, change.path, data, deserted, found, was.mode & 0o777
            )


def _now(found: os.stat_result | None, name: str, parent: int) -> FileState | None:
    if found is None:
        return None
    digest = f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
    if found.st_size <= BYTES_MAX:
        digest = hashlib.sha256(read(name, parent)).hexdigest()
    return FileState(found.st_mode & 0o7777, found.st_size, digest)


def _kept(event: FilesChanged) -> int:
    states = (state for each in event.files for state in (each.before, each.after))
    return sum(
        state.size for state in states if state is not None and state.blob is not None
    )
