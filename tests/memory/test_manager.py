"""A memory never holds a turn, and harms nobody but itself."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tenax.memory import MemoryManager, MemoryProvider
from tenax.memory.providers.base import BUILT_IN
from tests.memory.providers import Gate, Notebook

AT_ONCE = 30.0
"""A caller that waits for a provider waits for the gate, which is a minute. One that does not needs microseconds."""


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def manager_of(
    *providers: MemoryProvider, recall_seconds: float = 10.0
) -> MemoryManager:
    manager = MemoryManager(recall_seconds=recall_seconds)
    for provider in providers:
        manager.add_provider(provider)
    return manager


def workers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("memory")]


def turns_of(provider: Notebook) -> list[str]:
    return [call[1] for call in provider.calls if call[0] == "sync_turn"]


def raises(error: BaseException) -> Any:
    def act(*args: Any, **kwargs: Any) -> None:
        raise error

    return act


# -- 003 ---------------------------------------------------------------------------------------------------------


def test_a_slow_provider_does_not_hold_the_caller(gate: Gate) -> None:
    """Neither telling nor asking waits for a provider: all of it is over while the first call goes on."""
    provider = Notebook(sync_turn=gate, queue_prefetch=gate, prefetch=gate)
    manager = MemoryManager()
    manager.add_provider(provider)
    began = time.monotonic()
    manager.sync_all("hi", "hey", session_id="s1")
    manager.queue_prefetch_all("hi", session_id="s1")
    assert time.monotonic() - began < AT_ONCE
    assert not manager.prefetch_all("hi", session_id="s1")
    assert gate.reached.wait(60)
    assert provider.calls == []


def test_what_was_told_is_done_in_the_background(gate: Gate) -> None:
    """A flush is false while the work goes on and true once it is done."""
    provider = Notebook(sync_turn=gate)
    manager = manager_of(provider)
    manager.sync_all("hi", "hey", session_id="s1", messages=[{"role": "user"}])
    manager.queue_prefetch_all("hi", session_id="s1")
    assert gate.reached.wait(60)
    assert manager.flush_pending(timeout=0.01) is False
    gate.opened.set()
    assert manager.flush_pending(timeout=60) is True
    assert provider.calls == [("sync_turn", "hi", "hey"), ("queue_prefetch", "hi")]


def test_a_flush_before_any_work_is_true() -> None:
    """There is nothing to wait for."""
    assert MemoryManager().flush_pending(timeout=1) is True
    assert manager_of(Notebook()).flush_pending() is True


@pytest.mark.parametrize("seconds", [math.inf, 1e12])
def test_one_can_wait_for_ever(gate: Gate, seconds: float) -> None:
    """Any number of seconds is taken, also more than a lock can wait."""
    manager = manager_of(Notebook(sync_turn=gate))
    manager.sync_all("hi", "hey")
    assert gate.reached.wait(60)
    threading.Timer(0.05, gate.opened.set).start()
    assert manager.flush_pending(seconds) is True


def test_without_a_provider_from_outside_no_thread_is_made() -> None:
    """No provider, or only the built-in memory: everything is called in place."""
    before = set(threading.enumerate())
    built_in = Notebook(BUILT_IN, prefetch=lambda *_a, **_k: "tea")
    for manager, recalled in ((manager_of(), ""), (manager_of(built_in), "tea")):
        manager.sync_all("hi", "hey")
        manager.queue_prefetch_all("hi")
        assert manager.prefetch_all("hi") == recalled
        manager.shutdown_all()
    assert built_in.threads == {threading.current_thread()}
    assert set(threading.enumerate()) <= before


def test_a_provider_is_given_a_thread_when_it_is_first_told_something() -> None:
    """Not when it is added; and then it is one, a daemon."""
    before = set(workers())
    provider = Notebook("lazy")
    manager = manager_of(provider)
    assert set(workers()) <= before
    for _ in range(3):
        manager.sync_all("hi", "hey")
        manager.queue_prefetch_all("hi")
    assert manager.flush_pending(60)
    assert len(provider.threads) == 1
    assert all(thread.daemon for thread in provider.threads)


def test_shutdown_is_bounded_with_a_provider_that_never_returns(
    gate: Gate, caplog: Any
) -> None:
    """It comes back within its five seconds, says what it left behind, and a second one does nothing."""
    stuck, well = Notebook("stuck", sync_turn=gate), Notebook("well")
    manager = manager_of(stuck, well)
    for turn in range(3):
        manager.sync_all(f"turn {turn}", "hey")
    assert gate.reached.wait(60)
    began = time.monotonic()
    manager.shutdown_all()
    assert time.monotonic() - began < AT_ONCE
    assert [call[0] for call in well.calls] == ["sync_turn"] * 3 + ["shutdown"]
    assert (
        "Memory stuck was left behind at shutdown: 2 calls were not begun"
        in caplog.text
    )
    began = time.monotonic()
    manager.shutdown_all()
    assert time.monotonic() - began < AT_ONCE


def test_shutdown_finishes_what_is_waiting_and_then_lets_the_provider_shut_down(
    caplog: Any,
) -> None:
    """Nothing is dropped where there is time; afterwards nothing is taken, and said so."""
    provider = Notebook(sync_turn=lambda *_a, **_k: time.sleep(0.01))
    manager = manager_of(provider)
    for turn in range(20):
        manager.sync_all(f"turn {turn}", "hey")
    manager.shutdown_all()
    assert turns_of(provider) == [f"turn {turn}" for turn in range(20)]
    assert provider.calls[-1] == ("shutdown",)
    manager.sync_all("late", "hey")
    assert not manager.prefetch_all("late")
    assert caplog.text.count("was not given a sync_turn") == 1


PROGRAM = """
import sys, threading, time
from tests.memory.providers import Notebook
from tenax.memory import MemoryManager
def forever(*args, **kwargs):
    threading.Thread(target=threading.Event().wait).start()  # leaks a thread that never ends, too
    print("this is not a result")
    reached.set()
    threading.Event().wait()
