"""Models behind the protocol in `base`. `connect` creates a model from settings.

The adapters import an HTTP library, so an adapter is imported at its first use.
"""

from __future__ import annotations

from tenax.clock import Timing
from tenax.config import ModelSettings
from tenax.models.base import (
    RETRIED,
    Answer,
    Beat,
    Failure,
    Model,
    Piece,
    Thought,
    ToolSpec,
    Why,
    Words,
)
from tenax.models.scripted import Reply, Script, ScriptedCall, ScriptedModel, Trouble

__all__ = [
    "RETRIED",
    "Answer",
    "Beat",
    "Failure",
    "Model",
    "Piece",
    "Reply",
    "Script",
    "ScriptedCall",
    "ScriptedModel",
    "Thought",
    "ToolSpec",
    "Trouble",
    "Why",
    "Words",
    "connect",
]


def connect(settings: ModelSettings, timing: Timing = Timing()) -> Model:
    """Create the model for the settings. Nothing is sent. Raises `ConfigError` if the key is missing."""
    match settings.api:
        case "openai":
            from tenax.models.openai import OpenAI  # noqa: PLC0415  (heavy)

            return OpenAI(settings, timing)
        case "anthropic":
            from tenax.models.anthropic import Anthropic  # noqa: PLC0415  (heavy)

            return Anthropic(settings, timing)
        case "practice":
            from tenax.models.practice.practice import Practice  # noqa: PLC0415  (heavy)

            return Practice(settings)
        case "script":
            return ScriptedModel.of(settings)
