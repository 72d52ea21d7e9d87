"""Models that play a script: inside the process, from a file, and behind real HTTP in a process of their own."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenax.config import ModelSettings
from tenax.errors import ConfigError
from tenax.events import Usage
from tenax.models import (
    Beat,
    Reply,
    Script,
    ScriptedCall,
    ScriptedModel,
    Thought,
    Trouble,
    Words,
    connect,
)
from tenax.parts import Reasoning, Text, ToolCall, ToolResult
from tenax.testing import Provider
from tenax.testing.provider import bodies_in
from tests.models.talk import (
    APIS,
    ask,
    first_words,
    hear,
    hear_from,
    said,
    settings,
    until,
)


def a_script(file: Path, script: Any) -> ModelSettings:
    file.write_text(json.dumps(script))
    return ModelSettings(label="demo", api="script", url=str(file), name="demo")


async def test_a_reply_comes_in_pieces() -> None:
    """Thoughts, words and calls, then the whole; words are its tokens."""
    model = ScriptedModel(
        [
            Reply(
                thoughts="Hm.",
                words=" Two words",
                calls=[ScriptedCall("read", {"path": "a"})],
            )
        ]
    )
    heard = await hear(model, ask(model))
    assert heard.pieces[:-1] == [Thought("Hm."), Words(" Two "), Words("words"), Beat()]
    assert heard.answer.parts == [
        Reasoning("Hm."),
        Text(" Two words"),
        ToolCall("call_1_1", "read", '{"path":"a"}'),
    ]
    assert heard.answer.finish == "tool_calls"
    assert heard.answer.usage is not None
    assert heard.answer.usage.output == 3
    assert model.bodies == [ask(model)]


async def test_the_request_says_which_reply_is_next() -> None:
    """The count of the assistant's messages, not what this process remembers: a new process goes on."""
    replies = ["one", "two", "three"]
    talk = [said("user", "a"), said("assistant", "one"), said("user", "b")]
    for _ in range(2):
        model = ScriptedModel(replies)
        assert (await hear(model, ask(model, *talk))).words == "two"
        assert (await hear(model, ask(model, *talk))).words == "two"
        assert (await hear(model, ask(model, *talk[:1]))).words == "one"


@pytest.mark.parametrize("api", APIS)
async def test_a_provider_chooses_as_a_model_does(api: str) -> None:
    """Tool results count as no message of the assistant, in either format."""
    talk = [
        said("user", "a"),
        said("assistant", ToolCall("x", "read", "{}")),
        said("results", ToolResult("x", "A"), ToolResult("y", "B")),
    ]
    async with Provider(["one", "two"]) as provider:
        model = connect(settings(api, provider.url))
        assert (await hear(model, ask(model, *talk))).words == "two"
        await model.close()


async def test_a_script_that_is_over() -> None:
    """The last reply is repeated if the script says so; otherwise it is a failure."""
    over = [said("assistant", "one")] * 5
    model = ScriptedModel(["one"])
    assert (await hear(model, ask(model, *over))).failure.why == "refused"
    model = ScriptedModel(
        Script([Reply(words="one"), Reply(words="again")], repeat=True)
    )
    assert (await hear(model, ask(model, *over))).words == "again"
    assert (
        await hear(ScriptedModel(Script([], repeat=True)), ask(model))
    ).failure.why == "refused"


async def test_trouble_may_pass() -> None:
    """A trouble with `times` comes that often; without, always. The words before it are said."""
    model = ScriptedModel(
        [Reply(words="ok", trouble=Trouble("rate", retry_after=3.0, times=2))]
    )
    heard = [await hear(model, ask(model)) for _ in range(3)]
    assert [each.words for each in heard] == ["ok"] * 3
    assert [each.failure.retry_after for each in heard[:2]] == [3.0, 3.0]
    assert heard[2].answer.parts == [Text("ok")]
    model = ScriptedModel([Reply(trouble=Trouble("overflow", "Too long.", limit=5))])
    failure = (await hear(model, ask(model))).failure
    assert (failure.message, failure.limit) == ("Too long.", 5)


async def test_the_contract_of_silence_holds() -> None:
    """Hanging, and a pause that is too long, are failures after that time."""
    for reply in (
        Reply(words="a", hang=True),
        Reply(words="a b", pause=60),
        Reply(trouble=Trouble("silent")),
    ):
        model = ScriptedModel([reply])
        assert (await hear(model, ask(model), silence=0.05)).failure.why == "silent"


