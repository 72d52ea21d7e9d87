"""What a model may do in the world, and the one gate before it."""

from __future__ import annotations

from tenax.tools.base import Call, Effect, Tool
from tenax.tools.files import EditFile, ReadFile, WriteFile
from tenax.tools.finding import FindFiles, SearchFiles
from tenax.tools.gate import Allowed, Asks, Done, Gate, Refused, Rule

__all__ = [
    "Allowed",
    "Asks",
    "Call",
    "Done",
    "EditFile",
    "Effect",
    "FindFiles",
    "Gate",
    "ReadFile",
    "Refused",
    "Rule",
    "SearchFiles",
    "Tool",
    "WriteFile",
]
