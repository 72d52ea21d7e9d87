"""`/api/sign-in`: exchange the code of a link for a device. `/api/devices`: list and sign out the devices of a user.

`/api/addresses`: signed URLs for files fetched by a browser without the page's key.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from tenax.clock import rfc3339
from tenax.errors import InvalidInput, StoreDamaged, TenaxError
from tenax.journal.devices import Device
from tenax.web.address import base_of
from tenax.web.api import Id, RequestBody, ResponseBody, endpoint
from tenax.web.links import ADDRESS_SECONDS, can_be_signed
from tenax.web.problems import problem
from tenax.web.server_state import device_of, state_of, user_of
from tenax.web.signins import cookie_name, port_of

_BROWSERS: Final = {"Edg": "Edge", "OPR": "Opera", "Firefox": "Firefox", "FxiOS": "Firefox", "Chrome": "Chrome",
                    "CriOS": "Chrome", "Safari": "Safari"}  # fmt: skip
_SYSTEMS: Final = {"Android": "Android", "iPhone": "iPhone", "iPad": "iPad", "Windows": "Windows",
                   "Mac OS X": "macOS", "Linux": "Linux"}  # fmt: skip
_V6: Final = 6
_ELSEWHERE: Final = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Addresses of no machine, which are reserved for documentation, by version of IP."""
_DAY_SECONDS: Final = 24 * 3600
_ADDRESS_CHARS_MAX: Final = 16_000
"""A path of a file may have 4,096 characters, and a character may need twelve in a URL."""


class LinkCode(RequestBody):
    """The code of a link. `replace` signs in even if another user is signed in here.

    `known` is the user of the browser as remembered by the page: another port of the host can delete the cookie.
    """

    code: Annotated[str, Meta(min_length=1, max_length=100)]
    known: Annotated[str, Meta(max_length=100)] = ""
    replace: bool = False


class SignIn(ResponseBody):
    """The signed-in user, and the key of the device. No other response contains the key.

    Without a key nothing has changed: either the browser belongs to `instead_of`, and the person has to confirm; or the
    browser used the link before, and `user` is signed in already.
    """

    user: str
    key: str = ""
    instead_of: str = ""


class Paths(RequestBody):
    """The paths to be fetched by the browser itself."""

    paths: Annotated[
        list[Annotated[str, Meta(max_length=_ADDRESS_CHARS_MAX)]], Meta(max_length=100)
    ]


class Addresses(ResponseBody):
    """Signed URLs in the order of the paths, and their validity in seconds."""

    addresses: list[str]
    seconds: int


class ShownDevice(ResponseBody):
    """A signed-in browser. `current` marks the sender of the request."""

    id: str
    name: str
    signed_in_at: str
    seen_at: str
    expires_at: str
    current: bool


class DeviceList(ResponseBody):
    """The devices of a user, the most recently used first."""

    devices: list[ShownDevice]
    address: str
    """The URL of the server for other machines. Empty if the server listens only on its own machine."""


class NewLink(ResponseBody):
    """The code of a new link. It is valid once, for 15 minutes."""

    code: str


@endpoint("POST", "/api/sign-in", public=True)
async def sign_in(call: Request, body: LinkCode) -> Response:
    """Sign this browser in with the code of a link. Later requests need the cookie and the key of the response."""
    links, signins = state_of(call).links, state_of(call).signins
    before = None
    # A new link also replaces a device with a damaged row.
    with contextlib.suppress(StoreDamaged):
        before = await signins.device_of(call)
    user = links.user_of(body.code)
    others = {body.known, before.user if before is not None else ""} - {"", user}
    if user is not None and others and not body.replace:
        return _encode_sign_in(SignIn(user, instead_of=others.pop()))
    with links.using(body.code) as used:
        if used is None:
            return _used(before)
        name = _name(call.headers.get("user-agent", ""))
        made = await signins.threads.run(
            partial(signins.devices.add, used, name, port_of(call))
        )
    if before is not None:
        # If the call fails, the old device stays in the list, but its cookie is replaced.
        with contextlib.suppress(TenaxError):
            await signins.revoke(before.id, before.user)
    answer = _encode_sign_in(SignIn(used, made.key))
    seconds = signins.devices.days * _DAY_SECONDS
    secure = call.scope["scheme"] == "https"
    answer.set_cookie(
        cookie_name(call),
        made.cookie,
        max_age=int(seconds),
        path=base_of(call.scope),
        httponly=True,
        samesite="strict",
        secure=secure,
    )
    return answer


