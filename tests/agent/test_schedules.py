"""Schedules: asked once when they are due, late once when they were missed, by one host of many, and only for their user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

import tenax
from tenax.assembly import Runtime
from tenax.clock import SystemClock
from tenax.config import Config
from tenax.errors import Gone, InvalidInput, NoSuchConversation
from tenax.events import (
    ApprovalAnswered,
    ApprovalAsked,
    MessageUser,
    RunFinished,
    ToolFinished,
)
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.verify.store import verify
from tenax.models import Piece, Reply, ScriptedCall, ScriptedModel
from tenax.parts import Text, text_of
from tenax.schedules.rows import SCHEDULES_MAX, Schedule, Schedules
from tenax.testing import SimClock
from tests.contract.engine.base import begin
from tests.support.children import Child, Teller, finish_all
from tests.support.runs import Hands, Note, config_of, outcomes, told, until
from tests.support.turns import (
    all_answered,
    die_after,
    new_conversation,
    set_up,
    wait_for,
)

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp() * 1e6)


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


@pytest.fixture
def clock() -> SimClock:
    return SimClock(us("2026-11-13 09:00"))  # a Friday


@pytest.fixture
def journal(config: Config, clock: SimClock) -> Iterator[Journal]:
    with tenax.open(config.store_url, user=LOCAL_USER, clock=clock) as journal:
        yield journal
        assert verify(journal).problems == []


@asynccontextmanager
async def talking(
    config: Config, journal: Journal, *script: Reply | str, model: bool = True
) -> AsyncIterator[Runtime]:
    """A runtime that asks what is due when the test says so."""
    models = [ScriptedModel(list(script) or ["Good morning."] * 9)] if model else None
    async with Runtime(config, journal=journal, models=models, serves=False) as runtime:
        yield runtime


async def asked(runtime: Runtime, name: str) -> list[str]:
    """What schedules asked in a conversation, once all of it is answered."""
    await runtime.workers.idle(name)
    found = await told(runtime, name, MessageUser)
    return [text_of(each.parts) for each in found if each.system]


def dues(journal: Journal) -> list[int | None]:
    return [element.due for element in Schedules(journal).all()]


async def test_every_weekday_at_eight_is_asked_once_each_and_answered(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """Not before, and not again; from Friday on to Monday; an archived conversation is no exception."""
    async with talking(config, journal) as runtime:
        name = await runtime.new()
        made = await runtime.schedules.add(
            "Say good morning.",
            "Every weekday at 8",
            conversation=name,
            zone="Europe/Berlin",
        )
        assert (made.when, made.due) == (
            "every weekday at 08:00",
            us("2026-11-16 08:00"),
        )
        clock.set_wall(us("2026-11-16 07:59"))
        assert await runtime.schedules.fire() == 0
        clock.set_wall(us("2026-11-16 08:00"))
        assert [await runtime.schedules.fire() for _ in range(2)] == [1, 0]
        await runtime.workers.idle(name)
        await runtime.archive(name)
        clock.set_wall(us("2026-11-17 08:00") + 59_000_000)
        assert await runtime.schedules.fire() == 1
        said = "[This is schedule {}, every weekday at 08:00 (Europe/Berlin). It was due on {} at 08:00.]\n\nSay good morning."
        assert await asked(runtime, name) == [
            said.format(made.id, day) for day in ("2026-11-16", "2026-11-17")
        ]
        assert await outcomes(runtime, name) == ["completed"] * 2
        assert dues(journal) == [us("2026-11-18 08:00")]
        rows = await runtime.transcript(name)
        assert [(row.kind, row.author) for row in rows[:2]] == [
            ("user", "system"),
            ("assistant", ""),
        ]


class Patient(ScriptedModel):
    """A model that answers when the test says so."""

    def __init__(self) -> None:
        super().__init__(["Good morning."] * 9)
        self.go = asyncio.Event()

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        await self.go.wait()
        async for piece in super().stream(body, silence=silence):
            yield piece


async def test_what_was_missed_runs_once_late_and_says_so(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """A week nobody was there; a schedule for one time is over after it, and its words are gone with it."""
    model = Patient()
    async with Runtime(
        config, journal=journal, models=[model], serves=False
    ) as runtime:
        name = await runtime.new()
        add = runtime.schedules.add
        await add(
            "Every day.", "every day at 8", conversation=name, zone="Europe/Berlin"
        )
        once = await add(
            "Only once.", "tomorrow at 9", conversation=name, zone="Europe/Berlin"
        )
        clock.set_wall(us("2026-11-20 08:30"))
        assert await runtime.schedules.fire() == 1
        assert (await runtime.schedules.all())[
            0
        ].waits == "Its conversation is busy, or waits for an answer of yours."
        model.go.set()
        await runtime.workers.idle(name)
        assert await runtime.schedules.fire() == 1
        daily, single = await asked(runtime, name)
        assert (
            "[It runs 6 days late, and stands for 6 more that were missed. It runs once.]\n\nEvery day."
            in daily
        )
        assert "[It runs 5 days late. It runs once.]\n\nOnly once." in single
        assert [
            (element.schedule.words, element.waits)
            for element in await runtime.schedules.all()
        ] == [("Every day.", "")]
        assert dues(journal) == [us("2026-11-21 08:00")]
        over = Schedules(journal).get(once.id)
        assert over is not None
        assert (over.due, over.words) == (None, "")


@pytest.mark.parametrize(
    ("when", "next_time", "after_it"),
    [
        ("every day at 8", "2026-11-14 08:00", "2026-11-15 08:00"),
        ("every hour", "2026-11-13 10:00", "2026-11-13 11:00"),
    ],
)
async def test_a_clock_that_was_a_year_ahead_silences_nothing(
    config: Config,
    journal: Journal,
    clock: SimClock,
    when: str,
    next_time: str,
    after_it: str,
) -> None:
    """What was asked then is not asked again; the next time is of the clock as it is now, also for one made meanwhile."""
    async with talking(config, journal) as runtime:
        name = await runtime.new()
        add = runtime.schedules.add
        await add("Look.", when, conversation=name, zone="Europe/Berlin")
        clock.set_wall(us("2027-11-13 09:00"))
        assert await runtime.schedules.fire() == 1
        other = await runtime.new()
        await add("Made in the future.", when, conversation=other, zone="Europe/Berlin")
        assert len(await asked(runtime, name)) == 1
        clock.set_wall(us("2026-11-13 09:05"))
        assert await runtime.schedules.fire() == 2
        assert dues(journal) == [us(next_time)] * 2
        clock.set_wall(us(next_time))
        assert [await runtime.schedules.fire() for _ in range(2)] == [2, 0]
        assert (len(await asked(runtime, name)), len(await asked(runtime, other))) == (
            1,
            1,
        )
        assert dues(journal) == [us(after_it)] * 2
        clock.set_wall(us(after_it))
        assert await runtime.schedules.fire() == 2
        assert (len(await asked(runtime, name)), len(await asked(runtime, other))) == (
            2,
            2,
        )


async def test_a_server_finds_by_itself_that_the_clock_was_put_back(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """Nothing is due, so nothing but the look at the clock brings the schedule back; a small step back changes nothing."""
    clock.set_wall(us("2026-11-14 08:00"))
    async with Runtime(
        config, journal=journal, models=[ScriptedModel(["Yes."])]
    ) as runtime:
        name = await runtime.new()
        add = runtime.schedules.add
        made = await add(
            "Look.", "every day at 8", conversation=name, zone="Europe/Berlin"
        )
        clock.set_wall(us("2026-11-14 07:59"))
        clock.advance(1.0)
        assert await runtime.schedules.fire() == 0
        assert dues(journal) == [made.due]
        clock.set_wall(us("2025-11-14 09:00"))
        clock.advance(MINUTE)
        async with asyncio.timeout(60):
            while dues(journal) != [us("2025-11-15 08:00")]:  # noqa: ASYNC110  (the server moves it)
                await asyncio.sleep(0.05)


async def test_a_process_that_died_before_it_went_on_asks_nothing_twice_and_leaves_nothing_out(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """The message stands, the schedule does not know: it goes on from there, and what was missed since runs once."""
    async with talking(config, journal) as runtime:
        name = await runtime.new()
        made = await runtime.schedules.add(
            "Look.", "every day at 8", conversation=name, zone="Europe/Berlin"
        )
        clock.set_wall(us("2026-11-14 08:00"))
        message = MessageUser([Text("asked by who died")], ask=True, system=True)
        await runtime.journal.append(name, [message], dedup=made.once)
        clock.set_wall(us("2026-11-17 12:00"))
        # it knows now, and asks nothing, though the conversation is busy
        assert await runtime.schedules.fire() == 1
        assert dues(journal) == [us("2026-11-15 08:00")]
        assert not Schedules(journal).move(made, 1)  # who comes late moves nothing
        runtime.workers.wake(name)
        await runtime.workers.idle(name)
        assert await runtime.schedules.fire() == 1
        first, second = await asked(runtime, name)
        assert first == "asked by who died"
        assert "2 days late, and stands for 2 more that were missed" in second
        assert dues(journal) == [us("2026-11-18 08:00")]


async def test_two_that_ask_at_once_ask_once(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """Their clocks differ, so they would say different things: one is stored, and both go on from it."""
    ahead = SimClock(clock.now_us() + 20 * 60_000_000)
    async with talking(config, journal) as first:
        names = [
            (await first.schedules.add("Look.", "in 10 minutes")).conversation
            for _ in range(12)
        ]
        clock.advance(12 * MINUTE)
        with tenax.open(config.store_url, user=LOCAL_USER, clock=ahead) as other:
            async with talking(config, other) as second:
                moved = await asyncio.gather(
                    first.schedules.fire(), second.schedules.fire()
                )
                assert sum(moved) == len(names)
                assert dues(journal) == []
                for name in names:
                    await asyncio.gather(
                        first.workers.idle(name), second.workers.idle(name)
                    )
                    assert len(await asked(first, name)) == 1


async def test_where_nobody_can_answer_it_waits_and_says_so(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """No model: nothing is asked. Later there is one, and it runs late."""
    async with talking(config, journal, model=False) as runtime:
        made = await runtime.schedules.add("Look.", "in 20 minutes")
        clock.advance(2 * HOUR)
        assert await runtime.schedules.fire() == 0
        (plan,) = await runtime.schedules.all()
        assert plan.waits == "No model is set up."
        assert await told(runtime, made.conversation, MessageUser) == []
        assert (await runtime.journal.summary(made.conversation)).title == "Look."
    async with talking(config, journal) as runtime:
        (plan,) = await runtime.schedules.all()
        assert plan.waits == "It is due, and runs once `tenax serve` does."
        assert await runtime.schedules.fire() == 1
        assert (
            "[It runs 100 minutes late. It runs once.]"
            in (await asked(runtime, made.conversation))[0]
        )


async def test_a_conversation_that_cannot_be_written_to_holds_up_no_other(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """A newer Tenax has indexed it, and this one stores nothing there. What is due elsewhere is asked."""
    newer, name = begin(journal), begin(journal)
    async with talking(config, journal) as runtime:
        for each in (newer, name):
            await runtime.schedules.add(
                "Water the plants.", "in 20 minutes", conversation=each
            )
        with journal.store.transaction() as tx:
            state = next(iter(journal.store.heads(tx, [(LOCAL_USER, newer)]).values()))
            known, state.version = state.version, state.version + 1
            tx.run(
                "put_head", {"conversation": state.num, **msgspec.structs.asdict(state)}
            )
        clock.advance(HOUR)
        assert await runtime.schedules.fire() == 1
        assert len(await asked(runtime, name)) == 1
        with journal.store.transaction() as tx:
            state = next(iter(journal.store.heads(tx, [(LOCAL_USER, newer)]).values()))
            state.version = known
            tx.run(
                "put_head", {"conversation": state.num, **msgspec.structs.asdict(state)}
            )


async def test_a_question_to_the_person_is_not_answered_by_a_schedule(
    config: Config, journal: Journal, clock: SimClock, tmp_path: Path
) -> None:
    """However often it was due meanwhile, it comes once, after the answer."""
    script: list[Reply | str] = [
        Reply(calls=[ScriptedCall("note", {"text": "x"})]),
        "Done.",
        "And this.",
    ]
    runtime = Hands(
        config, journal=journal, models=[ScriptedModel(script)], serves=False
    )
    async with runtime.with_tools(Note(tmp_path / "n", asks=True)):
        name = await runtime.new()
        await runtime.schedules.add("Look.", "every 5 minutes", conversation=name)
        await runtime.submit(name, "Note it.")
        ask = (await until(runtime, name, "approval.asked")).event
        await runtime.workers.idle(name)
        for _ in range(3):
            clock.advance(6 * MINUTE)
            assert await runtime.schedules.fire() == 0
        assert isinstance(ask, ApprovalAsked)
        await runtime.answer(name, ask.message, ask.call, "once")
        await runtime.workers.idle(name)
        assert await runtime.schedules.fire() == 1
        assert len(await asked(runtime, name)) == 1
        assert [
            each.answer for each in await told(runtime, name, ApprovalAnswered)
        ] == ["once"]
        assert await outcomes(runtime, name) == ["completed"] * 2


async def test_a_schedule_goes_with_its_conversation_and_with_the_words_that_asked_for_it(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """Deleted or erased: nothing is left of it, and nothing is asked. A deleted conversation takes no new one."""
    async with talking(config, journal) as runtime:
        first, second = [await runtime.new() for _ in range(2)]
        (asking,) = await runtime.journal.append(
            second, [MessageUser([Text("Daily, please.")])]
        )
        for name, seq in ((first, None), (second, asking.seq)):
            await runtime.schedules.add(
                "Look.", "every day at 8", conversation=name, message=seq
            )
        await runtime.delete(first)
        assert [element.conversation for element in Schedules(journal).all()] == [
            second
        ]
        await runtime.erase(second, [asking.seq])
        assert journal.store.query("schedule_owners") == []
        clock.advance(2 * DAY)
        assert await runtime.schedules.fire() == 0
        with pytest.raises(Gone):
            await runtime.schedules.add("Look.", "every day at 8", conversation=first)


async def test_a_user_has_only_their_own(config: Config, journal: Journal) -> None:
    """Another's conversation takes none, another's schedule is neither shown nor removed; and there is a bound."""
    async with talking(config, journal) as runtime:
        made = await runtime.schedules.add("Mine.", "every hour")
        async with talking(config, journal.of("berta")) as berta:
            with pytest.raises(NoSuchConversation):
                await berta.schedules.add(
                    "x", "every hour", conversation=made.conversation
                )
            with pytest.raises(NoSuchConversation):
                await berta.schedules.remove(made.id)
            assert await berta.schedules.all() == []
            hers = await berta.schedules.add("Hers.", "every hour")
        assert Schedules.owners(journal) == {LOCAL_USER, "berta"}
        assert [element.id for element in Schedules(journal).all()] == [made.id]
        assert Schedules(journal).get(hers.id) is None
        rows = Schedules(journal)
        for _ in range(SCHEDULES_MAX - 1):
            rows.add(made.conversation, "again", "every hour", "UTC", made.due or 0)
        listed = len(await runtime.conversations(limit=200))
        with pytest.raises(InvalidInput, match="100 schedules already"):
            await runtime.schedules.add("One too many.", "every hour")
        assert len(await runtime.conversations(limit=200)) == listed
        for words in ("", " \n", "a\0b", "x" * 4001, "half \ud83d"):
            with pytest.raises(InvalidInput):
                rows.check(words)


def scheduled(**arguments: str) -> Reply:
    return Reply(calls=[ScriptedCall("schedule", arguments)])


async def allow(runtime: Runtime, name: str, nth: int = 1) -> ApprovalAsked:
    ask = (await until(runtime, name, "approval.asked", nth)).event
    assert isinstance(ask, ApprovalAsked)
    await runtime.workers.idle(name)
    await runtime.answer(name, ask.message, ask.call, "once")
    await runtime.workers.idle(name)
    return ask


async def test_the_model_makes_one_if_the_person_allows_it(
    config: Config, journal: Journal, clock: SimClock
) -> None:
    """Each time, and never for good. It is counted from when it was said; listing and removing ask nobody."""
    wrong, create = (
        scheduled(action="create", when="soon", words="x"),
        {"action": "create", "words": "Water!"},
    )
    script: list[Reply | str] = [wrong, scheduled(**create, when="in 20 minutes"), scheduled(**create, when="in 5 minutes"),
              scheduled(action="list"), "Good."]  # fmt: skip
    async with talking(config, journal, *script) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "Remind me.")
        await until(runtime, name, "approval.asked")
        (question,) = await runtime.questions(name)
        assert (question.conversation, question.always) == ([], [])
        clock.advance(10 * MINUTE)
        first = await allow(runtime, name)
        assert first.touches == "in 20 minutes: Water!"
        (made,) = Schedules(journal).all()
        assert made.due == us("2026-11-13 09:20")
        key = f"{name}:{first.message}:{first.call}"
        assert (
            await runtime.schedules.add(
                "Water!", "in 20 minutes", conversation=name, key=key
            )
        ).id == made.id
        clock.advance(6 * MINUTE)
        await allow(runtime, name, 2)
        results = [each.text for each in await told(runtime, name, ToolFinished)]
        assert "not a time that is understood" in results[0]
        assert (
            results[1]
            == f"Made: {made.id}, on 2026-11-13 at {made.when[-5:]} ({made.zone}), next on Friday {made.when[3:13]} {made.when[-5:]}: Water!"
        )
        assert results[2].startswith("That time is over: on 2026-11-13 at ")
        assert results[3] == results[1].removeprefix("Made: ")
    other: list[Reply | str] = [scheduled(action="remove", schedule=made.id), "No."]
    async with talking(config, journal, *other) as runtime:
        elsewhere = await runtime.new()
        seq = (await runtime.submit(elsewhere, "Remove it.")).seq
        await runtime.finished(elsewhere, seq)
        (result,) = await told(runtime, elsewhere, ToolFinished)
        assert (result.outcome, result.text[:21]) == ("failed", "There is no schedule ")
        assert len(Schedules(journal).all()) == 1
        await runtime.schedules.remove(made.id)
        again = await runtime.schedules.add(
            "Water!", "in 20 minutes", conversation=name, key=key
        )
        # the same call again makes no second one
        assert (again.id, again.due) == (made.id, None)
        with pytest.raises(NoSuchConversation):
            await runtime.schedules.remove(made.id)


# -- real processes ------------------------------------------------------------------------------------------------


def serve(
    teller: Teller, url: str, home: str, names: list[str], kind: str = ""
) -> None:
    """A server's runtime, until all of these conversations are answered. It dies after the first event of a kind."""
    die_after(kind, 1)

    async def work() -> None:
        async with Runtime(config_of(url, Path(home))) as runtime:
            teller.tell("ready")
            for name in names:
                await all_answered(runtime, name)
            async with asyncio.timeout(60.0):
                while await runtime.schedules.all():  # noqa: ASYNC110  (another process may end it)
                    await asyncio.sleep(0.02)

    asyncio.run(work())


