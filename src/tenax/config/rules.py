"""Rules: what a person decided beforehand for all calls of a kind. The gate asks them, `config.py` reads them.

A deny rule wins over every allow rule. Both patterns of a rule are as a shell's: `*`, `?`, `[...]`; a `*` goes past a `/`.
"""

from __future__ import annotations

import glob
import re
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
_JOINS: Final = re.compile("[;&|<>`$()\n\ufffd]")
_SAFE_TO_WIDEN: Final = ("cat", "du", "head", "ls", "stat", "tail", "wc")
"""Commands that only read and start no other program, whatever their arguments are. A subcommand would belong to the name.
There is none of `git`: even `git status` starts what `core.fsmonitor` names in the settings of the folder."""
_Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person decided for all calls of a kind."""

    verdict: Literal["allow", "deny"]
    tool: _Pattern
    touches: _Pattern = "*"

    def fits(
        self, name: str, touches: str, *, line: bool = False, exact: str = ""
    ) -> bool:
        """Whether it is about this call. `line`: it touches a command line, where a pattern allows no second command.

        `exact` says more than `touches`. It is matched only as a whole: no star in a pattern for the one goes into the other.
        """
        about = fnmatchcase(touches, self.touches) or (
            exact != "" and self.touches == exactly(exact)
        )
        if not (fnmatchcase(name, self.tool) and about):
            return False
        # Servers name their tools themselves: SERVER__TOOL is allowed by what says so, or allows everything.
        named = "__" not in name or "__" in self.tool or self.tool == "*"
        return self.verdict == "deny" or (named and (not line or self._holds(touches)))

    def _holds(self, line: str) -> bool:
        """It says itself what joins the commands there, or allows every line of this kind."""
        kind, before = f"{line.partition(': ')[0]}: ", self.touches.removesuffix("*")
        every = self.touches == "*" or (
            before != self.touches and fnmatchcase(kind, before)
        )
        return every or _JOINS.findall(line) == _JOINS.findall(self.touches)

    @property
    def command(self) -> str:
        """How it is made in a terminal."""
        dashes = (
            ["--"] if self.tool.startswith("-") or self.touches.startswith("-") else []
        )
        return shlex.join(
            ["tenax", "rules", "add", *dashes, self.verdict, self.tool, self.touches]
        )

    def __str__(self) -> str:
        return f"{self.verdict} {self.tool} {self.touches}"


def exactly(text: str) -> str:
    """The pattern that fits this text and no other."""
    return glob.escape(text)


def proposals(
    touches: str, *, paths: bool, line: bool = False, exact: str = ""
) -> list[str]:
    """Return patterns for what a call touches: the exact text first, then a wider pattern if there is a safe one.

    The wider pattern is `touches` where `exact` says more, the folder of a path, or the arguments of a command in
    `_SAFE_TO_WIDEN`. The list is empty if the exact text does not show everything, or is too long to be read before a
    person agrees to it.
    """
    shown = exact or touches
    if (
        not touches.strip()
        or "\ufffd" in shown
        or len(exactly(shown)) > PATTERN_CHARS_MAX
    ):
        return []
    found = [exactly(shown)]
    if exact:
        found.append(exactly(touches))
    folder, slash, _ = touches.rpartition("/")
    if paths and slash:
        found.append(f"{exactly(folder)}/*")
    if line and not _JOINS.search(touches):
        where, _, command = touches.partition(": ")
        names = [name for name in _SAFE_TO_WIDEN if command.startswith(f"{name} ")]
        found += [f"{exactly(where)}: {name} *" for name in names]
    return [pattern for pattern in found if len(pattern) <= PATTERN_CHARS_MAX]


def mistake(rule: Rule) -> str:
    """Why this can be no rule, in words that stand after its name; empty where it can."""
    for name, value in (("tool", rule.tool), ("touches", rule.touches)):
        if not value.strip():
            return f"{name} is empty; for everything it is *"
        if len(value) > PATTERN_CHARS_MAX:
            return f"{name} has more than {PATTERN_CHARS_MAX:,} characters"
        if any(unicodedata.category(each) in UNSEEN for each in value):
            return f"{name} holds a character that cannot be seen"
        if rule.verdict == "allow" and "\ufffd" in value:
            return f"{name} holds U+FFFD, which stands for any character that cannot be seen: take it out"
    return ""
