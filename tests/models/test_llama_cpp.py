"""Both wire formats against a real server: llama.cpp with a small model, in a process of its own.

`make` installs the server and the model file, so a machine without them fails, with what to install.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenax.models import Model, Words, connect
from tenax.parts import Text, ToolCall, ToolResult
from tests.models.talk import APIS, READ, ask, first_words, hear, said, settings, until

CONTEXT = 1024
SERVER = Path(__file__).with_name("llama_server.py")
both = pytest.mark.parametrize("api", APIS)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server listens. It loads the model in a second."""
    command = [sys.executable, str(SERVER), str(CONTEXT)]
    log = tmp_path_factory.mktemp("llama") / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            pytest.fail(
                f"llama.cpp did not start. {log.read_text()[-2000:]}", pytrace=False
            )
        try:
            yield address
        finally:
            process.kill()


def model_at(api: str, url: str, **more: Any) -> Model:
    return connect(settings(api, url, name="smollm2", **more))


def busy(url: str) -> bool:
    """Whether the server's only slot generates."""
    return any(
        slot["is_processing"] for slot in httpx.get(f"{url}/slots", timeout=10).json()
    )


@both
async def test_an_answer_is_streamed(url: str, api: str) -> None:
    """Word by word, whole at the end, with its tokens."""
    model = model_at(api, url, max_tokens=16)
    prompt = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    heard = await hear(
        model,
        ask(model, said("user", "What is the capital of France?"), prompt=prompt),
        silence=60,
    )
    await model.close()
    assert len([piece for piece in heard.pieces if isinstance(piece, Words)]) > 2
    assert heard.answer.parts == [Text(heard.words)]
    assert heard.answer.finish in {"stop", "end_turn", "length", "max_tokens"}
    assert heard.answer.usage is not None
    assert 20 < heard.answer.usage.input < 100
    assert 2 < heard.answer.usage.output <= 16


@both
async def test_a_call_cancelled_in_the_middle_frees_the_server(
    url: str, api: str
) -> None:
    """It would go on for as long as there is context; with its reader gone it stops, and answers the next."""
    model = model_at(api, url, max_tokens=100_000)
    endless = ask(model, said("user", "Count for ever."), ignore_eos=True)
    stream = model.stream(endless, silence=60)
    pieces = [await anext(stream)]
    while not isinstance(pieces[-1], Words):
        pieces.append(await anext(stream))
    assert busy(url)
    await stream.aclose()
    await until(lambda: not busy(url))
    assert await first_words(model.stream(endless, silence=60))
    await until(lambda: not busy(url))
    await model.close()


@both
async def test_a_real_overflow_is_one(url: str, api: str) -> None:
    """The server says how much its context holds, and the model has learned it."""
    model = model_at(api, url)
    heard = await hear(model, ask(model, said("user", "word " * 3000)), silence=60)
    await model.close()
    assert heard.failure.why == "overflow"
    assert heard.failure.limit == model.context == CONTEXT


@both
async def test_calls_and_their_results_go_round(url: str, api: str) -> None:
    """Calls are gathered from their pieces, and go back with their results: also one that was cut off, no JSON at all."""
    model = model_at(api, url, max_tokens=60)
    must = {"openai": "required", "anthropic": {"type": "any"}}[api]
    question = said("user", "Read the file a.txt")
    asked = ask(model, question, tools=[READ], tool_choice=must, temperature=0.0)
    heard = await hear(model, asked, silence=60)
    calls = [part for part in heard.answer.parts if isinstance(part, ToolCall)]
    assert calls
    assert {call.name for call in calls} == {"read"}
    assert isinstance(json.loads(calls[0].arguments), dict)
    assert len({call.id for call in calls}) == len(calls)

    cut = ToolCall("cut", "read", '{"path": "a.t')
    answer = said("assistant", *heard.answer.parts, cut)
    results = said(
        "results", *(ToolResult(call.id, "Some text.") for call in [*calls, cut])
    )
    talk = [question, answer, results, said("system", "Be brief.")]
    # the server may close a connection that rested, just as it is used again
    await model.close()
    model = model_at(api, url, max_tokens=2)
    again = await hear(
        model, ask(model, *talk, prompt="You are Tenax.", tools=[READ]), silence=60
    )
    await model.close()
    assert again.answer.usage is not None
    assert heard.answer.usage is not None
    assert again.answer.usage.input > heard.answer.usage.input
