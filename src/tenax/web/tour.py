"""`/api/tour`: a scripted conversation, with a kill of the server by the person; `/api/doctor`: verify the store."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

from starlette.requests import Request

from tenax.agent.tour import FIRST_WORDS, TOUR
from tenax.assembly import Runtime
from tenax.concurrency import run_in_own_thread
from tenax.errors import Refused
from tenax.journal.verify.store import verify
from tenax.runtime.list_entry import Listed
from tenax.web.api import ResponseBody, endpoint
from tenax.web.conversations import shown
from tenax.web.server_state import state_of

_PLUG_SECONDS = 0.2


class Examined(ResponseBody):
    """The result of a verification."""

    ok: bool
    lines: list[str]


@endpoint("POST", "/api/tour", 201)
async def begin_tour(runtime: Runtime) -> Listed:
    """Start a tour."""
    conversation = await runtime.new(source=TOUR)
    await runtime.rename(conversation, "The tour")
    await runtime.submit(conversation, FIRST_WORDS)
    return await shown(runtime, conversation)


@endpoint("POST", "/api/tour/plug", 202, owner=True)
async def pull_the_plug(runtime: Runtime) -> None:
    """Kill the server process, like a power cut. The parent process restarts the server."""
    recent = await runtime.conversations(limit=50)
    if not any(summary.source == TOUR for summary in recent):
        raise Refused(
            "The plug can be pulled only during a tour.", hint="Start a tour first."
        )
    asyncio.get_running_loop().call_later(
        _PLUG_SECONDS, os.kill, os.getpid(), signal.SIGKILL
    )


@endpoint("GET", "/api/doctor", owner=True)
async def examine(call: Request) -> Examined:
    """Verify the whole store: derive every digest and index row again, and compare."""
    journal = state_of(call).journal
    report = await run_in_own_thread(partial(verify, journal.of(None)))
    return Examined(report.ok, report.lines())
