"""A run whose owner is gone: what is left in its place, and output of it that comes late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

import tenax
from tenax.agent.recovery import ATTEMPTS_MAX, GIVE_UP_SECONDS, open_page, open_rows
from tenax.clock import Timing
from tenax.errors import InvalidInput, NoSuchConversation, RunConflict, StoreFull
from tenax.events import (
    ApprovalAsked,
    MessageAssistant,
    MessagePartial,
    MessageUser,
    ModelRequested,
    ReplyDelta,
    RunFinished,
    RunLate,
    RunRecovered,
    RunStarted,
    ToolFinished,
)
from tenax.parts import Text, ToolCall
from tenax.recovery import repair
from tenax.sessions import AsyncSessionDB, SessionDB
from tenax.testing import FaultyJournal, SimClock
from tests.support.children import Child, Teller, finish_all

HISTORY = 96
READS = 20
PATIENT = Timing(recovery_seconds=60.0)
"""On a busy machine, recovery may take more than half a second."""
SOON = 30.0
"""A read that waits for the recovery of another reader waits as long as `PATIENT` says, or for ever."""
Row = dict[str, Any]
Who = Literal["person", "system"]


@pytest.fixture
def db(store_url: str) -> Iterator[SessionDB]:
    """A session with a history."""
    with SessionDB(url=store_url, timing=PATIENT) as db:
        begin(db)
        yield db


def begin(db: SessionDB) -> None:
    db.create_session("s-1", source="web")
    roles = ("user", "assistant")
    db.append_messages(
        "s-1", [{"role": roles[n % 2], "content": f"m{n}"} for n in range(HISTORY)]
    )


def conversation_of(db: SessionDB) -> str:
    found = db.get_session("s-1")
    assert found is not None
    return str(found["conversation_id"])


def rows_of(db: SessionDB) -> list[Row]:
    found = db.get_session("s-1", rows=True)
    assert found is not None
    return list(found["rows"])


def marker_in(rows: list[Row], run: str = "r-1") -> Row:
    (found,) = [row for row in rows if row["kind"] == "marker" and row["run_id"] == run]
    return found


def told(rows: list[Row], last: int) -> list[tuple[str, str, str]]:
    return [(row["kind"], row["state"], row["text"]) for row in rows[-last:]]


def count(db: SessionDB, kind: str) -> int:
    return sum(
        event.kind == kind
        for event in db.journal.read(conversation_of(db), limit=10_000)
    )


def run_and_hang(teller: Teller, url: str, who: Who, said: str) -> None:
    """Store an input, begin to answer it, and say no more."""
    with SessionDB(url=url) as db:
        journal, name = db.journal, conversation_of(db)
        question = MessageUser(
            [Text("what is the answer?")], ask=True, system=who == "system"
        )
        (asked,) = journal.append(name, [question])
        lease = journal.claim(f"run:{name}", journal.instance, 60)
        started = RunStarted([asked.seq], instance=journal.instance)
        journal.append(name, [started], run="r-1", lease=lease)
        request = ModelRequested(asked.seq, "0", "script", 60.0)
        (requested,) = journal.append(name, [request], run="r-1", lease=lease)
        if said:
            journal.append(
                name, [ReplyDelta(requested.seq, 0, said)], run="r-1", lease=lease
            )
        teller.tell("began")
        threading.Event().wait(60)


def dead_run(url: str, who: Who = "person", said: str = "") -> None:
    """A run whose process was killed in the middle of its answer."""
    child = Child(run_and_hang, url, who, said)
    child.read_until(1)
    child.kill()
    assert child.finish() == -9


def write_late(db: SessionDB, run: str = "r-1") -> None:
    db.append_run_event("s-1", run, "token", {"text": "It is "})
    db.append_run_event("s-1", run, "token", {"text": "known. "})
    db.append_run_event("s-1", run, "tool", {"name": "read", "args": {"path": "a.txt"}})
    db.append_run_event("s-1", run, "tool_complete", {"name": "read", "text": "42"})
    db.append_run_event("s-1", run, "token", {"text": "It is 42."})


LATE = [
    ("assistant", "cut", "It is known. "),
    ("tool", "done", "42"),
    ("assistant", "cut", "It is 42."),
]


# -- the marker ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["person", "system"])
def test_the_first_repair_leaves_a_marker_that_says_that_recovery_is_pending(
    db: SessionDB, store_url: str, who: Who
) -> None:
    """The pending input and the dead run are cleared; the input stands above a marker that names its run."""
    dead_run(store_url, who)
    before = time.time()
    marker = repair(db, "s-1", "r-1")
    assert (marker["state"], marker["run_id"], marker["attempts"]) == (
        "pending",
        "r-1",
        0,
    )
    assert before - 5 <= marker["first_seen"] <= time.time() + 5
    assert "interrupted" in marker["content"]
    assert "found" not in marker["content"]
    head = db.journal.head(conversation_of(db))
    assert (head.run, head.unanswered) == (None, 0)
    rows = rows_of(db)
    assert [row["kind"] for row in rows[-2:]] == ["user", "marker"]
    assert rows[-2]["content"] == "what is the answer?"
    assert rows[-2]["author"] == ("system" if who == "system" else "")
    assert len(rows) == HISTORY + 2
    assert repair(db, "s-1", "r-1") == marker


def test_a_run_that_the_journal_never_saw_started_is_repaired_too(
    db: SessionDB,
) -> None:
    """It died before it could say that it had begun: what waited was its input."""
    name = conversation_of(db)
    db.journal.append(name, [MessageUser([Text("q")], ask=True)])
    assert repair(db, "s-1", "r-1")["state"] == "pending"
    assert db.journal.head(name).unanswered == 0
    assert told(rows_of(db), 2)[0] == ("user", "", "q")


def test_an_input_that_was_only_stored_stands_above_the_marker_too(
    db: SessionDB,
) -> None:
    """A caller with an agent of its own stores its messages itself."""
    db.append_message("s-1", role="user", content="q")
    marker = repair(db, "s-1", "r-1")
    assert (marker["state"], marker["attempts"]) == ("pending", 0)
    assert [row["kind"] for row in rows_of(db)[-2:]] == ["user", "marker"]


def test_text_that_is_stored_makes_the_marker_recovered_at_once(
    db: SessionDB, store_url: str
) -> None:
    """What was streamed before the process died is there, with its run, and no field of a retry is."""
    dead_run(store_url, said="It is alm")
    marker = repair(db, "s-1", "r-1")
    assert marker["state"] == "recovered"
    assert not {"attempts", "first_seen"} & set(marker)
    assert told(rows_of(db), 3)[1] == ("assistant", "cut", "It is alm")


def test_what_cannot_be_repaired_is_said(db: SessionDB) -> None:
    """No such session; a run that came to its end."""
    with pytest.raises(NoSuchConversation):
        repair(db, "s-2", "r-1")
    journal, name = db.journal, conversation_of(db)
    journal.append(name, [RunStarted()], run="r-1")
    journal.append(
        name, [MessageAssistant([Text("a")]), RunFinished("completed")], run="r-1"
    )
    with pytest.raises(InvalidInput):
        repair(db, "s-1", "r-1")
    assert rows_of(db)[-1]["kind"] == "assistant"


def test_a_run_whose_owner_is_alive_is_left_alone(
    db: SessionDB, store_url: str
) -> None:
    """Its lease is held; nothing is written."""
    child = Child(run_and_hang, store_url, "person", "It")
    child.read_until(1)
    with pytest.raises(RunConflict):
        repair(db, "s-1", "r-1")
    with pytest.raises(RunConflict):
        repair(db, "s-1", "r-2")
    assert db.journal.head(conversation_of(db)).run == "r-1"
    child.kill()
    child.finish()


def test_an_owner_that_dies_just_now_is_waited_for(
    db: SessionDB, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server hears of the end of a process a moment after it."""
    child = Child(run_and_hang, store_url, "person", "It")
    child.read_until(1)
    journal, name = db.journal, conversation_of(db)
    looks = 0

    def dies(*_where: Any, **_seconds: float) -> bool:
        """The repair has found it alive, and waits a moment."""
        nonlocal looks
        looks += 1
        child.kill()
        until = time.monotonic() + 60
        while journal.holder(f"run:{name}") is not None:
            assert time.monotonic() < until
            time.sleep(0.01)
        return False

    monkeypatch.setattr(journal, "wait", dies)
    assert repair(db, "s-1", "r-1")["state"] == "recovered"
    assert looks == 1
    assert child.finish() == -9


