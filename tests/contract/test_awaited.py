"""The async facade: the same verbs, one commit for many tasks, and a cancelled caller that still learns the outcome."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import tenax
from tenax.errors import HeadMoved, StoreMisused, StoreUnavailable
from tenax.journal import Journal
from tenax.journal.aio import THREADS, AsyncJournal, CancelledAppend
from tenax.journal.base import Expect, Lease, Recorded
from tenax.journal.plan import Append
from tenax.testing import FaultyJournal, memory
from tests.contract.engine.base import begin, said, say

TASKS = 64
NOT_AWAITED = {"of", "number"}
"""These touch no store, or belong to the facade itself."""
WITH_CODE_OF_THEIR_OWN = {
    "append",
    "carry",
    "close",
    "extend",
    "load",
    "tail",
    "wait",
}
"""TestMemoryAwaited and the like run the contract of these."""


def verbs(kind: type) -> set[str]:
    return {
        name
        for name, each in inspect.getmembers(kind)
        if callable(each) and not name.startswith("_")
    }


def test_the_facade_has_every_verb_with_the_same_signature() -> None:
    """Names, parameters, defaults and annotations are those of the journal; only `tail` is stopped by its task."""
    plain = verbs(Journal) - NOT_AWAITED
    assert plain <= verbs(AsyncJournal)
    assert verbs(AsyncJournal) - plain - NOT_AWAITED <= {
        "apart",
        "instance",
        "journal",
        "let_go",
    }
    for name in plain:
        ours, theirs = (
            inspect.signature(getattr(kind, name)) for kind in (AsyncJournal, Journal)
        )
        expected = [
            parameter
            for parameter in theirs.parameters.values()
            if (name, parameter.name) != ("tail", "stop")
        ]
        assert [
            (parameter.name, parameter.kind, parameter.default)
            for parameter in ours.parameters.values()
        ] == [(each.name, each.kind, each.default) for each in expected], name
        method = getattr(AsyncJournal, name)
        assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(
            method
        ), name


def test_a_verb_of_the_facade_is_the_verb_of_the_journal() -> None:
    """Each runs the journal's method of its own name. The contract runs on those that do something else."""
    for name in verbs(Journal) - NOT_AWAITED - WITH_CODE_OF_THEIR_OWN:
        method = getattr(AsyncJournal, name)
        assert inspect.unwrap(method) is inspect.unwrap(getattr(Journal, name)), name


def test_threads_that_could_not_be_started_are_started_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine may have no room for one more at that moment: that is refused, and nobody waits for it."""
    start, room = threading.Thread.start, threading.Event()

    def full(thread: threading.Thread) -> None:
        if thread.name.startswith("tenax-aio") and not room.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    async def read() -> None:
        async with asyncio.timeout(60), AsyncJournal(memory()) as journal:
            for _ in range(THREADS + 1):
                with pytest.raises(StoreUnavailable):
                    await journal.conversations()
            room.set()
            assert await journal.conversations() == []
            room.clear()
            assert await journal.conversations() == []

    monkeypatch.setattr(threading.Thread, "start", full)
    asyncio.run(read())


def test_a_loop_that_ends_while_its_append_is_stored_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can close between the look whether it is there and the call into it."""
    journal = tenax.open(f"sqlite:///{tmp_path}/tenax.db")
    name, store, loop = begin(journal), journal.store, asyncio.new_event_loop()
    append = Append.of_events(
        journal.owner,
        name,
        [say("first")],
        ids=journal.ids,
        run=None,
        expect=None,
        lease=None,
        dedup=None,
        append_id=None,
    )
    waiter = store.waiter(append, loop.create_future())
    loop.close()
    monkeypatch.setattr(loop, "is_closed", lambda: False)
    store.queue.submit(waiter)
    after = threading.Thread(
        target=journal.append, args=(name, [say("second")]), daemon=True
    )
    after.start()
    after.join(30)
    assert not after.is_alive()
    assert said(journal, name) == ["first", "second"]
    journal.close()


