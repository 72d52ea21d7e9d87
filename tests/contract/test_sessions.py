"""SessionDB: sessions, messages, and a compaction that leaves exactly one child."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from tenax.errors import InvalidInput, NoSuchConversation, SessionEnded
from tenax.sessions import AsyncSessionDB, Compacted, SessionDB, Superseded


@pytest.fixture
def db(store_url: str) -> Iterator[SessionDB]:
    with SessionDB(url=store_url) as opened:
        yield opened


def fill(db: SessionDB, session_id: str, count: int = 20) -> None:
    db.create_session(session_id, source="test")
    for number in range(count):
        db.append_message(
            session_id,
            role="user" if number % 2 == 0 else "assistant",
            content=f"m{number}",
        )


def contents(db: SessionDB, session_id: str) -> list[str]:
    return [message["content"] for message in db.get_messages(session_id)]


# -- sessions and messages ---------------------------------------------------------------------------------------


def test_a_session_is_what_was_put_into_it(db: SessionDB) -> None:
    """The id is the caller's own string, and messages come back in order with their fields."""
    db.create_session("tg:42", source="telegram", title="Trip", model="m1")
    db.append_message("tg:42", role="user", content="hello", author="ana")
    db.append_message(
        "tg:42", role="assistant", content=None, tool_calls=[{"id": "c1"}]
    )
    db.append_message(
        "tg:42", role="tool", content="42", tool_call_id="c1", tool_name="add"
    )
    found = db.get_session("tg:42")
    assert found is not None
    assert (
        found["source"],
        found["title"],
        found["model"],
        found["message_count"],
    ) == (
        "telegram",
        "Trip",
        "m1",
        3,
    )
    assert (found["parent_session_id"], found["ended_at"], found["end_reason"]) == (
        None,
        None,
        None,
    )
    assert found["conversation_id"].startswith("c_")
    messages = db.get_messages("tg:42")
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert [message["content"] for message in messages] == ["hello", None, "42"]
    assert messages[0]["author"] == "ana"
    assert messages[1]["tool_calls"] == [{"id": "c1"}]
    assert messages[2]["tool_call_id"] == "c1"


def test_an_unknown_session_is_none_to_look_at_and_refused_to_write_to(
    db: SessionDB,
) -> None:
    """Nothing is made by mistake."""
    assert db.get_session("nobody") is None
    assert db.children("nobody") == []
    with pytest.raises(NoSuchConversation, match="nobody"):
        db.append_message("nobody", role="user", content="x")
    with pytest.raises(NoSuchConversation):
        db.get_messages("nobody")


def test_creating_a_session_again_changes_nothing(db: SessionDB) -> None:
    """Two processes that both create it at the start find one session."""
    fill(db, "s", 3)
    db.create_session("s", source="other", title="Other")
    found = db.get_session("s")
    assert found is not None
    assert (found["source"], found["title"], found["message_count"]) == (
        "test",
        None,
        3,
    )


@pytest.mark.parametrize(
    ("role", "content"),
    [("robot", "x"), ("user", 5), ("user", "a\x00b"), ("user", "\ud800"), ("", "x")],
)
def test_a_bad_message_is_refused_with_a_sentence_and_nothing_is_stored(
    db: SessionDB, role: str, content: object
) -> None:
    """A wrong role, content that is no text, a NUL, half a surrogate pair."""
    db.create_session("s", source="test")
    with pytest.raises(InvalidInput) as caught:
        db.append_message("s", role=role, content=content)
    assert str(caught.value).endswith(".")
    assert db.get_messages("s") == []


def test_parts_of_a_provider_come_back_as_they_were_given(db: SessionDB) -> None:
    """A list of parts is kept whole, and its words can be searched."""
    db.create_session("s", source="test")
    given = [
        {"type": "text", "text": "look here"},
        {"type": "image_url", "image_url": {"url": "data:..."}},
    ]
    db.append_message("s", role="user", content=given)
    assert db.get_messages("s")[0]["content"] == given
    assert db.search("look").hits[0].seq == db.get_messages("s")[0]["id"]


def test_an_ended_session_takes_no_more_messages(db: SessionDB) -> None:
    """Ended by a person is the end; the error says why."""
    fill(db, "s", 2)
    db.end_session("s", "user_exit")
    found = db.get_session("s")
    assert found is not None
    assert found["end_reason"] == "user_exit"
    assert found["ended_at"] is not None
    with pytest.raises(SessionEnded, match="user_exit"):
        db.append_message("s", role="user", content="x")


