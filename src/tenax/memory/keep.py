"""Memory: what a person's agent keeps beyond a conversation. The built-in memory, and beside it the providers.

A fact is a row of the store (`tenax.journal.facts`). One that is changed from a conversation is told of there, in a line
that can be undone. What the model is given is decided here: a block of the prompt, the same as long as a stretch lasts,
and what is recalled for a message, within a deadline. Whatever a memory does, the turn goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Final, Literal

import msgspec

from tenax.errors import FactChanged, InvalidInput, StoreUnavailable, TenaxError
from tenax.events import MemoryNoted, MemoryRecalled
from tenax.fence import fence
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup, Letter, Recorded
from tenax.journal.facts import About, Fact, Facts
from tenax.memory.base import BUILT_IN
from tenax.memory.follow import Follower
from tenax.memory.manager import RECALL_SECONDS, MemoryManager
from tenax.memory.markdown import read, write
from tenax.memory.plugins import Loaded as Plugged
from tenax.memory.recall import Recall

__all__ = ["Loaded", "Memory", "Status"]

log = logging.getLogger(__name__)

RECALLED_MAX: Final = 5
PROFILE_CHARS_MAX: Final = 2000
NOTES_CHARS_MAX: Final = 2000
_PROVIDERS_CHARS_MAX: Final = 4000
_QUERY_CHARS_MAX: Final = 2000
_INDEXES_MAX: Final = 8
_LOADED_SECONDS: Final = 15.0
By = Literal["person", "model", "review", "import"]


class Loaded(msgspec.Struct, frozen=True):
    """What became of the bullets of a file."""

    added: int
    changed: int
    known: int
    refused: list[str]


class Status(msgspec.Struct, frozen=True):
    """How far a provider is."""

    provider: str
    problem: str = ""
    """Why it is not used."""
    behind: int = 0
    """Turns that it was not given yet."""
    owed: int = 0
    """Ends of conversations that it was not given yet."""
    busy_seconds: float = 0.0
    error: str = ""
    """The last one."""
    rests_seconds: float = 0.0
    """Until it is tried again after failures."""
    letters: list[Letter] = []


class Memory:
    """One user's memories."""

    def __init__(
        self,
        journal: AsyncJournal,
    ) -> None:
        self._journal = journal
        self._facts = Facts(journal.journal)
        self._manager: MemoryManager | None = None
        self._followers: Sequence[Follower] = ()
        self._problems: Sequence[Plugged] = ()
        self.ready = asyncio.Event()
        """Set unless providers are being loaded."""
        self.ready.set()
        self._indexes: dict[tuple[int, str], tuple[Recall, dict[str, Fact]]] = {}

    def use(
        self, manager: MemoryManager | None, followers: Sequence[Follower], problems: Sequence[Plugged]
    ) -> None:
        """These providers stand beside the built-in memory from now on."""
        self._manager, self._followers, self._problems = manager, followers, problems
        self.ready.set()

    # -- for the person --------------------------------------------------------------------------------------

    async def facts(self) -> list[Fact]:
        """What stands, newest first."""
        return await self._journal.apart(self._facts.standing)

    async def search(self, words: str, limit: int = 20) -> list[Fact]:
        """Facts with these words in them, and then those that are about them."""
        recall, standing = await self._index(None)
        wanted = words.casefold().split()
        found = {
            each.id: each
            for each in standing.values()
            if all(word in each.text.casefold() for word in wanted)
        }
        found |= {each.id: standing[each.id] for each in recall.find(words, limit)}
        return list(found.values())[:limit]

    async def versions(self, id: str) -> list[Fact]:  # noqa: A002  (what people call it)
        """All that a fact has been, oldest first."""
        return await self._journal.apart(lambda: self._facts.versions(id))

    async def add(
        self,
        text: str,
        *,
        about: About = "note",
        by: By = "person",
        place: tuple[str, int] | None = None,
        replaces: tuple[str, int] | None = None,
        key: str | None = None,
    ) -> tuple[Fact, bool]:
        """Remember this. False with the fact that says it already: it is not kept twice."""
        conversation, seq = place or (None, None)
        recall, standing = await self._index(conversation)
        same = recall.same(text)
        if same is not None and (replaces is None or same != replaces[0]):
            return standing[same], False
        fact = await self._journal.apart(
            lambda: self._facts.add(
                text, about=about, by=by, conversation=conversation, seq=seq, replaces=replaces, key=key
            )
        )
        await self._tell(fact)
        return fact, True

    async def change(
        self,
        id: str,  # noqa: A002
        *,
        was: int,
        text: str | None = None,
        about: About | None = None,
        by: By = "person",
        place: tuple[str, int] | None = None,
        key: str | None = None,
    ) -> Fact:
        """Say it otherwise. Raises FactChanged where version `was` is not the last one."""
        conversation, seq = place or (None, None)
        fact = await self._journal.apart(
            lambda: self._facts.change(
                id, was=was, text=text, about=about, by=by, conversation=conversation, seq=seq, key=key
            )
        )
        await self._tell(fact)
        return fact

    async def remove(
        self,
        id: str,  # noqa: A002
        *,
        was: int,
        by: By = "person",
        place: tuple[str, int] | None = None,
        key: str | None = None,
    ) -> Fact:
        """Forget it; `undo` brings it back."""
        conversation, seq = place or (None, None)
        fact = await self._journal.apart(
            lambda: self._facts.remove(id, was=was, by=by, conversation=conversation, seq=seq, key=key)
        )
        await self._tell(fact)
        return fact

    async def undo(self, id: str, *, was: int) -> Fact:  # noqa: A002
        """Take back what version `was` did. The line that told of it says so."""
        undone = next(
            (each for each in await self.versions(id) if each.version == was), None
        )  # before it is taken back: an undo may take the row away
        fact = await self._journal.apart(lambda: self._facts.undo(id, was=was))
        told = await self._told(undone) if undone is not None else None
        if told is not None:
            event = MemoryNoted(id, fact.version, "undone", by="person", of=told.seq)
            await self._journal.append(told.conversation, [event])
        self._hear("undo", fact)
        return fact

    async def export(self) -> str:
        """All of it as Markdown."""
        return write(await self.facts())

    async def load(self, markdown: str) -> Loaded:
        """Take in what a file says. What it does not mention stays; what changed here meanwhile is refused, and said."""
        entries = read(markdown)
        recall, standing = await self._index(None)
        doubles = Recall((str(n), each.text) for n, each in enumerate(entries))
        added = changed = known = 0
        refused: list[str] = []
        for n, entry in enumerate(entries):
            have = standing.get(entry.id or "")
            if have is None and (recall.same(entry.text) or int(doubles.same(entry.text) or n) < n):
                known += 1
                continue
            try:
                if have is None:
                    await self._journal.apart(
                        partial(self._facts.add, entry.text, about=entry.about, by="import")
                    )
                    added += 1
                elif (have.text, have.about) == (entry.text, entry.about):
                    known += 1
                else:
                    was = entry.version or have.version
                    await self.change(have.id, was=was, text=entry.text, about=entry.about, by="import")
                    changed += 1
            except (FactChanged, InvalidInput) as error:
                refused.append(f"{entry.text[:80]}: {error}")
        return Loaded(added, changed, known, refused)

    async def status(self) -> list[Status]:
        """How far each provider is, and which could not be used."""
        await self._loaded()
        found = [Status(**msgspec.structs.asdict(await each.standing())) for each in self._followers]
        return found + [Status(each.name, problem=each.problem) for each in self._problems]

    async def retry(self, provider: str) -> int:
        """Give a provider once more what it failed to take. How many it took."""
        await self._loaded()
        for each in self._followers:
            if each.name == provider:
                holder = await self._journal.holder(f"memory:{provider}")
                if holder not in {None, await self._journal.instance()}:
                    raise InvalidInput(
                        f"Another process of Tenax serves {provider} now.", hint="Retry on its Memory page."
                    )
                return await each.retry()
        raise InvalidInput(f"There is no memory provider {provider}.", hint="run: tenax memory status")

    async def _loaded(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOADED_SECONDS):
                await self.ready.wait()

    # -- for the model ---------------------------------------------------------------------------------------

    async def usable(self, conversation: str) -> list[Fact]:
        """The facts that may be used in a conversation, newest first."""
        return list((await self._index(conversation))[1].values())

    async def search_in(self, conversation: str, words: str, limit: int) -> list[Fact]:
        """The same for a model: only what may be used in its conversation."""
        recall, usable = await self._index(conversation)
        return [usable[each.id] for each in recall.find(words, limit)]

    async def known_in(self, conversation: str, id: str) -> Fact:  # noqa: A002
        """A fact that may be used there."""
        _, usable = await self._index(conversation)
        if id not in usable:
            raise InvalidInput(f"There is no fact {id}.", hint="search for it first")
        return usable[id]

    async def source(self, conversation: str, before: int) -> int:
        """The last message of a person before this seq: what is learned then comes from it."""
        rows = await self._journal.rows(conversation, before=before, limit=50)
        return next((each.last for each in reversed(rows) if each.role == "user"), before)

    async def block(self, conversation: str) -> str:
        """What a prompt says of the memory: the profile and the newest notes, as far as there is room, and the providers' words."""
        _, standing = await self._index(conversation)
        said = [
            fence(f"{title}\n{lines}")
            for about, (title, room) in _TITLES.items()
            if (lines := _fitting(standing.values(), about, room))
        ]
        if self._manager is not None:
            manager = self._manager
            said.append((await self._journal.apart(manager.system_prompt))[:_PROVIDERS_CHARS_MAX])
        return "\n\n".join(each for each in said if each)

    async def recall(
        self, conversation: str, words: str, *, turn: int, session: str
    ) -> MemoryRecalled | None:
        """What memories know about these words, as far as they say so in time."""
        query = words[:_QUERY_CHARS_MAX]
        texts: dict[str, str] = {}
        missed: list[str] = []
        facts: list[str] = []
        asked = asyncio.create_task(self._ask_providers(query, turn, session))
        try:
            async with asyncio.timeout(RECALL_SECONDS):
                recall, standing = await self._index(conversation)
            facts = [each.id for each in recall.find(query, RECALLED_MAX)]
        except (TimeoutError, StoreUnavailable):
            missed.append(BUILT_IN)
        if facts:
            texts[BUILT_IN] = "\n".join(f"- {standing[each].text}" for each in facts)
        given, late = await asked
        texts.update(given)
        missed += late
        return MemoryRecalled(texts, missed, facts) if texts or missed else None

    async def _ask_providers(self, query: str, turn: int, session: str) -> tuple[dict[str, str], list[str]]:
        if self._manager is None:
            return {}, []
        manager = self._manager
        manager.notify_all("on_turn_start", turn, query)
        found = await self._journal.apart(lambda: manager.recall(query, session_id=session))
        return found.texts, list(found.missed)

    async def _index(self, conversation: str | None) -> tuple[Recall, dict[str, Fact]]:
        """The facts that may be used there, ready to be searched. Built once for each state of the memory."""
        revision = await self._journal.apart(self._facts.revision)
        shared = conversation is not None and await self._journal.shared(conversation)
        key = (revision, conversation if shared and conversation else "")
        found = self._indexes.get(key)
        if found is None:
            usable = await self._journal.apart(
                lambda: (
                    self._facts.usable(conversation)
                    if conversation is not None
                    else [each for each in self._facts.standing() if each.scope is None]
                )
            )
            found = await self._journal.apart(
                lambda: (Recall((each.id, each.text) for each in usable), {each.id: each for each in usable})
            )
            if len(self._indexes) >= _INDEXES_MAX or any(each[0] != revision for each in self._indexes):
                self._indexes.clear()
            self._indexes[key] = found
        return found

    async def _tell(self, fact: Fact) -> None:
        """Say it in the conversation it comes from, and to the providers."""
        try:
            await self._told(fact)
        except TenaxError as error:
            log.warning("A change of the memory is not told: %s", error, extra={"action": "memory_untold"})
        self._hear(_action(fact), fact)

    async def _told(self, fact: Fact) -> Recorded | None:
        """The line in the conversation that tells of this version, stored once. None: the person did it themselves."""
        if fact.conversation is None or fact.by not in {"model", "review"}:
            return None
        by: Literal["model", "review"] = "review" if fact.by == "review" else "model"
        event = MemoryNoted(fact.id, fact.version, _action(fact), fact.text, by)
        once = Dedup("memory", f"{fact.id}:{fact.version}")
        (stored,) = await self._journal.append(fact.conversation, [event], dedup=once)
        return stored

    def _hear(self, action: str, fact: Fact) -> None:
        if self._manager is not None:
            target = "user" if fact.about == "profile" else "memory"
            self._manager.notify_all("on_memory_write", action, target, fact.text, {"id": fact.id})


_TITLES: Final[dict[About, tuple[str, int]]] = {
    "profile": ("What the person told about themselves:", PROFILE_CHARS_MAX),
    "note": ("Notes from earlier conversations:", NOTES_CHARS_MAX),
}


def _fitting(facts: Iterable[Fact], about: About, room: int) -> str:
    """The first of these facts, as many as there is room for."""
    lines = [f"- {each.text}\n" for each in facts if each.about == about]
    ends = accumulate(map(len, lines))
    return "".join(line for line, end in zip(lines, ends, strict=True) if end <= room)


def _action(fact: Fact) -> Literal["added", "replaced", "removed"]:
    if fact.state == "removed":
        return "removed"
    return "added" if fact.version == 1 and fact.replaces is None else "replaced"
