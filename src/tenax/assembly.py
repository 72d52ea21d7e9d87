"""The runtime with its extensions: memory, schedules, MCP servers and file changes.

The core (`tenax.runtime`) knows interfaces only. This module builds the extensions and passes them to the core.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from tenax.agent.loop import Limits
from tenax.config import Config
from tenax.journal import LOCAL_USER, Journal
from tenax.journal.aio import AsyncJournal
from tenax.journal.arguments import checked
from tenax.memory.service import MemoryService
from tenax.models import Model
from tenax.runtime.agents import Setting, list_private_paths
from tenax.runtime.extensions import Extensions
from tenax.runtime.runtime import CoreRuntime, open_store
from tenax.schedules.scheduler import Scheduler
from tenax.schedules.tool import UseSchedules
from tenax.tools.folders import folder_of
from tenax.tools.mcp.servers import McpServers
from tenax.tools.paths import real_folder
from tenax.workspace.changes import Changes, PutBack, TurnChanges

__all__ = ["Runtime"]

log = logging.getLogger(__name__)


@checked
class Runtime(CoreRuntime):
    """The conversations of a user, answered in the process. Usage: `async with Runtime(config) as runtime`.

    A runtime with `serves` continues work left by other processes. A runtime without `serves` answers only submitted
    messages, and ends. `asks` is whether a person is available for approvals.
    """

    _changes: Changes

    def __init__(
        self,
        config: Config,
        *,
        user: str = LOCAL_USER,
        journal: Journal | None = None,
        models: Sequence[Model] | None = None,
        asks: bool = True,
        serves: bool = True,
        limits: Limits | None = None,
        on_held: Callable[[str, int], None] | None = None,
    ) -> None:
        self._owns = journal is None
        store = open_store(config, user) if journal is None else journal
        shared = AsyncJournal(store)
        memory_service = MemoryService(shared, config)
        self.memory = memory_service.memory
        """The memory of the user, shared by the conversations."""
        cache = config.directories.state / "mcp"
        self.mcp = McpServers(config.directories.servers, cache, config.timing)
        """The MCP servers, with additional tools. Only the owner has the servers, no other user."""
        changes = _watch_folder(config, shared)
        super().__init__(
            config,
            shared,
            Extensions(memory_service, self.mcp, changes),
            models=models,
            asks=asks,
            serves=serves,
            limits=limits,
            on_held=on_held,
        )
        self.schedules = Scheduler(
            shared, self.agents.explain_silence, self.workers.wake
        )
        """The schedules of the user."""
        self.agents.offers.insert(0, UseSchedules(self.schedules))

    async def start(self) -> None:
        """Repair and continue the runs of dead processes. No conversation has to be opened for the repair."""
        await super().start()
        if self._serves:
            self.agents.tasks.start("schedules", self.schedules.run)

    async def close(self) -> None:
        """Interrupt the runs of the process, for the next start to continue, and close the store.

        The runtime does not wait for an unresponsive store. The spool holds the output not yet stored.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self.config.timing.close_seconds
        await super().close()
        if not self._owns:
            self.journal.let_go()
            return
        try:
            await asyncio.wait_for(self.journal.close(), max(0.5, until - loop.time()))
        except TimeoutError:
            log.warning(
                "The store does not answer, and was left as it is.",
                extra={"action": "left"},
            )

    async def changes(
        self, conversation: str, turn: str | None = None
    ) -> list[TurnChanges]:
        """Return the file changes of the last turns, or of a single turn: the id of a run, or the seq of a revert."""
        return await self._changes.turns(conversation, turn)

    async def put_back(self, conversation: str, turn: str) -> PutBack:
        """Revert the files to before a turn, except files changed after the turn. A revert can be reverted too."""
        projects = [
            self.agents.folder_of(Setting("", project=project))
            for project in await self.projects.all()
            if project.folder
        ]
        return await self._changes.put_back(conversation, turn, projects)


def _watch_folder(config: Config, journal: AsyncJournal) -> Changes:
    """Return the watch over the folder of the user's tools. A changed `tools.folder` applies at the next start."""
    folder = folder_of(config, journal.user or "")
    # Resolve the folder now. A later replacement of the path changes nothing.
    real_folder(folder)
    return Changes(
        journal,
        folder,
        config.directories.snapshots,
        list_private_paths(config),
        config.timing,
    )
