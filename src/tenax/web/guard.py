"""Who may ask: the cookie of a link, from this very page, under an address that is ours.

A page of another site can send requests here (CSRF) and a name that somebody else controls can be made to point here
(DNS rebinding). So an unsafe request must say that it comes from our own page, and the Host must be an address that
nobody can rebind: a number, `localhost`, or the name that the server was told to listen on.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenax.web.connections import note_signed_in
from tenax.web.links import Links
from tenax.web.problems import problem

__all__ = ["Guard"]

_ATTACHED: Final = re.compile(r"/api/conversations/[^/]+/attachments/[0-9a-f]{64}")
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
    """The gate before every endpoint. It puts the user into the request's state."""

    def __init__(self, app: ASGIApp, *, links: Links, host: str, public: frozenset[str]) -> None:
        self._app = app
        self._links = links
        self._host = host
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refused = self._refused(request)
        path = request.url.path
        if refused is None:
            user = self._links.user(request.cookies.get(self._links.cookie(request.url.port or 80), ""))
            scope.setdefault("state", {})["user"] = user
            if user is not None:
                note_signed_in(scope)
            if user is None and path.startswith("/api/") and path not in self._public:
                refused = (
                    401,
                    "No cookie",
                    "This page needs a link.",
                    "Run `tenax link`, and open what it prints.",
                )

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if path.startswith("/api/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        if refused is not None:
            await problem(*refused)(scope, receive, send_safely)
            return
        await self._app(scope, receive, send_safely)

    def _refused(self, request: Request) -> tuple[int, str, str, str] | None:
        headers = request.headers
        if not self._is_ours(headers.get("host", "")):
            return (403, "Another host", "Tenax is not known under this name.",
                    "Open it under its address, or set `serve.host` to this name.")  # fmt: skip
        site = headers.get("sec-fetch-site", "same-origin")
        foreign = (403, "Another site", "This request comes from another site.", "Use the page itself.")
        if request.method not in _SAFE:
            origin = headers.get("origin")
            if site != "same-origin" or (
                origin is not None and urlsplit(origin).netloc != headers.get("host")
            ):
                return foreign
        elif site not in {"same-origin", "none"} and not _navigates(headers):
            return foreign
        # An answer may show a picture from here; what does something is for scripts and people, not for pictures.
        fetched, path = headers.get("sec-fetch-dest", "empty"), request.url.path
        if fetched == "image" and _ATTACHED.fullmatch(path):
            return None
        if path.startswith(("/api/", "/tour")) and fetched not in {"empty", "document"}:
            return (403, "No picture", "There is no picture here.", "Use the page itself.")
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {"localhost", self._host.lower()}
        return True


def _navigates(headers: Headers) -> bool:
    """Whether a person follows a link to here. What that opens does nothing by itself."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
