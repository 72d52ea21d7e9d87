"""A question to the person: it waits, is answered with words, and allows nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenax.agent import Limits
from tenax.assembly import Runtime
from tenax.config import Config
from tenax.config.rules import Rule
from tenax.errors import InvalidInput, Refused
from tenax.events import ApprovalAnswered, ApprovalAsked, MessageUser, ToolFinished
from tenax.models import Reply, ScriptedCall, ScriptedModel
from tenax.parts import Text
from tests.support.runs import config_of, settled, told, until

COLOUR = {"question": "Which\ncolour?", "choices": ["Red", "Blue"]}
ASKS = Reply(calls=[ScriptedCall("ask", COLOUR)])


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Config:
    """For what the engine has no part in."""
    return config_of(f"sqlite:///{tmp_path}/t.db", tmp_path)


def talks(
    config: Config, *script: Reply | str, **more: Any
) -> tuple[Runtime, ScriptedModel]:
    model = ScriptedModel(list(script))
    return Runtime(config, models=[model], **more), model


async def asked(
    runtime: Runtime, name: str = "", nth: int = 1
) -> tuple[str, int, ApprovalAsked]:
    """A conversation in which something waits for the person, its input, and what."""
    seq = 0
    if not name:
        name = await runtime.new()
        seq = (await runtime.submit(name, "Paint it.")).seq
    await until(runtime, name, "approval.asked", nth)
    await runtime.workers.idle(name)
    return name, seq, (await told(runtime, name, ApprovalAsked))[-1]


async def results(runtime: Runtime, name: str) -> list[tuple[str, str]]:
    return [
        (each.outcome, each.text) for each in await told(runtime, name, ToolFinished)
    ]


async def test_what_the_person_says_is_the_result_also_after_a_restart(
    config: Config,
) -> None:
    """The question waits over the end of its process; the answer is marked as the person's, and permits no other call."""
    first, _ = talks(config, ASKS)
    async with first:
        name, _, ask = await asked(first)
        assert (ask.name, ask.touches) == ("ask", "Which colour?")
    write = Reply(calls=[ScriptedCall("write_file", {"path": "Blue", "content": "x"})])
    runtime, model = talks(config, ASKS, write)
    async with runtime:
        await runtime.answer(name, ask.message, ask.call, "once", words=" Blue ")
        _, _, second = await asked(runtime, name, 2)
        assert second.name == "write_file", (
            "yes to a question is no yes to what follows"
        )
        assert await results(runtime, name) == [
            ("done", "The person answered:\n\nBlue")
        ]
        assert b"The person answered:" in model.bodies[0]
        assert not (config.tools_folder / "Blue").exists()
        with pytest.raises(InvalidInput, match="answered already"):
            await runtime.answer(name, ask.message, ask.call, "once", words="Red")