def test_a_session_that_another_handle_deleted_and_opened_again_takes_messages(
    db: SessionDB, store_url: str
) -> None:
    """A handle that appended before finds the new conversation of the same id."""
    fill(db, "s1", 2)
    before = db.append_message("s1", role="user", content="old").conversation_id
    with SessionDB(url=store_url) as other:
        other.delete_session("s1")
        with pytest.raises(NoSuchConversation, match="no session s1"):
            db.append_message("s1", role="user", content="lost")
        other.create_session("s1", source="test")
    stored = db.append_message("s1", role="user", content="new")
    assert (stored.session_id, stored.conversation_id != before) == ("s1", True)
    assert contents(db, "s1") == ["new"]


def test_undone_messages_do_not_count_and_come_back_on_request(db: SessionDB) -> None:
    """message_count is what stands; undo goes back before the last message of a person."""
    fill(db, "s", 4)
    before = db.get_session("s")
    undone = db.undo("s")
    found = db.get_session("s")
    assert before is not None
    assert found is not None
    assert (found["message_count"], contents(db, "s")) == (2, ["m0", "m1"])
    assert found["revision"] > before["revision"]
    db.restore("s", undone)
    assert contents(db, "s") == ["m0", "m1", "m2", "m3"]


def test_a_cleared_conversation_is_empty_until_it_is_brought_back(
    db: SessionDB,
) -> None:
    """Clear is an event: one call takes it back."""
    fill(db, "s", 4)
    cleared = db.clear("s")
    assert contents(db, "s") == []
    db.append_message("s", role="user", content="new")
    assert contents(db, "s") == ["new"]
    db.restore("s", cleared)
    assert contents(db, "s") == ["m0", "m1", "m2", "m3", "new"]


def test_a_fork_goes_its_own_way(db: SessionDB) -> None:
    """It has what stood up to the seq, and neither side sees what the other does next."""
    fill(db, "s", 4)
    fork = db.fork("s", upto=db.get_messages("s")[1]["id"])
    assert contents(db, fork) == ["m0", "m1"]
    db.append_message(fork, role="user", content="elsewhere")
    assert contents(db, fork) == ["m0", "m1", "elsewhere"]
    assert contents(db, "s") == ["m0", "m1", "m2", "m3"]


def test_the_list_has_titles_pins_and_pages_and_leaves_the_archived_out(
    db: SessionDB,
) -> None:
    """Pinned first, then newest; a page goes on where the last one ended."""
    for number in range(5):
        db.create_session(f"s{number}", source="test", title=f"t{number}")
    db.pin("s1")
    db.archive("s2")
    first = db.list_sessions(limit=2)
    rest = db.list_sessions(after=first[-1].place, limit=10)
    titles = [each.title for each in first + rest]
    assert titles[0] == "t1"
    assert sorted(t for t in titles if t) == ["t0", "t1", "t3", "t4"]
    assert [session.title for session in db.list_sessions(archived=True)] == ["t2"]
    db.delete_session("s1")
    assert db.get_session("s1") is None
    assert "t1" not in [session.title for session in db.list_sessions()]


def test_two_users_of_one_store_may_use_the_same_id_and_see_nothing_of_each_other(
    store_url: str,
) -> None:
    """A session id is the user's own string."""
    with (
        SessionDB(url=store_url, user="ana") as ana,
        SessionDB(url=store_url, user="bo") as bo,
    ):
        ana.create_session("s", source="test")
        ana.append_message("s", role="user", content="the secret of ana")
        assert bo.get_session("s") is None
        bo.create_session("s", source="test")
        bo.append_message("s", role="user", content="hello of bo")
        assert contents(ana, "s") == ["the secret of ana"]
        assert contents(bo, "s") == ["hello of bo"]
        assert bo.search("secret").hits == []
        assert len(bo.list_sessions()) == 1


# -- compaction --------------------------------------------------------------------------------------------------


