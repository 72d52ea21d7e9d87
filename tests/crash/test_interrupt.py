"""Ctrl-C in the middle of a commit: the one who pressed it stops, and nobody else notices."""

from __future__ import annotations

import threading
import time

import pytest

import tenax
from tenax.journal.verify.store import verify
from tenax.testing import FaultyJournal
from tests.contract.engine.base import begin, said, say

pytestmark = pytest.mark.crash

POINTS = ["begin", "load", "write", "commit", "committed"]


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_append_is_stored_once_and_the_others_with_it(
    store_url: str, point: str
) -> None:
    """The leader of a group is interrupted: its own append and those of the others are stored, each once."""
    with FaultyJournal(tenax.open(store_url)) as journal:
        name = begin(journal)
        hold = journal.faults.hold("store:begin")
        first = threading.Thread(target=lambda: journal.append(name, [say("first")]))
        first.start()
        hold.wait_until_reached()
        interrupted: list[bool] = []

        def lead() -> None:
            try:
                journal.append(name, [say("interrupted")])
            except KeyboardInterrupt:
                interrupted.append(True)

        threads = [threading.Thread(target=lead)]
        threads += [
            threading.Thread(target=lambda n=n: journal.append(name, [say(f"{n}")]))
            for n in range(3)
        ]
        for n, thread in enumerate(threads, start=1):
            thread.start()
            while journal.store.queue.waiting < n:
                time.sleep(0.0005)
        journal.faults.fail(
            f"store:{point}", KeyboardInterrupt(), nth=1 if point == "begin" else 2
        )
        hold.release()
        for thread in (first, *threads):
            thread.join(30)
            assert not thread.is_alive()
        assert interrupted == [True]
        journal.append(name, [say("after")])
        assert sorted(said(journal, name)) == sorted(
            ["first", "interrupted", "0", "1", "2", "after"]
        )
        assert verify(journal).problems == []


def test_who_is_interrupted_while_handing_on_leaves_nobody_waiting(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own append is stored, and the next in the queue has not been told yet that it leads."""
    journal = FaultyJournal(tenax.open(store_url))  # one that hangs is not closed
    name = begin(journal)
    hold, caught = journal.faults.hold("store:begin"), threading.Event()

    def interrupted() -> None:
        raise KeyboardInterrupt

    def first() -> None:
        try:
            journal.append(name, [say("first")])
        except KeyboardInterrupt:
            caught.set()

    threads = [threading.Thread(target=first)]
    threads[0].start()
    hold.wait_until_reached()
    threads += [
        threading.Thread(target=journal.append, args=(name, [say("next")]), daemon=True)
    ]
    threads[1].start()
    while not journal.store.queue.waiting:
        time.sleep(0.0005)
    monkeypatch.setattr(journal.store.queue, "hand_on", interrupted)
    hold.release()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert caught.is_set()
    assert said(journal, name) == ["first", "next"]
    journal.close()


def test_a_lone_append_that_is_interrupted_leaves_the_journal_usable(
    store_url: str,
) -> None:
    """Nobody else was there to go on with it: it is stored all the same, or found not to be, and the next one works."""
    with FaultyJournal(tenax.open(store_url)) as journal:
        name = begin(journal)
        for n, point in enumerate(POINTS):
            journal.faults.fail(f"store:{point}", KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                journal.append(name, [say(f"{n}")])
            journal.append(name, [say(f"after {n}")])
        expected = [text for n in range(len(POINTS)) for text in (f"{n}", f"after {n}")]
        assert said(journal, name) == expected
        assert verify(journal).problems == []
