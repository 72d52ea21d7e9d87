"""Search: a reader with an index of its own, and a look past the reader's cursor.

A message is found from the moment it is stored: a query reads what the index does not have yet, newest first
and up to a bound. Where there was more and too little was found, it indexes for a moment and looks again, and
says so if that was not enough. What the index proposes is shown only if the journal has it and says the same, so
nothing erased, deleted or another user's is ever shown, however old the index is.

The order is that of `(at, place)`, newest first. Both never change, so a page goes on exactly where the last one ended,
whatever was indexed, stored or erased meanwhile.
"""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from tenax.errors import InvalidInput, TenaxError
from tenax.events import ConversationTitled
from tenax.journal.base import Hit, Hits
from tenax.journal.place import ALL_SEQS, SEQ_BITS, bounds
from tenax.journal.search.index import (
    READER,
    ROLE_OF,
    Key,
    Proposed,
    SearchIndex,
    Unusable,
    words_in,
)
from tenax.journal.search.query import Query, fold, parse, snippet
from tenax.journal.store import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenax.journal.search.indexer import Indexer
    from tenax.journal.store import Row, Store

__all__ = ["NoSearch", "Search", "WordSearch"]

FRESH_FACTS_MAX = 4000
"""So many events that are not indexed yet are read for one search; beside two messages a turn has two others."""
FRESH_CONVERSATIONS_MAX = 500
FRESH_BYTES_MAX = 16 * 1024 * 1024
BEHIND_SECONDS = 2.0
"""Where more than that is not indexed, a search that finds too little waits so long for the index, at most."""
_FRESH_PAGE = 200, 1024 * 1024
_SHOWN_AT_ONCE = 100
_ATTEMPTS, _PROPOSED_MAX = 8, 2000
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Search(abc.ABC):
    """What a journal asks of search."""

    @property
    def notes(self) -> list[str]:
        """What `doctor` should say about it: sentences."""
        return []

    @abc.abstractmethod
    def find(
        self, user: str, words: str, *, num: int | None, before: Key | None, limit: int
    ) -> Hits:
        """Messages of this user with these words, newest first."""

    @abc.abstractmethod
    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:
        """Take these messages out, or the whole conversation. False if their text may still stand in a file."""

    @abc.abstractmethod
    def scrub(self, seconds: float) -> bool:
        """Remove the traces of what was forgotten. False if that takes longer; it is then finished later."""

    @abc.abstractmethod
    def catch_up(self, seconds: float) -> bool:
        """Index what is there. False if that took longer."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop indexing and let go."""


class NoSearch(Search):
    """A journal without search: nothing is indexed, and nothing found. For tests that count what a store does."""

    def find(
        self,
        user: str,  # noqa: ARG002
        words: str,  # noqa: ARG002
        *,
        num: int | None,  # noqa: ARG002
        before: Key | None,  # noqa: ARG002
        limit: int,  # noqa: ARG002
    ) -> Hits:
        return Hits([], None, complete=False)

    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:  # noqa: ARG002
        return True

    def scrub(self, seconds: float) -> bool:  # noqa: ARG002
        return True

    def catch_up(self, seconds: float) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:
        """There is nothing to let go of."""


class _Fresh(NamedTuple):
    """What was read past the cursor."""

    keys: list[Key]
    conversations: int
    whole: bool


