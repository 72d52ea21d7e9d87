"""The store as one SQLite file, for one host: APSW, write-ahead log, `synchronous=FULL`.

One connection writes, a few read and never wait for it. Processes on one file queue on a lock file before they begin,
so that none is starved by SQLite's busy handler. The log is copied back by a thread of its own, never by an append.

Files beside `tenax.db`: `-wal` and `-shm` (SQLite's), `-lock` (the queue), `-instances/` (a lock per process),
`-search` (the index of words), `-witness` (how far the store had come; see `witness.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import platform
import queue
import re
import shutil
import threading
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import apsw
import msgspec

from tenax.concurrency import started
from tenax.errors import (
    CannotOpen,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMisused,
    StoreUnavailable,
)
from tenax.journal import guard
from tenax.journal.row_index import HeadState
from tenax.journal.schema import SCHEMA_VERSION, migrations, statements
from tenax.journal.store import NUMS_MAX, Store, Trouble, too_new
from tenax.journal.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from tenax.clock import Clock, Ids
    from tenax.journal.plan import Key
    from tenax.journal.store import Row, Tx

__all__ = ["SqliteStore", "SqliteTx"]

LIBRARY_MIN = (3, 51, 3)
APPLICATION_ID = 0x546E7831  # "Tnx1"
PAGE_SIZE = 4096
BUSY_SECONDS = 10.0
READERS_MAX = 8
CHECKPOINT_PAGES = 4000
IDLE_SECONDS = 5.0
POLL_SECONDS = 0.005
_SQL = statements("sqlite")
_CHUNKS = (64, 32, 16, 8, 4, 2, 1)
_VALUES = re.compile(r"\bvalues (\([^)]*\))")
_PARAMETER = re.compile(r":\w+")
_INCREMENTAL = 2
_WAL_HEADER_BYTES = 32
_WAL_FRAME_BYTES = 24
_LOG_CHUNK = 65_536  # SQLite writes less than 128 KiB at a time
_living: set[str] = set()
"""Instances of this process. Their lock files are never opened a second time: closing one would drop the lock."""


class SqliteStore(Store):
    """One file, many processes, one host."""

    one_host = True

    def __init__(
        self,
        path: Path,
        clock: Clock,
        ids: Ids,
        *,
        patience: float = 30.0,
        vfs: str | None = None,
    ) -> None:
        super().__init__(clock, ids, patience)
        # SQLite keeps its log beside the target of a link, so everything else lies there too.
        self.path = path.resolve() if path.is_symlink() else path
        self._name = str(self.path)
        self._vfs = vfs
        self._forks = guard.forks()
        self._boot = clock.boot_id()
        self._write_lock = threading.Lock()
        self._writer: apsw.Connection | None = None
        self.execute: Callable[..., apsw.Cursor]
        """A statement on the connection that writes, in its turn."""
        self._idle: queue.LifoQueue[apsw.Connection] = queue.LifoQueue()
        self._generation = 0
        self._generations: dict[int, int] = {}
        self._synchronous = -1
        self._heads: dict[Key, HeadState] = {}
        self._heads_at = -1
        self._to_keep: dict[Key, HeadState] = {}
        self._unflushed = False
        self._pin: apsw.Connection | None = None
        self._since = clock.monotonic()
        self._closed = threading.Event()
        self._instance: str | None = None
        self._instance_told = ""
        self._instance_file: int | None = None
        self._threads: dict[str, threading.Thread] = {}
        self._threads_lock = threading.Lock()
        self._checkpoint_due = threading.Event()
        self.hub.on_first = self._watch
        self._file_id: tuple[int, int] | None = None
        self._queue_lock = self._prepare()
        if self.path != path:
            _follow_link(path, self.path)
        self.witness = self._witness()
        try:
            self._open_store()
        except BaseException:
            self._let_go()
            raise

    # -- opening ---------------------------------------------------------------------------------------------

    def _prepare(self) -> _QueueLock | None:
        version = tuple(int(each) for each in apsw.sqlite_lib_version().split("."))
        if version < LIBRARY_MIN:
            raise CannotOpen(
                f"This SQLite library is {apsw.sqlite_lib_version()}; before 3.51.3 it can damage a store.",
                hint="pip install --upgrade apsw",
            )
        folder = self.path.parent
        if not folder.is_dir():
            raise CannotOpen(
                f"There is no folder {folder} for the store.", hint=f"mkdir -p {folder}"
            )
        if self.path.is_dir():
            raise CannotOpen(
                f"{self.path} is a folder, not a store.", hint="name a file in it"
            )
        guard.refuse_network_file_system(folder)
        writable = os.access(
            self.path if self.path.exists() else folder, os.W_OK
        ) and os.access(folder, os.W_OK)
        if not writable:
            raise CannotOpen(
                f"{self.path} cannot be written to.",
                hint=f"give yourself the right to write in {folder}",
            )
        log = Path(f"{self.path}-wal")
        if (
            _size(log) and _size(self.path) <= 1
        ):  # SQLite takes one byte for nothing, and would delete the log
            raise CannotOpen(
                f"{self.path} is missing or empty, and its log is there.",
                hint=f"put it back, or move {log.name} away to begin anew",
            )
        guard.protect(self.path)
        try:
            return _QueueLock(Path(f"{self.path}-lock"))
        except OSError as error:
            raise CannotOpen(
                f"The store's lock file cannot be made: {error.strerror}."
            ) from error

    def _witness(self) -> Witness | None:
        return Witness(Path(f"{self.path}-witness"), "", self, self.clock)

    def _open_store(self) -> None:
        """Make or migrate the store. Others that open it at this moment wait."""
        try:
            with self._turn():
                connection = self._writing(durable=True)
                # what can be rescued from a store that is refused stays in its files
                _leave_log(connection)
                self._migrate(connection)
                self._begin_life(connection)
                if not self._missing:
                    _leave_log(connection, leave=False)
        except Trouble as trouble:
            raise trouble.error from trouble
        except apsw.NotADBError as error:
            raise CannotOpen(
                f"{self.path} is not a SQLite database.",
                hint="name another file for the store",
            ) from error
        except apsw.FullError as error:
            raise self.judge(error, committing=False).error from error
        except (
            TypeError,
            ValueError,
        ) as error:  # a row that has not even the right columns
            raise StoreDamaged(
                f"{self.path} is damaged: {error}.", hint="restore a copy of the store"
            ) from error
        except apsw.Error as error:
            raise CannotOpen(
                f"{self.path} cannot be opened: {_said(error)}.",
                hint="run: tenax doctor",
            ) from error
        self._file_id = self._identity()

    def _migrate(self, connection: apsw.Connection) -> None:
        new = connection.pragma("page_count") == 0 or self._half_made(connection)
        if new:
            self._make_private()
            connection.pragma("page_size", PAGE_SIZE)
            connection.pragma("auto_vacuum", "incremental")
            connection.pragma("application_id", APPLICATION_ID)
        elif connection.pragma("application_id") != APPLICATION_ID:
            raise CannotOpen(
                f"{self.path} is the database of another program.",
                hint="name another file for the store",
            )
        self._journal_mode(connection)
        self._refuse_truncated(connection)
        have = 0 if new else self._schema(connection)
        if have > SCHEMA_VERSION:
            raise too_new(have)
        scripts = migrations("sqlite")
        for number in range(have + 1, SCHEMA_VERSION + 1):
            with connection:
                connection.execute(scripts[number - 1])
                if number == 1:
                    first = {
                        "schema": 1,
                        "incarnation": self.ids.append().hex(),
                        "life": self._boot,
                    }
                    connection.execute(
                        _SQL["put_store"], {**first, "at": self.clock.now_us()}
                    )
                connection.execute(_SQL["set_schema"], {"schema": number})

    def _refuse_truncated(self, connection: apsw.Connection) -> None:
        """A file that was cut short would take new messages, until a page is asked for that it lacks."""
        if self._identity() is None:
            return
        # No checkpoint shrinks the file below what a reader sees, so all three are of one moment.
        with connection:
            pages = int(str(connection.pragma("page_count")))
            if _size(self.path) >= pages * PAGE_SIZE:
                return
            logged = _logged_pages(Path(f"{self.path}-wal"))
            have = (
                _size(self.path) // PAGE_SIZE
            )  # after the log: a page leaves it only once it is in the file
        lost = sum(page not in logged for page in range(have + 1, pages + 1))
        if lost:
            raise StoreDamaged(
                f"{self.path} was cut short: {lost:,} of its {pages:,} pages are missing.",
                hint="restore a copy of the store",
            )

    def _make_private(self) -> None:
        guard.make_private(self.path)

    @staticmethod
    def _half_made(connection: apsw.Connection) -> bool:
        """A process died when it had said what file this is to be, and not yet whose."""
        return (
            connection.pragma("application_id") == 0
            and connection.pragma("auto_vacuum") == _INCREMENTAL
            and not connection.execute("select 1 from sqlite_schema").fetchall()
        )

    def _journal_mode(self, connection: apsw.Connection) -> None:
        if connection.pragma("journal_mode", "wal") != "wal":
            raise CannotOpen(
                f"{self.path} cannot use a write-ahead log here.",
                hint="put the store on a local disk",
            )

    @staticmethod
    def _schema(connection: apsw.Connection) -> int:
        if not connection.execute(
            "select 1 from sqlite_schema where name = 'store'"
        ).fetchall():
            return 0  # a process died while it made the store; the rest is made now
        found = connection.execute(_SQL["store"]).fetchall()
        return int(str(found[0][0])) if found else 0

    def _begin_life(self, connection: apsw.Connection) -> None:
        """Name the life of the store that begins now.

        After a reboot the last unflushed partials may be missing, and a copy that was put back may lack anything: old
        numbers may come to mean other things.
        """
        tx = SqliteTx(connection)
        ((_, incarnation, life),) = tx.run("store")
        self.incarnation, known = self._examine(
            str(incarnation), lambda name, **params: tx.run(name, params)
        )
        if not self._missing and (life != self._boot or not known):
            with connection:
                ((_, incarnation, life),) = tx.run("store")
                self.incarnation = self.ids.append().hex()
                tx.run(
                    "set_incarnation",
                    {"incarnation": self.incarnation, "life": self._boot},
                )
            if not known and self.witness is not None:
                self.witness.begin(self.inode())

    def _connect(self) -> apsw.Connection:
        """A connection. Only who opens the store may make its file: beside an empty one SQLite deletes the log."""
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
        if self._file_id is None:
            flags |= apsw.SQLITE_OPEN_CREATE
        elif self._identity() != self._file_id:
            self._miss_file()
        connection = apsw.Connection(str(self.path), flags=flags, vfs=self._vfs)
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        connection.pragma("synchronous", "full")
        connection.pragma("secure_delete", "on")
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("temp_store", "memory")
        connection.file_control(
            "main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(ctypes.c_int(1))
        )
        if self._missing:
            _leave_log(connection)
        return connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._name)  # noqa: PTH116  (every append asks, and this is the quick way)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _miss_file(self) -> NoReturn:
        """A file that was deleted can still be written to, and everything would be lost at the end."""
        gone = StoreUnavailable(
            f"{self.path} was moved, replaced or deleted.", hint="put it back; restart"
        )
        raise Trouble(gone, lasting=True)

    # -- transactions ----------------------------------------------------------------------------------------

    def transaction(self, *, durable: bool = True) -> SqliteTransaction:
        self._check_use()
        return SqliteTransaction(self, durable=durable)

    def begin(self, *, durable: bool) -> apsw.Connection:
        """Wait for the turn of this thread and this process, and begin. Raises Trouble."""
        self._write_lock.acquire()
        try:
            self._queue()
            try:
                if self._identity() != self._file_id:
                    self._miss_file()
                connection = self._writing(durable=durable)
                self.execute("begin immediate")
                self._to_keep = {}
                if self._unflushed:
                    self._flush_again(connection)
            except BaseException as error:
                self._unqueue()
                if isinstance(error, apsw.Error):
                    raise self.judge(error, committing=False) from error
                raise
        except BaseException:
            self._write_lock.release()
            raise
        return connection

    def end(self) -> None:
        """Let the next thread and the next process go on."""
        self._unqueue()
        self._write_lock.release()

    def _writing(self, *, durable: bool) -> apsw.Connection:
        if self._writer is None:
            self._writer = self._connect()
            self._writer.set_wal_hook(self._after_commit)
            self.execute = self._writer.cursor().execute
            self._synchronous = 2
        wanted = 2 if durable else 1
        if wanted != self._synchronous:
            self._writer.pragma("synchronous", wanted)
            self._synchronous = wanted
        return self._writer

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tx]:
        self._check_use()
        connection: apsw.Connection | None = None
        try:
            connection = self._borrow()
            yield SqliteTx(connection)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise self.judge(error, committing=False) from error
        finally:
            if connection is not None:
                self._give_back(connection)

    def _borrow(self) -> apsw.Connection:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
            connection.pragma("query_only", 1)
            self._generations[id(connection)] = self._generation
            return connection

    def _give_back(self, connection: apsw.Connection) -> None:
        if (
            self._generations[id(connection)] == self._generation
            and self._idle.qsize() < READERS_MAX
        ):
            self._idle.put(connection)
            return
        del self._generations[id(connection)]
        _shut(connection)

    def _check_use(self) -> None:
        if self._closed.is_set():
            raise StoreMisused("The store was closed.")
        guard.refuse_after_fork(self._forks)

    def _queue(self) -> None:
        """Queue with the writers of other processes."""
        lock = self._queue_lock
        if lock is None:
            return
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                waited = lock.wait(BUSY_SECONDS)
            except OSError as error:
                raise Trouble(
                    StoreBusy(f"{self.path} cannot be waited for: {error.strerror}.")
                ) from error
            if not waited:
                kept = f"Another process has kept {self.path} locked for {BUSY_SECONDS:.0f} seconds."
                raise Trouble(StoreBusy(kept)) from None

    def _unqueue(self) -> None:
        if self._queue_lock is not None:
            fcntl.flock(self._queue_lock.descriptor, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        self._queue()
        try:
            yield
        finally:
            self._unqueue()

    def judge(
        self, error: apsw.Error | UnicodeDecodeError, *, committing: bool
    ) -> Trouble:
        """What an error of SQLite means. A commit that failed may still come back after a crash."""
        where, said = self.path, _said(error)
        self._unflushed = self._unflushed or committing
        found: StoreError
        lasting = False
        match error:
            case apsw.BusyError() | apsw.LockedError():
                found = StoreBusy(f"{where} is kept busy by others.")
            case apsw.FullError():
                found, lasting = (
                    StoreFull(
                        f"There is no room left for {where}.",
                        hint="free some disk space",
                    ),
                    True,
                )
            case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
                found, lasting = (
                    StoreUnavailable(f"{where} cannot be written to: {said}."),
                    True,
                )
            case apsw.CorruptError() | apsw.NotADBError():
                found, lasting = (
                    StoreDamaged(
                        f"{where} is damaged: {said}.", hint="run: tenax doctor"
                    ),
                    True,
                )
            case (
                apsw.IOError()
                | apsw.NoMemError()
                | apsw.InterruptError()
                | apsw.CantOpenError()
            ):
                found = StoreUnavailable(f"{where} does not answer: {said}.")
            case _:
                found, lasting = (
                    StoreDamaged(
                        f"{where} was not as expected: {said}.",
                        hint="run: tenax doctor",
                    ),
                    True,
                )
        return Trouble(found, unknown=committing, lasting=lasting)

    def recover(self, trouble: Trouble) -> None:
        """After a failed commit no connection of this process is trusted: all are closed, and opened again."""
        if isinstance(trouble.error, StoreBusy) and not trouble.unknown:
            return
        with self._write_lock:
            self._drop_connections()
            self._since = self.clock.monotonic()

    def _flush_again(self, connection: apsw.Connection) -> None:
        """Write the log once more, and flush it, before anything in it is taken for stored.

        A flush has failed. What it should have flushed can still be read, but the system counts it as clean and never
        writes it: the next flush would succeed, and a power loss would take it, and all that follows it in the log.
        """
        flags = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE
        try:
            log = apsw.VFSFile(self._vfs or "", f"{self.path}-wal", [flags, 0])
            try:
                size = log.xFileSize()
                for start in range(0, size, _LOG_CHUNK):
                    log.xWrite(log.xRead(min(_LOG_CHUNK, size - start), start), start)
                log.xSync(apsw.SQLITE_SYNC_NORMAL)
            finally:
                log.xClose()
        except BaseException:
            connection.execute("rollback")
            raise
        self._unflushed = False

    def _drop_connections(self) -> None:
        self._generation += 1
        self._heads.clear()
        if self._writer is not None:
            _shut(self._writer)
            self._writer = None
        while True:
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                return
            del self._generations[id(connection)]
            _shut(connection)

    # -- what a group has to know ----------------------------------------------------------------------------

    def heads(self, tx: Tx, keys: Collection[Key]) -> dict[Key, HeadState]:
        sure = (
            self._writer is not None and self._writer.data_version() == self._heads_at
        )
        found = (
            {key: self._heads[key] for key in keys if key in self._heads}
            if sure
            else {}
        )
        if len(found) == len(keys):
            return found
        missing = [key for key in keys if key not in found]
        nums = {key: self._nums.get(key) for key in missing}
        found |= self._heads_of(
            tx, [num for num in nums.values() if num is not None], missing
        )
        for key in missing:
            if key not in found:
                self.unknow(key)
                for row in tx.run("conversation", {"owner": key[0], "id": key[1]}):
                    found |= self._heads_of(tx, [self.know(key, row[0])], [key])
        if not found and (schema := tx.run("store")[0][0]) != SCHEMA_VERSION:
            raise too_new(schema)
        return found

    def _heads_of(
        self, tx: Tx, nums: list[int], keys: Collection[Key]
    ) -> dict[Key, HeadState]:
        """Return the heads with these numbers that belong to one of these conversations."""
        if not nums:
            return {}
        if len(nums) == 1:
            rows = tx.run("head_of", tuple(nums))
        else:
            rows = tx.run("heads", (msgspec.json.encode(nums).decode(),))
        found: dict[Key, HeadState] = {}
        for schema, owner, name, num, *columns in rows:
            if schema != SCHEMA_VERSION:
                raise too_new(schema)
            key = (owner, name)
            if key not in keys:
                continue
            found[key] = state = HeadState(num, name, owner, *columns)
            state.stretch_name = self.stretch_name(tx, state.stretch)
        return found

    def keep(self, states: dict[Key, HeadState], recounted: Sequence[Key]) -> None:
        if recounted:
            states = {
                key: state for key, state in states.items() if key not in recounted
            }
        self._to_keep = states

    def committed(self) -> None:
        """Keep the heads for as long as nothing else is written: SQLite counts every commit, also others'.

        Called while the transaction still has its turn: an instant later another thread may have written.
        """
        if self._writer is None or not self._to_keep:
            return
        now = self._writer.data_version()
        if len(self._heads) > NUMS_MAX or now != self._heads_at + 1:
            self._heads.clear()
        self._heads.update(self._to_keep)
        self._heads_at = now

    def wake_readers(self, tx: Tx, nums: list[int], follows: str) -> None:
        tx.run("wake_readers", (msgspec.json.encode(nums).decode(), follows))

    def now(self, tx: Tx) -> float:  # noqa: ARG002  (the clock is the machine's)
        return self.clock.monotonic()

    def connected_since(self) -> float:
        return self._since

    def life(self) -> str:
        return self._boot

    def boot(self) -> str:
        return self._boot

    def inode(self) -> int:
        found = self._identity()
        return found[1] if found else 0

    def digests(self, ask: Callable[..., list[Row]], places: list[int]) -> list[Row]:
        return ask("digests", places=msgspec.json.encode(places).decode())

    # -- instances -------------------------------------------------------------------------------------------

    def live(self) -> str:
        # without its row nobody hands in what this process leaves
        if self._instance_told != self._instance:
            with self._write_lock:
                if self._instance is None:
                    self._hold(self.ids.instance())
            instance = {
                "id": self._instance,
                "host": platform.node(),
                "at": self.clock.now_us(),
            }
            self.change(lambda tx: tx.run("put_instance", instance))
            self._instance_told = self._instance or ""
        return self._instance_told

    def _hold(self, instance: str) -> None:
        """Take the lock that says this process is alive."""
        folder = self._instances
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(
                folder / instance, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise StoreUnavailable(
                f"{folder} cannot be written to: {error.strerror}."
            ) from error
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        _living.add(instance)
        self._instance_file, self._instance = descriptor, instance

    @property
    def _instances(self) -> Path:
        return Path(f"{self.path}-instances")

    def alive(self, tx: Tx, instance: str) -> bool:  # noqa: ARG002  (the lock is a file)
        if instance in _living:
            return True
        try:
            descriptor = os.open(self._instances / instance, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    # -- threads ---------------------------------------------------------------------------------------------

    def _after_commit(
        self,
        connection: apsw.Connection,  # noqa: ARG002
        database: str,  # noqa: ARG002
        pages: int,
    ) -> int:
        if pages >= CHECKPOINT_PAGES and self._pin is None:
            self._checkpoint_soon()
        return apsw.SQLITE_OK

    def _start(
        self, name: str, work: Callable[[], None], wanted: Callable[[], bool]
    ) -> None:
        """Have this done by a thread of its own, while it is wanted. One that is at it sees for itself that it is."""

        def run() -> None:
            goes_on = True
            while goes_on:
                try:
                    work()
                except BaseException:
                    goes_on = False
                    raise
                finally:
                    with self._threads_lock:
                        goes_on = goes_on and wanted() and not self._closed.is_set()
                        if not goes_on:
                            del self._threads[name]

        with self._threads_lock:
            if name not in self._threads and not self._closed.is_set():
                thread = started(run, f"tenax-{name}")
                if thread is not None:  # otherwise whoever asks next tries again
                    self._threads[name] = thread

    def _checkpoint_soon(self) -> None:
        self._checkpoint_due.set()
        self._start("checkpoint", self._checkpoint, self._checkpoint_due.is_set)

    def _checkpoint(self) -> None:
        """Copy the log back into the file while others write."""
        connection: apsw.Connection | None = None
        try:
            while not self._closed.is_set():
                busy = self._checkpoint_due.wait(IDLE_SECONDS)
                self._checkpoint_due.clear()
                if not busy:
                    return
                try:
                    if connection is None:
                        connection = self._connect()
                        connection.set_busy_timeout(0)
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                    # Writers went on meanwhile. The little that they added is copied while they wait, so that the
                    # log starts over in the same file: growing it would make every commit flush metadata too.
                    with self._write_lock, self._turn():
                        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                except (
                    apsw.Error,
                    Trouble,
                ) as error:  # it is tried again; the log only grows meanwhile
                    self._doubt(error)
        finally:
            _shut(connection)

    def _doubt(self, error: Exception) -> None:
        """After a failed checkpoint: the flush that failed may have been to harden partials in the log."""
        if isinstance(error, apsw.BusyError | apsw.LockedError | Trouble):
            return
        self._unflushed = True
        if self._pin is None:
            self._keep_log()

    def _keep_log(self) -> None:
        """Keep the log whole until every process has let go of the store: the next one copies all of it back.

        It may also have been the flush of the file. SQLite would copy the rest again, but not what it had copied in
        part before, unflushed; once the log starts over, a power loss takes that. While somebody reads it cannot.
        """
        pin: apsw.Connection | None = None
        try:
            pin = self._connect()
            _leave_log(pin)
            pin.execute("begin; select count(*) from store").fetchall()
        except (apsw.Error, Trouble):  # the next checkpoint that fails tries again
            _shut(pin)
        else:
            self._pin = pin

    def scrub(self) -> bool:
        """Empty the log, so that no older copy of a page is left in it."""
        if self._pin is not None:
            return False
        try:
            with self._write_lock, self._turn():
                connection = self._writing(durable=True)
                connection.execute("pragma incremental_vacuum").fetchall()
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.Error, Trouble) as error:
            self._doubt(error)
            self._checkpoint_soon()
            return False
        return True

    def announce(self, nums: Sequence[int]) -> None:
        """Other processes see the file change by themselves."""

    def _watch(self) -> None:
        self._start("watch", self._poll, lambda: self.hub.wanted)

    def _poll(self) -> None:
        """While somebody listens: notice the commits of other connections. This costs one small read."""
        connection: apsw.Connection | None = None
        seen = -1
        try:
            while self.hub.wanted and not self._closed.wait(POLL_SECONDS):
                try:
                    connection = connection or self._connect()
                    version = connection.pragma("data_version")
                except (apsw.Error, Trouble):
                    _shut(connection)
                    connection = None
                    continue
                if version != seen:
                    seen = version
                    self.hub.notify(None)
        finally:
            _shut(connection)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed.is_set() or guard.forks() != self._forks:
            return
        self.queue.close()
        if self.witness is not None:
            self.witness.close()
        if self._instance is not None:
            ended = {"id": self._instance, "at": self.clock.now_us()}
            with contextlib.suppress(StoreError):
                self.change(lambda tx: tx.run("end_instance", ended))
        self._closed.set()
        self._checkpoint_due.set()
        with self._threads_lock:
            threads = list(self._threads.values())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        self._let_go()

    def _let_go(self) -> None:
        with self._write_lock:
            self._drop_connections()
            _shut(self._pin)  # the last one: it leaves the log as it is
        if self._instance_file is not None and self._instance is not None:
            with contextlib.suppress(OSError):
                (self._instances / self._instance).unlink()
            os.close(self._instance_file)
            _living.discard(self._instance)
        if self._queue_lock is not None:
            self._queue_lock.close()


class SqliteTx:
    """Statements by name on one connection."""

    __slots__ = ("_connection", "_execute")

    def __init__(
        self,
        connection: apsw.Connection,
        execute: Callable[..., apsw.Cursor] | None = None,
    ) -> None:
        self._connection = connection
        self._execute = execute or connection.execute

    def run(
        self, name: str, params: Mapping[str, Any] | tuple[Any, ...] = ()
    ) -> list[Row]:
        return self._execute(_SQL[name], params).fetchall()

    def many(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        text = _SQL[name]
        if len(rows) == 1:
            self._execute(text, rows[0])
            return
        if not text.startswith(("insert", "replace")):
            self._connection.executemany(text, rows)
            return
        start = 0
        for size in _CHUNKS:
            while len(rows) - start >= size:
                chunk = rows[start : start + size]
                self._execute(
                    _for_rows(name, size),
                    tuple(chain.from_iterable(chunk)) if size > 1 else chunk[0],
                )
                start += size


class SqliteTransaction(SqliteTx):
    """A write transaction: whole, or not at all. After any error of the engine nothing of it is left."""

    __slots__ = ("_durable", "_store")

    def __init__(self, store: SqliteStore, *, durable: bool) -> None:
        self._store = store
        self._durable = durable

    def __enter__(self) -> Self:
        self._connection = self._store.begin(durable=self._durable)
        self._execute = self._store.execute
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        connection = self._connection
        try:
            if kind is None:
                try:
                    self._store.execute("commit")
                    self._store.committed()
                except BaseException:
                    _roll_back(connection)
                    raise
            else:
                _roll_back(connection)
        except apsw.Error as failure:
            raise self._store.judge(failure, committing=kind is None) from failure
        finally:
            self._store.end()
        if isinstance(error, apsw.Error | UnicodeDecodeError):
            raise self._store.judge(error, committing=False) from error


def _leave_log(connection: apsw.Connection, *, leave: bool = True) -> None:
    """Closing this connection copies nothing from the log into the file."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(leave))


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        connection.execute("rollback")


