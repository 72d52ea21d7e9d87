"""Threads, retries, lock files and atomic writes. Each mechanism exists once, here.

A blocking call leaves the event loop in two ways:

1. `ThreadPool.run`: a few daemon threads shared by many callers, for short calls of a single
   dependency. A hanging call keeps its thread, so a pool never serves two dependencies:
   a hung disk must not take the threads of the store. The journal has a pool
   (`AsyncJournal.threads`). A pool with a single thread also keeps the order of the calls.
2. A separate daemon thread, for calls without a time limit: files of the user, a name
   server, code of a plugin. `run_in_own_thread` makes a single call. `SerialThread` makes
   calls in order and refuses calls when the queue is full.

The rule: a call of the store goes to `AsyncJournal.threads`; every other blocking call goes to `run_in_own_thread`;
calls of foreign code in a fixed order go to a `SerialThread`. A background service without calls uses `start_thread`.

Every thread is a daemon: the interpreter never joins a daemon, so a hanging thread does not keep the process from
ending. When the system has no room for one more thread, the caller gets an ordinary error and nothing was started.

`Backoff` spaces out retries. `LockFile` and `locked` exclude other processes. `write_atomically` replaces a file in a
single step. `python_module` and `python_file` are the commands for a new process of our own interpreter.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import queue
import random
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tenax.errors import StoreBusy, StoreMisused, StoreUnavailable, TooBusy

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

__all__ = [
    "LONGEST_WAIT_SECONDS",
    "OWN_THREAD",
    "OWN_THREADS_MAX",
    "POOL_CALLS_MAX",
    "Backoff",
    "LockFile",
    "SerialThread",
    "ThreadPool",
    "call_in_loop",
    "count_forks",
    "locked",
    "python_file",
    "python_module",
    "refuse_after_fork",
    "run_in_own_thread",
    "start_thread",
    "sync_directory",
    "thread_owner",
    "write_atomically",
]

T = TypeVar("T")

POOL_CALLS_MAX = 20_000
"""The largest number of calls that wait for a thread of a pool."""
OWN_THREADS_MAX = 32
"""The largest number of own threads of a user. Only a hung disk keeps so many threads waiting."""
OWN_THREAD = "tenax-own"
"""The beginning of the names of own threads."""
LONGEST_WAIT_SECONDS = 86_400.0
"""The longest wait. The lock of a `Condition` raises for a much larger number."""
_IDLE_SECONDS = 60.0

thread_owner: ContextVar[str] = ContextVar("thread_owner", default="")
"""The user of the current task. Own threads are counted per user."""


# -- processes -------------------------------------------------------------------------

_forks = 0


def count_forks() -> int:
    """Return the number of forks of the process and its ancestors.

    Threads, connections and locks are valid until the number changes.
    """
    return _forks


def _count_fork() -> None:
    # A global number, because every append reads it and a system call would be slower.
    global _forks  # noqa: PLW0603
    _forks += 1
    # POSIX locks belong to the parent.
    _posix_held.clear()


os.register_at_fork(after_in_child=_count_fork)


def refuse_after_fork(opened_at: int) -> None:
    """Raise `StoreMisused` if the process was forked since `count_forks` returned `opened_at`.

    A child process has the locks and connections of the parent, but not the threads.
    """
    if _forks != opened_at:
        raise StoreMisused(
            "The store was opened before a fork and may not be used after it.",
            hint="open it in the new process",
        )


# -- threads ---------------------------------------------------------------------------


def start_thread(work: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a daemon thread. Return `None`, with nothing started, if the system has no room for one more thread."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def call_in_loop(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object
) -> None:
    """Schedule a callback in an event loop. Safe in every thread. Do nothing if the loop has ended."""
    # A check of `loop.is_closed()` would come too early: the loop may end after it.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


class ThreadPool:
    """A few daemon threads for blocking calls. The threads start on demand.

    A call continues without its caller if the caller is cancelled.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._threads: list[threading.Thread] = []
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._forks = count_forks()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread of the pool and return the result.

        Raises `StoreUnavailable` without a thread, `StoreBusy` if too many calls wait, and `StoreMisused` after a fork.
        """
        import asyncio  # noqa: PLC0415  (slow to import, and `tenax list` does not need it)

        refuse_after_fork(self._forks)
        if self._calls.qsize() >= POOL_CALLS_MAX:
            raise StoreBusy(
                f"{POOL_CALLS_MAX:,} calls wait for a thread already; this call was refused."
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                settle = functools.partial(_settle, future, work(), None)
            except BaseException as error:  # noqa: BLE001  (raised where the call is awaited)
                settle = functools.partial(_settle, future, None, error)
            call_in_loop(loop, settle)

        if len(self._threads) < self._size:
            self._add_thread()
        self._calls.put(call)
        return await future

    def stop(self) -> None:
        """End the threads after the waiting calls."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads.clear()

    def _add_thread(self) -> None:
        """Start one more thread. Without room for a thread, the existing threads do the work."""
        thread = start_thread(self._work, f"{self._name}-{len(self._threads)}")
        if thread is not None:
            self._threads.append(thread)
        elif not self._threads:
            raise StoreUnavailable(
                "There is no room for one more thread on this machine."
            )

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(
    future: asyncio.Future[Any],
    result: Any,  # noqa: ANN401
    error: BaseException | None,
) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


