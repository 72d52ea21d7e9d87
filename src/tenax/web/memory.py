"""`/api/memory`: memories, their sources, and the state of the memory providers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta
from starlette.responses import Response

from tenax.assembly import Runtime
from tenax.clock import rfc3339
from tenax.errors import InvalidInput, NoSuchConversation
from tenax.memory.entries import MemoryEntry
from tenax.memory.memory import Loaded, Memory, Status
from tenax.web.api import Id, RequestBody, ResponseBody, endpoint
from tenax.web.search import titles_of

About = Literal["profile", "note"]
Version = Annotated[int, Meta(ge=1, lt=2**31)]
Text = Annotated[str, Meta(max_length=10_000)]


class Remembered(ResponseBody):
    """A version of a memory. A change passes the `version` seen by the client as `was`."""

    id: str
    version: int
    state: Literal["standing", "removed"]
    text: str
    about: About
    by: Literal["person", "model", "review", "import"]
    at: str
    conversation: str | None
    """The source of the memory: the conversation, the message `seq` and the title of the conversation."""
    seq: int | None
    title: str | None
    scope: str | None
    """If set, the memory is used only in the given conversation."""


class Memories(ResponseBody):
    """Memories, newest first; search results, best first; versions of a memory, oldest first."""

    facts: list[Remembered]


class Added(ResponseBody):
    """A memory, and whether the memory existed already."""

    fact: Remembered
    known: bool


class NewMemory(RequestBody):
    """A new memory."""

    text: Text
    about: About = "note"


class MemoryChange(RequestBody):
    """A change of the version `was`."""

    was: Version
    text: Text | None = None
    about: About | None = None


class Seen(RequestBody):
    """The version seen by the client."""

    was: Version


class Markdown(RequestBody):
    """Memories in the format of the export."""

    markdown: str


class Providers(ResponseBody):
    """The external memory providers."""

    providers: list[Status]


class Retried(ResponseBody):
    """The number of successful deliveries."""

    retried: int


@endpoint("GET", "/api/memory")
async def list_memories(
    runtime: Runtime, words: Annotated[str, Meta(max_length=500)] = ""
) -> Memories:
    """List memories; with `words`, search memories."""
    memory = runtime.memory
    return Memories(
        await _shown(
            runtime, await (memory.search(words) if words.strip() else memory.entries())
        )
    )


@endpoint("POST", "/api/memory")
async def add_memory(runtime: Runtime, body: NewMemory) -> Added:
    """Add a memory. An existing memory is not added again."""
    entry, is_new = await runtime.memory.add(body.text, about=body.about)
    return Added(await _one(runtime, entry), not is_new)


@endpoint("GET", "/api/memory/export")
async def export_memories(runtime: Runtime) -> Response:
    """Export every memory as Markdown. `import` reads the same format."""
    text = await runtime.memory.export()
    headers = {"content-disposition": 'attachment; filename="tenax-memory.md"'}
    return Response(text, media_type="text/markdown", headers=headers)


@endpoint("POST", "/api/memory/import")
async def import_memories(runtime: Runtime, body: Markdown) -> Loaded:
    """Import an export. Existing memories are kept."""
    return await runtime.memory.load(body.markdown)


@endpoint("GET", "/api/memory/status")
async def memory_status(runtime: Runtime) -> Providers:
    """Return the state of the memory providers: their backlog, last error and failed deliveries."""
    return Providers(await runtime.memory.status())


@endpoint("POST", "/api/memory/providers/{name}/retry")
async def retry_provider(runtime: Runtime, name: Id) -> Retried:
    """Retry the failed deliveries to a provider."""
    return Retried(await runtime.memory.retry(name))


@endpoint("GET", "/api/memory/{id}")
async def memory_versions(runtime: Runtime, id: Id) -> Memories:  # noqa: A002  (its name in the path)
    """List the versions of a memory."""
    return Memories(await _shown(runtime, await _versions(runtime.memory, id)))


@endpoint("PATCH", "/api/memory/{id}")
async def change_memory(runtime: Runtime, id: Id, body: MemoryChange) -> Remembered:  # noqa: A002
    """Change a memory. Refused if version `was` is no longer current."""
    await _versions(runtime.memory, id)
    return await _one(
        runtime,
        await runtime.memory.change(id, was=body.was, text=body.text, about=body.about),
    )


@endpoint("DELETE", "/api/memory/{id}")
async def forget_memory(runtime: Runtime, id: Id, was: Version) -> Remembered:  # noqa: A002
    """Forget a memory. Pass the returned version to `undo` to restore the memory."""
    await _versions(runtime.memory, id)
    return await _one(runtime, await runtime.memory.remove(id, was=was))


@endpoint("POST", "/api/memory/{id}/undo")
async def undo_memory(runtime: Runtime, id: Id, body: Seen) -> Remembered:  # noqa: A002
    """Undo the change made by a version."""
    await _versions(runtime.memory, id)
    return await _one(runtime, await runtime.memory.undo(id, was=body.was))


async def _versions(memory: Memory, memory_id: str) -> list[MemoryEntry]:
    """Return the versions of a memory. Raises `NoSuchConversation` (404) if the user has no such memory."""
    try:
        return await memory.versions(memory_id)
    except InvalidInput as error:
        raise NoSuchConversation(str(error), hint=error.hint) from error


async def _one(runtime: Runtime, entry: MemoryEntry) -> Remembered:
    return (await _shown(runtime, [entry]))[0]


async def _shown(runtime: Runtime, entries: list[MemoryEntry]) -> list[Remembered]:
    titles = await titles_of(
        runtime, {entry.conversation for entry in entries if entry.conversation}
    )
    return [
        Remembered(entry.id, entry.version, entry.state, entry.text, entry.about, entry.by, rfc3339(entry.at),
                   entry.conversation, entry.seq, titles.get(entry.conversation or ""), entry.scope)
        for entry in entries
    ]  # fmt: skip
