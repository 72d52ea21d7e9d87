"""What the contract asks of an engine's test file, and the few words its tests are written in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from typing import Literal, TypeVar

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
    RunFinished,
    RunStarted,
    Unknown,
)
from tenax.journal import Journal
from tenax.journal.base import Lease, Reader, Recorded
from tenax.journal.store import Trouble
from tenax.journal.verify.store import verify
from tenax.parts import Text
from tenax.testing.clock import SimClock

__all__ = [
    "Engine",
    "answer",
    "at_once",
    "begin",
    "compact",
    "delta",
    "every_call",
    "refused",
    "said",
    "say",
    "standing",
    "take",
    "take_reader",
    "texts",
    "turn",
    "words",
]

_numbers = count(1)
ErrorT = TypeVar("ErrorT", bound=TenaxError)
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
Outcome = Literal["completed", "failed", "cancelled", "interrupted"]


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
        return lambda: journal.store.recover(
            Trouble(StoreUnavailable("The store was away."))
        )

    @pytest.fixture
    def leave_behind(self, journal: Journal) -> Callable[[str], Lease]:
        """Claim this lease for an hour in a process that then dies without a word."""
        raise NotImplementedError


def begin(journal: Journal, *events: Event, name: str | None = None) -> str:
    """A new conversation, with these events in it. Its first segment is called `s-` and its name."""
    conversation = name or f"c-{next(_numbers)}"
    journal.append(
        conversation,
        [ConversationOpened(journal.user or "", f"s-{conversation}"), *events],
    )
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
    return (
        event.kind
        if parts is None
        else "".join(part.text for part in parts if isinstance(part, Text))
    )


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
    moved = ContextCompacted(
        parent, child, head + 1, covers_to, head if folded_to is None else folded_to
    )
    return journal.append(conversation, [summary, moved])


def take(
    journal: Journal,
    name: str,
    holder: str = "me",
    seconds: float = 60,
    *,
    take_over: bool = False,
) -> Lease:
    """A lease that is to be had."""
    lease = journal.claim(name, holder, seconds, take_over=take_over)
    assert lease is not None
    return lease


def take_reader(journal: Journal, reader: Reader, conversation: str) -> Lease:
    """The lease under which a reader works."""
    return take(journal, f"reader:{reader.name}:{conversation}", "tester")


def turn(journal: Journal, name: str, run: str, outcome: Outcome = "completed") -> int:
    """A question, a run and its answer; the seq at which the turn was finished."""
    journal.append(name, [say("q"), RunStarted()], run=run)
    return journal.append(name, [answer("a"), RunFinished(outcome)], run=run)[-1].seq


def at_once(
    work: Callable[[ItemT], ResultT], items: Collection[ItemT]
) -> list[ResultT]:
    """What this does with each of the items, in a thread each that all begin at the same moment."""
    start = threading.Barrier(len(items))

    def begun(item: ItemT) -> ResultT:
        start.wait()
        return work(item)

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(begun, items))


def every_call(journal: Journal, conversation: str) -> list[Callable[[], object]]:
    """All that can be asked of a conversation."""
    reader = Reader("index")
    lease = take(journal, "reader:index")
    return [
        lambda: journal.append(conversation, [say("x")]),
        lambda: journal.read(conversation),
        lambda: journal.head(conversation),
        lambda: journal.rows(conversation),
        lambda: journal.open(conversation),
        lambda: journal.messages(conversation),
        lambda: journal.fact(conversation, 2),
        lambda: journal.summary(conversation),
        lambda: journal.run(conversation, "r"),
        lambda: journal.search("secret", conversation=conversation),
        lambda: journal.wait(conversation, 0, seconds=0),
        lambda: next(iter(journal.tail(conversation))),
        lambda: journal.cursor(reader, conversation),
        lambda: journal.advance(reader, conversation, 2, was=0, lease=lease),
        lambda: journal.defer(reader, conversation, seconds=9, error="", lease=lease),
        lambda: journal.fork(conversation),
        lambda: journal.erase(conversation, [2], by="me"),
        lambda: journal.delete(conversation),
        lambda: journal.prune(conversation),
    ]


@contextmanager
def refused(
    journal: Journal, conversation: str | None, error: type[ErrorT]
) -> Iterator[pytest.ExceptionInfo[ErrorT]]:
    """What happens inside raises this error, with a sentence, and changes nothing in the conversation."""

    def state() -> object:
        if conversation is None:
            return [summary.conversation for summary in journal.conversations()]
        seen = [
            (event.seq, event.kind, event.body, event.digest)
            for event in journal.read(conversation)
        ]
        return journal.head(conversation), seen, standing(journal, conversation)

    before = state()
    with pytest.raises(error) as caught:
        yield caught
    assert str(caught.value).endswith("."), f"not a sentence: {caught.value}"
    assert state() == before
