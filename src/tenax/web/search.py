"""`/api/search`: full-text search over every conversation of the user."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tenax.assembly import Runtime
from tenax.clock import rfc3339
from tenax.errors import Gone, NoSuchConversation
from tenax.journal.base import Hit
from tenax.web.api import Id, ResponseBody, endpoint
from tenax.web.conversations import Limit, parse_position, shown

_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Found(ResponseBody):
    """A search result."""

    conversation: str
    title: str | None
    seq: int
    role: str
    text: str
    at: str
    standing: bool
    """False if the message was undone or cleared."""


class Hits(ResponseBody):
    """A page of search results, newest first."""

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
    """Search messages, in every conversation or in a single conversation."""
    position = parse_position("hits", before, tuple[_Number, _Number])
    page = await runtime.search(
        q, conversation=conversation, before=position, limit=limit
    )
    titles = await titles_of(runtime, {hit.conversation for hit in page.hits})
    hits = [
        Found(
            hit.conversation,
            titles[hit.conversation],
            hit.seq,
            hit.role,
            hit.snippet,
            rfc3339(hit.at),
            hit.standing,
        )
        for hit in page.hits
        if hit.conversation in titles and not _is_old_title(hit, titles)
    ]
    return Hits(
        hits, None if page.before is None else f"{page.before[0]}.{page.before[1]}"
    )


def _is_old_title(hit: Hit, titles: dict[str, str | None]) -> bool:
    """Return whether a hit is a title that the conversation no longer has."""
    title = titles[hit.conversation] or ""
    return hit.role == "title" and hit.snippet.strip(" …") not in title


async def titles_of(runtime: Runtime, names: set[str]) -> dict[str, str | None]:
    """Return the titles of conversations. A deleted conversation has no entry."""
    titles: dict[str, str | None] = {}
    for name in names:
        try:
            found = await shown(runtime, name)
        except (Gone, NoSuchConversation):
            continue
        titles[name] = found.title or found.words
    return titles
