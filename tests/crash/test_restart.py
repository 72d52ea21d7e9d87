"""A process ends, in whatever way, and the next one goes on: nothing has to be read for that."""

from __future__ import annotations

import asyncio
import platform
import threading
import time
from pathlib import Path

import pytest

import tenax
from tenax.assembly import Runtime
from tenax.config import Config
from tenax.errors import (
    ConfigError,
    DedupReused,
    Gone,
    InvalidInput,
    NoSuchConversation,
    SessionEnded,
)
from tenax.events import (
    ConversationOpened,
    MessageUser,
    RunFinished,
    RunLate,
    RunStarted,
    SegmentEnded,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup
from tenax.models import Reply, ScriptedModel
from tenax.parts import Text
from tests.contract.engine.base import begin
from tests.support.children import Child, Teller
from tests.support.runs import (
    SECONDS,
    config_of,
    outcomes,
    prose,
    settled,
    told,
    until,
    with_timing,
)

pytestmark = pytest.mark.crash

MANY = {"sqlite": 10_000, "postgresql": 1_000}
"""Other conversations in the store. Opening ten thousand takes PostgreSQL ten seconds, and changes nothing here."""
WORDS = " ".join(f"w{n}" for n in range(400))
SLOW = Reply(words=WORDS, pause=0.01, hang=True)
"""It is never whole: who kills its process comes in time."""


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


def answer_slowly(teller: Teller, url: str, home: str, name: str) -> None:
    """Answer, and tell every piece of text that a client was shown."""

    async def work() -> None:
        async with Runtime(
            config_of(url, Path(home)), models=[ScriptedModel([SLOW])]
        ) as runtime:
            await runtime.submit(name, "go on for a while")
            async for _, changes in runtime.follow(name):
                for change in changes:
                    text = getattr(change, "text", "") or getattr(
                        getattr(change, "row", None), "text", ""
                    )
                    if "w" in text and not text.startswith("go"):
                        teller.tell(text.replace(" ", "_"))

    asyncio.run(work())


def until_free(url: str, name: str) -> None:
    """Wait until nobody has the conversation. A server hears of the end of a process a moment after its parent does."""
    with tenax.open(url) as journal:
        deadline = time.monotonic() + SECONDS
        while journal.holder(f"run:{name}") is not None:
            assert time.monotonic() < deadline, "a dead process still has it"
            time.sleep(0.01)


def killed_mid_answer(url: str, home: Path, name: str, pieces: int = 3) -> str:
    """What a client had been shown when the process was killed."""
    child = Child(answer_slowly, url, str(home), name)
    child.read_until(pieces)
    child.kill()
    assert child.finish() == -9
    until_free(url, name)
    return "".join(line[0] for line in child.lines).replace("_", " ")


# -- the sweep at the start ----------------------------------------------------------------------------------------


async def test_what_any_client_was_shown_is_there_within_a_second_of_the_restart(
    config: Config, store_url: str, tmp_path: Path
) -> None:
    """With thousands of other conversations in the store; and the run goes on, though nobody reads it.

    The benchmark measures the second.
    """
    with tenax.open(store_url) as journal:
        name, other = begin(journal), begin(journal)
        facade = AsyncJournal(journal)
        for first in range(0, MANY[store_url.partition(":")[0]], 1000):
            await asyncio.gather(
                *(
                    facade.append(
                        f"many-{n}", [ConversationOpened("local", f"s-many-{n}")]
                    )
                    for n in range(first, first + 1000)
                )
            )
    shown = [killed_mid_answer(store_url, tmp_path, each) for each in (name, other)]
    # The sweep at the start repairs the runs: the next look comes after the end of this test.
    config = with_timing(config, upkeep_seconds=600)
    began = time.monotonic()
    runtime = Runtime(config, models=[ScriptedModel([SLOW])])
    await runtime.start()
    try:
        finished = [
            await until(runtime, each, "run.finished") for each in (name, other)
        ]
        took = time.monotonic() - began
        print(f"{platform.system()} {store_url[:6]}: repaired after {took:.3f} s")  # noqa: T201  (with -s)
        for each, text, end in zip((name, other), shown, finished, strict=True):
            assert isinstance(end.event, RunFinished)
            assert end.event.outcome == "interrupted"
            rows = await runtime.transcript(each)
            assert [row.kind for row in rows[:3]] == ["user", "assistant", "marker"]
            assert rows[1].text.startswith(text)
            assert WORDS.startswith(rows[1].text)
            assert rows[2].state in {"recovered", "resumed"}
            started = await until(runtime, each, "run.started", nth=2)
            assert started.event.resumes == end.run  # type: ignore[union-attr]
    finally:
        await runtime.close()


async def test_an_input_whose_process_died_before_its_run_began_is_answered(
    config: Config,
) -> None:
    """It was stored, so it is answered."""
    with tenax.open(config.store_url) as journal:
        name = begin(journal, MessageUser([Text("q")], ask=True))
    async with Runtime(config, models=[ScriptedModel(["a"])]) as runtime:
        await until(runtime, name, "run.finished")
        assert prose(await runtime.transcript(name)) == ["a"]


def run_and_hang(teller: Teller, url: str, name: str, host: str) -> None:
    """Begin a run, as if on this host, and say no more."""
    platform.node = lambda: host
    with tenax.open(url) as journal:
        lease = journal.claim(f"run:{name}", journal.instance, 60)
        (asked,) = journal.append(name, [MessageUser([Text("q")], ask=True)])
        started = RunStarted([asked.seq], instance=journal.instance, place="elsewhere")
        journal.append(name, [started], run="r-1", lease=lease)
        teller.tell(journal.instance)
        threading.Event().wait(60)


async def test_only_who_was_on_this_host_is_declared_swept(
    config: Config,
) -> None:
    """What a process on another host still holds nobody here can know."""
    # The look is over when the rows are there.
    config = with_timing(config, recovery_seconds=SECONDS)
    with tenax.open(config.store_url) as journal:
        names = [begin(journal) for _ in range(2)]
    swept = []
    for name, host in zip(names, (platform.node(), "another"), strict=True):
        child = Child(run_and_hang, config.store_url, name, host)
        child.read_until(1)
        child.kill()
        child.finish()
        until_free(config.store_url, name)
        swept.append(child.lines[0][0])
    async with Runtime(config, models=[ScriptedModel(["a"])]) as runtime:
        for name in names:
            await until(runtime, name, "run.finished")
        known = {
            instance.id: instance.swept_at
            for instance in await runtime.journal.instances()
        }
        assert [known[each] is not None for each in swept] == [True, False]
        state = [(await runtime.journal.run(name, "r-1")) for name in names]
        assert [each.attempts for each in state if each is not None] == [0, 0]
        for name, attempts in zip(names, (1, 0), strict=True):
            rows = await runtime.transcript(name)
            assert rows[-1].state == "pending"
            found = await runtime.journal.run(name, "r-1")
            assert found is not None
            assert found.attempts == attempts


async def test_the_run_of_a_live_process_is_left_alone(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it dies: then it is taken up, without a restart."""
    config = with_timing(config, upkeep_seconds=0.1)
    with tenax.open(config.store_url) as journal:
        name, free = begin(journal), begin(journal, MessageUser([Text("q")], ask=True))
    child = Child(run_and_hang, config.store_url, name, platform.node())
    child.read_until(1)
    async with Runtime(config, models=[ScriptedModel(["a"])]) as runtime:
        await until(runtime, free, "run.finished")
        assert (await runtime.journal.head(name)).run == "r-1"
        child.kill()
        child.finish()
        await until(runtime, name, "run.finished")


# -- the end in good order -----------------------------------------------------------------------------------------


async def test_closing_with_a_run_under_way_is_quick_and_the_next_start_goes_on(
    config: Config,
) -> None:
    """What was written is sealed, and the run goes on by itself."""
    runtime = Runtime(
        config, models=[ScriptedModel([Reply(words="half an answer", hang=True)])]
    )
    await runtime.start()
    name = await runtime.new()
    await runtime.submit(name, "q")
    await until(runtime, name, "reply.delta")
    # The model never ends, so to wait for it takes longer than this.
    async with asyncio.timeout(60):
        await runtime.close()
    with tenax.open(config.store_url) as journal:
        assert journal.head(name).run is None
    async with Runtime(config, models=[ScriptedModel(["whole"])]) as runtime:
        await until(runtime, name, "run.finished", nth=2)
        assert await outcomes(runtime, name) == ["interrupted", "completed"]
        # a stop in good order is no attempt
        assert (await told(runtime, name, RunStarted))[1].attempt == 0
        rows = await runtime.transcript(name)
        states = [
            ("user", ""),
            ("assistant", "earlier"),
            ("marker", "resumed"),
            ("assistant", ""),
        ]
        assert [(row.kind, row.state) for row in rows] == states
        assert "half an answer".startswith(rows[1].text)
        assert rows[3].text == "whole"


# -- a runtime as a whole ------------------------------------------------------------------------------------------


async def test_the_same_message_sent_twice_is_stored_and_answered_once(
    config: Config,
) -> None:
    """A channel's own id says that it is the same; with other words it is refused."""
    async with Runtime(config, models=[ScriptedModel(["a", "b"])]) as runtime:
        name, once = await runtime.new(), Dedup("chat", "1")
        first = await runtime.submit(name, "q", dedup=once)
        again = await runtime.submit(name, "q", dedup=once)
        assert (again.conversation, again.seq) == (first.conversation, first.seq)
        with pytest.raises(DedupReused):
            await runtime.submit(name, "another", dedup=once)
        await settled(runtime, name, first.seq)
        assert prose(await runtime.transcript(name), "user") == ["q"]
        assert prose(await runtime.transcript(name)) == ["a"]


async def test_a_message_that_cannot_be_stored_is_refused_with_a_sentence(
    config: Config,
) -> None:
    """An unknown, a deleted and an ended conversation; words that say nothing."""
    async with Runtime(config, models=[ScriptedModel(["a"])]) as runtime:
        with pytest.raises(NoSuchConversation):
            await runtime.submit("c-1", "q")
        deleted, ended, empty = [await runtime.new() for _ in range(3)]
        await runtime.journal.delete(deleted)
        with pytest.raises(Gone):
            await runtime.submit(deleted, "q")
        with pytest.raises(Gone):
            await runtime.transcript(deleted)
        segment = (await runtime.journal.head(ended)).segment
        await runtime.journal.append(ended, [SegmentEnded(segment or "", "done")])
        with pytest.raises(SessionEnded):
            await runtime.submit(ended, "q")
        for words in ("", " \n", [], [Text(" ")]):
            with pytest.raises(InvalidInput):
                await runtime.submit(empty, words)
        assert await runtime.transcript(empty) == []


async def test_two_users_see_nothing_of_each_other(config: Config) -> None:
    """In one process, on one store: no id of one opens anything for the other."""
    with tenax.open(config.store_url, user=None) as journal:
        ada, bob = (
            Runtime(
                config,
                user=user,
                journal=journal.of(user),
                models=[ScriptedModel([f"for {user}"])],
            )
            for user in ("ada", "bob")
        )
        async with ada, bob:
            name = await ada.new()
            stored = await ada.submit(name, "secret")
            await settled(ada, name, stored.seq)
            for work in (
                bob.transcript(name),
                bob.submit(name, "q"),
                bob.stop(name),
                bob.finished(name, 1),
                bob.answer(name, 1, "c", "once"),
                anext(bob.follow(name)),
            ):
                with pytest.raises(NoSuchConversation):
                    await work
            assert await bob.journal.conversations() == []
            assert (await bob.journal.search("secret")).hits == []
            assert prose(await ada.transcript(name)) == ["for ada"]
            # each has a spool of its own, though they are one instance
            for runtime in (ada, bob):
                await runtime.spool.hold(name, "r", RunFinished("completed"))
                await runtime.spool.let_go(name, "r")


async def test_without_a_model_transcripts_are_shown_and_dead_runs_repaired(
    config: Config, store_url: str, tmp_path: Path
) -> None:
    """Only talking needs one; a message is refused before anything is stored."""
    with tenax.open(store_url) as journal:
        name = begin(journal)
    shown = killed_mid_answer(store_url, tmp_path, name)
    async with Runtime(config) as runtime:
        rows = await runtime.transcript(name)
        assert [(row.kind, row.state) for row in rows[1:]] == [
            ("assistant", "cut"),
            ("marker", "recovered"),
        ]
        assert rows[1].text.startswith(shown)
        head = await runtime.journal.head(name)
        with pytest.raises(ConfigError):
            await runtime.submit(name, "q")
        assert (await runtime.journal.head(name)).head == head.head
        assert await told(runtime, name, RunLate) == []
