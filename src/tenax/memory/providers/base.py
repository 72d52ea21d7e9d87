"""MemoryProvider: the interface of a memory outside of Tenax.

Existing providers of the field use the same names and signatures, so these providers load unchanged. A *session* is a
segment of a conversation, between two compactions. Four members are required; every other member has a default without
effect. Tenax never calls a provider on the thread of a turn (`ProviderHandle`).
"""

# ruff: noqa: ARG002, B027  (a hook that is not overridden takes what it is given and does nothing)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["BUILT_IN", "HOOKS", "MemoryProvider"]

BUILT_IN = "builtin"
"""The name of the built-in memory. Tenax calls the built-in memory directly, without a thread."""
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
        """A short name, the same at every start, because the cursors of the store contain the name."""

    @abstractmethod
    def is_available(self) -> bool:
        """Return whether the provider is set up, without a network call."""

    @abstractmethod
    def initialize(self, session_id: str, **kwargs: Any) -> None:  # noqa: ANN401
        """Prepare for calls, once."""

    @abstractmethod
    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Return the tools for the model, as `{name, description, parameters}`."""

    def system_prompt_block(self) -> str:
        """Return the description of the memory for the model."""
        return ""

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        """Return the recalled text for a turn, within a hard deadline."""
        return ""

    def queue_prefetch(self, query: str, *, session_id: str = "") -> None:
        """Prepare the answer to the next `prefetch`."""

    def sync_turn(
        self,
        user_content: str,
        assistant_content: str,
        *,
        session_id: str = "",
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Store a finished turn. Turns come in order, one at a time."""

    def handle_tool_call(
        self,
        tool_name: str,
        args: dict[str, Any],
        **kwargs: Any,  # noqa: ANN401
    ) -> str:
        """Answer a call of a tool of the provider."""
        raise NotImplementedError(f"{self.name} has no tool {tool_name}.")

    def shutdown(self) -> None:
        """Release every resource. No call follows."""

    # -- hooks ---------------------------------------------------------------------------------------------------

    def on_turn_start(self, turn_number: int, message: str, **kwargs: Any) -> None:  # noqa: ANN401
        """A turn begins."""

    def on_session_end(self, messages: list[dict[str, Any]]) -> None:
        """A session ended: extract the facts worth keeping. Every turn of the session was synced before."""

    def on_session_switch(
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        rewound: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Another session follows, or turns of the session were undone (`rewound`)."""

    def on_pre_compress(self, messages: list[dict[str, Any]]) -> str:
        """Return text to be included in a summary of the messages."""
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
        """A delegated task is done."""