def test_a_run_that_waits_for_an_approval_is_not_repaired(db: SessionDB) -> None:
    """It holds no lease because it waits, not because its owner is gone."""
    journal, name = db.journal, conversation_of(db)
    journal.append(name, [RunStarted()], run="r-1")
    (answer,) = journal.append(
        name, [MessageAssistant([ToolCall("c", "write", "{}")])], run="r-1"
    )
    journal.append(
        name,
        [ApprovalAsked(answer.seq, "c", "write", "{}", expires_at=1 << 60)],
        run="r-1",
    )
    with pytest.raises(RunConflict):
        repair(db, "s-1", "r-1")


def repair_when_told(teller: Teller, url: str) -> None:
    with SessionDB(url=url) as db:
        teller.tell(repair(db, "s-1", "r-1")["state"])


def test_two_processes_that_repair_at_once_end_the_run_once(
    db: SessionDB, store_url: str
) -> None:
    """Each of them gets the marker."""
    dead_run(store_url)
    children = [Child(repair_when_told, store_url) for _ in range(2)]
    assert finish_all(children) == [0, 0]
    assert [child.lines for child in children] == [[["pending"]], [["pending"]]]
    assert count(db, RunFinished.kind) == 1


# -- output that comes late ----------------------------------------------------------------------------------------


