"""What the built-in memory recalls: a set of our own (`bench/data/recall.toml`), asked in other words, and the time it takes."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.lab import Lab, Words
from bench.measure import Row, seconds, spread, stated, timed
from tenax.memory.recall import Recall

__all__ = ["recall"]

_SET = Path(__file__).parent / "data" / "recall.toml"
_FACTS = 5000
_FACT_BYTES = 70
_QUESTION_BYTES = 45


class _Count(NamedTuple):
    """Of questions with an answer: found among the first five, and as the first. Of those without: anything found."""

    asked: int
    hits: int
    firsts: int
    without: int
    false: int


def recall(lab: Lab) -> Iterator[Row]:
    """Hits and false recalls, by halves and of questions that nothing was tuned on; then the time."""
    told = tomllib.loads(_SET.read_text())
    facts = [
        (name, text) for value in told["told"].values() for name, text in value.items()
    ]
    index = Recall(facts)
    parts = {name: _count(index, asked) for name, asked in told["questions"].items()}
    halves = [parts["first"], parts["second"]]
    both = _Count(*map(sum, zip(*halves, strict=True)))
    set_of = f"{len(facts)} memories of {len(told['told'])} conversations"
    yield from _rows(
        "recall", f"{set_of}, questions in other words, tuned on", both, halves
    )
    yield from _rows(
        "recall-fresh",
        "the same memories, questions that nothing was tuned on",
        parts["fresh"],
    )
    questions = [
        question for asked in told["questions"].values() for _, question in asked
    ]
    yield from _times(lab, facts, questions)


def _rows(
    key: str, what: str, count: _Count, halves: list[_Count] | None = None
) -> Iterator[Row]:
    hits = "".join(f", {each.hits} of {each.asked}" for each in halves or ())
    false = ", ".join(f"{each.false} of {each.without}" for each in halves or ())
    first = f"{count.firsts} as the first"
    yield stated(
        f"{key}-hits", f"{what}: found among the first five", f"{count.hits} of {count.asked}",
        f"halves {hits[2:]}; {first}" if halves else first,
    )  # fmt: skip
    yield stated(
        f"{key}-false", f"{what}: something found though there is no answer", f"{count.false} of {count.without}",
        f"halves {false}" if halves else "",
    )  # fmt: skip


def _count(index: Recall, asked: list[tuple[str, str]]) -> _Count:
    found = [
        (fact, [each.id for each in index.find(question)]) for fact, question in asked
    ]
    answered = [(fact, names) for fact, names in found if fact]
    without = [names for fact, names in found if not fact]
    hits = sum(fact in names for fact, names in answered)
    firsts = sum(names[:1] == [fact] for fact, names in answered)
    return _Count(len(answered), hits, firsts, len(without), sum(map(bool, without)))


def _times(
    lab: Lab, facts: list[tuple[str, str]], questions: list[str]
) -> Iterator[Row]:
    words = Words()
    count = lab.size(_FACTS, quick=300)
    many = [
        *facts,
        *((f"made-{n}", words.text(_FACT_BYTES)) for n in range(count - len(facts))),
    ]
    built = timed(lab.size(7, quick=1), lambda: Recall(many))
    yield stated(
        "recall-build",
        f"an index of {count:,} memories is built",
        seconds(median(built)),
    )
    index = Recall(many)
    made = [words.text(_QUESTION_BYTES) for _ in questions]
    for key, asked, what in (
        ("", questions, "the questions"),
        ("-made", made, "made-up words that are spelt much alike, the worst case"),
    ):
        took = [
            each
            for question in asked
            for each in timed(1, lambda question=question: index.find(question))
        ]
        yield stated(
            f"recall-find{key}",
            f"{what}, asked of {count:,} memories",
            spread(took).split(",")[0],
            spread(took),
        )
