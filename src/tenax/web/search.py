"""`/api/search`: everything that was ever said."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tenax.clock import rfc3339
from tenax.errors import Gone, NoSuchConversation
from tenax.runtime.runtime import Runtime
from tenax.web.api import Id, endpoint
from tenax.web.conversations import Limit, place_in, shown

_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


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
    runtime: Runtime,
    q: Annotated[str, Meta(min_length=1, max_length=500)],
    conversation: Id | None = None,
    before: str | None = None,
    limit: Limit = 20,
) -> Hits:
    """Messages with these words, of every conversation or of one."""
    place = place_in("hits", before, tuple[_Number, _Number])
    page = await runtime.search(q, conversation=conversation, before=place, limit=limit)
    titles = await titles_of(runtime, {each.conversation for each in page.hits})
    hits = [
        Found(
            each.conversation,
            titles[each.conversation],
            each.seq,
            each.role,
            each.snippet,
            rfc3339(each.at),
        )
        for each in page.hits
        if each.conversation in titles
    ]
    return Hits(
        hits, None if page.before is None else f"{page.before[0]}.{page.before[1]}"
    )


async def titles_of(runtime: Runtime, names: set[str]) -> dict[str, str | None]:
    """What conversations are called. One that is gone has no name."""
    titles: dict[str, str | None] = {}
    for name in names:
        try:
            found = await shown(runtime, name)
        except (Gone, NoSuchConversation):
            continue
        titles[name] = found.title or found.words
    return titles
