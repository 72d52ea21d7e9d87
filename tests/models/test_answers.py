"""Answers as they come over the wire, in both formats."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tenax.clock import Timing
from tenax.config import ModelSettings, Secret
from tenax.errors import ConfigError
from tenax.events import Usage
from tenax.models import Beat, Reply, ScriptedCall, Words, connect
from tenax.models.http import TOKENS_MAX
from tenax.parts import File, Image, Reasoning, Text, ToolCall, ToolResult
from tenax.testing import Provider
from tests.models.talk import (
    APIS,
    KEY,
    READ,
    ask,
    first_words,
    hear,
    hear_from,
    said,
    settings,
    until,
)

both = pytest.mark.parametrize("api", APIS)


def chunks(*deltas: dict[str, Any], finish: str = "stop", **last: Any) -> str:
    """A stream in OpenAI's format, as a provider wrote it."""
    rows: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    rows.append({"choices": [{"delta": {}, "finish_reason": finish}], **last})
    return "".join(f"data: {json.dumps(row)}\n\n" for row in rows) + "data: [DONE]\n\n"


@both
async def test_words_come_in_pieces_and_then_whole(api: str) -> None:
    """Pieces as they come; the last is the answer, with its tokens and the provider's word for its end."""
    async with Provider(["Grüß dich, Ada 🙂."]) as provider:
        heard = await hear_from(api, provider.url)
    assert [piece.text for piece in heard.pieces if isinstance(piece, Words)] == [
        "Grüß ",
        "dich, ",
        "Ada ",
        "🙂.",
    ]
    assert heard.answer.parts == [Text("Grüß dich, Ada 🙂.")]
    assert heard.answer.finish == {"openai": "stop", "anthropic": "end_turn"}[api]
    usage = heard.answer.usage
    assert usage is not None
    assert (usage.output, usage.cached, usage.cost) == (4, 0, None)
    assert usage.input > 0


@both
async def test_a_call_is_kept_exactly_as_written(api: str) -> None:
    """Arguments are text: not parsed, not made pretty, and wrong if the model wrote them wrong."""
    calls = [
        ScriptedCall("read", '{"path" :\n "a"}'),
        ScriptedCall("read", "{not json"),
        ScriptedCall("now", "", id="x"),
    ]
    async with Provider([Reply(words="I look.", calls=calls)]) as provider:
        heard = await hear_from(api, provider.url)
    assert heard.answer.parts == [
        Text("I look."),
        ToolCall("call_1_1", "read", '{"path" :\n "a"}'),
        ToolCall("call_1_2", "read", "{not json"),
        ToolCall("x", "now", "{}"),
    ]
    assert Beat() in heard.pieces
    assert heard.answer.finish == {"openai": "tool_calls", "anthropic": "tool_use"}[api]


@both
async def test_thoughts_are_told_from_words(api: str) -> None:
    """What a model thinks stands before its answer, with the provider's signature where there is one."""
    async with Provider([Reply(thoughts="Hm, well.", words="Yes.")]) as provider:
        heard = await hear_from(api, provider.url)
    signature = {"openai": None, "anthropic": "c2lnbmVk"}[api]
    assert (heard.thoughts, heard.words) == ("Hm, well.", "Yes.")
    assert heard.answer.parts == [Reasoning("Hm, well.", signature), Text("Yes.")]


async def test_calls_without_ids_and_indexes_get_them() -> None:
    """Servers leave out ids, repeat them, or number every call 0; each call still has an id of its own."""
    raw = chunks(
        {"tool_calls": [{"function": {"name": "a", "arguments": '{"x"'}}]},
        {"tool_calls": [{"function": {"arguments": ":1}"}}]},
        {"tool_calls": [{"index": 1, "id": "one", "function": {"name": "b"}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "two", "function": {"name": "c", "arguments": "{}"}}
            ]
        },
        {"tool_calls": [{"index": 5, "id": "one", "function": {"name": "d"}}]},
        {"tool_calls": [{"index": 6, "id": "call_1", "function": {"name": "e"}}]},
    )
    async with Provider([Reply(raw=raw)]) as provider:
        heard = await hear_from("openai", provider.url)
    assert heard.answer.parts == [
        ToolCall("call_1_", "a", '{"x":1}'),
        ToolCall("one", "b", "{}"),
        ToolCall("two", "c", "{}"),
        ToolCall("call_4", "d", "{}"),
        ToolCall("call_1", "e", "{}"),
    ]


