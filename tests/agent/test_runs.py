"""Runs in one process: what waits, what steers, what stops, what is asked, what fails, and what a model was sent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenax
from tenax.agent import Limits
from tenax.agent.history import History
from tenax.agent.loop import Ended, Run
from tenax.assembly import Runtime
from tenax.concurrency import call_in_loop
from tenax.config import Config, ModelSettings
from tenax.config.rules import Rule
from tenax.errors import InvalidInput, Refused, RunConflict, StoreUnavailable
from tenax.events import (
    BODY_BYTES_MAX,
    ApprovalAnswered,
    ApprovalAsked,
    ConversationOpened,
    ConversationRestored,
    ConversationRewound,
    MessagePartial,
    MessageUser,
    MessageWithdrawn,
    ModelFailed,
    ModelRequested,
    ReplyDelta,
    RunFinished,
    RunStarted,
    RunStop,
    ToolFinished,
    ToolOutput,
    ToolStarted,
)
from tenax.journal import LOCAL_USER
from tenax.journal.base import Lease, RawEvent
from tenax.journal.verify.store import verify
from tenax.models import (
    Piece,
    Reply,
    Script,
    ScriptedCall,
    ScriptedModel,
    Trouble,
    Words,
    connect,
)
from tenax.parts import Text
from tenax.runtime import workers as runner
from tenax.runtime.workers import Policy
from tenax.testing import Provider, SimClock
from tenax.tools.base import Call
from tenax.views.context import CUT_NOTE
from tests.contract.engine.base import begin
from tests.models.talk import APIS, settings
from tests.support.runs import (
    SECONDS,
    Hands,
    Note,
    NoteArgs,
    brief,
    config_of,
    events_of,
    lines,
    outcomes,
    prose,
    settled,
    told,
    until,
    with_timing,
)

QUICK = Limits(pause=0.01, retries=2)
WRITE = Reply(calls=[ScriptedCall("note", {"text": "milk"})])


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes.txt"


def hands(
    config: Config, script: Any, *tools: Note, limits: Limits = QUICK, **more: Any
) -> Hands:
    """A runtime that plays a script."""
    models = [script if isinstance(script, ScriptedModel) else ScriptedModel(script)]
    return Hands(config, models=models, limits=limits, **more).with_tools(*tools)


async def proved(runtime: Hands) -> None:
    """The store can prove itself."""
    report = await asyncio.to_thread(verify, runtime.journal.journal)
    assert report.problems == []


# -- money ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits", [Limits(dollars_conversation=0.5), Limits(dollars_day=0.5)]
)
async def test_no_model_is_asked_once_a_budget_is_used_up(
    config: Config, limits: Limits
) -> None:
    """It is looked at before each call; the sentence says what was spent, and the message is not lost."""
    model = ScriptedModel(
        [Reply(words="dear", cost=0.5), Reply(words="dearer", cost=0.5)]
    )
    async with hands(config, model, limits=limits) as runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "first")).seq)
        await settled(runtime, name, (await runtime.submit(name, "second")).seq)
        assert len(model.bodies) == 1
        (failed,) = [
            row for row in await runtime.transcript(name) if row.kind == "marker"
        ]
        assert (failed.state, "0.50 of 0.50 US dollars" in failed.text) == (
            "failed",
            True,
        )
        assert (await runtime.journal.spent(name)).cost == 0.5


# -- messages while a run is busy ------------------------------------------------------------------------------


async def test_five_queued_messages_are_all_answered_in_order(config: Config) -> None:
    """They come while the first answer is being written; each gets a run and an answer of its own."""
    script = [Reply(words=f"answer {n}", pause=0.02) for n in range(5)]
    async with hands(config, script) as runtime:
        name = await runtime.new()
        seqs = [(await runtime.submit(name, "question 0")).seq]
        await until(runtime, name, "model.requested")
        seqs += [(await runtime.submit(name, f"question {n}")).seq for n in range(1, 5)]
        await settled(runtime, name, seqs[-1])
        rows = brief(await runtime.transcript(name))
        each = [
            (("user", "", f"question {n}"), ("assistant", "", f"answer {n}"))
            for n in range(5)
        ]
        assert rows == [row for pair in each for row in pair]
        assert [each.inputs for each in await told(runtime, name, RunStarted)] == [
            [seq] for seq in seqs
        ]
        await proved(runtime)


async def test_a_steer_stands_in_the_very_next_request_of_the_running_run(
    config: Config, notes: Path
) -> None:
    """It comes while a tool works; the next request of the same run ends with it, and no run of its own follows."""
    go = asyncio.Event()
    model = ScriptedModel([WRITE, "with cream"])
    async with hands(config, model, Note(notes, wait=go.wait)) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "write milk")).seq
        await until(runtime, name, "tool.started")
        steer = (await runtime.submit(name, "make it cream", how="steer")).seq
        go.set()
        await settled(runtime, name, seq)
        assert len(model.bodies) == 2
        assert b"make it cream" not in model.bodies[0]
        assert model.bodies[1].index(b"noted milk") < model.bodies[1].index(
            b"make it cream"
        )
        assert [each.inputs for each in await told(runtime, name, ModelRequested)] == [
            [],
            [steer],
        ]
        assert await outcomes(runtime, name) == ["completed"]


async def test_a_steer_that_no_request_took_is_answered_as_a_message_of_its_own(
    config: Config,
) -> None:
    """It comes while the last answer is being written."""
    async with hands(
        config, [Reply(words="a b c d e", pause=0.05), "and this"]
    ) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "first")
        await until(runtime, name, "reply.delta")
        steer = (await runtime.submit(name, "second", how="steer")).seq
        await settled(runtime, name, steer)
        assert prose(await runtime.transcript(name)) == ["a b c d e", "and this"]


async def test_an_interrupting_message_stops_the_run_and_is_answered(
    config: Config,
) -> None:
    """What was written stays, is shown, and is sent along with a note that it was cut off."""
    model = ScriptedModel([Reply(words="it was a dark and", hang=True), "as you wish"])
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "tell me a story")
        await until(runtime, name, "reply.delta")
        seq = (await runtime.submit(name, "stop that", how="interrupt")).seq
        await settled(runtime, name, seq)
        assert await outcomes(runtime, name) == ["cancelled", "completed"]
        rows = brief(await runtime.transcript(name))
        assert [row[:2] for row in rows] == [
            ("user", ""), ("assistant", "cut"), ("marker", "stopped"), ("user", ""), ("assistant", ""),
        ]  # fmt: skip
        assert "it was a dark and".startswith(rows[1][2])
        assert CUT_NOTE.strip().encode() in model.bodies[-1]


def withdraw_before(
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    of: Callable[[Any], int | None],
) -> None:
    """Withdraw a message right before an append. `of` names the message, or returns None."""
    append = runtime.journal.append

    async def withdraw_first(conversation: str, events: Any, **more: Any) -> Any:
        seq = of(events[0])
        if seq is not None:
            await append(conversation, [MessageWithdrawn(seq)])
        return await append(conversation, events, **more)

    monkeypatch.setattr(runtime.journal, "append", withdraw_first)


async def test_a_queued_message_is_withdrawn_and_another_is_edited(
    config: Config,
) -> None:
    """The answer in progress goes on. The edited message waits behind the others, and nothing answers the withdrawn one."""
    model = Patient(["a b", "third", "fourth"], "b")
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "first")
        await until(runtime, name, "reply.delta")
        queued = [
            (await runtime.submit(name, text)).seq for text in ("second", "third", "x")
        ]
        await runtime.withdraw(name, queued[0])
        await runtime.withdraw(name, queued[0])
        await runtime.replace(name, queued[1], "fourth")
        await runtime.replace(name, queued[2], "third, better")
        waiting = [row.text for row in await runtime.transcript(name) if row.state][1:]
        assert waiting == ["fourth", "third, better"]
        model.go.set()
        await settled(runtime, name, (await runtime.journal.head(name)).head)
        turns = [row for row in await runtime.transcript(name) if row.kind == "user"]
        assert [row.text for row in turns] == ["first", "fourth", "third, better"]
        assert [row.versions for row in turns] == [(), (), ()]
        assert b"second" not in b"".join(model.bodies)
        assert await outcomes(runtime, name) == ["completed"] * 3
        await proved(runtime)


async def test_a_message_that_a_run_has_taken_is_not_withdrawn(config: Config) -> None:
    """The refusal is a sentence. An edit waits for the end of the answer."""
    model = Patient(["a b", "c"], "b")
    async with hands(config, model) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "first")).seq
        await until(runtime, name, "reply.delta")
        with pytest.raises(Refused, match="its answer has begun"):
            await runtime.withdraw(name, seq)
        with pytest.raises(RunConflict):
            await runtime.replace(name, seq, "better")
        note = await runtime.submit(name, "A process ended.", system=True, wake=False)
        for other in (1, note.seq):
            with pytest.raises(InvalidInput, match="no message of a person"):
                await runtime.withdraw(name, other)
        model.go.set()
        await settled(runtime, name, seq)
        with pytest.raises(Refused, match="its answer has begun"):
            await runtime.withdraw(name, seq)


async def test_a_run_that_starts_without_its_message_starts_with_the_next(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person withdraws the message between the decision of the worker and the start of the run."""
    async with hands(config, ["second"], serves=False) as runtime:
        name = await runtime.new()
        seqs = [
            (await runtime.submit(name, text, wake=False)).seq for text in ("1", "2")
        ]

        def first_input(event: Any) -> int | None:
            taken = isinstance(event, RunStarted) and event.inputs == seqs[:1]
            return seqs[0] if taken else None

        withdraw_before(runtime, monkeypatch, first_input)
        runtime.workers.wake(name)
        await settled(runtime, name, seqs[1])
        rows = brief(await runtime.transcript(name))
        assert rows == [("user", "", "2"), ("assistant", "", "second")]
        assert await outcomes(runtime, name) == ["completed"]


