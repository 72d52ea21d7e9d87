"""The cache of agents: it tells sessions apart, and notices what others wrote."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tenax.agent import (
    AgentCache,
    Building,
    Fresh,
    Limits,
    Missing,
    OtherSession,
    Stale,
    Unknown,
)
from tenax.config import Config
from tenax.errors import StoreUnavailable
from tenax.events import MessageUser
from tenax.models import Reply, Script, ScriptedModel
from tenax.parts import Text
from tenax.sessions import AsyncSessionDB, SessionDB
from tests.contract.conftest import loop  # noqa: F401  (a fixture)
from tests.support.awaited import Loop
from tests.support.children import Child, Teller
from tests.support.runs import Hands, config_of, settled

KEY = "agent:main:telegram:dm:7"


class Cache:
    """An AgentCache over a SessionDB, or over its async twin: called the same way."""

    def __init__(
        self, db: SessionDB, call: Callable[[Any], Any], *, twin: bool, **more: Any
    ) -> None:
        self.db = db
        self.cache = AgentCache(AsyncSessionDB(db) if twin else db, **more)
        self._call = call if twin else lambda work: work()

    def look(self, key: str, session: str | None) -> Any:
        return self._call(lambda: self.cache.look(key, session))

    def put(
        self, key: str, agent: Any, session: str | None = None, **more: Any
    ) -> None:
        self._call(lambda: self.cache.put(key, agent, session, **more))

    def rebaseline(self, key: str, session: str | None) -> None:
        self._call(lambda: self.cache.rebaseline(key, session))


@pytest.fixture(params=["called", "awaited"])
def make(
    request: pytest.FixtureRequest,
    store_url: str,
    loop: Loop,  # noqa: F811
) -> Iterator[Callable[..., Cache]]:
    """Makes caches over one store with the sessions A and B."""
    with SessionDB(url=store_url) as db:
        for session in ("A", "B"):
            db.create_session(session, source="test")
            db.append_message(session, role="user", content="hello")

        def call(work: Callable[[], Any]) -> Any:
            async def run() -> Any:
                return await work()

            return loop.run(run())

        yield lambda **more: Cache(db, call, twin=request.param == "awaited", **more)


def elsewhere(teller: Teller, url: str, session: str, what: str) -> None:
    """Another process that does something to a session."""
    with SessionDB(url=url) as db:
        if what == "append":
            db.append_message(session, role="user", content="from elsewhere")
        elif what == "undo":
            db.undo(session)
        elif what == "clear":
            db.clear(session)
        elif what == "erase":
            db.erase(session, [db.get_messages(session)[0]["id"]])
        elif what == "compact":
            db.rotate(session, summary="what was said")
    teller.tell("done")


# -- sessions under one key ------------------------------------------------------------------------------------------


def test_another_session_under_the_same_key_reuses_the_agent(
    make: Callable[..., Cache],
) -> None:
    """A snapshot of session A says nothing about session B, whatever is in either; the entry stays."""
    cache, agent = make(), object()
    cache.put(KEY, agent, "A")
    cache.db.append_message("B", role="user", content="more in B")
    found = cache.look(KEY, "B")
    assert isinstance(found, OtherSession)
    assert found.agent is agent
    assert isinstance(cache.look(KEY, "A"), Fresh)
    assert len(cache.cache) == 1


def test_five_turns_of_our_own_reuse_the_agent_each_time(
    make: Callable[..., Cache],
) -> None:
    """Each turn moves the session on and then the snapshot; a follow-up in the same call finds it moved."""
    cache, agent = make(), object()
    cache.put(KEY, agent, "A")
    for number in range(5):
        found = cache.look(KEY, "A")
        assert isinstance(found, Fresh)
        assert found.agent is agent
        cache.db.append_message("A", role="user", content=f"question {number}")
        cache.db.append_message("A", role="assistant", content=f"answer {number}")
        cache.rebaseline(KEY, "A")
        assert isinstance(cache.look(KEY, "A"), Fresh)


@pytest.mark.parametrize("what", ["append", "undo", "clear", "erase", "compact"])
def test_what_another_process_does_to_the_session_makes_it_stale(
    make: Callable[..., Cache], store_url: str, what: str
) -> None:
    """A message, and also what a count of rows would not show; afterwards the agent is still the same one."""
    cache, agent = make(), object()
    cache.db.append_message("A", role="assistant", content="yes")
    cache.put(KEY, agent, "A")
    assert Child(elsewhere, store_url, "A", what).finish() == 0
    found = cache.look(KEY, "A")
    assert isinstance(found, Stale)
    assert found.agent is agent
    cache.rebaseline(KEY, "A")
    assert isinstance(cache.look(KEY, "A"), Fresh)


def test_a_rebaseline_for_another_session_leaves_the_snapshot_alone(
    make: Callable[..., Cache],
) -> None:
    """After a turn in B, what A holds is still compared with what was seen of A."""
    cache = make()
    cache.put(KEY, object(), "A")
    for session in ("A", "B"):  # both stand at the same revision now
        cache.db.append_message(session, role="user", content="unseen")
    cache.rebaseline(KEY, "B")
    assert isinstance(cache.look(KEY, "A"), Stale)
    cache.rebaseline(KEY, "A")
    assert isinstance(cache.look(KEY, "A"), Fresh)


def test_an_entry_without_a_snapshot_is_reused_and_gets_none(
    make: Callable[..., Cache],
) -> None:
    """There is nothing to compare; a rebaseline does not invent it."""
    cache, agent = make(), object()
    cache.put(KEY, agent, "A", snapshot=None)
    for _ in range(2):
        found = cache.look(KEY, "A")
        assert isinstance(found, Unknown)
        assert found.agent is agent
        cache.db.append_message("A", role="user", content="more")
        cache.rebaseline(KEY, "A")


def test_an_entry_that_is_being_built_is_left_alone(make: Callable[..., Cache]) -> None:
    """Nobody else builds it, evicts it, or gives it a snapshot."""
    cache = make()
    assert cache.cache.reserve(KEY)
    assert isinstance(cache.look(KEY, "A"), Building)
    cache.rebaseline(KEY, "A")
    assert not cache.cache.evict(KEY)
    assert not cache.cache.reserve(KEY)
    assert isinstance(cache.look(KEY, "A"), Building)
    cache.put(KEY, "the agent", "A")
    assert isinstance(cache.look(KEY, "A"), Fresh)


def test_a_snapshot_without_a_session_is_still_guarded(
    make: Callable[..., Cache],
) -> None:
    """Live differs from it: stale; after a rebaseline: fresh."""
    cache = make()
    live = (cache.db.get_session("A") or {})["revision"]
    cache.put(KEY, object(), None, snapshot=live)
    assert isinstance(cache.look(KEY, "A"), Fresh)
    cache.db.append_message("A", role="user", content="more")
    assert isinstance(cache.look(KEY, "A"), Stale)
    cache.rebaseline(KEY, "A")
    assert isinstance(cache.look(KEY, "A"), Fresh)


def test_where_a_side_is_unknown_the_agent_is_reused(
    make: Callable[..., Cache],
) -> None:
    """No such session, or a store that raises: there is nothing to hold against it. No entry at all: build one."""
    cache, agent = make(), object()
    assert cache.look(KEY, "A") == Missing()
    cache.put(KEY, agent, "nobody")
    assert cache.look(KEY, "nobody") == Unknown(agent)
    cache.put(KEY, agent, "A")
    assert cache.look(KEY, None) == Unknown(agent)
    get_session = cache.db.get_session
    for error in (StoreUnavailable("The store is away."), RuntimeError("a surprise")):
        cache.db.get_session = _raising(error)  # type: ignore[method-assign]
        assert cache.look(KEY, "A") == Unknown(agent)
        cache.rebaseline(KEY, "A")
    cache.db.get_session = get_session  # type: ignore[method-assign]
    assert isinstance(cache.look(KEY, "A"), Fresh)


def test_a_store_that_only_counts_messages_is_compared_by_that() -> None:
    """Whatever stands in for the store has what the contract names, and a row without it is unknown."""
    row: dict[str, Any] = {"message_count": 3}
    cache = AgentCache(SimpleNamespace(get_session=lambda _session: dict(row)))  # type: ignore[arg-type]
    cache.put(KEY, "agent", "A")
    assert cache.look(KEY, "A") == Fresh("agent")
    row["message_count"] = 4
    assert cache.look(KEY, "A") == Stale("agent")
    cache.rebaseline(KEY, "A")
    assert cache.look(KEY, "A") == Fresh("agent")
    row.clear()
    assert cache.look(KEY, "A") == Unknown("agent")


async def test_an_eviction_over_the_async_facade_is_done_awaited_or_not(
    store_url: str,
) -> None:
    """The awaited answer says whether there was one to drop."""
    with SessionDB(url=store_url) as db:
        cache = AgentCache(AsyncSessionDB(db))
        for key in ("awaited", "called"):
            await cache.put(key, "agent", "A")
        assert await cache.evict("awaited") is True
        assert await cache.evict("awaited") is False
        assert cache.evict("called")
        assert not cache.evict("called")
        assert len(cache) == 0


def _raising(error: Exception) -> Any:
    def get_session(*args: Any, **kwargs: Any) -> Any:
        raise error

    return get_session


# -- how many, how long, and who is told ------------------------------------------------------------------------------


def test_the_one_that_was_used_longest_ago_goes_first_and_outside_the_lock(
    make: Callable[..., Cache],
) -> None:
    """Whoever is told of it may use the cache: nothing is locked then."""
    gone: list[tuple[str, Any]] = []

    def told(key: str, agent: Any) -> None:
        gone.append((key, agent))
        done = threading.Event()
        threading.Thread(
            target=lambda: (cache.cache.evict("nobody"), done.set())
        ).start()
        assert done.wait(60)

    cache = make(size=3, on_evict=told)
    for name in ("a", "b", "c"):
        cache.put(name, f"agent {name}", "A")
    cache.look("a", "A")
    cache.put("d", "agent d", "A")
    assert gone == [("b", "agent b")]
    assert cache.cache.evict("c")
    assert not cache.cache.evict("c")
    assert gone == [("b", "agent b"), ("c", "agent c")]
    assert len(cache.cache) == 2


def test_an_agent_that_nobody_used_for_an_hour_goes(make: Callable[..., Cache]) -> None:
    """Looking keeps it; time alone does not."""
    now, gone = [0.0], list[str]()
    cache = make(
        monotonic=lambda: now[0], on_evict=lambda key, _agent: gone.append(key)
    )
    cache.put("old", 1, "A")
    cache.put("used", 2, "A")
    now[0] = 3000.0
    cache.look("used", "A")
    now[0] = 3601.0
    assert isinstance(cache.look("old", "A"), Missing)
    assert cache.cache.get("used", "A", object) == 2
    assert gone == ["old"]
    now[0] = 7200.0
    assert isinstance(cache.look("used", "A"), Fresh)


def test_an_agent_that_is_put_in_the_place_of_another_evicts_it(
    make: Callable[..., Cache],
) -> None:
    """The same agent put again is no eviction."""
    gone: list[Any] = []
    cache = make(on_evict=lambda _key, agent: gone.append(agent))
    cache.put(KEY, "first", "A")
    cache.put(KEY, "first", "B")
    assert gone == []
    cache.put(KEY, "second", "B")
    assert gone == ["first"]


def test_an_agent_is_built_once_however_many_ask(make: Callable[..., Cache]) -> None:
    """The others wait for it; one that fails to build leaves the place to the next; the lock is free meanwhile."""
    cache = make().cache
    built: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def build() -> object:
        built.append(1)
        begun.set()
        assert go.wait(60)
        assert len(cache) == 1  # nobody holds the lock
        if len(built) == 1:
            raise RuntimeError("no model")
        return "the agent"

    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(cache.get(KEY, "A", build))
        except RuntimeError as error:
            found.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == ["no model", *["the agent"] * 5]
    assert len(built) == 2


# -- what the next request holds ----------------------------------------------------------------------------------------


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


def say(teller: Teller, url: str, conversation: str, words: str) -> None:
    """Another process that writes to a conversation."""
    with SessionDB(url=url) as db:
        db.journal.append(conversation, [MessageUser([Text(words)])])
    teller.tell("done")


def texts(body: bytes) -> list[str]:
    return [
        message["parts"][0]["text"] for message in msgspec.json.decode(body)["messages"]
    ]


async def test_a_message_of_another_process_stands_in_the_next_request_after_the_same_bytes(
    config: Config, store_url: str
) -> None:
    """The context is caught up from the journal; what was sent before is sent again byte for byte."""
    model = ScriptedModel(["first answer", "second answer", "third answer"])
    async with Hands(config, models=[model], limits=Limits(pause=0.01)) as runtime:
        name = await runtime.new()
        for number in range(2):
            await settled(
                runtime, name, (await runtime.submit(name, f"question {number}")).seq
            )
        assert Child(say, store_url, name, "from elsewhere").finish() == 0
        await settled(runtime, name, (await runtime.submit(name, "question 2")).seq)
        assert texts(model.bodies[2])[-3:] == [
            "second answer",
            "from elsewhere",
            "question 2",
        ]
        for before, after in zip(model.bodies, model.bodies[1:], strict=False):
            assert after.startswith(before.removesuffix(b"]}"))


async def test_a_turn_writes_to_its_own_conversation_whatever_the_agent_did_before(
    config: Config,
) -> None:
    """One agent, two conversations, in turns: each has its own messages, and its requests hold no others."""
    model = ScriptedModel(Script([Reply(words="yes")], repeat=True))
    async with Hands(config, models=[model], limits=Limits(pause=0.01)) as runtime:
        names = [await runtime.new(), await runtime.new()]
        agent = runtime.agent
        for number in range(4):
            name = names[number % 2]
            await settled(
                runtime,
                name,
                (await runtime.submit(name, f"{number % 2}: question {number}")).seq,
            )
            assert {
                text.split(":")[0] for text in texts(model.bodies[-1]) if ":" in text
            } == {str(number % 2)}
        assert runtime.agent is agent
        for number, name in enumerate(names):
            rows = await runtime.transcript(name)
            assert [row.text for row in rows if row.kind == "user"] == [
                f"{number}: question {number}",
                f"{number}: question {number + 2}",
            ]


async def test_a_turn_that_another_process_took_back_is_not_in_the_next_request(
    config: Config, store_url: str
) -> None:
    """An undo by another process is seen before the next request."""
    model = ScriptedModel(Script([Reply(words="yes")], repeat=True))
    async with Hands(config, models=[model], limits=Limits(pause=0.01)) as runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "keep this")).seq)
        await settled(runtime, name, (await runtime.submit(name, "regret this")).seq)
        segment = (await runtime.journal.head(name)).segment or ""
        assert Child(elsewhere, store_url, segment, "undo").finish() == 0
        await settled(runtime, name, (await runtime.submit(name, "go on")).seq)
        assert texts(model.bodies[-1]) == ["keep this", "yes", "go on"]


async def test_a_compaction_by_another_process_is_adopted_before_the_next_request(
    config: Config, store_url: str
) -> None:
    """A loop that lost goes on in the child, in the same conversation."""
    model = ScriptedModel(Script([Reply(words="yes")], repeat=True))
    async with Hands(config, models=[model], limits=Limits(pause=0.01)) as runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "hello")).seq)
        segment = (await runtime.journal.head(name)).segment or ""
        assert Child(elsewhere, store_url, segment, "compact").finish() == 0
        await settled(runtime, name, (await runtime.submit(name, "go on")).seq)
        assert len(texts(model.bodies[-1])) == 2
        assert "what was said" in texts(model.bodies[-1])[0]
