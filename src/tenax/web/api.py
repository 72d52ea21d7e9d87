"""Endpoints as plain functions. Their signatures define both the routes and the OpenAPI document.

The parameter `call` is the request, `runtime` the runtime of the user, `body` the JSON body (or bytes, or an
`Upload`) and `key` the Idempotency-Key. Parameters named in the path come from the path, every other parameter from the query.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from importlib import metadata
from typing import (
    Annotated,
    Any,
    Final,
    dataclass_transform,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tenax.agent.attachments import BYTES_MAX
from tenax.errors import InvalidInput, Refused, TooLarge
from tenax.web.links import SIGNED_PATHS
from tenax.web.problems import Problem, answer_to, problem
from tenax.web.server_state import owner_only, runtime_of, state_of
from tenax.web.signins import KEY_HEADER, not_signed_in

__all__ = [
    "BODY_BYTES_MAX",
    "Endpoint",
    "Id",
    "RequestBody",
    "ResponseBody",
    "Upload",
    "endpoint",
    "openapi",
    "read_bytes",
]

Id = Annotated[str, Meta(min_length=1, max_length=128)]
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
_PUBLIC_BYTES_MAX: Final = 4096
"""The limit of a request without sign-in. Such a request contains only a code."""
_KEY: Final = "Idempotency-Key"
_SIGNED: Final = "signed"
_KEY_CHARS_MAX: Final = 200
_MEDIA: Final = {
    "/api/events": "text/event-stream",
    "/api/memory/export": "text/markdown",
    "/api/conversations/{id}/attachments/{blob}": "*/*",
    "/api/conversations/{id}/files/content": "*/*",
    "/api/conversations/{id}/files/zip": "application/zip",
    "/api/conversations/{id}/export": "*/*",
    "/api/export": "*/*",
    "/api/sign-in": "application/json",
}
_ERRORS: Final = {
    "400": "The request is invalid.",
    "401": "The cookie or the key of the device is missing or wrong. Open a link from `tenax link`.",
    "403": "The request does not come from the page, has another host name, or has an invalid code.",
    "404": "This user has no such resource.",
    "409": "The request conflicts with the current state, or only the owner may send it.",
    "410": "The resource was deleted.",
    "413": "The request is too large.",
    "503": "The store does not respond now. Nothing is lost; send the request again.",
}


@dataclass_transform(frozen_default=True)
class ResponseBody(msgspec.Struct, frozen=True):
    """The JSON body of a response, or a part of a body."""


@dataclass_transform(frozen_default=True)
class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of a request, or a part of a body. An unknown field is an error."""


class Upload:
    """The body of a request that is too large for memory."""

    def __init__(self, request: Request) -> None:
        self._request = request
        length = request.headers.get("content-length", "")
        self.length = int(length) if length.isdecimal() else None
        """The size in bytes, if the client says it."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they arrive. Raises `ClientDisconnect` if the client goes away."""
        async for piece in self._request.stream():
            yield piece
        # The body may arrive slowly, and the device may have been revoked in the meantime.
        if not await _is_signed_in(self._request):
            raise Refused("This browser was signed out during the upload.")


class Endpoint:
    """An endpoint of the API."""

    def __init__(
        self,
        method: str,
        path: str,
        status: int,
        handler: Callable[..., Awaitable[Any]],
        *,
        public: bool,
        owner: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.status = status
        self.public = public
        self._owner = owner
        self.about = inspect.getdoc(handler) or ""
        self.name = handler.__name__
        hints = get_type_hints(handler)
        self.answer: Any = hints.pop("return")
        self.body: Any = hints.pop("body", None)
        self._needs_call = hints.pop("call", None) is not None
        self._needs_runtime = hints.pop("runtime", None) is not None
        self.needs_key = hints.pop("key", None) is not None
        self.in_path = {
            name: kind for name, kind in hints.items() if f"{{{name}}}" in path
        }
        self.in_query = {
            name: kind for name, kind in hints.items() if name not in self.in_path
        }
        self._queried = (
            {*self.in_query, _SIGNED} if path in SIGNED_PATHS else set(self.in_query)
        )
        self.defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(handler).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        self._handler = handler

    @property
    def route(self) -> Route:
        return Route(self.path, self._serve, methods=[self.method])

    async def _serve(self, request: Request) -> Response:
        # The guard already refuses such requests. This is a second check.
        if not self.public and request.state.user is None:
            return not_signed_in(request)
        try:
            arguments = await self._arguments(request)
            # The body may arrive slowly, and the device may have been revoked in the meantime.
            stays = self.body is None or self.public or await _is_signed_in(request)
            found = (
                await self._handler(**arguments) if stays else not_signed_in(request)
            )
        except ClientDisconnect:
            return problem(400, "Incomplete", "The request is incomplete.")
        except Exception as error:  # noqa: BLE001  (the one place where a request's surprise ends)
            return answer_to(error)
        if isinstance(found, Response):
            return found
        if self.status == 204:  # noqa: PLR2004  (no content)
            return Response(status_code=204)
        return Response(
            msgspec.json.encode(found), self.status, media_type="application/json"
        )

    async def _arguments(self, request: Request) -> dict[str, Any]:
        given: dict[str, Any] = {
            name: _converted(name, request.path_params[name], kind)
            for name, kind in self.in_path.items()
        }
        unknown = set(request.query_params) - self._queried
        if unknown:
            raise InvalidInput(f"Unknown parameter {min(unknown)!r}.")
        for name, kind in self.in_query.items():
            if name in request.query_params:
                values = request.query_params.getlist(name)
                several = get_origin(kind) is list
                given[name] = _converted(name, values if several else values[-1], kind)
            elif name not in self.defaults:
                raise InvalidInput(f"The parameter {name!r} is missing.")
        if self.needs_key:
            given["key"] = _idempotency_key(request)
        if self.body is not None:
            most = _PUBLIC_BYTES_MAX if self.public else BODY_BYTES_MAX
            given["body"] = await _body(request, self.body, most)
        if self._owner:
            owner_only(request)
        if self._needs_call:
            given["call"] = request
        if self._needs_runtime:
            given["runtime"] = await runtime_of(request)
        return given


def endpoint(
    method: str,
    path: str,
    status: int = 200,
    *,
    public: bool = False,
    owner: bool = False,
) -> Callable[[Callable[..., Awaitable[Any]]], Endpoint]:
    """Turn a function into an endpoint. `public`: no sign-in needed. `owner`: only for the owner of Tenax."""
    return partial(Endpoint, method, path, status, public=public, owner=owner)


def _converted(name: str, value: str | list[str], kind: Any) -> Any:  # noqa: ANN401  (whatever the parameter is)
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"The parameter {name!r} is invalid: {error}.") from error


