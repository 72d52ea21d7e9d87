"""The interfaces of the extensions of a runtime. `tenax.assembly` builds the extensions; the core never imports them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tenax.agent.loop import AgentMemory, FolderChanges
from tenax.config import McpSettings
from tenax.events import Reason
from tenax.models import Model
from tenax.tools.base import Tool

__all__ = ["Extensions", "MemoryWork", "ToolServers", "WatchedFolder"]


class MemoryWork(Protocol):
    """The memory of a user, with the background work for the memory."""

    @property
    def memory(self) -> AgentMemory:
        """The memory for the agents."""

    async def start(
        self, find_reviewer: Callable[[str], Awaitable[Model | None]] | None
    ) -> None:
        """Start the background work. Without `find_reviewer` no conversation is reviewed."""

    def tool(self) -> Tool[Any]:
        """Return the tool of the built-in memory."""

    def offered(self) -> Sequence[object]:
        """Return the descriptions of the providers' tools, for a comparison."""

    def provider_tools(self, used_names: set[str]) -> list[Tool[Any]]:
        """Return the tools of the providers, except tools with a name in `taken`."""

    def handle_answer(self, conversation: str) -> None:
        """Handle a finished and stored turn."""

    async def record_boundary(self, conversation: str, reason: Reason) -> None:
        """Record a boundary."""

    async def must_keep(self, messages: list[dict[str, Any]]) -> str:
        """Return text to be included in a summary of the messages."""

    async def record_compaction(self, session: str) -> None:
        """Record a boundary for a session ended by a summary."""

    async def record_abandoned(self) -> None:
        """Record the boundaries of abandoned conversations."""

    async def close(self, seconds: float) -> None:
        """End the background work within a time."""


class ToolServers(Protocol):
    """The servers with additional tools."""

    def use(self, wanted: Mapping[str, McpSettings]) -> None:
        """Connect to the wanted servers, and end the rest."""

    def offered(self) -> Sequence[object]:
        """Return the descriptions of the servers' tools, for a comparison."""

    def tools(self, taken: Collection[str]) -> list[Tool[Any]]:
        """Return the tools of every server, except tools with a name in `taken`."""

    async def close(self) -> None:
        """End the servers and their processes."""


class WatchedFolder(FolderChanges, Protocol):
    """The folder of the user's tools, with the changes of the files."""

    folder: Path

    async def report_orphans(self) -> None:
        """Append the changes of calls whose process died."""

    async def forget(self) -> None:
        """Delete the stored file contents after an erasure."""

    async def try_briefly(self, work: Awaitable[None], *, seconds: float = ...) -> None:
        """Wait for `work` up to a timeout, and log errors."""


@dataclass(frozen=True, eq=False)
class Extensions:
    """The extensions of a runtime, for one user."""

    memory: MemoryWork
    servers: ToolServers
    changes: WatchedFolder
