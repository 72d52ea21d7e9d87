"""`/api/search`: everything that was ever said."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from tenax.clock import rfc3339
from tenax.errors import Gone, InvalidInput, NoSuchConversation
from tenax.runtime import Runtime
from tenax.web.api import endpoint
from tenax.web.conversations import Id, Limit
from tenax.web.house import runtime_of


class Found(msgspec.Struct, frozen=True):
    """A message that was found."""

    conversation: str
    title: str | None
    seq: int
    role: str
    text: str
    at: str


class Hits(msgspec.Struct, frozen=True):
    """A page of what was found, newest first."""

    hits: list[Found]
    next: str | None


@endpoint("GET", "/api/search")
async def search(
    call: Request,
    q: Annotated[str, Meta(min_length=1, max_length=500)],
    conversation: Id | None = None,
    before: str | None = None,
    limit: Limit = 20,
) -> Hits:
    """Messages with these words, of every conversation or of one."""
    runtime = await runtime_of(call)
    page = await runtime.search(q, conversation=conversation, before=_place(before), limit=limit)
    titles = await titles_of(runtime, {each.conversation for each in page.hits})
    hits = [
        Found(
            each.conversation, titles[each.conversation], each.seq, each.role, each.snippet, rfc3339(each.at)
        )
        for each in page.hits
        if each.conversation in titles
    ]
    return Hits(hits, None if page.before is None else f"{page.before[0]}.{page.before[1]}")


async def titles_of(runtime: Runtime, names: set[str]) -> dict[str, str | None]:
    """What conversations are called. One that is gone has no name."""
    titles: dict[str, str | None] = {}
    for name in names:
        try:
            (found,) = await runtime.list.page([await runtime.journal.summary(name)])
        except (Gone, NoSuchConversation):
            continue
        titles[name] = found.title or found.words
    return titles


def _place(before: str | None) -> tuple[int, int] | None:
    if before is None:
        return None
    try:
        at, place = map(int, before.split("."))
    except ValueError:
        raise InvalidInput("This is no place in the hits.", hint="Use `next` of the page before.") from None
    if not (0 <= at < 1 << 62 and 0 <= place < 1 << 62):
        raise InvalidInput("This is no place in the hits.", hint="Use `next` of the page before.")
    return at, place