async def test_of_two_answers_at_once_the_second_is_told_so(
    local: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both faces saw the question; one answer stands, and who came later reads a sentence."""
    runtime, _ = talks(local, ASKS, "painted")
    async with runtime:
        name, seq, ask = await asked(runtime)
        append = runtime.journal.append

        async def first(conversation: str, stored: Any, **how: Any) -> Any:
            monkeypatch.setattr(runtime.journal, "append", append)
            await runtime.answer(name, ask.message, ask.call, "once", words="Red")
            return await append(conversation, stored, **how)

        monkeypatch.setattr(runtime.journal, "append", first)
        with pytest.raises(InvalidInput, match="answered already"):
            await runtime.answer(name, ask.message, ask.call, "once", words="Blue")
        await settled(runtime, name, seq)
        assert await results(runtime, name) == [("done", "The person answered:\n\nRed")]


async def test_a_question_takes_words_and_an_approval_takes_none(local: Config) -> None:
    """No other answer, no rule and nothing allowed beforehand stands for words; bad words are refused with a sentence."""
    write = ScriptedCall("write_file", {"path": "a.txt", "content": "x"})
    runtime, _ = talks(
        local, Reply(calls=[ScriptedCall("ask", COLOUR), write]), "Well."
    )
    async with runtime:
        await runtime.add_rule(Rule("allow", "ask"))
        name, seq, _ = await asked(runtime, nth=2)
        ask, approval = await told(runtime, name, ApprovalAsked)
        for question in await runtime.questions(name):
            assert bool(question.conversation) is (question.call == approval.call)
            assert bool(question.always) is (question.call == approval.call)
        for answer in ("once", "conversation", "always"):
            with pytest.raises(InvalidInput, match="question has words"):
                await runtime.answer(name, ask.message, ask.call, answer)
            with pytest.raises(InvalidInput, match="question has words"):
                await runtime.answer(
                    name, approval.message, approval.call, answer, words="Red"
                )
        with pytest.raises(InvalidInput, match="question has words"):
            await runtime.answer(name, ask.message, ask.call, "once", words="x" * 4001)
        with pytest.raises(InvalidInput, match="no text"):
            await runtime.answer(name, ask.message, ask.call, "once", words="a\0b")
        with pytest.raises(Refused, match="once only"):
            await runtime.answer(
                name, ask.message, ask.call, "conversation", words="Red"
            )
        with pytest.raises(Refused, match="for good"):
            await runtime.answer(
                name, ask.message, ask.call, "always", words="Red", pattern="*"
            )
        assert await told(runtime, name, ApprovalAnswered) == []
        await runtime.answer(name, ask.message, ask.call, "no")
        await runtime.answer(name, approval.message, approval.call, "once")
        await settled(runtime, name, seq)
        assert ("denied", "The person gave no answer.") in await results(runtime, name)


async def test_a_newer_message_of_the_person_is_something_else_and_one_of_tenax_is_not(
    config: Config,
) -> None:
    """A process that ended meanwhile waits until the person has answered."""
    runtime, _ = talks(config, ASKS, "All right.", "This too.", "And that.")
    async with runtime:
        name, _, _ = await asked(runtime)
        mine = MessageUser([Text("A process ended.")], ask=True, system=True)
        (ended,) = await runtime.journal.append(name, [mine])
        runtime.workers.wake(name)
        await runtime.workers.idle(name)
        assert len(await runtime.questions(name)) == 1
        await runtime.submit(name, "Leave it.")
        await settled(runtime, name, ended.seq)
        assert await results(runtime, name) == [
            ("denied", "The person said something else instead.")
        ]


async def test_a_question_that_nobody_can_or_does_answer_is_denied(
    local: Config,
) -> None:
    """With a sentence: at once where nobody is there, and else when its time is over."""
    alone, _ = talks(local, ASKS, "Then not.", asks=False)
    async with alone:
        name = await alone.new()
        await settled(alone, name, (await alone.submit(name, "Paint it.")).seq)
        ((outcome, text),) = await results(alone, name)
        assert (outcome, text[:33]) == ("denied", "Nobody is there to be asked, and ")
    late, _ = talks(local, ASKS, "Then not.", limits=Limits(approval_seconds=0.2))
    async with late:
        name, _, _ = await asked(late)
        await until(late, name, "run.finished")
        ((outcome, text),) = await results(late, name)
        assert (outcome, text[:24]) == ("denied", "Nobody answered in time,")


@pytest.mark.parametrize(
    "choices",
    [
        ["Red"],
        ["a", "b", "c", "d", "e", "f", "g"],
        ["Red", " Red"],
        ["Red", " "],
        "Red",
    ],
)
async def test_choices_that_are_none_are_not_asked(local: Config, choices: Any) -> None:
    """The model hears why; nobody is asked in vain."""
    asks = Reply(calls=[ScriptedCall("ask", {**COLOUR, "choices": choices})])
    runtime, _ = talks(local, asks, "Well.")
    async with runtime:
        name = await runtime.new()
        await settled(runtime, name, (await runtime.submit(name, "Paint it.")).seq)
        ((outcome, _),) = await results(runtime, name)
        assert outcome == "failed"
        assert await told(runtime, name, ApprovalAsked) == []
