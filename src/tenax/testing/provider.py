"""A provider of models on the local machine: plays a script over the real HTTP protocols.

Use `async with Provider(script) as provider` in a test, or start a process with
`python -m tenax.testing.provider --port 0 --script FILE [--log FILE]`.

The process prints the URL on the first line. The provider serves the OpenAI protocol at `URL/v1` and the Anthropic
protocol at `URL`, with streaming. `tenax.models.scripted` describes the script. A trouble becomes the response of a
real provider: a status, an error inside the stream, a dropped connection, or a broken chunk. Unknown fields of a
request are refused, as by the real providers. Every request is kept byte for byte in `received` and, with a log, in a
file for `bodies_in`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

import msgspec

from tenax.models.scripted import Reply, Script, Trouble, pieces_of, words_in
from tenax.parts import ToolCall

__all__ = ["Provider", "Received", "bodies_in"]

# The interval of checks whether the client is still connected.
_CHECK_SECONDS: Final = 0.01
_STATUS: Final = {
    "key": 401,
    "overflow": 400,
    "rate": 429,
    "refused": 404,
    "server": 500,
}
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_encode: Final = msgspec.json.Encoder().encode


class Received(msgspec.Struct, frozen=True):
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes


class _Format(Protocol):
    """The wire format of a provider."""

    fields: frozenset[str]
    """The allowed fields of a request. The OpenAI fields include a field known only to llama.cpp."""

    def stream(
        self, model: str, turn: int, reply: Reply, words: int
    ) -> Iterator[bytes]:
        """Yield all events of a reply."""

    def error(self, status: int, message: str) -> bytes:
        """Return an error as a response body, or as the data of an event."""

    def overflow(self, words: int, limit: int) -> str:
        """Return the error message for a request beyond the context size."""


def _event(data: bytes, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"


def _raw(text: str) -> Iterator[bytes]:
    return (event.encode() for event in re.findall(r"(?s).+?(?:\n\n|$)", text))


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


class _OpenAI:
    fields = frozenset({
        "model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "temperature",
        "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "presence_penalty", "frequency_penalty",
        "response_format", "reasoning_effort", "repeat_penalty",
    })  # fmt: skip

    def stream(
        self, model: str, turn: int, reply: Reply, words: int
    ) -> Iterator[bytes]:
        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return _event(_encode(head | {"choices": [choice]}))

        head = {
            "id": f"chat-{turn}",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": model,
        }
        yield chunk({"role": "assistant", "content": ""})
        yield from (
            chunk({"reasoning_content": piece}) for piece in pieces_of(reply.thoughts)
        )
        yield from (chunk({"content": piece}) for piece in pieces_of(reply.words))
        if reply.trouble or reply.hang:
            return
        for index, call in enumerate(reply.tool_calls(turn)):
            begun = {"name": call.name, "arguments": ""}
            yield chunk(
                {
                    "tool_calls": [
                        {
                            "index": index,
                            "id": call.id,
                            "type": "function",
                            "function": begun,
                        }
                    ]
                }
            )
            for half in _halves(call.arguments):
                yield chunk(
                    {"tool_calls": [{"index": index, "function": {"arguments": half}}]}
                )
        yield chunk({}, reply.finish or ("tool_calls" if reply.calls else "stop"))
        usage = {
            "prompt_tokens": words,
            "completion_tokens": _count_words(reply),
            "cost": reply.cost,
        }
        yield _event(_encode(head | {"choices": [], "usage": usage}))
        yield _event(b"[DONE]")

    def error(self, status: int, message: str) -> bytes:
        code = "context_length_exceeded" if "context length" in message else None
        kind = _KINDS.get(status, "server_error")
        return _encode(
            {"error": {"message": message, "type": kind, "param": None, "code": code}}
        )

    def overflow(self, words: int, limit: int) -> str:
        return (
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {words} "
            "tokens. Please reduce the length of the messages."
        )


class _Anthropic:
    fields = frozenset({
        "model", "messages", "system", "stream", "tools", "tool_choice", "temperature", "top_p", "top_k", "max_tokens",
        "stop_sequences", "metadata", "thinking",
    })  # fmt: skip

    def stream(
        self, model: str, turn: int, reply: Reply, words: int
    ) -> Iterator[bytes]:
        def event(kind: str, **rest: object) -> bytes:
            return _event(_encode({"type": kind, **rest}), kind)

        usage = {"input_tokens": words, "output_tokens": 1}
        start = {
            "id": f"msg_{turn}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
        }
        yield event("message_start", message=start | {"usage": usage})
        yield event("ping")
        whole = not reply.trouble and not reply.hang
        blocks = [
            *_blocks(reply),
            *(map(_tool_use, reply.tool_calls(turn)) if whole else ()),
        ]
        for index, (block, deltas) in enumerate(blocks):
            yield event("content_block_start", index=index, content_block=block)
            yield from (
                event("content_block_delta", index=index, delta=delta)
                for delta in deltas
            )
            yield event("content_block_stop", index=index)
        if whole:
            stop = {
                "stop_reason": reply.finish
                or ("tool_use" if reply.calls else "end_turn")
            }
            yield event(
                "message_delta",
                delta=stop,
                usage={"output_tokens": _count_words(reply)},
            )
            yield event("message_stop")

    def error(self, status: int, message: str) -> bytes:
        kind = _KINDS.get(status, "api_error")
        return _encode({"type": "error", "error": {"type": kind, "message": message}})

    def overflow(self, words: int, limit: int) -> str:
        return f"prompt is too long: {words} tokens > {limit} maximum"


_Block = tuple[dict[str, Any], list[dict[str, Any]]]


def _blocks(reply: Reply) -> Iterator[_Block]:
    if reply.thoughts:
        thoughts = [
            {"type": "thinking_delta", "thinking": piece}
            for piece in pieces_of(reply.thoughts)
        ]
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signed]
    if reply.words:
        words = [
            {"type": "text_delta", "text": piece} for piece in pieces_of(reply.words)
        ]
        yield {"type": "text", "text": ""}, words


def _tool_use(call: ToolCall) -> _Block:
    halves = [
        {"type": "input_json_delta", "partial_json": half}
        for half in _halves(call.arguments)
    ]
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, halves


def _count_words(reply: Reply) -> int:
    return len(reply.words.split()) + len(reply.thoughts.split())


class Provider:
    """Plays `script` over HTTP. A token is a word: a request with more words than `context` overflows.

    `connections` counts connections, `cut` counts the streams ended early by a client. `pages` maps other paths to
    responses: JSON, or a number for an error with the given status.
    """

    def __init__(
        self,
        script: Script | Sequence[Reply | str],
        *,
        port: int = 0,
        context: int | None = None,
        log: Path | None = None,
        pages: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(script, Script):
            script = Script(
                [
                    Reply(words=reply) if isinstance(reply, str) else reply
                    for reply in script
                ]
            )
        self.script = script
        self.context = context
        self.received: list[Received] = []
        self.connections = 0
        self.cut = 0
        self._port = port
        self._log = log
        self._pages = pages or {}
        self._played: Counter[int] = Counter()
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL of the Anthropic protocol."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.received]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        talks = list(self._talks)
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await self._server.wait_closed()

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        self.connections += 1
        with contextlib.suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
        ):
            try:
                while await self._answer_request(
                    await _request(reader), reader, writer
                ):
                    pass
            finally:
                self._talks.discard(task)
                writer.close()
                await writer.wait_closed()

    async def _answer_request(
        self,
        request: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer a request. Return whether the connection can be used again."""
        self.received.append(request)
        if self._log:
            with self._log.open("ab") as file:
                file.write(b"%d\n%b\n" % (len(request.body), request.body))
        wire: _Format = _OpenAI()
        if request.path.endswith("/v1/messages"):
            wire = _Anthropic()
        if not request.path.endswith(("/v1/messages", "/chat/completions")):
            return await self._send_page(request.path, wire, writer)
        words = words_in(request.body)
        fields = msgspec.json.decode(request.body)
        unknown = fields.keys() - wire.fields
        message = ""
        if unknown:
            message = f"Unknown: {', '.join(unknown)}."
        elif self.context and words > self.context:
            message = wire.overflow(words, self.context)
        if message:
            return await _send(writer, 400, wire.error(400, message))
        turn, reply = self.script.next(request.body, self._played)
        trouble = reply.trouble
        has_text = reply.words or reply.thoughts or reply.raw
        if trouble and trouble.why == "away":
            return False
        if trouble and trouble.why in _STATUS and not has_text:
            return await _refuse(writer, wire, trouble, words)
        if reply.raw:
            stream = _raw(reply.raw)
        else:
            stream = wire.stream(fields.get("model", ""), turn, reply, words)
        last = _last_event(wire, trouble, words)
        return await self._play(stream, reply, last, reader, writer)

    async def _send_page(
        self, path: str, wire: _Format, writer: asyncio.StreamWriter
    ) -> bool:
        page = self._pages.get(path.partition("?")[0], 404)
        if isinstance(page, int):
            error = wire.error(page, f"There is no {path}.")
            return await _send(writer, page, error)
        return await _send(writer, 200, _encode(page))

    async def _play(
        self,
        stream: Iterator[bytes],
        reply: Reply,
        last: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        why = reply.trouble.why if reply.trouble else ""
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        try:
            for event in stream:
                if not await self._wait_connected(reader, reply.pause):
                    return False
                await _chunk(writer, event)
        except ConnectionError:
            self.cut += 1
            raise
        if reply.hang or why == "silent":
            return await self._wait_connected(reader, float("inf"))
        if why == "dropped":
            return False
        if last:
            await _chunk(writer, last)
        await _chunk(writer, b"")
        return True

    async def _wait_connected(
        self, reader: asyncio.StreamReader, seconds: float
    ) -> bool:
        """Wait, and return whether the client is still connected."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        # A client that disconnects with unread data causes an exception.
        while not reader.at_eof() and reader.exception() is None:
            left = until - loop.time()
            if left <= 0:
                return True
            await asyncio.sleep(min(left, _CHECK_SECONDS))
        self.cut += 1
        return False


def bodies_in(log: Path) -> list[bytes]:
    """Return the request bodies in the log of a provider, byte for byte."""
    bodies: list[bytes] = []
    rest = log.read_bytes()
    while rest:
        size, _, rest = rest.partition(b"\n")
        bodies.append(rest[: int(size)])
        rest = rest[int(size) + 1 :]
    return bodies


async def _request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(head[0].split(" ")[1], headers, body)


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: Sequence[str] = ()
) -> bool:
    lines = [
        f"HTTP/1.1 {status} -",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    return True


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


async def _refuse(
    writer: asyncio.StreamWriter, wire: _Format, trouble: Trouble, words: int
) -> bool:
    status, message = _describe(wire, trouble, words)
    headers = []
    if trouble.retry_after is not None:
        headers.append(f"retry-after: {trouble.retry_after:g}")
    return await _send(writer, status, wire.error(status, message), headers)


def _last_event(wire: _Format, trouble: Trouble | None, words: int) -> bytes:
    """Return the last event of a stream with the trouble."""
    if trouble is None:
        return b""
    if trouble.why == "malformed":
        return _event(b'{"choices": [{"delta": {"content')
    status, message = _describe(wire, trouble, words)
    return _event(wire.error(status, message), "error")


def _describe(wire: _Format, trouble: Trouble, words: int) -> tuple[int, str]:
    """Return the status and the message of a trouble."""
    status = trouble.status or _STATUS.get(trouble.why, 500)
    message = trouble.message
    if not message and trouble.why == "overflow":
        message = wire.overflow(words, trouble.limit or words - 1)
    return status, message or f"The script says: {trouble.why}."


async def _serve(provider: Provider) -> None:
    async with provider:
        print(provider.url, flush=True)  # noqa: T201  (the first line is the URL)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until the process is interrupted."""
    parser = argparse.ArgumentParser(description="A provider that plays a script.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--context", type=int)
    args = parser.parse_args()
    provider = Provider(
        Script.read(args.script), port=args.port, context=args.context, log=args.log
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(provider))


if __name__ == "__main__":
    main()
