"""Pure folds over the events of a conversation: the transcript, the context of the model, and the open work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenax.events import KINDS

__all__ = ["steps_of"]


def steps_of(fold: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a fold by kind of event. The method `_message_user` folds events of kind `message.user`."""
    steps: dict[str, Callable[..., Any]] = {}
    for kind in KINDS:
        step = getattr(fold, f"_{kind.replace('.', '_')}", None)
        if step is not None:
            steps[kind] = step
    return steps
