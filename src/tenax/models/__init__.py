"""Models, behind the contract in `base`. `connect` makes one from its settings.

The adapters bring an HTTP library along, so each is imported when it is first needed.
"""

from __future__ import annotations

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
from tenax.models.scripted import Call, Reply, Script, ScriptedModel, Trouble

__all__ = [
    "RETRIED",
    "Answer",
    "Beat",
    "Call",
    "Failure",
    "Model",
    "Piece",
    "Reply",
    "Script",
    "ScriptedModel",
    "Thought",
    "ToolSpec",
    "Trouble",
    "Why",
    "Words",
    "connect",
]


def connect(settings: ModelSettings) -> Model:
    """The model of these settings. Nothing is sent yet; a key that is missing is a ConfigError now."""
    match settings.api:
        case "openai":
            from tenax.models.openai import OpenAI  # noqa: PLC0415  (heavy)

            return OpenAI(settings)
        case "anthropic":
            from tenax.models.anthropic import Anthropic  # noqa: PLC0415  (heavy)

            return Anthropic(settings)
        case "practice":
            from tenax.models.practice.practice import Practice  # noqa: PLC0415  (heavy)

            return Practice(settings)
        case "script":
            return ScriptedModel.of(settings)
