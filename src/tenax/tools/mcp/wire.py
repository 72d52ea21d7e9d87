"""The wire to an MCP server: the SDK over pipes of our own, or over HTTP. Importing it takes a second.

What a server sends is bounded: a message, a body, and how many come in a while. What is started for it is a group of
processes, one of them a shell that waits at the end of a pipe. Whatever ends us, also kill -9, closes that pipe, and the
shell ends the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import httpx2
import mcp_types as wire
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from tenax.config import McpSettings, secrets
from tenax.errors import ConfigError, ToolFailed, unusable
from tenax.models.http import is_loopback
from tenax.tools.mcp.servers import Lost

__all__ = ["Line", "opened"]

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
MESSAGES_MAX, MESSAGES_SECONDS = 2000, 10.0
"""How many may come in how many seconds."""
_PAGES_MAX = 20
_GOODBYE_SECONDS, _GOODBYE_LOOKS = 0.5, 50
_CHARS = 200
_GUARD: Final = '(read -r _ </dev/fd/{0}; kill -KILL 0) >/dev/null 2>&1 & exec "$@"'
_GONE: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError)
Streams = AbstractAsyncContextManager[tuple[Any, Any]]
T = TypeVar("T")

for _name in ("mcp", "client", "httpx2", "httpcore2"):  # they log what servers say
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Line:
    """One connection. `ended` is done when it is of no use any more, with why."""

    def __init__(self, client: Client, ended: asyncio.Future[str]) -> None:
        self._client, self.ended = client, ended

    async def tools(self) -> list[wire.Tool]:
        """What the server offers now."""
        found: list[wire.Tool] = []
        cursor: str | None = None
        for _ in range(_PAGES_MAX):
            page = await _answered(self._client.list_tools(cursor=cursor))
            found, cursor = found + page.tools, page.next_cursor
            if cursor is None:
                break
        return found

    async def call(self, name: str, args: dict[str, Any]) -> str:
        """What it says to this call. Not by `call_tool`, which runs patterns of the server's over the answer."""
        request = wire.CallToolRequest(
            params=wire.CallToolRequestParams(name=name, arguments=args)
        )
        result = await _answered(self._send(request))
        text = "\n".join(map(_told, result.content))
        if not text and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        if result.is_error:
            raise ToolFailed(text or "It failed, and did not say why.")
        return text or "It is done. Nothing was said about it."

    async def _send(self, request: wire.CallToolRequest) -> wire.CallToolResult:
        """In here, because the SDK raises already where it is asked for the session of a connection that is closed."""
        return await self._client.session.send_request(request, wire.CallToolResult)


async def _answered(request: Coroutine[Any, Any, T]) -> T:
    try:
        return await request
    except MCPError as error:
        if (
            error.code in {wire.CONNECTION_CLOSED, wire.REQUEST_TIMEOUT}
            or error.message == "Session terminated"
        ):
            raise Lost("It ended the connection.") from error
        if error.code == wire.PARSE_ERROR:
            raise ToolFailed("Its answer cannot be read, or is too long.") from error
        raise ToolFailed(f"It refused: {error.message[:1000]}") from error
    except ValueError as error:
        raise ToolFailed("Its answer is none that MCP knows.") from error
    except (*_GONE, RuntimeError) as error:
        raise Lost("It ended the connection.") from error