async def test_a_request_that_lost_its_steer_is_made_without_it(
    config: Config, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person withdraws the steer after the request was written. The run goes on, and the model never reads the words."""
    go = asyncio.Event()
    model = ScriptedModel([WRITE, "without cream"])
    async with hands(config, model, Note(notes, wait=go.wait)) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "write milk")).seq
        await until(runtime, name, "tool.started")
        steer = (await runtime.submit(name, "make it cream", how="steer")).seq
        lost: list[int] = []

        def steer_of(event: Any) -> int | None:
            if isinstance(event, ModelRequested) and event.inputs and not lost:
                lost.append(steer)
                return steer
            return None

        withdraw_before(runtime, monkeypatch, steer_of)
        go.set()
        await settled(runtime, name, seq)
        assert lost == [steer]
        assert await outcomes(runtime, name) == ["completed"]
        assert b"make it cream" not in b"".join(model.bodies)
        assert prose(await runtime.transcript(name))[-1] == "without cream"
        await proved(runtime)


async def test_a_withdrawn_interruption_still_stops_the_run(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was cut off already. The run ends as stopped, and no answer follows."""
    model = ScriptedModel([Reply(words="it was a dark and", hang=True)])
    async with hands(config, model) as runtime:
        name = await runtime.new()
        first = (await runtime.submit(name, "tell me a story")).seq
        await until(runtime, name, "reply.delta")

        def interrupt_of(event: Any) -> int | None:
            if not isinstance(event, MessagePartial):
                return None
            (interrupt,) = runtime.journal.journal.waiting(name)
            return interrupt.seq

        withdraw_before(runtime, monkeypatch, interrupt_of)
        await runtime.submit(name, "stop that", how="interrupt")
        await settled(runtime, name, first)
        assert await outcomes(runtime, name) == ["cancelled"]
        assert [row.kind for row in await runtime.transcript(name)] == [
            "user", "assistant", "marker",
        ]  # fmt: skip


class Patient(ScriptedModel):
    """A model that says a reply that begins so when the test says so."""

    def __init__(self, script: list[Reply | str], word: str) -> None:
        super().__init__(script)
        self.go = asyncio.Event()
        self._word = word

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        async for piece in super().stream(body, silence=silence):
            if isinstance(piece, Words) and piece.text.startswith(self._word):
                await self.go.wait()
            yield piece


async def test_taking_over_from_oneself_ends_the_run_and_answers_at_once(
    config: Config,
) -> None:
    """The same process has the conversation: its run is interrupted, and `submit` does not wait for the answer."""
    model = Patient([Reply(words="on and on", hang=True), "here"], "here")
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "go")
        await until(runtime, name, "reply.delta")
        async with asyncio.timeout(SECONDS):
            seq = (await runtime.submit(name, "mine now", how="take over")).seq
        assert "message.assistant" not in {
            each.kind for each in await events_of(runtime, name)
        }
        model.go.set()
        await settled(runtime, name, seq)
        assert await outcomes(runtime, name) == ["interrupted", "completed"]
        assert prose(await runtime.transcript(name))[-1] == "here"
        await proved(runtime)


