"""Files of messages: fetched before the message is stored, or later if that takes too long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tenax.assembly import Runtime
from tenax.channels.base import Channel, Received, RemoteFile
from tenax.channels.rows import AsyncChannelRows, LateFile
from tenax.clock import Timing
from tenax.errors import (
    ChannelError,
    ChannelRefused,
    DedupReused,
    Gone,
    InvalidInput,
    NoSuchConversation,
    SessionEnded,
    TenaxError,
)
from tenax.events import MessageUser
from tenax.journal.base import Dedup
from tenax.parts import Part, Text
from tenax.text import make_storable, to_one_line

__all__ = ["IncomingFiles", "Transcribe"]

_LATE_FETCH_SECONDS: Final = 300.0
_TRIES_MAX: Final = 6
_FILES_MAX: Final = 10
_NAME_CHARS_MAX: Final = 100

Transcribe = Callable[[str, str, bytes], Awaitable[str]]
"""Returns the words of a voice note: name, media type and content to text."""


class IncomingFiles:
    """Fetches the files that people send to an account."""

    def __init__(
        self,
        channel: Channel,
        rows: AsyncChannelRows,
        transcribe: Transcribe | None,
        timing: Timing,
    ) -> None:
        self._channel = channel
        self._rows = rows
        self._transcribe = transcribe
        self._timing = timing

    async def fetch(
        self, runtime: Runtime, message: Received
    ) -> tuple[list[Part], list[int]]:
        """Return the files of a message as parts, and the numbers of the files that come later."""
        files = message.files[:_FILES_MAX]
        until = asyncio.get_running_loop().time() + self._timing.channel_file_seconds
        fetched = await asyncio.gather(
            *(self._fetch_until(runtime, file, until) for file in files)
        )
        parts: list[Part] = []
        late: list[int] = []
        for number, (file, found) in enumerate(zip(files, fetched, strict=True)):
            if found is None:
                late.append(number)
                parts.append(Text(f"[The file {_name(file)} is still being fetched.]"))
            else:
                parts.extend(found)
        left_out = len(message.files) - len(files)
        if left_out:
            parts.append(Text(f"[{left_out} more files were left out.]"))
        return parts, late

    async def remember_late(
        self, num: int, stored: MessageUser, message: Received
    ) -> None:
        """Store which files come later. The stored message says it, so a repeated update finds the same files."""
        for number in stored.extra.get("late", []):
            if number < len(message.files):
                file = msgspec.json.encode(message.files[number]).decode()
                name = f"{message.id}:{number}"
                await self._rows.put_late_file(self._channel.account, name, num, file)

    async def fetch_late(self, late: LateFile, runtime: Runtime) -> None:
        """Fetch a file that is due, and store it as a message of its own. The model answers it."""
        file = msgspec.json.decode(late.file, type=RemoteFile)
        try:
            async with asyncio.timeout(_LATE_FETCH_SECONDS):
                parts = await self._fetch(runtime, file)
        except (TimeoutError, ChannelError) as error:
            refused = isinstance(error, ChannelRefused)
            if not refused and late.tries + 1 < _TRIES_MAX:
                await self._rows.delay_late_file(late)
                return
            parts = [_not_fetched(file, str(error) or "it took too long.")]
        words = Text(f"[The file {_name(file)} of an earlier message:]")
        extra = {"chat": {"account": self._channel.account}}
        message = MessageUser([words, *parts], ask=True, extra=extra)
        dedup = Dedup(self._channel.account, f"late:{late.id}")
        with contextlib.suppress(DedupReused, Gone, NoSuchConversation, SessionEnded):
            await runtime.journal.append(late.conversation, [message], dedup=dedup)
            runtime.workers.wake(late.conversation)
        await self._rows.drop_late_file(late)

    async def _fetch_until(
        self, runtime: Runtime, file: RemoteFile, until: float
    ) -> list[Part] | None:
        """Return the parts of a file, or `None` if it takes too long or the platform is away."""
        try:
            async with asyncio.timeout_at(until):
                return await self._fetch(runtime, file)
        except ChannelRefused as error:
            return [_not_fetched(file, str(error))]
        except (TimeoutError, ChannelError):
            return None

    async def _fetch(self, runtime: Runtime, file: RemoteFile) -> list[Part]:
        traits = self._channel.traits
        most = traits.fetch_bytes_max
        if file.size > most:
            raise ChannelRefused(
                f"It has {file.size:,} bytes. {traits.platform} gives bots at most {most:,}."
            )
        data = await self._channel.fetch(file)
        if file.is_voice:
            return await self._hear(runtime, file, data)
        try:
            return [await runtime.attachments.put(file.name or "file", data)]
        except InvalidInput as error:
            note = f"[The file {_name(file)} is not kept. {error} {error.hint}".strip()
            return [Text(make_storable(f"{note}]"))]

    async def _hear(
        self, runtime: Runtime, file: RemoteFile, data: bytes
    ) -> list[Part]:
        """Return a voice note: the sound and, where a service is set up, its words."""
        name = file.name or "voice.ogg"
        kind = file.media_type or "audio/ogg"
        sound = await runtime.attachments.put_sound(name, kind, data)
        if self._transcribe is None:
            note = "[A voice note. No service is set up that turns speech into text.]"
            return [sound, Text(note)]
        try:
            words = await self._transcribe(name, kind, data)
        except TenaxError as error:
            note = f"[A voice note. Its words are not known: {error}]"
            return [sound, Text(make_storable(note))]
        return [sound, Text(f"[Heard in a voice note:]\n{make_storable(words)}")]


def _not_fetched(file: RemoteFile, reason: str) -> Text:
    return Text(
        make_storable(f"[The file {_name(file)} could not be fetched. {reason}]")
    )


def _name(file: RemoteFile) -> str:
    return to_one_line(make_storable(file.name))[:_NAME_CHARS_MAX] or "without a name"
