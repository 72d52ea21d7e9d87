"""The tools of memory: the built-in one, and those that providers bring along."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tenax.errors import ToolFailed
from tenax.memory import MemoryManager
from tenax.memory.facts import Fact
from tenax.memory.memory import Memory
from tenax.tools.base import Call, Tool, aside

__all__ = ["UseMemory", "UseMemoryArgs", "provided"]

log = logging.getLogger(__name__)

_FOUND_MAX = 10
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
Session = Callable[[str], Awaitable[str]]
"""The stretch of a conversation that is open: what providers call a session."""


class UseMemoryArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        if args.action == "search":
            found = await self._memory.search_in(
                call.conversation, args.text, _FOUND_MAX
            )
            return "\n".join(map(_line, found)) or "Nothing is remembered about that."
        how: dict[str, Any] = {
            "by": "model",
            "place": (
                call.conversation,
                await self._memory.source(call.conversation, call.message),
            ),
            "key": call.key,
        }
        if args.action == "add":
            fact, new = await self._memory.add(args.text, about=args.about, **how)
            return f"{'Remembered' if new else 'That is remembered already'}: {_line(fact)}"
        if args.action == "remove":
            return f"Forgotten: {(await self._memory.forget_in(call.conversation, args.fact, **how)).text}"
        known = await self._memory.known_in(call.conversation, args.fact)
        changed = await self._memory.change(
            known.id, was=known.version, text=args.text, **how
        )
        return f"Changed: {_line(changed)}"


class Provided(Tool[Any]):
    """A tool of a memory provider. The person chose the provider; its own code answers."""

    effect = "once"
    args = msgspec.Struct
    seconds = 35.0
    delegated = False
    asks = False

    def __init__(
        self, manager: MemoryManager, session: Session, schema: dict[str, Any]
    ) -> None:
        self._manager = manager
        self._session = session
        self.name = schema["name"]
        self.description = str(schema.get("description", ""))[:2000]
        self.schema = schema.get("parameters") or {"type": "object"}

    def touches(self, args: Any, call: Call) -> str:  # noqa: ANN401, ARG002
        return self.name

    async def run(self, args: Any, call: Call) -> str:  # noqa: ANN401
        session = await self._session(call.conversation)
        return await aside(
            lambda _deserted: self._manager.handle_tool_call(
                self.name, args, session_id=session, key=call.key
            )
        )


def provided(
    manager: MemoryManager,
    schemas: list[dict[str, Any]],
    session: Session,
    taken: set[str],
) -> list[Tool[Any]]:
    """The tools that providers offer, but for those that a model cannot be told of: one such would end every turn."""
    plain = [each for each in map(_plain, schemas) if each is not None]
    return [
        Provided(manager, session, each)
        for each in plain
        if each["name"] not in taken and _NAME.fullmatch(each["name"])
    ]


def _plain(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema as JSON, if it is one of an object."""
    try:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        log.warning(
            "A memory's tool is left out: %s", error, extra={"action": "no_tool"}
        )
        return None
    takes = found.get("parameters") or {"type": "object"}
    whole = isinstance(takes, dict) and takes.get("type") == "object"
    return found if whole and isinstance(takes.get("properties", {}), dict) else None


def _line(fact: Fact) -> str:
    return f"{fact.id}: {fact.text}"
