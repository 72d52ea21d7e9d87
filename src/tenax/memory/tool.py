"""The memory tools: the built-in tool and the tools of the providers."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tenax.concurrency import run_in_own_thread
from tenax.errors import ToolFailed
from tenax.memory.entries import MemoryEntry, Origin
from tenax.memory.memory import Memory
from tenax.memory.providers.group import ProviderGroup
from tenax.tools.base import Args, Call, Tool

__all__ = ["UseMemory", "UseMemoryArgs", "provider_tools"]

log = logging.getLogger(__name__)

_FOUND_MAX = 10
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
FindSession = Callable[[str], Awaitable[str]]
"""A function to find the open session of a conversation."""


class UseMemoryArgs(Args):
    action: Literal["add", "replace", "remove", "search"]
    text: Annotated[
        str,
        Meta(
            description="add, replace: the fact, in one sentence. search: words to look for."
        ),
    ] = ""
    fact: Annotated[
        str,
        Meta(description="replace, remove: the id of the fact, as search gives it."),
    ] = ""
    about: Annotated[
        Literal["profile", "note"],
        Meta(
            description="profile: who the person is and how they like things; note: anything else."
        ),
    ] = "note"


class UseMemory(Tool[UseMemoryArgs]):
    name = "memory"
    description = (
        "Remember things about the person beyond this conversation: add, replace, remove or search facts. Add what they ask "
        "to be remembered, and lasting things they tell about themselves. Never secrets, nothing that only matters now."
    )
    effect = "idempotent"
    args = UseMemoryArgs
    seconds = 10.0
    delegated = False
    asks = False

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def touches(self, args: UseMemoryArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        if args.action in {"add", "replace", "search"} and not args.text.strip():
            raise ToolFailed(f"{args.action} needs a text.")
        if args.action in {"replace", "remove"} and not args.fact:
            raise ToolFailed(
                f"{args.action} needs the id of a fact.", hint="search for it first"
            )
        return f"{args.action}: {args.fact or args.text[:80]}"

    async def run(self, args: UseMemoryArgs, call: Call) -> str:
        conversation = call.conversation
        if args.action == "search":
            found = await self._memory.search_in(conversation, args.text, _FOUND_MAX)
            return "\n".join(map(_line, found)) or "Nothing is remembered about that."
        source = await self._memory.source(conversation, call.message)
        origin: Origin = {
            "by": "model",
            "conversation": conversation,
            "seq": source,
            "key": call.key,
        }
        if args.action == "add":
            entry, is_new = await self._memory.add(
                args.text, about=args.about, **origin
            )
            word = "Remembered" if is_new else "That is remembered already"
            return f"{word}: {_line(entry)}"
        if args.action == "remove":
            entry = await self._memory.forget_usable(args.fact, **origin)
            return f"Forgotten: {entry.text}"
        known = await self._memory.find_in(conversation, args.fact)
        changed = await self._memory.change(
            known.id, was=known.version, text=args.text, **origin
        )
        return f"Changed: {_line(changed)}"


class ProviderTool(Tool[Any]):
    """A tool of a memory provider. The person chose the provider, and the provider's code answers."""

    effect = "once"
    args = msgspec.Struct
    seconds = 35.0
    delegated = False
    asks = False

    def __init__(
        self,
        providers: ProviderGroup,
        find_session: FindSession,
        schema: dict[str, Any],
    ) -> None:
        self._providers = providers
        self._find_session = find_session
        self.name = schema["name"]
        self.description = str(schema.get("description", ""))[:2000]
        self.schema = schema.get("parameters") or {"type": "object"}

    def touches(self, args: Any, call: Call) -> str:  # noqa: ANN401, ARG002
        return self.name

    async def run(self, args: Any, call: Call) -> str:  # noqa: ANN401
        session = await self._find_session(call.conversation)
        handle = partial(
            self._providers.handle_tool_call,
            self.name,
            args,
            session_id=session,
            key=call.key,
        )
        return await run_in_own_thread(handle)


def provider_tools(
    providers: ProviderGroup,
    schemas: list[dict[str, Any]],
    find_session: FindSession,
    taken: set[str],
) -> list[Tool[Any]]:
    """Return the tools of the providers, except tools with a taken name.

    A tool with a name or schema refused by model APIs is left out, because the tool would fail every turn.
    """
    tools: list[Tool[Any]] = []
    for offered in schemas:
        schema = _json_schema(offered)
        if schema is None or schema["name"] in taken:
            continue
        if _NAME.fullmatch(schema["name"]):
            tools.append(ProviderTool(providers, find_session, schema))
    return tools


def _json_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema as plain JSON, or `None` if the schema does not describe an object."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        log.warning(
            "A memory's tool is left out: %s", error, extra={"action": "no_tool"}
        )
        return None
    parameters = plain.get("parameters") or {"type": "object"}
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        return None
    return plain if isinstance(parameters.get("properties", {}), dict) else None


def _line(entry: MemoryEntry) -> str:
    return f"{entry.id}: {entry.text}"
