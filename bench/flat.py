"""What a person and a reader do often, in a store that has grown, beside the same in a small one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

from bench.engines import Engine
from bench.lab import Lab, Words, message, talk
from bench.measure import Compared, Row, at_most, compare, progress, seconds, timed
from tenax.events import ConversationOpened, encode
from tenax.journal import Journal
from tenax.journal.base import RawEvent, Reader

__all__ = ["flat"]

_READER = Reader("bench", "facts", "now")
_PAGE_MAX = 10_000


class Grown(NamedTuple):
    """A store with so many conversations, one of which is long."""

    journal: Journal
    long: str
    others: list[str]
    middle: tuple[int, int, int]


def flat(lab: Lab) -> Iterator[Row]:
    """The same work in a large and in a small store."""
    for engine in lab.engines:
        large, small = (
            (lab.size(100_000, quick=110), lab.size(20_000, quick=110)),
            (100, 100),
        )
        progress(f"building a store of {large[0]:,} conversations, {engine.name}")
        with engine.open("large") as journal, engine.open("small") as little:
            grown = _grow(journal, *large), _grow(little, *small)
            engine.rest("large")
            engine.rest("small")
            yield from _compared(lab, engine, *grown)


def _grow(journal: Journal, conversations: int, events: int) -> Grown:
    words = Words()
    body = encode(message(words.text(200)))
    opened = ConversationOpened(journal.user or "", journal.ids.segment())
    at = journal.clock.now_us()
    long = journal.ids.conversation()
    journal.load(
        long,
        opened,
        [RawEvent("message.user", at, None, body) for _ in range(events - 1)],
    )
    others = talk(journal, conversations - 1)
    place: tuple[int, int, int] | None = None
    for _ in range(0, conversations // 2, min(_PAGE_MAX, conversations // 2)):
        place = journal.conversations(
            after=place, limit=min(_PAGE_MAX, conversations // 2)
        )[-1].place
    assert place is not None
    journal.behind(_READER)
    return Grown(journal, long, others, place)


def _compared(lab: Lab, engine: Engine, large: Grown, small: Grown) -> Iterator[Row]:
    progress(f"large beside small, {engine.name}")
    event = message(Words().text(200))
    calls = lab.size(1500, quick=20)
    engine.warm("large", lambda: large.journal.append(large.others[0], [event]), calls)
    engine.warm("small", lambda: small.journal.append(small.others[0], [event]), calls)

    events, conversations = lab.size(20_000, quick=110), lab.size(100_000, quick=110)
    work: list[tuple[str, str, Callable[[Grown], object]]] = [
        ("append", f"append to a conversation of {events:,} events", lambda at: at.journal.append(at.long, [event])),
        ("open", f"open the last 50 rows of a conversation of {events:,} events", lambda at: at.journal.open(at.long)),
        ("list", f"the first page of {conversations:,} conversations", lambda at: at.journal.conversations()),
        ("list-middle", "a page in the middle of them", lambda at: at.journal.conversations(after=at.middle)),
        ("behind", "`behind()`, two of them behind", lambda at: at.journal.behind(_READER)),
    ]  # fmt: skip
    for key, what, call in work:
        found = _both(lab, partial(call, large), partial(call, small))
        what = f"{engine.title}: {what}, beside the same in a store with 100"  # noqa: PLW2901
        yield at_most(
            f"flat-{engine.name}-{key}", what, found.ratio, 1.5, found.said(seconds)
        )


def _both(
    lab: Lab, large: Callable[[], object], small: Callable[[], object]
) -> Compared:
    count = lab.size(20, quick=3)
    timed(count, large)
    timed(count, small)
    return compare(
        lab.size(25, quick=2),
        lambda: median(timed(count, large)),
        lambda: median(timed(count, small)),
    )
