"""`/api/memory`: what is remembered, where each of it was learned, and how far other memories are behind."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from tenax.clock import rfc3339
from tenax.errors import InvalidInput, NoSuchConversation
from tenax.memory.facts import Fact
from tenax.memory.memory import Loaded, Memory, Status
from tenax.runtime.runtime import Runtime
from tenax.web.api import Id, endpoint
from tenax.web.search import titles_of

About = Literal["profile", "note"]
Version = Annotated[int, Meta(ge=1, lt=2**31)]
Text = Annotated[str, Meta(max_length=10_000)]


class Remembered(msgspec.Struct, frozen=True):
    """A version of a fact. `was` of a change is the `version` that was seen."""

    id: str
    version: int
    state: Literal["standing", "removed"]
    text: str
    about: About
    by: Literal["person", "model", "review", "import"]
    at: str
    conversation: str | None
    """Where it was learned, at which message, and what that conversation is called."""
    seq: int | None
    title: str | None
    scope: str | None
    """The only conversation that it is for."""


class Facts(msgspec.Struct, frozen=True):
    """Facts, newest first; found ones, best first; or the versions of one, oldest first."""

    facts: list[Remembered]


class Added(msgspec.Struct, frozen=True):
    """A fact, and whether it was known already."""

    fact: Remembered
    known: bool


class NewFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something to remember."""

    text: Text
    about: About = "note"


class FactChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be otherwise than in the version that was seen."""

    was: Version
    text: Text | None = None
    about: About | None = None


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version that was seen."""

    was: Version


class Markdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts, as the export writes them."""

    markdown: str


class Providers(msgspec.Struct, frozen=True):
    """The memories beside the built-in one."""

    providers: list[Status]


class Retried(msgspec.Struct, frozen=True):
    """How many it took now."""

    retried: int


@endpoint("GET", "/api/memory")
async def list_facts(
    runtime: Runtime, words: Annotated[str, Meta(max_length=500)] = ""
) -> Facts:
    """What is remembered; with words, what fits them."""
    memory = runtime.memory
    return Facts(
        await _shown(
            runtime, await (memory.search(words) if words.strip() else memory.facts())
        )
    )


@endpoint("POST", "/api/memory")
async def add_fact(runtime: Runtime, body: NewFact) -> Added:
    """Remember something. What is known already is not remembered twice."""
    fact, is_new = await runtime.memory.add(body.text, about=body.about)
    return Added(await _one(runtime, fact), not is_new)


@endpoint("GET", "/api/memory/export")
async def export_facts(runtime: Runtime) -> Response:
    """Everything that is remembered, as Markdown that people read and `import` takes."""
    text = await runtime.memory.export()
    headers = {"content-disposition": 'attachment; filename="tenax-memory.md"'}
    return Response(text, media_type="text/markdown", headers=headers)


@endpoint("POST", "/api/memory/import")
async def import_facts(runtime: Runtime, body: Markdown) -> Loaded:
    """Remember what an export says. Nothing that is remembered is lost by it."""
    return await runtime.memory.load(body.markdown)


@endpoint("GET", "/api/memory/status")
async def memory_status(runtime: Runtime) -> Providers:
    """How far each provider is behind, what went wrong last, and what it could not take."""
    return Providers(await runtime.memory.status())


@endpoint("POST", "/api/memory/providers/{name}/retry")
async def retry_provider(runtime: Runtime, name: Id) -> Retried:
    """Give a provider once more what it could not take."""
    return Retried(await runtime.memory.retry(name))


@endpoint("GET", "/api/memory/{id}")
async def fact_versions(runtime: Runtime, id: Id) -> Facts:  # noqa: A002  (its name in the path)
    """Every version of a fact."""
    return Facts(await _shown(runtime, await _versions(runtime.memory, id)))


@endpoint("PATCH", "/api/memory/{id}")
async def change_fact(runtime: Runtime, id: Id, body: FactChange) -> Remembered:  # noqa: A002
    """Correct a fact. It is refused if another version stands than the one that was seen."""
    await _versions(runtime.memory, id)
    return await _one(
        runtime,
        await runtime.memory.change(id, was=body.was, text=body.text, about=body.about),
    )


@endpoint("DELETE", "/api/memory/{id}")
async def forget_fact(runtime: Runtime, id: Id, was: Version) -> Remembered:  # noqa: A002
    """Forget a fact; the answer's version is what `undo` takes."""
    await _versions(runtime.memory, id)
    return await _one(runtime, await runtime.memory.remove(id, was=was))


@endpoint("POST", "/api/memory/{id}/undo")
async def undo_fact(runtime: Runtime, id: Id, body: Seen) -> Remembered:  # noqa: A002
    """Take back what a version did."""
    await _versions(runtime.memory, id)
    return await _one(runtime, await runtime.memory.undo(id, was=body.was))


async def _versions(memory: Memory, fact: str) -> list[Fact]:
    """Those of a fact of this user's; another's is as if it did not exist."""
    try:
        return await memory.versions(fact)
    except InvalidInput as error:
        raise NoSuchConversation(str(error), hint=error.hint) from error


async def _one(runtime: Runtime, fact: Fact) -> Remembered:
    return (await _shown(runtime, [fact]))[0]


async def _shown(runtime: Runtime, facts: list[Fact]) -> list[Remembered]:
    titles = await titles_of(
        runtime, {each.conversation for each in facts if each.conversation}
    )
    return [
        Remembered(each.id, each.version, each.state, each.text, each.about, each.by, rfc3339(each.at),
                   each.conversation, each.seq, titles.get(each.conversation or ""), each.scope)
        for each in facts
    ]  # fmt: skip
