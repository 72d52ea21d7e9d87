"""The guard of every request: only signed-in devices, only from the Tenax page, only under an address of the server.

A page of another site can send requests here (CSRF), and a foreign host name can be made to point here (DNS rebinding).
So an unsafe request must come from the Tenax page, according to its headers. The Host must be the address of the
listening socket, the configured name, or the public address (`serve.url`). Under the public address, the Origin must be
the public address as well. The scheme and the path of the public address apply whatever a proxy forwards.

`localhost` is not accepted: a browser tries [::1] first, and another program listening there on the same port would get
the secrets of the name. The guard redirects a document under `localhost`, or under another form of the address.

Requests of programs below `HOOKS` pass: a program has no browser, and reaches Tenax under the name of a proxy.

The guard decides by the path of the scope, because the routing uses the same path. `request.url` is built from the
client's Host header, and may have another path.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenax.channels.platforms import HOOKS
from tenax.errors import TenaxError
from tenax.web.address import PublicAddress, path_of
from tenax.web.connections import note_signed_in
from tenax.web.links import may_be_shown
from tenax.web.problems import answer_to, problem
from tenax.web.signins import Signins, not_signed_in

__all__ = ["Guard"]

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z_.-]+)(:[0-9]{1,5})?")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PROXY: Final = "A proxy must forward the `Host` header of the browser unchanged."
_PATH_CHARACTERS: Final = "/:@!$&'()*+,;=~"
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
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
    """The gate before every endpoint. Stores the user and the device in the request's state."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        signins: Signins,
        host: str,
        public: frozenset[str],
        proxied: bool = False,
        url: str = "",
    ) -> None:
        self._app = app
        self._signins = signins
        self._host = host.lower()
        self._public = public
        self._proxied = proxied
        """Whether a proxy without a public address is configured. Such a proxy may have any address."""
        self._public_address = PublicAddress.of(url) if url else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = self._public_address_of(scope)
        if address is not None:
            public = {"scheme": address.scheme, "root_path": address.root_path}
            scope = {**scope, **public}
        request = Request(scope)
        path = path_of(scope)
        state = scope.setdefault("state", {})
        state["user"] = state["device"] = None
        is_hook = path.startswith(HOOKS)
        refused = None if is_hook else self._refused(request, path, address)
        is_open = is_hook or path in self._public
        if refused is None and path.startswith("/api/") and not is_open:
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

    async def _sign_in(
        self, request: Request, state: dict[str, Any]
    ) -> Response | None:
        """Store the device of the request in `state`, or return the refusal."""
        try:
            device = await self._signins.device_of(request)
        except TenaxError as error:
            return answer_to(error)
        if device is None:
            return not_signed_in(request)
        state["user"], state["device"] = device.user, device
        return None

    def _public_address_of(self, scope: Scope) -> PublicAddress | None:
        """Return the public address if the request names it as its host."""
        address = self._public_address
        if address is None:
            return None
        host = Headers(scope=scope).get("host", "")
        return address if address.is_in(host) else None

    def _refused(
        self, request: Request, path: str, address: PublicAddress | None
    ) -> Response | None:
        headers = request.headers
        if address is None:
            refused = self._refused_host(request, path)
        else:
            refused = _refused_path(request.scope["path"], address.root_path)
        if refused is not None:
            return refused
        if not (
            _comes_from_page(headers, address)
            if request.method not in _SAFE
            else _may_read(headers)
        ):
            hint = f"Use the page itself. {_PROXY}"
            return problem(
                403,
                "Another site",
                "This request does not come from the Tenax page.",
                hint,
            )
        # The page shows pictures and framed files from here. Paths with an effect are for scripts and people, not for
        # pictures.
        fetched = headers.get("sec-fetch-dest", "empty")
        if may_be_shown(path, fetched):
            return None
        if path.startswith("/api/") and fetched not in {"empty", "document"}:
            return problem(
                403,
                "Not a picture",
                "This address is not a picture.",
                "Use the page itself.",
            )
        return None

    def _refused_host(self, request: Request, path: str) -> Response | None:
        """Refuse a foreign Host, or redirect a document to the server's own address."""
        host = request.headers.get("host", "")
        name = _name_in(host)
        address = self._address(request)
        if name is not None and self._is_ours(name, address):
            return None
        port = host.rpartition(":")[2] if re.search(r":[0-9]+$", host) else ""
        own_host = (f"[{address}]" if ":" in str(address) else str(address)) + (
            f":{port}" if port else ""
        )
        is_local = address is not None and address.is_loopback
        if (
            name is not None
            and is_local
            and _is_alias(name)
            and _opens_document(request, path)
        ):
            query = request.scope["query_string"].decode("ascii", "replace")
            to = f"//{own_host}{quote(path, safe=_PATH_CHARACTERS)}" + (
                f"?{query}" if query else ""
            )
            return RedirectResponse(to, headers={"cache-control": "no-store"})
        detail = "The `Host` header of this request does not name this server."
        hint = f"Open http://{own_host}/ instead, or set `serve.url` to the public address."
        return problem(403, "Another host", detail, f"{hint} {_PROXY}")

    def _address(self, request: Request) -> _Address | None:
        """Return the address of the listening socket. For a server on every address, return the loopback address."""
        if _is_every_address(self._host):
            return ipaddress.ip_address("::1" if ":" in self._host else "127.0.0.1")
        server = request.scope.get("server") or ("",)
        try:
            return _plain(ipaddress.ip_address(server[0]))
        except ValueError:
            return None

    def _is_ours(self, name: str, address: _Address | None) -> bool:
        if _is_alias(name):
            return False
        try:
            number = ipaddress.ip_address(name)
        except ValueError:
            return name == self._host
        return number == address or self._proxied or _is_every_address(self._host)


