"""`/api/events`: an event stream per browser, for the list and the conversations watched by the browser.

The cursor describes the state of the page: `<incarnation>~<conversation>:<seq>~...`. The cursor is the id of every
frame, so a reconnect works like a first connect. If the page cannot continue from its seq, the stream sends a snapshot.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tenax.assembly import Runtime
from tenax.clock import rfc3339
from tenax.errors import Gone, InvalidInput, NoSuchConversation
from tenax.journal import Journal
from tenax.runtime.feed import ConversationFeed
from tenax.web.api import ResponseBody, endpoint
from tenax.web.conversations import Rows
from tenax.web.preferences import Preferred
from tenax.web.projects import ShownProjects
from tenax.web.server_state import ServerState, device_of, state_of

WATCHED_MAX: Final = 32
BEAT_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 2.0
"""The interval of checks whether the person accepted the loss of an incomplete store."""
_encode: Final = msgspec.json.Encoder().encode
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SEQ_DIGITS_MAX: Final = 10


class Lacks(ResponseBody):
    """The lost data of the user. The store is read-only."""

    messages: int
    events: int
    conversations: int
    to: str
    """The time of the last write to the copy of the store. Empty if the store is empty."""


def _lacks(journal: Journal) -> Lacks | None:
    if not journal.store.missing:
        return None
    own = journal.missing
    return Lacks(
        messages=sum(loss.messages for loss in own),
        events=sum(max(1, loss.upto - loss.have) for loss in own),
        conversations=len(own),
        to=rfc3339(journal.store.put_back_to) if journal.store.put_back_to else "",
    )


@endpoint("GET", "/api/events")
async def events(call: Request, runtime: Runtime, at: str = "-") -> Response:
    """Stream server-sent events from a cursor on."""
    stream = _Stream(
        state_of(call),
        device_of(call).id,
        runtime,
        *_parsed(call.headers.get("last-event-id") or at),
    )
    return StreamingResponse(
        stream.frames(),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


def _parsed(cursor: str) -> tuple[str, dict[str, int | None]]:
    incarnation, *watched = cursor.split("~")
    positions: dict[str, int | None] = {}
    for part in watched:
        name, _, seq = part.rpartition(":")
        if not _ID.fullmatch(name) or not (
            seq == "" or (seq.isdecimal() and len(seq) <= _SEQ_DIGITS_MAX)
        ):
            raise InvalidInput(
                "The cursor is invalid.", hint="Start with `-~CONVERSATION:`."
            )
        positions[name] = int(seq) if seq else None
    if len(positions) > WATCHED_MAX:
        raise InvalidInput(f"A stream can watch at most {WATCHED_MAX} conversations.")
    return incarnation, positions


class _Stream:
    """The event stream of a browser."""

    def __init__(
        self,
        state: ServerState,
        device: str,
        runtime: Runtime,
        incarnation: str,
        positions: dict[str, int | None],
    ) -> None:
        self._state = state
        self._device = device
        self._runtime = runtime
        self._incarnation = incarnation
        self._positions = positions
        self._feeds: dict[str, ConversationFeed] = {}
        self._held: dict[str, int] = {}
        self._listed: int | None = None
        self._preferences = 0
        self._projects = 0
        """The numbers of the sent preferences and projects."""
        self._lacks: Lacks | None = None
        self._hint = asyncio.Event()

    async def frames(self) -> AsyncIterator[bytes]:
        task = asyncio.current_task()
        assert task is not None
        self._state.streams[task] = self._hint
        self._state.signins.enter(self._device, self._hint)
        try:
            incarnation = self._runtime.journal.incarnation
            yield self._frame(
                "hello",
                {"incarnation": incarnation, "version": metadata.version("tenax")},
            )
            await self._runtime.list.enter(self._hint)
            async for frame in self._enter():
                yield frame
            while not self._state.stopping and self._state.signins.may_read(
                self._device, self._hint
            ):
                self._hint.clear()
                for frame in self._news():
                    yield frame
                try:
                    async with asyncio.timeout(
                        LOOK_SECONDS if self._lacks else BEAT_SECONDS
                    ):
                        await self._hint.wait()
                except TimeoutError:
                    yield b": here\n\n"
            yield self._frame("bye", {})
        finally:
            self._state.streams.pop(task, None)
            self._state.signins.leave(self._device, self._hint)
            self._leave()

    async def _enter(self) -> AsyncIterator[bytes]:
        for name in list(self._positions):
            try:
                feed = await self._runtime.watch(name, self._hint)
            except (Gone, NoSuchConversation):
                del self._positions[name]
                yield self._frame("gone", {"conversation": name})
                continue
            self._feeds[name] = feed

    def _leave(self) -> None:
        self._runtime.list.leave(self._hint)
        for feed in self._feeds.values():
            self._runtime.leave(feed, self._hint)
        self._feeds.clear()

    def _news(self) -> list[bytes]:
        found: list[bytes] = []
        lacks = _lacks(self._runtime.journal.journal)
        if lacks != self._lacks:
            self._lacks = lacks
            found.append(self._frame("store", {"lacks": lacks}))
        # Seqs of another incarnation of the store are meaningless here.
        if self._incarnation != self._runtime.journal.incarnation:
            self._incarnation = self._runtime.journal.incarnation
            self._positions = dict.fromkeys(self._positions)
        moves = self._runtime.list.since(self._listed)
        self._listed = self._runtime.list.number
        found += [self._frame("list", move) for move in moves]
        found += self._personal()
        for name, feed in list(self._feeds.items()):
            found += self._moved(name, feed)
        return found

    def _personal(self) -> list[bytes]:
        """Return the preferences and projects if they changed, or were not sent yet."""
        found: list[bytes] = []
        rows = self._runtime.personal
        if rows.preferences_number != self._preferences:
            self._preferences = rows.preferences_number
            found.append(self._frame("preferences", Preferred(rows.preferences)))
        if rows.projects_number != self._projects:
            self._projects = rows.projects_number
            found.append(self._frame("projects", ShownProjects.of(rows.projects)))
        return found

    def _moved(self, name: str, feed: ConversationFeed) -> list[bytes]:
        if feed.is_deleted:
            self._runtime.leave(self._feeds.pop(name), self._hint)
            self._positions.pop(name)
            return [self._frame("gone", {"conversation": name})]
        # A slow or unreadable feed must not delay the other feeds.
        if not feed.is_ready():
            return []
        found: list[bytes] = []
        was, self._positions[name] = self._positions[name], feed.at
        changes = feed.since(was, self._incarnation)
        if changes is None:
            page = msgspec.structs.asdict(Rows.of(feed.snapshot()))
            found.append(
                self._frame("rows", {"conversation": name, "at": feed.at, **page})
            )
        elif changes:
            found.append(
                self._frame(
                    "changes", {"conversation": name, "at": feed.at, "changes": changes}
                )
            )
        if feed.spooled_bytes != self._held.get(name, 0):
            self._held[name] = feed.spooled_bytes
            found.append(
                self._frame("held", {"conversation": name, "bytes": feed.spooled_bytes})
            )
        return found

    def _frame(self, what: str, data: Any) -> bytes:  # noqa: ANN401  (whatever is told)
        positions = "".join(
            f"~{name}:{'' if seq is None else seq}"
            for name, seq in self._positions.items()
        )
        return b"event: %b\nid: %b%b\ndata: %b\n\n" % (
            what.encode(),
            self._incarnation.encode(),
            positions.encode(),
            _encode(data),
        )