def _idempotency_key(request: Request) -> str:
    key = request.headers.get(_KEY, "")
    if (
        not key
        or len(key) > _KEY_CHARS_MAX
        or not key.isascii()
        or not key.isprintable()
    ):
        raise InvalidInput(
            f"The header {_KEY} is missing, or is not ASCII text of at most {_KEY_CHARS_MAX} characters.",
            hint="Create one key per message, and use the same key when you send the message again.",
        )
    return key


async def _is_signed_in(request: Request) -> bool:
    return await state_of(request).signins.device_of(request) is not None


async def _body(request: Request, kind: Any, most: int) -> Any:  # noqa: ANN401  (whatever the body is)
    if kind is Upload:
        return Upload(request)
    if kind is bytes:
        return await read_bytes(request, BYTES_MAX, "Make it smaller.")
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        raise InvalidInput(
            "The body must be JSON.",
            hint="Send it with Content-Type: application/json.",
        )
    data = await read_bytes(request, most, "Send it in several pieces.")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The body is invalid: {error}.") from error


async def read_bytes(request: Request, most: int, hint: str) -> bytes:
    """Read the body. Raises `TooLarge` as soon as the body exceeds `most` bytes."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > most:
            raise TooLarge(
                f"The request is too large. The limit is {most:,} bytes.", hint=hint
            )
    return bytes(data)


# -- OpenAPI ---------------------------------------------------------------------------------------------------


def openapi(found: Sequence[Endpoint]) -> dict[str, Any]:
    """Describe the endpoints as OpenAPI 3.1."""
    kinds = [
        Problem,
        *(
            endpoint.body
            for endpoint in found
            if endpoint.body not in {None, bytes, Upload}
        ),
    ]
    kinds += [
        endpoint.answer
        for endpoint in found
        if endpoint.answer not in {None, type(None), Response}
    ]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    by_kind = dict(zip(map(str, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in found:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _described(
            endpoint, by_kind
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenax",
            "version": metadata.version("tenax"),
            "description": "Unstable until 1.0.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "cookie": {"type": "apiKey", "in": "cookie", "name": "tenax_PORT"},
                "key": {"type": "apiKey", "in": "header", "name": KEY_HEADER},
                "signed": {"type": "apiKey", "in": "query", "name": _SIGNED},
            },
        },
    }


def _described(endpoint: Endpoint, by_kind: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": msgspec.json.schema(kind),
        }
        for name, kind in endpoint.in_path.items()
    ]
    parameters += [
        {
            "name": name,
            "in": "query",
            "required": name not in endpoint.defaults,
            "schema": msgspec.json.schema(kind),
        }
        for name, kind in endpoint.in_query.items()
    ]
    if endpoint.needs_key:
        limits = {
            "type": "string",
            "minLength": 1,
            "maxLength": _KEY_CHARS_MAX,
            "pattern": "^[!-~]+$",
        }
        parameters.append(
            {"name": _KEY, "in": "header", "required": True, "schema": limits}
        )
    security: list[dict[str, list[str]]] = (
        [] if endpoint.public else [{"cookie": [], "key": []}]
    )
    if endpoint.path in SIGNED_PATHS:
        security.append({"cookie": [], "signed": []})
    good: dict[str, Any] = {"description": "Done."}
    if endpoint.answer is Response:
        good["content"] = {_MEDIA.get(endpoint.path, "application/json"): {}}
    elif endpoint.answer is not type(None):
        good["content"] = {
            "application/json": {"schema": by_kind[str(endpoint.answer)]}
        }
    told = {"application/problem+json": {"schema": by_kind[str(Problem)]}}
    errors = {
        code: {"description": what, "content": told} for code, what in _ERRORS.items()
    }
    described: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.about,
        "parameters": parameters,
        "responses": {str(endpoint.status): good, **errors},
        "security": security,
    }
    if endpoint.body in {bytes, Upload}:
        described["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": {}},
        }
    elif endpoint.body is not None:
        content = {"application/json": {"schema": by_kind[str(endpoint.body)]}}
        described["requestBody"] = {"required": True, "content": content}
    return described
