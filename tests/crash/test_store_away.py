"""The store goes away in the middle of an answer: what was begun goes on, nothing is begun, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenax
from tenax.agent import spooling
from tenax.assembly import Runtime
from tenax.cli.ask import ask
from tenax.config import Config
from tenax.errors import StoreUnavailable
from tenax.events import (
    Event,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    ModelRequested,
    ReplyDelta,
    RunLate,
    RunStarted,
    decode,
    encode,
)
from tenax.journal import Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.spool import ROOM_BYTES, HeldEvent, Spool, left
from tenax.journal.verify.store import verify
from tenax.models import Piece, Reply, ScriptedCall, ScriptedModel
from tenax.parts import Text
from tenax.recovery import repair
from tenax.sessions import SessionDB
from tenax.testing import FaultyJournal
from tenax.views.context import CUT_NOTE
from tenax.views.transcript import Grow
from tests.contract.engine.base import begin
from tests.contract.failing_vfs import Fault, FaultVfs
from tests.crash.test_restart import until_free
from tests.support import remembering
from tests.support.children import Child, Teller, finish_all
from tests.support.damage import break_events
from tests.support.postgres import PostgresServer
from tests.support.runs import (
    Hands,
    Note,
    config_of,
    lines,
    outcomes,
    prose,
    told,
    until,
    with_timing,
)
from tests.support.served import Pace, environment
from tests.support.turns import set_up

pytestmark = pytest.mark.crash

SECONDS = 60.0
FIRST_WORDS = 10
WORDS = " ".join(f"w{n}" for n in range(110))
STREAM = Reply(words=WORDS, pause=0.02)
"""An answer of two seconds and more. A store that does not answer for one is away."""
LONG = " ".join(f"w{n}" for n in range(3000))
ENDLESS = Reply(words=LONG, pause=0.02)
"""An answer of a minute: it is under way when the store goes, and when its process ends, however late that comes."""


class Away:
    """A store that can go away and come back."""

    def __init__(
        self, url: str, go: Callable[[], object], back: Callable[[], object]
    ) -> None:
        self.url, self.go, self.back = url, go, back
        self.journal: Journal | None = None

    def config(self, home: Path) -> Config:
        return config_of(self.url, home)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that may be stopped."""
    with PostgresServer({"fsync": "off"}) as server:
        yield server


