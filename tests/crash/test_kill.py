"""`kill -9` of writer processes, at chosen steps and at random instants: what was acknowledged is there."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import tenax
from tenax.errors import Refused
from tenax.events import ContextCompacted, ContextSummarised, ConversationTitled, Event
from tenax.journal import Journal, sqlite
from tenax.journal.verify.store import verify
from tenax.parts import Text
from tenax.testing import FaultyJournal
from tests.contract.engine.base import answer, begin, delta, say
from tests.contract.failing_vfs import FaultVfs
from tests.support import raw
from tests.support.children import Child, Teller
from tests.support.counts import repeat

pytestmark = pytest.mark.crash

THREADS = 3
TOGETHER = 3
"""Writers that run, and die, on one store at the same time."""
STEPS = [
    "begin",
    "load",
    "write",
    "commit",
    "committed",
    "log write",
    "log flush",
    "file write",
    "file flush",
]
KILLS_AT_A_STEP = repeat(12, 36)
KILLS_AT_RANDOM = repeat(72, 360)
KILLS_WHILE_OPENING = repeat(30, 200)


def write(
    teller: Teller, path: str, shared: str, me: str, step: str | None, nth: int
) -> None:
    """Append in several threads for ever, or until the step that is the end."""
    sqlite.CHECKPOINT_PAGES = 40  # so that the log is copied back all the time
    with FaultVfs() as disk:
        plain = step is None or step in STEPS[:5]
        opened = tenax.open(f"sqlite:///{path}") if plain else disk.open(Path(path))
        journal = FaultyJournal(opened)
        own = begin(journal, name=f"c-{me}")
        for each in (own, shared):
            journal.head(each)
        if step in STEPS[:5]:
            journal.faults.kill(f"store:{step}", nth=nth)
        elif step is not None:
            file, what = step.split(" ")
            disk.kill(
                "write" if what == "write" else "sync",
                nth=nth,
                file="wal" if file == "log" else "main",
            )
        teller.tell("ready")
        threads = [
            threading.Thread(
                target=chatter,
                args=(teller, journal, own if n % 2 else shared, f"{me}.{n}"),
                daemon=True,
            )
            for n in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        threads[0].join(60)


def chatter(teller: Teller, journal: Journal, name: str, tag: str) -> None:
    """Say something, tell which number it got, and so on, with whatever else goes on in a conversation."""
    for n in count(1):
        text = f"{tag}.{n}"
        events: list[Event]
        match n % 5:
            case 1 | 2:
                events = [say(text)]
            case 3:
                events = [delta(1, 0, "x" * 50), say(text), ConversationTitled(text)]
            case 4:
                events = [answer(text + "." + "y" * 3000)]
            case _:
                rotate(journal, name, text)
                continue
        seqs = {each.seq: each.kind for each in journal.append(name, events)}
        seq = next(seq for seq, kind in seqs.items() if kind.startswith("message."))
        teller.tell("stored", name, seq, text)


def rotate(journal: Journal, name: str, child: str) -> None:
    head = journal.head(name)
    if head.segment is not None:
        summary = ContextSummarised([Text("summary")], head.facts)
        moved = ContextCompacted(
            head.segment, f"s-{child}", head.head + 1, head.facts, head.head
        )
        try:
            journal.append(name, [summary, moved])
        except Refused:
            # somebody else was faster, or the summary is no longer where it was thought to be
            return


class Ledger:
    """What was acknowledged, and how many have died where."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged: dict[str, dict[int, str]] = defaultdict(dict)
        self.kills: Counter[str] = Counter()

    def bury(self, step: str, child: Child) -> None:
        """Take in what a dead child has told."""
        code = child.finish()
        assert code == -9, (
            f"a writer ended with {code} instead of being killed at {step}"
        )
        self.kills[step] += 1
        for line in child.lines:
            if line[0] == "stored":
                name, seq, text = line[1], int(line[2]), line[3]
                assert seq not in self.acknowledged[name], (
                    f"seq {seq} of {name} was given twice"
                )
                self.acknowledged[name][seq] = text

    def check(self) -> None:
        """Everything that was acknowledged is there, and the chain is whole."""
        stored = raw.stored(self.path)
        for name, told in self.acknowledged.items():
            for seq, text in told.items():
                assert stored[name].get(seq, "nothing").startswith(text), (
                    f"{name} {seq} is not what was acknowledged"
                )
        texts = [text for value in stored.values() for text in value.values()]
        assert len(texts) == len(set(texts)), "a text is stored twice"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    path = tmp_path / "tenax.db"
    with tenax.open(f"sqlite:///{path}") as journal:
        begin(journal, name="c-shared")
    ledger = Ledger(path)
    yield ledger
    with tenax.open(f"sqlite:///{path}") as journal:
        assert verify(journal).problems == []
        journal.append("c-shared", [say("it goes on")])