async def test_compatible_providers_say_it_differently() -> None:
    """Reasoning under another name, nulls, comments, cached tokens and money: all are read."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 7},
        "cost": 0.25,
    }
    raw = ": PROCESSING\n\n" + chunks(
        {"reasoning": "hm", "content": None, "tool_calls": None},
        {"content": "ok", "reasoning": None},
        finish="length",
        usage=usage,
    )
    async with Provider([Reply(raw=raw)]) as provider:
        heard = await hear_from("openai", provider.url, price_input=1.0)
    assert heard.answer.parts == [Reasoning("hm"), Text("ok")]
    assert heard.answer.usage == Usage(input=10, output=2, cached=7, cost=0.25)
    assert heard.answer.finish == "length"


@pytest.mark.parametrize(
    "cost", [{"total_cost": 1}, "1", None, -1, pytest.param(10**400, id="endless")]
)
async def test_what_is_no_number_is_no_cost(cost: object) -> None:
    """Nor does it spoil the answer."""
    raw = chunks(
        {"content": "ok"},
        usage={"prompt_tokens": 1, "completion_tokens": 1, "cost": cost},
    )
    async with Provider([Reply(raw=raw)]) as provider:
        heard = await hear_from("openai", provider.url)
    assert heard.answer.usage == Usage(input=1, output=1)


async def test_numbers_that_no_call_can_have_are_not_believed() -> None:
    """A count below nothing is none, and one beyond every store is the most that there is."""
    raw = chunks(
        {"content": "ok"}, usage={"prompt_tokens": 2**63 - 1, "completion_tokens": -5}
    )
    async with Provider([Reply(raw=raw)]) as provider:
        heard = await hear_from("openai", provider.url)
    assert heard.answer.usage == Usage(input=TOKENS_MAX, output=0)


async def test_an_end_marker_may_be_missing_if_the_end_was_said() -> None:
    """A reason why the answer ended is as good as the marker."""
    raw = chunks({"content": "ok"}).removesuffix("data: [DONE]\n\n")
    async with Provider([Reply(raw=raw)]) as provider:
        assert (await hear_from("openai", provider.url)).answer.parts == [Text("ok")]


async def test_anthropic_tokens_and_hidden_thoughts() -> None:
    """Tokens read from the cache and written to it are part of the input; hidden thoughts are kept for the way back."""
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {
                "usage": {
                    "input_tokens": 3,
                    "cache_read_input_tokens": 40,
                    "cache_creation_input_tokens": 5,
                }
            },
        },
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "redacted_thinking", "data": "AAA"},
        },
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "thinking", "thinking": ""},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "thinking_delta", "thinking": "so"},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "signature_delta", "signature": "BBB"},
        },
        {"type": "a_later_invention", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "text", "text": "ok"},
        },
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens"},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]
    raw = "".join(f"data: {json.dumps(each)}\n\n" for each in events)
    async with Provider([Reply(raw=raw)]) as provider:
        heard = await hear_from(
            "anthropic", provider.url, price_input=1.0, price_output=2.0
        )
        model = connect(settings("anthropic", provider.url))
    assert heard.answer.usage == Usage(
        input=48, output=9, cached=40, cost=(48 + 18) / 1e6
    )
    assert heard.answer.finish == "max_tokens"
    back = msgspec.json.decode(model.message(said("assistant", *heard.answer.parts)))
    assert back["content"] == [
        {"type": "redacted_thinking", "data": "AAA"},
        {"type": "thinking", "thinking": "so", "signature": "BBB"},
        {"type": "text", "text": "ok"},
    ]
    await model.close()


@both
async def test_a_price_of_the_person_gives_the_cost(api: str) -> None:
    """Only where the provider reports none; without a price there is no cost."""
    async with Provider(["one two"]) as provider:
        heard = await hear_from(
            api, provider.url, price_input=2.0, price_output=500_000.0
        )
    usage = heard.answer.usage
    assert usage is not None
    assert usage.cost == pytest.approx(1.0 + usage.input * 2e-6)


def history() -> list[Any]:
    return [
        said(
            "user",
            "Read it",
            Image("b1", "image/png"),
            File("b2", "text/plain", "notes.txt"),
        ),
        said(
            "assistant",
            Reasoning("Let me", "sig"),
            Reasoning("unsigned"),
            "I read.",
            ToolCall("f.read:0", "read", '{"path":  "a"}'),
            ToolCall("c2", "read", "[1]"),
            ToolCall("c3", "read", "{broken"),
        ),
        said(
            "results",
            ToolResult("f.read:0", "A"),
            ToolResult("c2", ""),
            ToolResult("c3", "no"),
        ),
        said("system", "Be brief."),
        said("assistant", Reasoning("nothing to say")),
    ]


async def test_a_request_in_openais_format() -> None:
    """Results are messages of their own, arguments that are no object are wrapped, thoughts stay here."""
    async with Provider(["ok"] * 3) as provider:
        model = connect(settings("openai", provider.url, max_tokens=99))
        body = ask(
            model, *history(), prompt="You are Tenax.", tools=[READ], temperature=0.5
        )
        await hear(model, body)
        await model.close()
    assert provider.bodies == [body]
    assert provider.received[0].path == "/v1/chat/completions"
    assert provider.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert msgspec.json.decode(body) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 99,
        "temperature": 0.5,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "read",
                    "description": "Reads a file.",
                    "parameters": READ.parameters,
                },
            }
        ],
        "messages": [
            {"role": "system", "content": "You are Tenax."},
            {
                "role": "user",
                "content": "Read it\n[picture unnamed: this model cannot see it]\n"
                "[file notes.txt (text/plain): it cannot be read here]",
            },
            {
                "role": "assistant",
                "content": "I read.",
                "tool_calls": [
                    {
                        "id": call,
                        "type": "function",
                        "function": {"name": "read", "arguments": arguments},
                    }
                    for call, arguments in [
                        ("f.read:0", '{"path":  "a"}'),
                        ("c2", '{"invalid_json":"[1]"}'),
                        ("c3", '{"invalid_json":"{broken"}'),
                    ]
                ],
            },
            {"role": "tool", "tool_call_id": "f.read:0", "content": "A"},
            {"role": "tool", "tool_call_id": "c2", "content": ""},
            {"role": "tool", "tool_call_id": "c3", "content": "no"},
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": ""},
        ],
    }


async def test_a_request_in_anthropics_format() -> None:
    """Results are one message, signed thoughts go back, ids keep to the allowed characters, nothing is empty."""
    async with Provider(["ok"] * 3) as provider:
        model = connect(settings("anthropic", f"{provider.url}/v1"))
        body = ask(model, *history(), prompt="You are Tenax.", tools=[READ])
        await hear(model, body)
        await model.close()
    assert provider.bodies == [body]
    assert provider.received[0].path == "/v1/messages"
    assert provider.received[0].headers["x-api-key"] == KEY
    assert "authorization" not in provider.received[0].headers
    sent = msgspec.json.decode(body)
    messages = sent.pop("messages")
    assert sent == {
        "model": "m",
        "max_tokens": 8192,
        "stream": True,
        "tools": [
            {
                "name": "read",
                "description": "Reads a file.",
                "input_schema": READ.parameters,
            }
        ],
        "system": [
            {
                "type": "text",
                "text": "You are Tenax.",
                "cache_control": {"type": "ephemeral"},
            }
        ],
    }
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "user",
        "assistant",
    ]
    assert messages[1]["content"] == [
        {"type": "thinking", "thinking": "Let me", "signature": "sig"},
        {"type": "text", "text": "I read."},
        {"type": "tool_use", "id": "f_read_0", "name": "read", "input": {"path": "a"}},
        {
            "type": "tool_use",
            "id": "c2",
            "name": "read",
            "input": {"invalid_json": "[1]"},
        },
        {
            "type": "tool_use",
            "id": "c3",
            "name": "read",
            "input": {"invalid_json": "{broken"},
        },
    ]
    assert messages[2]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "f_read_0",
        "content": "A",
    }
    assert messages[3] == {"role": "user", "content": "Be brief."}
    assert messages[4] == {"role": "assistant", "content": "(nothing)"}


@both
def test_a_request_grows_at_its_end_only(api: str) -> None:
    """The bytes of a request begin the next one, so the provider's cache of the prompt holds."""
    model = connect(settings(api, "http://127.0.0.1:9"))
    rows = [model.message(each) for each in history()]
    bodies = [
        model.body("You are Tenax.", [READ], rows[:count], {}) for count in range(1, 6)
    ]
    for shorter, longer in pairwise(bodies):
        assert longer.startswith(shorter.removesuffix(b"]}"))


