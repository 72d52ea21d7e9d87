"""Rules: decisions about future calls of tools. The gate applies them, `read.py` reads them.

A deny rule takes precedence over every allow rule. Both patterns of a rule follow the shell: `*`, `?`, `[...]`; a `*`
also matches `/`.
"""

from __future__ import annotations

import glob
import re
import shlex
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tenax.text import has_hidden

__all__ = [
    "PATTERN_CHARS_MAX",
    "Rule",
    "escape_pattern",
    "find_mistake",
    "propose_patterns",
]

PATTERN_CHARS_MAX: Final = 2000
# Characters that join commands in a command line. U+FFFD stands for an invisible character, such as a line break.
_OPERATORS: Final = re.compile("[;&|<>`$()\n\ufffd]")
# Commands that only read and start no other program, whatever their arguments are. `git` is not among them: even
# `git status` starts the program that `core.fsmonitor` names in the settings of the repository.
_SAFE_TO_WIDEN: Final = ("cat", "du", "head", "ls", "stat", "tail", "wc")
_Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decision for calls matching two patterns."""

    verdict: Literal["allow", "deny"]
    tool: _Pattern
    touches: _Pattern = "*"

    def matches(
        self, name: str, touches: str, *, line: bool = False, exact: str = ""
    ) -> bool:
        """Return whether the rule applies to a call of the tool `name`.

        With `line`, `touches` is a command line, and an allow rule must not allow a second command in it. `exact` is a
        longer text for the same call, such as a whole URL. A pattern matches `exact` as a whole or not at all: a star
        that was meant for `touches` must not match more of `exact`.
        """
        is_about = fnmatchcase(touches, self.touches) or (
            exact != "" and self.touches == escape_pattern(exact)
        )
        if not (fnmatchcase(name, self.tool) and is_about):
            return False
        if self.verdict == "deny":
            return True
        # A server chooses the names of its tools, so that only a pattern with `__`, or `*`, allows SERVER__TOOL.
        if "__" in name and "__" not in self.tool and self.tool != "*":
            return False
        return not line or self._allows_line(touches)

    def _allows_line(self, line: str) -> bool:
        """Return whether the pattern allows every line of the kind, or contains the same operators as the line."""
        kind = f"{line.partition(': ')[0]}: "
        prefix = self.touches.removesuffix("*")
        if self.touches == "*" or (
            prefix != self.touches and fnmatchcase(kind, prefix)
        ):
            return True
        return _OPERATORS.findall(line) == _OPERATORS.findall(self.touches)

    @property
    def command(self) -> str:
        """The terminal command to add the rule."""
        words = ["tenax", "rules", "add"]
        if self.tool.startswith("-") or self.touches.startswith("-"):
            words.append("--")
        return shlex.join([*words, self.verdict, self.tool, self.touches])

    def __str__(self) -> str:
        return f"{self.verdict} {self.tool} {self.touches}"


def escape_pattern(text: str) -> str:
    """Return the pattern for exactly the given text."""
    return glob.escape(text)


def propose_patterns(
    touches: str, *, paths: bool, line: bool = False, exact: str = ""
) -> list[str]:
    """Return patterns for a call: the exact text first, then a wider pattern if a safe pattern exists.

    The wider pattern is `touches` where `exact` says more, the folder of a path, or the arguments of a command in
    `_SAFE_TO_WIDEN`. The list is empty if the exact text does not show everything, or is too long for a person to read
    before agreeing.
    """
    shown = exact or touches
    if (
        not touches.strip()
        or "\ufffd" in shown
        or len(escape_pattern(shown)) > PATTERN_CHARS_MAX
    ):
        return []
    found = [escape_pattern(shown)]
    if exact:
        found.append(escape_pattern(touches))
    folder, slash, _ = touches.rpartition("/")
    if paths and slash:
        found.append(f"{escape_pattern(folder)}/*")
    if line and not _OPERATORS.search(touches):
        where, _, command = touches.partition(": ")
        names = [name for name in _SAFE_TO_WIDEN if command.startswith(f"{name} ")]
        found += [f"{escape_pattern(where)}: {name} *" for name in names]
    return [pattern for pattern in found if len(pattern) <= PATTERN_CHARS_MAX]


def find_mistake(rule: Rule) -> str:
    """Return the reason why a rule is invalid, as the end of a sentence, or "" if the rule is valid."""
    for name, value in (("tool", rule.tool), ("touches", rule.touches)):
        if not value.strip():
            return f"{name} is empty; write * to match everything"
        if len(value) > PATTERN_CHARS_MAX:
            return f"{name} has more than {PATTERN_CHARS_MAX:,} characters"
        if has_hidden(value):
            return f"{name} contains an invisible character"
        if rule.verdict == "allow" and "\ufffd" in value:
            return f"{name} contains U+FFFD, which stands for any invisible character: remove it"
    return ""