@pytest.fixture
async def held(
    tmp_path: Path,
) -> AsyncIterator[tuple[AsyncJournal, FaultyJournal, str]]:
    """A journal whose next commit can be held."""
    faulty = FaultyJournal(tenax.open(f"sqlite:///{tmp_path}/tenax.db"))
    name = begin(faulty)
    async with AsyncJournal(faulty) as journal:
        yield journal, faulty, name


async def test_tasks_that_wait_share_a_commit(
    held: tuple[AsyncJournal, FaultyJournal, str],
) -> None:
    """Sixty-four tasks that append while a commit goes on need one commit for all of them."""
    journal, faulty, name = held
    hold = faulty.faults.hold("store:begin")
    first = asyncio.create_task(journal.append(name, [say("first")]))
    await asyncio.to_thread(hold.wait_until_reached)
    tasks = [
        asyncio.create_task(journal.append(name, [say(f"{n}")])) for n in range(TASKS)
    ]
    while faulty.store.queue.waiting < TASKS:  # noqa: ASYNC110  (a queue of threads tells no event)
        await asyncio.sleep(0)
    before = faulty.store.queue.groups
    hold.release()
    stored = await asyncio.gather(first, *tasks)
    assert [each.seq for (each,) in stored] == list(range(2, 3 + TASKS))
    assert faulty.store.queue.groups - before == 1


@pytest.mark.parametrize("name", [object(), "\ud800"], ids=["object", "surrogate"])
async def test_an_append_that_the_database_cannot_take_fails_alone(
    store_url: str, name: Any
) -> None:
    """Those that share its commit are stored, once and in order; its own caller gets the error."""
    faulty = FaultyJournal(tenax.open(store_url))
    conversations = [begin(faulty, name=f"c-{n}") for n in range(3)]
    odd = Append.of_events(faulty.owner, conversations[1], [say("odd")], ids=faulty.ids, run=None, expect=None,
                           lease=Lease("run", "me", 1, 5.0, bytes(16)), dedup=None, append_id=None)  # fmt: skip
    odd.lease = Lease(name, "me", 1, 5.0, bytes(16))  # `of_events` refuses it
    async with AsyncJournal(faulty) as journal:
        hold = faulty.faults.hold("store:begin")
        first = asyncio.create_task(journal.append(conversations[0], [say("first")]))
        await asyncio.to_thread(hold.wait_until_reached)
        before = asyncio.create_task(journal.append(conversations[0], [say("before")]))
        await asyncio.sleep(0)
        outcome = asyncio.get_running_loop().create_future()
        faulty.store.queue.submit(faulty.store.waiter(odd, outcome))
        after = asyncio.create_task(journal.append(conversations[2], [say("after")]))
        while faulty.store.queue.waiting < 3:  # noqa: ASYNC110  (a queue of threads tells no event)
            await asyncio.sleep(0)
        hold.release()
        await asyncio.gather(first, before, after)
        with pytest.raises(Exception):  # noqa: B017, PT011  (whatever the database says)
            await outcome
        stored = [said(faulty, conversation) for conversation in conversations]
    assert stored == [["first", "before"], [], ["after"]]


async def test_a_cancelled_append_says_that_it_is_stored(
    held: tuple[AsyncJournal, FaultyJournal, str],
) -> None:
    """The task ends as cancelled, after the commit, and its error carries what was stored."""
    journal, faulty, name = held
    hold = faulty.faults.hold("store:commit")
    task = asyncio.create_task(journal.append(name, [say("kept")]))
    await asyncio.to_thread(hold.wait_until_reached)
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()  # however often
    assert not task.done()
    hold.release()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    outcome = cancelled.value.args[0]
    assert isinstance(outcome, CancelledAppend)
    assert [each.seq for each in outcome.recorded] == [2]
    assert outcome.error is None
    assert said(faulty, name) == ["kept"]
    (again,) = await journal.append(name, [say("kept")], append_id=outcome.append_id)
    assert again.seq == 2


