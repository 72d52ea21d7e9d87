"""`/api/rules`: what tools may do without asking, and what they never may. They are the owner's: nobody else sees or makes one."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tenax.config.rules import PATTERN_CHARS_MAX, Rule
from tenax.runtime.runtime import Runtime
from tenax.web.api import endpoint
from tenax.web.problems import or_refused

Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class Ruled(msgspec.Struct, frozen=True):
    """The rules, in the order of the file."""

    rules: list[Rule]


@endpoint("GET", "/api/rules", owner=True)
async def list_rules(runtime: Runtime) -> Ruled:
    """The rules as they stand."""
    return Ruled(list(runtime.rules()))


@endpoint("POST", "/api/rules", 201, owner=True)
async def add_rule(runtime: Runtime, body: Rule) -> Ruled:
    """Decide something for all calls of a kind, from the next call on. What is forbidden wins."""
    await runtime.add_rule(body)
    return Ruled(list(runtime.rules()))


@endpoint("DELETE", "/api/rules", owner=True)
async def remove_rule(
    runtime: Runtime,
    verdict: Literal["allow", "deny"],
    tool: Pattern,
    touches: Pattern = "*",
) -> Ruled:
    """Take a rule back. It is named by what it says, so that no list has to be the newest."""
    await or_refused(runtime.remove_rule(Rule(verdict, tool, touches)))
    return Ruled(list(runtime.rules()))
