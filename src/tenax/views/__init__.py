"""What a person sees, what a model sees, what is open: pure folds over events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenax.events import KINDS

__all__ = ["steps_of"]


def steps_of(fold: type) -> dict[str, Callable[..., Any]]:
    """What a fold does with an event, by its kind: `message.user` is taken in by `_message_user`, if there is one."""
    found = {kind: getattr(fold, f"_{kind.replace('.', '_')}", None) for kind in KINDS}
    return {kind: step for kind, step in found.items() if step is not None}
