"""The agent: answers messages, and keeps state between messages.

Names are imported at first use, because some live in `tenax.compat`, and `tenax.compat` imports the modules of the
package.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenax.agent.compaction import (
        Aborted,
        Busy,
        Compacted,
        CoolingDown,
        NothingToDo,
        Outcome,
        Superseded,
    )
    from tenax.agent.loop import Agent, Limits
    from tenax.compat.agent_cache import (
        AgentCache,
        Building,
        Fresh,
        Missing,
        OtherSession,
        Stale,
        Unknown,
    )
    from tenax.compat.compact import compact
else:
    _MODULES = {
        "tenax.agent.compaction": (
            "Aborted",
            "Busy",
            "Compacted",
            "CoolingDown",
            "NothingToDo",
            "Outcome",
            "Superseded",
        ),
        "tenax.agent.loop": ("Agent", "Limits"),
        "tenax.compat.agent_cache": (
            "AgentCache",
            "Building",
            "Fresh",
            "Missing",
            "OtherSession",
            "Stale",
            "Unknown",
        ),
        "tenax.compat.compact": ("compact",),
    }

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Aborted",
    "Agent",
    "AgentCache",
    "Building",
    "Busy",
    "Compacted",
    "CoolingDown",
    "Fresh",
    "Limits",
    "Missing",
    "NothingToDo",
    "OtherSession",
    "Outcome",
    "Stale",
    "Superseded",
    "Unknown",
    "compact",
]
