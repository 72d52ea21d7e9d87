"""Answers to an approval that come at the same moment: exactly one of them counts, and each caller knows whether it was theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tenax.agent import Limits
from tenax.config import Config
from tenax.errors import InvalidInput
from tenax.events import ApprovalAnswered, ApprovalAsked
from tenax.models import Reply, ScriptedCall, ScriptedModel
from tests.support.runs import Hands, Note, config_of, lines, settled, told, until

AT_ONCE = 5
TURNS = 3


@pytest.fixture
def config(store_url: str, tmp_path: Path) -> Config:
    return config_of(store_url, tmp_path)


def hands(config: Config, notes: Path, *calls: ScriptedCall) -> Hands:
    script: list[Reply | str] = [Reply(calls=list(calls)), "done"] * TURNS
    runtime = Hands(config, models=[ScriptedModel(script)], limits=Limits(pause=0.01))
    return runtime.with_tools(Note(notes, asks=True))


async def asking(runtime: Hands, count: int) -> tuple[str, int, list[ApprovalAsked]]:
    """A new conversation in which so many approvals wait; its id, the input's seq, and what is asked."""
    name = await runtime.new()
    seq = (await runtime.submit(name, "write it down")).seq
    await until(runtime, name, "approval.asked", count)
    await runtime.workers.idle(name)
    return name, seq, await told(runtime, name, ApprovalAsked)


async def test_of_five_identical_answers_at_once_one_returns_and_the_others_are_refused(
    config: Config, tmp_path: Path
) -> None:
    """From one face and from several: the docstring's promise, and the call is made once each time."""
    notes = tmp_path / "notes.txt"
    async with (
        hands(config, notes, ScriptedCall("note", {"text": "milk"})) as one,
        hands(config, notes) as two,
    ):
        for turn in range(1, TURNS + 1):
            name, seq, (ask,) = await asking(one, 1)
            faces = [one, two, one, two, one] if turn == TURNS else [one] * AT_ONCE
            answers = [
                face.answer(name, ask.message, ask.call, "once") for face in faces
            ]
            results = await asyncio.gather(*answers, return_exceptions=True)
            assert results.count(None) == 1, results
            assert (
                sum(isinstance(result, InvalidInput) for result in results)
                == AT_ONCE - 1
            ), results
            await settled(one, name, seq)
            # the other process may be the one that goes on
            await until(one, name, "run.finished", 1)
            assert len(await told(one, name, ApprovalAnswered)) == 1
            assert len(lines(notes)) == turn


async def test_answers_to_different_questions_at_once_all_count(
    config: Config, tmp_path: Path
) -> None:
    """One moves the head under the other; both are stored, beside messages that come at the same moment."""
    notes = tmp_path / "notes.txt"
    calls = [ScriptedCall("note", {"text": f"line {n}"}) for n in range(AT_ONCE)]
    async with hands(config, notes, *calls) as runtime:
        name, seq, asks = await asking(runtime, AT_ONCE)
        answers = [runtime.answer(name, ask.message, ask.call, "once") for ask in asks]
        renames = [runtime.rename(name, f"title {n}") for n in range(AT_ONCE)]
        await asyncio.gather(*answers, *renames)
        await settled(runtime, name, seq)
        assert len(lines(notes)) == AT_ONCE