async def run_in_own_thread(
    work: Callable[[], T],
    undo: Callable[[T], object] | None = None,
    *,
    abandoned: threading.Event | None = None,
    owner: str | None = None,
) -> T:
    """Run a blocking call on a new daemon thread and return the result.

    `abandoned` is set when the caller no longer waits: `work` checks the event before an irreversible step. If the
    caller was cancelled, `undo` gets the result, also for a cancellation at the moment when the call ends.

    Raises `TooBusy` if `owner` (by default `thread_owner`) has too many threads, or the system has no room for one
    more.
    """
    import asyncio  # noqa: PLC0415  (as in `ThreadPool.run`)

    name = f"{OWN_THREAD} {(thread_owner.get() if owner is None else owner)!a}"
    if sum(thread.name == name for thread in threading.enumerate()) >= OWN_THREADS_MAX:
        raise TooBusy(
            f"{OWN_THREADS_MAX} calls wait for the disk already, so this call was not started.",
            hint="try again later",
        )
    future: Future[T] = Future()
    # From now on the future cannot be cancelled: the call goes on without its caller.
    future.set_running_or_notify_cancel()

    def call() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised where the call is awaited)
            future.set_exception(error)

    if start_thread(call, name) is None:
        raise TooBusy(
            "The system gives no more threads, so this call was not started.",
            hint="try again later",
        )
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if undo is not None:
            future.add_done_callback(
                lambda done: done.exception() or undo(done.result())
            )
        raise
    finally:
        if abandoned is not None:
            abandoned.set()


class SerialThread:
    """A daemon thread for calls in order. For foreign code.

    The thread starts with the first call and ends after a minute without calls. Text printed by a call goes to stderr,
    because stdout belongs to the user of Tenax. The lock is held only to read and change the queue, never during a
    call.
    """

    def __init__(self, name: str, calls_max: int) -> None:
        self._name = name
        self._calls_max = calls_max
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._running = self._closed = False
        self._submitted = self._finished = 0
        self._began: float | None = None

    def submit(
        self, call: Callable[[], Any], *, last: bool = False
    ) -> Future[Any] | None:
        """Queue a call. Return `None` if the queue is full or closed, or the system has no room for a thread.

        `last` closes the queue after the call.
        """
        with self._changed:
            if self._closed or (len(self._calls) >= self._calls_max and not last):
                return None
            if not self._running and start_thread(self._run, self._name) is None:
                return None
            self._running, self._closed = True, last
            answer: Future[Any] = Future()
            self._calls.append((call, answer))
            self._submitted += 1
            self._changed.notify_all()
            return answer

    def flush(self, seconds: float) -> bool:
        """Wait for the calls submitted until now. Return `False` on timeout."""
        with self._changed:
            upto = self._submitted
            return self._changed.wait_for(
                lambda: self._finished >= upto,
                timeout=min(max(0.0, seconds), LONGEST_WAIT_SECONDS),
            )

    def drop(self, keep: int = 0) -> int:
        """Cancel the calls not yet started, except the last `keep` calls. Return the number of cancelled calls."""
        with self._changed:
            dropped = max(0, len(self._calls) - keep)
            for _ in range(dropped):
                self._calls.popleft()[1].cancel()
            self._finished += dropped
            self._changed.notify_all()
            return dropped

    @property
    def waiting(self) -> int:
        """The number of unfinished calls."""
        with self._changed:
            return self._submitted - self._finished

    @property
    def busy_seconds(self) -> float:
        """The duration of the current call in seconds; 0 without a call."""
        with self._changed:
            return 0.0 if self._began is None else time.monotonic() - self._began

    def _run(self) -> None:
        _serial.here = True
        _redirect_stdout()
        while (taken := self._next_call()) is not None:
            call, answer = taken
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(call())
                except BaseException as error:  # noqa: BLE001  (also SystemExit: foreign code must not end this thread)
                    answer.set_exception(error)
            # The next call may come much later. Until then nothing keeps the result alive.
            del call, answer, taken
            with self._changed:
                self._finished += 1
                self._began = None
                self._changed.notify_all()

    def _next_call(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        with self._changed:
            if not self._calls and not self._closed:
                self._changed.wait_for(
                    lambda: self._calls or self._closed, timeout=_IDLE_SECONDS
                )
            if not self._calls:
                self._running = False
                return None
            self._began = time.monotonic()
            return self._calls.popleft()


_serial = threading.local()


class _Stdout:
    """The original `sys.stdout`; on a `SerialThread`, `sys.stderr`."""

    def __init__(self, real: Any) -> None:  # noqa: ANN401
        self._real = real

    def write(self, text: str) -> int:
        target = sys.stderr if getattr(_serial, "here", False) else self._real
        return int(target.write(text))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._real, name)


