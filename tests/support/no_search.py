"""A search that indexes nothing and finds nothing, for tests that count or break statements."""

from __future__ import annotations

from collections.abc import Sequence

from tenax.journal.base import Hits
from tenax.journal.search.index import Key
from tenax.journal.search.search import Search


class NoSearch(Search):
    """No search."""

    def __init__(self) -> None:
        """Open no index."""

    def find(
        self,
        user: str,
        words: str,
        *,
        num: int | None,
        before: Key | None,
        limit: int,
    ) -> Hits:
        return Hits([], None, complete=False)

    def forget(self, num: int, seqs: Sequence[int] | None) -> bool:
        return True

    def scrub(self, seconds: float) -> bool:
        return True

    def catch_up(self, seconds: float) -> bool:
        return True

    def close(self) -> None:
        """Close nothing."""
