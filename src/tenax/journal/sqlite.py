"""The store in a SQLite file, for a single host: APSW, write-ahead log, `synchronous=FULL`.

A single connection writes. A few connections read and never wait for the writer. The processes of a store queue on a
lock file before a transaction, so SQLite's busy handler starves no process. A background thread copies the log back
into the file (checkpoint), never an append.

Files beside `tenax.db`: `-wal` and `-shm` (SQLite's), `-lock` (the queue), `-instances/` (a lock per process),
`-search` (the search index), `-witness` (the last known state of the store; see `witness.py`).
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
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import apsw
import msgspec

from tenax.clock import Timing
from tenax.concurrency import LockFile, start_thread
from tenax.errors import (
    CannotOpen,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
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
    from tenax.journal.store import SqlRow, Tx

__all__ = [
    "QueueLock",
    "SqliteStore",
    "SqliteTx",
    "leave_log",
    "logged_pages",
    "shut",
]

LIBRARY_MIN = (3, 51, 3)
APPLICATION_ID = 0x546E7831  # "Tnx1"
PAGE_SIZE = 4096
READERS_MAX = 8
CHECKPOINT_PAGES = 4000
POLL_SECONDS = 0.005
_SCRUB_MS = 250
"""How long an erasure waits for readers to empty the log. Afterwards the thread for checkpoints tries again."""
_IDENTITY_SECONDS = 1.0
_SURE_SECONDS = 60.0
"""The time between two looks of a reader while the process watches for commits of other processes."""
_UNSURE_SECONDS = 1.0
_SQL = statements("sqlite")
_CHUNKS = (64, 32, 16, 8, 4, 2, 1)
_VALUES = re.compile(r"\bvalues (\([^)]*\))")
_PARAMETER = re.compile(r":\w+")
_INCREMENTAL = 2
_WAL_HEADER_BYTES = 32
_WAL_FRAME_BYTES = 24
# SQLite writes less than 128 KiB at a time.
_LOG_CHUNK = 65_536


class SqliteStore(Store):
    """A store in a single file, for many processes on the same host."""

    one_host = True

    def __init__(
        self,
        path: Path,
        clock: Clock,
        ids: Ids,
        *,
        patience: float = 30.0,
        vfs: str | None = None,
        timing: Timing = Timing(),
    ) -> None:
        super().__init__(clock, ids, patience, timing)
        # SQLite keeps the log beside the target of a link, so every other file lies there too.
        self.path = path.resolve() if path.is_symlink() else path
        self._name = str(self.path)
        self._vfs = vfs
        self.life = self.boot = clock.boot_id()
        self.connected_since = clock.monotonic()
        self._write_lock = threading.Lock()
        self._writer: apsw.Connection | None = None
        self.execute: Callable[..., apsw.Cursor]
        """Runs a statement on the write connection. Only for the thread with the turn to write."""
        self._idle: queue.LifoQueue[apsw.Connection] = queue.LifoQueue()
        self._generation = 0
        self._generations: dict[int, int] = {}
        self._synchronous = -1
        self._heads: dict[Key, HeadState] = {}
        self._heads_at = -1
        self._to_keep: dict[Key, HeadState] = {}
        self._unflushed = False
        self._pin: apsw.Connection | None = None
        self._instance_told = ""
        self._instance_lock: LockFile | None = None
        self._threads: dict[str, threading.Thread] = {}
        self._threads_lock = threading.Lock()
        self._checkpoint_due = threading.Event()
        self._scrub_due = False
        """Whether the log may still have erased text, because somebody read the store during the erasure."""
        self.wakeups.on_first = self._watch
        self._file_id: tuple[int, int] | None = None
        self._queue_lock = self._prepare()
        if self.path != path:
            _follow_link(path, self.path)
        self.witness = self._witness()
        try:
            self._open_store()
        except BaseException:
            self.close_engine()
            raise

    # -- opening ---------------------------------------------------------------------------------------------

    def _prepare(self) -> QueueLock | None:
        version = tuple(int(number) for number in apsw.sqlite_lib_version().split("."))
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
        # SQLite treats a file of one byte as empty, and would delete the log.
        if _size(log) and _size(self.path) <= 1:
            raise CannotOpen(
                f"{self.path} is missing or empty, and its log is there.",
                hint=f"put it back, or move {log.name} away to begin anew",
            )
        guard.protect(self.path)
        try:
            return QueueLock(Path(f"{self.path}-lock"))
        except OSError as error:
            raise CannotOpen(
                f"The store's lock file cannot be made: {error.strerror}."
            ) from error

    def _witness(self) -> Witness | None:
        return Witness(Path(f"{self.path}-witness"), "", self, self.clock)

    def _open_store(self) -> None:
        """Create or migrate the store. Concurrent openers wait."""
        try:
            with self._turn():
                connection = self._writing(durable=True)
                # A refused store must keep its files unchanged, because text may be rescued from the log.
                leave_log(connection)
                self._migrate(connection)
                self._begin_life(connection)
                if not self._missing:
                    leave_log(connection, leave=False)
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
        ) as error:
            # A damaged row may have the wrong columns.
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
                        "life": self.boot,
                    }
                    connection.execute(
                        _SQL["put_store"], {**first, "at": self.clock.now_us()}
                    )
                connection.execute(_SQL["set_schema"], {"schema": number})

    def _refuse_truncated(self, connection: apsw.Connection) -> None:
        """Raise `StoreDamaged` for a truncated file.

        SQLite would accept new messages in a truncated file until a statement needs a missing page.
        """
        if self._identity() is None:
            return
        # No checkpoint shrinks the file below the snapshot of a reader, so the three sizes belong to the same moment.
        with connection:
            pages = int(str(connection.pragma("page_count")))
            if _size(self.path) >= pages * PAGE_SIZE:
                return
            logged = logged_pages(Path(f"{self.path}-wal"))
            # Read the size after the log: a page leaves the log only once the page is in the file.
            have = _size(self.path) // PAGE_SIZE
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
        """Return whether a process died while creating the file: after `auto_vacuum`, before `application_id`."""
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
            # A process died while creating the store. This process creates the rest.
            return 0
        found = connection.execute(_SQL["store"]).fetchall()
        return int(str(found[0][0])) if found else 0

    def _begin_life(self, connection: apsw.Connection) -> None:
        """Start a new incarnation after a reboot or in a replaced file.

        After a reboot the last unflushed partials may be missing, and a restored copy may lack any event. Old seqs may
        then belong to new events.
        """
        tx = SqliteTx(connection)
        ((_, incarnation, life),) = tx.run("store")
        self.incarnation, known = self._examine(
            str(incarnation), lambda name, **params: tx.run(name, params)
        )
        if not self._missing and (life != self.boot or not known):
            with connection:
                ((_, incarnation, life),) = tx.run("store")
                self.incarnation = self.ids.append().hex()
                tx.run(
                    "set_incarnation",
                    {"incarnation": self.incarnation, "life": self.boot},
                )
            if not known and self.witness is not None:
                self.witness.begin(self.inode())

    def _connect(self) -> apsw.Connection:
        """Open a connection.

        Only the opening of the store may create the file, because SQLite deletes the log beside an empty file.
        """
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
        if self._file_id is None:
            flags |= apsw.SQLITE_OPEN_CREATE
        elif self._identity() != self._file_id:
            self._miss_file()
        connection = apsw.Connection(str(self.path), flags=flags, vfs=self._vfs)
        connection.set_busy_timeout(int(self.timing.turn_seconds * 1000))
        connection.pragma("synchronous", "full")
        connection.pragma("secure_delete", "on")
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("temp_store", "memory")
        connection.file_control(
            "main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(ctypes.c_int(1))
        )
        if self._missing:
            leave_log(connection)
        return connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._name)  # noqa: PTH116  (every append calls this, and os.stat is faster)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _miss_file(self) -> NoReturn:
        """Raise `Trouble`, because a deleted file still accepts writes and loses them when it is closed."""
        gone = StoreUnavailable(
            f"{self.path} was moved, replaced or deleted.", hint="put it back; restart"
        )
        raise Trouble(gone, lasting=True)

    # -- transactions ----------------------------------------------------------------------------------------

    def transaction(self, *, durable: bool = True) -> SqliteTransaction:
        self._check_use()
        return SqliteTransaction(self, durable=durable)

    def begin(self, *, durable: bool) -> apsw.Connection:
        """Wait for the turn of the thread and of the process, and begin a transaction. Raises `Trouble`."""
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
        """Let the next thread and the next process continue."""
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
        shut(connection)

    def _queue(self) -> None:
        """Queue behind the writers of other processes."""
        lock = self._queue_lock
        if lock is None:
            return
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            seconds = self.timing.turn_seconds
            try:
                waited = lock.wait(seconds)
            except OSError as error:
                raise Trouble(
                    StoreBusy(f"{self.path} cannot be waited for: {error.strerror}.")
                ) from error
            if not waited:
                kept = f"Another process has kept {self.path} locked for {seconds:.0f} seconds."
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
        """Translate a SQLite error into a `Trouble`. A failed commit may still take effect after a crash."""
        where, said = self.path, _said(error)
        self._unflushed = self._unflushed or committing
        found: StoreError
        lasting = True
        match error:
            case apsw.BusyError() | apsw.LockedError():
                found = StoreBusy(f"{where} is kept busy by others.")
                lasting = False
            case apsw.FullError():
                found = StoreFull(
                    f"There is no room left for {where}.", hint="free some disk space"
                )
            case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
                found = StoreUnavailable(f"{where} cannot be written to: {said}.")
            case apsw.CorruptError() | apsw.NotADBError():
                found = StoreDamaged(
                    f"{where} is damaged: {said}.", hint="run: tenax doctor"
                )
            case (
                apsw.IOError()
                | apsw.NoMemError()
                | apsw.InterruptError()
                | apsw.CantOpenError()
            ):
                found = StoreUnavailable(f"{where} does not answer: {said}.")
                lasting = False
            case _:
                found = StoreDamaged(
                    f"{where} was not as expected: {said}.", hint="run: tenax doctor"
                )
        return Trouble(found, unknown=committing, lasting=lasting)

    def recover(self, trouble: Trouble) -> None:
        """Close every connection of the process, because none can be trusted after a failed commit.

        Connections reopen on demand.
        """
        if isinstance(trouble.error, StoreBusy) and not trouble.unknown:
            return
        with self._write_lock:
            self._drop_connections()
            self.connected_since = self.clock.monotonic()

    def _flush_again(self, connection: apsw.Connection) -> None:
        """Write and flush the whole log again, before any of its events count as stored.

        After a failed flush the unflushed data can still be read, but the kernel counts the data as clean and never
        writes it. The next flush would succeed, and a power loss would take the data and everything after it in the
        log.
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
            shut(self._writer)
            self._writer = None
        while True:
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                return
            del self._generations[id(connection)]
            shut(connection)

    # -- the state for a group -------------------------------------------------------------------------------

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
        """Return the heads with the given numbers, limited to the given conversations."""
        if not nums:
            return {}
        if len(nums) == 1:
            rows = tx.run("head_of", tuple(nums))
        else:
            rows = tx.run("heads", {"nums": self.as_list(nums)})
        found: dict[Key, HeadState] = {}
        for schema, owner, name, num, *columns in rows:
            if schema != SCHEMA_VERSION:
                raise too_new(schema)
            key = (owner, name)
            if key not in keys:
                continue
            found[key] = state = HeadState(num, name, owner, *columns)
            state.segment_name = self.segment_name(tx, state.stretch)
        return found

    def keep(self, states: dict[Key, HeadState], recounted: Collection[Key]) -> None:
        if recounted:
            states = {
                key: state for key, state in states.items() if key not in recounted
            }
        self._to_keep = states

    def committed(self) -> None:
        """Cache the heads until the next foreign write. SQLite counts every commit, also of other processes.

        Call the method while the transaction still has the turn: a moment later another thread may have written.
        """
        if self._writer is None or not self._to_keep:
            return
        now = self._writer.data_version()
        if len(self._heads) > NUMS_MAX or now != self._heads_at + 1:
            self._heads.clear()
        self._heads.update(self._to_keep)
        self._heads_at = now

    def as_list(self, numbers: Sequence[int]) -> str:
        return msgspec.json.encode(numbers).decode()

    def now(self, tx: Tx) -> float:  # noqa: ARG002  (uses the clock of the machine)
        return self.clock.monotonic()

    def inode(self) -> int:
        found = self._identity()
        return found[1] if found else 0

    # -- instances -------------------------------------------------------------------------------------------

    def live(self) -> str:
        # Without the row of the instance, no process would store the output left behind by a crash of this process.
        if self._instance_told != self.instance:
            with self._write_lock:
                if self.instance is None:
                    self._hold_instance(self.ids.instance())
            instance = {
                "id": self.instance,
                "host": platform.node(),
                "at": self.clock.now_us(),
            }
            self.change(lambda tx: tx.run("put_instance", instance))
            self._instance_told = self.instance or ""
        return self._instance_told

    def _hold_instance(self, instance: str) -> None:
        """Take the lock of the instance. The lock proves that the process is alive."""
        folder = self._instances
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            lock = LockFile.acquire(folder / instance, posix=True)
        except OSError as error:
            raise StoreUnavailable(
                f"{folder} cannot be written to: {error.strerror}."
            ) from error
        if lock is None:
            raise StoreUnavailable(f"{folder / instance} was locked or removed.")
        self._instance_lock, self.instance = lock, instance

    @property
    def _instances(self) -> Path:
        return Path(f"{self.path}-instances")

    def alive(self, tx: Tx, instance: str) -> bool:  # noqa: ARG002  (the lock is a file)
        return LockFile.is_held(self._instances / instance, posix=True)

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

    def _start_background(
        self, name: str, work: Callable[[], None], wanted: Callable[[], bool]
    ) -> None:
        """Start a background thread for `work` unless one is running.

        A running thread checks `wanted()` again before it ends, so no request is lost.
        """

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
                thread = start_thread(run, f"tenax-{name}")
                # Without a thread, the next request tries again.
                if thread is not None:
                    self._threads[name] = thread

    def _checkpoint_soon(self) -> None:
        self._checkpoint_due.set()
        self._start_background(
            "checkpoint", self._checkpoint, self._checkpoint_due.is_set
        )

    def _checkpoint(self) -> None:
        """Copy the log back into the file while writers continue."""
        connection: apsw.Connection | None = None
        try:
            while not self._closed.is_set():
                busy = self._checkpoint_due.wait(self.timing.checkpoint_idle_seconds)
                self._checkpoint_due.clear()
                if not busy and not self._scrub_due:
                    return
                try:
                    if connection is None:
                        connection = self._connect()
                        connection.set_busy_timeout(0)
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                    # Writers continued meanwhile. The few new pages are copied while the writers wait, so that the log
                    # starts over in the same file: a growing log would make every commit flush metadata too.
                    with self._write_lock, self._turn():
                        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                        if self._scrub_due:
                            connection.wal_checkpoint(
                                mode=apsw.SQLITE_CHECKPOINT_TRUNCATE
                            )
                            self._scrub_due = False
                except (
                    apsw.Error,
                    Trouble,
                ) as error:
                    # The next checkpoint tries again. Until then the log only grows.
                    self._doubt(error)
        finally:
            shut(connection)

    def _doubt(self, error: Exception) -> None:
        """Handle a failed checkpoint: the failed flush may have been the flush of partials in the log."""
        if isinstance(error, apsw.BusyError | apsw.LockedError | Trouble):
            return
        self._unflushed = True
        if self._pin is None:
            self._keep_log()

    def _keep_log(self) -> None:
        """Keep the log complete until every process has closed the store. The next opening copies the whole log back.

        The failed flush may also have been the flush of the file. SQLite would copy the remaining pages again, but not
        the pages copied before without a flush. A power loss would take those pages once the log has started over. The
        log cannot start over during an open read transaction.
        """
        pin: apsw.Connection | None = None
        try:
            pin = self._connect()
            leave_log(pin)
            pin.execute("begin; select count(*) from store").fetchall()
        except (apsw.Error, Trouble):
            # The next failed checkpoint tries again.
            shut(pin)
        else:
            self._pin = pin

    def scrub(self) -> bool:
        """Empty the log, so that no older copy of a page is left in the log."""
        if self._pin is not None:
            return False
        try:
            with self._write_lock, self._turn():
                connection = self._writing(durable=True)
                connection.execute("pragma incremental_vacuum").fetchall()
                # All writers wait meanwhile, so do not wait long for a reader such as a backup.
                connection.set_busy_timeout(_SCRUB_MS)
                try:
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                finally:
                    connection.set_busy_timeout(int(self.timing.turn_seconds * 1000))
        except (apsw.Error, Trouble) as error:
            self._scrub_due = True
            self._doubt(error)
            self._checkpoint_soon()
            return False
        return True

    def announce(self, nums: Sequence[int]) -> None:
        """Do nothing, because other processes see the file change."""

    def _watch(self) -> None:
        self._start_background("watch", self.poll, lambda: self.wakeups.wanted)

    def poll(self) -> None:
        """Notice commits of other processes and wake the listeners of changed conversations.

        The thread runs while there are listeners. `data_version` changes when another connection commits. The thread
        asks the write connection, because its `data_version` ignores the commits of this process.
        """
        wakeups = self.wakeups
        seen: object = None
        identity_due = 0.0
        wakeups.look_seconds = _SURE_SECONDS
        try:
            while wakeups.wanted and not self._closed.wait(POLL_SECONDS):
                now = time.monotonic()
                if now >= identity_due:
                    identity_due = now + _IDENTITY_SECONDS
                    if self._identity() != self._file_id:
                        wakeups.notify(None)
                # A writing thread holds the lock. The next poll comes soon enough.
                if not self._write_lock.acquire(blocking=False):
                    continue
                try:
                    heads = None
                    connection = self._writing(durable=self._synchronous != 1)
                    version = (id(connection), connection.pragma("data_version"))
                    if version != seen:
                        heads = self._heads_now(connection, wakeups.watched)
                        seen = version
                except (apsw.Error, Trouble):
                    continue
                finally:
                    self._write_lock.release()
                if heads is not None:
                    wakeups.notify_heads(heads)
        finally:
            wakeups.look_seconds = _UNSURE_SECONDS

    def _heads_now(
        self, connection: apsw.Connection, nums: Sequence[int]
    ) -> dict[int, int]:
        if not nums:
            return {}
        where = {"nums": self.as_list(nums)}
        return dict(SqliteTx(connection).run("heads_now", where))

    # -- closing ---------------------------------------------------------------------------------------------

    def close_engine(self) -> None:
        self._closed.set()
        self._checkpoint_due.set()
        with self._threads_lock:
            threads = list(self._threads.values())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        with self._write_lock:
            self._drop_connections()
            # Close the pin last: it leaves the log unchanged.
            shut(self._pin)
        if self._instance_lock is not None:
            self._instance_lock.release(remove=True)
        if self._queue_lock is not None:
            self._queue_lock.close()


