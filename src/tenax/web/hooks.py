"""`POST /api/hooks/LABEL`: requests of programs to an account of a chat app, such as a webhook.

The signature of the request is the authorisation, so there is no sign-in, and the Host may be any name. The answer 202
comes after the message is stored. A sender that gets no answer sends the request again, and the message is stored once.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tenax.channels.platforms import HOOKS
from tenax.errors import NotAuthorized, StoreError
from tenax.web.api import read_bytes
from tenax.web.problems import answer_to, problem
from tenax.web.server_state import state_of

__all__ = ["HOOK_ROUTE"]

_BODY_BYTES_MAX: Final = 256 * 1024
_RETRY_SECONDS: Final = 5


async def take_request(request: Request) -> Response:
    """Store the message of a signed request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return problem(
            415,
            "Not JSON",
            "The body must be JSON.",
            "Send it with Content-Type: application/json.",
        )
    try:
        body = await read_bytes(request, _BODY_BYTES_MAX, "Send a shorter text.")
        return await _take(request, body)
    except ClientDisconnect:
        return problem(400, "Incomplete", "The request is incomplete.")
    except NotAuthorized:
        return problem(
            401,
            "Not authorized",
            "The address or the signature of this request is wrong, or its timestamp is more than five minutes off.",
            "Check the address, the secret and the clock of the sender.",
        )
    except StoreError as error:
        answer = answer_to(error)
        answer.headers["retry-after"] = str(_RETRY_SECONDS)
        return answer
    except Exception as error:  # noqa: BLE001  (the one place where a request's surprise ends)
        return answer_to(error)


async def _take(request: Request, body: bytes) -> Response:
    label: str = request.path_params["label"]
    client = request.client.host if request.client is not None else "an unknown address"
    gateway = state_of(request).gateway
    headers = dict(request.headers)
    if await gateway.take_request(label, headers, body, client):
        return Response(status_code=202)
    return problem(
        403,
        "Not allowed",
        "The sender in this message may not talk here. Nothing was stored.",
        "Let the sender in with `tenax pair`, or add the id to `allow` in the settings.",
    )


HOOK_ROUTE: Final = Route(f"{HOOKS}{{label}}", take_request, methods=["POST"])
