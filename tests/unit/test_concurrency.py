"""Threads, retries, lock files and atomic writes."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tenax.concurrency import (
    OWN_THREAD,
    OWN_THREADS_MAX,
    POOL_CALLS_MAX,
    Backoff,
    LockFile,
    SerialThread,
    ThreadPool,
    locked,
    run_in_own_thread,
    write_atomically,
)
from tenax.errors import StoreMisused, StoreUnavailable, TooBusy

SECONDS = 60.0


# -- threads ---------------------------------------------------------------------------


async def test_a_pool_returns_results_and_raises_errors() -> None:
    """Also an exit: the thread belongs to the pool."""
    pool = ThreadPool(2, "test")
    assert await pool.run(lambda: 42) == 42
    with pytest.raises(SystemExit):
        await pool.run(partial(sys.exit, 3))
    assert await pool.run(threading.current_thread) is not threading.main_thread()
    pool.stop()


async def test_a_pool_of_one_keeps_the_order_of_its_calls() -> None:
    """The spool relies on it."""
    pool, seen = ThreadPool(1, "test"), list[int]()
    await asyncio.gather(*(pool.run(partial(seen.append, n)) for n in range(100)))
    assert seen == list(range(100))
    pool.stop()


async def test_a_pool_refuses_calls_beyond_its_bound() -> None:
    """Calls that wait for a thread are counted."""
    pool = ThreadPool(1, "test")
    begun, release = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return release.wait(SECONDS)

    busy = asyncio.create_task(pool.run(work))
    assert await asyncio.to_thread(begun.wait, SECONDS)
    calls = [pool.run(release.is_set) for _ in range(POOL_CALLS_MAX)]
    waiting = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="wait for a thread"):
        await pool.run(release.is_set)
    release.set()
    assert await busy
    assert all(await asyncio.gather(*waiting))
    pool.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_pool_is_refused_after_a_fork() -> None:
    """The child has no threads: a call would wait for ever."""
    pool = ThreadPool(1, "test")
    child = os.fork()
    if child == 0:
        try:
            pool.run(int).send(None)
        except StoreMisused:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


async def test_an_abandoned_call_is_told_and_its_result_is_undone() -> None:
    """The caller is cancelled while its call runs."""
    release, undone = threading.Event(), threading.Event()
    abandoned, results = threading.Event(), list[str]()

    def work() -> str:
        release.wait(SECONDS)
        return "result"

    def undo(result: str) -> None:
        results.append(result)
        undone.set()

    task = asyncio.create_task(run_in_own_thread(work, undo, abandoned=abandoned))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert abandoned.is_set()
    release.set()
    assert undone.wait(SECONDS)
    assert results == ["result"]


async def test_own_threads_are_bounded_for_each_owner() -> None:
    """One user with a hung disk leaves the other users their threads."""
    for thread in threading.enumerate():
        if thread.name.startswith(OWN_THREAD):
            thread.join(SECONDS)
    release = threading.Event()
    calls = [
        asyncio.create_task(run_in_own_thread(release.wait, owner="ada"))
        for _ in range(OWN_THREADS_MAX)
    ]
    await asyncio.sleep(0)
    with pytest.raises(TooBusy):
        await run_in_own_thread(int, owner="ada")
    assert await run_in_own_thread(int, owner="bob") == 0
    release.set()
    assert all(await asyncio.gather(*calls))


async def test_no_room_for_a_thread_is_an_ordinary_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was started, and nothing waits."""

    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(StoreUnavailable, match="no room"):
        await ThreadPool(1, "test").run(int)
    with pytest.raises(TooBusy, match="no more threads"):
        await run_in_own_thread(int)
    assert SerialThread("test", 1).submit(int) is None


def test_a_serial_thread_keeps_order_and_refuses_when_it_is_full() -> None:
    """A refused call is never waited for."""
    release, seen = threading.Event(), list[int]()
    thread, begun = SerialThread("test", 2), threading.Event()

    def first() -> None:
        begun.set()
        release.wait(SECONDS)

    assert thread.submit(first) is not None
    assert begun.wait(SECONDS)
    answers = [thread.submit(partial(seen.append, n)) for n in range(3)]
    assert [answer is not None for answer in answers] == [True, True, False]
    assert (thread.waiting, thread.flush(0)) == (3, False)
    release.set()
    assert thread.flush(SECONDS)
    assert seen == [0, 1]
    assert thread.submit(int, last=True) is not None
    assert thread.submit(int) is None


# -- retries ---------------------------------------------------------------------------


