"""Errors as RFC 9457 problems, with a hint that a person can follow. A surprise is logged, and told without its insides."""

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
    Refused,
    StoreError,
    TenaxError,
    TooLarge,
)

__all__ = ["Problem", "answer_to", "or_refused", "problem"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_STATUS: Final[list[tuple[type[TenaxError], int, str]]] = [
    (TooLarge, 413, "Too large"),
    (InvalidInput, 400, "This cannot be taken"),
    (NoSuchConversation, 404, "Not found"),
    (Gone, 410, "Deleted"),
    (Refused, 409, "Refused"),
    (ConfigError, 409, "Not set up"),
    (CannotOpen, 503, "A file or folder cannot be used"),
    (StoreError, 503, "The store does not answer"),
]


class Problem(msgspec.Struct, frozen=True):
    """What went wrong."""

    title: str
    status: int
    detail: str
    hint: str = ""
    type: str = "about:blank"


def problem(status: int, title: str, detail: str, hint: str = "") -> Response:
    body = msgspec.json.encode(Problem(title, status, detail, hint))
    return Response(body, status, media_type="application/problem+json")


async def or_refused(work: Awaitable[T]) -> T:
    """For what is well-formed: what cannot be taken then stands against what is there."""
    try:
        return await work
    except InvalidInput as error:
        raise Refused(str(error), hint=error.hint) from error


def answer_to(error: Exception) -> Response:
    """The problem that this error is."""
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
        "Something went wrong inside Tenax; the log says what.",
    )