def soon(journal: Journal, name: str, seconds: float) -> Schedule:
    due = SystemClock().now_us() + int(seconds * 1e6)
    return Schedules(journal).add(name, "Look.", "on 2026-11-15 at 12:00", "UTC", due)


def counts(journal: Journal, name: str) -> tuple[int, int]:
    """How often it was asked, and answered."""
    events = [event.event for event in journal.read(name, limit=1000)]
    return sum(isinstance(event, MessageUser) for event in events), sum(
        isinstance(event, RunFinished) for event in events
    )


def test_of_several_hosts_one_asks(store_url: str, tmp_path: Path) -> None:
    """Two processes that serve, told of six schedules while they run: each is asked once, and answered once."""
    set_up(tmp_path, [Reply("Yes.")])
    with tenax.open(store_url, user=LOCAL_USER) as journal:
        names = [begin(journal) for _ in range(6)]
        hosts = [Child(serve, store_url, str(tmp_path), names) for _ in range(2)]
        for host in hosts:
            host.read_until(1)
        for name in names:
            soon(journal, name, 0.7)
        assert finish_all(hosts) == [0] * 2
        assert [counts(journal, name) for name in names] == [(1, 1)] * 6
        assert Schedules(journal).all() == []
        assert verify(journal).problems == []


def test_a_kill_between_asking_and_going_on_asks_nothing_twice(
    store_url: str, tmp_path: Path
) -> None:
    """`kill -9` right after the message was stored; the next process answers it, and the schedule is over."""
    set_up(tmp_path, [Reply("Yes.")])
    name = new_conversation(store_url)
    with tenax.open(store_url, user=LOCAL_USER) as journal:
        made = soon(journal, name, -90.0)
        first: Any = Child(serve, store_url, str(tmp_path), [name], "message.user")
        assert first.finish() == -9
        assert counts(journal, name) == (1, 0)
        assert dues(journal) == [made.due]
        assert Child(serve, store_url, str(tmp_path), [name]).finish() == 0
        assert counts(journal, name) == (1, 1)
        assert dues(journal) == []
        sent = wait_for(journal, name, "message.user").event
        assert isinstance(sent, MessageUser)
        assert "1 minute late" in text_of(sent.parts)
