"""`/api/events`: one stream of events for a browser, whatever it watches.

The cursor says all that the page holds: `<incarnation>~<conversation>:<seq>~...`. It is the id of every frame, so a
reconnect and a first connect are the same thing. What the page holds too little or too much of comes as a snapshot.
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

from tenax.clock import rfc3339
from tenax.errors import Gone, InvalidInput, NoSuchConversation
from tenax.journal import Journal
from tenax.runtime.feed import Live
from tenax.runtime.runtime import Runtime
from tenax.web.api import endpoint
from tenax.web.conversations import Rows
from tenax.web.house import House, device_of, house_of

WATCHED_MAX: Final = 32
BEAT_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 2.0
"""While the store is incomplete: how soon a page learns that this was accepted."""
_encode: Final = msgspec.json.Encoder().encode
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SEQ_DIGITS_MAX: Final = 10


class Lacks(msgspec.Struct, frozen=True):
    """What the store had stored and lacks now, of this user's. It is read-only."""

    messages: int
    events: int
    conversations: int
    to: str
    """When it was last written to: it was put back to then. Empty if it holds nothing."""


def _lacks(journal: Journal) -> Lacks | None:
    if not journal.store.missing:
        return None
    own = journal.missing
    return Lacks(
        messages=sum(each.messages for each in own),
        events=sum(max(1, each.upto - each.have) for each in own),
        conversations=len(own),
        to=rfc3339(journal.store.put_back_to) if journal.store.put_back_to else "",
    )


@endpoint("GET", "/api/events")
async def events(call: Request, runtime: Runtime, at: str = "-") -> Response:
    """What happens, as it happens: server-sent events from this cursor on."""
    feed = _Feed(
        house_of(call),
        device_of(call).id,
        runtime,
        *_parsed(call.headers.get("last-event-id") or at),
    )
    return StreamingResponse(
        feed.frames(),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


def _parsed(cursor: str) -> tuple[str, dict[str, int | None]]:
    incarnation, *watched = cursor.split("~")
    places: dict[str, int | None] = {}
    for each in watched:
        name, _, seq = each.rpartition(":")
        if not _ID.fullmatch(name) or not (
            seq == "" or (seq.isdecimal() and len(seq) <= _SEQ_DIGITS_MAX)
        ):
            raise InvalidInput(
                "This is no cursor of ours.", hint="Begin with `-~CONVERSATION:`."
            )
        places[name] = int(seq) if seq else None
    if len(places) > WATCHED_MAX:
        raise InvalidInput(f"One stream can watch {WATCHED_MAX} conversations.")
    return incarnation, places


class _Feed:
    """One browser's stream."""

    def __init__(
        self,
        house: House,
        device: str,
        runtime: Runtime,
        incarnation: str,
        places: dict[str, int | None],
    ) -> None:
        self._house = house
        self._device = device
        self._runtime = runtime
        self._incarnation = incarnation
        self._places = places
        self._lives: dict[str, Live] = {}
        self._held: dict[str, int] = {}
        self._listed: int | None = None
        self._lacks: Lacks | None = None
        self._hint = asyncio.Event()

    async def frames(self) -> AsyncIterator[bytes]:
        task = asyncio.current_task()
        assert task is not None
        self._house.streams[task] = self._hint
        self._house.signins.enter(self._device, self._hint)
        try:
            incarnation = self._runtime.journal.incarnation
            yield self._frame(
                "hello",
                {"incarnation": incarnation, "version": metadata.version("tenax")},
            )
            await self._runtime.list.enter(self._hint)
            async for frame in self._enter():
                yield frame
            while not self._house.stopping and self._house.signins.may_read(
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
            self._house.streams.pop(task, None)
            self._house.signins.leave(self._device, self._hint)
            self._leave()

    async def _enter(self) -> AsyncIterator[bytes]:
        for name in list(self._places):
            try:
                live = await self._runtime.live(name, self._hint)
            except (Gone, NoSuchConversation):
                del self._places[name]
                yield self._frame("gone", {"conversation": name})
                continue
            self._lives[name] = live

    def _leave(self) -> None:
        self._runtime.list.leave(self._hint)
        for live in self._lives.values():
            self._runtime.leave(live, self._hint)
        self._lives.clear()

    def _news(self) -> list[bytes]:
        found: list[bytes] = []
        lacks = _lacks(self._runtime.journal.journal)
        if lacks != self._lacks:
            self._lacks = lacks
            found.append(self._frame("store", {"lacks": lacks}))
        # numbers of another life say nothing here
        if self._incarnation != self._runtime.journal.incarnation:
            self._incarnation = self._runtime.journal.incarnation
            self._places = dict.fromkeys(self._places)
        moves = self._runtime.list.since(self._listed)
        self._listed = self._runtime.list.number
        found += [self._frame("list", each) for each in moves]
        for name, live in list(self._lives.items()):
            found += self._moved(name, live)
        return found

    def _moved(self, name: str, live: Live) -> list[bytes]:
        if live.gone:
            self._runtime.leave(self._lives.pop(name), self._hint)
            self._places.pop(name)
            return [self._frame("gone", {"conversation": name})]
        # One that takes its time, or cannot be read, holds up no other.
        if not live.ready or not live.is_of(self._incarnation):
            return []
        found: list[bytes] = []
        was, self._places[name] = self._places[name], live.at
        changes = live.since(was, self._incarnation)
        if changes is None:
            page = msgspec.structs.asdict(Rows.of(live.snapshot()))
            found.append(
                self._frame("rows", {"conversation": name, "at": live.at, **page})
            )
        elif changes:
            found.append(
                self._frame(
                    "changes", {"conversation": name, "at": live.at, "changes": changes}
                )
            )
        if live.held != self._held.get(name, 0):
            self._held[name] = live.held
            found.append(
                self._frame("held", {"conversation": name, "bytes": live.held})
            )
        return found

    def _frame(self, what: str, data: Any) -> bytes:  # noqa: ANN401  (whatever is told)
        places = "".join(
            f"~{name}:{'' if seq is None else seq}"
            for name, seq in self._places.items()
        )
        return b"event: %b\nid: %b%b\ndata: %b\n\n" % (
            what.encode(),
            self._incarnation.encode(),
            places.encode(),
            _encode(data),
        )