async def test_two_take_overs_at_once_are_both_answered(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer lease reaches the event loop first. No lease is left without a worker."""
    async with hands(config, ["again"] * 5) as runtime:
        name, journal = await runtime.new(), runtime.journal
        run_in_pool = journal.threads.run
        leases: list[Lease] = []
        second = asyncio.Event()

        async def run(work: Callable[[], Any]) -> Any:
            """Hold back the result of the claim with the older lease, if a second claim begins before it is known."""
            result = await run_in_pool(work)
            lease = getattr(result, "lease", None)
            if not isinstance(lease, Lease) or len(leases) == 2:
                return result
            leases.append(lease)
            if len(leases) == 2:
                second.set()
                if lease.term < leases[0].term:
                    await asyncio.sleep(0)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await second.wait()
            return result

        monkeypatch.setattr(journal.threads, "run", run)
        submits = [
            runtime.submit(name, words, how="take over")
            for words in ("mine", "no, mine")
        ]
        for stored in await asyncio.gather(*submits):
            await settled(runtime, name, stored.seq)
        assert len(leases) == 2
        assert await journal.holder(f"run:{name}") is None
        assert prose(await runtime.transcript(name))[-1] == "again"
        await proved(runtime)


async def test_a_lease_is_released_as_soon_as_the_store_is_back(
    config: Config, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run waits for an approval, and the store is away when the worker releases the lease. Nobody wakes the worker."""
    async with hands(config, [WRITE], Note(notes, asks=True)) as runtime:
        name, journal = await runtime.new(), runtime.journal
        release = journal.release
        failed_releases: list[Lease] = []

        async def release_when_back(lease: Lease) -> bool:
            if len(failed_releases) < 2:
                failed_releases.append(lease)
                raise StoreUnavailable("The store does not answer.")
            return await release(lease)

        monkeypatch.setattr(journal, "release", release_when_back)
        await settled(runtime, name, (await runtime.submit(name, "go")).seq)
        assert len(failed_releases) == 2
        assert await journal.holder(f"run:{name}") is None


class HeldClaim:
    """Holds the result of the next claim of a runtime, until `let_go` is set."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.claimed = asyncio.Event()
        self.let_go = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._journal = runtime.journal.journal
        self._claim = self._journal.claim
        monkeypatch.setattr(self._journal, "claim", self._hold)

    def _hold(self, *args: Any, **named: Any) -> Lease | None:
        lease = self._claim(*args, **named)
        call_in_loop(self._loop, self.claimed.set)
        self.let_go.wait(SECONDS)
        return lease


async def test_a_take_over_goes_on_if_its_caller_is_cancelled(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has given the lease already. The message is answered."""
    async with hands(config, ["here"]) as runtime:
        name = await runtime.new()
        held = HeldClaim(runtime, monkeypatch)
        submit = asyncio.create_task(runtime.submit(name, "mine", how="take over"))
        await held.claimed.wait()
        submit.cancel()
        await asyncio.wait({submit})
        assert submit.cancelled()
        held.let_go.set()
        await until(runtime, name, "run.finished")
        await runtime.workers.idle(name)
        assert await outcomes(runtime, name) == ["completed"]
        assert await runtime.journal.holder(f"run:{name}") is None


@pytest.mark.parametrize("how", ["queue", "take over"])
async def test_a_claim_with_a_lost_answer_does_not_block_the_conversation(
    config: Config, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    """The store has given the lease, but the process learns only that the store is away. The message is answered."""
    async with hands(config, ["here"]) as runtime:
        name, journal = await runtime.new(), runtime.journal.journal
        claim = journal.claim
        lost_leases: list[Lease | None] = []

        def claim_without_answer(*args: Any, **named: Any) -> Lease | None:
            lease = claim(*args, **named)
            if not lost_leases:
                lost_leases.append(lease)
                raise StoreUnavailable("The store does not answer.")
            return lease

        monkeypatch.setattr(journal, "claim", claim_without_answer)
        with contextlib.suppress(StoreUnavailable):
            await runtime.submit(name, "go", how=how)
        await until(runtime, name, "run.finished")
        await runtime.workers.idle(name)
        assert len(lost_leases) == 1
        assert await outcomes(runtime, name) == ["completed"]
        assert await runtime.journal.holder(f"run:{name}") is None


@pytest.mark.parametrize("how", ["queue", "take over"])
async def test_a_claim_that_the_end_of_the_runtime_cuts_off_leaves_no_lease(
    config: Config, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    """The claim has reached the store already. Another runtime can answer the message at once."""
    async with hands(config, ["here"]) as runtime:
        name = await runtime.new()
        held = HeldClaim(runtime, monkeypatch)
        submit = asyncio.create_task(runtime.submit(name, "go", how=how))
        await held.claimed.wait()
        close = asyncio.create_task(runtime.workers.close())
        await asyncio.sleep(0)
        held.let_go.set()
        await close
        await submit
        assert await runtime.journal.holder(f"run:{name}") is None


async def test_a_conversation_that_is_at_work_stays_folded_however_many_others_are_opened(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for its answer hears of it at once, also where the lane goes on with something else."""
    monkeypatch.setattr(runner, "HISTORIES_MAX", 2)
    replies = [Reply(words="one", pause=1.0), Reply(words="on and on", hang=True)]
    async with hands(config, replies) as runtime:
        name = await runtime.new()
        first = (await runtime.submit(name, "go")).seq
        await until(runtime, name, "model.requested")
        await runtime.submit(name, "and this")
        for _ in range(4):
            await runtime.usage(await runtime.new())
        async with asyncio.timeout(60):
            await runtime.finished(name, first)
        assert await outcomes(runtime, name) == ["completed"]


async def test_a_run_that_began_and_lost_its_process_between_two_looks_goes_on(
    config: Config,
) -> None:
    """Who serves never saw its owner."""
    async with hands(config, ["went on"]) as runtime:
        await runtime.pick_up_orphans()
        name = begin(runtime.journal.journal)
        place = Policy(config.tools_folder).workdir_id
        dead = [MessageUser([Text("go")], ask=True), RunStarted([2], place=place)]
        runtime.journal.journal.append(name, dead, run="r_dead")
        await runtime.pick_up_orphans()
        await until(runtime, name, "run.finished", 2)
        assert await outcomes(runtime, name) == ["interrupted", "completed"]


async def test_a_dead_run_that_somebody_opens_first_goes_on_all_the_same(
    config: Config,
) -> None:
    """Opening repairs it, and who serves would find nothing open when it looks next."""
    async with hands(config, ["the whole answer"]) as runtime:
        name = await left_open(config)
        await runtime.transcript(name)
        await until(runtime, name, "run.finished", 2)
        assert await outcomes(runtime, name) == ["interrupted", "completed"]


async def test_a_dead_run_that_another_process_ends_first_goes_on_all_the_same(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tenax show`, say, asked a moment before who serves looked. What was left in good order is left."""
    config = with_timing(config, upkeep_seconds=0.05)

    def ended(journal: tenax.Journal, *, planned: bool = False) -> tuple[str, Lease]:
        name = begin(journal)
        lease = journal.claim(f"run:{name}", "me", 60)
        assert lease is not None
        started = RunStarted([2], place=Policy(config.tools_folder).workdir_id)
        cut = [
            MessageUser([Text("go")], ask=True),
            started,
            RunFinished("interrupted", "gone", planned),
        ]
        journal.append(name, cut, run="r_" + name[2:], lease=lease)
        return name, lease

    with tenax.open(config.store_url, user=LOCAL_USER) as journal:
        first, lease = ended(journal, planned=True)
        journal.release(lease)
        async with hands(config, ["went on"] * 3) as runtime:
            # the look of the start is over
            await until(runtime, first, "run.finished", 2)
            left, lease = ended(journal, planned=True)
            journal.release(lease)
            slow, kept = ended(journal)
            quick, lease = ended(journal)
            journal.release(lease)
            # a look has found the other one too, in its owner's hands
            await until(runtime, quick, "run.finished", 2)
            journal.release(kept)
            await until(runtime, slow, "run.finished", 2)
            for name in (first, quick, slow):
                assert await outcomes(runtime, name) == ["interrupted", "completed"]
            assert await outcomes(runtime, left) == ["interrupted"]


# -- stop -------------------------------------------------------------------------------------------------------


async def test_a_stop_that_somebody_else_reads_first_stops_the_run(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history is shared with sub-agents: one may fold the stop before the run begins to look for it."""
    # which would find it
    config = with_timing(config, upkeep_seconds=600)
    go = Run.go

    async def read_first(self: Run) -> Ended:
        (stop,) = await self.journal.append(self.conversation, [RunStop()], run=self.id)

        def fold() -> None:
            self.history.turns.apply(stop)
            self.history.seq = stop.seq

        asyncio.get_running_loop().call_soon(fold)
        return await go(self)

    monkeypatch.setattr(Run, "go", read_first)
    async with hands(config, [Reply(words="on and on", hang=True)]) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "go")
        async with asyncio.timeout(60):
            await until(runtime, name, "run.finished")
        assert await outcomes(runtime, name) == ["cancelled"]


async def test_a_stop_that_comes_as_the_run_begins_to_wait_is_heeded_whoever_reads_it_first(
    config: Config, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process sent it and could not claim the conversation, which was being given back; here somebody looked at it."""
    # which would find it
    config = with_timing(config, upkeep_seconds=600)
    asks = Note(notes, name="ask", asks=True)
    async with hands(
        config, [Reply(calls=[ScriptedCall("ask", {"text": "x"})])], asks
    ) as runtime:
        name = await runtime.new()
        release, stopped = runtime.journal.release, False

        async def just_before(lease: Lease) -> None:
            nonlocal stopped
            history = runtime.workers.history(name)
            if not stopped and history.turns.run is not None:
                stopped = True
                await runtime.journal.append(
                    name, [RunStop()], run=history.turns.run.id
                )
                await history.catch_up()
            await release(lease)

        monkeypatch.setattr(runtime.journal, "release", just_before)
        await runtime.submit(name, "go")
        await until(runtime, name, "run.finished")
        assert await outcomes(runtime, name) == ["cancelled"]


async def test_who_lost_a_run_is_done_with_it_while_the_other_goes_on(
    config: Config,
) -> None:
    """Whoever waits for it to be idle, as `tenax -p` does, does not wait for the run that took its place."""
    endless = [Reply(words="on and on " * 200, pause=0.05, hang=True)] * 2
    async with hands(config, endless) as first, hands(config, endless) as second:
        name = await first.new()
        stored = await first.submit(name, "one")
        await until(first, name, "reply.delta")
        await second.submit(name, "two", how="take over")
        await first.finished(name, stored.seq)
        await until(second, name, "model.requested", 2)
        async with asyncio.timeout(60):
            await first.workers.idle(name)
        assert (await second.journal.head(name)).run is not None


@pytest.mark.parametrize("event", ["stop", "answer"])
async def test_what_is_folded_by_another_while_the_run_parks_is_heeded(
    config: Config, notes: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """It came after the run looked, and before it had parked."""
    take_stored = History.take_stored
    config = with_timing(config, upkeep_seconds=600)
    asks = Note(notes, name="ask", asks=True)
    async with hands(
        config, [Reply(calls=[ScriptedCall("ask", {"text": "x"})]), "done"], asks
    ) as runtime:

        async def meanwhile(self: History, stored: Any) -> None:
            for each in stored:
                if each.kind == "approval.asked":
                    came = (
                        RunStop()
                        if event == "stop"
                        else ApprovalAnswered(
                            each.event.message, each.event.call, "once", "ada"
                        )
                    )
                    await runtime.journal.append(
                        self.conversation, [came], run=each.run
                    )
                    await self.catch_up()
            await take_stored(self, stored)

        monkeypatch.setattr(History, "take_stored", meanwhile)
        name = await runtime.new()
        await runtime.submit(name, "go")
        await until(runtime, name, "run.finished")
        assert await outcomes(runtime, name) == [
            "cancelled" if event == "stop" else "completed"
        ]


STOPS: dict[str, tuple[Reply, str]] = {
    "before the first token": (Reply(hang=True), "model.requested"),
    "mid-stream": (Reply(words="some words", hang=True), "reply.delta"),
    "during a tool": (WRITE, "tool.started"),
    "while waiting for a retry": (
        Reply(trouble=Trouble("rate", retry_after=60.0)),
        "model.failed",
    ),
    "while an approval waits": (
        Reply(calls=[ScriptedCall("ask", {"text": "x"})]),
        "approval.asked",
    ),
}


@pytest.mark.parametrize("point", STOPS)
async def test_a_run_stops_at_any_point_and_the_conversation_goes_on(
    config: Config, notes: Path, point: str
) -> None:
    """The stop itself ends it, and the next message is answered."""
    # which would find it
    config = with_timing(config, upkeep_seconds=600)
    reply, kind = STOPS[point]
    never = asyncio.Event()
    tools = Note(notes, wait=never.wait), Note(notes, name="ask", asks=True)
    async with hands(
        config, Script([reply, Reply(words="fine")], repeat=True), *tools
    ) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "go")).seq
        await until(runtime, name, kind)
        if point == "while an approval waits":
            await runtime.workers.idle(name)
        async with asyncio.timeout(60):
            await runtime.stop(name)
            await until(runtime, name, "run.finished")
            await settled(runtime, name, seq)
        assert await outcomes(runtime, name) == ["cancelled"]
        shown = await runtime.transcript(name)
        assert brief(shown)[-1] == ("marker", "stopped", "Stopped.")
        assert {row.state for row in shown if row.kind == "tool"} <= {"cancelled"}
        assert prose(shown) in (["some words"], ["some "], [""], [])
    script = [Reply(words="fine")]
    async with hands(config, Script(script, repeat=True), *tools) as runtime:
        seq = (await runtime.submit(name, "and now?")).seq
        await settled(runtime, name, seq)
        assert brief(await runtime.transcript(name))[-1] == ("assistant", "", "fine")
        await proved(runtime)


# -- approvals --------------------------------------------------------------------------------------------------

ASKS = Reply(calls=[ScriptedCall("note", {"text": "milk"})])


async def asked(
    runtime: Hands, words: str = "write it down"
) -> tuple[str, int, ApprovalAsked]:
    """A conversation in which an approval waits: its id, the input's seq, and what is asked."""
    name = await runtime.new()
    seq = (await runtime.submit(name, words)).seq
    await until(runtime, name, "approval.asked")
    await runtime.workers.idle(name)
    (found,) = await told(runtime, name, ApprovalAsked)
    return name, seq, found


async def test_an_approval_for_once_is_good_for_one_call(
    config: Config, notes: Path
) -> None:
    """The second call of the same tool asks again."""
    async with hands(config, [ASKS, ASKS, "done"], Note(notes, asks=True)) as runtime:
        name, seq, ask = await asked(runtime)
        assert lines(notes) == []
        await runtime.answer(name, ask.message, ask.call, "once")
        await until(runtime, name, "approval.asked", 2)
        assert len(lines(notes)) == 1
        second = (await told(runtime, name, ApprovalAsked))[-1]
        await runtime.workers.idle(name)
        await runtime.answer(name, second.message, second.call, "once")
        await settled(runtime, name, seq)
        assert len(lines(notes)) == 2
        assert await outcomes(runtime, name) == ["completed"]


async def test_an_approval_for_the_conversation_holds_for_it_and_no_other(
    config: Config, notes: Path
) -> None:
    """The same tool asks no more here, and does elsewhere."""
    async with hands(config, [ASKS, ASKS, "done"], Note(notes, asks=True)) as runtime:
        name, seq, ask = await asked(runtime)
        await runtime.answer(name, ask.message, ask.call, "conversation")
        await settled(runtime, name, seq)
        assert len(lines(notes)) == 2
        assert len(await told(runtime, name, ApprovalAsked)) == 1
        await asked(runtime)
        assert len(lines(notes)) == 2


async def test_a_denied_call_is_not_made_and_the_model_is_told(
    config: Config, notes: Path
) -> None:
    """The run goes on with that."""
    model = ScriptedModel([ASKS, "then not"])
    async with hands(config, model, Note(notes, asks=True)) as runtime:
        name, seq, ask = await asked(runtime)
        await runtime.answer(name, ask.message, ask.call, "no")
        await settled(runtime, name, seq)
        assert lines(notes) == []
        assert b"The person said no." in model.bodies[-1]
        assert brief(await runtime.transcript(name))[-2:] == [
            ("tool", "denied", "The person said no."),
            ("assistant", "", "then not"),
        ]


async def test_an_approval_that_nobody_answers_is_denied_when_its_time_is_over(
    config: Config, notes: Path
) -> None:
    """By itself, and a later answer is refused."""
    limits = Limits(pause=0.01, approval_seconds=0.3)
    async with hands(
        config, [ASKS, "nobody came"], Note(notes, asks=True), limits=limits
    ) as runtime:
        name, _, ask = await asked(runtime)
        await until(runtime, name, "run.finished")
        assert lines(notes) == []
        (done,) = await told(runtime, name, ToolFinished)
        assert (done.outcome, done.text) == (
            "denied",
            "Nobody answered in time, so it was not allowed.",
        )
        with pytest.raises(InvalidInput):
            await runtime.answer(name, ask.message, ask.call, "once")


async def test_a_newer_message_denies_what_waits_for_an_approval(
    config: Config, notes: Path
) -> None:
    """Nobody is locked out of a conversation by a question; the message is answered."""
    async with hands(
        config, [ASKS, "all right", "this too"], Note(notes, asks=True)
    ) as runtime:
        name, _, ask = await asked(runtime)
        seq = (await runtime.submit(name, "never mind")).seq
        await settled(runtime, name, seq)
        assert lines(notes) == []
        (answered,) = await told(runtime, name, ApprovalAnswered)
        assert (answered.answer, answered.why) == (
            "no",
            "A newer message came instead.",
        )
        assert prose(await runtime.transcript(name)) == ["", "all right", "this too"]
        with pytest.raises(InvalidInput):
            await runtime.answer(name, ask.message, ask.call, "once")


async def test_an_approval_is_answered_once_and_exactly_one_of_several_runners_goes_on(
    config: Config, notes: Path
) -> None:
    """Eight answers at once and eight runners: the call is made once, and the later answers are refused."""
    runners = [hands(config, [ASKS, "done"], Note(notes, asks=True)) for _ in range(4)]
    for each in runners:
        await each.start()
    try:
        name, seq, ask = await asked(runners[0])
        answers = [
            each.answer(name, ask.message, ask.call, "once") for each in runners * 2
        ]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert results.count(None) == 1, results
        assert all(
            result is None or isinstance(result, InvalidInput) for result in results
        ), results
        for each in runners:
            await settled(each, name, seq)
        assert len(lines(notes)) == 1
        assert len(await told(runners[0], name, ToolStarted)) == 1
        assert len(await told(runners[0], name, ApprovalAnswered)) == 1
        assert await outcomes(runners[0], name) == ["completed"]
        await proved(runners[0])
    finally:
        for each in runners:
            await each.close()


async def test_where_nobody_can_be_asked_a_call_that_needs_it_is_denied(
    config: Config, notes: Path
) -> None:
    """The run says so to the model and ends; it does not wait."""
    model = ScriptedModel([ASKS, "I may not"])
    async with hands(config, model, Note(notes, asks=True), asks=False) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "go")).seq
        await settled(runtime, name, seq)
        assert lines(notes) == []
        assert b"Nobody is there to be asked" in model.bodies[-1]
        assert await outcomes(runtime, name) == ["completed"]


# -- tools ------------------------------------------------------------------------------------------------------


async def test_calls_without_effects_run_side_by_side(
    config: Config, notes: Path
) -> None:
    """Two that wait for each other both end; one that has an effect waits for its turn."""
    both = asyncio.Barrier(2)
    calls = [
        ScriptedCall("look", {"text": "1"}),
        ScriptedCall("look", {"text": "2"}),
        ScriptedCall("note", {"text": "3"}),
    ]
    tools = Note(notes, name="look", effect="pure", wait=both.wait), Note(notes)
    async with hands(config, [Reply(calls=calls), "done"], *tools) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "go")).seq
        await settled(runtime, name, seq)
        assert sorted(line.split()[-1] for line in lines(notes)[:2]) == ["1", "2"]
        assert lines(notes)[2].endswith("3")
        texts = [each.text for each in await told(runtime, name, ToolFinished)]
        assert sorted(texts) == ["noted 1", "noted 2", "noted 3"]


