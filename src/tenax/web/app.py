"""The application: the endpoints behind the guard, and the page."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

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
_NO_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Tenax</title>
<main><h1>The page is not built</h1><p>Run <code>make page</code> in the repository, and reload.</p></main></html>"""


def endpoints() -> list[Endpoint]:
    """Everything that can be asked, resource by resource."""
    places = [globals(), *(vars(each) for each in _RESOURCES)]
    return [each for place in places for each in place.values() if isinstance(each, Endpoint)]


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
    index = PAGE / "index.html"
    if not index.exists():
        return HTMLResponse(_NO_PAGE, 503)
    return FileResponse(index, headers={"cache-control": "no-cache"})


async def notice(call: Request) -> Response:
    """Whose work the page is built from."""
    file = PAGE / "third-party.txt"
    return FileResponse(file) if file.exists() else await not_found(call, Exception())


async def not_found(call: Request, _error: Exception) -> Response:
    return problem(404, "Not found", f"There is nothing at {call.scope['path'][:200]}.")


async def not_allowed(call: Request, _error: Exception) -> Response:
    return problem(405, "Not like this", f"{call.method} is not for {call.scope['path'][:200]}.")


class _Assets(StaticFiles):
    """Files whose names change with their content: a browser need not ask again."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "public, max-age=31536000, immutable"
        return answer


def application(house: House) -> Starlette:
    """The application around this house."""
    public = frozenset(each.path for each in endpoints() if each.public)
    routes: list[Route | Mount] = [each.route for each in endpoints()]
    routes += [
        Route("/api/openapi.json", describe),
        Mount("/assets", GZipMiddleware(_Assets(directory=PAGE / "assets", check_dir=False))),
        *(Route(path, page) for path in ("/", "/link", "/setup", "/memory", "/c/{id}")),
        Route("/third-party.txt", notice),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={404: not_found, 405: not_allowed},
        middleware=[Middleware(Guard, signins=house.signins, host=house.config.serve_host, public=public)],
    )
    app.state.house = house
    return app