reached = threading.Event()
manager = MemoryManager()
manager.add_provider(Notebook(sync_turn=forever, prefetch=forever, shutdown=forever))
manager.sync_all("hi", "hey")
assert reached.wait(60)
manager.prefetch_all("hi")
if sys.argv[1] == "shutdown":
    manager.shutdown_all()
print("result")
"""


@pytest.mark.parametrize("how", ["shutdown", "exit"])
def test_a_process_ends_although_a_provider_blocks_for_ever(how: str) -> None:
    """With a shutdown or without one, with a leaked thread; and what the provider printed is not on stdout."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "result\n"), run.stderr
    assert "this is not a result" in run.stderr


def test_turns_reach_a_provider_in_order() -> None:
    """Turn N before turn N+1."""
    provider = Notebook()
    manager = manager_of(provider)
    for turn in range(50):
        manager.sync_all(f"turn {turn}", "hey", session_id="s1")
    assert manager.flush_pending(timeout=60) is True
    assert turns_of(provider) == [f"turn {turn}" for turn in range(50)]


def test_a_slow_provider_does_not_delay_another(gate: Gate) -> None:
    """Each has a thread of its own."""
    slow, quick = Notebook("slow", sync_turn=gate), Notebook("quick")
    manager = manager_of(slow, quick)
    manager.sync_all("hi", "hey")
    manager.queue_prefetch_all("hi")
    assert gate.reached.wait(60)
    until = time.monotonic() + 60
    while len(quick.calls) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    assert [call[0] for call in quick.calls] == ["sync_turn", "queue_prefetch"]
    assert slow.calls == []


def test_extraction_never_overtakes_a_turn_that_is_waiting(gate: Gate) -> None:
    """The end of a session stands in the same line as its turns."""
    provider = Notebook(sync_turn=gate)
    manager = manager_of(provider)
    manager.sync_all("hi", "hey")
    manager.notify_all("on_session_end", [{"role": "user", "content": "hi"}])
    assert gate.reached.wait(60)
    gate.opened.set()
    assert manager.flush_pending(60)
    assert [call[0] for call in provider.calls] == ["sync_turn", "on_session_end"]