def _redirect_stdout() -> None:
    """Wrap `sys.stdout`, unless already wrapped."""
    if sys.stdout is not None and not isinstance(sys.stdout, _Stdout):
        sys.stdout = _Stdout(sys.stdout)


# -- retries ---------------------------------------------------------------------------


class Backoff:
    """The pauses between retries: every pause is twice the previous pause, up to a limit.

    `jitter` spreads a pause by up to the given share in both directions, so that processes with the same failure do not
    retry at the same moment. The caller waits in its own way (`await backoff.sleep()`,
    `clock.sleep(backoff.next_pause())`, `event.wait(backoff.next_pause())`) and bounds the number of retries or the
    time.
    """

    def __init__(self, first: float, longest: float, *, jitter: float = 0.0) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._pause = first

    def next_pause(self) -> float:
        """Return the seconds to wait before the next retry."""
        pause = self._pause
        self._pause = min(pause * 2, self._longest)
        if self._jitter:
            pause *= random.uniform(1 - self._jitter, 1 + self._jitter)  # noqa: S311
        return pause

    async def sleep(self) -> None:
        """Wait for the next pause."""
        import asyncio  # noqa: PLC0415  (as in `ThreadPool.run`)

        await asyncio.sleep(self.next_pause())

    def reset(self) -> None:
        """Begin with the first pause again, after a success."""
        self._pause = self._first


# -- files -----------------------------------------------------------------------------

_posix_held: set[str] = set()
"""The POSIX locks of the process, by path."""
_posix_guard = threading.Lock()


