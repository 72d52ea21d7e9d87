"""`/api/verify`: check that the stored data is as it was written, and remember the result.

The owner verifies the whole store, every other user the own conversations.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request

from tenax.clock import rfc3339
from tenax.concurrency import run_in_own_thread, write_atomically
from tenax.journal import LOCAL_USER
from tenax.journal.verify.store import verify
from tenax.web.api import ResponseBody, endpoint
from tenax.web.server_state import ServerState, state_of, user_of

PROBLEMS_SHOWN_MAX: Final = 100


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
    assert isinstance(found, Verified)
    return found


@endpoint("GET", "/api/verify")
async def get_verified(call: Request) -> LastVerified:
    """Return the result of the last verification."""
    state, user = state_of(call), user_of(call)
    task = state.verifying.get(user)
    last = await run_in_own_thread(partial(_read, _file(state, user)))
    return LastVerified(last, task is not None and not task.done())


async def _verify(state: ServerState, user: str) -> Verified:
    own = None if user == LOCAL_USER else user
    began = time.monotonic()
    report = await run_in_own_thread(
        partial(verify, state.journal.of(None), user=own), owner=f"verify {user}"
    )
    found = Verified(
        ok=report.ok,
        conversations=report.conversations,
        events=report.facts + report.partials,
        seconds=round(time.monotonic() - began, 3),
        at=rfc3339(state.journal.clock.now_us()),
        problems=[str(problem) for problem in report.problems[:PROBLEMS_SHOWN_MAX]],
    )
    # The result is worth showing even if it cannot be remembered.
    with contextlib.suppress(OSError):
        await run_in_own_thread(partial(_write, _file(state, user), found))
    return found


def _file(state: ServerState, user: str) -> Path:
    name = hashlib.sha256(user.encode()).hexdigest()
    return state.config.directories.state / "verified" / f"{name}.json"


def _read(file: Path) -> Verified | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Verified)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(file: Path, found: Verified) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(found))
