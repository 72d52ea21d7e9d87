"""Parse a git settings file for paths run or read by git: hooks, the worktree and included settings files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Settings", "parse_settings"]

_HEADER = re.compile(r"\s*\[\s*([\w.-]+)(?:\s+\"(?:[^\"\\]|\\.)*\")?\s*\]")
_KEY = re.compile(r"\s*([A-Za-z][\w-]*)\s*=(.*)")
_VALUE = re.compile(r'\\(.)|"|([#;])|([^\\"#;]+)')
_COMMENTED = re.compile(r'(?:[^"#;\\]|\\.|"(?:[^"\\]|\\.)*")*[#;]')
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


class Settings(NamedTuple):
    hooks: list[str]
    includes: list[str]
    worktree: str


def parse_settings(text: str) -> Settings:
    """Read `core.hooksPath`, `core.worktree`, and the paths of `include` and `includeIf`, ignoring conditions."""
    found = Settings([], [], "")
    section = ""
    for line in _join_lines(text.removeprefix("\ufeff").replace("\r\n", "\n")):
        rest = line
        if header := _HEADER.match(line):
            section, rest = header[1].lower(), line[header.end() :]
        if not (pair := _KEY.match(rest)):
            continue
        name, value = f"{section}.{pair[1].lower()}", _value(pair[2])
        if name == "core.hookspath":
            found.hooks.append(value)
        elif name == "core.worktree":
            found = found._replace(worktree=value)
        elif name in {"include.path", "includeif.path"}:
            found.includes.append(value)
    return found


def _join_lines(text: str) -> Iterator[str]:
    """Join a line ending with a backslash and the next line. In a comment a backslash has no special meaning."""
    begun = ""
    for line in text.split("\n"):
        whole = begun + line
        if whole.endswith("\\") and not _COMMENTED.match(whole):
            begun = whole[:-1]
        else:
            begun = ""
            yield whole
    if begun:
        yield begun


def _value(text: str) -> str:
    """Return the value without quotes, escapes and comment."""
    parts: list[str] = []
    quoted = False
    for piece in _VALUE.finditer(text):
        escaped, comment, plain = piece.groups()
        if escaped:
            parts.append(_ESCAPES.get(escaped, escaped))
        elif comment and not quoted:
            break
        elif comment or plain:
            parts.append(comment or plain)
        else:
            quoted = not quoted
    return "".join(parts).strip(" \t\r")
