"""MemoryManager: a group of memory providers, with the names fixed by the contracts.

The caller queues turns, in memory. Tenax itself delivers turns from the journal (`Delivery`), through the same handles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenax.memory.providers.base import MemoryProvider
from tenax.memory.providers.group import ProviderGroup
from tenax.memory.providers.handle import ProviderHandle

__all__ = ["MemoryManager"]


class MemoryManager(ProviderGroup):
    """The memories of an agent."""

    def add_provider(self, provider: MemoryProvider) -> ProviderHandle:
        """Add a provider. Only the name of the provider is read."""
        handle = ProviderHandle(provider)
        self.add(handle)
        return handle

    def sync_all(
        self,
        user: str,
        assistant: str,
        *,
        session_id: str = "",
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Queue a finished turn for every provider. Returns at once."""
        self.deliver_all(
            "sync_turn", user, assistant, session_id=session_id, messages=messages
        )

    def queue_prefetch_all(self, query: str, *, session_id: str = "") -> None:
        """Let every provider prepare for the next turn. Returns at once."""
        self.deliver_all("queue_prefetch", query, session_id=session_id)

    def prefetch_all(self, query: str, *, session_id: str = "") -> str:
        """Return the texts recalled in time by the providers, as a single text. The text is not quoted yet."""
        return "\n\n".join(self.recall(query, session_id=session_id).texts.values())
