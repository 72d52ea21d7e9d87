"""`/api/tour`: a conversation in which a script answers, and the plug that can be pulled; and `/api/doctor`."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
from starlette.requests import Request

from tenax.agent.tour import FIRST_WORDS, TOUR
from tenax.errors import Refused
from tenax.journal.verify.store import verify
from tenax.runtime.conversation_list import Listed
from tenax.runtime.runtime import Runtime
from tenax.web.api import endpoint
from tenax.web.conversations import shown
from tenax.web.house import house_of

_PLUG_SECONDS = 0.2


class Examined(msgspec.Struct, frozen=True):
    """What a look at the whole store found."""

    ok: bool
    lines: list[str]


@endpoint("POST", "/api/tour", 201)
async def begin_tour(runtime: Runtime) -> Listed:
    """A new tour, its first words said."""
    conversation = await runtime.new(source=TOUR)
    await runtime.rename(conversation, "The tour")
    await runtime.submit(conversation, FIRST_WORDS)
    return await shown(runtime, conversation)


@endpoint("POST", "/api/tour/plug", 202, owner=True)
async def pull_the_plug(runtime: Runtime) -> None:
    """Kill this server, as a power cut would. Its parent starts it again."""
    recent = await runtime.conversations(limit=50)
    if not any(each.source == TOUR for each in recent):
        raise Refused("The plug can be pulled on the tour.", hint="Begin one first.")
    asyncio.get_running_loop().call_later(
        _PLUG_SECONDS, os.kill, os.getpid(), signal.SIGKILL
    )


@endpoint("GET", "/api/doctor", owner=True)
async def examine(call: Request) -> Examined:
    """Prove the whole store: every digest and index row is derived again."""
    journal = house_of(call).journal
    report = await asyncio.to_thread(verify, journal.of(None))
    return Examined(report.ok, report.lines())
