"""A real `tenax serve` with a webhook, killed at moments that the sender and the receiver of the test know for certain.

The sender sends every message until it is accepted. The receiver folds what comes twice by the id of the request.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from tests.support.chat_kills import (
    SECONDS,
    GatewayHome,
    GatewayProcess,
    Person,
    Shown,
)
from tests.support.webhooks import SECRET, Inbox, Post, Sender, When

__all__ = ["HookApp", "HookHome", "ServeProcess", "kill_at_a_post"]

T = TypeVar("T")

# Python runs this when the server starts. It comes after the lines of `GatewayHome`.
_HOLD: Final = """
if "tenax.web" in sys.orig_argv:
    from tenax.channels.gateway import Gateway
    unheld, hold = Gateway.take_request, pathlib.Path({hold!r})
    async def take_request(self, *given):
        taken = await unheld(self, *given)
        while hold.exists():
            await asyncio.sleep(0.01)
        return taken
    Gateway.take_request = take_request
"""


class HookApp:
    """A webhook: a sender and a receiver. A chat has the id of its person, and all of them are the owner."""

    account = "webhook:chat"
    secret = SECRET
    channel = "tenax.channels.webhook.channel.WebhookChannel"

    def __init__(self, inbox: Inbox, sender: Sender) -> None:
        self.inbox = inbox
        self.sender = sender
        self.settings = f'platform = "webhook"\nurl = "{inbox.url}"'

    def chat_of(self, person: Person) -> str:
        return person.id

    def say(self, text: str, sender: Person, file: tuple[str, bytes] | None) -> str:
        assert file is None, "a webhook has no files"
        return self.sender.send(sender.id, text)

    def messages(self, person: Person) -> list[Shown]:
        return [
            Shown(post.id, post.data["text"], from_bot=True)
            for post in self.inbox.taken("answer.finished")
            if post.data["chat"] == person.id
        ]

    def is_confirmed(self) -> bool:
        return self.sender.is_done()

    def wait_for(self, predicate: Callable[[], T], seconds: float) -> T:
        return self.inbox.wait_for(predicate, seconds)


class HookHome(GatewayHome):
    """The folder of a server with a webhook. `hold` keeps back the answer to every request whose message is stored."""

    def __init__(
        self,
        app: HookApp,
        store_url: str,
        home: Path,
        port: int,
        *,
        tools_folder: Path | None = None,
    ) -> None:
        super().__init__(app, store_url, home, tools_folder=tools_folder)
        self.port = port
        self._hold = home / "hold"
        with (home / "sitecustomize.py").open("a") as file:
            file.write(_HOLD.format(hold=str(self._hold)))

    @property
    def hook(self) -> str:
        """The address for messages."""
        return f"http://127.0.0.1:{self.port}/api/hooks/chat"

    def hold(self) -> None:
        self._hold.touch()

    def go_on(self) -> None:
        self._hold.unlink()

    def env(self) -> dict[str, str]:
        return super().env() | {"TENAX_PORT": str(self.port)}


class ServeProcess(GatewayProcess):
    """`tenax serve`. A kill ends the server and its parent, so nothing starts the server again."""

    home: HookHome

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "tenax", "serve"]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=self.home.env(), stdout=output, stderr=output
            )

    def kill(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        # The parent first, because it would start the server again.
        self._process.send_signal(signal.SIGSTOP)
        for child in self._children():
            _kill_and_wait(child)
        self._process.kill()
        self._process.wait()

    def starts(self) -> int:
        """Return how often the server has printed its link."""
        return self._output.read_text().count("/link")

    def describe(self) -> str:
        log = self.home.path / "log" / "serve.log"
        files = [file for file in (self._output, log) if file.exists()]
        return "\n".join(file.read_text()[-3000:] for file in files)

    def _children(self) -> list[int]:
        assert self._process is not None
        pid = self._process.pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in found.split()]


def _kill_and_wait(pid: int) -> None:
    """Kill a process that is no child of this one, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], SECONDS)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def kill_at_a_post(inbox: Inbox, server: ServeProcess, when: When) -> Iterator[None]:
    """Kill the server at its next request: before the receiver takes the event, or after it and before the answer.

    The block causes the request; at its end the server is dead.
    """
    killed = threading.Event()

    def kill(_post: Post) -> None:
        server.kill()
        killed.set()

    inbox.on_next(kill, when)
    yield
    if not killed.wait(SECONDS):
        raise TimeoutError(f"No request came.\n{server.describe()}")