def test_a_compaction_ends_the_parent_and_opens_one_child_that_names_it(
    db: SessionDB,
) -> None:
    """The parent is ended with reason `compression`; the child's context is the summary and what follows it."""
    fill(db, "p")
    covers = db.get_messages("p")[15]["id"]
    outcome = db.rotate("p", summary="what was said", covers_to=covers)
    assert isinstance(outcome, Compacted)
    parent, child = db.get_session("p"), db.get_session(outcome.session_id)
    assert parent is not None
    assert child is not None
    assert (parent["end_reason"], parent["message_count"]) == ("compression", 20)
    assert child["parent_session_id"] == "p"
    assert child["conversation_id"] == parent["conversation_id"]
    assert db.children("p") == [outcome.session_id]
    assert contents(db, outcome.session_id) == [
        "what was said",
        "m16",
        "m17",
        "m18",
        "m19",
    ]
    assert len(contents(db, "p")) == 20


def race(url: str, body: str) -> list[str]:
    """Run the same code in two processes that begin at the same moment; what each of them printed last."""
    script = textwrap.dedent(
        """
        import sys
        from tenax.sessions import Compacted, SessionDB
        db = SessionDB(url=sys.argv[1])
        who = sys.argv[2]
        db.get_session("p")
        print("ready", flush=True)
        sys.stdin.readline()
        """
    ) + textwrap.dedent(body)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, url, who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in ("a", "b")
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline().strip() == "ready"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    return said


def test_two_threads_that_compact_at_once_leave_one_child(db: SessionDB) -> None:
    """Without any lock: exactly one outcome is Compacted, the other says who was faster and stored nothing."""
    fill(db, "p")
    barrier = threading.Barrier(8)
    outcomes: list[Compacted | Superseded] = []

    def compact() -> None:
        barrier.wait()
        outcomes.append(db.rotate("p", summary="s"))

    threads = [threading.Thread(target=compact) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [outcome for outcome in outcomes if isinstance(outcome, Compacted)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, Superseded)]
    assert db.children("p") == [won.session_id]
    assert [each.by for each in lost] == [won.session_id] * 7


def test_two_processes_that_compact_at_once_leave_one_child(store_url: str) -> None:
    """The commit decides, in the store: no lock was taken by either."""
    with SessionDB(url=store_url) as db:
        fill(db, "p")
        said = race(
            store_url,
            "print(isinstance(db.rotate('p', summary=who), Compacted)); db.close()",
        )
        assert sorted(said) == ["False", "True"]
        assert len(db.children("p")) == 1


def test_two_processes_with_the_lock_pay_for_one_summary(store_url: str) -> None:
    """Who has the lock compacts and gives it back; the other finds it held or comes after the winner."""
    with SessionDB(url=store_url) as db:
        fill(db, "p")
        said = race(
            store_url,
            """
            done = False
            if db.try_acquire_compression_lock("p", who):
                done = isinstance(db.rotate("p", summary=who), Compacted)
                db.release_compression_lock("p", who)
            print(done)
            db.close()
            """,
        )
        assert sorted(said) == ["False", "True"]
        assert len(db.children("p")) == 1
        assert db.get_compression_lock_holder("p") is None


def test_a_holder_that_outlives_its_lease_still_makes_no_second_child(
    db: SessionDB,
) -> None:
    """The lock saves money; it is the commit that forbids a fork."""
    fill(db, "p")
    assert db.try_acquire_compression_lock("p", "slow", ttl_seconds=0.01)
    while not db.try_acquire_compression_lock("p", "quick", ttl_seconds=60):
        pass
    assert isinstance(db.rotate("p", summary="quick"), Compacted)
    late = db.rotate("p", summary="slow")
    assert isinstance(late, Superseded)
    assert db.children("p") == [late.by]
    db.release_compression_lock("p", "slow")
    assert db.get_compression_lock_holder("p") == "quick"


def test_the_lock_is_one_holders_and_is_given_back_by_name(store_url: str) -> None:
    """Held is held, also for the same name; another process can give back what its name holds."""
    with SessionDB(url=store_url) as one, SessionDB(url=store_url) as two:
        one.create_session("p", source="test")
        assert one.try_acquire_compression_lock("p", "a") is True
        assert two.try_acquire_compression_lock("p", "b") is False
        assert two.get_compression_lock_holder("p") == "a"
        two.release_compression_lock("p", "b")
        assert one.get_compression_lock_holder("p") == "a"
        two.release_compression_lock("p", "a")
        assert one.get_compression_lock_holder("p") is None
        assert two.try_acquire_compression_lock("p", "b") is True