@functools.cache
def _for_rows(name: str, count: int) -> str:
    """The same insert for several rows at once: the interpreter's lock is let go of once, not for every row."""
    text = _SQL[name]
    if count == 1:
        return text
    head, one, tail = _VALUES.split(text)
    return f"{head} values {', '.join([_PARAMETER.sub('?', one)] * count)} {tail}"


class _QueueLock:
    """A lock file that processes wait for in turn. The kernel drops it when its holder dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def wait(self, seconds: float) -> bool:
        """Wait in the kernel's queue. That wait has no bound, so a thread does it, and is left behind if it hangs.

        Raises OSError where there is no room for one more file or thread.
        """
        descriptor = self._open()
        told = threading.Lock()
        state = {"got": False, "left": False}
        done = threading.Event()

        def wait() -> None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with told:
                state["got"] = True
                if state["left"]:
                    os.close(descriptor)
            done.set()

        thread = None
        try:
            thread = started(wait, "tenax-queue")
            if thread is not None:
                done.wait(seconds)
        except (
            BaseException
        ):  # Ctrl-C, perhaps while it was being started: who waits gives it back
            with told:
                state["left"] = True
                if state["got"]:
                    os.close(descriptor)
            raise
        if thread is None:
            os.close(descriptor)
            raise OSError(errno.EAGAIN, "there is no room for one more thread")
        with told:
            if not state["got"]:
                state["left"] = True
                return False
        os.close(self.descriptor)
        self.descriptor = descriptor
        return True

    def close(self) -> None:
        os.close(self.descriptor)


def _follow_link(link: Path, path: Path) -> None:
    """Take over the witness that an earlier version kept beside a link, and drop its index of words: it is made anew."""
    old, new = (Path(f"{place}-witness") for place in (link, path))
    with contextlib.suppress(OSError):
        if old.exists() and not new.exists():
            shutil.copy(old, new)
        old.unlink(missing_ok=True)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{link}-search{suffix}").unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _logged_pages(log: Path) -> set[int]:
    """The numbers of the pages that a write-ahead log holds (see "The WAL File Format" of SQLite)."""
    found: set[int] = set()
    try:
        with log.open("rb") as file:
            salts = file.read(_WAL_HEADER_BYTES)[16:24]
            while len(frame := file.read(_WAL_FRAME_BYTES)) == _WAL_FRAME_BYTES:
                if frame[8:16] == salts:
                    found.add(int.from_bytes(frame[:4], "big"))
                file.seek(PAGE_SIZE, os.SEEK_CUR)
    except OSError:
        return set()
    return found


def _said(error: apsw.Error | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a text in it is not UTF-8"  # the error's own words quote the text
    return str(error).removeprefix("SQLITE_").strip() or type(error).__name__


def _shut(connection: apsw.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(apsw.Error):
            connection.close()
