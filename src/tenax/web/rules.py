"""`/api/rules`: allow rules and deny rules for tools. Only the owner sees and changes rules."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tenax.assembly import Runtime
from tenax.config.rules import PATTERN_CHARS_MAX, Rule
from tenax.web.api import ResponseBody, endpoint
from tenax.web.problems import or_refused

Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class Ruled(ResponseBody):
    """The rules, in the order of the settings file."""

    rules: list[Rule]


@endpoint("GET", "/api/rules", owner=True)
async def list_rules(runtime: Runtime) -> Ruled:
    """List the rules."""
    return Ruled(list(runtime.rules()))


@endpoint("POST", "/api/rules", 201, owner=True)
async def add_rule(runtime: Runtime, body: Rule) -> Ruled:
    """Add a rule. The rule applies from the next call on. Deny overrides allow."""
    await runtime.add_rule(body)
    return Ruled(list(runtime.rules()))


@endpoint("DELETE", "/api/rules", owner=True)
async def remove_rule(
    runtime: Runtime,
    verdict: Literal["allow", "deny"],
    tool: Pattern,
    touches: Pattern = "*",
) -> Ruled:
    """Remove a rule. The request contains the whole rule, so a client with an old list removes no other rule."""
    await or_refused(runtime.remove_rule(Rule(verdict, tool, touches)))
    return Ruled(list(runtime.rules()))