async def test_calls_that_cannot_be_made_are_told_to_the_model(
    config: Config, notes: Path
) -> None:
    """An unknown tool, arguments that do not fit, arguments that are no JSON, and a tool that fails."""
    calls = [
        ScriptedCall("not", {}),
        ScriptedCall("note", {"colour": "red"}),
        ScriptedCall("note", "{broken"),
        ScriptedCall("note", {"text": "fail"}),
    ]
    model = ScriptedModel([Reply(calls=calls), "I see"])
    async with hands(config, model, Note(notes)) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "go")).seq
        await settled(runtime, name, seq)
        done = {each.call: each for each in await told(runtime, name, ToolFinished)}
        assert [value.outcome for value in done.values()] == ["failed"] * 4
        texts = [done[f"call_1_{n}"].text for n in range(1, 5)]
        assert "There is no tool 'not'. Did you mean note?" in texts[0]
        assert "do not fit" in texts[1]
        assert "are not JSON" in texts[2]
        assert texts[3] == "The pencil broke."
        assert all(text[:20].encode() in model.bodies[-1] for text in texts)
        assert await outcomes(runtime, name) == ["completed"]


async def test_a_run_that_does_not_come_to_an_end_is_ended(
    config: Config, notes: Path
) -> None:
    """A model that calls tools for ever: the budget of steps ends it with a sentence, and one can go on."""
    limits = Limits(steps=5)
    script = Script([WRITE], repeat=True)
    async with hands(
        config, script, Note(notes, effect="pure"), limits=limits
    ) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "go")).seq
        await settled(runtime, name, seq)
        assert len(await told(runtime, name, ModelRequested)) == 5
        (end,) = await told(runtime, name, RunFinished)
        assert (end.outcome, "5 steps" in end.why) == ("failed", True)
    async with hands(
        config, Script([Reply(words="fine")], repeat=True), Note(notes)
    ) as runtime:
        await settled(runtime, name, (await runtime.submit(name, "enough")).seq)
        assert prose(await runtime.transcript(name))[-1] == "fine"


