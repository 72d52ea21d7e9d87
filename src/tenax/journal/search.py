"""Search: a reader with a store of its own."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from tenax.journal.base import Hits

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Search"]


class Search(abc.ABC):
    @abc.abstractmethod
    def find(self, user: str, words: str, *, num: int | None, before: int | None, limit: int) -> Hits: ...

    @abc.abstractmethod
    def forget(self, num: int, seqs: Sequence[int] | None) -> None: ...

    @abc.abstractmethod
    def close(self) -> None: ...


class NoSearch(Search):
    def find(self, user: str, words: str, *, num: int | None, before: int | None, limit: int) -> Hits:
        return Hits([], None)

    def forget(self, num: int, seqs: Sequence[int] | None) -> None:
        pass

    def close(self) -> None:
        pass
