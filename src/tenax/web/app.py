"""The application: the endpoints behind the guard, and the page."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from mimetypes import guess_type
from pathlib import Path
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from tenax.web import (
    attachments,
    changes,
    conversations,
    devices,
    mcp,
    memory,
    rules,
    schedules,
    search,
    setup,
    stream,
    tour,
)
from tenax.web.api import Endpoint, endpoint, openapi
from tenax.web.guard import Guard
from tenax.web.house import House
from tenax.web.problems import problem

__all__ = ["application", "endpoints"]

PAGE: Final = Path(__file__).with_name("page")
_RESOURCES = (
    attachments,
    changes,
    conversations,
    devices,
    mcp,
    memory,
    rules,
    schedules,
    search,
    setup,
    stream,
    tour,
)
_FILES: Final = ThreadPoolExecutor(2, "tenax-page")
"""Threads that read only files: the page is there also while everything else waits for the store."""
_NO_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Tenax</title>
<main><h1>The page is not built</h1><p>Run <code>make page</code> in the repository, and reload.</p></main></html>"""


def endpoints() -> list[Endpoint]:
    """Everything that can be asked, resource by resource."""
    places = [globals(), *(vars(each) for each in _RESOURCES)]
    return [
        each
        for place in places
        for each in place.values()
        if isinstance(each, Endpoint)
    ]


class Health(msgspec.Struct, frozen=True):
    """That the server answers."""

    ok: bool
    version: str


@endpoint("GET", "/api/health", public=True)
async def health() -> Health:
    """Whether the server answers."""
    return Health(ok=True, version=metadata.version("tenax"))


async def describe(_call: Request) -> Response:
    """What there is, for programs."""
    return JSONResponse(openapi(endpoints()))


async def page(_call: Request) -> Response:
    """The one page. Which conversation it shows stands in its address."""
    found = await _read(PAGE / "index.html")
    if found is None:
        return HTMLResponse(_NO_PAGE, 503)
    found.headers["cache-control"] = "no-cache"
    return found


async def asset(call: Request) -> Response:
    """A file whose name changes with its content: a browser need not ask again."""
    found = await _read(PAGE / "assets" / call.path_params["name"])
    if found is None:
        return await not_found(call, Exception())
    found.headers["cache-control"] = "public, max-age=31536000, immutable"
    return found


async def notice(call: Request) -> Response:
    """Whose work the page is built from."""
    return await _read(PAGE / "third-party.txt") or await not_found(call, Exception())


async def _read(file: Path) -> Response | None:
    """Answer with a file of the page. It is read at once: a client that does not read holds no open file."""

    def read() -> bytes | None:
        return file.read_bytes() if os.path.isfile(file) else None  # noqa: PTH113  (False for every bad name)

    found = await asyncio.get_running_loop().run_in_executor(_FILES, read)
    return (
        None if found is None else Response(found, media_type=guess_type(file.name)[0])
    )


async def not_found(call: Request, _error: Exception) -> Response:
    return problem(404, "Not found", f"There is nothing at {call.scope['path'][:200]}.")


async def not_allowed(call: Request, _error: Exception) -> Response:
    return problem(
        405, "Not like this", f"{call.method} is not for {call.scope['path'][:200]}."
    )


_PAGE_ROUTES: Final = (
    Route("/assets/{name}", asset, middleware=[Middleware(GZipMiddleware)]),
    *(Route(path, page) for path in ("/", "/link", "/setup", "/memory", "/c/{id}")),
    Route("/third-party.txt", notice),
)


def application(house: House) -> Starlette:
    """The application around this house."""
    public = frozenset(each.path for each in endpoints() if each.public)
    routes = [each.route for each in endpoints()]
    routes += [Route("/api/openapi.json", describe), *_PAGE_ROUTES]
    guard = Middleware(
        Guard,
        signins=house.signins,
        host=house.config.serve_host,
        public=public,
        proxied=bool(house.config.serve_proxies),
    )
    app = Starlette(
        routes=routes,
        exception_handlers={404: not_found, 405: not_allowed},
        middleware=[guard],
    )
    app.state.house = house
    return app