def test_output_that_comes_later_stands_above_its_marker_in_order(
    db: SessionDB, store_url: str
) -> None:
    """The next read promotes the marker, and every field of a retry is gone."""
    dead_run(store_url)
    repair(db, "s-1", "r-1")
    before = db.get_session("s-1"), db.get_messages("s-1")
    write_late(db)
    db.append_run_event("s-1", "r-1", "stream_end", {})
    rows = rows_of(db)
    assert told(rows[:-1], 4) == [("user", "", "what is the answer?"), *LATE]
    marker = marker_in(rows)
    assert (marker["state"], rows[-1]) == ("recovered", marker)
    assert not {"attempts", "first_seen"} & set(marker)
    assert all(row["run_id"] == "r-1" for row in rows[-4:])
    after = db.get_session("s-1"), db.get_messages("s-1")
    assert after[0] is not None
    assert before[0] is not None
    assert after[0]["message_count"] == before[0]["message_count"] == HISTORY + 1
    assert after[1] == before[1]
    assert rows_of(db) == rows
    assert repair(db, "s-1", "r-1") == marker
    assert count(db, RunRecovered.kind) == 1


def test_output_that_is_there_before_the_repair_is_found_by_the_next_read(
    db: SessionDB,
) -> None:
    """A marker may come after what it stands for."""
    db.append_message("s-1", role="user", content="q")
    write_late(db)
    repair(db, "s-1", "r-1")
    rows = rows_of(db)
    assert told(rows[:-1], 4) == [("user", "", "q"), *LATE]
    assert marker_in(rows)["state"] == "recovered"


def test_output_that_is_there_before_the_repair_stands_under_the_input_that_waited(
    db: SessionDB,
) -> None:
    """The repair takes the input for the run; what the run wrote stands below it, though it was stored before."""
    db.journal.append(conversation_of(db), [MessageUser([Text("q")], ask=True)])
    write_late(db)
    repair(db, "s-1", "r-1")
    assert told(rows_of(db)[:-1], 4) == [("user", "", "q"), *LATE]


def test_the_same_words_twice_are_two(db: SessionDB) -> None:
    """Writers at the same time: each event has its place, also where two say the same."""
    repair(db, "s-1", "r-1")
    start = threading.Barrier(8)

    def write(_: int) -> None:
        start.wait()
        for _ in range(8):
            db.append_run_event("s-1", "r-1", "token", {"text": "ha"})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert told(rows_of(db)[:-1], 1) == [("assistant", "cut", "ha" * 64)]


