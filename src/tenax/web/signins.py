"""The signed-in devices: the device of a request, and the streams to end when a device is revoked.

A request needs the cookie of a device and the key of the same device, in a header that only the page can send. Pictures
and downloads have a signed URL instead of the header. A known device is read again after half a second, because another
process may have revoked the device. While the store does not answer, known devices stay signed in. Separate threads
look for unknown cookies, and the number of parallel look-ups is limited. So a client inventing cookies while the store
is away takes no thread from a signed-in user.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenax.clock import Timing
from tenax.concurrency import ThreadPool, run_in_own_thread
from tenax.errors import StoreBusy, TenaxError
from tenax.journal.devices import Device, Devices
from tenax.web.address import path_of
from tenax.web.links import Links, unsigned
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
_NOT_SIGNED_IN: Final = "This browser is not signed in."
_ENDED: Final = "This browser was signed out, or its sign-in has expired."
_NEW_LINK: Final = "Run `tenax link` in a terminal and open the link that it prints."
_PORT: Final = re.compile(r":([0-9]+)$")
_KNOWN_MAX: Final = 1000
_THREADS: Final = 4
"""The size of a thread pool. The pools: re-reading known devices, looking for unknown cookies, and other calls."""
UNKNOWN_MAX: Final = 32
"""The most parallel look-ups of unknown cookies, including look-ups waiting for a thread."""
_RETRY_SECONDS: Final = 60.0
_HOUR_US: Final = 3600 * 1_000_000


class _Known(msgspec.Struct, frozen=True):
    device: Device
    read_at: float


class Signins:
    """The devices of a server."""

    def __init__(
        self, devices: Devices, links: Links, timing: Timing = Timing()
    ) -> None:
        self.devices = devices
        self.links = links
        self._timing = timing
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, asyncio.Task[Device | None]] = {}
        self.unknown: set[str] = set()
        """The unknown cookies of running look-ups."""
        self.threads = ThreadPool(_THREADS, "tenax-web")
        """Threads for other calls of the store."""
        self._readers = ThreadPool(_THREADS, "tenax-devices")
        self._strangers = ThreadPool(_THREADS, "tenax-strangers")
        self._noting: dict[str, asyncio.Task[None]] = {}
        """By device, the task storing the time of the last request."""
        self._streams: dict[str, set[asyncio.Event]] = {}
        """By device, the events to wake the open streams."""

    async def device_of(self, request: Request) -> Device | None:
        """Return the device of a request, or `None` if the cookie or the key is missing or wrong."""
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
        """Return whether the request has the key of the device, or a URL signed for the device."""
        key = request.headers.get(KEY_HEADER)
        if key is not None:
            return device.has_key(key, port_of(request))
        # The query is compared as it was sent: the signature covers every parameter.
        query = request.scope["query_string"].decode("ascii", "replace")
        parameters, signature = unsigned(query)
        path = path_of(request.scope)
        address = f"{path}?{parameters}" if parameters else path
        reads = request.method in {"GET", "HEAD"}
        return reads and self.links.is_signed(device.id, address, signature)

    async def revoke(self, id: str, user: str) -> None:  # noqa: A002  (the field's name)
        """Sign out a device of a user."""
        await self.threads.run(partial(self.devices.revoke, id, user))
        self._sign_out_devices({id})

    async def revoke_all(self, user: str) -> None:
        """Sign out every device of a user and delete the user's unused links."""
        # Revoke the devices first: a failure to delete the codes must not keep a device signed in.
        await self.threads.run(partial(self.devices.revoke_all, user))
        self._known = {
            cookie: known
            for cookie, known in self._known.items()
            if known.device.user != user
        }
        await self._end_revoked()
        await run_in_own_thread(partial(self.links.forget_codes, user))

    def close(self) -> None:
        """Let the threads end."""
        for pool in (self._readers, self._strangers, self.threads):
            pool.stop()

    # -- streams ---------------------------------------------------------------------------------------------

    def enter(self, id: str, hint: asyncio.Event) -> None:  # noqa: A002
        """Register an open stream. The server wakes the stream when the device is revoked."""
        self._streams.setdefault(id, set()).add(hint)

    def leave(self, id: str, hint: asyncio.Event) -> None:  # noqa: A002
        """Remove an ended stream."""
        hints = self._streams.get(id, set())
        hints.discard(hint)
        if not hints:
            self._streams.pop(id, None)

    def may_read(self, id: str, hint: asyncio.Event) -> bool:  # noqa: A002
        """Return whether the stream may continue."""
        return hint in self._streams.get(id, ())

    async def watch(self) -> None:
        """End the streams of devices revoked by another process, as long as the server runs."""
        while True:
            await asyncio.sleep(self._timing.device_fresh_seconds)
            await self._end_revoked()

    async def _end_revoked(self) -> None:
        streaming = set(self._streams)
        if not streaming:
            return
        try:
            ids = await self.threads.run(partial(self.devices.signed_in, streaming))
        except TenaxError:
            # The store does not answer. `watch` asks again.
            return
        self._sign_out_devices(streaming - ids)

    def _sign_out_devices(self, ids: set[str]) -> None:
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
        seconds = self._timing.device_fresh_seconds
        if known is not None and now - known.read_at < seconds:
            return known.device
        reading = self._reading.get(cookie)
        # Several requests at the same moment share a read.
        if reading is None:
            if known is None:
                if len(self.unknown) >= UNKNOWN_MAX:
                    raise StoreBusy(
                        "Too many browsers are signing in.",
                        hint="Try again in a moment.",
                    )
                self.unknown.add(cookie)
            reading = self._reading[cookie] = asyncio.create_task(
                self._read_device(cookie)
            )
            reading.add_done_callback(lambda task: self._was_read(cookie, task))
        if known is None:
            return await asyncio.shield(reading)
        done, _ = await asyncio.wait(
            {reading}, timeout=self._timing.device_store_seconds
        )
        return (
            known.device
            if not done or reading.exception() is not None
            else reading.result()
        )

    async def _read_device(self, cookie: str) -> Device | None:
        now = asyncio.get_running_loop().time()
        pool = self._strangers if cookie in self.unknown else self._readers
        device = await pool.run(partial(self.devices.find, cookie))
        if device is None:
            self._known.pop(cookie, None)
            return None
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[cookie] = _Known(device, now)
        return device

    def _was_read(self, cookie: str, task: asyncio.Task[Device | None]) -> None:
        self._reading.pop(cookie, None)
        self.unknown.discard(cookie)
        if not task.cancelled():
            # Mark the exception as retrieved. The waiting requests got the exception already.
            task.exception()

    async def _note_seen(self, id: str) -> None:  # noqa: A002
        try:
            await self.threads.run(partial(self.devices.note_seen, id))
            # Until the next read, a known device still has the old time.
            await asyncio.sleep(self._timing.device_fresh_seconds)
        except TenaxError:
            # A later request stores the time.
            await asyncio.sleep(_RETRY_SECONDS)


def cookie_name(request: Request) -> str:
    """Return the name of the cookie.

    The port is part of the name, because browsers share cookies between the ports of a host.
    """
    port = _PORT.search(request.headers.get("host", ""))
    return f"tenax_{port[1] if port else 80}"


def port_of(request: Request) -> int:
    """Return the port of the listening socket. The Host header is not used."""
    server: tuple[str, int | None] | None = request.scope.get("server")
    return (server[1] if server is not None else None) or 0


def not_signed_in(request: Request) -> Response:
    """Return the response to a request without proof of its device."""
    known = cookie_name(request) in request.cookies
    return problem(401, "Not signed in", _ENDED if known else _NOT_SIGNED_IN, _NEW_LINK)
