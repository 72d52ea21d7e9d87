"""Memory: what an agent keeps beyond a conversation, in its own store and in providers from outside."""

from __future__ import annotations

from tenax.fence import Scrubber, fence, scrub
from tenax.memory.base import BUILT_IN, HOOKS, MemoryProvider
from tenax.memory.manager import MemoryManager, Recalled, Standing
from tenax.memory.plugins import GROUPS, Loaded, find_plugins, load_plugin

__all__ = [
    "BUILT_IN",
    "GROUPS",
    "HOOKS",
    "Loaded",
    "MemoryManager",
    "MemoryProvider",
    "Recalled",
    "Scrubber",
    "Standing",
    "fence",
    "find_plugins",
    "load_plugin",
    "scrub",
]
