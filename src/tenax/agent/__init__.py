"""The agent: how a message becomes an answer, and what is kept between two of them."""

from tenax.agent.cache import (
    AgentCache,
    Building,
    Fresh,
    Missing,
    OtherSession,
    Stale,
    Unknown,
)
from tenax.agent.compact import (
    Aborted,
    Busy,
    Compacted,
    CoolingDown,
    NothingToDo,
    Outcome,
    Superseded,
    compact,
)
from tenax.agent.loop import Agent, Limits

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