def _name_in(host: str) -> str | None:
    """Return the name or the address in a Host header, or `None` if the header is malformed."""
    if not _HOST.fullmatch(host):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_alias(name: str) -> bool:
    """Return whether the name means the local machine, but not exactly the address of the listening socket."""
    try:
        number = ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return number.is_unspecified or _plain(number) != number


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _plain(address: _Address) -> _Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 address; any other address stays unchanged."""
    return getattr(address, "ipv4_mapped", None) or address


def _opens_document(request: Request, path: str) -> bool:
    is_document = request.headers.get("sec-fetch-dest", "document") == "document"
    return (
        is_document
        and request.method in {"GET", "HEAD"}
        and not path.startswith("/api/")
    )


def _refused_path(path: str, root_path: str) -> Response | None:
    """Refuse a path outside the public address. Without the slash at its end, the public address is redirected."""
    if path == root_path:
        return RedirectResponse(f"{root_path}/", headers={"cache-control": "no-store"})
    if path.startswith(f"{root_path}/"):
        return None
    return problem(
        404,
        "Not found",
        f"The page is at {root_path}/.",
        "A proxy must forward the path of the browser unchanged.",
    )


def _comes_from_page(headers: Headers, address: PublicAddress | None) -> bool:
    """Return whether the browser names the Tenax page as the sender.

    A browser without these headers is not believed.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return False
    if origin is not None and address is not None:
        is_own = origin == address.origin
    elif origin is not None:
        # The scheme is unknown: a proxy may speak https to the browser and http to Tenax.
        is_own = origin.partition("://")[2] == headers["host"]
    else:
        is_own = True
    if not is_own:
        return False
    return site in {None, "same-origin"}


def _may_read(headers: Headers) -> bool:
    """Return whether the request is no picture, script or frame of another site."""
    return headers.get("sec-fetch-site", "none") in {
        "same-origin",
        "none",
    } or _navigates(headers)


def _navigates(headers: Headers) -> bool:
    """Return whether a person follows a link to the page. Opening the page has no effect by itself."""
    return (
        headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
