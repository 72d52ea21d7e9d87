"""A process that answers many messages of a chat app, and says how much memory it has.

`python -m bench.chatter URL HOME EARLY LATE` prints the MiB after so many answered messages, and the seconds of all.
The chat app is in this process and keeps nothing. Every message is stored, answered by a scripted model, and delivered.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import tenax
from bench.grow import resident
from tenax.assembly import Runtime
from tenax.channels.base import (
    Batch,
    Button,
    Chat,
    OutgoingFile,
    Person,
    Piece,
    Received,
    RemoteFile,
    Tapped,
    Traits,
)
from tenax.channels.gateway import Gateway
from tenax.channels.rows import ChannelRows
from tenax.config import load
from tenax.config.schema import ChannelSettings
from tenax.config.secret import Secret
from tenax.errors import ChannelRefused
from tenax.journal import LOCAL_USER
from tenax.models import Reply, Script, ScriptedModel

_ADA = Person("1", "Ada")
_CHATS_AT_ONCE = 100
_MESSAGES_OF_A_CHAT = 20
_IDLE_SECONDS = 5.0
_TRAITS = Traits(
    platform="Bench",
    send_seconds=0.0,
    group_seconds=0.0,
    account_seconds=0.0,
    preview_seconds=1.0,
    file_bytes_max=0,
    fetch_bytes_max=0,
)


class _Chatter:
    """A chat app in which a person writes to many chats, a batch at a time. The next batch comes after the answers."""

    account = "telegram:1"
    traits = _TRAITS
    name = "bench"
    idle_seconds = 60.0

    def __init__(self, early: int, late: int) -> None:
        self._early = early
        self._late = late
        self._sent = 0
        self._changed = asyncio.Event()
        self.finished = asyncio.Event()
        self.mib: list[float] = []

    async def open(self) -> None:
        """There is nothing to check."""

    async def receive(self, cursor: str) -> AsyncGenerator[Batch]:
        for said in range(int(cursor or 0), self._late, _CHATS_AT_ONCE):
            numbers = range(said, said + _CHATS_AT_ONCE)
            yield Batch(tuple(map(_message, numbers)), str(numbers.stop))
            await self._wait_for_answers(numbers.stop)
            if numbers.stop in {self._early, self._late}:
                self.mib.append(resident())
        self.finished.set()
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            yield Batch((), str(self._late))

    async def _wait_for_answers(self, count: int) -> None:
        while self._sent < count:
            self._changed.clear()
            await self._changed.wait()

    def render(self, markdown: str) -> list[Piece]:
        return [Piece(markdown, None)]

    def mark_repeated(self, piece: Piece) -> Piece:
        return piece

    def shorten(self, piece: Piece, chars: int) -> Piece:
        return Piece(piece.text[:chars], None)

    async def send(
        self,
        chat: Chat,
        piece: Piece,
        *,
        key: str,
        buttons: Sequence[Button] = (),
        reply_to: str = "",
    ) -> str:
        del chat, piece, key, buttons, reply_to
        self._sent += 1
        self._changed.set()
        return str(self._sent)

    async def edit(
        self, chat: Chat, message: str, piece: Piece, *, buttons: Sequence[Button] = ()
    ) -> None:
        """The messages are not kept."""

    async def send_file(self, chat: Chat, file: OutgoingFile, *, key: str) -> str:
        del chat, file, key
        raise ChannelRefused("There are no files here.")

    async def find(self, chat: Chat, key: str, since: float) -> str | None:
        del chat, key, since
        return None

    async def answer_tap(self, tap: Tapped, text: str) -> None:
        """There are no buttons."""

    async def show_typing(self, chat: Chat) -> None:
        """Nobody looks."""

    async def fetch(self, file: RemoteFile) -> bytes:
        raise ChannelRefused(f"There is no file {file.id}.")

    async def close(self) -> None:
        """There is nothing to close."""


def _message(number: int) -> Received:
    block = number // (_CHATS_AT_ONCE * _MESSAGES_OF_A_CHAT)
    chat = Chat(f"{block}-{number % _CHATS_AT_ONCE}")
    text = f"Message {number}: what about the weather, the garden and the book?"
    return Received(f"u{number}", chat, _ADA, f"{number}", text)


async def _answer(url: str, home: str, early: int, late: int) -> None:
    config = load({"HOME": home, "TENAX_HOME": home, "TENAX_STORE": url})
    settings = ChannelSettings(
        label="bench", platform="telegram", token=Secret("none", "the bench")
    )
    chatter = _Chatter(early, late)
    model = ScriptedModel(Script([Reply("Fine, all of them.")], repeat=True))
    with tenax.open(url) as journal:
        ChannelRows(journal).add_person(chatter.account, _ADA.id, LOCAL_USER, "Ada")
        async with Runtime(config, journal=journal, models=[model]) as runtime:

            async def runtime_of(_user: str) -> Runtime:
                return runtime

            gateway = Gateway(journal, runtime_of, connect=lambda _: chatter)
            begun = time.perf_counter()
            await gateway.configure(replace(config, channels={"bench": settings}))
            await chatter.finished.wait()
            took = time.perf_counter() - begun
            await gateway.close()
    print(*chatter.mib, took)


def main(url: str, home: str, early: int, late: int) -> None:
    Path(home).mkdir(parents=True, exist_ok=True)
    asyncio.run(_answer(url, home, early, late))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
