"""Compaction by a caller with a SessionDB: one child, whoever else is at it, and nothing lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tenax.agent import (
    Aborted,
    Busy,
    Compacted,
    NothingToDo,
    Outcome,
    Superseded,
    compact,
)
from tenax.errors import InvalidInput
from tenax.events import (
    MessageAssistant,
    MessageUser,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from tenax.parts import Text, ToolCall, text_of
from tenax.sessions import AsyncSessionDB, SessionDB
from tenax.views.context import Context
from tests.contract.test_sessions import contents, fill, race
from tests.support.children import Child, Teller

COMPACT = """
from tenax.agent import Compacted, compact
calls = []
def summarise(messages):
    calls.append(len(messages))
    return f"summary of {who}"
"""
TELL = """
print(isinstance(outcome, Compacted), outcome.session_id != "p", len(outcome.messages), len(calls))
db.close()
"""


@pytest.fixture
def db(store_url: str) -> Iterator[SessionDB]:
    with SessionDB(url=store_url) as opened:
        yield opened


class Summary:
    """A summariser that counts how often it is asked, and does something meanwhile."""

    def __init__(
        self, words: str = "in short", meanwhile: Callable[[], object] | None = None
    ) -> None:
        self.words = words
        self.meanwhile = meanwhile
        self.asked: list[list[Any]] = []

    def __call__(self, messages: list[Mapping[str, Any]]) -> str:
        self.asked.append(messages)
        if self.meanwhile is not None:
            self.meanwhile()
        return self.words


class Odd:
    """A store whose lock methods are not what they were."""

    def __init__(self, db: SessionDB, error: BaseException) -> None:
        self._db = db
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if not name.endswith(("compression_lock", "compression_lock_holder")):
            return getattr(self._db, name)
        if isinstance(self._error, AttributeError):
            raise self._error

        def broken(*args: Any, **kwargs: Any) -> Any:
            raise self._error

        return broken


def append(teller: Teller, url: str, session: str, words: str) -> None:
    """Another process that writes to the session."""
    with SessionDB(url=url) as db:
        db.append_message(session, role="user", content=words)
    teller.tell("done")


def elsewhere(url: str, words: str) -> None:
    """A message from another process, which is stored when this returns."""
    assert Child(append, url, "p", words).finish() == 0


def one_child(db: SessionDB) -> str:
    """The one child of the session, and nobody holds the lock."""
    (child,) = db.children("p")
    parent, found = db.get_session("p"), db.get_session(child)
    assert parent is not None
    assert found is not None
    assert (parent["end_reason"], found["parent_session_id"]) == ("compression", "p")
    assert db.get_compression_lock_holder("p") is None
    return child


# -- two at once ---------------------------------------------------------------------------------------------------


def test_two_threads_that_compact_at_once_leave_one_child_and_one_of_them_keeps_its_id(
    db: SessionDB,
) -> None:
    """The winner goes on in the child; the loser has its own list back, and asked no model."""
    fill(db, "p")
    own = [db.get_messages("p"), db.get_messages("p")]
    barrier, outcomes, summary = threading.Barrier(2), dict[int, Outcome](), Summary()

    def work(number: int) -> None:
        barrier.wait()
        outcomes[number] = compact(db, "p", own[number], summarise=summary)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [
        number for number, each in outcomes.items() if isinstance(each, Compacted)
    ]
    lost = outcomes[1 - won]
    assert isinstance(lost, Busy | Superseded)
    assert (lost.session_id, lost.messages) == ("p", own[1 - won])
    assert outcomes[won].session_id == one_child(db)
    assert len(summary.asked) == 1


def test_two_processes_that_compact_at_once_leave_one_child_and_one_of_them_keeps_its_id(
    store_url: str,
) -> None:
    """The same, each with a store of its own."""
    with SessionDB(url=store_url) as db:
        fill(db, "p")
        said = race(
            store_url,
            f"{COMPACT}\noutcome = compact(db, 'p', summarise=summarise)\n{TELL}",
        )
        assert sorted(line.split()[:3] for line in said) == [
            ["False", "False", "20"],
            ["True", "True", "5"],
        ]
        one_child(db)


def test_two_processes_without_any_lock_still_leave_one_child(store_url: str) -> None:
    """Both pay for a summary; the commit decides, and the loser is as it was."""
    body = f"""{COMPACT}
class NoLock:
    def __getattr__(self, name):
        if "compression_lock" in name:
            raise AttributeError(name)
        return getattr(db, name)