# -- what a provider may do wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("no key"), SystemExit(3), KeyboardInterrupt()]
)
def test_a_provider_that_raises_harms_nobody(error: BaseException, caplog: Any) -> None:
    """Its errors are told, its own next turn still comes, and its neighbour notices nothing."""
    bad = Notebook("bad", sync_turn=raises(error), prefetch=raises(error))
    good = Notebook("good", prefetch=lambda *_a, **_k: "tea")
    manager = manager_of(bad, good)
    for turn in ("one", "two"):
        manager.sync_all(turn, "hey")
    assert manager.flush_pending(60)
    assert manager.prefetch_all("hi") == "tea"
    assert turns_of(bad) == turns_of(good) == ["one", "two"]
    name = type(error).__name__
    told = [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "action", "") == "memory_failed"
    ]
    assert sorted(each.split(name)[0] for each in told) == [
        "Memory bad failed. prefetch: ",
        "Memory bad failed. sync_turn: ",
        "Memory bad failed. sync_turn: ",
    ]


def test_a_provider_that_returns_garbage_recalls_nothing() -> None:
    """Only text is recalled, and only tools with a name are offered."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("not even this")

    garbage = Notebook(
        "garbage",
        prefetch=lambda *_a, **_k: {"not": "text"},
        get_tool_schemas=lambda: [None, 7, {"name": None}],
        system_prompt_block=lambda: 3,
        on_pre_compress=raises(Odd()),
    )
    good = Notebook(
        "good",
        prefetch=lambda *_a, **_k: " tea ",
        system_prompt_block=lambda: "I know tea.",
    )
    manager = manager_of(garbage, good)
    recalled = manager.recall("hi")
    assert (recalled.texts, recalled.missed) == ({"good": "tea"}, ("garbage",))
    assert manager.system_prompt() == "I know tea."
    assert manager.pre_compress([{"role": "user"}]) == ""
    assert [schema["name"] for schema in manager.tool_schemas()] == ["good_search"]


def test_what_a_provider_does_to_the_messages_stays_with_it() -> None:
    """Every provider has its own copy, as it was when the turn was finished."""
    seen: list[Any] = []

    def spoil(*args: Any, messages: Any, **kwargs: Any) -> None:
        seen.append([dict(message) for message in messages])
        messages[0]["content"] = "spoilt"
        messages.clear()

    manager = manager_of(
        Notebook("one", sync_turn=spoil), Notebook("two", sync_turn=spoil)
    )
    messages = [{"role": "user", "content": "hi"}]
    manager.sync_all("hi", "hey", messages=messages)
    messages.append({"role": "user", "content": "later"})
    assert manager.flush_pending(60)
    assert seen == [[{"role": "user", "content": "hi"}]] * 2
    assert messages[0]["content"] == "hi"


def test_a_provider_written_before_a_keyword_existed_is_not_given_it(
    caplog: Any,
) -> None:
    """Older providers take no messages, and no session either."""

    class Older(Notebook):
        def sync_turn(self, user_content: str, assistant_content: str) -> None:  # type: ignore[override]
            kept.append(user_content)

    kept: list[str] = []
    older = Older("older")
    manager = MemoryManager()
    manager.add_provider(Plain(older))
    manager.sync_all("hi", "hey", session_id="s1", messages=[])
    assert manager.flush_pending(60)
    assert (kept, caplog.text) == (["hi"], "")


class Plain(Notebook):
    """Shows the signature of what it stands for."""

    def __init__(self, real: Notebook) -> None:
        super().__init__(real.name)
        self._real = real

    def __getattribute__(self, key: str) -> Any:
        if key == "sync_turn":
            return type(self._real).sync_turn.__get__(self._real)
        return super().__getattribute__(key)


def test_a_full_line_refuses_the_newest_and_says_so(gate: Gate, caplog: Any) -> None:
    """A provider that is stuck cannot fill the process: what it is not given is told, and thousands of turns do not fill it."""
    provider = Notebook(sync_turn=gate)
    manager = MemoryManager()
    handle = manager.add_provider(provider)
    manager.sync_all("turn 0", "hey")
    assert gate.reached.wait(60)
    for turn in range(1, 10_004):
        manager.sync_all(f"turn {turn}", "hey")
    assert caplog.text.count("was not given a sync_turn: 10001 calls are waiting") == 3
    assert handle.deliveries.busy_seconds > 0
    gate.opened.set()
    assert manager.flush_pending(60)
    assert turns_of(provider)[-1] == "turn 10000"


def test_a_process_without_threads_left_refuses_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A provider that used them all up cannot make a turn fail; when there are some again, work goes on."""
    provider = Notebook()
    manager = manager_of(provider)
    with monkeypatch.context() as patch:
        patch.setattr(
            threading.Thread, "start", raises(RuntimeError("can't start new thread"))
        )
        manager.sync_all("lost", "hey")
        assert not manager.prefetch_all("hi")
    manager.sync_all("kept", "hey")
    assert manager.flush_pending(60)
    assert (turns_of(provider), caplog.text.count("was not given a sync_turn")) == (
        ["kept"],
        1,
    )