@asynccontextmanager
async def opened(
    settings: McpSettings,
    folder: Path,
    changed: Callable[[], None],
    said: Callable[[bytes], None],
    *,
    legacy: bool,
) -> AsyncIterator[Line]:
    """A connection, greeted. `changed` is called when the tools are others, `said` with what it writes to its stderr."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def heard(message: object) -> None:
        if isinstance(message, wire.ToolListChangedNotification):
            changed()

    way = _started(settings, folder, said) if settings.command else _reached(settings)
    who = wire.Implementation(name="tenax", version=metadata.version("tenax"))
    streams, mode = _counted(way, ended), "legacy" if legacy else "auto"
    async with Client(
        streams, mode=mode, client_info=who, message_handler=heard, cache=None
    ) as client:
        yield Line(client, ended)


@asynccontextmanager
async def _counted(
    way: Streams, ended: asyncio.Future[str]
) -> AsyncIterator[tuple[Any, Any]]:
    """Pass on what comes, as long as it is not too much."""
    async with way as (source, sink):
        send, receive = anyio.create_memory_object_stream[Any](0)
        clock = asyncio.get_running_loop().time

        async def pump() -> str:
            began, count = clock(), 0
            try:
                async for item in source:
                    began, count = (
                        (began, count + 1)
                        if clock() - began < MESSAGES_SECONDS
                        else (clock(), 1)
                    )
                    if count > MESSAGES_MAX:
                        return f"It sent more than {MESSAGES_MAX:,} messages in {MESSAGES_SECONDS:g} seconds."
                    await send.send(item)
            except ValueError:  # a line without an end
                return f"It sent a message of more than {MESSAGE_BYTES_MAX:,} bytes."
            except _GONE:
                pass
            finally:
                send.close()
            return "It ended the connection."

        def tell(task: asyncio.Task[str]) -> None:
            if not ended.done():
                ended.set_result(
                    "" if task.cancelled() or task.exception() else task.result()
                )

        task = asyncio.create_task(pump())
        task.add_done_callback(tell)
        try:
            yield receive, sink
        finally:
            task.cancel()
            send.close()
            receive.close()


@asynccontextmanager
async def _reached(settings: McpSettings) -> AsyncIterator[tuple[Any, Any]]:
    """Over HTTP. The SDK follows a redirect only to where it was sent."""
    headers = {"accept-encoding": "identity"}
    if settings.key is not None:
        bearer = "" if settings.header else "Bearer "
        headers[settings.header or "authorization"] = bearer + settings.key.reveal()
    async with (
        httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(30.0, read=300.0),
            trust_env=not is_loopback(settings.url),
            event_hooks={"response": [_bounded]},
        ) as client,
        streamable_http_client(
            settings.url,
            http_client=client,
            terminate_on_close=False,
            max_sse_event_size=MESSAGE_BYTES_MAX,
        ) as streams,
    ):
        yield streams


class _Body(httpx2.AsyncByteStream):
    def __init__(self, body: Any) -> None:  # noqa: ANN401  (httpx2's own)
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MESSAGE_BYTES_MAX
        async for chunk in self._body:
            if (left := left - len(chunk)) < 0:
                raise httpx2.StreamError("too long")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bounded(response: httpx2.Response) -> None:
    """Events are bounded one by one; any other body as a whole. Packed ones were not asked for."""
    if response.status_code in {401, 403}:
        raise Lost(f"It wants a key, or another one (HTTP {response.status_code}).")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise Lost("It packs its answers.")
    if (
        not response.headers.get("content-type", "")
        .lower()
        .startswith("text/event-stream")
    ):
        response.stream = _Body(response.stream)


@asynccontextmanager
async def _started(
    settings: McpSettings, folder: Path, said: Callable[[bytes], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Over the pipes of a process that is started for it."""
    env: dict[str, str] = {}
    for name, value in settings.env.items():
        found = value if isinstance(value, str) else next(secrets(value), None)
        if found is None:
            raise ConfigError(
                f"The variable {name}, which it is to be given, is not set."
            )
        env[name] = found
    process, stdio, ours = _spawned(list(settings.command), env, folder)
    loop, complaints, tasks = asyncio.get_running_loop(), asyncio.StreamReader(), []
    try:
        stdout, stdin = await asyncio.open_unix_connection(
            sock=stdio, limit=MESSAGE_BYTES_MAX
        )
        heard = partial(asyncio.StreamReaderProtocol, complaints)
        pipe, _ = await loop.connect_read_pipe(heard, process.stderr)
        send, receive = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            loop.create_task(_write(receive, stdin)),
            loop.create_task(_note(complaints, said)),
        ]
        try:
            yield _messages(stdout), send
        finally:
            with contextlib.suppress(OSError, RuntimeError):  # it is gone already
                stdin.write_eof()
            try:
                await _gone(process)
            finally:  # also for who is told twice to end
                pipe.close()
                stdin.close()
    finally:
        os.close(ours)  # ends what is left of it
        for task in tasks:
            task.cancel()
        await _gone(process)


def _spawned(
    command: list[str], env: dict[str, str], folder: Path
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """The process, what it is talked to by, and our end of the pipe that ends it.

    Not by the loop: uvloop leaves files of ours open in a process that is given one of them.
    """
    try:
        # A command may have put files in the folder of the tools, which many programs would run: Python a module,
        # npx what lies in node_modules. So a server starts in a folder of its own.
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unusable(
            f"{folder}, where it would start, cannot be made", error
        ) from error
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as given:
        end, ours = os.pipe()
        given.callback(os.close, end)
        undo.callback(os.close, ours)
        stdio, its = socket.socketpair()
        given.callback(its.close)
        undo.callback(stdio.close)
        process = subprocess.Popen(  # noqa: S603  (the person configured it)
            ["/bin/sh", "-c", _GUARD.format(end), "sh", *command],
            stdin=its.fileno(),
            stdout=its.fileno(),
            stderr=subprocess.PIPE,
            env=env,
            cwd=folder,
            start_new_session=True,
            pass_fds=(end,),
        )
        undo.pop_all()
    return process, stdio, ours


async def _gone(process: subprocess.Popen[bytes]) -> None:
    """Give it a moment to end."""
    for _ in range(_GOODBYE_LOOKS):
        if process.poll() is not None:
            return
        await asyncio.sleep(_GOODBYE_SECONDS / _GOODBYE_LOOKS)


async def _messages(
    stdout: asyncio.StreamReader,
) -> AsyncIterator[SessionMessage | Exception]:
    """One a line. What is no message is passed on as an error, and left aside."""
    while line := await stdout.readline():
        try:
            yield SessionMessage(
                wire.jsonrpc_message_adapter.validate_json(line, by_name=False)
            )
        except ValueError:
            yield Lost("no message")


async def _write(messages: Any, stdin: asyncio.StreamWriter) -> None:  # noqa: ANN401  (a stream of anyio's)
    with messages:
        try:
            async for each in messages:
                stdin.write(
                    each.message.model_dump_json(
                        by_alias=True, exclude_unset=True
                    ).encode()
                    + b"\n"
                )
                await stdin.drain()
        except (ConnectionError, RuntimeError):
            return  # it is gone; who reads from it notices


async def _note(stderr: asyncio.StreamReader, said: Callable[[bytes], None]) -> None:
    """What it complains about, and never fast: a flood is left in the pipe."""
    while chunk := await stderr.read(65536):
        said(chunk)
        await asyncio.sleep(0.02)


def _told(part: Any) -> str:  # noqa: ANN401  (a union of the SDK's)
    """A part of a result as text; what is no text is named."""
    if part.type == "text":
        return str(part.text)
    if part.type in {"image", "audio"}:
        return f"[{part.type}, not shown: {part.mime_type[:_CHARS]}, about {len(part.data) * 3 // 4:,} bytes]"
    held = getattr(part, "resource", part)
    return str(
        getattr(held, "text", None)
        or f"[{part.type}, not shown: {str(held.uri)[:_CHARS]}]"
    )
