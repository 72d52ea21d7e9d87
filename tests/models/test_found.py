"""What could answer is found without asking anybody elsewhere, and is tried before it is believed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from tenax.clock import Timing
from tenax.config import ModelSettings, Secret
from tenax.models import Failure, Reply, Trouble
from tenax.models import discovery as found
from tenax.models.discovery import (
    Offer,
    Ready,
    find_offers,
    list_models,
    reach_model,
    try_model,
    use_offer,
)
from tenax.testing import Provider
from tests.models.talk import APIS, KEY, address

both = pytest.mark.parametrize("api", APIS)
SECRET = Secret(KEY, "the test")

USUAL = Timing().probe_seconds
USUAL_TO_CONNECT = found.PROBE_CONNECT_SECONDS_MAX

find_patiently = partial(find_offers, timing=Timing(probe_seconds=20.0))
"""Wait for a server of the test, even if the machine is slow."""


def listed(*names: str, owned_by: str = "") -> dict[str, Any]:
    return {
        "object": "list",
        "data": [{"id": name, "owned_by": owned_by} for name in names],
    }


def tags(**sizes: float) -> dict[str, Any]:
    return {
        "models": [
            {"name": name.replace("__", ":"), "size": int(size * 1e9)}
            for name, size in sizes.items()
        ]
    }


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is taken, so that nobody else is there, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(autouse=True)
def env(monkeypatch: pytest.MonkeyPatch, nobody: str) -> dict[str, str]:
    """An environment in which nothing is found: no server of this machine answers for one of the test."""
    monkeypatch.setattr(found, "LM_STUDIO", nobody)
    monkeypatch.setattr(found, "LLAMA_CPP", nobody)
    monkeypatch.setattr(found, "installed", lambda: False)
    return {"OLLAMA_HOST": nobody}


@asynccontextmanager
async def server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Something that listens and does what it likes; its address."""
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_nothing_there_is_no_offer(env: dict[str, str]) -> None:
    """A variable that is set and empty is none."""
    assert await find_patiently(env | {"OPENAI_API_KEY": " "}) == []


