"""What a provider is given, in which order and how often, whatever it does and whoever dies."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tenax
from tenax.clock import Timing
from tenax.errors import StoreUnavailable
from tenax.events import (
    TEMPORARY,
    ConversationCleared,
    ConversationOpened,
    ConversationRestored,
    ConversationRewound,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunLate,
    RunStarted,
    ToolFinished,
    ToolStarted,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.verify.store import verify
from tenax.memory import MemoryManager, MemoryProvider
from tenax.memory.providers import turn_history as turns
from tenax.memory.providers.delivery import Delivery, Status
from tenax.memory.providers.turn_history import TurnHistory
from tenax.parts import Text, ToolCall
from tenax.testing.clock import SimClock
from tests.contract.engine.base import begin, compact, delta
from tests.memory.providers import Gate
from tests.support.children import Child, finish_all
from tests.support.postgres import PostgresServer
from tests.support.remembering import USER, due, kept, remember, turn, until


class Diary(MemoryProvider):
    """Notes every call and may be told what to do in one, by the words of the turn."""

    def __init__(self, name: str = "diary") -> None:
        self._name = name
        self.calls: list[tuple[Any, ...]] = []
        self.acts: dict[str, Callable[[], object]] = {}
        self.messages: list[dict[str, Any]] = []
        self.about: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self._name

    def is_available(self) -> bool:
        return True

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return []

    def initialize(self, session_id: str, **kwargs: Any) -> None:
        self._do("initialize", session_id)
        self.about = kwargs

    def sync_turn(
        self,
        user_content: str,
        assistant_content: str,
        *,
        session_id: str = "",
        messages: Any = None,
        key: str = "",
    ) -> Any:
        self.messages = messages
        return self._do("turn", user_content, session_id, key)

    def queue_prefetch(self, query: str, *, session_id: str = "") -> None:
        self._do("prefetch", query)

    def on_session_end(self, messages: list[dict[str, Any]]) -> None:
        self._do(
            "end",
            *(message["content"] for message in messages if message["role"] == "user"),
        )

    def on_session_switch(
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        rewound: bool = False,
        **kw: Any,
    ) -> None:
        self._do("undone", *kw["keys"]) if rewound else self._do(
            "switch", new_session_id, parent_session_id, reset
        )

    def _do(self, *call: Any) -> Any:
        """An act is for a kind of call, or for one whose first argument it names. What raises is not noted."""
        for name in (call[0], f"{call[0]} {call[1] if len(call) > 1 else ''}"):
            if name in self.acts:
                self.acts[name]()
        self.calls.append(call)
        return {"not": "asked for"}

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] in kinds]

    @property
    def turns(self) -> list[str]:
        return [each[1] for each in self.of("turn")]


def fails(why: str = "no route") -> Callable[[], object]:
    def act() -> object:
        raise ConnectionError(why)

    return act


class Desk:
    """A store, and a follower for each provider that is put on it."""

    def __init__(self, url: str) -> None:
        self.clock = SimClock()
        self.journal = tenax.open(url, user=USER, clock=self.clock)
        self.aio = AsyncJournal(self.journal)
        self.manager = MemoryManager()
        self.followers: list[Delivery] = []

    async def follow(self, provider: MemoryProvider, **options: Any) -> Delivery:
        """A follower that begins to give now; what stood before it is not owed."""
        options = {"home": "/data", "profile": "p", **options}
        follower = Delivery(self.aio, self.manager.add_provider(provider), **options)
        await follower.status()
        follower.start()
        self.followers.append(follower)
        return follower

    async def settle(self, follower: Delivery, behind: int = 0, owed: int = 0) -> None:
        """Wait until just so much is left to give. On a busy machine it may begin to rest only when its time was up: again, then."""
        async with asyncio.timeout(30):
            for tries in itertools.count(1):
                follower.wake()
                found = await follower.status()
                if (found.behind, found.owed) == (behind, owed):
                    return
                if tries % 500 == 0 and found.rests_seconds:
                    await self.pass_time(found.rests_seconds)
                await asyncio.sleep(0.005)

    async def failed(self, follower: Delivery) -> Status:
        """Wait until something has failed."""
        async with asyncio.timeout(30):
            while not (found := await follower.status()).error:
                follower.wake()
                await asyncio.sleep(0.005)
        return found

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and everybody look."""
        self.clock.advance(seconds)
        for follower in self.followers:
            follower.wake()

    async def close(self) -> None:
        for follower in self.followers:
            await follower.close(0.2)
        await self.aio.close()


