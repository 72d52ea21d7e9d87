"""Wake-ups inside a process: notify listeners when a conversation may have new events.

A commit of the process delivers the stored events, so no reader reads the process's own events back. A commit of
another process delivers only a hint, and the reader then reads the store. A hint may come without new events, and may
stand for several commits. A hint is late by at most `look_seconds`.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tenax.journal.base import Recorded

    Take = Callable[[Sequence[Recorded]], None]

__all__ = ["ANY", "Wakeups"]

ANY = 0
"""Listen to every conversation."""
_UNKNOWN = -1
"""The head of a conversation not read yet."""


class Wakeups:
    """The listeners of every conversation, by the number of the conversation in the store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[int, set[Callable[[], None]]] = {}
        self._followers: dict[int, set[Take]] = {}
        self._heads: dict[int, int] = {}
        """The last seq reported to the listeners of a conversation."""
        self.look_seconds = 1.0
        """How long a reader may wait for a hint before looking.

        The engine raises the value while watching other processes.
        """
        self.on_first: Callable[[], None] = lambda: None
        """Called for every new listener, so that the engine starts to watch other processes."""
        self.also: Callable[[], None] = lambda: None
        """Called on every hint. Unlike a listener, `also` does not make the engine watch other processes."""

    @property
    def wanted(self) -> bool:
        return bool(self._heads)

    @property
    def followed(self) -> bool:
        """Whether a follower wants the stored events."""
        return bool(self._followers)

    @property
    def watched(self) -> list[int]:
        """The conversations with listeners or followers, without `ANY`."""
        with self._lock:
            return [num for num in self._heads if num != ANY]

    @contextmanager
    def listening(self, num: int, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` on every hint for the conversation during the block.

        The callback must be fast and thread-safe.
        """
        self._enter(self._listeners, num, callback)
        try:
            self.on_first()
            yield
        finally:
            self._leave(self._listeners, num, callback)

    def follow(self, num: int, take: Take) -> None:
        """Give `take` the events stored by the process, and an empty sequence for possible events of other processes.

        `take` is called in any thread, in the order of the commits, until `unfollow`.
        """
        self._enter(self._followers, num, take)
        try:
            self.on_first()
        except BaseException:
            self.unfollow(num, take)
            raise

    def unfollow(self, num: int, take: Take) -> None:
        self._leave(self._followers, num, take)

    def know(self, num: int, head: int) -> bool:
        """Record that a follower has read the conversation up to `head`. Return whether the store has more events."""
        with self._lock:
            known = self._heads.get(num, _UNKNOWN)
            if num in self._heads:
                self._heads[num] = max(head, known)
        return known > head

    def _enter(self, listeners: dict[int, set[T]], num: int, callback: T) -> None:
        with self._lock:
            listeners.setdefault(num, set()).add(callback)
            self._heads.setdefault(num, _UNKNOWN)

    def _leave(self, listeners: dict[int, set[T]], num: int, callback: T) -> None:
        with self._lock:
            left = listeners.get(num, set())
            left.discard(callback)
            if not left:
                listeners.pop(num, None)
            if num not in self._listeners and num not in self._followers:
                self._heads.pop(num, None)

    def notify(self, nums: Iterable[int] | None) -> None:
        """Wake the listeners and followers of the conversations, or of every conversation (`None`)."""
        self.also()
        if not self._heads:
            return
        with self._lock:
            wanted = list(self._heads) if nums is None else [ANY, *nums]
            callbacks = [
                callback for num in wanted for callback in self._listeners.get(num, ())
            ]
            takers = [take for num in wanted for take in self._followers.get(num, ())]
        for callback in callbacks:
            callback()
        for take in takers:
            take(())

    def notify_heads(self, heads: Mapping[int, int]) -> None:
        """Wake the listeners of conversations with a new head, after a commit of another process."""
        moved: list[int] = []
        first: list[Callable[[], None]] = []
        with self._lock:
            for num, known in self._heads.items():
                head = heads.get(num, 0)
                # A lower head is older than a commit of this process. A missing head belongs to a deleted conversation.
                if num == ANY or (0 < head <= known):
                    continue
                self._heads[num] = head
                if known == _UNKNOWN and head:
                    # A new follower learns about the head from `know`.
                    first += self._listeners.get(num, ())
                else:
                    moved.append(num)
        for callback in first:
            callback()
        self.notify(moved)

    def deliver(self, stored: Mapping[int, Sequence[Recorded]]) -> None:
        """Give the newly stored events of the process to the followers, and wake the listeners."""
        self.also()
        if not self._heads:
            return
        with self._lock:
            callbacks = list(self._listeners.get(ANY, ()))
            takers: list[tuple[Take, Sequence[Recorded]]] = []
            for num, events in stored.items():
                if num not in self._heads:
                    continue
                callbacks += self._listeners.get(num, ())
                takers += [(take, events) for take in self._followers.get(num, ())]
                if events:
                    self._heads[num] = max(self._heads[num], events[-1].seq)
        for take, events in takers:
            take(events)
        for callback in callbacks:
            callback()
