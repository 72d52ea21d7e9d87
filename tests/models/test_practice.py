"""The practice model itself: it answers, its process can die and is started again, and it never outlives us.

`make` installs it, so a machine without it fails, with what to install.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenax.config import ModelSettings
from tenax.models import Words, connect
from tenax.models.discovery import Ready, reach_model
from tenax.models.practice import practice
from tenax.models.practice.practice import Practice, installed, is_whole, model_file
from tenax.testing import Provider
from tests.models.talk import READ, ask, first_words, hear, said

SETTINGS = ModelSettings(label="practice", api="practice", url="", name="practice")
QUESTION = said("user", "What is the capital of France?")


@pytest.fixture
async def model() -> AsyncIterator[Practice]:
    if not installed():
        pytest.fail(
            "The practice model is missing. Run: make install, or tenax setup --practice",
            pytrace=False,
        )
    made = connect(SETTINGS)
    assert isinstance(made, Practice)
    yield made
    await made.close()


def pid() -> int:
    """The process of the model."""
    child = practice.SHARED.child
    assert child is not None
    return child.process.pid


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
        return (
            Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] == "Z"
            if Path("/proc").exists()
            else False
        )
    except (
        ProcessLookupError,
        FileNotFoundError,
    ):
        # also in the very moment in which somebody looks
        return True


def test_its_request_holds_the_last_message_only() -> None:
    """No history, no tools and no prompt but its own; a long message is cut to its end."""
    model = Practice(SETTINGS)
    talk = [
        said("user", "one"),
        said("assistant", "two"),
        said("user", "three"),
        said("assistant", "four"),
    ]
    body = msgspec.json.decode(
        ask(model, *talk, prompt="You are Tenax.", tools=[READ], temperature=1)
    )
    assert [message["content"] for message in body["messages"][1:]] == ["three"]
    assert "SmolLM" in body["messages"][0]["content"]
    assert "tools" not in body
    assert (body["temperature"], body["max_tokens"]) == (0.2, 200)
    body = msgspec.json.decode(ask(model, said("user", "x" * 100_000 + " the end")))
    assert body["messages"][1]["content"].endswith("x the end")
    assert len(body["messages"][1]["content"]) < 10_000
    assert (model.name, model.context) == ("practice", None)


async def test_it_answers_and_only_one_process_runs(model: Practice) -> None:
    """Word by word, with its tokens; two that are connected share the process, and the last one ends it."""
    heard = await hear(model, ask(model, QUESTION), silence=60)
    assert heard.words
    assert len([piece for piece in heard.pieces if isinstance(piece, Words)]) > 2
    assert heard.answer.usage is not None
    assert heard.answer.usage.output > 2
    first, other = pid(), Practice(SETTINGS)
    assert await first_words(other.stream(ask(other, QUESTION), silence=60))
    assert pid() == first
    await model.close()
    assert not gone(first)
    await other.close()
    assert gone(first)


async def test_what_is_too_long_in_tokens_is_cut_again(
    model: Practice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Down to the end that fits, and the person is told nothing of it. A stand-in for its server counts words."""
    async with Provider(["Hello."], context=200) as provider:
        program = tmp_path / "python"
        program.write_text(
            f'#!/bin/sh\necho \'{{"url": "{provider.url}"}}\'\ncat > /dev/null\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        heard = await hear(
            model, ask(model, said("user", "one two three " * 300 + "the end"))
        )
        await model.close()
    assert heard.words == "Hello."
    assert len(provider.bodies) == 4
    content = msgspec.json.decode(provider.bodies[-1])["messages"][-1]["content"]
    assert content.endswith(" three the end")


async def test_a_process_that_dies_is_a_failure_and_is_started_again(
    model: Practice,
) -> None:
    """Also by a SIGILL, as on an old processor: a sentence, and the next message finds a new one."""
    said_so = {
        signal.SIGILL: ("refused", "too old"),
        signal.SIGKILL: ("dropped", "signal 9"),
    }
    # It goes on for as long as there is context: a short answer could be whole before its process is ended.
    endless = {"ignore_eos": True, "max_tokens": 100_000}
    body = msgspec.json.encode(msgspec.json.decode(ask(model, QUESTION)) | endless)
    for number, (why, words) in said_so.items():
        async with aclosing(model.stream(body, silence=60)) as stream:
            async for piece in stream:
                if isinstance(piece, Words):
                    os.kill(pid(), signal.SIGSTOP)  # so that it cannot finish first
                    os.kill(pid(), number)
                    os.kill(pid(), signal.SIGCONT)
                    break
            rest = [piece async for piece in stream]
        last: Any = rest[-1]
        assert last.why == why, last
        assert words in last.message
    assert await first_words(model.stream(ask(model, QUESTION), silence=60))


async def test_a_process_that_cannot_start_is_a_failure(
    model: Practice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program that cannot be begun or dies at once, or a model that is not there."""
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    failure = (await hear(model, ask(model), silence=60)).failure
    assert (failure.why, failure.message) == (
        "dropped", "The practice model cannot be started: No such file or directory.")  # fmt: skip
    program.write_text("#!/bin/sh\nkill -ILL $$\n")
    program.chmod(0o755)
    failure = (await hear(model, ask(model), silence=60)).failure
    assert (
        failure.message
        == "The processor of this machine is too old for the practice model."
    )
    program.write_text('#!/bin/sh\nread key\necho \'{"error": "It is damaged."}\'\n')
    failure = (await hear(model, ask(model), silence=60)).failure
    assert (failure.message, failure.hint) == (
        "It is damaged.",
        "Install it with: tenax setup --practice",
    )
    monkeypatch.setattr(practice, "installed", lambda: False)
    failure = (await hear(model, ask(model), silence=60)).failure
    assert failure.message == "The practice model is not installed."


PARENT = """
import asyncio, sys
from tenax.config import ModelSettings
from tenax.models.practice import practice
from tests.models.talk import ask, first_words

async def main():
    model = practice.Practice(ModelSettings(label="p", api="practice", url="", name="practice"))
    await first_words(model.stream(ask(model), silence=60))
    print(practice.SHARED.child.process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_it_ends_when_its_parent_is_killed() -> None:
    """Nobody can clean up after a SIGKILL: it sees for itself."""
    command = [sys.executable, "-c", PARENT]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
    until = time.monotonic() + 60
    while not gone(child):
        assert time.monotonic() < until
        time.sleep(0.02)


async def test_nobody_else_can_use_it(model: Practice) -> None:
    """Its server asks for a key that only we have."""
    import httpx

    await first_words(model.stream(ask(model), silence=60))
    child = practice.SHARED.child
    assert child is not None
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            f"{child.status.url}/v1/chat/completions", json={"messages": []}
        )
    assert answer.status_code == 401


async def test_it_is_tried_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choosing it takes a real call, and leaves no process behind."""
    began = time.monotonic()
    assert await reach_model("practice", "", "practice", None) == Ready(
        "practice", {"api": "practice"}, ["practice"]
    )
    assert time.monotonic() - began < 30
    assert practice.SHARED.child is None


def test_a_damaged_file_is_known(tmp_path: Path) -> None:
    """By its digest."""
    file = model_file()
    assert file is not None
    assert is_whole(file)
    (tmp_path / "x").write_bytes(file.read_bytes()[:-1] + b"\x00")
    assert not is_whole(tmp_path / "x")
