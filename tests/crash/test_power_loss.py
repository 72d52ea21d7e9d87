"""What a power loss leaves of an answer that is being written: all but its last second."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tenax
from tenax.agent.partials import Partials
from tenax.clock import Timing
from tenax.events import ReplyDelta
from tenax.journal import LOCAL_USER, Journal
from tenax.testing import SimClock
from tests.contract.engine.base import begin, delta, say
from tests.contract.failing_vfs import FaultVfs
from tests.support.needs import Missing

pytestmark = pytest.mark.crash

FLUSH_SECONDS = Timing().flush_seconds
PIECES = 100
PAUSE = 0.1


def kept(journal: Journal, name: str) -> str:
    """The text of the answer that the store has."""
    events = [each.event for each in journal.read(name)]
    return "".join(event.text for event in events if isinstance(event, ReplyDelta))


def test_partials_are_flushed_while_an_answer_streams(tmp_path: Path) -> None:
    """Ten seconds of streaming: at any instant a power loss takes less than a second of it."""
    path, clock = tmp_path / "tenax.db", SimClock()
    with FaultVfs(remembers=True) as disk:
        journal = disk.open(path, clock=clock)
        name = begin(journal, say("Tell me."))
        flushes = disk.count("sync", "wal")
        for n in range(PIECES):
            journal.append(name, [delta(1, n, "x")])
            if n % 7 == 0 or n == PIECES - 1:
                lost = disk.after_power_loss(path, tmp_path / f"lost-{n}")
                with tenax.open(f"sqlite:///{lost}", user=LOCAL_USER) as left:
                    missing = n + 1 - len(kept(left, name))
                assert missing * PAUSE < 1.0
            clock.advance(PAUSE)
        # and not with every piece
        assert disk.count("sync", "wal") - flushes <= PIECES * PAUSE / FLUSH_SECONDS + 1
        journal.close()


@contextmanager
def counted(journal: Journal, found: list[bool]) -> Iterator[None]:
    """Note for each write transaction whether it is flushed."""
    store: Any = journal.store
    transaction = store.transaction

    def noted(*, durable: bool = True) -> AbstractContextManager[Any]:
        found.append(durable)
        context: AbstractContextManager[Any] = transaction(durable=durable)
        return context

    store.transaction = noted
    try:
        yield
    finally:
        store.transaction = transaction


def test_one_commit_in_a_while_flushes_partials(store_url: str) -> None:
    """On both engines; a fact flushes what was written before it as well."""
    clock, found = SimClock(), list[bool]()
    with tenax.open(store_url, user=LOCAL_USER, clock=clock) as journal:
        name = begin(journal, say("Tell me."))
        with counted(journal, found):
            for n in range(4):
                journal.append(name, [delta(1, n, "x")])
                clock.advance(FLUSH_SECONDS / 2)
            journal.append(name, [say("A fact.")])
            journal.append(name, [delta(1, 4, "x")])
    assert found == [False, False, True, False, True, False]


async def test_the_last_words_are_flushed_when_a_model_falls_silent() -> None:
    """An empty piece follows them, once."""
    stored: list[tuple[int, str]] = []
    flushed = asyncio.Event()

    async def store(offset: int, text: str) -> None:
        stored.append((offset, text))
        if not text:
            flushed.set()

    partials = Partials(store, store, Timing(flush_seconds=0.01))
    partials.add("some words")
    async with asyncio.timeout(60):
        await flushed.wait()
    await partials.end()
    assert stored == [(0, "some words"), (10, "")]


STREAMS = """
import sys, time
import tenax
from tenax.journal import LOCAL_USER
from tests.contract.engine.base import begin, delta, say
with tenax.open(sys.argv[1], user=LOCAL_USER) as journal:
    name = begin(journal, say("Tell me."))
    print(name, flush=True)
    n = 0
    while True:
        journal.append(name, [delta(1, n, "x")])
        n += 1
        print(time.monotonic(), flush=True)
        time.sleep(0.02)
"""
GOING_DOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""
WITHOUT_FLUSH = struct.pack("I", 2)
"""EXT4_GOING_FLAGS_NOLOGFLUSH: what is not on the disk yet is lost."""
STREAMED = 200
"""Pieces of 20 ms: the answer has streamed for four seconds."""


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-o", "loop", str(image), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Missing("loop mounts", done.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.nightly
def test_a_real_file_system_that_goes_down_keeps_all_but_the_last_second(
    tmp_path: Path,
) -> None:
    """A real ext4 is shut down without a flush, in the midst of an answer, and mounted again."""
    if os.geteuid() != 0:
        raise Missing("loop mounts", "only root may mount an image.")
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    store = f"sqlite:///{folder}/tenax.db"
    with mounted(image, folder):
        command = [sys.executable, "-c", STREAMS, store]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            assert child.stdout is not None
            name = child.stdout.readline().strip()
            told = [float(child.stdout.readline()) for _ in range(STREAMED)]
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.ioctl(descriptor, GOING_DOWN, WITHOUT_FLUSH)
            finally:
                os.close(descriptor)
            child.kill()
            told += [float(line) for line in child.stdout.read().splitlines()]
    with mounted(image, folder), tenax.open(store, user=LOCAL_USER) as journal:
        have = len(kept(journal, name))
    assert have <= len(told) + 1
    assert all(moment > told[-1] - 1.0 for moment in told[have:])
