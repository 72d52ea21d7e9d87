"""Memory: the knowledge of a person's agent beyond a conversation, in the built-in memory and in the providers.

An entry is a row of the store (`tenax.memory.entries`). If a model changes an entry in a conversation, the conversation
shows a line about the change, and the person can undo the change there. The module decides what the model gets. A block
in the prompt stays the same for a whole segment of the conversation. For a message, the memories recall texts within a
deadline. A failing memory never stops the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal, Unpack

import msgspec

from tenax.concurrency import run_in_own_thread
from tenax.errors import (
    InvalidInput,
    MemoryChanged,
    StoreUnavailable,
    TenaxError,
    TooBusy,
)
from tenax.events import MemoryNoted, MemoryRecalled
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup, Recorded
from tenax.memory.entries import About, MemoryEntries, MemoryEntry, Origin
from tenax.memory.markdown import Bullet, read, write
from tenax.memory.providers.base import BUILT_IN
from tenax.memory.providers.delivery import Delivery, Status
from tenax.memory.providers.group import ProviderGroup, Recalled
from tenax.memory.providers.plugins import Loaded as Plugged
from tenax.memory.recall import Recall
from tenax.text import quote

__all__ = ["Loaded", "Memory", "Status"]

log = logging.getLogger(__name__)

RECALLED_MAX: Final = 5
PROFILE_CHARS_MAX: Final = 2000
NOTES_CHARS_MAX: Final = 2000
_PROVIDERS_CHARS_MAX: Final = 4000
_QUERY_CHARS_MAX: Final = 2000
_RECALLED_CHARS_MAX: Final = 8000
"""The longest recalled text of a provider."""
_ALL: Final = "*"
"""Stands for every conversation: an index with every entry, including entries for a single conversation."""
_INDEXES_MAX: Final = 8
_MISSED_MAX: Final = 1000
_LOADED_SECONDS: Final = 15.0
_SOURCE_ROWS: Final = 50
_Index = tuple[Recall, dict[str, MemoryEntry]]
_Action = Literal["added", "replaced", "removed"]

_BLOCKS: Final[dict[About, tuple[str, int]]] = {
    "profile": ("What the person told about themselves:", PROFILE_CHARS_MAX),
    "note": ("Notes from earlier conversations:", NOTES_CHARS_MAX),
}
"""By kind of entry, the title in the prompt and the room for the entries."""
_HOOK_ACTIONS: Final = {"added": "add", "replaced": "replace", "removed": "remove"}
"""The names of the actions in the hook of providers."""


class Loaded(msgspec.Struct, frozen=True):
    """The outcome of importing the bullets of a file."""

    added: int
    changed: int
    known: int
    refused: list[str]


class Memory:
    """The memories of a user."""

    def __init__(self, journal: AsyncJournal, recall_seconds: float) -> None:
        self._journal = journal
        self._recall_seconds = recall_seconds
        self._entries = MemoryEntries(journal.journal)
        # The service sets the providers after loading.
        self.providers: ProviderGroup | None = None
        self.deliveries: Sequence[Delivery] = ()
        self.problems: Sequence[Plugged] = ()
        self._missed: dict[str, list[str]] = {}
        """By conversation, the memories without a timely answer to the last question."""
        self.ready = asyncio.Event()
        """Set unless providers are being loaded."""
        self.ready.set()
        self._indexes: dict[tuple[int, str], asyncio.Task[_Index]] = {}
        """The indexes, by revision and conversation."""

    # -- for the person --------------------------------------------------------------------------------------

    async def entries(self) -> list[MemoryEntry]:
        """Return the entries that are not removed, newest first."""
        return await self._journal.threads.run(self._entries.standing)

    async def search(self, words: str, limit: int = 20) -> list[MemoryEntry]:
        """Return the entries containing the words, followed by entries about the words."""
        recall, entries = await self._index(_ALL)
        wanted = words.casefold().split()
        found = {
            entry.id: entry
            for entry in entries.values()
            if all(word in entry.text.casefold() for word in wanted)
        }
        for match in recall.find(words, limit):
            found[match.id] = entries[match.id]
        return list(found.values())[:limit]

    async def versions(self, id: str) -> list[MemoryEntry]:  # noqa: A002  (what people call it)
        """Return every version of an entry, oldest first."""
        return await self._journal.threads.run(partial(self._entries.versions, id))

    async def add(
        self,
        text: str,
        *,
        about: About = "note",
        replaces: tuple[str, int] | None = None,
        **origin: Unpack[Origin],
    ) -> tuple[MemoryEntry, bool]:
        """Remember a text. Return the entry, and False if an existing entry already has the same meaning."""
        recall, entries = await self._index(origin.get("conversation"))
        same = recall.same(text)
        if same is not None and (replaces is None or same != replaces[0]):
            entry = entries[same]
            known = (entry.version, entry.by, entry.conversation, entry.seq)
            by = origin.get("by", "person")
            first = (1, by, origin.get("conversation"), origin.get("seq"))
            is_repeated = "key" in origin and known == first
            if is_repeated:
                # A call before a crash stored the entry, but perhaps not the line in the conversation.
                await self._announce(entry)
            return entry, is_repeated
        add = partial(self._entries.add, text, about=about, replaces=replaces, **origin)
        return await self._store(add), True

    async def change(
        self,
        id: str,  # noqa: A002
        *,
        was: int,
        text: str | None = None,
        about: About | None = None,
        **origin: Unpack[Origin],
    ) -> MemoryEntry:
        """Change an entry. Raises `MemoryChanged` if `was` is not the last version."""
        change = partial(self._entries.change, id, was=was, text=text, about=about)
        return await self._store(partial(change, **origin))

    async def remove(
        self,
        id: str,  # noqa: A002
        *,
        was: int,
        **origin: Unpack[Origin],
    ) -> MemoryEntry:
        """Forget an entry. `undo` restores the entry."""
        return await self._store(partial(self._entries.remove, id, was=was, **origin))

    async def _store(self, write: Callable[[], MemoryEntry]) -> MemoryEntry:
        """Write an entry on a thread, and announce the change."""
        entry = await self._journal.threads.run(write)
        await self._announce(entry)
        return entry

    async def undo(self, id: str, *, was: int) -> MemoryEntry:  # noqa: A002
        """Undo the change of version `was`, and report the undo in the conversation with the line about the change."""
        # Read the versions first, because an undo may delete the row.
        versions = await self.versions(id)
        undone = next((entry for entry in versions if entry.version == was), None)
        entry = await self._journal.threads.run(partial(self._entries.undo, id, was=was))  # fmt: skip
        try:
            line = await self._store_line(undone) if undone is not None else None
            if line is not None:
                event = MemoryNoted(
                    id, entry.version, "undone", by="person", of=line.seq
                )
                await self._journal.append(line.conversation, [event])
        except TenaxError as error:
            log.warning(
                "The conversation does not show an undo of the memory: %s",
                error,
                extra={"action": "memory_untold"},
            )
        if entry.state == "removed":
            action = "remove"
        elif undone is not None and undone.state == "removed":
            action = "add"
        else:
            action = "replace"
        self._notify_providers(action, entry)
        return entry

    async def export(self) -> str:
        """Return every entry as Markdown."""
        return write(await self.entries())

    async def load(self, markdown: str) -> Loaded:
        """Import a Markdown file.

        Entries missing from the file stay. The import refuses bullets for entries changed since the export, and reports
        them.
        """
        bullets = read(markdown)
        recall, _ = await self._index(None)
        _, entries = await self._index(_ALL)
        texts = ((str(number), bullet.text) for number, bullet in enumerate(bullets))
        doubles = Recall(texts)
        added = changed = known = 0
        refused: list[str] = []
        for number, bullet in enumerate(bullets):
            entry = entries.get(bullet.id or "")
            first = int(doubles.same(bullet.text) or number)
            is_known = recall.same(bullet.text) is not None or first < number
            try:
                if entry is None and not is_known:
                    await self._import(bullet)
                    added += 1
                elif entry is None or (entry.text, entry.about) == (bullet.text, bullet.about):  # fmt: skip
                    known += 1
                else:
                    await self.change(
                        entry.id,
                        was=bullet.version or entry.version,
                        text=bullet.text,
                        about=bullet.about,
                        by="import",
                    )
                    changed += 1
            except (MemoryChanged, InvalidInput) as error:
                refused.append(f"{bullet.text[:80]}: {error}")
        return Loaded(added, changed, known, refused)

    async def _import(self, bullet: Bullet) -> None:
        add = partial(self._entries.add, bullet.text, about=bullet.about, by="import")
        await self._journal.threads.run(add)

    async def status(self) -> list[Status]:
        """Return the progress of every provider, and the unusable providers."""
        await self._wait_until_loaded()
        served = [await delivery.status() for delivery in self.deliveries]
        unused = [
            Status(loaded.name, problem=loaded.problem) for loaded in self.problems
        ]
        return served + unused

    async def retry(self, provider: str) -> int:
        """Deliver the dead letters of a provider again. Return the number of accepted letters."""
        await self._wait_until_loaded()
        for delivery in self.deliveries:
            if delivery.name == provider:
                holder = await self._journal.holder(f"memory:{provider}")
                if holder not in {None, await self._journal.instance()}:
                    raise InvalidInput(
                        f"Another process of Tenax serves {provider} now.",
                        hint="Retry on its Memory page.",
                    )
                return await delivery.retry()
        raise InvalidInput(
            f"There is no memory provider {provider}.", hint="run: tenax memory status"
        )

    async def _wait_until_loaded(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOADED_SECONDS):
                await self.ready.wait()

    # -- for the model ---------------------------------------------------------------------------------------

    async def usable(self, conversation: str) -> list[MemoryEntry]:
        """Return the usable entries of a conversation, newest first."""
        _, usable = await self._index(conversation)
        return list(usable.values())

    async def search_in(
        self, conversation: str, words: str, limit: int
    ) -> list[MemoryEntry]:
        """Return the usable entries of a conversation about the words."""
        recall, usable = await self._index(conversation)
        return [usable[match.id] for match in recall.find(words, limit)]

    async def forget_usable(
        self,
        id: str,  # noqa: A002
        **origin: Unpack[Origin],
    ) -> MemoryEntry:
        """Forget an entry, if the conversation of the change may use the entry.

        A call repeated after a crash returns the result of the first call.
        """
        _, usable = await self._index(origin.get("conversation"))
        was = usable[id].version if id in usable else 0
        try:
            return await self.remove(id, was=was, **origin)
        except MemoryChanged as error:
            if was:
                raise
            raise _missing(id) from error

    async def find_in(self, conversation: str, id: str) -> MemoryEntry:  # noqa: A002
        """Return a usable entry of a conversation. Raises `InvalidInput` if the conversation may not use the entry."""
        _, usable = await self._index(conversation)
        if id not in usable:
            raise _missing(id)
        return usable[id]

    async def source(self, conversation: str, before: int) -> int:
        """Return the seq of the last message of a person before a seq, as the source of a learned entry."""
        rows = await self._journal.rows(conversation, before=before, limit=_SOURCE_ROWS)
        for row in reversed(rows):
            if row.role == "user":
                return row.last
        return before

    async def block(self, conversation: str) -> str:
        """Return the memory block of a prompt: profile, newest notes and provider texts, up to a bound."""
        _, usable = await self._index(conversation)
        blocks = []
        for about, (title, room) in _BLOCKS.items():
            lines = _fitting_lines(usable.values(), about, room)
            if lines:
                blocks.append(quote(f"{title}\n{lines}"))
        providers = self.providers
        if providers is not None and not await self._journal.shared(conversation):
            with contextlib.suppress(TooBusy):
                text = await run_in_own_thread(providers.system_prompt)
                blocks.append(text[:_PROVIDERS_CHARS_MAX])
        return "\n\n".join(block for block in blocks if block)

    async def recall(
        self, conversation: str, words: str, *, turn: int
    ) -> MemoryRecalled | None:
        """Return the knowledge of the memories about the words.

        Memories without an answer in time are named as missed.
        """
        query = words[:_QUERY_CHARS_MAX]
        texts: dict[str, str] = {}
        missed: list[str] = []
        ids: list[str] = []
        asked = asyncio.create_task(self._ask_providers(conversation, query, turn))
        try:
            async with asyncio.timeout(self._recall_seconds):
                recall, usable = await self._index(conversation)
            ids = [match.id for match in recall.find(query, RECALLED_MAX)]
        except (TimeoutError, StoreUnavailable):
            missed.append(BUILT_IN)
        if ids:
            texts[BUILT_IN] = "\n".join(f"- {usable[id_].text}" for id_ in ids)
        try:
            found = await asked
        except (StoreUnavailable, TooBusy):
            found = Recalled()
        for name, text in found.texts.items():
            texts[name] = text[:_RECALLED_CHARS_MAX]
        missed += found.missed
        is_news = self._note_missed(conversation, missed)
        # The journal already has an event about the same silent memories, so store no second event.
        if not texts and not is_news:
            return None
        return MemoryRecalled(texts, missed, ids) if texts or missed else None

    def _note_missed(self, conversation: str, missed: list[str]) -> bool:
        """Note which memories did not answer. Return whether they differ from the last call."""
        before = self._missed.pop(conversation, [])
        if missed:
            self._missed[conversation] = missed
            if len(self._missed) > _MISSED_MAX:
                del self._missed[next(iter(self._missed))]
        return missed != before

    async def _ask_providers(
        self, conversation: str, query: str, turn: int
    ) -> Recalled:
        """Ask the providers for their knowledge, except in a conversation with several people.

        The reason: a provider does not know which person may see which memory.
        """
        providers = self.providers
        if providers is None:
            return Recalled()
        providers.notify_all("on_turn_start", turn, query)
        if await self._journal.shared(conversation):
            return Recalled()
        session = (await self._journal.head(conversation)).segment or ""
        # A provider may use its whole deadline. Use a separate thread, because the threads of the store must stay free.
        recall = partial(providers.recall, query, session_id=session)
        return await run_in_own_thread(recall)

    # -- the index of the entries ----------------------------------------------------------------------------

    async def _index(self, conversation: str | None) -> _Index:
        """Return the usable entries of a conversation with their search index. An index is built once per revision.

        Indexing continues after the caller gives up, and the next caller finds the index.
        """

        def look() -> tuple[int, str]:
            revision = self._entries.revision()
            if conversation is None or conversation == _ALL:
                return revision, conversation or ""
            is_shared = revision and self._journal.journal.shared(conversation)
            return revision, conversation if is_shared else ""

        key = await self._journal.threads.run(look)
        revision, scope = key
        task = self._indexes.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            is_old = any(other != revision for other, _ in self._indexes)
            if is_old or len(self._indexes) >= _INDEXES_MAX:
                self._indexes.clear()
            build = partial(self._build_index, scope)
            task = asyncio.create_task(
                self._journal.threads.run(build), name="memory index"
            )
            self._indexes[key] = task
            # The callback reads the exception, because perhaps no caller waits for the task any more.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    def _build_index(self, scope: str) -> _Index:
        """Index the entries of a shared conversation, every entry (`_ALL`), or the entries without a scope ("")."""
        if scope == _ALL:
            entries = self._entries.standing()
        elif scope:
            entries = self._entries.usable(scope)
        else:
            standing = self._entries.standing()
            entries = [entry for entry in standing if entry.scope is None]
        recall = Recall((entry.id, entry.text) for entry in entries)
        return recall, {entry.id: entry for entry in entries}

    # -- announcing a change ---------------------------------------------------------------------------------

    async def _announce(self, entry: MemoryEntry) -> None:
        """Show a change in its source conversation, and notify the providers."""
        try:
            await self._store_line(entry)
        except TenaxError as error:
            log.warning(
                "The conversation does not show a change of the memory: %s",
                error,
                extra={"action": "memory_untold"},
            )
        self._notify_providers(_HOOK_ACTIONS[_action(entry)], entry)

    async def _store_line(self, entry: MemoryEntry) -> Recorded | None:
        """Store the line about a version in its conversation, once. Return `None` if the person made the change."""
        if entry.conversation is None or entry.by not in {"model", "review"}:
            return None
        by: Literal["model", "review"] = "review" if entry.by == "review" else "model"
        event = MemoryNoted(entry.id, entry.version, _action(entry), entry.text, by)
        once = Dedup("memory", f"{entry.id}:{entry.version}")
        (stored,) = await self._journal.append(entry.conversation, [event], dedup=once)
        return stored

    def _notify_providers(self, action: str, entry: MemoryEntry) -> None:
        if self.providers is not None:
            target = "user" if entry.about == "profile" else "memory"
            self.providers.notify_all(
                "on_memory_write", action, target, entry.text, {"id": entry.id}
            )


def _missing(id: str) -> InvalidInput:  # noqa: A002
    return InvalidInput(f"There is no memory {id}.", hint="search for it first")


def _fitting_lines(entries: Iterable[MemoryEntry], about: About, room: int) -> str:
    """Return the first entries of a kind as lines, up to `room` characters."""
    lines = ""
    for entry in entries:
        if entry.about != about:
            continue
        line = f"- {entry.text}\n"
        if len(lines) + len(line) > room:
            break
        lines += line
    return lines


def _action(entry: MemoryEntry) -> _Action:
    if entry.state == "removed":
        return "removed"
    if entry.version == 1 and entry.replaces is None:
        return "added"
    return "replaced"