# -- asking ------------------------------------------------------------------------------------------------------


def test_recall_has_a_deadline_for_all_providers_together(gate: Gate) -> None:
    """One that does not answer is named; the others' answers are there."""
    good = Notebook("good", prefetch=lambda *_a, **_k: "tea")
    manager = manager_of(Notebook("stuck", prefetch=gate), good, recall_seconds=3.0)
    began = time.monotonic()
    recalled = manager.recall("hi", session_id="s1")
    assert time.monotonic() - began < AT_ONCE
    assert (recalled.texts, recalled.missed) == ({"good": "tea"}, ("stuck",))


def test_a_provider_that_does_not_answer_is_not_waited_for_again(gate: Gate) -> None:
    """While it is stuck in one question it is asked no other, so it costs the following turns nothing."""
    manager = manager_of(Notebook("stuck", prefetch=gate), recall_seconds=1.0)
    manager.prefetch_all("one")
    began = time.monotonic()
    for _ in range(50):
        assert manager.recall("more").missed == ("stuck",)
    assert time.monotonic() - began < 25


def test_a_provider_that_is_always_late_is_left_in_peace_for_a_while() -> None:
    """After three answers that came too late it is not asked for a minute."""
    over = threading.Event()
    late = Notebook("late", prefetch=lambda *_a, **_k: over.wait(60))
    manager = manager_of(late, recall_seconds=0.05)
    for _ in range(400):
        over.clear()
        assert manager.recall("hi").missed == ("late",)
        over.set()
        time.sleep(0.005)
    assert len(late.calls) <= 3


def test_a_slow_write_delays_no_question(gate: Gate) -> None:
    """Recall and tools do not stand in the line of the turns."""
    provider = Notebook(sync_turn=gate, prefetch=lambda *_a, **_k: "tea")
    manager = manager_of(provider)
    manager.sync_all("hi", "hey")
    assert gate.reached.wait(60)
    assert manager.prefetch_all("hi") == "tea"
    assert [schema["name"] for schema in manager.tool_schemas()] == ["notebook_search"]
    assert manager.handle_tool_call("notebook_search", {"query": "tea"}) == "found tea"


def test_a_tool_that_fails_or_is_nobodys_is_an_answer_too() -> None:
    """The model is told, and nothing is raised."""
    manager = manager_of(Notebook(handle_tool_call=raises(ValueError("no"))))
    manager.tool_schemas()
    assert "gave no answer" in manager.handle_tool_call("notebook_search", {})
    assert "No memory offers" in manager.handle_tool_call("other", {})


def test_an_unknown_hook_is_our_own_mistake() -> None:
    """It is refused in the caller's face, with the ones that there are."""
    with pytest.raises(ValueError, match="on_session_end"):
        manager_of(Notebook()).notify_all("shutdown")