# -- after an interruption --------------------------------------------------------------------------------------


async def left_open(
    config: Config, *, attempt: int = 0, place: str | None = None, **more: Any
) -> str:
    """A conversation whose run was left open by a process that is gone, in the middle of its answer."""
    with tenax.open(
        config.store_url, user=LOCAL_USER, clock=more.get("clock")
    ) as journal:
        here = Policy(config.tools_folder).workdir_id if place is None else place
        name = begin(journal)
        seq = journal.append(name, [MessageUser([Text("go")], ask=True)])[0].seq
        run = journal.ids.run()
        journal.append(
            name, [RunStarted([seq], None, attempt, here, journal.instance)], run=run
        )
        requested = ModelRequested(seq + 1, "", "script", 1.0)
        at = journal.append(name, [requested], run=run)[0].seq
        journal.append(name, [ReplyDelta(at, 0, "as I was ")], run=run)
        if more.get("stopped"):
            journal.append(name, [RunStop()])
        if more.get("newer"):
            journal.append(name, [MessageUser([Text("newer")], ask=True)])
        return name


async def test_an_interrupted_run_goes_on_by_itself_and_by_hand_only_so_often(
    config: Config,
) -> None:
    """Twice by itself; then it waits for the person, who can go on as often as they like."""
    ended = []
    for attempt in range(3):
        name = await left_open(config, attempt=attempt)
        async with hands(config, ["the whole answer"]) as runtime:
            await runtime.workers.idle(name)
            ended.append(await outcomes(runtime, name))
            if attempt == 2:
                assert brief(await runtime.transcript(name)) == [
                    ("user", "", "go"),
                    ("assistant", "cut", "as I was "),
                    ("marker", "recovered", "The process that ran it is gone."),
                ]
                await runtime.go_on(name)
                await runtime.workers.idle(name)
                assert await outcomes(runtime, name) == ["interrupted", "completed"]
            rows = brief(await runtime.transcript(name))
            assert [row[:2] for row in rows[1:]] == [
                ("assistant", "earlier"), ("marker", "resumed"), ("assistant", ""),
            ]  # fmt: skip
            await proved(runtime)
    assert ended == [
        ["interrupted", "completed"],
        ["interrupted", "completed"],
        ["interrupted"],
    ]


