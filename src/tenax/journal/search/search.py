"""Search: a durable reader with an index, and a scan of the events after the reader's cursor.

A message can be found as soon as it is stored: a query also reads the unindexed events, newest first and up to a bound.
If the query reaches the bound with too few results, the query indexes for a moment and searches again. If that was not
enough, the result says so. A proposal of the index is shown only if the journal confirms it. So no erased or deleted
message and no message of another user is shown, however old the index is.

Results are ordered by `(at, row_key)`, newest first. Neither ever changes, so a page continues exactly at the end of
the last page, whatever was indexed, stored or erased meanwhile.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from tenax.errors import InvalidInput, TenaxError
from tenax.events import ConversationTitled
from tenax.journal.base import Hit, Hits
from tenax.journal.row_key import ALL_SEQS, SEQ_BITS, bounds
from tenax.journal.search.index import (
    READER,
    ROLE_OF,
    Key,
    Proposed,
    SearchIndex,
    Unusable,
    words_in,
)
from tenax.journal.search.indexer import Indexer
from tenax.journal.search.query import Query, fold, parse, snippet
from tenax.journal.store import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenax.journal.store import SqlRow, Store

__all__ = ["Search"]

FRESH_FACTS_MAX = 4000
"""The largest number of unindexed events read by a search. A turn has two messages and about two other events."""
FRESH_CONVERSATIONS_MAX = 500
FRESH_BYTES_MAX = 16 * 1024 * 1024
BEHIND_SECONDS = 2.0
"""How long a search with too few results waits for the index if there are more unindexed events than these limits."""
_FRESH_PAGE = 200, 1024 * 1024
_SHOWN_AT_ONCE = 100
_ATTEMPTS, _PROPOSED_MAX = 8, 2000
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Fresh(NamedTuple):
    """The matching messages among the unindexed events."""

    keys: list[Key]
    conversations: int
    whole: bool


class Search:
    """The search of a journal, over the index of the engine."""

    def __init__(self, store: Store, index: SearchIndex) -> None:
        self._store = store
        self.index = index
        self._indexer = Indexer(store, index, self)

    @property
    def notes(self) -> list[str]:
        """Sentences for `tenax doctor`."""
        return self.index.notes

    def find(
        self, user: str, words: str, *, num: int | None, before: Key | None, limit: int
    ) -> Hits:
        """Return the user's messages with the words, newest first."""
        query, start = parse(words), _key(before)
        self._indexer.wake()
        hits = self._find(user, query, num, start, limit)
        # The message may be among the events that were not read.
        if not hits.complete and len(hits.hits) < limit:
            with contextlib.suppress(TenaxError, Trouble):
                self._indexer.catch_up(BEHIND_SECONDS)
                hits = self._find(user, query, num, start, limit)
        return hits

    def _find(
        self, user: str, query: Query, num: int | None, start: Key | None, limit: int
    ) -> Hits:
        life = self._ready()
        if life is not None:
            # Read the unindexed events before the index: everything else is in the index by then, unless the index was
            # created again in between.
            fresh = self._fresh(user, num, query, trusted=True)
            with contextlib.suppress(Unusable):
                hits = self._page(
                    user, num, query, start, limit, fresh, self.index.propose
                )
                if self._ready() == life:
                    return hits
        fresh = self._fresh(user, num, query, trusted=False)
        return self._page(
            user, num, query, start, limit, fresh, self._propose_if_usable
        )

    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:
        """Remove messages, or a whole conversation. Return `False` if a file may still hold the text."""
        done = self.index.forget(num, seqs)
        self._indexer.wake()
        return done

    def scrub(self, seconds: float) -> bool:
        """Remove the traces of forgotten messages. Return `False` if work is left for later."""
        deadline = self._store.clock.monotonic() + seconds
        try:
            while self.index.tidy():
                if self._store.clock.monotonic() > deadline:
                    return False
        except Unusable:
            return False
        return True

    def catch_up(self, seconds: float) -> bool:
        """Index every stored message. Return `False` if `seconds` were not enough."""
        return self._indexer.catch_up(seconds)

    def close(self) -> None:
        """Stop indexing and close the index."""
        self._indexer.close()
        self.index.close()

    def _ready(self) -> str | None:
        try:
            return self.index.ready()
        except Unusable:
            return None

    # -- past the cursor -------------------------------------------------------------------------------------

    def _fresh(
        self, user: str, num: int | None, query: Query, *, trusted: bool
    ) -> _Fresh:
        """Read the unindexed events, newest conversations first."""
        where = {"owner": user, "limit": FRESH_CONVERSATIONS_MAX + 1}
        if num is not None:
            behind = [(num, 0)]
            if trusted:
                for (cursor,) in self._store.query(
                    "cursor", num=num, reader=READER.name
                ):
                    behind = [(num, cursor)]
        elif trusted:
            behind = self._store.query("unindexed", **where, reader=READER.name)
        else:
            behind = self._store.query("newest_conversations", **where)
        found: list[Key] = []
        left, room = FRESH_FACTS_MAX, FRESH_BYTES_MAX
        for conversation_num, after in behind[:FRESH_CONVERSATIONS_MAX]:
            low, high = bounds(conversation_num)
            while rows := self._back(low + after, high):
                for row_key, kind, at, body in rows:
                    left, room = left - 1, room - len(body or b"")
                    if (
                        body is not None
                        and kind in ROLE_OF
                        and query.matches(fold(words_in(kind, body)))
                    ):
                        found.append((at, row_key))
                if left < 0 or room < 0:
                    return _Fresh(found, len(behind), whole=False)
                high = rows[-1][0] - 1
        return _Fresh(found, len(behind), whole=len(behind) <= FRESH_CONVERSATIONS_MAX)

    def _back(self, low: int, high: int) -> list[SqlRow]:
        """Return the last facts of a conversation up to `high`."""
        limit, size = _FRESH_PAGE
        return self._store.query(
            "facts_back", low=low, high=high, limit=limit, bytes=size
        )

    # -- a page ----------------------------------------------------------------------------------------------

    def _page(
        self,
        user: str,
        num: int | None,
        query: Query,
        before: Key | None,
        limit: int,
        fresh: _Fresh,
        propose: Callable[..., Proposed],
    ) -> Hits:
        hits: dict[Key, Hit] = {}
        # A stale index may propose messages that the journal no longer has.
        for attempt in range(_ATTEMPTS):
            wanted = max(limit + 1, min((limit + 1) << attempt, _PROPOSED_MAX))
            proposed = propose(user, query, num=num, before=before, limit=wanted)
            # All results down to `end` are known; None means all results.
            end = proposed.upto or (
                proposed.keys[-1] if len(proposed.keys) == wanted else None
            )
            keys = {
                *proposed.keys,
                *(key for key in fresh.keys if before is None or key < before),
            }
            known = sorted(
                (key for key in keys if end is None or key >= end), reverse=True
            )
            hits.update(self._show(user, query, known[:wanted]))
            before = known[wanted - 1] if len(known) > wanted else end
            if len(hits) > limit or before is None or before == proposed.upto:
                break
        shown = list(hits.items())[:limit]
        next_page = shown[-1][0] if len(hits) > limit else before
        return Hits(
            [hit for _, hit in shown],
            next_page,
            unindexed=fresh.conversations,
            complete=fresh.whole,
        )

    def _propose_if_usable(
        self,
        user: str,
        query: Query,
        *,
        num: int | None,
        before: Key | None,
        limit: int,
    ) -> Proposed:
        try:
            return self.index.propose(user, query, num=num, before=before, limit=limit)
        except Unusable:
            return Proposed([])

    def _show(self, user: str, query: Query, keys: Sequence[Key]) -> dict[Key, Hit]:
        """Return the messages that the journal has and that match the query."""
        hits: dict[Key, Hit] = {}
        for start in range(0, len(keys), _SHOWN_AT_ONCE):
            some = keys[start : start + _SHOWN_AT_ONCE]
            row_keys = self._store.as_list([row_key for _, row_key in some])
            found = self._store.query("found", owner=user, places=row_keys)
            rows = {row[0]: row for row in found}
            for key in some:
                hit = self._hit(query, key, rows[key[1]]) if key[1] in rows else None
                if hit is not None:
                    hits[key] = hit
        return hits

    def _hit(self, query: Query, key: Key, row: SqlRow) -> Hit | None:
        row_key, conversation, kind, at, body, dead = row
        text = words_in(kind, body)
        folded = fold(text)
        if at != key[0] or kind not in ROLE_OF or not query.matches(folded):
            return None
        standing = not dead and (
            kind != ConversationTitled.kind or self._is_title(row_key)
        )
        return Hit(
            conversation,
            row_key & ALL_SEQS,
            at,
            ROLE_OF[kind],
            snippet(text, folded, query),
            standing,
        )

    def _is_title(self, row_key: int) -> bool:
        low, high = bounds(row_key >> SEQ_BITS)
        return bool(
            self._store.query("last_title", low=low, high=high)[0][0] == row_key
        )


def _key(before: object) -> Key | None:
    if before is None:
        return None
    try:
        return msgspec.convert(before, tuple[_Int64, _Int64])
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"`before` must come from the previous page, not be {str(before)[:40]!r}."
        ) from error
