"""`/api/rules`: what tools may do without asking, and what they never may. They are the owner's: nobody else sees or makes one."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from tenax.errors import InvalidInput, Refused
from tenax.rules import PATTERN_CHARS_MAX, Rule
from tenax.web.api import endpoint
from tenax.web.house import owner_only, runtime_of

Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class Ruled(msgspec.Struct, frozen=True):
    """The rules, in the order of the file."""

    rules: list[Rule]


@endpoint("GET", "/api/rules")
async def list_rules(call: Request) -> Ruled:
    """The rules as they stand."""
    owner_only(call)
    return Ruled(list((await runtime_of(call)).rules()))


@endpoint("POST", "/api/rules", 201)
async def add_rule(call: Request, body: Rule) -> Ruled:
    """Decide something for all calls of a kind, from the next call on. What is forbidden wins."""
    owner_only(call)
    runtime = await runtime_of(call)
    await runtime.add_rule(body)
    return Ruled(list(runtime.rules()))


@endpoint("DELETE", "/api/rules")
async def remove_rule(
    call: Request, verdict: Literal["allow", "deny"], tool: Pattern, touches: Pattern = "*"
) -> Ruled:
    """Take a rule back. It is named by what it says, so that no list has to be the newest."""
    owner_only(call)
    runtime = await runtime_of(call)
    try:
        await runtime.remove_rule(Rule(verdict, tool, touches))
    except InvalidInput as error:
        raise Refused(str(error), hint=error.hint) from error
    return Ruled(list(runtime.rules()))