@pytest.fixture
async def desk(store_url: str, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Desk]:
    """And whatever was done, the store proves itself afterwards, and nothing surprised the follower."""
    desk = Desk(store_url)
    yield desk
    assert not [
        record
        for record in caplog.get_records("call")
        if vars(record).get("action") == "memory_surprise"
    ]
    assert [str(problem) for problem in verify(desk.journal).problems] == []
    await desk.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


# -- in order, once ----------------------------------------------------------------------------------------------


async def test_turns_come_in_order_and_once(desk: Desk) -> None:
    """Fifty turns over five conversations; each is stored before it is given, under its key and in its segment."""
    diary = Diary()
    follower = await desk.follow(diary)
    names = [begin(desk.journal) for _ in range(5)]
    keys = []
    for number in range(50):
        name = names[number % 5]
        seq = turn(desk.journal, name, f"{number}")
        keys.append(("turn", f"{number}", f"s-{name}", f"{name}:{seq}"))
        follower.wake()
    await desk.settle(follower)
    given = diary.of("turn")
    assert sorted(given) == sorted(keys)
    for name in names:
        assert [each for each in given if each[2] == f"s-{name}"] == [
            key for key in keys if key[2] == f"s-{name}"
        ]


async def test_a_provider_gets_ready_once_and_hears_of_every_other_segment(
    desk: Desk,
) -> None:
    """Of a child that it goes on, of another conversation that it begins anew."""
    diary = Diary()
    follower = await desk.follow(diary)
    one, two = begin(desk.journal), begin(desk.journal)
    turn(desk.journal, one, "a")
    await desk.settle(follower)
    # what comes at once would be of the same round
    await until(lambda: ("prefetch", "a") in diary.calls)
    compact(
        desk.journal, one, desk.journal.head(one).head, parent=f"s-{one}", child="child"
    )
    turn(desk.journal, one, "b")
    await desk.settle(follower)
    await until(lambda: ("prefetch", "b") in diary.calls)
    turn(desk.journal, two, "c")
    await desk.settle(follower)
    assert diary.of("initialize", "switch", "turn")[0] == ("initialize", f"s-{one}")
    assert diary.of("switch") == [
        ("switch", "child", f"s-{one}", False),
        ("switch", f"s-{two}", "", True),
    ]
    assert diary.about == {
        "hermes_home": "/data", "platform": "tenax", "user_id": USER, "agent_identity": "p", "agent_context": "primary",
    }  # fmt: skip
    await until(
        lambda: (
            diary.of("prefetch")
            == [("prefetch", "a"), ("prefetch", "b"), ("prefetch", "c")]
        )
    )