@pytest.fixture(params=["full", "stopped"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Away]:
    """SQLite on a disk that is full, and PostgreSQL that is stopped, when the test says so."""
    if request.param == "stopped":
        server: PostgresServer = request.getfixturevalue("server")
        away = Away(
            server.create_database(), lambda: server.stop("immediate"), server.start
        )
        away.journal = tenax.open(away.url, patience=2.0)
        yield away
        away.journal.close()
        return
    with FaultVfs() as disk:
        path = tmp_path / "tenax.db"
        full = lambda: disk.fail("write", Fault.FULL, times=None)  # noqa: E731  (a word for it)
        away = Away(f"sqlite:///{path}", full, disk.heal)
        away.journal = disk.open(path, patience=2.0)
        yield away
        away.journal.close()


class Gated(ScriptedModel):
    """Says its first words, and the rest once it may: the answer is under way for as long as the test wants it to be."""

    def __init__(
        self, script: Sequence[Reply | str], may: threading.Event | None = None
    ) -> None:
        super().__init__(script)
        self.may = may or threading.Event()

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        async with contextlib.aclosing(super().stream(body, silence=silence)) as pieces:
            said = 0
            async for piece in pieces:
                if said == FIRST_WORDS:
                    await asyncio.to_thread(self.may.wait)
                said += 1
                yield piece


async def later(work: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The first true answer; asked again while the store is away."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                if found := await work():
                    return found
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.05)


class HeldCounts:
    """What `on_held` was told."""

    def __init__(self) -> None:
        self.counts = [0]
        self._more = asyncio.Event()

    def __call__(self, _conversation: str, count: int) -> None:
        self.counts.append(count)
        self._more.set()

    async def until(self, so: Callable[[list[int]], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not so(self.counts):
                self._more.clear()
                await self._more.wait()


def jumped(counts: list[int], by: int) -> bool:
    """Whether this much was held at once: the whole answer, at its end."""
    return any(after - before >= by for before, after in pairwise(counts))


# -- a process that lives on ---------------------------------------------------------------------------------------


async def test_an_answer_in_flight_is_complete_afterwards_and_there_once(
    away: Away, tmp_path: Path
) -> None:
    """It streams to its end though the store is away; meanwhile nothing is begun, and the face is told."""
    held, model = HeldCounts(), Gated([STREAM, "never"])
    runtime = Runtime(
        away.config(tmp_path), journal=away.journal, models=[model], on_held=held
    )
    async with runtime:
        name = await runtime.new()
        await runtime.submit(name, "q")
        await until(runtime, name, "reply.delta", nth=2)
        await asyncio.to_thread(away.go)
        model.may.set()
        try:
            await held.until(lambda counts: jumped(counts, len(WORDS)))
            assert len(model.bodies) == 1
        finally:
            await asyncio.to_thread(away.back)
        await held.until(lambda counts: counts[-1] == 0)
        assert held.counts[:-1] == sorted(held.counts[:-1])
        await later(lambda: until(runtime, name, "run.finished"))
        await runtime.workers.idle(name)
        rows = await runtime.transcript(name)
        assert [(row.kind, row.state, row.text) for row in rows] == [
            ("user", "", "q"),
            ("assistant", "", WORDS),
        ]
        assert await outcomes(runtime, name) == ["completed"]
        assert await told(runtime, name, RunLate, MessagePartial) == []
        assert len(model.bodies) == 1
        assert verify(runtime.journal.journal).problems == []


async def test_a_turn_that_needs_a_tool_waits_and_then_goes_on(
    away: Away, tmp_path: Path
) -> None:
    """The answer that asks for it is held; the tool is used once the store is back, and the model asked again."""
    held, file = HeldCounts(), tmp_path / "notes"
    words = " ".join(f"w{n}" for n in range(60))
    model = Gated(
        [
            Reply(
                words=words, pause=0.02, calls=[ScriptedCall("note", {"text": "milk"})]
            ),
            "done",
        ]
    )
    runtime = Hands(
        away.config(tmp_path), journal=away.journal, models=[model], on_held=held
    )
    async with runtime.with_tools(Note(file)):
        name = await runtime.new()
        await runtime.submit(name, "q")
        await until(runtime, name, "reply.delta", nth=2)
        await asyncio.to_thread(away.go)
        model.may.set()
        try:
            await held.until(lambda counts: jumped(counts, len(words)))
            assert (lines(file), len(model.bodies)) == ([], 1)
        finally:
            await asyncio.to_thread(away.back)
        await later(lambda: until(runtime, name, "run.finished"))
        assert len(lines(file)) == 1
        assert len(model.bodies) == 2
        rows = await runtime.transcript(name)
        assert [(row.kind, row.text) for row in rows[1:]] == [
            ("assistant", words),
            ("tool", "noted milk"),
            ("assistant", "done"),
        ]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system that is soon full, where one may be mounted."""
    point = tmp_path / "small"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(point)]
    mounted = not subprocess.run(mount, check=False, capture_output=True).returncode
    yield point
    if mounted:
        subprocess.run(["umount", "-l", point], check=True)


async def test_the_room_of_the_spool_was_taken_before_the_disk_was_full(
    small_disk: Path,
) -> None:
    """The store and the spool lie on one disk, and that is full."""
    held, model = HeldCounts(), Gated([STREAM])
    config = config_of(f"sqlite:///{small_disk}/tenax.db", small_disk)
    async with Runtime(config, models=[model], on_held=held) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "q")
        await until(runtime, name, "reply.delta", nth=2)
        await remembering.until(lambda: room_taken(small_disk) >= ROOM_BYTES)
        small = is_small(small_disk)
        if small:
            fill(small_disk / "ballast")
        model.may.set()
        if small:
            await held.until(lambda counts: counts[-1] > 0)
            (small_disk / "ballast").unlink()
            await held.until(lambda counts: counts[-1] == 0)
        await later(lambda: until(runtime, name, "run.finished"))
        assert prose(await runtime.transcript(name)) == [WORDS]


def room_taken(home: Path) -> int:
    """By the one spool that there is, once it is there."""
    return sum(path.stat().st_blocks * 512 for path in home.glob("spool/*/spool"))


def is_small(disk: Path) -> bool:
    return os.path.ismount(disk)


def fill(file: Path) -> None:
    """Leave no byte."""
    with file.open("wb", buffering=0) as out:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    out.write(bytes(size))
            except OSError:
                continue


async def test_closing_while_the_store_is_away_is_quick_and_loses_nothing(
    server: PostgresServer, tmp_path: Path
) -> None:
    """What was held stays in the spool; the next start hands it in and goes on."""
    held, config = HeldCounts(), config_of(server.create_database(), tmp_path)
    runtime = Runtime(config, models=[ScriptedModel([ENDLESS])], on_held=held)
    await runtime.start()
    name = await runtime.new()
    await runtime.submit(name, "q")
    await until(runtime, name, "reply.delta", nth=2)
    await asyncio.to_thread(server.stop, "immediate")
    try:
        await held.until(lambda counts: counts[-1] > 0)
        # An append that waited for the store would wait for longer than this test may take.
        runtime.journal.store.patience = 600.0
        async with asyncio.timeout(SECONDS):
            await runtime.close()
    finally:
        await asyncio.to_thread(server.start)
    text = held_text(config.directories.data / "spool")
    async with Runtime(config, models=[ScriptedModel(["again"])]) as runtime:
        await until(runtime, name, "run.finished", nth=2)
        earlier, again = prose(await runtime.transcript(name))
        assert (len(earlier), again) == (len(text), "again")
        assert LONG.startswith(earlier)


# -- a process that dies meanwhile ---------------------------------------------------------------------------------


def stream_until_killed(
    teller: Teller, url: str, home: str, name: str, full: bool
) -> None:
    """Answer; tell when text has been stored, and each time that more is held."""

    async def work(journal: Journal, go: Callable[[], None]) -> None:
        config = config_of(url, Path(home))
        tell = lambda _, count: teller.tell("held", count)  # noqa: E731  (a word for it)
        async with Runtime(
            config, journal=journal, models=[ScriptedModel([ENDLESS])], on_held=tell
        ) as runtime:
            await runtime.submit(name, "q")
            await until(runtime, name, "reply.delta", nth=2)
            go()
            teller.tell("streams")
            await asyncio.sleep(60)

    if full:
        with FaultVfs() as disk:
            journal = disk.open(Path(url.removeprefix("sqlite:///")), patience=2.0)
            asyncio.run(
                work(journal, lambda: disk.fail("write", Fault.FULL, times=None))
            )
    else:
        asyncio.run(work(tenax.open(url, patience=2.0), lambda: None))


def held_text(folder: Path) -> str:
    """What of the answer stands in a spool: from where, and what."""
    text = ""
    for spool in left(folder, lambda _: False):
        for entry in spool.read():
            event = decode(entry.kind, entry.body)
            if isinstance(event, ReplyDelta):
                text = text or "?" * event.offset
                assert event.offset == len(text)
                text += event.text
        spool.close(remove=False)
    return text


@pytest.mark.parametrize(("how", "resume"), [("full", "ask"), ("stopped", "auto")])
async def test_what_a_killed_process_held_is_in_the_transcript_once(
    request: pytest.FixtureRequest, tmp_path: Path, how: str, resume: str
) -> None:
    """Killed while the store was away, started again when it was back: every character, with its own run."""
    server: PostgresServer | None = (
        request.getfixturevalue("server") if how == "stopped" else None
    )
    url = server.create_database() if server else f"sqlite:///{tmp_path}/tenax.db"
    (tmp_path / "config.toml").write_text(f'resume = "{resume}"\n')
    config = config_of(url, tmp_path)
    with tenax.open(url) as journal:
        name = begin(journal)
    child = Child(stream_until_killed, url, str(tmp_path), name, how == "full")
    child.read_until(1)
    if server:
        await asyncio.to_thread(server.stop, "immediate")
    child.read_until(6)
    child.kill()
    assert child.finish() == -9
    if server:
        await asyncio.to_thread(server.start)
    held = held_text(config.directories.data / "spool")
    assert held.strip("?")
    async with Runtime(config, models=[ScriptedModel(["again"])]) as runtime:
        end = await until(runtime, name, "run.finished")
        assert end.event.outcome == "interrupted"  # type: ignore[union-attr]
        if resume == "auto":
            await until(runtime, name, "run.finished", nth=2)
        rows = await runtime.transcript(name)
        (cut,) = [row for row in rows if row.run == end.run and row.kind == "assistant"]
        assert len(cut.text) == len(held)
        assert LONG.startswith(cut.text)
        assert prose(rows) == [cut.text, *(["again"] if resume == "auto" else [])]
        marker = next(row for row in rows if row.kind == "marker")
        assert marker.state == ("resumed" if resume == "auto" else "recovered")
    assert list((config.directories.data / "spool").glob("*/spool")) == []


# -- handing in what a dead process held ---------------------------------------------------------------------------


def leave_a_spool(teller: Teller, url: str, home: str, name: str, answer: str) -> None:
    """Begin to answer, store some of it, hold more (also the whole answer, if `answer` says so), and say no more."""
    config = config_of(url, Path(home))
    journal = tenax.open(url)
    lease = journal.claim(f"run:{name}", journal.instance, 60)
    (asked,) = journal.append(name, [MessageUser([Text("q")], ask=True)])
    started = RunStarted([asked.seq], place="here", instance=journal.instance)
    journal.append(name, [started], run="r-1", lease=lease)
    (request,) = journal.append(
        name, [ModelRequested(asked.seq, "0", "script", 60)], run="r-1", lease=lease
    )
    journal.append(name, [ReplyDelta(request.seq, 0, "one ")], run="r-1", lease=lease)
    spool = Spool(config.directories.data / "spool", f"{journal.instance}.1")
    held: list[Event] = [
        ReplyDelta(request.seq, 0, "one two "),
        ReplyDelta(request.seq, 8, "three"),
    ]
    if answer:
        held.append(MessageAssistant([Text("one two three four")], request.seq))
    for event in held:
        spool.write(HeldEvent("local", name, "r-1", event.kind, encode(event), 0))
    if answer == "stored":
        journal.append(name, held[2:], run="r-1", lease=lease)
    teller.tell(journal.instance)
    threading.Event().wait(60)


def spooled(config: Config, name: str, answer: str = "") -> str:
    """The instance of a process that was killed with text in its spool."""
    child = Child(
        leave_a_spool, config.store_url, str(config.directories.data), name, answer
    )
    child.read_until(1)
    child.kill()
    assert child.finish() == -9
    until_free(config.store_url, name)
    return child.lines[0][0]


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


@pytest.fixture
def name(config: Config) -> str:
    with tenax.open(config.store_url) as journal:
        journal.append("c-1", [tenax.events.ConversationOpened("local", "s-1")])
    return "c-1"


async def shown(config: Config, name: str) -> str:
    """The text of the first run, in the order of the rows."""
    async with Runtime(config) as runtime:
        rows = await runtime.transcript(name)
        assert [row.kind for row in rows if row.kind != "assistant"] == [
            "user",
            "marker",
        ]
        assert rows[-1].state == "recovered"
        await asyncio.to_thread(verify, runtime.journal.journal)
        return "".join(prose(rows))


async def test_a_spool_is_handed_in_as_part_of_the_run_while_that_is_open(
    config: Config, name: str
) -> None:
    """The text is one answer, cut off; the instance is swept and the spool gone."""
    instance = spooled(config, name)
    assert await shown(config, name) == "one two three"
    with tenax.open(config.store_url) as journal:
        kinds = [event.kind for event in journal.read(name)]
        assert (kinds.count(MessagePartial.kind), kinds.count(RunLate.kind)) == (1, 0)
        assert {each.id: each.swept_at is not None for each in journal.instances()}[
            instance
        ]
    assert list((config.directories.data / "spool").iterdir()) == []


@pytest.mark.parametrize("answer", ["held", "stored"])
async def test_an_answer_that_was_held_whole_is_the_answer(
    config: Config, name: str, answer: str
) -> None:
    """The run is done, though its process died; also when it died between storing it and emptying the spool."""
    spooled(config, name, answer)
    async with Runtime(config, models=[model := ScriptedModel(["again"])]) as runtime:
        await until(runtime, name, "run.finished")
        rows = await runtime.transcript(name)
        assert [(row.kind, row.text) for row in rows] == [
            ("user", "q"),
            ("assistant", "one two three four"),
        ]
        assert await outcomes(runtime, name) == ["completed"]
        assert await told(runtime, name, RunLate) == []
    assert model.bodies == []


async def test_a_spool_is_handed_in_late_after_its_run_was_ended(
    config: Config, name: str
) -> None:
    """Only what the journal does not have: nothing is said twice, and it stands with its own run."""
    spooled(config, name)
    with SessionDB(url=config.store_url) as db:
        assert repair(db, "s-1", "r-1")["state"] == "recovered"
    assert await shown(config, name) == "one two three"


@pytest.mark.parametrize("resumed", [False, True], ids=["not resumed", "resumed"])
async def test_the_model_sees_what_was_held_once_or_not_at_all(
    config: Config, name: str, resumed: bool
) -> None:
    """The text of an unfinished step, marked as cut off, if the run is not gone on with; nothing of it if it is."""
    spooled(config, name)
    with SessionDB(url=config.store_url) as db:
        repair(db, "s-1", "r-1")
    model = ScriptedModel(["a", "b", "c"])
    async with Runtime(config, models=[model]) as runtime:
        if resumed:
            await runtime.go_on(name)
        else:
            await runtime.submit(name, "next")
        await until(runtime, name, "run.finished", nth=2)
        assert prose(await runtime.transcript(name))[:2] == ["one ", "two three"]
    (body,) = model.bodies
    seen = [
        part["text"]
        for message in msgspec.json.decode(body)["messages"]
        for part in message["parts"]
    ]
    assert seen == (["q"] if resumed else ["q", "one two three" + CUT_NOTE, "next"])


def sweep_and_die(teller: Teller, url: str, home: str, point: str) -> None:
    journal = FaultyJournal(tenax.open(url))
    journal.faults.kill(point)

    async def work() -> None:
        async with Runtime(config_of(url, Path(home)), journal=journal):
            teller.tell("swept")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("point", "ended"),
    [
        ("claim:after", False),
        ("append:before", False),
        ("append:after", False),
        ("append:after", True),
        ("swept:before", True),
    ],
)
async def test_a_kill_while_a_spool_is_handed_in_loses_and_doubles_nothing(
    config: Config, name: str, point: str, ended: bool
) -> None:
    """Whoever is next finishes it."""
    spooled(config, name)
    if ended:
        with SessionDB(url=config.store_url) as db:
            repair(db, "s-1", "r-1")
    child = Child(sweep_and_die, config.store_url, str(config.directories.data), point)
    assert child.finish() in {-9, 0}
    assert await shown(config, name) == "one two three"
    assert list((config.directories.data / "spool").iterdir()) == []


def sweep(teller: Teller, url: str, home: str) -> None:
    async def work() -> None:
        async with Runtime(config_of(url, Path(home))):
            teller.tell("swept")

    asyncio.run(work())


async def test_a_run_that_is_ended_while_its_spool_is_handed_in_loses_nothing(
    config: Config, name: str
) -> None:
    """Between the look at the run and its lease another process may end it: then the words come late, and come."""
    spooled(config, name)
    sweeping = FaultyJournal(tenax.open(config.store_url))
    hold = sweeping.faults.hold("claim:before")

    async def sweep_slowly() -> None:
        async with Runtime(config, journal=sweeping):
            pass

    slow = asyncio.create_task(sweep_slowly())
    await asyncio.to_thread(hold.wait_until_reached)
    with SessionDB(url=config.store_url) as db:
        assert repair(db, "s-1", "r-1")["state"] == "recovered"
    hold.release()
    await slow
    sweeping.close()
    assert await shown(config, name) == "one two three"


async def test_two_processes_that_sweep_at_once_hand_it_in_once(
    config: Config, name: str
) -> None:
    """One of them has the spool, whoever ends the run."""
    spooled(config, name)
    children = [
        Child(sweep, config.store_url, str(config.directories.data)) for _ in range(3)
    ]
    assert finish_all(children) == [0] * 3
    assert await shown(config, name) == "one two three"


async def test_what_belongs_to_a_deleted_conversation_goes_with_it(
    config: Config, name: str
) -> None:
    """The start goes on, and the spool is gone."""
    spooled(config, name)
    with SessionDB(url=config.store_url) as db:
        repair(db, "s-1", "r-1")
        db.delete_session("s-1")
    async with Runtime(config) as runtime:
        assert await runtime.journal.conversations() == []
    assert list((config.directories.data / "spool").iterdir()) == []


async def test_a_damaged_spool_stays_for_a_person_and_holds_nothing_up(
    config: Config, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is stored is shown; nobody says that no more will come."""
    instance = spooled(config, name)
    file = config.directories.data / "spool" / f"{instance}.1" / "spool"
    folder = Spool(file.parent.parent, file.parent.name, make=False)
    folder.write(HeldEvent("local", name, "r-1", "reply.delta", b"not JSON", 0))
    folder.close(remove=False)
    async with Runtime(config) as runtime:
        assert prose(await runtime.transcript(name)) == ["one "]
        known = {each.id: each.swept_at for each in await runtime.journal.instances()}
        assert known[instance] is None
    assert file.exists()
    assert "kept for later" in caplog.text


async def test_what_was_held_of_a_run_that_another_took_waits_for_nobody_any_more(
    config: Config,
) -> None:
    """It is stored as late output: nothing is said to wait, and the room in the spool is free again."""
    told_of = HeldCounts()
    with tenax.open(config.store_url) as plain, tenax.open(config.store_url) as other:
        journal = FaultyJournal(plain)
        models = [ScriptedModel([STREAM])]
        async with Runtime(
            config, journal=journal, models=models, on_held=told_of
        ) as runtime:
            name = await runtime.new()
            await runtime.submit(name, "go")
            await until(runtime, name, ReplyDelta.kind)
            hold = journal.faults.hold("store:begin")
            await told_of.until(lambda counts: counts[-1] > 0)
            assert other.claim(f"run:{name}", "another", 60, take_over=True)
            hold.release()
            await until(runtime, name, RunLate.kind)
            await told_of.until(lambda counts: counts[-1] == 0)
            assert runtime.spool.held_bytes == {}


async def test_a_spool_that_cannot_be_taken_away_holds_up_no_other(
    config: Config, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails for a moment: what stands behind it is handed in all the same, and it is let go of."""
    spooled(config, name)
    with tenax.open(config.store_url) as journal:
        journal.append("c-2", [tenax.events.ConversationOpened("local", "s-2")])
    spooled(config, "c-2")
    unlink, failed = Path.unlink, list[Path]()

    def fail_once(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == "spool" and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", fail_once)
    async with Runtime(config) as runtime:
        assert failed
        for each in (name, "c-2"):
            assert prose(await runtime.transcript(each)) == ["one two three"]
    async with Runtime(config) as runtime:
        assert prose(await runtime.transcript(name)) == ["one two three"]
    assert list((config.directories.data / "spool").iterdir()) == []


async def test_a_conversation_that_cannot_be_read_holds_up_no_repair(
    config: Config, name: str
) -> None:
    """The runs of dead processes are ended everywhere else."""
    with tenax.open(config.store_url) as journal:
        journal.append("c-2", [tenax.events.ConversationOpened("local", "s-2")])
    for each in (name, "c-2"):
        spooled(config, each)
    break_events(config.store_url, name, ModelRequested.kind)
    async with Runtime(config) as runtime:
        assert [(await runtime.journal.head(each)).run for each in (name, "c-2")] == [
            "r-1",
            None,
        ]


async def test_a_moment_without_room_for_one_more_file_ends_no_upkeep(
    config: Config,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process that runs for months may meet its limit once; what a dead process leaves later is still seen to."""
    config = with_timing(config, upkeep_seconds=0.05)
    async with Runtime(
        config, models=[ScriptedModel([STREAM])], serves=True
    ) as runtime:
        await runtime.spool.prepare()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, hard))
        try:
            await remembering.until(
                lambda: any(
                    getattr(record, "action", "") == "upkeep_waits"
                    for record in caplog.records
                )
            )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        spooled(config, name)
        await until(runtime, name, MessagePartial.kind)


async def test_a_disk_that_hangs_keeps_nobody_from_ending(
    config: Config, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was on its way to the spool is not waited for."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(_file: int) -> None:
        hangs.set()
        goes_on.wait()

    with tenax.open(config.store_url) as journal:
        held = spooling.OutputSpool(
            AsyncJournal(journal), config.directories.data / "spool", lambda *_: None
        )
        await held.prepare()
        monkeypatch.setattr("tenax.journal.spool.flush", hang)
        holding = asyncio.create_task(held.hold(name, "r-1", ReplyDelta(1, 0, "words")))
        assert await asyncio.to_thread(hangs.wait, SECONDS)
        try:
            # The disk hangs until the end of this block.
            async with asyncio.timeout(SECONDS):
                await held.close()
        finally:
            goes_on.set()
        await holding


async def test_a_spool_that_fails_when_nobody_waits_for_it_is_no_surprise(
    config: Config, name: str
) -> None:
    """Else Python prints a traceback for it when the process ends, as in a store that may only be read."""
    surprises: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: surprises.append(context))
    with tenax.open(config.store_url) as journal:
        store = AsyncJournal(journal)
        asked, fails = asyncio.Event(), asyncio.Event()

        async def instance() -> str:
            asked.set()
            await fails.wait()
            raise StoreUnavailable("It may only be read.")

        store.instance = instance  # type: ignore[method-assign]
        held = spooling.OutputSpool(
            store, config.directories.data / "spool", lambda *_: None
        )
        waiting = asyncio.create_task(held.prepare())
        await asked.wait()
        (making,) = (task for task in asyncio.all_tasks() if task.get_name() == "spool")
        waiting.cancel()
        await asyncio.wait({waiting})
        fails.set()
        await asyncio.wait({making})
        await held.close()
        # A failed task is reported when nothing refers to it any more.
        del held, making, waiting
        gc.collect()
    assert surprises == []


async def test_a_spool_of_another_store_is_left_alone(
    config: Config, name: str, tmp_path: Path
) -> None:
    """The same folder, another store: its conversations are not missing, they are elsewhere."""
    spooled(config, name)
    async with Runtime(
        config_of(f"sqlite:///{tmp_path}/other.db", config.directories.data)
    ) as runtime:
        assert await runtime.journal.conversations() == []
    assert await shown(config, name) == "one two three"


def sweep_for_ever(teller: Teller, folder: str) -> None:
    teller.tell("sweeps")
    while True:
        for spool in left(Path(folder), lambda _: False):
            spool.close(remove=True)


def test_a_spool_can_be_made_while_others_sweep(tmp_path: Path) -> None:
    """A sweep that meets a folder in the making takes nothing from who makes it."""
    sweeper = Child(sweep_for_ever, str(tmp_path))
    sweeper.read_until(1)
    for n in range(30):
        spool = Spool(tmp_path, f"i_{n}.1")
        spool.write(HeldEvent("local", "c-1", "r-1", "reply.delta", b"words", 0))
        assert (tmp_path / f"i_{n}.1" / "spool").exists()
        assert [event.body for event in spool.read()] == [b"words"]
        spool.close(remove=True)
    sweeper.kill()
    assert sweeper.finish() == -9


# -- one question in a terminal ------------------------------------------------------------------------------------


def test_a_question_says_once_that_the_store_is_away_and_once_that_it_is_back(
    tmp_path: Path,
) -> None:
    """The answer is whole, and nobody has to read a line for every word that is held."""
    set_up(tmp_path, [STREAM])
    pace = Pace(tmp_path, 10)
    asked = subprocess.Popen(
        [sys.executable, "-m", "tenax", "-p", "go"],
        env={**environment(tmp_path), **pace.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    with asked:
        assert asked.stdout is not None
        said = asked.stdout.read(20)
        assert asked.stderr is not None
        told = b""
        # Whoever has this lock keeps every writer of the store waiting.
        with (tmp_path / "tenax.db-lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            pace.say()
            # A line of the log may say the same earlier.
            while b"tenax: the store is not responding" not in told:
                line = asked.stderr.readline()
                assert line, told
                told += line
        rest, more = asked.communicate(timeout=SECONDS)
        told += more
    assert (asked.returncode, (said + rest).decode()) == (0, f"{WORDS}\n")
    assert b"Traceback" not in told
    ours = [line for line in told.decode().splitlines() if line.startswith("tenax: ")]
    assert ours == [
        "tenax: the store is not responding. The answer is saved on this host until it is back.",
        "tenax: the store responds again.",
    ]


PATIENT = """
import sys
import tenax
from tenax.__main__ import main
tenax.open.__kwdefaults__["patience"] = 600.0
sys.exit(main())
"""
"""The command `tenax`, with appends that wait for the store for longer than a test may take."""


def test_ctrl_c_ends_a_question_while_the_server_is_away(tmp_path: Path) -> None:
    """What waits for the store is not waited for; what was printed is held, and handed in by the next start."""
    set_up(tmp_path, [ENDLESS])
    with PostgresServer() as server:
        env = environment(tmp_path) | {"TENAX_STORE": server.create_database()}
        asked = subprocess.Popen(
            [sys.executable, "-c", PATIENT, "-p", "go"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        with asked:
            assert asked.stdout is not None
            assert asked.stderr is not None
            asked.stdout.read(20)
            server.stop("immediate")
            while b"does not answer" not in (line := asked.stderr.readline()):
                assert line
            asked.send_signal(signal.SIGINT)
            try:
                _, told = asked.communicate(timeout=SECONDS)
            finally:
                asked.kill()
    assert (asked.returncode, b"Traceback" in told) == (130, False), told


STEPS = f"{WORDS}\ndone\n"
"""What is printed of an answer in two steps."""


class Impatient(Runtime):
    """Gives a store that is away up soon, and tells when text was shown and when following it was refused."""

    def __init__(self, config: Config, **how: Any) -> None:
        self.may = threading.Event()
        self.shown = threading.Event()
        self.refused = threading.Event()
        self.own = tenax.open(config.store_url, patience=1.0, timing=config.timing)
        model = Gated(
            [Reply(words=WORDS, calls=[ScriptedCall("none", {})]), "done"], self.may
        )
        super().__init__(config, journal=self.own, models=[model], **how)

    async def follow(
        self, conversation: str, after: Any = 0, **how: Any
    ) -> AsyncGenerator[Any, None]:
        try:
            async for at, changes in super().follow(conversation, after, **how):
                yield at, changes
                if any(isinstance(change, Grow) for change in changes):
                    self.shown.set()
        except StoreUnavailable:
            self.refused.set()
            raise


def test_a_question_shows_each_word_once_after_a_crash_that_takes_numbers_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The crash takes stored text, its numbers go to other events, and whoever prints begins again in between."""
    made: Future[Impatient] = Future()

    def make(*args: Any, **how: Any) -> Impatient:
        made.set_result(Impatient(*args, **how))
        return made.result()

    monkeypatch.setattr(sys.modules[ask.__module__], "Runtime", make)
    # The server flushes nothing by itself, so what was stored without a flush is lost.
    with (
        PostgresServer({"wal_writer_delay": "10s"}) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        config = config_of(server.create_database(), tmp_path)
        config = replace(config, context_files=False)
        config = with_timing(config, reader_seconds=0.5)

        def crash() -> None:
            runtime = made.result(SECONDS)
            assert runtime.shown.wait(SECONDS)
            server.stop("immediate")
            runtime.may.set()
            refused = runtime.refused.wait(SECONDS)
            server.start()
            assert refused

        crashing = pool.submit(crash)
        status = ask(
            config,
            "go",
            conversation=None,
            how="queue",
            as_json=False,
        )
        crashing.result()
        made.result().own.close()
    assert (status, capfd.readouterr().out) == (0, STEPS)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_question_shows_each_word_once_after_a_crash_of_a_minute(
    tmp_path: Path,
) -> None:
    """The same with the real command and its own patience."""
    set_up(
        tmp_path,
        [Reply(words=WORDS, calls=[ScriptedCall("none", {})]), Reply(words="done")],
    )
    pace = Pace(tmp_path, FIRST_WORDS)
    with PostgresServer({"wal_writer_delay": "10s"}) as server:
        env = environment(tmp_path) | {"TENAX_STORE": server.create_database()}
        command = [sys.executable, "-m", "tenax", "-p", "go"]
        with subprocess.Popen(
            command,
            env={**env, **pace.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        ) as asked:
            assert asked.stdout is not None
            said = asked.stdout.read(20)
            server.stop("immediate")
            pace.say()
            time.sleep(50)  # the absence itself
            server.start()
            rest, told = asked.communicate(timeout=2 * SECONDS)
    assert (asked.returncode, (said + rest).decode()) == (0, STEPS), told
