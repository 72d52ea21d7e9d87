"""`kill -9` of a process in which a run waits for its sub-agent: both go on, and what was answered is not asked again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import tenax
from tenax.agent import Limits
from tenax.assembly import Runtime
from tenax.events import MessageAssistant, ModelRequested, RunFinished, ToolHanded
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.verify.store import verify
from tenax.models import Reply, ScriptedCall
from tests.support.cast import Cast, hand_on
from tests.support.children import Child, Teller
from tests.support.runs import brief, config_of
from tests.support.turns import all_answered, die_after, new_conversation, rows_of

pytestmark = pytest.mark.crash

PHASES = [
    ("parent", "tool.started"),  # before the sub-agent is made
    ("child", "conversation.titled"),  # it is made, and the parent was not told
    ("parent", "tool.handed"),
    ("child", "run.started"),
    ("child", "model.requested"),
    ("child", "reply.delta"),
    ("child", "tool.started"),
    ("child", "tool.finished"),
    ("child", "run.finished"),  # between its end and the parent's result
    ("parent", "tool.finished"),
    ("parent", "run.finished"),
]
WAITED = [
    ("child", "tool.started"),
    ("child", "tool.finished"),
    ("child", "run.finished"),
]
IN_FLIGHT = {"model.requested", "reply.delta"}
HANDED = ("parent", "tool.handed")
"""The sub-agent is at work when this is stored: it may have asked its model already."""
QUICK = Limits(pause=0.01)
LOOK = Reply(
    words="I look first", calls=[ScriptedCall("read_file", {"path": "none.txt"})]
)
CUT = Reply(words="I look first", hang=True)
"""The same words, and no end: text is stored while an answer streams only if the answer lasts long enough."""


def cast(pause: float = 0.0, look: Reply = LOOK) -> Cast:
    return Cast(
        [hand_on("find it"), "all done"],
        {"find": [look, Reply(words="found it", pause=pause)]},
    )


def answer(
    teller: Teller,
    url: str,
    home: str,
    conversation: str,
    at: str,
    kind: str,
    pause: float,
) -> None:
    """Ask; die when the first event of a kind was stored in the parent or in the child."""

    async def work() -> None:
        config = config_of(url, Path(home))
        model = cast(pause, CUT if kind == "reply.delta" else LOOK)
        async with Runtime(
            config, models=[model], limits=QUICK, serves=False
        ) as runtime:
            # Not before: at its start it ends the runs of those who died already, which are not its own.
            die_after(kind, 1, lambda name: (name == conversation) == (at == "parent"))
            await runtime.submit(conversation, "go")
            await all_answered(runtime, conversation)

    asyncio.run(work())
    teller.tell("done")


def go_on(teller: Teller, url: str, home: str, *conversations: str) -> None:
    """Serve what is there, until all is answered."""

    async def work() -> None:
        async with Runtime(
            config_of(url, Path(home)), models=[cast()], limits=QUICK
        ) as runtime:
            await asyncio.gather(
                *(all_answered(runtime, conversation) for conversation in conversations)
            )

    asyncio.run(work())
    teller.tell("done")


def asked_and_answered(
    journal: Journal, conversation: str
) -> tuple[Counter[str], list[list[tuple[str, str, str]]]]:
    """How often models were asked and answered in the family, and what stands there: the parent first, then the child."""
    found: Counter[str] = Counter()
    shown = []
    (child,) = journal.delegated(conversation)
    for name in (conversation, child):
        events = journal.read(name, limit=10_000)
        found.update(
            event.kind
            for event in events
            if event.kind in {ModelRequested.kind, MessageAssistant.kind}
        )
        rows = [
            row
            for row in rows_of(events).rows
            if row.kind != "marker" and row.state not in {"cut", "earlier"}
        ]
        shown.append(brief(rows))
    return found, shown


def in_flight(journal: Journal, conversation: str) -> int:
    """How many requests of the family have no answer."""
    names = (conversation, *journal.delegated(conversation))
    found = Counter(
        event.kind for name in names for event in journal.read(name, limit=10_000)
    )
    return found[ModelRequested.kind] - found[MessageAssistant.kind]


def is_handed(journal: Journal, conversation: str) -> bool:
    """Whether its run waits for the sub-agent; a quick one may have begun before that was stored."""
    return any(
        event.kind == ToolHanded.kind
        for event in journal.read(conversation, limit=10_000)
    )


def test_a_kill_at_any_instant_of_parent_and_child_leaves_both_to_go_on(
    store_url: str, tmp_path: Path
) -> None:
    """The same end each time: one sub-agent, its answer once, and no request repeated but the one that was in flight."""
    phases = PHASES if store_url.startswith("sqlite") else PHASES[::4]
    names = {phase: new_conversation(store_url) for phase in phases}
    whole = new_conversation(store_url)
    assert Child(answer, store_url, str(tmp_path), whole, "", "", 0.0).finish() == 0
    kills: Counter[tuple[str, str]] = Counter()
    # in company: what one leaves is looked at by the others
    for some in (phases[::2], phases[1::2]):
        victims = {
            phase: Child(answer, store_url, str(tmp_path), names[phase], *phase, 0.0)
            for phase in some
        }
        kills.update(
            phase for phase, victim in victims.items() if victim.finish() == -9
        )
    assert kills == dict.fromkeys(phases, 1), "a phase had no kill"
    with tenax.open(store_url, user=LOCAL_USER) as journal:
        cut = {phase: in_flight(journal, name) for phase, name in names.items()}
        waited = {
            phase
            for phase in WAITED
            if phase in names and is_handed(journal, names[phase])
        }
    assert all(
        cut[phase] == (phase[1] in IN_FLIGHT) for phase in phases if phase != HANDED
    ), cut
    next_start = Child(go_on, store_url, str(tmp_path), *names.values())
    assert (next_start.finish(), next_start.lines) == (0, [["done"]])
    with tenax.open(store_url, user=LOCAL_USER) as journal:
        assert verify(journal).problems == []
        _, expected = asked_and_answered(journal, whole)
        assert ("tool", "done", "found it") in expected[0]
        assert expected[1][-1] == ("assistant", "", "found it")
        for (at, kind), name in names.items():
            found, shown = asked_and_answered(journal, name)
            assert shown == expected, (at, kind)
            requests = 4 + cut[at, kind]
            assert (found["message.assistant"], found["model.requested"]) == (
                4,
                requests,
            ), (at, kind)
            if (at, kind) in waited:
                ends = [
                    event.event
                    for event in journal.read(name, limit=10_000)
                    if event.kind == RunFinished.kind
                ]
                assert ends == [RunFinished("completed")], (
                    "a run that waits for its sub-agent is not interrupted"
                )


async def test_a_server_wakes_the_parent_of_a_sub_agent_that_ended_in_a_process_that_died(
    store_url: str, tmp_path: Path
) -> None:
    """The other process was killed before it could say so; the server was there all along, and looks again."""
    name = new_conversation(store_url)
    async with Runtime(
        config_of(store_url, tmp_path), models=[cast()], limits=QUICK
    ) as runtime:
        other = Child(
            answer, store_url, str(tmp_path), name, "child", "run.finished", 0.3
        )
        assert await asyncio.to_thread(other.finish) == -9
        answered = asyncio.ensure_future(all_answered(runtime, name))
        while not answered.done():
            await runtime.pick_up_orphans()
            await asyncio.wait({answered}, timeout=0.1)
        await answered
        found, shown = await asyncio.to_thread(
            asked_and_answered, runtime.journal.journal, name
        )
    assert (found["model.requested"], found["message.assistant"]) == (4, 4)
    assert ("tool", "done", "found it") in shown[0]
