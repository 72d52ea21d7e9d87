"""The tool `search_conversations`. Results are quoted as data, because they are no instructions for the model."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

from msgspec import Meta

from tenax.clock import rfc3339
from tenax.errors import Gone, NoSuchConversation, ToolFailed
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Hit
from tenax.text import quote
from tenax.tools.base import Args, Call, Tool

__all__ = ["SearchConversations"]

_FOUND_MAX: Final = 10
_PAGE: Final = 50
_PAGES_MAX: Final = 4
# Results of tools are omitted: their origin is unknown, and a search would find earlier searches.
_SAID: Final = frozenset({"user", "assistant", "partial", "summary", "title"})


class SearchConversationsArgs(Args):
    words: Annotated[
        str,
        Meta(min_length=1, max_length=500, description="All of them have to occur."),
    ]


class SearchConversations(Tool[SearchConversationsArgs]):
    """Search the other conversations of the person.

    A call in a conversation with several people searches only the same conversation, because the rest may not be meant
    for everyone. Conversations from the sources `unseen` are never found, and cannot search.
    """

    name = "search_conversations"
    description = (
        "Search what the person and you said in other conversations: for what they refer to and this one does not hold. The "
        "result is excerpts, newest first, with date, title and id of the conversation."
    )
    effect = "pure"
    args = SearchConversationsArgs
    seconds = 30.0
    delegated = False
    asks = False
    only_reads = True

    def __init__(self, journal: AsyncJournal, unseen: Collection[str]) -> None:
        self._journal = journal
        self._unseen = unseen

    def touches(self, args: SearchConversationsArgs, call: Call) -> str:  # noqa: ARG002  (the contract's signature)
        return " ".join(args.words.split())

    async def run(self, args: SearchConversationsArgs, call: Call) -> str:
        here = await self._journal.summary(call.conversation)
        if here.source in self._unseen:
            raise ToolFailed("Other conversations are not searched from this one.")
        shared = await self._journal.shared(call.conversation)
        where = here.conversation if shared else None
        lines: list[str] = []
        before, more = None, False
        for _ in range(_PAGES_MAX):
            page = await self._journal.search(
                args.words, conversation=where, before=before, limit=_PAGE
            )
            for hit in page.hits:
                if (
                    hit.standing
                    and hit.role in _SAID
                    and (hit.conversation == here.conversation) == shared
                ):
                    lines += await self._line(hit)
            before = page.before
            more = before is not None or len(lines) > _FOUND_MAX or not page.complete
            if before is None or len(lines) >= _FOUND_MAX:
                break
        found = quote("\n".join(lines[:_FOUND_MAX])) or "Nothing was found."
        return f"{found}\nThere may be more: search for more words." if more else found

    async def _line(self, hit: Hit) -> list[str]:
        try:
            found = await self._journal.summary(hit.conversation)
        except (Gone, NoSuchConversation):
            return []
        if found.source in self._unseen:
            return []
        said = " ".join(
            f"{found.title or 'Without a title'}: {hit.role}: {hit.snippet}".split()
        )
        return [f"{rfc3339(hit.at)[:10]} {hit.conversation} {said}"]