@pytest.mark.parametrize("why", ["old", "elsewhere", "ask", "stopped"])
async def test_an_interrupted_run_waits_for_the_person(
    config: Config, why: str
) -> None:
    """When it is no longer fresh, was somewhere else, the settings say so, or somebody had asked it to stop."""
    clock = SimClock() if why == "old" else None
    more: dict[str, Any] = {
        "place": "moon:/" if why == "elsewhere" else None,
        "stopped": why == "stopped",
        "clock": clock,
    }
    name = await left_open(config, **more)
    if why == "ask":
        config = replace(config, resume="ask")
    with tenax.open(config.store_url, user=LOCAL_USER, clock=clock) as journal:
        # it was found a quarter of an hour ago, and nobody was there to go on
        if clock is not None:
            nobody = replace(config, resume="ask")
            async with hands(nobody, ["x"], journal=journal) as runtime:
                await runtime.workers.idle(name)
            clock.advance(15 * 60 + 1)
        model = ScriptedModel(["the whole answer"])
        async with hands(config, model, journal=journal) as runtime:
            if clock is not None:
                runtime.workers.wake(name)
            await runtime.workers.idle(name)
            assert await outcomes(runtime, name) == ["interrupted"]
            assert model.bodies == []
            await runtime.go_on(name)
            await runtime.workers.idle(name)
            assert await outcomes(runtime, name) == ["interrupted", "completed"]


async def test_a_withdrawn_message_does_not_keep_an_interrupted_run_from_going_on(
    config: Config,
) -> None:
    """The person wrote a newer message and withdrew it before the process died."""
    name = await left_open(config, newer=True)
    with tenax.open(config.store_url, user=LOCAL_USER) as journal:
        (newer,) = journal.waiting(name)
        journal.append(name, [MessageWithdrawn(newer.seq)])
    async with hands(config, ["the whole answer"]) as runtime:
        await runtime.workers.idle(name)
        assert await outcomes(runtime, name) == ["interrupted", "completed"]


async def test_a_newer_message_is_answered_instead_of_the_interrupted_one(
    config: Config,
) -> None:
    """What was cut off is sent along with a note, once."""
    name = await left_open(config, newer=True)
    model = ScriptedModel(["no", "the newer answer"])
    async with hands(config, model) as runtime:
        await runtime.workers.idle(name)
        assert await outcomes(runtime, name) == ["interrupted", "completed"]
        assert [each.resumes for each in await told(runtime, name, RunStarted)] == [
            None,
            None,
        ]
        assert model.bodies[0].count(b"as I was ") == 1
        assert b"cut off here" in model.bodies[0]


async def test_history_that_is_stored_forked_or_brought_back_starts_no_run(
    config: Config,
) -> None:
    """Only a message that is submitted asks: nobody answers the others, also after a restart."""
    model = ScriptedModel(["one", "two"])
    async with hands(config, model) as runtime:
        name = await runtime.new()
        first = (await runtime.submit(name, "go")).seq
        await settled(runtime, name, first)
        await runtime.journal.append(
            name, [MessageUser([Text("a note from elsewhere")])]
        )
        fork = await runtime.journal.fork(name)
        imported = [event for event in await runtime.journal.read(name) if event.digest]
        undone = (await runtime.journal.append(name, [ConversationRewound(first)]))[
            0
        ].seq
        await runtime.journal.append(name, [ConversationRestored(undone)])
        opened = ConversationOpened(LOCAL_USER, runtime.journal.ids.segment())
        entries = [
            RawEvent(each.kind, each.at, each.run, each.body or b"")
            for each in imported[1:]
        ]
        await runtime.journal.load("c_imported", opened, entries)
        assert len(entries) > 5
        for each in (name, fork, "c_imported"):
            runtime.workers.wake(each)
            await runtime.workers.idle(each)
    async with hands(config, model) as runtime:
        for each in (name, fork, "c_imported"):
            await runtime.workers.idle(each)
            assert (await runtime.journal.head(each)).run is None
        assert len(model.bodies) == 1
        assert await runtime.journal.unfinished() == []


async def test_a_message_that_was_erased_while_it_waited_keeps_no_lane_busy(
    config: Config,
) -> None:
    """There is nothing to answer; the lane ends."""
    async with hands(config, ["one"]) as runtime:
        name = await runtime.new()
        (waits,) = await runtime.journal.append(
            name, [MessageUser([Text("secret")], ask=True)]
        )
        await runtime.journal.erase(name, [waits.seq], by="ada")
        runtime.workers.wake(name)
        async with asyncio.timeout(60):
            await runtime.workers.idle(name)


async def test_a_fork_asks_the_model_itself_and_its_calls_have_keys_of_their_own(
    config: Config, notes: Path
) -> None:
    """Nothing that is recorded for one conversation answers for another."""
    model = ScriptedModel(["hello", WRITE, "done"])
    async with hands(config, model, Note(notes)) as runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "hi")).seq)
        fork = await runtime.journal.fork(name)
        for each in (name, fork):
            await settled(runtime, each, (await runtime.submit(each, "write")).seq)
            assert prose(await runtime.transcript(each))[-1] == "done"
        assert len(model.bodies) == 5
        keys = [line.split()[1] for line in lines(notes)]
        assert [key.split(":")[0] for key in keys] == [name, fork]


