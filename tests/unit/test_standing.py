"""Undo, clear, restore and withdrawal have one meaning, and `Standing` is this meaning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenax.events import (
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    Event,
    MessageWithdrawn,
)
from tenax.journal.standing import EDITS, Standing

_LAST = 40


def standing_after(edits: dict[int, Event]) -> Standing:
    standing = Standing()
    for seq, edit in edits.items():
        standing.apply(seq, edit)
    return standing


def removers(standing: Standing, upto: int) -> list[int]:
    return [standing.removed_by(seq) for seq in range(1, upto + 1)]


def test_an_undo_removes_the_events_after_a_seq() -> None:
    """The edit itself and everything that comes later stands."""
    standing = standing_after({6: ConversationRewound(3)})
    assert removers(standing, 7) == [0, 0, 0, 6, 6, 0, 0]
    assert standing.is_undone(4)
    assert not standing.is_undone(3)


def test_a_clear_removes_all_earlier_events_and_undoes_none() -> None:
    """A memory provider keeps a turn that was cleared, and forgets a turn that was undone."""
    standing = standing_after({4: ConversationCleared()})
    assert removers(standing, 5) == [4, 4, 4, 0, 0]
    assert not standing.is_undone(1)
    assert not standing.all


def test_a_restore_brings_back_what_its_edit_removed_and_nothing_else() -> None:
    """An event that an earlier edit removed stays removed."""
    edits: dict[int, Event] = {5: ConversationRewound(3), 8: ConversationCleared()}
    assert removers(standing_after(edits), 8) == [8, 8, 8, 5, 8, 8, 8, 0]
    edits[9] = ConversationRestored(8)
    standing = standing_after(edits)
    assert removers(standing, 8) == [0, 0, 0, 5, 0, 0, 0, 0]
    assert standing.restored == {8}
    standing.apply(10, ConversationRestored(5))
    assert standing.all


def test_an_event_can_be_removed_again_after_a_restore() -> None:
    """The later edit is the remover then."""
    edits: dict[int, Event] = {
        4: ConversationRewound(1),
        5: ConversationRestored(4),
        6: ConversationRewound(2),
    }
    assert removers(standing_after(edits), 6) == [0, 0, 6, 6, 6, 0]


def test_a_withdrawal_removes_one_message_for_good() -> None:
    """A later undo and its restore, or a restore of the withdrawal, do not bring the message back."""
    edits: dict[int, Event] = {
        5: MessageWithdrawn(3),
        6: ConversationRewound(1),
        7: ConversationRestored(6),
    }
    standing = standing_after(edits)
    assert removers(standing, 7) == [0, 0, 5, 0, 0, 0, 0]
    assert not standing.is_undone(3)


@given(st.lists(st.tuples(st.sampled_from(sorted(EDITS)), st.integers(0, _LAST))))
def test_each_event_has_the_remover_that_the_store_would_mark(
    drawn: list[tuple[str, int]],
) -> None:
    """The ranges of `Standing` and one mark for each row, as the store keeps them, agree after every edit."""
    standing = Standing()
    marks = dict.fromkeys(range(1, _LAST), 0)
    removing: list[int] = []
    for seq, (kind, number) in enumerate(drawn, start=2):
        if kind == ConversationRestored.kind:
            of = removing[number % len(removing)] if removing else 0
            edit: Event = ConversationRestored(of)
            changed = {row: 0 for row, by in marks.items() if by == of}
        elif kind == MessageWithdrawn.kind:
            withdrawn = 1 + number % (seq - 1)
            edit = MessageWithdrawn(withdrawn)
            changed = {withdrawn: marks[withdrawn] or seq}
        else:
            to = number % seq if kind == ConversationRewound.kind else 0
            cleared = kind == ConversationCleared.kind
            edit = ConversationCleared() if cleared else ConversationRewound(to)
            changed = {
                row: seq for row, by in marks.items() if not by and to < row < seq
            }
            removing.append(seq)
        standing.apply(seq, edit)
        marks |= changed
        assert {row: standing.removed_by(row) for row in marks} == marks
