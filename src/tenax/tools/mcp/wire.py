"""Connections to MCP servers: the SDK over pipes, or over HTTP. The import of the module takes a second.

Messages, bodies and the rate of messages are bounded. A command runs in a process group together with a shell waiting
at the end of a pipe. Every end of the Tenax process, even by kill -9, closes the pipe. The shell then ends the group.
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

from tenax.config import McpSettings, find_secrets
from tenax.errors import ConfigError, ToolFailed, unusable
from tenax.models.http import is_loopback
from tenax.tools.mcp.servers import Lost

__all__ = ["Line", "opened", "wait_for_end"]

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
# At most MESSAGES_MAX messages in MESSAGES_SECONDS.
MESSAGES_MAX, MESSAGES_SECONDS = 2000, 10.0
_PAGES_MAX = 20
_GOODBYE_SECONDS, _GOODBYE_LOOKS = 0.5, 50
_CHARS = 200
_GUARD: Final = '(read -r _ </dev/fd/{0}; kill -KILL 0) >/dev/null 2>&1 & exec "$@"'
_GONE: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError)
Streams = AbstractAsyncContextManager[tuple[Any, Any]]
T = TypeVar("T")

# These loggers would log the messages of servers.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Line:
    """A connection. `ended` resolves to the reason when the connection becomes unusable."""

    def __init__(self, client: Client, ended: asyncio.Future[str]) -> None:
        self._client, self.ended = client, ended

    async def tools(self) -> list[wire.Tool]:
        """Return the tools of the server."""
        found: list[wire.Tool] = []
        cursor: str | None = None
        for _ in range(_PAGES_MAX):
            page = await _answered(self._client.list_tools(cursor=cursor))
            found, cursor = found + page.tools, page.next_cursor
            if cursor is None:
                break
        return found

    async def call(self, name: str, args: dict[str, Any]) -> str:
        """Call a tool. `Client.call_tool` is not used, because it applies patterns of the server to the result."""
        request = wire.CallToolRequest(
            params=wire.CallToolRequestParams(name=name, arguments=args)
        )
        result = await _answered(self._send(request))
        text = "\n".join(map(_part_as_text, result.content))
        if not text and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        if result.is_error:
            raise ToolFailed(text or "It failed, and did not say why.")
        return text or "It is done. Nothing was said about it."

    async def _send(self, request: wire.CallToolRequest) -> wire.CallToolResult:
        """Send a request. The coroutine reads `session`, so that its error on a closed connection is handled too."""
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
    """Open a connection. `changed` is called if the tools change, `said` with the output on stderr."""
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
    """Forward messages up to the maximum rate."""
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
            except ValueError:
                # The line is longer than the limit of the reader.
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
    """Connect over HTTP. The SDK follows a redirect only within the origin of the URL."""
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
    """Bound the size of a body. Events have a separate limit. Compressed bodies are refused: Tenax requests none."""
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
    """Start the command, and connect over its pipes."""
    env: dict[str, str] = {}
    for name, value in settings.environment.items():
        found = value if isinstance(value, str) else next(find_secrets(value), None)
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
            loop.create_task(_write_messages(receive, stdin)),
            loop.create_task(_note(complaints, said)),
        ]
        try:
            yield _messages(stdout), send
        finally:
            # The process may have ended already.
            with contextlib.suppress(OSError, RuntimeError):
                stdin.write_eof()
            try:
                await wait_for_end(process)
            finally:
                # Close the pipes even if the task is cancelled twice.
                pipe.close()
                stdin.close()
    finally:
        # Closing the pipe ends the rest of the process group.
        os.close(ours)
        for task in tasks:
            task.cancel()
        await wait_for_end(process)


def _spawned(
    command: list[str], env: dict[str, str], folder: Path
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start the process. Return the process, the socket for messages, and the pipe end whose closing ends the process.

    `subprocess` is used instead of the event loop, because uvloop leaks descriptors into a child with `pass_fds`.
    """
    try:
        # A command may have created files in the folder of the tools, and a program may run them: Python runs modules,
        # npx runs node_modules. Therefore a server starts in a separate folder.
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


async def wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Wait briefly for the process to end."""
    for _ in range(_GOODBYE_LOOKS):
        if process.poll() is not None:
            return
        await asyncio.sleep(_GOODBYE_SECONDS / _GOODBYE_LOOKS)


async def _messages(
    stdout: asyncio.StreamReader,
) -> AsyncIterator[SessionMessage | Exception]:
    """Yield a message per line. An invalid line becomes an error, and the SDK ignores the error."""
    while line := await stdout.readline():
        try:
            yield SessionMessage(
                wire.jsonrpc_message_adapter.validate_json(line, by_name=False)
            )
        except ValueError:
            yield Lost("no message")


async def _write_messages(messages: Any, stdin: asyncio.StreamWriter) -> None:  # noqa: ANN401  (a stream of anyio's)
    with messages:
        try:
            async for message in messages:
                stdin.write(
                    message.message.model_dump_json(
                        by_alias=True, exclude_unset=True
                    ).encode()
                    + b"\n"
                )
                await stdin.drain()
        except (ConnectionError, RuntimeError):
            # The process has ended; the reader notices.
            return


async def _note(stderr: asyncio.StreamReader, said: Callable[[bytes], None]) -> None:
    """Read stderr slowly: a flood of output stays in the pipe."""
    while chunk := await stderr.read(65536):
        said(chunk)
        await asyncio.sleep(0.02)


def _part_as_text(part: Any) -> str:  # noqa: ANN401  (a union of the SDK's)
    """Return a part of a result as text, or a note for a part without text."""
    if part.type == "text":
        return str(part.text)
    if part.type in {"image", "audio"}:
        return f"[{part.type}, not shown: {part.mime_type[:_CHARS]}, about {len(part.data) * 3 // 4:,} bytes]"
    held = getattr(part, "resource", part)
    return str(
        getattr(held, "text", None)
        or f"[{part.type}, not shown: {str(held.uri)[:_CHARS]}]"
    )