@pytest.mark.parametrize("ttl", [0, -1, 60.0, 1e12])
def test_a_lock_is_had_for_any_time_and_any_session(db: SessionDB, ttl: float) -> None:
    """None at all means that it is free again at once; a session's id may be as long as an id may be."""
    for session in ("p", "x" * 200):
        db.create_session(session, source="test")
        assert db.try_acquire_compression_lock(session, "a", ttl_seconds=ttl) is True
        assert db.get_compression_lock_holder(session) == ("a" if ttl > 0 else None)
        assert db.try_acquire_compression_lock(session, "b") is (ttl <= 0)


def test_what_others_appended_meanwhile_stays_in_the_live_context(
    store_url: str,
) -> None:
    """A message that another process stored while the summary was written stands after it, in the child."""
    with SessionDB(url=store_url) as db, SessionDB(url=store_url) as other:
        fill(db, "p")
        folded = db.get_messages("p")[-1]["id"]
        other.append_message("p", role="user", content="meanwhile")
        outcome = db.rotate("p", summary="s", covers_to=folded, folded_to=folded)
        assert isinstance(outcome, Compacted)
        assert contents(db, outcome.session_id) == ["s", "meanwhile"]


def test_messages_that_only_the_caller_has_are_stored_in_the_same_commit(
    db: SessionDB,
) -> None:
    """A caller with a list of its own can compact; the parent has it all afterwards."""
    db.create_session("p", source="test")
    own = [{"role": "user", "content": f"m{number}"} for number in range(20)]
    outcome = db.rotate("p", summary="s", messages=own)
    assert isinstance(outcome, Compacted)
    assert contents(db, "p") == [each["content"] for each in own]
    assert contents(db, outcome.session_id) == ["s"]


def test_an_undo_during_the_summary_wins_over_the_compaction(db: SessionDB) -> None:
    """Otherwise the undone text would come back in the summary, for ever. The parent stays open, untouched."""
    fill(db, "p", 6)
    folded = db.get_messages("p")[-1]["id"]
    db.undo("p")
    assert isinstance(
        db.rotate("p", summary="s", covers_to=folded, folded_to=folded), Superseded
    )
    found = db.get_session("p")
    assert found is not None
    assert (found["ended_at"], db.children("p")) == (None, [])


def test_a_message_for_the_parent_is_stored_at_the_head_and_says_so(
    db: SessionDB,
) -> None:
    """No orphan can collect silent writes: a conversation has one journal."""
    fill(db, "p", 4)
    outcome = db.rotate("p", summary="s")
    assert isinstance(outcome, Compacted)
    stored = db.append_message("p", role="user", content="late")
    assert stored.session_id == outcome.session_id
    assert contents(db, outcome.session_id)[-1] == "late"
    parent = db.get_session("p")
    assert parent is not None
    assert parent["message_count"] == 4


def test_output_of_a_run_that_is_gone_is_accepted_late_and_once(db: SessionDB) -> None:
    """Each event has its place in its run; a seal ends it; an unknown kind is refused."""
    fill(db, "s", 2)
    for kind in ("token", "tool", "tool_complete", "token"):
        db.append_run_event("s", "r1", kind, {"text": kind})
    db.append_run_event("s", "r1", "stream_end", {})
    found = db.get_session("s")
    assert found is not None
    events = [e for e in db.journal.read(found["conversation_id"]) if e.run == "r1"]
    assert [e.kind for e in events] == ["run.late"] * 4 + ["run.sealed"]
    assert [getattr(e.event, "index", None) for e in events[:4]] == [0, 1, 2, 3]
    assert found["message_count"] == 2
    with pytest.raises(InvalidInput, match="stream_end"):
        db.append_run_event("s", "r1", "song", {})


async def test_the_async_twin_has_the_same_methods(store_url: str) -> None:
    """AsyncSessionDB(db) awaits what SessionDB does; the one behind it is `_db`."""
    db = SessionDB(url=store_url)
    twin = AsyncSessionDB(db)
    public = {name for name in vars(SessionDB) if not name.startswith("_")}
    assert public == {name for name in vars(AsyncSessionDB) if not name.startswith("_")}
    assert twin._db is db  # noqa: SLF001  (a contract fixes this name)
    await twin.create_session("s", source="test")
    await twin.append_message("s", role="user", content="hello")
    found = await twin.get_session("s")
    assert found is not None
    assert found["message_count"] == 1
    await twin.close()