@both
def test_a_long_conversation_is_joined_not_encoded_again(api: str) -> None:
    """The encoded messages stand in the request as they are, so that not even bytes that are no JSON fail."""
    model = connect(settings(api, "http://127.0.0.1:9"))
    body = model.body("You are Tenax.", [READ], [b"<first>", b"<second>"], {})
    assert b"<first>,<second>]" in body


@both
async def test_without_a_key_none_is_sent(api: str) -> None:
    """A server on this machine needs none."""
    async with Provider(["ok"]) as provider:
        await hear_from(api, provider.url, key=None)
    assert not {"authorization", "x-api-key"} & set(provider.received[0].headers)


@both
async def test_one_connection_serves_many_calls(api: str) -> None:
    """One after the other; calls beside each other have one each."""
    # This test is not about a server that is too late.
    timing = Timing(drain_seconds=20.0)
    async with Provider([Reply(words="a b c", pause=0.02)] * 2) as provider:
        model = connect(settings(api, provider.url), timing)
        heard = [await hear(model, ask(model)) for _ in range(3)]
        assert provider.connections == 1
        heard += await asyncio.gather(*(hear(model, ask(model)) for _ in range(5)))
        assert provider.connections == 5
        await model.close()
    assert [each.words for each in heard] == ["a b c"] * 8


