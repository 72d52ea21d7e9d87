"""Views are pure: the same events give the same rows, context and open work, in one piece or in two."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenax.agent.history import History, context_at
from tenax.events import (
    ConversationCleared,
    ConversationRestored,
    ConversationRewound,
    MessageAssistant,
    MessageUser,
    ModelRequested,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from tenax.journal.aio import AsyncJournal
from tenax.journal.base import Recorded
from tenax.parts import Text, ToolCall
from tenax.testing import memory
from tenax.views.context import Context, Message
from tenax.views.open_work import Turns
from tenax.views.transcript import Change, Drop, Grow, Put, Row, Transcript
from tests.agent.driver import OPERATIONS, QUIET, TALK, Driver

_any = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
operations = st.lists(st.sampled_from(OPERATIONS), min_size=5, max_size=45)
seeds = st.integers(0, 2**32)


def folded(events: Sequence[Recorded]) -> tuple[Transcript, Context, Turns]:
    shown, context, turns = Transcript(), Context(), Turns()
    for event in events:
        shown.apply(event)
        context.apply(event)
        turns.apply(event)
    return shown, context, turns


def state_of(context: Context) -> dict[str, Any]:
    """What a runner decides from."""
    return {
        "request": context.request(list(context.waiting)),
        "items": [(each.seqs, each.message, each.person) for each in context.items],
        "epoch": context.epoch,
        "opened": context.opened,
        "used": context.used,
        "kept": context.is_kept,
        "parted": context.parted(context.folded_to),
        "unplaced": context.unplaced,
        "summary": context.summary,
        "waiting": list(context.waiting.items()),
    }


def work_of(turns: Turns) -> dict[str, Any]:
    return {
        "waiting": list(turns.waiting),
        "run": turns.run,
        "resumable": turns.resumable,
        "steers": turns.steers,
    }


def valid(request: list[Message]) -> bool:
    """Whether every call is followed by its results, and every result follows its calls."""
    wanted: list[str] = []
    for each in request:
        if each.role == "results":
            if [part.call for part in each.parts] != wanted:  # type: ignore[union-attr]
                return False
            wanted = []
        elif wanted:
            return False
        else:
            wanted = [
                part.id  # type: ignore[union-attr]
                for part in each.parts
                if type(part).__name__ == "ToolCall"
            ]
    return not wanted


@_any
@given(operations, seeds, st.integers(0, 1000))
def test_folding_in_two_pieces_equals_folding_at_once(
    names: list[str], seed: int, at: int
) -> None:
    """A prefix and then the rest is the same as all of it; looking in between changes nothing."""
    with memory() as journal:
        driver = Driver(journal, random.Random(seed))
        driver.drive(names)
        events = driver.events()
    cut = at % (len(events) + 1)
    first, context, turns = folded(events[:cut])
    looked = first.rows, context.request(list(context.waiting))
    assert looked == (first.rows, context.request(list(context.waiting)))
    for event in events[cut:]:
        first.apply(event)
        context.apply(event)
        turns.apply(event)
    again = folded(events)
    assert first.rows == again[0].rows
    assert state_of(context) == state_of(again[1])
    assert work_of(turns) == work_of(again[2])
    assert valid(context.request(list(context.waiting)))


def replayed(rows: dict[str, Row], changes: list[Change]) -> None:
    """What a page does with a change."""
    for change in changes:
        match change:
            case Put(row):
                rows[row.id] = row
            case Grow(name, offset, text, field):
                held = getattr(rows[name], field)
                assert len(held) == offset
                rows[name] = msgspec.structs.replace(rows[name], **{field: held + text})
            case Drop(name):
                del rows[name]


@_any
@given(operations, seeds)
def test_a_page_that_takes_the_changes_shows_the_rows(
    names: list[str], seed: int
) -> None:
    """put, grow and drop, replayed, are the transcript at every step; every row has one place."""
    with memory() as journal:
        driver = Driver(journal, random.Random(seed))
        driver.drive(names)
        events = driver.events()
    shown, page = Transcript(), dict[str, Row]()
    for event in events:
        replayed(page, shown.apply(event))
        rows = sorted(page.values(), key=lambda row: row.key)
        assert rows == shown.rows
        assert len({row.key for row in rows}) == len(rows)


@_any
@given(st.lists(st.sampled_from(QUIET), min_size=5, max_size=45), seeds)
def test_a_page_that_is_opened_shows_what_a_live_one_shows(
    names: list[str], seed: int
) -> None:
    """The last rows, read from the store, are the last rows of the fold of everything."""
    with memory() as journal:
        driver = Driver(journal, random.Random(seed))
        driver.drive(names)
        live = folded(driver.events())[0].rows
        opened = folded(journal.open(TALK, limit=500))[0].rows
        assert opened == live[len(live) - len(opened) :]
        standing = {row.last for row in journal.rows(TALK, limit=500)}
        assert {int(row.id) for row in live if row.kind == "user"} == {
            seq
            for seq in standing
            if any(e.seq == seq and e.kind == "message.user" for e in driver.events())
        }


@_any
@given(operations, seeds)
def test_a_history_that_is_caught_up_equals_one_that_is_folded_anew(
    names: list[str], seed: int
) -> None:
    """However a conversation came about, a runner that was there and one that comes later decide from the same."""
    asyncio.run(_caught_up(names, seed))


async def _caught_up(names: list[str], seed: int) -> None:
    with memory() as journal:
        facade = AsyncJournal(journal)
        driver = Driver(journal, random.Random(seed))
        history = History(facade, TALK)
        for name in names:
            driver.drive([name])
            await history.catch_up()
            anew = History(facade, TALK)
            await anew.catch_up()
            assert state_of(history.context) == state_of(anew.context), name
            assert work_of(history.turns) == work_of(anew.turns), name
            head = journal.head(TALK)
            assert history.seq == head.head
            assert next(iter(history.turns.waiting), 0) == head.unanswered
            assert valid(history.context.request(list(history.context.waiting)))


@_any
@given(st.lists(st.sampled_from(QUIET), min_size=10, max_size=50), seeds)
def test_within_an_epoch_requests_only_grow_at_their_end(
    names: list[str], seed: int
) -> None:
    """What was requested can be folded again, and the next request of the epoch begins with it, whole."""
    asyncio.run(_growing(names, seed))


async def _growing(names: list[str], seed: int) -> None:
    with memory() as journal:
        facade = AsyncJournal(journal)
        driver = Driver(journal, random.Random(seed))
        history = History(facade, TALK)
        sent: dict[int, list[Message]] = {}
        last: tuple[int, list[Message]] = (-1, [])
        for name in names:
            before = len(driver.requests)
            driver.drive([name])
            for seq in driver.requests[before:]:
                found = journal.fact(TALK, seq)
                assert found is not None
                event = found.event
                assert isinstance(event, ModelRequested)
                await _upto(history, facade, event.folded_to)
                request = history.context.request(event.inputs)
                assert valid(request)
                if last[0] == history.context.epoch:
                    assert request[: len(last[1])] == last[1]
                last = history.context.epoch, request
                sent[seq] = request
            await history.catch_up()
        for seq, request in sent.items():
            event = journal.fact(TALK, seq).event  # type: ignore[union-attr]
            assert isinstance(event, ModelRequested)
            context = await context_at(facade, TALK, event.folded_to)
            for each in event.inputs:
                if (
                    not context.knows(each)
                    and (known := journal.fact(TALK, each)) is not None
                ):
                    context.know(known)
            assert context.request(event.inputs) == request


def test_the_order_of_two_restores_does_not_matter() -> None:
    """An undo in the middle of a step and a later clear are restored, in both orders: the model sees the result again."""
    for undo_first in (True, False):
        with memory() as journal:
            driver = Driver(journal, random.Random(0))
            (asked,) = driver.append(MessageUser([Text("When?")], ask=True))
            driver.append(RunStarted([asked.seq]), run="r")
            call = ToolCall("k", "clock", "{}")
            (called,) = driver.append(MessageAssistant([call]), run="r")
            result = ToolFinished(called.seq, "k", "done", "noon")
            driver.append(result, RunFinished("cancelled"), run="r")
            before = folded(driver.events())[1].request()
            (undo,) = driver.append(ConversationRewound(called.seq))
            (clear,) = driver.append(ConversationCleared())
            assert folded(driver.events())[1].request() == []
            for edit in (undo, clear) if undo_first else (clear, undo):
                driver.append(ConversationRestored(edit.seq))
            assert folded(driver.events())[1].request() == before


async def _upto(history: History, facade: AsyncJournal, seq: int) -> None:
    """Catch a history up as if the journal ended there."""
    for event in await facade.read(TALK, after=history.seq, upto=seq, limit=5000):
        assert history.context.apply(event)
        history.turns.apply(event)
        history.seq = event.seq
