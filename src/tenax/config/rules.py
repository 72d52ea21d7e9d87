"""Rules: decisions about future calls of tools. The gate applies them, `read.py` reads them.

A deny rule takes precedence over every allow rule. Both patterns of a rule follow the shell: `*`, `?`, `[...]`. A `*`
also matches `/`, except in an allow rule about the path of a file: there only `**` does.
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
    "propose",
]

PATTERN_CHARS_MAX: Final = 2000
# Characters that join commands in a command line. U+FFFD stands for an invisible character, such as a line break.
_OPERATORS: Final = re.compile("[;&|<>`$()\n\ufffd]")
# Commands that only read and start no other program, whatever their arguments are.
_READERS: Final = frozenset({"cat", "du", "head", "ls", "stat", "tail", "wc"})
# Subcommands with arguments that cannot name another command. Everything else is offered as the exact line only: shells and
# interpreters (sh, python), wrappers (env, sudo, xargs, ssh, make), and subcommands that run a command from their arguments
# (git rebase, git bisect, npm exec, cargo run, uv run). git reads programs only from settings, which the sandbox protects.
_GIT: Final = "add blame branch commit describe diff log ls-files mv rev-parse show status switch tag"
_SUBCOMMANDS: Final = {
    "git": frozenset(_GIT.split()),
    "ruff": frozenset({"check", "format"}),
}
# Subcommands that run code of the folder, such as its tests. The note says so.
_OWN_CODE: Final = {
    "cargo": frozenset({"bench", "build", "check", "clippy", "doc", "fmt", "test"}),
    "go": frozenset({"build", "fmt", "test", "vet"}),
    "npm": frozenset({"ci", "install", "run", "test"}),
    "pnpm": frozenset({"install", "run", "test"}),
    "yarn": frozenset({"install", "run", "test"}),
}
_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_:-]*")
_SUFFIX: Final = re.compile(r"[^/]+\.([A-Za-z0-9]{1,10})")
_Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decision for calls matching two patterns."""

    verdict: Literal["allow", "deny"]
    tool: _Pattern
    touches: _Pattern = "*"

    def matches(
        self,
        name: str,
        touches: str,
        *,
        line: bool = False,
        paths: bool = False,
        exact: str = "",
    ) -> bool:
        """Return whether the rule applies to a call of the tool `name`.

        With `line`, `touches` is a command line, and an allow rule must not allow a second command in it. With `paths`,
        `touches` is a path, and a `*` of an allow rule does not match folders below. `exact` is a longer text for the
        same call, such as a whole URL. A pattern matches `exact` as a whole or not at all: a star that was meant for
        `touches` must not match more of `exact`.
        """
        is_about = fnmatchcase(touches, self.touches) or (
            exact != "" and self.touches == escape_pattern(exact)
        )
        if line and self.touches.endswith(" *"):
            # `ls *` also means `ls` without arguments.
            is_about = is_about or fnmatchcase(touches, self.touches[:-2])
        if not (fnmatchcase(name, self.tool) and is_about):
            return False
        if self.verdict == "deny":
            return True
        # A server chooses the names of its tools, so that only a pattern with `__`, or `*`, allows SERVER__TOOL.
        if "__" in name and "__" not in self.tool and self.tool != "*":
            return False
        if paths and not _stays_in_folder(self.touches, touches):
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


def _stays_in_folder(pattern: str, path: str) -> bool:
    """Return whether only the `**` of a pattern match a `/` of the path that it matches. A lone `*` means every file."""
    if pattern == "*":
        return True
    if "**" not in pattern:
        return path.count("/") == pattern.count("/")
    # Between the first and the last `**` everything is allowed. The ends have as many slashes as their patterns, so
    # that each `/` is matched by a `/`.
    names = path.split("/")
    first, last = pattern.partition("**")[0], pattern.rpartition("**")[2]
    beginning = "/".join(names[: first.count("/") + 1])
    end = "/".join(names[len(names) - last.count("/") - 1 :])
    return fnmatchcase(beginning, f"{first}*") and fnmatchcase(end, f"*{last}")


def propose(
    touches: str, *, paths: bool, line: bool = False, exact: str = ""
) -> dict[str, str]:
    """Return patterns for a call, each with a note about what it leaves open: the exact text first, then wider patterns.

    The wider patterns are `touches` where `exact` says more; the files with the same suffix in the folder of a path, and
    the folder with all below; and the arguments of a known command. Nothing is proposed if the exact text does not show everything, or
    is too long for a person to read before agreeing.
    """
    shown = exact or touches
    if (
        not touches.strip()
        or "\ufffd" in shown
        or len(escape_pattern(shown)) > PATTERN_CHARS_MAX
    ):
        return {}
    found = {escape_pattern(shown): ""}
    if exact:
        found.setdefault(escape_pattern(touches), "")
    if paths:
        found |= _propose_files(touches)
    if line and not _OPERATORS.search(touches):
        where, _, command = touches.partition(": ")
        beginning, note = _known_beginning(command)
        if beginning:
            found[f"{escape_pattern(where)}: {beginning} *"] = note
    return {
        pattern: note
        for pattern, note in found.items()
        if len(pattern) <= PATTERN_CHARS_MAX
    }


def _propose_files(path: str) -> dict[str, str]:
    """Return wider patterns for a path: the same suffix in its folder, and everything in the folder and below."""
    folder, slash, name = path.rpartition("/")
    where = f"in {folder}" if slash else "in this folder"
    beginning = f"{escape_pattern(folder)}/" if slash else ""
    found = {}
    if suffix := _SUFFIX.fullmatch(name):
        found[f"{beginning}*.{suffix[1]}"] = f"every .{suffix[1]} file {where}"
    if slash:
        found[f"{beginning}**"] = f"every file {where} and below"
    return found


def _known_beginning(command: str) -> tuple[str, str]:
    """Return the words of a known command that a pattern may be followed by any arguments, and a note; or nothing."""
    words = command.split(" ")
    program, *rest = words
    if program in _READERS:
        return program, "any arguments"
    subcommand = rest[0] if rest else ""
    if subcommand in _SUBCOMMANDS.get(program, ()):
        return f"{program} {subcommand}", "any arguments"
    if subcommand not in _OWN_CODE.get(program, ()):
        return "", ""
    named = [program, subcommand]
    if subcommand == "run":
        # Only this script.
        script = rest[1] if len(rest) > 1 else ""
        if not _PLAIN_WORD.fullmatch(script):
            return "", ""
        named.append(script)
    return " ".join(named), "any arguments; it runs code of this folder"


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