def test_pauses_double_up_to_the_limit_and_start_again_after_a_success() -> None:
    """The bound is visible in the numbers."""
    backoff = Backoff(0.1, 0.5)
    pauses = [backoff.next_pause() for _ in range(5)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    backoff.reset()
    assert backoff.next_pause() == 0.1


def test_jitter_stays_within_its_share() -> None:
    """The pauses of two processes differ."""
    pauses = {Backoff(1.0, 1.0, jitter=0.25).next_pause() for _ in range(200)}
    assert len(pauses) > 100
    assert all(0.75 <= pause <= 1.25 for pause in pauses)


# -- files -----------------------------------------------------------------------------

_HOLD = """
import pathlib, sys
from tenax.concurrency import LockFile
lock = LockFile.acquire(pathlib.Path(sys.argv[1]), posix=sys.argv[2] == "posix")
print("held" if lock else "refused", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["flock", "posix"])
def test_a_lock_is_held_until_its_process_is_killed(tmp_path: Path, kind: str) -> None:
    """The kernel releases it."""
    file, posix = tmp_path / "lock", kind == "posix"
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(file), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert LockFile.is_held(file, posix=posix)
        assert LockFile.acquire(file, posix=posix) is None
        process.kill()
        process.wait(SECONDS)
        assert not LockFile.is_held(file, posix=posix)
        lock = LockFile.acquire(file, posix=posix)
        assert lock is not None
        lock.release(remove=True)
        assert not file.exists()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("posix", [False, True])
def test_a_process_does_not_lock_a_file_twice(tmp_path: Path, posix: bool) -> None:
    """And a question about the lock does not release the lock."""
    file = tmp_path / "lock"
    lock = LockFile.acquire(file, posix=posix)
    assert lock is not None
    assert LockFile.acquire(file, posix=posix) is None
    assert LockFile.is_held(file, posix=posix)
    assert LockFile.is_held(file, posix=posix)
    lock.release()
    assert not LockFile.is_held(file, posix=posix)
    again = LockFile.acquire(file, posix=posix)
    assert again is not None
    again.release()


def test_a_file_that_was_removed_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process opened the file before the holder removed it."""
    file, opened = tmp_path / "lock", os.open

    def late(path: Path, *args: int) -> int:
        descriptor = opened(path, *args)
        file.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", late)
    assert LockFile.acquire(file) is None
    monkeypatch.undo()
    assert LockFile.acquire(file, create=True) is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_a_posix_lock(tmp_path: Path) -> None:
    """The lock proves that the process itself is alive."""
    file, (ends, end) = tmp_path / "lock", os.pipe()
    parent = os.fork()
    if parent == 0:
        LockFile.acquire(file, posix=True)
        if os.fork() == 0:
            os.read(ends, 1)
        os._exit(0)
    os.waitpid(parent, 0)
    assert not LockFile.is_held(file, posix=True)
    os.write(end, b"!")
    os.close(end)
    os.close(ends)


def test_a_created_file_appears_whole_and_locked(tmp_path: Path) -> None:
    """Nobody takes it for the file of a dead process."""
    file = tmp_path / "note"
    with LockFile.create(file, b"text") as lock:
        assert (file.read_bytes(), lock.read()) == (b"text", b"text")
        assert LockFile.is_held(file)
        lock.write(b"new")
        assert lock.read() == b"new"
    assert not LockFile.is_held(file)
    assert [child.name for child in tmp_path.iterdir()] == ["note"]


def test_a_block_waits_for_the_lock_within_its_time(tmp_path: Path) -> None:
    """On a directory and on a file."""
    for path in (tmp_path, tmp_path / "lock"):
        with locked(path), pytest.raises(TimeoutError), locked(path, 0.01):
            pass
        with locked(path, 0.01):
            pass


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, or the last check says no."""
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_atomically(file, b"new")
    with pytest.raises(ZeroDivisionError):
        write_atomically(file, b"new", before_rename=lambda: 1 // 0)
    with pytest.raises(FileExistsError):
        write_atomically(file, b"new", overwrite=False)
    assert file.read_bytes() == b"old"
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_a_file_is_private_unless_a_mode_is_given(tmp_path: Path) -> None:
    """Whatever the umask is."""
    before = os.umask(0)
    try:
        for mode, expected in ((0o600, 0o600), (0o644, 0o644), (None, 0o666)):
            file = tmp_path / f"{mode}"
            write_atomically(file, b"text", mode=mode)
            assert stat.S_IMODE(file.stat().st_mode) == expected
    finally:
        os.umask(before)


def test_a_file_is_written_in_an_open_directory(tmp_path: Path) -> None:
    """The path may lead elsewhere meanwhile."""
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        write_atomically("file", b"text", directory=directory)
    finally:
        os.close(directory)
    assert (tmp_path / "file").read_bytes() == b"text"
