"""Import a file, a folder or a zip file: recognise the format, store the conversations, memories and skills."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from tenax.concurrency import sync_directory
from tenax.config import Config
from tenax.errors import InvalidInput, Refused, TenaxError, TooLarge
from tenax.events import MessageAssistant, MessageUser, ToolFinished
from tenax.importers import own
from tenax.importers.draft import Draft, MemoryDraft, SkillDraft, Skipped, Source
from tenax.importers.place import Place
from tenax.importers.storing import Found, Importer
from tenax.journal import Journal
from tenax.memory.entries import MemoryEntries
from tenax.text import clean_name

__all__ = ["FORMATS", "Imported", "Progress", "import_from"]

FORMATS: Final = {
    "tenax": "Tenax",
    "hermes": "Hermes Agent",
    "claude-code": "Claude Code",
    "chatgpt": "ChatGPT",
    "claude-ai": "Claude.ai",
    "open-webui": "Open WebUI",
    "librechat": "LibreChat",
}
"""The names of the formats, and of the programs for people."""
_SKIPPED_MAX: Final = 1000
"""The number of skipped conversations that are listed. All of them are counted."""
_SKILL_BYTES_MAX: Final = 64 * 1024**2

Progress = Callable[[int], None]
"""Called with the number of finished conversations."""


class Imported(msgspec.Struct, kw_only=True):
    """What an import did, or in a dry run would do."""

    kind: str
    program: str
    dry_run: bool
    new: int = 0
    """New conversations."""
    grown: int = 0
    """Conversations that got more messages."""
    unchanged: int = 0
    beside: int = 0
    """Conversations that went on differently here, and were stored once more beside."""
    deleted: int = 0
    """Conversations that were deleted here, and were not imported again."""
    messages: int = 0
    tool_calls: int = 0
    files: int = 0
    missing_files: int = 0
    memories: int = 0
    known_memories: int = 0
    skills: int = 0
    known_skills: int = 0
    left_skills: int = 0
    """New skills that were not imported, because the caller wanted none."""
    skipped: int = 0
    reasons: list[str] = []
    """The first skipped conversations, memories and skills, with the reasons."""
    left_out: dict[str, int] = {}
    """What was not taken, by description."""
    conversations: list[str] = []
    """The ids of the first new conversations."""

    def skip(self, what: str, why: str) -> None:
        self.skipped += 1
        if len(self.reasons) < _SKIPPED_MAX:
            self.reasons.append(f"{what}: {why}")


def import_from(
    config: Config,
    journal: Journal,
    path: Path,
    *,
    kind: str | None = None,
    dry_run: bool = False,
    remember: bool = False,
    with_skills: bool = True,
    progress: Progress | None = None,
) -> Imported:
    """Import everything at a path for the user of the journal. Raises `InvalidInput` if the path cannot be read.

    `kind` names the format; otherwise the content tells. With `remember`, the memory follows the conversations.
    """
    with contextlib.closing(Place(path)) as place:
        if kind in {None, own.KIND} and own.is_own(place):
            return _import_own(journal, place, dry_run=dry_run, progress=progress)
        source = _open_source(place, kind)
        with contextlib.closing(source):
            done = Imported(kind=source.kind, program=source.label, dry_run=dry_run)
            importer = Importer(
                journal, source.kind, dry_run=dry_run, remember=remember
            )
            _import_drafts(source, importer, done, progress)
            _import_memories(journal, source, done)
            _import_skills(config, source, done, is_wanted=with_skills)
            done.left_out = dict(sorted(source.left_out.items()))
            return done


def _open_source(place: Place, kind: str | None) -> Source:
    for name in FORMATS:
        if name == own.KIND or kind not in {None, name}:
            continue
        module = import_module(f"tenax.importers.{name.replace('-', '_')}")
        source: Source | None = module.open_source(place)
        if source is not None:
            return source
    if kind is not None:
        raise InvalidInput(
            f"{place.path} is not an export of {FORMATS[kind]}, or has a format that this Tenax does not know.",
            hint="Leave --from out, so that the content tells the format.",
        )
    programs = ", ".join(FORMATS.values())
    raise InvalidInput(
        f"{place.path} has nothing that can be imported.",
        hint=f"Name an export or a data folder of {programs}.",
    )


def _import_own(
    journal: Journal, place: Place, *, dry_run: bool, progress: Progress | None
) -> Imported:
    [name] = place.names()
    export = own.OwnExport(journal, place.file(name), dry_run=dry_run)
    done = Imported(kind=own.KIND, program=own.LABEL, dry_run=dry_run)
    for found in export.store(progress):
        _note(done, found)
    done.messages, done.tool_calls = export.messages, export.tool_calls
    return done


def _import_drafts(
    source: Source, importer: Importer, done: Imported, progress: Progress | None
) -> None:
    for count, draft in enumerate(source.drafts(), 1):
        for found in _store(importer, draft):
            _note(done, found)
        if progress is not None:
            progress(count)
    stored = importer.count
    done.messages = stored[MessageUser.kind] + stored[MessageAssistant.kind]
    done.tool_calls = stored[ToolFinished.kind]
    done.files, done.missing_files = stored["files"], stored["missing files"]


def _store(importer: Importer, draft: Draft | Skipped) -> Iterable[Found | Skipped]:
    if isinstance(draft, Skipped):
        return [draft]
    try:
        return importer.store(draft)
    except (InvalidInput, Refused) as error:
        return [Skipped(draft.id, draft.title, str(error))]


def _note(done: Imported, found: Found | Skipped) -> None:
    if isinstance(found, Skipped):
        done.skip(found.title or found.id, found.why)
        return
    setattr(done, found.outcome, getattr(done, found.outcome) + 1)
    if (
        found.outcome in {"new", "beside"}
        and len(done.conversations) < _SKIPPED_MAX
        and not done.dry_run
    ):
        done.conversations.append(found.conversation)


# -- memories and skills ---------------------------------------------------------------------


def _import_memories(journal: Journal, source: Source, done: Imported) -> None:
    entries = MemoryEntries(journal)
    known = {entry.text for entry in entries.standing()}
    for memory in source.memories():
        text = " ".join(memory.text.split())
        if text in known:
            done.known_memories += 1
            continue
        try:
            if not done.dry_run:
                _add_memory(entries, source.kind, memory, text)
        except (InvalidInput, TooLarge) as error:
            done.skip(f"Memory {text[:60]!r}", str(error))
            continue
        known.add(text)
        done.memories += 1


def _add_memory(
    entries: MemoryEntries, kind: str, memory: MemoryDraft, text: str
) -> None:
    entries.add(text, about=memory.about, key=f"import:{kind}:{memory.id}")


def _import_skills(
    config: Config, source: Source, done: Imported, *, is_wanted: bool
) -> None:
    """Copy skills that do not exist here yet. A skill is complete or not there at all."""
    top = config.directories.data / "skills"
    for skill in source.skills():
        target = top / clean_name(skill.name)
        if target.exists():
            done.known_skills += 1
            continue
        if not is_wanted:
            done.left_skills += 1
            continue
        try:
            if not done.dry_run:
                _copy_skill(skill, top, target)
        except (OSError, TenaxError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            done.skip(f"Skill {skill.name}", f"It cannot be copied: {reason}.")
            continue
        done.skills += 1


def _copy_skill(skill: SkillDraft, top: Path, target: Path) -> None:
    files = list(_files_of(skill.folder))
    if sum(file.stat().st_size for file in files) > _SKILL_BYTES_MAX:
        raise TooLarge(f"its files have more than {_SKILL_BYTES_MAX >> 20} MB")
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = top / f".importing-{target.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    for file in files:
        copy = scratch / file.relative_to(skill.folder)
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(file, copy, follow_symlinks=False)
    scratch.rename(target)
    sync_directory(top)


def _files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of a skill. Links are left out."""
    for path in sorted(folder.rglob("*")):
        inside = [path, *path.parents]
        inside = inside[: inside.index(folder)]
        if path.is_file() and not any(part.is_symlink() for part in inside):
            yield path
