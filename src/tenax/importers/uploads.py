"""Imports of the page: a user uploads a file, sees what is in it, and confirms the import.

A separate process with low priority reads the file (`worker.py`), first for a dry run and then for the import, because a
large file keeps a processor busy for seconds. Every user has at most one import at a time. The uploaded file is private,
and is deleted after the import, after a day, and at the start of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec

from tenax.concurrency import ThreadPool, python_module, write_atomically
from tenax.config import Config
from tenax.errors import CannotOpen, InvalidInput, Refused, TenaxError, TooLarge
from tenax.importers.service import Imported
from tenax.importers.worker import (
    LINE_BYTES_MAX,
    Counted,
    Failed,
    Finished,
    Job,
    Report,
    Unexpected,
)
from tenax.text import clean_name

__all__ = ["BYTES_MAX", "ImportState", "Imports", "UserImport"]

log = logging.getLogger(__name__)

BYTES_MAX: Final = 4 * 1024**3
FREE_BYTES_MIN: Final = 512 * 1024**2
"""An upload leaves this much of the disk free: the store may be on the same disk."""
WAIT_SECONDS: Final = 24 * 3600.0
"""The time to confirm an import. Then the uploaded file is deleted."""
_WORK_SECONDS: Final = 12 * 3600.0
_WORKERS_MAX: Final = 2
_PIECE_BYTES: Final = 1024**2
_NAME_BYTES_MAX: Final = 200
_AGAIN: Final = "Import the file again: an import takes only what is new."

Phase = Literal["none", "uploading", "checking", "ready", "importing", "done", "failed"]
_ENDED: Final = frozenset({"none", "done", "failed"})


class ImportState(msgspec.Struct, frozen=True, kw_only=True):
    """The import of a user.

    `checking` is the dry run. `ready` waits for the confirmation. `failed` has the reason in `error`.
    """

    phase: Phase = "none"
    id: str = ""
    """Names the uploaded file in the confirmation."""
    name: str = ""
    """The name of the file."""
    remember: bool = False
    """Whether the memory follows the imported conversations."""
    finished: int = 0
    """The number of conversations that were read in this phase."""
    total: int = 0
    """The number of conversations in the file. It is known after the dry run."""
    found: Imported | None = None
    """What the import would do (`ready`, `importing`), or did (`done`)."""
    error: str = ""


class _Died(TenaxError):
    """The process of an import ended without a result."""


class Imports:
    """The imports of a server. Each user has a folder below `folder`."""

    def __init__(
        self,
        folder: Path,
        config: Callable[[], Config],
        threads: ThreadPool,
        *,
        bytes_max: int = BYTES_MAX,
        free_bytes_min: int = FREE_BYTES_MIN,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.folder = folder
        self.config = config
        self.threads = threads
        self.bytes_max = bytes_max
        self.free_bytes_min = free_bytes_min
        self.wait_seconds = wait_seconds
        self.slots = asyncio.Semaphore(_WORKERS_MAX)
        self._users: dict[str, UserImport] = {}

    async def start(self) -> None:
        """Delete the uploaded files that an earlier server has left."""
        await self.threads.run(self._delete_uploads)

    async def close(self) -> None:
        """End the running imports. The conversations that are stored already stay."""
        await asyncio.gather(*(one.close() for one in self._users.values()))

    async def of(self, user: str) -> UserImport:
        """Return the import of a user."""
        known = self._users.get(user)
        if known is None:
            folder = self.folder / hashlib.sha256(user.encode()).hexdigest()
            state = await self.threads.run(partial(_read_state, folder))
            known = self._users.setdefault(user, UserImport(self, user, folder, state))
        return known

    def _delete_uploads(self) -> None:
        with contextlib.suppress(OSError):
            for folder in self.folder.iterdir():
                shutil.rmtree(folder / _UPLOAD, ignore_errors=True)


_UPLOAD: Final = "upload"
_SCRATCH: Final = "scratch"
_STATE: Final = "state.json"


class UserImport:
    """The import of a user, from the upload to the result."""

    def __init__(
        self, imports: Imports, user: str, folder: Path, state: ImportState
    ) -> None:
        self._imports = imports
        self._user = user
        self._folder = folder
        self._upload = folder / _UPLOAD
        self._task: asyncio.Task[None] | None = None
        self._confirmed = asyncio.Event()
        self.state = state

    async def upload(
        self, name: str, length: int | None, pieces: AsyncIterator[bytes]
    ) -> ImportState:
        """Store the pieces of a file, and begin the dry run. Raises `Refused`, `TooLarge` and `CannotOpen`."""
        self._check_free()
        if (length or 0) > self._imports.bytes_max:
            raise self._too_large()
        # From here on, a second upload is refused.
        self.state = ImportState(phase="uploading", name=clean_name(name))
        try:
            await self._end_task()
            path = await self._create_file()
            await self._receive(path, pieces)
        except BaseException:
            # Also if the browser goes away in the middle.
            self.state = ImportState()
            await asyncio.shield(self._delete_file())
            raise
        new = msgspec.structs.replace(
            self.state, phase="checking", id=os.urandom(8).hex()
        )
        await self._set(new)
        self._confirmed.clear()
        self._task = asyncio.create_task(self._run(path), name="import")
        return self.state

    async def confirm(self, name: str, *, remember: bool) -> ImportState:
        """Begin the import of the file with the id `name`. Raises `Refused`."""
        if self.state.phase != "ready" or self.state.id != name:
            raise Refused(
                "This file does not wait for an import any more.",
                hint="Reload the page to see what happened.",
            )
        new = msgspec.structs.replace(
            self.state, phase="importing", remember=remember, finished=0
        )
        self._confirmed.set()
        await self._set(new)
        return self.state

    async def cancel(self) -> ImportState:
        """Stop the import and delete the file, or forget the result. Raises `Refused` during an upload."""
        state = self.state
        if state.phase == "uploading":
            raise Refused(
                "The file is still being uploaded.",
                hint="Cancel the upload in the window where it began.",
            )
        await self._end_task()
        if state.phase == "importing" and self.state.phase == "importing":
            read = f"{state.finished:,} of {state.total:,} conversations"
            await self._fail(f"You stopped the import after {read}. {_AGAIN}")
        else:
            await self._set(ImportState())
        return self.state

    async def close(self) -> None:
        await self._end_task()

    # -- the file --------------------------------------------------------------------------

    def _check_free(self) -> None:
        if self.state.phase in {"uploading", "checking", "importing"}:
            raise Refused(
                "Another import is under way.",
                hint="Wait until it is finished, or stop it.",
            )

    def _too_large(self) -> TooLarge:
        size = self._imports.bytes_max
        most = f"{size >> 30} GB" if size >= 1024**3 else f"{size:,} bytes"
        return TooLarge(
            f"The file is larger than {most}, the most that the page takes.",
            hint="Copy the file to the machine of Tenax, and run: tenax import FILE",
        )

    async def _create_file(self) -> Path:
        name = self.state.name
        if len(name.encode(errors="replace")) > _NAME_BYTES_MAX:
            name = f"import{Path(name).suffix[:10]}"
        path = self._upload / name

        def create() -> None:
            shutil.rmtree(self._upload, ignore_errors=True)
            for folder in (self._imports.folder, self._folder, self._upload):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._upload / _SCRATCH).mkdir(mode=0o700)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

        await self._on_disk(create)
        return path

    async def _receive(self, path: Path, pieces: AsyncIterator[bytes]) -> None:
        buffer = bytearray()
        size = 0
        async for piece in pieces:
            buffer += piece
            size += len(piece)
            if size > self._imports.bytes_max:
                raise self._too_large()
            if len(buffer) >= _PIECE_BYTES:
                await self._on_disk(partial(self._append, path, bytes(buffer)))
                buffer.clear()
        await self._on_disk(partial(self._append, path, bytes(buffer)))
        if not size:
            raise InvalidInput("The file is empty.", hint="Choose another file.")

    def _append(self, path: Path, data: bytes) -> None:
        free = shutil.disk_usage(self._upload).free
        if free - len(data) < self._imports.free_bytes_min:
            raise _no_room("the disk is almost full")
        # A cancelled upload deletes the file while a thread writes: the file is opened again for every piece.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        with open(descriptor, "wb") as file:  # noqa: PTH123  (a descriptor)
            file.write(data)

    async def _on_disk(self, work: Callable[[], None]) -> None:
        try:
            await self._imports.threads.run(work)
        except OSError as error:
            raise _no_room(error.strerror or str(error)) from error

    async def _delete_file(self) -> None:
        await self._imports.threads.run(
            partial(shutil.rmtree, self._upload, ignore_errors=True)
        )

    # -- the work --------------------------------------------------------------------------

    async def _run(self, path: Path) -> None:
        try:
            found = await self._work(path, dry_run=True)
            state = self.state
            await self._set(
                msgspec.structs.replace(
                    state, phase="ready", found=found, total=state.finished
                )
            )
            async with asyncio.timeout(self._imports.wait_seconds):
                await self._confirmed.wait()
            found = await self._work(path, dry_run=False)
            await self._set(
                msgspec.structs.replace(self.state, phase="done", found=found)
            )
        except TimeoutError:
            await self._fail("The import was not confirmed in time. Upload it again.")
        except _Died as error:
            log.warning(
                "An import stopped: %s", error, extra={"action": "import_stopped"}
            )
            if self.state.phase == "importing":
                await self._fail(f"The import stopped: {error}. {_AGAIN}")
            else:
                await self._fail(
                    f"The file was not looked through: {error}. "
                    "Try again. If it stops again, the file is damaged or too large."
                )
        except TenaxError as error:
            await self._fail(f"{error} {error.hint}".strip())
        except Exception:
            log.exception("An import failed.", extra={"action": "import_failed"})
            await self._fail(f"The import failed. The log has the details. {_AGAIN}")
        finally:
            await asyncio.shield(self._delete_file())

    async def _work(self, path: Path, *, dry_run: bool) -> Imported:
        job = Job(
            user=self._user,
            profile=self._imports.config().profile,
            path=str(path),
            scratch=str(self._upload / _SCRATCH),
            dry_run=dry_run,
            remember=self.state.remember,
        )
        async with self._imports.slots:
            try:
                async with asyncio.timeout(_WORK_SECONDS):
                    return await self._run_worker(job)
            except TimeoutError:
                hours = _WORK_SECONDS // 3600
                raise _Died(f"it took more than {hours:.0f} hours") from None

    async def _run_worker(self, job: Job) -> Imported:
        process = await asyncio.create_subprocess_exec(
            *python_module("tenax.importers.worker"),
            # The worker ends when this pipe is closed, so it does not outlive the server.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A message of an exception may have text of the file.
            stderr=subprocess.DEVNULL,
            limit=LINE_BYTES_MAX,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
            async for line in process.stdout:
                found = self._take(msgspec.json.decode(line, type=Report))
                if found is not None:
                    return found
            await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
        code = process.returncode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise _Died(f"its process ended too early ({how})")

    def _take(self, report: Report) -> Imported | None:
        match report:
            case Counted(count):
                self.state = msgspec.structs.replace(self.state, finished=count)
            case Finished(found, count):
                self.state = msgspec.structs.replace(self.state, finished=count)
                return found
            case Failed(message, hint):
                raise InvalidInput(message, hint=hint)
            case Unexpected(where):
                log.error(
                    "An import failed unexpectedly: %s.",
                    where,
                    extra={"action": "import_failed"},
                )
                raise InvalidInput(
                    "The file cannot be imported: Tenax failed while it read the file. The log says where.",
                    hint="Please report it.",
                )
        return None

    # -- the state -------------------------------------------------------------------------

    async def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _fail(self, error: str) -> None:
        name = self.state.name
        await self._set(ImportState(phase="failed", name=name, error=error))

    async def _set(self, state: ImportState) -> None:
        self.state = state
        # The import is worth having even if its state cannot be kept for the next server.
        with contextlib.suppress(OSError):
            await self._imports.threads.run(
                partial(_write_state, self._folder, self.state)
            )


def _no_room(reason: str) -> CannotOpen:
    return CannotOpen(
        f"The file cannot be stored on the machine of Tenax: {reason}.",
        hint="Free some disk space there, and upload the file again.",
    )


def _read_state(folder: Path) -> ImportState:
    """Return the state that an earlier server has left."""
    try:
        state = msgspec.json.decode((folder / _STATE).read_bytes(), type=ImportState)
    except (OSError, msgspec.MsgspecError):
        return ImportState()
    if state.phase in _ENDED:
        return state
    if state.phase == "uploading":
        return ImportState()
    error = f"Tenax was restarted in the meantime. {_AGAIN}"
    return ImportState(phase="failed", name=state.name, error=error)


def _write_state(folder: Path, state: ImportState) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(folder / _STATE, msgspec.json.encode(state), durable=False)
