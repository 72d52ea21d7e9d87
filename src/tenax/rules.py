"""Rules: what a person decided beforehand for all calls of a kind. The gate asks them, `config.py` reads them.

A deny rule wins over every allow rule. Both patterns of a rule are as a shell's: `*`, `?`, `[...]`; a `*` goes past a `/`.
"""

from __future__ import annotations

import glob
import shlex
import unicodedata
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

__all__ = ["PATTERN_CHARS_MAX", "UNSEEN", "Rule", "exactly", "mistake", "proposals"]

PATTERN_CHARS_MAX: Final = 2000
UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""The categories of characters that hide, or change how others look. What a call touches is told without them."""
_Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person decided for all calls of a kind."""

    verdict: Literal["allow", "deny"]
    tool: _Pattern
    touches: _Pattern = "*"

    def fits(self, name: str, touches: str) -> bool:
        return fnmatchcase(name, self.tool) and fnmatchcase(touches, self.touches)

    @property
    def command(self) -> str:
        """How it is made in a terminal."""
        dashes = ["--"] if self.tool.startswith("-") or self.touches.startswith("-") else []
        return shlex.join(["tenax", "rules", "add", *dashes, self.verdict, self.tool, self.touches])

    def __str__(self) -> str:
        return f"{self.verdict} {self.tool} {self.touches}"


def exactly(text: str) -> str:
    """The pattern that fits this text and no other."""
    return glob.escape(text)


def proposals(touches: str, *, paths: bool) -> list[str]:
    """Patterns for what a call touches: this very thing, and where that is a path, everything in its folder.

    None where the line does not tell everything, or is too long to be read before it is agreed to.
    """
    if not touches.strip() or "\ufffd" in touches:
        return []
    folder, slash, _ = touches.rpartition("/")
    found = [exactly(touches), *([f"{exactly(folder)}/*"] if paths and slash else [])]
    return [each for each in found if len(each) <= PATTERN_CHARS_MAX]


def mistake(rule: Rule) -> str:
    """Why this can be no rule, in words that stand after its name; empty where it can."""
    for name, value in (("tool", rule.tool), ("touches", rule.touches)):
        if not value.strip():
            return f"{name} is empty; for everything it is *"
        if len(value) > PATTERN_CHARS_MAX:
            return f"{name} has more than {PATTERN_CHARS_MAX:,} characters"
        if any(unicodedata.category(each) in UNSEEN for each in value):
            return f"{name} holds a character that cannot be seen"
    return ""