async def test_a_turn_is_given_whole(desk: Desk) -> None:
    """With what was said while it ran, over an interruption, with its calls and their results; and to a plain signature."""

    class Plain(Diary):
        def sync_turn(  # type: ignore[override]
            self,
            user_content: str,
            assistant_content: str,
            *,
            session_id: str = "",
            messages: Any = None,
        ) -> None:
            self.said = (user_content, assistant_content)
            self.messages = messages

    plain = Plain()
    follower = await desk.follow(plain)
    journal, name = desk.journal, begin(desk.journal)
    asked = journal.append(name, [MessageUser([Text("first")], ask=True)])[-1].seq
    journal.append(name, [RunStarted([asked])], run="r-1")
    call = MessageAssistant([Text("let me see"), ToolCall("k1", "look", '{"at": 1}')])
    seq = journal.append(name, [call], run="r-1")[-1].seq
    journal.append(
        name,
        [ToolStarted(seq, "k1", "look", "pure", 9.0), RunFinished("interrupted")],
        run="r-1",
    )
    journal.append(
        name,
        [RunStarted([], "r-1", 1), ToolFinished(seq, "k1", "done", "seen")],
        run="r-2",
    )
    steer = journal.append(
        name, [MessageUser([Text("and then")], ask=True, how="steer")]
    )[-1].seq
    journal.append(name, [ModelRequested(seq, "", "m", 9.0, [steer])], run="r-2")
    journal.append(name, [RunLate(0, "token", {"text": "old"})], run="r-1")
    journal.append(
        name, [MessageAssistant([Text("so")]), RunFinished("completed")], run="r-2"
    )
    await desk.settle(follower)
    assert plain.said == ("first\nand then", "so")
    assert plain.messages == [
        {"role": "user", "content": "first"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {
                    "id": "k1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": 1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "k1", "content": "seen"},
        {"role": "user", "content": "and then"},
        {"role": "assistant", "content": "so"},
    ]


async def test_what_is_no_finished_turn_is_not_given(desk: Desk) -> None:
    """Cancelled, failed and interrupted runs, erased words, temporary conversations and those left out; nothing stays owed."""
    diary = Diary()
    follower = await desk.follow(diary, leave_out={"tour"})
    journal, name = desk.journal, begin(desk.journal)
    for source in (TEMPORARY, "tour"):
        journal.append(source, [ConversationOpened(USER, f"s-{source}", source)])
        turn(journal, source, source)
        due(journal, source)
    for outcome in ("cancelled", "failed", "interrupted"):
        turn(journal, name, outcome, outcome)
    erased = turn(journal, name, "erased")
    journal.erase(name, [erased - 3], by=USER)
    turn(journal, name, "kept")
    due(journal, name)
    await desk.settle(follower)
    await until(lambda: diary.of("prefetch"))
    assert diary.turns == ["kept"]
    assert diary.of("end") == [("end", "kept")]


async def test_another_follower_goes_on_where_one_ended(desk: Desk) -> None:
    """In the middle of many turns, on the same store: none twice, none missing."""
    names = [begin(desk.journal) for _ in range(2)]
    first, second, enough = Diary(), Diary(), threading.Event()
    first.acts["turn 7"] = enough.set
    follower = await desk.follow(first)
    for number in range(20):
        turn(desk.journal, names[number % 2], f"{number}")
    follower.wake()
    await until(enough.is_set)
    await follower.close(10)
    assert len(first.turns) < 20
    await desk.settle(await desk.follow(second))
    given = first.turns + second.turns
    assert sorted(given, key=int) == [f"{number}" for number in range(20)]
    for parity in (0, 1):
        mine = [int(each) for each in given if int(each) % 2 == parity]
        assert mine == sorted(mine)


def test_two_processes_never_both_give_a_turn(store_url: str, tmp_path: Path) -> None:
    """Both store, both would give; each turn is in the file once, in order, and so is each end."""
    file = tmp_path / "ledger"
    with tenax.open(store_url, user=USER) as journal:
        assert Child(remember, store_url, str(file), [], 0).finish() == 0
        names = [begin(journal) for _ in range(4)]
        children = [
            Child(remember, store_url, str(file), mine, 8)
            for mine in (names[:2], names[2:])
        ]
        assert finish_all(children) == [0, 0]
        lines = kept(file)
        keys = [line[2] for line in lines if line[0] == "sync"]
        assert max(Counter(keys).values()) == 1
        for name in names:
            ends = [
                event.seq
                for event in journal.read(name, limit=10_000)
                if event.kind == "run.finished"
            ]
            assert [key for key in keys if key.startswith(f"{name}:")] == [
                f"{name}:{seq}" for seq in ends
            ]
        assert max(Counter(line[2] for line in lines if line[0] == "end").values()) == 1
        assert [str(problem) for problem in verify(journal).problems] == []


# -- undo --------------------------------------------------------------------------------------------------------


async def test_an_undone_turn_reaches_the_provider_as_a_rewind(desk: Desk) -> None:
    """With the keys of what it was given; what comes back is given again, and clearing takes nothing back."""
    diary = Diary()
    follower = await desk.follow(diary)
    journal, name = desk.journal, begin(desk.journal)
    one, two, three = (turn(journal, name, words) for words in ("one", "two", "three"))
    await desk.settle(follower)
    undo = journal.append(name, [ConversationRewound(one)])[-1].seq
    follower.wake()
    await until(lambda: diary.of("undone"))
    journal.append(name, [ConversationRestored(undo)])
    follower.wake()
    await until(lambda: len(diary.turns) == 5)
    journal.append(name, [ConversationCleared()])
    four = turn(journal, name, "four")
    await desk.settle(follower)
    journal.append(name, [ConversationRewound(one)])
    follower.wake()
    await until(lambda: len(diary.of("undone")) == 2)
    assert diary.of("turn", "undone")[3:] == [
        ("undone", f"{name}:{two}", f"{name}:{three}"),
        ("turn", "two", f"s-{name}", f"{name}:{two}"),
        ("turn", "three", f"s-{name}", f"{name}:{three}"),
        ("turn", "four", f"s-{name}", f"{name}:{four}"),
        ("undone", f"{name}:{four}"),
    ]


async def test_a_turn_that_was_undone_before_it_was_read_is_skipped(
    desk: Desk, gate: Gate
) -> None:
    """Also while the one before it is being given; an undo that was undone is not told at all."""
    diary = Diary()
    diary.acts["turn one"] = gate
    follower = await desk.follow(diary)
    journal, name = desk.journal, begin(desk.journal)
    one, two = turn(journal, name, "one"), turn(journal, name, "two")
    follower.wake()
    await until(gate.reached.is_set)
    journal.append(name, [ConversationRewound(one)])
    turn(journal, name, "three")
    undo = journal.append(name, [ConversationRewound(one)])[-1].seq
    journal.append(name, [ConversationRestored(undo)])
    gate.opened.set()
    await desk.settle(follower)
    assert diary.turns == ["one", "three"]
    assert diary.of("undone") == []
    assert two < undo


# -- ends --------------------------------------------------------------------------------------------------------


async def test_an_end_comes_after_its_turns_and_before_later_ones(
    desk: Desk, gate: Gate
) -> None:
    """It is about its own segment up to the boundary; where nothing is new, nothing is told."""
    diary = Diary()
    diary.acts["turn one"] = gate
    follower = await desk.follow(diary)
    journal, name = desk.journal, begin(desk.journal)
    turn(journal, name, "one")
    turn(journal, name, "two")
    follower.wake()
    await until(gate.reached.is_set)
    due(journal, name)
    due(journal, name)
    turn(journal, name, "three")
    gate.opened.set()
    await desk.settle(follower)
    assert [each[:3] for each in diary.of("turn", "end")] == [
        ("turn", "one", f"s-{name}"),
        ("turn", "two", f"s-{name}"),
        ("end", "one", "two"),
        ("turn", "three", f"s-{name}"),
    ]


@pytest.mark.parametrize("bound", ["ENDED_MESSAGES_MAX", "ENDED_BYTES_MAX"])
async def test_an_end_tells_the_last_messages_that_there_is_room_for(
    desk: Desk, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment may be as long as it likes."""
    monkeypatch.setattr(turns, bound, 4 if bound == "ENDED_MESSAGES_MAX" else 140)
    diary = Diary()
    follower = await desk.follow(diary)
    name = begin(desk.journal)
    for number in range(6):
        turn(desk.journal, name, f"{number}")
    due(desk.journal, name)
    await desk.settle(follower)
    assert diary.of("end") == [("end", "4", "5")]


async def test_an_end_waits_for_a_turn_that_fails(desk: Desk) -> None:
    """It is told once the turn before it was taken, never before."""
    diary = Diary()
    diary.acts["turn bad"] = fails()
    follower = await desk.follow(diary)
    name = begin(desk.journal)
    turn(desk.journal, name, "bad")
    due(desk.journal, name)
    await desk.failed(follower)
    await desk.pass_time(0.5)
    assert (await follower.status()).owed == 1
    assert diary.of("turn", "end") == []
    diary.acts.clear()
    await desk.pass_time(60)
    await desk.settle(follower)
    assert [each[0] for each in diary.of("turn", "end")] == ["turn", "end"]


async def test_an_end_that_fails_is_told_again_and_holds_up_no_turn(desk: Desk) -> None:
    """It stays owed until it was taken."""
    diary = Diary()
    diary.acts["end"] = fails()
    follower = await desk.follow(diary)
    name = begin(desk.journal)
    turn(desk.journal, name, "one")
    due(desk.journal, name)
    turn(desk.journal, name, "two")
    await desk.settle(follower, owed=1)
    diary.acts.clear()
    await desk.pass_time(60)
    await desk.settle(follower)
    assert diary.of("end") == [("end", "one")]
    assert diary.turns == ["one", "two"]


async def test_an_end_is_met_by_its_owner(desk: Desk) -> None:
    """Another's waits for that one, and stays owed."""
    mine, theirs = Diary(), Diary()
    follower = await desk.follow(mine, profile="me")
    name = begin(desk.journal)
    turn(desk.journal, name, "one")
    due(desk.journal, name, owner="them")
    await desk.settle(follower, owed=1)
    await follower.close(10)
    await desk.settle(await desk.follow(theirs, profile="them"))
    assert (mine.of("end"), theirs.of("end")) == ([], [("end", "one")])
    assert (mine.turns, theirs.turns) == (["one"], [])


# -- what a provider may do wrong --------------------------------------------------------------------------------


async def test_a_provider_that_blocks_for_ever_holds_its_own_line_only(
    desk: Desk, gate: Gate
) -> None:
    """Its neighbour is given everything, it is shown, and closing is bounded; what it owes is given after that."""
    stuck, well = Diary("stuck"), Diary("well")
    stuck.acts["turn one"] = gate
    bad, good = await desk.follow(stuck), await desk.follow(well)
    name = begin(desk.journal)
    turn(desk.journal, name, "one")
    turn(desk.journal, name, "two")
    due(desk.journal, name)
    bad.wake()
    await until(gate.reached.is_set)
    await desk.settle(good)
    assert [each[0] for each in well.of("turn", "end")] == ["turn", "turn", "end"]
    found = await bad.status()
    assert (found.behind, found.owed) == (2, 1)
    assert found.busy_seconds > 0
    began = time.monotonic()
    await bad.close(0.1)
    # The call that is out goes on for a minute.
    assert time.monotonic() - began < 30
    assert await desk.aio.holder("memory:stuck"), (
        "a call is out, and another process could make the same"
    )


async def test_what_a_stuck_provider_owes_is_given_after_the_next_start(
    store_url: str, gate: Gate
) -> None:
    """The process that waited for it is gone; the one in flight comes again with its key, then the rest."""
    stuck, heir = Diary(), Diary()
    stuck.acts["turn one"] = gate
    before = Desk(store_url)
    follower = await before.follow(stuck)
    name = begin(before.journal)
    turn(before.journal, name, "one")
    turn(before.journal, name, "two")
    due(before.journal, name)
    follower.wake()
    await until(gate.reached.is_set)
    await before.close()
    after = Desk(store_url)
    await after.settle(await after.follow(heir))
    assert [each[:2] for each in heir.of("turn", "end")] == [
        ("turn", "one"),
        ("turn", "two"),
        ("end", "one"),
    ]
    await after.close()


async def test_what_a_provider_prints_returns_or_leaks_changes_nothing(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its turns count as taken; stdout is not its own, and its threads keep nobody."""
    diary = Diary()

    def odd() -> None:
        print("not a result")  # noqa: T201  (that is what it does wrong)
        # The thread outlives the provider, but not the tests.
        threading.Thread(target=threading.main_thread().join).start()

    diary.acts["turn"] = odd
    follower = await desk.follow(diary)
    name = begin(desk.journal)
    for number in range(3):
        turn(desk.journal, name, f"{number}")
    await desk.settle(follower)
    assert diary.turns == ["0", "1", "2"]
    assert capsys.readouterr().out == ""


async def test_a_provider_that_cannot_get_ready_is_tried_again(desk: Desk) -> None:
    """Nothing is given before it is ready, and nothing is buried."""
    diary = Diary()
    diary.acts["initialize"] = fails("no key")
    follower = await desk.follow(diary)
    name = begin(desk.journal)
    turn(desk.journal, name, "one")
    found = await desk.failed(follower)
    assert (found.behind, found.error, found.letters) == (
        1,
        "initialize: ConnectionError: no key",
        [],
    )
    assert found.rests_seconds > 0
    diary.acts.clear()
    await desk.pass_time(60)
    await desk.settle(follower)
    assert [call[0] for call in diary.calls[:2]] == ["initialize", "turn"]


async def test_a_turn_that_fails_while_others_succeed_is_buried_and_retried_on_request(
    desk: Desk,
) -> None:
    """After five tries the line behind it goes on; the letter keeps its error until it is taken, with the same key."""
    diary = Diary()
    diary.acts["turn bad"] = fails()
    follower = await desk.follow(diary)
    journal, name, other = desk.journal, begin(desk.journal), begin(desk.journal)
    seq = turn(journal, name, "bad")
    turn(journal, name, "after")
    turn(journal, other, "fine")
    tries = 0
    async with asyncio.timeout(30):
        while not (letters := (await follower.status()).letters):
            tries += 1
            await desk.pass_time(300)
            await asyncio.sleep(0.01)
    assert tries > 3
    await desk.settle(follower)
    assert diary.turns == ["fine", "after"]
    assert [(each.conversation, each.seq) for each in letters] == [(name, seq)]
    diary.acts["turn bad"] = fails("still none")
    assert await follower.retry() == 0
    (letter,) = (await follower.status()).letters
    assert letter.error == "sync_turn: ConnectionError: still none"
    diary.acts.clear()
    assert await follower.retry() == 1
    assert (await follower.status()).letters == []
    assert diary.of("turn")[-1] == ("turn", "bad", f"s-{name}", f"{name}:{seq}")


async def test_a_provider_that_is_away_buries_nothing(desk: Desk) -> None:
    """When all fails the follower rests, longer and longer, tries one thing, and goes on in order when it is back."""
    diary, tries, rests = Diary(), 0, 0

    def away() -> None:
        nonlocal tries
        tries += 1
        raise ConnectionError("away")

    diary.acts["turn"] = away
    follower = await desk.follow(diary)
    names = [begin(desk.journal) for _ in range(4)]
    for number in range(12):
        turn(desk.journal, names[number % 4], f"{number}")
    follower.wake()
    await until(lambda: tries == 2)
    async with asyncio.timeout(30):
        while tries < 30:  # more than five of each
            rests += 1
            await desk.pass_time(301)
            await asyncio.sleep(0.01)
    assert tries <= 2 + rests, "it was tried more than once after a rest"
    async with asyncio.timeout(30):
        while not 200 < (found := await follower.status()).rests_seconds <= 300:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert (found.behind, found.letters) == (12, [])
    diary.acts.clear()
    await desk.pass_time(301)
    await desk.settle(follower)
    for n in range(4):
        assert [each for each in diary.turns if int(each) % 4 == n] == [
            f"{number}" for number in range(n, 12, 4)
        ]
    assert (await follower.status()).rests_seconds == 0


async def test_a_store_that_is_away_after_a_turn_was_taken_makes_it_come_no_second_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it was taken is noted when the store is back."""
    real, left = AsyncJournal.advance, 2

    async def advance(self: AsyncJournal, *args: Any, **kwargs: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StoreUnavailable("The store is away.")
        await real(self, *args, **kwargs)

    monkeypatch.setattr(AsyncJournal, "advance", advance)
    diary = Diary()
    follower = await desk.follow(diary)
    name = begin(desk.journal)
    turn(desk.journal, name, "one")
    turn(desk.journal, name, "two")
    await desk.settle(follower)
    assert diary.turns == ["one", "two"]


async def test_a_deleted_conversation_owes_nothing(desk: Desk) -> None:
    """And holds up no other."""
    diary = Diary()
    diary.acts["turn gone"] = fails()
    follower = await desk.follow(diary)
    gone, name = begin(desk.journal), begin(desk.journal)
    turn(desk.journal, gone, "gone")
    await desk.failed(follower)
    desk.journal.delete(gone)
    turn(desk.journal, name, "one")
    await desk.settle(follower)
    assert diary.turns == ["one"]


async def test_a_turn_after_a_crash_that_took_partials_and_their_numbers_is_owed_too() -> (
    None
):
    """The history's seq belonged to another event before the crash, so the history folds again."""
    # No partial is old enough for a flush, and a read waits for a server that restarts.
    timing = Timing(flush_seconds=3600.0, read_seconds=60.0)
    with PostgresServer({"wal_writer_delay": "10s"}) as server:
        url = server.create_database()
        with (
            tenax.open(url, user=USER, timing=timing) as journal,
            tenax.open(url, user=USER, timing=timing) as writer,
        ):
            # The indexer claims a lease. That commit waits for a flush, which would take the partials along.
            journal.words.close()
            writer.words.close()
            name = begin(writer)
            first = turn(writer, name, "one")
            wal_writer = server.hold_wal_writer()
            for n in range(20):
                writer.append(name, [delta(1, n, "x")])
            history = TurnHistory(AsyncJournal(journal), name)
            await history.catch_up()
            server.crash(wal_writer)
            server.start()
            second = turn(writer, name, "two")
            assert second < history.seq, (
                "the crash took no partials, so this shows nothing"
            )
            await history.catch_up()
            assert [each.at for each in history.owed(0)] == [first, second]