async def test_an_answer_does_not_wait_for_a_server_that_keeps_talking() -> None:
    """After the end marker nothing more is waited for."""
    endless = chunks({"content": "ok"}) + ": more\n\n" * 5000
    async with Provider([Reply(raw=endless, pause=0.02)]) as provider:
        async with asyncio.timeout(60):
            heard = await hear_from("openai", provider.url)
        await until(lambda: provider.cut)
    assert heard.words == "ok"


@both
async def test_closing_the_iterator_ends_the_call(api: str) -> None:
    """The provider sees the connection closed, so a real one stops generating; the model is good for another call."""
    async with Provider([Reply(words="a " * 1000, pause=0.02)]) as provider:
        model = connect(settings(api, provider.url))
        assert await first_words(model.stream(ask(model), silence=5)) == "a "
        await until(lambda: provider.cut)
        assert await first_words(model.stream(ask(model), silence=5)) == "a "
        await model.close()


@both
async def test_cancelling_the_reader_ends_the_call(api: str) -> None:
    """So does a cancelled task that waits for the first piece."""
    async with Provider([Reply(hang=True)]) as provider:
        model = connect(settings(api, provider.url))

        async def listen() -> None:
            async with aclosing(model.stream(ask(model), silence=30)) as pieces:
                async for _ in pieces:
                    pass

        task = asyncio.create_task(listen())
        await until(lambda: provider.received)
        task.cancel()
        await until(lambda: provider.cut)
        assert task.cancelled()
        await model.close()


def test_a_key_that_is_missing_is_told_when_a_model_is_needed() -> None:
    """Not before: a list of conversations needs no model."""
    missing = settings(
        "openai",
        "http://127.0.0.1:9",
        key=Secret(None, "the environment variable NOPE"),
    )
    with pytest.raises(ConfigError, match="variable NOPE"):
        connect(missing)


def test_the_parameters_of_the_settings_are_in_the_request() -> None:
    """Each provider has its own names, and gets nothing that was not set."""
    wanted: Any = {"max_tokens": 99, "temperature": 0.5, "effort": "low"}
    known = {"model", "stream", "stream_options", "messages"}
    expected = {
        ("openai", "http://127.0.0.1:9/v1"): {
            "max_tokens": 99,
            "temperature": 0.5,
            "reasoning_effort": "low",
        },
        ("openai", "https://api.openai.com/v1"): {
            "max_completion_tokens": 99,
            "temperature": 0.5,
            "reasoning_effort": "low",
        },
        ("anthropic", "http://127.0.0.1:9"): {
            "max_tokens": 99,
            "temperature": 0.5,
            "output_config": {"effort": "low"},
        },
    }
    for (api, url), parameters in expected.items():
        plain = ModelSettings(api=api, url=url, name="m")  # type: ignore[arg-type]
        asked = msgspec.structs.replace(plain, **wanted)
        body = json.loads(ask(connect(asked)))
        assert {name: body[name] for name in body if name not in known} == parameters
        body = json.loads(ask(connect(plain)))
        default = {"max_tokens": 8192} if api == "anthropic" else {}
        assert {name: body[name] for name in body if name not in known} == default
