"""Memory: what an agent keeps beyond a conversation, in its own store and in providers from outside."""

from __future__ import annotations

from tenax.memory.manager import MemoryManager
from tenax.memory.providers.base import MemoryProvider

__all__ = ["MemoryManager", "MemoryProvider"]