# -- trouble with a model ---------------------------------------------------------------------------------------


async def test_retries_are_events_with_a_growing_wait_that_is_kept(
    config: Config,
) -> None:
    """Each wait is stored before it is waited; the longer of our own and the provider's holds."""
    trouble = Trouble("rate", retry_after=0.2, times=3)
    limits = Limits(pause=0.1, retries=4)
    async with hands(
        config, [Reply(words="", trouble=trouble), "x"], limits=limits
    ) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "go")).seq
        await settled(runtime, name, seq)
        found = await events_of(runtime, name, "model.failed", "model.requested")
        assert [each.kind.split(".")[1] for each in found] == [
            "requested",
            "failed",
        ] * 3 + ["requested"]
        waits = [each.event.wait for each in found[1::2]]  # type: ignore[union-attr]
        assert all(wait >= 0.2 for wait in waits)
        assert waits[2] > 0.25
        for failed, again in zip(found[1::2], found[2::2], strict=True):
            assert again.at - failed.at >= failed.event.wait * 0.95e6  # type: ignore[union-attr]


async def test_the_next_model_answers_when_the_first_does_not(config: Config) -> None:
    """The context is opened for it, and what both were sent can be shown."""
    first = ScriptedModel([Reply(trouble=Trouble("key", "No."))], name="first")
    second = ScriptedModel(["from the second"], name="second")
    runtime = Hands(config, models=[first, second], limits=QUICK)
    async with runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "go")).seq)
        assert prose(await runtime.transcript(name)) == ["from the second"]
        requests = await events_of(runtime, name, "model.requested")
        assert [request.event.model for request in requests] == ["first", "second"]  # type: ignore[union-attr]
        bodies = [await runtime.seen(name, request.seq) for request in requests]
        assert bodies == [*first.bodies, *second.bodies]


async def test_a_request_is_shown_with_the_parameters_that_it_had(
    config: Config,
) -> None:
    """A change of the settings begins a new epoch, and changes no earlier request."""

    def scripted(**parameters: Any) -> ScriptedModel:
        asked = ModelSettings(name="script", **parameters)
        return ScriptedModel(["fine"], settings=asked)

    models = [scripted(), scripted(max_tokens=9, temperature=0.5), scripted()]
    sent, name = [], ""
    for model in models:
        async with hands(config, model) as runtime:
            name = name or await runtime.new()
            await settled(runtime, name, (await runtime.submit(name, "go")).seq)
            sent += model.bodies
            requests = await events_of(runtime, name, "model.requested")
            bodies = [await runtime.seen(name, request.seq) for request in requests]
            assert bodies == sent
    had = [msgspec.json.decode(body)["settings"] for body in sent]
    assert had == [{}, {"max_tokens": 9, "temperature": 0.5}, {}]


async def test_a_stream_that_drops_and_is_retried_never_garbles_the_text(
    config: Config,
) -> None:
    """What is shown is the cut text and then the whole answer; the retry is sent nothing of the cut one."""
    words = "one two three four five"
    model = ScriptedModel(
        [Reply(words=words, pause=0.01, trouble=Trouble("dropped", times=2))]
    )
    async with hands(config, model) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "count")).seq
        await settled(runtime, name, seq)
        rows = [
            row for row in await runtime.transcript(name) if row.kind == "assistant"
        ]
        assert brief(rows) == [("assistant", "cut", words)] * 2 + [
            ("assistant", "", words)
        ]
        assert len({*model.bodies}) == 1
        assert [
            each.parts[0].text for each in await told(runtime, name, MessagePartial)
        ] == [words] * 2
        await proved(runtime)


class Broken(ScriptedModel):
    """A model with a bug."""

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        yield Words("so far ")
        yield Words("so good")
        raise ZeroDivisionError


async def test_a_surprise_inside_ends_the_run_with_a_sentence_and_keeps_the_text(
    config: Config,
) -> None:
    """What the model had said is sealed; the log has the cause; the next message is answered."""
    async with Hands(config, models=[Broken([])], limits=QUICK) as runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "go")).seq)
        why = "Something went wrong inside Tenax; the log says what."
        shown = brief(await runtime.transcript(name))
        assert shown[1:] == [
            ("assistant", "cut", "so far so good"),
            ("marker", "failed", why),
        ]
    async with hands(config, ["no", "fine"]) as runtime:
        await settled(runtime, name, (await runtime.submit(name, "again")).seq)
        assert prose(await runtime.transcript(name))[-1] == "fine"
        await proved(runtime)


# in long words: each is a piece of the stream
LONG = f"{'word' * 256} " * (BODY_BYTES_MAX // 1025 + 1)
ENDLESS = {
    "words": Reply(words=LONG),
    "thoughts": Reply(words="Hm.", thoughts=LONG),
    "a call": Reply(words="Hm.", calls=[ScriptedCall("note", {"text": LONG})]),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_an_answer_that_is_longer_than_any_ends_the_run_with_a_sentence(
    config: Config, notes: Path, what: str
) -> None:
    """What was shown of it stands, nothing of it is done, and the next message is answered."""
    async with hands(config, [ENDLESS[what], "fine", "fine"], Note(notes)) as runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "go")).seq)
        _, said, marker = await runtime.transcript(name)
        assert (said.state, ENDLESS[what].words.startswith(said.text)) == ("cut", True)
        assert marker.text.startswith("script says more than an answer can hold")
        if what == "thoughts":
            # The script counts messages, and reasoning without text is none: it would begin again.
            assert said.thought
            return
        await settled(runtime, name, (await runtime.submit(name, "again")).seq)
        assert prose(await runtime.transcript(name))[-1] == "fine"
        assert lines(notes) == []
        await proved(runtime)