outcome = compact(NoLock(), "p", summarise=summarise)
{TELL}"""
    with SessionDB(url=store_url) as db:
        fill(db, "p")
        said = race(store_url, body)
        assert sorted(line.split()[:3] for line in said) == [
            ["False", "False", "20"],
            ["True", "True", "5"],
        ]
        one_child(db)


def test_one_that_comes_after_the_winner_is_done_is_told_and_asks_no_model(
    db: SessionDB,
) -> None:
    """It keeps its id and its list in that call, and learns where the conversation goes on."""
    fill(db, "p")
    won = compact(db, "p", summarise=Summary())
    summary, own = Summary(), db.get_messages("p")
    late = compact(db, "p", own, summarise=summary)
    assert isinstance(late, Superseded)
    assert (late.session_id, late.by, summary.asked) == ("p", won.session_id, [])
    assert late.messages is own
    one_child(db)


def test_a_holder_that_outlives_its_lock_loses_to_the_one_that_came_after(
    db: SessionDB,
) -> None:
    """The lock was given to another meanwhile: its summary is committed, and the slow one's is not."""
    fill(db, "p")
    quick: list[Outcome] = []

    def other() -> None:
        holder = db.get_compression_lock_holder("p")
        assert holder is not None
        db.release_compression_lock("p", holder)  # as when its time is up
        quick.append(compact(db, "p", summarise=Summary("the quick one")))

    slow = compact(db, "p", summarise=Summary("the slow one", other))
    assert isinstance(slow, Superseded)
    assert isinstance(quick[0], Compacted)
    assert contents(db, one_child(db))[0] == "the quick one"


# -- the lock -------------------------------------------------------------------------------------------------------


