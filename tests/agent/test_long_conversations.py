"""Conversations that grow past what a model can take: a summary, or a trim, and never a loop or a loss."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenax.agent import Aborted, Busy, Compacted, Limits, NothingToDo, Superseded
from tenax.agent.compaction import INSTRUCTION
from tenax.agent.history import History, context_at
from tenax.config import Config
from tenax.events import (
    ContextCompacted,
    ContextKept,
    ContextOpened,
    ContextSummarised,
    ConversationRewound,
    MessageUser,
    ModelRequested,
    ModelUsed,
)
from tenax.models import Reply, Script, ScriptedCall, ScriptedModel, Trouble
from tenax.models.base import Piece
from tenax.parts import Text
from tenax.sessions import SessionDB
from tenax.views.context import quote_summary
from tests.support.runs import (
    Hands,
    Note,
    config_of,
    events_of,
    outcomes,
    prose,
    settled,
    told,
    until,
)

QUICK = Limits(pause=0.01, retries=1, silence=5.0)
MARK = msgspec.json.encode(INSTRUCTION)[1:60]
LONG = "a word or two " * 12


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


class Talker(ScriptedModel):
    """Plays a script, and another one when it is asked for a summary."""

    def __init__(
        self,
        script: Script | Sequence[Reply | str],
        summaries: Sequence[Reply | str],
        *,
        context: int | None = None,
    ) -> None:
        super().__init__(script, context=context)
        self.summaries = [
            Reply(words=summary) if isinstance(summary, str) else summary
            for summary in summaries
        ]
        self.asked: list[bytes] = []
        """Requests for a summary."""
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        if MARK not in body:
            async for piece in super().stream(body, silence=silence):
                yield piece
            return
        self.asked.append(body)
        if self.meanwhile is not None:
            await self.meanwhile()
        reply = self.summaries[min(len(self.asked), len(self.summaries)) - 1]
        async for piece in ScriptedModel(Script([reply], repeat=True)).stream(
            body, silence=silence
        ):
            yield piece


def hands(config: Config, model: Talker, *tools: Note, limits: Limits = QUICK) -> Hands:
    return Hands(config, models=[model], limits=limits).with_tools(*tools)


def messages(body: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode(body)["messages"]
    return found


def said(body: bytes) -> list[str]:
    """The texts of a request."""
    return [
        "\n".join(part["text"] for part in message["parts"] if "text" in part)
        for message in messages(body)
    ]


def whole(body: bytes) -> bool:
    """Whether every call stands right before its results."""
    roles = [
        "calls"
        if any(part["type"] == "tool_call" for part in message["parts"])
        else message["role"]
        for message in messages(body)
    ]
    return all(
        (role == "results") == (n > 0 and roles[n - 1] == "calls")
        for n, role in enumerate(roles)
    )


async def talk(runtime: Hands, name: str, count: int, words: str = LONG) -> int:
    """So many turns; the seq of the last message."""
    seq = 0
    for number in range(count):
        seq = (await runtime.submit(name, f"question {number}: {words}")).seq
        await settled(runtime, name, seq)
    return seq


async def folds_alike(runtime: Hands, name: str) -> None:
    """What was requested can be folded again from the journal, byte for byte."""
    sent = {each.digest for each in await told(runtime, name, ModelRequested)}
    for each in await events_of(runtime, name, "model.requested"):
        body = await runtime.seen(name, each.seq)
        assert hashlib.sha256(body).hexdigest() == each.event.digest  # type: ignore[union-attr]
    assert sent


# -- by itself ------------------------------------------------------------------------------------------------------


async def test_a_conversation_that_is_nearly_full_is_summarised_before_the_next_request(
    config: Config,
) -> None:
    """By the tokens that the provider counted; the last message stays word for word, and what was sent can be shown."""
    model = Talker(
        Script([Reply(words=LONG)], repeat=True),
        ["They talked. The sum is 42."],
        context=700,
    )
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 12)
        compacted = await told(runtime, name, ContextCompacted)
        assert compacted
        assert len(model.asked) == len(compacted)
        assert set(await outcomes(runtime, name)) == {"completed"}
        first = (await events_of(runtime, name, "context.compacted"))[0]
        requests = await events_of(runtime, name, "model.requested")
        requested = next(request for request in requests if request.seq > first.seq)
        body = await runtime.seen(name, requested.seq)
        texts = said(body)
        assert texts[0] == quote_summary("They talked. The sum is 42.")
        assert texts[-1].startswith("question ")
        assert body in model.bodies
        assert all(len(each.split()) <= 700 for each in model.bodies)
        used = await told(runtime, name, ModelUsed)
        assert [each.purpose for each in used] == ["summary"] * len(compacted)
        await folds_alike(runtime, name)
        rows = await runtime.transcript(name, limit=500)
        assert len(prose(rows, "user")) == 12
        assert prose(rows, "notice") == []


async def test_a_second_summary_updates_the_first(config: Config) -> None:
    """The summariser is shown the earlier summary, and the new one stands in its place."""
    model = Talker(
        Script([Reply(words=LONG)], repeat=True),
        ["the first summary", "the second summary"],
        context=700,
    )
    async with hands(config, model) as runtime:
        name = await runtime.new()
        while len(model.asked) < 2:
            last = await talk(runtime, name, 1)
        assert quote_summary("the first summary") in said(model.asked[1])[0]
        history = History(runtime.journal, name)
        await history.catch_up()
        texts = [each.message.parts[0].text for each in history.context.items]  # type: ignore[union-attr]
        assert texts[0] == quote_summary("the second summary")
        assert not any("the first summary" in text for text in texts)
        assert any(last in each.seqs for each in history.context.items)


async def test_calls_and_results_are_never_parted(
    config: Config, tmp_path: Path
) -> None:
    """A long run that calls tools is summarised in the middle, between two of its steps, and goes on."""
    steps = [
        Reply(words=LONG, calls=[ScriptedCall("note", {"text": LONG})])
        for _ in range(14)
    ]
    model = Talker([*steps, "done"], ["They noted things."], context=900)
    file = tmp_path / "notes"
    async with hands(config, model, Note(file, effect="pure")) as runtime:
        name = await runtime.new()
        stored = await runtime.submit(
            name, "note it all down, please: the very question"
        )
        await until(runtime, name, "context.compacted")
        await runtime.stop(name)
        await settled(runtime, name, stored.seq)
        assert all(whole(body) for body in model.bodies)
        after = [body for body in model.bodies if "They noted things." in said(body)[0]]
        assert all(
            "note it all down, please: the very question" in said(each)
            for each in after
        )
        await folds_alike(runtime, name)


async def test_a_context_that_is_long_only_since_the_last_answer_counts_as_long(
    config: Config, tmp_path: Path
) -> None:
    """What tools returned since the provider counted is counted too, so the request is not sent in vain."""

    class Big(Note):
        async def run(self, args: Any, call: Any) -> str:
            return "many words " * 300

    model = Talker(
        [
            *["short answer"] * 3,
            Reply(calls=[ScriptedCall("note", {"text": "x"})]),
            "done",
        ],
        ["They talked."],
        context=1000,
    )
    async with hands(config, model, Big(tmp_path / "n", effect="pure")) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 4, "short")
        assert not any(body.split().__len__() > 1000 for body in model.bodies)
        assert model.asked


# -- summaries that are none ------------------------------------------------------------------------------------------

NONE = {
    "fails": Reply(trouble=Trouble("server", "It is on fire.")),
    "hangs": Reply(words="They ", hang=True),
    "empty": Reply(words=""),
    "longer": Reply(words="on and on " * 2000),
    "is cut off": Reply(words="They said", finish="length"),
    "never ends": Reply(words="on and on " * 4000),
}


@pytest.mark.parametrize("kind", NONE)
async def test_a_summary_that_fails_is_tried_once_for_each_message_and_loses_nothing(
    config: Config, kind: str
) -> None:
    """The person is told, every message stays in the context, and the conversation goes on."""
    model = Talker(Script([Reply(words=LONG)], repeat=True), [NONE[kind]], context=1500)
    limits = Limits(pause=0.01, retries=1, silence=0.3)
    async with hands(config, model, limits=limits) as runtime:
        name = await runtime.new()
        while not model.asked:
            await talk(runtime, name, 1, LONG * 4)
        runs = len(await outcomes(runtime, name))
        await talk(runtime, name, 2, "short")
        assert len(model.asked) == 3
        assert len(await told(runtime, name, ContextKept)) == 3
        assert await told(runtime, name, ContextCompacted) == []
        assert await outcomes(runtime, name) == ["completed"] * (runs + 2)
        assert len(messages(model.bodies[-1])) == 2 * (runs + 2) - 1
        notices = prose(await runtime.transcript(name, limit=500), "notice")
        assert len(notices) == 3
        assert all("summary" in notice.lower() for notice in notices)


async def test_a_failing_summary_within_a_long_run_is_not_paid_for_at_every_step(
    config: Config, tmp_path: Path
) -> None:
    """One try for the message, however many steps its run takes after that."""
    steps = [
        Reply(words=LONG, calls=[ScriptedCall("note", {"text": "x"})])
        for _ in range(12)
    ]
    model = Talker([*steps, "done"], [NONE["fails"]], context=900)
    async with hands(config, model, Note(tmp_path / "n", effect="pure")) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 1)
        assert len(model.asked) == 1
        assert len(await told(runtime, name, ContextKept)) == 1


async def test_when_no_summary_is_to_be_had_old_tool_output_is_shortened_by_rule(
    config: Config, tmp_path: Path
) -> None:
    """It is an epoch of its own, and the run goes on with it."""

    class Big(Note):
        async def run(self, args: Any, call: Any) -> str:
            return "many words " * 80

    steps = [Reply(calls=[ScriptedCall("note", {"text": "x"})]) for _ in range(9)]
    model = Talker([*steps, "done"], [NONE["fails"]], context=1500)
    async with hands(config, model, Big(tmp_path / "n", effect="pure")) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 1)
        assert "trimmed" in [
            each.reason for each in await told(runtime, name, ContextOpened)
        ]
        assert await outcomes(runtime, name) == ["completed"]
        assert any(
            "more characters were left out" in each for each in said(model.bodies[-1])
        )
        assert all(whole(body) for body in model.bodies)
        await folds_alike(runtime, name)


# -- too long for the provider ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [400, None])
async def test_an_overflow_leads_to_one_compaction_and_another_try(
    config: Config, limit: int | None
) -> None:
    """The provider says that it is too long; what its context holds it may say or not."""
    full = Reply(
        trouble=Trouble("overflow", "Too long.", limit=limit, times=1), words=""
    )
    answers: list[Reply | str] = [LONG, LONG, LONG, LONG, full]
    model = Talker(
        Script(
            [
                answer if isinstance(answer, Reply) else Reply(words=answer)
                for answer in answers
            ]
        ),
        ["They talked."],
    )
    model.script.replies += [Reply(words="never given")]
    async with hands(config, model) as runtime:
        name = await runtime.new()
        last = await talk(runtime, name, 5)
        assert len(model.asked) == 1
        assert (await outcomes(runtime, name))[-1] == "completed"
        assert said(model.bodies[-1])[0] == quote_summary("They talked.")
        assert said(model.bodies[-1])[-1].startswith("question 4")
        assert prose(await runtime.transcript(name), "notice") == []
        assert last


async def test_an_overflow_that_nothing_helps_ends_the_run_with_a_reason(
    config: Config,
) -> None:
    """No loop: one try to make room, one more request, and then the person is told."""
    model = Talker(
        [Reply(trouble=Trouble("overflow", "It is too long for me."))], ["They talked."]
    )
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 1)
        assert await outcomes(runtime, name) == ["failed"]
        assert len(model.bodies) == 2
        marker = (await runtime.transcript(name))[-1]
        assert (marker.kind, marker.state, "too long" in marker.text) == (
            "marker",
            "failed",
            True,
        )


# -- by hand ----------------------------------------------------------------------------------------------------------


async def test_compaction_by_hand_says_what_became_of_it(config: Config) -> None:
    """Whatever the length: done, nothing to do, somebody else at it, not shorter."""
    model = Talker(
        Script([Reply(words=LONG)], repeat=True),
        ["They talked.", "", "They talked more."],
    )
    async with hands(config, model) as runtime:
        name = await runtime.new()
        assert isinstance(await runtime.compact(name), NothingToDo)
        await talk(runtime, name, 8)
        done = await runtime.compact(name)
        assert isinstance(done, Compacted)
        assert done.tokens_after < done.tokens_before
        head = await runtime.journal.head(name)
        assert head.segment == done.session_id
        await talk(runtime, name, 6)
        failed = await runtime.compact(name)
        assert isinstance(failed, Aborted)
        assert failed.session_id == done.session_id
        lease = await runtime.journal.claim(
            f"compress:{done.session_id}", "somebody", 60
        )
        assert lease is not None
        assert isinstance(await runtime.compact(name), Busy)
        await runtime.journal.release(lease)
        assert isinstance(await runtime.compact(name), Compacted)
        assert len(model.asked) == 3
        assert len(await told(runtime, name, ContextSummarised)) == 2


async def test_an_undo_while_the_summary_is_written_makes_the_compaction_lose(
    config: Config,
) -> None:
    """What was taken back does not come back in a summary."""
    model = Talker(Script([Reply(words=LONG)], repeat=True), ["They talked."])
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 8)
        model.meanwhile = lambda: runtime.journal.append(name, [ConversationRewound(4)])
        outcome = await runtime.compact(name)
        assert isinstance(outcome, Superseded)
        assert (
            outcome.by
            == outcome.session_id
            == (await runtime.journal.head(name)).segment
        )
        assert await told(runtime, name, ContextCompacted) == []


async def test_what_is_said_while_the_summary_is_written_is_answered(
    config: Config,
) -> None:
    """A message that waits is never covered: it stands in the next request, after the summary, once."""
    model = Talker(Script([Reply(words=LONG)], repeat=True), ["They talked."])
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 8)
        words = MessageUser([Text("do not forget me")], ask=True)
        model.meanwhile = lambda: runtime.journal.append(name, [words])
        assert isinstance(await runtime.compact(name), Compacted)
        last = (await runtime.journal.head(name)).unanswered
        runtime.workers.wake(name)
        await settled(runtime, name, last)
        assert said(model.bodies[-1])[0] == quote_summary("They talked.")
        assert said(model.bodies[-1]).count("do not forget me") == 1
        assert (await runtime.journal.head(name)).unanswered == 0


async def test_an_input_that_waited_through_a_compaction_by_another_program_is_answered(
    config: Config,
) -> None:
    """Also by a process that comes later, and when the summary covers the place where it stands."""
    model = Talker(Script([Reply(words=LONG)], repeat=True), [])
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 3)
        (waits,) = await runtime.journal.append(
            name, [MessageUser([Text("still here")], ask=True)]
        )
        segment = (await runtime.journal.head(name)).segment or ""
        db = SessionDB(journal=runtime.journal.journal)
        await asyncio.to_thread(db.rotate, segment, summary="They talked.")
    async with hands(config, model) as runtime:
        await settled(runtime, name, waits.seq)
        assert said(model.bodies[-1]) == [quote_summary("They talked."), "still here"]
        assert (await outcomes(runtime, name))[-1] == "completed"


async def test_a_compaction_by_hand_while_a_tool_works_loses_no_result(
    config: Config, tmp_path: Path
) -> None:
    """The step that is open stays whole; the run goes on in the child."""
    go = asyncio.Event()
    calls = Reply(words="let me see", calls=[ScriptedCall("note", {"text": "milk"})])
    model = Talker(
        Script([*[Reply(words=LONG)] * 6, calls, Reply(words="It is noted.")]),
        ["They talked."],
    )
    async with hands(config, model, Note(tmp_path / "n", wait=go.wait)) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 6)
        stored = await runtime.submit(name, "note milk")
        await until(runtime, name, "tool.started")
        assert isinstance(await runtime.compact(name), Compacted)
        model.script.replies[3:] = [Reply(words="It is noted.")] * 9
        go.set()
        await settled(runtime, name, stored.seq)
        texts = said(model.bodies[-1])
        assert texts[0] == quote_summary("They talked.")
        assert texts[-3:] == ["note milk", "let me see", "noted milk"]
        assert whole(model.bodies[-1])
        assert (await outcomes(runtime, name))[-1] == "completed"


async def test_a_stop_while_the_summary_is_written_is_heeded_at_once(
    config: Config,
) -> None:
    """Nobody waits for a summary that nobody wants any more; the lock is given back."""
    model = Talker(
        Script([Reply(words=LONG)], repeat=True),
        [Reply(words="They ", hang=True)],
        context=700,
    )
    async with hands(config, model, limits=Limits(silence=60.0)) as runtime:
        name = await runtime.new()
        begun = asyncio.Event()

        async def begin() -> None:
            begun.set()

        model.meanwhile = begin
        seq = 0
        while not begun.is_set():
            seq = (await runtime.submit(name, f"question: {LONG}")).seq
            await asyncio.wait(
                {
                    asyncio.create_task(settled(runtime, name, seq)),
                    asyncio.create_task(begun.wait()),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
        await runtime.stop(name)
        await settled(runtime, name, seq)
        assert (await outcomes(runtime, name))[-1] == "cancelled"
        segment = (await runtime.journal.head(name)).segment
        assert await runtime.journal.holder(f"compress:{segment}") is None


async def test_an_erased_input_that_waits_does_not_keep_a_lane_busy(
    config: Config,
) -> None:
    """It is answered as what it is now, and the lane comes to rest."""
    model = Talker(Script([Reply(words="yes")], repeat=True), [])
    async with hands(config, model) as runtime:
        name = await runtime.new()
        (waits,) = await runtime.journal.append(
            name, [MessageUser([Text("a secret")], ask=True)]
        )
        await runtime.journal.erase(name, [waits.seq], by="ada")
        runtime.workers.wake(name)
        await settled(runtime, name, waits.seq)
        assert (await runtime.journal.head(name)).unanswered == 0
        assert b"a secret" not in b"".join(model.bodies)


async def test_what_a_model_saw_before_a_compaction_can_still_be_shown(
    config: Config,
) -> None:
    """The journal keeps what was used: also for requests of earlier segments."""
    model = Talker(Script([Reply(words=LONG)], repeat=True), ["They talked."])
    async with hands(config, model) as runtime:
        name = await runtime.new()
        await talk(runtime, name, 8)
        assert isinstance(await runtime.compact(name), Compacted)
        await talk(runtime, name, 1)
        bodies = [
            await runtime.seen(name, each.seq)
            for each in await events_of(runtime, name, "model.requested")
        ]
        assert bodies == model.bodies
        assert (await context_at(runtime.journal, name, 3)).summary is None