async def test_a_cancelled_append_says_that_it_was_refused(
    held: tuple[AsyncJournal, FaultyJournal, str],
) -> None:
    """The same when the outcome is no."""
    journal, faulty, name = held
    hold = faulty.faults.hold("store:commit")
    task = asyncio.create_task(
        journal.append(name, [say("no")], expect=Expect(head=99))
    )
    await asyncio.to_thread(hold.wait_until_reached)
    task.cancel()
    hold.release()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    outcome = cancelled.value.args[0]
    assert (outcome.recorded, type(outcome.error)) == ([], HeadMoved)
    assert said(faulty, name) == []


async def test_an_append_holds_no_thread(
    held: tuple[AsyncJournal, FaultyJournal, str],
) -> None:
    """While a hundred appends wait, reads go on."""
    journal, faulty, name = held
    before = threading.active_count()
    hold = faulty.faults.hold("store:begin")
    tasks = [asyncio.create_task(journal.append(name, [say("x")])) for _ in range(100)]
    await asyncio.to_thread(hold.wait_until_reached)
    assert (await journal.head(name)).head == 1
    assert len(await journal.conversations()) == 1
    assert threading.active_count() - before < 20
    hold.release()
    await asyncio.gather(*tasks)


async def test_tails_do_not_use_up_the_threads() -> None:
    """Fifty tails wait on four threads, and all of them see the next event."""
    async with AsyncJournal(memory()) as journal:
        name = begin(journal.journal)

        async def first(tail: AsyncIterator[Recorded]) -> int:
            async for each in tail:
                return each.seq
            return 0

        listen = asyncio.Semaphore(0)
        journal.store.wakeups.on_first = listen.release
        tails = [asyncio.create_task(first(journal.tail(name, 1))) for _ in range(50)]
        for _ in tails:
            await listen.acquire()
        await journal.append(name, [say("now")])
        assert set(await asyncio.wait_for(asyncio.gather(*tails), 30)) == {2}


async def test_a_loop_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    """An append whose event loop was closed is stored all the same, and the others go on."""
    journal = tenax.open(f"sqlite:///{tmp_path}/tenax.db")
    faulty = FaultyJournal(journal)
    name = begin(faulty)
    hold = faulty.faults.hold("store:commit")

    def abandon() -> None:
        loop = asyncio.new_event_loop()
        # asyncio reports a task that is destroyed while it waits. The test wants just that.
        loop.set_exception_handler(lambda _loop, _context: None)
        task = loop.create_task(AsyncJournal(faulty).append(name, [say("abandoned")]))
        loop.run_until_complete(asyncio.sleep(0))
        hold.wait_until_reached()
        loop.close()
        del task

    await asyncio.to_thread(abandon)
    hold.release()
    assert [each.seq for each in journal.append(name, [say("after")])] == [3]
    assert said(journal, name) == ["abandoned", "after"]
    journal.close()


async def test_a_task_that_waits_is_answered_when_the_store_is_closed(
    tmp_path: Path,
) -> None:
    """A thread leads the commit, a task waits behind it, and the store is closed: both learn what became of it."""
    faulty = FaultyJournal(tenax.open(f"sqlite:///{tmp_path}/tenax.db"))
    name = begin(faulty)
    journal = AsyncJournal(faulty)
    await journal.append(name, [say("first")])
    hold = faulty.faults.hold("store:commit")
    thread = asyncio.create_task(
        asyncio.to_thread(faulty.append, name, [say("from a thread")])
    )
    await asyncio.to_thread(hold.wait_until_reached)
    task = asyncio.create_task(journal.append(name, [say("from a task")]))
    while not faulty.store.queue.waiting:  # noqa: ASYNC110  (a queue of threads tells no event)
        await asyncio.sleep(0)
    closing = asyncio.create_task(journal.close())
    while not faulty.store.queue.closed:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    hold.release()
    done, late = await asyncio.wait([thread, task, closing], timeout=60)
    assert not late, "somebody still waits"
    outcomes = [each.exception() for each in (thread, task)]
    assert all(
        outcome is None or isinstance(outcome, StoreMisused) for outcome in outcomes
    )
    with tenax.open(f"sqlite:///{tmp_path}/tenax.db") as again:
        told = [
            "first",
            *(
                text
                for text, each in zip(
                    ("from a thread", "from a task"), outcomes, strict=True
                )
                if not each
            ),
        ]
        assert said(again, name) == told
    assert done
