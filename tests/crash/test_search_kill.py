"""`kill -9` of processes that index, at random instants: every message is found, and once."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

import tenax
from tenax.journal import Journal
from tenax.journal.search import indexer
from tenax.journal.search.query import parse
from tests.contract.engine.base import begin, say
from tests.support.children import Child, Teller, finish_all
from tests.support.counts import repeat

pytestmark = pytest.mark.crash

KILLS = repeat(20, 200)
CONVERSATIONS = 40
MESSAGES = 25


def index(teller: Teller, url: str, seconds: float) -> None:
    """Index in batches of a few, and tell when it begins and when nothing is left."""
    indexer.DOCS_PER_BATCH = indexer.FACTS_PER_READ = 4
    with tenax.open(url, user="ada") as journal:
        deadline = time.monotonic() + seconds
        teller.tell("ready")
        while time.monotonic() < deadline:
            journal.words.catch_up(1)
            teller.tell("done")


def write(journal: Journal, count: int, tag: str) -> Counter[str]:
    for n in range(count):
        begin(journal, *[say(f"needle {tag}.{n}.{each}") for each in range(MESSAGES)])
    return Counter(
        f"needle {tag}.{n}.{each}" for n in range(count) for each in range(MESSAGES)
    )


def found(journal: Journal) -> Counter[str]:
    page = journal.search("needle", limit=400)
    assert page.complete
    hits = Counter(hit.snippet for hit in page.hits)
    while page.before is not None:
        page = journal.search("needle", limit=400, before=page.before)
        hits.update(hit.snippet for hit in page.hits)
    return hits


def indexed(journal: Journal) -> int:
    """How many the index itself has, which the journal would correct."""
    proposed = journal.words.index.propose(
        "ada", parse("needle"), num=None, before=None, limit=100_000
    )
    assert len(proposed.keys) == len(set(proposed.keys))
    return len(proposed.keys)


def test_an_indexer_killed_at_random_instants_loses_and_doubles_nothing(
    store_url: str,
) -> None:
    """After every kill all is found by reading or by looking up; in the end it is all in the index, once."""
    rng = random.Random(7)
    with tenax.open(store_url, user="ada") as journal:
        stored = write(journal, CONVERSATIONS, "first")
    for kill in range(KILLS):
        child = Child(index, store_url, 30.0)
        child.read_until(1)
        time.sleep(rng.uniform(0, 0.15))
        child.kill()
        assert child.finish() == -9
        if kill % 4 == 0:
            with tenax.open(store_url, user="ada") as journal:
                assert found(journal) == stored
                stored += write(journal, 2, f"kill-{kill}")
    with tenax.open(store_url, user="ada") as journal:
        assert journal.words.catch_up(60)
        assert indexed(journal) == stored.total()
        assert found(journal) == stored
        assert journal.search("needle").unindexed == 0


def test_processes_that_index_at_once_do_each_thing_once(store_url: str) -> None:
    """Two index, a third one stores; what it stored is found all the while."""
    with tenax.open(store_url, user="ada") as journal:
        children = [Child(index, store_url, 4.0) for _ in range(2)]
        for child in children:
            child.read_until(1)
        stored: Counter[str] = Counter()
        for n in range(8):
            stored += write(journal, 4, f"round-{n}")
            assert found(journal) == stored
        assert finish_all(children) == [0, 0]
        assert journal.words.catch_up(60)
        assert indexed(journal) == stored.total()
        assert found(journal) == stored
