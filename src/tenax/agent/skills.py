"""Skills: folders with a `SKILL.md` that explains a kind of task.

The prompt lists the names, and the model reads a skill when needed. The person's own skills are in the data folder, a
repository's skills in `.tenax/skills` of the conversation's folder. Anybody may have written a repository's skill. So
its text is quoted like an instruction file, cannot hide a skill of the person, and grants no permission. A skill is
read only inside its folder, and never through a link.
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

from tenax.agent.instructions import NOTE, line, mark, read
from tenax.concurrency import run_in_own_thread
from tenax.config.rules import Rule
from tenax.errors import ToolFailed
from tenax.tools.base import Args, Call, Tool
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
    """A skill, or a folder that is not a valid skill (`problem` gives the reason).

    The skill is at `parts` below `root`. `own` marks a skill of the person.
    """

    name: str
    description: str
    root: Path
    parts: list[str]
    own: bool
    problem: str = ""


class Skills:
    """The person's skills and the skills of a folder. `None` disables a source."""

    def __init__(self, personal: Path | None, folder: Path | None) -> None:
        self._personal, self._folder = personal, folder

    def in_folder(self, folder: Path) -> Skills:
        """Return the person's skills and the skills of another folder, unless the skills of folders are disabled."""
        return Skills(self._personal, folder if self._folder is not None else None)

    def all(self) -> list[Skill]:
        """Return the usable skills, then the unusable skills. The person's skills come first. Reads from the disk."""
        usable: dict[str, Skill] = {}
        broken = []
        personal_skills, folder_skills = (
            _list_skills(self._personal, [], own=True),
            _list_skills(self._folder, [".tenax", "skills"], own=False),
        )
        for skill in (*personal_skills, *folder_skills):
            problem = skill.problem or (
                "There is another one of this name." if skill.name in usable else ""
            )
            if not problem and len(usable) < SKILLS_MAX:
                usable[skill.name] = skill
            else:
                problem = problem or f"There are more than {SKILLS_MAX}."
                broken.append(msgspec.structs.replace(skill, problem=problem))
        return [*usable.values(), *broken]

    def describe_skills(self) -> str:
        """Return the list of skills for a prompt, or "" if there are none."""
        lines: dict[bool, str] = {True: "", False: ""}
        for skill in self.all():
            lines[skill.own] += (
                "" if skill.problem else f"- {skill.name}: {skill.description}\n"
            )
        folder_section = (
            f"{NOTE}\n\n{mark('.tenax/skills', lines[False])}" if lines[False] else ""
        )
        sections = [
            section for section in (lines[True].rstrip(), folder_section) if section
        ]
        return "\n\n".join([_INTRO, *sections]) if sections else ""


class ReadSkillArgs(Args):
    """Which file of which skill."""

    name: str
    file: Annotated[str, Meta(description="A path in the skill's folder.")] = "SKILL.md"


class ReadSkill(Tool[ReadSkillArgs]):
    """Read a skill. Deny rules for files of the folder also apply to the skills of the folder."""

    name = "read_skill"
    description = "Read a skill that was named to you, or another file of its folder."
    effect = "pure"
    args = ReadSkillArgs
    seconds = 30.0
    asks = False
    only_reads = True

    def __init__(
        self, skills: Skills, rules: Callable[[], Iterable[Rule]] = tuple
    ) -> None:
        self._skills, self._rules = skills, rules

    def touches(self, args: ReadSkillArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return "/".join([args.name, *parts_of(args.file)])

    async def run(self, args: ReadSkillArgs, call: Call) -> str:
        skills = self._skills.in_folder(call.folder)
        return await run_in_own_thread(lambda: self._read_skill(args, skills))

    def _read_skill(self, args: ReadSkillArgs, skills: Skills) -> str:
        skill = {skill.name: skill for skill in skills.all() if not skill.problem}.get(
            args.name
        )
        parts = [*skill.parts, *parts_of(args.file)] if skill is not None else []
        path = "/".join(parts)
        is_denied = any(
            rule.verdict == "deny" and rule.matches("read_file", path)
            for rule in self._rules()
        )
        text = (
            _text(skill.root, parts)
            if skill is not None and (skill.own or not is_denied)
            else ""
        )
        if skill is None or not text:
            raise ToolFailed(
                f"There is no skill {args.name[:64]} with a text {args.file[:200]} to be read."
            )
        return text if skill.own else f"{NOTE}\n\n{mark(path, text)}"


def _list_skills(root: Path | None, below: list[str], *, own: bool) -> list[Skill]:
    """Return the skills in the subfolders of a folder. Links are not followed."""
    if root is None:
        return []
    try:
        with (
            parent_of(root, [*below, ""], make=False) as folder,
            os.scandir(folder) as entries,
        ):
            names = [
                entry.name
                for entry in islice(entries, _FOLDERS_MAX)
                if not entry.is_file()
            ]
    except (OSError, ToolFailed):
        return []
    return [_read_skill(root, [*below, name], own=own) for name in sorted(names)]


def _read_skill(root: Path, parts: list[str], *, own: bool) -> Skill:
    head = _HEAD.match(_text(root, [*parts, "SKILL.md"]))
    pairs = dict(_PAIR.findall(head[1])) if head else {}
    name, about = (
        _QUOTED.sub(r"\2", " ".join(pairs.get(field, "").split()))
        for field in ("name", "description")
    )
    if _NAME.fullmatch(name) and about:
        return Skill(name, about[:DESCRIPTION_CHARS_MAX], root, parts, own)
    return Skill(line(parts[-1]), "", root, parts, own, _BROKEN)


def _text(root: Path, parts: list[str]) -> str:
    """Return the text of a file below `root`, or "" if the file cannot be read. Links are not followed."""
    try:
        with parent_of(root, parts, make=False) as folder:
            return read(parts[-1], folder, _READ_CHARS_MAX)
    except (OSError, ToolFailed):
        return ""