async def test_a_context_that_is_too_long() -> None:
    """Its tokens are words, and it has as many as it was given."""
    model = ScriptedModel(["ok"], context=5)
    assert (await hear(model, ask(model))).words == "ok"
    failure = (await hear(model, ask(model, prompt="w " * 10))).failure
    assert (failure.why, failure.limit) == ("overflow", 5)


async def test_a_reply_may_cost_money(tmp_path: Path) -> None:
    """What it says itself, or what the person's prices make of its words."""
    model = ScriptedModel([Reply(words="a b", cost=0.5)])
    assert (await hear(model, ask(model))).answer.usage == Usage(
        input=1, output=2, cost=0.5
    )
    a_script(tmp_path / "script.json", {"replies": [{"words": "a b"}]})
    priced = ModelSettings(
        label="x",
        api="script",
        url=str(tmp_path / "script.json"),
        name="x",
        price_output=1e6,
    )
    model = ScriptedModel.of(priced)
    assert (await hear(model, ask(model))).answer.usage == Usage(
        input=1, output=2, cost=2.0
    )
    async with Provider([Reply(words="a b", cost=0.5)]) as provider:
        usage = (await hear_from("openai", provider.url)).answer.usage
    assert usage is not None
    assert usage.cost == 0.5


async def test_a_stream_can_be_closed() -> None:
    """In the middle of a long reply."""
    model = ScriptedModel([Reply(words="a " * 1000)])
    assert await first_words(model.stream(ask(model), silence=5)) == "a "


@pytest.mark.parametrize(
    "reply", [Reply(words="a " * 1000, pause=0.02), Reply(words="a b", hang=True)]
)
async def test_a_client_that_goes_with_a_part_unread_is_seen_to_go(
    reply: Reply,
) -> None:
    """Its connection is reset then, and does not end: that is a stream which it cut all the same."""
    async with Provider([reply]) as provider:
        host, port = provider.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 15\r\n\r\n"
                b'{"messages":[]}'
            )
            await until(lambda: select.select([client], [], [], 0)[0])
            client.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        await until(lambda: provider.cut)


async def test_a_script_in_a_file(tmp_path: Path) -> None:
    """`api = "script"` with the path of a JSON file."""
    script = {
        "replies": [
            {"words": "Hello."},
            {"calls": [{"name": "read", "arguments": "{x"}]},
        ],
        "repeat": True,
    }
    model = connect(a_script(tmp_path / "script.json", script))
    assert model.name == "demo"
    assert (await hear(model, ask(model))).words == "Hello."
    talk = [said("assistant", "Hello.")] * 3
    assert (await hear(model, ask(model, *talk))).answer.parts == [
        ToolCall("call_4_1", "read", "{x")
    ]
    await model.close()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"replies": [{"word": "x"}]}, "unknown field `word`"),
        ({"replies": [{"trouble": {"why": "bored"}}]}, "bored"),
        ([], "is no script"),
    ],
)
def test_a_wrong_script_is_named(tmp_path: Path, script: Any, said: str) -> None:
    """With the file and what is wrong in it."""
    with pytest.raises(ConfigError, match=said) as caught:
        connect(a_script(tmp_path / "script.json", script))
    assert "script.json" in str(caught.value)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    """A sentence, not a traceback."""
    with pytest.raises(ConfigError, match=r"nope\.json cannot be read"):
        connect(
            ModelSettings(
                label="d", api="script", url=str(tmp_path / "nope.json"), name="d"
            )
        )


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    """The HTTP library comes with the first model that needs it."""
    code = "import sys, tenax.models, tenax.testing, tenax.config; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_provider_in_a_process_of_its_own(tmp_path: Path) -> None:
    """It says where it listens, plays the script, and writes every body byte for byte."""
    script, log = tmp_path / "script.json", tmp_path / "bodies.log"
    script.write_text(json.dumps({"replies": [{"words": "From afar."}]}))
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-W",
            "error",
            "-m",
            "tenax.testing.provider",
            "--script",
            script,
            "--log",
            log,
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            url = (await process.stdout.readline()).decode().strip()
        bodies = []
        for api in APIS:
            model = connect(settings(api, url))
            bodies.append(ask(model, said("user", "line\nbreak"), prompt="ä"))
            assert (await hear_from(api, url, bodies[-1])).words == "From afar."
            await model.close()
        assert bodies_in(log) == bodies
    finally:
        process.terminate()
        await process.wait()
