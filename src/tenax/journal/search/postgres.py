"""The search index of a PostgreSQL store, in a table of the store.

Rows and cursor change in the same transaction, so a message is indexed exactly once, and a restored backup restores
both. The index uses a separate connection, so appends do not wait for the index.

A search first scans the newest messages of the user, to find common words. Then the search looks rare words up: parts
of words through pg_trgm, short words and scripts without spaces through a separate index. A server without pg_trgm
gives the same results by scanning on.
"""

from __future__ import annotations

from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tenax.errors import TenaxError
from tenax.journal.row_key import bounds
from tenax.journal.search.index import (
    READER,
    Key,
    Move,
    Position,
    Proposed,
    SearchIndex,
)
from tenax.journal.search.query import has_word, keys_of
from tenax.journal.store import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tenax.journal.postgres.store import PostgresStore
    from tenax.journal.search.query import Query
    from tenax.journal.store import SqlRow, Tx

__all__ = ["PostgresSearch"]

WINDOWS = (500, 2000)
"""The sizes of the scans, in messages, before the index is used."""
LOOKED_UP = 500
PAGE = 1000
INDEX_SECONDS = 600
_NEWEST: Key = (2**63 - 1, 2**63 - 1)


class PostgresSearch(SearchIndex):
    """The index in the database of the store."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._has_pieces = False
        self._prepared = False

    @property
    def notes(self) -> list[str]:
        if self._pieces():
            return []
        return [
            "The database has no pg_trgm: a search for a rare word reads every message of its user."
        ]

    def _pieces(self) -> bool:
        """Return whether the database can look up parts of words."""
        if not self._has_pieces:
            self._has_pieces = bool(self._store.query("pieces_index")[0][0])
        return self._has_pieces

    # -- searching -------------------------------------------------------------------------------------------

    def ready(self) -> str | None:
        return "table" if self._store.query("reader", name=READER.name) else None

    def propose(
        self,
        user: str,
        query: Query,
        *,
        num: int | None,
        before: Key | None,
        limit: int,
    ) -> Proposed:
        likes = [f"%{_escape(piece)}%" for piece in query.pieces]
        where = {"owner": user, "likes": likes, "keys": list(query.keys)}
        deadline = self._store.clock.monotonic() + self._store.timing.search_seconds
        found: list[Key] = []
        for rows in self._pages(query, where, num, before or _NEWEST, limit):
            found += [
                (at, row_key)
                for at, row_key, folded in rows
                if folded is not None and query.matches(folded)
            ]
            if len(found) >= limit:
                break
            if rows and self._store.clock.monotonic() > deadline:
                return Proposed(found, rows[-1][:2])
        return Proposed(found[:limit])

    def _pages(
        self,
        query: Query,
        where: dict[str, Any],
        num: int | None,
        last: Key,
        limit: int,
    ) -> Iterator[list[SqlRow]]:
        """Yield pages of candidate messages, newest first."""
        low, high = bounds(num or 0)
        for page in count():
            name, size, terms = (
                "search_within",
                max(limit, LOOKED_UP),
                {"low": low, "high": high},
            )
            if num is None and page >= len(WINDOWS):
                name, terms = self._look_up(query, where)
            elif num is None:
                name = "search_walk"
            if name == "search_walk":
                size = WINDOWS[min(page, len(WINDOWS) - 1)]
            asked = {**where, **terms, "at": last[0], "place": last[1], "limit": size}
            rows = self._store.query(name, **asked)
            yield rows
            if len(rows) < size:
                return
            last = rows[-1][0], rows[-1][1]

    def _look_up(
        self, query: Query, where: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return the statement and parameters of a lookup. Parts of words come first, because parts are the rarest."""
        has_pieces = self._pieces()
        pieces = sorted(
            (like for like in where["likes"] if has_pieces and has_word(like)), key=len
        )
        keys = [*query.keys, *query.implied]
        if pieces:
            return "search_by_pieces", {"first": pieces[-1], "second": pieces[0]}
        return ("search_by_keys", {"keys": keys}) if keys else ("search_walk", {})

    # -- indexing --------------------------------------------------------------------------------------------

    def prepare(self, hold: Callable[[Tx], None]) -> None:
        if self._prepared:
            return
        with self._store.aside() as tx:
            hold(tx)
        if not self._pieces():
            for name in ("add_trigrams", "index_pieces"):
                try:
                    with self._store.aside(seconds=INDEX_SECONDS) as tx:
                        tx.run(name)
                except (TenaxError, Trouble):
                    # The extension is missing or not allowed. `notes` reports it.
                    break
        self._sweep()
        self._prepared = True

    def _sweep(self) -> None:
        """Forget deleted conversations left in the index because the deleting process died."""
        past = 0
        while page := self._store.query("tombstones_page", past=past, limit=PAGE):
            for (num,) in self._store.query(
                "orphan_search_docs", nums=[num for (num,) in page]
            ):
                self._remove(num, None)
            past = page[-1][0]

    def position(self, num: int, was: int) -> Position:  # noqa: ARG002  (only the cursor of the journal counts)
        return Position(was)

    def apply(self, moves: Sequence[Move], hold: Callable[[Tx], None]) -> None:
        """Index the moves. Cursors are locked first and moved last, because a moved cursor blocks appends.

        Both happen in the order of the conversation numbers, as in appends, to avoid a deadlock.
        """
        with self._store.aside() as tx:
            hold(tx)
            valid: list[Move] = []
            for move in sorted(moves, key=attrgetter("num")):
                where = {"num": move.num, "reader": READER.name}
                for (seq,) in tx.run("lock_search", where):
                    if seq == move.was:
                        valid.append(move)
            for move in valid:
                gone = set(move.erased)
                docs = [doc for doc in move.docs if doc.row_key not in gone]
                if docs:
                    rows = [
                        (
                            doc.row_key,
                            move.user,
                            doc.folded,
                            " ".join(keys_of(doc.folded)),
                        )
                        for doc in docs
                    ]
                    tx.many("put_search_doc", rows)
                if move.erased:
                    tx.many(
                        "delete_search_doc", [(row_key,) for row_key in move.erased]
                    )
            for move in valid:
                tx.run(
                    "advance",
                    {
                        "num": move.num,
                        "reader": READER.name,
                        "to": move.to,
                        "was": move.was,
                    },
                )

    def tidy(self, *, idle: bool = False) -> bool:  # noqa: ARG002  (the server does the maintenance)
        return False

    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:
        try:
            self._remove(num, seqs)
        except (TenaxError, Trouble):
            return False
        return True

    def _remove(self, num: int, seqs: Sequence[int] | None) -> None:
        low, high = bounds(num)
        with self._store.aside(durable=True) as tx:
            # After this lock no older batch of the conversation is still being indexed.
            tx.run("lock_search", {"num": num, "reader": READER.name})
            if seqs is None:
                tx.run("delete_search_docs", {"low": low, "high": high})
            elif seqs:
                tx.many("delete_search_doc", [(low + seq,) for seq in seqs])

    # -- closing ---------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        self._store.interrupt_aside()

    def close(self) -> None:
        """Close nothing, because the store closes the connections."""


def _escape(piece: str) -> str:
    return piece.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
