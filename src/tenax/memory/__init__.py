"""Memory: knowledge kept by an agent beyond a conversation, in its own store and in external providers.

`MemoryManager` is loaded on first use: the class is in `tenax.compat`, a package built on the modules of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tenax.memory.providers.base import MemoryProvider

if TYPE_CHECKING:
    from tenax.compat.manager import MemoryManager
else:

    def __getattr__(name: str) -> object:
        if name == "MemoryManager":
            return import_module("tenax.compat.manager").MemoryManager
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["MemoryManager", "MemoryProvider"]
