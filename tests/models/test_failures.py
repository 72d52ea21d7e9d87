"""What goes wrong outside ends in one Failure: a sentence that a person can act on, without any secret."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import os
import socket
import ssl
import time
from typing import Any

import httpx
import pytest

from tenax.models import RETRIED, Failure, Model, Piece, Reply, Trouble, connect
from tenax.models import http as wire
from tenax.models.errors import Failures
from tenax.testing import Provider
from tests.models.talk import (
    APIS,
    KEY,
    Heard,
    address,
    ask,
    clock_ahead,
    hear,
    hear_from,
    settings,
    until,
)
from tests.tools.test_web import CERTIFICATE, load_chain

both = pytest.mark.parametrize("api", APIS)


def known(model: Model) -> int | None:
    return model.context


def check_sentence(failure: Failure) -> None:
    """Every failure is a sentence for a person, and gives nothing away."""
    assert failure.message[-1] in '."'
    for text in (failure.message, failure.hint):
        assert "hunter2" not in text
        assert "Bearer" not in text


@both
@pytest.mark.parametrize(
    ("trouble", "why", "said"),
    [
        (Trouble("key"), "key", "rejected the API key"),
        (Trouble("key", status=403), "key", "does not allow this API key to use m"),
        (Trouble("refused"), "refused", "has no model m, or the URL is wrong"),
        (Trouble("refused", status=402), "refused", "has no credit left"),
        (
            Trouble("refused", status=418, message="I am a teapot"),
            "refused",
            'Server message: "I am a teapot"',
        ),
        (Trouble("refused", status=400), "refused", "refused the request (status 400)"),
        (Trouble("rate"), "rate", "rate limit reached"),
        (Trouble("server"), "server", "returned an error (status 500)"),
        (Trouble("server", status=529), "server", "status 529"),
        (Trouble("server", status=408), "server", "status 408"),
        (Trouble("dropped"), "dropped", "in the middle of the answer"),
        (Trouble("away"), "dropped", "closed the connection without an answer"),
        (Trouble("malformed"), "malformed", "cannot read"),
    ],
)
async def test_each_trouble_is_a_sentence(
    api: str, trouble: Trouble, why: str, said: str
) -> None:
    """The same in both formats, and a call can be made again on the same model."""
    async with Provider([Reply(trouble=trouble)]) as provider:
        failure = (await hear_from(api, provider.url)).failure
    assert failure.why == why
    assert said in failure.message
    assert failure.message.startswith(provider.url.removeprefix("http://"))
    assert failure.hint
    check_sentence(failure)


@both
@pytest.mark.parametrize("why", ["dropped", "malformed", "server", "rate", "key"])
async def test_words_before_a_failure_are_heard(api: str, why: Any) -> None:
    """Trouble in the middle of a stream comes after the words, as one Failure."""
    async with Provider([Reply(words="half of it", trouble=Trouble(why))]) as provider:
        heard = await hear_from(api, provider.url)
    assert heard.words == "half of it"
    assert heard.failure.why == why
    check_sentence(heard.failure)


async def test_a_stream_that_ends_in_order_but_early_was_dropped() -> None:
    """Without its end marker an answer is not whole, however politely the connection ended."""
    raw = 'data: {"choices": [{"delta": {"content": "half"}}]}\n\n'
    async with Provider([Reply(raw=raw)]) as provider:
        heard = await hear_from("openai", provider.url)
    assert heard.words == "half"
    assert heard.failure.why == "dropped"


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b"[]",
        b'{"choices": 5}',
        b'{"choices": [{"delta": {"content": "\xff"}}]}',
        b"[" * 5000,
    ],
)
async def test_whatever_a_chunk_is_the_stream_ends_in_a_failure(data: bytes) -> None:
    """JSON of another shape, bytes that are no text, nesting without end."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: %b\n\n"
            % data
        )
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await hear_from("openai", url)).failure.why == "malformed"


@both
async def test_retry_after_is_kept(api: str) -> None:
    """In seconds, as the provider says."""
    async with Provider([Reply(trouble=Trouble("rate", retry_after=7))]) as provider:
        failure = (await hear_from(api, provider.url)).failure
    assert (failure.why, failure.status, failure.retry_after) == ("rate", 429, 7.0)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("Sun, 15 Nov 2026 12:00:30 GMT", 30.0),
        ("Sun, 15 Nov 2026 11:00:00 GMT", 0.0),
        ("1.5", 1.5),
        ("999999999", 86_400.0),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_may_be_a_date(given: str, seconds: float | None) -> None:
    """By the provider's own clock; what cannot be read is no wait, and no wait is longer than a day."""
    headers = httpx.Headers(
        {"Retry-After": given, "Date": "Sun, 15 Nov 2026 12:00:00 GMT"}
    )
    assert (
        Failures("h", "m", None).from_response(429, headers, b"").retry_after == seconds
    )


