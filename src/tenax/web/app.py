"""The ASGI application: the endpoints behind the guard, and the files of the page."""

from __future__ import annotations

import os
from importlib import metadata
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from tenax.web import (
    attachments,
    changes,
    channels,
    conversations,
    devices,
    export,
    files,
    findings,
    imports,
    mcp,
    memory,
    preferences,
    projects,
    rules,
    schedules,
    search,
    settings,
    setup,
    stream,
    tour,
    usage,
    verify,
)
from tenax.web.address import base_of, path_of
from tenax.web.api import Endpoint, ResponseBody, endpoint, openapi
from tenax.web.frames import get_frame
from tenax.web.guard import Guard
from tenax.web.hooks import HOOK_ROUTE
from tenax.web.problems import problem
from tenax.web.server_state import ServerState, state_of

__all__ = ["PAGE_ROUTES", "application", "endpoints"]

PAGE: Final = Path(__file__).with_name("page")
_RESOURCES = (
    attachments,
    changes,
    channels,
    conversations,
    devices,
    export,
    files,
    findings,
    imports,
    mcp,
    memory,
    preferences,
    projects,
    rules,
    schedules,
    search,
    settings,
    setup,
    stream,
    tour,
    usage,
    verify,
)
_NO_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Tenax</title>
<main><h1>The page is not built</h1><p>Run <code>make page</code> in the repository, and reload.</p></main></html>"""


def endpoints() -> list[Endpoint]:
    """Return every endpoint."""
    namespaces = [globals(), *(vars(resource) for resource in _RESOURCES)]
    return [
        value
        for namespace in namespaces
        for value in namespace.values()
        if isinstance(value, Endpoint)
    ]


class Health(ResponseBody):
    """The health of the server."""

    ok: bool
    version: str


@endpoint("GET", "/api/health", public=True)
async def health() -> Health:
    """Check that the server responds."""
    return Health(ok=True, version=metadata.version("tenax"))


async def describe(_call: Request) -> Response:
    """Describe the API as OpenAPI."""
    return JSONResponse(openapi(endpoints()))


async def page(call: Request) -> Response:
    """Return the page. The URL names the conversation, so the addresses of the files must not be relative."""
    html = await _read_file(call, PAGE / "index.html")
    if html is None:
        return HTMLResponse(_NO_PAGE, 503)
    html = html.replace(b'"./', f'"{base_of(call.scope)}'.encode())
    return HTMLResponse(html, headers={"cache-control": "no-cache"})


async def asset(call: Request) -> Response:
    """Return a file of the page. The name contains a hash of the content, so browsers cache the file forever."""
    found = await _file_response(call, PAGE / "assets" / call.path_params["name"])
    if found is None:
        return await not_found(call, Exception())
    found.headers["cache-control"] = "public, max-age=31536000, immutable"
    return found


async def notice(call: Request) -> Response:
    """Return the licences of the packages in the page."""
    return await _file_response(call, PAGE / "third-party.txt") or await not_found(
        call, Exception()
    )


async def installable(call: Request) -> Response:
    """Return a file for installing the page as an app: the manifest, an icon or the service worker.

    A browser asks for a new version of the service worker at every start of the page.
    """
    found = await _file_response(call, PAGE / path_of(call.scope).removeprefix("/"))
    if found is None:
        return await not_found(call, Exception())
    found.headers["cache-control"] = "no-cache"
    return found


async def _file_response(call: Request, file: Path) -> Response | None:
    """Return a response with a file of the page."""
    found = await _read_file(call, file)
    return (
        None if found is None else Response(found, media_type=guess_type(file.name)[0])
    )


async def _read_file(call: Request, file: Path) -> bytes | None:
    """Read a file of the page at once, so that a slow client keeps no file open."""

    def read() -> bytes | None:
        return file.read_bytes() if os.path.isfile(file) else None  # noqa: PTH113  (False for every bad name)

    return await state_of(call).page_threads.run(read)


async def not_found(call: Request, _error: Exception) -> Response:
    return problem(404, "Not found", f"{call.scope['path'][:200]} does not exist.")


async def not_allowed(call: Request, _error: Exception) -> Response:
    return problem(
        405,
        "Method not allowed",
        f"{call.scope['path'][:200]} does not allow {call.method}.",
    )


PAGE_PATHS: Final = (
    "/",
    "/link",
    "/setup",
    "/settings",
    "/settings/{section}",
    "/memory",
    "/c/{id}",
)
"""The paths of the screens. All of them answer with the same page."""

PAGE_ROUTES: Final = (
    Route("/assets/{name}", asset, middleware=[Middleware(GZipMiddleware)]),
    *(Route(path, page) for path in PAGE_PATHS),
    Route("/frames/{name}", get_frame),
    Route("/third-party.txt", notice),
    *(
        Route(path, installable)
        for path in (
            "/manifest.webmanifest",
            "/service.js",
            "/icons/192.png",
            "/icons/512.png",
            "/icons/apple.png",
            "/icons/maskable.png",
        )
    ),
)
"""The routes of the page and its files."""


def application(state: ServerState) -> Starlette:
    """Build the application."""
    found = endpoints()
    public = frozenset(endpoint.path for endpoint in found if endpoint.public)
    routes = [endpoint.route for endpoint in found]
    routes += [Route("/api/openapi.json", describe), HOOK_ROUTE, *PAGE_ROUTES]
    serve = state.config.serve
    guard = Middleware(
        Guard,
        signins=state.signins,
        host=serve.host,
        public=public,
        proxied=bool(serve.proxies) and not serve.url,
        url=serve.url,
    )
    app = Starlette(
        routes=routes,
        exception_handlers={404: not_found, 405: not_allowed},
        middleware=[guard],
    )
    app.state.server_state = state
    return app
