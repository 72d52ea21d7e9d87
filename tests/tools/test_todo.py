"""The list of what there is to do: whole each time, bounded, and in sight after any number of summaries."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tenax.agent.compaction import Compacted
from tenax.assembly import Runtime
from tenax.config import Config
from tenax.events import ToolFinished
from tenax.models import Reply, Script, ScriptedCall, ScriptedModel
from tests.support.runs import asked, config_of, told

LONG = "word " * 400
TITLE = "The list of what there is to do"


def todo(*entries: Any) -> Reply:
    return Reply(calls=[ScriptedCall("todo", {"entries": list(entries)})])


def entry(text: str, state: str = "open") -> dict[str, str]:
    return {"text": text, "state": state}


class InOrder(Script):
    """One reply after the other, however short the talk has become."""

    given: int = 0

    def next(self, _body: bytes, _played: Counter[int]) -> tuple[int, Reply]:
        self.given += 1
        return self.given, self.replies[self.given - 1]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(f"sqlite:///{tmp_path}/t.db", tmp_path)


async def test_the_result_says_how_far_it_is_and_a_list_that_is_none_is_refused(
    config: Config,
) -> None:
    """Nobody is asked; fifty entries of two hundred characters are the most."""
    most = [entry("x" * 200)] * 50
    script = [
        todo(entry("a", "done"), entry("b", "doing"), entry("c")),
        todo(*most),
        todo(*most, entry("y")),
        todo(entry("x" * 201)),
        todo(entry("a", "lost")),
        todo(),
    ]
    async with Runtime(config, models=[ScriptedModel([*script, "Done."])]) as runtime:
        name = await runtime.new()
        await asked(runtime, name, "Plan it.")
        done = [
            (each.outcome, each.text)
            for each in await told(runtime, name, ToolFinished)
        ]
        assert [outcome for outcome, _ in done] == [
            "done",
            "done",
            "failed",
            "failed",
            "failed",
            "done",
        ]
        assert [done[n][1] for n in (0, 1, 5)] == [
            "1 of 3 done.",
            "0 of 50 done.",
            "0 of 0 done.",
        ]


async def test_summaries_end_with_the_newest_list(config: Config) -> None:
    """It is carried from one to the next, whatever the model makes of it; a newer one stands in its place; none ends it."""
    stale = f"What was said.\n\n## {TITLE}, as it stood then\n- [ ] something else\n"
    script = [
        todo(
            entry("Buy\npaint", "done"), entry("key sk-abcdefghijklmnopqrstu", "doing")
        ),
        *(
            LONG,
            LONG,
            "Short.",
            LONG,
            LONG,
            stale,
            LONG,
            todo(entry("Paint it")),
            LONG,
            LONG,
            "Shorter.",
        ),
        *(LONG, todo(), LONG, LONG, "Shortest.", "Ready."),
    ]
    model = ScriptedModel(
        InOrder([Reply(each) if isinstance(each, str) else each for each in script])
    )
    async with Runtime(config, models=[model]) as runtime:
        name = await runtime.new()

        async def then(*words: str) -> str:
            for word in words:
                await asked(runtime, name, word)
            assert isinstance(await runtime.compact(name), Compacted)
            rows = await runtime.transcript(name)
            return [row.text for row in rows if row.kind == "summary"][-1]

        first = await then("Plan it.", "Go on.")
        lines = "- [x] Buy paint\n- [~] key [redacted]"
        assert first == f"Short.\n\n## {TITLE}, as it stood then\n{lines}"
        await asked(runtime, name, "More.")
        assert b"- [x] Buy paint" in model.bodies[-1]
        second = await then("More.")
        assert second == f"What was said.\n\n## {TITLE}, as it stood then\n{lines}"
        assert (
            await then("More.", "Now.", "More.")
            == f"Shorter.\n\n## {TITLE}, as it stood then\n- [ ] Paint it"
        )
        assert await then("More.", "It is done.", "More.") == "Shortest."
        await asked(runtime, name, "Anything left?")
        assert TITLE.encode() not in model.bodies[-1]
