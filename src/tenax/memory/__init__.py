"""Memory: what an agent keeps beyond a conversation, in its own store and in providers from outside."""

from __future__ import annotations

from tenax.memory.base import MemoryProvider
from tenax.memory.manager import MemoryManager

__all__ = ["MemoryManager", "MemoryProvider"]
