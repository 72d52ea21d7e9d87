"""What of a long conversation is left after its compactions: planted facts, counted in the context.

No model is asked. A rule plays the summariser's part: it copies the sentences that hold a name, a number or a path, or say
what was decided or is open. It understands nothing, so what it keeps is a floor for the machinery around it: what is
cut where, what is carried over from one summary to the next, and how small the context gets.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator

import msgspec

from bench.lab import Lab, Words
from bench.measure import Row, at_least, at_most, progress
from tenax.agent.compaction import INSTRUCTION, estimate
from tenax.agent.history import History
from tenax.assembly import Runtime
from tenax.config import load
from tenax.events import Usage
from tenax.models import Reply, Script, ScriptedModel
from tenax.models.base import Answer, Piece
from tenax.parts import Text
from tenax.testing import memory
from tenax.views.context import Context

__all__ = ["probe"]

_CONTEXT = 6000
_WORDS_OF_A_MESSAGE = 1200
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_TELLS = re.compile(r"\d|/\w|\b[Dd]ecided\b|\b[Oo]pen:|\w\s+[A-Z]\w")
_MARK = msgspec.json.encode(INSTRUCTION)[1:60]


class _Rule(ScriptedModel):
    """Answers with the same words each time, and summarises by copying the sentences that tell something."""

    asked = 0

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        if _MARK not in body:
            async for piece in super().stream(body, silence=silence):
                yield piece
            return
        self.asked += 1
        texts = [
            part.get("text", "")
            for message in msgspec.json.decode(body)["messages"]
            for part in message["parts"]
        ]
        said = " ".join(texts[:-1])
        telling = dict.fromkeys(
            each.strip() for each in _SENTENCE.split(said) if _TELLS.search(each)
        )
        yield Answer([Text("\n".join(telling))], Usage(input=len(body) // 4), "stop")


def _facts(turn: int) -> dict[str, str]:
    """What is planted in a turn: a name, a decision, a path or an open task, each of them once."""
    kinds = {
        "name": f"My colleague is called Ilse{turn} Brandt.",
        "decision": f"We decided to use port {8000 + turn}.",
        "path": f"The notes are in /srv/notes/{turn}/plan.md.",
        "open task": f"Open: call the printer about order {turn}.",
    }
    kind = list(kinds)[turn % len(kinds)]
    return {kind: kinds[kind]}


def probe(lab: Lab) -> Iterator[Row]:
    """One conversation, compacted as often as it takes."""
    turns = lab.size(120, quick=24)
    progress(f"probe, {turns} turns")
    context, asked, whole = asyncio.run(_talk(lab, turns))
    text = msgspec.json.encode([each.message for each in context.items]).decode()
    planted = [
        (kind, fact) for turn in range(turns) for kind, fact in _facts(turn).items()
    ]
    kept = Counter(kind for kind, fact in planted if fact in text)
    share = kept.total() / len(planted)
    by_kind = ", ".join(
        f"{kind} {kept[kind]} of {count}"
        for kind, count in Counter(k for k, _ in planted).items()
    )
    what = f"{len(planted)} facts planted in {turns} turns, {asked} summaries by rule: the share still in the context"
    yield at_least("probe-facts", what, share, 0.95, by_kind, unit="")
    left = estimate(context.items)
    what = "the context after them, beside all that was said"
    yield at_most(
        "probe-size",
        what,
        left / whole,
        0.5,
        f"about {left:,} tokens of {whole:,}",
        unit="",
    )


async def _talk(lab: Lab, turns: int) -> tuple[Context, int, int]:
    """The context at the end, how many summaries there were, and about how many tokens were said."""
    words, said = Words(), 0
    model = _Rule(
        Script([Reply(words=f"{words.text(200)}.")], repeat=True), context=_CONTEXT
    )
    with memory() as journal:
        config = load({"TENAX_HOME": str(lab.folder / "probe")})
        async with Runtime(config, journal=journal, models=[model]) as runtime:
            name = await runtime.new()
            for turn in range(turns):
                filler = words.text(_WORDS_OF_A_MESSAGE)
                message = (
                    f"{filler}. {' '.join(_facts(turn).values())} {words.text(100)}."
                )
                said += (len(message) + 200) // 4
                stored = await runtime.submit(name, message)
                await runtime.finished(name, stored.seq)
                await runtime.workers.idle(name)
            history = History(runtime.journal, name)
            await history.catch_up()
            return history.context, model.asked, said