def test_a_lock_that_somebody_else_holds_means_no_model_is_asked(db: SessionDB) -> None:
    """The messages come back as they were, the id too, and the lock stays with its holder."""
    fill(db, "p")
    assert db.try_acquire_compression_lock("p", "somebody")
    summary, own = Summary(), db.get_messages("p")
    outcome = compact(db, "p", own, summarise=summary)
    assert isinstance(outcome, Busy)
    assert (outcome.messages, outcome.session_id, summary.asked) == (own, "p", [])
    assert db.children("p") == []
    assert db.get_compression_lock_holder("p") == "somebody"


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("try_acquire"),
        RuntimeError("broken"),
        TypeError("an old signature"),
        OSError("away"),
    ],
    ids=["missing", "broken", "of another version", "away"],
)
def test_without_a_lock_it_compacts_once_and_says_what_to_do(
    db: SessionDB, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the lock methods do, the session rotates, nothing is raised, and one line of the log tells the way on."""
    fill(db, "p")
    summary = Summary()
    with caplog.at_level(logging.WARNING, "tenax"):
        outcome = compact(Odd(db, error), "p", db.get_messages("p"), summarise=summary)
    assert isinstance(outcome, Compacted)
    assert outcome.session_id == one_child(db)
    assert len(outcome.messages) < 20
    assert len(summary.asked) == 1
    (line,) = [record for record in caplog.records if record.name.startswith("tenax")]
    assert "Restart Tenax" in line.getMessage()


# -- nothing is lost ------------------------------------------------------------------------------------------------


def test_messages_that_are_only_in_the_callers_list_are_stored_and_covered(
    db: SessionDB,
) -> None:
    """A caller that stored nothing so far can compact; the parent has it all afterwards."""
    db.create_session("p", source="test")
    roles = ("user", "assistant")
    own = [{"role": roles[n % 2], "content": f"m{n}"} for n in range(20)]
    outcome = compact(db, "p", own, summarise=Summary())
    assert isinstance(outcome, Compacted)
    assert contents(db, "p") == [each["content"] for each in own]
    assert contents(db, one_child(db)) == ["in short", "m16", "m17", "m18", "m19"]
    assert outcome.messages[1:] == own[16:]


@pytest.mark.parametrize("facade", [False, True])
def test_going_on_with_the_list_that_came_back_stores_nothing_twice(
    db: SessionDB, facade: bool
) -> None:
    """A caller goes on with the outcome's messages and compacts those again, also over the async facade."""
    db.create_session("p", source="test")
    session, own, said = "p", [], []
    for n in range(24):
        message = {"role": ("user", "assistant")[n % 2], "content": f"m{n}"}
        own.append(message)
        said.append(message["content"])
        stored = db.append_message(session, **message)
        if n % 8 == 7:
            outcome = compact(
                AsyncSessionDB(db) if facade else db, session, own, summarise=Summary()
            )
            assert isinstance(outcome, Compacted)
            session, own = outcome.session_id, list(outcome.messages)
            assert contents(db, session)[1:] == [each["content"] for each in own[1:]]
    found = [each.event for each in db.journal.messages(stored.conversation_id)]
    assert [
        text_of(each.parts)
        for each in found
        if isinstance(each, MessageUser | MessageAssistant)
    ] == said


def test_what_another_process_wrote_meanwhile_stays_in_the_live_context(
    store_url: str,
) -> None:
    """While the summary was being written; it stands after it, in the child."""
    with SessionDB(url=store_url) as db:
        fill(db, "p")
        outcome = compact(
            db,
            "p",
            summarise=Summary(meanwhile=lambda: elsewhere(store_url, "meanwhile")),
        )
        assert isinstance(outcome, Compacted)
        assert contents(db, one_child(db)) == [
            "in short",
            "m16",
            "m17",
            "m18",
            "m19",
            "meanwhile",
        ]
        assert outcome.messages[1:] == db.get_messages(one_child(db))[1:]


def test_what_another_process_wrote_is_not_buried_by_messages_of_the_callers_own(
    store_url: str,
) -> None:
    """The caller's are stored after it, and are in the summary; the other's is not, so nothing covers it."""
    with SessionDB(url=store_url) as db:
        fill(db, "p", 4)
        own = [
            *db.get_messages("p"),
            *({"role": "user", "content": f"own {n}"} for n in range(12)),
        ]
        outcome = compact(
            db,
            "p",
            own,
            summarise=Summary(meanwhile=lambda: elsewhere(store_url, "meanwhile")),
        )
        assert isinstance(outcome, Compacted)
        assert "meanwhile" in contents(db, one_child(db))
        assert told(outcome) == contents(db, one_child(db))[1:]
        assert contents(db, "p")[4:] == ["meanwhile", *(f"own {n}" for n in range(12))]


def told(outcome: Compacted) -> list[Any]:
    """What the caller goes on with, after the summary."""
    return [message["content"] for message in outcome.messages[1:]]


def tokens(messages: list[Any]) -> int:
    return sum(len(message["content"]) // 4 + 4 for message in messages)


@pytest.mark.parametrize("stored", [0, 7])
def test_what_another_wrote_before_and_the_caller_has_not_read_stays_in_the_live_context(
    db: SessionDB, stored: int
) -> None:
    """The caller's list goes on without it, so the summary does not know it either."""
    db.create_session("p", source="test")
    own = [{"role": "user", "content": f"m{n}"} for n in range(20)]
    for message in own[:stored]:
        db.append_message("p", **message)
    for words in ("before", "and more"):
        db.append_message("p", role="assistant", content=words)
    outcome = compact(db, "p", own, summarise=Summary())
    assert isinstance(outcome, Compacted)
    assert contents(db, one_child(db))[:3] == ["in short", "before", "and more"]
    assert told(outcome) == contents(db, one_child(db))[1:]
    assert outcome.messages[-4:] == own[16:]
    assert outcome.tokens_after == tokens([{"content": "in short"}]) - 4 + tokens(
        outcome.messages[1:]
    )
    assert outcome.tokens_before == tokens([*own, *outcome.messages[1:3]])
    again = compact(
        db, outcome.session_id, outcome.messages, summarise=Summary("shorter")
    )
    assert isinstance(again, Compacted)  # now the caller's list and the store are one
    assert told(again) == [f"m{n}" for n in range(16, 20)]
    assert sorted(contents(db, "p")) == sorted(
        [each["content"] for each in own] + ["before", "and more"]
    )


def test_an_undo_while_the_summary_is_written_wins(db: SessionDB) -> None:
    """Otherwise what was taken back would come back in the summary, for ever."""
    fill(db, "p")
    outcome = compact(
        db,
        "p",
        summarise=Summary(
            meanwhile=lambda: db.undo("p", db.get_messages("p")[3]["id"])
        ),
    )
    assert isinstance(outcome, Superseded)
    assert (outcome.session_id, len(outcome.messages), db.children("p")) == (
        "p",
        20,
        [],
    )
    assert contents(db, "p") == ["m0", "m1", "m2", "m3"]
    assert db.get_compression_lock_holder("p") is None


def _raises(messages: list[Any]) -> str:
    raise RuntimeError("no model")


@pytest.mark.parametrize(
    "summarise",
    [
        _raises,
        lambda messages: "",
        lambda messages: " \n",
        lambda messages: None,
        lambda messages: "long " * 999,
    ],
    ids=["raises", "empty", "blank", "nothing", "longer"],
)
def test_a_summary_that_is_none_changes_nothing(db: SessionDB, summarise: Any) -> None:
    """The outcome says why; every message is there, the session goes on, and nobody holds the lock."""
    fill(db, "p")
    own = db.get_messages("p")
    outcome = compact(db, "p", own, summarise=summarise)
    assert isinstance(outcome, Aborted)
    assert outcome.why.endswith((".", "no model"))
    assert (outcome.messages, outcome.session_id, db.children("p")) == (own, "p", [])
    assert db.get_messages("p") == own
    assert db.get_compression_lock_holder("p") is None


def test_a_short_session_is_left_alone(db: SessionDB) -> None:
    """There is nothing that a summary could stand for."""
    fill(db, "p", 4)
    summary = Summary()
    assert isinstance(compact(db, "p", summarise=summary), NothingToDo)
    assert summary.asked == []
    assert isinstance(
        compact(
            db, "nobody", [{"role": "user", "content": "x"}] * 9, summarise=summary
        ),
        Aborted,
    )


def test_a_long_work_on_one_request_is_made_shorter_too(db: SessionDB) -> None:
    """Many steps after a single message of the person, and again after what came of that."""
    db.create_session("p", source="test")
    session, own = "p", [{"role": "user", "content": "do it"}]
    for length in (20, 8):
        for n in range(length):
            own += [
                {"role": "assistant", "content": f"call {n}"},
                {"role": "tool", "content": f"result {n}"},
            ]
        summary = Summary()
        outcome = compact(db, session, own, summarise=summary)
        assert isinstance(outcome, Compacted)
        assert summary.asked == [own[:-4]]
        assert outcome.messages[1:] == own[-4:]
        session, own = outcome.session_id, list(outcome.messages)


def test_a_key_is_not_carried_on_by_a_summary(db: SessionDB) -> None:
    """What looks like a secret is taken out of the words before they are stored."""
    fill(db, "p")
    outcome = compact(
        db, "p", summarise=Summary("the key is sk-abcdefghijklmnop1234, do not tell")
    )
    assert isinstance(outcome, Compacted)
    assert contents(db, one_child(db))[0] == "the key is [redacted], do not tell"


@pytest.mark.parametrize("stored", [0, 9])
@pytest.mark.parametrize("keep", [0, -1])
def test_a_caller_may_keep_nothing(db: SessionDB, keep: int, stored: int) -> None:
    """After a long work on one request the summary then stands for all."""
    db.create_session("p", source="test")
    work = [
        {"role": "assistant" if n else "user", "content": f"m{n}" * 9} for n in range(9)
    ]
    if stored:
        db.append_messages("p", work[:stored])
    outcome = compact(db, "p", work, summarise=Summary(), keep=keep)
    assert isinstance(outcome, Compacted)
    assert len(outcome.messages) == 1
    assert contents(db, one_child(db)) == ["in short"]


@pytest.mark.parametrize(
    "messages",
    [["m0"] * 9, [None] * 9, "m0 m1 m2", {"role": "user", "content": "m0"}, 9],
)
def test_what_are_no_messages_is_refused_with_a_sentence(
    db: SessionDB, messages: Any
) -> None:
    """Nothing is stored, no model is asked, and the lock is free."""
    fill(db, "p", 4)
    summary = Summary()
    with pytest.raises(InvalidInput):
        compact(db, "p", messages, summarise=summary)
    with pytest.raises(InvalidInput):
        db.append_messages("p", messages)
    assert (len(db.get_messages("p")), summary.asked) == (4, [])
    assert db.get_compression_lock_holder("p") is None


def test_a_call_is_never_parted_from_its_result(db: SessionDB) -> None:
    """Neither among messages that a program stored nor among those of a run, whose results are no messages."""
    db.create_session("p", source="test")
    conversation = str((db.get_session("p") or {})["conversation_id"])
    for number in range(6):
        (asked,) = db.journal.append(
            conversation, [MessageUser([Text(f"question {number}")], ask=True)]
        )
        run = f"r{number}"
        db.journal.append(conversation, [RunStarted([asked.seq])], run=run)
        call = ToolCall(f"call{number}", "clock", "{}")
        (step,) = db.journal.append(conversation, [MessageAssistant([call])], run=run)
        done = ToolFinished(step.seq, call.id, "done", f"noon {number}")
        db.journal.append(
            conversation, [done, MessageAssistant([Text("It is noon.")])], run=run
        )
        db.journal.append(conversation, [RunFinished("completed")], run=run)
    for keep in (3, 2, 5):
        (head,) = [db.journal.head(conversation).segment]
        assert isinstance(
            compact(db, head or "", summarise=Summary(), keep=keep), Compacted
        )
        context = Context()
        for event in db.journal.read(conversation):
            context.apply(event)
        roles = [each.role for each in context.request()]
        for n, role in enumerate(roles):
            assert role != "results" or roles[n - 1] == "assistant", roles
        for number in range(6, 9):
            db.append_message(head or "", role="user", content=f"more {keep} {number}")
            db.append_message(head or "", role="assistant", content="yes")
