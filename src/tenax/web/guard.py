"""Who may ask: a device that is signed in, from this very page, under an address that is ours.

A page of another site can send requests here (CSRF) and a name that somebody else controls can be made to point here
(DNS rebinding). So an unsafe request must say that it comes from our own page, and the Host must be an address that
nobody can rebind: a number, `localhost`, or the name that the server was told to listen on.

The guard decides by the path of the scope, which is the path that is routed. `request.url` is put together with what the
client wrote into the Host header, and may have another path.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenax.errors import TenaxError
from tenax.web.connections import note_signed_in
from tenax.web.links import can_be_signed
from tenax.web.problems import answer_to, problem
from tenax.web.signins import Signins, not_signed_in

__all__ = ["Guard"]

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z_.-]+)(:[0-9]{1,5})?")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; worker-src 'self'; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """The gate before every endpoint. It puts the user and the device into the request's state."""

    def __init__(self, app: ASGIApp, *, signins: Signins, host: str, public: frozenset[str]) -> None:
        self._app = app
        self._signins = signins
        self._host = host
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        path: str = scope["path"]
        state = scope.setdefault("state", {})
        state["user"] = state["device"] = None
        refused = self._refused(request, path)
        if refused is None and path.startswith("/api/") and path not in self._public:
            refused = await self._sign_in(request, state)
            if state["user"] is not None:
                note_signed_in(scope, state["user"])

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if path.startswith("/api/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        if refused is not None:
            await refused(scope, receive, send_safely)
            return
        await self._app(scope, receive, send_safely)

    async def _sign_in(self, request: Request, state: dict[str, Any]) -> Response | None:
        """Put the device of this request into its state; or refuse it."""
        try:
            device = await self._signins.device_of(request)
        except TenaxError as error:
            return answer_to(error)
        if device is None:
            return not_signed_in(request)
        state["user"], state["device"] = device.user, device
        return None

    def _refused(self, request: Request, path: str) -> Response | None:
        headers = request.headers
        if not self._is_ours(headers.get("host", "")):
            hint = "Open it under its address, or set `serve.host` to this name."
            return problem(403, "Another host", "Tenax is not known under this name.", hint)
        if not (_comes_from_page(headers) if request.method not in _SAFE else _may_read(headers)):
            hint = "Use the page itself."
            return problem(403, "Another site", "This request does not come from the page.", hint)
        # An answer may show a picture from here; what does something is for scripts and people, not for pictures.
        fetched = headers.get("sec-fetch-dest", "empty")
        if fetched == "image" and can_be_signed(path):
            return None
        if path.startswith("/api/") and fetched not in {"empty", "document"}:
            return problem(403, "No picture", "There is no picture here.", "Use the page itself.")
        return None

    def _is_ours(self, host: str) -> bool:
        if not _HOST.fullmatch(host):
            return False
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {"localhost", self._host.lower()}
        return True


def _comes_from_page(headers: Headers) -> bool:
    """Whether the browser says that our own page sends this. A browser that says nothing is not believed."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return False
    # The scheme is left out: a proxy may speak https to the browser and http to us.
    if origin is not None and origin.partition("://")[2] != headers["host"]:
        return False
    return site in {None, "same-origin"}


def _may_read(headers: Headers) -> bool:
    """Whether this is no picture, script or frame of another site."""
    return headers.get("sec-fetch-site", "none") in {"same-origin", "none"} or _navigates(headers)


def _navigates(headers: Headers) -> bool:
    """Whether a person follows a link to here. What that opens does nothing by itself."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
