"""Skills: folders with a `SKILL.md` that says how a kind of task is done. They are named in the prompt, and read when needed.

The person's own stand in the data folder, a repository's in `.tenax/skills` of the conversation's folder. Those may have been
written by anybody: they stand between the marks of instruction files, hide none of the person's, and can allow nothing. A
skill is read inside its folder only, and through no link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tenax.agent.instructions import NOTE, line, marked, read
from tenax.config.rules import Rule
from tenax.errors import ToolFailed
from tenax.tools.base import Call, Tool, aside
from tenax.tools.paths import parent_of, parts_of

__all__ = ["ReadSkill", "ReadSkillArgs", "Skill", "Skills"]

SKILLS_MAX: Final = 50
DESCRIPTION_CHARS_MAX: Final = 200
_FOLDERS_MAX: Final = 200
_READ_CHARS_MAX: Final = 28_000
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_HEAD: Final = re.compile(r"---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_PAIR: Final = re.compile(
    r"^(\w+):[ \t]*(?:[>|][+-]?(?=\n|\Z))?(.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE
)
_QUOTED: Final = re.compile(r"""^(["'])(.*)\1$""")
_BROKEN: Final = "It has no SKILL.md that begins with a line --- and name and description; links are not followed."
_INTRO: Final = "Skills say how a kind of task is done. Read one with read_skill before you do what it is for."


class Skill(msgspec.Struct, frozen=True):
    """One skill, or (`problem`) why a folder is none. It stands at `parts` below `root`; `own`: it is the person's."""

    name: str
    description: str
    root: Path
    parts: list[str]
    own: bool
    problem: str = ""


class Skills:
    """The person's skills, and those of a folder; None where they are not used."""

    def __init__(self, own: Path | None, folder: Path | None) -> None:
        self._own, self._folder = own, folder

    def all(self) -> list[Skill]:
        """Those that can be used, and then those that cannot; the person's first. Reads from a disk."""
        used: dict[str, Skill] = {}
        broken = []
        mine, others = (
            _found(self._own, [], own=True),
            _found(self._folder, [".tenax", "skills"], own=False),
        )
        for each in (*mine, *others):
            problem = each.problem or (
                "There is another one of this name." if each.name in used else ""
            )
            if not problem and len(used) < SKILLS_MAX:
                used[each.name] = each
            else:
                problem = problem or f"There are more than {SKILLS_MAX}."
                broken.append(msgspec.structs.replace(each, problem=problem))
        return [*used.values(), *broken]

    def told(self) -> str:
        """What a prompt says of them; "" where there are none."""
        lines: dict[bool, str] = {True: "", False: ""}
        for each in self.all():
            lines[each.own] += (
                "" if each.problem else f"- {each.name}: {each.description}\n"
            )
        others = (
            f"{NOTE}\n\n{marked('.tenax/skills', lines[False])}" if lines[False] else ""
        )
        said = [each for each in (lines[True].rstrip(), others) if each]
        return "\n\n".join([_INTRO, *said]) if said else ""


class ReadSkillArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which file of which skill."""

    name: str
    file: Annotated[str, Meta(description="A path in the skill's folder.")] = "SKILL.md"


class ReadSkill(Tool[ReadSkillArgs]):
    """Read a skill. What the rules forbid to read in the folder is not read as a part of a skill either."""

    name = "read_skill"
    description = "Read a skill that was named to you, or another file of its folder."
    effect = "pure"
    args = ReadSkillArgs
    seconds = 30.0
    asks = False

    def __init__(
        self, skills: Skills, rules: Callable[[], Iterable[Rule]] = tuple
    ) -> None:
        self._skills, self._rules = skills, rules

    def touches(self, args: ReadSkillArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return "/".join([args.name, *parts_of(args.file)])

    async def run(self, args: ReadSkillArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return await aside(lambda _deserted: self._read(args))

    def _read(self, args: ReadSkillArgs) -> str:
        skill = {
            each.name: each for each in self._skills.all() if not each.problem
        }.get(args.name)
        parts = [*skill.parts, *parts_of(args.file)] if skill is not None else []
        path = "/".join(parts)
        denied = any(
            each.verdict == "deny" and each.fits("read_file", path)
            for each in self._rules()
        )
        text = (
            _text(skill.root, parts)
            if skill is not None and (skill.own or not denied)
            else ""
        )
        if skill is None or not text:
            raise ToolFailed(
                f"There is no skill {args.name[:64]} with a text {args.file[:200]} to be read."
            )
        return text if skill.own else f"{NOTE}\n\n{marked(path, text)}"


def _found(root: Path | None, below: list[str], *, own: bool) -> list[Skill]:
    """The skills in the folders there; none is reached through a link."""
    if root is None:
        return []
    try:
        with (
            parent_of(root, [*below, ""], make=False) as place,
            os.scandir(place) as found,
        ):
            names = [
                each.name for each in islice(found, _FOLDERS_MAX) if not each.is_file()
            ]
    except (OSError, ToolFailed):
        return []
    return [_skill(root, [*below, each], own=own) for each in sorted(names)]


def _skill(root: Path, parts: list[str], *, own: bool) -> Skill:
    head = _HEAD.match(_text(root, [*parts, "SKILL.md"]))
    pairs = dict(_PAIR.findall(head[1])) if head else {}
    name, about = (
        _QUOTED.sub(r"\2", " ".join(pairs.get(each, "").split()))
        for each in ("name", "description")
    )
    if _NAME.fullmatch(name) and about:
        return Skill(name, about[:DESCRIPTION_CHARS_MAX], root, parts, own)
    return Skill(line(parts[-1]), "", root, parts, own, _BROKEN)


def _text(root: Path, parts: list[str]) -> str:
    """What a file says that is inside, on a way without links; "" where there is none."""
    try:
        with parent_of(root, parts, make=False) as place:
            return read(parts[-1], place, _READ_CHARS_MAX)
    except (OSError, ToolFailed):
        return ""
