"""Who is signed in: the device of a request, and the streams that end when their device is revoked.

A request proves itself with the cookie of a device and with the key of the same device, in a header that only the page can
send. Pictures and downloads have a signed address instead of the header. A device that is known is read again after half a
second, because another process may have revoked it. While the store does not answer, known devices stay signed in.
Cookies that are not known are read by threads of their own, and only so many at a time: whoever makes up cookies while the
store is away takes no thread from anybody who is signed in.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenax.errors import StoreBusy, TenaxError
from tenax.journal.devices import Device, Devices
from tenax.web.links import Links
from tenax.web.problems import problem

__all__ = [
    "KEY_HEADER",
    "UNKNOWN_MAX",
    "Signins",
    "cookie_name",
    "not_signed_in",
    "port_of",
]

KEY_HEADER: Final = "Tenax-Key"
FRESH_SECONDS: Final = 0.5
STORE_SECONDS: Final = 0.5
"""How long the request of a known device waits for the store."""
_NOT_SIGNED_IN: Final = "This browser is not signed in."
_ENDED: Final = "The sign-in of this browser has ended: it was revoked, it is too old, or an earlier version of Tenax made it."
_NEW_LINK: Final = "Run `tenax link` in a terminal, and open what it prints."
_PORT: Final = re.compile(r":([0-9]+)$")
_KNOWN_MAX: Final = 1000
_READERS: Final = 4
"""How many threads read known devices again, and how many look for unknown cookies."""
UNKNOWN_MAX: Final = 32
"""How many unknown cookies may be looked for at once, those that wait for a thread included."""
_RETRY_SECONDS: Final = 60.0
_HOUR_US: Final = 3600 * 1_000_000


class _Known(msgspec.Struct, frozen=True):
    device: Device
    read_at: float


class Signins:
    """The devices of one server."""

    def __init__(self, devices: Devices, links: Links) -> None:
        self.devices = devices
        self.links = links
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, asyncio.Task[Device | None]] = {}
        self._unknown: set[str] = set()
        """The cookies that are read and were not known."""
        self._readers = ThreadPoolExecutor(_READERS, "tenax-devices")
        self._strangers = ThreadPoolExecutor(_READERS, "tenax-strangers")
        self._noting: dict[str, asyncio.Task[None]] = {}
        """The last note of each device that it was seen."""
        self._streams: dict[str, set[asyncio.Event]] = {}
        """What wakes the open streams of each device."""

    async def device_of(self, request: Request) -> Device | None:
        """Return the device of a request, or None if its cookie or key is missing or wrong."""
        cookie = request.cookies.get(cookie_name(request), "")
        device = await self._find(cookie) if cookie else None
        if device is None or not self._is_proved(request, device):
            return None
        noting = self._noting.get(device.id)
        if self.devices.now_us() - device.seen_at > _HOUR_US and (
            noting is None or noting.done()
        ):
            self._noting[device.id] = asyncio.create_task(self._note_seen(device.id))
        return device

    def _is_proved(self, request: Request, device: Device) -> bool:
        """Return whether the request has the key of this device, or an address that is signed for it."""
        key = request.headers.get(KEY_HEADER)
        if key is not None:
            return device.has_key(key, port_of(request))
        signature = request.query_params.get("signed", "")
        reads = request.method in {"GET", "HEAD"}
        return reads and self.links.is_signed(
            device.id, request.scope["path"], signature
        )

    async def revoke(self, id: str, user: str) -> None:  # noqa: A002  (the field's name)
        """Sign out one device of this user."""
        await asyncio.to_thread(self.devices.revoke, id, user)
        self._end({id})

    async def revoke_all(self, user: str) -> None:
        """Sign out all devices of a user and delete the user's unused links."""
        # The devices come first: a folder of codes that cannot be changed must keep nobody signed in.
        await asyncio.to_thread(self.devices.revoke_all, user)
        self._known = {
            cookie: known
            for cookie, known in self._known.items()
            if known.device.user != user
        }
        await self._end_revoked()
        await asyncio.to_thread(self.links.forget_codes, user)

    def close(self) -> None:
        """Read nothing more."""
        for pool in (self._readers, self._strangers):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- streams ---------------------------------------------------------------------------------------------

    def enter(self, id: str, hint: asyncio.Event) -> None:  # noqa: A002
        """Register an open stream. The server wakes the stream when its device is revoked."""
        self._streams.setdefault(id, set()).add(hint)

    def leave(self, id: str, hint: asyncio.Event) -> None:  # noqa: A002
        """Remove a stream that has ended."""
        hints = self._streams.get(id, set())
        hints.discard(hint)
        if not hints:
            self._streams.pop(id, None)

    def may_read(self, id: str, hint: asyncio.Event) -> bool:  # noqa: A002
        """Return whether the stream may continue."""
        return hint in self._streams.get(id, ())

    async def watch(self) -> None:
        """End the streams of devices that another process revoked, for as long as the server runs."""
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            await self._end_revoked()

    async def _end_revoked(self) -> None:
        streaming = set(self._streams)
        if not streaming:
            return
        try:
            ids = await asyncio.to_thread(self.devices.signed_in, streaming)
        except TenaxError:  # the store does not answer: `watch` asks it again
            return
        self._end(streaming - ids)

    def _end(self, ids: set[str]) -> None:
        self._known = {
            cookie: known
            for cookie, known in self._known.items()
            if known.device.id not in ids
        }
        for id in ids:  # noqa: A001
            for hint in self._streams.pop(id, set()):
                hint.set()

    # -- the store -------------------------------------------------------------------------------------------

    async def _find(self, cookie: str) -> Device | None:
        known = self._known.get(cookie)
        now = asyncio.get_running_loop().time()
        if known is not None and now - known.read_at < FRESH_SECONDS:
            return known.device
        reading = self._reading.get(cookie)
        if reading is None:  # several requests of one moment share one read
            if known is None:
                if len(self._unknown) >= UNKNOWN_MAX:
                    raise StoreBusy(
                        "Too many browsers wait to be recognised.",
                        hint="Try again in a moment.",
                    )
                self._unknown.add(cookie)
            reading = self._reading[cookie] = asyncio.create_task(self._read(cookie))
            reading.add_done_callback(lambda task: self._was_read(cookie, task))
        if known is None:
            return await asyncio.shield(reading)
        done, _ = await asyncio.wait({reading}, timeout=STORE_SECONDS)
        return (
            known.device
            if not done or reading.exception() is not None
            else reading.result()
        )

    async def _read(self, cookie: str) -> Device | None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        pool = self._strangers if cookie in self._unknown else self._readers
        device = await loop.run_in_executor(pool, self.devices.find, cookie)
        if device is None:
            self._known.pop(cookie, None)
            return None
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[cookie] = _Known(device, now)
        return device

    def _was_read(self, cookie: str, task: asyncio.Task[Device | None]) -> None:
        self._reading.pop(cookie, None)
        self._unknown.discard(cookie)
        if not task.cancelled():
            task.exception()  # whoever waited was told

    async def _note_seen(self, id: str) -> None:  # noqa: A002
        try:
            await asyncio.to_thread(self.devices.note_seen, id)
            # until then a known device has the time before
            await asyncio.sleep(FRESH_SECONDS)
        except TenaxError:  # it is noted with a later request
            await asyncio.sleep(_RETRY_SECONDS)


def cookie_name(request: Request) -> str:
    """The name of the cookie. Browsers keep the cookies of all ports of a host together."""
    port = _PORT.search(request.headers.get("host", ""))
    return f"tenax_{port[1] if port else 80}"


def port_of(request: Request) -> int:
    """Return the port on which this server listens. The Host header is not used."""
    server: tuple[str, int | None] | None = request.scope.get("server")
    return (server[1] if server is not None else None) or 0


def not_signed_in(request: Request) -> Response:
    """The answer to a request that has not proved which device sent it."""
    known = cookie_name(request) in request.cookies
    return problem(401, "Not signed in", _ENDED if known else _NOT_SIGNED_IN, _NEW_LINK)
