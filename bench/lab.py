"""Where a run measures: its folder, its engines, its sizes, and the words it stores."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from contextlib import ExitStack
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from bench.engines import Engine, Postgres, Sqlite
from bench.measure import progress
from tenax import AsyncJournal
from tenax.events import ConversationOpened, MessageUser
from tenax.journal import Journal
from tenax.parts import Text
from tests.support.needs import Missing
from tests.support.postgres import PostgresServer

__all__ = ["ROOT", "Lab", "Scale", "Words", "message", "talk"]

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".bench"
"""On the disk of the repository, because /tmp may be memory. Git and the checks leave it alone."""
_MEMORY = Path("/dev/shm")
_VOCABULARY = 30_000
_AT_ONCE = 2000
Scale = Literal["quick", "normal", "large"]


class Lab:
    """One run. Everything it made is gone at its end, but for the peer's environment."""

    def __init__(self, scale: Scale = "normal") -> None:
        self.scale = scale
        self.cache = CACHE
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.cache.mkdir(exist_ok=True)
        (self.cache / ".gitignore").write_text("*\n")
        in_memory = self.scale == "quick" and os.access(_MEMORY, os.W_OK)
        self.folder = Path(
            tempfile.mkdtemp(
                prefix="tenax-bench-", dir=_MEMORY if in_memory else self.cache
            )
        )
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.sqlite = Sqlite(self.folder)
        self.postgres = self._server()
        self.engines: list[Engine] = [
            self.sqlite,
            *([self.postgres] if self.postgres else []),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def size(self, normal: int, *, quick: int, large: int | None = None) -> int:
        """How many, at the scale of this run."""
        return {"quick": quick, "normal": normal, "large": large or normal}[self.scale]

    def _server(self) -> Postgres | None:
        progress("starting PostgreSQL")
        settings = {"fsync": "off"} if self.scale == "quick" else {}
        try:
            return Postgres(self._stack.enter_context(PostgresServer(settings)))
        except Missing as error:
            progress(f"without PostgreSQL: {error}")
            return None


class Words:
    """Text as people write it, as far as an index cares: few words often, most words rarely. The same in every run."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        self.words = _vocabulary()
        self._weights = list(
            accumulate(1 / (rank + 3) for rank in range(len(self.words)))
        )

    def text(self, nbytes: int) -> str:
        """So many bytes of words."""
        picked = self._chance.choices(
            self.words, cum_weights=self._weights, k=nbytes // 3 + 2
        )
        return " ".join(picked)[:nbytes]


@cache
def _vocabulary() -> list[str]:
    chance = random.Random(1)
    syllables = [
        a + b for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "u", "an", "er")
    ]
    made = (
        "".join(chance.choices(syllables, k=chance.randint(1, 4)))
        for _ in range(3 * _VOCABULARY)
    )
    return list(dict.fromkeys(made))[:_VOCABULARY]


def message(text: str) -> MessageUser:
    """A person's message."""
    return MessageUser([Text(text)])


def talk(journal: Journal, count: int) -> list[str]:
    """So many new conversations, as fast as groups allow."""
    names = [journal.ids.conversation() for _ in range(count)]

    async def make() -> None:
        facade = AsyncJournal(journal)
        for start in range(0, count, _AT_ONCE):
            async with asyncio.TaskGroup() as appends:
                for name in names[start : start + _AT_ONCE]:
                    opened = ConversationOpened(
                        journal.user or "", journal.ids.segment()
                    )
                    appends.create_task(
                        facade.append(name, [opened, message("The first words.")])
                    )

    asyncio.run(make())
    return names
