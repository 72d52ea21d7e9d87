"""What the contract asks of an engine's test file, and the few words its tests are written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import TypeVar

import pytest

from tenax.clock import Clock
from tenax.errors import StoreMisused, StoreUnavailable, TenaxError
from tenax.events import (
    ContextCompacted,
    ContextSummarised,
    ConversationOpened,
    Event,
    MessageAssistant,
    MessageUser,
    ReplyDelta,
    Unknown,
)
from tenax.journal import Journal
from tenax.journal.base import Lease, Reader, Recorded
from tenax.journal.check import verify
from tenax.journal.store import Trouble
from tenax.parts import Text
from tenax.testing.clock import SimClock

__all__ = [
    "Engine",
    "answer",
    "begin",
    "compact",
    "delta",
    "refused",
    "said",
    "say",
    "standing",
    "take_reader",
    "texts",
    "words",
]

_numbers = count(1)
ErrorT = TypeVar("ErrorT", bound=TenaxError)


class Engine:
    """How an engine is made and how its time passes. Override `journal`; the rest where it differs."""

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock that the journal is opened with."""
        return SimClock()

    @pytest.fixture
    def journal(self, clock: Clock) -> Iterator[Journal]:
        """An empty store, open for the user `ada`."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def sound(self, journal: Journal) -> Iterator[None]:
        """Whatever a test did, the store proves itself afterwards."""
        yield
        with suppress(StoreMisused):  # the test closed it
            assert [str(problem) for problem in verify(journal).problems] == []

    @pytest.fixture
    def another(self, journal: Journal) -> Journal:
        """The same user in another process; where there can be none, another handle."""
        return journal.of(journal.user)

    @pytest.fixture
    def pass_time(self, clock: Clock) -> Callable[[float], None]:
        """Let this many seconds pass, for the journal's clock and for the store's."""
        assert isinstance(clock, SimClock)
        return clock.advance

    @pytest.fixture
    def reconnect(self, journal: Journal) -> Callable[[], None]:
        """Lose the connection to the store, and get it back."""
        return lambda: journal.store.recover(Trouble(StoreUnavailable("The store was away.")))

    @pytest.fixture
    def leave_behind(self, journal: Journal) -> Callable[[str], Lease]:
        """Claim this lease for an hour in a process that then dies without a word."""
        raise NotImplementedError


def begin(journal: Journal, *events: Event, name: str | None = None) -> str:
    """A new conversation, with these events in it. Its first stretch is called `s-` and its name."""
    conversation = name or f"c-{next(_numbers)}"
    journal.append(conversation, [ConversationOpened(journal.user or "", f"s-{conversation}"), *events])
    return conversation


def say(text: str, *, ask: bool = False) -> MessageUser:
    """A person's message."""
    return MessageUser([Text(text)], ask=ask)


def answer(text: str, *, request: int = 0) -> MessageAssistant:
    """An answer."""
    return MessageAssistant([Text(text)], request=request)


def delta(request: int, offset: int, text: str) -> ReplyDelta:
    """A piece of an answer."""
    return ReplyDelta(request, offset, text)


def words(event: Event | Unknown) -> str:
    """The text of a message; of anything else, its kind."""
    parts = getattr(event, "parts", None)
    return event.kind if parts is None else "".join(part.text for part in parts if isinstance(part, Text))


def texts(recorded: list[Recorded]) -> list[str]:
    """The text of messages, and of anything else its kind."""
    return [words(each.event) for each in recorded]


def said(journal: Journal, conversation: str) -> list[str]:
    """The messages that stand."""
    return texts(journal.messages(conversation))


def standing(journal: Journal, conversation: str) -> list[tuple[int, str]]:
    """The rows that stand: where, and whose."""
    return [(row.last, row.role) for row in journal.rows(conversation)]


def compact(
    journal: Journal,
    conversation: str,
    covers_to: int,
    *,
    parent: str,
    child: str,
    folded_to: int | None = None,
) -> list[Recorded]:
    """Compact up to a seq, from what stood at `folded_to` (now, if it is not said)."""
    head = journal.head(conversation).head
    summary = ContextSummarised([Text(f"summary up to {covers_to}")], covers_to)
    moved = ContextCompacted(parent, child, head + 1, covers_to, head if folded_to is None else folded_to)
    return journal.append(conversation, [summary, moved])


def take_reader(journal: Journal, reader: Reader, conversation: str) -> Lease:
    """The lease under which a reader works."""
    lease = journal.claim(f"reader:{reader.name}:{conversation}", "tester", 60)
    assert lease is not None
    return lease


@contextmanager
def refused(
    journal: Journal, conversation: str | None, error: type[ErrorT]
) -> Iterator[pytest.ExceptionInfo[ErrorT]]:
    """What happens inside raises this error, with a sentence, and changes nothing in the conversation."""

    def state() -> object:
        if conversation is None:
            return [each.conversation for each in journal.conversations()]
        seen = [(each.seq, each.kind, each.body, each.digest) for each in journal.read(conversation)]
        return journal.head(conversation), seen, standing(journal, conversation)

    before = state()
    with pytest.raises(error) as caught:
        yield caught
    assert str(caught.value).endswith("."), f"not a sentence: {caught.value}"
    assert state() == before