async def test_keys_are_offered_without_asking_their_providers(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this machine is connected to; the key itself is in no offer."""
    hosts: list[str] = []
    send = httpx.AsyncClient.send

    async def watch(
        self: httpx.AsyncClient, request: httpx.Request, **more: Any
    ) -> httpx.Response:
        hosts.append(request.url.host)
        return await send(self, request, **more)

    monkeypatch.setattr(httpx.AsyncClient, "send", watch)
    names = ("OPENROUTER_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY")
    offers = await find_patiently(env | dict.fromkeys(names, KEY))
    assert set(hosts) == {"127.0.0.1"}
    assert [offer.title for offer in offers] == [
        "Use Anthropic with the key in ANTHROPIC_API_KEY",
        "Use OpenAI with the key in OPENAI_API_KEY",
        "Use OpenRouter with the key in OPENROUTER_API_KEY",
    ]
    assert [offer.id for offer in offers] == [
        "key:ANTHROPIC_API_KEY",
        "key:OPENAI_API_KEY",
        "key:OPENROUTER_API_KEY",
    ]
    assert KEY not in repr(offers)
    assert offers[2].url == "https://openrouter.ai/api/v1"


async def test_a_key_for_another_address_is_not_offered_to_the_usual_one(
    env: dict[str, str],
) -> None:
    """Who sets OPENAI_BASE_URL means that server."""
    (offer,) = await find_patiently(
        env | {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://llm.example/v1"}
    )
    assert (offer.url, offer.title) == (
        "https://llm.example/v1",
        "Use llm.example with the key in OPENAI_API_KEY",
    )


async def test_ollama_offers_its_models_the_largest_first(env: dict[str, str]) -> None:
    """One offer a model; those that cannot talk, or that are elsewhere, are left out, and untaught ones come last."""
    page = tags(
        small__1b=1,
        qwen3__8b=5,
        **{"llama__70b-text": 40, "nomic-embed-text__latest": 0.3},
    )
    page["models"].append(
        {"name": "huge:cloud", "size": 1, "remote_host": "https://ollama.example"}
    )
    async with Provider([], pages={"/api/tags": page}) as provider:
        offers = await find_patiently({"OLLAMA_HOST": provider.url})
    assert [offer.title for offer in offers] == [
        "Use qwen3:8b from Ollama",
        "Use small:1b from Ollama",
        "Use llama:70b-text from Ollama",
    ]
    assert offers[0] == Offer("ollama:qwen3:8b", offers[0].title, offers[0].detail, "local", "ollama", "openai",
                              f"{provider.url}/v1", "qwen3:8b")  # fmt: skip


async def test_a_server_with_very_many_models_offers_some(env: dict[str, str]) -> None:
    """The same ones each time."""
    page = tags(**{f"m{n:02}__7b": 4 for n in range(30)})
    async with Provider([], pages={"/api/tags": page}) as provider:
        offers = await find_patiently({"OLLAMA_HOST": provider.url})
        assert offers == await find_patiently({"OLLAMA_HOST": provider.url})
    assert [offer.name for offer in offers] == [f"m{n:02}:7b" for n in range(8)]


async def test_lm_studio_and_llama_cpp_are_found(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order; the size of a model is read from its name, and a path is shown as its last part."""
    studio = listed("qwen2.5-0.5b", "llama-3.1-8b-instruct", "text-embedding-nomic")
    own = listed("/models/smol-135m.gguf", owned_by="llamacpp")
    async with (
        Provider([], pages={"/v1/models": studio}) as first,
        Provider([], pages={"/v1/models": own}) as second,
    ):
        monkeypatch.setattr(found, "LM_STUDIO", first.url)
        monkeypatch.setattr(found, "LLAMA_CPP", second.url)
        offers = await find_patiently(env)
    assert [offer.title for offer in offers] == [
        "Use llama-3.1-8b-instruct from LM Studio",
        "Use qwen2.5-0.5b from LM Studio",
        "Use smol-135m.gguf from llama.cpp",
    ]
    assert offers[2].name == "/models/smol-135m.gguf"


async def test_another_server_on_the_port_of_llama_cpp_is_not_taken_for_it(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Much listens on 8080: it has to say who it is."""
    async with Provider(
        [], pages={"/v1/models": listed("m", owned_by="somebody")}
    ) as provider:
        monkeypatch.setattr(found, "LLAMA_CPP", provider.url)
        assert await find_patiently(env) == []


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\n\r\n<html>hello</html>",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b'HTTP/1.1 200 OK\r\n\r\n{"models": 5, "data": [{"id": 7}]}',
        b'HTTP/1.1 500 No\r\n\r\n{"models": [], "data": []}',
        b"\x00\xff garbage",
        b"",
        None,
    ],
)
async def test_a_server_that_hangs_or_talks_nonsense_harms_nothing(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """All are asked at once, and none for longer than the bound; the others are still found."""
    asked = 0
    most_at_once = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked, most_at_once
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        most_at_once = max(most_at_once, asked)
        if said is not None:
            writer.write(said)
        else:
            await reader.read()  # until the other side has had enough
        asked -= 1
        writer.close()

    async with (
        server(talk) as odd,
        Provider([], pages={"/v1/models": listed("good")}) as provider,
    ):
        monkeypatch.setattr(found, "LM_STUDIO", provider.url)
        monkeypatch.setattr(found, "LLAMA_CPP", odd)
        assert (USUAL_TO_CONNECT <= 1, USUAL <= 5) == (True, True)
        timing = Timing(probe_seconds=3.0)
        # A server that hangs does so for ever.
        async with asyncio.timeout(60):
            offers = await find_offers({"OLLAMA_HOST": odd}, timing)
    assert [offer.name for offer in offers] == ["good"]
    if said is None:
        assert most_at_once > 1, "the second server was asked after the first"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        (":4000", "http://127.0.0.1:4000"),
        ("box:4000", "http://box:4000"),
        ("box", "http://box:11434"),
        ("http://box", "http://box:80"),
        ("https://box/ollama/", "https://box:443/ollama"),
        ("[::1]:5", "http://[::1]:5"),
        ("[::]:5", "http://127.0.0.1:5"),
        ("http://[oops", "http://127.0.0.1:11434"),
        ("box:port", "http://127.0.0.1:11434"),
    ],
)
async def test_ollama_is_where_its_variable_says(
    given: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all the ways in which Ollama itself reads it."""
    asked: list[str] = []

    def stream(_client: object, _method: str, url: str, **_how: object) -> Any:
        asked.append(url)
        raise httpx.ConnectError("No server is here.")

    monkeypatch.setattr(httpx.AsyncClient, "stream", stream)
    await find_patiently({"OLLAMA_HOST": given})
    assert asked[0] == f"{url}/api/tags"


async def test_the_practice_model_comes_last(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is installed."""
    monkeypatch.setattr(found, "installed", lambda: True)
    offers = await find_patiently(env | {"OPENAI_API_KEY": KEY})
    assert [offer.id for offer in offers] == ["key:OPENAI_API_KEY", "practice"]
    assert offers[1].title == "Use the practice model (small, on this machine)"


# -- choosing -----------------------------------------------------------------------------------------------


@both
async def test_the_models_of_an_address_are_listed(api: str) -> None:
    """In either format, with the key, by name; what cannot talk is left out, unless there is nothing else."""
    pages: dict[str, Any] = {
        "/v1/models": listed("zeta", "alpha", "text-embedding-3-large", "alpha")
    }
    async with Provider([], pages=pages) as provider:
        assert await list_models(api, address(api, provider.url), SECRET) == [  # type: ignore[arg-type]
            "alpha",
            "zeta",
        ]
        (request,) = provider.received
        pages["/v1/models"] = listed("my-embed")
        assert await list_models(api, address(api, provider.url) + "/", None) == [  # type: ignore[arg-type]
            "my-embed"
        ]
    assert KEY in request.headers["authorization" if api == "openai" else "x-api-key"]


@pytest.mark.parametrize(
    ("pages", "why", "said", "hint"),
    [
        ({"/v1/models": 401}, "key", "rejected the API key", "key"),
        ({"/v1/models": 402}, "refused", "no credit", "account"),
        ({"/v1/models": {"hello": 1}}, "malformed", "not with a list of models", "/v1"),
    ],
)
async def test_a_list_that_is_refused_is_told(
    pages: dict[str, Any], why: str, said: str, hint: str
) -> None:
    """In a sentence, with what to do, and without the key."""
    async with Provider([], pages=pages) as provider:
        failure = await list_models("openai", f"{provider.url}/v1", SECRET)
    assert isinstance(failure, Failure)
    assert failure.why == why
    assert said in failure.message
    assert hint in failure.hint
    assert "hunter2" not in repr(failure)


async def test_nobody_at_the_address_is_told(nobody: str) -> None:
    """And an address that is none."""
    failure = await list_models("openai", f"{nobody}/v1")
    assert isinstance(failure, Failure)
    assert "nothing is listening at this address" in failure.message
    failure = await list_models("openai", "localhost:11434")
    assert isinstance(failure, Failure)
    assert "http://" in failure.hint


OPENAI = [
    "gpt-4o",
    "gpt-4.1",
    "gpt-5",
    "gpt-5.2",
    "gpt-5.2-pro",
    "gpt-image-9",
    "o3",
    "whisper-1",
    "gpt-5-2026-01-01",
]
ANTHROPIC = ["claude-3-5-sonnet-20241022", "claude-opus-4-5-20251101", "claude-sonnet-4-20250514", "claude-sonnet-4-5-20250929"]  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "base", "models", "best"),
    [
        ("OPENAI_API_KEY", "OPENAI_BASE_URL", OPENAI, "gpt-5.2"),
        (
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL",
            ["whisper-1", "mistral-small"],
            "mistral-small",
        ),
        (
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_BASE_URL",
            ANTHROPIC,
            "claude-sonnet-4-5-20250929",
        ),
    ],
)
async def test_a_key_that_is_chosen_gets_a_sensible_model(
    env: dict[str, str], variable: str, base: str, models: list[str], best: str
) -> None:
    """Its models are listed only now; the best is tried, and the others are there for a choice."""
    async with Provider(["Hello."], pages={"/v1/models": listed(*models)}) as provider:
        env |= {variable: KEY, base: f"{provider.url}/v1"}
        (offer,) = await find_patiently(env)
        ready = await use_offer(offer, env)
        assert isinstance(ready, Ready)
        assert ready.values == {
            "api": offer.api,
            "url": f"{provider.url}/v1",
            "name": best,
            "key": f"env:{variable}",
        }
        assert ready.label == offer.label
        assert ready.models[0] == best
        assert not {"whisper-1", "gpt-image-9"} & set(ready.models)
        other = await use_offer(offer, env, name=ready.models[-1])
    assert isinstance(other, Ready)
    assert other.values["name"] == ready.models[-1]


async def test_an_offer_that_does_not_work_is_a_failure(env: dict[str, str]) -> None:
    """Neither when its models are listed nor when one is tried is anything believed."""
    pages = {"/v1/models": listed("m")}
    async with Provider([Reply(trouble=Trouble("key"))], pages=pages) as provider:
        env |= {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{provider.url}/v1"}
        (offer,) = await find_patiently(env)
        failure = await use_offer(offer, env)
        assert isinstance(failure, Failure)
        assert "rejected the API key" in failure.message
        pages["/v1/models"] = listed()
        failure = await use_offer(offer, env)
    assert isinstance(failure, Failure)
    assert "lists no model" in failure.message
    failure = await use_offer(offer, env)
    assert isinstance(failure, Failure)
    assert failure.why == "away"


@both
async def test_a_model_is_tried_with_one_small_call(api: str) -> None:
    """A real one: it streams, it is short, and it has a tool, as every later one has."""
    async with Provider(["Hello there."]) as provider:
        url = address(api, provider.url)
        ready = await reach_model(api, url, "m", SECRET)  # type: ignore[arg-type]
    assert isinstance(ready, Ready)
    assert ready == Ready("local", {"api": api, "url": url, "name": "m"}, ["m"])
    # The other request asks for the list of models.
    (body,) = [body for body in provider.bodies if body]
    assert b'"max_tokens":16' in body
    assert b'"stream":true' in body
    assert b'"tools":[{' in body


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({"context_length": 200_000}, 200_000),
        ({"context_window": 131_072}, 131_072),
        ({"max_model_len": 8192}, 8192),
        ({"meta": {"n_ctx_train": 32_768}}, 32_768),
        ({"context_length": "many", "max_model_len": 0}, None),
        ({"context_length": True}, None),
        ({}, None),
    ],
)
async def test_the_context_length_is_read_from_the_list_of_the_server(
    fields: dict[str, Any], context: int | None
) -> None:
    """Under the names that servers use for it. Nonsense is no length."""
    data = [{"id": "other", "context_length": 1000}, {"id": "m", **fields}]
    async with Provider(["Hi."], pages={"/v1/models": {"data": data}}) as provider:
        ready = await reach_model("openai", f"{provider.url}/v1", "m", None)
    assert isinstance(ready, Ready)
    assert ready.values.get("context") == context


async def test_a_label_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken from the address."""

    async def works(_: ModelSettings) -> None:
        return None

    async def no_context(*_: object) -> None:
        return None

    monkeypatch.setattr(found, "try_model", works)
    monkeypatch.setattr(found, "find_context", no_context)
    labels = {}
    for url in (
        "https://api.groq.com/openai/v1",
        "http://[::1]:9/v1",
        "http://box:8000/v1",
        "http://192.168.0.7/v1",
    ):
        ready = await reach_model("openai", url, "m", None)
        assert isinstance(ready, Ready)
        labels[url] = ready.label
    assert list(labels.values()) == ["groq", "local", "box", "192-168-0-7"]


async def test_a_key_that_is_missing_is_told_as_any_failure() -> None:
    """Nothing is sent."""
    settings = ModelSettings(
        label="x",
        api="openai",
        url="http://127.0.0.1:1/v1",
        name="m",
        key=Secret("", "MY_KEY"),
    )
    failure = await try_model(settings)
    assert failure is not None
    assert (failure.why, "MY_KEY" in failure.message) == ("key", True)