def test_a_kind_of_no_run_event_is_refused(db: SessionDB) -> None:
    """And what is no mapping, or has words that are none, and an unknown session; nothing is stored."""
    head = db.journal.head(conversation_of(db)).head
    with pytest.raises(InvalidInput):
        db.append_run_event("s-1", "r-1", "shout", {})
    with pytest.raises(InvalidInput):
        db.append_run_event("s-1", "r-1", "token", "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        db.append_run_event("s-1", "r-1", "token", {"text": 5})
    with pytest.raises(InvalidInput):
        db.append_run_event("s-1", "r-1", "tool_complete", {"name": ["read"]})
    with pytest.raises(NoSuchConversation):
        db.append_run_event("s-2", "r-1", "token", {"text": "x"})
    assert db.journal.head(conversation_of(db)).head == head


@pytest.mark.parametrize("payload", [{}, {"text": ""}, {"text": None}])
def test_a_token_without_words_is_no_output(
    db: SessionDB, payload: dict[str, Any]
) -> None:
    """The marker goes on waiting, and no row is shown for it."""
    repair(db, "s-1", "r-1")
    before = rows_of(db)
    db.append_run_event("s-1", "r-1", "token", payload)
    assert rows_of(db) == before


@pytest.mark.parametrize("run", ["r" * 160, "r" * 200])
def test_a_run_with_a_long_name_is_recovered_too(db: SessionDB, run: str) -> None:
    """Its name is as long as a run's may be, and is part of other names; the facade of the store is as good."""
    repair(AsyncSessionDB(db), "s-1", run)
    write_late(db, run)
    assert marker_in(rows_of(db), run)["state"] == "recovered"


def test_late_output_stands_with_its_own_run_though_another_has_written_below(
    db: SessionDB,
) -> None:
    """Also when so much has come since that it is on another page."""
    journal, name = db.journal, conversation_of(db)
    (asked,) = journal.append(name, [MessageUser([Text("q")], ask=True)])
    repair(db, "s-1", "r-1")
    journal.append(name, [RunStarted(resumes="r-1", attempt=1)], run="r-2")
    journal.append(
        name, [MessageAssistant([Text("done")]), RunFinished("completed")], run="r-2"
    )
    write_late(db)
    late = [(kind, text) for kind, _, text in LATE]
    rows = rows_of(db)
    marker = marker_in(rows)
    assert marker["state"] == "resumed"
    assert [(row["kind"], row["text"]) for row in rows[-6:]] == [
        ("user", "q"),
        *late,
        ("marker", marker["text"]),
        ("assistant", "done"),
    ]
    (below,) = journal.append(name, [MessageUser([Text("below")])])
    db.append_messages("s-1", [{"role": "user", "content": f"n{n}"} for n in range(60)])
    write_late(db)
    last = open_rows(journal, name, limit=50, timing=PATIENT)
    assert [row.text for row in last] == [f"n{n}" for n in range(60)][-len(last) :]
    page = open_rows(journal, name, before=below.seq, limit=50, timing=PATIENT)
    texts = [row.text for row in page if row.kind != "marker"]
    more = ["It is 42.It is known. ", "42", "It is 42."]
    assert texts[texts.index("q") :] == ["q", "It is known. ", "42", *more, "done"]
    assert asked.seq == int(next(row.id for row in page if row.text == "q"))


@pytest.mark.parametrize("below", [0, 3])
def test_late_output_in_many_pieces_hides_no_row(db: SessionDB, below: int) -> None:
    """Each piece is stored, and none is a row: a page is filled with rows all the same, on every page."""
    repair(db, "s-1", "r-1")
    journal, name = db.journal, conversation_of(db)
    if below:
        db.append_messages(
            "s-1", [{"role": "user", "content": f"n{n}"} for n in range(below)]
        )
    journal.append(
        name, [RunLate(n, "token", {"text": "ha"}) for n in range(250)], run="r-1"
    )
    rows = rows_of(db)
    texts = [f"m{n}" for n in range(HISTORY)], [f"n{n}" for n in range(below)]
    assert [row["text"] for row in rows] == [
        *texts[0],
        "ha" * 250,
        marker_in(rows)["text"],
        *texts[1],
    ]
    assert marker_in(rows)["state"] == "recovered"
    last = open_rows(journal, name, limit=20, timing=PATIENT)
    assert [row.id for row in last] == [row["id"] for row in rows][-len(last) :]
    assert len(last) >= 20
    db.append_messages("s-1", [{"role": "user", "content": f"o{n}"} for n in range(20)])
    page = open_rows(
        journal, name, before=journal.head(name).head - 19, limit=20, timing=PATIENT
    )
    assert [row.id for row in page] == [row["id"] for row in rows][-len(page) :]
    assert len(page) >= 20


def test_a_step_of_more_calls_than_a_page_has_rows_hides_no_row(db: SessionDB) -> None:
    """The results of calls are stored below all of their cards."""
    journal, name = db.journal, conversation_of(db)
    journal.append(name, [RunStarted()], run="r-1")
    calls = MessageAssistant([ToolCall(f"t{n}", "read", "{}") for n in range(30)])
    (step,) = journal.append(name, [calls], run="r-1")
    journal.append(
        name,
        [ToolFinished(step.seq, f"t{n}", "done", f"r{n}") for n in range(30)],
        run="r-1",
    )
    page = open_page(journal, name, None, 20, PATIENT)
    rows = [*open_page(journal, name, page.next, 20, PATIENT).rows, *page.rows]
    assert [row.text for row in rows if row.kind == "tool"] == [
        f"r{n}" for n in range(30)
    ]


def test_the_rows_of_a_session_are_all_of_them(db: SessionDB) -> None:
    """Who asks for the rows has no other page to ask for."""
    db.append_messages(
        "s-1", [{"role": "user", "content": f"n{n}"} for n in range(300)]
    )
    repair(db, "s-1", "r-1")
    assert len(rows_of(db)) == HISTORY + 300 + 1


# -- reads ---------------------------------------------------------------------------------------------------------


def test_reads_use_up_nothing_while_output_may_still_come(
    db: SessionDB, store_url: str
) -> None:
    """Twenty of them leave the marker as it was."""
    dead_run(store_url)
    marker = repair(db, "s-1", "r-1")
    head = db.journal.head(conversation_of(db)).head
    for _ in range(READS):
        assert marker_in(rows_of(db)) == marker
    assert db.journal.head(conversation_of(db)).head == head


@pytest.mark.parametrize("how", ["sealed", "swept"])
def test_sealed_and_empty_turns_neutral_at_the_limit(
    db: SessionDB, store_url: str, how: str
) -> None:
    """Each read uses up an attempt: the run is sealed, or its host has handed in all that it left."""
    dead_run(store_url)
    repair(db, "s-1", "r-1")
    if how == "sealed":
        db.append_run_event("s-1", "r-1", "stream_end", {})
    else:
        for instance in db.journal.instances():
            if not instance.alive:
                db.journal.swept(instance.id)
    for attempt in range(1, ATTEMPTS_MAX):
        assert marker_in(rows_of(db))["attempts"] == attempt
    marker = marker_in(rows_of(db))
    assert marker["state"] == "neutral"
    assert not {"attempts", "first_seen"} & set(marker)
    assert [row["kind"] for row in rows_of(db)[-2:]] == ["user", "marker"]
    assert count(db, RunRecovered.kind) == 1


def test_after_a_day_nobody_looks_any_more(store_url: str) -> None:
    """Neutral, whatever was written of it."""
    clock = SimClock()
    with (
        tenax.open(store_url, clock=clock) as journal,
        SessionDB(journal=journal, timing=PATIENT) as db,
    ):
        begin(db)
        repair(db, "s-1", "r-1")
        clock.advance(GIVE_UP_SECONDS - 60)
        assert marker_in(rows_of(db))["state"] == "pending"
        db.append_run_event("s-1", "r-1", "stream_end", {})
        clock.advance(120)
        write_late(db)  # nobody reads it: it would make the marker a recovered one
        assert marker_in(rows_of(db))["state"] == "neutral"
        assert journal.run(conversation_of(db), "r-1").attempts == 0  # type: ignore[union-attr]


def test_lists_search_and_tails_use_up_no_attempt(db: SessionDB) -> None:
    """Only opening the conversation is a read."""
    repair(db, "s-1", "r-1")
    db.append_run_event("s-1", "r-1", "stream_end", {})
    name = conversation_of(db)
    for _ in range(READS):
        db.list_sessions()
        db.search("m1")
        db.get_session("s-1")
        db.get_messages("s-1")
        next(db.journal.tail(name))
    assert marker_in(rows_of(db))["attempts"] == 1


def test_two_threads_that_read_at_once_recover_once(store_url: str) -> None:
    """One of them looks; the other returns at once with what there is."""
    with tenax.open(store_url) as inner:
        journal = FaultyJournal(inner)
        db = SessionDB(journal=journal, timing=PATIENT)
        begin(db)
        repair(db, "s-1", "r-1")
        write_late(db)
        held = journal.faults.hold("append:before")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(rows_of, db)
            held.wait_until_reached()
            began = time.monotonic()
            assert marker_in(rows_of(db))["state"] == "pending"
            with SessionDB(url=store_url, timing=PATIENT) as other:
                assert marker_in(rows_of(other))["state"] == "pending"
            assert time.monotonic() - began < SOON
            held.release()
            first.result()
        while marker_in(rows_of(db))["state"] == "pending":
            assert time.monotonic() - began < 3 * SOON
        assert count(db, RunRecovered.kind) == 1


def read_when_told(teller: Teller, url: str) -> None:
    with SessionDB(url=url, timing=PATIENT) as db:
        teller.tell(marker_in(rows_of(db))["state"], len(rows_of(db)))


def test_two_processes_that_read_at_once_recover_once(
    db: SessionDB, store_url: str
) -> None:
    """Whoever looks, the event is there once, and both show it the next time."""
    repair(db, "s-1", "r-1")
    write_late(db)
    children = [Child(read_when_told, store_url) for _ in range(3)]
    assert finish_all(children) == [0] * 3
    assert {child.lines[0][1] for child in children} == {str(HISTORY + 4)}
    assert marker_in(rows_of(db))["state"] == "recovered"
    assert count(db, RunRecovered.kind) == 1


def test_a_read_neither_fails_nor_waits_when_the_store_takes_no_writes(
    store_url: str,
) -> None:
    """It shows what there is; once the store takes writes again, the next one recovers."""
    with tenax.open(store_url) as inner:
        journal = FaultyJournal(inner)
        db = SessionDB(journal=journal, timing=PATIENT)
        begin(db)
        repair(db, "s-1", "r-1")
        write_late(db)
        for point in ("claim:before", "append:before", "store:begin"):
            journal.faults.fail(point, StoreFull("There is no room."), times=None)
            rows = rows_of(db)
            assert (marker_in(rows)["state"], told(rows[:-1], 3)) == ("pending", LATE)
            journal.faults.clear()
        db = SessionDB(journal=journal)
        hold = journal.faults.hold("claim:before")
        began = time.monotonic()
        for _ in range(3):
            assert marker_in(rows_of(db))["state"] == "pending"
        assert time.monotonic() - began < SOON
        hold.release()
        while marker_in(rows_of(db))["state"] == "pending":
            assert time.monotonic() - began < 3 * SOON


def test_a_look_that_could_not_be_begun_is_begun_by_the_next_read(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may have no room for one more thread at that moment. The read shows what there is."""
    start, refused = threading.Thread.start, threading.Event()

    def full(thread: threading.Thread) -> None:
        if thread.name == "tenax-recovery" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    db.append_message("s-1", role="user", content="q")
    assert repair(db, "s-1", "r-1")["state"] == "pending"
    write_late(db)
    monkeypatch.setattr(threading.Thread, "start", full)
    assert marker_in(rows_of(db))["state"] == "pending"
    assert refused.is_set()
    assert marker_in(rows_of(db))["state"] == "recovered"


def test_a_read_does_not_wait_for_another_reader(db: SessionDB) -> None:
    """Somebody who looks for this run's output keeps nobody from reading."""
    repair(db, "s-1", "r-1")
    write_late(db)
    lease = db.journal.claim(f"recover:{conversation_of(db)}:r-1", "another", 60)
    assert lease is not None
    began = time.monotonic()
    assert marker_in(rows_of(db))["state"] == "pending"
    assert time.monotonic() - began < SOON
    db.journal.release(lease)
    assert marker_in(rows_of(db))["state"] == "recovered"


async def test_the_awaited_twin_does_the_same(store_url: str) -> None:
    """Rows, late output and the repair, awaited."""
    with SessionDB(url=store_url, timing=PATIENT) as behind:
        begin(behind)
        db = AsyncSessionDB(behind)
        assert repair(behind, "s-1", "r-1")["state"] == "pending"
        await db.append_run_event("s-1", "r-1", "token", {"text": "late"})
        await db.append_run_event("s-1", "r-1", "stream_end", {})
        found = await db.get_session("s-1", rows=True)
        assert found is not None
        assert told(found["rows"][:-1], 1) == [("assistant", "cut", "late")]
        assert marker_in(found["rows"])["state"] == "recovered"


# -- what was cut off ----------------------------------------------------------------------------------------------


def test_text_that_was_cut_off_is_sealed_before_anything_is_pruned(
    db: SessionDB, store_url: str
) -> None:
    """It stays readable and is found, though its partials are gone."""
    dead_run(store_url, said="The platypus is alm")
    name = conversation_of(db)
    assert db.journal.prune(name) == 0
    repair(db, "s-1", "r-1")
    assert count(db, MessagePartial.kind) == 1
    assert db.journal.prune(name) == 1
    assert count(db, ReplyDelta.kind) == 0
    assert told(rows_of(db), 2)[0] == ("assistant", "cut", "The platypus is alm")
    assert [hit.conversation for hit in db.search("platypus").hits] == [name]
    assert count(db, RunLate.kind) == 0