FAILURES: dict[str, tuple[Reply, str]] = {
    "401": (Reply(trouble=Trouble("key", times=1)), "rejected the API key"),
    "429": (Reply(trouble=Trouble("rate", times=3)), "rate limit reached"),
    "500": (
        Reply(trouble=Trouble("server", times=3)),
        "returned an error (status 500)",
    ),
    "dropped": (Reply(words="half of", trouble=Trouble("dropped", times=3)), "."),
    "malformed": (Reply(trouble=Trouble("malformed", times=3)), "."),
    "overflow": (
        Reply(trouble=Trouble("overflow", limit=10, times=2)),
        "too long for the context",
    ),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("failure", FAILURES)
async def test_every_failure_of_a_provider_ends_in_a_sentence_and_one_can_go_on(
    tmp_path: Path, api: str, failure: str
) -> None:
    """Over real HTTP: a marker says what is wrong, without a secret, and the next message is answered."""
    reply, sentence = FAILURES[failure]
    config = config_of(f"sqlite:///{tmp_path}/tenax.db", tmp_path)
    replies = Script([reply, Reply(words="here I am")], repeat=True)
    async with Provider(replies) as provider:
        models = [connect(settings(api, provider.url))]
        async with Hands(config, models=models, limits=QUICK) as runtime:
            name = await runtime.new()
            await settled(runtime, name, (await runtime.submit(name, "hello")).seq)
            (end,) = await told(runtime, name, RunFinished)
            assert end.outcome == "failed"
            assert sentence in end.why
            assert "hunter2" not in end.why
            assert brief(await runtime.transcript(name))[-1] == (
                "marker",
                "failed",
                end.why,
            )
            assert (await told(runtime, name, ModelFailed))[-1].wait is None
            await settled(runtime, name, (await runtime.submit(name, "again")).seq)
            assert await outcomes(runtime, name) == ["failed", "completed"]
            await proved(runtime)


@pytest.mark.parametrize("api", APIS)
async def test_what_the_model_saw_is_byte_for_byte_what_was_sent(
    config: Config, notes: Path, api: str
) -> None:
    """A long run with steers, retries, tools, a stop and queued messages: each request is rendered again the same."""
    script = Script(
        [
            Reply(
                words="let me see",
                calls=[
                    ScriptedCall("look", {"text": "a"}),
                    ScriptedCall("note", {"text": "b"}),
                ],
            ),
            Reply(
                thoughts="hm",
                calls=[ScriptedCall("note", {"text": "fail"})],
                trouble=Trouble("server", times=1),
            ),
            Reply(words="half ", pause=0.01, trouble=Trouble("dropped", times=1)),
            # until it is stopped
            Reply(words="on and on " * 200, pause=0.02, hang=True),
            Reply(words="fourth"),
            Reply(words="fifth"),
        ],
        repeat=True,
    )
    steps: list[Callable[[], Any]] = []

    async def next_step() -> None:
        if steps:
            await steps.pop(0)()

    tools = Note(notes, name="look", effect="pure"), Note(notes, wait=next_step)
    log = notes.with_name("provider.log")
    async with Provider(script, log=log) as provider:
        models = [connect(settings(api, provider.url))]
        async with Hands(config, models=models, limits=QUICK).with_tools(
            *tools
        ) as runtime:
            name = await runtime.new()
            steps.append(lambda: runtime.submit(name, "be quick", how="steer"))
            await settled(runtime, name, (await runtime.submit(name, "go")).seq)
            after = (await runtime.journal.head(name)).head
            await runtime.submit(name, "again")
            await until(runtime, name, "reply.delta", 3, after=after)
            await runtime.stop(name)
            seq = (await runtime.submit(name, "and now")).seq
            await settled(runtime, name, seq)
            requests = await events_of(runtime, name, "model.requested")
            assert [
                await runtime.seen(name, request.seq) for request in requests
            ] == provider.bodies
            assert len(requests) >= 6
            assert await outcomes(runtime, name) == [
                "completed",
                "cancelled",
                "completed",
            ]
            await proved(runtime)


async def test_however_often_settings_change_a_model_is_reached_over_the_same_connection(
    config: Config, tmp_path: Path
) -> None:
    """In a process that runs for months every rule that is made is such a change."""
    async with Provider(Script([Reply("hi")])) as model:
        env = {
            "OPENAI_BASE_URL": f"{model.url}/v1",
            "TENAX_MODEL": "m",
            "TENAX_MEMORY_REVIEW": "false",
        }
        config = config_of(config.store_url, tmp_path, **env)
        async with Runtime(config) as runtime:
            name = await runtime.new()
            await runtime.rename(name, "A talk")
            await settled(runtime, name, (await runtime.submit(name, "hello")).seq)
            before = sockets()
            for n in range(20):
                await runtime.configure(
                    replace(config, rules=(Rule("allow", f"tool{n}"),))
                )
                await settled(runtime, name, (await runtime.submit(name, "hello")).seq)
            assert sockets() - before < 10


def sockets() -> int:
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found += str(path.readlink()).startswith("socket:")
    return found


class Loud(Note):
    """A tool that shows its output while it runs."""

    shown = ""

    async def run(self, args: NoteArgs, call: Call) -> str:
        call.live.read = lambda: self.shown
        return await super().run(args, call)


async def test_a_running_tool_shows_its_output_and_a_stop_keeps_it(
    config: Config, notes: Path
) -> None:
    """Its row grows, also by a replaced end; the output is dropped when the result stands; a quick tool stores none."""
    calls = [Reply(calls=[ScriptedCall("loud", {"text": "x"})])] * 3
    never = asyncio.Event()
    loud = Loud(notes, name="loud", wait=never.wait)
    config = with_timing(config, output_seconds=0.02)
    async with hands(config, [*calls, "Done."], loud) as runtime:
        name = await runtime.new()
        await runtime.submit(name, "go")
        loud.shown = "one"
        await until(runtime, name, "tool.output", 1)
        row = (await runtime.transcript(name))[-1]
        assert (row.kind, row.state, row.text) == ("tool", "running", "one")
        loud.shown = "one two"
        await until(runtime, name, "tool.output", 2)
        loud.shown = "one 2"
        await until(runtime, name, "tool.output", 3)
        stored = await told(runtime, name, ToolOutput)
        assert [(event.offset, event.text) for event in stored] == [(0, "one"), (3, " two"), (4, "2")]  # fmt: skip
        assert (await runtime.transcript(name))[-1].text == "one 2"
        await runtime.stop(name)
        await until(runtime, name, "run.finished")
        await runtime.workers.idle(name)
        (row,) = [row for row in await runtime.transcript(name) if row.kind == "tool"]
        assert row.state == "cancelled"
        assert row.text.endswith("Its output so far:\none 2")
        assert row.seconds is not None
        assert await told(runtime, name, ToolOutput) == []
        assert verify(runtime.journal.journal).ok


async def test_a_quick_tool_stores_nothing_but_its_result(
    config: Config, notes: Path
) -> None:
    """A turn with quick tools has no further write."""
    loud = Loud(notes, name="loud")
    loud.shown = "all of it"
    config = with_timing(config, output_seconds=SECONDS)
    call = Reply(calls=[ScriptedCall("loud", {"text": "x"})])
    async with hands(config, [call, "Done."], loud) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "go")).seq
        await settled(runtime, name, seq)
        (started,) = await events_of(runtime, name, "tool.started")
        (finished,) = await events_of(runtime, name, "tool.finished")
        # Output that was dropped would have left a gap.
        assert finished.seq == started.seq + 1


async def test_reasoning_is_stored_while_it_grows_and_its_duration_with_the_answer(
    config: Config,
) -> None:
    """A reload shows the same duration. An answer without reasoning has none."""
    thoughtful = Reply(words="So.", thoughts="hm hm hm hm", pause=0.02)
    async with hands(config, [thoughtful, "Plain."]) as runtime:
        name = await runtime.new()
        seq = (await runtime.submit(name, "go")).seq
        await until(runtime, name, "reply.thought", 2)
        await settled(runtime, name, seq)
        row = (await runtime.transcript(name))[-1]
        assert (row.text, row.thought) == ("So.", "hm hm hm hm")
        assert row.thought_seconds > 0
        assert row.started < row.at
        (again,) = [
            each for each in await runtime.transcript(name) if each.id == row.id
        ]
        assert again == row
        await settled(runtime, name, (await runtime.submit(name, "go")).seq)
        row = (await runtime.transcript(name))[-1]
        assert (row.text, row.thought, row.thought_seconds) == ("Plain.", "", 0)
