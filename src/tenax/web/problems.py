"""Errors as RFC 9457 problems, with a hint for the person.

Unexpected errors are logged, and the details stay in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response

from tenax.errors import (
    CannotOpen,
    ConfigError,
    Gone,
    InvalidInput,
    NoSuchConversation,
    NoSuchFile,
    Refused,
    StoreError,
    TenaxError,
    TooBusy,
    TooLarge,
    ToolFailed,
)

__all__ = ["Problem", "answer_to", "or_refused", "problem"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_STATUS: Final[list[tuple[type[TenaxError], int, str]]] = [
    (TooLarge, 413, "Too large"),
    (InvalidInput, 400, "Invalid request"),
    (NoSuchConversation, 404, "Not found"),
    (Gone, 410, "Deleted"),
    (Refused, 409, "Refused"),
    (ConfigError, 409, "Not set up"),
    (CannotOpen, 503, "File or folder not usable"),
    (StoreError, 503, "Store not responding"),
    (TooBusy, 503, "Too busy"),
    (NoSuchFile, 404, "Not found"),
    (ToolFailed, 400, "Invalid request"),
]


class Problem(msgspec.Struct, frozen=True):
    """An error."""

    title: str
    status: int
    detail: str
    hint: str = ""
    type: str = "about:blank"


def problem(status: int, title: str, detail: str, hint: str = "") -> Response:
    body = msgspec.json.encode(Problem(title, status, detail, hint))
    return Response(body, status, media_type="application/problem+json")


async def or_refused(work: Awaitable[T]) -> T:
    """Await `work`, and turn `InvalidInput` into `Refused`.

    The reason: the request is well-formed but conflicts with the current state.
    """
    try:
        return await work
    except InvalidInput as error:
        raise Refused(str(error), hint=error.hint) from error


def answer_to(error: Exception) -> Response:
    """Return the response for an error."""
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            return problem(status, title, str(error), error.hint)
    log.error(
        "A request failed: %s",
        error,
        exc_info=error,
        extra={"action": "request_failed"},
    )
    return problem(
        500,
        "Something went wrong",
        "Something went wrong in Tenax. The log has the details.",
    )
