"""A thread, where there is room for one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["started"]


def started(work: Callable[[], object], name: str) -> threading.Thread | None:
    """A daemon that does this; None where the system has no room for one more thread now. Nothing was begun then."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
