"""Memory: what a person's agent keeps beyond a conversation. The built-in memory, and beside it the providers.

A fact is a row of the store (`tenax.memory.facts`). One that is changed from a conversation is told of there, in a line
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
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Dedup, Recorded
from tenax.memory.facts import About, By, Fact, Facts
from tenax.memory.manager import RECALL_SECONDS, MemoryManager, Recalled
from tenax.memory.markdown import read, write
from tenax.memory.providers.base import BUILT_IN
from tenax.memory.providers.delivery import Follower, Status
from tenax.memory.providers.plugins import Loaded as Plugged
from tenax.memory.recall import Recall
from tenax.text import fence

__all__ = ["Loaded", "Memory", "Status"]

log = logging.getLogger(__name__)

RECALLED_MAX: Final = 5
PROFILE_CHARS_MAX: Final = 2000
NOTES_CHARS_MAX: Final = 2000
_PROVIDERS_CHARS_MAX: Final = 4000
_QUERY_CHARS_MAX: Final = 2000
_RECALLED_CHARS_MAX: Final = 8000
"""Of what one provider recalls."""
_ALL: Final = "*"
"""In place of a conversation: also what is for one of them alone."""
_INDEXES_MAX: Final = 8
_MISSED_MAX: Final = 1000
_LOADED_SECONDS: Final = 15.0
_Index = tuple[Recall, dict[str, Fact]]


class Loaded(msgspec.Struct, frozen=True):
    """What became of the bullets of a file."""

    added: int
    changed: int
    known: int
    refused: list[str]


class Memory:
    """One user's memories."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal
        self._facts = Facts(journal.journal)
        self._manager: MemoryManager | None = None
        self._followers: Sequence[Follower] = ()
        self._problems: Sequence[Plugged] = ()
        self._missed: dict[str, list[str]] = {}
        """Who did not answer the last time, in the conversations in which somebody did not."""
        self.ready = asyncio.Event()
        """Set unless providers are being loaded."""
        self.ready.set()
        self._indexes: dict[tuple[int, str], asyncio.Task[_Index]] = {}

    def use(
        self,
        manager: MemoryManager | None,
        followers: Sequence[Follower],
        problems: Sequence[Plugged],
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
        recall, standing = await self._index(_ALL)
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
            fact = standing[same]
            again = key is not None and (fact.version, fact.by, fact.conversation, fact.seq) == (
                1, by, conversation, seq)  # fmt: skip
            if again:  # the same call, before a crash: it may not be told yet
                await self._tell(fact)
            return fact, again
        fact = await self._journal.apart(
            lambda: self._facts.add(
                text,
                about=about,
                by=by,
                conversation=conversation,
                seq=seq,
                replaces=replaces,
                key=key,
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
                id,
                was=was,
                text=text,
                about=about,
                by=by,
                conversation=conversation,
                seq=seq,
                key=key,
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
            lambda: self._facts.remove(
                id, was=was, by=by, conversation=conversation, seq=seq, key=key
            )
        )
        await self._tell(fact)
        return fact

    async def undo(self, id: str, *, was: int) -> Fact:  # noqa: A002
        """Take back what version `was` did. The line that told of it says so."""
        undone = next(
            (each for each in await self.versions(id) if each.version == was), None
        )  # before it is taken back: an undo may take the row away
        fact = await self._journal.apart(lambda: self._facts.undo(id, was=was))
        try:
            told = await self._told(undone) if undone is not None else None
            if told is not None:
                event = MemoryNoted(
                    id, fact.version, "undone", by="person", of=told.seq
                )
                await self._journal.append(told.conversation, [event])
        except TenaxError as error:
            log.warning(
                "An undo of the memory is not told: %s",
                error,
                extra={"action": "memory_untold"},
            )
        back = undone is not None and undone.state == "removed"
        self._hear(
            "remove" if fact.state == "removed" else "add" if back else "replace", fact
        )
        return fact

    async def export(self) -> str:
        """All of it as Markdown."""
        return write(await self.facts())

    async def load(self, markdown: str) -> Loaded:
        """Take in what a file says. What it does not mention stays; what changed here meanwhile is refused, and said."""
        entries = read(markdown)
        recall, _ = await self._index(None)
        _, standing = await self._index(_ALL)
        doubles = Recall((str(n), each.text) for n, each in enumerate(entries))
        added = changed = known = 0
        refused: list[str] = []
        for n, entry in enumerate(entries):
            have = standing.get(entry.id or "")
            if have is None and (
                recall.same(entry.text) or int(doubles.same(entry.text) or n) < n
            ):
                known += 1
                continue
            try:
                if have is None:
                    await self._journal.apart(
                        partial(
                            self._facts.add, entry.text, about=entry.about, by="import"
                        )
                    )
                    added += 1
                elif (have.text, have.about) == (entry.text, entry.about):
                    known += 1
                else:
                    was = entry.version or have.version
                    await self.change(
                        have.id,
                        was=was,
                        text=entry.text,
                        about=entry.about,
                        by="import",
                    )
                    changed += 1
            except (FactChanged, InvalidInput) as error:
                refused.append(f"{entry.text[:80]}: {error}")
        return Loaded(added, changed, known, refused)

    async def status(self) -> list[Status]:
        """How far each provider is, and which could not be used."""
        await self._loaded()
        found = [await each.standing() for each in self._followers]
        return found + [
            Status(each.name, problem=each.problem) for each in self._problems
        ]

    async def retry(self, provider: str) -> int:
        """Give a provider once more what it failed to take. How many it took."""
        await self._loaded()
        for each in self._followers:
            if each.name == provider:
                holder = await self._journal.holder(f"memory:{provider}")
                if holder not in {None, await self._journal.instance()}:
                    raise InvalidInput(
                        f"Another process of Tenax serves {provider} now.",
                        hint="Retry on its Memory page.",
                    )
                return await each.retry()
        raise InvalidInput(
            f"There is no memory provider {provider}.", hint="run: tenax memory status"
        )

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

    async def forget_in(
        self,
        conversation: str,
        id: str,  # noqa: A002
        *,
        by: By,
        place: tuple[str, int],
        key: str,
    ) -> Fact:
        """Forget a fact that may be used there; one that this very call forgot before a crash is found by its key."""
        _, usable = await self._index(conversation)
        was = usable[id].version if id in usable else 0
        try:
            return await self.remove(id, was=was, by=by, place=place, key=key)
        except FactChanged as error:
            if was:
                raise
            raise _none(id) from error

    async def known_in(self, conversation: str, id: str) -> Fact:  # noqa: A002
        """A fact that may be used there."""
        _, usable = await self._index(conversation)
        if id not in usable:
            raise _none(id)
        return usable[id]

    async def source(self, conversation: str, before: int) -> int:
        """The last message of a person before this seq: what is learned then comes from it."""
        rows = await self._journal.rows(conversation, before=before, limit=50)
        return next(
            (each.last for each in reversed(rows) if each.role == "user"), before
        )

    async def block(self, conversation: str) -> str:
        """What a prompt says of the memory: the profile and the newest notes, as far as there is room, and the providers' words."""
        _, standing = await self._index(conversation)
        said = [
            fence(f"{title}\n{lines}")
            for about, (title, room) in _TITLES.items()
            if (lines := _fitting(standing.values(), about, room))
        ]
        manager = self._manager
        if manager is not None and not await self._journal.shared(conversation):
            said.append(
                (await self._journal.apart(manager.system_prompt))[
                    :_PROVIDERS_CHARS_MAX
                ]
            )
        return "\n\n".join(each for each in said if each)

    async def recall(
        self, conversation: str, words: str, *, turn: int
    ) -> MemoryRecalled | None:
        """What memories know about these words, as far as they say so in time."""
        query = words[:_QUERY_CHARS_MAX]
        texts: dict[str, str] = {}
        missed: list[str] = []
        facts: list[str] = []
        asked = asyncio.create_task(self._ask_providers(conversation, query, turn))
        try:
            async with asyncio.timeout(RECALL_SECONDS):
                recall, standing = await self._index(conversation)
            facts = [each.id for each in recall.find(query, RECALLED_MAX)]
        except (TimeoutError, StoreUnavailable):
            missed.append(BUILT_IN)
        if facts:
            texts[BUILT_IN] = "\n".join(f"- {standing[each].text}" for each in facts)
        try:
            found = await asked
        except StoreUnavailable:
            found = Recalled()
        texts.update(
            {name: text[:_RECALLED_CHARS_MAX] for name, text in found.texts.items()}
        )
        missed += found.missed
        before = self._missed.pop(conversation, [])
        if missed:
            self._missed[conversation] = missed
            if len(self._missed) > _MISSED_MAX:
                del self._missed[next(iter(self._missed))]
        if not texts and missed == before:
            return None  # the same ones are silent as the last time, and that is stored
        return MemoryRecalled(texts, missed, facts) if texts or missed else None

    async def _ask_providers(
        self, conversation: str, query: str, turn: int
    ) -> Recalled:
        """What providers know. Where several people write nobody could say which of it is for all of them."""
        manager = self._manager
        if manager is None:
            return Recalled()
        manager.notify_all("on_turn_start", turn, query)
        journal = self._journal.journal

        def work() -> Recalled:
            if journal.shared(conversation):
                return Recalled()
            return manager.recall(
                query, session_id=journal.head(conversation).stretch or ""
            )

        return await self._journal.apart(work)

    async def _index(self, conversation: str | None) -> _Index:
        """The facts that may be used there, ready to be searched. Built once for each state of the memory.

        Building goes on when whoever waits for it gives up: the next one finds it.
        """

        def look() -> tuple[int, str | None]:
            revision = self._facts.revision()
            if conversation in {None, _ALL} or (
                revision and self._journal.journal.shared(conversation or "")
            ):
                return revision, conversation
            return revision, None

        revision, place = await self._journal.apart(look)
        key = (revision, place or "")
        found = self._indexes.get(key)
        if found is None or (found.done() and (found.cancelled() or found.exception())):
            if len(self._indexes) >= _INDEXES_MAX or any(
                each[0] != revision for each in self._indexes
            ):
                self._indexes.clear()
            found = self._indexes[key] = asyncio.create_task(
                self._built(place), name="memory index"
            )
            # nobody may wait
            found.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(found)

    async def _built(self, place: str | None) -> _Index:
        def work() -> _Index:
            everywhere = place is None or place == _ALL
            facts = (
                self._facts.standing()
                if everywhere
                else self._facts.usable(place or "")
            )
            facts = [each for each in facts if place is not None or each.scope is None]
            return Recall((each.id, each.text) for each in facts), {
                each.id: each for each in facts
            }

        return await self._journal.apart(work)

    async def _tell(self, fact: Fact) -> None:
        """Say it in the conversation it comes from, and to the providers."""
        try:
            await self._told(fact)
        except TenaxError as error:
            log.warning(
                "A change of the memory is not told: %s",
                error,
                extra={"action": "memory_untold"},
            )
        self._hear(_HEARD[_action(fact)], fact)

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
            self._manager.notify_all(
                "on_memory_write", action, target, fact.text, {"id": fact.id}
            )


_TITLES: Final[dict[About, tuple[str, int]]] = {
    "profile": ("What the person told about themselves:", PROFILE_CHARS_MAX),
    "note": ("Notes from earlier conversations:", NOTES_CHARS_MAX),
}


_HEARD: Final = {"added": "add", "replaced": "replace", "removed": "remove"}
"""What providers of this field call it."""


def _none(id: str) -> InvalidInput:  # noqa: A002
    return InvalidInput(f"There is no fact {id}.", hint="search for it first")


def _fitting(facts: Iterable[Fact], about: About, room: int) -> str:
    """The first of these facts, as many as there is room for."""
    lines = [f"- {each.text}\n" for each in facts if each.about == about]
    ends = accumulate(map(len, lines))
    return "".join(line for line, end in zip(lines, ends, strict=True) if end <= room)


def _action(fact: Fact) -> Literal["added", "replaced", "removed"]:
    if fact.state == "removed":
        return "removed"
    return "added" if fact.version == 1 and fact.replaces is None else "replaced"