@both
async def test_an_overflow_teaches_how_long_the_context_is(api: str) -> None:
    """In the words of either provider."""
    async with Provider(["ok"], context=3) as provider:
        model = connect(settings(api, provider.url))
        assert model.context is None
        failure = (
            await hear(model, ask(model, prompt="far too many words for this one"))
        ).failure
        await model.close()
    assert (failure.why, failure.limit) == ("overflow", 3)
    assert known(model) == 3
    assert "too long for the context of m (3 tokens)" in failure.message
    check_sentence(failure)


@pytest.mark.parametrize(
    ("status", "message", "limit"),
    [
        (
            400,
            "This endpoint's maximum context length is 131,072 tokens. However, you requested 140000.",
            131_072,
        ),
        (
            400,
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
            200_000,
        ),
        (
            400,
            "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
            32_768,
        ),
        (
            400,
            "The input token count (9) exceeds the maximum number of tokens allowed (1048576).",
            1_048_576,
        ),
        (
            400,
            "request (5000 tokens) exceeds the available context size (4096 tokens)",
            4096,
        ),
        (400, "Please reduce the length of the messages or completion.", None),
        (413, "Request Entity Too Large", None),
        (500, "Context size has been exceeded.", None),
    ],
)
def test_overflows_are_known_by_many_words(
    status: int, message: str, limit: int | None
) -> None:
    """Providers say it in words of their own; the limit is read where they say it."""
    failure = Failures("h", "m", None).from_response(
        status, {}, json.dumps({"error": {"message": message}}).encode()
    )
    assert (failure.why, failure.limit) == ("overflow", limit)


@pytest.mark.parametrize(
    ("status", "body", "why", "said"),
    [
        (500, b"<html><h1>Bad  Gateway</h1></html>", "server", '"Bad Gateway"'),
        (502, b"\xff\xfe", "server", "502"),
        (400, b'{"error": {"message": "\xff"}}', "refused", "(status 400)"),
        (400, b'{"detail": "no such field"}', "refused", '"no such field"'),
        (400, b'{"error": "model is loading"}', "refused", '"model is loading"'),
        (400, b"[" * 5000, "refused", "..."),
        (400, b"<" * 64 * 1024, "refused", "..."),
        (400, b'{"error": "%s"}' % (b"1" * 64_000), "refused", "..."),
        (400, b'{"error": {"message": 5}}', "refused", "(status 400)."),
        (
            429,
            b'{"error": {"code": "insufficient_quota", "message": "x"}}',
            "refused",
            "no credit",
        ),
        (401, b"", "key", "needs an API key, and none is set"),
        (302, b"", "refused", "status 302"),
        (200, b'{"error": {"message": "late", "code": 429}}', "rate", '"late"'),
        (200, b'{"error": {"message": "odd"}}', "server", '"odd"'),
    ],
)
def test_whatever_is_answered_is_a_sentence(
    status: int, body: bytes, why: str, said: str
) -> None:
    """A page of a proxy, a plain text, broken JSON: the person still learns what happened."""
    failure = Failures("h", "m", None).from_response(status, {}, body)
    assert failure.why == why
    assert said in failure.message
    check_sentence(failure)


@both
@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
async def test_a_provider_that_repeats_the_key_is_not_quoted(
    api: str, status: int
) -> None:
    """Neither whole nor half of it."""
    message = f"Incorrect API key provided: {KEY} (sk-hunter2***r2), Authorization: Bearer {KEY}"
    async with Provider(
        [Reply(trouble=Trouble("refused", status=status, message=message))]
    ) as provider:
        check_sentence((await hear_from(api, provider.url)).failure)


@both
async def test_nobody_at_the_address_is_away(api: str) -> None:
    """The sentence names the address and asks whether it runs."""
    with socket.socket() as taken:
        # bound, so that nobody else is there, and not listening
        taken.bind(("127.0.0.1", 0))
        failure = (
            await hear_from(api, f"http://127.0.0.1:{taken.getsockname()[1]}")
        ).failure
    assert failure.why == "away"
    assert "cannot be reached" in failure.message
    assert "running" in failure.hint
    check_sentence(failure)


