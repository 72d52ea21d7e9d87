"""`/api/verify`: check that the stored data is as it was written, and remember the result.

The owner verifies the whole store, every other user the own conversations.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import msgspec
from starlette.requests import Request

from tenax.concurrency import run_in_own_thread
from tenax.doctor import verified as record
from tenax.doctor.verified import describe_report, read_verified, write_verified
from tenax.journal import LOCAL_USER
from tenax.journal.verify.store import verify
from tenax.web.api import ResponseBody, endpoint
from tenax.web.server_state import ServerState, state_of, user_of


class Verified(ResponseBody):
    """The result of a verification."""

    ok: bool
    conversations: int
    events: int
    seconds: float
    at: str
    """The time of the end of the verification."""
    problems: list[str]
    """The first problems, in words."""


class LastVerified(ResponseBody):
    """The last result, or null if the data was never verified here, and whether a verification is running."""

    last: Verified | None
    running: bool


@endpoint("POST", "/api/verify")
async def verify_data(call: Request) -> Verified:
    """Verify the stored data: derive every digest and index row again, and compare."""
    state, user = state_of(call), user_of(call)
    task = state.verifying.get(user)
    if task is None or task.done():
        # A client that goes away does not end the verification, and a second request waits for the same one.
        task = state.verifying[user] = asyncio.create_task(_verify(state, user))
    found = await asyncio.shield(task)
    assert isinstance(found, record.Verified)
    return _show(found)


@endpoint("GET", "/api/verify")
async def get_verified(call: Request) -> LastVerified:
    """Return the result of the last verification."""
    state, user = state_of(call), user_of(call)
    task = state.verifying.get(user)
    last = await run_in_own_thread(partial(read_verified, state.config, user))
    shown = None if last is None else _show(last)
    return LastVerified(shown, task is not None and not task.done())


def _show(found: record.Verified) -> Verified:
    return msgspec.convert(found, Verified, from_attributes=True)


async def _verify(state: ServerState, user: str) -> record.Verified:
    own = None if user == LOCAL_USER else user
    began = time.monotonic()
    report = await run_in_own_thread(
        partial(verify, state.journal.of(None), user=own), owner=f"verify {user}"
    )
    seconds = time.monotonic() - began
    found = describe_report(report, seconds, state.journal.clock.now_us())
    await run_in_own_thread(partial(write_verified, state.config, user, found))
    return found
