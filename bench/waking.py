"""How soon people see what happens: the first word of an answer in another process, and a transcript after `kill -9`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from statistics import median

import tenax
from bench.engines import Engine
from bench.follow import follower, latencies
from bench.lab import ROOT, Lab, talk
from bench.measure import Row, at_most, progress, seconds, spread
from tenax.assembly import Runtime
from tenax.config import Config, load
from tenax.models import Answer, Piece, ScriptedModel, Words
from tenax.parts import Text

__all__ = ["waking"]

_TOKEN_MS = 10.0
_REPAIRED_S = 1.0


class Stamped(ScriptedModel):
    """A model whose answer is the moment it was given."""

    async def stream(
        self,
        body: bytes,  # noqa: ARG002
        *,
        silence: float,  # noqa: ARG002
    ) -> AsyncGenerator[Piece, None]:
        word = str(time.monotonic_ns())
        yield Words(word)
        await asyncio.sleep(0.05)
        yield Answer([Text(word)], None, "stop")


def waking(lab: Lab) -> Iterator[Row]:
    """Both, on each engine."""
    for engine in lab.engines:
        progress(f"first words and restarts, {engine.name}")
        yield _first_word(lab, engine)
        yield _restart(lab, engine)


def _config(lab: Lab, engine: Engine, label: str) -> Config:
    home = str(lab.folder / f"home-{engine.name}-{label}")
    return load({"HOME": home, "TENAX_HOME": home, "TENAX_STORE": engine.url(label)})


def _first_word(lab: Lab, engine: Engine) -> Row:
    count = lab.size(40, quick=2)

    async def turns(name: str) -> None:
        async with Runtime(
            _config(lab, engine, "waking"), models=[Stamped([""])]
        ) as runtime:
            for _ in range(count):
                stored = await runtime.submit(name, "when?")
                await runtime.finished(name, stored.seq)
                await runtime.workers.idle(name)

    with tenax.open(engine.url("waking")) as journal:
        (name,) = talk(journal, 1)
    with follower(engine.url("waking"), name, count) as other:
        asyncio.run(turns(name))
        seen = latencies(other)
    what = f"{engine.title}: from a model's first word to the tail in another process that shows it, stored between"
    return at_most(
        f"first-word-{engine.name}",
        what,
        median(seen) * 1000,
        _TOKEN_MS,
        spread(seen),
        " ms",
    )


def _restart(lab: Lab, engine: Engine) -> Row:
    """A process is killed in mid-answer; from the start of the next one to the repaired run, thousands of others there."""
    count = lab.size(10_000, quick=20)
    with tenax.open(engine.url("restart")) as journal:
        name = talk(journal, count)[0]
    config = _config(lab, engine, "restart")
    found = []
    for _ in range(lab.size(5, quick=1)):
        _kill_one(config, engine.url("restart"), name)
        found.append(asyncio.run(_repaired(config, name)))
    what = f"{engine.title}: from the start after `kill -9` in mid-answer to the repaired transcript, {count:,} conversations"
    said = f"of {len(found)}: {', '.join(seconds(each) for each in found)}"
    return at_most(
        f"restart-{engine.name}", what, median(found), _REPAIRED_S, said, " s"
    )


def _kill_one(config: Config, url: str, name: str) -> None:
    command = [
        sys.executable,
        "-m",
        "bench.waking",
        url,
        str(config.directories.data),
        name,
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        os.kill(victim.pid, signal.SIGKILL)


async def _repaired(config: Config, name: str) -> float:
    begun = time.perf_counter()
    runtime = Runtime(config, models=[ScriptedModel([""])])
    try:
        head = (await runtime.journal.head(name)).head
        await runtime.start()
        async for each in runtime.journal.tail(name, head):
            if each.kind == "run.finished":
                await runtime.transcript(name)
                return time.perf_counter() - begun
    finally:
        await runtime.close()
    raise AssertionError("a tail has no end")


async def _answer(url: str, home: str, name: str) -> None:
    """The process that is killed: it says `shown` once some of its answer is stored."""
    config = load({"HOME": home, "TENAX_HOME": str(Path(home)), "TENAX_STORE": url})
    async with Runtime(config, models=[_Slow([""])], serves=False) as runtime:
        stored = await runtime.submit(name, "go on")
        async for each in runtime.journal.tail(name, stored.seq):
            if each.kind == "reply.delta":
                print("shown", flush=True)
                await asyncio.sleep(60)


class _Slow(ScriptedModel):
    async def stream(
        self,
        body: bytes,  # noqa: ARG002
        *,
        silence: float,  # noqa: ARG002
    ) -> AsyncGenerator[Piece, None]:
        for _ in range(600):
            yield Words("word ")
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(_answer(*sys.argv[1:4]))
