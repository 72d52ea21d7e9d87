"""`kill -9` while a provider is given turns: every turn reaches it, in order, and every end is told."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import tenax
from tenax.events import MemoryDue
from tenax.journal import Journal
from tenax.journal.verify.store import verify
from tests.contract.engine.base import begin
from tests.support.children import Child
from tests.support.counts import repeat
from tests.support.remembering import USER, kept, remember

pytestmark = pytest.mark.crash

PHASES = {
    "turn stored": "turns queued",
    "sync begun": "sync in flight",
    "sync kept": "sync in flight",
    "end due": "between turn and commit",
    "end begun": "commit in flight",
    "end kept": "commit in flight",
}
KILLS_AT_RANDOM = repeat(6, 100)


def without_repeats(found: list[str]) -> list[str]:
    return [each for each, _ in groupby(found)]


def check(journal: Journal, name: str, lines: list[list[Any]]) -> int:
    """What a provider has of a conversation is all of it, in order. How often something came again."""
    events = journal.read(name, limit=10_000)
    turns = [event.seq for event in events if event.kind == "run.finished"]
    mine = [line for line in lines if line[1] == f"s-{name}"]
    keys = [line[2] for line in mine if line[0] == "sync"]
    assert without_repeats(keys) == [f"{name}:{seq}" for seq in turns]
    ends = [line[2] for line in mine if line[0] == "end"]
    dues = [event.event for event in events if isinstance(event.event, MemoryDue)]
    assert len(without_repeats(ends)) == len(dues), "an end was not told"
    for end, due in zip(without_repeats(ends), dues, strict=True):
        last = max(seq for seq in turns if seq <= due.upto)
        told = [line[2] for line in mine[: [line[2] for line in mine].index(end)]]
        assert f"{name}:{last}" in told, (
            "the end of a segment came before its last turn"
        )
    return len(keys) + len(ends) - len(turns) - len(dues)


def test_turns_and_ends_survive_kills_in_every_phase(
    store_url: str, tmp_path: Path
) -> None:
    """With turns queued, in the middle of a turn and of an end, and between them; at most what was in flight comes twice."""
    file, chance, kills = tmp_path / "ledger", random.Random(5), Counter[str]()
    # from now on the provider is owed what comes
    assert Child(remember, store_url, str(file), [], 0).finish() == 0
    with tenax.open(store_url, user=USER) as journal:
        names = [begin(journal) for _ in range(2)]
        for point, phase in PHASES.items():
            for nth in (1, 2):
                victim = Child(remember, store_url, str(file), names, 2, point, nth)
                assert victim.finish() == -9, victim.lines[-3:]
                assert victim.lines.count(point.split()) == nth, (
                    "the kill was to come in another phase"
                )
                kills[phase] += 1
        for _ in range(KILLS_AT_RANDOM):
            names.append(begin(journal))
            victim = Child(remember, store_url, str(file), names[-1:], 6)
            victim.read_until(chance.randrange(1, 18))
            time.sleep(chance.uniform(0, 0.01))  # any instant will do
            victim.kill()
            kills["at random"] += victim.finish() == -9
        assert Child(remember, store_url, str(file), [], 0).finish() == 0
        assert all(kills[phase] for phase in (*PHASES.values(), "at random")), kills
        lines = kept(file)
        again = sum(check(journal, name, lines) for name in names)
        assert (
            again
            <= kills.total() - kills["turns queued"] - kills["between turn and commit"]
        ), kills
        assert [str(problem) for problem in verify(journal).problems] == []
