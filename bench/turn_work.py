"""The same turn for two agents: `python turn_work.py MODULE URL`, in the environment of the one that is measured.

It reads one request a line from stdin (`turn COUNT`: a turn with so many messages of history; `bare COUNT`: the same bytes
sent by a plain client) and answers with seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

TEXT = "The agent reads a file."
STUCK = """
import threading
from agent.memory_provider import MemoryProvider

class Stuck(MemoryProvider):
    name = "stuck"

    def is_available(self):
        return True

    def hang(self, *args, **kwargs):
        threading.Event().wait()

    initialize = get_tool_schemas = prefetch = sync_turn = system_prompt_block = on_session_end = on_turn_start = hang
"""


def history(count: int) -> list[dict[str, Any]]:
    """So many short messages; short, so that nobody compacts them."""
    return [
        {"role": ("user", "assistant")[n % 2], "content": TEXT} for n in range(count)
    ]


class Tenax:
    """Ours, in a runtime that stays open, on the event loop that `tenax serve` uses."""

    providers = ""

    def __init__(self, url: str) -> None:
        from tenax import Runtime, SessionDB, load

        home = os.environ["HOME"]
        env = {
            "HOME": home,
            "TENAX_HOME": home,
            "OPENAI_BASE_URL": f"{url}/v1",
            "TENAX_MODEL": "m",
        }
        env |= {
            "TENAX_MEMORY_REVIEW": "false",
            "TENAX_MEMORY_PROVIDERS": self.providers,
        }
        config = load(env)
        self.prepare(config.directories.data)
        self._url = f"{url}/v1/chat/completions"
        self._loop = asyncio.new_event_loop()
        self._runtime = self._loop.run_until_complete(self._made(Runtime, config))
        self._db = SessionDB(journal=self._runtime.journal.journal)
        self._talks: dict[int, str] = {}
        self._client: Any = None

    async def _made(self, runtime: Any, config: Any) -> Any:
        made = runtime(config)
        await made.start()
        await made.memory.ready.wait()
        return made

    def prepare(self, data: Path) -> None:
        """Put there what this one needs."""

    def turn(self, count: int) -> float:
        return self._loop.run_until_complete(self._turn(self._talk(count)))

    def _talk(self, count: int) -> str:
        if count not in self._talks:
            self._db.create_session(f"s{count}", "bench")
            self._db.append_messages(f"s{count}", history(count))
            self._talks[count] = (self._db.get_session(f"s{count}") or {})[
                "conversation_id"
            ]
        return self._talks[count]

    async def _turn(self, talk: str) -> float:
        begun = time.perf_counter()
        stored = await self._runtime.submit(talk, "And this?")
        await self._runtime.finished(talk, stored.seq)
        took = time.perf_counter() - begun
        await self._runtime.workers.idle(talk)
        return took

    def bare(self, count: int) -> float:
        return self._loop.run_until_complete(self._bare(self._talk(count)))

    async def _bare(self, talk: str) -> float:
        import httpx

        self._client = self._client or httpx.AsyncClient()
        events = await self._runtime.journal.open(talk, limit=3)
        request = next(
            event.seq for event in reversed(events) if event.kind == "model.requested"
        )
        body = await self._runtime.seen(talk, request)
        begun = time.perf_counter()
        headers = {"content-type": "application/json"}
        async with self._client.stream(
            "POST", self._url, content=body, headers=headers
        ) as answer:
            async for _ in answer.aiter_bytes():
                pass
        return time.perf_counter() - begun


class Stuck(Tenax):
    """The same with a memory provider that comes back from no call."""

    providers = "stuck"

    def prepare(self, data: Path) -> None:
        plugin = data / "plugins" / "stuck"
        plugin.mkdir(parents=True)
        (plugin / "__init__.py").write_text(STUCK)


class Hermes:
    """The peer, with an agent that stays built. Its first turn at each size is not counted."""

    def __init__(self, url: str) -> None:
        from hermes_state import SessionDB
        from run_agent import AIAgent

        db = SessionDB(db_path=Path(os.environ["HERMES_HOME"]) / "turns.db")
        self._agent = AIAgent(base_url=f"{url}/v1", api_key="none", model="m", quiet_mode=True,
                              skip_context_files=True, skip_memory=True, session_db=db, session_id="turns")  # fmt: skip

    def turn(self, count: int) -> float:
        before = history(count)
        begun = time.perf_counter()
        self._agent.run_conversation("And this?", conversation_history=before)
        return time.perf_counter() - begun


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an agent prints is not an answer
    work = {"tenax": Tenax, "stuck": Stuck, "run_agent": Hermes}[sys.argv[1]](
        sys.argv[2]
    )
    for line in sys.stdin:
        what, count = line.split()
        print(getattr(work, what)(int(count)), file=answers, flush=True)


if __name__ == "__main__":
    main()
