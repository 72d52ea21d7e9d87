"""`/api/sign-in`: the code of a link becomes a device. `/api/devices`: the devices of a user, and how they are signed out.

`/api/addresses`: addresses of what a browser fetches without the page's key.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from tenax.clock import rfc3339
from tenax.errors import InvalidInput, StoreDamaged, TenaxError
from tenax.journal.devices import Device
from tenax.web.api import Id, endpoint
from tenax.web.house import device_of, house_of, user_of
from tenax.web.links import ADDRESS_SECONDS, can_be_signed
from tenax.web.problems import problem
from tenax.web.signins import cookie_name, port_of

_BROWSERS: Final = {"Edg": "Edge", "OPR": "Opera", "Firefox": "Firefox", "FxiOS": "Firefox", "Chrome": "Chrome",
                    "CriOS": "Chrome", "Safari": "Safari"}  # fmt: skip
_SYSTEMS: Final = {"Android": "Android", "iPhone": "iPhone", "iPad": "iPad", "Windows": "Windows",
                   "Mac OS X": "macOS", "Linux": "Linux"}  # fmt: skip
_DAY_SECONDS: Final = 24 * 3600


class LinkCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code of a link. With `replace`, also if somebody else is signed in here.

    `known` is the user of this browser as the page remembers: another port of the host can delete the cookie.
    """

    code: Annotated[str, Meta(min_length=1, max_length=100)]
    known: Annotated[str, Meta(max_length=100)] = ""
    replace: bool = False


class SignIn(msgspec.Struct, frozen=True):
    """Who is signed in now, and the key of this device: no other answer tells it.

    Without a key nothing has happened: this browser is that of `instead_of`, who has to be asked first; or the link was used
    before, and `user` is signed in already.
    """

    user: str
    key: str = ""
    instead_of: str = ""


class Paths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a browser is to fetch by itself."""

    paths: Annotated[list[Annotated[str, Meta(max_length=400)]], Meta(max_length=100)]


class Addresses(msgspec.Struct, frozen=True):
    """Addresses in the order of the paths, and how long they are good."""

    addresses: list[str]
    seconds: int


class ShownDevice(msgspec.Struct, frozen=True):
    """A browser that is signed in. `current` is the one that asks."""

    id: str
    name: str
    signed_in_at: str
    seen_at: str
    expires_at: str
    current: bool


class DeviceList(msgspec.Struct, frozen=True):
    """The devices of one user, the last one seen first."""

    devices: list[ShownDevice]


@endpoint("POST", "/api/sign-in", public=True)
async def sign_in(call: Request, body: LinkCode) -> Response:
    """Sign this browser in with the code of a link. It gets a cookie, and the page a key; both are needed from then on."""
    links, signins = house_of(call).links, house_of(call).signins
    before = None
    # of a damaged row: a new link signs its browser in again
    with contextlib.suppress(StoreDamaged):
        before = await signins.device_of(call)
    user = links.user_of(body.code)
    others = {body.known, before.user if before is not None else ""} - {"", user}
    if user is not None and others and not body.replace:
        return _answer(SignIn(user, instead_of=others.pop()))
    with links.using(body.code) as used:
        if used is None:
            return _used(before)
        name = _name(call.headers.get("user-agent", ""))
        made = await asyncio.to_thread(signins.devices.add, used, name, port_of(call))
    if before is not None:
        # then it stays in the list, and its cookie is gone
        with contextlib.suppress(TenaxError):
            await signins.revoke(before.id, before.user)
    answer = _answer(SignIn(used, made.key))
    seconds = signins.devices.days * _DAY_SECONDS
    secure = call.scope["scheme"] == "https"
    answer.set_cookie(cookie_name(call), made.cookie, max_age=int(seconds), httponly=True, samesite="strict", secure=secure)  # fmt: skip
    return answer


@endpoint("POST", "/api/addresses")
async def sign_addresses(call: Request, body: Paths) -> Addresses:
    """Sign addresses of pictures and downloads for this device."""
    for path in body.paths:
        if not can_be_signed(path):
            raise InvalidInput(
                f"{path} has no signed address.",
                hint="Attachments and the export of the memory have.",
            )
    links, device = house_of(call).links, device_of(call)
    return Addresses(
        [links.sign(device.id, path) for path in body.paths], ADDRESS_SECONDS
    )


@endpoint("GET", "/api/devices")
async def list_devices(call: Request) -> DeviceList:
    """The browsers in which this user is signed in."""
    return await _listed(call)


@endpoint("DELETE", "/api/devices/{id}")
async def revoke_device(call: Request, id: Id) -> DeviceList:  # noqa: A002  (its name in the path)
    """Sign one browser out. Its open streams end."""
    await house_of(call).signins.revoke(id, user_of(call))
    return await _listed(call)


@endpoint("DELETE", "/api/devices", 204)
async def revoke_devices(call: Request) -> None:
    """Sign out every browser of this user, the one that asks included."""
    await house_of(call).signins.revoke_all(user_of(call))


async def _listed(call: Request) -> DeviceList:
    devices, current = house_of(call).signins.devices, device_of(call)
    found = await asyncio.to_thread(devices.all, user_of(call))
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
        ]
    )


def _used(before: Device | None) -> Response:
    """The answer to a link that is not good any more."""
    if before is not None:
        return _answer(SignIn(before.user))
    hint = "Run `tenax link` in a terminal, and open what it prints."
    return problem(
        403,
        "No such link",
        "This link was used, or is older than a quarter of an hour.",
        hint,
    )


def _answer(signed: SignIn) -> Response:
    return Response(msgspec.json.encode(signed), media_type="application/json")


def _name(agent: str) -> str:
    """A short name for what the browser says about itself."""
    browser = next(
        (name for mark, name in _BROWSERS.items() if f"{mark}/" in agent), ""
    )
    system = next((name for mark, name in _SYSTEMS.items() if mark in agent), "")
    if browser:
        return f"{browser} on {system}" if system else browser
    return re.sub(r"[^\x20-\x7e]", "", agent)[:60].strip() or "A browser"