class LockFile:
    """A file locked by the process. The kernel releases the lock when the process dies, also after SIGKILL.

    The file may be removed while another process opens the file. So `acquire` checks that the locked file is still the
    file at the path.

    Two kinds of locks exist because earlier versions of Tenax may run at the same time, and the kinds do not see each
    other:

    - `flock` (the default) belongs to the open file. Two threads of a process exclude each other. A forked child
      keeps the lock after the death of the parent.
    - `posix` (`fcntl`) belongs to the process. A forked child never has the lock, so the lock proves that the
      process itself is alive. But a process loses the lock by closing any descriptor of the file, so this class
      never opens a file twice.
    """

    def __init__(self, path: Path, descriptor: int, *, posix: bool = False) -> None:
        self.path = path
        self.descriptor = descriptor
        self._posix = posix

    @classmethod
    def acquire(
        cls, path: Path, *, create: bool = True, posix: bool = False
    ) -> Self | None:
        """Lock a file. Return `None` if another holder has the lock, or the file was removed meanwhile.

        Raises `FileNotFoundError` unless `create`, and `OSError`.
        """
        # The path is reserved before the file is opened. The guard is not held during disk access: a hung disk must not
        # stop the locks on other disks.
        key = os.path.realpath(path) if posix else ""
        if posix:
            with _posix_guard:
                if key in _posix_held:
                    return None
                _posix_held.add(key)
        descriptor = -1
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            descriptor = os.open(path, flags, 0o600)
            if _try_lock(descriptor, posix=posix) and _is_at(path, descriptor):
                lock, descriptor, key = cls(path, descriptor, posix=posix), -1, ""
                return lock
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)
            if key:
                _posix_held.discard(key)

    @classmethod
    def create(cls, path: Path, data: bytes, *, durable: bool = True) -> Self:
        """Create a locked file with the given content.

        The file appears complete and locked, or not at all. Raises `OSError`.
        """
        scratch = path.with_name(f".{path.name}.new")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(scratch, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
            scratch.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    @staticmethod
    def is_held(path: Path, *, posix: bool = False) -> bool:
        """Return whether a live process holds the lock."""
        if posix and os.path.realpath(path) in _posix_held:
            return True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # A shared lock: two processes asking at the same time do not see each other.
            return not _try_lock(descriptor, shared=True, posix=posix)
        except OSError:
            # Unknown. The holder may be alive, so its work is not taken over.
            return True
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def read(self) -> bytes:
        """Return the content of the file."""
        return os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)

    def write(self, data: bytes) -> None:
        """Replace the content of the file. A crash may leave a part of the content."""
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        _write_all(self.descriptor, data)

    def release(self, *, remove: bool = False) -> None:
        """Release the lock. `remove` deletes the file first, while no other process can have the lock."""
        if self.descriptor < 0:
            return
        if remove:
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(self.descriptor)
        self.descriptor = -1
        if self._posix:
            _posix_held.discard(os.path.realpath(self.path))


@contextlib.contextmanager
def locked(path: Path, seconds: float | None = None) -> Iterator[None]:
    """Exclude other processes and threads during the block, by a lock on a directory or a file.

    A missing file is created. Raises `TimeoutError` if the lock is not free within `seconds`, and `OSError`.
    """
    flags = os.O_DIRECTORY if path.is_dir() else os.O_CREAT
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        if seconds is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            backoff = Backoff(0.002, 0.02)
            deadline = time.monotonic() + seconds
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        errno.ETIMEDOUT, f"timed out waiting for the lock on {path}"
                    )
                time.sleep(backoff.next_pause())
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, *, shared: bool = False, posix: bool = False) -> bool:
    lock = fcntl.lockf if posix else fcntl.flock
    try:
        lock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether the open file is the file at the path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116  (consistent with fstat)
    except FileNotFoundError:
        return False


def write_atomically(
    path: Path | str,
    data: bytes,
    *,
    mode: int | None = 0o600,
    directory: int | None = None,
    overwrite: bool = True,
    durable: bool = True,
    before_rename: Callable[[], object] | None = None,
) -> None:
    """Write a file in a single step: readers find the old content or the new content, never a part.

    `mode=None` leaves the mode to the umask. `directory` is the open directory of a relative path. With
    `overwrite=False` the call raises `FileExistsError` if the file exists. With `durable` the call returns only when
    the content and the name are on disk. If `before_rename` raises, nothing changes. Raises `OSError`.
    """
    parent = Path(path).parent
    scratch = parent / f".tenax-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    first_mode = 0o666 if mode is None else 0o600
    descriptor = os.open(scratch, flags, first_mode, dir_fd=directory)
    renamed = False
    try:
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
            _write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if before_rename is not None:
            before_rename()
        if overwrite:
            os.replace(scratch, path, src_dir_fd=directory, dst_dir_fd=directory)
            renamed = True
        else:
            os.link(scratch, path, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        if not renamed:
            with contextlib.suppress(OSError):
                os.unlink(scratch, dir_fd=directory)
    if durable:
        sync_directory(parent, directory)


def sync_directory(path: Path | str, directory: int | None = None) -> None:
    """Flush the names in a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command to run a module with our own interpreter.

    `-P`: nothing is imported from the current folder, because commands may write in the folder.
    """
    return [sys.executable, "-P", "-m", name, *arguments]  # noqa: TID251


def python_file(path: str, *arguments: str) -> list[str]:
    """Return the command to run a file with only the standard library.

    `-I` and `-S`: nothing is imported from elsewhere, and no environment variable is read.
    """
    return [sys.executable, "-I", "-S", "-X", "utf8", path, *arguments]  # noqa: TID251
