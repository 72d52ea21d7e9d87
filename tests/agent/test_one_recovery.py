"""What keeps two readers from recovering one run twice, each without the others (row 2.3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenax.agent import recovery
from tenax.events import RunRecovered
from tenax.journal import Journal
from tenax.journal.base import Lease
from tenax.recovery import repair
from tenax.sessions import SessionDB
from tenax.views.pages import fold_page
from tests.agent.test_recovery import (
    begin,
    conversation_of,
    count,
    marker_in,
    rows_of,
    write_late,
)

WAIT = 60.0


@pytest.fixture
def db(store_url: str) -> Iterator[SessionDB]:
    """A store with an interrupted run whose output came late: the next look recovers it."""
    with SessionDB(url=store_url) as db:
        begin(db)
        repair(db, "s-1", "r-1")
        write_late(db)
        yield db


def test_the_lease_alone_is_enough(db: SessionDB) -> None:
    """While another process looks, a reader shows what there is and stores nothing."""
    lease = db.journal.claim(
        f"recover:{conversation_of(db)}:r-1", "another process", WAIT
    )
    assert lease is not None
    assert marker_in(rows_of(db))["state"] == "pending"
    assert count(db, RunRecovered.kind) == 0
    db.journal.release(lease)
    assert marker_in(rows_of(db))["state"] == "recovered"


def test_the_key_of_the_event_alone_is_enough(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that lost its lease and does not know that the other one has stored the event stores no second one."""
    conversation = conversation_of(db)
    shown = fold_page(db.journal, conversation, None, 50).transcript
    (row,) = [row for row in shown.rows if row.kind == "marker"]

    def claim_anyway(name: str, holder: str, seconds: float) -> Lease | None:
        return Journal.claim(db.journal, name, holder, seconds, take_over=True)

    monkeypatch.setattr(db.journal, "claim", claim_anyway)
    for _ in range(2):
        recovery.find_output(db.journal, conversation, row, "r-1", shown)
    assert count(db, RunRecovered.kind) == 1


def test_one_look_at_a_time_in_a_process(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second reader of this process begins no look of its own, and does not wait."""
    looks, begun, go_on = list[str](), threading.Event(), threading.Event()

    def look(_journal: object, conversation: str, *_rest: object) -> bool:
        looks.append(conversation)
        begun.set()
        return go_on.wait(WAIT)

    monkeypatch.setattr(recovery, "find_output", look)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(rows_of, db)
        assert begun.wait(WAIT)
        rows_of(db)
        go_on.set()
        first.result(WAIT)
    assert len(looks) == 1