class SqliteTx:
    """Named statements on a connection."""

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
    ) -> list[SqlRow]:
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
    """A write transaction. An engine error rolls everything back."""

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


def leave_log(connection: apsw.Connection, *, leave: bool = True) -> None:
    """Set whether closing the connection leaves the log alone, without a checkpoint."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(leave))


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        connection.execute("rollback")


@functools.cache
def _for_rows(name: str, count: int) -> str:
    """Return an insert for several rows at once, to release the interpreter's lock once and not for every row."""
    text = _SQL[name]
    if count == 1:
        return text
    head, one, tail = _VALUES.split(text)
    return f"{head} values {', '.join([_PARAMETER.sub('?', one)] * count)} {tail}"


class QueueLock:
    """A lock file with a fair queue of processes. The kernel releases the lock when the holder dies.

    `concurrency.locked` polls. Writers wait in the kernel's queue instead, because polling is not fair: one of eight
    busy processes would starve.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = self._open_file()

    def _open_file(self) -> int:
        return os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def wait(self, seconds: float) -> bool:
        """Wait in the kernel's queue for at most `seconds`. Return whether the lock was acquired.

        The kernel's wait has no timeout, so a background thread waits and is abandoned after the timeout. Raises
        `OSError` if the system has no room for one more file or thread.
        """
        descriptor = self._open_file()
        told = threading.Lock()
        acquired = abandoned = False
        done = threading.Event()

        def wait() -> None:
            nonlocal acquired
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with told:
                acquired = True
                if abandoned:
                    os.close(descriptor)
            done.set()

        thread = None
        try:
            thread = start_thread(wait, "tenax-queue")
            if thread is not None:
                done.wait(seconds)
        except BaseException:
            # Ctrl-C may arrive while the thread starts. The waiting thread then closes the descriptor.
            with told:
                abandoned = True
                if acquired:
                    os.close(descriptor)
            raise
        if thread is None:
            os.close(descriptor)
            raise OSError(errno.EAGAIN, "there is no room for one more thread")
        with told:
            if not acquired:
                abandoned = True
                return False
        os.close(self.descriptor)
        self.descriptor = descriptor
        return True

    def close(self) -> None:
        os.close(self.descriptor)


def _follow_link(link: Path, path: Path) -> None:
    """Move the witness of an earlier version from the link to the target, and delete the search index beside the link.

    The search index is rebuilt beside the target.
    """
    old, new = (Path(f"{file}-witness") for file in (link, path))
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


def logged_pages(log: Path) -> set[int]:
    """Return the numbers of the pages in a write-ahead log (see "The WAL File Format" of SQLite)."""
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
        # The message of the error would quote the text.
        return "a text in it is not UTF-8"
    return str(error).removeprefix("SQLITE_").strip() or type(error).__name__


def shut(connection: apsw.Connection | None) -> None:
    """Close a connection in any state."""
    if connection is not None:
        with contextlib.suppress(apsw.Error):
            connection.close()
