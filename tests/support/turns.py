"""Processes that answer, die at a chosen instant, and go on where another one died. Each is forked, and real."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import tenax
from tenax.agent import Limits
from tenax.agent.history import History
from tenax.assembly import Runtime
from tenax.cli import tenax as command
from tenax.cli.frame import run
from tenax.errors import InvalidInput
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.models import Reply, Script, ScriptedModel
from tenax.views.transcript import Transcript
from tests.contract.engine.base import begin
from tests.support.children import Child, Teller
from tests.support.runs import Hands, Note, config_of

SECONDS = 60.0
CONFIG = """model = "main"
[models.main]
api = "script"
url = "{home}/script.json"
name = "script"
"""


def set_up(home: Path, replies: Sequence[Reply], **model: int) -> None:
    """What `tenax -p` needs at this home: a model that plays these replies, the last one again and again."""
    more = "".join(f"{name} = {value}\n" for name, value in model.items())
    (home / "config.toml").write_text(CONFIG.format(home=home) + more)
    (home / "script.json").write_bytes(
        msgspec.json.encode(Script(list(replies), repeat=True))
    )


def new_conversation(url: str, *events: Any) -> str:
    """An empty conversation, or one with these events."""
    with tenax.open(url, user=LOCAL_USER) as journal:
        return begin(journal, *events)


def journal_of(url: str, conversation: str) -> list[Recorded]:
    """Everything that is stored of a conversation, read by a process of its own handle."""
    with tenax.open(url, user=LOCAL_USER) as journal:
        return journal.read(conversation, limit=10_000)


def rows_of(events: Sequence[Recorded]) -> Transcript:
    shown = Transcript()
    for event in events:
        shown.apply(event)
    return shown


def after_each_append(look: Callable[[list[Recorded]], None]) -> None:
    """Call `look` with the stored events after every append of this process, in any thread."""
    append_awaited, append = AsyncJournal.append, Journal.append

    async def appended_awaited(
        self: AsyncJournal, *args: Any, **kwargs: Any
    ) -> list[Recorded]:
        stored = await append_awaited(self, *args, **kwargs)
        look(stored)
        return stored

    def appended(self: Journal, *args: Any, **kwargs: Any) -> list[Recorded]:
        stored = append(self, *args, **kwargs)
        look(stored)
        return stored

    AsyncJournal.append = appended_awaited  # type: ignore[method-assign]
    Journal.append = appended  # type: ignore[method-assign]


def die_after(
    kind: str, nth: int, here: Callable[[str], bool] = lambda _conversation: True
) -> None:
    """`kill -9` to this process, right after the nth event of a kind was stored in a conversation of these."""
    left = nth

    def count(stored: list[Recorded]) -> None:
        nonlocal left
        left -= sum(each.kind == kind and here(each.conversation) for each in stored)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if kind:
        after_each_append(count)


def ask(
    teller: Teller,
    url: str,
    home: str,
    args: list[str],
    kind: str = "",
    nth: int = 1,
    out: str = "shown.txt",
) -> None:
    """`tenax` with these arguments: its stdout goes to a file. It dies after the nth event of `kind`."""
    os.environ.update(TENAX_HOME=home, TENAX_STORE=url)
    file = os.open(f"{home}/{out}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    errors = os.open(f"{home}/{out}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(errors, 2)
    die_after(kind, nth)
    teller.tell("begins")
    sys.exit(run(command, args))


async def all_answered(runtime: Runtime, conversation: str) -> None:
    """Wait until nothing waits, and the last run is completed."""
    history = History(runtime.journal, conversation)
    async with asyncio.timeout(SECONDS):
        while True:
            await history.catch_up()
            turns = history.turns
            done = turns.last is not None and turns.last.finished == "completed"
            if done and turns.run is None and not turns.waiting:
                break
            await runtime.journal.wait(conversation, history.seq, seconds=1.0)
        await runtime.workers.idle(conversation)


def go_on(teller: Teller, url: str, home: str, conversation: str) -> None:
    """Open a runtime on what is there, and wait until all is answered."""

    async def work() -> None:
        config = config_of(url, Path(home))
        async with Runtime(config, asks=False) as runtime:
            await all_answered(runtime, conversation)

    asyncio.run(work())
    teller.tell("done")


def use_tools(
    teller: Teller,
    url: str,
    home: str,
    conversation: str,
    words: str,
    effect: Any,
    point: str,
) -> None:
    """Answer with the tool `note`, which has an effect, and die at a point. No words: go on with what is there."""
    if point == "in the tool":

        async def wait() -> None:
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        die_after(point, 1)

        async def wait() -> None: ...

    async def work() -> None:
        script = Script.read(Path(home) / "script.json")
        note = Note(Path(home) / "notes.txt", effect=effect, wait=wait)
        runtime = Hands(
            config_of(url, Path(home)), models=[ScriptedModel(script)]
        ).with_tools(note)
        async with runtime:
            if words:
                await runtime.submit(conversation, words)
            await all_answered(runtime, conversation)

    asyncio.run(work())
    teller.tell("done")


def limited(
    teller: Teller,
    url: str,
    home: str,
    conversation: str,
    words: str,
    how: Any,
    lease: float,
) -> None:
    """Ask with a runtime whose lease is short; tell what is stored, how the lane ended, and how the run did."""

    async def work() -> None:
        limits = Limits(silence=lease / 2, lease_grace=lease / 2, pause=0.01)
        script = Script.read(Path(home) / "script.json")
        note = Note(Path(home) / "notes.txt", pause=1.0)
        models = [ScriptedModel(script)]
        runtime = Hands(
            config_of(url, Path(home)), models=models, limits=limits
        ).with_tools(note)
        async with runtime:
            stored = await runtime.submit(conversation, words, how=how)
            teller.tell("stored", stored.seq)
            await runtime.finished(conversation, stored.seq)
            await runtime.workers.idle(conversation)
            teller.tell("idle")

    asyncio.run(work())


def approve(
    teller: Teller, url: str, home: str, conversation: str, message: int, call: str
) -> None:
    """Answer an approval from this process, and wait until all is answered."""

    async def work() -> None:
        script = Script.read(Path(home) / "script.json")
        note = Note(Path(home) / "notes.txt", asks=True)
        runtime = Hands(
            config_of(url, Path(home)), models=[ScriptedModel(script)]
        ).with_tools(note)
        async with runtime:
            try:
                await runtime.answer(conversation, message, call, "once")
            except InvalidInput:
                teller.tell("refused")
            await all_answered(runtime, conversation)

    asyncio.run(work())
    teller.tell("done")


def park(teller: Teller, url: str, home: str, conversation: str) -> None:
    """Ask for something that has to be approved, and end."""

    async def work() -> None:
        script = Script.read(Path(home) / "script.json")
        note = Note(Path(home) / "notes.txt", asks=True)
        runtime = Hands(
            config_of(url, Path(home)), models=[ScriptedModel(script)]
        ).with_tools(note)
        async with runtime:
            await runtime.submit(conversation, "write it down")
            await runtime.workers.idle(conversation)

    asyncio.run(work())


def resumed(url: str, home: Path, conversation: str) -> list[Recorded]:
    """Go on in a new process; what is stored then."""
    child = Child(go_on, url, str(home), conversation)
    code = child.finish()
    assert (code, child.lines) == (0, [["done"]]), code
    return journal_of(url, conversation)


def wait_for(journal: Journal, conversation: str, kind: str, nth: int = 1) -> Recorded:
    """Wait for the nth event of a kind, from outside."""
    for each in journal.tail(conversation):
        nth -= each.kind == kind
        if nth == 0:
            return each
    raise AssertionError
