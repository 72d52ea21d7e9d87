"""What keeps a call that may be made only once from being made again, each guard without the other (row EO).

The repair of an interrupted run writes down that the outcome is unknown. The run that goes on looks again before it
makes the call. Either is enough, so a test of both together does not notice when one is gone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tenax.agent.recovery import GONE, interruption
from tenax.events import (
    Event,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolStarted,
)
from tenax.journal import Journal
from tenax.models import Reply, Script, ScriptedModel
from tenax.parts import Text, ToolCall
from tenax.views.open_work import Turns
from tests.contract.engine.base import begin
from tests.support.runs import SECONDS, Hands, Note, config_of

CALL = ToolCall("call_1", "note", '{"text": "x"}')


def begun_once(journal: Journal) -> tuple[str, int]:
    """A conversation whose run has begun a call that may be made only once; where the answer with the call stands."""
    name = begin(journal)
    (asked,) = journal.append(name, [MessageUser([Text("go")], ask=True)])
    journal.append(name, [RunStarted([asked.seq])], run="r_1")
    (requested,) = journal.append(
        name, [ModelRequested(asked.seq, "0", "script", 60.0)], run="r_1"
    )
    answer = MessageAssistant([CALL], requested.seq, "script")
    (message,) = journal.append(name, [answer], run="r_1")
    journal.append(
        name, [ToolStarted(message.seq, CALL.id, "note", "once", 30.0)], run="r_1"
    )
    return name, message.seq


def unknown(events: list[Event]) -> list[str]:
    return [
        event.call
        for event in events
        if isinstance(event, ToolFinished) and event.outcome == "unknown"
    ]


def test_the_repair_alone_is_enough(store_url: str, tmp_path: Path) -> None:
    """The end of the interrupted run says that nobody knows what came of the call."""
    runtime = Hands(
        config_of(store_url, tmp_path), models=[ScriptedModel([Reply("x")])]
    )
    journal = runtime.journal.journal
    try:
        name, _ = begun_once(journal)
        turns = Turns()
        for event in journal.read(name):
            turns.apply(event)
        assert turns.run is not None
        assert unknown(interruption(turns.run, GONE)) == [CALL.id]
    finally:
        asyncio.run(runtime.close())


async def test_the_run_that_goes_on_is_enough_alone(
    store_url: str, tmp_path: Path
) -> None:
    """The repair said nothing of the call; the run that goes on finds it begun, and does not make it."""
    notes = tmp_path / "notes.txt"
    model = ScriptedModel(Script([Reply(calls=[]), Reply("done")], repeat=True))
    runtime = Hands(config_of(store_url, tmp_path), models=[model]).with_tools(
        Note(notes)
    )
    async with runtime:
        journal = runtime.journal.journal
        name, _ = await asyncio.to_thread(begun_once, journal)
        journal.append(name, [RunFinished("interrupted", GONE)], run="r_1")
        runtime.workers.wake(name, resume=True)
        async with asyncio.timeout(SECONDS):
            await runtime.workers.idle(name)
        events = [event.event for event in await runtime.journal.read(name, limit=1000)]
    assert unknown([event for event in events if isinstance(event, Event)]) == [CALL.id]
    assert not notes.exists(), "the call was made a second time"
