"""MemoryProvider: what a memory that is not ours must be able to do.

Names and signatures are those that providers of this field are already written against, so that one of them loads here
unchanged. A provider calls it a *session*: one stretch of a conversation. Four things must be given; everything else
has a default that does nothing. A provider is never called on the thread of a turn (`MemoryManager`).
"""

# ruff: noqa: ARG002, B027  (a hook that is not overridden takes what it is given and does nothing)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["BUILT_IN", "HOOKS", "MemoryProvider"]

BUILT_IN = "builtin"  # the name of Tenax's own memory, which needs no worker
HOOKS = frozenset(
    {
        "on_turn_start",
        "on_session_end",
        "on_session_switch",
        "on_memory_write",
        "on_delegation",
    }
)


class MemoryProvider(ABC):
    """A memory outside of Tenax."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name, the same at every start: what was sent is counted under it."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether it is set up. Asks no network."""

    @abstractmethod
    def initialize(self, session_id: str, **kwargs: Any) -> None:  # noqa: ANN401
        """Get ready, once."""

    @abstractmethod
    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """The tools it offers to the model, each `{name, description, parameters}`; or none."""

    def system_prompt_block(self) -> str:
        """What the model is to know about this memory."""
        return ""

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        """What it recalls for this turn, at once: there is a hard deadline."""
        return ""

    def queue_prefetch(self, query: str, *, session_id: str = "") -> None:
        """Get ready what the next `prefetch` may ask for."""

    def sync_turn(
        self,
        user_content: str,
        assistant_content: str,
        *,
        session_id: str = "",
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Keep a finished turn. Turns come in order, one at a time."""

    def handle_tool_call(
        self,
        tool_name: str,
        args: dict[str, Any],
        **kwargs: Any,  # noqa: ANN401
    ) -> str:
        """Answer one of its tools."""
        raise NotImplementedError(f"{self.name} has no tool {tool_name}.")

    def shutdown(self) -> None:
        """Let go of everything. The last call."""

    # -- hooks ---------------------------------------------------------------------------------------------------

    def on_turn_start(self, turn_number: int, message: str, **kwargs: Any) -> None:  # noqa: ANN401
        """A turn begins."""

    def on_session_end(self, messages: list[dict[str, Any]]) -> None:
        """A stretch is over: extract what is worth keeping. Every turn of it was synced before."""

    def on_session_switch(
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        rewound: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """What follows belongs to another stretch; or turns of this one were taken back (`rewound`)."""

    def on_pre_compress(self, messages: list[dict[str, Any]]) -> str:
        """What a summary of these messages must not leave out."""
        return ""

    def on_memory_write(
        self,
        action: str,
        target: str,
        content: str,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """The built-in memory was changed."""

    def on_delegation(
        self,
        task: str,
        result: str,
        *,
        child_session_id: str = "",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """A piece of work that was given away is done."""