class WordSearch(Search):
    """Search over an engine's index."""

    def __init__(self, store: Store, index: SearchIndex, indexer: Indexer) -> None:
        self._store = store
        self._index = index
        self._indexer = indexer

    @property
    def notes(self) -> list[str]:
        return self._index.notes

    def find(
        self, user: str, words: str, *, num: int | None, before: Key | None, limit: int
    ) -> Hits:
        query, start = parse(words), _key(before)
        self._indexer.wake()
        hits = self._find(user, query, num, start, limit)
        # it may be in what nobody has read
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
            # Who is behind is asked before the index is, so what was not behind is in the index by then; unless the
            # index was made anew in between.
            fresh = self._fresh(user, num, query, trusted=True)
            with contextlib.suppress(Unusable):
                hits = self._page(
                    user, num, query, start, limit, fresh, self._index.propose
                )
                if self._ready() == life:
                    return hits
        fresh = self._fresh(user, num, query, trusted=False)
        return self._page(
            user, num, query, start, limit, fresh, self._propose_if_usable
        )

    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:
        done = self._index.forget(num, seqs)
        self._indexer.wake()
        return done

    def scrub(self, seconds: float) -> bool:
        deadline = self._store.clock.monotonic() + seconds
        try:
            while self._index.tidy():
                if self._store.clock.monotonic() > deadline:
                    return False
        except Unusable:
            return False
        return True

    def catch_up(self, seconds: float) -> bool:
        return self._indexer.catch_up(seconds)

    def close(self) -> None:
        self._indexer.close()
        self._index.close()

    def _ready(self) -> str | None:
        try:
            return self._index.ready()
        except Unusable:
            return None

    # -- past the cursor -------------------------------------------------------------------------------------

    def _fresh(
        self, user: str, num: int | None, query: Query, *, trusted: bool
    ) -> _Fresh:
        """Read what the index does not have, newest conversations first."""
        where = {"owner": user, "limit": FRESH_CONVERSATIONS_MAX + 1}
        if num is not None:
            at = (
                self._store.query("cursor", num=num, reader=READER.name)
                if trusted
                else []
            )
            behind = [(num, at[0][0] if at else 0)]
        elif trusted:
            behind = self._store.query("unindexed", **where, reader=READER.name)
        else:
            behind = self._store.query("newest_conversations", **where)
        found: list[Key] = []
        left, room = FRESH_FACTS_MAX, FRESH_BYTES_MAX
        for each, after in behind[:FRESH_CONVERSATIONS_MAX]:
            low, high = bounds(each)
            while rows := self._back(low + after, high):
                for place, kind, at, body in rows:
                    left, room = left - 1, room - len(body or b"")
                    if (
                        body is not None
                        and kind in ROLE_OF
                        and query.matches(fold(words_in(kind, body)))
                    ):
                        found.append((at, place))
                if left < 0 or room < 0:
                    return _Fresh(found, len(behind), whole=False)
                high = rows[-1][0] - 1
        return _Fresh(found, len(behind), whole=len(behind) <= FRESH_CONVERSATIONS_MAX)

    def _back(self, low: int, high: int) -> list[Row]:
        """The last facts of a conversation up to `high`."""
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
        # a stale index may propose what the journal no longer has
        for attempt in range(_ATTEMPTS):
            wanted = max(limit + 1, min((limit + 1) << attempt, _PROPOSED_MAX))
            proposed = propose(user, query, num=num, before=before, limit=wanted)
            # Down to `end` everything is known; None: to the very end.
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
            return self._index.propose(user, query, num=num, before=before, limit=limit)
        except Unusable:
            return Proposed([])

    def _show(self, user: str, query: Query, keys: Sequence[Key]) -> dict[Key, Hit]:
        """Those of these messages that the journal has, and that say it."""
        hits: dict[Key, Hit] = {}
        for start in range(0, len(keys), _SHOWN_AT_ONCE):
            some = keys[start : start + _SHOWN_AT_ONCE]
            rows = {
                row[0]: row
                for row in self._index.found(user, [place for _, place in some])
            }
            for key in some:
                hit = self._hit(query, key, rows[key[1]]) if key[1] in rows else None
                if hit is not None:
                    hits[key] = hit
        return hits

    def _hit(self, query: Query, key: Key, row: Row) -> Hit | None:
        place, conversation, kind, at, body, dead = row
        text = words_in(kind, body)
        folded = fold(text)
        if at != key[0] or kind not in ROLE_OF or not query.matches(folded):
            return None
        standing = not dead and (
            kind != ConversationTitled.kind or self._is_title(place)
        )
        return Hit(
            conversation,
            place & ALL_SEQS,
            at,
            ROLE_OF[kind],
            snippet(text, folded, query),
            standing,
        )

    def _is_title(self, place: int) -> bool:
        low, high = bounds(place >> SEQ_BITS)
        return bool(self._store.query("last_title", low=low, high=high)[0][0] == place)


def _key(before: object) -> Key | None:
    if before is None:
        return None
    try:
        return msgspec.convert(before, tuple[_Int64, _Int64])
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"`before` is what the last page gave, not {str(before)[:40]!r}."
        ) from error
