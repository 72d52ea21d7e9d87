"""What a model may do in the world, and the one gate before it."""

from __future__ import annotations

from tenax.tools.base import Call, Effect, Tool
from tenax.tools.files import ReadFile, WriteFile
from tenax.tools.gate import Allowed, Asks, Done, Gate, Refused, Rule

__all__ = [
    "Allowed",
    "Asks",
    "Call",
    "Done",
    "Effect",
    "Gate",
    "ReadFile",
    "Refused",
    "Rule",
    "Tool",
    "WriteFile",
]
