"""Search among many messages, and what its index costs those who append."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, pairwise
from statistics import median

from bench.engines import Engine
from bench.lab import Lab, Words, message, talk
from bench.measure import (
    Row,
    at_most,
    compare,
    per_second,
    percentile,
    progress,
    seconds,
    spread,
    stated,
    timed,
)
from tenax.events import ConversationOpened, Event, encode
from tenax.journal import Journal
from tenax.journal.base import RawEvent
from tenax.journal.search.index import READER

__all__ = ["search"]

_TEXT_BYTES = 250
_PER_CONVERSATION = 200
_ONCE = "zyxquark"
_PATIENCE = 1200


def search(lab: Lab) -> Iterator[Row]:
    """Words that are rare, common, alone and in pairs."""
    for engine in lab.engines:
        yield from _queries(lab, engine)
        yield from _beside_appends(lab, engine)


def _queries(lab: Lab, engine: Engine) -> Iterator[Row]:
    count, words = lab.size(200_000, quick=200, large=1_000_000), Words()
    progress(f"storing {count:,} messages, {engine.name}")
    with engine.open("search", search=True) as journal:
        _store(journal, count, words)
        few = journal.of("few")
        name = talk(few, 1)[0]
        for _ in range(100):
            few.append(name, [message(words.text(_TEXT_BYTES))])
        progress(f"indexing {count:,} messages, {engine.name}")
        begun = time.perf_counter()
        journal.search(_ONCE)
        _indexed(journal)
        took = time.perf_counter() - begun
        yield stated(
            f"search-{engine.name}-index",
            f"{engine.title}: time until the words of {count:,} messages that were imported are all in the index",
            f"{took:.0f} s",
            f"{count / took:,.0f} messages a second",
        )
        common, rare = words.words[:20], words.words[5000:5020]
        paired = [f"{a} {b}" for a, b in pairwise(common)]
        mixed = [f"{a} {b}" for a, b in zip(common, rare, strict=True)]
        for key, what, user, asked in (
            ("rare", "one rare word", journal, rare),
            ("once", "a word that stands in one message", journal, [_ONCE]),
            ("none", "a word that stands nowhere", journal, ["qqqqqqq"]),
            ("common", "one common word", journal, common),
            ("two-common", "two common words", journal, paired),
            ("two-mixed", "a common and a rare word", journal, mixed),
            ("scope", "one common word, for a user with 100 messages", few, common),
            (
                "scope-none",
                "a word that only another user has, for a user with 100 messages",
                few,
                [_ONCE],
            ),
        ):
            found = timed(
                lab.size(200, quick=3), partial(_ask, user, cycle(asked)), within=4
            )
            what = f"{engine.title}: {what}, among {count:,} messages, a page of 20"  # noqa: PLW2901
            yield stated(
                f"search-{engine.name}-{key}",
                what,
                f"p99 {seconds(percentile(found, 0.99))}",
                spread(found),
            )


def _ask(journal: Journal, words: Iterator[str]) -> None:
    journal.search(next(words))


def _store(journal: Journal, count: int, words: Words) -> None:
    """Imported conversations, one message a second, the last one now."""
    now = journal.clock.now_us()
    for start in range(0, count, _PER_CONVERSATION):
        size = min(_PER_CONVERSATION, count - start)
        texts = [words.text(_TEXT_BYTES) for _ in range(size)]
        if start == 0:
            texts[0] = f"{texts[0]} {_ONCE}"
        entries = [
            RawEvent(
                "message.user",
                now - (count - start - number) * 1_000_000,
                None,
                encode(message(text)),
            )
            for number, text in enumerate(texts)
        ]
        opened = ConversationOpened(journal.user or "", journal.ids.segment())
        journal.load(journal.ids.conversation(), opened, entries)


def _indexed(journal: Journal) -> None:
    """Wait until the index has everything, of every user."""
    deadline, everybody = time.monotonic() + _PATIENCE, journal.of(None)
    while everybody.behind(READER, 1):
        if time.monotonic() > deadline:
            raise TimeoutError(f"The index was not complete after {_PATIENCE} seconds.")
        time.sleep(0.05)


def _beside_appends(lab: Lab, engine: Engine) -> Iterator[Row]:
    """The same appends with the index kept and without it. A side's turn begins when the index is complete."""
    progress(f"appends beside the index, {engine.name}")
    words = Words()
    texts = cycle([message(words.text(_TEXT_BYTES)) for _ in range(500)])
    with (
        engine.open("indexed", search=True) as indexed,
        engine.open("unindexed") as plain,
    ):
        rates: list[tuple[float, float]] = []
        appends = [_appends(indexed, texts), _appends(plain, texts)]
        engine.warm("indexed", appends[0], lab.size(2000, quick=20))
        engine.warm("unindexed", appends[1], lab.size(2000, quick=20))

        def side(number: int) -> float:
            _indexed(indexed)
            begun = time.perf_counter()
            found = timed(lab.size(2000, quick=5), appends[number], within=2)
            rates.append((number, len(found) / (time.perf_counter() - begun)))
            return median(found)

        found = compare(lab.size(8, quick=2), lambda: side(0), lambda: side(1))
    what = f"{engine.title}: one append while the index is kept, beside one without it"
    yield at_most(
        f"search-{engine.name}-append", what, found.ratio, 1.1, found.said(seconds)
    )
    kept, without = (
        median(speed for each, speed in rates if each == number) for number in (0, 1)
    )
    what = f"{engine.title}: appends one after the other without a pause, while the index is kept, beside those without"
    measured = f"{per_second(kept)} beside {per_second(without)}"
    yield stated(
        f"search-{engine.name}-append-rate", what, f"{kept / without:.2f} x", measured
    )


def _appends(journal: Journal, events: Iterator[Event]) -> Callable[[], object]:
    """One append after the other to a few conversations."""
    names = cycle(talk(journal, 20))
    return lambda: journal.append(next(names), [next(events)])