@pytest.mark.parametrize("half", [0, 1])
def test_a_writer_killed_at_any_step_of_a_commit_loses_nothing(
    ledger: Ledger, half: int
) -> None:
    """Killed before, in and after every step of a commit and of copying the log back, several at a time."""
    chance = random.Random(half)
    plans = [step for step in STEPS[half::2] for _ in range(KILLS_AT_A_STEP)]
    chance.shuffle(plans)
    for number, batch in enumerate(
        plans[n : n + TOGETHER] for n in range(0, len(plans), TOGETHER)
    ):
        children = {
            Child(
                write,
                str(ledger.path),
                "c-shared",
                f"{half}.{number}.{n}",
                step,
                chance.randint(1, 25),
            ): step
            for n, step in enumerate(batch)
        }
        for child, step in children.items():
            ledger.bury(step, child)
        if number % 4 == 0:
            ledger.check()
    ledger.check()
    assert ledger.kills == dict.fromkeys(STEPS[half::2], KILLS_AT_A_STEP)


@pytest.mark.parametrize("half", [0, 1])
def test_writers_killed_at_random_instants_lose_nothing(
    ledger: Ledger, half: int
) -> None:
    """Killed from outside after a random number of appends and a random moment more."""
    chance = random.Random(100 + half)
    for number in range(KILLS_AT_RANDOM // 2 // TOGETHER):
        children = [
            Child(write, str(ledger.path), "c-shared", f"r{half}.{number}.{n}", None, 0)
            for n in range(TOGETHER)
        ]
        for child in children:
            child.read_until(chance.randint(1, 60))
            time.sleep(chance.uniform(0, 0.004))  # any instant will do
            child.kill()
        for child in children:
            ledger.bury("random", child)
        if number % 4 == 0:
            ledger.check()
    ledger.check()
    assert ledger.kills["random"] == KILLS_AT_RANDOM // 2


def open_new(teller: Teller, path: str, what: str, nth: int) -> None:
    """Open a store that is not there yet, and die on the way."""
    with FaultVfs() as disk:
        disk.kill(what, nth=nth)  # type: ignore[arg-type]
        journal = disk.open(Path(path))
        begin(journal, say("here"), name="c-first")
        teller.tell("stored")


def test_a_process_killed_while_it_makes_the_store_leaves_one_that_opens(
    tmp_path: Path,
) -> None:
    """Killed at every statement, write and flush of the making: the next process finds a store, or makes it."""
    kills: Counter[str] = Counter()
    chance = random.Random(7)
    while kills.total() < KILLS_WHILE_OPENING:
        what = ("statement", "write", "sync")[kills.total() % 3]
        nth = chance.randint(1, {"statement": 60, "write": 60, "sync": 8}[what])
        path = tmp_path / f"{what}-{nth}-{kills.total()}" / "tenax.db"
        path.parent.mkdir()
        child = Child(open_new, str(path), what, nth)
        code = child.finish()
        kills[what] += code == -9
        assert (code == -9) != (child.lines == [["stored"]]) or child.lines
        with tenax.open(f"sqlite:///{path}") as journal:
            listed = [summary.conversation for summary in journal.conversations()]
            assert listed == ["c-first"] if child.lines else listed in ([], ["c-first"])
            assert verify(journal).problems == []
            begin(journal, say("works"))
    assert min(kills[what] for what in ("statement", "write", "sync")) > 0