@both
@pytest.mark.parametrize("reply", [Reply(hang=True), Reply(words="one two", hang=True)])
async def test_silence_is_a_failure(
    api: str, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first piece, or after some."""
    leap, pieces = clock_ahead(monkeypatch), list[Piece]()
    async with Provider([reply]) as provider:
        model = connect(settings(api, provider.url))
        hearing = asyncio.create_task(
            hear(model, ask(model), silence=20.5, into=pieces)
        )
        await until(lambda: provider.received and Heard(pieces).words == reply.words)
        while not hearing.done():
            leap(20.5)
            await asyncio.sleep(0.01)
        heard = await hearing
        await model.close()
    assert heard.words == reply.words
    assert heard.failure.why == "silent"
    assert "20.5 seconds" in heard.failure.message


@both
async def test_a_long_answer_is_not_silence(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the time without a piece counts, not the time of the call."""
    leap, pieces, leaps, seen = clock_ahead(monkeypatch), list[Piece](), 0, 0
    async with Provider([Reply(words="w " * 10, pause=0.05)]) as provider:
        model = connect(settings(api, provider.url))
        hearing = asyncio.create_task(
            hear(model, ask(model), silence=40.0, into=pieces)
        )
        while not hearing.done():
            if len(pieces) > seen:
                leap(15.0)
                leaps, seen = leaps + 1, len(pieces)
            await asyncio.sleep(0.01)
        heard = await hearing
        await model.close()
    assert heard.words == "w " * 10
    assert leaps * 15.0 > 40.0


@pytest.mark.parametrize(
    "sign", [": still here\n\n", 'event: ping\ndata: {"type": "ping"}\n\n']
)
async def test_signs_of_life_do_not_break_the_silence(sign: str) -> None:
    """A server that only ever says that it is there has said nothing."""
    async with Provider([Reply(raw=sign * 1000, pause=0.02)]) as provider:
        model = connect(settings("anthropic", provider.url))
        assert (await hear(model, ask(model), silence=0.3)).failure.why == "silent"
        await model.close()


async def test_a_page_is_no_stream() -> None:
    """A url that leads to somebody's website is told so."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b"<html>Welcome</html>"
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%b"
            % (len(page), page)
        )
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        failure = (await hear_from("openai", f"http://127.0.0.1:{port}")).failure
    assert failure.why == "refused"
    assert "text/html" in failure.message


async def test_an_error_that_unpacks_to_more_than_anybody_reads_holds_nothing_up() -> (
    None
):
    """A few bytes on the wire may be a hundred megabytes: they are cut before they are looked at."""
    packed = gzip.compress(b"busy" + bytes(100_000_000), 1)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = (
            b"HTTP/1.1 500 X\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"
            % len(packed)
        )
        with contextlib.suppress(ConnectionError):
            writer.write(head + packed)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        began = time.process_time()
        failure = (await hear_from("openai", f"http://127.0.0.1:{port}")).failure
    assert failure.why == "server"
    assert "busy" in failure.message
    assert time.process_time() - began < 1.0
    check_sentence(failure)


async def test_a_password_in_the_address_is_not_told() -> None:
    """The sentence names the host only."""
    url = address("openai", "http://ada:hunter2@127.0.0.1:9")
    model = connect(settings("openai", url))
    failure = (await hear(model, ask(model))).failure
    await model.close()
    assert failure.message.startswith("127.0.0.1:9 ")
    check_sentence(failure)


def test_what_is_tried_again() -> None:
    """A key, an overflow and a refusal do not go better the next time."""
    assert {"away", "dropped", "malformed", "rate", "server", "silent"} == RETRIED


@pytest.mark.parametrize(
    ("status", "body", "said", "hint"),
    [
        (
            404,
            b'{"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}',
            "no model m.",
            "name",
        ),
        (
            404,
            b'{"error": {"message": "model \\"m\\" not found, try pulling it first"}}',
            "no model m.",
            "download",
        ),
        (
            404,
            b'{"type": "error", "error": {"type": "not_found_error", "message": "model: m"}}',
            "no model m",
            "name",
        ),
        (
            400,
            b'{"error": {"message": "m is not a valid model ID", "code": 400}}',
            "no model m.",
            "name",
        ),
        (
            404,
            b"<!doctype html><html><h1>Not here</h1></html>",
            "no model at this URL",
            "/v1",
        ),
        (404, b"404 page not found", "no model at this URL", "/v1"),
        (404, b'{"detail": "Not Found"}', "no model at this URL", "/v1"),
        (
            404,
            b'{"error": {"message": "Invalid URL (POST /chat/completions)"}}',
            "at this URL",
            "/v1",
        ),
        (
            404,
            b'{"error": {"message": "File Not Found", "type": "not_found_error"}}',
            "at this URL",
            "/v1",
        ),
        (
            200,
            b'{"error": "Unexpected endpoint or method. (POST /chat/completions)"}',
            "at this URL",
            "/v1",
        ),
        (405, b"<html>no</html>", "no model at this URL", "/v1"),
        (
            400,
            b'{"error": {"message": "Your credit balance is too low"}}',
            "has no credit left",
            "account",
        ),
        (
            402,
            b'{"error": {"message": "Insufficient credits"}}',
            "has no credit left",
            "account",
        ),
        (
            400,
            b'{"error": {"message": "library/m does not support tools"}}',
            "cannot use tools",
            "another",
        ),
        (
            404,
            b'{"error": {"message": "No endpoints found that support tool use."}}',
            "cannot use tools",
            "another",
        ),
        (
            500,
            b'{"error": {"message": "tools param requires --jinja flag"}}',
            "cannot use tools",
            "--jinja",
        ),
    ],
)
def test_what_a_person_would_do_differently_about_is_told_apart(
    status: int, body: bytes, said: str, hint: str
) -> None:
    """A wrong name, a wrong address, an empty account, a model without tools."""
    failure = Failures("h", "m", KEY).from_response(status, {}, body)
    assert failure.why == "refused"
    assert said in failure.message
    assert hint in failure.hint
    check_sentence(failure)


@pytest.mark.parametrize(
    ("where", "cause", "said", "hint"),
    [
        (
            "127.0.0.1:11434",
            ConnectionRefusedError(),
            "Ollama is not running at 127.0.0.1:11434.",
            "Start it with: ollama serve",
        ),
        (
            "localhost:1234",
            ConnectionRefusedError(),
            "LM Studio is not running",
            "lms server start",
        ),
        (
            "[::1]:8080",
            ConnectionRefusedError(),
            "llama.cpp is not running",
            "llama-server",
        ),
        (
            "box:11434",
            ConnectionRefusedError(),
            "nothing is listening at this address",
            "running",
        ),
        (
            "llm.example",
            socket.gaierror(-2, "x"),
            "the host name is unknown",
            "network",
        ),
        (
            "llm.example",
            OSError(errno.ENETUNREACH, "x"),
            "no route to the host",
            "network",
        ),
        (
            "llm.example",
            ssl.SSLCertVerificationError(),
            "certificate is not trusted",
            "SSL_CERT_FILE",
        ),
        ("llm.example", ssl.SSLError(), "does not use https", "http://"),
        ("llm.example", ValueError(), "cannot be reached: outer.", "running"),
    ],
)
def test_why_nobody_is_reached_is_told_apart(
    where: str, cause: Exception, said: str, hint: str
) -> None:
    """However deep the cause lies, and among others."""
    middle = OSError("All connection attempts failed")
    middle.__cause__ = ExceptionGroup("several", [TypeError(), cause])
    outer = httpx.ConnectError("outer")
    outer.__context__ = middle
    failure = Failures(where, "m", None).from_connection_error(outer)
    assert failure.why == "away"
    assert said in failure.message
    assert hint in failure.hint


async def test_a_server_without_https_is_told_so() -> None:
    """A real handshake with one that speaks plainly."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        failure = (await hear_from("openai", f"https://127.0.0.1:{port}")).failure
    assert "does not use https" in failure.message


@pytest.mark.parametrize(
    "first", ["", 'data: {"choices":[{"delta":{"content":"Hel"}}]}']
)
async def test_an_answer_that_was_spoiled_on_its_way_is_a_dropped_one(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes over TLS and was not sent by the server raises what no other failure does; it is tried again like any."""
    secure, trust = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cadata=CERTIFICATE),
    )
    load_chain(secure)
    trust.check_hostname = False
    monkeypatch.setattr(wire, "trusted", lambda: trust)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if first:
            head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
            writer.write(f"{head}{first}\n\n".encode())
            await writer.drain()
        os.write(
            writer.get_extra_info("socket").fileno(),
            b"\x17\x03\x03\x00\x20" + b"x" * 32,
        )
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0, ssl=secure) as server:
        port = server.sockets[0].getsockname()[1]
        heard = await hear_from("openai", f"https://127.0.0.1:{port}")
    assert (heard.failure.why, heard.words) == ("dropped", "Hel" if first else "")
    check_sentence(heard.failure)


async def test_no_proxy_stands_between_us_and_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the environment says of proxies: they do not know what runs here."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with Provider(["Hello."]) as provider:
        assert (await hear_from("openai", provider.url)).words == "Hello."
