"""The guards that keep a session from having two children, each without the others.

A compaction is refused by what it reads first, by what its commit expects, and by the store itself. Any one of them is
enough, so a test of all three together does not notice when one is gone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenax.errors import HeadMoved, SegmentMoved
from tenax.events import ContextCompacted, ContextSummarised, MessageUser
from tenax.journal.base import Expect, Recorded
from tenax.parts import Text
from tenax.sessions import Compacted, SessionDB, Superseded

SAY = MessageUser([Text("hello")])


@pytest.fixture
def db(store_url: str) -> Iterator[SessionDB]:
    """A store in which the session `p` has messages."""
    with SessionDB(url=store_url) as db:
        db.create_session("p", "test")
        for number in range(4):
            db.append_message("p", role="user", content=f"m{number}")
        yield db


def conversation_of(db: SessionDB) -> str:
    segment = db.journal.segment("p")
    assert segment is not None
    return segment.conversation


def compact(db: SessionDB) -> str:
    outcome = db.rotate("p", summary="first")
    assert isinstance(outcome, Compacted)
    return outcome.session_id


def test_the_first_look_alone_is_enough(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that reads that the session has ended tries no commit."""
    child = compact(db)
    monkeypatch.setattr(
        db.journal, "append", lambda *_args, **_kwargs: pytest.fail("it tried a commit")
    )
    assert db.rotate("p", summary="second") == Superseded(child)


def test_the_expected_head_alone_is_enough(db: SessionDB) -> None:
    """Nothing is stored behind a head that has moved, whatever it is."""
    conversation = conversation_of(db)
    before = db.journal.head(conversation).head
    compact(db)
    after = db.journal.head(conversation).head
    with pytest.raises(HeadMoved):
        db.journal.append(conversation, [SAY], expect=Expect(head=before))
    assert db.journal.head(conversation).head == after


def test_the_expected_session_alone_is_enough(db: SessionDB) -> None:
    """Nothing is stored for a session that is no longer the open one, at whatever head."""
    conversation, child = conversation_of(db), compact(db)
    after = db.journal.head(conversation).head
    with pytest.raises(SegmentMoved) as caught:
        db.journal.append(conversation, [SAY], expect=Expect(segment="p"))
    assert caught.value.by == child
    assert db.journal.head(conversation).head == after


def test_the_store_alone_is_enough(db: SessionDB) -> None:
    """A compaction of a session that has ended is refused also where nobody said what they expect."""
    conversation, child = conversation_of(db), compact(db)
    head = db.journal.head(conversation).head
    second = [
        ContextSummarised([Text("second")], head),
        ContextCompacted("p", "second", head + 1, head, head),
    ]
    with pytest.raises(SegmentMoved) as caught:
        db.journal.append(conversation, second)
    assert caught.value.by == child
    assert db.children("p") == [child]


def test_a_compaction_says_which_head_and_which_session_it_expects(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go with its commit, so that a holder whose lock has run out is refused by either."""
    head = db.journal.head(conversation_of(db)).head
    append, expected = db.journal.append, []

    def noted(
        conversation: str, events: object, *, expect: Expect, **more: object
    ) -> object:
        expected.append(expect)
        return append(conversation, events, expect=expect, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(db.journal, "append", noted)
    compact(db)
    assert expected == [Expect(head=head, segment="p")]


def test_a_holder_that_read_before_the_other_committed_makes_no_second_child(
    db: SessionDB, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is past its first look when the other one commits; its own commit is refused."""
    with SessionDB(url=store_url) as quick:
        read, made = db.journal.read, list[str]()

        def meanwhile(conversation: str, **where: int) -> list[Recorded]:
            if not made:
                made.append(compact(quick))
            return read(conversation, **where)

        monkeypatch.setattr(db.journal, "read", meanwhile)
        assert db.rotate("p", summary="slow") == Superseded(made[0])
        assert db.children("p") == made