@endpoint("POST", "/api/addresses")
async def sign_addresses(call: Request, body: Paths) -> Addresses:
    """Sign URLs of pictures and downloads for the device."""
    for path in body.paths:
        plain = path.isascii() and path.isprintable() and "signed=" not in path
        if not plain or not can_be_signed(path.partition("?")[0]):
            raise InvalidInput(
                f"{path[:200]} cannot be signed.",
                hint="Only attachments, files and exports can.",
            )
    links, device = state_of(call).links, device_of(call)
    return Addresses(
        [links.sign(device.id, path) for path in body.paths], ADDRESS_SECONDS
    )


@endpoint("GET", "/api/devices")
async def list_devices(call: Request) -> DeviceList:
    """List the signed-in browsers of the user."""
    return await _listed(call)


@endpoint("POST", "/api/devices/links", 201)
async def make_link(call: Request) -> NewLink:
    """Make a link that signs another browser of the user in."""
    links, signins = state_of(call).links, state_of(call).signins
    code = await signins.threads.run(partial(links.make_code, user_of(call)))
    return NewLink(code)


@endpoint("DELETE", "/api/devices/{id}")
async def revoke_device(call: Request, id: Id) -> DeviceList:  # noqa: A002  (its name in the path)
    """Sign out a browser. Its open streams end."""
    await state_of(call).signins.revoke(id, user_of(call))
    return await _listed(call)


@endpoint("DELETE", "/api/devices", 204)
async def revoke_devices(call: Request) -> None:
    """Sign out every browser of the user, including the sender of the request."""
    await state_of(call).signins.revoke_all(user_of(call))


async def _listed(call: Request) -> DeviceList:
    signins, current = state_of(call).signins, device_of(call)
    devices = signins.devices
    found = await signins.threads.run(partial(devices.all, user_of(call)))
    serve = state_of(call).config.serve
    return DeviceList(
        [
            ShownDevice(
                device.id,
                device.name,
                rfc3339(device.made_at),
                rfc3339(device.seen_at),
                rfc3339(devices.expires_at(device)),
                device.id == current.id,
            )
            for device in found
        ],
        address=serve.url or _address_for_others(serve.host, port_of(call)),
    )


def _address_for_others(host: str, port: int) -> str:
    """Return the URL of a server on this host for other machines, or an empty text if only this machine reaches it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        is_local = host == "localhost" or host.endswith(".localhost")
        return "" if is_local else f"http://{host}:{port}"
    if address.is_unspecified:
        found = _own_address(address.version)
        if found is None:
            return ""
        address = found
    if address.is_loopback:
        return ""
    return f"http://{f'[{address}]' if address.version == _V6 else address}:{port}"


def _own_address(version: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of this machine in its network, or `None` without a network."""
    family = socket.AF_INET6 if version == _V6 else socket.AF_INET
    try:
        # A datagram socket sends nothing when it connects, but the system chooses the address to send from.
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.connect((_ELSEWHERE[version], 9))
            return ipaddress.ip_address(trial.getsockname()[0])
    except OSError:
        return None


def _used(before: Device | None) -> Response:
    """Return the response for an invalid link."""
    if before is not None:
        return _encode_sign_in(SignIn(before.user))
    hint = "Run `tenax link` in a terminal and open the link that it prints."
    return problem(
        403,
        "Invalid link",
        "This link was used before, or is older than 15 minutes.",
        hint,
    )


def _encode_sign_in(signed: SignIn) -> Response:
    return Response(msgspec.json.encode(signed), media_type="application/json")


def _name(agent: str) -> str:
    """Return a short name for a User-Agent header."""
    browser = next(
        (name for mark, name in _BROWSERS.items() if f"{mark}/" in agent), ""
    )
    system = next((name for mark, name in _SYSTEMS.items() if mark in agent), "")
    if browser:
        return f"{browser} on {system}" if system else browser
    return re.sub(r"[^\x20-\x7e]", "", agent)[:60].strip() or "A browser"
