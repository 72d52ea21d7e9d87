"""A provider that speaks the real wire protocol, on this machine, and plays a script.

`async with Provider(script) as provider` inside a test, or a process of its own:
`python -m tenax.testing.provider --port 0 --script FILE [--log FILE]`, which says where it listens on its first line.
It speaks OpenAI's format at `URL/v1` and Anthropic's at `URL`, streamed. The script is that of `tenax.models.scripted`;
a trouble becomes what a real provider would do: a status, an error inside the stream, a cut connection, a broken chunk.
A field that the real provider does not know is refused, as there. Every request is kept byte for byte, in `received`
and, if asked, in a file that `bodies_in` reads.
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

_LOOK_SECONDS: Final = 0.01
"""How often it looks whether the client is still there."""
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
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    body: bytes


class _Format(Protocol):
    """How a provider says things."""

    fields: frozenset[str]
    """What a request may hold. OpenAI's format is spoken by llama.cpp too, which knows one more."""

    def stream(
        self, model: str, turn: int, reply: Reply, words: int
    ) -> Iterator[bytes]:
        """All events of a reply: a head, the pieces, and the end."""

    def error(self, status: int, message: str) -> bytes:
        """An error as the body of an answer; inside a stream it is the data of an event."""

    def overflow(self, words: int, limit: int) -> str:
        """What is said when the context is too long."""


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
            "completion_tokens": _said(reply),
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
                "message_delta", delta=stop, usage={"output_tokens": _said(reply)}
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


def _said(reply: Reply) -> int:
    return len(reply.words.split()) + len(reply.thoughts.split())


class Provider:
    """Plays `script` over HTTP. Its tokens are words: a request with more of them than `context` overflows.

    `connections` counts those that were made, `cut` the streams that a client ended before they were over. `pages` is
    what else it answers, by path: JSON, or a number that is the status of a refusal.
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
                    Reply(words=each) if isinstance(each, str) else each
                    for each in script
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
        """Where it listens; Anthropic's address."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def bodies(self) -> list[bytes]:
        return [each.body for each in self.received]

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
                while await self._answer(await _request(reader), reader, writer):
                    pass
            finally:
                self._talks.discard(task)
                writer.close()
                await writer.wait_closed()

    async def _answer(
        self,
        request: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer one request; True if the connection is good for another."""
        self.received.append(request)
        if self._log:
            with self._log.open("ab") as file:
                file.write(b"%d\n%b\n" % (len(request.body), request.body))
        voice: _Format = (
            _Anthropic() if request.path.endswith("/v1/messages") else _OpenAI()
        )
        if not request.path.endswith(("/v1/messages", "/chat/completions")):
            page = self._pages.get(request.path.partition("?")[0], 404)
            refused = isinstance(page, int)
            told = (
                voice.error(page, f"There is no {request.path}.")
                if refused
                else _encode(page)
            )
            return await _send(writer, page if refused else 200, told)
        words, asked = words_in(request.body), msgspec.json.decode(request.body)
        unknown = asked.keys() - voice.fields
        if unknown or (self.context and words > self.context):
            why = (
                f"Unknown: {', '.join(unknown)}."
                if unknown
                else voice.overflow(words, self.context or 0)
            )
            return await _send(writer, 400, voice.error(400, why))
        turn, reply = self.script.next(request.body, self._played)
        trouble = reply.trouble
        spoken = reply.words or reply.thoughts or reply.raw
        if trouble and trouble.why == "away":
            return False
        if trouble and trouble.why in _STATUS and not spoken:
            return await _refuse(writer, voice, trouble, words)
        stream = (
            _raw(reply.raw)
            if reply.raw
            else voice.stream(asked.get("model", ""), turn, reply, words)
        )
        return await self._play(
            stream, reply, _last(voice, trouble, words), reader, writer
        )

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
                if not await self._stays(reader, reply.pause):
                    return False
                await _chunk(writer, event)
        except ConnectionError:
            self.cut += 1
            raise
        if reply.hang or why == "silent":
            return await self._stays(reader, float("inf"))
        if why == "dropped":
            return False
        if last:
            await _chunk(writer, last)
        await _chunk(writer, b"")
        return True

    async def _stays(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        """Wait, as long as the client is there."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        # that one left a part of it unread
        while not reader.at_eof() and reader.exception() is None:
            left = until - loop.time()
            if left <= 0:
                return True
            await asyncio.sleep(min(left, _LOOK_SECONDS))
        self.cut += 1
        return False


def bodies_in(log: Path) -> list[bytes]:
    """The bodies that a provider wrote to its log, byte for byte."""
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
    writer: asyncio.StreamWriter, voice: _Format, trouble: Trouble, words: int
) -> bool:
    status, message = _told(voice, trouble, words)
    headers = (
        [f"retry-after: {trouble.retry_after:g}"]
        if trouble.retry_after is not None
        else []
    )
    return await _send(writer, status, voice.error(status, message), headers)


def _last(voice: _Format, trouble: Trouble | None, words: int) -> bytes:
    """What a stream with this trouble ends with."""
    if trouble is None:
        return b""
    if trouble.why == "malformed":
        return _event(b'{"choices": [{"delta": {"content')
    status, message = _told(voice, trouble, words)
    return _event(voice.error(status, message), "error")


def _told(voice: _Format, trouble: Trouble, words: int) -> tuple[int, str]:
    status = trouble.status or _STATUS.get(trouble.why, 500)
    if trouble.why == "overflow":
        return status, trouble.message or voice.overflow(
            words, trouble.limit or words - 1
        )
    return status, trouble.message or f"The script says: {trouble.why}."


async def _serve(provider: Provider) -> None:
    async with provider:
        print(provider.url, flush=True)  # noqa: T201  (its first line says where it is)
        await asyncio.Event().wait()


def main() -> None:
    """Listen until ended."""
    parser = argparse.ArgumentParser(description="A provider that plays a script.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--context", type=int)
    given = parser.parse_args()
    provider = Provider(
        Script.read(given.script), port=given.port, context=given.context, log=given.log
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(provider))


if __name__ == "__main__":
    main()
