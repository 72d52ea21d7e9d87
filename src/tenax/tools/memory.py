"""The tools of memory: the built-in one, and those that providers bring along."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tenax.errors import FactChanged, InvalidInput, ToolFailed
from tenax.journal.facts import Fact
from tenax.memory import MemoryManager
from tenax.memory.keep import Memory
from tenax.tools.base import Call, Tool, aside

__all__ = ["Provided", "UseMemory", "UseMemoryArgs", "provided"]

_SECONDS = 10.0
_FOUND_MAX = 10
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class UseMemoryArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do with the memory."""

    action: Literal["add", "replace", "remove", "search"]
    text: Annotated[
        str, Meta(description="add, replace: the fact, in one sentence. search: words to look for.")
    ] = ""
    fact: Annotated[str, Meta(description="replace, remove: the id of the fact, as search gives it.")] = ""
    about: Annotated[
        Literal["profile", "note"],
        Meta(description="profile: who the person is and how they like things; note: anything else."),
    ] = "note"


class UseMemory(Tool[UseMemoryArgs]):
    """What is remembered about the person, across conversations."""

    name = "memory"
    description = (
        "Remember things about the person beyond this conversation: add, replace, remove or search facts. Add what they ask "
        "to be remembered, and lasting things they tell about themselves. Never secrets, nothing that only matters now."
    )
    effect = "idempotent"
    args = UseMemoryArgs
    seconds = _SECONDS
    asks = False

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def touches(self, args: UseMemoryArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        if args.action in {"add", "replace", "search"} and not args.text.strip():
            raise ToolFailed(f"{args.action} needs a text.")
        if args.action in {"replace", "remove"} and not args.fact:
            raise ToolFailed(f"{args.action} needs the id of a fact.", hint="search for it first")
        return f"{args.action}: {args.fact or args.text[:80]}"

    async def run(self, args: UseMemoryArgs, call: Call) -> str:
        try:
            return await self._do(args, call)
        except (FactChanged, InvalidInput) as error:
            raise ToolFailed(str(error), hint=error.hint) from error

    async def _do(self, args: UseMemoryArgs, call: Call) -> str:
        if args.action == "search":
            found = await self._memory.search_in(call.conversation, args.text, _FOUND_MAX)
            return "\n".join(map(_line, found)) or "Nothing is remembered about that."
        how: dict[str, Any] = {
            "by": "model",
            "place": (call.conversation, await self._memory.source(call.conversation, call.message)),
            "key": call.key,
        }
        if args.action == "add":
            fact, new = await self._memory.add(args.text, about=args.about, **how)
            return f"{'Remembered' if new else 'That is remembered already'}: {_line(fact)}"
        known = await self._memory.known_in(call.conversation, args.fact)
        if args.action == "replace":
            return f"Changed: {_line(await self._memory.change(known.id, was=known.version, text=args.text, **how))}"
        await self._memory.remove(known.id, was=known.version, **how)
        return f"Forgotten: {known.text}"


class Provided(Tool[Any]):
    """A tool of a memory provider. The person chose the provider; its own code answers."""

    effect = "once"
    args = msgspec.Struct
    seconds = 35.0
    asks = False

    def __init__(self, manager: MemoryManager, schema: dict[str, Any]) -> None:
        self._manager = manager
        self.name = schema["name"]
        self.description = str(schema.get("description", ""))[:2000]
        parameters = schema.get("parameters")
        self.schema = parameters if isinstance(parameters, dict) and parameters else {"type": "object"}

    def touches(self, args: Any, call: Call) -> str:  # noqa: ANN401, ARG002
        return self.name

    async def run(self, args: Any, call: Call) -> str:  # noqa: ANN401
        return await aside(
            lambda _deserted: self._manager.handle_tool_call(
                self.name, args, session_id=call.conversation, key=call.key
            )
        )


def provided(manager: MemoryManager, taken: set[str]) -> list[Tool[Any]]:
    """The tools that providers offer, but for those whose name is taken or no name."""
    return [
        Provided(manager, each)
        for each in manager.tool_schemas()
        if each["name"] not in taken and _NAME.fullmatch(each["name"])
    ]


def _line(fact: Fact) -> str:
    return f"{fact.id}: {fact.text}"
