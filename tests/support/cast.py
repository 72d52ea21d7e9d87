"""A model that plays several parts: one script for the agent, and one for the sub-agent of each task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from tenax.models import Piece, Reply, Script, ScriptedCall, ScriptedModel
from tenax.tools.delegate import BRIEF


def hand_on(*tasks: str) -> Reply:
    """An answer that hands these tasks to sub-agents."""
    return Reply(calls=[ScriptedCall("delegate", {"task": task}) for task in tasks])


class Cast(ScriptedModel):
    """`agent` is played where a person asks, a part of `tasks` where its name stands in the task of a sub-agent.

    With `together`, so many sub-agents have to be asked at the same moment before any of them says a word.
    """

    def __init__(
        self,
        agent: Sequence[Reply | str],
        tasks: Mapping[str, Sequence[Reply | str]],
        *,
        together: int = 1,
    ) -> None:
        super().__init__(agent)
        self.scripts = {
            "": self.script,
            **{name: ScriptedModel(part).script for name, part in tasks.items()},
        }
        self._all_there = asyncio.Barrier(together)

    def part_of(self, body: bytes) -> str:
        """Whose request this is."""
        if BRIEF.encode() not in body:
            return ""
        return next(name for name in self.scripts if name and name.encode() in body)

    def asked(self, name: str = "") -> int:
        """How often this part was asked, in this process."""
        return sum(self.part_of(body) == name for body in self.bodies)

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        name = self.part_of(body)
        if name:
            await self._all_there.wait()
        self.script: Script = self.scripts[name]
        async for piece in super().stream(body, silence=silence):
            yield piece
